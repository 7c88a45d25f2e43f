"""Converts results to frames of pandas and Polars with unchanged values, and to lazy frames of Polars.

For pandas, Arrow would convert integers with a NULL among them to floats, also inside lists, structs and maps. Above
2**53 this changes values.

Polars has no seconds. It multiplies them without a check, so huge values wrap. Here seconds become milliseconds with a
check.

Columns, predicates and slices of a lazy query reach the read. Conditions of a predicate are pushed down if Arrow
evaluates them like Polars: comparisons of columns with constants and tests for NULL, joined by `&` and `|`. Floats are
left out, because NaN equals itself in Polars alone. Polars writes the predicate as JSON, and unknown nodes are not
pushed down. The whole predicate is applied to the rows that were read, so the answer never depends on push-down.
"""

import io
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.blob.errors import InvalidUsage
from persist.codecs.types.arrow_types import list_inner_fields, replace_inner_types
from persist.core.expression.filters import to_arrow_filter
from persist.core.expression.term import Call, Col, Lit, Term

if TYPE_CHECKING:
    from persist.engine.read.results.dataset import Narrowed
from collections.abc import Mapping
from typing import Literal, get_args

DtypeBackend = Literal["numpy_nullable", "pyarrow"]

# Types of pandas, by the name of the Arrow type.
_NULLABLE = {f"{sign}int{bits}": f"{'U' if sign else ''}Int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_NULLABLE["bool"] = "boolean"
_NULLABLE_FLOATS = {"float": "Float32", "double": "Float64"}


def to_frame(table: pa.Table, dtype_backend: DtypeBackend | None, options: Mapping[str, Any]) -> Any:
    """Return a table as a `pandas.DataFrame`; see `ArrowResult.to_pandas`. Needs the package pandas.

    Raises:
        InvalidUsage: dtype_backend is unknown, or combined with a `types_mapper`; or Arrow does not have an option, or
        cannot apply it to these columns.
    """
    if dtype_backend is not None:
        options = {**options, "types_mapper": _make_types_mapper(dtype_backend, options)}
    try:
        apart = [] if options.get("integer_object_nulls") else _list_separate_columns(table, options)
        return _convert_columns(table, apart, options)
    except (TypeError, ValueError, KeyError, OverflowError, pa.ArrowNotImplementedError) as error:
        raise InvalidUsage(f"to_pandas() takes the options of pyarrow.Table.to_pandas: {error}") from error


def _make_types_mapper(dtype_backend: DtypeBackend, options: Mapping[str, Any]) -> Any:
    """Return pandas' `types_mapper` for a `dtype_backend`."""
    import pandas as pd

    if dtype_backend not in get_args(DtypeBackend):
        raise InvalidUsage(
            f'dtype_backend={dtype_backend!r} is not a backend: give "numpy_nullable", "pyarrow" or None (NumPy)'
        )
    if "types_mapper" in options:
        raise InvalidUsage("dtype_backend and types_mapper both say which types the columns get: give one of them")
    if dtype_backend == "pyarrow":
        return pd.ArrowDtype
    names = {**_NULLABLE, **_NULLABLE_FLOATS, "string": "string", "large_string": "string"}
    return lambda t: pd.api.types.pandas_dtype(names[str(t)]) if str(t) in names else None


def _list_separate_columns(table: pa.Table, options: Mapping[str, Any]) -> list[str]:
    """Return the columns whose integers Arrow would convert to floats, unless options choose their types."""
    mapper, categories = options.get("types_mapper"), options.get("categories") or ()
    return [
        field.name
        for field in table.schema
        if field.name not in categories
        and (mapper is None or mapper(field.type) is None)
        and _is_spoiled(table[field.name])
    ]


def _is_spoiled(column: pa.ChunkedArray) -> bool:
    """Return whether NULLs make pandas change the integers or booleans."""
    if str(column.type) in _NULLABLE:
        return bool(column.null_count)
    return pat.is_nested(column.type) and any(map(_holds_null_integers, column.chunks))


def _holds_null_integers(array: pa.Array) -> bool:
    """Return whether integers anywhere inside an array include a NULL."""
    t = array.type
    if pat.is_struct(t):
        return any(map(_holds_null_integers, array.flatten()))
    if pat.is_map(t):
        return _holds_null_integers(array.keys) or _holds_null_integers(array.items)
    if pat.is_nested(t):
        return _holds_null_integers(array.flatten())
    return bool(pat.is_integer(t) and array.null_count)


def _convert_columns(table: pa.Table, apart: list[str], options: Mapping[str, Any]) -> Any:
    """Return a pandas frame, with some columns converted separately."""
    if not apart:
        return table.to_pandas(**options)
    import pandas as pd

    other_columns = table.drop_columns(apart)
    frame = other_columns.to_pandas(**options)  # Also without columns: Arrow checks the options.
    frame = frame if other_columns.num_columns else pd.DataFrame(index=pd.RangeIndex(len(table)))
    for at, name in enumerate(table.column_names):
        if name in apart:
            frame.insert(at, name, _convert_column(table[name], options.get("maps_as_pydicts")))
    return frame


def _convert_column(column: pa.ChunkedArray, maps: Any) -> Any:
    """Return a column as a pandas series without a change of values."""
    import pandas as pd

    name = _NULLABLE.get(str(column.type))
    if name is None:
        return pd.Series(column.to_pylist(maps_as_pydicts=maps), dtype=object)
    dtype: Any = pd.api.types.pandas_dtype(name)
    return dtype.__from_arrow__(column)


_COMPARED = {
    "Eq": "equal", "NotEq": "not_equal", "Lt": "less", "LtEq": "less_equal", "Gt": "greater", "GtEq": "greater_equal",
}  # fmt: skip


def to_milliseconds(table: pa.Table) -> pa.Table:
    """Return a table with moments and durations in milliseconds in place of seconds, at any depth.

    Raises:
        InvalidUsage: one does not fit, or there is an interval or a decimal of 256 bits, which Polars lacks.
    """
    try:
        schema = pa.schema([field.with_type(_to_milliseconds(field.type)) for field in table.schema])
        return table if schema == table.schema else table.cast(schema)
    except pa.ArrowException as error:
        raise InvalidUsage(
            f"a moment or a duration in seconds does not fit Polars, which counts milliseconds at least: {error}. Read "
            'it as Arrow; times also with times="int"'
        ) from error


def _to_milliseconds(kind: pa.DataType) -> pa.DataType:
    """Return the type for Polars, which has no seconds. Raises InvalidUsage."""
    if pat.is_nested(kind):
        inner = [field.type for field in list_inner_fields(kind)]
        converted = [_to_milliseconds(inner_type) for inner_type in inner]
        return kind if converted == inner else replace_inner_types(kind, converted)
    if pat.is_decimal256(kind) or pat.is_interval(kind):
        raise InvalidUsage(f"Polars has no {kind}: read it as Arrow, or cast it in SQL, an interval by epoch_us(…)")
    if pat.is_timestamp(kind) and kind.unit == "s":
        return pa.timestamp("ms", kind.tz)
    return pa.duration("ms") if kind == pa.duration("s") else kind


class _NotUnderstood(ValueError):
    """A part of a predicate cannot be translated."""


def make_lazy_frame(polars: Any, schema: pa.Schema, narrowed: "Narrowed") -> Any:
    """Return a `polars.LazyFrame` that reads what its query needs; polars is the module."""
    plugins: Any = __import__("polars.io.plugins", fromlist=["register_io_source"])

    def source(columns: list[str] | None, predicate: Any, rows: int | None, batch_rows: int | None) -> Iterator[Any]:
        """Yield batches with the columns and the filter that Polars pushes down."""
        names = columns
        pushed = None
        if predicate is not None:
            # Polars limits first, so a limited read must count rows before they are filtered.
            pushed = push_down(polars, predicate, schema) if rows is None else None
            if columns is not None:
                names = [*dict.fromkeys([*columns, *predicate.meta.root_names()])]
        for batch in narrowed(names, pushed):
            frame = polars.from_arrow(to_milliseconds(pa.Table.from_batches([batch])))
            if rows is not None:
                frame = frame.head(rows)
                rows -= len(frame)
            if predicate is not None:
                frame = frame.filter(predicate)
            yield frame if columns is None else frame.select(columns)
            if rows is not None and rows <= 0:
                return

    empty = polars.from_arrow(to_milliseconds(schema.empty_table()))
    return plugins.register_io_source(source, schema=empty.schema, is_pure=True)


def push_down(polars: Any, predicate: Any, schema: pa.Schema) -> pc.Expression | None:
    """Return an Arrow filter that is implied by a Polars predicate; None if none can be derived."""
    try:
        written = json.loads(predicate.meta.serialize(format="json"))
    except Exception:  # Python functions cannot be written, and Polars may stop writing others.
        return None
    conjunction: pc.Expression | None = None
    for conjunct in _iterate_conjuncts(written):
        try:
            expression = to_arrow_filter(_convert_condition(polars, conjunct, schema), schema)
        except (_NotUnderstood, InvalidUsage):
            continue
        conjunction = expression if conjunction is None else conjunction & expression
    return conjunction


def _iterate_conjuncts(node: Any) -> Iterator[Any]:
    """Yield the conditions that AND joins in a Polars expression."""
    match node:
        case {"BinaryExpr": {"left": left, "op": "And", "right": right}}:
            yield from _iterate_conjuncts(left)
            yield from _iterate_conjuncts(right)
        case _:
            yield node


def _convert_condition(polars: Any, node: Any, schema: pa.Schema) -> Term:
    """Return a Polars condition as a term. Raises _NotUnderstood."""
    match node:
        case {"BinaryExpr": {"left": left, "op": "And" | "Or" as op, "right": right}}:
            return Call(
                op.lower(), (_convert_condition(polars, left, schema), _convert_condition(polars, right, schema))
            )
        case {"BinaryExpr": {"left": {"Column": str(name)}, "op": str(op), "right": {"Literal": _} as given}}:
            if op in _COMPARED:
                return Call(_COMPARED[op], (Col(name), Lit(_parse_literal(polars, given, schema, name))))
        case {"Function": {"input": [{"Column": str(name)}], "function": {"Boolean": "IsNull" | "IsNotNull" as which}}}:
            return Call("is_null" if which == "IsNull" else "is_valid", (Col(name),))
    raise _NotUnderstood


def _parse_literal(polars: Any, literal: Any, schema: pa.Schema, name: str) -> pa.Scalar:
    """Return a literal of Polars as a scalar of a column's type."""
    if schema.get_field_index(name) < 0:
        raise _NotUnderstood
    t = schema.field(name).type
    if not (pat.is_integer(t) or pat.is_boolean(t) or pat.is_string(t) or pat.is_large_string(t) or pat.is_date32(t)):
        raise _NotUnderstood
    try:
        value = polars.select(polars.Expr.deserialize(io.BytesIO(json.dumps(literal).encode()), format="json")).item()
    except Exception as error:  # As above: it is only not pushed down.
        raise _NotUnderstood from error
    python_type = int if pat.is_integer(t) else bool if pat.is_boolean(t) else None
    if value is None or (python_type is not None and type(value) is not python_type):
        raise _NotUnderstood
    try:
        return pa.scalar(value, t)
    except (pa.ArrowException, OverflowError, TypeError) as error:
        raise _NotUnderstood from error
