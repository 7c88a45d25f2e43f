"""What a column is stored as in Parquet, and the way back.

Parquet has no seconds and no date64: `storage_type` says what they are written as, and reading casts them back. A value
that would not come back the same is refused when it is written.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from persist.codecs.errors import InvalidUpdate
from persist.codecs.order.ordering import order_keys
from persist.codecs.types.arrow_types import children, with_children

_MILLISECONDS = {pa.date64(): pa.date32(), pa.time32("s"): pa.time32("ms")}


def storage_type(kind: pa.DataType) -> pa.DataType:
    """The type Parquet gives back for a column of this type."""
    if pt.is_nested(kind):
        return with_children(kind, [storage_type(child.type) for child in children(kind)])
    if pt.is_timestamp(kind) and kind.unit == "s":
        return pa.timestamp("ms", tz=kind.tz)
    return _MILLISECONDS.get(kind, kind)


def to_storage(table: pa.Table) -> pa.Table:
    for i, field in enumerate(table.schema):
        stored = storage_type(field.type)
        if stored != field.type:
            table = table.set_column(i, field.with_type(stored), _cast_exactly(table.column(i), stored, field.name))
    return table


def _cast_exactly(column: pa.ChunkedArray, stored: pa.DataType, name: str) -> pa.ChunkedArray:
    try:
        cast = column.cast(stored)
        exact = _all_same(cast.cast(column.type), column)
    except pa.ArrowInvalid:
        exact = False
    if not exact:
        raise InvalidUpdate(
            f"column {name!r} of type {column.type} holds a value that cannot be stored: Parquet keeps it as "
            f"{stored}, which the value does not fit. Use whole days for date64, times within one day, and "
            "timestamps within 292 million years of 1970, or another type."
        )
    return cast


def _all_same(left: pa.ChunkedArray, right: pa.ChunkedArray) -> bool:
    """Whether two columns are equal, NaN inside nested values being equal to itself."""
    if not pt.is_nested(left.type):
        return bool(left.equals(right))
    both = pa.table({"both": pa.chunked_array([*left.chunks, *right.chunks], type=left.type)})
    (ranks,) = order_keys(both, ["both"])
    return bool(ranks[: len(left)].equals(ranks[len(left) :]))


def from_storage(table: pa.Table, schema: pa.Schema, checked: frozenset[str], columns: Sequence[str]) -> pa.Table:
    wanted = pa.schema([schema.field(name) for name in columns])
    table = table.select(list(columns))
    if not columns:
        return table  # A cast would lose the number of rows.
    for name in checked.intersection(columns):
        for chunk in table.column(name).chunks:
            _check_values(chunk)
    if any(pt.is_nested(kind) for kind in wanted.types) or table.schema.types != wanted.types:
        return table if table.schema.equals(wanted, check_metadata=True) else table.cast(wanted)
    for field, column in zip(wanted, table.columns, strict=True):
        if not field.nullable and column.null_count:
            raise ValueError(f"its column {field.name!r} is not null by the schema, and has {column.null_count} NULLs")
    return pa.Table.from_arrays(table.columns, schema=wanted)  # A cast takes several times as long.


def _check_values(array: pa.Array) -> None:
    """Raise ArrowInvalid for what Arrow's reader lets through: text that is not UTF-8, decimals that are too long."""
    if pt.is_string(array.type) or pt.is_large_string(array.type):
        text = array.buffers()[2]
        if text is None or _is_ascii(text):
            return  # Many times faster to see than UTF-8 is to check.
    array.validate(full=True)


def _is_ascii(text: pa.Buffer) -> bool:
    whole = text.size // 8
    words, rest = np.frombuffer(text, np.uint64, whole), np.frombuffer(text, np.uint8, offset=8 * whole)
    return not (int(np.bitwise_or.reduce(words)) & 0x8080808080808080 or int(np.bitwise_or.reduce(rest)) & 0x80)


def has_checked(kind: pa.DataType) -> bool:
    """Whether a type holds values that `_check_values` looks at."""
    if pt.is_nested(kind):
        return any(has_checked(child.type) for child in children(kind))
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or pt.is_decimal(kind))
