"""Rows of many types, and files that no writer of parts makes, for the tests of parts."""

from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from persist.codecs.part.part import Footer, Part
from persist.codecs.types.schema import CollectionSchema

INT64 = 2**63

SCHEMAS = [
    CollectionSchema.of({"k": pa.int64()}, {"v": pa.string()}),
    CollectionSchema.of({"k": pa.string()}, None),
    CollectionSchema.of(None, None),
    CollectionSchema.of({"k": pa.float32(), "b": pa.bool_()}, {"d": pa.decimal128(9, 2), "t": pa.timestamp("s")}),
    CollectionSchema.of({"k": pa.list_(pa.string())}, {"s": pa.struct([("a", pa.int8()), ("b", pa.binary())])}),
    CollectionSchema.of({"k": pa.binary(7)}, {"m": pa.map_(pa.string(), pa.list_(pa.int32()))}),
    CollectionSchema.of({"k": pa.uint8()}, {"l": pa.list_(pa.float64(), 3), "n": pa.large_list(pa.large_string())}),
]


def rows_of(rng: Random, schema: CollectionSchema, rows: int) -> pa.Table:
    """Return updates with few distinct values, so that there are dictionaries and runs."""
    columns = {name: [_value(rng, schema.arrow.field(name).type) for _ in range(rows)] for name in schema.names}
    times = [rng.choice([0, 1, 5, INT64 - 2]) for _ in range(rows)]
    diffs = [rng.choice([-1, 1, 2]) for _ in range(rows)]
    arrays = [pa.array(columns[name], schema.arrow.field(name).type) for name in schema.names]
    return pa.Table.from_arrays([*arrays, pa.array(times), pa.array(diffs)], schema=schema.arrow)


def _value(rng: Random, kind: pa.DataType) -> Any:
    if rng.random() < 0.1:
        return None
    if pa.types.is_struct(kind):
        return {field.name: _value(rng, field.type) for field in kind}
    if pa.types.is_map(kind):
        return [(f"k{i}", _value(rng, kind.item_type)) for i in range(rng.randrange(3))]
    if pa.types.is_fixed_size_list(kind):
        return [_value(rng, kind.value_type) for _ in range(kind.list_size)]
    if pa.types.is_nested(kind):
        return [_value(rng, kind.value_type) for _ in range(rng.randrange(4))]
    if pa.types.is_fixed_size_binary(kind):
        return bytes([rng.randrange(4)] * kind.byte_width) if not pa.types.is_decimal(kind) else rng.randrange(999)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return rng.choice(["", "a", "ü", "some longer text"])
    if pa.types.is_binary(kind):
        return rng.choice([b"", b"\xff", b"abc"])
    return rng.choice([True, False]) if pa.types.is_boolean(kind) else rng.randrange(100)


def file_of(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    return bytes(sink.getvalue())


def described(table: pa.Table, memory: int | None = None) -> Part:
    """Return a descriptor that fits a table, as far as one can."""
    return Part(
        bytes=0,
        rows=max(table.num_rows, 1),
        memory=table.nbytes if memory is None else memory,
        checksum="",
        footer=Footer(0, ""),
        time_min=0,
        time_max=INT64 - 2,
        negatives=0,
        diff_sum=table.num_rows,
    )


BAD_ROWS: list[dict[str, Any]] = [
    {"_time": [0, None, 2]},
    {"_diff": [1, None, 1]},
    {"_time": [0, -1, 2]},
    {"_time": [0, 1, INT64 - 1]},
    {"_diff": [1, 0, 1]},
    {"_diff": [2, 0, 1]},  # The sum is right.
    {"_diff": [1, -1, 1]},
    {"_diff": [3, -1, 1]},  # The sum is right.
    {"_diff": [1, 2, 1]},
    {"v": ["a", b"\xff\xfe", "c"]},
]


def part_of_bad_rows(bad: dict[str, Any]) -> tuple[bytes, Part, CollectionSchema]:
    """Return a part of three rows, of which some columns are not as they should be."""
    schema = SCHEMAS[0]
    good = {"k": [1, 2, 3], "v": ["a", "b", "c"], "_time": [0, 1, 2], "_diff": [1, 1, 1]}
    table = pa.table({**good, **{name: values for name, values in bad.items() if name != "v"}})
    if "v" in bad:
        raw = pa.array([v if isinstance(v, bytes) else v.encode() for v in bad["v"]], pa.binary())
        table = table.set_column(1, "v", pa.Array.from_buffers(pa.string(), 3, raw.buffers()))
    return file_of(table.cast(_nullable(schema)), compression="zstd"), described(table), schema


def _nullable(schema: CollectionSchema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema.arrow])
