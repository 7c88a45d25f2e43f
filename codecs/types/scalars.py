"""Single flat values as JSON, exactly: for the statistics and sample keys in a part's descriptor.

    bool                         true, false
    integers                     number
    floats                       string, Python's repr of the double: "0.1", "nan", "inf", "-inf"
    decimals                     string: "-12.50"
    strings                      string
    binary                       string, base64
    date, time, timestamp, duration    number: the integer Arrow stores, in the type's unit
    NULL                         null

A reader needs the type to read one back; it is the collection's.
"""

import base64
import decimal
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from persist.codecs.order.arrays import int64_array
from persist.codecs.types.arrow_types import Json, is_flat

__all__ = ["is_flat", "scalar_from_json", "scalar_to_json", "written_type"]


def scalar_to_json(value: pa.Scalar) -> Json:
    """Return the written form of a flat scalar; raises ValueError for a nested type."""
    t = value.type
    if not is_flat(t):
        raise ValueError(f"{t} is not a flat type")
    if not value.is_valid:
        return None
    if pat.is_temporal(t):
        return int(value.value)
    stored: Any = value.as_py()
    if pat.is_floating(t):
        return repr(float(stored))
    if pat.is_decimal(t):
        return str(stored)
    return base64.b64encode(stored).decode("ascii") if isinstance(stored, bytes) else stored


def integers_to_json(column: pa.ChunkedArray, rows: list[int]) -> list[Json]:
    """Return the written form of some values of a column of integers or times; all at once, which is faster."""
    taken = column.take(int64_array(np.array(rows, np.int64))).combine_chunks()
    array: pa.Array = taken.chunk(0) if isinstance(taken, pa.ChunkedArray) else taken
    if pat.is_temporal(array.type):
        array = array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
    values: list[Json] = array.to_pylist()
    return values


def scalar_from_json(j: Json, t: pa.DataType) -> pa.Scalar:
    """Return the scalar of type `t` that `j` stands for; raises ValueError if it stands for none."""
    if not is_flat(t):
        raise ValueError(f"{t} is not a flat type")
    if j is None:
        return pa.scalar(None, t)
    expected = written_type(t)
    if type(j) is not expected:
        raise ValueError(f"{j!r:.80} is not the written form of a value of type {t}")
    try:
        return _from_written(j, t)
    except (pa.ArrowException, OverflowError, decimal.InvalidOperation, ValueError) as error:
        raise ValueError(f"{j!r:.80} is not the written form of a value of type {t}: {error}") from error


@lru_cache(maxsize=1024)
def written_type(t: pa.DataType) -> type:
    """Return the Python type of the written form of values of a flat type, NULL aside."""
    if pat.is_boolean(t):
        return bool
    return int if pat.is_integer(t) or pat.is_temporal(t) else str


def _from_written(j: Any, t: pa.DataType) -> pa.Scalar:
    if pat.is_temporal(t):
        return pa.array([j], pa.int32() if t.bit_width == 32 else pa.int64()).view(t)[0]
    if pat.is_floating(t):
        return pa.scalar(float(j), t)
    if pat.is_decimal(t):
        return pa.scalar(decimal.Decimal(j), t)
    if pat.is_binary(t) or pat.is_large_binary(t) or pat.is_fixed_size_binary(t):
        return pa.scalar(base64.b64decode(j, validate=True), t)
    return pa.scalar(j, t)
