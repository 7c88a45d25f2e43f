"""A DuckDB for computations: in memory, single-threaded, in UTC, without the user's files, settings or extensions."""

from functools import cache
from typing import Any

DUCKDB = (2, 0)  # Its functions, and the names of nodes in its plans, change from one minor version to the next.
_MEMORY = "2GB"  # A list that a function makes of one row cannot take all that there is.


def is_supported_version(version: str) -> bool:
    """Return whether a DuckDB version may compute stored values and views."""
    return tuple(int(number) for number in version.split(".")[:2]) == DUCKDB


@cache
def get_calculator() -> Any:
    """Return the process's DuckDB connection, of which each thread uses a cursor."""
    import duckdb

    limits = {"threads": "1", "memory_limit": _MEMORY, "temp_directory": "", "autoinstall_known_extensions": "false"}
    database = duckdb.connect(":memory:", config={**limits, "python_enable_replacements": "false"})
    database.execute("SET GLOBAL TimeZone = 'UTC'")  # For all cursors.
    database.execute("SET enable_external_access = false")
    database.execute("SET lock_configuration = true")
    return database
