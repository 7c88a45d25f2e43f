"""What the rows of a DataFrame mean as events of a keyed collection, and how few of them travel to the driver."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.types import StructType

from persist.antichain import Antichain
from persist.codecs import CollectionSchema, Side, Stamp
from persist.engine import loaded, read_engine
from persist.errors import FrontierRegression, InvalidUsage, NotKeyed, UpdateNotBeyondUpper
from persist.log import KeyedForm
from persist.read import machine_needed
from persist.sink import KeyedWork, SinkOptions, Target
from persist.spark.tasks import writable
from persist.spark.types import as_collection_expects, utc_arrow_schema
from persist.state import CollectionState
from persist.timeline import timeline_of
from persist.upsert import EventTable, Machine, event_fields, machine_of, to_events


@dataclass(frozen=True)
class EventRows:
    """What the rows of a DataFrame mean.

    Attributes:
        stamp: what rows without a column `_time` lack.
        machine: of the collection, if it is none of those in the box.
    """

    schema: CollectionSchema
    form: KeyedForm
    stamp: Stamp | None
    machine: Machine | None = None

    def __call__(self, rows: pa.Table) -> EventTable:
        """Return rows as events; raises what `to_events` does."""
        fields = event_fields(self.schema, self.form)
        expected = CollectionSchema(self.schema.key, Side(fields), self.schema.timeline).arrow
        rows = as_collection_expects(rows, expected)
        return to_events(rows, self.schema, self.form, self.stamp, timeline_of(self.schema), self.machine)

    def check(self, schema: StructType) -> None:
        """Check the columns of a DataFrame before any of its rows is made.

        Raises:
            SchemaMismatch: they do not fit the collection.
        """
        if self.stamp is not None and "_time" in schema.names:
            raise InvalidUsage("the DataFrame has a column _time, and the option time says it, too. Drop one of them.")
        self(utc_arrow_schema(schema).empty_table())


def planned(
    options: SinkOptions,
    schema: StructType,
    machine: Machine | None = None,
    *,
    is_plain: bool = False,
    collects: bool = False,
) -> KeyedWork:
    """Plan a batch of events, and check what can be checked before any task starts.

    Args:
        schema: of the DataFrame of events.
        is_plain: rows have no times yet, and get one when they are committed.
        collects: late events are left out, so a time that all of them have may be one.

    Raises:
        CollectionNotFound, NotKeyed, SchemaMismatch, UpdateNotBeyondUpper, FrontierRegression.
    """
    name = options.collection
    with writable(name), read_engine(options.location, options.storage) as engine:
        handle = loaded(engine, name)
        for what, named in (("time", options.time), ("seal", options.seal)):
            handle.check_meant(what, named, allow_future=options.allow_future)
        contents = handle.contents()
        target = Target.of(handle, options.location, options.storage)
        target = replace(target, schema=contents.schema, keyed=contents.keyed)
        stamp = Stamp(contents.upper.time or 0) if is_plain else handle.stamp(options.time, None)
        end = None if options.seal is None else handle.frontier("upper", options.seal)
    if contents.keyed is None:
        raise NotKeyed(name)
    needed = machine_needed(machine_of(contents.keyed, machine, name), contents.keyed, name)
    rows = EventRows(target.schema, contents.keyed, stamp, machine)
    rows.check(schema)
    work = KeyedWork(target, contents, needed, rows, end, options.token, collects)
    if not work.is_done:
        _check_times(contents, None if stamp is None or collects else stamp.time, end)
    return work


def _check_times(contents: CollectionState, time: int | str | None, end: Antichain | None) -> None:
    if isinstance(time, int) and not contents.upper.has_beyond(time):
        raise UpdateNotBeyondUpper(time, contents.upper)
    if end is not None and not contents.upper <= end:
        raise FrontierRegression("upper", end, contents.upper)


def packed(batches: Iterable[pa.RecordBatch], bytes_max: int | None) -> tuple[bytes | None, int]:
    """Return the rows of a task as an Arrow stream, and their size; no stream if there are none, or more than that."""
    held, size = list[pa.RecordBatch](), 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            size += batch.nbytes
        if bytes_max is not None and size > bytes_max:
            return None, size
    if not held:
        return None, 0
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, held[0].schema) as stream:
        for batch in held:
            stream.write_batch(batch)
    return bytes(sink.getvalue()), size


def rows_of(schema: StructType, streams: Sequence[bytes]) -> pa.Table:
    """Return the rows of Arrow streams as one table, with the columns of a DataFrame."""
    tables = [pa.ipc.open_stream(stream).read_all() for stream in streams]
    return pa.concat_tables(tables) if tables else utc_arrow_schema(schema).empty_table()


@dataclass(frozen=True)
class Replanning:
    """Plans work again, with the time of rows that have none, a seal, and contents as they are."""

    work: KeyedWork

    def __call__(self, stamp: Stamp | None, end: Antichain | None, contents: CollectionState) -> KeyedWork:
        rows = self.work.to_events
        assert isinstance(rows, EventRows), "it was planned here"
        return replace(self.work, to_events=replace(rows, stamp=stamp or rows.stamp), end=end, contents=contents)
