"""What callers ask a client to commit, and how many such requests become few mutations.

An `Operation` is one caller's request, accepted or rejected as a whole: a write, a seal, or all of a multi-collection
commit. `merge` turns accepted operations into one `Change` per collection, in the order in which the collections were
first touched. Their net effect is that of the operations one after the other: appends commute with each other,
and all of them were found valid, so they may stand before the last seal; and a name is only taken again after the
collection that had it was touched (destroyed), so its `Change` comes first.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import pyarrow as pa

from persist.blob import InvalidUsage
from persist.codecs import CollectionSchema, Part, SmallUpdates
from persist.future import CommitFuture
from persist.records import AllowCompaction, Append, Create, Destroy, Mutation, Seal
from persist.state import CollectionState, PlannedAppend


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """Updates for one collection: few of them, to be encoded with others, or parts that are being uploaded.

    Attributes:
        bytes: what it occupies in memory until it is durable.
    """

    collection: str
    schema: CollectionSchema
    time_min: int
    bytes: int
    data: "SmallUpdates | pa.Table | Future[tuple[Part, ...]]"

    def upload_error(self) -> BaseException | None:
        """Return why an upload cannot be committed, None if it can or there is none; waits for it."""
        if not isinstance(self.data, Future):
            return None
        if (error := self.data.exception()) is not None:
            return error
        if any(part.time_min < self.time_min for part in self.data.result()):
            return InvalidUsage(
                "the updates were changed while they were being written: their buffers must stay as they are until "
                "the future resolves. Write them again; nothing was applied."
            )
        return None


Step = Write | Mutation


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """All steps, or none of them.

    Attributes:
        names: what people call the collections concerned, by id.
        bytes: what all its writes occupy in memory.
    """

    steps: tuple[Step, ...]
    names: dict[str, str]
    future: CommitFuture
    bytes: int

    @property
    def uploads(self) -> list["Future[tuple[Part, ...]]"]:
        """The uploads that must end before this can be committed."""
        return [s.data for s in self.steps if isinstance(s, Write) and isinstance(s.data, Future)]

    @property
    def is_ready(self) -> bool:
        return all(upload.done() for upload in self.uploads)

    def plan(self) -> Iterable[Mutation | PlannedAppend]:
        """Return what `persist.state.Draft` needs to validate this."""
        for step in self.steps:
            yield PlannedAppend(step.collection, step.time_min) if isinstance(step, Write) else step


@dataclass(slots=True)
class Change:
    """The net effect of some operations on one collection."""

    id: str
    create: Create | None = None
    writes: list[Write] = field(default_factory=list)
    seal: Seal | None = None
    allow_compaction: AllowCompaction | None = None
    destroy: Destroy | None = None

    def add(self, step: Step) -> None:
        """Account for one more step, which is valid after the ones before."""
        if isinstance(step, Write):
            self.writes.append(step)
        elif isinstance(step, Create):
            self.create = step
        elif isinstance(step, Seal):
            self.seal = step
        elif isinstance(step, AllowCompaction):
            self.allow_compaction = step
        elif isinstance(step, Destroy):
            self.destroy = step
        else:
            raise AssertionError(f"callers cannot ask for {step!r}")

    def mutations(self, contents: CollectionState | None, append: Append | None) -> list[Mutation]:
        """Return what must be written, given the contents before (None if it is new) and the encoded writes."""
        wanted: list[Mutation | None] = [self.create, append, self.seal, self.allow_compaction, self.destroy]
        if contents is not None and self.seal is not None and self.seal.upper == contents.upper_times:
            wanted.remove(self.seal)
        if (
            contents is not None
            and self.allow_compaction is not None
            and (self.allow_compaction.since == contents.since_times)
        ):
            wanted.remove(self.allow_compaction)
        return [mutation for mutation in wanted if mutation is not None]


def merge(operations: Sequence[Operation]) -> dict[str, Change]:
    """Return the net change of each collection, in the order in which they were first touched."""
    changes: dict[str, Change] = {}
    for operation in operations:
        for step in operation.steps:
            changes.setdefault(step.collection, Change(step.collection)).add(step)
    return changes
