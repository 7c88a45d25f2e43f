"""Queries of DuckDB over collections, each as of one time, all at one point of the log."""

import json
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NoReturn

import pyarrow as pa

from persist.codecs import did_you_mean
from persist.engine import CollectionHandle, Engine, loaded, snapshot
from persist.errors import InvalidUsage, PersistError
from persist.query.tables import DUCKDB, SEALED_OFF, collection_of, register, why_refused
from persist.read import ArrowResult, Snapshot, required
from persist.timeline import Moment

BATCH_ROWS = 100_000

_WITH_FILES = {"python_enable_replacements": "false"}

AsOf = int | Moment | Mapping[str, int | Moment] | None


class QueryResult(ArrowResult):
    """The answer of a query: read it as Arrow, pandas, Polars or batches, as often as wanted, until it is closed.

    Attributes:
        sql: the query.
    """

    def __init__(self, engine: Engine, sql: str, as_of: AsOf, *, files: bool) -> None:
        """Bind a query to snapshots of all collections that it reads.

        Args:
            as_of: a time for all collections, or times by their names; "" is the name of all others. The latest sealed
                time if nothing is said.
            files: let it read files and URLs, too, and load what DuckDB needs for that.

        Raises:
            InvalidUsage: DuckDB is not installed, or refuses the query; or a time is given for what it does not read.
            AsOfCompacted, AsOfNotSealed: a collection cannot be read as of its time.
        """
        duckdb = required(DUCKDB)
        self.sql = sql
        self._refusals = (duckdb.Error, pa.ArrowException, OSError)
        self._names = engine.names("")
        self._failed: list[PersistError] = []
        self._stack = ExitStack()
        with ExitStack() as opening:
            self._connection = opening.enter_context(duckdb.connect(config=_WITH_FILES if files else SEALED_OFF))
            tables = _tables_of(sql, self._connection)
            read = {table: name for table in tables if (name := collection_of(table, self._names)) is not None}
            for table, (handle, time) in _at_once(engine, read, as_of).items():
                result = opening.enter_context(snapshot(handle, time, timeout_s=0.0))
                register(self._connection, table, _dataset(result, self._failed))
            try:
                self._schema = self._connection.sql(sql).to_arrow_reader(1).schema
            except self._refusals as error:
                self._refuse(error)
            self._stack = opening.pop_all()

    @property
    def schema(self) -> pa.Schema:
        """The columns of the answer."""
        return self._schema

    def close(self) -> None:
        """Let go of what the query reads; idempotent. Reading it again is an error."""
        self._stack.close()

    def _tables(self) -> Generator[pa.Table, None, None]:
        try:
            for batch in self._connection.sql(self.sql).to_arrow_reader(BATCH_ROWS):
                yield pa.Table.from_batches([batch])
        except self._refusals as error:
            self._refuse(error)

    def _refuse(self, error: Exception) -> NoReturn:
        """Raise what a refusal by DuckDB means here."""
        if self._failed:
            raise self._failed[0] from error
        if type(error).__module__.partition(".")[0] != "_duckdb" and "duckdb" not in type(error).__module__:
            raise error
        if type(error).__name__ == "PermissionException":
            raise InvalidUsage(
                f"the query reads something that is no collection: {error}. Give files=True to let it read files and "
                "URLs with your rights"
            ) from error
        # What DuckDB proposes for a name that it does not know are tables of its own, which nobody meant.
        why = re.sub(r'\s*Did you mean "[^"]*"\?', "", why_refused(error)).rstrip(" .!\n")
        raise InvalidUsage(f"DuckDB refuses the query: {why}. The collections are {self._names}") from error

    def __repr__(self) -> str:
        return f"<Answer of {self.sql:.100}>"


def _at_once(
    engine: Engine, read: Mapping[tuple[str, ...], str], as_of: AsOf
) -> dict[tuple[str, ...], tuple[CollectionHandle, int]]:
    """Return for each table its collection and the time to read it at, all in one state of the location."""
    times = as_of if isinstance(as_of, Mapping) else {"": as_of}
    for name in times:
        if name and name not in read.values():
            hint = did_you_mean(name, [*read.values()]) or ","
            raise InvalidUsage(f"as_of={name}=…: the query does not read {name!r}{hint} it reads {[*read.values()]}")
    handles = {table: loaded(engine, name) for table, name in read.items()}
    _, states = engine.follower.known_at_once([(handle.id, handle.name) for handle in handles.values()])
    bound = {}
    for (table, handle), state in zip(handles.items(), states, strict=True):
        time = times.get(read[table], times.get(""))
        bound[table] = (handle, handle.time_in(state, time))
    return bound


def _tables_of(query: str, connection: Any) -> list[tuple[str, ...]]:
    """Return each table that a query reads once, as its schema, if it has one, and name; named subqueries, too.

    Raises:
        InvalidUsage: it is not one query.
    """
    with connection.cursor() as parser:
        parsed = json.loads(parser.execute("SELECT json_serialize_sql($1)", [query]).fetchone()[0])
    if parsed["error"] or len(parsed["statements"]) != 1:
        why = parsed.get("error_message", f"there are {len(parsed.get('statements', ()))} of them")
        raise InvalidUsage(f"this is not one query that begins with SELECT, FROM or WITH: {why}")
    tables: dict[tuple[str, ...], None] = {}
    left: list[Any] = [parsed]
    while left:
        node = left.pop()
        if isinstance(node, dict):
            if node.get("type") == "BASE_TABLE":
                tables[tuple(part for part in (node["schema_name"], node["table_name"]) if part)] = None
            left += node.values()
        elif isinstance(node, list):
            left += node
    return [*tables]


def _dataset(result: Snapshot, failed: list[PersistError]) -> Any:
    """Return a snapshot as a dataset that notes why reading it failed, which DuckDB tells by a text of its own only."""
    from persist.read import ResultDataset

    def narrowed(columns: Sequence[str] | None, filter: Any) -> Iterator[pa.RecordBatch]:
        try:
            yield from result.narrowed(columns, filter)
        except PersistError as error:
            failed.append(error)
            raise

    return ResultDataset(result.schema, narrowed)
