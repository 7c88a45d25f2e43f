"""Sorting few rows as tuples of Python's: what numpy and Arrow take for each call is more than all of that.

A step of a dataflow, or an upsert of ten rows, sorts its rows several times on their way. Fourteen rows of four columns
take `digits.RowSorter` 150 µs otherwise, and this 20 µs.
"""

from collections.abc import Iterator, Sequence
from operator import ne
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

ROWS_MAX = 128  # Beyond, digits are as quick for two columns of numbers.


def few_sorted(columns: Sequence[pa.Array]) -> tuple[list[int], list[bool]] | None:
    """Sort the rows of some columns as `RowSorter.sort` does; None where Python orders their values in another way.

    Args:
        columns: at least one, flat, of one length that is not 0, floats canonical.

    Returns:
        The row numbers in order, and of each, in that order, whether it differs from the one before.
    """
    found = list[list[Any]]()
    for column in columns:
        for values in _values_of(column):
            if values is None:
                return None
            found.append(values)
    rows = found[0] if len(found) == 1 else list(zip(*found, strict=True))
    order = sorted(range(len(rows)), key=rows.__getitem__)
    ordered = [rows[at] for at in order]
    return order, [True, *map(ne, ordered[1:], ordered)]


def _values_of(column: pa.Array) -> Iterator[list[Any] | None]:
    """Yield lists of values that are together ordered as those of a column are; None for what has no such values."""
    kind = column.type
    if column.null_count:
        yield column.is_null().to_pylist()
        if column.null_count == len(column):
            return
        column = column.fill_null(column.drop_null()[0])
    if pt.is_integer(kind) or pt.is_temporal(kind):
        width = kind.bit_width // 8
        letter = "u" if pt.is_unsigned_integer(kind) else "i"
        # Not by to_numpy, which imports pandas.
        stored = column.buffers()[1]
        yield np.frombuffer(stored, f"{letter}{width}", len(column), column.offset * width).tolist()
    elif pt.is_string(kind) or pt.is_binary(kind) or pt.is_large_string(kind) or pt.is_large_binary(kind):
        yield column.to_pylist()
    elif pt.is_decimal128(kind) or pt.is_decimal256(kind):
        words = kind.bit_width // 64
        limbs = np.frombuffer(column.buffers()[1], np.uint64, words * len(column), 8 * words * column.offset)
        limbs = limbs.reshape(-1, words)
        yield limbs[:, -1].view(np.int64).tolist()
        for at in reversed(range(words - 1)):
            yield limbs[:, at].tolist()
    elif pt.is_floating(kind):
        values = column.to_pylist()
        yield None if any(map(ne, values, values)) else values  # A NaN is in no order with other numbers.
    else:
        yield column.to_pylist() if pt.is_boolean(kind) else None
