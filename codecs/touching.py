"""Which rows of a sorted table have a key that another table has, too.

Keys of both tables are packed into 64 bits each, in the order of keys (see `digits`): as much of a key as fits. So a
row may be taken for touched because its key begins like another one, never the other way round; whoever uses this only
does needless work on such rows. Costs one pass over the sorted table's keys and a binary search for each distinct key
of the other.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from persist.codecs.ordering import row_sorter


def touched_rows(tables: Sequence[pa.Table], other: pa.Table, names: Sequence[str]) -> list[npt.NDArray[np.bool_]]:
    """Per table bool[rows]: True wherever other has a row that is equal in names; elsewhere mostly False.

    Args:
        tables: each sorted by names, floats canonical.
        other: in any order, floats canonical; not empty.
        names: columns that all of them have, in which tables are sorted first.
    """
    keys = pa.concat_tables([*(table.select(names) for table in tables), other.select(names)])
    packed = row_sorter(keys.combine_chunks(), names).packed
    wanted = np.unique(packed[len(packed) - len(other) :])
    found, start = [], 0
    for table in tables:
        found.append(_members(packed[start : start + len(table)], wanted))
        start += len(table)
    return found


def _members(ascending: npt.NDArray[np.uint64], wanted: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
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
