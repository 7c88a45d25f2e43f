"""The permanent hold that keeps history for a query, also while it is stopped.

It is in the log under a name that is in the query's checkpoint, at or before the time from which on the query may have
to read again. It is made once the checkpoint that names it is written, and before anything is read; it is moved when a
micro-batch will never be repeated. So a query that dies before its first micro-batch leaves nothing behind, and one
that dies later finds its history.

Invariant: hold <= the last position committed <= where the next micro-batch begins. A hold that is further on was moved
by somebody else; so was one that is not where this process left it.
"""

from persist.blob import ReadOnlyStore, StoreMisconfigured
from persist.engine import CollectionHandle, take_hold
from persist.errors import HoldMoved, HoldNotFound, PersistError
from persist.hold import Hold
from persist.source.offset import NO_HOLD, Position
from persist.state import CollectionState

_TAKEN = (
    "The hold belongs to another query, or to an earlier one: give this one another name with the option hold, or "
    "release that hold with collection.hold(name=…).release() if nobody needs it."
)
_MOVED = (
    "Somebody else moved the hold of this query: another query with the same hold or a copy of its checkpoint. Stop "
    "one of them; begin with a new checkpointLocation if this one is behind."
)
_UNWRITABLE = (
    'A query holds history by a record in the log. To read what nobody may write, use .option("hold", "none"): then '
    "its history is kept by nobody."
)


class StreamHold:
    """The hold of one query on a collection, as one process of it sees it."""

    def __init__(self, handle: CollectionHandle) -> None:
        self._handle = handle
        self._hold: Hold | None = None

    def take(self, at: Position) -> None:
        """Make the hold of a query that begins, or find it if this repeats the first micro-batch; idempotent.

        Raises:
            HoldMoved: it is there, and not where the query began.
            AsOfCompacted: the history to be held is gone.
            ReadOnlyStore, StoreMisconfigured: nothing can be written here.
        """
        if at.hold == NO_HOLD or self._hold is not None:
            return
        try:
            hold = take_hold(self._handle, at.began, at.hold)
        except (ReadOnlyStore, StoreMisconfigured) as error:
            raise _advised(error, _UNWRITABLE) from None
        if hold.time != at.began:
            raise _advised(HoldMoved(at.hold, at.began, hold.time), _TAKEN)
        self._hold = hold

    def check(self, contents: CollectionState, at: Position) -> None:
        """Check that what follows a position is kept for this query, and for no other.

        Raises:
            HoldNotFound: somebody removed the hold.
            HoldMoved: it is beyond the position.
        """
        if at.hold == NO_HOLD:
            return
        held = contents.holds.get(at.hold)
        if held is None:
            known = tuple(name for name, each in contents.holds.items() if each.lease is None)
            raise _advised(HoldNotFound(at.hold, known), _gone(at, contents))
        if held.time > at.reached:
            raise _advised(HoldMoved(at.hold, at.reached, held.time), _MOVED)

    def move(self, at: Position) -> None:
        """Let go of what is before a position; of everything, if that is the end of all.

        Raises:
            HoldMoved: the hold is not where this process left it.
        """
        if at.hold == NO_HOLD:
            return
        if self._hold is None:
            self._hold = take_hold(self._handle, None, at.hold)
        try:
            if at.upper is None:
                self._hold.release()
            elif at.reached > self._hold.time:
                self._hold.advance(at.reached)
        except HoldMoved as error:
            raise _advised(error, _MOVED) from None


def check_free(name: str, contents: CollectionState) -> None:
    """Raise HoldMoved if there is a hold of that name, before a query writes it down as its own."""
    found = contents.holds.get(name)
    if found is not None:
        raise _advised(HoldMoved(name, None, found.time), _TAKEN)


def _gone(at: Position, contents: CollectionState) -> str:
    what = f"It kept history for this query, and somebody removed it. Since is {contents.since}, so"
    if contents.since.has_beyond(at.reached):
        return f"{what} nothing is lost yet: make it again at time {at.reached}, then restart."
    return f"{what} changes after {at.reached} are lost: begin with a new checkpointLocation."


def _advised(error: PersistError, advice: str) -> PersistError:
    error.add_note(advice)
    return error
