"""The answer to a write that is under way: wait for it with `.result()`, or `await` it.

No error may be lost (rule 5): a ledger keeps every failed future that nobody has looked at yet, and the client's
`close` raises what is left in it.
"""

import asyncio
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any

ERRORS_KEPT_MAX = 100


class UnobservedErrors:
    """The failed futures whose error nobody has looked at, the first `ERRORS_KEPT_MAX` of them and a count."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failed: dict[int, BaseException] = {}
        self._dropped = 0

    def add(self, future: "CommitFuture", error: BaseException) -> None:
        """Remember the error of a future that has just failed."""
        with self._lock:
            if len(self._failed) < ERRORS_KEPT_MAX:
                self._failed[id(future)] = error
            else:
                self._dropped += 1

    def remove(self, future: "CommitFuture") -> None:
        """Forget the error of a future that somebody looked at."""
        with self._lock:
            self._failed.pop(id(future), None)

    def raise_all(self) -> None:
        """Raise what nobody looked at: the error itself if there is one, an ExceptionGroup if there are more."""
        with self._lock:
            # Operations that failed together share one error.
            errors = list({id(error): error for error in self._failed.values()}.values())
            dropped = self._dropped
            self._failed, self._dropped = {}, 0
        if len(errors) == 1 and not dropped:
            raise errors[0]
        if errors:
            more = f" (and {dropped} more)" if dropped else ""
            raise BaseExceptionGroup(f"{len(errors)} errors of writes that nobody looked at{more}", errors)


class CommitFuture(Future[int]):
    """Resolves to the seqno of the commit once it is durable, or to the error that rejected it.

    Waiting for it, in whatever way, calls on_wait first: whoever commits need not hold out for more to commit with it.

    A commit that changed nothing (such as a seal to the current upper) resolves to the seqno of the state in which it
    was found to change nothing.
    """

    def __init__(self, unobserved: UnobservedErrors, on_wait: Callable[[], object]) -> None:
        super().__init__()
        self._unobserved = unobserved
        self._on_wait = on_wait

    def fail(self, error: BaseException) -> None:
        """Resolve to error, which stays on the ledger until somebody looks."""
        # On the ledger first: a waiter that wakes up at once must find it there to take it off.
        self._unobserved.add(self, error)
        self.set_exception(error)

    def result(self, timeout: float | None = None) -> int:
        """Return the seqno of the commit; raise its error, or TimeoutError after timeout seconds."""
        self.exception(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error of the commit, or None when it is durable; TimeoutError after timeout seconds."""
        if not self.done():
            self._on_wait()
        error = super().exception(timeout)
        self._unobserved.remove(self)
        return error

    def cancel(self) -> bool:
        """Return False: a commit that was asked for cannot be called back."""
        return False

    def __await__(self) -> Generator[Any, None, int]:
        self._on_wait()
        wrapped = asyncio.wrap_future(self)
        try:
            return (yield from wrapped.__await__())
        finally:
            if self.done():
                self._unobserved.remove(self)
