"""Consolidation agrees with a counter in plain Python, and never wraps."""

import math
import random

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from persist.codecs.errors import DiffOverflow
from persist.codecs.order.sums import (
    consolidate,
    count_limbs,
    find_largest_magnitude,
    from_whole_numbers,
    get_limits,
    join_limbs,
    multiply,
    normalize_limbs,
    split_into_limbs,
    sum_all,
    sum_exactly,
    to_whole_numbers,
)
from tests.codecs.oracle import sort_keys, sums
from tests.codecs.strategies import arrays, arrow_types
from tests.support.tiers import examples

INT64_MAX, INT64_MIN = 2**63 - 1, -(2**63)
DIFFS = st.one_of(st.sampled_from([-1, 1, 2, 0]), st.sampled_from([INT64_MAX, INT64_MIN, 2**62, 2**32 - 1]))


@st.composite
def updates(draw: st.DrawFn, columns: int) -> pa.Table:
    """Rows of few distinct values, sliced and chunked."""
    rows = draw(st.integers(0, 12))
    made = []
    for _ in range(columns):
        array = draw(arrays(draw(arrow_types()), min_size=1, max_size=3))
        picked = draw(st.lists(st.integers(0, len(array) - 1), min_size=rows, max_size=rows))
        made.append(array.take(pa.array([0, *picked], pa.int64()))[1:])
    made.append(pa.array(draw(st.lists(DIFFS, min_size=rows, max_size=rows)), pa.int64()))
    names = [*(f"c{i}" for i in range(columns)), "_diff"]
    table = pa.table(made, names=names)
    cut = draw(st.integers(0, rows))
    return pa.concat_tables([table[:cut], table[cut:]])


@settings(max_examples=examples(250))
@given(st.integers(0, 3).flatmap(updates))
def test_consolidating_agrees_with_counting(table: pa.Table) -> None:
    by = table.column_names[:-1]
    expected = sums(table, by)
    if any(not INT64_MIN <= total <= INT64_MAX for total in expected.values()):
        with pytest.raises(DiffOverflow, match="outside int64"):
            consolidate(table, by)
        return
    result = consolidate(table, by)
    assert result.schema.types == table.schema.types
    assert result.column_names == table.column_names
    keys = sort_keys(result, by)
    assert keys == sorted(expected)
    assert [expected[key] for key in keys] == result["_diff"].to_pylist()


def test_null_nan_and_negative_zero_are_values() -> None:
    table = pa.table({"x": [None, 0.0, math.nan, -0.0, None, -math.nan], "_diff": [1, 1, 1, 1, 1, -1]})
    result = consolidate(table, ["x"])
    assert result.to_pydict() == {"x": [0.0, None], "_diff": [2, 2]}
    assert math.copysign(1, result["x"][0].as_py()) == 1


def test_columns_not_asked_for_are_left_out_and_order_is_as_asked() -> None:
    table = pa.table({"a": [2, 1, 2], "b": ["x", "y", "z"], "c": [1, 1, 1], "_diff": [1, 1, 1]})
    assert consolidate(table, ["c", "a"]).to_pydict() == {"c": [1, 1], "a": [1, 2], "_diff": [1, 2]}


def test_without_columns_there_is_one_row_or_none() -> None:
    assert consolidate(pa.table({"a": [1, 2], "_diff": [3, 4]}), []).to_pydict() == {"_diff": [7]}
    assert consolidate(pa.table({"a": [1, 2], "_diff": [3, -3]}), []).num_rows == 0


@pytest.mark.parametrize(
    ("diffs", "total"),
    [
        ([INT64_MAX, 1], None),
        ([INT64_MIN, -1], None),
        ([INT64_MIN, INT64_MIN], None),
        ([INT64_MAX] * 4, None),
        ([INT64_MAX, 1, -1], INT64_MAX),
        ([INT64_MIN, INT64_MAX, 5], 4),
        ([INT64_MIN, INT64_MIN, INT64_MAX, INT64_MAX], -2),
        ([INT64_MIN], INT64_MIN),
        ([2**32 - 1] * 3 + [-(2**32)], 3 * (2**32 - 1) - 2**32),
    ],
)
def test_a_sum_is_exact_or_an_error_whatever_happens_on_the_way(diffs: list[int], total: int | None) -> None:
    table = pa.table({"k": [1] * len(diffs), "_diff": pa.array(diffs, pa.int64())})
    if total is None:
        with pytest.raises(DiffOverflow, match=str(sum(diffs))):
            consolidate(table, ["k"])
        return
    assert consolidate(table, ["k"])["_diff"].to_pylist() == [total]
    assert sum_all(np.array(diffs)) == total


def test_extreme_diffs_of_different_rows_do_not_touch_each_other() -> None:
    table = pa.table({"k": [1, 2, 1, 2], "_diff": [INT64_MAX, INT64_MIN, -1, 1]})
    assert consolidate(table, ["k"])["_diff"].to_pylist() == [INT64_MAX - 1, INT64_MIN + 1]


def test_sorted_distinct_rows_are_not_copied() -> None:
    table = pa.table({"k": pa.array(range(100)), "_diff": pa.array([1] * 100)})
    result = consolidate(table, ["k"])
    assert result["k"].chunk(0).buffers()[1].address == table["k"].chunk(0).buffers()[1].address


@pytest.mark.parametrize("bits", [0, 1, 31, 32, 56, 57, 62, 63, 64, 94, 95, 127, 200])
def test_limbs_hold_numbers_and_their_sums_exactly(bits: int) -> None:
    chance, rows = random.Random(bits), 60
    numbers = [chance.randrange(-(1 << bits), (1 << bits) + 1) for _ in range(rows - 2)] + [1 << bits, -(1 << bits)]
    values = np.array(numbers, np.int64 if bits < 63 else object)
    for bound in (sum(map(abs, numbers)), rows << bits):
        count = count_limbs(bound)
        assert count == 1 + max(0, math.ceil((bound.bit_length() - 62) / 32))
        limbs = split_into_limbs(values, count)
        assert ({limb.dtype for limb in limbs}, len(limbs)) == ({np.dtype(np.int64)}, count)
        assert all(((limb >= 0) & (limb < 2**32)).all() for limb in limbs[:-1])
        joined = join_limbs(limbs)
        assert joined.tolist() == numbers
        assert (joined.dtype == object) == (count > 1 and max(abs(n >> 32) for n in numbers) >= 2**31)
        total = normalize_limbs([limb.sum(keepdims=True) for limb in limbs])
        assert all(0 <= int(limb[0]) < 2**32 for limb in total[:-1])
        assert join_limbs(total).tolist() == [sum(numbers)]
    assert find_largest_magnitude(values) == 1 << bits
    assert find_largest_magnitude(values[values > 0]) == max(n for n in numbers if n > 0)
    assert join_limbs([values[:0], values[:0]]).tolist() == []


@pytest.mark.parametrize(
    ("numbers", "diffs"),
    [
        ([2**62, -1], [1, -1]),
        ([2**62, 1], [2, 1]),
        ([-(2**31), 7], [2**31, -3]),
        ([2**32], [2**31]),
        ([2**70], [3]),
        ([], []),
    ],
)
def test_a_product_is_exact_and_has_its_bound(numbers: list[int], diffs: list[int]) -> None:
    is_wide = max([0, *map(abs, numbers)]) * max([0, *map(abs, diffs)]) >= 2**63
    products, bound = multiply(np.array(numbers, object if 2**70 in numbers else np.int64), np.array(diffs, np.int64))
    assert products.tolist() == [number * diff for number, diff in zip(numbers, diffs, strict=True)]
    assert bound == max([0, *map(abs, numbers)]) * max([0, *map(abs, diffs)])
    assert (products.dtype == object) == is_wide


@pytest.mark.parametrize(
    ("kind", "limits"),
    [
        *((kind, (INT64_MIN, INT64_MAX)) for kind in (pa.int8(), pa.uint32(), pa.int64(), pa.duration("us"))),
        (pa.uint64(), (0, 2**64 - 1)),
        (pa.decimal128(9, 2), (1 - 10**9, 10**9 - 1)),
        (pa.decimal128(38, 4), (1 - 10**38, 10**38 - 1)),
        (pa.decimal256(76, 0), (1 - 10**76, 10**76 - 1)),
        (pa.decimal256(20, 3), (1 - 10**20, 10**20 - 1)),
    ],
    ids=str,
)
def test_whole_numbers_of_a_type_come_back(kind: pa.DataType, limits: tuple[int, int]) -> None:
    assert get_limits(kind) == limits
    small = pa.types.is_integer(kind) and kind.bit_width < 64
    ends = (0, 100) if small else limits
    for numbers in (
        [0, *ends],
        [0, 1, 5],
        [0, 0],
        [2**63 - 1] if ends[1] >= 2**63 else [7],
        [2**63] if ends[1] >= 2**63 else [7],
        [],
    ):
        array = from_whole_numbers(
            np.array(numbers, np.int64 if all(-(2**63) <= n < 2**63 for n in numbers) else object), kind
        )
        whole = pa.chunked_array(
            [array.cast(kind)] if len(numbers) < 2 else [array[:1].cast(kind), array[1:].cast(kind)], kind
        )
        values = to_whole_numbers(whole)
        assert values.tolist() == numbers
        assert (values.dtype == object) == any(not INT64_MIN <= n <= INT64_MAX for n in numbers)
        with_null = pa.chunked_array([pa.concat_arrays([array.cast(kind), pa.nulls(1, kind)])], kind)
        assert to_whole_numbers(with_null).tolist() == [*numbers, 0]


@pytest.mark.parametrize(
    "diffs", [[], [5], [5, 5, 5], [1, -1], [INT64_MAX, 1], [INT64_MIN, -1, 3], [2**62, 2**62 - 1], [INT64_MIN] * 3]
)
def test_a_sum_of_diffs_is_exact_whatever_is_known_of_them(diffs: list[int]) -> None:
    array = np.array(diffs, np.int64)
    assert sum_exactly(array) == sum(diffs)
    if diffs:
        assert sum_exactly(array, min(diffs), max(diffs)) == sum(diffs)
        assert type(sum_exactly(array)) is int


def test_the_first_rows_of_runs_are_taken_and_neighbours_sliced() -> None:
    table = pa.table({"k": [0, 0, 1, 2, 3, 3, 5], "_diff": [1, -1, 1, 1, 1, -1, 2]})
    assert consolidate(table, ["k"]).to_pydict() == {"k": [1, 2, 5], "_diff": [1, 1, 2]}
    assert consolidate(table[6:], ["k"]).to_pydict() == {"k": [5], "_diff": [2]}
    assert consolidate(pa.table({"k": [1], "_diff": [0]}), ["k"]).num_rows == 0
