"""A location for a Spark session: snapshots and changes as DataFrames.

    with persist.spark.location(spark, "s3://bucket/prefix") as opened:
        with opened.at() as now:                   # one point of the log
            now.snapshot("orders").join(now.snapshot("customers"), "customer_id")

The lease of the engine keeps the parts of all DataFrames of an open location in the store, until the location is
closed. A DataFrame of `persist.spark.snapshot` has no lease. The store keeps its parts for a grace period
(`Settings.grace_s`) after they were replaced; a later action fails.

`at` pins a point of the log: "latest" then means the last time sealed at that point, in every collection. So DataFrames
of several collections belong together. They read the same at any moment, because contents as of a sealed time do not
change.

`as_of_join` distributes rows over tasks by ranges of the key. Each task looks its keys up in history, as
`Collection.as_of_join` does. No history goes through a shuffle. A task reads other keys only if they share row groups
with its own. Contents as of sealed times do not change, so tasks that run later, or again, find the same.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypedDict, Unpack

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from persist.compute.tasks.planned_write import gather_tables
from persist.compute.tasks.stream_source import CollectionAddress
from persist.connect.spark.data_source.source import register
from persist.connect.spark.frames import ignores_case, map_in_tasks, match_names
from persist.connect.spark.options import resolve_for_tasks
from persist.connect.spark.read_functions.deferred import defer
from persist.connect.spark.read_functions.plans import PlannedChanges, PlannedSnapshot, plan, plan_changes
from persist.connect.spark.read_functions.store import Tombstoned
from persist.connect.spark.types import convert_to_spark, quote_column, spark_schema, utc_arrow_schema
from persist.connect.spark.workers import surface_errors
from persist.core.closing import Closes
from persist.core.errors import CollectionNotFound, InvalidUsage
from persist.core.settings import Settings, Tuning
from persist.core.timeline import Times
from persist.engine.collection.reads import READ_TIMEOUT_S
from persist.engine.collection.reads import as_of_join as engine_as_of_join
from persist.engine.collection.reads import changes as engine_changes
from persist.engine.collection.reads import snapshot as engine_snapshot
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.location.engine import Engine
from persist.engine.location.opening import load_handle, open_engine, read_engine
from persist.engine.location.writer import OpenOptions
from persist.engine.read.following.changes import Changes, ChangesForm
from persist.engine.read.merging import Form
from persist.engine.read.results.result import BATCH_ROWS_MAX
from persist.engine.read.results.snapshot import Snapshot

NEVER_S = 1e9
# An engine that renews its lease, and leaves maintenance to writers.
LEASING = Settings(gc_interval_s=NEVER_S, tuning=Tuning(compaction_interval_s=NEVER_S))


class SnapshotReading(TypedDict, total=False):
    """The arguments of `SparkLocation.plan`, for functions that pass them on."""

    as_of: Any
    columns: Sequence[str] | None
    form: Form
    schema: int | None
    native: bool | None
    timeout_s: float


class ChangesReading(TypedDict, total=False):
    """The arguments of `SparkLocation.plan_changes`, for functions that pass them on."""

    columns: Sequence[str] | None
    form: ChangesForm
    times: Times
    schema: int | None
    native: bool | None
    timeout_s: float


class SparkLocation(Closes):
    """The collections of one location as DataFrames; open it with `persist.spark.location`.

    Attributes:
        spark: the session.
        seqno: the pinned point of the log; None if no point is pinned.
    """

    def __init__(
        self, spark: SparkSession, engine: Engine, storage: Mapping[str, Any], pinned: Engine | None = None
    ) -> None:
        self.spark = spark
        self.seqno = None if pinned is None else pinned.seqno
        self._engine = engine
        self._storage = dict(storage)
        self._pinned = pinned
        self._reading: list[Snapshot | Changes] = []

    @property
    def url(self) -> str:
        """The absolute URL of the location."""
        return self._engine.url

    def collections(self) -> list[str]:
        """Return the names of all collections, sorted."""
        return (self._pinned or self._engine).names()

    @contextmanager
    def at(self, seqno: int | None = None) -> "Iterator[SparkLocation]":
        """Return this location, pinned at one record of the log; by default the last."""
        if seqno is not None and (isinstance(seqno, bool) or not isinstance(seqno, int) or seqno < 0):
            raise InvalidUsage(
                f"seqno={seqno!r} is not a whole number of at least 0: give a seqno, or None for the last"
            )
        seqno = self._engine.seqno if seqno is None else seqno
        if seqno < 0:
            raise InvalidUsage(f"there is nothing at {self.url}: is the path right?")
        with read_engine(self.url, self._storage, seqno) as pinned:
            location_then = SparkLocation(self.spark, self._engine, self._storage, pinned)
            try:
                yield location_then
            finally:
                location_then._release()

    def snapshot(self, collection: str, **reading: Unpack[SnapshotReading]) -> DataFrame:
        """Return contents as of a time, as a DataFrame; arguments and errors as of `plan`."""
        return defer(self.spark, self.plan(collection, **reading))

    def plan(
        self,
        collection: str,
        *,
        as_of: Any = None,
        columns: Sequence[str] | None = None,
        form: Form = "rows",
        schema: int | None = None,
        native: bool | None = None,
        timeout_s: float = READ_TIMEOUT_S,
    ) -> PlannedSnapshot:
        """Return the plan of `snapshot`; print it to see what is read, and how.

        Args:
            as_of: as in `Collection.snapshot`; None or "latest" is the last time that is (or, pinned, was) sealed.
            columns: the columns to return; None for all.
            form: "rows", or "diff" for each record once with its multiplicity `_diff`.
            schema: the version of the schema to read with; None is the newest.
            native: True to insist on Spark's own Parquet scan, False on the data source; None for what is faster.
            timeout_s: how long to wait for the time to be sealed.

        Raises:
            what `Collection.snapshot` raises; InvalidUsage: native=True is not possible.
        """
        rows, then = self._load(collection)
        as_of = None if as_of == "latest" else as_of
        columns = self._resolve_spelling(rows, columns, schema)
        if then is not None:  # The newest state can also read the pinned time, because sealed contents do not change.
            as_of = engine_snapshot(then, as_of, timeout_s=0).as_of
        snapshot = engine_snapshot(rows, as_of, columns=columns, form=form, schema=schema, timeout_s=timeout_s)
        return plan(self.spark, snapshot, *self._keep_open(rows, snapshot), native)

    def changes(self, collection: str, start: Any, until: Any, **reading: Unpack[ChangesReading]) -> DataFrame:
        """Return the updates with `start <= time < until`; or before-and-after rows by key (`form="transitions"`).

        Other arguments and errors as of `Collection.changes`.
        """
        return self.plan_changes(collection, start, until, **reading).frame(self.spark)

    def plan_changes(
        self,
        collection: str,
        start: Any,
        until: Any,
        *,
        columns: Sequence[str] | None = None,
        form: ChangesForm = "updates",
        times: Times = "int",
        schema: int | None = None,
        native: bool | None = None,
        timeout_s: float = READ_TIMEOUT_S,
    ) -> PlannedChanges:
        """Return the plan of `changes`; print it to see what is read, and how.

        `form`: "updates"; or "transitions" for rows by key, before and after, which tasks pair; as in
        `Collection.changes`.
        """
        rows, then = self._load(collection)
        if then is not None:
            engine_changes(then, start, until, timeout_s=0)
        columns = self._resolve_spelling(rows, columns, schema)
        changes = engine_changes(
            rows, start, until, columns=columns, form=form, schema=schema, times=times, timeout_s=timeout_s
        )
        return plan_changes(self.spark, changes, *self._keep_open(rows, changes), native)

    def _resolve_spelling(
        self, rows: CollectionHandle, columns: Sequence[str] | None, schema: int | None
    ) -> Sequence[str] | None:
        """Return names of columns in the collection's spelling, if the session ignores case."""
        if not isinstance(columns, list | tuple) or not all(isinstance(name, str) for name in columns):
            return columns  # The read refuses arguments of other types.
        return match_names(columns, rows.get_reading_schema(schema).names, folds=ignores_case(self.spark))

    def _keep_open(self, rows: CollectionHandle, reading: Snapshot | Changes) -> tuple[CollectionAddress, Tombstoned]:
        """Keep a read's lease until this location closes; return its address and tombstones."""
        self._reading.append(reading)
        address = CollectionAddress(self.url, self._storage, rows.name)
        return address, Tombstoned.of(rows.get_known_state(), reading.scan.schema)

    def close(self) -> None:
        """Release the parts that DataFrames of this location read; idempotent."""
        self._release()
        self._engine.close()

    def _release(self) -> None:
        """End the leases of all reads."""
        for reading in self._reading:
            reading.close()
        self._reading.clear()

    def _load(self, name: str) -> tuple[CollectionHandle, CollectionHandle | None]:
        """Return a collection as it is now, and as of the pinned record, if any."""
        then = None if self._pinned is None else load_handle(self._pinned, name)
        rows = load_handle(self._engine, name)
        if then is not None and rows.id != then.id:
            raise CollectionNotFound(name, self.url, tuple(self._engine.names()))
        return rows, then

    def __repr__(self) -> str:
        pinned = "" if self.seqno is None else f" at seqno {self.seqno}"
        return f"<SparkLocation {self.url}{pinned}>"


def location(spark: SparkSession, location: str, *, storage_options: Mapping[str, Any] | None = None) -> SparkLocation:
    """Open a location for a Spark session. Close it, or use it in a `with`.

    Args:
        location: a folder or URL that the driver and all executors can reach.
        storage_options: as in `persist.open`; they are sent to the tasks.

    Raises:
        what `persist.open` raises.
    """
    _check_session(spark)
    storage = dict(storage_options or {})
    return SparkLocation(spark, open_engine(location, storage, OpenOptions(settings=LEASING)), storage)


def snapshot(
    spark: SparkSession,
    location: str,
    collection: str,
    *,
    storage_options: Mapping[str, Any] | None = None,
    **reading: Unpack[SnapshotReading],
) -> DataFrame:
    """Return contents as of a time; other arguments and errors as of `SparkLocation.plan`.

    No lease keeps its parts: the store deletes them `Settings.grace_s` after they were replaced. Open a `location` for
    a DataFrame that is used longer.
    """
    with _open_location(spark, location, storage_options) as opened:
        return opened.snapshot(collection, **reading)


def explain(
    spark: SparkSession,
    location: str,
    collection: str,
    *,
    storage_options: Mapping[str, Any] | None = None,
    **reading: Unpack[SnapshotReading],
) -> str:
    """Return a text that explains how `snapshot` would read, and why."""
    with _open_location(spark, location, storage_options) as opened:
        return str(opened.plan(collection, **reading))


def changes(
    spark: SparkSession,
    location: str,
    collection: str,
    start: Any,
    until: Any,
    *,
    storage_options: Mapping[str, Any] | None = None,
    **reading: Unpack[ChangesReading],
) -> DataFrame:
    """Return the updates with `start <= time < until`; see `SparkLocation.changes`, and `snapshot` for leases."""
    with _open_location(spark, location, storage_options) as opened:
        return opened.changes(collection, start, until, **reading)


@contextmanager
def _open_location(
    spark: SparkSession, location: str, storage_options: Mapping[str, Any] | None
) -> Iterator[SparkLocation]:
    """Open a location for one function, and close it at the end."""
    _check_session(spark)
    storage = dict(storage_options or {})
    with read_engine(location, storage) as engine:
        yield SparkLocation(spark, engine, storage)


def _check_session(spark: SparkSession) -> None:
    """Raise InvalidUsage unless this is a session; register the data source."""
    if not hasattr(spark, "read") or not hasattr(spark, "range"):
        raise InvalidUsage(f"{spark!r} is not a SparkSession: give the session first, then the location")
    register(spark)


@dataclass(frozen=True)
class _Join:
    """The work of each task of an as-of join."""

    location: str
    storage: Mapping[str, Any]
    collection: str
    time: str
    on: tuple[str, ...] | None
    columns: tuple[str, ...] | None
    timeout_s: float | None
    id: str = ""
    schema: StructType | None = None

    def open(self) -> Engine:
        return read_engine(self.location, self.storage)

    def join(self, handle: CollectionHandle, rows: pa.Table) -> pa.Table:
        """Return rows with the columns that were looked up for them."""
        return engine_as_of_join(handle.newest(), rows, self.time, self.on, self.columns, self.timeout_s)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        assert self.schema is not None
        with surface_errors(), self.open() as engine:
            handle = load_handle(engine, self.collection)
            if handle.id != self.id:  # Another has got its name meanwhile.
                raise CollectionNotFound(self.collection, engine.url, ())
            for rows in gather_tables(batches):
                joined = convert_to_spark(self.join(handle, rows), self.schema)
                yield from joined.to_batches(max_chunksize=BATCH_ROWS_MAX)


def as_of_join(
    df: DataFrame,
    location: str,
    collection: str,
    *,
    time: str = "at",
    on: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    partitions: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    timeout_s: float | None = READ_TIMEOUT_S,
) -> DataFrame:
    """Add to each row the values that a collection has for its key at the row's time.

    A row whose key had no record then gets NULLs; a row whose key had several records is repeated for each. Nothing is
    read before an action. Memory of a task: 64 MiB of rows, and the history of their keys.

    Args:
        time: the column of times: integers or, if the collection has a timeline, TIMESTAMP.
        on: the columns to match with the key fields, in their order; None for the columns of the same names.
        columns: the value columns to add; None for all.
        partitions: how many tasks look up; None lets Spark choose by the size of the data.
        timeout_s: how long a task waits for the last of its times to be sealed.

    Raises:
        CollectionNotFound, SchemaMismatch, InvalidUsage: a column is missing, has another type, or is in both.
        Errors in tasks (`AsOfNotSealed`, `AsOfCompacted`, `NegativeMultiplicity`) come as Spark's errors, with ours in
        their message.
    """
    register(df.sparkSession)
    names = None if on is None else (on,) if isinstance(on, str) else tuple(on)
    values = None if columns is None else (columns,) if isinstance(columns, str) else tuple(columns)
    plan = _Join(resolve_for_tasks(location), dict(storage_options or {}), collection, time, names, values, timeout_s)
    folds = ignores_case(df.sparkSession)
    with plan.open() as engine:
        handle = load_handle(engine, collection)
        time, *on = match_names([time, *(names or handle.schema.key_names)], df.columns, folds=folds)
        if values is not None:
            values = tuple(match_names(values, handle.schema.value_names, folds=folds))
        plan = replace(plan, time=time, on=tuple(on), columns=values)
        empty = plan.join(handle, utc_arrow_schema(df.schema).empty_table())
        added = pa.schema([empty.schema.field(name) for name in empty.column_names[len(df.columns) :]])
        schema = StructType([*df.schema.fields, *spark_schema(added).fields])
        keys = [quote_column(name) for name in on]
        plan = replace(plan, id=handle.id, schema=schema)
    if keys:
        df = df.repartitionByRange(*keys) if partitions is None else df.repartitionByRange(partitions, *keys)
    return map_in_tasks(df, plan.__call__, schema)
