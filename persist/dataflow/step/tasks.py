"""What the tasks of a stage do: take their share of what the stages before gave, run the operators, share out the rest.

In this process (`Here`) a stage is one task, and tables go from stage to stage as they are. Elsewhere there are many,
and what they are given and give is

    (exchange int, partition int, rows binary)

which is all that Spark sees: blocks of updates in Arrow's own form, already divided by the task that is to have them.
So no type is lost in Spark's, and the shuffle moves few large rows. The operators are those of a running program, in
one of the stage's nodes that lives as long as the task.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.codecs import TIME_MAX, Part, boolean_array, combined, int64_values, row_hashes, to_updates
from persist.dataflow.plan.plan import Linear
from persist.dataflow.plan.stages import Map
from persist.dataflow.program import Program
from persist.dataflow.step.stages import Exchange, StagePlan
from persist.dataflow.step.standing import Doubts
from persist.dataflow.step.touched import Condition
from persist.dataflow.stream import Stream
from persist.errors import OperatorFailed
from persist.index import Path, among
from persist.read import Lookup, PartReader, Scan, read_changes, read_snapshot
from persist.sink import Target, upload
from persist.source import CollectionAddress
from persist.work import check_limits

SHAPE = "exchange int, partition int, rows binary"
Asked: TypeAlias = list[tuple[int, pa.Table]]  # With their exchanges.
Stored: TypeAlias = Mapping[str, Sequence["Part | pa.Table"]]  # By output: what is stored, or is still to be.
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
        path: look them up by this index in place of it.
        without: leave out records that have one of these keys: other slices give them.
    """

    scan: Scan
    is_changes: bool = False
    keys: pa.Table | None = None
    path: Path | None = None
    without: tuple[pa.Table, ...] = ()


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

    def read(self, piece: Slice, reader: PartReader, found: "Found | None" = None) -> Iterator[pa.Table]:
        """Yield the updates of one slice; of one that is among what was found before, without reading it."""
        if piece.is_changes:
            yield self._updates(read_changes(piece.scan, reader))
            return
        for table in _contents(piece, reader) if found is None else found.contents(piece, reader):
            if self.needed is not None:
                table = self.needed.kept(table)
            yield self._updates(table.append_column("_time", pa.array(np.full(len(table), self.as_of))))

    def _updates(self, table: pa.Table) -> pa.Table:
        return table.select([*self.columns.names, "_time", "_diff"])


def _contents(piece: Slice, reader: PartReader) -> Iterable[pa.Table]:
    if piece.keys is None:
        return read_snapshot(piece.scan, "diff", reader)
    if piece.path is not None:
        table = piece.path.records(piece.keys, reader)
        for keys in piece.without:
            table = among(table, keys, others=True)
        return [table]
    lookup = Lookup(piece.scan)
    return [lookup.contents(lookup.wanted(piece.keys), "diff", reader)]


class Found:
    """What was looked up by keys in a step: the same records are asked for to find keys, and when it is computed."""

    def __init__(self) -> None:
        self._tables: list[tuple[Slice, Iterable[pa.Table]]] = []

    def contents(self, piece: Slice, reader: PartReader) -> Iterable[pa.Table]:
        """Return the contents that a slice gives."""
        if piece.keys is None:
            return _contents(piece, reader)
        how = (piece.path, piece.keys, piece.without)
        for known, tables in self._tables:
            if known.scan is piece.scan and (known.path, known.keys, known.without) == how:
                return tables
        tables = _contents(piece, reader)
        self._tables.append((piece, tables))
        return tables


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
    """What the tasks of a stage do; `rows` is a function for `DataFrame.mapInArrow`.

    Attributes:
        partitions: how many tasks a keyed stage has.
        written: of each output, by the name of its collection.
        as_of: updates after this time are new.
        needed: by exchange, which records of the past are; of what is not named, all.
        asked: exchanges of which only keys are given: those that have something new, or
        asked_of: by exchange, those of the records that are needed by this.
    """

    stage: StagePlan
    partitions: int
    written: Mapping[str, Written]
    slices: SourceSlices | None = None
    as_of: int = -1
    needed: Mapping[int, Condition] = field(default_factory=dict)
    asked: frozenset[int] = frozenset()
    asked_of: Mapping[int, Condition] = field(default_factory=dict)

    def gives_to(self, other: "StageTask") -> bool:
        """Whether another stage reads what this one gives."""
        return any(exchange in other.stage.reads for exchange in self.stage.gives)

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Do what one task does, given rows of SHAPE, or, of a stage with a source, numbers of slices."""
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
                with self.slices.address.opened() as storage:
                    read = [*self.slices.read(self.slices.slices[number], PartReader(storage.blob))]
                yield from self._run({WAKES: read})

    def _run(self, held: Mapping[int, list[pa.Table]]) -> Iterator[pa.RecordBatch]:
        gives, outputs = self.given(held)
        for exchange, table in gives:
            yield from self._shared_out(exchange, table)
        for collection, table in outputs:
            target = self.written[collection].target
            parts = upload(target, [to_updates(table, target.schema)]) if table.num_rows else ()
            yield block_row(WAKES, 0, msgspec.json.encode(StoredParts(collection, parts)))

    def given(
        self, held: Mapping[int, list[pa.Table]]
    ) -> tuple[list[tuple[Exchange, pa.Table]], list[tuple[str, pa.Table]]]:
        """Return what a task gives that holds some tables, by the number of their exchange: what is needed of each
        exchange, or the keys that are asked for, and the updates of each output that are not there yet."""
        stage = _Given(self.stage, self.slices, self.as_of)
        gives = [(exchange, self._needed(exchange, table)) for exchange, table in stage.answers(held)]
        return gives, [(collection, self._due(collection, table)) for collection, table in stage.outputs]

    def _needed(self, exchange: Exchange, table: pa.Table) -> pa.Table:
        if exchange.number in self.asked:
            return self._keys(exchange, table)
        needed = self.needed.get(exchange.number)
        if needed is None:
            return table
        kept = int64_values(combined(table["_time"])) > self.as_of
        if kept.all():
            return table
        kept[~kept] = needed.holds(table.filter(boolean_array(~kept)))
        return table.filter(boolean_array(kept))

    def _due(self, collection: str, table: pa.Table) -> pa.Table:
        how = self.written[collection]
        if how.lower > TIME_MAX:  # It is complete for ever: of constants alone.
            return table.slice(0, 0)
        if not how.is_new:
            return table.filter(pc.greater_equal(table["_time"], how.lower))
        at = table.column_names.index("_time")
        return table.set_column(at, "_time", pc.max_element_wise(table["_time"], pa.scalar(how.lower)))

    def _shared_out(self, exchange: Exchange, table: pa.Table) -> Iterator[pa.RecordBatch]:
        if not table.num_rows:
            return
        if exchange.keys == () or self.partitions == 1 or exchange.number in self.asked:
            for block in _blocks(table):
                yield block_row(exchange.number, 0, block)
            return
        by = exchange.columns.names if exchange.keys is None else exchange.keys
        to = (row_hashes(table, by) % np.uint64(self.partitions)).astype(np.int64)
        order = to.argsort(kind="stable")
        table, to = table.take(pa.array(order)), to[order]
        starts = [0, *(np.flatnonzero(to[1:] != to[:-1]) + 1).tolist()]
        for start, end in zip(starts, [*starts[1:], len(to)], strict=True):
            for block in _blocks(table.slice(start, end - start)):
                yield block_row(exchange.number, int(to[start]), block)

    def _keys(self, exchange: Exchange, table: pa.Table) -> pa.Table:
        """Return the keys of what is new, or of what is asked for, each once."""
        assert exchange.keys
        of = self.asked_of.get(exchange.number)
        table = table.filter(pc.greater(table["_time"], self.as_of)) if of is None else of.kept(table)
        table = table.select([*exchange.keys])
        _, first = np.unique(row_hashes(table, exchange.keys), return_index=True)
        return table.take(pa.array(first))


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


def _blocks(table: pa.Table) -> Iterator[bytes]:
    rows = max(1, int(len(table) * BLOCK_BYTES_MAX / max(1, table.nbytes)))
    for start in range(0, len(table), rows):
        target = pa.BufferOutputStream()
        with pa.ipc.new_stream(target, table.schema, options=_LZ4) as stream:
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


class Here:
    """Runs the stages of a step in this process, each as one task."""

    def __init__(self, reader: PartReader) -> None:
        self._reader = reader
        self._found = Found()

    def asked(self, tasks: Sequence[StageTask]) -> Asked:
        """Run stages; return the tables that are asked for, each with its exchange."""
        asked = frozenset[int]().union(*(task.asked for task in tasks))
        tables, _ = self._run(tasks)
        return [(number, table) for number in sorted(asked) for table in tables.get(number, ())]

    def stored(self, tasks: Sequence[StageTask]) -> Stored:
        """Run all stages; return the updates of each output, which are not stored yet."""
        return self._run(tasks)[1]

    def _run(self, tasks: Sequence[StageTask]) -> tuple[dict[int, list[pa.Table]], dict[str, list[pa.Table]]]:
        tables: dict[int, list[pa.Table]] = {}
        outputs: dict[str, list[pa.Table]] = {}
        for task in tasks:
            check_limits()
            held = {exchange.number: tables.get(exchange.number, []) for exchange in task.stage.reads}
            if (source := task.slices) is not None:
                held[WAKES] = [
                    table for piece in source.slices for table in source.read(piece, self._reader, self._found)
                ]
            gives, stored = task.given(held)
            for exchange, table in gives:
                tables.setdefault(exchange.number, []).append(table)
            for collection, table in stored:
                outputs.setdefault(collection, []).append(table)
        return tables, outputs
