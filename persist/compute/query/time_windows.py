"""Windows of time as table functions: `tumble`, `hop` and `session` over a collection, or over a `WITH` of the query.

Each returns the rows of its table with two more columns, `window_start` and `window_end`, and window_start <= time <
window_end. A row is in one window of `tumble` and of `session`, and in each window of `hop` that holds its time. A row
whose time is NULL is in none. Windows of `tumble` and `hop` begin where the buckets of DuckDB's `time_bucket` begin,
moved by `shift`. A session ends after `gap` without a row: the next row belongs to it if it comes before its end.

Columns of the table with these names are replaced. The functions are macros, so DuckDB binds a query as if their
body were written in it, and views need no support for them. The first row after a gap begins a session. Rows of one
time are ordered so that this row comes first, so all of them are in its session.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from persist.core.errors import InvalidUsage

_SHIFT = "shift := INTERVAL 0 SECOND"
_OTHERS = (
    "COLUMNS(lambda name: lower(name) NOT IN"
    " ('window_start', 'window_end', 'persist_first', 'persist_begins', 'persist_session'))"
)
_MACROS = {
    "tumble": (
        f"(source, moment, size, {_SHIFT})",
        f"SELECT {_OTHERS}, time_bucket(size, moment, shift) AS window_start,"
        " time_bucket(size, moment, shift) + size AS window_end FROM query_table(source) WHERE moment IS NOT NULL",
    ),
    "hop": (
        f"(source, moment, slide, size, {_SHIFT})",
        # Where months are of other lengths, the first of the series may be over at the moment.
        f"SELECT {_OTHERS}, persist_first AS window_start, persist_first + size AS window_end FROM query_table(source),"
        " generate_series(time_bucket(slide, moment - size, shift) + slide, moment, slide)"
        " windows(persist_first) WHERE persist_first + size > moment",
    ),
    "session": (
        "(source, moment, gap, partition_by := NULL)",
        f"SELECT {_OTHERS}, min(moment) OVER one AS window_start, max(moment) OVER one + gap AS window_end FROM ("
        "SELECT *, count(*) FILTER (WHERE persist_begins) OVER (PARTITION BY partition_by"
        " ORDER BY moment, persist_begins DESC ROWS UNBOUNDED PRECEDING) AS persist_session FROM ("
        "SELECT *, moment >= lag(moment) OVER (PARTITION BY partition_by ORDER BY moment) + gap IS NOT FALSE"
        " AS persist_begins FROM query_table(source) WHERE moment IS NOT NULL))"
        " WINDOW one AS (PARTITION BY partition_by, persist_session)",
    ),
}


def add_time_windows(connection: Any, words: Iterable[str], late_by: str | None = None) -> None:
    """Define the named functions of time windows on a connection.

    `late_by`: an interval in SQL: rows of a window are returned once the greatest time is so far after the window's
    end. None returns the rows of all windows.
    """
    for name in _MACROS.keys() & {*words}:
        parameters, rows = _MACROS[name]
        if late_by is not None:
            final = f"(SELECT max(moment) - {late_by} FROM query_table(source))"
            rows = f"SELECT * FROM ({rows}) WHERE window_end <= {final}"
        connection.execute(f"CREATE TEMP MACRO {name}{parameters} AS TABLE {rows}")


def check_lengths(connection: Any, sql: str, node: Mapping[str, Any]) -> None:
    """Raise InvalidUsage if a window function has an invalid constant length."""
    for argument in list_arguments(node)[2 : 4 if node["function"]["function_name"].lower() == "hop" else 3]:
        begin = argument.get("query_location", len(sql))
        text = sql.encode()[begin : begin + argument.get("query_location_length", 0)].decode(errors="ignore")
        try:
            [(is_long,)] = connection.execute(f"SELECT ({text}) > INTERVAL 0 SECOND").fetchall()
        except Exception:  # It is not a constant, or no interval: then DuckDB says so where it binds the query.
            continue
        if not is_long:
            raise InvalidUsage(f"a window of {text} has no length: give a positive interval")


def is_time_window(node: Mapping[str, Any]) -> bool:
    """Return whether a node is a time window function in a FROM."""
    return node.get("type") == "TABLE_FUNCTION" and node["function"]["function_name"].lower() in _MACROS


def find_windowed_table(node: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the path of the table that a time window function reads; empty for other nodes."""
    given = list_arguments(node) if is_time_window(node) else []
    if given and given[0].get("class") == "CONSTANT":
        return (str(given[0].get("literal", {}).get("text")),)
    return tuple(given[0].get("column_names") or ()) if given else ()


def list_arguments(node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the arguments of a function in the FROM of a parsed query."""
    return [argument["expression"] for argument in node["function"].get("arguments") or ()]
