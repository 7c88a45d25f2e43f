"""Logics of reductions: the results of many groups at a time.

A logic takes the consolidated records of some groups and returns the results of these. All arrays of one call belong
together by position, and are sorted by group:

    groups: int64[n]           the number of the group of each record
    values: int64[v, n]        its value words
    diffs: int64[n]            its multiplicity, not 0

and returns (groups, values, diffs) of the output, with the words of the output's columns. Groups without records do not
appear, so an empty group yields nothing by construction.
"""

from collections.abc import Callable, Sequence
from operator import truediv
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from persist.codecs.errors import DiffOverflow
from persist.compute.dataflow.operators.aggregates import (
    ACCUMULABLE,
    FIRST_LIMB,
    INFINITE,
    MINUS_INFINITE,
    NAN,
    NULLS,
    SLOTS,
    SQUARES,
    VARIANCES,
    AggregateCall,
    check_int64,
    compute_exact_sums,
    split_values_by_kind,
    to_float,
)
from persist.compute.dataflow.operators.linear import Column, Frame, encode_records
from persist.compute.dataflow.operators.moments import LOWEST, STATISTICS, Sums, compute_non_finite
from persist.compute.dataflow.plan.plan import Counted
from persist.compute.dataflow.updates.batch import (
    check_sum,
    compute_largest_magnitude,
    find_run_starts,
    multiply_diffs,
    sum_runs,
)
from persist.compute.dataflow.updates.times import Flags, Ints
from persist.compute.dataflow.updates.words import NULL, Domain, compute_ranks, rank_in_direction
from persist.core.errors import OperatorFailed

Result: TypeAlias = tuple[Ints, Ints, Ints]
KeysOf: TypeAlias = Callable[[Ints], Ints]  # The key words of groups, int64[k, n].
Logic: TypeAlias = Callable[[Ints, Ints, Ints, KeysOf], Result]

COPIES_MAX = 1 << 31  # The most rows that are sorted at once; a record of multiplicity n is n rows.
NOTHING = np.empty((0, 0), np.int64)


def repeat_by_multiplicity(diffs: Ints) -> Ints:
    """Return each record's number as often as its multiplicity, none if negative.

    Raises DiffOverflow: there are more rows than can be processed one by one.
    """
    counts = np.maximum(diffs, 0)
    if (
        len(counts)
        and len(counts) * compute_largest_magnitude(counts) > COPIES_MAX
        and sum(counts.tolist()) > COPIES_MAX
    ):
        raise DiffOverflow(f"groups have {sum(counts.tolist())} records; at most {COPIES_MAX} can be sorted at once")
    return np.arange(len(diffs)).repeat(counts)


def compute_distinct(groups: Ints, values: Ints, diffs: Ints, find_keys: KeysOf) -> Result:
    """Return each record once, if its multiplicity is positive."""
    present = groups[diffs > 0]
    return present, np.empty((0, len(present)), np.int64), np.ones(len(present), np.int64)


def make_threshold_logic(function: Callable[[int], int], operator: str) -> Logic:
    """Make the logic that computes new multiplicities by a function."""

    def logic(groups: Ints, values: Ints, diffs: Ints, find_keys: KeysOf) -> Result:
        """Apply the function to each distinct multiplicity."""
        counts, at = np.unique(diffs, return_inverse=True)
        results = []
        for count in counts.tolist():
            try:
                result = function(count)
            except Exception as error:
                raise OperatorFailed(operator, None, f"on the multiplicity {count} it raised {error!r}") from error
            if isinstance(result, bool) or not isinstance(result, int) or abs(result) >= 2**63:
                raise OperatorFailed(
                    operator, None, f"for the multiplicity {count} it returned {result!r} instead of an int64"
                )
            results.append(result)
        counts_of_rows = np.array(results, np.int64).take(at)
        keep = counts_of_rows != 0
        return groups[keep], np.empty((0, int(keep.sum())), np.int64), counts_of_rows[keep]

    return logic


def make_sum_logic(aggregates: Sequence[AggregateCall], domain: Domain, *, is_complete: bool = False) -> Logic:
    """Make the logic of aggregates from exact sums: records are slots, multiplicities their sums.

    A group exists while the number of its records is not zero. With is_complete, it exists while a count or a total is
    not zero: a total may differ from 0 although multiplicities cancel.
    """

    def logic(groups: Ints, values: Ints, diffs: Ints, find_keys: KeysOf) -> Result:
        """Compute the aggregates from counts and sums."""
        slots = values[0]
        is_count = slots == 0
        present, records = groups[is_count], diffs[is_count]
        if is_complete:
            every, counts = np.unique(groups), records
            records = np.zeros(len(every), np.int64)
            records[every.searchsorted(present)] = counts
            present = every
        # Groups are sorted, so a search finds the place of each among the present ones.
        at = present.searchsorted(groups)
        is_present = present.take(at, mode="clip") == groups if len(present) else np.zeros(len(groups), np.bool_)
        columns = []
        for number, aggregation in enumerate(aggregates):
            if aggregation.is_counted:
                columns.append(_count_records(aggregation, records))
                continue
            low = 1 + number * SLOTS
            is_own = is_present & (slots >= low) & (slots < low + SLOTS)
            owners, into, sums = at[is_own], slots[is_own] - low, diffs[is_own]
            columns.append(
                compute_aggregate(aggregation, _count_values(records, owners, into, sums), owners, into, sums, domain)
            )
        words = np.array(columns, np.int64).reshape(len(columns), len(present))
        if is_complete:
            is_there = words.any(axis=0)
            present, words = present[is_there], words[:, is_there]
        return present, words, np.ones(len(present), np.int64)

    return logic


def _count_records(request: AggregateCall, records: Ints) -> Ints:
    """Return counts of records; for the sum of a constant, times the constant."""
    constant = request.constant if request.kind == "sum" else 1
    return records if constant == 1 else multiply_diffs(records, np.full(len(records), constant))


def _count_values(records: Ints, groups: Ints, slots: Ints, sums: Ints) -> Ints:
    """Return how many values of each group are not NULL."""
    is_null = slots == NULLS
    if not is_null.any():
        return records
    nulls = np.zeros(len(records), np.int64)
    nulls[groups[is_null]] = sums[is_null]
    if compute_largest_magnitude(records) + compute_largest_magnitude(nulls) >= 2**63:
        for count in records.astype(object) - nulls.astype(object):
            check_sum(count)
    return records - nulls


def compute_aggregate(
    request: AggregateCall, counts: Ints, groups: Ints, slots: Ints, sums: Ints, domain: Domain
) -> Ints:
    """Return one aggregate of each group as words, from sums by slot."""
    count = len(counts)
    if request.kind == "count":
        return counts
    if not pat.is_floating(request.result) and not pat.is_decimal(request.result):
        return _to_integer_sums(request.name, groups, slots, sums, counts)
    if request.kind in VARIANCES:
        return _compute_variances(request.kind, counts, groups, slots, sums, domain)
    is_limb = slots >= FIRST_LIMB
    totals = compute_exact_sums(groups[is_limb], slots[is_limb], sums[is_limb], count)
    if pat.is_decimal(request.result):
        is_none = (counts == 0) & (request.kind != "total")  # A total over no values is 0.
        values = [None if none else total for total, none in zip(totals, is_none, strict=True)]
        return _encode_decimals(request.name, values, request.result, domain)
    divisors = counts if request.kind == "mean" else np.ones(count, np.int64)
    if pat.is_decimal(request.of):
        divisors = divisors.astype(object) * 10**request.of.scale
    quotient = to_float if pat.is_floating(request.of) else truediv
    floats = [
        quotient(total, divisor) if is_there else None
        for total, divisor, is_there in zip(totals, divisors.tolist(), counts != 0, strict=True)
    ]
    words = domain.encode(pa.array(floats, pa.float64()))
    return _add_infinities(words, groups, slots, sums, count, domain)


def _compute_variances(kind: str, counts: Ints, groups: Ints, slots: Ints, sums: Ints, domain: Domain) -> Ints:
    """Return variances or deviations of groups, from exact sums of values and squares."""
    is_square = slots >= SQUARES
    is_one = (slots >= FIRST_LIMB) & ~is_square
    totals = compute_exact_sums(groups[is_one], slots[is_one], sums[is_one], len(counts))
    places = slots[is_square] - (SQUARES - FIRST_LIMB)
    squares = compute_exact_sums(groups[is_square], places, sums[is_square], len(counts))
    has_other = np.zeros(len(counts), np.bool_)
    has_other[groups[(slots >= NAN) & (slots <= MINUS_INFINITE)]] = True
    _, made_of = STATISTICS[kind]
    values: list[float | None] = []
    for count, total, square, is_other in zip(counts.tolist(), totals, squares, has_other.tolist(), strict=True):
        group_sums = Sums(count, {"x": total << (LOWEST - 1074), "xx": square})  # Sums of floats are in 2**-1074.
        values.append(None if count <= 0 else compute_non_finite(kind, count) if is_other else made_of(group_sums))
    return domain.encode(pa.array(values, pa.float64()))


def _to_integer_sums(name: str, groups: Ints, slots: Ints, sums: Ints, counts: Ints) -> Ints:
    """Return the int64 sum of each group; NULL without values. Raises DiffOverflow."""
    limb = (slots == FIRST_LIMB) | (slots == FIRST_LIMB + 1)
    totals = check_int64(compute_exact_sums(groups[limb], slots[limb], sums[limb], len(counts)), name)
    return np.where(counts == 0, NULL, totals)


def _add_infinities(words: Ints, groups: Ints, slots: Ints, sums: Ints, count: int, domain: Domain) -> Ints:
    """Return float sums, with NaN or infinities where a group has some."""
    special = (slots >= NAN) & (slots <= MINUS_INFINITE)
    if not special.any():
        return words
    counts = np.zeros((3, count), np.int64)
    counts[slots[special] - NAN, groups[special]] = sums[special]
    has = counts != 0
    is_nan = has[0] | (has[INFINITE - NAN] & has[MINUS_INFINITE - NAN])
    values = np.where(is_nan, np.nan, np.where(has[INFINITE - NAN], np.inf, -np.inf))
    return np.where(has.any(axis=0), domain.encode(pa.array(values)), words)


def _encode_decimals(name: str, values: Sequence[int | None], kind: pa.DataType, domain: Domain) -> Ints:
    """Return the words of decimals, from whole numbers of their last digit."""
    numbers = [value for value in values if value is not None]
    if numbers and max(max(numbers), -min(numbers)) >= 10**kind.precision:
        raise DiffOverflow(f"the sum {name!r} needs more than the {kind.precision} digits of {kind}")
    return domain.encode_decimals(values, kind)


def make_multiset_logic(aggregates: Sequence[AggregateCall], domain: Domain) -> Logic:
    """Make the logic of aggregates that need all values of a group."""

    def logic(groups: Ints, values: Ints, diffs: Ints, find_keys: KeysOf) -> Result:
        """Compute the aggregates from all values of each group."""
        firsts = find_run_starts(groups)
        counts = sum_runs(diffs, firsts) if len(firsts) else diffs
        is_present = counts != 0
        sizes = np.diff(np.append(firsts, len(groups)))
        numbers = np.arange(len(firsts)).repeat(sizes)
        columns = [
            _aggregate_multiset(aggregation, words, numbers, diffs, len(firsts), domain)
            for aggregation, words in zip(aggregates, values, strict=True)
        ]
        rows = np.array(columns, np.int64).reshape(len(columns), len(firsts))
        return groups[firsts][is_present], rows[:, is_present], np.ones(int(is_present.sum()), np.int64)

    return logic


def _aggregate_multiset(
    request: AggregateCall, words: Ints, numbers: Ints, diffs: Ints, count: int, domain: Domain
) -> Ints:
    """Return one aggregate of each group, from all of its values."""
    is_value = words != NULL
    if not is_value.all():
        words, numbers, diffs = words[is_value], numbers[is_value], diffs[is_value]
    if request.kind in ACCUMULABLE:
        counts, firsts = np.zeros(count, np.int64), find_run_starts(numbers)
        if len(firsts):
            counts[numbers[firsts]] = sum_runs(diffs, firsts)
        rows, slots, amounts = split_values_by_kind(request.kind, words, request.of, domain)
        groups, slots, sums = sum_by_slot(numbers[rows], slots, amounts, diffs[rows])
        return compute_aggregate(request, counts, groups, slots, sums, domain)
    choose = {"min": np.minimum, "max": np.maximum}.get(request.kind)
    if choose is None or (diffs <= 0).any():
        numbers, words, diffs = _sort_by_value(numbers, words, request.of, diffs, domain)
    results = np.full(count, NULL, np.int64)
    firsts = find_run_starts(numbers)
    if not len(firsts):
        return results
    ends = np.append(firsts[1:], len(numbers))
    if choose is None:
        results[numbers[firsts]] = words[_find_medians(firsts, ends, diffs)]
        return results
    places = compute_ranks(domain, words, request.of)
    at = (places == choose.reduceat(places, firsts).repeat(ends - firsts)).nonzero()[0]
    results[numbers[at]] = words[at]
    return results


def sum_by_slot(groups: Ints, slots: Ints, amounts: Ints, diffs: Ints) -> tuple[Ints, Ints, Ints]:
    """Return (groups, slots, sums): the sum of amounts times diffs in each slot."""
    order = np.lexsort((slots, groups))
    groups, slots, sums = groups[order], slots[order], multiply_diffs(amounts, diffs)[order]
    if not len(groups):
        return groups, slots, sums
    firsts = find_run_starts(groups, slots)
    return groups[firsts], slots[firsts], sum_runs(sums, firsts)


def _sort_by_value(numbers: Ints, words: Ints, of: pa.DataType, diffs: Ints, domain: Domain) -> tuple[Ints, Ints, Ints]:
    """Return (groups, values, sums of diffs) where the sum is positive, sorted."""
    order = np.lexsort((compute_ranks(domain, words, of), numbers))
    numbers, words, diffs = numbers[order], words[order], diffs[order]
    if not len(numbers):
        return numbers, words, diffs
    firsts = find_run_starts(numbers, words)
    sums = sum_runs(diffs, firsts)
    keep = sums > 0
    return numbers[firsts][keep], words[firsts][keep], sums[keep]


def _find_medians(firsts: Ints, ends: Ints, diffs: Ints) -> Ints:
    """Return where the lower middle of each group is."""
    running = diffs.cumsum()
    earlier = running[firsts] - diffs[firsts]
    totals = running[ends - 1] - earlier
    return running.searchsorted(earlier + (totals + 1) // 2)


def make_top_k_logic(
    count: int,
    by: Sequence[tuple[int, bool, bool]],
    kinds: Sequence[pa.DataType],
    domain: Domain,
    *,
    skip: int = 0,
    counted: Counted = "row_number",
) -> Logic:
    """Make the logic that selects the first records of each group.

    Args:
        by: the order: value columns by number, whether each is descending, and whether NULL comes first.
        kinds: types of all value rows.
        skip: how many first records are left out; 0 if ranks are limited.
        counted: what `count` limits: row numbers, ranks or dense ranks. Records of equal rank are selected together.
    """
    count = min(count, 2**63 - 1 - skip)  # So their sum fits int64.
    every = [*by, *((row, False, False) for row in range(len(kinds)) if row not in {by_row for by_row, *_ in by})]

    def logic(groups: Ints, values: Ints, diffs: Ints, find_keys: KeysOf) -> Result:
        """Return the first records of each group."""
        keep: Flags = diffs > 0
        if not keep.all():
            groups, values, diffs = groups[keep], values[:, keep], diffs[keep]
        if not len(groups):
            return groups, values, diffs
        if count + skip < len(groups) and counted != "dense_rank":
            row, down, first = every[0]
            foremost = _find_candidates(
                groups, rank_in_direction(domain, values[row], kinds[row], down, first), count + skip
            )
            groups, values, diffs = groups.take(foremost), values.take(foremost, axis=1), diffs.take(foremost)
        columns = [rank_in_direction(domain, values[row], kinds[row], down, first) for row, down, first in every]
        order = np.lexsort((*columns[::-1], groups))
        if counted != "row_number":
            order = order[
                _is_within_rank(count, counted, groups[order], [c[order] for c in columns[: len(by)]], diffs[order])
            ]
            return groups[order], values[:, order], diffs[order]
        groups, values, diffs = groups[order], values[:, order], np.minimum(diffs[order], count + skip)
        firsts = find_run_starts(groups)
        # How many records of the group stand before each one, and how many copies of it lie between skip and the end.
        running = diffs.cumsum()
        earlier = running - diffs
        sizes = np.diff(np.append(firsts, len(groups)))
        passed = earlier - earlier[firsts].repeat(sizes)
        ends = np.minimum(passed + diffs, count + skip)
        copies_taken = ends - np.maximum(passed, skip)
        keep = copies_taken > 0
        return groups[keep], values[:, keep], copies_taken[keep]

    return logic


def _is_within_rank(count: int, counted: Counted, groups: Ints, keys: list[Ints], diffs: Ints) -> Flags:
    """Return which sorted records have a rank of at most `count` in their group."""
    begins = np.ones(len(groups), np.bool_)
    begins[1:] = groups[1:] != groups[:-1]
    is_new = begins.copy()
    for key in keys:
        is_new[1:] |= key[1:] != key[:-1]
    # For each record the number of its peers, which agree in all keys, and the first record of its group.
    peers, first = is_new.cumsum() - 1, begins.nonzero()[0].take(begins.cumsum() - 1)
    if counted == "dense_rank":
        return peers - peers.take(first) < count
    # The sums are of no more than count for each record: what is behind that does not matter.
    earlier = np.minimum(diffs, count).cumsum() - np.minimum(diffs, count)
    return earlier.take(is_new.nonzero()[0]).take(peers) - earlier.take(first) < count


def _find_candidates(groups: Ints, places: Ints, count: int) -> Ints:
    """Return the records that may be among the first `count` of their group.

    `places`: the ranks of records by the first column of the order. Records with the same rank as the last candidate
    are candidates, too. The other columns of the order are compared only for candidates.
    """
    order = np.lexsort((places, groups))
    groups, places = groups.take(order), places.take(order)
    firsts = find_run_starts(groups)
    sizes = np.diff(np.append(firsts, len(groups)))
    # The place of the last record of each group that may count.
    lasts = places.take(firsts + np.minimum(sizes, count) - 1)
    foremost: Ints = order[places <= lasts.repeat(sizes)]
    return foremost


def make_user_logic(
    function: Callable[[Any, Any], Any],
    keys: pa.Schema,
    values: pa.Schema,
    columns: pa.Schema,
    domain: Domain,
    operator: str,
) -> Logic:
    """Make the logic that calls a Python function for each group."""

    def logic(groups: Ints, words: Ints, diffs: Ints, find_keys: KeysOf) -> Result:
        """Call the user's function on each group."""
        firsts = find_run_starts(groups)
        value_columns = {field.name: Column(domain, field.type, words[at]) for at, field in enumerate(values)}
        records = Frame(domain, value_columns, NOTHING, diffs).to_records()
        pairs = list(zip(records, diffs.tolist(), strict=True))
        rows = find_keys(groups[firsts])
        key_columns = [domain.decode(rows[at], field.type).to_pylist() for at, field in enumerate(keys)]
        names = (
            key_columns[0]
            if len(key_columns) == 1
            else list(zip(*key_columns, strict=True))
            if key_columns
            else [()] * len(firsts)
        )
        results: list[Any] = []
        counts: list[int] = []
        sources: list[Any] = []
        places: list[int] = []
        ends = [*firsts[1:].tolist(), len(groups)]
        for number, (first, end, key) in enumerate(zip(firsts.tolist(), ends, names, strict=True)):
            for record, count in _call_function(function, key, pairs[first:end], operator):
                results.append(record)
                counts.append(count)
                sources.append(key)
                places.append(number)
        out = encode_records(results, sources, columns, domain, operator)
        owners = groups[firsts].take(np.array(places, np.int64))
        return owners, np.array(out, np.int64).reshape(len(columns), len(results)), np.array(counts, np.int64)

    return logic


def _call_function(
    function: Callable[[Any, Any], Any], key: Any, pairs: list[tuple[Any, int]], operator: str
) -> list[tuple[Any, int]]:
    """Call a user's function on a group, and check its results."""
    try:
        results = list(function(key, pairs))
    except Exception as error:
        raise OperatorFailed(operator, key, f"it raised {error!r}") from error
    for result in results:
        is_pair = isinstance(result, tuple) and len(result) == 2
        if not is_pair or isinstance(result[1], bool) or not isinstance(result[1], int) or abs(result[1]) >= 2**63:
            raise OperatorFailed(
                operator,
                key,
                f"it returned {result!r:.200} instead of pairs of a record and its multiplicity, an integer",
            )
    return [result for result in results if result[1]]
