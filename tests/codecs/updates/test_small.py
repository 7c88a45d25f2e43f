"""The short cut for tiny writes takes only what `to_updates` takes, and makes the same of it."""

from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist.codecs.errors import InvalidUpdate
from persist.codecs.types.codec import Utf8
from persist.codecs.types.schema import CollectionSchema
from persist.codecs.updates.small import convert_small_keys, convert_small_updates, gather_updates
from persist.codecs.updates.updates import to_updates
from tests.codecs import strategies

PLAIN = CollectionSchema.of(
    {"k": pa.int64(), "b": pa.binary()},
    {"f": pa.float64(), "s": pa.string(), "t": pa.timestamp("us"), "d": pa.date32(), "o": pa.bool_()},
)
ANYTHING: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.datetimes(),
    st.datetimes(timezones=st.just(UTC)),
    st.dates(),
    st.tuples(st.integers()),
    st.just("\ud800"),
)


def fitting(type_: pa.DataType) -> st.SearchStrategy[Any]:
    return st.one_of(strategies.python_values(type_), ANYTHING)


SHAPED = st.tuples(
    st.tuples(
        st.tuples(*(fitting(f.type) for f in PLAIN.key.fields)),
        st.tuples(*(fitting(f.type) for f in PLAIN.value.fields)),
    ),
    st.one_of(st.integers(0, 2**63 - 2), ANYTHING),
    st.one_of(st.integers(-3, 3), ANYTHING),
)


@given(st.lists(st.one_of(SHAPED, SHAPED, SHAPED, ANYTHING), min_size=1, max_size=4))
def test_what_it_takes_becomes_what_to_updates_makes_of_it(data: list[Any]) -> None:
    small = convert_small_updates(data, PLAIN)
    if small is None:
        return
    table = to_updates(data, PLAIN)
    made = gather_updates([small], PLAIN)
    assert made.schema.equals(table.schema, check_metadata=True)
    assert strategies.same(made.to_pylist(), table.to_pylist())
    assert len(small) == len(table) == len(data)
    assert small.time_min == min(table["_time"].to_pylist())
    assert small.diff_abs_sum == sum(map(abs, table["_diff"].to_pylist()))


def test_it_takes_every_kind_of_plain_value() -> None:
    row = ((7, b"x"), (0.5, "text", datetime(2026, 1, 2), date(2026, 1, 2), True))
    nulls = ((None, None), (None, None, None, None, None))
    small = convert_small_updates([(row, 3, 1), (nulls, 4, -2)], PLAIN)
    assert small is not None
    assert gather_updates([small, small], PLAIN).equals(to_updates([(row, 3, 1), (nulls, 4, -2)] * 2, PLAIN))


@pytest.mark.parametrize(
    "update",
    [
        (((2**63, b""), (0.0, "", None, None, None)), 0, 1),
        (((1, b""), (0.0, "\ud800", None, None, None)), 0, 1),
        (((1, b""), (0.0, "", datetime(2026, 1, 1, tzinfo=UTC), None, None)), 0, 1),
        (((1, b""), (0.0, "", None, None, None)), -1, 1),
        (((1, b""), (0.0, "", None, None, None)), 2**63 - 1, 1),
        (((1, b""), (0.0, "", None, None, None)), None, 1),
        (((1, b""), (0.0, "", None, None, None)), 0, None),
        (((True, b""), (0.0, "", None, None, None)), 0, 1),
        (((1, b""), (0.0, "")), 0, 1),
        ((1, (0.0, "", None, None, None)), 0, 1),
        ("ab", 0, 1),
        ({(1, b""): 0, (0.0, "", None, None, None): 1}, 0, 1),
        "abc",
    ],
)
def test_what_it_gives_up_on_is_refused_by_to_updates(update: Any) -> None:
    assert convert_small_updates([update], PLAIN) is None
    with pytest.raises(InvalidUpdate):
        to_updates([update], PLAIN)


def test_a_diff_of_zero_a_long_list_a_codec_and_other_types_are_left_to_to_updates() -> None:
    row = ((1, b""), (0.0, "", None, None, None))
    assert convert_small_updates([(row, 0, 0)], PLAIN) is None
    assert convert_small_updates([], PLAIN) is None
    most, more = (
        convert_small_updates([(row, 2**63 - 2 - n, n - 40) for n in range(count)], PLAIN) for count in (32, 33)
    )
    assert most is not None
    assert (len(most), most.time_min, most.time_max, most.diff_abs_sum) == (
        32,
        2**63 - 33,
        2**63 - 2,
        sum(range(9, 41)),
    )
    assert more is None
    for large, is_small in ((2**63 - 1, True), (2**63, False), (-(2**63), True), (-(2**63) - 1, False)):
        assert (convert_small_updates([(((large, b""), row[1]), 0, 1)], PLAIN) is not None) == is_small
    strict = CollectionSchema.of(pa.schema([pa.field("k", pa.int64(), nullable=False)]), None)
    assert convert_small_updates([((None, None), 0, 1)], strict) is None
    assert convert_small_updates([((1, None), 0, 1)], strict) is not None
    assert convert_small_updates(iter([(row, 0, 1)]), PLAIN) is None
    assert convert_small_updates([(("a", None), 0, 1)], CollectionSchema.of(Utf8, None)) is None
    assert convert_small_updates([((1.0, None), 0, 1)], CollectionSchema.of({"x": pa.float32()}, None)) is None


def test_long_texts_are_left_to_to_updates() -> None:
    schema = CollectionSchema.of({"s": pa.string()}, None)
    for first, second in ((1000, 0), (16_000, 384), (16_000, 385)):
        small = convert_small_updates([(("x" * size, None), 0, 1) for size in (first, second)], schema)
        keys = convert_small_keys(["x" * first, "y" * second], schema)
        assert (small is None) == (keys is None) == (first + second > 16 << 10)
        assert small is None or small.bytes == 2 * 500 + first + second


def test_unit_sides_work() -> None:
    schema = CollectionSchema.of(None, None)
    small = convert_small_updates([((None, None), 5, 2)], schema)
    assert small is not None
    assert gather_updates([small], schema).to_pydict() == {"_time": [5], "_diff": [2]}
    assert convert_small_updates([((1, None), 5, 2)], schema) is None


KEYS = CollectionSchema.of({"k": pa.int64(), "f": pa.float64(), "s": pa.string()}, None)


@given(st.lists(st.one_of(st.tuples(*(fitting(f.type) for f in KEYS.key.fields)), ANYTHING), min_size=1, max_size=3))
def test_small_keys_are_the_keys_that_to_updates_makes_of_them(keys: list[Any]) -> None:
    small = convert_small_keys(keys, KEYS)
    if small is None:
        return
    table = to_updates([((key, None), 0, 1) for key in keys], KEYS).select(KEYS.key_names)
    assert pa.Table.from_batches([small]).schema.equals(table.schema, check_metadata=True)
    assert strategies.same(small.to_pylist(), table.to_pylist())


def test_plain_keys_are_small() -> None:
    plain = convert_small_keys([(1, 2.5, "a"), (0, 1.0, "b")], KEYS)
    assert plain is not None
    assert plain.to_pylist() == [{"k": 1, "f": 2.5, "s": "a"}, {"k": 0, "f": 1.0, "s": "b"}]
    single = convert_small_keys([5], CollectionSchema.of({"k": pa.int64()}, None))
    assert single is not None
    assert single.to_pylist() == [{"k": 5}]
    for number in (-0.0, 0.0, float("nan")):
        assert convert_small_keys([(1, number, "a")], KEYS) is None, "it may have to become another one"
    for count in (0, 1, 32, 33):
        assert (convert_small_keys([(1, 0.5, "a")] * count, KEYS) is None) == (count in (0, 33))
    for wrong in ([(1, 0.5)], [7], [(1, 0.5, "a", 2)], [(1, 0.5, 2)]):
        assert convert_small_keys(wrong, KEYS) is None
    assert convert_small_keys(["a"], CollectionSchema.of(Utf8, None)) is None
