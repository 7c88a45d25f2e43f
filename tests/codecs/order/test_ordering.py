"""Rows sort as an independent Python key says, for every supported type."""

import math
import struct
from collections import Counter
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings

from persist.codecs.order.digits import is_repetitive, sort_rows
from persist.codecs.order.ordering import make_canonical, make_order_keys, sort_indices, sort_table
from tests.codecs.oracle import sort_keys
from tests.codecs.strategies import arrays, arrow_types, flat_types
from tests.support.tiers import examples

OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0123))[0]


@st.composite
def tables(draw: st.DrawFn, columns: int = 1) -> pa.Table:
    """Canonical tables whose columns are sliced and cut into chunks, with repeated values."""
    rows = draw(st.integers(0, 12))
    made = []
    for _ in range(columns):
        array = draw(arrays(draw(arrow_types()), min_size=1, max_size=5))
        picked = draw(st.lists(st.integers(0, len(array) - 1), min_size=rows + 2, max_size=rows + 2))
        column = array.take(pa.array(picked, pa.int64()))[1:-1]
        cut = draw(st.integers(0, rows))
        made.append(pa.chunked_array([column[:cut], column[cut:]], type=array.type))
    return make_canonical(pa.table(made, names=[f"c{i}" for i in range(columns)]))


def python_order(table: pa.Table, names: list[str]) -> list[int]:
    keys = sort_keys(table, names)
    return sorted(range(table.num_rows), key=lambda row: keys[row])


@settings(max_examples=examples(250))
@given(tables(columns=3), st.sampled_from([["c0"], ["c2", "c0", "c1"]]))
def test_columns_of_every_type_sort_one_after_the_other_as_python_sorts_them(table: pa.Table, names: list[str]) -> None:
    assert sort_indices(table, names).to_pylist() == python_order(table, names)


@settings(max_examples=examples(100))
@given(tables(columns=2))
def test_runs_begin_where_a_row_differs_from_the_one_before(table: pa.Table) -> None:
    order, starts = sort_table(table, ["c0", "c1"])
    keys = sort_keys(table, ["c0", "c1"])
    expected = [i == 0 or keys[order[i]] != keys[order[i - 1]] for i in range(len(order))]
    assert starts.tolist() == expected


@settings(max_examples=examples(100))
@given(tables(columns=2))
def test_acero_groups_and_sorts_order_keys_as_the_columns_should_be(table: pa.Table) -> None:
    keys = pa.table(make_order_keys(table, ["c0", "c1"]), names=["a", "b"])
    groups = keys.group_by(["a", "b"]).aggregate([([], "count_all")])
    assert sorted(groups["count_all"].to_pylist()) == sorted(Counter(sort_keys(table, ["c0", "c1"])).values())
    indices = pc.sort_indices(keys, sort_keys=[("a", "ascending"), ("b", "ascending")])
    ours = sort_keys(table, ["c0", "c1"])
    assert [ours[i] for i in indices.to_pylist()] == sorted(ours)


@settings(max_examples=examples(100))
@given(flat_types().flatmap(lambda kind: arrays(kind, min_size=4, max_size=12)))
def test_what_lies_before_and_behind_a_slice_does_not_count(array: pa.Array) -> None:
    [whole] = make_order_keys(make_canonical(pa.table({"c": array})), ["c"])
    order, starts = sort_rows([whole[2:-1]])
    keys = sort_keys(pa.table({"c": array})[2:-1], ["c"])
    assert order.tolist() == sorted(range(len(keys)), key=keys.__getitem__)
    assert starts.tolist() == [at == 0 or keys[row] != keys[order[at - 1]] for at, row in enumerate(order)]


def test_negative_zero_and_every_nan_become_one_value() -> None:
    values = [0.0, -0.0, math.nan, OTHER_NAN, None, 1.5]
    table = make_canonical(pa.table({"x": values, "l": [[v] for v in values], "s": [{"f": v} for v in values]}))
    for column in (table["x"], pc.list_flatten(table["l"]), pc.struct_field(table["s"], "f")):
        bits = column.combine_chunks().drop_null().view(pa.int64()).to_pylist()
        assert bits == [0, 0, 0x7FF8 << 48, 0x7FF8 << 48, struct.unpack("<q", struct.pack("<d", 1.5))[0]]


@pytest.mark.parametrize("width", [16, 32, 64])
def test_floats_of_every_width_become_canonical(width: int) -> None:
    kind = {16: pa.float16(), 32: pa.float32(), 64: pa.float64()}[width]
    negative = np.array([-0.0, -math.nan], dtype=f"f{width // 8}")
    table = make_canonical(pa.table({"x": pa.array(negative, kind)}))
    positive = np.array([0.0, math.nan], dtype=f"f{width // 8}")
    assert table["x"].chunk(0).buffers()[1].to_pybytes()[: width // 4] == positive.tobytes()


def test_a_canonical_table_is_returned_as_it_is() -> None:
    table = pa.table({"x": [1.0, None, math.nan], "l": [[0.0], None, []]})
    assert make_canonical(table) is table


def test_what_lies_below_a_null_list_or_struct_does_not_count() -> None:
    hidden = pa.array([1, 2, 3, 4])
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 4]), hidden, mask=pa.array([True, True]))
    structs = pa.StructArray.from_arrays([hidden[:2]], names=["a"], mask=pa.array([True, True]))
    fixed = pa.FixedSizeListArray.from_arrays(hidden, 2, mask=pa.array([True, True]))
    for array in (lists, structs, fixed):
        _, starts = sort_table(pa.table({"c": array}), ["c"])
        assert starts.tolist() == [True, False]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary()])
def test_what_lies_below_a_null_string_does_not_count(kind: pa.DataType) -> None:
    """As after a cast or a filter that only changed which rows are valid."""
    values = pa.array(["hidden", "other", "b", "longer than eight bytes", "a"], kind)
    validity = pa.py_buffer(bytes([0b10100]))
    array = pa.Array.from_buffers(kind, len(values), [validity, *values.buffers()[1:]])
    assert array.null_count == 3
    order, starts = sort_table(pa.table({"c": array}), ["c"])
    assert order.tolist() == [4, 2, 0, 1, 3]
    assert starts.tolist() == [True, True, True, False, False]


@pytest.mark.parametrize("prefix", ["", "x" * 7, "https://example.org/", "p" * 200])
@pytest.mark.parametrize("kind", [pa.string(), pa.large_binary()])
def test_long_strings_sort_by_bytes_whatever_they_share(prefix: str, kind: pa.DataType) -> None:
    tails = ["", "a", "a\0", "a\0\0", "aa", "b" * 40, "b" * 39 + "a", "é", "\U0010ffff"]
    rng = np.random.default_rng(1)
    values: list[Any] = [prefix + tails[i] + tails[j] for i, j in rng.integers(0, len(tails), (200, 2))] + [None] * 3
    table = pa.table({"s": pa.array(values, pa.string()).cast(kind), "n": list(range(len(values)))})
    for names in (["s"], ["s", "n"]):
        assert sort_indices(table, names).to_pylist() == python_order(table, names)


def test_large_mixed_columns_sort_as_acero_sorts_them() -> None:
    rng = np.random.default_rng(2)
    n = 20_000
    table = pa.table(
        {
            "s": pa.array([f"customer-{i:09d}" for i in rng.integers(0, 500, n)]),
            "i": pa.array(rng.integers(-(2**63), 2**63 - 1, n)).take(pa.array(rng.integers(0, 3, n))),
            "f": pa.array(rng.integers(-2, 3, n).astype(float), mask=rng.integers(0, 10, n) == 0),
            "u": pa.array(rng.integers(0, 2**64 - 1, n, dtype=np.uint64)),
        }
    )
    for names in (["s", "i", "f", "u"], ["f", "s", "i"], ["i", "s"], ["u"]):
        expected = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in names])
        assert sort_indices(table, names).to_pylist() == expected.to_pylist()


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()], ids=str)
def test_texts_that_come_often_sort_as_python_sorts_them(kind: pa.DataType) -> None:
    """They are ranked, sliced or not; bytes are compared without a sign, and NULL is last."""
    texts = [
        None,
        b"",
        b"a",
        b"a\0",
        b"a\0b",
        b"ab",
        "ä".encode(),
        "\U0010ffff".encode(),
        b"x" * 200,
        b"x" * 199 + b"y",
    ]
    chance, rows = np.random.default_rng(5), 6000
    columns = [pa.array(texts, pa.binary()).take(pa.array(chance.integers(0, 10, rows))).cast(kind) for _ in range(3)]
    columns[1] = pa.array(chance.integers(0, 3, rows))
    table = pa.table([column[300:-300] for column in columns], names=["a", "n", "b"])
    assert is_repetitive(table["a"].chunk(0))
    order, starts = sort_table(table, ["a", "n", "b"])
    assert order.tolist() == python_order(table, ["a", "n", "b"])
    keys = sort_keys(table, ["a", "n", "b"])
    assert starts.tolist() == [at == 0 or keys[row] != keys[order[at - 1]] for at, row in enumerate(order)]


def test_texts_that_hardly_ever_come_again_are_not_ranked() -> None:
    assert not is_repetitive(pa.array([f"text {i}" for i in np.random.default_rng(5).integers(0, 20_000, 20_000)]))
    assert not is_repetitive(pa.array(range(10_000)))


def test_nothing_to_sort_is_no_error() -> None:
    assert sort_rows([])[0].tolist() == []
    assert sort_indices(pa.table({"a": [3, 1]}), []).to_pylist() == [0, 1]
    assert sort_indices(pa.table({"a": pa.array([], pa.list_(pa.float16()))}), ["a"]).to_pylist() == []
