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

from persist.blob import Blob
from persist.changes import read_changes
from persist.errors import InvalidUsage, PersistError
from persist.part_reader import PartReader
from persist.scan import Scan
from persist.snapshot import read_snapshot, repeated
from persist.spark.read_options import ReadOptions
from persist.spark.reader import PersistReader, Slice
from persist.spark.stream_offset import Offset
from persist.spark.stream_options import COUNT_MAX, Limits, StreamForm, StreamOptions
from persist.spark.stream_source import StreamSource
from persist.spark.surface import surfaced_errors

Json = dict[str, Any]

logger = logging.getLogger("persist")


@dataclass
class StreamSlice(Slice):
    """What one task reads; as_of is the time of contents, and None for updates."""

    as_of: int | None = None


class PersistStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows one collection; see `persist.spark.stream_options`."""

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
        return ReadAllAvailable() if limits == Limits() else ReadMaxRows(limits.updates or COUNT_MAX)

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # type: ignore[override, unused-ignore]
        """Return where the micro-batch that begins at start ends: the last sealed time, or less by the limits."""
        with surfaced_errors():
            limits = Limits() if isinstance(limit, ReadAllAvailable) else self._options.limits
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
            return [StreamSlice(piece.scan, piece.as_of) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one slice, in a task."""
        assert isinstance(partition, StreamSlice)
        options = self._options
        reading = ReadOptions(options.location, options.collection, storage=options.storage)
        return _SliceReader(reading, self._schema, options.form, partition.as_of).read(partition)

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


class _SliceReader(PersistReader):
    """Reads slices of a stream, in the form that its rows have."""

    def __init__(self, options: ReadOptions, schema: StructType, form: StreamForm, as_of: int | None) -> None:
        super().__init__(options, schema)
        self._form = form
        self._as_of = as_of

    def _tables(self, scan: Scan, blob: Blob) -> Iterator[pa.Table]:
        reader = PartReader(blob)
        if self._form == "rows" and self._as_of is not None:
            yield from read_snapshot(scan, "rows", reader)
        elif self._as_of is not None:
            for table in read_snapshot(scan, "diff", reader):
                times = pa.repeat(pa.scalar(self._as_of, pa.int64()), len(table))
                yield table.append_column(scan.schema.arrow.field("_time"), times)
        elif self._form == "changes":
            yield read_changes(scan, reader)
        else:
            yield from repeated(_insertions(read_changes(scan, reader)), scan)


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
