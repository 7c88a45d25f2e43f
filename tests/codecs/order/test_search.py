"""Sorted keys are searched packed, with a table of buckets, and one by one: each finds what a plain comparison does."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings

import persist.codecs.order.search
from persist.codecs.order.search import SortedKeys
from persist.codecs.order.sums import consolidate
from tests.codecs.oracle import sort_keys
from tests.codecs.strategies import python_values
from tests.support.tiers import examples

FLAT = [pa.int64(), pa.int8(), pa.uint64(), pa.uint16(), pa.float64(), pa.float32(), pa.float16(), pa.bool_()]
FLAT += [pa.string(), pa.large_string(), pa.binary(), pa.binary(3), pa.decimal128(12, 2), pa.decimal256(40, 0)]
FLAT += [pa.date32(), pa.date64(), pa.time32("ms"), pa.timestamp("us", "UTC"), pa.duration("s")]
Types = tuple[pa.DataType, ...]
Keys = list[tuple[Any, ...]]


@st.composite
def keys_and_wanted(draw: st.DrawFn) -> tuple[Types, Keys, Keys]:
    types = tuple(draw(st.lists(st.sampled_from(FLAT), min_size=1, max_size=3)))
    key = st.tuples(*map(python_values, types))
    keys = draw(st.lists(key, max_size=12))
    wanted = draw(st.lists(st.one_of(st.sampled_from(keys), key) if keys else key, max_size=12))
    return types, keys, wanted


def table(types: Types, keys: Keys, *, distinct: bool) -> pa.Table:
    """Keys in the order of rows, floats canonical."""
    names = [f"k{i}" for i in range(len(types))]
    columns = {name: pa.array([key[i] for key in keys], types[i]) for i, name in enumerate(names)}
    unequal = np.zeros(len(keys), np.int64) if distinct else np.arange(len(keys))
    rows = pa.table(columns | {"n": unequal, "_diff": np.ones(len(keys), np.int64)})
    return consolidate(rows, [*names, "n"]).select(names)


@settings(max_examples=examples(300, quick=15))
@given(keys_and_wanted(), st.sampled_from([(64, 96), (64, 0), (0, 0)]))
@example(((pa.string(),), [("a",), ("a\0",), ("a\0\0",), ("",), (None,)], [("a",), ("a\0",), (None,)]), (64, 0))
@example(((pa.string(),), [("abcdefgh",)], [("abcdefgh",), ("abcdefghi",), ("abcdefgh\0",), ("abcdefg",)]), (64, 96))
@example(((pa.binary(), pa.bool_()), [(b"\xff" * 8, False), (b"\xff" * 9, None)], [(b"\xff" * 9, None)]), (64, 0))
@example(((pa.int64(),), [(1,), (1,), (2,), (2,), (2,), (None,), (None,)], [(2,), (None,), (7,)]), (64, 0))
@example(((pa.float64(),), [(float("nan"),), (-0.0,), (-1.5,), (float("inf"),)], [(float("nan"),), (0.0,)]), (64, 0))
@example(((pa.string(),), [("x" * 300,), ("x" * 301,)], [("x" * 301,), ("y",)]), (64, 0))
def test_rows_with_a_wanted_key_are_found(given: tuple[Types, Keys, Keys], searching: tuple[int, int]) -> None:
    types, keys, wanted = given
    here, there = table(types, keys, distinct=False), table(types, wanted, distinct=True)
    names = here.column_names
    sought = set(sort_keys(there, names))
    expected = [row for row, key in enumerate(sort_keys(here, names)) if key in sought]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(persist.codecs.order.search, "FEW_KEYS", searching[0])
        patch.setattr(persist.codecs.order.search, "WIDTH_MAX", searching[1])  # 0: no layout, but for one number.
        asked = SortedKeys(there)
        assert SortedKeys(here).find_rows(asked).tolist() == expected
        half = len(keys) // 2  # What is wanted may have been packed for other rows before.
        found = (
            SortedKeys(here.slice(0, half)).find_rows(asked).tolist(),
            SortedKeys(here.slice(half)).find_rows(asked).tolist(),
        )
        assert [*found[0], *(row + half for row in found[1])] == expected


@settings(max_examples=examples(150))
@given(keys_and_wanted())
def test_bounds_say_how_many_keys_are_less(given: tuple[Types, Keys, Keys]) -> None:
    types, keys, others = given
    here, there = table(types, keys, distinct=True), table(types, others, distinct=True)
    bounds = SortedKeys(here).count_bounds(SortedKeys(there))
    if bounds is None:
        return
    mine = sort_keys(here, here.column_names)
    for key, less, not_greater in zip(sort_keys(there, there.column_names), *map(list, bounds), strict=True):
        assert (less, not_greater) == (sum(k < key for k in mine), sum(k <= key for k in mine))


def test_many_wanted_keys_of_few_rows_are_found_too() -> None:
    keys = SortedKeys(pa.table({"k": [5, 5, 70, 200]}))
    assert keys.find_rows(SortedKeys(pa.table({"k": np.arange(100)}))).tolist() == [0, 1, 2]
    assert keys.find_rows(SortedKeys(pa.table({"k": np.arange(6, 60)}))).tolist() == []
