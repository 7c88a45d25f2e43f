"""Functions that no view can call, because they read a clock, a random source, or the session that binds the query.

DuckDB folds some calls while it binds a query, so a plan may hold `now() - INTERVAL 1 DAY` as a constant. So the names
are shadowed before: in the database that binds queries, each is a macro whose body cannot be bound. DuckDB resolves
names itself, so this holds in macros, subqueries and keywords (`current_date`), and a column of such a name
remains usable.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from persist.codecs.types.calculator import get_calculator
from persist.compute.query import quote_name
from persist.core.errors import InvalidUsage

_REFUSED = "persist refuses "
_ARGUMENTS_MAX = 3  # No function below takes more.
# DuckDB marks the others of the clock as what they are; these are macros, or called by another name.
_CLOCK = frozenset(
    (
        *("age", "ago", "current_date", "current_localtime", "current_localtimestamp", "current_time"),
        *("current_timestamp", "get_current_time", "get_current_timestamp", "localtime", "localtimestamp", "now"),
        *("pg_conf_load_time", "pg_postmaster_start_time", "today", "transaction_timestamp"),
    )
)
_MARKED = (
    "SELECT lower(function_name) FROM duckdb_functions() WHERE function_type IN ('scalar', 'macro') GROUP BY 1"
    " HAVING bool_or(stability = 'VOLATILE') OR bool_and(stability = 'CONSISTENT_WITHIN_QUERY')"
    " OR regexp_full_match(lower(function_name), '(current|session|inet|has)_.*|user|version|pg_(sleep|has_role)')"
)


@cache
def list_indefinite_functions() -> frozenset[str]:
    """Return the functions of DuckDB whose value does not depend on their arguments alone."""
    with get_calculator().cursor() as connection:
        marked = {name for (name,) in connection.execute(_MARKED).fetchall()}
    return frozenset(marked - {"error"}) | _CLOCK | {"getenv"}  # `error` fails always.


def forbid_indefinite(connection: Any) -> None:
    """Make a database refuse queries that call indefinite functions."""
    letters = "abc"[:_ARGUMENTS_MAX]
    statements = []
    for name in sorted(list_indefinite_functions()):
        body = f"{quote_name(_REFUSED + name)}()"
        overloads = [f"({', '.join(letters[:count])}) AS {body}" for count in range(len(letters) + 1)]
        if name == "age":  # With two moments it is their distance; with one, the distance to today.
            overloads = [f"(a) AS {body}", "(a, b) AS system.main.age(a, b)"]
        statements += [f"CREATE MACRO {body} AS 1", f"CREATE MACRO {quote_name(name)} {', '.join(overloads)}"]
        statements.append(f"DROP MACRO {quote_name(_REFUSED + name)}")
    # A query in a text is invisible to the caller.
    table = quote_name(f"{_REFUSED}query")
    statements.append(
        f"CREATE MACRO {table}() AS 1; CREATE MACRO query(a) AS TABLE SELECT {table}(); DROP MACRO {table}"
    )
    connection.execute(";".join(statements)).fetchall()


_KEYWORDS = {
    "get_current_timestamp": "current_timestamp",
    "get_current_time": "current_time",
    "current_localtime": "localtime",
    "current_localtimestamp": "localtimestamp",
}


def find_refused_function(name: Any) -> str | None:
    """Return the function that DuckDB did not find because of `forbid_indefinite`; None if it missed another name."""
    return name.removeprefix(_REFUSED) if isinstance(name, str) and name.startswith(_REFUSED) else None


def list_spellings(function: str) -> tuple[str, ...]:
    """Return how queries may write a call of a function: by its name, or by a keyword."""
    return (function, _KEYWORDS.get(function, function))


def make_refusal(name: str) -> InvalidUsage:
    """Return the error for a query that calls an indefinite function."""
    if name == "query":
        return InvalidUsage("query() hides what it reads, so no view can call it: write its text as a subquery")
    instead = "keep the value in a collection, and join with it"
    if name in _CLOCK:
        instead = (
            "compare a column with _now(), the time as of which the view is read, as in WHERE ts > _now() - INTERVAL 1 "
            "DAY; where the inputs have no timeline it is a number, as in WHERE n > _now() - 10"
        )
    return InvalidUsage(
        f"{name}() gives something else each time, and a view is the same whenever it is computed: {instead}"
    )


def check_qualified(parts: Iterator[Mapping[str, Any]]) -> None:
    """Raise InvalidUsage if a query calls a function by its qualified name, which cannot be shadowed.

    `parts`: the nodes of the parsed query.
    """
    for part in parts:
        path = (part.get("qualified_name") or {}).get("path") or [""]
        is_whole = part.get("class") == "FUNCTION" and path[0].lower() == "system"
        if is_whole and path[-1].lower() in list_indefinite_functions() | {"query"}:
            raise InvalidUsage(f"a view calls functions by their name alone: write {path[-1]}() for {'.'.join(path)}()")
