"""Leaving out pairs of rows that cancel, of two tables most of whose rows do: an insertion here, a retraction there.

Consolidating both tables would sort their rows by all columns, and take all columns of what is left. Here rows are
brought together by their keys alone, and their other columns are compared, which costs a third of that. What is left is
the same when it is consolidated: a pair is the same record with opposite diffs. Not all pairs are found, only those of
one row for each key.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.codecs.order.arrays import boolean_array, boolean_values, int64_array, int64_values
from persist.codecs.order.digits import Rows
from persist.codecs.order.ordering import combined
from persist.codecs.order.packed_keys import Layout, layout_of, packed
from persist.codecs.types.arrow_types import is_flat
from persist.codecs.types.schema import DIFF


def without_pairs(left: pa.Table, right: pa.Table, keys: tuple[str, ...]) -> tuple[pa.Table, pa.Table]:
    """Return the rows of two tables but for pairs of one row of each that are equal and have opposite diffs.

    Args:
        left, right: of the same flat columns and `_diff`, in any order of rows; floats are canonical. With other
            columns they are returned as they are.
        keys: the columns to bring rows together by.
    """
    if not keys or not len(left) or not len(right) or not all(is_flat(field.type) for field in left.schema):
        return left, right
    here, there = _single(left), _single(right)
    found = _one_for_each_key([here[name] for name in keys], [there[name] for name in keys])
    if found is None:
        return left, right
    at, other = found
    diffs = int64_values(_taken(here[DIFF], at))
    is_pair = (diffs == -int64_values(_taken(there[DIFF], other))) & (diffs != -(2**63))  # Which is its own negative.
    for name in left.column_names:
        if name not in (*keys, DIFF):
            is_pair &= _equal(_taken(here[name], at), _taken(there[name], other))
    return _without(left, at[is_pair]), _without(right, other[is_pair])


def _single(table: pa.Table) -> dict[str, pa.Array]:
    return {name: combined(table[name]) for name in table.column_names}


def _one_for_each_key(here: list[pa.Array], there: list[pa.Array]) -> tuple[Rows, Rows] | None:
    """Return row numbers of both sides with equal keys, each at most once; None if keys cannot be compared."""
    layout = _common_layout(layout_of(here), layout_of(there))
    if layout is None:
        return None
    a, b = packed(here, layout), packed(there, layout)
    if len(a) == len(b) and bool((a == b).all()) and bool((a[1:] > a[:-1]).all()):
        rows = np.arange(len(a))
        return rows, rows
    both = np.concatenate([a, b])
    order = both.argsort(kind="stable")  # Which finds that both are sorted, if they are.
    ordered, is_here = both[order], order < len(a)
    # Rows of one key are neighbours, those from here first: at most one pair of neighbours is from both sides.
    first = np.flatnonzero((ordered[1:] == ordered[:-1]) & is_here[:-1] & ~is_here[1:])
    return order[first], order[first + 1] - len(a)


def _common_layout(a: Layout | None, b: Layout | None) -> Layout | None:
    if a is None or b is None or a == b:
        return a if b is not None else None
    # In a layout as wide as both need, no text is cut, so that what is packed alike is alike.
    return Layout(False, tuple(map(max, a.widths, b.widths)))


def _taken(array: pa.Array, rows: Rows) -> pa.Array:
    if len(rows) and int(rows[-1]) - int(rows[0]) == len(rows) - 1 and bool((np.diff(rows) == 1).all()):
        return array.slice(int(rows[0]), len(rows))
    return array.take(int64_array(rows))


def _equal(a: pa.Array, b: pa.Array) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """Return where values are equal; NULL equals NULL, and canonical NaN equals itself."""
    if pat.is_floating(a.type):
        bits = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[a.type.bit_width]
        a, b = a.view(bits), b.view(bits)
    equal = boolean_values(pc.fill_null(pc.equal(a, b), False))
    if a.null_count and b.null_count:
        equal = equal | (boolean_values(a.is_null()) & boolean_values(b.is_null()))
    return equal


def _without(table: pa.Table, rows: Rows) -> pa.Table:
    kept = np.ones(len(table), np.bool_)
    kept[rows] = False
    return table.filter(boolean_array(kept))
