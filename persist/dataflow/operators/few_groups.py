"""Reductions of a few records: plain Python, because each call of numpy takes longer than all that is to be done.

This and `FewGiven` are one path for few rows, from `insert` to what `step` gives, and stay because it halves a whole
step: with sum, count and max by group over 100,000 rows in memory, two updates take 0.38 ms of CPU, and 0.81 to 1.05
without (medians of 300 steps, in alternation, 2026-11-24); a moved edge of a reachability 0.9 ms, and 1.7 without.

A group is a dictionary from value words to multiplicities, none of them 0. Most logics have a plain form, which takes
such a group; the others are called as always, with all groups of a time as columns.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from operator import le
from typing import TypeAlias

import numpy as np
import pyarrow.types as pat

from persist.antichain import Coordinates
from persist.dataflow.operators.aggregates import COUNT, FIRST_LIMB, SLOTS, Wanted, check_int64
from persist.dataflow.operators.logic import Logic
from persist.dataflow.updates.batch import check_sum
from persist.dataflow.updates.times import Ints
from persist.dataflow.updates.words import NULL, is_ordered

Values: TypeAlias = tuple[int, ...]
Group: TypeAlias = dict[Values, int]
Made: TypeAlias = list[tuple[Values, int]]  # Value words of the output, and how often.
Plain: TypeAlias = Callable[[Group], Made]  # Of a group that is not empty.
Record: TypeAlias = tuple[Values, Coordinates, int]  # Value words, time, diff.


def plain_distinct(group: Group) -> Made:
    """Do what `distinct` does, of one group: it has a record at most."""
    return [((), 1) for diff in group.values() if diff > 0]


def plain_accumulated(aggregates: Sequence[Wanted]) -> Plain | None:
    """Return what `accumulated` does, of one group; None unless all are counts, or sums of whole numbers."""
    if not all(
        aggregate.is_counted or aggregate.kind == "count" or _is_whole_sum(aggregate) for aggregate in aggregates
    ):
        return None

    def plain(group: Group) -> Made:
        records = group.get((0,), 0)
        if not records:
            return []
        row = []
        for number, wanted in enumerate(aggregates):
            first = 1 + number * SLOTS
            if wanted.is_counted:
                count = records * (wanted.constant or 0) if wanted.kind == "sum" else records
                check_sum(count)
                row.append(count)
            elif wanted.kind == "count":
                row.append(group.get((first + COUNT,), 0))
            elif not group.get((first + COUNT,)):
                row.append(NULL)
            else:
                low, high = (group.get((first + FIRST_LIMB + limb,), 0) for limb in (0, 1))
                row.append(_checked(low + (high << 32), wanted.name))
        return [(tuple(row), 1)]

    return plain


def plain_extremes(aggregates: Sequence[Wanted]) -> Plain | None:
    """Return what `multiset_aggregates` does, of one group; None unless all are min and max of what words order."""
    if not all(aggregate.kind in ("min", "max") and is_ordered(aggregate.of) for aggregate in aggregates):
        return None

    def plain(group: Group) -> Made:
        if not sum(group.values()):
            return []
        row = []
        for at, wanted in enumerate(aggregates):
            counts: dict[int, int] = {}
            for values, diff in group.items():
                counts[values[at]] = counts.get(values[at], 0) + diff
            there = [word for word, count in counts.items() if count > 0 and word != NULL]
            row.append((min(there) if wanted.kind == "min" else max(there)) if there else NULL)
        return [(tuple(row), 1)]

    return plain


class FewGroups:
    """What a logic makes of a few groups.

    Args:
        logic: for columns.
        plain: the same for one group, if there is such a form.
        values: how many value words a record has.
    """

    def __init__(self, logic: Logic, plain: Plain | None, values: int) -> None:
        self._logic = logic
        self._plain = plain
        self._values = values

    def made(self, groups: Sequence[Group], owners: Sequence[int], keys: Ints) -> list[Made]:
        """Return what each group comes to.

        Args:
            owners: the number of each group's key among the keys, int64[k, n].
        """
        if self._plain is not None:
            return [self._plain(group) if group else [] for group in groups]
        results: list[Made] = [[] for _ in groups]
        records = [(at, *values, diff) for at, group in enumerate(groups) for values, diff in group.items()]
        if records:
            rows = np.array(records, np.int64).reshape(len(records), self._values + 2).T
            numbers = np.array(owners)
            made, columns, diffs = self._logic(
                rows[0], rows[1:-1], rows[-1], lambda at: keys.take(numbers.take(at), axis=1)
            )
            for at, values, diff in plain_rows(made, columns, diffs):
                results[at].append((values, diff))
        return results

    def changes(
        self, before: Sequence[Group], news: Sequence[Sequence[tuple[Values, int]]], keys: Ints
    ) -> list[tuple[int, Values, int]]:
        """Return how the output of keys changes, as (number of the key, value words, diff).

        Args:
            before: the group of each key.
            news: what is added to it.
        """
        after = [added(group, new) for group, new in zip(before, news, strict=True)]
        owners = [*range(len(before))] * 2
        made = self.made([*map(without_zeros, before), *after], owners, keys)
        output_changes = []
        for number, (old, new) in enumerate(zip(made[: len(before)], made[len(before) :], strict=True)):
            if old != new:
                change = added(added({}, new), [(values, -diff) for values, diff in old])
                output_changes += [(number, values, diff) for values, diff in change.items()]
        return output_changes

    def corrections(
        self,
        times: Sequence[Sequence[Coordinates]],
        records: Sequence[Sequence[Record]],
        given: Sequence[list[Record]],
        keys: Ints,
    ) -> list[tuple[int, Values, Coordinates, int]]:
        """Return how the output of keys changes at times, as (number of the key, value words, time, diff).

        Args:
            times: of each key, in an order in which none comes before a lesser one.
            records: of each key, at all times.
            given: what the output of each key was given before; the changes are added.
        """
        differences = []
        for rank in range(max(map(len, times), default=0)):
            items = [(number, key_times[rank]) for number, key_times in enumerate(times) if rank < len(key_times)]
            groups = [accumulated(records[number], time) for number, time in items]
            made = self.made(groups, [number for number, _ in items], keys)
            for (number, time), wanted in zip(items, made, strict=True):
                is_there = accumulated(given[number], time)
                change = added(is_there, [(values, -diff) for values, diff in wanted])
                for values, diff in change.items():
                    given[number].append((values, time, -diff))
                    differences.append((number, values, time, -diff))
        return differences


def accumulated(records: Iterable[Record], time: Coordinates) -> Group:
    """Return the sums of diffs at times up to one."""
    return added({}, [(values, diff) for values, at, diff in records if all(map(le, at, time))])


def added(group: Group, records: Iterable[tuple[Values, int]]) -> Group:
    """Return a group with records more.

    Raises:
        DiffOverflow: a sum does not fit int64.
    """
    merged = group.copy()
    for values, diff in records:
        merged[values] = merged.get(values, 0) + diff
    return without_zeros(merged)


def without_zeros(group: Group) -> Group:
    """Return a group without records of multiplicity 0.

    Raises:
        DiffOverflow: a multiplicity does not fit int64.
    """
    for diff in group.values():
        check_sum(diff)
    return group if all(group.values()) else {values: diff for values, diff in group.items() if diff}


def closed(times: Iterable[Coordinates], known: Iterable[Coordinates]) -> set[Coordinates]:
    """Return times, with all their least upper bounds with known ones."""
    closed_times, known = set(times), set(known)
    fresh = closed_times
    while fresh:
        fresh = {tuple(map(max, one, other)) for one in fresh for other in known} - closed_times
        closed_times = closed_times | fresh
    return closed_times


def plain_rows(numbers: Ints, values: Ints, diffs: Ints) -> Iterable[tuple[int, Values, int]]:
    """Return (number, value words, diff) as plain integers."""
    words = zip(*values.tolist(), strict=True) if len(values) else repeat((), len(numbers))
    return zip(numbers.tolist(), words, diffs.tolist(), strict=True)


def _is_whole_sum(wanted: Wanted) -> bool:
    return wanted.kind == "sum" and not (pat.is_floating(wanted.result) or pat.is_decimal(wanted.result))


def _checked(total: int, name: str) -> int:
    if not -(2**63) < total < 2**63:
        check_int64(np.array([total], object), name)
    return total
