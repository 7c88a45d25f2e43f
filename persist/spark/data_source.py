"""`format("persist")`: what Spark asks of a data source, answered by the collection."""

import sys
from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import DataFrameReader, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from persist.engine import CollectionHandle, keyed_form, loaded, read_engine
from persist.errors import AsOfNotSealed, InvalidUsage
from persist.read import Snapshot, UpsertEvents
from persist.spark.options.parsing import split_options
from persist.spark.options.read import READ, ReadOptions
from persist.spark.options.stream import STREAM, StreamOptions, is_only_for_streams
from persist.spark.options.stream_write import StreamWriteOptions
from persist.spark.options.write import WriteOptions
from persist.spark.read.reader import PersistReader, PushingReader, planned
from persist.spark.stream.reader import PersistStreamReader
from persist.spark.stream.upsert_writer import UpsertStreamWriter
from persist.spark.stream.writer import PersistStreamWriter
from persist.spark.surfaced_errors import surfaced_errors
from persist.spark.types import spark_schema
from persist.spark.write.dataframe_write import DataFrameWrite
from persist.spark.write.overwrite import OverwritingWriter
from persist.spark.write.upsert_writer import UpsertWriter
from persist.spark.write.writer import PersistWriter
from persist.upsert import DELETED

_EXTRA: Mapping[str, tuple[str, ...]] = {
    "rows": (),
    "diff": ("_diff",),
    "changes": ("_time", "_diff"),
    "upserts": ("_time", DELETED),
}
_PUSHING_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


class PersistDataSource(DataSource):
    """A collection as a table; its options are in `persist.spark.options.read` and `persist.spark.options.write`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._latest: int | None = None
        self._version: int | None = None

    @classmethod
    def name(cls) -> str:
        return "persist"

    def schema(self) -> StructType:
        """Return the collection's columns, as Spark types; `_time` and `_diff` where the form has them.

        The latest time and the version of the schema are chosen here, once, so that all plans of one DataFrame read the
        same, whatever becomes of the collection meanwhile.
        """
        with surfaced_errors():
            # Spark does not say whether it is going to read a batch or a stream; the reader's own check is stricter.
            split_options(self.options, {**READ, **STREAM}, "reading")
            for_stream = is_only_for_streams(self.options)
            options = StreamOptions.of(self.options) if for_stream else ReadOptions.of(self.options)
            with read_engine(options.location, options.storage) as engine:
                handle = loaded(engine, options.collection)
                if isinstance(options, ReadOptions):
                    self._latest = _chosen(handle, options)
                asked = options.schema if isinstance(options, ReadOptions) else None
                schema = handle.reading_schema(asked)
                self._version = schema.version
                names = schema.names if options.columns is None else schema.distinct("columns", options.columns)
                fields = {field.name: field for field in (*schema.arrow, *schema.declared)}
                if options.form == "upserts":
                    keyed_form(handle)
                    fields |= {field.name: field for field in UpsertEvents(schema, None).schema}
                moments = handle.moments(options.times)
                if moments is not None:
                    fields["_time"] = fields["_time"].with_type(moments.type)
                return spark_schema(pa.schema([fields[n] for n in (*names, *_EXTRA[options.form])]))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what plans and reads, called by PySpark's planning worker and by nobody else."""
        # A reader that can take filters is refused when the session's push-down is off, and only the module that calls
        # tells whether it is on. Should that module be renamed, nothing is lost but push-down.
        caller = sys._getframe(1).f_globals.get("__spec__")
        kind = PushingReader if getattr(caller, "name", None) == _PUSHING_WORKER else PersistReader
        with surfaced_errors():
            return kind(ReadOptions.of(self.options).with_latest(self._latest, self._version), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return PersistStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        with surfaced_errors():
            options = WriteOptions.of(self.options)
            if overwrite:
                if options.upserts:
                    raise InvalidUsage('mode "upsert" adds events: it goes with .mode("append"), not with "overwrite"')
                return OverwritingWriter(DataFrameWrite.overwrite(options, schema, options.where))
            if options.where is not None:
                raise InvalidUsage(
                    f'option where={options.where!r} goes with .mode("overwrite"), and not with "append"'
                )
            if options.upserts:
                return UpsertWriter(options, schema)
            return PersistWriter(DataFrameWrite.append(options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        with surfaced_errors():
            if overwrite:
                raise InvalidUsage(
                    'outputMode("complete") would replace all contents with every batch. Use outputMode("append") with '
                    'updates; or foreachBatch with persist.spark.write(…, mode="overwrite"), which writes differences.'
                )
            streamed = StreamWriteOptions.of(self.options)
            return UpsertStreamWriter(streamed, schema) if streamed.upserts else PersistStreamWriter(streamed, schema)


def source_reader(spark: SparkSession) -> DataFrameReader:
    """Return `spark.read.format("persist")` of a session that knows the data source from now on.

    PySpark finds it by itself only where `pyspark_persist` is beside other packages: not in an editable install, away
    from the checkout. So whatever of ours reads by the data source reads by this.
    """
    spark.dataSource.register(PersistDataSource)
    return spark.read.format("persist")


def _chosen(handle: CollectionHandle, options: ReadOptions) -> int | None:
    """Check what can be checked of a read, and return the time that it is of; None for changes.

    What is not sealed yet is waited for when it is read, and not at all if this is for a stream.
    """
    try:
        result = planned(handle, replace(options, wait_s=0), None)
    except AsOfNotSealed:
        return None
    return result.as_of if isinstance(result, Snapshot) else None
