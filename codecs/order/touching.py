"""Which rows of a sorted table have a key that another table has, too.

Keys of both tables are packed into 64 bits each, in the order of keys (see `digits`): as much of a key as fits. So a
row may be taken for touched because its key begins like another one, never the other way round; whoever uses this only
does needless work on such rows. Costs one pass over the sorted table's keys and a binary search for each distinct key
of the other.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from persist.codecs.order.arrays import boolean_array, int64_array, int64_values
from persist.codecs.order.digits import dense_ranks
from persist.codecs.order.ordering import combined, order_keys, row_sorter

Packed: TypeAlias = npt.NDArray[np.uint64 | np.int64]


class Touching:
    """The keys of some rows, to split sorted tables by.

    Args:
        rows: in any order, floats canonical; not empty.
        names: the key columns, one at least.
    """

    def __init__(self, rows: pa.Table, names: Sequence[str]) -> None:
        self._names = list(names)
        self._rows = rows.select(self._names)
        integers = _integers(self._rows, self._names)
        self._integers = None if integers is None else _distinct(integers)

    def split(self, table: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Return the rows of a table that rows have a key in common with, and perhaps some more; and the others.

        Args:
            table: sorted by names, floats canonical; it may have other columns besides.
        """
        mask = self.mask(table)
        if not mask.any():
            return table.slice(0, 0), table
        return table.take(int64_array(np.flatnonzero(mask))), table.filter(boolean_array(~mask))

    def mask(self, table: pa.Table) -> npt.NDArray[np.bool_]:
        """Return bool[rows of table]: True wherever rows have the same key; elsewhere mostly False."""
        if self._integers is not None and (keys := _integers(table, self._names)) is not None:
            return _members(keys, self._integers)
        both = pa.concat_tables([table.select(self._names), self._rows]).combine_chunks()
        packed = row_sorter(both, self._names).packed
        return _members(packed[: len(table)], _distinct(packed[len(table) :]))

    def exact(self, table: pa.Table) -> npt.NDArray[np.bool_]:
        """Return bool[rows of table]: True where rows have the same key, and nowhere else; table needs no order."""
        if self._integers is not None and (keys := _integers(table, self._names)) is not None:
            at = np.searchsorted(self._integers, keys)
            at[at == len(self._integers)] = 0  # Beyond the last one: any other is not equal either.
            same: npt.NDArray[np.bool_] = self._integers[at] == keys
            return same
        both = pa.concat_tables([table.select(self._names), self._rows]).combine_chunks()
        ranks = dense_ranks(order_keys(both, self._names))
        # Not np.isin, which hashes.
        wanted = np.zeros(len(both), np.bool_)
        wanted[ranks[len(table) :]] = True
        found: npt.NDArray[np.bool_] = wanted[ranks[: len(table)]]
        return found


def _integers(table: pa.Table, names: Sequence[str]) -> npt.NDArray[np.int64] | None:
    """Return the keys themselves, if they are one column of 64-bit integers or times without NULL."""
    column = table.column(names[0])
    kind = column.type
    if len(names) > 1 or column.null_count or pt.is_unsigned_integer(kind) or pt.is_floating(kind):
        return None
    if not (pt.is_int64(kind) or pt.is_timestamp(kind) or pt.is_duration(kind)):
        return None
    return int64_values(combined(pc.cast(column, pa.int64())))


def _distinct(values: Packed) -> Packed:
    values = np.sort(values)  # Not np.unique, which hashes: mostly they are sorted already.
    distinct: Packed = values[np.concatenate([[True], values[1:] != values[:-1]])]
    return distinct


def _members(ascending: Packed, wanted: Packed) -> npt.NDArray[np.bool_]:
    """Which of some ascending values are among wanted, which ascend, too, and are distinct."""
    members = np.zeros(len(ascending), dtype=np.bool_)
    starts = np.searchsorted(ascending, wanted)
    inside = starts < len(ascending)
    starts, wanted = starts[inside], wanted[inside]
    found = ascending[starts] == wanted
    starts, wanted = starts[found], wanted[found]
    members[starts] = True
    # Mostly a key has one row, and no second search is needed.
    again = starts + 1 < len(ascending)
    again[again] = ascending[starts[again] + 1] == wanted[again]
    if again.any():
        ends = np.searchsorted(ascending, wanted[again], side="right")
        edges = np.zeros(len(ascending) + 1, dtype=np.int8)
        edges[starts[again]] = 1
        edges[ends] -= 1
        members |= np.cumsum(edges[:-1], dtype=np.int8).astype(np.bool_)
    return members
