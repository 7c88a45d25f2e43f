"""Threads for requests to the store and for decoding what it sends.

Two things differ from the standard library's pool, which is made for work that a program wants finished: nothing here
makes a process wait at its exit, such as uploads to a store that does not answer; and work is still taken when the main
thread has ended, for threads that go on.
"""

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

Job = tuple["Future[Any]", Callable[[], Any]]


class Pool(Executor):
    """At most threads_max daemon threads, each made when it is needed first; they end when this is dropped."""

    def __init__(self, threads_max: int, name: str) -> None:
        self._threads_max = threads_max
        self._name = name
        self._crew = _Crew()
        weakref.finalize(self, self._crew.stop)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Have fn called by a thread, after what was submitted before; raise RuntimeError after `shutdown`."""
        future: Future[T] = Future()
        crew = self._crew
        with crew.lock:
            if crew.is_stopped:
                raise RuntimeError("this pool was shut down")
            if crew.idle:
                crew.idle -= 1
            elif len(crew.threads) < self._threads_max:
                thread = threading.Thread(target=_work, args=(crew,), name=self._name, daemon=True)
                thread.start()
                crew.threads.append(thread)
            crew.jobs.put((future, partial(fn, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more work, and end the threads after what they have, which is not cancelled; idempotent."""
        self._crew.stop()
        for thread in self._crew.threads if wait else ():
            if thread is not threading.current_thread():
                thread.join()


class _Crew:
    """What the threads share; it does not refer to `Pool`, so that one can be dropped."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # Taken again by a finalizer that runs inside of it.
        self.jobs: SimpleQueue[Job | None] = SimpleQueue()
        self.threads: list[threading.Thread] = []
        self.idle = 0
        self.is_stopped = False

    def stop(self) -> None:
        with self.lock:
            if not self.is_stopped:
                self.is_stopped = True
                for _ in self.threads:
                    self.jobs.put(None)


def _work(crew: _Crew) -> None:
    while (job := crew.jobs.get()) is not None:
        future, call = job
        if future.set_running_or_notify_cancel():
            try:
                result = call()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
                del result
        del job, future, call  # They may hold a table of many bytes.
        with crew.lock:
            crew.idle += 1
