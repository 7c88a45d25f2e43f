"""Errors of the library as errors of Postgres: with a SQLSTATE, and a position in the statement."""

import re

from persist.services.serve.error_codes import encode_error
from persist.services.serve.postgres.wire import Failure

_DUCKDB_CODES = (
    ("Parser Error", "42601"),
    ("syntax error", "42601"),
    ("Table with name", "42P01"),
    ("Function with name", "42883"),
    ("Referenced column", "42703"),
    ("Referenced table", "42P01"),
    ("Ambiguous", "42702"),
    ("Conversion Error", "22P02"),
    ("Out of Range Error", "22003"),
    ("Binder Error", "42804"),
    ("Catalog Error", "42704"),
    ("Constraint Error", "23000"),
    ("longer than", "57014"),
    ("limit of time", "57014"),
    ("bytes of memory", "53200"),
    ("limit of memory", "53200"),
    ("is not a collection", "42P01"),
    ("this is not one query", "42601"),
)


def to_failure(error: Exception, hidden: str) -> Failure:
    """Return an error as one of Postgres, without the URL of the location."""
    if isinstance(error, Failure):
        return error
    code = encode_error(error, hidden)
    sqlstate = code.sqlstate
    if sqlstate == "22023":
        sqlstate = next((state for part, state in _DUCKDB_CODES if part in code.text), sqlstate)
    return Failure(sqlstate, code.text)


_SHOWN_LINE = re.compile(r"LINE \d+: (.*)\n( *)\^")


def find_position(error: BaseException | None, sql: str) -> int | None:
    """Return the character of a statement that DuckDB points to, counted from 1; None if that is not certain."""
    while error is not None:
        if match := _SHOWN_LINE.search(str(error)):
            start = match.start(1) - match.start()
            line, at = match[1], len(match[2]) - start
            snippet = line.removeprefix("...").removesuffix("...")
            at -= 3 * line.startswith("...")
            return sql.index(snippet) + at + 1 if sql.count(snippet) == 1 and at >= 0 else None
        error = error.__cause__
    return None
