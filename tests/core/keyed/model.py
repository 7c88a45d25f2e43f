"""What keyed collections are: the events of each key folded in the order of time, watermark and arrival."""

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple


class Event(NamedTuple):
    """One event; mark is its watermark, None is below all; value None deletes the key."""

    key: int
    value: Any
    time: int
    mark: float | None = None


def resolved(events: Iterable[Event], *, ordered: bool, tombstones: bool) -> set[tuple[int, Any, int, int]]:
    """Return the updates (key, (mark, value), time, diff) that events, given in order of arrival, amount to."""
    sums: Counter[tuple[int, Any, int]] = Counter()
    present: dict[int, tuple[float | None, Any]] = {}
    for e in sorted(events, key=lambda e: (e.key, e.time, rank(e.mark) if ordered else 0)):
        old = present.get(e.key)
        if ordered and old is not None and rank(e.mark) < rank(old[0]):
            continue
        if present.pop(e.key, None) is not None:
            sums[e.key, old, e.time] -= 1
        if e.value is not None or tombstones:
            present[e.key] = (e.mark, e.value)
            sums[e.key, present[e.key], e.time] += 1
    return {(*update, diff) for update, diff in sums.items() if diff}


def rank(mark: float | None) -> tuple[int, float]:
    """Order watermarks: NULL is below everything, NaN above every number."""
    return (0, 0.0) if mark is None else (2, 0.0) if mark != mark else (1, mark)
