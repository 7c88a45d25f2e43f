"""Summing diffs: rows that are equal become one row, and a sum of zero leaves none.

Promise: the result of `consolidate` depends only on the multiset of the rows given, and no sum ever wraps:
one that leaves int64 raises `DiffOverflow`.

Rows are sorted (see `ordering`), so equal rows are neighbours and one pass of segmented sums remains.
Measured on 1M updates of 4 columns in 10 sorted runs, sorting takes a third of the time of Acero's hash
aggregation, because timsort finds the runs; and the result comes out in order.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from persist.codecs.errors import DiffOverflow
from persist.codecs.order.arrays import int64_array, int64_values
from persist.codecs.order.digits import Rows, RowSorter
from persist.codecs.order.ordering import canonical, combined, row_sorter
from persist.codecs.types.schema import DIFF

_PARALLEL_ROWS = 200_000  # From here on two threads gain more than they cost.
_INT64_MAX = 2**63 - 1
_LOW_BITS = 32
_LOW_MASK = (1 << _LOW_BITS) - 1

Diffs: TypeAlias = npt.NDArray[np.int64]


def consolidate(table: pa.Table, by: Sequence[str]) -> pa.Table:
    """Sum `_diff` over rows equal in the columns `by`, and drop rows whose sum is zero.

    Args:
        table: holds the columns by and `_diff` (int64 without NULL); other columns are left out of the
            result.
        by: names of columns of any supported type; may be empty, which gives one row at most.

    Returns:
        The columns by, in that order, then `_diff`, never zero, sorted by `by`. Floats are canonical. Equal input
        rows give one row.

    Raises:
        DiffOverflow: when a sum is outside int64.
    """
    # Whoever has no other use for the rows given has their memory back from here on.
    table = canonical(table.select([*by, DIFF]).combine_chunks())
    if table.num_rows == 0:
        return table
    diffs = int64_values(combined(table.column(DIFF)))
    if table.num_rows == 1:
        return table if diffs[0] else table.slice(0, 0)
    if not by:
        return pa.table({DIFF: [total]}, schema=table.schema) if (total := sum_all(diffs)) else table.slice(0, 0)
    sorter = row_sorter(table, by)
    if table.num_rows < _PARALLEL_ROWS or pa.cpu_count() < 2:
        return _consolidate_rows(table, diffs, sorter, None)
    with ThreadPoolExecutor(2) as threads:
        halves = threads.map(lambda rows: _consolidate_rows(table, diffs, sorter, rows), sorter.halves())
        return pa.concat_tables(halves)


def _consolidate_rows(table: pa.Table, diffs: Diffs, sorter: RowSorter, rows: Rows | None) -> pa.Table:
    order, starts = sorter.sort(rows)
    diffs = diffs[order]
    if not starts.all():
        firsts = np.flatnonzero(starts)
        order, diffs = order[firsts], sum_runs(diffs, firsts)
    if not diffs.all():
        kept = np.flatnonzero(diffs)
        order, diffs = order[kept], diffs[kept]
    return _take(table, order).set_column(table.num_columns - 1, table.field(DIFF), int64_array(diffs))


def sum_runs(diffs: Diffs, firsts: Rows) -> Diffs:
    """Sum each run of diffs; firsts holds the ascending positions where runs begin, the first of them 0.

    Raises:
        DiffOverflow: when a sum is outside int64.
    """
    largest = max(-int(diffs.min()), int(diffs.max()))
    if largest * len(diffs) <= _INT64_MAX:
        return np.add.reduceat(diffs, firsts)
    # Halves of 32 bits cannot overflow while a run has fewer than 2**31 rows.
    high = np.add.reduceat(diffs >> _LOW_BITS, firsts)
    low = np.add.reduceat(diffs & _LOW_MASK, firsts)
    high += low >> _LOW_BITS
    outside = np.flatnonzero((high < -(2**31)) | (high >= 2**31))
    if outside.size:
        total = (int(high[outside[0]]) << _LOW_BITS) + int(low[outside[0]] & _LOW_MASK)
        raise DiffOverflow(
            f"the diffs of one record sum to {total}, outside int64 [{-(2**63)}, {_INT64_MAX}]. "
            "Write diffs of smaller magnitude; nothing was wrapped."
        )
    sums: Diffs = (high << _LOW_BITS) | (low & _LOW_MASK)
    return sums


def exact_sum(diffs: Diffs, least: int | None = None, greatest: int | None = None) -> int:
    """The sum of all diffs, 0 for none, whatever its size; least and greatest are those of diffs if they are known."""
    if not len(diffs):
        return 0
    least, greatest = int(diffs.min()) if least is None else least, int(diffs.max()) if greatest is None else greatest
    if least == greatest:  # As almost always.
        return least * len(diffs)
    return int(diffs.sum()) if max(-least, greatest) * len(diffs) < 2**63 else sum(diffs.tolist())


def sum_all(diffs: Diffs) -> int:
    """The sum of all diffs, 0 for none. Raises DiffOverflow when it is outside int64."""
    return int(sum_runs(diffs, np.zeros(1, dtype=np.int64))[0]) if len(diffs) else 0


def _take(table: pa.Table, order: Rows) -> pa.Table:
    """The rows in that order; a slice, which copies nothing, when they are neighbours already."""
    if len(order) and int(order[-1]) - int(order[0]) == len(order) - 1 and bool((np.diff(order) == 1).all()):
        return table.slice(int(order[0]), len(order))
    return table.take(int64_array(order))
