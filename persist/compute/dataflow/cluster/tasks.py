"""The tasks of a stage: read a share of the earlier stages' output, run the operators, and distribute the result.

The input and output of a task are

    (exchange int, partition int, rows binary)

which is all that Spark sees: blocks of updates in Arrow's IPC format, already partitioned by the task that reads them.
So no type is converted to a Spark type, and the shuffle moves few large rows. Each task runs the stage's operators as
a program of its own.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.codecs.order.digest import hash_rows
from persist.codecs.part.part import Part
from persist.codecs.types.schema import TIME_MAX
from persist.codecs.updates.updates import to_updates
from persist.compute.dataflow.cluster.exchanges import Exchange, StagePlan
from persist.compute.dataflow.plan.draft import Captured
from persist.compute.dataflow.plan.optimise import Statistics
from persist.compute.dataflow.plan.plan import Linear, Persist
from persist.compute.dataflow.plan.stages import Map
from persist.compute.dataflow.program import Program
from persist.compute.dataflow.running.running import Options, Running
from persist.compute.dataflow.stream import Stream
from persist.compute.tasks.planned_write import Target, upload
from persist.compute.tasks.stream_source import CollectionAddress
from persist.engine.read.following.changes import read_changes
from persist.engine.read.merging import read_snapshot
from persist.engine.read.parts.reader import PartReader
from persist.engine.read.planning.scan import Scan

SHAPE = "exchange int, partition int, rows binary"
Stored: TypeAlias = Mapping[str, Sequence[Part]]  # By output.
WAKES = -1  # No exchange: a row that lets a task run that has no other one.
BLOCK_BYTES_MAX = 64 << 20
_LZ4 = pa.ipc.IpcWriteOptions(compression="lz4")
_NOTHING = pa.schema([("nothing", pa.int8())])  # Stands for a stream without columns.


@dataclass(frozen=True)
class Slice:
    """The input of one task. `is_changes`: a slice of changes; otherwise of contents."""

    scan: Scan
    is_changes: bool


@dataclass(frozen=True)
class SourceSlices:
    """The input of a source stage, cut for its tasks.

    Attributes:
        slices: of the contents as of a time, and of the changes after it.
        bytes: the estimated decoded bytes of the slices.
        as_of: the time of the contents.
        columns: the source's columns, with their types in the plan.
    """

    address: CollectionAddress
    slices: Sequence[Slice]
    bytes: int
    as_of: int
    columns: pa.Schema

    def read(self, piece: Slice, reader: PartReader) -> Iterator[pa.Table]:
        """Yield the updates of one slice."""
        names = [*self.columns.names, "_time", "_diff"]
        if piece.is_changes:
            yield read_changes(piece.scan, reader).select(names)
            return
        for table in read_snapshot(piece.scan, "diff", reader):
            yield table.append_column("_time", pa.array(np.full(len(table), self.as_of))).select(names)


@dataclass(frozen=True)
class OutputTarget:
    """Where a task stores an output, and which of its updates are committed already.

    Attributes:
        lower: updates before this time are committed already.
        is_new: nothing is committed yet, so updates of constants before `lower` are written as well.
    """

    target: Target
    lower: int
    is_new: bool


class StoredParts(msgspec.Struct, frozen=True, array_like=True):
    """The parts that a task has stored for one output."""

    collection: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class StageTask:
    """The work of a stage's tasks; `rows` is a function for `DataFrame.mapInArrow`.

    Attributes:
        partitions: how many tasks a keyed stage has.
        written: where and how each output is written, by the name of its collection.
    """

    stage: StagePlan
    partitions: int
    written: Mapping[str, OutputTarget]
    slices: SourceSlices | None = None

    def feeds_stage(self, other: "StageTask") -> bool:
        """Return whether another stage reads this one's output."""
        return any(exchange in other.stage.reads for exchange in self.stage.gives)

    @property
    def source_number(self) -> int:
        """The number of the source's rows among a task's inputs; no exchange has this number."""
        return WAKES - self.stage.number

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run one task on encoded blocks of updates, or on the numbers of a source's slices."""
        if self.slices is None:
            exchanged: dict[int, list[pa.Table]] = {}
            for batch in batches:
                for number, rows in zip(batch.column(0).to_pylist(), batch.column(2), strict=True):
                    if rows.is_valid:
                        exchanged.setdefault(number, []).append(pa.ipc.open_stream(rows.as_buffer()).read_all())
            yield from self._run_operators(exchanged)
            return
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with self.slices.address.open_store() as storage:
                    read = [*self.slices.read(self.slices.slices[number], PartReader(storage.blob))]
                yield from self._run_operators({self.source_number: read})

    def _run_operators(self, held: Mapping[int, list[pa.Table]]) -> Iterator[pa.RecordBatch]:
        """Run the stage's operators; yield rows for later stages and stored parts."""
        program = _StageProgram(self)
        for exchange, table in program.compute(held):
            yield from self._partition(exchange, table)
        for collection, table in program.outputs:
            target = self.written[collection].target
            parts = upload(target, [to_updates(table, target.schema)]) if table.num_rows else ()
            yield make_block_row(WAKES, 0, msgspec.json.encode(StoredParts(collection, parts)))

    def select_uncommitted(self, collection: str, table: pa.Table) -> pa.Table:
        """Return the updates of an output that are not committed yet."""
        how = self.written[collection]
        if how.lower > TIME_MAX:  # It is complete for ever: of constants alone.
            return table.slice(0, 0)
        if not how.is_new:
            return table.filter(pc.greater_equal(table["_time"], how.lower))
        at = table.column_names.index("_time")
        return table.set_column(at, "_time", pc.max_element_wise(table["_time"], pa.scalar(how.lower)))

    def _partition(self, exchange: Exchange, table: pa.Table) -> Iterator[pa.RecordBatch]:
        """Yield a table's rows, encoded in blocks, by the partition that reads them."""
        if not table.num_rows:
            return
        if exchange.keys == () or self.partitions == 1:
            for block in _encode_blocks(table):
                yield make_block_row(exchange.number, 0, block)
            return
        by = exchange.columns.names if exchange.keys is None else exchange.keys
        to = (hash_rows(table, by) % np.uint64(self.partitions)).astype(np.int64)
        order = to.argsort(kind="stable")
        table, to = table.take(pa.array(order)), to[order]
        starts = [0, *(np.flatnonzero(to[1:] != to[:-1]) + 1).tolist()]
        for start, end in zip(starts, [*starts[1:], len(to)], strict=True):
            for block in _encode_blocks(table.slice(start, end - start)):
                yield make_block_row(exchange.number, int(to[start]), block)


class _StageProgram:
    """A dataflow program that computes a stage for one task's input."""

    def __init__(self, task: StageTask) -> None:
        self._task, stage = task, task.stage
        self._program = Program("stage")
        self._plan = self._program.plan
        self._inputs: dict[int, tuple[str, int]] = {}  # The inputs from exchanges and sources, with their nodes.
        nodes: dict[int, int] = {}  # This program's node numbers, by the numbers of the whole plan.
        self._sinks: list[tuple[str, Captured]] = []
        if task.slices is not None and stage.source is not None:
            nodes[stage.source.number] = self._add_input(task.source_number, task.slices.columns)
        exchange_inputs = {
            exchange.number: self._add_input(exchange.number, exchange.columns) for exchange in stage.reads
        }
        for node in stage.nodes:
            inputs = [
                nodes[number] if (fed := stage.feeds.get((node.number, place))) is None else exchange_inputs[fed.number]
                for place, number in enumerate(node.inputs)
            ]
            if isinstance(node.operator, Persist):
                self._sinks.append((node.operator.collection, self._add_capture(inputs[0])))
            else:
                added = self._plan.add(node.operator, tuple(inputs), node.schema)
                nodes[node.number] = self._plan.replace_node(added.number, name=node.title).number
        self._results = [(exchange, self._add_capture(nodes[exchange.node])) for exchange in stage.gives]
        self.outputs: list[tuple[str, pa.Table]] = []

    def compute(self, held: Mapping[int, list[pa.Table]]) -> Iterator[tuple[Exchange, pa.Table]]:
        """Run the stage on its inputs (`held`, by number); yield its output by exchange."""
        inputs = {
            node: Statistics(float(sum(len(table) for table in held.get(number, ()))))
            for number, (_, node) in self._inputs.items()
        }
        with Running(self._program, None, Options(), inputs) as running:
            for number, (name, _) in self._inputs.items():
                for table in held.get(number, ()):
                    running[name].insert(table)
                running[name].close()
            running.run()
            for exchange, updates in self._results:
                yield exchange, _with_placeholder_column(updates.updates(), exchange)
            self.outputs = [
                (name, self._task.select_uncommitted(name, updates.updates())) for name, updates in self._sinks
            ]

    def _add_input(self, number: int, columns: pa.Schema) -> int:
        """Add an input for an exchange or a source; return the number of its node."""
        kinds = {column.name: column.type for column in (columns or _NOTHING)}
        name = f"input {number}"
        node_number = self._program.input(name, key=None, value=kinds).number
        self._inputs[number] = name, node_number
        return node_number if columns.names else self._plan.add(Linear((Map(()),)), (node_number,), columns).number

    def _add_capture(self, number: int) -> Captured:
        """Return a capture of the output of a node."""
        return Stream(self._program, number).capture()


def _with_placeholder_column(table: pa.Table, exchange: Exchange) -> pa.Table:
    """Return a table; a table without columns gets one, which keeps its number of rows."""
    return table if exchange.columns.names else table.append_column("nothing", pa.array(np.zeros(len(table), np.int8)))


def _encode_blocks(table: pa.Table) -> Iterator[bytes]:
    """Yield a table as compressed Arrow streams of bounded size."""
    rows = max(1, int(len(table) * BLOCK_BYTES_MAX / max(1, table.nbytes)))
    for start in range(0, len(table), rows):
        target = pa.BufferOutputStream()
        with pa.ipc.new_stream(target, table.schema, options=_LZ4) as stream:
            stream.write_table(table.slice(start, rows))
        yield target.getvalue().to_pybytes()


def make_block_row(exchange: int, partition: int, rows: bytes | None) -> pa.RecordBatch:
    """Return a record batch of one row: a block of encoded updates for one partition."""
    return pa.record_batch(
        {
            "exchange": pa.array([exchange], pa.int32()),
            "partition": pa.array([partition], pa.int32()),
            "rows": pa.array([rows], pa.binary()),
        }
    )
