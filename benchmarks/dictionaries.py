"""Differential dataflow with plain dictionaries, as articles explain it: an index of lists, and loops. A peer.

It keeps `key -> value -> [(time, diff)]` for both sides of a join and for the input of a count, and looks at every
record of a group for every change.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import TypeAlias

Change: TypeAlias = tuple[tuple[int, int], int, int]  # ((key, value), time, diff)


class Index:
    """The history of a collection by key."""

    def __init__(self) -> None:
        self._of: defaultdict[int, defaultdict[int, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))

    def add(self, changes: Iterable[Change]) -> None:
        for (key, value), time, diff in changes:
            self._of[key][value].append((time, diff))

    def matching(self, key: int) -> Iterable[tuple[int, int, int]]:
        for value, history in self._of[key].items():
            for time, diff in history:
                yield value, time, diff

    def count(self, key: int, until: int) -> int:
        return sum(diff for _, time, diff in self.matching(key) if time <= until)


class JoinAndCount:
    """Facts joined with dimensions by key, counted by what the dimension says."""

    def __init__(self) -> None:
        self._facts, self._dimensions, self._joined = Index(), Index(), Index()
        self.counts: dict[int, int] = {}

    def step(self, facts: list[Change], dimensions: list[Change], time: int) -> None:
        """Take changes of one time in."""
        joined: list[Change] = []
        for (key, fact), at, diff in facts:
            for group, other, count in self._dimensions.matching(key):
                joined.append(((group, fact), max(at, other), diff * count))
        self._facts.add(facts)
        for (key, group), at, diff in dimensions:
            for fact, other, count in self._facts.matching(key):
                joined.append(((group, fact), max(at, other), diff * count))
        self._dimensions.add(dimensions)
        self._joined.add(joined)
        for group in {group for (group, _), _, _ in joined}:
            count = self._joined.count(group, time)
            if count:
                self.counts[group] = count
            else:
                self.counts.pop(group, None)
