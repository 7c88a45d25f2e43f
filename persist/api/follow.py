"""A consumer that resumes where it left off: the contents of a collection first, then what changes.

How far it has come is a permanent hold of its name in the collection that it follows, so that history which it still
needs is kept for it while it is down. The hold is made by the first `ack`, at the last time that was consumed; until
then a consumer that starts again begins with the contents, of a later time perhaps. It is moved by compare-and-set: of
two consumers with one name, the one that was second gets `HoldMoved`, and has consumed nothing that counts.

What it reads meanwhile hangs on a lease of its own (`persist.engine.hold.holds`). The next one of its name ends that,
be
it in the same client or in another: what a process held that was killed is free as soon as it was started again, and
one that is replaced is told when it polls (`LeaseExpired`).

What a consumer makes of updates is exactly once if it goes into a collection of the same location in the commit that
moves the hold, by `MultiWrite.ack`. If it goes elsewhere, updates come again that were consumed but not acknowledged.
"""

from collections.abc import Callable

from persist.codecs.types.schema import TIME_MAX
from persist.core.errors import InvalidUsage
from persist.core.log import kinds
from persist.core.names import check_hold_name
from persist.core.rendering import Completed, ShownByRepr
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.read.following.listen import Listen, Progress, Steps


class Following(ShownByRepr, Completed, Steps[Progress]):
    """An iterator of `Progress`, as `Listen` is; close it, or use it in a `with`. Not for several threads at once.

    Attributes:
        handle: the collection that is followed.
        name: the consumer's, and the hold's.
        held: the last time that is acknowledged; None if nothing is.
    """

    _INTERNAL = frozenset({"check_unclosed", "handle", "step"})

    def __init__(self, handle: CollectionHandle, name: str, start: Callable[[int | None], Listen]) -> None:
        """Begin after the time of the hold of that name.

        Args:
            start: gives what follows a time, or of None the contents and what follows them.

        Raises:
            AsOfCompacted, CollectionNotFound, ReadOnly, ClientClosed.
        """
        handle.engine.writer("follow")
        self.handle = handle
        self.name = check_hold_name(name)
        hold = handle.contents().holds.get(name)
        self.held = hold.time if hold is not None else None
        self._given: int | None = None  # The last time that was given out.
        self._listen = start(self.held)

    @property
    def is_finished(self) -> bool:
        """Whether everything has been given out, for ever, or this was closed."""
        return self.held == TIME_MAX or self._listen.is_finished

    def check_unclosed(self) -> None:
        self._listen.check_unclosed()

    def step(self, timeout_s: float | None) -> Progress | None:
        """Do what `poll` does, but return None once this is closed."""
        if self.is_finished:
            return None
        self._listen.check_kept()  # Whoever was replaced is told before the contents that it holds already.
        progress = self._listen.step(timeout_s)
        if progress is not None:
            upper = progress.upper.time
            self._given = TIME_MAX if upper is None else upper - 1
        return progress

    def ack(self) -> None:
        """Move the hold past all that was given out so far, durably: it will not come again.

        Raises:
            HoldMoved: another consumer of this name did so meanwhile; begin anew with `Collection.follow`.
        """
        step, acked = ack_step(self)
        self.handle.submit("ack", [step]).result()
        acked()

    def close(self) -> None:
        """Stop; what was not acknowledged comes again when somebody follows by this name."""
        self._listen.close()

    def __repr__(self) -> str:
        held = None if self.held is None else self.handle.shown(self.held)
        return f"<Following of {self.handle.name!r} as {self.name!r}, acknowledged up to {held}>"


def ack_step(following: Following) -> tuple[kinds.SetHold, Callable[[], None]]:
    """Return what acknowledges all that was given out so far in a commit, and what to call when that is durable."""
    handle, given, name = following.handle, following._given, following.name
    if given is None:
        raise InvalidUsage(f"nothing was taken from follow({name!r}) yet, so there is nothing to acknowledge")

    def acked() -> None:
        following.held = given

    return kinds.SetHold(handle.id, name, given, None, following.held), acked
