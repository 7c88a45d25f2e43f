"""Turns the rows of a DataFrame into updates that tasks upload and the driver commits.

Times and diffs of updates come from one of these:

    _time and _diff are columns        they are the updates
    one time for all rows              plain rows, which are inserted; or rows with a column _diff
    a column of event times            the same; longs are times, timestamps become microseconds since 1970

If the collection has a timeline, timestamps are its times, in `_time` as in any other column. A timestamp that its unit
cannot hold exactly is refused.

Spark ranges rows by key over the tasks and sorts them within each, in the order of parts. So the parts of one job do
not overlap. Spark orders as parts do: NULL comes last, as requested, NaN comes after numbers, and text is compared
by bytes. The order leaves out nested columns, because Spark puts a NULL inside of them first; tasks sort by them.

If the collection is keyed, rows are events, which tasks resolve or send to the driver.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import msgspec
import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from persist.codecs.part.part import Part
from persist.codecs.types.schema import DIFF, TIME, CollectionSchema, Side
from persist.codecs.updates.updates import Stamp, add_times, to_updates
from persist.compute.tasks.batch_times import LateFilter
from persist.compute.tasks.keyed_work import KeyedWork
from persist.compute.tasks.planned_write import DigestSum, SinkOptions, Target, add_digests, gather_tables, upload
from persist.connect.spark.frames import map_in_tasks, match_names
from persist.connect.spark.types import convert_from_spark, quote_column, to_stored_schema, utc_arrow_schema
from persist.connect.spark.workers import explain_missing_collection, surface_errors
from persist.core.antichain import to_antichain, to_time
from persist.core.errors import (
    FrontierRegression,
    InvalidUsage,
    NotKeyed,
    UpdateNotBeyondUpper,
)
from persist.core.keyed.events import list_event_fields
from persist.core.keyed.form import find_machine
from persist.core.keyed.intake import EventTable, to_events
from persist.core.keyed.machine import DELETED, SEQ, Machine
from persist.core.log.fields import KeyedForm
from persist.core.state_rules.contents import CollectionState
from persist.core.timeline import read_timeline
from persist.engine.location.opening import load_handle, read_engine
from persist.engine.read.keyed.key_replacement import check_one_row_per_key
from persist.engine.read.keyed.resolution import require_machine

RESERVED = (TIME, DIFF, DELETED, SEQ)  # Columns with metadata of a row.


@dataclass(frozen=True)
class Rows:
    """How rows of a DataFrame become updates.

    Attributes:
        time: of every row; or the name of the column with the time of each row; None for updates.
        folds: match names of columns without regard to case. Tasks of a data source cannot read this from the session.
    """

    schema: CollectionSchema
    time: int | str | None = None
    folds: bool = True

    def check(self, schema: StructType) -> None:
        """Raise InvalidUsage or SchemaMismatch for wrong columns, before any row is computed."""
        self.to_updates(to_stored_schema(schema).empty_table())

    def to_updates(self, table: pa.Table) -> pa.Table:
        """Return rows as updates, with times and diffs."""
        column, timeline = self.time if isinstance(self.time, str) else None, read_timeline(self.schema)
        table = convert_from_spark(_rename_columns(table, self.schema, column, folds=self.folds), self.schema.arrow)
        if self.time is not None:
            table = add_times(table, self.schema, Stamp(self.time))
        kind = table.schema.field(TIME).type if TIME in table.column_names else pa.null()
        if column is not None and timeline is None and pt.is_timestamp(kind):
            micros = table[TIME].cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
            table = table.set_column(table.column_names.index(TIME), TIME, micros)
        return to_updates(table, self.schema, moments=timeline)


def _rename_columns(table: pa.Table, schema: CollectionSchema, column: str | None, *, folds: bool) -> pa.Table:
    """Return rows under the names of the collection and of the column of times."""
    spellings = (*schema.names, *RESERVED, *(() if column is None else (column,)))
    return table.rename_columns(match_names(table.column_names, spellings, folds=folds))


@dataclass(frozen=True)
class UploadTask:
    """The work of each task of an upload.

    Attributes:
        lower: updates before this time are late and left out; None to leave none out.
        digest_by: the columns over which to compute a digest of the rows; empty for no digest.
        marker: a column that is not written, and is true for new rows: only these count for the digest. None: all do.
        one_per_key: raise DuplicateKeys if rows with the marker repeat a key; rows of one key must be adjacent.
    """

    target: Target
    rows: Rows
    lower: int | None = None
    digest_by: tuple[str, ...] = ()
    marker: str | None = None
    only_digest: bool = False
    one_per_key: bool = False

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one row with an encoded `Uploaded`."""
        uploaded = msgspec.json.encode(self.run(batches))
        yield pa.record_batch({"uploaded": pa.array([uploaded], pa.binary())})

    def run(self, batches: Iterable[pa.RecordBatch]) -> "Uploaded":
        """Upload the task's rows as parts. Memory: four times `BUFFER_BYTES_MAX`, and a part."""
        late, digest, keys = LateFilter(self.lower), DigestSum(self.digest_by), OnePerKey(self.target)
        with surface_errors():
            tables = (late.drop_late(self._to_updates(table, digest, keys)) for table in gather_tables(batches))
            if self.only_digest:
                tables = (table.slice(0, 0) for table in tables)
            return Uploaded(upload(self.target, tables), late.count, digest.total)

    def _to_updates(self, table: pa.Table, digest: DigestSum, keys: "OnePerKey") -> pa.Table:
        """Return rows as updates; add them to the digest, and check their keys."""
        if self.marker is None:
            return digest.add(self.rows.to_updates(table))
        rows = table.drop_columns([self.marker])
        new = digest.add(self.rows.to_updates(rows.filter(table[self.marker])))
        if self.one_per_key:
            keys.check(new)
        return self.rows.to_updates(rows)


@dataclass
class OnePerKey:
    """Checks, table by table, that no key repeats; rows of one key are adjacent."""

    target: Target
    last: pa.Table | None = None

    def check(self, rows: pa.Table) -> None:
        """Raise DuplicateKeys if a key repeats in `rows`, or was the last one of the table before."""
        if not len(rows):
            return
        with_last = rows if self.last is None else pa.concat_tables([self.last, rows])
        check_one_row_per_key(with_last, self.target.schema, self.target.name, "overwrite")
        self.last = rows.slice(len(rows) - 1)


class Uploaded(msgspec.Struct, frozen=True, array_like=True):
    """The parts that tasks have uploaded, a digest, and how many updates were `late` and left out."""

    parts: tuple[Part, ...]
    late: int
    digest: int | None

    @classmethod
    def combine(cls, tasks: Sequence["Uploaded"]) -> "Uploaded":
        """Return the combined results of several tasks."""
        parts = tuple(part for task in tasks for part in task.parts)
        return cls(parts, sum(task.late for task in tasks), add_digests(task.digest for task in tasks))


def upload_by_tasks(df: DataFrame, task: UploadTask) -> Uploaded:
    """Run a job that uploads all rows, and return the combined results of its tasks.

    Only one attempt of each task counts; the parts of other attempts are garbage, as are all parts if the job fails.
    """
    rows = map_in_tasks(df, task.__call__, "uploaded binary").collect()
    return Uploaded.combine([msgspec.json.decode(row.uploaded, type=Uploaded) for row in rows])


def partition_by_key(df: DataFrame, schema: CollectionSchema, partitions: int | None = None) -> DataFrame:
    """Return df with ranges of keys in partitions, each sorted by key, value and `_time`.

    `partitions`: how many tasks; None lets Spark choose by the size of the data, up to spark.sql.shuffle.partitions.
    """
    if not _has_distinct_names(schema):
        return df if partitions is None else df.repartition(partitions)
    keys = make_sort_order(schema, schema.key_names)
    if keys:
        df = df.repartitionByRange(*keys) if partitions is None else df.repartitionByRange(partitions, *keys)
    elif partitions is not None:
        df = df.repartition(partitions)
    order = make_sort_order(schema, (*schema.names, "_time") if "_time" in df.columns else schema.names)
    return df.sortWithinPartitions(*order) if order else df


def is_ranged_by_key(schema: CollectionSchema) -> bool:
    """Return whether `partition_by_key` brings all rows of one key into one task."""
    if not _has_distinct_names(schema):
        return False
    return bool(schema.key_names) and not pt.is_nested(schema.arrow.field(schema.key_names[0]).type)


def _has_distinct_names(schema: CollectionSchema) -> bool:
    """Return whether no two names of columns differ only by case, which Spark may ignore."""
    return len({name.lower() for name in schema.arrow.names}) == len(schema.arrow.names)


def make_sort_order(schema: CollectionSchema, names: Iterable[str]) -> list[Column]:
    """Return the sort order by columns, up to the first nested one, which Spark orders otherwise."""
    flat = takewhile(lambda name: not pt.is_nested(schema.arrow.field(name).type), names)
    return [F.col(quote_column(name)).asc_nulls_last() for name in flat]


@dataclass(frozen=True)
class EventRows:
    """How rows of a DataFrame become events.

    `stamp`: the time and diff of rows that lack these columns; `machine`: None for a built-in machine.
    """

    schema: CollectionSchema
    form: KeyedForm
    stamp: Stamp | None
    machine: Machine | None = None
    folds: bool = True

    def __call__(self, rows: pa.Table) -> EventTable:
        """Return rows as events; raises what `to_events` does."""
        fields = list_event_fields(self.schema, self.form)
        expected = CollectionSchema(self.schema.key, Side(fields), self.schema.timeline)
        column = self.stamp.time if self.stamp is not None and isinstance(self.stamp.time, str) else None
        rows = convert_from_spark(_rename_columns(rows, expected, column, folds=self.folds), expected.arrow)
        return to_events(rows, self.schema, self.form, self.stamp, read_timeline(self.schema), self.machine)

    def check(self, schema: StructType) -> None:
        """Raise InvalidUsage or SchemaMismatch for wrong columns, before any row is computed."""
        if self.stamp is not None and TIME in match_names(schema.names, RESERVED, folds=self.folds):
            raise InvalidUsage("the DataFrame has a column _time, and the option time says it, too. Drop one of them.")
        self(to_stored_schema(schema).empty_table())


def plan_events(
    options: SinkOptions,
    schema: StructType,
    machine: Machine | None = None,
    *,
    is_plain: bool = False,
    collects: bool = False,
    folds: bool = True,
) -> KeyedWork:
    """Return the planned work for a batch of events; check what can be checked now.

    Args:
        is_plain: rows have no times yet, and get one when they are committed.
        collects: late events are left out instead of refused, so the option `time` may be late.
    """
    name = options.collection
    with explain_missing_collection(name), read_engine(options.location, options.storage) as engine:
        handle = load_handle(engine, name)
        for what, named in (("time", options.time), ("seal", options.seal)):
            handle.check_plausible(what, named, allow_future=options.allow_future)
        contents = handle.contents()
        target = Target.of(handle, options.location, options.storage)
        target = replace(target, schema=contents.schema, keyed=contents.keyed)
        stamp = Stamp(to_time(contents.upper) or 0) if is_plain else handle.stamp(options.time, None)
        end = None if options.seal is None else handle.frontier("upper", options.seal)
        is_done = handle.remembers_token(contents, options.token)
        if is_plain and handle.timeline is not None and not options.allow_future:
            engine.check_clock()
    if contents.keyed is None:
        raise NotKeyed(name)
    needed = require_machine(find_machine(contents.keyed, machine, name), contents.keyed, name)
    rows = EventRows(target.schema, contents.keyed, stamp, machine, folds)
    rows.check(schema)
    work = KeyedWork(target, contents, needed, rows, end, options.token, collects, is_done, options.allow_future)
    if not work.is_done:
        _check_times(contents, None if stamp is None or collects else stamp.time, end)
    return work


def _check_times(contents: CollectionState, time: int | str | None, end: int | None) -> None:
    """Raise an error if the time of all rows, or the seal, is already sealed."""
    if isinstance(time, int) and time < contents.upper:
        raise UpdateNotBeyondUpper(time, to_antichain(contents.upper))
    if end is not None and end < contents.upper:
        raise FrontierRegression("upper", to_antichain(end), to_antichain(contents.upper))


def pack_rows(batches: Iterable[pa.RecordBatch], bytes_max: int | None) -> tuple[bytes | None, int]:
    """Return the rows of a task as an Arrow stream, and their bytes.

    The stream is None without rows, or if the rows have more than `bytes_max` bytes.
    """
    nonempty, size = list[pa.RecordBatch](), 0
    for batch in batches:
        if batch.num_rows:
            nonempty.append(batch)
            size += batch.nbytes
        if bytes_max is not None and size > bytes_max:
            return None, size
    if not nonempty:
        return None, 0
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, nonempty[0].schema) as stream:
        for batch in nonempty:
            stream.write_batch(batch)
    return bytes(sink.getvalue()), size


def unpack_rows(schema: StructType, streams: Sequence[bytes]) -> pa.Table:
    """Return the rows of Arrow streams as one table, with the columns of a DataFrame."""
    tables = [pa.ipc.open_stream(stream).read_all() for stream in streams]
    return pa.concat_tables(tables) if tables else utc_arrow_schema(schema).empty_table()


@dataclass(frozen=True)
class Replanning:
    """Plans a batch of events again, for the newest contents, with a time and a seal."""

    work: KeyedWork

    def __call__(self, stamp: Stamp | None, end: int | None, contents: CollectionState) -> KeyedWork:
        rows = self.work.to_events
        assert isinstance(rows, EventRows), "it was planned here"
        return replace(self.work, to_events=replace(rows, stamp=stamp or rows.stamp), end=end, contents=contents)
