"""The offset of a query, as its checkpoint stores it, and the permanent hold that keeps history for it.

    {"version": 1, "location": id, "collection": id}                   nothing has been read
    {… , "as_of" | "from": time, "upper": time | "complete", "hold": name}

The second form: all updates at times before `upper` have been read: first the contents as of `as_of`, or from the time
`from` on. The first form is where every query begins. Spark does not store it, and requests it again when it repeats
the first micro-batch. So the offset at which that batch ends contains how the query began.

The hold is in the log under a name that is in the query's checkpoint, at or before the time from which on the query may
have to read again. It is made once the checkpoint that names it is written, and before anything is read; it is moved
when a micro-batch will never be repeated. So a query that dies before its first micro-batch leaves no hold, and a query
that dies later finds its history.

Invariant: hold <= the last position committed <= where the next micro-batch begins. A hold farther ahead, or not where
this process left it, was moved by another process.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from persist.blob.errors import ReadOnlyStore, StoreMisconfigured
from persist.codecs.types.schema import TIME_MAX
from persist.core.antichain import END, to_antichain
from persist.core.errors import AsOfCompacted, HoldMoved, HoldNotFound, InvalidUsage, PersistError
from persist.core.state_rules.contents import CollectionState
from persist.engine.collection.descriptions import take_hold
from persist.engine.hold import Hold
from persist.engine.location.collection_handle import CollectionHandle

VERSION = 1
COMPLETE = "complete"
NO_HOLD = "none"
ANEW = "begin with a new checkpointLocation"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Position:
    """How far a query has read a collection.

    Attributes:
        as_of, lower: how it began: with the contents as of a time, or with updates from a time on; one is None.
        upper: the exclusive end of what it has read; None if it has read a complete collection.
        hold: the name of its hold, or "none".
    """

    as_of: int | None
    lower: int | None
    upper: int | None
    hold: str

    @property
    def began(self) -> int:
        """The time that since must not pass for the first micro-batch to be read."""
        return self.as_of if self.as_of is not None else max(0, (self.lower or 0) - 1)

    @property
    def reached(self) -> int:
        """The time that since must not pass for later reads: the last time that was read."""
        return TIME_MAX if self.upper is None else max(0, self.upper - 1)

    @property
    def frontier(self) -> int:
        """The exclusive end of what was read; `END` if the collection is complete."""
        return END if self.upper is None else self.upper


@dataclass(frozen=True, slots=True)
class Offset:
    """How far a query has read a collection; `position` is None before the first read."""

    location: str
    collection: str
    position: Position | None = None

    @classmethod
    def of(cls, written: Json) -> "Offset":
        """Read what `to_json` returned."""
        match written:
            case {"version": 1, "location": str(location), "collection": str(collection), **rest}:
                if not rest:
                    return cls(location, collection)
                if (position := _parse_position(rest)) is not None:
                    return cls(location, collection, position)
        raise InvalidUsage(
            f"the checkpoint has the offset {written!r:.200}, which this version does not know. Use the version that "
            "wrote it, or begin with a new checkpointLocation."
        )

    def to_json(self) -> Json:
        """Return the written form."""
        place: Json = {"version": VERSION, "location": self.location, "collection": self.collection}
        at = self.position
        if at is None:
            return place
        began = {"as_of": at.as_of} if at.as_of is not None else {"from": at.lower}
        return {**place, **began, "upper": COMPLETE if at.upper is None else at.upper, "hold": at.hold}


def _parse_position(written: Mapping[str, Any]) -> Position | None:
    """Return the position that JSON describes; None if it describes none."""
    match written:
        case {"as_of": int(as_of), "upper": int(upper), "hold": str(hold)}:
            return Position(as_of, None, upper, hold)
        case {"as_of": int(as_of), "upper": "complete", "hold": str(hold)}:
            return Position(as_of, None, None, hold)
        case {"from": int(lower), "upper": int(upper), "hold": str(hold)}:
            return Position(None, lower, upper, hold)
        case {"from": int(lower), "upper": "complete", "hold": str(hold)}:
            return Position(None, lower, None, hold)
    return None


_TAKEN = (
    "The hold belongs to another query, or to an earlier one: give this one another name with the option hold, or "
    "release that hold with collection.hold(name=…).release() if no query needs it."
)
_MOVED = "Another query moved this hold: one with the same hold, or with a copy of its checkpoint. Stop one of them; "
_UNWRITABLE = (
    "A query holds history by a record in the log. To read a location without the right to write, use "
    '.option("hold", "none"): then its history may be compacted at any time.'
)


class StreamHold:
    """The hold of one query on a collection."""

    def __init__(self, handle: CollectionHandle, anew: str = ANEW) -> None:
        """`anew`: for messages, how to begin again if history is lost."""
        self._handle = handle
        self._anew = anew
        self._hold: Hold | None = None

    def acquire(self, at: Position) -> None:
        """Create the hold of a new query, or find it if the first micro-batch is repeated; idempotent.

        Raises:
            HoldMoved: the hold exists, but not where the query began.
            AsOfCompacted: the history to be held is gone.
            ReadOnlyStore, StoreMisconfigured: nothing can be written here.
        """
        if at.hold == NO_HOLD or self._hold is not None:
            return
        try:
            hold = take_hold(self._handle, at.began, at.hold)
        except (ReadOnlyStore, StoreMisconfigured) as error:
            raise _add_advice(error, _UNWRITABLE) from None
        except AsOfCompacted as error:
            raise _add_advice(error, f"The query began, and ended before its hold was made: {self._anew}.") from None
        if hold.time != at.began:
            raise _add_advice(HoldMoved(at.hold, at.began, hold.time), _TAKEN)
        self._hold = hold

    def check(self, contents: CollectionState, at: Position) -> None:
        """Check that updates after a position are kept for this query only.

        Raises:
            HoldNotFound: another client removed the hold.
            HoldMoved: the hold is after the position.
        """
        if at.hold == NO_HOLD:
            return
        held = contents.holds.get(at.hold)
        if held is None:
            hold_names = tuple(name for name, hold in contents.holds.items() if hold.lease is None)
            raise _add_advice(HoldNotFound(at.hold, hold_names), _explain_loss(at, contents, self._anew))
        if held.time > at.reached:
            raise _add_advice(HoldMoved(at.hold, at.reached, held.time), self._moved)

    def move(self, at: Position) -> None:
        """Move the hold to a position; release it at the end.

        Raises HoldMoved: the hold is not where this process left it.
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
            raise _add_advice(error, self._moved) from None

    @property
    def _moved(self) -> str:
        """The message for a hold that another process moved."""
        return f"{_MOVED}{self._anew} if this one is behind."


def check_hold_is_free(name: str, contents: CollectionState) -> None:
    """Raise HoldMoved if a hold of this name exists before a query has one."""
    hold = contents.holds.get(name)
    if hold is not None:
        raise _add_advice(HoldMoved(name, None, hold.time), _TAKEN)


def _explain_loss(at: Position, contents: CollectionState, anew: str) -> str:
    """Return what a query loses after its hold was removed, and what to do."""
    since = to_antichain(contents.since)
    what = f"It kept the history after the query's position, and was removed. Since is {since}, so"
    if at.reached >= contents.since:
        return f"{what} nothing is lost yet: make it again at time {at.reached}, then restart."
    return f"{what} changes after {at.reached} are lost: {anew}."


def _add_advice(error: PersistError, advice: str) -> PersistError:
    """Add a note to an error, and return it."""
    error.add_note(advice)
    return error
