"""A ranked multiset: records in an order, each with its multiplicity, in counted blocks.

    block  = int64[words + 1, n]    records in order, and their multiplicities, which are not 0
    firsts = the sort key of the first record of each block
    counts = the sum of the positive multiplicities of each block

The first, the last and the n-th record, and the effect of a change on them, are found by the counts and by binary
searches. Only records of positive multiplicity are found; negative ones are kept, because others may make up for them.

Cost of a change, or of finding a record: about log2(n) comparisons in Python, a copy of one block, and for a rank a sum
over the blocks. Memory: 8 bytes for each word and multiplicity. A tree of blocks was not worth its code: ten million
records are ten thousand blocks.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import total_ordering
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from persist.codecs.errors import DiffOverflow
from persist.codecs.types.arrow_types import is_text
from persist.compute.dataflow.state.costs import USUAL, Costs
from persist.compute.dataflow.updates.batch import sum_runs
from persist.compute.dataflow.updates.times import Ints
from persist.compute.dataflow.updates.words import NULL, Domain, is_ordered, rank_in_direction

Record: TypeAlias = tuple[int, ...]  # As words.
SortKey: TypeAlias = tuple[Any, ...]


@total_ordering
class _Reversed:
    """A value that compares in the opposite order."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reversed) and bool(self.value == other.value)

    def __lt__(self, other: "_Reversed") -> bool:
        return bool(other.value < self.value)


def has_rank(kind: pa.DataType) -> bool:
    """Return whether Python orders values of a type as Arrow does, so that records of it can be ranked."""
    is_bytes = is_text(kind) or pat.is_fixed_size_binary(kind)
    return is_ordered(kind) or is_bytes or pat.is_decimal(kind) or pat.is_uint64(kind)


class Order:
    """An order of records: by some words first, then by the others.

    Args:
        by: every word once, by its place; whether it is descending, and whether NULL comes first.
        kinds: the types of the words.
    """

    def __init__(self, by: Sequence[tuple[int, bool, bool]], kinds: Sequence[pa.DataType], domain: Domain) -> None:
        assert sorted(at for at, *_ in by) == list(range(len(kinds)))
        self._by = by
        self._kinds = kinds
        self._domain = domain
        self._parts = [(at, self._make_part(kinds[at], down, first)) for at, down, first in by]

    @property
    def make_first_part(self) -> tuple[int, Callable[[int], Any]]:
        """The place of the order's first word, and what makes its sort key."""
        return self._parts[0]

    def make_key(self, record: Record) -> SortKey:
        """Return a record's sort key; only equal records have equal keys."""
        return tuple(part(record[at]) for at, part in self._parts)

    def sort(self, records: Ints) -> Ints:
        """Return the sorted places of records, int64[words, n]."""
        columns = [
            rank_in_direction(self._domain, records[at], self._kinds[at], down, first) for at, down, first in self._by
        ]
        return np.lexsort(columns[::-1])

    def _make_part(self, kind: pa.DataType, is_down: bool, has_null_first: bool) -> Callable[[int], Any]:
        """Return a function from a word to its part of the sort key."""
        value: Callable[[int], Any] = int
        if not is_ordered(kind):
            value = self._domain.get_interner(kind).get_value

        def part(word: int) -> Any:
            """Return the sort key of a word."""
            is_null = word == NULL
            if is_null:
                return is_null != has_null_first, 0
            rank = value(word)
            if is_down:
                rank = -rank if value is int else _Reversed(rank)
            return is_null != has_null_first, rank

        return part


class Ranked:
    """Records with multiplicities, in order.

    Args:
        records, diffs: int64[words, n] and int64[n]: what it holds at first, in any order, consolidated or not.
    """

    def __init__(self, order: Order, records: Ints, diffs: Ints, costs: Costs = USUAL) -> None:
        self._order = order
        self._block_rows = costs.block_rows
        self._width = len(records)
        self._blocks: list[Ints] = []  # None of them is changed in place: see `blocks`.
        self._firsts: list[SortKey] = []
        self._counts: list[int] = []
        self.rows = 0
        rows = _consolidate(np.concatenate((records, diffs[None])).take(order.sort(records), axis=1))
        for first in range(0, rows.shape[1], self._block_rows):
            self._insert_block(len(self._blocks), rows[:, first : first + self._block_rows].copy())

    @property
    def bytes(self) -> int:
        """How much memory the records take."""
        return 8 * (self._width + 1) * self.rows

    @property
    def total(self) -> int:
        """How many records there are, by multiplicity."""
        return sum(self._counts)

    def add(self, record: Record, diff: int) -> None:
        """Change the multiplicity of a record. Raises DiffOverflow: it does not fit int64."""
        key = self._order.make_key(record)
        if not self._blocks:
            self._insert_block(0, np.array([*record, diff], np.int64)[:, None])
            return
        at = max(0, bisect_right(self._firsts, key) - 1)
        block = self._blocks[at]
        place = bisect_left(range(block.shape[1]), key, key=lambda row: self._make_key(block, row))
        if place < block.shape[1] and tuple(block[:-1, place].tolist()) == record:
            self._change_multiplicity(at, place, diff)
        else:
            new_block = np.empty((block.shape[0], block.shape[1] + 1), np.int64)
            new_block[:, :place], new_block[:, place + 1 :] = block[:, :place], block[:, place:]
            new_block[:-1, place], new_block[-1, place] = record, diff
            self._replace_block(at, new_block)

    @property
    def blocks(self) -> list[Ints]:
        """The blocks; an unchanged block stays the same array."""
        return self._blocks.copy()

    def select_between(self, one: int, other: int) -> Ints:
        """Return the records whose first word is between two bounds, inclusive."""
        column, part = self._order.make_first_part
        low, high = sorted((part(one), part(other)))
        at = max(0, bisect_left(self._firsts, low, key=itemgetter(0)) - 1)
        pieces = [np.empty((self._width + 1, 0), np.int64)]
        while at < len(self._blocks) and self._firsts[at][0] <= high:
            words = self._blocks[at][column].tolist()
            first, end = bisect_left(words, low, key=part), bisect_right(words, high, key=part)
            pieces.append(self._blocks[at][:, first:end])
            at += 1
        return np.concatenate(pieces, axis=1)

    def get_first(self) -> Record | None:
        """Return the first record of positive multiplicity."""
        return next((record for record, _ in self.take(0, 1)), None)

    def get_last(self) -> Record | None:
        """Return the last record of positive multiplicity."""
        for at in range(len(self._blocks) - 1, -1, -1):
            if self._counts[at]:
                block = self._blocks[at]
                row = int(np.flatnonzero(block[-1] > 0)[-1])
                return tuple(block[:-1, row].tolist())
        return None

    def get_middle(self) -> Record | None:
        """Return the record in the middle, by multiplicity; the first if there are two."""
        total = self.total
        return next((record for record, _ in self.take((total - 1) // 2, 1)), None) if total else None

    def take(self, skip: int, count: int) -> Iterator[tuple[Record, int]]:
        """Yield count records after the first skip, with how many of each."""
        for at, inside in enumerate(self._counts):
            if skip >= inside:
                skip -= inside
                continue
            block = self._blocks[at]
            rows = np.flatnonzero(block[-1] > 0)
            diffs = block[-1].take(rows)
            ends = (diffs if inside < 2**63 else diffs.astype(object)).cumsum()
            for number in range(int(ends.searchsorted(skip, side="right")), len(rows)):
                row = int(rows[number])
                diff = int(block[-1, row])
                copies = min(int(ends[number]) - skip, count)
                yield tuple(block[:-1, row].tolist()), min(copies, diff)
                count -= min(copies, diff)
                skip = max(skip, int(ends[number]))
                if not count:
                    return
            skip = 0

    def _make_key(self, block: Ints, row: int) -> SortKey:
        """Return the sort key of a row of a block."""
        return self._order.make_key(tuple(block[:-1, row].tolist()))

    def _change_multiplicity(self, at: int, place: int, diff: int) -> None:
        """Change the multiplicity of an existing record."""
        block = self._blocks[at]
        earlier = int(block[-1, place])
        later = earlier + diff
        if not -(2**63) <= later < 2**63:
            raise DiffOverflow(f"a multiplicity became {later}, which does not fit int64: the diffs are too large")
        if later:
            self._blocks[at] = block = block.copy()
            block[-1, place] = later
            self._counts[at] += max(later, 0) - max(earlier, 0)
            return
        new_block = np.concatenate((block[:, :place], block[:, place + 1 :]), axis=1)
        if new_block.shape[1] < self._block_rows // 4 and len(self._blocks) > 1:
            # A block with few records joins a neighbour.
            neighbour = at - 1 if at else 1
            pair = (self._blocks[neighbour], new_block) if neighbour < at else (new_block, self._blocks[neighbour])
            self._remove_block(max(at, neighbour))
            at, new_block = min(at, neighbour), np.concatenate(pair, axis=1)
        self._replace_block(at, new_block)

    def _replace_block(self, at: int, block: Ints) -> None:
        """Replace a block; split it if it is large, drop it if empty."""
        self._remove_block(at)
        if block.shape[1] >= 2 * self._block_rows:
            half = block.shape[1] // 2
            self._insert_block(at, block[:, half:].copy())
            block = block[:, :half].copy()
        if block.shape[1]:
            self._insert_block(at, block)

    def _insert_block(self, at: int, block: Ints) -> None:
        """Insert a block at a place, with its first key and its count."""
        self._blocks.insert(at, block)
        self._firsts.insert(at, self._make_key(block, 0))
        self._counts.insert(at, _sum_positive(block[-1]))
        self.rows += block.shape[1]

    def _remove_block(self, at: int) -> None:
        """Remove the block at a place, with its first key and its count."""
        self.rows -= self._blocks[at].shape[1]
        del self._blocks[at], self._firsts[at], self._counts[at]


def _sum_positive(diffs: Ints) -> int:
    """Return the sum of the positive diffs, which cannot overflow."""
    positive = np.maximum(diffs, 0)
    if len(diffs) * int(positive.max()) < 2**63:
        return int(positive.sum())
    return sum(positive.tolist())


def _consolidate(rows: Ints) -> Ints:
    """Merge equal adjacent rows of [words …, diff]. Raises DiffOverflow: a sum does not fit int64."""
    if not rows.shape[1]:
        return rows
    starts = np.ones(rows.shape[1], np.bool_)
    starts[1:] = (rows[:-1, 1:] != rows[:-1, :-1]).any(axis=0)
    firsts = starts.nonzero()[0]
    sums = sum_runs(rows[-1], firsts)
    merged = rows.take(firsts, axis=1)
    merged[-1] = sums
    return merged[:, sums != 0]
