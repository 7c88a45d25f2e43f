"""Collections as names in Spark SQL: a view of the latest contents, and functions for other times.

    orders                       temporary view: the latest sealed contents
    orders(as_of)                table function: the contents as of a time
    orders_changes(lower, until) table function: the updates with lower <= time < until

All of it is planned on one state of the log, when the names are made: they do not see what is written later, so make
them again for that. The body of a function is SQL over views of parts (`persist.spark.reading.contents_sql`), which
Spark reads by its own Parquet scan wherever it can.

`persist.spark.sql` does what `spark.sql` cannot do with collections. A query is Spark's own. Its tables are
collections, all at one point of the log, or at times of their own, which Spark refuses for its views. They come into
the query as named subqueries around it, so no name stays in the session.

A statement that changes a collection is carried out by DuckDB, because Spark refuses it for a Python data source.
"""

import re
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

from persist.codecs import TIME_MAX, CollectionSchema, Part
from persist.engine import CollectionHandle, loaded, open_engine, read_engine
from persist.errors import AsOfNotSealed, CollectionNotFound, InvalidUsage
from persist.query import TimedTable, collection_of, execute, is_statement, with_times, words_of
from persist.read import Scan
from persist.source import CollectionAddress
from persist.spark.data_source import prepared
from persist.spark.options import seen_by_all
from persist.spark.reading.contents_sql import Body, Branch, SqlColumn, changes_sql, contents_sql, type_sql
from persist.spark.reading.locations import SparkLocation
from persist.spark.reading.plans import may_share_updates, united
from persist.spark.reading.store import Tombstoned, part_frame, why_not_stored, why_not_typed
from persist.spark.task_reader import TaskReader
from persist.spark.tasks import slices_for
from persist.spark.types import quoted, spark_schema
from persist.state import CollectionState
from persist.timeline import Moment


def create_views(
    spark: SparkSession,
    location: str,
    *,
    collections: Sequence[str] | None = None,
    prefix: str = "",
    schemas: Mapping[str, int] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[str]:
    """Make, or make anew, a temporary view and two table functions for each collection of a location.

    They show the location as it is now. What they read is kept in the store for `Settings.grace_s` after it fell out of
    use; then make them again.

    Args:
        collections: some of them; None for all.
        prefix: put before each name, for locations that have collections of the same name.
        schemas: by the names of some collections, the version of their schema to read with; others have the newest.

    Returns:
        the names of the views. A collection of which nothing is sealed has no contents to show, and gets none.

    Raises:
        CollectionNotFound: there is none of that name.
        InvalidUsage: Spark cannot take the name of a function, or group by a column of the collection.
        SchemaMismatch: there is no such version, or a column of it is gone.
    """
    prepared(spark)
    storage, schemas = dict(storage_options or {}), {} if schemas is None else schemas
    if not isinstance(schemas, Mapping):
        raise InvalidUsage(f"schemas={schemas!r:.100} is no dict of versions by name: give {{'orders': 3}}")
    if isinstance(collections, str):
        raise InvalidUsage(f"collections={collections!r} is one name: give a list of names, [{collections!r}]")
    with read_engine(location, storage) as engine:
        seqno = engine.seqno
        if seqno < 0:
            raise InvalidUsage(f"there is nothing at {engine.url}: is the path right?")
    made: list[str] = []
    failed: list[InvalidUsage] = []
    with read_engine(location, storage, seqno) as engine:
        here = SparkLocation(spark, engine, storage)
        known = engine.names()
        wanted = known if collections is None else list(collections)
        if missing := [name for name in wanted if name not in known]:
            raise CollectionNotFound(missing[0], here.url, tuple(known))
        if unused := [name for name in schemas if name not in wanted]:
            raise InvalidUsage(f"schemas= names {unused[0]!r}, of which no view is made: views are of {wanted}")
        _check_names([prefix + name for name in wanted])
        for name in wanted:
            rows = loaded(engine, name)
            if rows.contents().upper.has_beyond(0):
                continue
            try:
                version, address = schemas.get(name), CollectionAddress(here.url, storage, name)
                _Functions(spark, rows, address, prefix + name, version).create()
                here.snapshot(name, schema=version).createOrReplaceTempView(quoted(prefix + name))
                made.append(prefix + name)
            except (PySparkException, InvalidUsage) as error:
                failed.append(_refused(name, error))
    if failed:
        failed[0].add_note(f"Views were made of {made}; of {len(failed)} collections they could not be.")
        raise failed[0]
    return made


def _check_names(names: Sequence[str]) -> None:
    """Raise InvalidUsage if Spark would take two names for one: it knows no case, and changes have a name, too."""
    taken: dict[str, str] = {}
    for name in names:
        for sql_name in (name.lower(), f"{name.lower()}_changes"):
            if sql_name in taken:
                raise InvalidUsage(
                    f"{name!r} and {taken[sql_name]!r} would both be called {sql_name!r} in SQL. Make their views one "
                    "by one, with collections=[…] and a prefix= for one of them."
                )
            taken[sql_name] = name


def _refused(name: str, error: Exception) -> InvalidUsage:
    if isinstance(error, InvalidUsage):
        return error
    reason = str(error).splitlines()[0]
    if "CANNOT_REPLACE" in reason:
        reason = "Spark has a function of that name itself. Give the views another one, with prefix="
    refused = InvalidUsage(f"Spark cannot make the views of the collection {name!r}: {reason}")
    refused.__cause__ = error
    return refused


class _Functions:
    """Makes the functions of one collection."""

    def __init__(
        self, spark: SparkSession, rows: CollectionHandle, address: CollectionAddress, name: str, version: int | None
    ) -> None:
        self._spark = spark
        self._schema: CollectionSchema = rows.reading_schema(version)
        # Functions are for all sealed times, so what these hold is worked out now, where nobody has resolved it yet.
        self._contents: CollectionState = rows.folded(rows.contents())
        self._tombstoned = Tombstoned.of(self._contents, self._schema)
        self._address = address
        self._name = name
        self._fields = spark_schema(pa.schema([self._schema.arrow.field(n) for n in self._schema.names])).fields
        reason = why_not_typed(self._schema, self._schema.names, self._contents.parts)
        if reason is None:
            reason = why_not_stored(spark, address.url, self._contents.parts)
        self._is_native = reason is None

    def create(self) -> None:
        contents, schema = self._contents, self._schema
        if len({name.lower() for name in schema.arrow.names}) < len(schema.arrow.names):
            raise InvalidUsage(f"columns of {self._name!r} differ by case only, which SQL cannot tell apart")
        columns = [SqlColumn(field.name, field.dataType) for field in self._fields]
        branches = self._branches()
        body = contents_sql(branches, columns, schema.key_names, contents.since, contents.upper)
        self._function(self._name, body, columns)
        scan = Scan(schema, contents.history_parts, 0, TIME_MAX + 1, schema.names)
        history = self._view("history", scan.parts)
        is_merged = may_share_updates(scan) or not all(map(scan.tells_apart, scan.parts))
        body = changes_sql(history, columns, contents.since, contents.upper, is_merged=is_merged)
        columns += [SqlColumn(name, LongType()) for name in ("_time", "_diff")]
        self._function(f"{self._name}_changes", body, columns)

    def _function(self, name: str, body: Body, columns: Sequence[SqlColumn]) -> None:
        parameters = ", ".join(f"{parameter} BIGINT" for parameter in body.parameters)
        returns = ", ".join(f"{quoted(column.name)} {type_sql(column.kind)}" for column in columns)
        self._spark.sql(
            f"CREATE OR REPLACE TEMPORARY FUNCTION {quoted(name)}({parameters}) RETURNS TABLE ({returns}) "
            f"RETURN {body.text}"
        )

    def _branches(self) -> list[Branch]:
        """Return how each readable time is read: from the keyframe at or before it, or from all of the history."""
        contents = self._contents
        since = contents.since.time
        starts: list[Any] = [None] if contents.history_from == 0 else []
        starts += contents.keyframes
        branches = []
        for number, keyframe in enumerate(starts):
            lower = 0 if keyframe is None else keyframe.as_of
            until = starts[number + 1].as_of if number + 1 < len(starts) else TIME_MAX + 1
            if since is not None and until > since:
                base = () if keyframe is None else contents.parts_of(keyframe.parts)
                branches.append(self._branch(number, lower, until, base, after=-1 if keyframe is None else lower))
        return branches

    def _branch(self, number: int, lower: int, until: int, base: tuple[Part, ...], *, after: int) -> Branch:
        history = [p for p in self._contents.history_parts if p.time_max > after and p.time_min < until]
        rest = [part for part in (*base, *history) if part.negatives]
        standing = [part for part in (*base, *history) if not part.negatives]
        keyframe = {part.blob for part in base}
        return Branch(
            lower=lower,
            until=until,
            standing=self._view(f"standing_{number}", standing, keyframe, after),
            rest=self._view(f"rest_{number}", rest, keyframe, after) if rest else None,
            standing_rows=sum(part.rows for part in standing),
            rest_rows=sum(part.rows for part in rest),
        )

    def _view(self, kind: str, parts: Sequence[Part], base: Set[str] = frozenset(), after: int = -1) -> str:
        """Register the rows of parts as a view; those of history only after a time. Return its name, quoted."""
        name = quoted(f"_persist_{self._name}_{kind}")
        names = [*self._schema.names, "_time", "_diff"]
        inside = [part for part in parts if part.blob in base or part.time_min > after]
        cut = [part for part in parts if part not in inside]
        frames = self._frames(inside)
        frames += [frame.where(F.col("_time") > after) for frame in self._frames(cut)]
        if not frames:
            empty = spark_schema(self._schema.arrow)
            frames = [self._spark.createDataFrame([], empty)]
        united(frames).select(*map(quoted, names)).createOrReplaceTempView(name)
        return name

    def _frames(self, parts: Sequence[Part]) -> list[DataFrame]:
        names = [*self._schema.names, "_time", "_diff"]
        stored = [part for part in parts if part.blob and self._is_native]
        others = tuple(part for part in parts if not (part.blob and self._is_native))
        frames = []
        if stored:
            rows = part_frame(self._spark, self._address.url, self._schema, names, stored)
            frames.append(self._tombstoned.live(rows))
        if others:
            live = self._tombstoned.filter
            scan = Scan(self._schema, others, 0, TIME_MAX + 1, self._schema.names, live)
            slices = tuple(slices_for(self._spark, scan))
            schema = spark_schema(self._schema.arrow)
            frames.append(TaskReader(self._address, slices, "diff", "changes", schema).frame(self._spark))
        return frames


_END = re.compile(r"\s*;(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*$", re.DOTALL)


def sql(
    spark: SparkSession,
    location: str,
    statement: str,
    *,
    as_of: int | Moment | None = None,
    time: int | Moment | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Any:
    """Query collections in Spark's SQL, or change one: UPDATE, DELETE, INSERT, MERGE INTO.

    A query may read each table as of a time of its own: `FROM orders FOR SYSTEM_TIME AS OF '2026-11-21'`, `VERSION AS
    OF 7`, `VERSION AS OF 'tag'`, `TIMESTAMP AS OF …`. It is bound when this is called, and runs like any DataFrame.

    A statement is DuckDB's. It is carried out on the driver, in memory, as one commit: for what does not fit there, use
    `write` with mode="overwrite", or `delete`. DataFrames that are there do not change.

    Args:
        as_of: a time for all tables of a query that have none of their own; the latest sealed one if it is left out.
        time: of the changes, which is sealed with them; that of the commit if it is left out.

    Returns:
        the rows of a query as a `DataFrame`; what a statement has done as a `Changed`, which has `collection`, `rows`,
        `seqno` and `time`.

    Raises:
        InvalidUsage: a table with a time is no collection, or an argument belongs to the other kind.
        AsOfCompacted, AsOfNotSealed: a collection cannot be read as of its time.
        PySparkException: Spark refuses the query.
        For a statement: as `persist.query.execute`.
    """
    if is_statement(statement):
        if as_of is not None:
            raise InvalidUsage("as_of= is of a query: a statement changes what is there now")
        prepared(spark)
        with open_engine(location, storage_options) as engine:
            return execute(engine, statement, time)
    if time is not None:
        raise InvalidUsage("time= is of what a statement changes: give as_of= to read as of a time")
    prepared(spark)
    storage = dict(storage_options or {})
    with read_engine(seen_by_all(location), storage) as engine, SparkLocation(spark, engine, storage).at() as here:
        text, tables = _tables(here, statement, as_of)
    subqueries = [f"{quoted(name)} AS (SELECT * FROM {{t{number}}})" for number, name in enumerate(tables)]
    around = f"WITH {', '.join(subqueries)} " if tables else ""
    bare = _END.sub("", text).replace("{", "{{").replace("}", "}}")
    return spark.sql(f"{around}({bare}\n)", **{f"t{number}": frame for number, frame in enumerate(tables.values())})


def _tables(here: SparkLocation, query: str, as_of: int | Moment | None) -> tuple[str, dict[str, DataFrame]]:
    """Return a query without times of tables, and the contents of all collections that it may read, by name."""
    names, tables = here.collections(), dict[str, DataFrame]()

    def named(table: TimedTable) -> str:
        collection = collection_of(table.parts, names)
        if collection is None:
            raise table.refused(names)
        name = f"{collection} as of {table.as_of}"
        tables[name] = here.snapshot(collection, as_of=table.as_of)
        return quoted(name)

    text = with_times(query, named, alias=quoted)
    words = {*words_of(text)}
    for name in names:
        if name.lower() in words:
            with suppress(AsOfNotSealed):  # Spark does not find it then, if it is a table and not a column.
                tables[name] = here.snapshot(name, as_of=as_of)
    return text, tables
