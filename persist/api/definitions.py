"""Statements of SQL that define collections: CREATE, DROP, ALTER and COMMENT, each by the call of the same meaning.

DuckDB carries a statement out on an empty table, or view, with the columns of the collection. The differences of its
catalog before and after then say what the statement means. So the grammar is DuckDB's, and what a collection does not
have, such as a CHECK, is seen and refused.

    CREATE TABLE t (…)         create_or_load; PRIMARY KEY makes it a keyed collection
    CREATE TABLE t AS query    write, to a new collection without a key
    CREATE VIEW v AS query     create_view and refresh; OR REPLACE is redefine
    REFRESH VIEW v             refresh
    DROP, ALTER, COMMENT       drop, evolve and rename, describe
"""

import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol

import pyarrow as pa

from persist.api.collection import Collection
from persist.api.view import View
from persist.codecs.types.schema import CollectionSchema
from persist.codecs.types.sql_names import sql_name
from persist.codecs.updates.inputs import sides_like
from persist.compute.query import (
    QUERY_LIMITS,
    Changed,
    Copied,
    Path,
    QueryLimits,
    QueryResult,
    TableAbout,
    check_arrow_types,
    copy_rows,
    declare,
    execute,
    is_copy,
    is_statement,
    parts_of,
    path_of,
    refuse_statement,
    sealed_connection,
    split_at,
    table_about,
    table_at,
    why_refused,
)
from persist.core.errors import CollectionExists, InvalidUsage
from persist.core.keyed.form import Keyed, form_of
from persist.core.log import kinds
from persist.core.names import check_free_name
from persist.core.timeline import Moment
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.location.collection_times import LATEST
from persist.engine.location.engine import Engine
from persist.engine.write.commit_future import CommitFuture
from persist.engine.write.write_options import WriteMode

_SPACE = r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*"
_NAME = r'(?:"(?:[^"]|"")+"|[^\W\d][\w$-]*)'
_BEGINNING = re.compile(
    rf"{_SPACE}(?P<verb>CREATE|DROP|ALTER|COMMENT\s+ON|REFRESH)\s+(?P<replace>OR\s+REPLACE\s+)?"
    r"(?:MATERIALIZED\s+)?(?P<kind>TABLE|VIEW|COLUMN)\s+(?P<condition>IF\s+(?:NOT\s+)?EXISTS\s+)?"
    rf"(?P<path>{_NAME}(?:\s*\.\s*{_NAME})*)(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
_COLUMNS = (
    "SELECT column_name, data_type, column_default, is_nullable FROM duckdb_columns() WHERE NOT internal "
    "ORDER BY column_index"
)
_TABLES = (
    "SELECT table_name, comment FROM duckdb_tables() "
    "UNION ALL SELECT view_name, comment FROM duckdb_views() WHERE NOT internal"
)
_CONSTRAINTS = "SELECT constraint_type, constraint_column_names, constraint_text FROM duckdb_constraints()"

Running = Callable[[Callable[[], object]], object]


class Definer(Protocol):
    """The parts of a client that statements need."""

    engine: Engine

    def load(self, name: str) -> Collection:
        """Return the collection of a name."""
        ...

    def write(self, name: str, rows: Any, *, key: Any, mode: WriteMode | None) -> CommitFuture:
        """Write rows to the collection of a name, which this creates if there is none."""
        ...


@dataclass(frozen=True, slots=True)
class Defined:
    """What a statement that defines a collection has done.

    Attributes:
        statement: its first words, such as "CREATE TABLE".
        collection: that it is about.
        rows: how many rows a new collection has from it.
        seqno: of the state in which it is done.
    """

    statement: str
    collection: str
    rows: int
    seqno: int


@dataclass(frozen=True, slots=True)
class _Definition:
    """A statement in parts: `verb [OR REPLACE] kind [condition] path rest`."""

    verb: str
    kind: str
    condition: str
    path: Path
    rest: str
    is_replacing: bool

    @property
    def words(self) -> str:
        return f"{self.verb} {self.kind}"

    def on(self, path: Path) -> str:
        """Return the statement about another table."""
        column = "" if self.kind != "COLUMN" else "." + path_of(self.path[-1:])
        replace = "OR REPLACE " if self.is_replacing else ""
        verb, _, after = self.verb.partition(" ")
        return (
            f"{verb} {after}{' ' * bool(after)}{replace}{self.kind} {self.condition}{path_of(path)}{column}{self.rest}"
        )


@dataclass(frozen=True)
class _Catalog:
    """What DuckDB knows of the only table of a connection.

    Attributes:
        columns: the type, default and nullability of each, by name.
    """

    table: str
    comment: str
    columns: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


def is_change(sql: str) -> bool:
    """Return whether a text begins like a statement, and not like a query."""
    return is_statement(sql) or is_copy(sql) or is_definition(sql)


def is_definition(sql: str) -> bool:
    """Return whether a text begins like a statement that defines a collection."""
    return isinstance(sql, str) and _BEGINNING.match(sql) is not None


def run(
    client: Definer, sql: str, time: int | Moment | None = None, *, variables: Mapping[str, Any] | None = None
) -> Changed | Defined | Copied:
    """Run a statement of any kind. Arguments and errors are those of `execute`, `define` and `copy_rows`."""
    if is_statement(sql):
        return execute(client.engine, sql, time, variables=variables)
    if time is not None:
        raise InvalidUsage("time= is of UPDATE, DELETE, INSERT and MERGE: leave it out")
    return copy_rows(client.engine, sql, variables) if is_copy(sql) else define(client, sql, variables=variables)


def define(
    client: Definer,
    sql: str,
    *,
    variables: Mapping[str, Any] | None = None,
    limits: QueryLimits | None = None,
    running: Running = lambda interrupt: None,
) -> Defined:
    """Run a statement that defines a collection, durably; it is one commit, and a view is refreshed after it.

    Args:
        variables, limits: as for `QueryResult`.
        running: takes a function that ends the query of a CREATE TABLE AS.

    Raises:
        InvalidUsage: DuckDB refuses it, or a collection has nothing of that kind.
        CollectionNotFound, CollectionExists: it needs a collection that is not there, or the name is taken.
        For each kind: what the call raises.
    """
    client.engine.writer("sql")
    statement = _parse(sql)
    path = statement.path[:-1] if statement.kind == "COLUMN" else statement.path
    if not path:
        raise InvalidUsage(f"COMMENT ON COLUMN {path_of(statement.path)} names no table: write table.column")
    at = table_at(path, client.engine.names(""))
    if at is not None and at.as_of not in (None, LATEST):
        raise InvalidUsage(f"{path_of(path)} is {at.name!r} as of a time: a statement changes what is there now")
    name = _new_name(path) if at is None else at.name
    query = split_at(statement.rest, "as") if statement.verb == "CREATE" else None
    rows = 0
    if statement.verb != "CREATE":
        if at is None and not statement.condition:
            client.load(name)
        elif at is not None:
            _change(client.load(name), statement)
    elif at is not None and (statement.condition or not statement.is_replacing):
        if not statement.condition:
            raise CollectionExists(name)
    elif statement.kind == "TABLE" and at is not None:
        raise InvalidUsage(
            f"CREATE OR REPLACE TABLE would drop the history of {name!r}: client.write({name!r}, rows, "
            'mode="overwrite") replaces its rows and keeps that; or DROP TABLE first'
        )
    elif query is None:
        _create_table(client, name, statement)
    elif query[0].strip():
        raise InvalidUsage(f"{statement.words} {name} ({query[0].strip()[1:40]}…: name columns in the query, by AS")
    elif statement.kind == "VIEW":
        _create_view(client, name, query[1].strip().rstrip(";"), exists=at is not None)
    else:
        with closing(
            QueryResult(client.engine, query[1].strip().rstrip(";"), None, variables=variables, limits=limits)
        ) as result:
            running(lambda: result.interrupt("canceled"))
            rows = _create_table_of(client, name, result)
    return Defined(statement.words, name, rows, client.engine.follower.state.seqno)


def define_for_postgres(client: Definer, limits: QueryLimits, sql: str, running: Running) -> str:
    """Run a statement of a Postgres client that defines a collection; return its command tag."""
    done = define(client, sql, limits=limits, running=running)
    return f"SELECT {done.rows}" if done.rows else done.statement.removesuffix(" ON TABLE")


def _parse(sql: str) -> _Definition:
    match = _BEGINNING.match(sql)
    if match is None:
        raise refuse_statement(sql)
    verb, kind = (" ".join(match[part].upper().split()) for part in ("verb", "kind"))
    replace = match["replace"] is not None
    condition = " ".join((match["condition"] or "").upper().split())
    condition += " " if condition else ""
    return _Definition(verb, kind, condition, parts_of(match["path"]), match["rest"], replace)


def _new_name(path: Path) -> str:
    """Return the name of a collection that a table would be: without the latest catalog and the schema main."""
    parts = path[1:] if len(path) > 2 and sql_name(path[0]) == LATEST else path
    parts = parts[1:] if len(parts) > 1 and sql_name(parts[0]) == "main" else parts
    check_free_name(name := ".".join(parts))
    return name


def _path_of_name(name: str) -> Path:
    schema, _, table = name.rpartition(".")
    return (schema or "main", table)


def _create_table(client: Definer, name: str, statement: _Definition) -> None:
    """Create a collection with the columns of a table, which can be read from then on, in one commit."""
    if statement.kind == "VIEW":
        raise InvalidUsage("CREATE VIEW needs a query: CREATE VIEW name AS SELECT …")
    path = _path_of_name(name)
    with _connection() as connection:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {path_of(path[:1])}")
        _execute(connection, statement.on(path))
        key, not_null = list[str](), set[str]()
        for kind, names, text in connection.execute(_CONSTRAINTS).fetchall():
            if kind == "PRIMARY KEY":
                key = names
            elif kind == "NOT NULL":
                not_null |= {*names}
            else:
                raise _not_there(name, text)
        for column, (_, default, _) in _catalog(connection).columns.items():
            if default is not None:
                raise _not_there(name, f"{column} … {default}")
        relation = connection.sql(f"FROM {path_of(path)} LIMIT 0")
        check_arrow_types(relation)
        fields = [f.with_nullable(f.name not in not_null) for f in relation.to_arrow_table().schema]
    schema = CollectionSchema.of(*sides_like(pa.schema(fields), key), "ms")
    form = form_of(Keyed(), schema) if key else None
    id_ = uuid.uuid4().hex
    create = kinds.Create(id_, name, schema.to_json(), form)
    handle = CollectionHandle(client.engine, id_, name, schema, form, create=create)
    handle.submit("sql", [handle.at_commit()]).result()


def _not_there(name: str, text: str) -> InvalidUsage:
    return InvalidUsage(
        f"{text!r:.200} is not what a collection has: {name!r} may have columns with types, NOT NULL and one PRIMARY "
        "KEY. Leave it out, and check rows before you write them"
    )


def _create_table_of(client: Definer, name: str, result: QueryResult) -> int:
    """Create a collection without a key of the rows of a query, in one commit; return how many there are."""
    count = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal count
        for batch in result.to_batches():
            count += batch.num_rows
            if batch.num_rows:
                yield batch

    found = batches()
    first = next(found, None)
    stream = () if first is None else chain([first], found)
    rows = pa.RecordBatchReader.from_batches(result.schema, stream) if stream else result.schema.empty_table()
    client.write(name, rows, key=[], mode="error").result()
    return count


def _create_view(client: Definer, name: str, query: str, *, exists: bool) -> None:
    from persist.compute.sql import given_options, live_view, made_view  # Here: the dataflow takes long to load.

    options = given_options(None, None)
    with client.engine.follower.looks.once():
        live = (
            live_view(client.engine, name, options)
            if exists
            else made_view(client.engine, name, query, None, None, options)
        )
        view = View(live)
        if exists:
            view.redefine(query)
        view.refresh()


def _change(collection: Collection, statement: _Definition) -> None:
    """Do to a collection what a statement does to its table."""
    name = collection.name
    about = table_about(collection.handle.contents())
    if statement.verb == "REFRESH":
        if not about.is_view or statement.rest.strip(" \n\t;"):
            raise InvalidUsage(f"REFRESH is for views, as REFRESH VIEW name, and {name!r} is {_kind(about)}")
        from persist.compute.sql import given_options, live_view  # As above.

        View(live_view(collection.handle.engine, name, given_options(None, None))).refresh()
        return
    with _connection() as connection:
        declare(connection, [about], ())
        before = _catalog(connection)
        _execute(connection, statement.on((about.schema, about.table)))
        if statement.verb == "DROP":
            if re.search(r"\bcascade\b", statement.rest, re.IGNORECASE):
                raise InvalidUsage(f"DROP … CASCADE: drop the views that read {name!r} first, each by its name")
            collection.drop().result()
        elif statement.kind == "COLUMN":
            comments = "SELECT comment FROM duckdb_columns() WHERE NOT internal AND lower(column_name) = lower(?)"
            (comment,) = connection.execute(comments, [statement.path[-1]]).fetchone()
            column = next(c for c in about.columns.names if sql_name(c) == sql_name(statement.path[-1]))
            collection.describe(columns={column: comment or ""}).result()
        elif statement.verb == "COMMENT ON":
            collection.describe(_catalog(connection).comment).result()
        else:
            _alter(collection, about, statement, before, _catalog(connection), connection)


def _alter(
    collection: Collection,
    about: TableAbout,
    statement: _Definition,
    before: _Catalog,
    after: _Catalog,
    connection: Any,
) -> None:
    """Rename or evolve a collection as DuckDB has changed its table."""
    if after.table != before.table:
        new = after.table if about.schema == "main" else f"{about.schema}.{after.table}"
        collection.rename(new).result()
        return
    added = [name for name in after.columns if name not in before.columns]
    dropped = [name for name in before.columns if name not in after.columns]
    changed = [n for n, kind in after.columns.items() if n in before.columns and kind != before.columns[n]]
    if (
        any(after.columns[n][1:] != before.columns.get(n, (None, None, True))[1:] for n in added + changed)
        and not dropped
    ):
        raise InvalidUsage(
            f"ALTER TABLE{statement.rest:.100}: columns have no DEFAULT, and NOT NULL only from the beginning. "
            "evolve(add=…, defaults=…) adds a column with a value in older records"
        )
    if changed and split_at(statement.rest, "using"):
        raise InvalidUsage("ALTER … TYPE … USING computes values: add a column, and UPDATE it")
    schema = connection.sql(f"FROM {path_of((about.schema, about.table))} LIMIT 0").to_arrow_table().schema
    if added and dropped:
        collection.evolve(rename=dict(zip(dropped, added, strict=True)))
    elif added:
        collection.evolve(add={name: schema.field(name).type for name in added})
    elif dropped:
        collection.evolve(drop=dropped)
    elif changed:
        collection.evolve(widen={name: schema.field(name).type for name in changed})
    elif not re.search(r"\bIF\s+(?:NOT\s+)?EXISTS\b", statement.rest, re.IGNORECASE):
        raise InvalidUsage(
            f"ALTER TABLE{statement.rest:.100} changes nothing that a collection has: add, drop, rename or widen "
            "columns, or rename the table"
        )


def _kind(about: TableAbout) -> str:
    return "a view" if about.is_view else "a collection that users write"


def _connection() -> Any:
    return sealed_connection(QUERY_LIMITS)


def _execute(connection: Any, sql: str) -> None:
    try:
        statements = connection.extract_statements(sql)
        if len(statements) != 1:
            raise InvalidUsage(f"there are {len(statements)} statements: give one, which is one commit")
        connection.execute(statements[0])
    except InvalidUsage:
        raise
    except Exception as error:  # DuckDB has errors of several kinds for that.
        why = re.sub(r'\s*Did you mean "[^"]*"\?', "", why_refused(error))
        raise InvalidUsage(f"DuckDB refuses the statement: {' '.join(why.split())}") from error


def _catalog(connection: Any) -> _Catalog:
    (table, comment), *_ = connection.execute(_TABLES).fetchall() or [("", None)]
    columns = {name: tuple(facts) for name, *facts in connection.execute(_COLUMNS).fetchall()}
    return _Catalog(table, comment or "", columns)
