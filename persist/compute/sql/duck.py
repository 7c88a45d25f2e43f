"""DuckDB as a front end: it parses a query, binds it to empty tables, and returns its plan as JSON.

Its optimiser is off, because its plans over empty tables are wrong in places, and some have no JSON. DuckDB is needed
to create a view. The stored plan needs it only for functions that DuckDB computes (`persist.compute.sql.by_duckdb`).
"""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, TypeAlias

import pyarrow as pa

from persist.codecs.types.calculator import DUCKDB, is_supported_version
from persist.codecs.types.sql_names import fold_case
from persist.compute.query import (
    Path,
    add_functions,
    check_lengths,
    find_windowed_table,
    is_time_window,
    quote_name,
    walk_parts,
)
from persist.compute.sql.definite import (
    check_qualified,
    find_refused_function,
    forbid_indefinite,
    list_spellings,
    make_refusal,
)
from persist.compute.sql.types import Unreadable, from_duckdb_name, is_nested, to_duckdb
from persist.core.errors import InvalidUsage

Columns: TypeAlias = Sequence[tuple[str, str | Unreadable]]


@dataclass(frozen=True, slots=True)
class BoundQuery:
    """DuckDB's plan of a query, with the names and types of its columns."""

    plan: dict[str, Any]
    described: tuple[tuple[str, str], ...]

    def list_columns(self, kinds: Sequence[str]) -> list[tuple[str, str]]:
        """Return the columns of the query as names and types. `kinds`: their types in the plan."""
        described = zip(self.described, kinds, strict=True)
        return [(name, _parse_type(name, column, kind)) for (name, column), kind in described]


def bind_query(sql: str, tables: Mapping[str, Columns], now: str, late_by: str | None = None) -> BoundQuery:
    """Bind a query to empty tables; return its plan and columns.

    Args:
        tables: the columns of each, with their types (`persist.compute.sql.types`).
        now: the expression for `_now()`.
        late_by: for windows that are emitted when final, how far the greatest time is after their end then
            (`persist.compute.sql.emission`).
    """
    statement = parse_statement(sql)
    with _open_binder(sql) as connection:
        connection.execute("PRAGMA disable_optimizer")
        connection.execute(f"CREATE MACRO _now() AS {now}")
        for name, columns in tables.items():
            declarations = ", ".join(
                f"{quote_name(column)} {_declare_type(kind, connection)}" for column, kind in columns
            )
            connection.execute(f"CREATE TABLE {quote_name(name)} ({declarations})")
        add_functions(connection, sql, late_by)
        check_qualified(walk_parts(statement))
        serialized = _parse_json(_fetch_text(connection, _SERIALIZE, sql, sql))
        function = find_refused_function(serialized.get("name"))
        if function is not None:
            raise InvalidUsage(f"{make_refusal(function)}{_locate_call(function, statement, sql)}")
        if serialized["error"]:
            raise InvalidUsage(_explain_error(serialized, sql))
        if len(serialized.get("plans", ())) != 1:
            raise InvalidUsage(f"the query has {len(serialized.get('plans', ()))} statements: give one, a SELECT")
        try:
            described = connection.execute(f"DESCRIBE {sql.rstrip().rstrip(';')}").fetchall()
        except Exception as error:
            raise InvalidUsage(f"DuckDB cannot plan the query {sql!r:.200}: {error}") from error
    return BoundQuery(serialized["plans"][0], tuple((name, kind) for name, kind, *_ in described))


def _declare_type(kind: str | Unreadable, connection: Any) -> str:
    """Return DuckDB's type of a column, for a table that queries are bound to."""
    if isinstance(kind, str):
        return to_duckdb(kind)
    if kind.arrow is not None:
        with suppress(Exception):  # DuckDB does not have all types, and has errors of several kinds for that.
            return str(connection.from_arrow(pa.schema({"x": kind.arrow}).empty_table()).types[0])
    return "VARIANT"


def find_tables(sql: str) -> dict[Path, int]:
    """Return the paths of the tables that a query reads, and where each is in its text."""
    tables: dict[Path, int] = {}
    statement = parse_statement(sql)
    _collect_tables(statement, tables, frozenset(), sql)
    for node in walk_parts(statement):
        if is_time_window(node):
            with _open_binder(sql) as connection:
                check_lengths(connection, sql, node)
    return dict(sorted(tables.items()))


def mentions_column(sql: str, name: str) -> bool:
    """Return whether a query mentions a column of this name."""
    if name not in sql.lower():
        return False
    return any(
        node.get("class") == "COLUMN_REF" and node["column_names"][-1].lower() == name
        for node in walk_parts(parse_statement(sql))
    )


def parse_statement(sql: str) -> Any:
    """Return the one statement of a text, as DuckDB parses it; callers must not change it."""
    _check_text(sql)
    return _parse_uncached(sql)


@lru_cache(maxsize=4)  # Creating a view needs the statement three times.
def _parse_uncached(sql: str) -> Any:
    """Parse the one statement of a text; raise InvalidUsage if it fails."""
    with _open_binder(sql) as connection:
        answer = _parse_json(_fetch_text(connection, _PARSE, sql, sql))
    if answer["error"]:
        raise InvalidUsage(_explain_error(answer, sql))
    if len(answer.get("statements", ())) != 1:
        raise InvalidUsage(f"the query has {len(answer.get('statements', ()))} statements: give one, a SELECT")
    return answer["statements"][0]


def _check_text(sql: Any) -> None:
    """Raise InvalidUsage unless a query is a text that is not empty."""
    if not isinstance(sql, str) or not sql.strip():
        raise InvalidUsage(f"sql={sql!r} is not a query: write SELECT … FROM …")


def _collect_tables(node: Any, tables: dict[Path, int], own: frozenset[str], sql: str) -> None:
    """Find the tables below a node of a parsed query.

    `own`: the names of the named subqueries that the node can read; each can read those before it.
    """
    if isinstance(node, list):
        for child in node:
            _collect_tables(child, tables, own, sql)
    if not isinstance(node, dict):
        return
    if node.get("type") == "SHOW_REF" or str(node.get("schema_name")).lower() in _CATALOGS:
        raise InvalidUsage(
            "SHOW, DESCRIBE, SUMMARIZE and information_schema describe tables at the moment of a query, so no "
            "view can follow them: query them with client.sql()"
        )
    if node.get("type") == "VALUE_PARAMETER":
        where = show_position(sql, node.get("query_location", 0))
        raise InvalidUsage(f"the query has a parameter without a value: write the value instead{where}")
    path = find_windowed_table(node)
    if node.get("type") == "BASE_TABLE":
        path = tuple(node["qualified_name"]["path"])
        path = path[1:] if fold_case(path[0]) == "recurring" else path
    if path and not (len(path) == 1 and fold_case(path[0]) in own):
        tables.setdefault(path, node.get("query_location", 0))
    for entry in (node.get("cte_map") or {}).get("map", ()):
        name, query = frozenset([fold_case(str(entry["key"]))]), entry["value"]
        is_recursive = (query.get("query_node") or {}).get("type") == "RECURSIVE_CTE_NODE"
        _collect_tables(query, tables, own | name if is_recursive else own, sql)
        own |= name
    for member, child in node.items():
        if member != "cte_map":
            _collect_tables(child, tables, own, sql)


def _parse_type(name: str, shown: str, kind: str) -> str:
    """Return the type of a query's column. Raises InvalidUsage if it is not supported."""
    try:
        return kind if is_nested(kind) or shown in ("JSON", "UUID") else from_duckdb_name(shown)
    except KeyError:
        raise InvalidUsage(
            f"column {name!r} of the query is of type {shown}, which is not supported: cast it"
        ) from None


_CATALOGS = ("information_schema", "pg_catalog")
_PARSE = "SELECT json_serialize_sql(?, skip_null := true, skip_empty := true)"
_SERIALIZE = "SELECT json_serialize_plan(?, skip_null := true, skip_empty := true)"


def _fetch_text(connection: Any, statement: str, argument: str, sql: str) -> str:
    """Return the text that a statement of DuckDB returns for one argument."""
    try:
        text: str = connection.execute(statement, [argument]).fetchone()[0]
        return text
    except Exception as error:
        raise InvalidUsage(f"DuckDB cannot plan the query {sql!r:.200}: {error}") from error


def _parse_json(text: str) -> Any:
    """Parse DuckDB's JSON of a query. For values of some types, DuckDB's text is not valid JSON."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidUsage(
            "the query has a constant that DuckDB cannot write down, such as BITSTRING '01' or a number of 40 digits: "
            "write a text or a DOUBLE instead"
        ) from error


def load_duckdb() -> Any:
    """Import DuckDB, and check its version."""
    try:
        import duckdb
    except ImportError as error:
        raise InvalidUsage(
            "queries are parsed by DuckDB, which is not installed: pip install 'duckdb>=2.0,<2.1'. "
            "Views that exist are refreshed without it."
        ) from error
    if not is_supported_version(duckdb.__version__):
        raise InvalidUsage(
            f"queries are parsed by DuckDB {'.'.join(map(str, DUCKDB))}, and {duckdb.__version__} is installed: "
            "pip install 'duckdb>=2.0,<2.1'. Views that exist are refreshed with any version, or none."
        )
    return duckdb


@contextmanager
def _open_binder(sql: str) -> Iterator[Any]:
    """Context with a DuckDB connection for binding a query; objects made in it vanish.

    Opening a database takes 16 ms of processor time, and a new view would need several. So all share one empty
    database: each use is a transaction that is rolled back, and only one runs at a time.
    """
    duckdb = load_duckdb()
    _check_text(sql)
    with _one_at_a_time, closing(_open_database(duckdb).cursor()) as connection:
        connection.begin()
        try:
            yield connection
        finally:
            with suppress(duckdb.Error):  # An error may have ended it.
                connection.rollback()


_one_at_a_time = threading.Lock()


@cache
def _open_database(duckdb: Any) -> Any:
    """Return a new empty database for binding queries."""
    database = duckdb.connect(":memory:", config={"enable_external_access": "false", "threads": "1"})
    database.execute("SET GLOBAL TimeZone = 'UTC'")  # As in the computation of a view; otherwise it is the machine's.
    forbid_indefinite(database)
    return database


def _explain_error(answer: dict[str, Any], sql: str) -> str:
    """Return DuckDB's error, and where it is in the text."""
    message = str(answer.get("error_message", "it is not a query")).strip()
    if "Only SELECT statements" in message:
        message = "a view is a query: only a SELECT can be one"
    return message + show_position(sql, answer.get("position"))


def _locate_call(function: str, statement: Any, sql: str) -> str:
    """Return where a query calls a function, for messages; empty if a macro calls it."""
    for node in walk_parts(statement):
        names = node.get("column_names") or (node.get("qualified_name") or {}).get("path") or [""]
        if node.get("class") in ("FUNCTION", "COLUMN_REF") and str(names[-1]).lower() in list_spellings(function):
            return show_position(sql, node.get("query_location"))
    return ""


def show_position(sql: str, position: Any) -> str:
    """Return the line of a query that has a position, with a mark below it."""
    if position is None or not str(position).isdigit() or int(position) > len(sql.encode()):
        return ""
    at = len(sql.encode()[: int(position)].decode(errors="ignore"))
    begin = sql.rfind("\n", 0, at) + 1
    end = sql.find("\n", at)
    line = sql[begin : end if end >= 0 else len(sql)]
    shift = max(0, at - begin - 80)
    return f"\n  line {sql.count(chr(10), 0, at) + 1}: {line[shift : shift + 120]}\n  {' ' * (8 + at - begin - shift)}^"
