"""Window functions: they add columns to a record that depend on other records of its partition.

A partition is the group of a reduction. It is sorted by the order of a function and then by all columns of the record,
so the result depends on the partition's contents alone. A record with multiplicity n is n rows. A frame is a range of
rows; `peers` are rows that are equal in the order.

Cost: a change costs its whole partition; most functions over a large one cost less (`operators.ranked_windows`). Sums
and counts of frames are differences of running sums. Minima and maxima cost the logarithm of the largest frame for each
row. The aggregates of `operators.folds` cost the sizes of the distinct frames.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from persist.codecs.errors import DiffOverflow
from persist.codecs.order.sums import to_whole_numbers
from persist.compute.dataflow.operators.aggregates import to_float
from persist.compute.dataflow.operators.folds import Rows, compute_fold, iterate_frames
from persist.compute.dataflow.operators.logic import repeat_by_multiplicity
from persist.compute.dataflow.plan.plan import WindowFunction
from persist.compute.dataflow.state.costs import USUAL, Costs
from persist.compute.dataflow.updates.batch import find_run_starts
from persist.compute.dataflow.updates.times import Flags, Ints
from persist.compute.dataflow.updates.words import FIRST_WIDE, NULL, Domain, compute_ranks, rank_in_direction


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals over rows: the number of values, their sum, and the numbers of NaN, inf and -inf.

    Minima and maxima use `least`: the least word in the direction of `_orient_words`. It cannot be subtracted.
    """

    values: int = 0
    total: int = 0
    others: tuple[int, int, int] = (0, 0, 0)
    least: int | None = None

    def __add__(self, other: "Totals") -> "Totals":
        nan, high, low = (ours + other_count for ours, other_count in zip(self.others, other.others, strict=True))
        least = other.least if self.least is None else self.least
        if least is not None and other.least is not None:
            least = min(least, other.least)
        return Totals(self.values + other.values, self.total + other.total, (nan, high, low), least)

    def __neg__(self) -> "Totals":
        nan, high, low = self.others
        return Totals(-self.values, -self.total, (-nan, -high, -low))


@dataclass(frozen=True, slots=True)
class Places:
    """Sorted rows: for each row, where its partition, its peers and its frame begin and end (exclusive).

    The rows may be a part of one partition, whose begin is then negative, or whose end is beyond the last row.

    Attributes:
        before, whole: the totals over the partition's rows before this part, and over the whole partition.
        peers_before: how many groups of peers the partition has before this part.
    """

    at: Ints
    begins: Ints
    ends: Ints
    peers_begin: Ints
    peers_end: Ints
    low: Ints
    high: Ints
    before: Totals = Totals()
    whole: Totals = Totals()
    peers_before: int | None = None

    def sum_over_frames(self, amounts: Any, before: int, whole: int) -> Any:
        """Return the sums of amounts over frames: differences of running sums."""
        rows = len(amounts)
        running = np.zeros(rows + 3, amounts.dtype)
        running[1] = before
        running[2:-1] = amounts.cumsum() + before
        running[-1] = whole
        low, high = (np.clip(bound + 1, 0, rows + 2) for bound in (self.low, self.high))
        return running.take(high) - running.take(low)


def make_window_logic(
    calls: Sequence[WindowFunction], schema: pa.Schema, domain: Domain, costs: Costs = USUAL
) -> Callable[..., Any]:
    """Return the logic of a reduction with the values and a column for each function."""

    def logic(groups: Ints, values: Ints, diffs: Ints, find_keys: Any) -> tuple[Ints, Ints, Ints]:
        """Compute the window functions of each group."""
        rows = repeat_by_multiplicity(diffs)
        groups, values = groups.take(rows), values.take(rows, axis=1)
        ranked = [compute_ranks(domain, words, field.type) for words, field in zip(values, schema, strict=True)]
        columns = [_sort_and_compute(call, groups, values, ranked, schema, domain, costs) for call in calls]
        every = np.concatenate((values, np.array(columns, np.int64).reshape(len(columns), len(groups))))
        return groups, every, np.ones(len(groups), np.int64)

    return logic


def _sort_and_compute(
    call: WindowFunction,
    groups: Ints,
    values: Ints,
    ranked: list[Ints],
    schema: pa.Schema,
    domain: Domain,
    costs: Costs,
) -> Ints:
    """Sort the rows of all groups, and compute a function's column."""
    rows = [(schema.get_field_index(name), down, first) for name, down, first in call.by]
    keys = [rank_in_direction(domain, values[row], schema.field(row).type, down, first) for row, down, first in rows]
    order = np.lexsort((*ranked[::-1], *keys[::-1], groups))
    sorted_ = values.take(order, axis=1)
    bounds = _RangeBounds(call, groups.take(order), sorted_, schema, domain)
    places = place_rows(call, *_find_runs(groups.take(order)), [key.take(order) for key in keys], bounds)
    column = np.empty(len(groups), np.int64)
    column[order] = compute_column(call, places, sorted_, schema, domain, costs)
    return column


def compute_column(
    call: WindowFunction, places: Places, values: Ints, schema: pa.Schema, domain: Domain, costs: Costs
) -> Ints:
    """Return a window function's result, as a word, for each sorted row."""
    arguments = [values[schema.get_field_index(name)] for name in call.arguments]
    kinds = [schema.field(name).type for name in call.arguments]
    is_plain = not (call.exclude or call.within or call.where or call.is_distinct)
    if call.function in _FOLDS and not (call.exclude or call.within or call.is_distinct):
        return _pick_nth_eligible(call, places, arguments[0], _is_eligible(call, arguments[0], values, schema))
    if call.function in ("lag", "lead") or (is_plain and not call.ignores_nulls and call.function in _FUNCTIONS):
        return _FUNCTIONS[call.function](call, places, arguments, kinds, domain)
    return _fold_frames(call, places, values, arguments, kinds, schema, domain, costs)


def _is_eligible(call: WindowFunction, words: Ints, values: Ints, schema: pa.Schema) -> Flags:
    """Return the rows that first, last and n-th value may pick."""
    eligible = np.ones(len(words), np.bool_)
    if call.where:
        eligible &= values[schema.get_field_index(call.where)] == 1
    if call.ignores_nulls:
        eligible &= words != NULL
    return eligible


def _pick_nth_eligible(call: WindowFunction, p: Places, words: Ints, eligible: Flags) -> Ints:
    """Return the first, last or n-th eligible row's value in each frame."""
    places = eligible.nonzero()[0]
    # The number of counted rows before each place: a frame is an interval of these as well.
    counted_before = np.concatenate(([0], eligible.cumsum()))
    first, end = (counted_before.take(np.clip(bound, 0, len(words))) for bound in (p.low, p.high))
    number = (
        end - 1 if call.function == "last_value" else first + (call.number - 1 if call.function == "nth_value" else 0)
    )
    inside = (number >= first) & (number < end)
    if not len(places):
        return np.full(len(words), NULL, np.int64)
    return np.where(inside, words.take(places.take(np.where(inside, number, 0))), NULL)


def _fold_frames(
    call: WindowFunction,
    p: Places,
    values: Ints,
    arguments: list[Ints],
    kinds: list[pa.DataType],
    schema: pa.Schema,
    domain: Domain,
    costs: Costs,
) -> Ints:
    """Return an aggregate of each frame that must see all of the frame's rows."""
    call = replace(call, function=_FOLDS.get(call.function, call.function))
    low, high, back = p.low, p.high, None
    if not call.exclude:  # Rows of one frame have one value.
        frames, back = np.unique(np.stack((low, high)), axis=1, return_inverse=True)
        low, high = frames
    results = np.empty(len(low), np.int64)
    for part, owners, at in iterate_frames(low, high, costs.frame_rows):
        if call.exclude:
            keep = _is_included(call.exclude, p, owners + part.start, at)
            owners, at = owners[keep], at[keep]
        rows = Rows(owners, [words.take(at) for words in arguments], kinds, part.stop - part.start, domain)
        results[part] = compute_fold(call, rows, values, schema, at, is_ordered=True)
    return results if back is None else results.take(back.reshape(-1))


def _is_included(exclude: str, p: Places, rows: Ints, at: Ints) -> Flags:
    """Return which rows of frames `EXCLUDE` keeps."""
    if exclude == "current row":
        return at != rows
    is_peer = (at >= p.peers_begin.take(rows)) & (at < p.peers_end.take(rows))
    return ~is_peer if exclude == "group" else ~is_peer | (at == rows)


class _RangeBounds:
    """The ends of RANGE frames, whose bounds are values of the order column."""

    def __init__(self, call: WindowFunction, groups: Ints, values: Ints, schema: pa.Schema, domain: Domain) -> None:
        self._call = call
        self._groups = groups
        self._values = values
        self._schema = schema
        self._domain = domain

    def count_rows_before(self, column: str, *, is_end: bool) -> Ints:
        """Return for each row the number of rows before its bound, with is_end including rows equal to it."""
        name, down, first = self._call.by[0]
        row, bound = self._schema.get_field_index(name), self._schema.get_field_index(column)
        words = np.concatenate((self._values[row], self._values[bound]))
        keys = rank_in_direction(self._domain, words, self._schema.field(row).type, down, first)
        count = len(self._groups)
        # Bounds are sorted among the rows: before the rows that agree, or behind them. Then rows before each are
        # counted.
        kinds = np.repeat([1, 2 if is_end else 0], count)
        order = np.lexsort((kinds, keys, np.concatenate((self._groups, self._groups))))
        places = np.empty(2 * count, np.int64)
        places[order] = (order < count).cumsum()
        return places[count:]


def place_rows(
    call: WindowFunction, begins: Ints, ends: Ints, keys: Sequence[Ints], bounds: _RangeBounds | None = None
) -> Places:
    """Return the places of rows in order; rows with equal keys are peers."""
    rows = len(begins)
    at = np.arange(rows)
    peers_begin, peers_end = begins, ends
    if keys:
        marks = np.zeros(rows, np.bool_)
        marks[np.maximum(begins, 0)] = True
        for key in keys:
            marks[1:] |= key[1:] != key[:-1]
        peers_begin, peers_end = _find_runs(marks.cumsum())
    p = Places(at, begins, ends, peers_begin, peers_end, begins, ends)
    low, high = begins, ends
    match call.start:
        case ("range", _):
            low = peers_begin
        case ("rows", offset):
            low = np.clip(at + _limit_offset(offset, rows), begins, ends)
        case ("groups", offset):
            low = _find_peer_groups(p, offset, is_end=False)
        case ("value", _):
            assert bounds is not None
            low = bounds.count_rows_before(call.start_at, is_end=False)
    match call.end:
        case ("range", _):
            high = peers_end
        case ("rows", offset):
            high = np.clip(at + _limit_offset(offset, rows) + 1, begins, ends)
        case ("groups", offset):
            high = _find_peer_groups(p, offset, is_end=True)
        case ("value", _):
            assert bounds is not None
            high = bounds.count_rows_before(call.end_at, is_end=True)
    return replace(p, low=low, high=np.maximum(low, high))


def _find_peer_groups(p: Places, offset: int, *, is_end: bool) -> Ints:
    """Return for each row where the group of peers `offset` groups away begins or ends."""
    if not len(p.at):
        return p.at
    # The first row of each group of peers, and the number of each row's group.
    firsts = (p.peers_begin == p.at).nonzero()[0]
    numbers = (p.peers_begin == p.at).cumsum() - 1
    target = numbers + _limit_offset(offset, len(numbers))
    first, last = numbers.take(p.begins), numbers.take(p.ends - 1)
    inside = firsts.take(np.clip(target, first, last))
    if is_end:
        return np.where(target < first, p.begins, p.peers_end.take(inside))
    return np.where(target > last, p.ends, inside)


def _limit_offset(offset: int, rows: int) -> int:
    """Return the offset, or one past all rows if it is larger, so that sums do not overflow."""
    return max(-rows, min(offset, rows))


def _find_runs(words: Ints) -> tuple[Ints, Ints]:
    """Return for each row where the run of equal words that it is in begins and ends."""
    firsts = find_run_starts(words)
    sizes = np.diff(np.append(firsts, len(words)))
    return firsts.repeat(sizes), (firsts + sizes).repeat(sizes)


Function = Callable[[WindowFunction, Places, list[Ints], list[pa.DataType], Domain], Ints]


def _dense_rank(call: WindowFunction, p: Places, *_: Any) -> Ints:
    number = (p.peers_begin == p.at).cumsum()
    if p.peers_before is not None:
        return number + p.peers_before
    return number - number.take(p.begins) + 1


def _percent_rank(call: WindowFunction, p: Places, _: Any, __: Any, domain: Domain) -> Ints:
    sizes = p.ends - p.begins
    shares = np.where(sizes > 1, (p.peers_begin - p.begins) / np.maximum(sizes - 1, 1), 0.0)
    return domain.encode(pa.array(shares))


def _ntile(call: WindowFunction, p: Places, *_: Any) -> Ints:
    """Return the NTILE of each row: the number of its bucket."""
    if call.number < 1:
        raise ValueError(f"ntile({call.number}) is of no tiles: give a number of at least 1")
    sizes, at = p.ends - p.begins, p.at - p.begins
    small, larger = sizes // call.number, sizes % call.number
    border = larger * (small + 1)
    return np.where(at < border, at // (small + 1), larger + (at - border) // np.maximum(small, 1)) + 1


def _make_shift(sign: int) -> Function:
    """Return `lag` or `lead`: values of a row before or after each row."""

    def shift(call: WindowFunction, p: Places, arguments: list[Ints], *_: Any) -> Ints:
        """Return the values so many rows before or after each row."""
        by = sign * call.number
        defaults = arguments[1] if len(arguments) > 1 else np.full(len(p.at), NULL, np.int64)
        target = p.at + by
        inside = (target >= p.begins) & (target < p.ends)
        if call.ignores_nulls and by:
            target, inside = _skip_nulls(p, arguments[0] != NULL, by)
        rows = np.clip(np.where(inside, target, 0), 0, len(p.at) - 1) if len(p.at) else target
        return np.where(inside, arguments[0].take(rows), defaults)

    return shift


def _skip_nulls(p: Places, is_value: Flags, by: int) -> tuple[Ints, Flags]:
    """Return for each row the place `by` non-NULL rows ahead, and whether it exists."""
    valued = is_value.nonzero()[0].astype(np.int64, copy=False)
    values_before = np.concatenate(([0], is_value.cumsum()))  # Rows with a value before each place.
    number: Ints = values_before.take(p.at) + by if by < 0 else values_before.take(p.at + 1) + by - 1
    inside = (number >= values_before.take(p.begins)) & (number < values_before.take(p.ends))
    if not len(valued):
        return number, inside
    places: Ints = np.clip(number, 0, len(valued) - 1)
    return valued.take(places), inside


def _count(call: WindowFunction, p: Places, arguments: list[Ints], *_: Any) -> Ints:
    """Return how many values of each frame are not NULL."""
    counts: Ints = p.sum_over_frames((arguments[0] != NULL).astype(np.int64), p.before.values, p.whole.values)
    return counts


def _make_extreme(is_max: bool) -> Function:
    """Return the function for MIN, or MAX, over a frame."""

    def extreme(
        call: WindowFunction, p: Places, arguments: list[Ints], kinds: list[pa.DataType], domain: Domain
    ) -> Ints:
        """Compute minimum or maximum of each frame, by a sparse table."""
        [words] = arguments
        order = make_extreme_ranks(domain, words, kinds[0], is_max).argsort(kind="stable")
        least = np.empty(len(words), np.int64)
        least[order] = np.arange(len(words))
        low, high = (np.clip(bound, 0, len(words)) for bound in (p.low, p.high))
        extremes, sizes, width = np.full(len(words), NULL), high - low, 1
        while len(least):  # The least of so many rows from each on; two of them, which may overlap, are a frame.
            rows = ((sizes >= width) & (sizes < 2 * width)).nonzero()[0]
            first, last = low.take(rows), high.take(rows) - width
            extremes[rows] = words.take(order.take(np.minimum(least.take(first), least.take(last))))
            least, width = np.minimum(least[:-width], least[width:]), 2 * width
        if p.before.least is None:
            return extremes
        is_before = (p.low < 0) & ((extremes == NULL) | (_orient_words(extremes, is_max) > p.before.least))
        return np.where(is_before, _orient_words(np.int64(p.before.least), is_max), extremes)

    return extreme


def _orient_words(words: Any, is_max: bool) -> Any:
    """Negate words for a maximum, so that the least is the extreme."""
    return ~words if is_max else words


def make_extreme_ranks(domain: Domain, words: Ints, kind: pa.DataType, is_max: bool) -> Ints:
    """Return ranks whose least belongs to the extreme value; NULL ranks last."""
    places = compute_ranks(domain, words, kind)
    return np.where(words == NULL, np.int64(2**63 - 1), ~places if is_max else places)


def _sum(call: WindowFunction, p: Places, arguments: list[Ints], kinds: list[pa.DataType], domain: Domain) -> Ints:
    """Return the exact sum of each frame; NULL without values."""
    totals, counts = _sum_frames(p, arguments[0], kinds[0], domain)
    if pat.is_floating(call.result):
        sums = [to_float(total) if n else None for total, n in zip(totals.tolist(), counts.tolist(), strict=True)]
        return _add_nan_and_infinities(domain.encode(pa.array(sums, pa.float64())), p, arguments[0], kinds[0], domain)
    if pat.is_decimal(call.result):
        most = _bound_magnitude(totals, 1)
        if most >= 10**call.result.precision:
            raise DiffOverflow(f"a sum over a window needs more than the digits of {call.result}")
        if most >= FIRST_WIDE or not pat.is_decimal128(call.result):
            pairs = zip(totals.tolist(), counts.tolist(), strict=True)
            return domain.encode_decimals([total if n else None for total, n in pairs], call.result)
    return np.where(counts == 0, NULL, totals.astype(np.int64))


def _avg(call: WindowFunction, p: Places, arguments: list[Ints], kinds: list[pa.DataType], domain: Domain) -> Ints:
    """Return the mean of each frame as a float; NULL without values."""
    totals, counts = _sum_frames(p, arguments[0], kinds[0], domain)
    if pat.is_floating(kinds[0]):
        means = [to_float(total, n) if n else None for total, n in zip(totals.tolist(), counts.tolist(), strict=True)]
        return _add_nan_and_infinities(domain.encode(pa.array(means, pa.float64())), p, arguments[0], kinds[0], domain)
    scale = 10 ** kinds[0].scale if pat.is_decimal(kinds[0]) else 1
    pairs = zip(totals.tolist(), counts.tolist(), strict=True)
    return domain.encode(pa.array([total / (n * scale) if n else None for total, n in pairs], pa.float64()))


def _sum_frames(p: Places, words: Ints, kind: pa.DataType, domain: Domain) -> tuple[Any, Ints]:
    """Return each frame's exact sum, and its number of values."""
    counts = p.sum_over_frames((words != NULL).astype(np.int64), p.before.values, p.whole.values)
    amounts = to_exact_integers(words, kind, domain)
    largest_sum = max(abs(p.before.total), abs(p.whole.total)) + _bound_magnitude(amounts, len(amounts))
    amounts = amounts.astype(np.int64 if largest_sum < 2**62 else object, copy=False)
    return p.sum_over_frames(amounts, p.before.total, p.whole.total), counts


def _bound_magnitude(amounts: Any, times: int) -> int:
    """Return an upper bound of the magnitude of a sum of `times` amounts."""
    return times * max(abs(int(amounts.max())), abs(int(amounts.min()))) if len(amounts) else 0


def to_exact_integers(words: Ints, kind: pa.DataType, domain: Domain) -> Any:
    """Return numbers as exact integers, in units of their last digit."""
    if pat.is_floating(kind):
        return _floats_to_integers(domain.decode(words, kind))
    is_number = not (pat.is_decimal(kind) or pat.is_uint64(kind))
    if is_number or (pat.is_decimal128(kind) and not (len(words) and words.max() >= FIRST_WIDE)):
        return np.where(words == NULL, 0, words)
    return to_whole_numbers(pa.chunked_array([domain.decode(words, kind)]))


def compute_totals(function: str, words: Ints, diffs: Ints, kind: pa.DataType, domain: Domain) -> Totals:
    """Return the totals over values with positive multiplicities."""
    counted = (diffs > 0) & (words != NULL)
    words, weights = words[counted], diffs[counted].astype(object)
    if not len(words):
        return Totals()
    if function in EXTREMES:
        return Totals(least=int(_orient_words(words, EXTREMES[function]).min()))
    special = (0, 0, 0)
    if pat.is_floating(kind):
        floats = domain.decode(words, kind).cast(pa.float64()).to_numpy(zero_copy_only=False)
        counts = [int(weights[which].sum()) for which in (np.isnan(floats), floats == np.inf, floats == -np.inf)]
        special = (counts[0], counts[1], counts[2])
    is_number = pat.is_integer(kind) or pat.is_floating(kind) or pat.is_decimal(kind)
    total = (to_exact_integers(words, kind, domain).astype(object) * weights).sum() if is_number else 0
    return Totals(int(weights.sum()), int(total), special)


def _floats_to_integers(values: pa.Array) -> Any:
    """Return floats in units of 2**-1074; 0 for NULL, NaN, infinities."""
    floats = values.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
    mantissas, exponents = np.frexp(np.where(np.isfinite(floats), floats, 0.0))
    whole = np.ldexp(mantissas, 53).astype(np.int64)
    places = exponents.astype(np.int64) - 53 + 1074
    return (whole >> np.maximum(-places, 0)).astype(object) << np.maximum(places, 0).astype(object)


def _add_nan_and_infinities(sums: Ints, p: Places, words: Ints, kind: pa.DataType, domain: Domain) -> Ints:
    """Return sums, corrected for frames with a NaN or an infinity."""
    floats = domain.decode(words, kind).cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
    if np.isfinite(floats).all() and not any(p.whole.others):
        return sums
    has = []
    flags = (np.isnan(floats), floats == np.inf, floats == -np.inf)
    for is_special, count_before, whole in zip(flags, p.before.others, p.whole.others, strict=True):
        has.append(p.sum_over_frames(is_special.astype(np.int64), count_before, whole) > 0)
    # NaN wins, as do infinities of both signs; else the sum is the infinity that there is.
    special = np.where(has[0] | (has[1] & has[2]), np.nan, np.where(has[1], np.inf, -np.inf))
    return np.where(np.logical_or.reduce(has), domain.encode(pa.array(special)), sums)


EXTREMES = {"min": False, "max": True, "bool_and": False, "bool_or": True}  # And whether each is the greatest.
_FUNCTIONS: dict[str, Function] = {
    "row_number": lambda call, p, *_: p.at - p.begins + 1,
    "rank": lambda call, p, *_: p.peers_begin - p.begins + 1,
    "dense_rank": _dense_rank,
    "percent_rank": _percent_rank,
    "cume_dist": lambda call, p, _, __, domain: domain.encode(pa.array((p.peers_end - p.begins) / (p.ends - p.begins))),
    "ntile": _ntile,
    "lag": _make_shift(-1),
    "lead": _make_shift(1),
    "count_star": lambda call, p, *_: p.high - p.low,
    "count": _count,
    "sum": _sum,
    "avg": _avg,
    **{function: _make_extreme(is_max) for function, is_max in EXTREMES.items()},
}
SUMMED = ("count", "sum", "avg", *EXTREMES)  # These use the `Totals` of the rows before.
# The folds of functions of rows.
_FOLDS = {"first_value": "first", "last_value": "last", "nth_value": "nth"}
