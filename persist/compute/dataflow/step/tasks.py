"""What the tasks of a stage do: take their share of what the stages before gave, run the operators, share out the rest.

In this process (`Here`) all stages are one task and one program, and nothing is made into tables between them.
Elsewhere a stage is many tasks, and what they are given and give is

    (exchange int, partition int, rows binary)

which is all that Spark sees: blocks of updates in Arrow's own form, already divided by the task that is to have them.
So no type is lost in Spark's, and the shuffle moves few large rows. The operators are those of a running program, in
one of the nodes of the stages that lives as long as the task.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.codecs.order.digest import row_hashes
from persist.codecs.part.part import Part
from persist.codecs.types.schema import TIME_MAX
from persist.codecs.updates.updates import to_updates
from persist.compute.dataflow.plan.draft import Captured
from persist.compute.dataflow.plan.optimise import Statistics
from persist.compute.dataflow.plan.plan import Linear, Persist
from persist.compute.dataflow.plan.stages import Among, Map
from persist.compute.dataflow.plan.stages import Stage as LinearStage
from persist.compute.dataflow.program import Program
from persist.compute.dataflow.running.running import Options, Running
from persist.compute.dataflow.step.keys import Condition
from persist.compute.dataflow.step.stages import Exchange, StagePlan
from persist.compute.dataflow.step.standing import Doubts, OnlyNew
from persist.compute.dataflow.stream import Stream
from persist.compute.index import Path, among
from persist.compute.tasks.planned_write import Target, upload
from persist.compute.tasks.stream_source import CollectionAddress
from persist.core.errors import OperatorFailed
from persist.core.progress import check_limits
from persist.engine.read.following.changes import read_changes
from persist.engine.read.lookups.lookup import Lookup
from persist.engine.read.merging import read_snapshot
from persist.engine.read.parts.reader import PartReader
from persist.engine.read.planning.scan import Scan

SHAPE = "exchange int, partition int, rows binary"
Asked: TypeAlias = list[tuple[int, pa.Table]]  # With their exchanges.
Stored: TypeAlias = Mapping[str, Sequence["Part | pa.Table"]]  # By output: what is stored, or is still to be.
WAKES = -1  # No exchange: a row that lets a task run that has no other one.
BLOCK_BYTES_MAX = 64 << 20
KEPT_BYTES_MAX = 256 << 20  # Decoded, of what was read in a step.
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

    def read(self, piece: Slice, reader: PartReader) -> Iterator[pa.Table]:
        """Yield the updates of one slice."""
        for table in _tables(piece, reader):
            yield self.updates(piece, table)

    def updates(self, piece: Slice, table: pa.Table) -> pa.Table:
        """Return the updates that are needed of what a slice gives, which may have been read for others, too."""
        if not piece.is_changes:
            if self.needed is not None:
                table = self.needed.kept(table)
            table = table.append_column("_time", pa.array(np.full(len(table), self.as_of)))
        return table.select([*self.columns.names, "_time", "_diff"])


def _tables(piece: Slice, reader: PartReader) -> Iterable[pa.Table]:
    return [read_changes(piece.scan, reader)] if piece.is_changes else _contents(piece, reader)


def _contents(piece: Slice, reader: PartReader) -> Iterable[pa.Table]:
    if piece.keys is None:
        return read_snapshot(piece.scan, "diff", reader)
    if piece.path is not None:
        table = piece.path.records(piece.keys, reader)
    else:
        lookup = Lookup(piece.scan)
        table = lookup.contents(lookup.wanted(piece.keys), "diff", reader)
    for keys in piece.without:
        table = among(table, keys, others=True)
    return [table]


class Found:
    """What was read in a step: the same is asked for to find keys, and when it is computed, and by several parts."""

    def __init__(self, reader: PartReader) -> None:
        self._reader = reader
        self._tables: list[tuple[Slice, Iterable[pa.Table]]] = []
        self._bytes = 0

    def tables(self, piece: Slice) -> Iterable[pa.Table]:
        """Return what a slice gives; what is large and not looked up by keys is read again each time."""
        how = (piece.is_changes, piece.path, piece.keys, piece.without)
        for known, tables in self._tables:
            if known.scan is piece.scan and (known.is_changes, known.path, known.keys, known.without) == how:
                return tables
        tables = _tables(piece, self._reader)
        if piece.keys is not None or self._bytes + piece.scan.memory <= KEPT_BYTES_MAX:
            tables = [*tables]
            self._bytes += 0 if piece.keys is not None else piece.scan.memory
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

    @property
    def own(self) -> int:
        """What stands for the source of the stage among what a task holds: no exchange has this number."""
        return WAKES - self.stage.number

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
                yield from self._run({self.own: read})

    def _run(self, held: Mapping[int, list[pa.Table]]) -> Iterator[pa.RecordBatch]:
        given = _Given([self], [*self.stage.gives])
        for exchange, table in given.answers(held):
            yield from self._shared_out(exchange, table)
        for collection, table in given.outputs:
            target = self.written[collection].target
            parts = upload(target, [to_updates(table, target.schema)]) if table.num_rows else ()
            yield block_row(WAKES, 0, msgspec.json.encode(StoredParts(collection, parts)))

    def picked(self, exchange: Exchange) -> tuple[LinearStage, ...]:
        """Return what leaves of what an exchange brings what is needed, or the keys that are asked for."""
        condition = (self.asked_of if exchange.number in self.asked else self.needed).get(exchange.number)
        if exchange.number not in self.asked:
            return () if condition is None else (Among(condition.holds, condition.columns, self.as_of),)
        # Whole updates: of their keys alone, what goes and what comes would add up to nothing.
        return (OnlyNew.after(self.as_of) if condition is None else Among(condition.holds, condition.columns),)

    def due(self, collection: str, table: pa.Table) -> pa.Table:
        """Return the updates of an output that are not there yet."""
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


class _Given:
    """The program of some stages, for what one task has of what they read.

    Args:
        tasks: each after those that it reads from.
        wanted: the exchanges whose streams are asked for; what others bring goes from stage to stage as it is.
    """

    def __init__(self, tasks: Sequence[StageTask], wanted: Sequence[Exchange]) -> None:
        self._program = Program("step")
        self._plan = self._program.plan
        self._inputs: dict[int, tuple[str, int]] = {}  # What is held of exchanges and sources, with its node.
        self._made: dict[int, int] = {}  # Nodes of this program, by those of the whole.
        self._as_of = max((task.as_of for task in tasks), default=-1)
        self._due: dict[str, StageTask] = {}
        brought: dict[int, int] = {}  # Nodes of this program, by exchange.
        seen: dict[int, Captured] = {}
        self._sinks: list[tuple[str, Captured]] = []
        self._doubts: list[tuple[Captured, Doubts]] = []
        for task in tasks:
            stage = task.stage
            if task.slices is not None and stage.source is not None:
                self._made[stage.source.number] = self._input(task.own, task.slices.columns)
            for exchange in stage.reads:
                if exchange.number not in brought:
                    brought[exchange.number] = self._input(exchange.number, exchange.columns)
            for node in stage.nodes:
                inputs = [
                    self._made[number]
                    if (fed := stage.feeds.get((node.number, place))) is None
                    else brought[fed.number]
                    for place, number in enumerate(node.inputs)
                ]
                if isinstance(node.operator, Persist):
                    self._sinks.append((node.operator.collection, self._captured(inputs[0])))
                    self._due[node.operator.collection] = task
                else:
                    made = self._plan.add(node.operator, tuple(inputs), node.schema)
                    self._made[node.number] = self._plan.change(made.number, name=node.title).number
            for exchange in stage.gives:
                brought[exchange.number] = self._picked(task, exchange)
                if exchange in wanted:
                    seen[exchange.number] = self._captured(brought[exchange.number])
            self._doubts += [(self._captured(self._made[number]), doubts) for number, doubts in stage.doubts.items()]
        self._seen = [(exchange, seen[exchange.number]) for exchange in wanted]
        self._keys = frozenset[int]().union(*(task.asked for task in tasks))
        self.outputs: list[tuple[str, pa.Table]] = []

    def answers(self, held: Mapping[int, list[pa.Table]]) -> Iterator[tuple[Exchange, pa.Table]]:
        """Yield what is asked for, by exchange; `outputs` then has what is to be stored."""
        known = {
            node: Statistics(float(sum(len(table) for table in held.get(number, ()))))
            for number, (_, node) in self._inputs.items()
        }
        with Running(self._program, None, Options(), known) as running:
            for number, (name, _) in self._inputs.items():
                for table in held.get(number, ()):
                    running[name].insert(table)
                running[name].close()
            running.run()
            for updates, doubts in self._doubts:
                _check_told(updates.updates(), doubts, self._as_of)
            for exchange, updates in self._seen:
                table = updates.updates()
                yield (
                    exchange,
                    _keys_of(table, exchange) if exchange.number in self._keys else _with_nothing(table, exchange),
                )
            self.outputs = [(name, self._due[name].due(name, updates.updates())) for name, updates in self._sinks]

    def _input(self, number: int, columns: pa.Schema) -> int:
        kinds = {column.name: column.type for column in (columns or _NOTHING)}
        name = f"input {number}"
        made = self._program.input(name, key=None, value=kinds).number
        self._inputs[number] = name, made
        return made if columns.names else self._plan.add(Linear((Map(()),)), (made,), columns).number

    def _picked(self, task: StageTask, exchange: Exchange) -> int:
        """Return the node of what is needed of the stream of an exchange."""
        stages, whole = task.picked(exchange), self._made[exchange.node]
        if not stages:
            return whole
        return self._plan.add(Linear(stages), (whole,), exchange.columns).number

    def _captured(self, number: int) -> Captured:
        return Stream(self._program, number).capture()


def _keys_of(table: pa.Table, exchange: Exchange) -> pa.Table:
    """Return the keys of some updates, each once."""
    assert exchange.keys
    _, first = np.unique(row_hashes(table, exchange.keys), return_index=True)
    return table.select([*exchange.keys]).take(pa.array(first))


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


def _with_nothing(table: pa.Table, exchange: Exchange) -> pa.Table:
    return table if exchange.columns.names else table.append_column("nothing", pa.array(np.zeros(len(table), np.int8)))


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
    """Runs the stages of a step in this process, as one program: nothing is shared out, or made into tables between."""

    def __init__(self, reader: PartReader) -> None:
        self._read_before = Found(reader.for_once())

    def asked(self, tasks: Sequence[StageTask]) -> Asked:
        """Run stages; return the tables that are asked for, each with its exchange."""
        asked = frozenset[int]().union(*(task.asked for task in tasks))
        wanted = [exchange for task in tasks for exchange in task.stage.gives if exchange.number in asked]
        given = _Given(tasks, wanted)
        return [(exchange.number, table) for exchange, table in given.answers(self._held(tasks))]

    def stored(self, tasks: Sequence[StageTask]) -> Stored:
        """Run all stages; return the updates of each output, which are not stored yet."""
        given = _Given(tasks, ())
        for _ in given.answers(self._held(tasks)):
            raise AssertionError("nothing is asked for")
        outputs: dict[str, list[pa.Table]] = {}
        for collection, table in given.outputs:
            outputs.setdefault(collection, []).append(table)
        return outputs

    def _held(self, tasks: Sequence[StageTask]) -> dict[int, list[pa.Table]]:
        """Read what the sources of some stages give."""
        together: dict[int, list[StageTask]] = {}  # Those that read the same.
        for task in tasks:
            if task.slices is not None:
                together.setdefault(id(task.slices.slices), []).append(task)
        held: dict[int, list[pa.Table]] = {}
        for sharing in together.values():
            check_limits()
            assert sharing[0].slices is not None
            for piece in sharing[0].slices.slices:
                for table in self._read_before.tables(piece):
                    for task in sharing:
                        assert task.slices is not None
                        held.setdefault(task.own, []).append(task.slices.updates(piece, table))
        return held
