"""`format("persist")`: what Spark asks of a data source, answered by the collection."""

import sys
from collections.abc import Mapping

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter
from pyspark.sql.types import StructType

from persist.client import open as open_client
from persist.errors import InvalidUsage
from persist.snapshot import Snapshot
from persist.spark.read_options import ReadOptions
from persist.spark.reader import PersistReader, PushingReader, planned
from persist.spark.surface import surfaced_errors
from persist.spark.types import spark_schema
from persist.spark.write_options import WriteOptions
from persist.spark.writer import PersistWriter

_PUSHING_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


class PersistDataSource(DataSource):
    """A collection as a table; its options are in `persist.spark.read_options` and `persist.spark.write_options`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._latest: int | None = None

    @classmethod
    def name(cls) -> str:
        return "persist"

    def schema(self) -> StructType:
        """Return the collection's columns, as Spark types; `_time` and `_diff` where the form has them.

        The latest time is chosen here, once, so that all plans of one DataFrame read the same contents.
        """
        with surfaced_errors():
            options = ReadOptions.of(self.options)
            with open_client(options.location, mode="read", storage_options=options.storage) as client:
                result = planned(client.load(options.collection), options, None)
            if isinstance(result, Snapshot):
                self._latest = result.as_of
            return spark_schema(result.schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what plans and reads, called by PySpark's planning worker and by nobody else."""
        # A reader that can take filters is refused when the session's push-down is off, and only the module that calls
        # tells whether it is on. Should that module be renamed, nothing is lost but push-down.
        caller = sys._getframe(1).f_globals.get("__spec__")
        kind = PushingReader if getattr(caller, "name", None) == _PUSHING_WORKER else PersistReader
        with surfaced_errors():
            return kind(ReadOptions.of(self.options).with_latest(self._latest), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        with surfaced_errors():
            if overwrite:
                raise InvalidUsage(
                    'mode("overwrite") would rewrite history, which a collection keeps. Use mode("append"), with '
                    "retractions (_diff = -1) of what is to go."
                )
            return PersistWriter(WriteOptions.of(self.options), schema)
