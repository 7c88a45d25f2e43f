"""What Spark asks of a stream: offsets and plans on the driver, updates in tasks.

The driver's side is one process for the whole query, which keeps one client open; for tasks Spark makes another
instance and pickles it. So the client is opened only when the driver first asks for something. Options are checked
then, too: an error when a reader is made is lost in one of PySpark's own (4.3: `UnboundLocalError`).

Spark's admission control knows no limit on times, and asks without any limit if a limit does not hold for it (as with
Trigger.Once): so any limit that Spark gives stands for those in the options.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from persist.errors import PersistError
from persist.read import Form
from persist.source import NO_LIMITS, Offset, StreamSource
from persist.spark.data_source.reader import Slice
from persist.spark.options import COUNT_MAX, StreamOptions
from persist.spark.task_reader import What
from persist.spark.tasks import surfaced_errors

Json = dict[str, Any]

logger = logging.getLogger(__name__)


class PersistStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows one collection; see `persist.spark.options`."""

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
            return [Slice(piece.scan, address, piece.events, piece.as_of) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one slice, in a task."""
        assert isinstance(partition, Slice)
        form: Form = "rows" if self._options.form == "rows" else "diff"
        what: What = "changes" if partition.as_of is None else "all"
        yield from partition.rows(form, what, self._schema)

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
