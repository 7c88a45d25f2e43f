"""Leaving out pairs that cancel changes nothing about what two tables come to."""

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from persist.codecs.errors import DiffOverflow
from persist.codecs.order.ordering import canonical
from persist.codecs.order.sums import consolidate, without_pairs
from tests.codecs.oracle import sort_keys
from tests.codecs.strategies import arrays, arrow_types
from tests.support.tiers import examples

LEAST = -(2**63)
DIFFS = st.sampled_from([1, 1, 1, -1, -1, -1, 2, -2, 2**63 - 1, LEAST])


@st.composite
def both_sides(draw: st.DrawFn) -> tuple[pa.Table, pa.Table, tuple[str, ...]]:
    """Two tables of few distinct values, so that many rows of the one are in the other."""
    columns = draw(st.integers(1, 3))
    kinds = [draw(arrow_types(nested=draw(st.integers(0, 9)) == 0)) for _ in range(columns)]
    values = [draw(arrays(kind, min_size=1, max_size=3)) for kind in kinds]
    names = [f"c{i}" for i in range(columns)]
    sides = []
    for _ in range(2):
        rows = draw(st.integers(0, 8))
        taken = [
            array.take(
                pa.array(draw(st.lists(st.integers(0, len(array) - 1), min_size=rows, max_size=rows)), pa.int64())
            )
            for array in values
        ]
        taken.append(pa.array(draw(st.lists(DIFFS, min_size=rows, max_size=rows)), pa.int64()))
        table = pa.table(taken, names=[*names, "_diff"])
        cut = draw(st.integers(0, rows))
        sides.append(canonical(pa.concat_tables([table[:cut], table[cut:]])))
    return *sides, tuple(names[: draw(st.integers(0, columns))])


@settings(max_examples=examples(400))
@given(both_sides())
def test_what_two_tables_come_to_is_the_same_without_pairs(given_: tuple[pa.Table, pa.Table, tuple[str, ...]]) -> None:
    left, right, keys = given_
    names = left.column_names[:-1]
    rest = pa.concat_tables(without_pairs(left, right, keys))
    assert len(rest) <= len(left) + len(right)
    try:
        expected = consolidate(pa.concat_tables([left, right]), names)
    except DiffOverflow:
        return  # Which of two rows a pair takes away decides whether the others overflow by themselves.
    found = consolidate(rest, names)
    assert sort_keys(found, names) == sort_keys(expected, names)
    assert found["_diff"].to_pylist() == expected["_diff"].to_pylist()


@pytest.mark.parametrize("order", [range(1000), range(999, -1, -1)])
def test_rows_that_are_on_both_sides_are_left_out(order: range) -> None:
    names = pa.array([None if i % 7 == 0 else f"name-{i}" for i in range(1000)])
    floats = pa.array([float("nan") if i % 5 == 0 else i / 3 for i in range(1000)])
    here = pa.table({"k": range(1000), "s": names, "f": floats, "_diff": np.ones(1000, np.int64)})
    there = here.set_column(3, "_diff", pa.array(-np.ones(1000, np.int64)))
    there = there.filter(pa.array([i not in (3, 500) for i in range(1000)]))
    left, right = without_pairs(here.take(pa.array(order)), there, ("k",))
    assert sorted(left["k"].to_pylist()) == [3, 500]
    assert len(right) == 0


def test_the_least_diff_is_not_its_own_opposite() -> None:
    table = pa.table({"k": [1], "_diff": pa.array([LEAST], pa.int64())})
    assert without_pairs(table, table, ("k",)) == (table, table)
