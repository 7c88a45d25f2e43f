"""Functions that DuckDB computes itself, over columns as Arrow: `Call("sql.duckdb", (text, column, …))`.

The text is an expression of DuckDB's SQL whose columns are called `$1`, `$2`, and so on; the plan of a view stores it
with the types of all of them written out. So one mechanism has all functions that depend on their arguments alone: of
lists, structs, maps, JSON and time zones, and hundreds more.

DuckDB runs in memory, by one thread, in UTC, without files, settings or extensions of the user. Its functions may
differ from one minor version to the next, so only the version that views are made with computes them. What is not one
of these functions is computed by Arrow and numpy, needs no DuckDB, and is the same with every version of it.

Cost: about a millisecond for each call, and 0.1 µs for each row.
"""

from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from persist.errors import InvalidUsage
from persist.expression.term import DUCKDB

VALUE_BYTES_MAX = 16 << 20
_MEMORY = "2GB"  # A list that a function makes of one row cannot take all that there is.


def computed_by_duckdb(text: str, *arguments: Any) -> pa.Array:
    """Return the value of an expression for each row of some columns; the last argument is its type.

    Raises:
        InvalidUsage: DuckDB is not installed, or is another version.
        ValueError: DuckDB raises on a row.
    """
    *columns, kind = arguments
    check_duckdb()
    import duckdb

    given = columns or [pa.nulls(1, pa.int8())]  # Of constants alone there is one value.
    table = pa.table({f"${number}": column for number, column in enumerate(given, 1)})
    try:
        with _database().cursor() as cursor:
            made = cursor.from_arrow(table).project(f"{text} AS x").to_arrow_table()["x"]
    except duckdb.Error as error:
        raise ValueError(str(error).split("\n")[0]) from error
    array = made.combine_chunks() if isinstance(made, pa.ChunkedArray) else made
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if pa.types.is_string(array.type) or pa.types.is_binary(array.type):
        most = pc.max(pc.binary_length(array)).as_py()
        if most is not None and most > VALUE_BYTES_MAX:
            raise ValueError(f"a value of {most:,} bytes is made, and a value has no more than {VALUE_BYTES_MAX:,}")
    return array if array.type.equals(kind, check_metadata=True) else array.cast(kind)


def check_duckdb() -> None:
    """Raise InvalidUsage unless the DuckDB that views are made with is there."""
    try:
        import duckdb
    except ImportError as error:
        raise InvalidUsage(
            "this view has functions that DuckDB computes, and DuckDB is not installed: pip install 'duckdb>=2.0,<2.1'"
        ) from error
    if tuple(int(number) for number in duckdb.__version__.split(".")[:2]) != DUCKDB:
        raise InvalidUsage(
            f"this view has functions that DuckDB 2.0 computes, and {duckdb.__version__} is installed: "
            "pip install 'duckdb>=2.0,<2.1'"
        )


@cache
def _database() -> Any:
    import duckdb

    limits = {"threads": "1", "memory_limit": _MEMORY, "temp_directory": "", "autoinstall_known_extensions": "false"}
    database = duckdb.connect(":memory:", config={**limits, "python_enable_replacements": "false"})
    database.execute("SET TimeZone = 'UTC'")
    database.execute("SET enable_external_access = false")
    database.execute("SET lock_configuration = true")
    return database
