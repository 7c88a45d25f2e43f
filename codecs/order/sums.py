"""Sums that never wrap: consolidation of equal rows by their diffs, and exact sums of whole numbers in columns.

Promise: the result of `consolidate` depends only on the multiset of its rows; a sum of diffs beyond int64 raises
`DiffOverflow`.

Rows are sorted (see `ordering`), so equal rows are neighbours and one pass of segmented sums remains.
Measured on 1M updates of 4 columns in 40 sorted runs, this takes half of the time of Acero's hash aggregation;
and the result comes out in order.

Integers, decimals and durations (by their unscaled values) are added up in columns of int64, as *limbs*:

    sum = limb[0] + limb[1] * 2**32 + … + limb[n - 1] * 2**(32 * (n - 1))

All limbs but the last are in [0, 2**32) when they are *normalized*; adding up fewer than 2**31 rows then overflows none
of them. A bound on the sum determines their number, mostly one. Numbers that may exceed int64 before the split are
arrays of Python's integers: exact, but some hundred nanoseconds each.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from persist.codecs.errors import DiffOverflow
from persist.codecs.order.arrays import get_int64_values, get_stored_numbers, make_int64_array
from persist.codecs.order.digits import Rows
from persist.codecs.order.ordering import combine_chunks, make_canonical, sort_table
from persist.codecs.types.schema import DIFF

_INT64_MAX = 2**63 - 1
ROWS_MAX = 2**31 - 1  # That may be added up at a time.
LIMB_BITS = 32
LIMB_MASK = (1 << LIMB_BITS) - 1
TOP_BITS = 62  # The bits of the top limb; the carries from below take less than one more.

Ints: TypeAlias = npt.NDArray[Any]  # int64, or Python's integers as objects.
Diffs: TypeAlias = npt.NDArray[np.int64]


def consolidate(table: pa.Table, by: Sequence[str]) -> pa.Table:
    """Sum `_diff` over rows equal in the columns `by`, and drop rows whose sum is zero.

    Args:
        table: holds the columns by and `_diff` (int64 without NULL); other columns are left out of the
            result.
        by: names of columns of any supported type; may be empty, which leaves at most one row.

    Returns:
        The columns by, in that order, then `_diff`, never zero, sorted by `by`. Floats are canonical. Equal input
        rows give one row.

    Raises DiffOverflow: when a sum is outside int64.
    """
    # From here on, the memory of the input can be freed if its caller does not use it.
    table = make_canonical(table.select([*by, DIFF]).combine_chunks())
    if table.num_rows == 0:
        return table
    diffs = get_int64_values(combine_chunks(table.column(DIFF)))
    if table.num_rows == 1:
        return table if diffs[0] else table.slice(0, 0)
    if not by:
        return pa.table({DIFF: [total]}, schema=table.schema) if (total := sum_all(diffs)) else table.slice(0, 0)
    order, starts = sort_table(table, by)
    diffs = diffs[order]
    if not starts.all():
        (firsts,) = starts.nonzero()
        order, diffs = order[firsts], sum_runs(diffs, firsts)
    if not diffs.all():
        (nonzero,) = diffs.nonzero()
        order, diffs = order[nonzero], diffs[nonzero]
    return _take_rows(table, order).set_column(table.num_columns - 1, table.field(DIFF), make_int64_array(diffs))


def sum_runs(diffs: Diffs, firsts: Rows) -> Diffs:
    """Sum each run of diffs; firsts holds the ascending positions where runs begin, the first of them 0.

    Raises DiffOverflow: when a sum is outside int64.
    """
    largest = max(-int(diffs.min()), int(diffs.max()))
    if largest * len(diffs) <= _INT64_MAX:
        return np.add.reduceat(diffs, firsts)
    # Halves of 32 bits cannot overflow while a run has fewer than 2**31 rows.
    high = np.add.reduceat(diffs >> LIMB_BITS, firsts)
    low = np.add.reduceat(diffs & LIMB_MASK, firsts)
    high += low >> LIMB_BITS
    outside = np.flatnonzero((high < -(2**31)) | (high >= 2**31))
    if outside.size:
        total = (int(high[outside[0]]) << LIMB_BITS) + int(low[outside[0]] & LIMB_MASK)
        raise DiffOverflow(
            f"the diffs of one record sum to {total}, outside int64 [{-(2**63)}, {_INT64_MAX}]. "
            "Write diffs of smaller magnitude; nothing was wrapped."
        )
    sums: Diffs = (high << LIMB_BITS) | (low & LIMB_MASK)
    return sums


def sum_exactly(diffs: Diffs, least: int | None = None, greatest: int | None = None) -> int:
    """Return the exact sum of diffs. `least` and `greatest`: their bounds, if known."""
    if not len(diffs):
        return 0
    least, greatest = int(diffs.min()) if least is None else least, int(diffs.max()) if greatest is None else greatest
    if least == greatest:  # As almost always.
        return least * len(diffs)
    return int(diffs.sum()) if max(-least, greatest) * len(diffs) < 2**63 else sum(diffs.tolist())


def sum_all(diffs: Diffs) -> int:
    """Return the sum of all diffs, 0 for none; raise DiffOverflow if it is outside int64."""
    return int(sum_runs(diffs, np.zeros(1, dtype=np.int64))[0]) if len(diffs) else 0


def _take_rows(table: Any, order: Rows) -> Any:
    """Return rows in an order; adjacent rows are sliced without a copy."""
    if len(order) and int(order[-1]) - int(order[0]) == len(order) - 1 and bool((np.diff(order) == 1).all()):
        return table.slice(int(order[0]), len(order))
    return table.take(make_int64_array(order))


def count_limbs(bound: int) -> int:
    """Return the number of 32-bit limbs for sums up to `bound`."""
    return 1 + max(0, -((TOP_BITS - bound.bit_length()) // LIMB_BITS))


def normalize_limbs(limbs: Sequence[Ints]) -> list[Ints]:
    """Normalize limbs by carrying, so that all but the last are in [0, 2**32)."""
    carried: list[Ints] = []
    carry: Any = np.int64(0)
    for limb in limbs[:-1]:
        limb = limb + carry
        carry = limb >> LIMB_BITS
        carried.append(limb & LIMB_MASK)
    return [*carried, limbs[-1] + carry]


def split_into_limbs(values: Ints, count: int) -> list[Ints]:
    """Split whole numbers into that many limbs."""
    limbs, top = [], values
    for _ in range(count - 1):
        limbs.append((top & LIMB_MASK).astype(np.int64, copy=False))
        top = top >> LIMB_BITS
    return [*limbs, top.astype(np.int64, copy=False)]


def join_limbs(limbs: Sequence[Ints]) -> Ints:
    """Return the numbers of normalized limbs: int64 if all of them fit."""
    *lower, values = limbs
    for limb in reversed(lower):
        if values.dtype != object and len(values) and find_largest_magnitude(values) >= 2**31:
            values = values.astype(object)
        values = (values << LIMB_BITS) | (limb if values.dtype != object else limb.astype(object))
    return values


def find_largest_magnitude(values: Ints) -> int:
    """Return the largest absolute value; 0 for none."""
    return max(-int(values.min()), int(values.max())) if len(values) else 0


def multiply(values: Ints, diffs: Ints) -> tuple[Ints, int]:
    """Return values * diffs, and an upper bound of their magnitudes."""
    largest = find_largest_magnitude(values) * find_largest_magnitude(diffs)
    if largest >= 2**63 or values.dtype == object:
        return values.astype(object) * diffs.astype(object), largest
    return values * diffs, largest


def to_whole_numbers(column: pa.ChunkedArray) -> Ints:
    """Return the values, or unscaled values, of a column, 0 for NULL: int64 if all of them fit."""
    type_ = column.type
    if not len(column):
        return np.zeros(0, np.int64)
    if pat.is_decimal(type_):
        return _read_unscaled(column)
    if pat.is_uint64(type_):
        values: Ints = column.fill_null(0).to_numpy()
        return values.astype(np.int64) if values.max() < 2**63 else values.astype(object)
    whole: Ints = column.cast(pa.int64()).fill_null(0).to_numpy()
    return whole


def _read_unscaled(column: pa.ChunkedArray) -> Ints:
    """Return decimals as integers of their last digit's unit; NULL as 0."""
    array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    words = column.type.bit_width // 64
    raw = get_stored_numbers(array, "i8").reshape(-1, words)
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
    """Return whole numbers that are within `get_limits` as an array of a type: an integer, a decimal or a duration."""
    if pat.is_decimal(type_):
        width = type_.bit_width // 8
        if values.dtype == object:
            data = b"".join(int(value).to_bytes(width, "little", signed=True) for value in values)
        else:
            raw = np.repeat(values[:, None] >> 63, width // 8, axis=1)
            raw[:, 0] = values
            data = raw.tobytes()
        return pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(data)])
    if pat.is_duration(type_):
        return pa.array(values.astype(np.int64)).view(type_)
    return pa.array(values.astype(np.uint64 if pat.is_uint64(type_) else np.int64))


def get_limits(type_: pa.DataType) -> tuple[int, int]:
    """Return the least and greatest integer of a type; int64 for durations and small integers."""
    if pat.is_decimal(type_):
        largest: int = 10**type_.precision - 1
        return -largest, largest
    return (0, 2**64 - 1) if pat.is_uint64(type_) else (-(2**63), 2**63 - 1)
