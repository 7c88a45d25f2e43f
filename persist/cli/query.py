"""Queries of DuckDB over collections, each as of one time, all at one point of the log."""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn

import pyarrow as pa

import persist
from persist.codecs import did_you_mean
from persist.facts import time_of

BATCH_ROWS = 100_000


# A query may be somebody else's text: it gets the collections, and none of what its user may read besides.
_SEALED_OFF = {
    "enable_external_access": "false",
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "python_enable_replacements": "false",
    "lock_configuration": "true",
}
_WITH_FILES = {"python_enable_replacements": "false"}


@contextmanager
def run_query(
    client: "persist.Client", query: str, as_of: Sequence[str], *, files: bool = False
) -> Iterator[pa.RecordBatchReader]:
    """Run a query; yield its result as a stream of batches.

    Args:
        as_of: a time for all collections, or NAME=TIME for one, which counts more; the latest sealed one else.
        files: let it read files and URLs, too, and load what DuckDB needs for that.

    Raises:
        InvalidUsage: DuckDB is not installed, or refuses the query; or a time is given for what it does not read.
    """
    try:
        import duckdb
    except ImportError as error:
        raise persist.InvalidUsage(
            "sql needs the package duckdb, which is not installed: pip install 'duckdb>=2.0,<2.1'"
        ) from error
    with ExitStack() as stack, duckdb.connect(config=_WITH_FILES if files else _SEALED_OFF) as connection:
        names = client.collections()
        read = {table: name for table in _tables_of(query, connection) if (name := _named(table, names)) is not None}
        times = _times(as_of, [*read.values()])
        failed: list[persist.PersistError] = []
        for (schema, table), name in read.items():
            snapshot = stack.enter_context(client.load(name).snapshot(times.get(name, times.get("")), timeout_s=0))
            _register(connection, schema, table, _dataset(snapshot, failed))
        try:
            yield connection.sql(query).to_arrow_reader(BATCH_ROWS)
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            if failed:
                raise failed[0] from error
            if not isinstance(error, duckdb.Error):
                raise
            _refuse(error, names)


def _refuse(error: Any, names: Sequence[str]) -> NoReturn:
    """Raise what a refusal by DuckDB means here."""
    if type(error).__name__ == "PermissionException":
        raise persist.InvalidUsage(
            f"the query reads something that is no collection: {error}. Say --files to let it read files and URLs "
            "with your rights"
        ) from error
    # What DuckDB proposes for a name that it does not know are tables of its own, which nobody meant.
    why = re.sub(r'\s*Did you mean "[^"]*"\?', "", str(error).partition("\n\nLINE ")[0]).rstrip(" .!\n")
    raise persist.InvalidUsage(f"DuckDB refuses the query: {why}. The collections are {[*names]}") from error


def _tables_of(query: str, connection: Any) -> list[tuple[str, str]]:
    """Return schema and name of each table that a query reads, each once; its own subqueries with a name, too.

    Raises:
        InvalidUsage: it is not one query.
    """
    with connection.cursor() as parser:
        parsed = json.loads(parser.execute("SELECT json_serialize_sql($1)", [query]).fetchone()[0])
    if parsed["error"] or len(parsed["statements"]) != 1:
        why = parsed.get("error_message", f"there are {len(parsed.get('statements', ()))} of them")
        raise persist.InvalidUsage(f"this is not one query that begins with SELECT, FROM or WITH: {why}")
    tables: dict[tuple[str, str], None] = {}
    left: list[Any] = [parsed]
    while left:
        node = left.pop()
        if isinstance(node, dict):
            if node.get("type") == "BASE_TABLE":
                tables[node["schema_name"], node["table_name"]] = None
            left += node.values()
        elif isinstance(node, list):
            left += node
    return [*tables]


def _named(table: tuple[str, str], names: Sequence[str]) -> str | None:
    """Return the collection that a table of a query is: names are told apart by case only if they must be."""
    wanted = ".".join(part for part in table if part)
    if wanted in names:
        return wanted
    alike = [name for name in names if name.lower() == wanted.lower()]
    return alike[0] if len(alike) == 1 else None


def _dataset(snapshot: "persist.Snapshot", failed: "list[persist.PersistError]") -> Any:
    """Return a snapshot as a dataset that notes why reading it failed, which DuckDB tells by a text of its own only."""
    from persist.read import ResultDataset

    def narrowed(columns: Sequence[str] | None, filter: Any) -> Iterator[pa.RecordBatch]:
        try:
            yield from snapshot.narrowed(columns, filter)
        except persist.PersistError as error:
            failed.append(error)
            raise

    return ResultDataset(snapshot.schema, narrowed)


def _register(connection: Any, schema: str, table: str, dataset: Any) -> None:
    if not schema:
        connection.register(table, dataset)
        return
    connection.register(f"{schema}.{table}", dataset)
    quoted = [name.replace('"', '""') for name in (schema, table)]
    connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{quoted[0]}"')
    connection.execute(f'CREATE VIEW "{quoted[0]}"."{quoted[1]}" AS FROM "{quoted[0]}.{quoted[1]}"')


def _times(as_of: Sequence[str], read: Sequence[str]) -> dict[str, int | str]:
    times: dict[str, int | str] = {}
    for option in as_of:
        name, equals, time = option.rpartition("=")
        if equals and name not in read:
            hint = did_you_mean(name, read) or ","
            raise persist.InvalidUsage(
                f"--as-of {option}: the query does not read {name!r}{hint} it reads {list(read)}"
            )
        times[name] = time_of(time)
    return times
