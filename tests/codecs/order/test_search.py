"""Keys of each type are sorted, and found packed, one by one and by ranks: each way finds the same rows."""

from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings

import persist.codecs.order.search
from persist.codecs.order.ordering import sort_table
from persist.codecs.order.search import SortedKeys
from persist.codecs.order.sums import consolidate
from tests.codecs.oracle import sort_keys
from tests.codecs.strategies import python_values
from tests.support.tiers import examples

VALUES: list[tuple[list[pa.DataType], list[Any]]] = [  # In the order of rows.
    ([pa.int64(), pa.duration("s")], [-(2**63), -(2**31), -1, 0, 1, 255, 256, 2**63 - 1]),
    ([pa.int8()], [-128, -1, 0, 1, 127]),
    ([pa.uint64(), pa.decimal256(40, 0)], [0, 1, 255, 256, 2**63 - 1, 2**63, 2**64 - 1]),
    ([pa.uint16()], [0, 1, 255, 256, 2**16 - 1]),
    ([pa.float64(), pa.float32(), pa.float16()], [float("-inf"), -1.5, 0.0, 0.5, 1.0, 2.0, float("inf"), float("nan")]),
    ([pa.bool_()], [False, True]),
    (
        [pa.string(), pa.large_string()],
        ["", "\0", "a", "a\0", "a\0b", "abcdefg", "abcdefgh", "abcdefgh\0", "abcdefghi"],
    ),
    ([pa.string()], ["b", "é", "\uffee", "\U0001f600", "\U0001f600" * 5]),
    (
        [pa.binary(), pa.large_binary()],
        [b"", b"\0", b"\0" * 8, b"\0" * 9, b"\x7f" * 8, b"\xff", b"\xff" * 8, b"\xff" * 9],
    ),
    ([pa.binary(3)], [b"\0\0\0", b"\0\0a", b"a\0\0", b"\xff\xff\xff"]),
    ([pa.decimal128(12, 2)], [Decimal(n) / 100 for n in (1 - 10**12, -1, 0, 1, 10**12 - 1)]),
    ([pa.decimal128(38, 0)], [1 - 10**38, -(2**64), -(2**63), -1, 0, 1, 2**63, 2**64, 10**38 - 1]),
    ([pa.date32(), pa.timestamp("us", "UTC"), pa.time32("ms")], [0, 1, 2**20]),
]
ONE_TYPE = [(kind, values) for kinds, values in VALUES for kind in kinds]


def in_order(kind: pa.DataType, values: list[Any], *, has_null: bool) -> pa.Array:
    is_counted = pa.types.is_temporal(kind)
    stored = pa.int32() if is_counted and kind.bit_width == 32 else pa.int64()
    array = pa.array([*values, *[None] * has_null], stored if is_counted else kind)
    return array.view(kind) if is_counted else array


@pytest.mark.parametrize(("kind", "values"), ONE_TYPE, ids=lambda value: str(value)[:12])
@pytest.mark.parametrize(("is_pair", "has_null"), [(False, False), (False, True), (True, False)])
def test_keys_of_each_type_are_sorted_found_split_and_counted(
    kind: pa.DataType, values: list[Any], is_pair: bool, has_null: bool
) -> None:
    first = in_order(kind, values, has_null=has_null)
    columns = [first]
    if is_pair:
        more = in_order(*ONE_TYPE[(5 * len(values) + 3) % len(ONE_TYPE)], has_null=True)
        at = [(n, m) for n in range(len(first)) for m in range(len(more))]
        columns = [first.take(pa.array([n for n, _ in at])), more.take(pa.array([m for _, m in at]))]
    names = [f"k{n}" for n in range(len(columns))]
    keys = pa.table(columns, names)
    count = len(keys)
    # Sorting: any order comes back as the only one that is right.
    shuffled = np.random.default_rng(count).permutation(count)
    order, starts = sort_table(keys.take(pa.array(shuffled)), names)
    assert (shuffled[order].tolist(), starts.tolist()) == ([*range(count)], [True] * count)
    # Searching: of keys that each occur twice, some that are there and some that are not.
    twice = keys.take(pa.array(np.repeat(np.arange(0, count, 2), 2)))
    here = SortedKeys(twice)
    for some in ([0], [count - 1], [1] if count > 1 else [0], [*range(0, count, 3)], [*range(count)], []):
        wanted = SortedKeys(keys.take(pa.array(some, pa.int64())))
        rows = [row for row in range(len(twice)) if row // 2 * 2 in some]
        for few, width in ((64, 96), (64, 0), (0, 0)):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(persist.codecs.order.search, "FEW_KEYS", few)
                patch.setattr(persist.codecs.order.search, "WIDTH_MAX", width)
                assert SortedKeys(twice).find_rows(SortedKeys(wanted.batch)).tolist() == rows
        numbered = twice.append_column("n", pa.array(range(len(twice))))
        inside, outside = wanted.split(numbered)
        assert wanted.select(numbered)["n"].to_pylist() == inside["n"].to_pylist() == rows
        assert outside["n"].to_pylist() == [row for row in range(len(twice)) if row not in rows]
        bounds, less = here.count_bounds(wanted), here.count_less(wanted)
        if some and not has_null:
            assert (bounds is None) == (less is None)
        if bounds is not None and less is not None:
            below = [2 * len([key for key in range(0, count, 2) if key < one]) for one in some]
            assert (bounds[0].tolist(), less.tolist()) == (below, below)
            assert bounds[1].tolist() == [low + 2 * (one % 2 == 0) for low, one in zip(below, some, strict=True)]
    distinct = SortedKeys.of(twice.take(pa.array(np.arange(len(twice))[::-1].copy())), names)
    assert len(distinct) == len(range(0, count, 2))
    assert distinct.find_rows(here).tolist() == [*range(len(distinct))]
    is_one_number = (
        not is_pair
        and not twice["k0"].null_count
        and (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_temporal(kind))
    )
    assert here.is_number == is_one_number
    assert here.packs == (here._layout is not None and not (is_one_number and not pa.types.is_floating(kind)))
    width = here._layout.row_bytes if here._layout is not None and here.packs else 0
    assert not (is_one_number and width) or width == kind.bit_width // 8
    assert here.nbytes == here.batch.nbytes + width * len(here)
    assert here.select_first_field().batch.schema.names == ["k0"]
    assert len(here.select_first_field()) == len(here)


FLAT = [kind for kinds, _ in VALUES for kind in kinds]
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
