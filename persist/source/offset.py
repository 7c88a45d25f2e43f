"""How far a query has come, as its checkpoint keeps it: JSON.

    {"version": 1, "location": id, "collection": id}                   nothing was read yet
    {… , "as_of" | "from": time, "upper": time | "complete", "hold": name}

The second: all updates at times not beyond `upper` have been read, the contents as of `as_of` first, or from the time
`from` on. The first is what every query begins with; Spark does not keep it, and asks for it anew when it repeats the
first micro-batch. So how the query began is in the offset at which that ends, and what was chosen then stays.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from persist.antichain import Antichain
from persist.codecs import TIME_MAX
from persist.errors import InvalidUsage

VERSION = 1
COMPLETE = "complete"
NO_HOLD = "none"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Position:
    """Where a query is.

    Attributes:
        as_of, lower: how it began: with the contents as of a time, or with the updates from one on; one of them.
        upper: what it has read up to, exclusive; None for all there will ever be.
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
        """The time that since must not pass for what follows to be read: the last one whose contents are known."""
        return TIME_MAX if self.upper is None else max(0, self.upper - 1)

    @property
    def frontier(self) -> Antichain:
        return Antichain() if self.upper is None else Antichain(self.upper)


@dataclass(frozen=True, slots=True)
class Offset:
    """A position in a collection; None for the beginning."""

    location: str
    collection: str
    position: Position | None = None

    @classmethod
    def of(cls, written: Json) -> "Offset":
        """Read what `to_json` returned.

        Raises:
            InvalidUsage: it is something else.
        """
        match written:
            case {"version": 1, "location": str(location), "collection": str(collection), **rest}:
                if not rest:
                    return cls(location, collection)
                if (position := _position(rest)) is not None:
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


def _position(written: Mapping[str, Any]) -> Position | None:
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
