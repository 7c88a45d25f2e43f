"""Slices of the key space: together they are everything, no key is in two, and no hint ever loses a row."""

import pickle
from collections import Counter
from itertools import product
from typing import Any

import hypothesis.strategies as st
import msgspec
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings

from persist.codecs.part.decoding import decode_part
from persist.codecs.part.key_range import KeyRange, assign_parts, load_comparable_keys, split_key_space
from persist.codecs.part.part import Part, choose_sample_rows
from persist.codecs.part.stream import encode_parts
from persist.codecs.types.arrow_types import encode_scalar, make_key_order
from persist.codecs.types.schema import CollectionSchema
from persist.codecs.updates.updates import to_updates
from tests.codecs.oracle import sort_keys
from tests.codecs.strategies import arrays, flat_types
from tests.support.tiers import examples

Encoded = list[tuple[bytes, Part]]
Collection = tuple[CollectionSchema, Encoded]
ROW_GROUP_ROWS = 4

FAVOURITES = [
    pa.int64(),
    pa.uint64(),
    pa.string(),
    pa.float64(),
    pa.float32(),
    pa.decimal128(38, 10),
    pa.timestamp("ns"),
    pa.timestamp("us", tz="Europe/Berlin"),
    pa.binary(),
    pa.binary(3),
    pa.bool_(),
    pa.duration("s"),
]
SLOW = settings(max_examples=examples(50, quick=3))


@st.composite
def collections(draw: st.DrawFn) -> Collection:
    """Some batches of updates over the same few keys, NULLs among them, as parts of small row groups."""
    types = draw(st.lists(st.one_of(st.sampled_from(FAVOURITES), flat_types()), max_size=3))
    key = {f"k{i}": type_ for i, type_ in enumerate(types)}
    schema = CollectionSchema.of(key or None, {"v": pa.int64()})
    pools = [draw(arrays(type_, min_size=1, max_size=12)) for type_ in types]
    parts: Encoded = []
    for batch in range(draw(st.integers(1, 4))):
        rows = draw(st.integers(1, 40))
        picks = st.lists(st.integers(0, 11), min_size=rows, max_size=rows)
        columns = [pool.take(pa.array([i % len(pool) for i in draw(picks)])) for pool in pools]
        updates = pa.table(
            [*columns, pa.array(range(rows)), pa.array([batch] * rows), pa.array([1] * rows)],
            names=[*key, "v", "_time", "_diff"],
        )
        target = draw(st.sampled_from([1, 500, 1 << 20]))  # From a part for each key to one for all.
        table = to_updates(updates, schema)
        parts += encode_parts(table, schema, part_bytes_target=target, row_group_rows=ROW_GROUP_ROWS)
    return schema, parts


def rows_of(table: pa.Table, schema: CollectionSchema) -> list[tuple[Any, ...]]:
    return sort_keys(table, schema.arrow.names)


def decoded(keys: KeyRange, encoded: Encoded, schema: CollectionSchema) -> list[tuple[Any, ...]]:
    tables = [decode_part(data, part, schema) for data, part in encoded]
    spans = [keys.find_rows(table, schema) for table in tables]
    return [row for table, (start, end) in zip(tables, spans, strict=True) for row in rows_of(table[start:end], schema)]


def inside(keys: KeyRange, bound: list[Any], schema: CollectionSchema) -> bool:
    order = make_key_order(schema.key_types)
    return (keys.lower is None or order(keys.lower) <= order(bound)) and (
        keys.upper is None or order(bound) < order(keys.upper)
    )


def bounds(table: pa.Table, schema: CollectionSchema) -> list[list[Any]]:
    """Return the key of each row as a bound."""
    return [[encode_scalar(table[name][row]) for name in schema.key_names] for row in range(len(table))]


@SLOW
@given(collections(), st.integers(1, 9))
def test_ranges_cover_the_key_space_exactly(collection: Collection, count: int) -> None:
    schema, encoded = collection
    ranges = split_key_space([part for _, part in encoded], schema, count)
    assert 1 <= len(ranges) <= count
    found = [decoded(keys, encoded, schema) for keys in ranges]
    whole = [row for data, part in encoded for row in rows_of(decode_part(data, part, schema), schema)]
    assert Counter(row for rows in found for row in rows) == Counter(whole)
    width = len(schema.key_names)
    seen = [{row[:width] for row in rows} for rows in found]
    assert sum(map(len, seen)) == len(set().union(*seen)), "a key is in two ranges"


@SLOW
@given(collections(), st.integers(1, 9), st.integers(2, 5))
def test_parts_of_adjacent_ranges_are_those_that_may_overlap_each(
    collection: Collection, outer: int, inner: int
) -> None:
    schema, encoded = collection
    parts = [part for _, part in encoded]
    for whole in split_key_space(parts, schema, outer):
        ranges = split_key_space(parts, schema, inner, whole)
        expected = [[part for part in parts if keys.may_overlap(part, schema)] for keys in ranges]
        sampled = [load_comparable_keys(part, schema) for part in parts]
        assert split_key_space(parts, schema, inner, whole, sampled) == ranges
        assert assign_parts(parts, schema, ranges, sampled) == expected


@SLOW
@given(collections(), st.integers(2, 9))
def test_ranges_follow_each_other_in_the_order_of_rows(collection: Collection, count: int) -> None:
    schema, encoded = collection
    ranges = split_key_space([part for _, part in encoded], schema, count)
    assert (ranges[0].lower, ranges[-1].upper) == (None, None)
    assert [keys.upper for keys in ranges[:-1]] == [keys.lower for keys in ranges[1:]]
    width = len(schema.key_names)
    highest: tuple[Any, ...] | None = None
    for keys in ranges:
        found = sorted(row[:width] for row in decoded(keys, encoded, schema))
        if found:
            assert highest is None or highest < found[0]
            highest = found[-1]


@SLOW
@given(collections(), st.data())
def test_no_hint_ever_loses_a_row_whatever_the_bounds(collection: Collection, data: st.DataObject) -> None:
    schema, encoded = collection
    tables = [(part, decode_part(bytes_, part, schema)) for bytes_, part in encoded]
    candidates = [bound for _, table in tables for bound in bounds(table, schema)]
    assume(schema.key_names)
    end = st.one_of(st.none(), st.sampled_from(candidates))
    keys = KeyRange(data.draw(end), data.draw(end))
    for part, table in tables:
        wanted = [inside(keys, bound, schema) for bound in bounds(table, schema)]
        assert keys.may_overlap(part, schema) or not any(wanted)
        assert not keys.covers(part, schema) or all(wanted)
        start, stop = keys.bracket_rows(part, schema)
        assert 0 <= start <= stop <= part.rows
        assert not any(wanted[:start]), "the bracket begins too late"
        assert not any(wanted[stop:]), "the bracket ends too early"
        first, end_row = keys.find_rows(table, schema)
        assert rows_of(table[first:end_row], schema) == rows_of(table.filter(pa.array(wanted)), schema)


@SLOW
@given(collections())
def test_bounds_compare_as_the_rows_of_a_part_are_sorted(collection: Collection) -> None:
    schema, encoded = collection
    order = make_key_order(schema.key_types)
    for data, part in encoded:
        keys = [order(bound) for bound in bounds(decode_part(data, part, schema), schema)]
        assert keys == sorted(keys)
        assert part.keys is not None
        assert [order(key) for key in part.keys] == [keys[row] for row in choose_sample_rows(part.rows, len(part.keys))]


@pytest.mark.parametrize("key", [None, {"k": pa.list_(pa.int64())}, {"k": pa.string()}], ids=["unit", "nested", "long"])
def test_keys_that_cannot_be_compared_from_descriptors_make_one_slice(key: Any) -> None:
    schema = CollectionSchema.of(key, {"v": pa.int64()})
    values: dict[str, Any] = {"k": [[1], [2]] if key and pa.types.is_nested(key["k"]) else ["x" * 999, "y"]}
    columns = {**(values if key else {}), "v": [1, 2], "_time": [0, 0], "_diff": [1, 1]}
    encoded = encode_parts(to_updates(pa.table(columns), schema), schema)
    assert split_key_space([part for _, part in encoded], schema, 4) == [KeyRange()]
    assert len(decoded(KeyRange(), encoded, schema)) == 2


def test_bounds_of_a_range_that_was_sent_to_another_process_compare_as_before() -> None:
    order = make_key_order((pa.float64(),))
    bounds: list[list[Any]] = [["-1.0"], ["0.0"], ["inf"], ["nan"], [None]]
    assert [*map(order, bounds)] == sorted(map(order, bounds[::-1]))
    for keys in (KeyRange(["nan"], [None]), KeyRange(["0.5"], ["nan"]), KeyRange(["1.0"], [None])):
        lower, upper = keys.make_comparable_bounds((pa.float64(),))
        assert lower is not None
        assert lower < upper
        assert pickle.loads(pickle.dumps(keys)).make_comparable_bounds((pa.float64(),)) == (lower, upper)


def test_hints_are_as_narrow_as_the_sampled_keys_allow() -> None:
    schema = CollectionSchema.of({"k": pa.int64()}, None)
    table = pa.table({"k": range(100), "_time": [0] * 100, "_diff": [1] * 100}).cast(schema.arrow)
    ((_, part),) = encode_parts(table, schema)
    unsampled, sampled = msgspec.structs.replace(part, keys_json=msgspec.Raw(b"null")), choose_sample_rows(100, 33)
    ends = (None, -1, 0, 1, 3, 4, 50, 98, 99, 100, 500)
    for lower, upper in product(ends, ends):
        keys = KeyRange(*(None if end is None else [end] for end in (lower, upper)))
        start = max((row for row in sampled if lower is not None and row < lower), default=0)
        stop = min((row for row in sampled if upper is not None and row >= upper), default=100)
        is_all = lower is None and upper is None
        for _ in range(2):  # The second time by what is cached.
            assert keys.bracket_samples(part, schema) == ((0, 100, 0) if is_all else (start, max(start, stop), 33))
            assert keys.bracket_samples(unsampled, schema)[:2] in ((0, 100), (start, max(start, stop)))
        assert KeyRange(keys.lower, keys.upper).bracket_samples(unsampled, schema) == (0, 100, 0)
        assert keys.may_overlap(part, schema) == ((lower is None or lower <= 99) and (upper is None or upper > 0))
        assert keys.covers(part, schema) == ((lower is None or lower <= 0) and (upper is None or upper > 99))
        assert (keys.may_overlap(unsampled, schema), keys.covers(unsampled, schema)) == (True, is_all)
        first, last = max(0, min(lower or 0, 100)), 100 if upper is None else max(0, min(upper, 100))
        assert keys.find_rows(table, schema) == (first, max(first, last))
        assert keys.find_end(table, schema) == last


def test_slices_begin_where_equal_shares_of_the_rows_do() -> None:
    schema = CollectionSchema.of({"k": pa.int64()}, None)

    def part_of(keys: list[int]) -> Part:
        rows = len(keys)
        table = pa.table({"k": keys, "_time": range(rows), "_diff": [1] * rows}).cast(schema.arrow)
        ((_, part),) = encode_parts(table, schema)
        return part

    def cuts(parts: list[Part], count: int, within: KeyRange | None = None) -> list[Any]:
        ranges = split_key_space(parts, schema, count, within)
        return [keys.lower[0] if keys.lower else None for keys in ranges]

    one, other = part_of([*range(12)]), part_of([*range(100, 112)])
    assert [cuts([one], count) for count in (0, 1, 2, 3, 4)] == [
        [None],
        [None],
        [None, 6],
        [None, 4, 8],
        [None, 3, 6, 9],
    ]
    assert cuts([one, other], 2) == cuts([other, one], 2) == [None, 100]
    assert cuts([one, other], 4) == [None, 6, 100, 106]
    assert cuts([one, other], 2, KeyRange([100], None)) == [100, 106]
    assert cuts([one, other], 2, KeyRange(None, [6])) == [None, 3]
    assert cuts([one], 2, KeyRange([50], [60])) == [50]
    assert cuts([part_of([1] * 9 + [2] * 3)], 4) == [None, 2]
    assert cuts([part_of([1] * 12)], 4) == [None]
    assert len(cuts([one], 500)) == 12
    assert cuts([], 4) == [None]
