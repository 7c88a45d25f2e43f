"""Sums of whole numbers that never wrap, in columns of int64.

Integers are whole numbers, and so are decimals and durations by their unscaled values. They are added up as *limbs*:

    sum = limb[0] + limb[1] * 2**32 + … + limb[n - 1] * 2**(32 * (n - 1))

All limbs but the last are in [0, 2**32) when they are *normalized*; adding up fewer than 2**31 rows then overflows
none of them. How many are needed follows from a bound on all that is added, and it is mostly one. Numbers that may be
outside int64 before they are split are arrays of Python's integers: some hundred nanoseconds each, and exact.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

ROWS_MAX = 2**31 - 1  # That may be added up at a time.
LIMB_BITS = 32
LIMB_MASK = (1 << LIMB_BITS) - 1
TOP_BITS = 62  # Of what is added up in the last limb; the carries from below take less than one more.

Ints: TypeAlias = npt.NDArray[Any]  # int64, or Python's integers as objects.


def limbs_for(bound: int) -> int:
    """Return how many limbs a sum may need of which the terms' absolute values sum to bound at most."""
    return 1 + max(0, -((TOP_BITS - bound.bit_length()) // LIMB_BITS))


def normalized(limbs: Sequence[Ints]) -> list[Ints]:
    """Carry, so that all limbs but the last are in [0, 2**32)."""
    found: list[Ints] = []
    carry: Any = np.int64(0)
    for limb in limbs[:-1]:
        limb = limb + carry
        carry = limb >> LIMB_BITS
        found.append(limb & LIMB_MASK)
    return [*found, limbs[-1] + carry]


def split(values: Ints, count: int) -> list[Ints]:
    """Split whole numbers into that many limbs."""
    limbs, top = [], values
    for _ in range(count - 1):
        limbs.append((top & LIMB_MASK).astype(np.int64, copy=False))
        top = top >> LIMB_BITS
    return [*limbs, top.astype(np.int64, copy=False)]


def joined(limbs: Sequence[Ints]) -> Ints:
    """Return the numbers that normalized limbs stand for: int64 if all of them fit."""
    *rest, values = limbs
    for limb in reversed(rest):
        if values.dtype != object and len(values) and largest_of(values) >= 2**31:
            values = values.astype(object)
        values = (values << LIMB_BITS) | (limb if values.dtype != object else limb.astype(object))
    return values


def largest_of(values: Ints) -> int:
    """Return the largest absolute value; 0 for none."""
    return max(-int(values.min()), int(values.max()), 0) if len(values) else 0


def products(values: Ints, diffs: Ints) -> tuple[Ints, int]:
    """Return values * diffs, and what the absolute value of none of them exceeds."""
    largest = largest_of(values) * largest_of(diffs)
    if largest >= 2**63 or values.dtype == object:
        return values.astype(object) * diffs.astype(object), largest
    return values * diffs, largest


def whole_numbers(column: pa.ChunkedArray) -> Ints:
    """Return the values, or unscaled values, of a column, 0 for NULL: int64 if all of them fit."""
    type_ = column.type
    if not len(column):
        return np.zeros(0, np.int64)
    if pat.is_decimal(type_):
        return _unscaled(column)
    if pat.is_uint64(type_):
        values: Ints = column.fill_null(0).to_numpy()
        return values.astype(np.int64) if values.max() < 2**63 else values.astype(object)
    whole: Ints = column.cast(pa.int64()).fill_null(0).to_numpy()
    return whole


def _unscaled(column: pa.ChunkedArray) -> Ints:
    array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    words = column.type.bit_width // 64
    raw = np.frombuffer(array.buffers()[1], np.int64).reshape(-1, words)[array.offset : array.offset + len(array)]
    if array.null_count:
        valid: Ints = array.is_valid().to_numpy(zero_copy_only=False)
        raw = raw * valid[:, None]
    low = raw[:, 0]
    sign = low >> 63
    if all((raw[:, word] == sign).all() for word in range(1, words)):
        return np.ascontiguousarray(low)
    values = raw[:, words - 1].astype(object)
    for word in reversed(range(words - 1)):
        values = (values << 64) | raw[:, word].view(np.uint64).astype(object)
    return values


def from_whole_numbers(values: Ints, type_: pa.DataType) -> pa.Array:
    """Return whole numbers that are within `limits` as an array of a type: an integer, a decimal or a duration."""
    if pat.is_decimal(type_):
        return _decimals(values, type_)
    if pat.is_duration(type_):
        return pa.array(values.astype(np.int64)).view(type_)
    return pa.array(values.astype(np.uint64 if pat.is_uint64(type_) else np.int64))


def limits(type_: pa.DataType) -> tuple[int, int]:
    """Return the least and the greatest whole number of a type; of durations and small integers those of int64."""
    if pat.is_decimal(type_):
        largest: int = 10**type_.precision - 1
        return -largest, largest
    return (0, 2**64 - 1) if pat.is_uint64(type_) else (-(2**63), 2**63 - 1)


def _decimals(unscaled: Ints, type_: pa.DataType) -> pa.Array:
    width = type_.bit_width // 8
    if unscaled.dtype == object:
        data = b"".join(int(value).to_bytes(width, "little", signed=True) for value in unscaled)
    else:
        raw = np.repeat(unscaled[:, None] >> 63, width // 8, axis=1)
        raw[:, 0] = unscaled
        data = raw.tobytes()
    return pa.Array.from_buffers(type_, len(unscaled), [None, pa.py_buffer(data)])
