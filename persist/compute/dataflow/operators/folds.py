"""Folds: aggregates over the ordered rows of frames. Groups and window frames are both frames.

A fold computes many frames at once. All arrays have one element for each row, sorted by frame. Within a frame, rows
are in the call's order, and rows that are equal in it are in the order of the aggregated values. So a result depends
on the contents of its frame alone, which SQL allows.

`GROUP BY` has one frame for each group (`make_fold_logic`), and windows one for each row (`operators.windows`). In
both cases all rows are processed in arrays, and none in Python.

Cost: a change of a group reads the rows of the group. Windows read the rows of all frames, `Costs.frame_rows` rows at
a time.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.codecs.order.sums import to_whole_numbers
from persist.compute.dataflow.operators.aggregates import AggregateCall, split_values_by_kind
from persist.compute.dataflow.operators.logic import compute_aggregate, repeat_by_multiplicity, sum_by_slot
from persist.compute.dataflow.operators.moments import STATISTICS, compute_statistics
from persist.compute.dataflow.plan.plan import WindowFunction
from persist.compute.dataflow.updates.batch import find_run_starts
from persist.compute.dataflow.updates.times import Flags, Ints
from persist.compute.dataflow.updates.words import NULL, Domain, compute_ranks, rank_in_direction


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of groups or window frames, which an aggregate takes as arguments.

    Attributes:
        owners: the number of each row's frame, ascending.
        arguments, kinds: the words and the types of the call's arguments.
        count: how many frames there are.
    """

    owners: Ints
    arguments: list[Ints]
    kinds: list[pa.DataType]
    count: int
    domain: Domain

    def select(self, keep: Flags) -> "Rows":
        """Return the rows that are flagged."""
        if keep.all():
            return self
        return self.take(keep.nonzero()[0])

    def take(self, at: Ints) -> "Rows":
        """Return the rows at some places."""
        return replace(self, owners=self.owners.take(at), arguments=[words.take(at) for words in self.arguments])

    def rank_first_argument(self) -> Ints:
        """Return for each row a rank of its first argument, in the order of values."""
        return compute_ranks(self.domain, self.arguments[0], self.kinds[0])

    def fill_frames(self, places: Ints, words: Ints) -> Ints:
        """Return a word for each frame, from words of rows; NULL for frames without one."""
        every_word = np.full(self.count, NULL, np.int64)
        every_word[self.owners.take(places)] = words
        return every_word

    def find_nonempty(self) -> tuple[Ints, Ints]:
        """Return where each frame that has rows begins and ends."""
        firsts = find_run_starts(self.owners)
        return firsts, np.append(firsts[1:], len(self.owners))[: len(firsts)]


def make_fold_logic(calls: Sequence[WindowFunction], schema: pa.Schema, domain: Domain) -> Callable[..., Any]:
    """Return the logic of a reduction with one record for each group, and a column for each call."""

    def logic(groups: Ints, values: Ints, diffs: Ints, find_keys: Any) -> tuple[Ints, Ints, Ints]:
        """Compute the folds of each group."""
        # A record of multiplicity n is n rows, and each group is one frame.
        rows = repeat_by_multiplicity(diffs)
        groups, values = groups.take(rows), values.take(rows, axis=1)
        firsts = find_run_starts(groups)
        owners = np.arange(len(firsts)).repeat(np.diff(np.append(firsts, len(groups))))
        columns = []
        for call in calls:
            at = [schema.get_field_index(name) for name in call.arguments]
            frame_rows = Rows(
                owners, [values[row] for row in at], [schema.field(row).type for row in at], len(firsts), domain
            )
            columns.append(compute_fold(call, frame_rows, values, schema, np.arange(len(owners))))
        results = np.array(columns, np.int64).reshape(len(columns), len(firsts))
        return groups.take(firsts), results, np.ones(len(firsts), np.int64)

    return logic


def compute_fold(
    call: WindowFunction, rows: Rows, values: Ints, schema: pa.Schema, at: Ints, *, is_ordered: bool = False
) -> Ints:
    """Return the result of a call for each frame.

    A record with multiplicity n is n rows, and a row may be in several frames.

    Args:
        rows: the rows of all frames.
        values: the words of all columns of records.
        at: for each of `rows`, the place of its record in `values`.
        is_ordered: the rows of each frame are in the order of the partition already.
    """
    if call.where:
        keep = values[schema.get_field_index(call.where)].take(at) == 1
        rows, at = rows.select(keep), at[keep]
    if call.ignores_nulls or call.function in _WITHOUT_NULLS:
        keep = np.logical_and.reduce([words != NULL for words in rows.arguments], axis=0)
        rows, at = rows.select(keep), at[keep]
    if call.function in _ORDERED and (call.within or not is_ordered):
        keys = []
        for name, down, first in call.within:
            row = schema.get_field_index(name)
            keys.append(rank_in_direction(rows.domain, values[row].take(at), schema.field(row).type, down, first))
        ties = [compute_ranks(rows.domain, words, kind) for words, kind in zip(rows.arguments, rows.kinds, strict=True)]
        rows = rows.take(np.lexsort((*ties[::-1], *keys[::-1], rows.owners)))
    if call.is_distinct:
        rows = rows.take(_select_distinct(rows))
    return FOLDS[call.function](call, rows)


def _select_distinct(rows: Rows) -> Ints:
    """Return the first row of each frame for each distinct tuple of arguments."""
    order = np.lexsort((*rows.arguments, rows.owners))
    marks = np.ones(len(order), np.bool_)
    columns = [rows.owners.take(order), *(words.take(order) for words in rows.arguments)]
    marks[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    firsts = order[marks]  # The sort is stable, so these are the first ones.
    firsts.sort()
    return firsts


def iterate_frames(low: Ints, high: Ints, rows_max: int) -> Iterator[tuple[slice, Ints, Ints]]:
    """Yield frames [low, high) in bounded groups, with their rows' places.

    A frame of more than `rows_max` rows is a group of its own.
    """
    ends = (high - low).cumsum()
    first = 0
    while first < len(low):
        rows_before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(ends.searchsorted(rows_before + rows_max, side="right")))
        sizes = high[first:last] - low[first:last]
        owners = np.arange(last - first).repeat(sizes)
        places = np.arange(len(owners)) + (low[first:last] - (ends[first:last] - sizes - rows_before)).repeat(sizes)
        yield slice(first, last), owners, places
        first = last


Fold = Callable[[WindowFunction, Rows], Ints]


def _first(call: WindowFunction, rows: Rows) -> Ints:
    """Return the first argument of each frame's first row."""
    firsts, _ = rows.find_nonempty()
    return rows.fill_frames(firsts, rows.arguments[0].take(firsts))


def _last(call: WindowFunction, rows: Rows) -> Ints:
    """Return the first argument of each frame's last row."""
    _, ends = rows.find_nonempty()
    return rows.fill_frames(ends - 1, rows.arguments[0].take(ends - 1))


def _nth(call: WindowFunction, rows: Rows) -> Ints:
    """Return the first argument of each frame's n-th row; NULL without one."""
    firsts, ends = rows.find_nonempty()
    places = firsts + call.number - 1
    places = places[(places >= firsts) & (places < ends)]
    return rows.fill_frames(places, rows.arguments[0].take(places))


def _make_extreme(is_max: bool) -> Fold:
    """Return the fold for the minimum, or the maximum, of a frame."""

    def extreme(call: WindowFunction, rows: Rows) -> Ints:
        """Return the least or the greatest first argument of each frame."""
        order = np.lexsort((rows.rank_first_argument(), rows.owners))
        firsts, ends = rows.find_nonempty()
        places = order.take(ends - 1 if is_max else firsts)
        return rows.fill_frames(places, rows.arguments[0].take(places))

    return extreme


def _make_arg_extreme(is_max: bool) -> Fold:
    """Return the fold for arg_min or arg_max: an argument where another is extreme."""

    def extreme(call: WindowFunction, rows: Rows) -> Ints:
        """Pick the value with the least or greatest key; ties go to the first."""
        by = compute_ranks(rows.domain, rows.arguments[1], rows.kinds[1])
        order = np.lexsort((~by if is_max else by, rows.owners))
        places = order.take(rows.find_nonempty()[0])
        return rows.fill_frames(places, rows.arguments[0].take(places))

    return extreme


def _count(call: WindowFunction, rows: Rows) -> Ints:
    """Return the number of rows of each frame."""
    return np.bincount(rows.owners, minlength=rows.count).astype(np.int64)


def _make_sum(kind: str) -> Fold:
    """Return the fold for an aggregate computed from exact sums, such as `sum` or `avg`."""

    def total(call: WindowFunction, rows: Rows) -> Ints:
        """Add up the exact sums of the groups."""
        of = rows.kinds[0]
        aggregation = AggregateCall(call.name, kind, of, call.result)
        at, slots, amounts = split_values_by_kind(kind, rows.arguments[0], of, rows.domain)
        groups, slots, sums = sum_by_slot(rows.owners.take(at), slots, amounts, np.ones(len(at), np.int64))
        return compute_aggregate(aggregation, _count(call, rows), groups, slots, sums, rows.domain)

    return total


def _make_bitwise_fold(function: Any) -> Fold:
    """Return the fold that combines a frame's values with a ufunc, such as bitwise or."""

    def combined(call: WindowFunction, rows: Rows) -> Ints:
        """Combine the values of each group with a ufunc."""
        firsts, _ = rows.find_nonempty()
        if not len(firsts):
            return rows.fill_frames(firsts, firsts)
        # Words of uint64 are not numbers, and a result may be the word of NULL.
        values = rows.domain.decode(rows.arguments[0], rows.kinds[0]).to_numpy(zero_copy_only=False)
        return rows.fill_frames(firsts, rows.domain.encode(pa.array(function.reduceat(values, firsts), rows.kinds[0])))

    return combined


def _mode(call: WindowFunction, rows: Rows) -> Ints:
    """Return the most frequent value; of several, the first."""
    order = np.lexsort(
        (rows.rank_first_argument(), rows.owners)
    )  # It is stable, so runs of a value begin with its first row.
    owners, words = rows.owners, rows.arguments[0].take(order)
    # The runs of equal values in each frame, and how long they are.
    starts = find_run_starts(owners, words)
    counts = np.diff(np.append(starts, len(words)))
    # The longest run of each frame is put first; among equally long ones, the run whose value comes first.
    best = np.lexsort((order.take(starts), -counts, owners.take(starts)))
    places = starts.take(best.take(find_run_starts(owners.take(starts).take(best))))
    return rows.fill_frames(places, words.take(places))


def _list_values(kind: pa.DataType, rows: Rows) -> pa.Array:
    """Return the values of each frame as a list; NULL if there are none."""
    sizes = np.bincount(rows.owners, minlength=rows.count)
    offsets = np.concatenate(([0], sizes.cumsum()))
    values = rows.domain.decode(rows.arguments[0], rows.kinds[0])
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, mask=pa.array(sizes == 0))
    return lists.cast(kind)


def _histogram(call: WindowFunction, rows: Rows) -> Ints:
    """Return a map for each frame, from each value to its count."""
    order = np.lexsort((rows.rank_first_argument(), rows.owners))
    owners, words = rows.owners, rows.arguments[0].take(order)
    # Each run of equal values in a frame is an entry of its map, with its length.
    starts = find_run_starts(owners, words)
    counts = np.diff(np.append(starts, len(words)))
    sizes = np.bincount(owners.take(starts), minlength=rows.count)
    offsets = pa.array(np.concatenate(([0], sizes.cumsum())), pa.int32(), mask=None)
    keys = rows.domain.decode(words.take(starts), rows.kinds[0])
    maps = pa.MapArray.from_arrays(offsets, keys, pa.array(counts, pa.uint64())).cast(call.result)
    return rows.domain.encode(pc.if_else(pa.array(sizes == 0), pa.scalar(None, call.result), maps))


def _quantile(call: WindowFunction, rows: Rows) -> Ints:
    """Return a quantile, or a list of them, of each frame's values."""
    rows = rows.take(np.lexsort((rows.rank_first_argument(), rows.owners)))
    firsts, ends = rows.find_nonempty()
    words = rows.arguments[0]
    columns = compute_quantiles(
        call, ends - firsts, lambda places: words.take(firsts + places), rows.kinds[0], rows.domain
    )
    if not call.constants[1]:
        return rows.fill_frames(firsts, columns[0])
    every = np.array(columns, np.int64).reshape(len(columns), len(firsts)).T.reshape(-1)
    elements = replace(rows, owners=rows.owners.take(firsts).repeat(len(columns)), arguments=[every])
    return rows.domain.encode(_list_values(call.result, replace(elements, kinds=[call.result.value_type])))


def compute_quantiles(
    call: WindowFunction, sizes: Ints, pick: Callable[[Ints], Ints], of: pa.DataType, domain: Domain
) -> list[Ints]:
    """Return quantiles of groups: existing values, or interpolated ones.

    Args:
        sizes: how many values each group has, one at least.
        pick: returns one value of each group, as a word, by its place in the group's order.
    """
    is_between, is_list, down, *shares = call.constants
    kind = call.result.value_type if is_list else call.result

    def pick_words(places: Ints) -> Ints:
        words = pick(sizes - 1 - places if down else places)
        return words if kind == of else domain.encode(domain.decode(words, of).cast(kind))

    columns = []
    for share in shares:
        if not is_between:
            columns.append(pick_words(_find_place(share, sizes)))
            continue
        exact = (sizes - 1) * (share[0] / share[1] if isinstance(share, tuple) else share)
        low, high = np.floor(exact).astype(np.int64), np.ceil(exact).astype(np.int64)
        lows, highs = pick_words(low), pick_words(high)
        columns.append(np.where(low == high, lows, _interpolate(lows, highs, exact - low, kind, domain)))
    return columns


def _find_place(share: Any, sizes: Ints) -> Ints:
    """Return the first place in each group where a share of its rows is reached."""
    if isinstance(share, tuple):  # A whole number over another: exact.
        part, whole = share
        places = np.array([size - (size * whole - size * part) // whole for size in sizes.tolist()], np.int64)
    else:
        places = sizes - np.floor(sizes - sizes * share).astype(np.int64)
    return np.maximum(places, 1) - 1


def _interpolate(one: Ints, other: Ints, share: Any, kind: pa.DataType, domain: Domain) -> Ints:
    """Return the values at a share of the distance between one value and another."""
    if pat.is_floating(kind):
        decoded = (domain.decode(words, kind).cast(pa.float64()) for words in (one, other))
        low, high = (values.to_numpy(zero_copy_only=False) for values in decoded)
        with np.errstate(all="ignore"):
            numbers = low + (high - low) * share
        return domain.encode(pa.array(numbers).cast(kind))
    if pat.is_decimal(kind) and kind.precision > 18:
        decoded = (domain.decode(words, kind) for words in (one, other))
        lows, highs = (to_whole_numbers(pa.chunked_array([values])).tolist() for values in decoded)
    else:
        lows, highs = one.tolist(), other.tolist()
    # As DuckDB, towards zero; but of the exact value between them.
    numbers = [int(low + (high - low) * Fraction(part)) for low, high, part in zip(lows, highs, share, strict=True)]
    if pat.is_decimal(kind) and kind.precision > 18:
        return domain.encode_decimals(numbers, kind)
    return np.array(numbers, np.int64)


def _median_absolute_deviation(call: WindowFunction, rows: Rows) -> Ints:
    """Return the median of the distances from the median."""
    median = replace(call, constants=(True, False, False, (1, 2)))
    middles = _quantile(median, rows)
    kind, domain = call.result, rows.domain
    values, centers = (domain.decode(words, of) for words, of in ((rows.arguments[0], rows.kinds[0]), (middles, kind)))
    values = values if values.type == kind else values.cast(kind)
    if pat.is_decimal(kind):  # Differences have a digit more, which may not fit into 38.
        values, centers = (column.cast(pa.decimal256(38, kind.scale)) for column in (values, centers))
    distances = pc.abs(pc.subtract(values, centers.take(pa.array(rows.owners))))
    distances = distances if distances.type == kind else distances.cast(kind)
    return _quantile(median, replace(rows, arguments=[domain.encode(distances)], kinds=[kind]))


def _make_statistic(name: str) -> Fold:
    """Return the fold of a statistic of floats, such as a correlation."""

    def statistic(call: WindowFunction, rows: Rows) -> Ints:
        values = [
            rows.domain.decode(words, kind).to_numpy(zero_copy_only=False)
            for words, kind in zip(rows.arguments, rows.kinds, strict=True)
        ]
        return rows.domain.encode(pa.array(compute_statistics(name, rows.owners, values, rows.count), pa.float64()))

    return statistic


FOLDS: dict[str, Fold] = {
    "first": _first,
    "any": _first,
    "last": _last,
    "nth": _nth,
    "min": _make_extreme(False),
    "max": _make_extreme(True),
    "bool_and": _make_extreme(False),
    "bool_or": _make_extreme(True),
    "arg_min": _make_arg_extreme(False),
    "arg_max": _make_arg_extreme(True),
    "count_star": _count,
    "count": _count,
    "regr_count": _count,
    "sum": _make_sum("sum"),
    "avg": _make_sum("mean"),
    "bit_and": _make_bitwise_fold(np.bitwise_and),
    "bit_or": _make_bitwise_fold(np.bitwise_or),
    "bit_xor": _make_bitwise_fold(np.bitwise_xor),
    "mode": _mode,
    "list": lambda call, rows: rows.domain.encode(_list_values(call.result, rows)),
    "string_agg": lambda call, rows: rows.domain.encode(
        pc.binary_join(_list_values(pa.list_(rows.kinds[0]), rows), call.constants[0])
    ),
    "histogram": _histogram,
    "quantile": _quantile,
    "mad": _median_absolute_deviation,
    **{name: _make_statistic(name) for name in STATISTICS},
}
_WITHOUT_NULLS = frozenset(FOLDS) - {"first", "last", "nth", "list", "count_star"}
_ORDERED = ("first", "any", "last", "nth", "list", "string_agg", "mode", "arg_min", "arg_max")
