"""`format("persist")`: what Spark asks of a data source, answered by the collection."""

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter
from pyspark.sql.types import StructType

from persist.client import open as open_client
from persist.errors import InvalidUsage
from persist.spark.options import ReadOptions, WriteOptions
from persist.spark.reader import PersistReader, planned
from persist.spark.types import spark_schema
from persist.spark.writer import PersistWriter


class PersistDataSource(DataSource):
    """A collection as a table: options are documented in `persist.spark.options`."""

    @classmethod
    def name(cls) -> str:
        return "persist"

    def schema(self) -> StructType:
        """Return the collection's columns, as Spark types; `_time` and `_diff` where the form has them."""
        options = ReadOptions.of(self.options)
        with open_client(options.location, mode="read", storage_options=options.storage) as client:
            return spark_schema(planned(client.load(options.collection), options, None).schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        return PersistReader(ReadOptions.of(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise InvalidUsage(
                'mode("overwrite") would rewrite history, which a collection keeps. Use mode("append"), with retractions '
                "(_diff = -1) of what is to go."
            )
        return PersistWriter(WriteOptions.of(self.options), schema)
