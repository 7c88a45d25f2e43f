"""What the tasks of a stage do: take their share of what the stages before gave, run the operators, share out the rest.

    (exchange int, partition int, rows binary)

is all that Spark sees: blocks of updates in Arrow's own form, already divided by the task that is to have them. So no
type is lost in Spark's, and the shuffle moves few large rows. The operators are those of the embedded engine, in a
program of the stage's nodes that lives as long as the task.

A step that reads little runs its stages in this process, without a job of Spark (`stored_here`, `asked_here`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.codecs import Part, boolean_array, combined, int64_values, row_hashes, to_updates
from persist.dataflow import Linear, Map, OperatorFailed, Program, Stream
from persist.read import Lookup, PartReader, Scan, read_changes, read_snapshot
from persist.sink import Target, upload
from persist.source import CollectionAddress
from persist.spark.step.stages import Exchange, StagePlan
from persist.spark.step.standing import Doubts
from persist.spark.step.touched import Condition
from persist.spark.tasks import surfaced_errors

SHAPE = "exchange int, partition int, rows binary"
Blocks: TypeAlias = list[tuple[int, bytes]]  # Exchanges, and tables in Arrow's form for streams.
WAKES = -1  # No exchange: a row that lets a task run that has no other one.
BLOCK_BYTES_MAX = 64 << 20
_LZ4 = pa.ipc.IpcWriteOptions(compression="lz4")
_NOTHING = pa.schema([("nothing", pa.int8())])  # Stands for a stream without columns.


@dataclass(frozen=True)
class Slice:
    """What one task reads.

    Attributes:
        is_changes: it is one of changes, and otherwise one of contents.
        keys: look these up in the scan, which is a whole one; None to read all of it.
    """

    scan: Scan
    is_changes: bool = False
    keys: pa.Table | None = None


@dataclass(frozen=True)
class SourceSlices:
    """What a source stage reads, cut for its tasks.

    Attributes:
        slices: of the contents as of a time, and of the changes after it.
        bytes: that these read, decoded, by an estimate.
        as_of: when the contents come.
        columns: of the source, with the types that the plan takes them for.
        needed: which records of the contents are; None for all.
    """

    address: CollectionAddress
    slices: Sequence[Slice]
    bytes: int
    as_of: int
    columns: pa.Schema
    needed: Condition | None = None

    def read(self, number: int) -> Iterator[pa.Table]:
        """Yield the updates of one slice."""
        piece = self.slices[number]
        with self.address.opened() as storage:
            reader = PartReader(storage.blob)
            if piece.is_changes:
                yield self._updates(read_changes(piece.scan, reader))
                return
            for table in _contents(piece, reader):
                if self.needed is not None:
                    table = self.needed.kept(table)
                yield self._updates(table.append_column("_time", pa.array(np.full(len(table), self.as_of))))

    def _updates(self, table: pa.Table) -> pa.Table:
        return table.select([*self.columns.names, "_time", "_diff"])


def _contents(found: Slice, reader: PartReader) -> Iterable[pa.Table]:
    if found.keys is None:
        return read_snapshot(found.scan, "diff", reader)
    lookup = Lookup(found.scan)
    return [lookup.contents(lookup.wanted(found.keys), "diff", reader)]


@dataclass(frozen=True)
class Written:
    """How a task writes an output.

    Attributes:
        lower: updates before this time are there already.
        is_new: there are none; those before lower, of constants, come then.
    """

    target: Target
    lower: int
    is_new: bool


class StoredParts(msgspec.Struct, frozen=True, array_like=True):
    """What a task has stored of one output."""

    collection: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class StageTask:
    """A function for `DataFrame.mapInArrow`, of rows of SHAPE; or, of a stage with a source, of numbers of slices.

    Attributes:
        partitions: how many tasks a keyed stage has.
        written: of each output, by the name of its collection.
        as_of: updates after this time are new.
        needed: by exchange, which records of the past are; of what is not named, all.
        asked: exchanges of which only the keys are given that have something new.
        packs: whether blocks are compressed, because they are to be moved.
    """

    stage: StagePlan
    partitions: int
    written: Mapping[str, Written]
    slices: SourceSlices | None = None
    as_of: int = -1
    needed: Mapping[int, Condition] = field(default_factory=dict)
    asked: frozenset[int] = frozenset()
    packs: bool = True

    def gives_to(self, other: "StageTask") -> bool:
        """Whether another stage reads what this one gives."""
        return any(exchange in other.stage.reads for exchange in self.stage.gives)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with surfaced_errors():
            yield from self.rows(batches)

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Do what a task does; errors are as they are raised."""
        if self.slices is None:
            held: dict[int, list[pa.Table]] = {}
            for batch in batches:
                for number, rows in zip(batch.column(0).to_pylist(), batch.column(2), strict=True):
                    if rows.is_valid:
                        held.setdefault(number, []).append(pa.ipc.open_stream(rows.as_buffer()).read_all())
            yield from self._run(held)
            return
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self._run({WAKES: list(self.slices.read(number))})

    def _run(self, held: Mapping[int, list[pa.Table]]) -> Iterator[pa.RecordBatch]:
        given = _Given(self.stage, self.slices, self.as_of)
        for exchange, table in given.answers(held):
            yield from self._shared_out(exchange, table)
        for collection, table in given.outputs:
            yield self._stored(collection, table)

    def _shared_out(self, exchange: Exchange, table: pa.Table) -> Iterator[pa.RecordBatch]:
        if exchange.number in self.asked:
            table = self._new_keys(exchange, table)
            for block in _blocks(table, self.packs) if table.num_rows else ():
                yield block_row(exchange.number, 0, block)
            return
        needed = self.needed.get(exchange.number)
        if needed is not None:
            kept = int64_values(combined(table["_time"])) > self.as_of
            if not kept.all():
                kept[~kept] = needed.holds(table.filter(boolean_array(~kept)))
                table = table.filter(boolean_array(kept))
        if not table.num_rows:
            return
        if exchange.keys == () or self.partitions == 1:
            for block in _blocks(table, self.packs):
                yield block_row(exchange.number, 0, block)
            return
        by = exchange.columns.names if exchange.keys is None else exchange.keys
        to = (row_hashes(table, by) % np.uint64(self.partitions)).astype(np.int64)
        order = to.argsort(kind="stable")
        table, to = table.take(pa.array(order)), to[order]
        starts = [0, *(np.flatnonzero(to[1:] != to[:-1]) + 1).tolist()]
        for start, end in zip(starts, [*starts[1:], len(to)], strict=True):
            for block in _blocks(table.slice(start, end - start), self.packs):
                yield block_row(exchange.number, int(to[start]), block)

    def _new_keys(self, exchange: Exchange, table: pa.Table) -> pa.Table:
        """Return the keys of what is new, each once."""
        assert exchange.keys
        table = table.filter(pc.greater(table["_time"], self.as_of)).select([*exchange.keys])
        _, first = np.unique(row_hashes(table, exchange.keys), return_index=True)
        return table.take(pa.array(first))

    def _stored(self, collection: str, table: pa.Table) -> pa.RecordBatch:
        how = self.written[collection]
        if how.is_new:
            at = table.column_names.index("_time")
            table = table.set_column(at, "_time", pc.max_element_wise(table["_time"], pa.scalar(how.lower)))
        else:
            table = table.filter(pc.greater_equal(table["_time"], how.lower))
        parts = upload(how.target, [to_updates(table, how.target.schema)]) if table.num_rows else ()
        return block_row(WAKES, 0, msgspec.json.encode(StoredParts(collection, parts)))


class _Given:
    """The program of a stage, for what one task has of its inputs."""

    def __init__(self, stage: StagePlan, slices: SourceSlices | None, as_of: int) -> None:
        self._program = Program(f"stage {stage.number}")
        self._stage = stage
        self._inputs: dict[int, str] = {}
        self._brought: dict[int, int] = {}  # Nodes of this program, by exchange.
        self._made: dict[int, int] = {}  # Nodes of this program, by those of the whole.
        if slices is not None and stage.source is not None:
            self._made[stage.source.number] = self._input(WAKES, slices.columns)
        for exchange in stage.reads:
            self._brought[exchange.number] = self._input(exchange.number, exchange.columns)
        self._add()
        self._seen = [(exchange, self._stream(exchange.node).capture()) for exchange in stage.gives]
        self._sinks = [(sink, self._stream(self._source_of(sink)).capture()) for sink in stage.sinks]
        self._doubts = [(self._stream(number).capture(), doubts) for number, doubts in stage.doubts.items()]
        self._as_of = as_of
        self.outputs: list[tuple[str, pa.Table]] = []

    def answers(self, held: Mapping[int, list[pa.Table]]) -> Iterator[tuple[Exchange, pa.Table]]:
        """Yield what the stage gives, by exchange; `outputs` then has what is to be stored."""
        with self._program.open() as running:
            for number, name in self._inputs.items():
                for table in held.get(number, ()):
                    running[name].insert(table)
                running[name].close()
            running.run()
            for seen, doubts in self._doubts:
                _check_told(seen.updates(), doubts, self._as_of)
            for exchange, seen in self._seen:
                yield exchange, _with_nothing(seen.updates(), exchange.columns)
            self.outputs = [(sink.operator.collection, seen.updates()) for sink, seen in self._sinks]  # type: ignore[union-attr]

    def _input(self, number: int, columns: pa.Schema) -> int:
        name = f"input {number}"
        self._inputs[number] = name
        kinds = {column.name: column.type for column in (columns or _NOTHING)}
        made = self._program.input(name, key=None, value=kinds).number
        if columns.names:
            return made
        return self._program.plan.add(Linear((Map(()),)), (made,), columns).number

    def _add(self) -> None:
        sinks = {sink.number for sink in self._stage.sinks}
        for node in self._stage.nodes:
            if node.number in sinks:
                continue
            inputs = [self._brought_to(node.number, place, number) for place, number in enumerate(node.inputs)]
            made = self._program.plan.add(node.operator, tuple(inputs), node.schema)
            self._program.plan.change(made.number, name=node.title)
            self._made[node.number] = made.number

    def _brought_to(self, node: int, place: int, number: int) -> int:
        exchange = self._stage.feeds.get((node, place))
        return self._made[number] if exchange is None else self._brought[exchange.number]

    def _source_of(self, sink: object) -> int:
        number, [read] = sink.number, sink.inputs  # type: ignore[attr-defined]
        exchange = self._stage.feeds.get((number, 0))
        if exchange is None:
            return int(read)
        self._made[-1 - number] = self._brought[exchange.number]
        return -1 - int(number)

    def _stream(self, number: int) -> Stream:
        return Stream(self._program, self._made[number])


def _check_told(updates: pa.Table, doubts: Doubts, as_of: int) -> None:
    """Raise OperatorFailed if what comes after a time depends on what the output as of then did not tell."""
    is_new = pc.greater(updates["_time"], as_of)
    come = updates.filter(pc.and_(is_new, pc.greater(updates["_diff"], 0)))
    for name in doubts.unsure:
        if pc.any(pc.equal(come[name], pa.scalar(0).cast(come[name].type))).as_py():
            raise OperatorFailed("reduce", None, f"whether {name} is 0 or NULL is not told by what the output holds")
    if doubts.sums is None:
        return
    then = updates.filter(pc.invert(is_new))
    _check_among(come, then, doubts.keys, "a group")
    for name in doubts.sums:
        asked, held = (table.filter(table[name].is_valid()) for table in (come, then))
        _check_among(asked, held, doubts.keys, f"{name}, which was NULL,")


def _check_among(asked: pa.Table, told: pa.Table, keys: Sequence[str], what: str) -> None:
    if not np.isin(row_hashes(asked, keys), row_hashes(told, keys)).all():
        raise OperatorFailed("reduce", None, f"the past of {what} is not told by what the output holds")


def _with_nothing(table: pa.Table, columns: pa.Schema) -> pa.Table:
    return table if columns.names else table.append_column("nothing", pa.array(np.zeros(len(table), np.int8)))


def _blocks(table: pa.Table, packs: bool) -> Iterator[bytes]:
    rows = max(1, int(len(table) * BLOCK_BYTES_MAX / max(1, table.nbytes)))
    for start in range(0, len(table), rows):
        target = pa.BufferOutputStream()
        with pa.ipc.new_stream(target, table.schema, options=_LZ4 if packs else None) as stream:
            stream.write_table(table.slice(start, rows))
        yield target.getvalue().to_pybytes()


def block_row(exchange: int, partition: int, rows: bytes | None) -> pa.RecordBatch:
    """Return a row of SHAPE."""
    return pa.record_batch(
        {
            "exchange": pa.array([exchange], pa.int32()),
            "partition": pa.array([partition], pa.int32()),
            "rows": pa.array([rows], pa.binary()),
        }
    )


def numbered(number: int) -> pa.RecordBatch:
    """Return what the task of a stage with a source is given: the number of a slice."""
    return pa.record_batch({"id": pa.array([number], pa.int64())})


def stored_here(tasks: Sequence[StageTask]) -> dict[str, Sequence[Part]]:
    """Run all stages; return what they have stored, by output."""
    parts: dict[str, list[Part]] = {}
    for number, block in _run(tasks):
        if number == WAKES:
            stored = msgspec.json.decode(block, type=StoredParts)
            parts.setdefault(stored.collection, []).extend(stored.parts)
    return dict(parts)


def asked_here(tasks: Sequence[StageTask]) -> Blocks:
    """Run stages; return the blocks that are asked for, each with its exchange."""
    asked = frozenset[int]().union(*(task.asked for task in tasks))
    return [(number, block) for number, block in _run(tasks) if number in asked]


def _run(tasks: Sequence[StageTask]) -> Iterator[tuple[int, bytes]]:
    """Yield what the tasks of stages give, stage by stage."""
    given: dict[int, list[pa.RecordBatch]] = {}
    for task in (replace(planned, partitions=1, packs=False) for planned in tasks):
        for row in task.rows(_rows_for(task, given)):
            number, block = row.column(0)[0].as_py(), row.column(2)[0].as_py()
            given.setdefault(number, []).append(row)
            yield number, block


def _rows_for(task: StageTask, given: dict[int, list[pa.RecordBatch]]) -> list[pa.RecordBatch]:
    """Return what the one task of a stage is given."""
    if task.slices is not None:
        return [numbered(number) for number in range(len(task.slices.slices))]
    if not task.stage.reads:
        return [block_row(WAKES, 0, None)]
    return [row for exchange in task.stage.reads for row in given.get(exchange.number, ())]
