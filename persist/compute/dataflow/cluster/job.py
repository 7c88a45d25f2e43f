"""A job: the reads and the work of a cluster's tasks for a program, and the commit of their output.

A job opens its sources and outputs as a running program does: holds keep the history of the sources, and each output
has a first time to write. The job contains all that tasks need. If another client commits in between, the commit is
refused as a whole, and the stored output is deleted.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from persist.compute.dataflow.cluster.exchanges import StagePlan, split_into_stages
from persist.compute.dataflow.cluster.tasks import OutputTarget, Slice, SourceSlices, StageTask, Stored
from persist.compute.dataflow.plan.plan import Source
from persist.compute.dataflow.ports.output import Output
from persist.compute.dataflow.ports.ports import Ports
from persist.compute.dataflow.ports.sinks import Outputs
from persist.compute.dataflow.program import Program
from persist.compute.tasks.planned_write import Target
from persist.compute.tasks.stream_source import CollectionAddress
from persist.core.antichain import END
from persist.engine.collection.reads import changes, snapshot


class Job:
    """One refresh of a program by a cluster's tasks; use it in a `with`, which keeps sources readable.

    Args:
        location, storage: where tasks find the location.
        parallel: how many tasks the cluster runs at a time.

    Attributes:
        until: the time before which outputs will be complete.
        stages: each after its inputs.
    """

    def __init__(
        self, program: Program, ports: Ports, location: str, storage: Mapping[str, Any], parallel: int
    ) -> None:
        self._outputs: Outputs = ports.outputs
        self._location, self._storage, self._parallel = location, storage, parallel
        self._readers = {reader.operator.collection: reader for reader in ports.sources}
        self.until = min((reader.handle.contents().upper for reader in ports.sources), default=END)
        self.stages = split_into_stages(program.plan.drop_unused())
        self._open = ExitStack()
        self._slices: dict[str, tuple[CollectionAddress, list[Slice], int, int]] = {}
        self.changed_bytes = 0

    def __enter__(self) -> "Job":
        try:
            for stage in self.stages:
                self._slice_reads(stage)
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def bytes(self) -> int:
        """The estimated bytes to read, decoded."""
        return sum(size for _, _, size, _ in self._slices.values())

    @property
    def begins(self) -> bool:
        """Whether an output is still empty, so that tasks write its first contents."""
        return any(output.upper == 0 for output in self._outputs.every)

    @property
    def corrects(self) -> bool:
        """Whether results must be compared with stored outputs, which tasks cannot do."""
        return any(output.corrects or output.compares for output in self._outputs.every)

    @property
    def is_due(self) -> bool:
        """Whether the outputs can be sealed further."""
        return any(self.until > output.upper for output in self._outputs.every)

    def make_tasks(self, partitions: int) -> list[StageTask]:
        """Return the tasks of each stage. `partitions`: how many tasks a keyed stage has."""
        written = {
            output.sink.collection: OutputTarget(self._make_target(output), output.done, output.upper == 0)
            for output in self._outputs.every
        }
        return [StageTask(stage, partitions, written, self._slice_source(stage)) for stage in self.stages]

    def commit(self, stored: Stored) -> int | None:
        """Commit the tasks' output as one record, and return its seqno; delete the output if it is refused.

        Raises:
            UpperMismatch, UpdatesBeyondUpper, HoldMoved, ViewRedefined: another client committed first; nothing was
                written.
        """
        try:
            return self._outputs.commit_parts(self.until, stored)
        except BaseException:
            for output in self._outputs.every:
                if parts := stored.get(output.sink.collection, ()):
                    with self._make_target(output).open_writer() as writer:
                        writer.discard(parts)
            raise

    def _make_target(self, output: Output) -> Target:
        """Return where tasks store the parts of an output."""
        return Target.of(output.handle, self._location, self._storage)

    def _slice_source(self, stage: StagePlan) -> SourceSlices | None:
        """Return a source stage's input in slices; None for a stage without a source."""
        if stage.source is None:
            return None
        assert isinstance(stage.source.operator, Source)
        address, slices, size, as_of = self._slices[str(stage.source.number)]
        return SourceSlices(address, slices, size, as_of, stage.source.schema)

    def _slice_reads(self, stage: StagePlan) -> None:
        """Cut a source into slices, one for each task of a stage."""
        if stage.source is None:
            return
        assert isinstance(stage.source.operator, Source)
        reader = self._readers[stage.source.operator.collection]
        handle, as_of, columns = reader.handle, reader.as_of, stage.source.schema.names
        version, filter = handle.schema.version, reader.filter
        contents = snapshot(handle, as_of, columns=columns, where=filter, form="diff", schema=version)
        self._open.callback(contents.close)
        scan = contents.scan
        slices = [Slice(piece, is_changes=False) for piece in scan.slices(scan.choose_task_count(self._parallel))]
        size = scan.memory
        if self.until > as_of + 1:
            updates = changes(handle, as_of + 1, self.until, columns=columns, where=filter, schema=version)
            self._open.callback(updates.close)
            new = updates.scan
            slices += [Slice(piece, is_changes=True) for piece in new.slices(new.choose_task_count(self._parallel))]
            self.changed_bytes += new.memory
            size += new.memory
        address = CollectionAddress(self._location, self._storage, handle.name)
        self._slices[str(stage.source.number)] = address, slices, size, as_of
