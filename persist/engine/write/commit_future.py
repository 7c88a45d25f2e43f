"""The answer to a write in progress: wait for it with `.result()`, or `await` it.

No error may be lost (rule 5): a ledger keeps every failed future whose error no caller has read, and the client's
`close` raises these errors.
"""

import itertools
import logging
import threading
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa

from persist.blob.errors import InvalidUsage
from persist.core.rendering import Completed

ERRORS_KEPT_MAX = 100


logger = logging.getLogger(__name__)


class UnobservedErrors:
    """A ledger of failed futures whose errors no caller has read. It keeps `ERRORS_KEPT_MAX` of the errors."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._lock = threading.Lock()
        self._errors: dict[int, BaseException | None] = {}

    @property
    def kept(self) -> dict[int, BaseException | None]:
        """The kept errors, to report unseen ones after the last reference to the ledger is gone."""
        return self._errors

    def add(self, number: int, error: BaseException) -> None:
        """Add the error of a future that has just failed, by its number."""
        with self._lock:
            self._errors[number] = error if len(self._errors) < ERRORS_KEPT_MAX else None

    def remove(self, number: int) -> None:
        """Remove the error of a future, because a caller has read it."""
        with self._lock:
            self._errors.pop(number, None)

    def take(self) -> list[BaseException | None]:
        """Return the unseen errors and forget them; None for each error that was not kept."""
        with self._lock:
            taken_errors = list(self._errors.values())
            self._errors.clear()
            return taken_errors

    def raise_all(self) -> None:
        """Raise the unseen errors: a single one itself, several as an ExceptionGroup."""
        unobserved = self.take()
        # Operations that failed together share one error.
        errors = list({id(error): error for error in unobserved if error is not None}.values())
        count, not_kept = len(unobserved), sum(error is None for error in unobserved)
        if not_kept:
            errors.append(InvalidUsage(f"{not_kept} more writes failed, and only {ERRORS_KEPT_MAX} errors are kept"))
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise BaseExceptionGroup(f"{count} writes failed and no caller read their errors", errors)


class Committed(NamedTuple):
    """The place of a commit in the log, and the times that it assigned, by collection."""

    seqno: int
    times: Mapping[str, int] = MappingProxyType({})


class CommitFuture(Completed, Future[int]):
    """Resolves to the seqno of the commit once it is durable, or to the error that rejected it.

    Any wait for the future first calls `on_wait`, so that the committer does not wait for more commits to group.

    A commit that changed nothing (such as a seal to the current upper) resolves to the seqno of the unchanged state.

    Attributes:
        late: once it is resolved, the late events that were left out; see `Collection.upsert`.
    """

    _INTERNAL = frozenset(
        {"cancel", "cancelled", "get_commit", "fail", "peek_error", "running", "set_exception", "set_result", "succeed"}
        | {"set_running_or_notify_cancel"}
    )
    _numbers = itertools.count()

    def __init__(self, unobserved: UnobservedErrors, on_wait: Callable[[], object]) -> None:
        super().__init__()
        self._number = next(self._numbers)
        self._unobserved = unobserved
        self._on_wait = on_wait
        self._seqno: int | None = None  # Read without a lock, after all waiting threads were woken.
        self.late: pa.Table | None = None
        self._times: Mapping[str, int] = {}

    @property
    def time(self) -> int | None:
        """The time that the commit assigned to rows without one; waits for the commit, and raises its error.

        None if the rows had times, or if nothing was written.
        """
        return next(iter(self.times.values()), None)

    @property
    def times(self) -> Mapping[str, int]:
        """The assigned times by collection id: on timelines of different units, one moment has several numbers."""
        self.result()
        return self._times

    @property
    def durable_at(self) -> int | None:
        """The seqno of the commit if it is known to be durable; else None. Never waits or raises."""
        return self._seqno

    def get_commit(self) -> Committed:
        """Return the seqno and the times; waits, and raises, as `result`."""
        return Committed(self.result(), self._times)

    def fail(self, error: BaseException) -> None:
        """Resolve to an error, which stays on the ledger until a caller reads it."""
        # On the ledger first: a waiter that wakes up at once must find it there to take it off.
        _drop_tracebacks(error)
        self._unobserved.add(self._number, error)
        self._resolve(self.set_exception, error)

    def succeed(self, seqno: int, times: Mapping[str, int] = MappingProxyType({})) -> None:
        """Resolve to the seqno of the commit, which assigned these times."""
        self._times = times
        self._resolve(self.set_result, seqno)
        self._seqno = seqno

    def _resolve(self, resolve: Callable[[Any], None], outcome: Any) -> None:
        """Resolve; log exceptions such as `sys.exit` in a callback, which would end a shared thread."""
        try:
            resolve(outcome)
        except Exception:  # Errors of callbacks are logged by the future itself.
            raise
        except BaseException as error:
            logger.error("a future's callback raised %r, which ends nothing here: do that in the main thread", error)

    def result(self, timeout: float | None = None) -> int:
        """Return the seqno of the commit; raise its error, or TimeoutError after timeout seconds."""
        if self._seqno is not None:
            return self._seqno
        self.exception(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error of the commit, or None when it is durable; TimeoutError after timeout seconds."""
        error = self.peek_error(timeout)
        self._unobserved.remove(self._number)
        return error

    def peek_error(self, timeout: float | None = None) -> BaseException | None:
        """Return the error like `exception`, but leave it on the ledger for the caller."""
        if self._seqno is not None:
            return None
        if not self.done():
            self._on_wait()
        return super().exception(timeout)

    def __repr__(self) -> str:
        """Show the progress of the commit, without marking its error as read."""
        if not self.done():
            return "<CommitFuture: pending>"
        error = super().exception(0)
        return (
            f"<CommitFuture: durable, seqno {super().result(0):,}>" if error is None else f"<CommitFuture: {error!r}>"
        )

    def cancel(self) -> bool:
        """Return False: a submitted commit cannot be cancelled."""
        return False

    def __await__(self) -> Generator[Any, None, int]:
        self._on_wait()
        import asyncio  # Here: who never awaits starts without it, 8 ms sooner.

        loop = asyncio.get_running_loop()
        waiter = loop.create_future()

        def tell() -> None:
            if not waiter.done():
                waiter.set_result(None)

        def wake(_: Future[int]) -> None:
            with suppress(RuntimeError):  # The loop was closed, so the waiting task is gone.
                loop.call_soon_threadsafe(tell)

        # Only the wake-up goes through the loop: a task that is cancelled before it has not looked at the error.
        self.add_done_callback(wake)
        yield from waiter.__await__()
        return self.result()


def _drop_tracebacks(error: BaseException) -> None:
    """Drop the tracebacks of an error and of its causes.

    The frames of a traceback refer to the data of the commit, perhaps to the client, whose threads end with its last
    reference.
    """
    pending, seen_ids = [error], set()
    while pending:
        error = pending.pop()
        seen_ids.add(id(error))
        error.__traceback__ = None
        pending += [
            cause for cause in (error.__cause__, error.__context__) if cause is not None and id(cause) not in seen_ids
        ]
