"""Reading: one task for each slice of the key space, so that Spark needs no shuffle to consolidate.

The plan is made once, on the driver, from one state of the log: it names immutable parts, so tasks that run
later, or again, read the same. Tasks talk to the store themselves.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from persist.blob import Blob, MissingBlob
from persist.changes import Changes, read_changes
from persist.client import open as open_client
from persist.collection import Collection
from persist.errors import CollectionNotFound
from persist.part_reader import PartReader
from persist.reading import collected
from persist.result import BATCH_ROWS_MAX
from persist.scan import Scan
from persist.snapshot import Snapshot, read_snapshot
from persist.spark.filters import expression
from persist.spark.read_options import ReadOptions
from persist.spark.surface import surfaced_errors
from persist.spark.types import as_spark_expects
from persist.storage import open_storage

SLICE_BYTES = 16 << 20


@dataclass
class Slice(InputPartition):
    """What one task reads."""

    scan: Scan

    def __post_init__(self) -> None:
        super().__init__(None)


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
            open_client(options.location, mode="read", storage_options=options.storage) as client,
        ):
            result = planned(client.load(options.collection), options, tuple(self._schema.names))
            arrow = result.scan.schema.arrow
            records = pa.schema([arrow.field(name) for name in result.scan.schema.names])
            scan = replace(result.scan, filter=expression(self._filters, records)).pruned()
        slices = scan.slices(options.slices) if options.slices else scan.slices_within(SLICE_BYTES)
        return [Slice(each) for each in slices]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one slice, in a task."""
        if not isinstance(partition, Slice):
            return  # Spark makes up an empty partition when there are none.
        with surfaced_errors():
            storage = open_storage(self._options.location, self._options.storage)
            try:
                for table in self._tables(partition.scan, storage.blob):
                    yield from as_spark_expects(table, self._schema).to_batches(max_chunksize=BATCH_ROWS_MAX)
            except MissingBlob as error:
                if self._is_needed(error.key):
                    raise
                raise collected(error) from error
            finally:
                storage.close()

    def _is_needed(self, key: str) -> bool:
        with open_client(self._options.location, mode="read", storage_options=self._options.storage) as client:
            try:
                return client.load(self._options.collection).needs(key)
            except CollectionNotFound:
                return False

    def _tables(self, scan: Scan, blob: Blob) -> Iterator[pa.Table]:
        if self._options.form == "changes":
            yield read_changes(scan, PartReader(blob))
        else:
            yield from read_snapshot(scan, self._options.form, PartReader(blob))


class PushingReader(PersistReader):
    """The same for sessions with filter push-down: PySpark refuses a reader that has this method in any other."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Use filters to read less. Spark applies all of them too: see `persist.spark.filters`."""
        self._filters = filters
        return filters


def planned(collection: Collection, options: ReadOptions, names: tuple[str, ...] | None) -> Snapshot | Changes:
    """Return what to read, of the columns that are among names (None: of those the options ask for)."""
    wanted = options.columns
    if names is not None:
        wanted = tuple(name for name in names if name not in ("_time", "_diff"))
    if options.form == "changes":
        return collection.changes(options.lower, options.until, columns=wanted, timeout_s=options.wait_s)
    return collection.snapshot(options.as_of, columns=wanted, form=options.form, timeout_s=options.wait_s)
