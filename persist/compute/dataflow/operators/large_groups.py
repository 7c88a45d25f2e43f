"""Large groups of a reduction, kept in order, so that a change of one record costs about the logarithm of its group.

A reduction reads the whole group of a change. That is fastest for small groups, and for changes of a large share of a
large group. A large group of which few records change is ranked: its records are kept in order, and the aggregates are
read from both ends or the middle. A ranked group is a cache of the reduction's arrangement. It is dropped when reading
the whole group is cheaper, or when there is no room.

Only reductions over totally ordered times use it, because the records of a group before a change are one multiset
there.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from persist.codecs.errors import DiffOverflow
from persist.compute.dataflow.operators.aggregates import ACCUMULABLE, AggregateCall, split_values_by_kind
from persist.compute.dataflow.operators.folds import compute_quantiles
from persist.compute.dataflow.operators.logic import compute_aggregate
from persist.compute.dataflow.plan.plan import Counted, WindowFunction
from persist.compute.dataflow.state.costs import USUAL, Costs
from persist.compute.dataflow.state.ranked import Order, Ranked, Record, has_rank
from persist.compute.dataflow.updates.batch import check_sum, find_run_starts, multiply_diffs
from persist.compute.dataflow.updates.times import Flags, Ints
from persist.compute.dataflow.updates.words import NULL, Domain

Made: TypeAlias = dict[Record, int]


class Group(ABC):
    """One large group: its records in order, so that a change costs little."""

    orders: Collection[Ranked]
    results: Made | None = None

    @property
    def rows(self) -> int:
        """How many records there are, over all orders."""
        return sum(ranked.rows for ranked in self.orders)

    @property
    def bytes(self) -> int:
        """How much memory the records take."""
        return sum(ranked.bytes for ranked in self.orders)

    @abstractmethod
    def apply_changes(self, records: Ints, diffs: Ints) -> tuple[Ints, Ints]:
        """Take changes in; return how the results of the group change: int64[columns, n], and diffs."""


class RecomputedGroup(Group):
    """A group whose few results are computed again after each change."""

    @abstractmethod
    def add_changes(self, records: Ints, diffs: Ints) -> None:
        """Add changes of records to what is kept."""

    @abstractmethod
    def compute(self) -> Made:
        """Return the results of the group: records of the output with their multiplicities."""

    def apply_changes(self, records: Ints, diffs: Ints) -> tuple[Ints, Ints]:
        """Add changes of records; return how the results change."""
        earlier = self.compute() if self.results is None else self.results
        self.add_changes(records, diffs)
        self.results = later = self.compute()
        changes = [[*record, later.get(record, 0) - earlier.get(record, 0)] for record in earlier.keys() | later.keys()]
        changes = [change for change in changes if change[-1]]
        rows = np.array(changes, np.int64).reshape(len(changes), max(map(len, changes), default=1)).T
        return rows[:-1], rows[-1]


Ranking: TypeAlias = Callable[[Ints, Ints], Group]  # Its arguments are records, int64[words, n], and their diffs.


class TopGroup(RecomputedGroup):
    """A large group whose result is its first records in an order."""

    def __init__(self, ranked: Ranked, skip: int, count: int, by: Sequence[int], counted: Counted) -> None:
        self._ranked, self.orders = ranked, [ranked]
        self._skip = skip
        self._count = count
        self._by = by
        self._counted = counted

    def add_changes(self, records: Ints, diffs: Ints) -> None:
        for *record, diff in np.concatenate((records, diffs[None])).T.tolist():
            self._ranked.add(tuple(record), diff)

    def compute(self) -> Made:
        """Return the first records by place, with their multiplicities."""
        if self._counted == "row_number":
            return dict(self._ranked.take(self._skip, self._count))
        results: Made = {}
        place, peers = 0, None
        for record, copies in self._ranked.take(0, self._ranked.total):
            agree = [record[at] for at in self._by]
            if agree != peers:
                if place >= self._count:
                    break
                peers = agree
                place += self._counted == "dense_rank"
            results[record] = copies
            if self._counted == "rank":
                place += copies
        return results


class AggregatedGroup(RecomputedGroup):
    """A large group with its sums, and the values of min, max and median in order."""

    def __init__(
        self, aggregates: Sequence[AggregateCall], domain: Domain, records: Ints, diffs: Ints, costs: Costs = USUAL
    ) -> None:
        self._aggregates = aggregates
        self._domain = domain
        self._counts = dict.fromkeys(range(len(aggregates)), 0)  # The numbers of values that are not NULL.
        self._ranked: dict[int, Ranked] = {}
        self.orders = self._ranked.values()
        self._sums: dict[int, dict[int, int]] = {}
        self._count = _compute_exact_sum(diffs)
        for at, aggregation in enumerate(aggregates):
            is_value = records[at] != NULL
            if aggregation.kind in ACCUMULABLE:
                self._sums[at] = {}
                self._accumulate(at, records[at][is_value], diffs[is_value])
            else:
                order = Order([(0, False, False)], [aggregation.of], domain)
                self._ranked[at] = Ranked(order, records[at : at + 1, is_value], diffs[is_value], costs)

    def add_changes(self, records: Ints, diffs: Ints) -> None:
        """Add updates to the group's count and to all aggregates. Raises DiffOverflow."""
        self._count += _compute_exact_sum(diffs)
        if not -(2**63) <= self._count < 2**63:
            raise DiffOverflow(f"a group has {self._count} records, which does not fit int64")
        for at, words in enumerate(records):
            is_value = words != NULL
            if at in self._sums:
                self._accumulate(at, words[is_value], diffs[is_value])
                continue
            for word, diff in zip(words[is_value].tolist(), diffs[is_value].tolist(), strict=True):
                self._ranked[at].add((word,), diff)

    def compute(self) -> Made:
        if not self._count:
            return {}
        return {tuple(self._aggregate(at, aggregation) for at, aggregation in enumerate(self._aggregates)): 1}

    def _accumulate(self, at: int, words: Ints, diffs: Ints) -> None:
        """Add updates to the sums of an aggregate. Raises DiffOverflow."""
        if not len(words):
            return
        aggregation, sums = self._aggregates[at], self._sums[at]
        self._counts[at] += _compute_exact_sum(diffs)
        check_sum(self._counts[at])
        rows, slots, amounts = split_values_by_kind(aggregation.kind, words, aggregation.of, self._domain)
        distinct_slots, numbers = np.unique(slots, return_inverse=True)
        parts = multiply_diffs(amounts, diffs.take(rows))
        for number, slot in enumerate(distinct_slots.tolist()):
            total = sums.pop(slot, 0) + _compute_exact_sum(parts[numbers == number])
            if not -(2**63) <= total < 2**63:
                raise DiffOverflow(f"a sum of {aggregation.name!r} became {total}, which does not fit int64")
            if total:
                sums[slot] = total

    def _aggregate(self, at: int, request: AggregateCall) -> int:
        """Return an aggregate's present result, as a word."""
        if at in self._sums:
            slots = np.array(list(self._sums[at]), np.int64)
            sums = np.array(list(self._sums[at].values()), np.int64)
            counts = np.array([self._counts[at]], np.int64)
            return int(compute_aggregate(request, counts, np.zeros(len(slots), np.int64), slots, sums, self._domain)[0])
        ranked = self._ranked[at]
        record = {"min": ranked.get_first, "max": ranked.get_last, "median": ranked.get_middle}[request.kind]()
        return NULL if record is None else record[0]


class FoldedGroup(RecomputedGroup):
    """A large group that keeps its only column's values in order, for quantiles."""

    def __init__(
        self,
        calls: Sequence[WindowFunction],
        kind: pa.DataType,
        domain: Domain,
        records: Ints,
        diffs: Ints,
        costs: Costs = USUAL,
    ) -> None:
        self._calls = calls
        self._kind = kind
        self._domain = domain
        is_value = records[0] != NULL
        self._nulls = _compute_exact_sum(diffs[~is_value])
        order = Order([(0, False, False)], [kind], domain)
        self._ranked = Ranked(order, records[:, is_value], diffs[is_value], costs)
        self.orders = [self._ranked]

    def add_changes(self, records: Ints, diffs: Ints) -> None:
        for word, diff in zip(records[0].tolist(), diffs.tolist(), strict=True):
            if word == NULL:
                self._nulls += diff
            else:
                self._ranked.add((word,), diff)

    def compute(self) -> Made:
        """Return the quantiles of the group."""
        size = self._ranked.total
        if not size:
            return {(NULL,) * len(self._calls): 1} if self._nulls > 0 else {}
        pick = partial(_pick_places, self._ranked)
        columns = [compute_quantiles(call, np.array([size]), pick, self._kind, self._domain) for call in self._calls]
        return {tuple(int(words[0]) for [words] in columns): 1}


def _pick_places(ranked: Ranked, places: Ints) -> Ints:
    """Return the words at some places of ranked values, counted by multiplicity."""
    return np.array([next(ranked.take(place, 1))[0][0] for place in places.tolist()], np.int64)


def _compute_exact_sum(diffs: Ints) -> int:
    """Return a sum of diffs as a Python integer, which cannot overflow."""
    if len(diffs) and len(diffs) * max(int(diffs.max()), -int(diffs.min())) >= 2**63:
        return sum(diffs.tolist())
    return int(diffs.sum())


def make_top_ranking(
    count: int,
    skip: int,
    by: Sequence[tuple[int, bool, bool]],
    kinds: Sequence[pa.DataType],
    domain: Domain,
    counted: Counted = "row_number",
    costs: Costs = USUAL,
) -> Ranking | None:
    """Return a function that ranks a group of `logic.make_top_k_logic`; None if its records cannot be ranked."""
    if not all(map(has_rank, kinds)) or not kinds:
        return None
    every = [*by, *((row, False, False) for row in range(len(kinds)) if row not in {by_row for by_row, *_ in by})]
    order, places = Order(every, kinds, domain), [at for at, *_ in by]
    return lambda records, diffs: TopGroup(Ranked(order, records, diffs, costs), skip, count, places, counted)


def make_aggregate_ranking(aggregates: Sequence[AggregateCall], domain: Domain, costs: Costs = USUAL) -> Ranking | None:
    """Return a function that ranks a group of `logic.make_multiset_logic`; None if its values cannot be ranked."""
    if not all(aggregation.kind in ACCUMULABLE or has_rank(aggregation.of) for aggregation in aggregates):
        return None
    return lambda records, diffs: AggregatedGroup(aggregates, domain, records, diffs, costs)


def make_fold_ranking(
    calls: Sequence[WindowFunction], schema: pa.Schema, domain: Domain, costs: Costs = USUAL
) -> Ranking | None:
    """Return a function that makes a ranked group for quantiles; None for other folds.

    A group with more than one column, or a call that needs all rows, cannot be ranked.
    """
    is_single = len(schema) == 1 and has_rank(schema.field(0).type)
    if not is_single or any(call.function != "quantile" or call.is_distinct or call.constants[1] for call in calls):
        return None
    if any(len(call.constants) != 4 for call in calls):
        return None
    return lambda records, diffs: FoldedGroup(calls, schema.field(0).type, domain, records, diffs, costs)


class LargeGroups:
    """The ranked groups of a reduction, by key. `ranking`: makes a ranked group."""

    def __init__(self, ranking: Ranking, costs: Costs = USUAL) -> None:
        self._ranking = ranking
        self._costs = costs
        self._groups: dict[Record, Group] = {}  # Those used last come last.
        self._sizes: dict[Record, int] = {}  # The rows of the whole group when it was ranked.

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def bytes(self) -> int:
        """How much memory the groups take."""
        return sum(group.bytes for group in self._groups.values())

    def list_results(self) -> Iterator[Record]:
        """Yield the output records of all ranked groups."""
        for group in self._groups.values():
            yield from group.results or ()

    def find_ranked(self, keys: Ints, numbers: Ints, times: Ints) -> Flags:
        """Return which keys have a ranked group that is cheaper to change than to recompute.

        For all other keys, ranked groups are dropped, and the caller reads the whole group.

        Args:
            keys: int64[k, n], without repetitions.
            numbers: the number of each change's key.
            times: the time of each change.
        """
        is_known = np.zeros(keys.shape[1], np.bool_)
        if self._groups:
            changes = np.bincount(numbers, minlength=keys.shape[1]).tolist()
            for at in self._find_candidates(keys).tolist():
                key = tuple(keys[:, at].tolist())
                if key not in self._groups:
                    continue
                is_known[at] = self._is_ranking_cheaper(self._sizes[key], changes[at], times, numbers, at)
                if not is_known[at]:
                    self._forget(key)
        return is_known

    def _find_candidates(self, keys: Ints) -> Ints:
        """Return the numbers of the few keys that may have a ranked group."""
        if not len(keys):
            return np.arange(keys.shape[1])
        firsts = np.fromiter((key[0] for key in self._groups), np.int64, len(self._groups))
        return np.flatnonzero(np.isin(keys[0], firsts))

    def find_rankable(self, sizes: Ints, numbers: Ints, times: Ints) -> Ints:
        """Return the numbers of keys whose groups are large enough to rank.

        Args:
            sizes: how many rows the group of each key had before the changes.
            numbers, times: the key number and time of each change, as in `find_ranked`.
        """
        large = np.flatnonzero((sizes >= self._costs.large_rows) & (sizes <= self._costs.ranked_rows))
        if not len(large):
            return large
        changes = np.bincount(numbers, minlength=len(sizes))
        chosen = []
        for at in large[: 4 * self._costs.ranked_at_once].tolist():
            if self._is_ranking_cheaper(int(sizes[at]), int(changes[at]), times, numbers, at):
                chosen.append(at)
        return np.array(chosen[: self._costs.ranked_at_once], np.int64)

    def add_group(self, key: Record, records: Ints, diffs: Ints) -> None:
        """Keep a ranked group of the records of a key."""
        rows = records.shape[1] + sum(group.rows for group in self._groups.values())
        while self._groups and rows > self._costs.ranked_rows:
            oldest = next(iter(self._groups))
            rows -= self._groups[oldest].rows
            self._forget(oldest)
        self._groups[key] = self._ranking(records, diffs)
        self._sizes[key] = records.shape[1]

    def apply_changes(self, key: Record, records: Ints, times: Ints, diffs: Ints) -> list[Ints]:
        """Take changes of a ranked group in, and return how the output changes: [key …, columns …, time, diff]."""
        group = self._groups[key] = self._groups.pop(key)
        order = times.argsort(kind="stable")
        records, times, diffs = records.take(order, axis=1), times.take(order), diffs.take(order)
        firsts = find_run_starts(times)
        changes = []
        for first, end in zip(firsts.tolist(), [*firsts[1:].tolist(), len(times)], strict=True):
            columns, changed = group.apply_changes(records[:, first:end], diffs[first:end])
            if len(changed):
                rows = np.empty((len(key) + len(columns) + 2, len(changed)), np.int64)
                rows[: len(key)] = np.array(key, np.int64)[:, None]
                rows[len(key) : -2], rows[-2], rows[-1] = columns, times[first], changed
                changes.append(rows)
        if not group.rows:
            self._forget(key)
        return changes

    def clear(self) -> None:
        self._groups, self._sizes = {}, {}

    def _forget(self, key: Record) -> None:
        """Drop the ranked group of a key."""
        del self._groups[key], self._sizes[key]

    def _is_ranking_cheaper(self, rows: int, changes: int, times: Ints, numbers: Ints, at: int) -> bool:
        """Return whether changing a ranked group costs less than computing it anew at each time."""
        if changes * self._costs.change_rows <= 2 * rows:
            return True
        moments = len(np.unique(times[numbers == at]))
        return changes * self._costs.change_rows <= rows * (moments + 1)
