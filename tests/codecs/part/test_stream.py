"""Rows added in any pieces come out as the parts that they make at once, and little of them is held meanwhile."""

import io
import math
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persist.codecs.order.sums import consolidate
from persist.codecs.part.decoding import decode_part
from persist.codecs.part.describing import check_part
from persist.codecs.part.part import GROUP_ROWS_MIN, GROUPS_MAX, Part, compute_max_groups
from persist.codecs.part.stream import PartStream, encode_parts
from persist.codecs.types.schema import CollectionSchema
from tests.codecs.oracle import sort_keys
from tests.codecs.part.test_part import batches, only
from tests.support.tiers import examples

NUMBERS = CollectionSchema.of({"k": pa.int64()}, {"v": pa.int64()})
FLOATS = CollectionSchema.of({"k": pa.int64()}, {"x": pa.float64(), "y": pa.float32(), "n": pa.int64()})
Encoded = list[tuple[bytes, Part]]


def streamed(table: pa.Table, schema: CollectionSchema, step: int, **options: Any) -> Encoded:
    stream = PartStream(schema, **options)
    found = [part for at in range(0, len(table), step) for part in stream.add(table.slice(at, step))]
    return found + stream.finish()


def without_memory(parts: Encoded) -> list[tuple[bytes, Part]]:
    """Arrow counts a little differently what slices occupy."""
    return [(data, msgspec.structs.replace(part, memory=0)) for data, part in parts]


def numbers(rows: int, *, keys: int | None = None, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    ids = np.sort(rng.integers(0, keys or rows, rows))
    values = [ids, np.arange(rows) * 2**40 + rng.integers(0, 2**40, rows), np.full(rows, 7), np.ones(rows, np.int64)]
    return pa.Table.from_arrays([pa.array(each) for each in values], schema=NUMBERS.arrow)


@settings(max_examples=examples(120, quick=6))
@given(batches(), st.integers(1, 6), st.sampled_from([1, 700, 1 << 20]), st.integers(1, 5))
def test_a_stream_writes_what_encoding_at_once_does(
    batch: tuple[CollectionSchema, pa.Table], step: int, target: int, group: int
) -> None:
    schema, table = batch
    summed = consolidate(table, [*schema.names, "_time"])
    options = {"part_bytes_target": target, "row_group_rows": group}
    at_once, parts = encode_parts(table, schema, **options), streamed(summed, schema, step, **options)
    found: list[Any] = []
    for data, part in parts:
        assert check_part(data, part, schema)[0] == ()
        decoded = decode_part(data, part, schema)
        keys = sort_keys(decoded, schema.key_names)
        assert not found or found[-1][: len(keys[0])] != keys[0]
        found += sort_keys(decoded, schema.arrow.names)
    assert found == sort_keys(summed, schema.arrow.names)
    if not any(pa.types.is_floating(field.type) for field in schema.arrow):  # Of NaN it does not know beforehand.
        assert without_memory(parts) == without_memory(at_once)


@pytest.mark.thorough(except_every=4)
@pytest.mark.parametrize("step", [999, 10_000, 64_000])
@pytest.mark.parametrize("keys", [3, 2000, 10**9])
def test_the_cuts_do_not_depend_on_the_tables(step: int, keys: int) -> None:
    table = consolidate(numbers(64_000, keys=keys), ["k", "v", "_time"])
    options = {"part_bytes_target": 60_000, "row_group_rows": 2000}
    parts = streamed(table, NUMBERS, step, **options)
    assert without_memory(parts) == without_memory(encode_parts(table, NUMBERS, **options))
    assert len(parts) == 3 if keys == 3 else len(parts) > 4


def test_parts_come_out_near_the_target() -> None:
    parts = streamed(numbers(200_000), NUMBERS, 7000, part_bytes_target=200_000, row_group_rows=4096)
    assert len(parts) > 5
    for data, part in parts[:-1]:
        assert 170_000 < len(data) < 230_000
        assert check_part(data, part, NUMBERS)[0] == ()
    assert sum(part.rows for _, part in parts) == 200_000


def test_row_groups_end_at_so_many_decoded_bytes() -> None:
    schema = CollectionSchema.of({"k": pa.int64()}, {"v": pa.string()})
    values = ["x" * (10_000 if n % 50 == 0 else 10) + str(n) for n in range(2000)]
    table = pa.table({"k": range(2000), "v": values, "_time": [0] * 2000, "_diff": [1] * 2000}).cast(schema.arrow)
    [(data, part)] = streamed(table, schema, 77, row_group_bytes_max=50_000)
    metadata = pq.ParquetFile(io.BytesIO(data)).metadata
    groups = [metadata.row_group(n).total_byte_size for n in range(metadata.num_row_groups)]
    assert 5 < len(groups) < 30
    assert max(groups) < 65_000
    assert decode_part(data, part, schema).combine_chunks().equals(table.combine_chunks())


def test_little_that_stands_for_much_is_cut_by_what_it_decodes_to() -> None:
    schema = CollectionSchema.of({"k": pa.int64()}, {"v": pa.string()})
    rows = 4000
    table = pa.table({"k": range(rows), "v": ["x" * 1000] * rows, "_time": [0] * rows, "_diff": [1] * rows})
    parts = streamed(table.cast(schema.arrow), schema, 100, row_group_bytes_max=16_000)
    assert len(parts) == 4
    for data, part in parts:
        assert part.memory < GROUPS_MAX * 16_000 * 1.1
        assert check_part(data, part, schema)[0] == ()


def test_a_stream_holds_about_one_row_group_and_the_part_in_progress() -> None:
    stream = PartStream(NUMBERS, part_bytes_target=100_000, row_group_rows=2000)
    table = numbers(100_000)
    held = 0
    for at in range(0, len(table), 500):
        stream.add(table.slice(at, 500))
        held = max(held, stream.held_bytes)
    assert held < 2 * 100_000 + 2 * 2500 * 32
    assert len(stream.finish()) == 1


def floats(xs: list[Any], ys: list[Any]) -> pa.Table:
    rows = len(xs)
    columns = {"k": range(rows), "x": xs, "y": ys, "n": range(rows), "_time": [0] * rows, "_diff": [1] * rows}
    return pa.table(columns).cast(FLOATS.arrow)


def with_statistics(data: bytes) -> set[str]:
    metadata = pq.ParquetFile(io.BytesIO(data)).metadata
    group = metadata.row_group(0)
    return {group.column(at).path_in_schema for at in range(metadata.num_columns) if group.column(at).is_stats_set} - {
        "_time",
        "_diff",
    }


@pytest.mark.parametrize(
    ("xs", "ys", "left"),
    [
        ([1.0] * 40, [2.0] * 40, {"k", "n", "x", "y"}),
        ([1.0] * 39 + [math.nan], [2.0] * 40, {"k", "n", "y"}),
        ([math.nan] + [1.0] * 39, [2.0] * 40, {"k", "n", "y"}),
        ([1.0] * 30 + [0.0] * 10, [2.0] * 40, {"k", "n", "y"}),
        ([1.0, 0.0] * 20, [2.0] * 40, {"k", "n", "x", "y"}),
        ([1.0] * 20 + [math.nan] * 20, [2.0] * 39 + [math.nan], {"k", "n"}),
    ],
)
def test_floats_that_would_mislead_have_no_statistics_wherever_they_come(
    xs: list[Any], ys: list[Any], left: set[str]
) -> None:
    table = floats(xs, ys)
    for parts in (streamed(table, FLOATS, 10, row_group_rows=10), encode_parts(table, FLOATS, row_group_rows=10)):
        data, part = only(parts)
        assert with_statistics(data) == left
        assert check_part(data, part, FLOATS)[0] == ()
        found = decode_part(data, part, FLOATS)
        assert sort_keys(found, ["k", "x", "y"]) == sort_keys(table, ["k", "x", "y"])
        assert decode_part(data, part, FLOATS, filter=pc.is_nan(pc.field("x"))).num_rows == sum(map(math.isnan, xs))


def test_what_sources_say_of_nan_is_known_from_the_first_row_on() -> None:
    _, source = only(encode_parts(floats([1.0, math.nan], [1.0, 2.0]), FLOATS))
    data, _ = only(streamed(floats([1.0], [1.0]), FLOATS, 1, sources=[source]))
    assert with_statistics(data) == {"k", "n", "y"}


def test_nothing_makes_no_part() -> None:
    stream = PartStream(NUMBERS)
    assert stream.add(NUMBERS.arrow.empty_table()) == []
    assert stream.finish() == []


def test_descriptors_sum_up_all_row_groups() -> None:
    table = floats([3.0, math.nan, 1.0, -2.0] * 10, [1.0, None, 5.0, 2.0] * 10)
    [(_, one)] = encode_parts(table, FLOATS)
    [(_, many)] = streamed(table, FLOATS, 3, row_group_rows=4)
    assert many.stats == one.stats
    assert many.stats["x"] == ("-2.0", "nan", 0)
    assert many.stats["y"] == ("1.0", "5.0", 10)
    assert many.keys == one.keys
    assert many.keys is not None
    assert [key for (key,) in many.keys] == [i * 39 // 32 for i in range(33)]
    assert many.is_plain


def test_as_many_keys_are_sampled_as_fit() -> None:
    schema = CollectionSchema.of({"k": pa.string()}, None)

    def sampled(length: int, rows: int = 100) -> int | None:
        keys = [f"{n:04}" + "x" * (length - 4) for n in range(rows)]
        table = pa.table({"k": keys, "_time": [0] * rows, "_diff": [1] * rows}).cast(schema.arrow)
        _, part = only(encode_parts(table, schema))
        assert part.keys is None or len(part.keys_json) <= 1024
        assert part.keys is None or (part.keys[0], part.keys[-1]) == ([keys[0]], [keys[-1]])
        return None if part.keys is None else len(part.keys)

    assert [sampled(n) for n in (20, 27, 28, 54, 56, 105, 110, 195, 205, 252, 253)] == [
        33,
        17,
        17,
        17,
        9,
        9,
        5,
        5,
        3,
        3,
        None,
    ]
    assert [sampled(20, rows) for rows in (1, 2, 20, 33, 34)] == [1, 2, 20, 33, 33]
    assert sampled(50, 20) == 17


def test_only_diffs_of_one_are_plain() -> None:
    def is_plain(diffs: list[int]) -> bool:
        rows = len(diffs)
        table = pa.table({"k": range(rows), "v": range(rows), "_time": [0] * rows, "_diff": diffs}).cast(NUMBERS.arrow)
        return only(encode_parts(table, NUMBERS))[1].is_plain

    assert is_plain([1, 1])
    assert not is_plain([1, 2])
    assert not is_plain([1, -1])
    assert not is_plain([3, -1, 1])


@pytest.mark.parametrize(("distinct", "is_dictionary"), [(20, True), (1_000, True), (18_000, False), (20_000, False)])
def test_texts_that_come_often_are_written_as_a_dictionary(distinct: int, is_dictionary: bool) -> None:
    """Also where there are so many of them that most of a small sample are different."""
    schema = CollectionSchema.of({"k": pa.int64()}, {"v": pa.string()})
    rows = np.arange(20_000)
    chosen = rows if distinct == 20_000 else np.random.default_rng(1).integers(0, distinct, 20_000)
    table = pa.table({"k": rows, "v": [f"text {v}" for v in chosen], "_time": rows * 0, "_diff": rows * 0 + 1})
    [(data, part)] = encode_parts(table.cast(schema.arrow), schema)
    column = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0).column(1)
    assert column.has_dictionary_page == is_dictionary
    for coded in ([], ["v"], ["k", "v"]):
        read = decode_part(data, part, schema, columns=["v"], coded=coded)
        assert read["v"].cast(pa.string()).to_pylist() == table["v"].to_pylist()
        assert pa.types.is_dictionary(read.schema.types[0]) == bool(coded)


def group_rows(data: bytes) -> list[int]:
    metadata = pq.ParquetFile(io.BytesIO(data)).metadata
    return [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]


@pytest.mark.parametrize("rows", [1, 62, 63, 64, 65, 1000, 2500])
def test_row_groups_grow_where_readers_would_refuse_so_many(rows: int) -> None:
    expected: list[int] = []
    while (left := rows - sum(expected)) > 0:
        least = (len(expected) + 2 - GROUPS_MAX) * GROUP_ROWS_MIN - sum(expected)
        expected.append(min(max(least, 1), left))
    [(data, part)] = streamed(numbers(rows, keys=10**9), NUMBERS, 100, row_group_rows=1)
    assert group_rows(data) == expected
    assert len(expected) <= compute_max_groups(part.rows)


@pytest.mark.parametrize("step", [1, 3, 4, 5, 100])
def test_row_groups_end_exactly_at_their_rows_or_bytes(step: int) -> None:
    table = numbers(10)
    [(data, _)] = streamed(table, NUMBERS, step, row_group_rows=4)
    assert group_rows(data) == [4, 4, 2]
    bytes_of_a_row = table.nbytes // 10
    for most, expected in ((3 * bytes_of_a_row, [3, 3, 3, 1]), (3 * bytes_of_a_row + 1, [4, 4, 2])):
        [(data, _)] = streamed(table, NUMBERS, step, row_group_bytes_max=most)
        assert group_rows(data) == expected
    stream = PartStream(NUMBERS)
    assert stream.held_bytes == 0
    assert stream.add(table) == []
    assert stream.held_bytes == table.nbytes
    assert len(stream.finish()) == 1
    assert stream.held_bytes == 0
