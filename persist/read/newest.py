"""Which row a key holds where it holds one at most: what its newest update says, and nothing older is looked at.

Updates of such a key at one time are at most the retraction of one row and the insertion of another. So of the latest
time at which a key has updates, the inserted row is what the key holds after that, and if there is none, it holds
nothing. Whoever looks from the newest updates to the oldest is done with a key at the first that are found: what a
look-up costs is then in proportion to the keys, however many updates each of them has had.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from persist.codecs import SortedKeys, boolean_array, combined, consolidate, int64_array, int64_values

Ints: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Aged:
    """Updates with wanted keys.

    Attributes:
        table: all columns of the schema, those of the key first, and perhaps `_time` and `_diff`, in the order of keys.
        time: that of all of them; None if each has its own, in a column.
        diff: likewise.
    """

    table: pa.Table
    time: int | None
    diff: int | None

    @property
    def times(self) -> Ints:
        """int64[rows]."""
        return self._column("_time", self.time)

    @property
    def diffs(self) -> Ints:
        """int64[rows]."""
        return self._column("_diff", self.diff)

    def _column(self, name: str, same: int | None) -> Ints:
        if same is not None:
            return np.full(len(self.table), same, np.int64)
        return int64_values(combined(self.table[name]))


def by_age(spans: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Return the numbers of some intervals of times, ends inclusive: the latest first, those that overlap together."""
    ages: list[list[int]] = []
    start = 0
    for number in sorted(range(len(spans)), key=lambda number: spans[number][1], reverse=True):
        if not ages or spans[number][1] < start:
            ages.append([])
            start = spans[number][0]
        ages[-1].append(number)
        start = min(start, spans[number][0])
    return ages


def newest(found: Sequence[Aged], left: SortedKeys, names: Sequence[str]) -> tuple[list[pa.Table], SortedKeys]:
    """Return the rows that keys hold after some updates, and the keys that have none among these.

    Args:
        found: updates at times of which no other is between; those of other keys than the ones left do not count.
        left: keys of which no update is known yet.
        names: the columns of the schema.
    """
    keys = list(left.batch.schema.names)
    places = [_places(each, left, keys) for each in found]
    if not _are_apart(places):
        found = [_together(found, names)]
        places = [_places(found[0], left, keys)]
    rows = [_last(each, at).select(list(names)) for each, at in zip(found, places, strict=True)]
    is_left = np.ones(len(left), np.bool_)
    for at in places:
        is_left[at[at >= 0]] = False
    return rows, left if is_left.all() else left.some(np.flatnonzero(is_left))


def _places(updates: Aged, left: SortedKeys, keys: Sequence[str]) -> Ints:
    """Return int64[rows], ascending but for -1: where the key of each update is among those left, -1 if it is not."""
    places = left.places(SortedKeys(updates.table.select(keys)))
    assert places is not None, "keys that cannot be packed are not looked up by age"
    return places


def _are_apart(places: Iterable[Ints]) -> bool:
    """Whether no key has updates in two tables: each of them has those of an interval of keys."""
    inside = (each[each >= 0] for each in places)
    ends = sorted((int(each[0]), int(each[-1])) for each in inside if len(each))
    return all(last < first for (_, last), (first, _) in pairwise(ends))


def _together(found: Sequence[Aged], names: Sequence[str]) -> Aged:
    """Return updates of several tables as those of one, in which what cancels is gone."""
    times, diffs = (pa.field(name, pa.int64(), nullable=False) for name in ("_time", "_diff"))
    tables = [
        each.table.select(list(names))
        .append_column(times, int64_array(each.times))
        .append_column(diffs, int64_array(each.diffs))
        for each in found
    ]
    return Aged(consolidate(pa.concat_tables(tables), [*names, "_time"]), None, None)


def _last(updates: Aged, places: Ints) -> pa.Table:
    """Return the rows that are inserted at the latest time of their key, of the keys that are left."""
    kept = places >= 0
    if updates.diff is None:
        kept &= updates.diffs > 0
    elif updates.diff < 0:
        kept[:] = False
    if updates.time is None and len(places):
        starts = np.ones(len(places), np.bool_)
        starts[1:] = places[1:] != places[:-1]
        firsts = np.flatnonzero(starts)
        times = updates.times
        kept &= times == np.maximum.reduceat(times, firsts)[np.cumsum(starts) - 1]
    return updates.table if kept.all() else updates.table.filter(boolean_array(kept))
