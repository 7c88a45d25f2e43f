"""Reads the input of a task: one slice of a snapshot, or of changes.

Slices are planned on the driver, and each travels with its task. They name immutable parts, so a task that runs later,
or again, reads the same.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType, TimestampType

from persist.compute.index import FoundByIndex
from persist.compute.tasks.stream_source import CollectionAddress
from persist.connect.spark.types import as_spark_expects
from persist.connect.spark.workers import surfaced_errors, tell
from persist.core.errors import InvalidUsage
from persist.core.settings import Storage
from persist.core.timeline import read_timeline
from persist.engine.read.following.changes import Transitions, UpsertEvents, read_changes, with_moments
from persist.engine.read.merging import Form, read_snapshot, repeated
from persist.engine.read.parts.reader import PartReader
from persist.engine.read.planning.scan import Scan
from persist.engine.read.results.result import BATCH_ROWS_MAX

What = Literal["all", "changes"]


@dataclass(frozen=True)
class SliceReader:
    """Reads one slice, in a task.

    Attributes:
        what: "all" for contents, "changes" for updates.
        schema: of the result.
        events: makes rows by key from the updates; None for rows as they are stored.
        as_of: the time that a stream shows contents at; None if they have none.
    """

    address: CollectionAddress
    scan: Scan | FoundByIndex
    form: Form
    what: What
    schema: StructType
    events: Transitions | UpsertEvents | None = None
    as_of: int | None = None

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, as Spark expects them."""
        with surfaced_errors(), self.address.opened() as storage:
            rows = 0
            for table in self._tables(self.scan, PartReader(storage.blob)):
                rows += len(table)
                table = as_spark_expects(self._with_moments(table), self.schema)
                yield from table.to_batches(max_chunksize=BATCH_ROWS_MAX)
            self._log(rows, storage)

    def _with_moments(self, table: pa.Table) -> pa.Table:
        """Return a table with `_time` as moments, if that is how the schema has it."""
        has_moments = "_time" in table.column_names and "_time" in self.schema.names
        if not has_moments or not isinstance(self.schema["_time"].dataType, TimestampType):
            return table
        timeline = read_timeline(self.scan.schema)
        if timeline is None:
            raise InvalidUsage(
                f"_time is asked for as TIMESTAMP, and the collection {self.address.collection!r} has no timeline: its "
                "times are numbers that only count. Read it as BIGINT."
            )
        return with_moments(table, timeline)

    def _log(self, rows: int, storage: Storage) -> None:
        gets = storage.metered.counts()["get"]
        parts = len(self.scan.all_parts)
        message = "read a slice of %s: %d rows, %d parts, %d bytes in %d requests"
        tell(message, self.address.collection, rows, parts, gets.bytes, gets.requests)

    def _tables(self, scan: Scan | FoundByIndex, reader: PartReader) -> Iterator[pa.Table]:
        if isinstance(scan, FoundByIndex):
            return scan.tables(self.form, reader)
        if self.events is None:
            return self._as_stored(scan, reader)
        # One table, since an event needs all updates of its key.
        stored = [*self._as_stored(scan, reader)]
        return iter([self.events.of(pa.concat_tables(stored) if stored else scan.schema.arrow.empty_table())])

    def _as_stored(self, scan: Scan, reader: PartReader) -> Iterator[pa.Table]:
        if self.what == "changes":
            updates = read_changes(scan, reader)
            return iter([updates]) if self.form == "diff" else repeated(_insertions(updates), scan)
        contents = read_snapshot(scan, self.form, reader)
        if self.as_of is None or self.form == "rows":
            return contents
        return (with_time_column(table, self.as_of, scan) for table in contents)


def with_time_column(contents: pa.Table, time: int, scan: Scan) -> pa.Table:
    """Return contents as updates of one time."""
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
