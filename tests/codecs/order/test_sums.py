"""Consolidation agrees with a counter in plain Python, and never wraps."""

import math

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from persist.codecs.errors import DiffOverflow
from persist.codecs.order.sums import consolidate, sum_all
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
