"""`COPY … TO 'file'`: the rows of a table or a query as a file, in any format that DuckDB writes."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from persist.compute.query.result import QueryResult
from persist.compute.query.statement_text import split_at_keyword
from persist.compute.query.tables import DUCKDB, explain_refusal
from persist.core.errors import InvalidUsage, PersistError
from persist.engine.location.engine import Engine
from persist.engine.read.results.result import require_package

_COPY = re.compile(r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*COPY\b(?P<rest>.*)", re.IGNORECASE | re.DOTALL)
_TABLE = re.compile(r"(?P<table>[^()]+?)\s*(?:\((?P<columns>[^()]*)\))?", re.DOTALL)


def is_copy(sql: str) -> bool:
    """Return whether a text begins like a COPY."""
    return isinstance(sql, str) and _COPY.match(sql) is not None


def copy_rows(engine: Engine, sql: str, variables: Mapping[str, Any] | None) -> tuple[str, int]:
    """Write rows to a file with the caller's rights; return its name, as given, and how many rows.

    DuckDB writes a temporary file in the same folder, and renames it when it has all rows.

    `variables`: as for `QueryResult`; None refuses to write a file.
    """
    match = _COPY.match(sql)
    if variables is None:
        raise InvalidUsage("COPY writes a file, which queries may not.").with_remedy(
            "{files:option:True} lets it, with your rights; without, take the rows with to_arrow() or to_pandas()."
        )
    parts = None if match is None else split_at_keyword(match["rest"], "to")
    if parts is None:
        raise InvalidUsage(
            f"{sql!r:.100} is not COPY table TO 'file' or COPY (query) TO 'file'. To load a file, use INSERT INTO "
            "orders FROM 'day.csv', or client.write()"
        )
    duckdb = require_package(DUCKDB)
    source, target = parts
    failed: list[Exception] = []
    with (
        QueryResult(engine, _parse_copied_query(source), None, variables=variables) as result,
        duckdb.connect() as connection,
    ):

        def batches() -> Iterator[pa.RecordBatch]:
            try:
                yield from result.to_batches()
            except (PersistError, pa.ArrowException) as error:  # DuckDB has only a text of its own for it.
                failed.append(error)
                raise

        connection.execute("SET TimeZone = 'UTC'")
        connection.register("the rows", pa.RecordBatchReader.from_batches(result.schema, batches()))
        copied = f'COPY (FROM "the rows") TO {target}'
        try:
            statements = connection.extract_statements(copied)
            if len(statements) != 1:
                raise InvalidUsage(f"there are {len(statements)} statements: give one")
            if re.search(r"\breturn_(?:files|stats)\b", target, re.IGNORECASE):
                raise InvalidUsage(
                    "leave RETURN_FILES and RETURN_STATS out: COPY returns its file and its count of rows"
                )
            (rows,) = connection.execute(statements[0]).fetchone()
        except duckdb.Error as error:
            if failed:
                raise failed[0] from error
            raise InvalidUsage(f"DuckDB refuses the statement: {explain_refusal(error)}") from error
    file = re.match(r"\s*'((?:[^']|'')*)'", target)
    return target.strip() if file is None else file[1].replace("''", "'"), int(rows)


def _parse_copied_query(source: str) -> str:
    """Return the query whose rows a COPY writes; for a table, a SELECT from it."""
    source = source.strip()
    if source.startswith("("):
        return source[1 : source.rindex(")")]
    match = _TABLE.fullmatch(source)
    if match is None:
        raise InvalidUsage(f"COPY {source!r:.100} names no table: write COPY table TO … or COPY (query) TO …")
    return f"SELECT {match['columns'] or '*'} FROM {match['table']}"
