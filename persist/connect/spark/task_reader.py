"""Reads the input of a task: one slice of a snapshot, or of changes.

The driver plans slices, and sends each with its task. A slice names immutable parts, so a task that runs later,
or again, reads the same.
"""

import pickle
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType, TimestampType

from persist.compute.index import IndexScan
from persist.compute.tasks.stream_source import CollectionAddress
from persist.connect.spark.types import convert_to_spark
from persist.connect.spark.workers import log, surface_errors
from persist.core.errors import InvalidUsage
from persist.core.timeline import read_timeline
from persist.engine.read.following.changes import Transitions, UpsertEvents, read_changes, show_moments
from persist.engine.read.merging import Form, read_snapshot, repeat_rows
from persist.engine.read.parts.reader import PartReader
from persist.engine.read.planning.scan import Scan
from persist.engine.read.results.result import BATCH_ROWS_MAX

What = Literal["all", "changes"]


@dataclass
class Slice(InputPartition):
    """One slice of a planned read, which one task reads.

    Attributes:
        events: turns the updates into transitions or events by key; None for no such change.
        as_of: the time of the contents with which a stream begins; None for other reads.
    """

    scan: Scan | IndexScan
    address: CollectionAddress
    events: Transitions | UpsertEvents | None = None
    as_of: int | None = None

    def __post_init__(self) -> None:
        super().__init__(None)

    def __getstate__(self) -> bytes:
        return zlib.compress(pickle.dumps(self.__dict__), 1)

    def __setstate__(self, packed: bytes) -> None:
        self.__dict__.update(pickle.loads(zlib.decompress(packed)))  # noqa: S301  # The driver has made it.

    def rows(self, form: Form, what: What, schema: StructType) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the slice in types of Spark. `what`: "all" for contents, "changes" for updates."""
        with surface_errors(), self.address.open_store() as storage:
            rows = 0
            for table in self._read_tables(form, what, PartReader(storage.blob)):
                rows += len(table)
                table = convert_to_spark(self._with_moments(table, schema), schema)
                yield from table.to_batches(max_chunksize=BATCH_ROWS_MAX)
            gets, parts = storage.metered.get_counts()["get"], len(self.scan.all_parts)
            message = "read a slice of %s: %d rows, %d parts, %d bytes in %d requests"
            log(message, self.address.collection, rows, parts, gets.bytes, gets.requests)

    def _with_moments(self, table: pa.Table, schema: StructType) -> pa.Table:
        """Return a table whose `_time` is a moment, if the schema has TIMESTAMP there."""
        has_moments = "_time" in table.column_names and "_time" in schema.names
        if not has_moments or not isinstance(schema["_time"].dataType, TimestampType):
            return table
        timeline = read_timeline(self.scan.schema)
        if timeline is None:
            raise InvalidUsage(
                f"_time is asked for as TIMESTAMP, and the collection {self.address.collection!r} has no timeline: its "
                "times are numbers that only count. Read it as BIGINT."
            )
        return show_moments(table, timeline)

    def _read_tables(self, form: Form, what: What, reader: PartReader) -> Iterator[pa.Table]:
        """Yield the rows of the slice as tables, before they are converted for Spark."""
        scan = self.scan
        if isinstance(scan, IndexScan):
            return scan.tables(form, reader)
        if self.events is None:
            return self._read_stored(scan, form, what, reader)
        # One table, since an event needs all updates of its key.
        stored = [*self._read_stored(scan, form, what, reader)]
        return iter([self.events.of(pa.concat_tables(stored) if stored else scan.schema.arrow.empty_table())])

    def _read_stored(self, scan: Scan, form: Form, what: What, reader: PartReader) -> Iterator[pa.Table]:
        """Yield contents or updates of the slice as tables."""
        if what == "changes":
            updates = read_changes(scan, reader)
            return iter([updates]) if form == "diff" else repeat_rows(_check_insertions(updates), scan)
        contents = read_snapshot(scan, form, reader)
        if self.as_of is None or form == "rows":
            return contents
        return (add_time_column(table, self.as_of, scan) for table in contents)


def add_time_column(contents: pa.Table, time: int, scan: Scan) -> pa.Table:
    """Return contents with a column `_time`, which has the same time in each row."""
    times = pa.repeat(pa.scalar(time, pa.int64()), len(contents))
    return contents.append_column(scan.schema.arrow.field("_time"), times)


def _check_insertions(updates: pa.Table) -> pa.Table:
    """Return updates; raise InvalidUsage if one of them is a retraction."""
    retractions = updates.filter(pc.less(updates["_diff"], 0))
    if len(retractions):
        first = retractions.slice(0, 1).to_pylist()[0]
        raise InvalidUsage(
            f"the update {first} takes something back, and a stream of rows cannot show that. Follow the collection "
            'with .option("form", "changes"), whose rows have _time and _diff.'
        )
    return updates
