"""Window functions: each record of a partition with what its place among the others says.

A partition is the group of a reduction. It is put in the order that a function asks for; what that leaves open, all
columns of the record decide, so the result depends on the partition's contents alone. Copies of a record are as many
rows. A frame is a range of rows from a row on; `peers` are the rows that agree in the order.

Cost: of a change, its whole partition, and for minima, maxima and sums of floats the sizes of its distinct frames.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Context
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from persist.codecs import DiffOverflow
from persist.dataflow.plan.plan import WindowFunction
from persist.dataflow.updates.times import Ints
from persist.dataflow.updates.words import NULL, Domain, directed, ranks


@dataclass(frozen=True, slots=True)
class Places:
    """Rows in order: for each, where its partition, its peers and its frame begin and end (exclusive)."""

    at: Ints
    begins: Ints
    ends: Ints
    peers_begin: Ints
    peers_end: Ints
    low: Ints
    high: Ints


def windows(calls: Sequence[WindowFunction], schema: pa.Schema, domain: Domain) -> Callable[..., Any]:
    """Return the logic of a reduction that gives the values and a column for each function."""

    def logic(groups: Ints, values: Ints, diffs: Ints, keys_of: Any) -> tuple[Ints, Ints, Ints]:
        rows = np.arange(len(groups)).repeat(np.maximum(diffs, 0))
        groups, values = groups.take(rows), values.take(rows, axis=1)
        ranked = [ranks(domain, words, field.type) for words, field in zip(values, schema, strict=True)]
        columns = [_column(call, groups, values, ranked, schema, domain) for call in calls]
        every = np.concatenate((values, np.array(columns, np.int64).reshape(len(columns), len(groups))))
        return groups, every, np.ones(len(groups), np.int64)

    return logic


def _column(
    call: WindowFunction, groups: Ints, values: Ints, ranked: list[Ints], schema: pa.Schema, domain: Domain
) -> Ints:
    rows = [(schema.get_field_index(name), down, first) for name, down, first in call.by]
    keys = [directed(domain, values[row], schema.field(row).type, down, first) for row, down, first in rows]
    order = np.lexsort((*ranked[::-1], *keys[::-1], groups))
    places = _places(call, groups.take(order), [key.take(order) for key in keys])
    arguments = [values[schema.get_field_index(name)].take(order) for name in call.arguments]
    kinds = [schema.field(name).type for name in call.arguments]
    made = _FUNCTIONS[call.function](call, places, arguments, kinds, domain)
    column = np.empty(len(groups), np.int64)
    column[order] = made
    return column


def _places(call: WindowFunction, groups: Ints, keys: list[Ints]) -> Places:
    rows = len(groups)
    at = np.arange(rows)
    begins, ends = _runs(groups)
    peers_begin, peers_end = begins, ends
    if keys:
        marks = np.zeros(rows, np.bool_)
        marks[begins] = True
        for key in keys:
            marks[1:] |= key[1:] != key[:-1]
        peers_begin, peers_end = _runs(marks.cumsum())
    low, high = begins, ends
    if call.start is not None:
        low = peers_begin if call.start[0] == "range" else np.clip(at + call.start[1], begins, ends)
    if call.end is not None:
        high = peers_end if call.end[0] == "range" else np.clip(at + call.end[1] + 1, begins, ends)
    return Places(at, begins, ends, peers_begin, peers_end, low, np.maximum(low, high))


def _runs(words: Ints) -> tuple[Ints, Ints]:
    """Return for each row where the run of equal words that it is in begins and ends."""
    if not len(words):
        return words, words
    firsts = np.concatenate(([0], np.flatnonzero(words[1:] != words[:-1]) + 1))
    sizes = np.diff(np.append(firsts, len(words)))
    return firsts.repeat(sizes), (firsts + sizes).repeat(sizes)


Function = Callable[[WindowFunction, Places, list[Ints], list[pa.DataType], Domain], Ints]


def _row_number(call: WindowFunction, p: Places, *_: Any) -> Ints:
    return p.at - p.begins + 1


def _rank(call: WindowFunction, p: Places, *_: Any) -> Ints:
    return p.peers_begin - p.begins + 1


def _dense_rank(call: WindowFunction, p: Places, *_: Any) -> Ints:
    number = (p.peers_begin == p.at).cumsum()
    return number - number.take(p.begins) + 1


def _percent_rank(call: WindowFunction, p: Places, _: Any, __: Any, domain: Domain) -> Ints:
    sizes = p.ends - p.begins
    shares = np.where(sizes > 1, (p.peers_begin - p.begins) / np.maximum(sizes - 1, 1), 0.0)
    return domain.encode(pa.array(shares))


def _cume_dist(call: WindowFunction, p: Places, _: Any, __: Any, domain: Domain) -> Ints:
    return domain.encode(pa.array((p.peers_end - p.begins) / (p.ends - p.begins)))


def _ntile(call: WindowFunction, p: Places, *_: Any) -> Ints:
    if call.number < 1:
        raise ValueError(f"ntile({call.number}) is of no tiles: give a number of at least 1")
    sizes, at = p.ends - p.begins, p.at - p.begins
    small, larger = sizes // call.number, sizes % call.number
    border = larger * (small + 1)
    return np.where(at < border, at // (small + 1), larger + (at - border) // np.maximum(small, 1)) + 1


def _shifted(sign: int) -> Function:
    def shift(call: WindowFunction, p: Places, arguments: list[Ints], *_: Any) -> Ints:
        target = p.at + sign * call.number
        inside = (target >= p.begins) & (target < p.ends)
        other = arguments[1] if len(arguments) > 1 else np.full(len(p.at), NULL, np.int64)
        return np.where(inside, arguments[0].take(np.where(inside, target, 0)), other)

    return shift


def _nth(place: Callable[[WindowFunction, Places], Ints]) -> Function:
    def nth(call: WindowFunction, p: Places, arguments: list[Ints], *_: Any) -> Ints:
        target = place(call, p)
        inside = (target >= p.low) & (target < p.high)
        return np.where(inside, arguments[0].take(np.where(inside, target, 0)), NULL)

    return nth


def _count_star(call: WindowFunction, p: Places, *_: Any) -> Ints:
    return p.high - p.low


def _count(call: WindowFunction, p: Places, arguments: list[Ints], *_: Any) -> Ints:
    running = np.concatenate(([0], (arguments[0] != NULL).cumsum()))
    return running.take(p.high) - running.take(p.low)


def _extreme(is_max: bool) -> Function:
    def extreme(
        call: WindowFunction, p: Places, arguments: list[Ints], kinds: list[pa.DataType], domain: Domain
    ) -> Ints:
        [words] = arguments
        places = directed_for(domain, words, kinds[0], is_max)

        def of(low: int, high: int) -> int:
            return int(words[low + int(places[low:high].argmin())]) if high > low else NULL

        return _by_frame(p, of)

    return extreme


def directed_for(domain: Domain, words: Ints, kind: pa.DataType, is_max: bool) -> Ints:
    """Return numbers of which the least is that of the value wanted; NULL is the greatest."""
    places = ranks(domain, words, kind)
    return np.where(words == NULL, np.int64(2**63 - 1), ~places if is_max else places)


def _by_frame(p: Places, of: Callable[[int, int], Any]) -> Any:
    """Return what a function makes of the frames, called once for each distinct one."""
    known: dict[tuple[int, int], Any] = {}
    results = []
    for frame in zip(p.low.tolist(), p.high.tolist(), strict=True):
        if frame not in known:
            known[frame] = of(*frame)
        results.append(known[frame])
    return results


def _sum(call: WindowFunction, p: Places, arguments: list[Ints], kinds: list[pa.DataType], domain: Domain) -> Ints:
    totals, counts = _totals(p, arguments[0], kinds[0], domain)
    if pat.is_floating(call.result):
        return domain.encode(pa.array([t if n else None for t, n in zip(totals, counts, strict=True)], pa.float64()))
    if pat.is_decimal(call.result):
        context, limit = Context(prec=76), 10**call.result.precision
        if any(abs(total) >= limit for total in totals):
            raise DiffOverflow(f"a sum over a window needs more than the digits of {call.result}")
        made = [context.scaleb(context.create_decimal(total), -call.result.scale) for total in totals]
        return domain.encode(pa.array([t if n else None for t, n in zip(made, counts, strict=True)], call.result))
    return np.where(np.array(counts) == 0, NULL, np.array(totals, np.int64))


def _avg(call: WindowFunction, p: Places, arguments: list[Ints], kinds: list[pa.DataType], domain: Domain) -> Ints:
    totals, counts = _totals(p, arguments[0], kinds[0], domain)
    scale = 10 ** kinds[0].scale if pat.is_decimal(kinds[0]) else 1
    made = [total / (n * scale) if n else None for total, n in zip(totals, counts, strict=True)]
    return domain.encode(pa.array(made, pa.float64()))


def _totals(p: Places, words: Ints, kind: pa.DataType, domain: Domain) -> tuple[list[Any], list[int]]:
    """Return the sum of each frame, whole numbers exactly, and of how many values it is."""
    running = np.concatenate(([0], (words != NULL).cumsum()))
    counts = (running.take(p.high) - running.take(p.low)).tolist()
    if pat.is_floating(kind):
        values = [0.0 if value is None else value for value in domain.decode(words, kind).to_pylist()]
        return _by_frame(p, lambda low, high: _float_sum(values[low:high])), counts
    if pat.is_decimal(kind):
        scale = kind.scale
        wholes = [0 if value is None else int(value.scaleb(scale)) for value in domain.decode(words, kind).to_pylist()]
    else:
        wholes = [0 if value is None else int(value) for value in domain.decode(words, kind).to_pylist()]
    sums = np.concatenate((np.zeros(1, object), np.cumsum(np.array(wholes, object)))) if wholes else np.zeros(1, object)
    return (sums.take(p.high) - sums.take(p.low)).tolist(), counts


def _float_sum(values: list[float]) -> float:
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):
        return sum(values)


_FUNCTIONS: dict[str, Function] = {
    "row_number": _row_number,
    "rank": _rank,
    "dense_rank": _dense_rank,
    "percent_rank": _percent_rank,
    "cume_dist": _cume_dist,
    "ntile": _ntile,
    "lag": _shifted(-1),
    "lead": _shifted(1),
    "first_value": _nth(lambda call, p: p.low),
    "last_value": _nth(lambda call, p: p.high - 1),
    "nth_value": _nth(lambda call, p: p.low + call.number - 1),
    "count_star": _count_star,
    "count": _count,
    "sum": _sum,
    "avg": _avg,
    "min": _extreme(False),
    "max": _extreme(True),
    "bool_and": _extreme(False),
    "bool_or": _extreme(True),
}
