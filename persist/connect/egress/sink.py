"""The interface between a sink and its loop, and the positions of a target.

The target keeps, for each collection, a `Reached`. It goes through three stages:

    copying     the contents as of a time are sent, in pieces by key or hash; `below` is the end of sent rows.
    copied      all contents are in the target, hidden from its readers.
    following   readers of the target see the contents as of `upper - 1`

A `Piece` leads from one `Reached` to another one. A step consists of pieces of different collections. A sink applies it
as a whole or not at all: the rows and the new positions. It refuses a piece that does not begin where the target is. So
if two processes feed one target, one of them gets an error.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec
import pyarrow as pa
import xxhash

from persist.codecs.types.schema import CollectionSchema
from persist.compute.tasks.stream_hold import Position
from persist.core.errors import InvalidUsage, SinkMoved

VERSION = 1
SINK = "egress."  # A property of collections begins so, and goes on with the name of a hold: which sink it is of.
COMPLETE = "complete"
Stage = Literal["copying", "copied", "following"]


class _Written(msgspec.Struct, forbid_unknown_fields=True):
    """The position of a target in one collection, as JSON."""

    version: int
    stage: Stage
    as_of: int | None
    upper: int | str
    below: list[Any] | None
    schema: int


@dataclass(frozen=True, slots=True)
class Reached:
    """A target's position in one collection.

    Attributes:
        as_of: the time of the initial contents; None if nothing was sealed then.
        upper: the exclusive end of what was sent; None if a complete collection was sent.
        below: while contents are copied, all keys below it are sent; None for no key. Without a key, it is a number:
            all rows with a lower hash are sent (`persist.connect.egress.feed`).
        schema: the version of the collection's schema that the target has.
    """

    stage: Stage
    as_of: int | None
    upper: int | None
    below: tuple[Any, ...] | None
    schema: int

    def position(self, hold: str) -> Position:
        """Return the position of the hold that keeps all that this target still needs."""
        if self.stage == "following":
            return Position(None, self.upper or 0, self.upper, hold)
        return Position(self.as_of, 0 if self.as_of is None else None, self.upper, hold)

    def to_json(self) -> str:
        """Return the position as the target stores it."""
        upper: int | str = COMPLETE if self.upper is None else self.upper
        below = None if self.below is None else list(self.below)
        return msgspec.json.encode(_Written(VERSION, self.stage, self.as_of, upper, below, self.schema)).decode()

    @classmethod
    def of(cls, written: str | bytes, where: str) -> "Reached":
        """Parse the JSON of `to_json`; `where` names the target for errors."""
        read, reason = None, repr(written)
        try:
            read = msgspec.json.decode(written, type=_Written)
        except msgspec.MsgspecError as error:
            reason = str(error)
        if read is None or read.version != VERSION or not (isinstance(read.upper, int) or read.upper == COMPLETE):
            raise InvalidUsage(
                f"{where} has a position that this version does not know: {reason}. Use the version that "
                "wrote it, or give the sink up by --drop, and begin anew"
            )
        upper = read.upper if isinstance(read.upper, int) else None
        return cls(read.stage, read.as_of, upper, None if read.below is None else tuple(read.below), read.schema)


@dataclass(frozen=True, slots=True)
class Leaving:
    """A collection that a sink sends. With a key, its changes are inserts, updates and deletes of rows."""

    id: str
    name: str
    is_keyed: bool


@dataclass(frozen=True, slots=True)
class Standing:
    """The stored position of a target in a collection, and a promised one.

    `promised`: the position after a step that the target began but may not have completed; it must be sent again.
    """

    reached: Reached
    promised: Reached | None = None


@dataclass(slots=True, eq=False)
class Piece:
    """Rows of one collection that move a target from one position to another.

    Attributes:
        before: the position that the target must have; None if the target must be empty.
        schema, earlier: the schema of the rows, and the target's present one; None if the target has nothing yet.
        tables: the rows, to be read once. Without a key, contents have `_diff`. Changes are in the order of times:
            inserts, updates and deletes by key, with `_change`; or, without a key, updates with `_diff`.
        count: the number of rows that were read.
    """

    leaving: Leaving
    before: Reached | None
    after: Reached
    schema: CollectionSchema
    earlier: CollectionSchema | None = None
    tables: Iterable[pa.RecordBatch] = ()
    count: int = 0

    @property
    def is_turn(self) -> bool:
        """Whether the target must store the new position even without rows."""
        position_before, after = self.before, self.after
        if position_before is None or after.upper is None:
            return True
        return position_before.stage != after.stage or position_before.below != after.below

    def read(self) -> Iterable[pa.RecordBatch]:
        """Yield the tables that have rows, and count the rows."""
        for table in self.tables:
            if table.num_rows:
                self.count += table.num_rows
                yield table


class Sink(Protocol):
    """A target of collections.

    Attributes:
        name: in messages and logs, without secrets.
        hold: the name of the hold on each collection, and of the target's positions.
        batch_rows: the most updates in a step that spans several times.
    """

    name: str
    hold: str
    batch_rows: int

    @property
    def collections(self) -> Sequence[str]:
        """The names of the collections that are sent."""

    def begin(self, location: str, leaving: Sequence[Leaving]) -> Mapping[str, Standing]:
        """Connect to the target, also after an outage; return its positions by collection id.

        Raises TargetUnavailable: the target does not answer.
        """

    def take(self, step: Sequence[Piece]) -> Sequence[Piece]:
        """Apply a whole step durably, or nothing; return the applied pieces.

        The sink may leave out pieces without rows; their next pieces then begin at the same position.

        Raises:
            SinkMoved: the position of the target is not the one at which the step begins.
            TargetUnavailable: the target does not answer; `begin` then returns whether the step was applied.
            InvalidUsage: the target refuses the rows.
        """

    def forget(self, location: str, leaving: Sequence[Leaving]) -> None:
        """Delete the positions of collections. Their rows stay."""

    def close(self) -> None:
        """Close connections and files."""


def make_moved_error(sink: Sink, collection: str) -> SinkMoved:
    """Return the error for a step that another process with this name has already sent."""
    return SinkMoved(
        f"{sink.name}: another process sends {collection!r} as {sink.hold!r}, and was first. Let one of them run; if "
        "the other one is to go elsewhere, give it a name of its own"
    )


def build_sink_name(kind: str, *where: str) -> str:
    """Return the default name of a sink: its kind and a hash."""
    return f"egress-{kind}-{xxhash.xxh64(chr(10).join(where).encode()).hexdigest()[:8]}"
