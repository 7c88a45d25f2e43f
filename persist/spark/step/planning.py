"""A step before its tasks run: what it reads, in slices, its stages, and where its outputs go.

It begins like an embedded one: the program is open, so its holds keep what is read, and it says from which time on each
output is to be written. Nothing here needs a session, and no task needs what is not in here.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from persist.codecs import TIME_MAX, Part
from persist.codecs.types.schema import TIME
from persist.dataflow.expression import col
from persist.dataflow.plan import Concat, Linear, Node, Persist, Plan, Source
from persist.dataflow.program import Program
from persist.dataflow.running import Running
from persist.dataflow.sinks import NEVER, Output, Outputs, end_of
from persist.dataflow.stages import Delay, Negate
from persist.read.scan import Scan
from persist.sink.uploads import Target
from persist.source.address import CollectionAddress
from persist.spark.read.slicing import count_for
from persist.spark.step.stages import StagePlan, cut
from persist.spark.step.tasks import SourceSlices, StageTask, Written


@dataclass(frozen=True)
class Place:
    """Where tasks find the location, and how many of them run at a time."""

    location: str
    storage: Mapping[str, Any]
    parallel: int


class StepPlan:
    """A step of a program that is open; use it in a `with`, which keeps what it reads.

    Attributes:
        until: the time before which outputs will be complete.
        stages: each after those that it reads from.
        bytes: what has to be read, decoded, by an estimate.
        changed: how many updates there are after what the outputs hold.
    """

    def __init__(self, program: Program, running: Running, place: Place) -> None:
        assert running.outputs is not None
        self._outputs: Outputs = running.outputs
        self._place = place
        self._readers = {each.operator.collection: each for each in running.sources}
        self.until = min((end_of(each.collection.upper) for each in running.sources), default=NEVER)
        self._own: dict[int, tuple[Output, int]] = {}  # Sources that are what an output held before.
        self.stages = cut(self._corrected(program.plan.without_unused()))
        self._open = ExitStack()
        self._slices: dict[int, SourceSlices] = {}
        self.bytes = self.changed = 0

    def __enter__(self) -> "StepPlan":
        try:
            for each in self.stages:
                if each.source is not None:
                    self._slices[each.number] = self._sliced(each.source)
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def is_due(self) -> bool:
        """Whether there is something to seal."""
        return any(self.until > each.upper for each in self._outputs.every)

    @property
    def is_seal_only(self) -> bool:
        """Whether nothing comes of it but a seal: nothing has changed, and no output begins or switches."""
        return not self.changed and all(each.upper > 0 and not each.corrects for each in self._outputs.every)

    def tasks(self, partitions: int) -> list[StageTask]:
        """Return what the tasks of each stage do.

        Args:
            partitions: how many tasks a keyed stage has.
        """
        written = {
            each.sink.collection: Written(self._target(each), each.done, each.upper == 0)
            for each in self._outputs.every
        }
        return [StageTask(each, partitions, written, self._slices.get(each.number)) for each in self.stages]

    def commit(self, stored: Mapping[str, Sequence[Part]]) -> int | None:
        """Commit what tasks have stored as one record, and return its seqno; if that is refused, delete it.

        Raises:
            UpperMismatch, UpdatesBeyondUpper, HoldMoved, ViewRedefined: somebody came between; nothing was written.
        """
        try:
            return self._outputs.commit_parts(self.until, stored)
        except BaseException:
            for each in self._outputs.every:
                with self._target(each).writer() as writer:
                    writer.discard(stored.get(each.sink.collection, ()))
            raise

    def lines(self) -> list[str]:
        """Return what each stage does, as text."""
        return [_line(each) for each in self.stages]

    def _target(self, output: Output) -> Target:
        return Target.of(output.collection, self._place.location, self._place.storage)

    def _corrected(self, plan: Plan) -> Plan:
        """Return a plan in which an output that switches takes away what it held before, at the time of the switch."""
        for output in self._outputs.every:
            if not output.corrects:
                continue
            [sink] = [
                node
                for node in plan.nodes.values()
                if isinstance(node.operator, Persist) and node.operator.collection == output.sink.collection
            ]
            at = Delay(col(TIME).max_with(output.upper))
            old = plan.add(Source(output.collection.name), (), sink.schema)
            self._own[old.number] = (output, output.upper - 1)
            gone = plan.add(Linear((Negate(), at)), (old.number,), sink.schema)
            come = plan.add(Linear((at,)), sink.inputs, sink.schema)
            both = plan.add(Concat(), (come.number, gone.number), sink.schema)
            plan.change(sink.number, inputs=(both.number,))
        return plan

    def _sliced(self, source: Node) -> SourceSlices:
        assert isinstance(source.operator, Source)
        columns = list(source.schema.names)
        if source.number in self._own:
            output, as_of = self._own[source.number]
            collection, end = output.collection, as_of + 1
        else:
            reader = self._readers[source.operator.collection]
            collection, as_of, end = reader.collection, reader.as_of, self.until
        version = collection.handle.schema.version
        snapshot = collection.snapshot(as_of, columns=columns, form="diff", schema=version)
        self._open.callback(snapshot.close)
        slices = [(each, False) for each in self._cut(snapshot.scan)]
        if end > as_of + 1:
            changes = collection.changes(as_of + 1, min(end, TIME_MAX + 1), columns=columns, schema=version)
            self._open.callback(changes.close)
            self.changed += sum(part.rows for part in changes.scan.all_parts)
            slices += [(each, True) for each in self._cut(changes.scan)]
        address = CollectionAddress(self._place.location, self._place.storage, collection.name)
        return SourceSlices(address, slices, as_of, source.schema)

    def _cut(self, scan: Scan) -> list[Scan]:
        self.bytes += scan.memory
        return scan.slices(count_for(scan, self._place.parallel))


def _line(stage: StagePlan) -> str:
    brought = [f"%{each.node} {_shared(each.keys)}" for each in stage.reads]
    source = [] if stage.source is None else [f"reads %{stage.source.number} {stage.source.title}"]
    done = [f"%{node.number} {node.title}" for node in stage.nodes]
    return f"stage {stage.number}: {'; '.join([*source, *brought]) or 'begins'} -> {', '.join(done) or 'as it is'}"


def _shared(keys: tuple[str, ...] | None) -> str:
    if keys is None:
        return "in any way"
    return f"by {', '.join(keys)}" if keys else "all to one task"
