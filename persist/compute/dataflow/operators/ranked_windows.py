"""Windows over a large partition that is kept in order: a change looks at the rows whose answer may change.

The records of the partition are kept in ordered blocks (`persist.compute.dataflow.state.ranked`). A change replaces
blocks, and never writes to them. So the partition before and after a change are two lists of blocks, and unchanged
blocks are the same arrays in both. Comparing the lists shows *changed places*, and between them *stretches* of
equal records. A row of a stretch has the same answer as before unless

- a changed place is in its reach: within the rows before or after it that the function reads, or among its peers (rows
  equal in the order);
- or a total over the rows before its stretch has changed: their number for `row_number`, their sum for a running sum.
  For a function that reads to the end of the partition, the same holds for the total over the rows after its stretch.

Only these rows are computed, in both partitions, by the functions of `operators.windows` and the totals over the rows
before them. The difference of the answers is the change.

    totals over rows = [number of rows, number of groups of peers, a `Totals` for each sum], by block, and added up

Cost of a change: about log2(n) comparisons for each record, one addition for each block, and the rows whose answer
changes. Memory: the records.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import add
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from persist.compute.dataflow.operators.large_groups import Group, Ranking
from persist.compute.dataflow.operators.logic import repeat_by_multiplicity
from persist.compute.dataflow.operators.windows import (
    EXTREMES,
    SUMMED,
    Totals,
    compute_column,
    compute_totals,
    place_rows,
)
from persist.compute.dataflow.plan.plan import WindowFunction
from persist.compute.dataflow.state.costs import USUAL, Costs
from persist.compute.dataflow.state.ranked import Order, Ranked, has_rank
from persist.compute.dataflow.updates.times import Ints
from persist.compute.dataflow.updates.words import NULL, Domain, is_ordered

Span: TypeAlias = tuple[int, int, int, int]  # Records from and to, before the change and after it.


@dataclass(frozen=True, slots=True)
class _Reach:
    """The rows and totals around a row on which its answer depends.

    `of`: what the answer depends on: the number of "rows", of groups of "peers", a sum by its number, or the "first"
    row.
    """

    back: int = 0
    ahead: int = 0
    has_peers: bool = False
    from_begin: bool = False
    to_end: bool = False
    of: str | int = "rows"


def _find_reach(call: WindowFunction, number: int) -> _Reach | None:
    """Return the reach of a function; None if it has to look at all of its partition."""
    if call.exclude or call.within or call.where or call.is_distinct or call.ignores_nulls:
        return None
    match call.function:
        case "row_number" | "rank":
            return _Reach(has_peers=call.function == "rank", from_begin=True)
        case "dense_rank":
            return _Reach(has_peers=True, from_begin=True, of="peers")
        case "percent_rank" | "cume_dist" | "ntile":
            return _Reach(has_peers=True, from_begin=True, to_end=True)
        case "lag" | "lead":
            by = call.number if call.function == "lag" else -call.number
            return _Reach(back=max(by, 0), ahead=max(-by, 0))
        case "count_star" | "last_value":
            of: str | int = "rows"
        case "first_value":
            of = "first"
        case "count" | "sum" | "avg" | "min" | "max" | "bool_and" | "bool_or":
            of = number
        case _:
            return None
    back, ahead, has_peers = 0, 0, False
    for bound in (call.start, call.end):
        if bound is None:
            continue
        mode, offset = bound
        if mode not in ("rows", "range"):
            return None
        has_peers |= mode == "range"
        back, ahead = max(back, -offset), max(ahead, offset)
    if call.function in EXTREMES and call.end is None:
        return None  # The rows behind are the whole less the rows before, and minima cannot be subtracted.
    if call.function == "last_value":
        return _Reach(back, ahead, has_peers) if call.end is not None else None
    if call.function == "first_value":
        return _Reach(back, ahead, has_peers, call.start is None, False, of) if call.end is not None else None
    return _Reach(back, ahead, has_peers, call.start is None, call.end is None, of)


def make_window_ranking(
    calls: Sequence[WindowFunction], schema: pa.Schema, domain: Domain, costs: Costs = USUAL
) -> Ranking | None:
    """Return a function that ranks a partition of `make_window_logic`; None if a function reads all of it."""
    if len({call.by for call in calls}) != 1 or not all(map(has_rank, schema.types)) or not len(schema):
        return None
    if not all(is_ordered(schema.field(call.arguments[0]).type) for call in calls if call.function in EXTREMES):
        return None
    reaches = [_find_reach(call, at) for at, call in enumerate(calls)]
    bounded = [reach for reach in reaches if reach is not None]
    if len(bounded) < len(reaches):
        return None
    by = [(schema.get_field_index(name), down, first) for name, down, first in calls[0].by]
    named = dict.fromkeys(at for at, *_ in by)
    every = [next(key for key in by if key[0] == at) for at in named]
    order = Order([*every, *((at, False, False) for at in range(len(schema)) if at not in named)], schema.types, domain)
    window = _WindowContext(tuple(calls), bounded, schema, domain, [*named], costs)
    return lambda records, diffs: WindowedGroup(window, Ranked(order, records, diffs, costs))


@dataclass(frozen=True, slots=True)
class _WindowContext:
    """The functions, their order and the columns of all partitions of a reduction."""

    calls: tuple[WindowFunction, ...]
    reaches: Sequence[_Reach]
    schema: pa.Schema
    domain: Domain
    by: Sequence[int]
    costs: Costs

    def compute_totals(self, block: Ints) -> list[Totals]:
        """Return the totals of the arguments of sums; empty totals for other functions."""
        columns = []
        for call in self.calls:
            if call.function in SUMMED:
                at = self.schema.get_field_index(call.arguments[0])
                columns.append(
                    compute_totals(call.function, block[at], block[-1], self.schema.field(at).type, self.domain)
                )
            else:
                columns.append(Totals())
        return columns


@dataclass(frozen=True, slots=True)
class _RangeTotals:
    """Totals over a range of records."""

    rows: int
    peers: int
    sums: Sequence[Totals]


class _BlockTotals:
    """Totals over a block of records, with its first and last one."""

    __slots__ = ("first", "last", "peers", "rows", "sums")

    def __init__(self, block: Ints, window: _WindowContext) -> None:
        is_row = block[-1] > 0
        keys = block[np.array(window.by, np.int64)][:, is_row]
        self.rows = sum(block[-1][is_row].tolist())
        self.peers = int((keys[:, 1:] != keys[:, :-1]).any(axis=0).sum()) if self.rows else 0
        self.first = tuple(keys[:, 0].tolist()) if self.rows else None
        self.last = tuple(keys[:, -1].tolist()) if self.rows else None
        self.sums = window.compute_totals(block)


class _Partition:
    """The records of a partition before or after a change, with totals over its blocks.

    `known`: totals over blocks by the identity of the block, shared by the old and the new partition.
    """

    def __init__(self, blocks: list[Ints], window: _WindowContext, known: dict[int, tuple[Ints, _BlockTotals]]) -> None:
        self.blocks = blocks
        self._window = window
        summaries = []
        for block in blocks:
            if id(block) not in known:
                known[id(block)] = block, _BlockTotals(block, window)
            summaries.append(known[id(block)][1])
        self.known = {id(block): known[id(block)] for block in blocks}
        self.starts: list[int] = [0, *accumulate(block.shape[1] for block in blocks)]
        self.total = self.starts[-1]
        self._rows = [0, *accumulate(summary.rows for summary in summaries)]
        self._opens = []  # Whether the first row of each block has no peer before it.
        last = None
        for summary in summaries:
            self._opens.append(summary.first is not None and summary.first != last)
            last = summary.last if summary.first is not None else last
        self._peers = [
            0,
            *accumulate(summary.peers + opens for summary, opens in zip(summaries, self._opens, strict=True)),
        ]
        self._sums = []
        for at, call in enumerate(window.calls):
            zero = Totals()
            if call.function in SUMMED:
                self._sums.append([*accumulate((summary.sums[at] for summary in summaries), add, initial=zero)])
            else:
                self._sums.append([zero] * (len(blocks) + 1))
        self.first = next((block[:, int(np.argmax(block[-1] > 0))] for block in blocks if (block[-1] > 0).any()), None)

    def read_records(self, first: int, end: int) -> Ints:
        """Return some records in order, with their multiplicities."""
        parts = [np.empty((len(self._window.schema) + 1, 0), np.int64)] if first >= end else []
        at = self._find_block(first)
        while first < end and at < len(self.blocks) and self.starts[at] < end:
            start = self.starts[at]
            parts.append(self.blocks[at][:, max(first - start, 0) : end - start])
            at += 1
        return np.concatenate(parts, axis=1) if len(parts) != 1 else parts[0]

    def sum_before(self, record: int) -> _RangeTotals:
        """Return the totals over the records before one."""
        at = self._find_block(record)
        rows, peers, sums = self._rows[at], self._peers[at], [column[at] for column in self._sums]
        if record > self.starts[at]:
            part = _BlockTotals(self.blocks[at][:, : record - self.starts[at]], self._window)
            rows += part.rows
            peers += part.peers + (self._opens[at] if part.rows else 0)
            sums = [earlier + more for earlier, more in zip(sums, part.sums, strict=True)]
        return _RangeTotals(rows, peers, sums)

    def read_keys(self, first: int, end: int) -> Ints:
        """Return the words that some records are ordered by."""
        return self.read_records(first, end)[np.array(self._window.by, np.int64)]

    def find_peers_begin(self, record: int) -> int:
        """Return the first of the records that agree with one in the order."""
        return self._search_end_of_peers(record, -1)

    def find_peers_end(self, record: int) -> int:
        """Return the end of the records that agree with one in the order."""
        return self._search_end_of_peers(record, 1)

    def _search_end_of_peers(self, record: int, sign: int) -> int:
        """Return the end of a record's peers; their begin for sign -1."""
        key = self.read_keys(record, record + 1)
        at, step = record if sign < 0 else record + 1, 64
        while (at > 0) if sign < 0 else (at < self.total):
            first, end = (max(at - step, 0), at) if sign < 0 else (at, min(at + step, self.total))
            differs = np.flatnonzero((self.read_keys(first, end) != key).any(axis=0))
            if len(differs):
                return first + int(differs[-1]) + 1 if sign < 0 else first + int(differs[0])
            at, step = (first, 2 * step) if sign < 0 else (end, 2 * step)
        return at

    def move_by_rows(self, record: int, rows: int) -> int:
        """Return the record a number of rows ahead or back, or slightly farther."""
        at, step, remaining = record, abs(rows), abs(rows)
        while remaining > 0 and ((at < self.total) if rows > 0 else (at > 0)):
            first, end = (at, min(at + step, self.total)) if rows > 0 else (max(at - step, 0), at)
            remaining -= int(np.clip(self.read_records(first, end)[-1], 0, remaining).sum())
            at = end if rows > 0 else first
        return at

    def _find_block(self, record: int) -> int:
        """Return the number of the block that has a record."""
        return bisect_right(self.starts, record) - 1


class WindowedGroup(Group):
    """A large partition of window functions: its records in order, and the totals over blocks of them."""

    def __init__(self, window: _WindowContext, ranked: Ranked) -> None:
        self._window = window
        self._ranked, self.orders = ranked, [ranked]
        self._partition = _Partition(ranked.blocks, window, {})

    def apply_changes(self, records: Ints, diffs: Ints) -> tuple[Ints, Ints]:
        """Apply changes to the partition; return the changed answers."""
        for *record, diff in np.concatenate((records, diffs[None])).T.tolist():
            self._ranked.add(tuple(record), diff)
        old = self._partition
        self._partition = new = _Partition(self._ranked.blocks, self._window, old.known)
        retracted, added = [], []
        for old_first, old_end, new_first, new_end in _split_long_spans(
            self._list_affected(old, new), self._window.costs.window_rows
        ):
            was, now = self._compute_answers(old, old_first, old_end), self._compute_answers(new, new_first, new_end)
            was, now = _select_different(was, now)
            retracted.append(was)
            added.append(now)
        height = len(self._window.schema) + len(self._window.calls)
        empty = np.empty((height, 0), np.int64)
        columns = np.concatenate((empty, *retracted, *added), axis=1)
        changes = np.ones(columns.shape[1], np.int64)
        changes[: sum(rows.shape[1] for rows in retracted)] = -1
        return columns, changes

    def _list_affected(self, old: _Partition, new: _Partition) -> list[Span]:
        """Return the records whose answers may change, in order."""
        changed = list(_find_changed_spans(old, new))
        stretches = _list_unchanged_spans(changed, old.total, new.total)
        back = max(reach.back for reach in self._window.reaches)
        ahead = max(reach.ahead for reach in self._window.reaches)
        has_peers = any(reach.has_peers for reach in self._window.reaches)
        spans: list[Span] = []
        for number, stretch in enumerate(stretches):
            first, end, new_first, new_end = stretch
            if number:
                spans.append(changed[number - 1])
            if first == end:
                continue
            if self._has_changed_totals(old, new, stretch):
                spans.append(stretch)
                continue
            head, tail = first, end
            if number and (back or has_peers):
                head = min(old.find_peers_end(first) if has_peers else first, end)
                head = min(old.move_by_rows(head, back), end)
            if number < len(stretches) - 1 and (ahead or has_peers):
                tail = max(old.find_peers_begin(end - 1) if has_peers else end, first)
                tail = max(old.move_by_rows(tail, -ahead), first)
            spans.append((first, head, new_first, new_first + head - first))
            tail = max(tail, head)
            spans.append((tail, end, new_first + tail - first, new_end))
        return _join_adjacent(spans, self._window.costs.window_rows)

    def _has_changed_totals(self, old: _Partition, new: _Partition, stretch: Span) -> bool:
        """Return whether totals before or behind a span that the functions use have changed."""
        first, end, new_first, new_end = stretch
        was, now = old.sum_before(first), new.sum_before(new_first)
        for reach in self._window.reaches:
            if reach.of == "first":
                same = old.first is not None and new.first is not None
                if reach.from_begin and not (same and bool((old.first[:-1] == new.first[:-1]).all())):  # type: ignore[index]
                    return True
            elif reach.of == "peers":
                # If the first rows of the stretch get or lose peers before them, the rows behind change as well.
                ends = old.sum_before(old.find_peers_end(first)), new.sum_before(new.find_peers_end(new_first))
                if ends[0].peers != ends[1].peers:
                    return True
            elif reach.from_begin and _get_total(was, reach) != _get_total(now, reach):
                return True
        if not any(reach.to_end for reach in self._window.reaches):
            return False
        was, now = old.sum_before(end), new.sum_before(new_end)
        whole, whole_now = old.sum_before(old.total), new.sum_before(new.total)
        return any(
            _get_total(whole, reach) + -_get_total(was, reach) != _get_total(whole_now, reach) + -_get_total(now, reach)
            for reach in self._window.reaches
            if reach.to_end
        )

    def _compute_answers(self, partition: _Partition, first: int, end: int) -> Ints:
        """Return the output of some records: their words, and the result of each function for each row."""
        window = self._window
        if first >= end:
            return np.empty((len(window.schema) + len(window.calls), 0), np.int64)
        back = max(reach.back for reach in window.reaches)
        ahead = max(reach.ahead for reach in window.reaches)
        begin, stop = partition.move_by_rows(first, -back), partition.move_by_rows(end, ahead)
        if any(reach.has_peers for reach in window.reaches):
            begin = partition.find_peers_begin(min(begin, partition.total - 1))
            stop = partition.find_peers_end(stop - 1)
        records = partition.read_records(begin, stop)
        rows = repeat_by_multiplicity(records[-1])
        values = records[:-1].take(rows, axis=1)
        is_asked_for = (rows >= first - begin) & (rows < end - begin)
        earlier, whole = partition.sum_before(begin), partition.sum_before(partition.total)
        begins, ends = np.full(len(rows), -earlier.rows), np.full(len(rows), whole.rows - earlier.rows)
        keys = [values[at] for at in window.by]
        columns = []
        for call, was, every in zip(window.calls, earlier.sums, whole.sums, strict=True):
            places = replace(place_rows(call, begins, ends, keys), before=was, whole=every, peers_before=earlier.peers)
            if call.function == "first_value" and call.start is None and partition.first is not None:
                first_word = partition.first[window.schema.get_field_index(call.arguments[0])]
                column = np.where(places.high > places.begins, first_word, NULL)
            else:
                column = compute_column(call, places, values, window.schema, window.domain, window.costs)
            columns.append(np.asarray(column, np.int64)[is_asked_for])
        return np.concatenate((values[:, is_asked_for], np.array(columns, np.int64).reshape(len(columns), -1)))


def _get_total(sum_: _RangeTotals, reach: _Reach) -> Any:
    """Return the total of one argument, or the number of rows, that a function uses."""
    return sum_.sums[reach.of] if isinstance(reach.of, int) else sum_.rows


def _find_changed_spans(old: _Partition, new: _Partition) -> Iterator[Span]:
    """Yield the spans in which two partitions differ.

    A span consists of blocks that only one partition has, without the equal records at its edges.
    """
    new_places = {id(block): at for at, block in enumerate(new.blocks)}
    at_old = at_new = 0
    count, count_new = len(old.blocks), len(new.blocks)
    while at_old < count or at_new < count_new:
        if at_old < count and at_new < count_new and old.blocks[at_old] is new.blocks[at_new]:
            at_old, at_new = at_old + 1, at_new + 1
            continue
        old_end = at_old
        while old_end < count and id(old.blocks[old_end]) not in new_places:
            old_end += 1
        new_end = new_places[id(old.blocks[old_end])] if old_end < count else count_new
        spans = (old.starts[at_old], old.starts[old_end], new.starts[at_new], new.starts[new_end])
        was, now = old.read_records(*spans[:2]), new.read_records(*spans[2:])
        head, tail = _count_equal_edges(was, now)
        yield spans[0] + head, spans[1] - tail, spans[2] + head, spans[3] - tail
        at_old, at_new = old_end, new_end


def _count_equal_edges(one: Ints, other: Ints) -> tuple[int, int]:
    """Return how many records are equal at the beginning, and at the end."""
    size = min(one.shape[1], other.shape[1])
    differs = np.flatnonzero((one[:, :size] != other[:, :size]).any(axis=0))
    head = int(differs[0]) if len(differs) else size
    size -= head
    differs = np.flatnonzero((one[:, one.shape[1] - size :] != other[:, other.shape[1] - size :]).any(axis=0))
    return head, size - 1 - int(differs[-1]) if len(differs) else size


def _select_different(was: Ints, now: Ints) -> tuple[Ints, Ints]:
    """Return the old answers and the new answers, without equal ones."""
    head, tail = _count_equal_edges(was, now)
    was, now = was[:, head : was.shape[1] - tail], now[:, head : now.shape[1] - tail]
    if was.shape == now.shape:
        differs = (was != now).any(axis=0)
        was, now = was[:, differs], now[:, differs]
    return was, now


def _list_unchanged_spans(changed: Sequence[Span], total: int, total_new: int) -> list[Span]:
    """Return the spans before, between and behind changed ones."""
    stretches, old_at, new_at = [], 0, 0
    for old_first, old_end, new_first, new_end in changed:
        stretches.append((old_at, old_first, new_at, new_first))
        old_at, new_at = old_end, new_end
    return [*stretches, (old_at, total, new_at, total_new)]


def _join_adjacent(spans: Sequence[Span], long: int) -> list[Span]:
    """Return spans, with short adjacent ones joined."""
    joined: list[Span] = []
    for span in spans:
        if span[0] == span[1] and span[2] == span[3]:
            continue
        last = joined[-1] if joined else None
        if last is not None and last[1] == span[0] and last[3] == span[2] and span[1] - last[0] < long:
            joined[-1] = (last[0], span[1], last[2], span[3])
        else:
            joined.append(span)
    return joined


def _split_long_spans(spans: Sequence[Span], long: int) -> Iterator[Span]:
    """Yield spans, with long unchanged ones in pieces."""
    for first, end, new_first, new_end in spans:
        if end - first != new_end - new_first:
            yield first, end, new_first, new_end
            continue
        for at in range(first, end, long):
            stop = min(at + long, end)
            yield at, stop, new_first + at - first, new_first + stop - first
