"""What a program must give, computed from scratch: nothing here is shared with the engine, and nothing is clever.

A collection is a dict of (record, time) to diff, a multiset a dict of record to multiplicity. Linear operators and
joins are defined update by update. Everything else is a function of multisets: it is computed at every time of the
closure of the input's times under least upper bounds, and the updates are the differences (Möbius inversion).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

Record = tuple[Any, ...]
Time = tuple[int, ...]
Updates = dict[tuple[Record, Time], int]
Multiset = dict[Record, int]


def updates_of(triples: Iterable[tuple[Record, Time, int]]) -> Updates:
    found: defaultdict[tuple[Record, Time], int] = defaultdict(int)
    for record, time, diff in triples:
        found[record, time] += diff
    return {key: diff for key, diff in found.items() if diff}


def multiset_of(pairs: Iterable[tuple[Record, int]]) -> Multiset:
    found: defaultdict[Record, int] = defaultdict(int)
    for record, diff in pairs:
        found[record] += diff
    return {record: diff for record, diff in found.items() if diff}


def lub(one: Time, other: Time) -> Time:
    return tuple(max(a, b) for a, b in zip(one, other, strict=True))


def before(one: Time, other: Time) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True))


def closure(times: Iterable[Time]) -> list[Time]:
    found: set[Time] = set()
    for time in times:
        found |= {lub(time, other) for other in found} | {time}
    return sorted(found)


def at(updates: Updates, time: Time) -> Multiset:
    return multiset_of((record, diff) for (record, t), diff in updates.items() if before(t, time))


def linear(updates: Updates, of: Callable[[Record, Time], Iterable[tuple[Record, Time, int]]]) -> Updates:
    return updates_of((r, t, d * diff) for (record, time), diff in updates.items() for r, t, d in of(record, time))


def joined(one: Updates, other: Updates, pair: Callable[[Record, Record], Record | None]) -> Updates:
    found = []
    for ((a, s), d), ((b, t), e) in product(one.items(), other.items()):
        record = pair(a, b)
        if record is not None:
            found.append((record, lub(s, t), d * e))
    return updates_of(found)


def concat(*collections: Updates) -> Updates:
    return updates_of((r, t, d) for each in collections for (r, t), d in each.items())


def from_scratch(of: Callable[..., Multiset], *inputs: Updates) -> Updates:
    """Return the differences of what a function of multisets gives at every time that matters."""
    found: list[tuple[Record, Time, int]] = []
    for time in closure(time for each in inputs for _, time in each):
        change = multiset_of(
            [
                *of(*(at(each, time) for each in inputs)).items(),
                *((record, -diff) for record, t, diff in found if before(t, time)),
            ]
        )
        found += [(record, time, diff) for record, diff in change.items()]
    return updates_of(found)


def by_key(key: Callable[[Record], Record], of: Callable[[Record, Multiset], Iterable[tuple[Record, int]]]) -> Any:
    """Return the function of multisets that reduces each group that is not empty."""

    def reduce(records: Multiset) -> Multiset:
        groups: defaultdict[Record, Multiset] = defaultdict(dict)
        for record, diff in records.items():
            groups[key(record)][record] = diff
        return multiset_of(made for name, group in groups.items() for made in of(name, group))

    return reduce


def fixed_point(body: Callable[[Multiset], Multiset]) -> Callable[[Multiset], Multiset]:
    """Return the function that applies a body until nothing changes."""

    def iterate(records: Multiset) -> Multiset:
        while (following := body(records)) != records:
            records = following
        return records

    return iterate
