"""Reads with one task for each slice of the key space, without a shuffle.

The driver plans once, from one state of the log. The plan names immutable parts, so tasks that run later, or again,
read the same. Tasks talk to the store themselves.

Filters that Spark pushes down become Arrow expressions. Spark applies every filter itself, too, so an expression here
may let more rows pass than the filter, never fewer. If Spark and Arrow disagree, this side lets more rows pass: in
Spark NaN equals itself and is greater than any number.

A stream plans on the driver and reads updates in tasks. On the driver, one process serves the whole query and keeps one
client open. For tasks, Spark pickles another instance of the reader. So the reader opens the client at the first call
on the driver, not in the constructor. It checks options then, too, because PySpark replaces an error of the constructor
by its own (4.3: `UnboundLocalError`).

Spark has no limit of a micro-batch by times. If Spark passes `ReadAllAvailable`, as for Trigger.Once, a batch has no
limit. If it passes another limit, the limits of the options apply.
"""

import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import date, datetime
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyspark.sql import datasource as ds
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from persist.compute.index import IndexScan, enable_index_reads
from persist.compute.tasks.stream_hold import Offset
from persist.compute.tasks.stream_source import NO_LIMITS, CollectionAddress, StreamSource
from persist.connect.spark.options import COUNT_MAX, OF_TIMES, ReadOptions, StreamOptions
from persist.connect.spark.task_reader import Slice, What
from persist.connect.spark.workers import PARALLEL_DEFAULT, log, surface_errors
from persist.core.errors import CollectionNotFound, InvalidUsage, PersistError
from persist.core.expression.filters import to_arrow_filter
from persist.core.expression.term import Call, Col, Lit, Term
from persist.engine.collection.reads import changes as engine_changes
from persist.engine.collection.reads import snapshot as engine_snapshot
from persist.engine.collection.reads import upserts as engine_upserts
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.location.opening import load_handle, read_engine
from persist.engine.read.following.changes import Changes, ChangesForm, Transitions, UpsertEvents, Upserts
from persist.engine.read.merging import Form
from persist.engine.read.planning.scan import Scan
from persist.engine.read.results.snapshot import Snapshot


class PersistReader(DataSourceReader):
    """Reads a snapshot, changes or events of one collection, as a batch."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._filters: list[Filter] = []

    def partitions(self) -> list[InputPartition]:
        """Plan the read on the driver; return its slices, one for each task."""
        options = self._options
        with surface_errors(), read_engine(options.location, options.storage) as engine:
            handle = load_handle(engine, options.collection)
            result = plan_read(handle, options, tuple(self._schema.names))
            arrow = result.scan.schema.arrow
            address = CollectionAddress(engine.url, options.storage, options.collection)
            events: Transitions | UpsertEvents | None = None
            if not isinstance(result, Snapshot):
                events = result.events if isinstance(result, Upserts) else result.transitions
            # Events of a key need all of its updates at a time: no filter on values may drop one.
            names = result.scan.schema.names if events is None else result.scan.schema.key_names
            records = pa.schema([arrow.field(name) for name in names])
            # A plan may leave rows out by itself: tombstones of a keyed collection.
            pushed, planned_filter = make_pruning_filter(self._filters, records), result.scan.filter
            both_filters = (
                planned_filter if pushed is None else pushed if planned_filter is None else planned_filter & pushed
            )
            scan = replace(result.scan, filter=both_filters).prune()
            # The worker that plans does not know the cluster, so this many at a time are taken to run.
            slices: list[Scan | IndexScan]
            slices = [*scan.slices(options.partitions or scan.choose_task_count(PARALLEL_DEFAULT))]
            by_index = enable_index_reads(handle, result).by_index(scan) if isinstance(result, Snapshot) else None
            if isinstance(by_index, IndexScan):
                slices = [by_index]
            _log_plan(result, scan, len(slices))
        return [Slice(part, address, events) for part in slices]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one slice, in a task."""
        if not isinstance(partition, Slice):
            return  # Spark makes up an empty partition when there are none.
        row_form = self._options.form
        form: Form = "rows" if row_form == "rows" else "diff"
        yield from partition.rows(form, "changes" if row_form in OF_TIMES else "all", self._schema)


class PushingReader(PersistReader):
    """A `PersistReader` for sessions with filter push-down; PySpark refuses `pushFilters` in others."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Keep filters to read less; return all, because Spark has to apply them as well."""
        self._filters = filters
        return filters


def plan_read(
    handle: CollectionHandle, options: ReadOptions, names: tuple[str, ...] | None
) -> Snapshot | Changes | Upserts:
    """Return the planned read that options describe, with only the columns in `names`, if any."""
    options = _resolve_at_seqno(options, handle)
    columns = options.columns
    if names is not None and options.form != "transitions":
        columns = tuple(name for name in names if name not in ("_time", "_diff"))
    if options.form == "upserts":
        return engine_upserts(handle, options.start, options.until, schema=options.schema, timeout_s=options.timeout_s)
    if options.form == "changes" or options.form == "transitions":
        form: ChangesForm = "transitions" if options.form == "transitions" else "updates"
        reading: dict[str, Any] = {"schema": options.schema, "timeout_s": options.timeout_s, "form": form}
        return engine_changes(handle, options.start, options.until, columns=columns, **reading)
    return engine_snapshot(
        handle, options.as_of, columns=columns, schema=options.schema, form=options.form, timeout_s=options.timeout_s
    )


def _resolve_at_seqno(options: ReadOptions, handle: CollectionHandle) -> ReadOptions:
    """Return options with times in place of words and tags, as of the record `seqno`.

    Contents as of a sealed time do not change, so after that they can be read from the newest state.

    Raises:
        AsOfNotSealed: a time was not sealed at that seqno; this does not wait for it.
        CollectionNotFound: the collection has been destroyed since, and another may have its name.
        InvalidUsage: the log has not reached that seqno yet, or has dropped it.
    """
    if options.seqno is None:
        return options
    with read_engine(options.location, options.storage, options.seqno) as engine:
        then = load_handle(engine, options.collection)
        if then.id != handle.id:
            raise CollectionNotFound(options.collection, engine.url, ())
        if options.form in OF_TIMES:
            engine_changes(then, options.start, options.until, timeout_s=0)
            return options
        return options.with_latest(engine_snapshot(then, options.as_of, timeout_s=0).as_of)


def _log_plan(result: Snapshot | Changes | Upserts, scan: Scan, slices: int) -> None:
    """Log which slices a read has, and how many parts were pruned."""
    pruned = {"filters": len(result.scan.all_parts) - len(scan.all_parts)}
    if isinstance(result, Snapshot):
        pruned |= {by: count for by, count in result.explain().pruned.items() if by != "filter"}
    why = ", ".join(f"{count} by {by}" for by, count in pruned.items() if count) or "none"
    parts, size = len(scan.all_parts), sum(part.bytes for part in scan.all_parts)
    log("planned %r: %d slices, %d parts, %d bytes; parts pruned: %s", result, slices, parts, size, why)


_COMPARED = ("equal", "less", "less_equal", "greater", "greater_equal")
_FUNCTIONS = (
    ((ds.EqualTo, ds.EqualNullSafe), "equal"),
    (ds.In, "among"),
    (ds.LessThan, "less"),
    (ds.LessThanOrEqual, "less_equal"),
    (ds.GreaterThan, "greater"),
    (ds.GreaterThanOrEqual, "greater_equal"),
    (ds.StringStartsWith, "starts_with"),
    (ds.StringEndsWith, "ends_with"),
    (ds.StringContains, "contains"),
)
# Spark 4.3 hands over days that the Julian calendar's end left out as others, ten days away.
GAP = (date(1582, 10, 5), date(1582, 10, 24))


def make_pruning_filter(filters: Iterable[ds.Filter], schema: pa.Schema) -> pc.Expression | None:
    """Return an expression that is true for all rows that pass the filters; None if it prunes nothing.

    `_time` and `_diff` are not in the schema: a filter on them is for summed rows, and would drop parts of the sums.
    """
    usable = []
    for spark_filter in filters:
        condition = _to_term(spark_filter, schema)
        with suppress(InvalidUsage):  # Arrow compares fewer types than Spark.
            usable += [] if condition is None else [to_arrow_filter(condition, schema)]
    return reduce(and_, usable) if usable else None


def _to_term(spark_filter: ds.Filter, schema: pa.Schema) -> Term | None:
    """Return a filter of Spark as an expression; None if it cannot prune."""
    if isinstance(spark_filter, ds.Not):
        # Any other filter may let more rows pass here than in Spark, so its negation may let fewer pass.
        child = spark_filter.child
        inner = _to_term(child, schema) if isinstance(child, ds.IsNull | ds.IsNotNull) else None
        return None if inner is None else Call("not", (inner,))
    path: tuple[str, ...] = getattr(spark_filter, "attribute", ())
    if len(path) != 1 or path[0] not in schema.names:
        return None
    column, kind = Col(path[0]), schema.field(path[0]).type
    if isinstance(spark_filter, ds.IsNull | ds.IsNotNull):
        return Call("is_null" if isinstance(spark_filter, ds.IsNull) else "is_valid", (column,))
    value = _convert_value(spark_filter, kind)
    function = next((name for which, name in _FUNCTIONS if isinstance(spark_filter, which)), None)
    if value is None or function is None:
        return None
    if function not in _COMPARED:
        return Call(function, (column,), (value,))
    condition = Call(function, (column, Lit(value)))
    if function in ("greater", "greater_equal") and pt.is_floating(kind):
        return Call("or", (condition, Call("is_nan", (column,))))
    return condition


def _convert_value(spark_filter: ds.Filter, type_: pa.DataType) -> Any:
    """Return a filter's value in the column's type; None if that would change it."""
    value = getattr(spark_filter, "value", None)
    if value is None or pt.is_nested(type_):
        return None
    if isinstance(spark_filter, (ds.StringStartsWith, ds.StringEndsWith, ds.StringContains)):
        return value if pt.is_string(type_) or pt.is_large_string(type_) else None
    values = list(value) if isinstance(spark_filter, ds.In) else [value]
    if any(isinstance(v, date) and not isinstance(v, datetime) and GAP[0] <= v <= GAP[1] for v in values):
        return None
    if any(v is None or (isinstance(v, float) and math.isnan(v)) for v in values):
        return None
    values = [v + 0.0 if isinstance(v, float) else v for v in values]  # -0.0 to 0.0, which is how zero is stored.
    try:
        converted = pa.array(values, type=type_)
        exact = converted.to_pylist() == values
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    if not exact:  # Arrow cuts a time to the column's unit, and rounds a float.
        return None
    return converted if isinstance(spark_filter, ds.In) else converted[0]


Json = dict[str, Any]

logger = logging.getLogger(__name__)


class PersistStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads one collection as a stream: the driver plans micro-batches, tasks read slices."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._given = dict(options)
        self._schema = schema
        self._opened: StreamSource | None = None

    def initialOffset(self) -> Json:
        with surface_errors():
            return self._source.make_first_offset().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        with surface_errors():
            limits = self._options.limits
        return ReadAllAvailable() if limits == NO_LIMITS else ReadMaxRows(limits.updates or COUNT_MAX)

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # type: ignore[override, unused-ignore]
        """Return the offset at which a micro-batch ends: the last sealed time, or a limit."""
        with surface_errors():
            limits = NO_LIMITS if isinstance(limit, ReadAllAvailable) else self._options.limits
            return self._source.find_next_offset(Offset.of(start), limits).to_json()

    def reportLatestOffset(self) -> Json | None:
        with surface_errors():
            newest = self._source.find_newest_offset()
            return None if newest is None else newest.to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        with surface_errors():
            self._source.stop_at_sealed()

    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        with surface_errors():
            pieces = self._source.plan(Offset.of(start), Offset.of(end))
            address = self._source.address
            return [Slice(piece.scan, address, piece.events, piece.as_of) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one slice, in a task."""
        assert isinstance(partition, Slice)
        form: Form = "rows" if self._options.form == "rows" else "diff"
        what: What = "changes" if partition.as_of is None else "all"
        yield from partition.rows(form, what, self._schema)

    def commit(self, end: Json) -> None:
        with surface_errors():
            self._source.commit(Offset.of(end))

    def stop(self) -> None:
        """End the lease and close the client; the permanent hold stays."""
        opened, self._opened = self._opened, None
        if opened is not None:
            try:
                opened.close()
            except PersistError as error:  # It must not hide why Spark stops.
                logger.warning("a stream was not closed as it should be: %s", error)

    @property
    def _options(self) -> StreamOptions:
        """The checked options."""
        return StreamOptions.of(self._given)

    @property
    def _source(self) -> StreamSource:
        """The planner of micro-batches, which opens the location at the first call."""
        if self._opened is None:
            self._opened = StreamSource(self._options)
        return self._opened
