"""`format("persist")`: implements Spark's interface of a data source for a collection."""

import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from persist.compute.tasks.stream_source import CollectionAddress
from persist.connect.spark.data_source.reader import PersistReader, PersistStreamReader, PushingReader, plan_read
from persist.connect.spark.data_source.writers import (
    DataFrameWrite,
    OverwritingWriter,
    PersistStreamWriter,
    PersistWriter,
    UpsertStreamWriter,
    UpsertWriter,
    create_target,
)
from persist.connect.spark.options import (
    STORAGE,
    ReadOptions,
    StreamOptions,
    StreamWriteOptions,
    WriteOptions,
    is_only_for_streams,
    split_options,
)
from persist.connect.spark.types import spark_schema
from persist.connect.spark.workers import check_workers, choose_local_workers, name_driver, surface_errors
from persist.core.errors import AsOfNotSealed, InvalidUsage
from persist.core.keyed.machine import DELETED
from persist.engine.collection.keyed_events import get_keyed_form
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.location.opening import load_handle, read_engine
from persist.engine.read.following.changes import Transitions, UpsertEvents
from persist.engine.read.results.snapshot import Snapshot

_EXTRA: Mapping[str, tuple[str, ...]] = {
    "rows": (),
    "diff": ("_diff",),
    "changes": ("_time", "_diff"),
    "transitions": (),
    "upserts": ("_time", DELETED),
}
_PUSHING_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


class PersistDataSource(DataSource):
    """`format("persist")`: a collection as a table; `persist.connect.spark.options` has its options."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._latest: int | None = None
        self._version: int | None = None

    @classmethod
    def name(cls) -> str:
        return "persist"

    def schema(self) -> StructType:
        """Return the columns of the read as Spark types, and fix its time and schema version.

        The latest time and the version of the schema are chosen here, once. So all plans of one DataFrame read the
        same, even if the collection changes meanwhile.
        """
        with surface_errors():
            # Spark hides whether it is going to read a batch or a stream; the reader's own check is stricter.
            split_options(self.options, "read", "stream")
            for_stream = is_only_for_streams(self.options)
            options = StreamOptions.of(self.options) if for_stream else ReadOptions.of(self.options)
            with read_engine(options.location, options.storage) as engine:
                handle = load_handle(engine, options.collection)
                if isinstance(options, ReadOptions):
                    self._latest = _check_read(handle, options)
                requested = options.schema if isinstance(options, ReadOptions) else None
                schema = handle.get_reading_schema(requested)
                self._version = schema.version
                names = schema.columns if options.columns is None else schema.check_distinct("columns", options.columns)
                fields = {
                    field.name: field
                    for field in (
                        *schema.arrow,
                        *(field.with_type(schema.arrow.field(field.name).type) for field in schema.declared),
                    )
                }
                extra = _EXTRA[options.form]
                if options.form == "upserts":
                    get_keyed_form(handle)
                    fields |= {field.name: field for field in UpsertEvents(schema, None).schema}
                elif options.form == "transitions":
                    transitions = Transitions.of_columns(schema, options.columns).schema
                    fields, names, extra = {field.name: field for field in transitions}, transitions.names, ()
                moments = handle.moments(options.times)
                if moments is not None:
                    fields["_time"] = fields["_time"].with_type(moments.moment_type)
                return spark_schema(pa.schema([fields[n] for n in (*names, *extra)]))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the batch reader; with filter push-down, if the session enables it."""
        # PySpark refuses a reader that can take filters if the session's push-down is off. Only the name of the calling
        # module shows whether it is on. Should PySpark rename that module, nothing is lost but push-down.
        caller = sys._getframe(1).f_globals.get("__spec__")
        kind = PushingReader if getattr(caller, "name", None) == _PUSHING_WORKER else PersistReader
        with surface_errors():
            return kind(ReadOptions.of(self.options).with_latest(self._latest, self._version), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return PersistStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer that the options and the mode demand; create a collection if they have a key."""
        with surface_errors():
            options = WriteOptions.of(self.options)
            if options.key is not None:
                create_target(options, schema)
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
        """Return the writer of a stream; raise InvalidUsage for outputMode("complete")."""
        with surface_errors():
            if overwrite:
                raise InvalidUsage(
                    'outputMode("complete") would replace all contents with every batch. Use outputMode("append") with '
                    'updates; or foreachBatch with persist.spark.write(…, mode="overwrite"), which writes differences.'
                )
            streamed = StreamWriteOptions.of(self.options)
            return UpsertStreamWriter(streamed, schema) if streamed.upserts else PersistStreamWriter(streamed, schema)


def register(spark: SparkSession) -> None:
    """Check the Python of workers, and register `format("persist")` with the session.

    PySpark finds the data source by itself only if it was started with a Python that has this library.
    """
    check_workers(spark)
    spark.dataSource.register(PersistDataSource)


def register_with_active_session() -> None:
    """Register `format("persist")` with the active session, and set the Python for later JVMs."""
    name_driver()
    with suppress(PySparkException, Py4JError):  # An import does not fail for a session that ends meanwhile.
        if (spark := SparkSession.getActiveSession()) is not None:
            with suppress(PySparkException, AttributeError):  # Spark Connect has no context.
                choose_local_workers(spark.sparkContext)
            spark.dataSource.register(PersistDataSource)


def read_by_source(spark: SparkSession, address: CollectionAddress, **options: Any) -> DataFrame:
    """Return the DataFrame of `format("persist")` for a collection; options that are None are left out."""
    spark.dataSource.register(PersistDataSource)
    texts = {f"{STORAGE}{name}": value for name, value in address.storage.items()} | {"collection": address.collection}
    texts |= {name: value for name, value in options.items() if value is not None}
    return spark.read.format("persist").options(**texts).load(address.url)


def _check_read(handle: CollectionHandle, options: ReadOptions) -> int | None:
    """Check the options of a read; return the time of a snapshot, or None.

    None for changes, and for a time that is not sealed yet: the reader waits for it later.
    """
    try:
        result = plan_read(handle, replace(options, timeout_s=0), None)
    except AsOfNotSealed:
        return None
    return result.as_of if isinstance(result, Snapshot) else None
