"""Reading: one task for each slice of the key space, so that Spark needs no shuffle to consolidate.

The plan is made once, on the driver, from one state of the log: it names immutable parts, so tasks that run
later, or again, read the same. Tasks talk to the store themselves.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from persist.engine import CollectionHandle, loaded, read_engine
from persist.engine import changes as engine_changes
from persist.engine import snapshot as engine_snapshot
from persist.engine import upserts as engine_upserts
from persist.errors import CollectionNotFound
from persist.read import Changes, ChangesForm, Form, Scan, Snapshot, Transitions, UpsertEvents, Upserts
from persist.source import CollectionAddress
from persist.spark.data_source.filters import expression
from persist.spark.options import OF_TIMES, ReadOptions
from persist.spark.task_reader import TaskReader, What
from persist.spark.tasks import PARALLEL_DEFAULT, surfaced_errors, tell


@dataclass
class Slice(InputPartition):
    """What one task reads; as_of is the time of contents of a stream, None for its updates."""

    scan: Scan
    address: CollectionAddress
    events: Transitions | UpsertEvents | None = None
    as_of: int | None = None

    def __post_init__(self) -> None:
        super().__init__(None)

    def rows(self, form: Form, what: What, schema: StructType) -> Iterator[pa.RecordBatch]:
        """Read it, in a task."""
        reader = TaskReader(self.address, (self.scan,), form, what, schema, self.events, self.as_of)
        yield from reader.slice(0)


class PersistReader(DataSourceReader):
    """Reads a snapshot or changes of one collection."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._filters: list[Filter] = []

    def partitions(self) -> list[InputPartition]:
        """Plan on the driver; raises what `Collection.snapshot` and `changes` raise."""
        options = self._options
        with (
            surfaced_errors(),
            read_engine(options.location, options.storage) as engine,
        ):
            result = planned(loaded(engine, options.collection), options, tuple(self._schema.names))
            arrow = result.scan.schema.arrow
            address = CollectionAddress(engine.url, options.storage, options.collection)
            events: Transitions | UpsertEvents | None = None
            if not isinstance(result, Snapshot):
                events = result.events if isinstance(result, Upserts) else result.transitions
            # What became of a key, all updates of its key and time tell: no filter on values may leave one of them out.
            names = result.scan.schema.names if events is None else result.scan.schema.key_names
            records = pa.schema([arrow.field(name) for name in names])
            # A plan may leave rows out by itself: tombstones of a keyed collection.
            pushed, own = expression(self._filters, records), result.scan.filter
            both = own if pushed is None else pushed if own is None else own & pushed
            scan = replace(result.scan, filter=both).pruned()
            # The worker that plans does not know the cluster, so this many at a time are taken to run.
            slices = scan.slices(options.partitions or scan.task_count(PARALLEL_DEFAULT))
            _log(result, scan, len(slices))
        return [Slice(part, address, events) for part in slices]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one slice, in a task."""
        if not isinstance(partition, Slice):
            return  # Spark makes up an empty partition when there are none.
        wanted = self._options.form
        form: Form = "rows" if wanted == "rows" else "diff"
        yield from partition.rows(form, "changes" if wanted in OF_TIMES else "all", self._schema)


class PushingReader(PersistReader):
    """The same for sessions with filter push-down: PySpark refuses a reader that has this method in any other."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Use filters to read less. Spark applies all of them too: see `persist.spark.data_source.filters`."""
        self._filters = filters
        return filters


def planned(
    handle: CollectionHandle, options: ReadOptions, names: tuple[str, ...] | None
) -> Snapshot | Changes | Upserts:
    """Return what to read, of the columns that are among names (None: of those the options ask for)."""
    options = _at_seqno(options, handle)
    wanted = options.columns
    if names is not None and options.form != "transitions":
        wanted = tuple(name for name in names if name not in ("_time", "_diff"))
    if options.form == "upserts":
        return engine_upserts(handle, options.start, options.until, schema=options.schema, timeout_s=options.timeout_s)
    if options.form == "changes" or options.form == "transitions":
        form: ChangesForm = "transitions" if options.form == "transitions" else "updates"
        reading: dict[str, Any] = {"schema": options.schema, "timeout_s": options.timeout_s, "form": form}
        return engine_changes(handle, options.start, options.until, columns=wanted, **reading)
    return engine_snapshot(
        handle, options.as_of, columns=wanted, schema=options.schema, form=options.form, timeout_s=options.timeout_s
    )


def _at_seqno(options: ReadOptions, handle: CollectionHandle) -> ReadOptions:
    """Return options whose times are those of the point of the log they name.

    Contents as of a sealed time do not change, so from there on they can be read from whatever state is the newest.

    Raises:
        AsOfNotSealed: a time was not sealed then; it is not waited for.
        CollectionNotFound: the collection has been destroyed since, and another may have its name.
        InvalidUsage: there is no such seqno yet, or that part of the log is not kept any more.
    """
    if options.seqno is None:
        return options
    with read_engine(options.location, options.storage, options.seqno) as engine:
        then = loaded(engine, options.collection)
        if then.id != handle.id:
            raise CollectionNotFound(options.collection, engine.url, ())
        if options.form in OF_TIMES:
            engine_changes(then, options.start, options.until, timeout_s=0)
            return options
        return options.with_latest(engine_snapshot(then, options.as_of, timeout_s=0).as_of)


def _log(result: Snapshot | Changes | Upserts, scan: Scan, slices: int) -> None:
    pruned = {"filters": len(result.scan.all_parts) - len(scan.all_parts)}
    if isinstance(result, Snapshot):
        pruned |= {by: count for by, count in result.explain().pruned.items() if by != "filter"}
    why = ", ".join(f"{count} by {by}" for by, count in pruned.items() if count) or "none"
    parts, size = len(scan.all_parts), sum(part.bytes for part in scan.all_parts)
    tell("planned %r: %d slices, %d parts, %d bytes; parts pruned: %s", result, slices, parts, size, why)
