"""Parts give back what was put in, say truly what is inside, and are never believed when a byte is wrong."""

import io
import math
from pathlib import Path
from typing import Any

import duckdb
import hypothesis.strategies as st
import msgspec
import numpy as np
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

from persist.blob.errors import CorruptBlob, InvalidUsage
from persist.codecs.errors import InvalidUpdate
from persist.codecs.part.decoding import decode_part
from persist.codecs.part.part import Part, compute_checksum
from persist.codecs.part.stream import encode_parts
from persist.codecs.types.arrow_types import decode_scalar, is_flat
from persist.codecs.types.schema import CollectionSchema
from tests.codecs.oracle import plain_values, sort_key, sort_keys
from tests.codecs.strategies import arrays, schemas
from tests.support.tiers import examples

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
ORDERS = CollectionSchema.of({"id": pa.int64()}, {"status": pa.string(), "amount": pa.float64()})


@st.composite
def batches(draw: st.DrawFn, max_rows: int = 15) -> tuple[CollectionSchema, pa.Table]:
    """A schema and updates that fit it, as `to_updates` gives them."""
    schema = draw(schemas(max_fields=2))
    rows = draw(st.integers(0, max_rows))
    columns = []
    for field in schema.arrow.names[:-2]:
        array = draw(arrays(schema.arrow.field(field).type, min_size=1, max_size=4))
        picked = draw(st.lists(st.integers(0, len(array) - 1), min_size=rows, max_size=rows))
        columns.append(array.take(pa.array(picked, pa.int64())))
    times = st.sampled_from([0, 1, 7, 2**63 - 2])
    columns.append(pa.array(draw(st.lists(times, min_size=rows, max_size=rows)), pa.int64()))
    diffs = st.sampled_from([-2, -1, 1, 3, 2**40])
    columns.append(pa.array(draw(st.lists(diffs, min_size=rows, max_size=rows)), pa.int64()))
    return schema, pa.Table.from_arrays(columns, schema=schema.arrow)


def orders(rows: int, *, statuses: int = 3, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    columns: list[Any] = [
        pa.array(rng.integers(0, max(rows // 4, 1), rows)),
        pa.array([f"status-{i}" for i in rng.integers(0, statuses, rows)], pa.string()),
        pa.array(rng.integers(0, 3, rows).astype(float)),
        pa.array(rng.integers(0, 5, rows)),
        pa.array(rng.choice([-1, 1], rows)),
    ]
    return pa.Table.from_arrays(columns, schema=ORDERS.arrow)


def only(parts: list[tuple[bytes, Part]]) -> tuple[bytes, Part]:
    (part,) = parts
    return part


@settings(max_examples=examples(80))
@given(batches())
def test_descriptors_say_what_is_inside(batch: tuple[CollectionSchema, pa.Table]) -> None:
    schema, table = batch
    for data, part in encode_parts(table, schema):
        decoded = decode_part(data, part, schema)
        times, diffs = decoded["_time"].to_pylist(), decoded["_diff"].to_pylist()
        assert (part.bytes, part.rows, part.checksum) == (len(data), len(times), compute_checksum(data))
        assert (part.time_min, part.time_max) == (min(times), max(times))
        assert (part.negatives, part.diff_sum) == (sum(d < 0 for d in diffs), sum(diffs))
        check_keys(part, decoded, schema)
        check_stats(part, decoded, schema)
        assert msgspec.json.decode(msgspec.json.encode(part), type=Part) == part


def check_keys(part: Part, decoded: pa.Table, schema: CollectionSchema) -> None:
    if part.keys is None:
        assert not all(is_flat(field.type) for field in schema.key.fields)
        return
    count = len(part.keys)
    assert count == part.rows or count in (33, 17, 9, 5, 3, 2)
    rows = [i * (part.rows - 1) // max(count - 1, 1) for i in range(count)]
    all_keys = sort_keys(decoded, schema.key_names)
    assert [json_key(key, schema) for key in part.keys] == [all_keys[row] for row in rows]


def json_key(key: list[Any], schema: CollectionSchema) -> tuple[Any, ...]:
    return tuple(json_order(value, field.type) for value, field in zip(key, schema.key.fields, strict=True))


def json_order(value: Any, kind: pa.DataType) -> tuple[Any, ...]:
    scalar = decode_scalar(value, kind)
    return sort_key(kind, plain_values(pa.array([scalar], kind) if scalar.is_valid else pa.nulls(1, kind))[0])


def check_stats(part: Part, decoded: pa.Table, schema: CollectionSchema) -> None:
    assert set(part.stats) == {name for name in schema.names if is_flat(decoded.schema.field(name).type)}
    for name, (least, greatest, null_count) in part.stats.items():
        kind = decoded.schema.field(name).type
        keys = [sort_key(kind, value) for value in plain_values(decoded[name])]
        present = sorted(key for key in keys if key != (1,))
        assert null_count == len(keys) - len(present)
        assert json_order(least, kind) == (present[0] if present else (1,))
        assert json_order(greatest, kind) == (present[-1] if present else (1,))


def test_one_key_is_never_cut() -> None:
    table = orders(20_000).set_column(0, ORDERS.arrow.field("id"), pa.array([7] * 20_000))
    table = table.set_column(3, ORDERS.arrow.field("_time"), pa.array(range(20_000)))
    assert len(encode_parts(table, ORDERS, part_bytes_target=1000)) == 1
    unit = CollectionSchema.of(None, {"v": pa.int64()})
    rows = pa.array(range(20_000))
    values = pa.Table.from_arrays([rows, rows, pa.array([1] * 20_000)], schema=unit.arrow)
    assert len(encode_parts(values, unit, part_bytes_target=1000)) == 1


def test_updates_that_all_cancel_make_no_part() -> None:
    table = orders(100)
    negated = table.set_column(4, ORDERS.arrow.field("_diff"), pc.negate(table["_diff"]))
    assert encode_parts(pa.concat_tables([table, negated]), ORDERS) == []
    assert encode_parts(ORDERS.arrow.empty_table(), ORDERS) == []


def test_diffs_of_different_records_may_sum_to_more_than_int64_holds() -> None:
    table = pa.Table.from_arrays(
        [pa.array([1, 2]), pa.array(["a", "a"]), pa.array([0.0, 0.0]), pa.array([1, 1]), pa.array([2**63 - 1] * 2)],
        schema=ORDERS.arrow,
    )
    [(data, part)] = encode_parts(table, ORDERS)
    assert part.diff_sum == 2 * (2**63 - 1)
    assert msgspec.json.decode(msgspec.json.encode(part), type=Part) == part
    assert decode_part(data, part, ORDERS).num_rows == 2


@pytest.mark.parametrize(
    ("kind", "stored"), [(pa.timestamp("s"), 2**62), (pa.date64(), 1), (pa.date64(), 2**62), (pa.time32("s"), 2**30)]
)
def test_a_value_parquet_cannot_hold_is_refused(kind: pa.DataType, stored: int) -> None:
    schema = CollectionSchema.of({"k": kind}, None)
    integers = pa.int32() if kind.bit_width == 32 else pa.int64()
    column = pa.array([stored], integers).view(kind)
    table = pa.Table.from_arrays([column, pa.array([1]), pa.array([1])], schema=schema.arrow)
    with pytest.raises(InvalidUpdate, match=r"'k'.*cannot be stored"):
        encode_parts(table, schema)


def test_nan_beside_a_type_that_parquet_lacks_is_no_obstacle() -> None:
    kind = pa.struct([("t", pa.time32("s")), ("x", pa.float64())])
    schema = CollectionSchema.of(None, {"v": kind})
    value = pa.StructArray.from_arrays([pa.array([5], pa.time32("s")), pa.array([math.nan])], fields=list(kind))
    table = pa.Table.from_arrays([value, pa.array([1]), pa.array([1])], schema=schema.arrow)
    data, part = only(encode_parts(table, schema))
    assert sort_keys(decode_part(data, part, schema), ["v"]) == sort_keys(table, ["v"])


def test_bytes_with_a_right_checksum_that_are_not_the_part_are_noticed() -> None:
    data, part = only(encode_parts(orders(50), ORDERS))
    other = CollectionSchema.of({"id": pa.int64()}, {"status": pa.string(), "amount": pa.int64()})
    with pytest.raises(CorruptBlob, match=r"inline part.*amount: int64"):
        decode_part(data, part, other)
    with pytest.raises(CorruptBlob, match=f"it holds {part.rows} rows, and its descriptor says {2**50}"):
        decode_part(data, msgspec.structs.replace(part, rows=2**50), ORDERS)
    for bad in (b"", b"PAR1", data[:-9] + b"\xff" * 9, data[:100] + bytes(200) + data[300:]):
        believed = msgspec.structs.replace(part, bytes=len(bad), checksum=compute_checksum(bad))
        with pytest.raises(CorruptBlob):
            decode_part(bad, believed, ORDERS)
        with pytest.raises(CorruptBlob):
            decode_part(bad, believed, ORDERS, filter=pc.field("amount") > 0)


def test_columns_come_as_asked_and_memoryviews_are_fine() -> None:
    data, part = only(encode_parts(orders(50), ORDERS))
    whole = decode_part(data, part, ORDERS)
    for columns in (["_diff", "id"], ["amount"], ["_time"]):
        assert decode_part(memoryview(data), part, ORDERS, columns=columns).equals(whole.select(columns))


def test_names_with_dots_are_not_paths() -> None:
    inner = pa.struct([("b", pa.string()), ("c", pa.float64())])
    schema = CollectionSchema.of({"a.b": pa.int64(), "a": inner}, {"x.y": pa.string(), "x": pa.int64()})
    columns = [pa.array([2, 1]), pa.array([{"b": "q", "c": 1.0}, None], inner), pa.array(["s", None]), pa.array([5, 6])]
    table = pa.Table.from_arrays([*columns, pa.array([1, 1]), pa.array([1, 1])], schema=schema.arrow)
    data, part = only(encode_parts(table, schema))
    for columns_asked in (["a.b"], ["a"], ["x"], ["x.y", "a"]):
        expected = table.take(pa.array([1, 0])).select(columns_asked)
        assert decode_part(data, part, schema, columns=columns_asked).equals(expected)
        keep = pc.field("a.b") < 2
        filtered = decode_part(data, part, schema, columns=columns_asked, filter=keep)
        assert filtered.equals(expected[:1])


@settings(max_examples=examples(80))
@given(batches(), st.data())
def test_filtering_while_reading_is_filtering_afterwards(batch: tuple[CollectionSchema, pa.Table], data: Any) -> None:
    schema, table = batch
    flat = [name for name in schema.arrow.names if is_flat(schema.arrow.field(name).type)]
    name = data.draw(st.sampled_from(flat))
    literal = data.draw(arrays(schema.arrow.field(name).type, min_size=1, max_size=1, nulls=False))[0]
    field = pc.field(name)
    expression = data.draw(
        st.sampled_from([field == literal, field != literal, ~(field > literal), field <= literal, field.is_null()])
    )
    columns = data.draw(st.lists(st.sampled_from(schema.arrow.names), unique=True))
    for encoded, part in encode_parts(table, schema, row_group_rows=4):
        whole = decode_part(encoded, part, schema)
        try:
            expected = whole.filter(expression)
        except pa.ArrowNotImplementedError:  # float16 and duration have no comparison in Arrow.
            with pytest.raises(InvalidUsage, match="filter"):
                decode_part(encoded, part, schema, filter=expression)
            return
        found = decode_part(encoded, part, schema, filter=expression)
        assert sort_keys(found, schema.arrow.names) == sort_keys(expected, schema.arrow.names)
        found = decode_part(encoded, part, schema, columns=columns, filter=expression)
        assert found.column_names == columns
        assert len(found) == len(expected)
        assert sort_keys(found, columns) == sort_keys(expected, columns)


def test_nan_survives_a_filter_that_statistics_would_exclude() -> None:
    schema = CollectionSchema.of(None, {"x": pa.float64(), "s": pa.struct([("y", pa.float64())])})
    values = [6.0, 7.0, math.nan]
    inner = pa.array([{"y": v} for v in values], pa.struct([("y", pa.float64())]))
    table = pa.Table.from_arrays([pa.array(values), inner, pa.array([1] * 3), pa.array([1] * 3)], schema=schema.arrow)
    data, part = only(encode_parts(table, schema))
    for field in (pc.field("x"), pc.field("s", "y")):
        assert decode_part(data, part, schema, filter=~(field > 5)).num_rows == 1
        assert decode_part(data, part, schema, filter=pc.is_nan(field)).num_rows == 1
    assert part.stats["x"] == ("6.0", "nan", 0)


def test_row_groups_that_statistics_exclude_are_not_read() -> None:
    data, part = only(encode_parts(orders(4000), ORDERS, row_group_rows=500))
    metadata = pq.ParquetFile(io.BytesIO(data)).metadata
    assert metadata.num_row_groups >= 4
    chunk = metadata.row_group(metadata.num_row_groups - 1).column(1)
    end = (chunk.dictionary_page_offset or chunk.data_page_offset) + chunk.total_compressed_size
    page = data.rindex(ZSTD_MAGIC, 0, end)  # Its header is looked at anyway.
    broken = data[:page] + bytes(4) + data[page + 4 :]
    believed = msgspec.structs.replace(part, checksum=compute_checksum(broken))
    found = decode_part(broken, believed, ORDERS, filter=pc.field("id") < 50)
    assert found.equals(decode_part(data, part, ORDERS).filter(pc.field("id") < 50))
    with pytest.raises(CorruptBlob):
        decode_part(broken, believed, ORDERS, filter=pc.field("status") > "")


def test_columns_are_decoded_where_a_filter_keeps_some_row() -> None:
    data, part = only(encode_parts(orders(4000), ORDERS, row_group_rows=500))
    metadata = pq.ParquetFile(io.BytesIO(data)).metadata
    chunk = metadata.row_group(metadata.num_row_groups - 1).column(1)
    end = (chunk.dictionary_page_offset or chunk.data_page_offset) + chunk.total_compressed_size
    page = data.rindex(ZSTD_MAGIC, 0, end)
    broken = data[:page] + bytes(4) + data[page + 4 :]
    believed = msgspec.structs.replace(part, checksum=compute_checksum(broken))
    assert not len(decode_part(broken, believed, ORDERS, filter=pc.field("amount") == 0.5))  # Between 0 and 2.
    with pytest.raises(CorruptBlob):
        decode_part(broken, believed, ORDERS, filter=pc.field("amount") == 1.0)


@pytest.mark.parametrize(
    "bad", [pc.field("nope") > 1, pc.field("status") > 1.5, pc.field("amount") + 1, pc.field("id", "x") > 1]
)
def test_a_filter_that_does_not_fit_names_the_columns(bad: pc.Expression) -> None:
    data, part = only(encode_parts(orders(10), ORDERS))
    with pytest.raises(InvalidUsage, match=r"filter .* id: int64, status: string, amount: double"):
        decode_part(data, part, ORDERS, filter=bad)


def test_a_filter_that_fails_on_a_value_is_not_corruption() -> None:
    data, part = only(encode_parts(orders(10), ORDERS))
    with pytest.raises(InvalidUsage, match="divide by zero"):
        decode_part(data, part, ORDERS, filter=pc.divide(pc.field("id"), 0) > 1)


def test_unknown_and_repeated_columns_are_refused() -> None:
    data, part = only(encode_parts(orders(10), ORDERS))
    with pytest.raises(InvalidUsage, match=r"'price' does not exist.*'amount'"):
        decode_part(data, part, ORDERS, columns=["id", "price"])
    with pytest.raises(InvalidUsage, match="'id' is asked for twice"):
        decode_part(data, part, ORDERS, columns=["id", "id"])


def test_long_keys_have_no_samples_and_long_strings_no_statistics() -> None:
    schema = CollectionSchema.of({"k": pa.string()}, {"v": pa.string(), "n": pa.int64()})
    ones = pa.array([1])
    table = pa.Table.from_arrays([pa.array(["k" * 300]), pa.array(["v" * 65]), ones, ones, ones], schema=schema.arrow)
    _, part = only(encode_parts(table, schema))
    assert part.keys is None
    assert part.stats == {"n": (1, 1, 0)}


def test_statistics_stay_within_their_budget_with_the_key_first() -> None:
    schema = CollectionSchema.of({"k": pa.int64()}, {f"v{i}": pa.string() for i in range(60)})
    ones = pa.array([1])
    values = [pa.array(["x" * 60]) for _ in range(60)]
    table = pa.Table.from_arrays([ones, *values, ones, ones], schema=schema.arrow)
    _, part = only(encode_parts(table, schema))
    assert next(iter(part.stats)) == "k"
    assert 10 < len(part.stats) < 20
    assert len(msgspec.json.encode(part.stats)) <= 2048


def test_a_part_opens_in_duckdb_and_polars_alone(tmp_path: Path) -> None:
    data, part = only(encode_parts(orders(5000), ORDERS, row_group_rows=1000))
    path = tmp_path / "part.parquet"
    path.write_bytes(data)
    expected = decode_part(data, part, ORDERS).to_pylist()
    assert duckdb.connect().sql(f"SELECT * FROM '{path}'").to_arrow_table().to_pylist() == expected
    assert polars.read_parquet(path).to_arrow().to_pylist() == expected
    assert pq.read_table(path, page_checksum_verification=True).to_pylist() == expected


def test_the_file_says_how_it_is_sorted() -> None:
    schema = CollectionSchema.of({"k": pa.int64()}, {"l": pa.list_(pa.int64()), "v": pa.int64()})
    ones = pa.array([1])
    table = pa.Table.from_arrays([ones, pa.array([[1]]), ones, ones, ones], schema=schema.arrow)
    data, _ = only(encode_parts(table, schema))
    assert pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0).sorting_columns == (pq.SortingColumn(0),)
    data, _ = only(encode_parts(orders(3), ORDERS))
    assert len(pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0).sorting_columns) == 4


def test_encoding_is_deterministic_and_indifferent_to_the_order_of_rows() -> None:
    table = orders(1000)
    shuffled = table.take(pa.array(np.random.default_rng(5).permutation(1000)))
    assert encode_parts(table, ORDERS) == encode_parts(shuffled, ORDERS)
