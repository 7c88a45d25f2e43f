"""A consumer that resumes where it left off: the contents of a collection first, then what changes.

A permanent hold of the consumer's name, in the collection that it follows, stores its position. The hold keeps the
history that the consumer still needs while it is down. The first `ack` makes the hold, at the last consumed time; until
then a restarted consumer begins with the contents, perhaps of a later time. Each `ack` moves it by compare-and-set: if
two consumers have one name, the second one gets `HoldMoved`, and its work does not count.

The consumer's own lease protects its reads (`persist.engine.hold.holds`). The next consumer of the name ends that
lease, in whatever client it is. So a restarted process frees the claims of the killed one. A replaced consumer gets
`LeaseExpired` when it polls.

Results are exactly once if the commit that moves the hold also writes them, by `MultiWrite.ack`. If the results go
elsewhere, updates that were consumed but not acknowledged come again after a crash.
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
    """A named consumer: an iterator of `Progress` that resumes. Not for several threads.

    Attributes:
        handle: the collection that is followed.
        name: the consumer's, and the hold's.
        held: the last acknowledged time; None if there is none.
    """

    _INTERNAL = frozenset({"check_unclosed", "handle", "step"})

    def __init__(self, handle: CollectionHandle, name: str, start: Callable[[int | None], Listen]) -> None:
        """Begin after the time of the hold with this name.

        Args:
            start: returns the updates after a time; for None, the contents and the updates after them.

        Raises:
            AsOfCompacted, CollectionNotFound, ReadOnly, ClientClosed.
        """
        handle.engine.writer("follow")
        self.handle = handle
        self.name = check_hold_name(name)
        hold = handle.contents().holds.get(name)
        self.held = hold.time if hold is not None else None
        self._returned: int | None = None  # The last time.
        self._listen = start(self.held)

    @property
    def is_finished(self) -> bool:
        """Whether it is closed, or has returned all of a complete collection."""
        return self.held == TIME_MAX or self._listen.is_finished

    def check_unclosed(self) -> None:
        self._listen.check_unclosed()

    def step(self, timeout_s: float | None) -> Progress | None:
        """Do as `poll`, but return None once this is closed."""
        if self.is_finished:
            return None
        self._listen.check_hold()  # A replaced consumer fails before it returns contents again.
        progress = self._listen.step(timeout_s)
        if progress is not None:
            upper = progress.upper.time
            self._returned = TIME_MAX if upper is None else upper - 1
        return progress

    def ack(self) -> None:
        """Move the hold past all returned updates, durably.

        Raises HoldMoved: another consumer of this name did so meanwhile; begin anew with `Collection.follow`.
        """
        step, mark_acknowledged = make_ack_step(self)
        self.handle.submit("ack", [step]).result()
        mark_acknowledged()

    def close(self) -> None:
        """Stop. The next consumer of this name gets unacknowledged updates again."""
        self._listen.close()

    def __repr__(self) -> str:
        time = None if self.held is None else self.handle.format_time(self.held)
        return f"<Following of {self.handle.name!r} as {self.name!r}, acknowledged up to {time}>"


def make_ack_step(following: Following) -> tuple[kinds.SetHold, Callable[[], None]]:
    """Return the step that acknowledges returned updates, and a callback after the commit."""
    handle, returned, name = following.handle, following._returned, following.name
    if returned is None:
        raise InvalidUsage(f"nothing was taken from follow({name!r}) yet, so there is nothing to acknowledge")

    def mark_acknowledged() -> None:
        following.held = returned

    return kinds.SetHold(handle.id, name, returned, None, following.held), mark_acknowledged
