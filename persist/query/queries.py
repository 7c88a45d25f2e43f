"""Queries of others: what a server of SQL asks, within limits, and what there is to be asked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from persist.engine import LATEST, Engine
from persist.errors import InvalidUsage
from persist.query.result import Path, QueryLimits, QueryResult
from persist.query.statements import is_statement
from persist.query.tables import DUCKDB, MAIN, SEALED_OFF, why_refused
from persist.read import required
from persist.state import CollectionState


@dataclass(frozen=True, slots=True)
class TableAbout:
    """What a collection is as a table of SQL.

    Attributes:
        schema: the part of its name before the last dot; "main" if there is none.
        table: the rest of its name.
        is_view: whether it follows a query.
        key: the columns of which each combination has one row at most; empty if there are none.
        columns: their names and types.
    """

    schema: str
    table: str
    is_view: bool
    key: tuple[str, ...]
    columns: pa.Schema


class Queries:
    """The queries of a server of SQL.

    Args:
        limits: of each query.
    """

    def __init__(self, engine: Engine, limits: QueryLimits) -> None:
        required(DUCKDB)
        self._engine = engine
        self._limits = limits

    def ask(self, sql: str, parameters: Sequence[Any] = (), times: Mapping[Path, int] | None = None) -> QueryResult:
        """Return the answer of a query, which is read when it is asked for its batches; see `QueryResult`."""
        _check_reads(sql)
        return QueryResult(self._engine, sql, None, limits=self._limits, parameters=parameters, times=times)

    def parameters(self, sql: str) -> int:
        """Return how many parameters a query has.

        Raises:
            InvalidUsage: DuckDB cannot read it, or its parameters have names.
        """
        _check_reads(sql)
        duckdb = required(DUCKDB)
        with duckdb.connect(config=SEALED_OFF) as connection:
            try:
                statements = connection.extract_statements(sql)
            except duckdb.Error as error:
                raise InvalidUsage(f"DuckDB refuses the query: {why_refused(error)}") from error
        names = set().union(*(statement.named_parameters for statement in statements))
        if not all(name.isdecimal() for name in names):
            raise InvalidUsage(f"the parameters {sorted(names)} have names: write ? or $1 for each")
        return max(map(int, names), default=0)

    def catalogs(self) -> list[str]:
        """Return the times that have a name: the latest, and the tags of all collections."""
        tags = {tag for contents in self._contents() for tag in contents.tags}
        return [LATEST, *sorted(tags - {LATEST})]

    def tables(self) -> list[TableAbout]:
        """Return all collections, by schema and table."""
        tables = []
        for contents in self._contents():
            schema, _, table = contents.name.rpartition(".")
            known = contents.schema
            columns = pa.schema([known.arrow.field(name) for name in known.names])
            key = () if contents.keyed is None else known.key_names
            tables.append(TableAbout(schema or MAIN, table, contents.view is not None, key, columns))
        return sorted(tables, key=lambda about: (about.schema, about.table))

    def _contents(self) -> list[CollectionState]:
        names, follower = self._engine.names(""), self._engine.follower
        ids = follower.state.ids
        return follower.known_at_once([(ids[name], name) for name in names if name in ids])[1]


def _check_reads(sql: str) -> None:
    if is_statement(sql):
        raise InvalidUsage(
            "this server only reads. Change collections with client.sql() or `persist sql`, where the location is"
        )
