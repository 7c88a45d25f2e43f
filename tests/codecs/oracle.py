"""The order of rows, written a second time in plain Python, one value at a time."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from persist.codecs.types.arrow_types import is_flat, list_inner_fields, replace_inner_types


def plain_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Python values, temporal ones as the integers that Arrow stores: Python's classes have less range."""
    values: list[Any] = column.cast(_integers(column.type)).to_pylist()
    return values


def sort_keys(table: pa.Table, names: Sequence[str]) -> list[tuple[Any, ...]]:
    """Per row, a tuple that sorts, compares and hashes as the row should."""
    columns = [[sort_key(table.schema.field(n).type, v) for v in plain_values(table[n])] for n in names]
    return list(zip(*columns, strict=True)) if columns else [()] * table.num_rows


def sort_key(kind: pa.DataType, value: Any) -> tuple[Any, ...]:
    if value is None:
        return (1,)
    if pt.is_floating(kind):
        return (0, 1, 0.0) if math.isnan(value) else (0, 0, value)
    if pt.is_struct(kind):
        return (0, *(sort_key(field.type, value[field.name]) for field in list_inner_fields(kind)))
    if pt.is_map(kind):
        pairs = [(sort_key(kind.key_type, k), sort_key(kind.item_type, v)) for k, v in value]
        return (0, tuple(pairs))
    if pt.is_nested(kind):
        return (0, tuple(sort_key(kind.value_type, element) for element in value))
    return (0, value.encode() if isinstance(value, str) else value)


def sums(table: pa.Table, names: Sequence[str]) -> dict[tuple[Any, ...], int]:
    """The sum of diffs per distinct row, without the zeros; unbounded."""
    counter: Counter[tuple[Any, ...]] = Counter()
    for key, diff in zip(sort_keys(table, names), table["_diff"].to_pylist(), strict=True):
        counter[key] += diff
    return {key: diff for key, diff in counter.items() if diff}


def _integers(kind: pa.DataType) -> pa.DataType:
    if pt.is_temporal(kind):
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    return (
        kind
        if is_flat(kind)
        else replace_inner_types(kind, [_integers(field.type) for field in list_inner_fields(kind)])
    )
