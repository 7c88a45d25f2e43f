"""Collections as tables of Spark SQL: `SELECT … FROM persist.shop.orders VERSION AS OF 7`.

    spark = persist.spark.catalog(SparkSession.builder, "s3://bucket/prefix")

The catalog is a Java class (`jvm/PersistCatalog.java`), which cannot read logs and parts. It calls `Planner` here, by
Py4J. So Python plans all reads: Spark replaces a table by the plan of `persist.spark.snapshot`.

    JVM                                     this module
    SHOW TABLES, DESCRIBE                   names, describe
    a table in a query, as of a time        read: a DataFrame, whose plan replaces the table before Spark optimises
    … CHANGES FROM VERSION a TO VERSION b   changes: the same
    INSERT, INSERT OVERWRITE                insert, overwrite: a DataFrame that tasks write, as `persist.spark.write`
    DELETE, UPDATE, MERGE                   apply: Spark computes which records go and come; tasks write both
    CREATE, ALTER, DROP                     create, alter, drop, rename

Spark loads a table once for each query, and this fixes the time of its contents. A DELETE, UPDATE or MERGE is refused
if another writer has sealed the collection after that. So it never overwrites an update of another writer.

A driver without Python (`spark-sql`, Spark Connect) starts this module as a process; see `jvm/Python.java`.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import ensure_callback_server_started, launch_gateway
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.classic.column import Column as ClassicColumn
from pyspark.sql.types import StructField, StructType, TimestampType

from persist.api.client import Client
from persist.api.client import open as open_client
from persist.api.collection import Collection
from persist.codecs.nested import quote_name
from persist.codecs.types.schema import CollectionSchema
from persist.connect.spark.data_source.source import register
from persist.connect.spark.data_source.writers import DataFrameWrite, find_replaced_time
from persist.connect.spark.jar import find_jar
from persist.connect.spark.options import WriteOptions, resolve_for_tasks
from persist.connect.spark.read_functions.deferred import EXTENSIONS, answer, call_safely, describe, has_extension
from persist.connect.spark.read_functions.locations import SparkLocation
from persist.connect.spark.read_functions.plans import repeat_rows
from persist.connect.spark.types import quote_column, spark_schema, to_stored_schema
from persist.connect.spark.uploads import partition_by_key, upload_by_tasks
from persist.connect.spark.write_functions.conditions import Condition
from persist.connect.spark.write_functions.dataframes import write
from persist.connect.spark.write_functions.upserting import upsert
from persist.core.antichain import Antichain, to_antichain
from persist.core.errors import (
    AsOfNotSealed,
    CollectionExists,
    CollectionNotFound,
    InvalidUsage,
    SchemaMoved,
    UpperMismatch,
)
from persist.core.settings import Settings
from persist.core.timeline import Timeline
from persist.engine.collection.reads import snapshot as engine_snapshot
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.location.opening import find_row_target, load_handle, read_engine

CATALOG = "dev.persist.spark.PersistCatalog"
RECORD = "_persist_record"  # As in `PersistTable`.
_PROPERTIES = {"comment", "timeline", "key"}  # Properties of CREATE TABLE with a meaning for us.
_OF_SPARK = {"provider", "owner", "location", "external", "is_managed_location"}
_STORAGE: dict[str, dict[str, Any]] = {}  # By location: options that a configuration would show, and make texts.
_OF_CONTENTS = {"read", "extremes", "find"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def catalog(
    spark: Any, location: str, *, name: str = "persist", storage_options: Mapping[str, Any] | None = None
) -> SparkSession:
    """Add a catalog to a session, whose tables are the collections of a location; return the session.

    `persist.shop.orders` is then the collection `shop.orders`, in SQL and in `spark.table`, `df.writeTo` and so on.

    Args:
        spark: a `SparkSession.builder`, whose session is created with all that the catalog needs; or a session that
            was created with it.
        location: as in `persist.open`; the driver and all executors can reach it.
        name: of the catalog.
    """
    place = {"": CATALOG, ".location": resolve_for_tasks(location)}
    needed = {"spark.jars": str(find_jar()), "spark.sql.extensions": EXTENSIONS}
    if isinstance(spark, SparkSession.Builder):
        for option, value in needed.items():
            present = str(spark._options.get(option) or "")
            spark = spark.config(option, ",".join(dict.fromkeys([*filter(None, present.split(",")), value])))
        spark = spark.getOrCreate()
    settings = "; ".join(f"{option}={value}" for option, value in needed.items())
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        settings += "".join(f"; spark.sql.catalog.{name}{option}={value}" for option, value in place.items())
        raise InvalidUsage(f"catalogs of a Spark Connect session are set on its server: start that with {settings}")
    if not isinstance(spark, SparkSession):
        raise InvalidUsage(f"{spark!r:.80} is not a session: give SparkSession.builder, or a session")
    if not has_extension(spark):
        raise InvalidUsage(
            "a catalog needs settings that the JVM gets when it starts, and this one lacks them: give "
            f"SparkSession.builder as the first thing in a new process, or set {settings}; if its jar is "
            "older than this library, build that again with python -m persist.connect.spark.jar"
        )
    for option, value in place.items():
        current = spark.conf.get(f"spark.sql.catalog.{name}{option}", None)
        if current not in (None, value):
            raise InvalidUsage(
                f"the catalog {name!r} of this session is at {current}: give another name=, or spark.newSession()"
            )
        spark.conf.set(f"spark.sql.catalog.{name}{option}", value)
    _STORAGE[place[".location"]] = dict(storage_options or {})
    register(spark)
    register_planner(spark.sparkContext)
    return spark


def register_planner(context: SparkContext) -> None:
    """Let the JVM of a driver call this process to plan tables of catalogs."""
    gateway: Any = context._gateway
    ensure_callback_server_started(gateway)
    gateway.jvm.dev.persist.spark.Python.register(_Callbacks())


class _Callbacks:
    """Implements the Java interface `Planner`, which the JVM calls for tables of catalogs."""

    def call(self, name: str, arguments: str, session: Any, frame: Any, where: Any = None) -> Any:
        """Return the answer to one call of the JVM; see `jvm/Planner.java`."""
        return call_safely(partial(_answer, name, frame, where), arguments, session)

    class Java:
        implements = ("dev.persist.spark.Planner",)


def _answer(name: str, frame: Any, where: Any, spark: SparkSession, options: dict[str, Any]) -> Any:
    """Call the method of `Planner` that the JVM names; `frame` and `where` are its Java arguments."""
    location = resolve_for_tasks(options.pop("location"))
    storage = options.pop("storage") | _STORAGE.get(location, {})
    planner = Planner(spark, location, storage)
    if name in _OF_CONTENTS:
        return planner.read(name, options)
    method = getattr(planner, name)
    if where is not None:  # The text has no casts to arrays and structs, and depends on settings of the session.
        options["where"] = Condition(ClassicColumn(where), options["where"])
    return method(options) if frame is None else method(DataFrame(frame, spark), options)


class Planner:
    """Answers the calls of the JVM for one location; `options` are the arguments of a call."""

    def __init__(self, spark: SparkSession, location: str, storage: Mapping[str, Any]) -> None:
        self._spark, self._location, self._storage = spark, location, dict(storage)

    def names(self, options: Mapping[str, Any]) -> list[str]:
        """Return the names of all collections."""
        with read_engine(self._location, self._storage) as engine:
            return engine.names()

    def describe(self, options: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return a table's schema, time and properties; None for a missing collection."""
        with read_engine(self._location, self._storage) as engine:
            try:
                handle = load_handle(engine, options["name"])
            except CollectionNotFound:
                return None
            if RECORD in handle.schema.names:
                raise InvalidUsage(f"{handle.name!r} has a column {RECORD!r}, a name that the catalog needs: rename it")
            about = Collection(handle).about
            comments = {name: {"comment": column.comment} for name, column in about.columns.items()}
            fields = _to_spark_schema(handle.schema).fields
            columns = [StructField(f.name, f.dataType, f.nullable, comments.get(f.name)) for f in fields]
            properties = {**about.properties, "provider": "persist", "key": ",".join(handle.schema.key_names)}
            properties |= {"comment": about.comment} if about.comment else {}
            properties |= {"timeline": handle.timeline.unit} if handle.timeline is not None else {}
            return {
                "id": handle.id,
                "keyed": handle.keyed is not None,
                "version": handle.schema.version,
                **_resolve_time(handle, options["kind"], options["time"]),
                "schema": StructType(columns).json(),
                "properties": properties,
            }

    def read(self, name: str, options: Mapping[str, Any]) -> DataFrame | None:
        """Return a collection as of its table's time; None if the JVM has to call `read` instead."""
        with self._open_collection(options) as (at, _, schema):
            if options["as_of"] is None:
                return self._make_empty_frame(schema) if name == "read" else None
            planned = at.plan(options["name"], as_of=options["as_of"], schema=options["version"])
            return answer(planned, name, self._spark, options)

    def changes(self, options: Mapping[str, Any]) -> DataFrame:
        """Return the updates in a range of times, with the columns that CHANGES adds."""
        with self._open_collection(options) as (at, handle, schema):
            start, until = _resolve_range(handle, options)
            if start >= until:
                frame = self._make_empty_frame(schema)
                frame = frame.withColumns({"_time": F.lit(0).cast("long"), "_diff": F.lit(1).cast("long")})
            else:
                frame = at.changes(options["name"], start, until, schema=options["version"], timeout_s=0)
            timeline = handle.timeline
        moment = F.lit(None).cast(TimestampType()) if timeline is None else _make_moment_column(timeline)
        names = schema.names
        if fixed := {"_change_type", "_commit_version", "_commit_timestamp"} & {*names}:
            raise InvalidUsage(
                f"CHANGES adds a column {min(fixed)!r}, which the collection has, too: use persist.spark.changes"
            )
        return repeat_rows(frame).select(
            *(F.col(quote_column(name)) for name in names),
            F.when(F.col("_diff") > 0, "insert").otherwise("delete").alias("_change_type"),
            F.col("_time").cast("long").alias("_commit_version"),
            moment.alias("_commit_timestamp"),
        )

    def stream(self, options: Mapping[str, Any]) -> DataFrame:
        """Return the updates of a collection as a stream of the data source."""
        reader = self._spark.readStream.format("persist").options(**{"form": "changes", **options["options"]})
        return reader.options(**self.stream_options(options)).load()

    def stream_options(self, options: Mapping[str, Any]) -> dict[str, str]:
        """Return the options by which the data source finds a collection."""
        storage = {f"storage.{name}": str(value) for name, value in self._storage.items()}
        return {"path": self._location, "collection": options["name"], **storage}

    def insert(self, rows: DataFrame, options: Mapping[str, Any]) -> None:
        """Append rows to a collection, by default at the time of the commit; to a keyed one, as events."""
        named = self._parse_write_options(options, {"time", "seal", "token"})
        is_keyed = self._check_unchanged(options)
        if is_keyed:
            upsert(rows, self._location, options["name"], storage_options=self._storage, **named)
        else:
            write(rows, self._location, options["name"], mode="append", storage_options=self._storage, **named)

    def overwrite(self, rows: DataFrame, options: Mapping[str, Any]) -> None:
        """Replace the contents, or the records that fulfil a condition, by the rows of a DataFrame."""
        named = self._parse_write_options(options, {"time", "token", "multiset"})
        named["multiset"] = named.get("multiset", "false").lower() == "true"
        named |= {"mode": "overwrite", "where": options["where"]}
        self._check_unchanged(options)
        write(rows, self._location, options["name"], storage_options=self._storage, **named)

    def apply(self, updates: DataFrame, options: Mapping[str, Any]) -> None:
        """Commit the updates of DELETE, UPDATE or MERGE, unless the collection has changed since.

        Raises UpperMismatch: another writer sealed the collection since Spark loaded the table; nothing was written.
        """
        sink = WriteOptions(location=self._location, collection=options["name"], storage=self._storage)
        write = DataFrameWrite.overwrite(sink, updates.drop("_diff").schema)
        planned = write.planned
        target = planned.target
        _check_same(target.id, target.schema, options)
        if find_replaced_time(planned) != options["as_of"]:
            expected = 0 if options["as_of"] is None else options["as_of"] + 1
            raise UpperMismatch(to_antichain(expected), to_antichain(planned.upper))
        planned.commit(upload_by_tasks(partition_by_key(updates, target.schema), write.task).parts)

    def create(self, options: Mapping[str, Any]) -> bool:
        """Create a collection; return False if the name is taken."""
        columns = StructType.fromJson(json.loads(options["schema"]))
        properties = {name: value for name, value in options["properties"].items() if name not in _OF_SPARK}
        key = options["key"] or [name.strip() for name in properties.get("key", "").split(",") if name.strip()]
        # A primary key makes its columns NOT NULL; like the key itself, Spark calls that not enforced.
        if strict := [
            field.name for field in columns.fields if not field.nullable and field.name not in options["key"]
        ]:
            raise InvalidUsage(f"collections do not check NOT NULL: leave it out of the columns {strict}")
        if missing := [name for name in key if name not in columns.names]:
            raise InvalidUsage(f"the key names {missing[0]!r}, which is not a column: columns are {columns.names}")
        if columns.names[: len(key)] != key:
            raise InvalidUsage(f"key columns come first, in the order of the key: begin the columns with {key}")
        stored = pa.schema([field.with_nullable(True) for field in to_stored_schema(columns, creates=True)])
        comments = {field.name: field.metadata["comment"] for field in columns.fields if "comment" in field.metadata}
        texts = {name: value for name, value in properties.items() if name not in _PROPERTIES}
        with self._get_client() as client:
            if options["name"] in client.collections():
                return False
            timeline = properties.get("timeline", "ms")
            handle = find_row_target(client.engine, options["name"], stored, key=key, timeline=timeline)
            if handle.create is None:
                return False
            try:
                handle.submit("create", []).result()
            except CollectionExists:
                return False
            if comments or texts or properties.get("comment"):
                collection = client.load(options["name"])
                collection.describe(properties.get("comment"), properties=texts, columns=comments).result()
            return True

    def alter(self, options: Mapping[str, Any]) -> bool:
        """Apply ALTER TABLE to a collection; return False if it does not exist."""
        evolution: dict[str, Any] = {"add": {}, "widen": {}, "rename": {}, "drop": []}
        comments: dict[str, str] = {}
        properties: dict[str, str | None] = {}
        comment: str | None = None
        with self._get_client() as client:
            try:
                collection = client.load(options["name"])
            except CollectionNotFound:
                return False
            for change in options["changes"]:
                path = change.get("column", ())
                column = ".".join(map(quote_name, path))
                match change["kind"]:
                    case "add":
                        if not change["nullable"]:
                            raise InvalidUsage(f"collections do not check NOT NULL: leave it out of {column!r}")
                        evolution["add"][column] = _get_stored_type(change["type"])
                        if change["comment"]:
                            comments[".".join(path)] = change["comment"]
                    case "type":
                        evolution["widen"][column] = _get_stored_type(change["type"])
                    case "rename":
                        evolution["rename"][column] = ".".join(map(quote_name, [*path[:-1], change["name"]]))
                    case "drop":
                        evolution["drop"].append(column)
                    case "comment":
                        comments[".".join(path)] = change["comment"]
                    case "property" if change["name"] == "comment":
                        comment = change["value"] or ""
                    case "property" if change["name"] in _PROPERTIES:
                        raise InvalidUsage(f"{change['name']} of a collection is fixed when it is created")
                    case _:
                        properties[change["name"]] = change["value"]
            if any(evolution.values()):
                collection.evolve(**evolution, comments=comments, properties=properties)
                comments, properties = {}, {}
            if comments or properties or comment is not None:
                collection.describe(comment, columns=comments, properties=properties).result()
            return True

    def drop(self, options: Mapping[str, Any]) -> bool:
        """Drop a collection; return False if it does not exist."""
        with self._get_client() as client:
            try:
                collection = client.load(options["name"])
                if options["id"] not in (None, collection.id):
                    return False
                collection.drop().result()
            except CollectionNotFound:
                return False
            return True

    def rename(self, options: Mapping[str, Any]) -> str:
        """Rename a collection; return "renamed", "missing" or "taken"."""
        with self._get_client() as client:
            try:
                client.rename(options["name"], options["renamed"]).result()
            except CollectionNotFound:
                return "missing"
            except CollectionExists:
                return "taken"
            return "renamed"

    def _get_client(self) -> Client:
        """Open the location to write."""
        return open_client(self._location, storage_options=self._storage, settings=Settings(background=False))

    @contextmanager
    def _open_collection(
        self, options: Mapping[str, Any]
    ) -> Iterator[tuple[SparkLocation, CollectionHandle, CollectionSchema]]:
        """Yield the location, the collection of a table, and the table's version of its schema."""
        with read_engine(self._location, self._storage) as engine:
            handle = load_handle(engine, options["name"])
            if handle.id != options["id"]:
                raise CollectionNotFound(options["name"], engine.url, tuple(engine.names()))
            at = SparkLocation(self._spark, engine, self._storage)
            yield at, handle, handle.get_reading_schema(options["version"])

    def _make_empty_frame(self, schema: CollectionSchema) -> DataFrame:
        return self._spark.createDataFrame([], _to_spark_schema(schema))

    def _check_unchanged(self, options: Mapping[str, Any]) -> bool:
        """Return whether a collection is keyed; raise if it was replaced or its schema has changed."""
        with read_engine(self._location, self._storage) as engine:
            handle = load_handle(engine, options["name"])
            _check_same(handle.id, handle.schema, options)
            return handle.keyed is not None

    def _parse_write_options(self, options: Mapping[str, Any], known: set[str]) -> dict[str, Any]:
        """Return the options of a write; raise InvalidUsage unless all are in `known`."""
        named = {name.lower(): value for name, value in options["options"].items()}
        if unknown := sorted({*named} - known):
            raise InvalidUsage(f"the option {unknown[0]!r} is unknown here: use some of {sorted(known)}")
        for name in {"time", "seal"} & {*named}:
            if named[name].isdigit():
                named[name] = int(named[name])
        if named.get("seal") == "end":
            named["seal"] = Antichain()
        return named


def _check_same(id_: str, schema: CollectionSchema, options: Mapping[str, Any]) -> None:
    """Raise if a collection or its schema is another one than when Spark loaded the table."""
    if id_ != options["id"]:
        raise CollectionNotFound(options["name"], "this location: it was dropped and created anew", ())
    if schema.version != options["version"]:
        raise SchemaMoved(options["version"], schema.version, ("a statement of Spark SQL",), ("by another writer",))


def _to_spark_schema(schema: CollectionSchema) -> StructType:
    return spark_schema(pa.schema([schema.arrow.field(name) for name in schema.names]))


def _get_stored_type(schema: str) -> pa.DataType:
    """Return the Arrow type of a column, from a schema of Spark with only this column, as JSON."""
    return to_stored_schema(StructType.fromJson(json.loads(schema)), creates=True).field(0).type


def _resolve_time(handle: CollectionHandle, kind: str, named: Any) -> dict[str, Any]:
    """Return the time that a query names, with sizes of the contents; None if nothing is sealed."""
    time = named
    if kind == "latest":
        time = None
    elif kind == "timestamp":
        time = _EPOCH + timedelta(microseconds=named)
    elif str(named).isdigit():
        time = int(named)
    try:
        with engine_snapshot(handle, time, timeout_s=0) as contents:
            return {"as_of": contents.as_of, **describe(contents)}
    except AsOfNotSealed:
        if kind == "latest":
            return {"as_of": None, "bytes": 0, "rows": 0, "counted": True, "keys": []}
        raise


def _make_moment_column(timeline: Timeline) -> Column:
    """Return `_time` as a TIMESTAMP column, by the unit of the timeline."""
    fine = timeline.per_second
    micros = f"_time * {1_000_000 // fine}" if fine <= 1_000_000 else f"_time DIV {fine // 1_000_000}"
    return F.timestamp_micros(F.expr(micros))


def _resolve_range(handle: CollectionHandle, options: Mapping[str, Any]) -> tuple[int, int]:
    """Return the bounds of a range of changes: the first time, and the first time after it."""
    contents = handle.contents()
    start, until = contents.since + 1, contents.upper
    if options["start"] is not None:
        start = _find_time_bound(handle, options["kind"], options["start"], is_before=options["from_inclusive"])
    if options["end"] is not None:
        until = _find_time_bound(handle, options["kind"], options["end"], is_before=not options["to_inclusive"])
    return start, until


def _find_time_bound(handle: CollectionHandle, kind: str, named: Any, *, is_before: bool) -> int:
    """Return the first time at or after a bound, if `is_before`; otherwise the first one after it."""
    if kind == "timestamp":
        if handle.timeline is None:
            raise InvalidUsage(f"times of {handle.name!r} are not moments: say VERSION and a number")
        moment = _EPOCH + timedelta(microseconds=named)
        return handle.timeline.to_bound(moment) if is_before else handle.timeline.to_time(moment) + 1
    time = int(named) if str(named).isdigit() else _resolve_time(handle, "version", named)["as_of"]
    assert time is not None, "a text names a time, or raises"
    return time if is_before else time + 1


def main() -> None:
    """Answer the calls of the JVM that has started this process, until that ends."""
    gateway = launch_gateway()
    jvm: Any = gateway.jvm
    java = jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(
        jvm.org.apache.spark.SparkContext.getOrCreate()
    )
    context = SparkContext(gateway=gateway, jsc=java, conf=SparkConf(_jconf=java.sc().conf()))
    register_planner(context)
    sys.stdin.read()  # The JVM closes it when it ends.


if __name__ == "__main__":
    main()
