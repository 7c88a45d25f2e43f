"""Converts between Arrow and numpy arrays over the same memory.

`pyarrow.array` and `to_numpy` do much of this, but import pandas for that, which takes most of a second.
"""

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat


def make_plain_array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Convert Python values, which certainly fit a type, to an array."""
    if None not in values:
        if kind == pa.int64():
            return make_int64_array(np.fromiter(values, np.int64, len(values)))
        if kind == pa.string():
            ends = np.zeros(len(values) + 1, np.int32)
            np.cumsum([len(value) for value in values], out=ends[1:])
            text = "".join(values).encode("ascii")
            return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(ends), pa.py_buffer(text)])
    return pa.array(values, kind)


def make_int64_array(values: npt.NDArray[np.int64]) -> pa.Array:
    """Return int64 values as an array over the same memory."""
    assert values.dtype == np.int64
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def make_boolean_array(values: npt.NDArray[np.bool_]) -> pa.Array:
    """Return booleans as an array."""
    assert values.dtype == np.bool_
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(np.packbits(values, bitorder="little"))])


def get_int64_values(array: pa.Array) -> npt.NDArray[np.int64]:
    """Return the values of an array of 64-bit integers without NULL, over the same memory."""
    assert array.null_count == 0
    assert array.type.bit_width == 64
    if not len(array):
        return np.zeros(0, np.int64)
    values: npt.NDArray[np.int64] = np.frombuffer(array.buffers()[1], np.int64, len(array), array.offset * 8)
    return values


def get_boolean_values(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Return the values of an array of booleans without NULL."""
    assert array.null_count == 0
    values: npt.NDArray[np.bool_] = get_stored_numbers(array.cast(pa.uint8())).view(np.bool_)
    return values


def find_min_max(values: npt.NDArray[np.int64]) -> tuple[int, int]:
    """Return the least and the greatest value."""
    return int(np.minimum.reduce(values)), int(np.maximum.reduce(values))


def copy_table(table: pa.Table) -> pa.Table:
    """Return a copy of a table in new buffers, with one chunk for each column if its type allows.

    Cost: 3 to 10 ms for a million rows of four columns of 8 bytes.
    """
    columns = [pa.chunked_array([pa.concat_arrays(c.chunks)] if c.num_chunks else [], c.type) for c in table.columns]
    return pa.Table.from_arrays(columns, schema=table.schema)


def get_stored_numbers(array: pa.Array, dtype: str | None = None) -> npt.NDArray[Any]:
    """Return the buffer of fixed-width values as numbers; arbitrary for NULL.

    `dtype`: a narrower type, of which each value has several numbers; None for one number of the value's width.
    """
    width = array.type.bit_width // 8
    number = _get_integer_type(array.type) if dtype is None else np.dtype(dtype)
    if not len(array):
        return np.zeros(0, number)
    return np.frombuffer(array.buffers()[1], number, len(array) * (width // number.itemsize), array.offset * width)


@lru_cache(maxsize=256)
def _get_integer_type(kind: pa.DataType) -> "np.dtype[Any]":
    """Return the numpy type with a type's width: integer or float."""
    letter = "f" if pat.is_floating(kind) else "u" if pat.is_unsigned_integer(kind) else "i"
    return np.dtype(f"{letter}{kind.bit_width // 8}")


def get_byte_ranges(array: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return the start and length of each string (0 for NULL), and all bytes."""
    kind, buffers = array.type, array.buffers()
    if pat.is_fixed_size_binary(kind):
        starts = np.arange(array.offset, array.offset + len(array), dtype=np.int64) * kind.byte_width
        lengths = np.full(len(array), kind.byte_width, np.int64)
    else:
        offset = np.dtype("i8" if pat.is_large_string(kind) or pat.is_large_binary(kind) else "i4")
        bounds = np.zeros(1, np.int64)
        if len(array):  # An empty array may have no buffer.
            stored = np.frombuffer(buffers[1], offset, len(array) + 1, array.offset * offset.itemsize)
            bounds = stored.astype(np.int64, copy=False)
        starts, lengths = bounds[:-1], np.diff(bounds)
    if array.null_count:  # The value behind a NULL is undefined.
        lengths = lengths * get_boolean_values(array.is_valid())
    return starts, lengths, np.frombuffer(buffers[-1] or b"", np.uint8)
