"""Reading: one task for each slice of the key space, so that Spark needs no shuffle to consolidate.

The plan is made once, on the driver, from one state of the log: it names immutable parts, so tasks that run
later, or again, read the same. Tasks talk to the store themselves.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from persist.blob import open_blob
from persist.changes import Changes, read_changes
from persist.client import open as open_client
from persist.collection import Collection
from persist.result import BATCH_ROWS_MAX
from persist.scan import Scan
from persist.snapshot import Snapshot, read_snapshot
from persist.spark.filters import expression
from persist.spark.options import ReadOptions
from persist.spark.types import as_spark_expects

SLICE_ROWS_TARGET = 250_000


@dataclass
class Slice(InputPartition):
    """What one task reads."""

    scan: Scan

    def __post_init__(self) -> None:
        super().__init__(None)


class _PushFilters:
    """`pushFilters` of a reader, for sessions with filter push-down and for those without.

    PySpark refuses a reader that overrides the method when push-down is off, and gives no way to know whether it is.
    It recognizes an override by the method's function; this one answers as the method that is not overridden.
    """

    __func__ = DataSourceReader.pushFilters

    def __init__(self, reader: "PersistReader") -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        self._reader.filters = filters
        return filters  # Spark applies them too: see `persist.spark.filters`.


class PersistReader(DataSourceReader):
    """Reads a snapshot or changes of one collection."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self.filters: list[Filter] = []
        self.pushFilters = _PushFilters(self)

    def partitions(self) -> list[InputPartition]:
        """Plan on the driver; raises what `Collection.snapshot` and `changes` raise."""
        options = self._options
        with open_client(options.location, mode="read", storage_options=options.storage) as client:
            result = planned(client.load(options.collection), options, tuple(self._schema.names))
            scan = replace(result.scan, filter=expression(self.filters, result.scan.schema.arrow))
        slices = scan.slices(options.slices) if options.slices else scan.slices_of_rows(SLICE_ROWS_TARGET)
        return [Slice(each) for each in slices]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one slice, in a task."""
        if not isinstance(partition, Slice):
            return  # Spark makes up an empty partition when there are none.
        blob = open_blob(self._options.location, self._options.storage)
        try:
            if self._options.form == "changes":
                table = read_changes(partition.scan, blob)
            else:
                table = read_snapshot(partition.scan, self._options.form, blob)
        finally:
            blob.close()
        yield from as_spark_expects(table.select(self._schema.names), self._schema).to_batches(max_chunksize=BATCH_ROWS_MAX)


def planned(collection: Collection, options: ReadOptions, names: tuple[str, ...] | None) -> Snapshot | Changes:
    """Return what to read, of the columns that are among names (None: of those the options ask for)."""
    wanted = options.columns
    if names is not None:
        wanted = tuple(name for name in names if name not in ("_time", "_diff"))
    if options.form == "changes":
        return collection.changes(options.lower, options.until, columns=wanted, timeout_s=options.wait_s)
    return collection.snapshot(options.as_of, columns=wanted, form=options.form, timeout_s=options.wait_s)
