"""Batches: many updates as one int64 matrix, sorted by a hash of the key and of the value, and consolidated.

    updates = int64[words + dimensions + 1, n]      the words of the records, the times, the diffs; in any order
    batch   = int64[1 + words + dimensions + 1, n]  the same with the key's words first, under a row of hashes

The upper half of the hash comes from the key's words, the lower half from the value's. So one sort of one row brings
equal keys together, and equal records within them; a look-up is a binary search of one row. Hashes only order: whatever
is found by them is compared by its words. One matrix rather than an array per column was preferred, because the number
of numpy calls determines the cost of small steps.

The hash is the same on every machine, so a program that is run again processes updates in the same order.
Batches live in one process, or in its spill, and never reach storage.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from persist.codecs.errors import DiffOverflow
from persist.compute.dataflow.updates.times import Flags, Ints

HASH_VERSION = 1  # The version of `hash_columns`.
_LOW = np.int64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)
NONE: Ints = np.empty(0, np.int64)  # No rows.


@dataclass(frozen=True, slots=True)
class Layout:
    """How many words the key and the value have, and how many dimensions the times.

    Attributes:
        words: how many words a record has.
        height: how many rows a batch has as a matrix.
    """

    keys: int
    values: int
    dimensions: int
    words: int = field(init=False)
    height: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", self.keys + self.values)
        object.__setattr__(self, "height", self.words + self.dimensions + 2)

    def empty(self) -> Ints:
        """Return a batch without updates."""
        return np.empty((self.height, 0), np.int64)

    def key_rows(self, batch: Ints) -> Ints:
        """Return the rows of a batch with the words of keys."""
        return batch[1 : 1 + self.keys]

    def value_rows(self, batch: Ints) -> Ints:
        """Return the rows of a batch with the words of values."""
        return batch[1 + self.keys : 1 + self.words]

    def times(self, batch: Ints) -> Ints:
        """Return the rows of a batch with the coordinates of times."""
        return batch[1 + self.words : -1]


def hash_columns(rows: Ints) -> Any:
    """Return a hash, uint64[n], of each column of a matrix.

    It multiplies by 2**64 over the golden ratio, with shifts in between, as splitmix64 and Fibonacci hashing do.
    """
    hashes = rows[0].view(np.uint64) * _MULTIPLIER
    for row in rows[1:]:
        hashes ^= hashes >> _SHIFT
        hashes += row.view(np.uint64)
        hashes *= _MULTIPLIER
    hashes ^= hashes >> _HALF
    hashes *= _MULTIPLIER
    return hashes


def hash_keys(keys: Ints) -> Ints:
    """Return the least hash that a row with each key can have: its upper half."""
    if not len(keys):
        return np.zeros(keys.shape[1], np.int64)
    hashes: Ints = hash_columns(keys).view(np.int64)
    return hashes & ~_LOW


def to_batch(updates: Ints, layout: Layout) -> Ints:
    """Return updates whose key words come first as a batch."""
    if not updates.shape[1]:
        return layout.empty()
    hashes = hash_keys(updates[: layout.keys])
    if layout.values:
        hashes |= (hash_columns(updates[layout.keys : layout.words]) >> _HALF).view(np.int64)
    batch = np.empty((layout.height, updates.shape[1]), np.int64)
    order = _find_sort_order(hashes)
    if order is None:
        batch[0] = hashes
        batch[1:] = updates
    else:
        hashes.take(order, out=batch[0], mode="clip")
        updates.take(order, axis=1, out=batch[1:], mode="clip")
    return _consolidate(batch, is_own=True)


def find_uncancelled(updates: Ints) -> Flags:
    """Return which updates have diffs that do not cancel in sum, by record and time.

    Cost: a hash for each update; only updates that may equal a retraction are sorted.
    """
    is_kept = np.ones(updates.shape[1], np.bool_)
    is_negative = updates[-1] < 0
    if not is_negative.any():
        return is_kept
    hashes = hash_columns(updates[:-1])
    retracted = np.unique(hashes[is_negative])
    places = np.minimum(retracted.searchsorted(hashes), len(retracted) - 1)
    rows = np.flatnonzero(retracted[places] == hashes)
    _, groups = np.unique(updates[:-1, rows], axis=1, return_inverse=True)
    sums = np.zeros(len(rows), np.int64)
    np.add.at(sums, groups.reshape(-1), updates[-1, rows])
    is_kept[rows] = sums[groups.reshape(-1)] != 0
    return is_kept


def sort_and_consolidate(batch: Ints) -> Ints:
    """Sort and consolidate a batch whose hashes are set. Raises DiffOverflow: a sum of diffs does not fit int64."""
    order = _find_sort_order(batch[0])
    if order is not None:
        batch = batch.take(order, axis=1, mode="clip")
    return _consolidate(batch, is_own=order is not None)


def _find_sort_order(hashes: Ints) -> Ints | None:
    """Return an order of hashes, or None if they are sorted; ties are resolved later."""
    return hashes.argsort() if len(hashes) > 1 and (hashes[1:] < hashes[:-1]).any() else None


def _consolidate(batch: Ints, *, is_own: bool) -> Ints:
    """Consolidate a batch in the order of its hashes; with is_own it may be changed in place."""
    if batch.shape[1] < 2:
        return drop_zeros(batch)
    hashes = batch[0]
    tied = (hashes[1:] == hashes[:-1]).nonzero()[0]
    if len(tied):
        return _consolidate_ties(batch, tied, is_own)
    return drop_zeros(batch)


def check_sum(diff: int) -> None:
    """Raise DiffOverflow if a sum of diffs does not fit int64."""
    if not -(2**63) <= diff < 2**63:
        raise DiffOverflow(f"a multiplicity became {diff}, which does not fit int64: the diffs are too large")


def drop_zeros(updates: Ints) -> Ints:
    """Return the updates whose diff is not 0."""
    diffs = updates[-1]
    return updates if diffs.all() else updates[:, diffs != 0]


def _consolidate_ties(batch: Ints, tied: Ints, is_own: bool) -> Ints:
    """Consolidate a batch sorted by hash, where row tied[i] + 1 has the hash of row tied[i]."""
    differ = _find_differences(batch, tied)
    if differ.any():
        batch = batch if is_own else batch.copy()
        _sort_runs(batch, tied[_is_in_mixed_run(tied, differ)])
        differ = _find_differences(batch, tied)
    rows = batch.shape[1]
    starts = np.ones(rows, np.bool_)
    starts[tied[~differ] + 1] = False
    firsts = starts.nonzero()[0]
    if len(firsts) == rows:
        return drop_zeros(batch)
    sums = sum_runs(batch[-1], firsts)
    keep = sums != 0
    if not keep.all():
        firsts, sums = firsts[keep], sums[keep]
    batch = batch.take(firsts, axis=1, mode="clip")
    batch[-1] = sums
    return batch


def _find_differences(batch: Ints, rows: Ints) -> Flags:
    """Return where adjacent rows differ in a word or time."""
    every = batch[1:-1].take(rows, axis=1, mode="clip")
    return np.asarray((every != batch[1:-1].take(rows + 1, axis=1)).any(axis=0))


def _is_in_mixed_run(tied: Ints, differ: Flags) -> Flags:
    """Return which tied rows share their hash with a different row."""
    # A row is tied with the one behind it, so rows of a run follow each other without gaps.
    starts = np.ones(len(tied), np.bool_)
    starts[1:] = tied[1:] != tied[:-1] + 1
    firsts = starts.nonzero()[0]
    flags: Flags = np.logical_or.reduceat(differ, firsts).take(starts.cumsum() - 1)
    return flags


def _sort_runs(batch: Ints, tied: Ints) -> None:
    """Sort each run of equal hashes by words and time, in place."""
    member = np.zeros(batch.shape[1], np.bool_)
    member[tied] = True
    member[tied + 1] = True
    places = member.nonzero()[0]
    runs = batch.take(places, axis=1, mode="clip")
    # Words of one record mostly agree, so its times decide most often; but equal records must come together.
    order = np.lexsort((*runs[-2:0:-1], runs[0]))
    batch[:, places] = runs.take(order, axis=1, mode="clip")


def sum_runs(diffs: Ints, firsts: Ints) -> Ints:
    """Return the sum of diffs of each run; firsts are the runs' beginnings.

    Raises DiffOverflow: a sum does not fit int64.
    """
    if len(diffs) and len(diffs) * max(int(diffs.max()), -int(diffs.min())) >= 2**63:
        exact = np.add.reduceat(diffs.astype(object), firsts)
        for total in exact:
            check_sum(total)
    return np.add.reduceat(diffs, firsts)


def multiply_diffs(ones: Ints, others: Ints) -> Ints:
    """Return the products of diffs. Raises DiffOverflow: one does not fit int64."""
    product = ones * others
    if len(ones) and compute_largest_magnitude(ones) * compute_largest_magnitude(others) >= 2**63:
        exact = ones.astype(object) * others.astype(object)
        if (exact != product).any():
            raise DiffOverflow(f"a product of multiplicities is up to {abs(exact).max()}, which does not fit int64")
    return product


def negate_diffs(diffs: Ints) -> Ints:
    """Return the opposite diffs. Raises DiffOverflow: one does not fit int64."""
    if len(diffs) and diffs.min() == -(2**63):
        raise DiffOverflow(f"the opposite of the multiplicity {-(2**63)} does not fit int64: the diffs are too large")
    return -diffs


def compute_largest_magnitude(diffs: Ints) -> int:
    """Return the greatest magnitude of diffs, exact also for -2**63."""
    return max(int(diffs.max()), -int(diffs.min()))


def find_run_starts(*columns: Ints) -> Ints:
    """Return where each run of rows equal in all columns begins."""
    if len(columns[0]) < 2:
        return np.zeros(len(columns[0]), np.int64)
    differs = columns[0][1:] != columns[0][:-1]
    for column in columns[1:]:
        differs |= column[1:] != column[:-1]
    return np.concatenate(([0], np.flatnonzero(differs) + 1))


def match_keys(hashes: Ints, keys: Ints, batch: Ints) -> tuple[Ints, Ints]:
    """Return all pairs `(i, j)` where row j of a batch has key i.

    Args:
        hashes: `hash_keys(keys)`, ascending for speed.
        keys: int64[k, n].
    """
    every = batch[0]
    # The upper half of a row's hash is the key's, so the rows of a key lie from its hash to hash | _LOW.
    lower = every.searchsorted(hashes)
    counts = every.searchsorted(hashes | _LOW, side="right") - lower
    ends = counts.cumsum()
    if not len(ends) or not ends[-1]:
        return NONE, NONE
    # Key i with each of the rows lower[i], lower[i] + 1, … as many as it has.
    numbers = np.arange(len(hashes)).repeat(counts)
    places = np.arange(ends[-1]) + (lower - ends + counts).take(numbers)
    # Different keys may have one hash.
    if len(keys):
        same = (keys.take(numbers, axis=1, mode="clip") == batch[1 : 1 + len(keys)].take(places, axis=1)).all(axis=0)
        if not same.all():
            numbers, places = numbers[same], places[same]
    return numbers, places


def find_distinct_keys(batch: Ints, layout: Layout) -> tuple[Ints, Ints, Ints]:
    """Return the distinct keys of a batch, their hashes, and for each row the number of its key."""
    rows = batch.shape[1]
    hashes = batch[0] & ~_LOW
    keys = layout.key_rows(batch)
    if rows <= 1:
        return keys, hashes, np.zeros(rows, np.int64)
    # Rows of one key mostly follow each other: a key begins where it differs from the row before.
    starts = np.ones(rows, np.bool_)
    starts[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
    firsts = starts.nonzero()[0]
    distinct, marks = keys.take(firsts, axis=1, mode="clip"), hashes.take(firsts)
    numbers = starts.cumsum() - 1
    tied = marks[1:] == marks[:-1]
    if not tied.any():
        return distinct, marks, numbers
    # Keys of one hash may take turns, so a key may have been found more than once.
    order = np.lexsort((*distinct, marks))
    distinct, marks = distinct.take(order, axis=1, mode="clip"), marks.take(order)
    news = np.ones(len(marks), np.bool_)
    news[1:] = (marks[1:] != marks[:-1]) | (distinct[:, 1:] != distinct[:, :-1]).any(axis=0)
    places = np.empty(len(marks), np.int64)
    places[order] = news.cumsum() - 1
    return distinct[:, news], marks[news], places.take(numbers)


@dataclass(frozen=True, slots=True, eq=False)
class Keys:
    """Values of some columns, which select the requested records of a stream.

    Attributes:
        columns: the places of the columns in the stream.
        words: int64[columns, n], each key once.
    """

    columns: tuple[int, ...]
    words: Ints

    def trace(self, origins: Sequence[int | None]) -> tuple["Keys | None", bool]:
        """Return keys that request the records from which records with these keys are computed.

        Returns None if all records are needed, and whether the keys request no other records.

        `origins`: for each column, the place of the input column that it copies; None if it is computed. A computed
        column cannot select records.
        """
        places = [origins[column] for column in self.columns]
        rows: dict[int, int] = {}
        for row, place in enumerate(places):
            if place is not None:
                rows.setdefault(place, row)
        if len(rows) == len(places) and rows:
            return Keys(tuple(rows), self.words), True
        if not rows:
            return None, False
        return Keys(tuple(rows), find_distinct_columns(self.words.take([*rows.values()], axis=0))), False

    def selects(self, updates: Ints) -> Flags:
        """Return which updates have one of the keys."""
        if not self.columns:
            return np.full(updates.shape[1], bool(self.words.shape[1]))
        key_rows = updates.take(self.columns, axis=0)
        if self.words.shape[1] == 1:
            return np.asarray((key_rows == self.words).all(axis=0))
        if len(key_rows) == 1:
            return np.isin(key_rows[0], self.words[0])
        flags = np.zeros(updates.shape[1], np.bool_)
        layout = Layout(len(key_rows), 0, 0)
        flags[match_keys(hash_keys(key_rows), key_rows, to_batch(append_diffs(self.words), layout))[0]] = True
        return flags


def append_diffs(words: Ints) -> Ints:
    """Return words as updates: with a row of diffs, which are all 1."""
    return np.concatenate((words, np.ones((1, words.shape[1]), np.int64)))


def find_distinct_columns(words: Ints) -> Ints:
    """Return the different columns of a matrix, each once, in no particular order."""
    if words.shape[1] < 2:
        return words
    if len(words) == 1:
        return np.unique(words[0])[None]
    return to_batch(append_diffs(words), Layout(len(words), 0, 0))[1:-1]
