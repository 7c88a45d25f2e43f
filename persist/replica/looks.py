"""Which calls look at the log, and which are served by a look of another one.

Callers that wait for each other share the look of one of them, if it began after they asked. In `once`, only the first
call of a thread looks. Who is about to commit may `put_off` that look: a record that is created at the next seqno shows
that nothing else has come, just as a look would.
"""

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Looks:
    """Of one client. `ticket`, `serve` and `served` belong to whoever looks, which holds a lock meanwhile."""

    def __init__(self) -> None:
        self._tickets = itertools.count(1)
        self._issued = 0
        self._served = 0
        self._elsewhere = 0
        self._here = threading.local()  # Of a thread in `once`: has_looked, and what elsewhere was then.

    @contextmanager
    def once(self) -> Iterator[None]:
        """Look at the log once in this block, however much a thread asks for. This client's own commits are seen, and
        what was in their way; who waits for a change looks again.
        """
        if hasattr(self._here, "has_looked"):
            yield
            return
        self._here.has_looked = False
        try:
            yield
        finally:
            del self._here.has_looked

    @property
    def is_enough(self) -> bool:
        """Whether this thread is in `once`, and has looked."""
        return getattr(self._here, "has_looked", False) and self._here.elsewhere == self._elsewhere

    def noted(self) -> None:
        """Note that this thread has looked."""
        if hasattr(self._here, "has_looked"):
            self._here.has_looked, self._here.elsewhere = True, self._elsewhere

    def committed_elsewhere(self) -> None:
        """Let every thread look again: somebody else has made a commit of this client, which has not read it."""
        self._elsewhere += 1

    def put_off(self) -> bool:
        """In `once`, do as if this thread had looked, until `again`; return whether it had not."""
        is_first = not getattr(self._here, "has_looked", True)
        self.noted()
        return is_first

    def again(self) -> None:
        """Let the next call look, in `once`, too."""
        if hasattr(self._here, "has_looked"):
            self._here.has_looked = False

    def ticket(self) -> int:
        """Return a number for a call that is about to look, unless one that begins from now on serves it."""
        self._issued = next(self._tickets)
        return self._issued

    def serve(self, ticket: int) -> int | None:
        """Return whom a look serves that begins now; None if the one with the ticket is served."""
        return None if self._served >= ticket else self._issued

    def served(self, issued: int) -> None:
        """Note that a look is done."""
        self._served = issued
