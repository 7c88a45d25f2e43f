"""Threads for requests to the store and for decoding what it sends, as an `Executor`; see `daemon_threads`."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import ParamSpec, TypeVar

from persist.blob.daemon_threads import DaemonThreads

P = ParamSpec("P")
T = TypeVar("T")


class Pool(Executor):
    """At most threads_max daemon threads, each made when it is needed first; they end when this is dropped."""

    def __init__(self, threads_max: int, name: str) -> None:
        self._threads = DaemonThreads(threads_max, name)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Have fn called by a thread, after what was submitted before; raise RuntimeError after `shutdown`."""
        future: Future[T] = Future()
        if not self._threads.run(partial(_result_of, future, partial(fn, *args, **kwargs))):
            raise RuntimeError("this pool was shut down")
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more work, and end the threads after what they have, which is not cancelled; idempotent."""
        self._threads.close(None if wait else 0.0)


def _result_of(future: "Future[T]", call: Callable[[], T]) -> Callable[[], object]:
    if not future.set_running_or_notify_cancel():
        return lambda: None
    try:
        return partial(future.set_result, call())
    except BaseException as error:
        return partial(future.set_exception, error)
