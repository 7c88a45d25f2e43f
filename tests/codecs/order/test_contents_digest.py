"""The digest, held against its definition in plain Python: what another implementation would do."""

import datetime
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
import pytest

from persist.codecs.order.contents_digest import digest_of

MASK = 2**64 - 1


def mix(x: int) -> int:
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 & MASK
    x ^= x >> 27
    x = x * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def chain(h: int, x: int) -> int:
    return mix(((h ^ (x & MASK)) + 0x9E3779B97F4A7C15) & MASK)


def with_bytes(h: int, b: bytes) -> int:
    h = chain(h, len(b))
    for at in range(0, len(b), 8):
        h = chain(h, int.from_bytes(b[at : at + 8].ljust(8, b"\0"), "little"))
    return h


def flat(h: int, v: Any, kind: pa.DataType) -> int:
    if isinstance(v, str | bytes):
        return with_bytes(h, v.encode() if isinstance(v, str) else v)
    if isinstance(v, Decimal):
        return with_bytes(h, int(v.scaleb(kind.scale)).to_bytes(32, "little", signed=True))
    if isinstance(v, float):
        quiet = 0x7FF8 << 48 if v != v else struct.unpack("<Q", struct.pack("<d", v + 0.0))[0]
        return chain(h, quiet)
    if pt.is_temporal(kind):
        kind = pa.date32() if pt.is_date64(kind) else kind
        v = pa.array([v], kind).view(pa.int32() if kind.bit_width == 32 else pa.int64())[0].as_py()
    return chain(h, int(v))


def value(h: int, v: Any, kind: pa.DataType) -> int:
    if v is None:
        return chain(h, 0)
    h = chain(h, 1)
    if pt.is_struct(kind):
        for field in kind:
            h = value(h, v[field.name], field.type)
        return h
    if pt.is_map(kind):
        h = chain(h, len(v))
        for key, item in v:
            h = value(value(h, key, kind.key_type), item, kind.item_type)
        return h
    if pt.is_nested(kind):
        h = chain(h, len(v))
        for each in v:
            h = value(h, each, kind.value_type)
        return h
    return flat(h, v, kind)


def slow_digest(table: pa.Table) -> str:
    found = ""
    for lane in (1, 2):
        total = 0
        for row in table.to_pylist():
            columns = [field for field in table.schema if field.name != "_diff"]
            seeds = {f.name: with_bytes(mix(lane), f.name.encode()) for f in columns}
            record = sum(mix(value(seeds[f.name], row[f.name], f.type)) for f in columns) & MASK
            total += row.get("_diff", 1) * mix(record)
        found += f"{total & MASK:016x}"
    return found


DAY = datetime.datetime(2026, 1, 2, 3, 4, 5, 6)
EXAMPLES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, None, False]),
    (pa.int8(), [-1, None, 5]),
    (pa.uint64(), [2**64 - 1, 0, None]),
    (pa.float16(), [np.float16(1.5), np.float16("nan"), np.float16(-0.0)]),
    (pa.float64(), [1.1, float("nan"), -0.0, None]),
    (pa.string(), ["", "a", "12345678", "123456789", "x" * 100, None, "Zürich"]),
    (pa.large_binary(), [b"\0", b"\0\0", None]),
    (pa.binary(3), [b"abc", None]),
    (pa.decimal128(9, 2), [Decimal("-1.25"), None, Decimal("7.00")]),
    (pa.decimal256(50, 2), [Decimal("-1.25"), None]),
    (pa.date32(), [DAY.date(), None]),
    (pa.date64(), [DAY.date(), None]),
    (pa.time32("ms"), [datetime.time(1, 2, 3), None]),
    (pa.timestamp("us"), [DAY, None]),
    (pa.timestamp("us", "UTC"), [DAY.replace(tzinfo=datetime.UTC)]),
    (pa.duration("s"), [datetime.timedelta(seconds=-5), None]),
    (pa.list_(pa.int64()), [[], [1], [1, None, 3], None]),
    (pa.large_list(pa.list_(pa.string())), [[["a"], []], None, [None]]),
    (pa.list_(pa.int16(), 2), [[1, 2], None, [None, 3]]),
    (pa.struct([("x", pa.int8()), ("y", pa.list_(pa.string()))]), [{"x": 1, "y": ["a"]}, None, {"x": None, "y": None}]),
    (pa.map_(pa.string(), pa.int32()), [[("k", 1), ("l", None)], [], None]),
]


@pytest.mark.parametrize(("kind", "values"), EXAMPLES, ids=lambda each: str(each)[:20])
def test_a_digest_is_what_its_definition_says(kind: pa.DataType, values: list[Any]) -> None:
    table = pa.table({"v": pa.array([*values, *values], kind), "n": range(2 * len(values))})
    digest = slow_digest(table)
    assert digest_of([table], ["v", "n"]) == digest
    assert digest_of([table.slice(0, 1), table.slice(1)], ["n", "v"]) == digest
    assert digest_of([table.slice(1)], ["n", "v"]) == slow_digest(table.slice(1)) != digest


def test_a_digest_counts_a_record_as_often_as_its_diff() -> None:
    table = pa.table({"v": ["a", "b", "a"], "_diff": [3, 1, -2]})
    assert digest_of([table], ["v"]) == slow_digest(table) == slow_digest(pa.table({"v": ["b", "a"]}))
    assert digest_of([table.slice(0, 0)], ["v"]) == "0" * 32


def test_widths_play_no_part_in_a_digest_but_names_do() -> None:
    def digest(name: str, kind: pa.DataType, values: list[Any]) -> str:
        return digest_of([pa.table({name: pa.array(values, kind)})], [name])

    assert digest("v", pa.int8(), [1, 2]) == digest("v", pa.uint64(), [2, 1])
    assert digest("v", pa.string(), ["a"]) == digest("v", pa.large_string(), ["a"])
    assert digest("v", pa.float32(), [0.5]) == digest("v", pa.float64(), [0.5])
    assert digest("v", pa.int8(), [1]) != digest("w", pa.int8(), [1])
