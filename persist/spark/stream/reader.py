"""What Spark asks of a stream: offsets and plans on the driver, updates in tasks.

The driver's side is one process for the whole query, which keeps one client open; for tasks Spark makes another
instance and pickles it. So the client is opened only when the driver first asks for something. Options are checked
then, too: an error when a reader is made is lost in one of PySpark's own (4.3: `UnboundLocalError`).

Spark's admission control knows no limit on times, and asks without any limit if a limit does not hold for it (as with
Trigger.Once): so any limit that Spark gives stands for those in the options.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from persist.errors import InvalidUsage, PersistError
from persist.read import Form, PartReader, Scan, read_changes, read_snapshot, repeated
from persist.source import NO_LIMITS, Offset, StreamSource
from persist.spark.options.stream import COUNT_MAX, StreamOptions
from persist.spark.read.reader import Slice
from persist.spark.read.task_reader import TaskReader, What
from persist.spark.surfaced_errors import surfaced_errors

Json = dict[str, Any]

logger = logging.getLogger(__name__)


@dataclass
class StreamSlice(Slice):
    """What one task reads; as_of is the time of contents, and None for updates."""

    as_of: int | None = None


class PersistStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows one collection; see `persist.spark.options.stream`."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._given = dict(options)
        self._schema = schema
        self._opened: StreamSource | None = None

    def initialOffset(self) -> Json:
        with surfaced_errors():
            return self._source.beginning().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        with surfaced_errors():
            limits = self._options.limits
        return ReadAllAvailable() if limits == NO_LIMITS else ReadMaxRows(limits.updates or COUNT_MAX)

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # type: ignore[override, unused-ignore]
        """Return where the micro-batch that begins at start ends: the last sealed time, or less by the limits."""
        with surfaced_errors():
            limits = NO_LIMITS if isinstance(limit, ReadAllAvailable) else self._options.limits
            return self._source.next_offset(Offset.of(start), limits).to_json()

    def reportLatestOffset(self) -> Json | None:
        with surfaced_errors():
            newest = self._source.newest()
            return None if newest is None else newest.to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        with surfaced_errors():
            self._source.end_here()

    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        with surfaced_errors():
            pieces = self._source.plan(Offset.of(start), Offset.of(end))
            address = self._source.address
            return [StreamSlice(piece.scan, address, piece.events, as_of=piece.as_of) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one slice, in a task."""
        assert isinstance(partition, StreamSlice)
        form: Form = "rows" if self._options.form == "rows" else "diff"
        what: What = "changes" if partition.as_of is None else "all"
        reading = (partition.address, (partition.scan,), form, what, self._schema, partition.events)
        return _StreamTask(*reading, as_of=partition.as_of).slice(0)

    def commit(self, end: Json) -> None:
        with surfaced_errors():
            self._source.commit(Offset.of(end))

    def stop(self) -> None:
        """End the lease and free everything; the permanent hold stays. An error here must not hide why Spark stops."""
        opened, self._opened = self._opened, None
        if opened is not None:
            try:
                opened.close()
            except PersistError as error:
                logger.warning("a stream was not closed as it should be: %s", error)

    @property
    def _options(self) -> StreamOptions:
        return StreamOptions.of(self._given)

    @property
    def _source(self) -> StreamSource:
        if self._opened is None:
            self._opened = StreamSource(self._options)
        return self._opened


@dataclass(frozen=True)
class _StreamTask(TaskReader):
    """Reads a slice of contents as of a time, or, if that is None, of updates; or what these are as events by key."""

    as_of: int | None = None

    def _tables(self, scan: Scan, reader: PartReader) -> Iterator[pa.Table]:
        if self.events is not None:
            yield self.events.of(self._updates(scan, reader))
        else:
            yield from self._as_stored(scan, reader)

    def _updates(self, scan: Scan, reader: PartReader) -> pa.Table:
        """Return a slice as one table, since events are made of all that is there of a key."""
        if self.as_of is None:
            return read_changes(scan, reader)
        contents = [_at(self.as_of, table, scan) for table in read_snapshot(scan, "diff", reader)]
        return pa.concat_tables(contents) if contents else scan.schema.arrow.empty_table()

    def _as_stored(self, scan: Scan, reader: PartReader) -> Iterator[pa.Table]:
        if self.as_of is None:
            updates = read_changes(scan, reader)
            return iter([updates]) if self.form == "diff" else repeated(_insertions(updates), scan)
        tables = read_snapshot(scan, self.form, reader)
        return tables if self.form == "rows" else (_at(self.as_of, table, scan) for table in tables)


def _at(time: int, contents: pa.Table, scan: Scan) -> pa.Table:
    times = pa.repeat(pa.scalar(time, pa.int64()), len(contents))
    return contents.append_column(scan.schema.arrow.field("_time"), times)


def _insertions(updates: pa.Table) -> pa.Table:
    """Return updates if all of them insert something."""
    retractions = updates.filter(pc.less(updates["_diff"], 0))
    if len(retractions):
        first = retractions.slice(0, 1).to_pylist()[0]
        raise InvalidUsage(
            f"the update {first} takes something back, and a stream of rows cannot show that. Follow the collection "
            'with .option("form", "changes"), whose rows have _time and _diff.'
        )
    return updates
