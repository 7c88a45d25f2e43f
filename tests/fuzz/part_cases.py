"""Parts as an attacker could make them: whatever bytes, under a right length and checksum. Each from its own seed."""

import io
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from persist.codecs import CollectionSchema, Part, encode_parts, to_updates
from persist.codecs.part.decoding import decoded
from persist.codecs.part.describing import footer_of
from persist.codecs.part.file_reader import read_footer
from persist.codecs.part.index import Group, PartIndex, footer_range
from persist.codecs.part.part import Footer, checksum_of

Random = random.Random
INT64 = 2**63


@dataclass(frozen=True)
class Case:
    """What `decode_part` is given, and what it must do: "any" is an answer or an error."""

    kind: str
    data: bytes
    part: Part
    schema: CollectionSchema
    must: str = "any"


def case(seed: int) -> Case:
    """Return the case of a seed; the same one in every process."""
    rng = Random(seed)
    kind, make = MAKERS[seed % len(MAKERS)]
    data, part, schema, must = make(rng)
    return Case(kind, data, believable(data, part), schema, must)


def believable(data: bytes, part: Part) -> Part:
    """Return a descriptor with the right checksums, and as much of the data for a footer as that claims."""
    size = min(footer_of(data).bytes, len(data))
    footer = Footer(size, checksum_of(data[len(data) - size :]))
    return msgspec.structs.replace(part, bytes=len(data), checksum=checksum_of(data), footer=footer)


def believable_index(data: bytes, part: Part, schema: CollectionSchema) -> PartIndex:
    """Return the index of a part as whoever made its footer could have written it: every checksum in it is right."""
    start, end = footer_range(part)
    tail = pa.py_buffer(data[start:end])
    footer = decoded(part, lambda: read_footer(tail, len(data), schema.arrow, rows=part.rows, memory=part.memory))
    groups: list[Group] = []
    for rows, chunks in zip(footer.claims.group_rows, footer.claims.chunks, strict=True):
        first = groups[-1].first_row + groups[-1].rows if groups else 0
        groups.append(Group(first, rows, min(chunk.start for chunk in chunks), max(chunk.end for chunk in chunks)))
    checksums = tuple(xxhash.xxh3_64_hexdigest(data[group.start : group.end]) for group in groups)
    return PartIndex(tuple(groups), 0, checksums, footer)


Made = tuple[bytes, Part, CollectionSchema, str]
Maker = Callable[[Random], Made]

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


def genuine(rng: Random) -> tuple[bytes, Part, CollectionSchema]:
    """Return a part as a writer makes it."""
    schema = rng.choice(SCHEMAS)
    while True:
        parts = encode_parts(
            rows_of(rng, schema, rng.choice([1, 3, 20, 300])), schema, row_group_rows=rng.choice([16, 100, 1 << 17])
        )
        if parts:
            return (*parts[0], schema)


def mutated_bytes(rng: Random) -> Made:
    """Anything anywhere: bytes changed, cut out, repeated, or put in."""
    data, part, schema = genuine(rng)
    return _mutated(rng, data, 0, len(data)), part, schema, "any"


def mutated_metadata(rng: Random) -> Made:
    """The footer, or the first bytes of a page, which are its header."""
    data, part, schema = genuine(rng)
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    if rng.random() < 0.6:
        return _mutated(rng, data, footer, len(data)), part, schema, "any"
    metadata = pq.ParquetFile(io.BytesIO(data)).metadata
    chunk = metadata.row_group(rng.randrange(metadata.num_row_groups)).column(rng.randrange(metadata.num_columns))
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    return _mutated(rng, data, start, start + 24), part, schema, "any"


def _mutated(rng: Random, data: bytes, start: int, end: int) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 4, 16])):
        at = rng.randrange(start, min(end, len(out)))
        what = rng.random()
        if what < 0.6:
            out[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, out[at] ^ 1 << rng.randrange(8), rng.randrange(256)])
        elif what < 0.8:
            out[at : at + rng.choice([1, 4])] = rng.choice([b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x07", b"\0"])
        elif what < 0.9:
            del out[at : at + rng.choice([1, 3, 20])]
        else:
            out[at:at] = out[at : at + rng.choice([1, 5, 40])]
        if len(out) < 12:
            return bytes(out)
    return bytes(out)


def mutated_descriptor(rng: Random) -> Made:
    """A genuine file under another descriptor."""
    data, part, schema = genuine(rng)
    huge = rng.choice([0, 1, part.rows + 1, 10**6, 2**31, INT64 - 1])
    change: dict[str, Any] = rng.choice(
        [
            {"rows": max(huge, part.negatives, 1), "memory": rng.choice([part.memory, INT64 - 1])},
            {"memory": rng.choice([0, 1, part.memory // 2])},
            {"time_min": 1, "time_max": 1},
            {"negatives": 0, "diff_sum": part.rows},
            {"diff_sum": part.diff_sum + 1},
        ]
    )
    return data, msgspec.structs.replace(part, **change), schema, "any"


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


def other_writers(rng: Random) -> Made:
    """Files of other columns, encodings and compressions."""
    schema = rng.choice(SCHEMAS[:2])
    rows = rng.choice([1, 50, 3000])
    table = rows_of(rng, schema, rows).set_column(
        len(schema.names) + 1, schema.arrow.field("_diff"), pa.array([1] * rows)
    )
    refused: list[tuple[dict[str, Any], pa.Table]] = [
        ({"compression": "gzip"}, table),
        ({"compression": "brotli"}, table),
        ({"data_page_version": "2.0"}, table),
        ({"use_dictionary": False, "column_encoding": {"k": "DELTA_BYTE_ARRAY"}}, table),
        ({}, table.append_column("extra", pa.nulls(rows, pa.int8()))),
        ({}, table.drop_columns(["_diff"])),
        ({}, table.set_column(0, "k", pa.array([1.5] * rows))),
        ({}, table.set_column(0, "k", pa.array(["x"] * rows, pa.large_string()))),
        ({}, table.rename_columns([name.upper() for name in table.column_names])),
        ({}, table.set_column(0, "k", _deep(rows, rng.choice([20, 200, 2000])))),
        ({"write_batch_size": 1}, pa.table({f"c{i}": [1] for i in range(rng.choice([10, 3000]))})),
        ({}, table.slice(0, 0)),
    ]
    options, made = rng.choice(refused)
    if schema is SCHEMAS[0] and "column_encoding" in options:
        options = {"use_dictionary": False, "column_encoding": {"v": "DELTA_BYTE_ARRAY"}}
    return file_of(made, **options), described(table), schema, "refused"


def _deep(rows: int, depth: int) -> pa.Array:
    array = pa.nulls(rows, pa.int8())
    for _ in range(depth):
        array = pa.StructArray.from_arrays([array], ["x"])
    return array


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


def bad_rows(rng: Random) -> Made:
    """Rows that no writer makes, which the descriptor gives away."""
    return part_of_bad_rows(rng.choice(BAD_ROWS))


def part_of_bad_rows(bad: dict[str, Any]) -> Made:
    """Return a part of three rows, of which some columns are not as they should be."""
    schema = SCHEMAS[0]
    good = {"k": [1, 2, 3], "v": ["a", "b", "c"], "_time": [0, 1, 2], "_diff": [1, 1, 1]}
    table = pa.table({**good, **{name: values for name, values in bad.items() if name != "v"}})
    if "v" in bad:
        raw = pa.array([v if isinstance(v, bytes) else v.encode() for v in bad["v"]], pa.binary())
        table = table.set_column(1, "v", pa.Array.from_buffers(pa.string(), 3, raw.buffers()))
    return file_of(table.cast(_nullable(schema)), compression="zstd"), described(table), schema, "refused"


def odd_rows(rng: Random) -> Made:
    """Rows out of order or twice: they cannot be told without reading all of them, and must not do harm."""
    schema = SCHEMAS[0]
    table = pa.table({"k": [3, 1, 1], "v": ["a", None, None], "_time": [2, 1, 1], "_diff": [1, 1, 1]})
    order = pa.array([rng.randrange(3) for _ in range(20)])
    table = table.take(order).cast(_nullable(schema))
    return file_of(table, compression="zstd"), described(table), schema, "any"


def _nullable(schema: CollectionSchema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema.arrow])


def bombs(rng: Random) -> Made:
    """Little that unpacks to much, under a descriptor that does not say so."""
    rows = rng.choice([1000, 100_000])
    long = "x" * rng.choice([1000, 200_000])
    times: list[Any] = [np.zeros(rows, np.int64), np.ones(rows, np.int64)]
    strings, lists = SCHEMAS[0], SCHEMAS[4]
    few = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([long]))
    dictionary = pa.table([np.arange(rows), few, *times], strings.arrow.names)
    zeros = pa.table([[0], ["\0" * 20_000_000], [0], [1]], strings.arrow.names)
    names = lists.arrow.names
    tall: list[Any] = [pa.array([[], ["x"] * 1_000_000], pa.list_(pa.string()))]
    tall += [pa.nulls(2, lists.arrow.field("s").type), [0, 0], [1, 1]]
    nulls: list[Any] = [pa.ListArray.from_arrays([0, 3_000_000], pa.nulls(3_000_000, pa.string()))]
    nulls += [pa.nulls(1, lists.arrow.field("s").type), [0], [1]]
    nested: list[Any] = [pa.ListArray.from_arrays(np.arange(rows + 1, dtype=np.int32), few)]
    nested += [pa.nulls(rows, lists.arrow.field("s").type), *times]
    honest = 16 * rows + 8 * rows
    choices = [
        (dictionary, strings, honest + 8 * rows),
        (zeros, strings, 1000),
        (pa.table(tall, names), lists, 1000),
        (pa.table(nulls, names), lists, 1000),
        (pa.table(nested, names), lists, 64 * rows),
    ]
    table, schema, memory = rng.choice(choices)
    # Not to be made of real columns that large: rows of the descriptor without any in the file.
    data = file_of(table, compression="zstd", store_schema=False, dictionary_pagesize_limit=1 << 20)
    part = msgspec.structs.replace(described(table.slice(0, 1), memory), rows=table.num_rows, diff_sum=table.num_rows)
    return data, part, schema, "refused"


def crowded_footers(rng: Random) -> Made:
    """A footer of many small row groups, columns or strings."""
    schema = SCHEMAS[0]
    rows = 3000
    table = rows_of(rng, schema, rows).set_column(3, schema.arrow.field("_diff"), pa.array([1] * rows))
    metadata = {f"key {i}": "v" for i in range(rng.choice([10, 2000]))}
    group_rows = rng.choice([1, 1000])
    data = file_of(table.replace_schema_metadata(metadata), compression="zstd", row_group_size=group_rows)
    return data, described(table), schema, "any"


def honest(rng: Random) -> Made:
    """A part as it should be, to see what those take."""
    schema = CollectionSchema.of({"k": pa.int64(), "u": pa.string()}, {"v": pa.string(), "l": pa.list_(pa.bool_())})
    rows = rng.choice([1, 2000, 20_000])
    columns = {
        "k": range(rows),
        "u": [f"unique {i}" for i in range(rows)],
        "v": [f"text {i % 100}" for i in range(rows)],
        "l": [[True, False, None]] * rows,
    }
    table = pa.table({**columns, "_time": [0] * rows, "_diff": [1] * rows})
    ((data, part),) = encode_parts(to_updates(table, schema), schema)
    return data, part, schema, "read"


MAKERS: list[tuple[str, Maker]] = [
    ("bytes", mutated_bytes),
    ("metadata", mutated_metadata),
    ("metadata", mutated_metadata),
    ("descriptor", mutated_descriptor),
    ("bytes", mutated_bytes),
    ("metadata", mutated_metadata),
    ("writers", other_writers),
    ("rows", bad_rows),
    ("odd", odd_rows),
    ("metadata", mutated_metadata),
    ("bomb", bombs),
    ("footer", crowded_footers),
    ("honest", honest),
]
