"""Clocks and random waits, which tests can replace, and bounded groups of daemon threads.

`DaemonThreads` runs jobs that report their results, and `Pool` is an `Executor` over such threads. The standard
library's pool makes a process wait at its exit until all work is finished. These threads do not, for example if a store
does not answer; and they still accept jobs after the main thread has ended.
"""

import os
import random
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from typing import ParamSpec, Protocol, TypeVar


class Clock(Protocol):
    """Wall and monotonic clocks, and a sleep that a test can skip."""

    def monotonic_s(self) -> float:
        """Return seconds that never go back."""

    def wall_ms(self) -> int:
        """Return milliseconds since 1970."""

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's own clocks."""

    def monotonic_s(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Backoff:
    """Waits of random length whose bound doubles, until a deadline.

    "Full jitter": each wait is uniform in [0, bound], which spreads clients that failed together (Marc Brooker,
    "Exponential Backoff And Jitter", AWS Architecture Blog, 2015).
    """

    def __init__(
        self,
        clock: Clock,
        deadline_s: float,
        *,
        first_s: float = 0.01,
        bound_max_s: float = 2.0,
        chance: random.Random | None = None,
    ) -> None:
        self._clock = clock
        self._ends_s = clock.monotonic_s() + deadline_s
        self._bound_s = first_s
        self._bound_max_s = bound_max_s
        self._chance = chance

    @property
    def bound_s(self) -> float:
        """How long the next wait is at most."""
        return self._bound_s

    def wait(self, *, extra_s: float = 0.0) -> bool:
        """Sleep and return True; return False from `extra_s` after the deadline on."""
        left_s = self._ends_s + extra_s - self._clock.monotonic_s()
        if left_s <= 0:
            return False
        self._chance = self._chance or random.Random()  # Few back-offs ever wait.
        self._clock.sleep(min(left_s, self._chance.uniform(0, self._bound_s)))
        self._bound_s = min(self._bound_s * 2, self._bound_max_s)
        return True


P = ParamSpec("P")
T = TypeVar("T")

Job = Callable[[], Callable[[], object]]


class DaemonThreads:
    """Runs jobs in at most threads_max threads, which start when needed.

    A job does not raise. It returns a function that reports its result, which is called once the thread counts as free:
    a caller that has the report never finds that thread still busy.

    Dropped without `close`, it ends its threads as soon as their jobs are done.
    """

    def __init__(self, threads_max: int, name: str, after_job: Callable[[], object] | None = None) -> None:
        """Make an object without threads; its threads call after_job after each job."""
        self._name = name
        self._crew = _Crew(threads_max, after_job)
        weakref.finalize(self, _stop_unless_forked, os.getpid(), self._crew).atexit = False

    def submit(self, job: Job) -> bool:
        """Have a thread run a job, after earlier jobs if all threads are busy; return False after `close`."""
        crew = self._crew
        with crew.lock:
            if crew.is_stopped:
                return False
            if crew.free <= 0 and len(crew.threads) < crew.threads_max:
                thread = threading.Thread(target=_run_jobs, args=(crew,), name=self._name, daemon=True)
                thread.start()
                crew.threads.append(thread)
                crew.free += 1
            crew.free -= 1
            crew.jobs.put(job)
            return True

    @property
    def are_alive(self) -> bool:
        """Whether a thread still runs; that may be for a while after `close`."""
        return any(thread.is_alive() for thread in self._crew.threads)

    def close(self, timeout_s: float | None) -> None:
        """Accept no more jobs, and end the threads after their present ones; idempotent.

        `timeout_s`: how long to wait for that in all; None without limit. Threads that take longer end by themselves.
        """
        self._crew.stop()
        ends_s = None if timeout_s is None else time.monotonic() + timeout_s
        for thread in self._crew.threads:
            if thread is not threading.current_thread():
                thread.join(None if ends_s is None else max(0.0, ends_s - time.monotonic()))


class _Crew:
    """The state that the threads share; it does not keep `DaemonThreads` alive."""

    def __init__(self, threads_max: int, after_job: Callable[[], object] | None) -> None:
        self.threads_max = threads_max
        self.after_job = after_job
        self.lock = threading.RLock()  # Taken again by a finalizer that runs inside of it.
        self.jobs: SimpleQueue[Job | None] = SimpleQueue()
        self.threads: list[threading.Thread] = []
        self.free = 0  # Threads that wait for a job, less the jobs in the queue.
        self.is_stopped = False

    def stop(self) -> None:
        """Let each thread end after its jobs."""
        with self.lock:
            if not self.is_stopped:
                self.is_stopped = True
                for _ in self.threads:
                    self.jobs.put(None)


def _stop_unless_forked(pid: int, crew: _Crew) -> None:
    """Stop the threads, unless this is a forked process without them."""
    if os.getpid() == pid:
        crew.stop()


def _run_jobs(crew: _Crew) -> None:
    """Run jobs in this thread until the crew stops."""
    while (job := crew.jobs.get()) is not None:
        report = job()
        with crew.lock:
            crew.free += 1
        report()
        del job, report  # They may hold a value of many bytes.
        if crew.after_job is not None:
            crew.after_job()


class Pool(Executor):
    """An executor of daemon threads, started when needed, ended when dropped.

    A caller that waits for a result that no thread has begun computes it itself. So work may wait for other work of the
    same pool, or for a lock whose holder does, and a client needs only one pool.
    """

    def __init__(self, threads_max: int, name: str, after_job: Callable[[], object] | None = None) -> None:
        self._threads = DaemonThreads(threads_max, name, after_job)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Have fn called by a thread, after what was submitted before; raise RuntimeError after `shutdown`."""
        future = _Computation(partial(fn, *args, **kwargs))
        if not self._threads.submit(future.compute):
            raise RuntimeError("this pool was shut down")
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more work, and end the threads after the queued work, which is not cancelled; idempotent."""
        self._threads.close(None if wait else 0.0)


class _Computation(Future[T]):
    """A call's result; a waiting caller computes it if no thread has."""

    def __init__(self, call: Callable[[], T]) -> None:
        super().__init__()
        self._calls = [call]  # Taking it is atomic.

    def compute(self) -> Callable[[], object]:
        """Make the call unless another thread does; return a function that publishes."""
        try:
            call = self._calls.pop()
        except IndexError:
            return _do_nothing
        if not self.set_running_or_notify_cancel():
            return _do_nothing
        try:
            return partial(self.set_result, call())
        except BaseException as error:
            return partial(self.set_exception, error)

    def result(self, timeout: float | None = None) -> T:
        if timeout is None:
            self.compute()()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if timeout is None:
            self.compute()()
        return super().exception(timeout)


def _do_nothing() -> None:
    """Do nothing, because another thread publishes the result."""
