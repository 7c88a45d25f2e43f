"""Arrow tables as pandas frames, without a value that changes.

Left alone, Arrow makes floats of integers among which there is a NULL, at the top and inside of lists, structs and
maps: above 2**53 they are other numbers then.
"""

from collections.abc import Mapping
from typing import Any, Literal, get_args

import pyarrow as pa
import pyarrow.types as pat

from persist.blob import InvalidUsage

DtypeBackend = Literal["numpy_nullable", "pyarrow"]

# Of pandas, by the name of the Arrow type.
_NULLABLE = {f"{sign}int{bits}": f"{'U' if sign else ''}Int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_NULLABLE["bool"] = "boolean"
_NULLABLE_FLOATS = {"float": "Float32", "double": "Float64"}


def to_frame(table: pa.Table, dtype_backend: DtypeBackend | None, options: Mapping[str, Any]) -> Any:
    """Return table as a `pandas.DataFrame`; see `ArrowResult.to_pandas`. The package pandas must be there.

    Raises:
        InvalidUsage: dtype_backend is none, or comes with a `types_mapper`; or Arrow does not know an option, or cannot
            do what it says with these columns.
    """
    if dtype_backend is not None:
        options = {**options, "types_mapper": _types_mapper(dtype_backend, options)}
    try:
        apart = [] if options.get("integer_object_nulls") else _apart(table, options)
        return _with_columns(table, apart, options)
    except (TypeError, ValueError, KeyError, pa.ArrowNotImplementedError) as error:
        raise InvalidUsage(f"to_pandas() takes the options of pyarrow.Table.to_pandas: {error}") from error


def _types_mapper(dtype_backend: DtypeBackend, options: Mapping[str, Any]) -> Any:
    import pandas as pd

    if dtype_backend not in get_args(DtypeBackend):
        raise InvalidUsage(
            f'dtype_backend={dtype_backend!r} is none: give "numpy_nullable", "pyarrow", or None for NumPy\'s types'
        )
    if "types_mapper" in options:
        raise InvalidUsage("dtype_backend and types_mapper both say which types the columns get: give one of them")
    if dtype_backend == "pyarrow":
        return pd.ArrowDtype
    names = {**_NULLABLE, **_NULLABLE_FLOATS, "string": "string", "large_string": "string"}
    return lambda t: pd.api.types.pandas_dtype(names[str(t)]) if str(t) in names else None


def _apart(table: pa.Table, options: Mapping[str, Any]) -> list[str]:
    """Return the columns in which Arrow would make floats of integers, and which the caller leaves to us."""
    mapper, categories = options.get("types_mapper"), options.get("categories") or ()
    return [
        field.name
        for field in table.schema
        if field.name not in categories
        and (mapper is None or mapper(field.type) is None)
        and _is_spoiled(table[field.name])
    ]


def _is_spoiled(column: pa.ChunkedArray) -> bool:
    if str(column.type) in _NULLABLE:
        return bool(column.null_count)
    return pat.is_nested(column.type) and any(map(_holds_null_integers, column.chunks))


def _holds_null_integers(array: pa.Array) -> bool:
    """Return whether there is a NULL among integers anywhere inside an array."""
    t = array.type
    if pat.is_struct(t):
        return any(map(_holds_null_integers, array.flatten()))
    if pat.is_map(t):
        return _holds_null_integers(array.keys) or _holds_null_integers(array.items)
    if pat.is_nested(t):
        return _holds_null_integers(array.flatten())
    return bool(pat.is_integer(t) and array.null_count)


def _with_columns(table: pa.Table, apart: list[str], options: Mapping[str, Any]) -> Any:
    if not apart:
        return table.to_pandas(**options)
    import pandas as pd

    rest = table.drop_columns(apart)
    frame = rest.to_pandas(**options)  # Without any column, too: Arrow looks at the options.
    frame = frame if rest.num_columns else pd.DataFrame(index=pd.RangeIndex(len(table)))
    for at, name in enumerate(table.column_names):
        if name in apart:
            frame.insert(at, name, _column(table[name], options.get("maps_as_pydicts")))
    return frame


def _column(column: pa.ChunkedArray, maps: Any) -> Any:
    import pandas as pd

    name = _NULLABLE.get(str(column.type))
    if name is None:
        return pd.Series(column.to_pylist(maps_as_pydicts=maps), dtype=object)
    dtype: Any = pd.api.types.pandas_dtype(name)
    return dtype.__from_arrow__(column)
