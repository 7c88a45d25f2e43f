"""Names and types of columns, checked when a program is built."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.types as pat

from persist.blob.errors import InvalidUsage
from persist.codecs.errors import SchemaMismatch

Columns: TypeAlias = Mapping[str, pa.DataType] | pa.Schema
On: TypeAlias = str | Sequence[str] | Mapping[str, str]
Pairs: TypeAlias = tuple[tuple[str, str], ...]


def is_compatible(stored: pa.DataType | None, asked: pa.DataType) -> bool:
    """Return whether a program may read a column as another type."""
    if stored is None or stored == asked:
        return stored is not None
    if pat.is_string(asked):
        return bool(pat.is_large_string(stored))
    if pat.is_binary(asked):
        return bool(pat.is_large_binary(stored) or pat.is_fixed_size_binary(stored))
    if pat.is_list(asked):
        is_list = pat.is_list(stored) or pat.is_large_list(stored) or pat.is_fixed_size_list(stored)
        return is_list and is_compatible(stored.value_type, asked.value_type)
    if pat.is_timestamp(asked) and asked.tz is not None:
        return bool(pat.is_timestamp(stored) and stored.tz is not None and stored.unit in _COARSER[asked.unit])
    if pat.is_float32(asked):
        return bool(pat.is_float16(stored))
    if pat.is_date32(asked):
        return bool(pat.is_date64(stored))
    return bool(pat.is_time64(asked) and pat.is_time32(stored))


_COARSER = {"s": ("s",), "ms": ("s", "ms"), "us": ("s", "ms", "us"), "ns": ("s", "ms", "us", "ns")}


def check_names(operator: str, names: Any, schema: pa.Schema) -> tuple[str, ...]:
    """Return names of columns as a tuple; raise if one is unknown or repeated."""
    column_names = tuple(names)
    unknown = [name for name in column_names if not isinstance(name, str) or schema.get_field_index(name) < 0]
    if unknown:
        raise SchemaMismatch(f"{operator}: there is no column {unknown[0]!r}; the columns are {schema.names}")
    if len(set(column_names)) < len(column_names):
        raise SchemaMismatch(f"{operator}: the columns {list(column_names)} are not distinct")
    return column_names


def pair_join_columns(operator: str, on: On, left: pa.Schema, right: pa.Schema) -> Pairs:
    """Return the keys of a join as pairs of column names, of equal types."""
    if isinstance(on, str):
        on = [on]
    if not isinstance(on, Mapping | Sequence):
        raise InvalidUsage(
            f"{operator}: on={on!r} does not say which columns: give names, or {{this one's: the other's}}"
        )
    pairs = tuple(on.items()) if isinstance(on, Mapping) else tuple((name, name) for name in on)
    if not pairs:
        raise InvalidUsage(f"{operator}: on={on!r} names no columns; for all pairs of records use cross()")
    check_names(f"{operator}, left side", [left_name for left_name, _ in pairs], left)
    check_names(f"{operator}, right side", [right_name for _, right_name in pairs], right)
    for left_name, right_name in pairs:
        left_type, right_type = left.field(left_name).type, right.field(right_name).type
        if left_type != right_type:
            raise SchemaMismatch(
                f"{operator}: {left_name!r} is of type {left_type} on the left, and {right_name!r} of type "
                f"{right_type} on the right. Cast one of them with map or extend."
            )
    return pairs


def join_schemas(operator: str, left: pa.Schema, right: pa.Schema, pairs: Pairs) -> pa.Schema:
    """Return the columns of a join: the left's, and the right's without its key."""
    keys = {right_name for _, right_name in pairs}
    fields = [field for field in right if field.name not in keys]
    common = [field.name for field in fields if left.get_field_index(field.name) >= 0]
    if common:
        raise SchemaMismatch(
            f"{operator}: both sides have a column {common[0]!r} that is not part of the key; "
            f"rename({{{common[0]!r}: …}}) one"
        )
    return pa.schema([*left, *fields])


def check_same_schema(schemas: Sequence[tuple[pa.Schema, str]]) -> pa.Schema:
    """Return the common columns of all schemas; raise if they differ."""
    first, title = schemas[0]
    for schema, other_title in schemas[1:]:
        if (schema.names, schema.types) != (first.names, first.types):
            raise SchemaMismatch(
                f"concat: {title} has the columns {format_schema(first)}, and {other_title} has "
                f"{format_schema(schema)}: map one to the other"
            )
    return first


def check_column_names(operator: str, schema: pa.Schema) -> None:
    """Raise SchemaMismatch if a name occurs twice, or is `_time` or `_diff`."""
    for name in schema.names:
        if name in ("_time", "_diff"):
            raise SchemaMismatch(f"{operator}: a column cannot be called {name!r}: choose another name")
        if schema.names.count(name) > 1:
            raise SchemaMismatch(f"{operator}: column {name!r} would be there twice; rename one of them")


def select_fields(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """Return some columns of a schema."""
    return pa.schema([schema.field(name) for name in names])


def format_schema(schema: pa.Schema) -> str:
    """Return columns for a message."""
    return ", ".join(f"{field.name}: {field.type}" for field in schema) or "none"
