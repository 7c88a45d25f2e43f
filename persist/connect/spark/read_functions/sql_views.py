"""Collections as names in Spark SQL: views, and queries as of times.

`create_views` makes temporary views, all planned on one state of the log. They do not see later writes: make them again
for these.

`persist.spark.sql` does what `spark.sql` cannot do with collections. A query is Spark's own. Its tables are
collections, all at one point of the log, or at times of their own, which Spark refuses for its views. They come into
the query as named subqueries around it, so no name stays in the session.

A statement that changes a collection is carried out by DuckDB, because Spark refuses it for a Python data source.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from persist.compute.query import TimedTable, execute, match_collection, statement_kind, with_times, words_of
from persist.connect.spark.data_source.source import prepared
from persist.connect.spark.options import seen_by_all
from persist.connect.spark.read_functions.locations import SparkLocation
from persist.connect.spark.types import quoted
from persist.core.errors import AsOfNotSealed, CollectionNotFound, InvalidUsage
from persist.core.timeline import Moment
from persist.engine.location.opening import open_engine, read_engine


def create_views(
    spark: SparkSession,
    location: str,
    *,
    collections: Sequence[str] | None = None,
    prefix: str = "",
    schemas: Mapping[str, int] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[str]:
    """Create or replace a temporary view of the latest contents of each collection.

    They show the location as it is now. The store keeps their parts for `Settings.grace_s` after these fell out of use;
    then make the views again. `persist.spark.sql` reads other times, as do views of `snapshot` and `changes`.

    Args:
        collections: some of them; None for all.
        prefix: put before each name, for locations that have collections of the same name.
        schemas: by the names of some collections, the version of their schema to read with; others have the newest.

    Returns:
        the names of the views. A collection of which nothing is sealed has no contents to show, and gets none.

    Raises:
        CollectionNotFound: the location has no collection of that name.
        InvalidUsage: Spark would take two names for one.
        SchemaMismatch: the version does not exist, or a column of it is gone.
    """
    prepared(spark)
    storage, schemas = dict(storage_options or {}), {} if schemas is None else schemas
    if not isinstance(schemas, Mapping):
        raise InvalidUsage(f"schemas={schemas!r:.100} is not a dict of versions by name: give {{'orders': 3}}")
    if isinstance(collections, str):
        raise InvalidUsage(f"collections={collections!r} is one name: give a list of names, [{collections!r}]")
    views: list[str] = []
    with read_engine(location, storage) as engine, SparkLocation(spark, engine, storage).at() as pinned:
        existing = pinned.collections()
        chosen = existing if collections is None else list(collections)
        if missing := [name for name in chosen if name not in existing]:
            raise CollectionNotFound(missing[0], pinned.url, tuple(existing))
        if unused := [name for name in schemas if name not in chosen]:
            raise InvalidUsage(f"schemas= names {unused[0]!r}, of which no view is made: views are of {chosen}")
        _check_names([prefix + name for name in chosen])
        for name in chosen:
            with suppress(AsOfNotSealed):
                pinned.snapshot(name, schema=schemas.get(name)).createOrReplaceTempView(quoted(prefix + name))
                views.append(prefix + name)
    return views


def _check_names(names: Sequence[str]) -> None:
    """Raise InvalidUsage if Spark would take two names for one, because it knows no case."""
    used: dict[str, str] = {}
    for name in names:
        if name.lower() in used:
            raise InvalidUsage(
                f"{name!r} and {used[name.lower()]!r} would both be called {name.lower()!r} in SQL. Make their views "
                "one by one, with collections=[…] and a prefix= for one of them."
            )
        used[name.lower()] = name


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
        time: of the changes, which the commit seals; by default the time of the commit.

    Returns:
        the rows of a query as a `DataFrame`; the result of a statement as a `Changed`, which has `collection`, `rows`,
        `seqno` and `time`.

    Raises:
        InvalidUsage: a table with a time is not a collection, or an argument belongs to the other kind.
        AsOfCompacted, AsOfNotSealed: a collection cannot be read as of its time.
        PySparkException: Spark refuses the query.
        For a statement: as `persist.compute.query.execute`.
    """
    if statement_kind(statement) is not None:
        if as_of is not None:
            raise InvalidUsage("as_of= is of a query: a statement changes what is there now")
        prepared(spark)
        with open_engine(location, storage_options) as engine:
            return execute(engine, statement, time)
    if time is not None:
        raise InvalidUsage("time= is of what a statement changes: give as_of= to read as of a time")
    prepared(spark)
    storage = dict(storage_options or {})
    with read_engine(seen_by_all(location), storage) as engine, SparkLocation(spark, engine, storage).at() as pinned:
        text, tables = _tables(pinned, statement, as_of)
    bare = f"({_END.sub('', text)}\n)"
    if not tables:  # Spark formats a text only with arguments, and so braces stand for themselves.
        return spark.sql(bare)
    subqueries = [f"{_unformatted(quoted(name))} AS (SELECT * FROM {{t{at}}})" for at, name in enumerate(tables)]
    around = f"WITH {', '.join(subqueries)} {_unformatted(bare)}"
    return spark.sql(around, **{f"t{number}": frame for number, frame in enumerate(tables.values())})


def _unformatted(text: str) -> str:
    """Return text that `str.format` turns into text."""
    return text.replace("{", "{{").replace("}", "}}")


def _spelled(query: str, names: Sequence[str]) -> list[str]:
    """Return the collections that a query names; if names differ by case only, the exact one."""
    words = {*words_of(query)}
    folded = {word.lower() for word in words}
    alike = Counter(name.lower() for name in names)
    return [name for name in names if name.lower() in folded and (alike[name.lower()] == 1 or name in words)]


def _tables(here: SparkLocation, query: str, as_of: int | Moment | None) -> tuple[str, dict[str, DataFrame]]:
    """Return a query without times of tables, and by name the contents that it may read."""
    names, tables = here.collections(), dict[str, DataFrame]()

    def named(table: TimedTable) -> str:
        """Read a table as of its time; return its name in the query."""
        collection = match_collection(table.parts, names)
        if collection is None:
            raise table.refused(names)
        name = f"{collection} as of {table.as_of}"
        tables[name] = here.snapshot(collection, as_of=table.as_of)
        return quoted(name)

    text = with_times(query, named, alias=quoted)
    for name in _spelled(text, names):
        with suppress(AsOfNotSealed):  # Spark does not find it then, if it is a table and not a column.
            tables[name] = here.snapshot(name, as_of=as_of)
    _check_names([*tables])
    return text, tables
