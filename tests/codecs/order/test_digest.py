"""The digest, held against its definition in plain Python: what another implementation would do."""

import datetime
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from persist.codecs.order.digest import Digest, compute_digest, hash_text
from tests.rules.golden.make import FIELDS
from tests.support.tiers import examples

MASK = 2**64 - 1
G, A, B, NULL = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93


def mixed(x: int) -> int:
    x = ((x ^ (x >> 30)) * A) & MASK
    x = ((x ^ (x >> 27)) * B) & MASK
    return x ^ (x >> 31)


def chain(words: list[int], n: int, k: int) -> int:
    return mixed((k + n + sum(mixed(((k ^ word) + G * (at + 1)) & MASK) for at, word in enumerate(words))) & MASK)


def bytes_of(b: bytes, k: int) -> int:
    return chain([int.from_bytes(b[at : at + 8], "little") for at in range(0, len(b), 8)], len(b), k)


def fold(words: list[int], k: int) -> int:
    h = k
    for word in words:
        h = mixed(((h + G) & MASK) ^ word)
    return h


def flat(v: Any, kind: pa.DataType, k: int) -> int:
    if isinstance(v, str | bytes):
        return bytes_of(v.encode() if isinstance(v, str) else v, k)
    if isinstance(v, Decimal):
        return bytes_of(int(v.scaleb(kind.scale)).to_bytes(32, "little", signed=True), k)
    if pt.is_floating(kind):
        return 0x7FF8 << 48 if v != v else struct.unpack("<Q", struct.pack("<d", float(v) + 0.0))[0]
    if pt.is_temporal(kind):
        kind = pa.date32() if pt.is_date64(kind) else kind
        v = pa.array([v], kind).view(pa.int32() if kind.bit_width == 32 else pa.int64())[0].as_py()
    return int(v) & MASK


def word(v: Any, kind: pa.DataType, k: int) -> int:
    if v is None:
        return NULL
    if pt.is_struct(kind):
        return fold([word(v[field.name], field.type, k) for field in kind], k)
    if pt.is_map(kind):
        return chain([fold([word(i, kind.key_type, k), word(j, kind.item_type, k)], k) for i, j in v], len(v), k)
    if pt.is_nested(kind):
        return chain([word(each, kind.value_type, k) for each in v], len(v), k)
    return flat(v, kind, k)


def slow_digest(table: pa.Table) -> str:
    found = ""
    for lane in (1, 2):
        total, k = 0, mixed(lane)
        for row in table.to_pylist():
            columns = [field for field in table.schema if field.name != "_diff"]
            words = {f.name: word(row[f.name], f.type, k) for f in columns}
            record = sum(mixed(bytes_of(name.encode(), k) ^ words[name]) for name in words)
            total += row.get("_diff", 1) * mixed((k + record) & MASK)
        found += f"{total & MASK:016x}"
    return found


def digest(*tables: pa.Table, columns: list[str] | None = None) -> str:
    found = Digest(columns or [name for name in tables[0].column_names if name != "_diff"])
    for table in tables:
        found.add(table)
    return found.format_text()


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


# Of the examples, in order. Records remember digests, so no release of this library or of Arrow may change one.
PINNED = [
    "c99ad468bfdf82a0530f8cde146f5de1",
    "7b441fe6228cb265c58c847a5ff87156",
    "8c751e728e0e3753564d377a7e5b917b",
    "fe416dc2b000072339d683ad191fb5c8",
    "5aec03270b0a2eeb7b68b048fb21b856",
    "6b63b1738f450b6394ea47661f93712d",
    "294cf6a83f8067427f1145b09cd793b3",
    "70fde14fa0c7fb8b7322c26eb5fd25a3",
    "19de4340bd8fda7fdf80239a629b9b8b",
    "ab627b5ce6f9304784e87e1c7ad63b67",
    "c3db9a46d00e4246e00e35463415b38a",
    "c3db9a46d00e4246e00e35463415b38a",
    "66209659d41700172c5cdfdcd31acfab",
    "7025391938c827f5cd1065278cf31d3e",
    "d503c3ee989e6f5c733bd3923a0f8aa3",
    "7f7d8e446100cbd2968eb2b6866066db",
    "acd85d1ef5632d212a0ca927720d67a5",
    "5f1f3ea001d0f479fb654c9d0eda698e",
    "bda0b93768ad3f72bcdc9db848cedeb0",
    "2729a42dfec8fafe5f046b1ee3f849b2",
    "a984d9f6e577aae372eb1fc6f988a889",
]


@pytest.mark.parametrize(("kind", "values"), EXAMPLES, ids=lambda each: str(each)[:20])
def test_a_digest_is_what_its_definition_says(kind: pa.DataType, values: list[Any]) -> None:
    table = pa.table({"v": pa.array([*values, *values], kind), "n": range(2 * len(values))})
    expected = slow_digest(table)
    assert digest(table) == expected == PINNED[EXAMPLES.index((kind, values))]
    assert digest(table.slice(0, 1), table.slice(1), columns=["n", "v"]) == expected
    assert digest(table.slice(1)) == slow_digest(table.slice(1)) != expected


KIND = pa.struct([("i", pa.int32()), ("l", pa.list_(pa.string()))])
ROWS = st.fixed_dictionaries(
    {
        "a": st.none() | st.integers(-(2**63), 2**63 - 1),
        "b": st.none() | st.text(max_size=20),
        "c": st.none() | st.floats(),
        "d": st.none()
        | st.fixed_dictionaries(
            {
                "i": st.none() | st.integers(-9, 9),
                "l": st.none() | st.lists(st.none() | st.text(max_size=9), max_size=3),
            }
        ),
        "_diff": st.integers(-(2**63), 2**63 - 1),
    }
)
SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.float64()), ("d", KIND), ("_diff", pa.int64())])
COLUMNS = ["a", "b", "c", "d"]


@settings(max_examples=examples(40))
@given(st.lists(ROWS, max_size=8), st.integers(0, 8))
def test_rows_may_be_cut_and_ordered_in_any_way(rows: list[dict[str, Any]], cut: int) -> None:
    table = pa.Table.from_pylist(rows, SCHEMA)
    expected = slow_digest(table)
    assert digest(table) == expected
    turned = pa.concat_tables([table.slice(cut), table.slice(0, cut)])
    assert digest(turned) == expected
    assert compute_digest(turned, COLUMNS) == int(expected[:16], 16)


@pytest.mark.parametrize("name", FIELDS)
def test_of_every_type_it_tells_values_apart_and_knows_equal_ones(name: str) -> None:
    kind, value = FIELDS[name]

    def digest(values: list[Any], diffs: list[int]) -> int:
        # Behind an offset, and behind a NULL, other values lie in the buffers.
        chunks = [pa.array([value, each, value], kind).slice(1, 1) for each in values]
        return compute_digest(pa.table({"x": pa.chunked_array(chunks, kind), "_diff": diffs}), ["x"])

    assert digest([value, None, value], [1, 1, 1]) == digest([None, value], [1, 2])
    assert digest([value], [1]) != digest([None], [1])
    assert digest([value, value], [1, -1]) == 0


def test_a_digest_counts_a_record_as_often_as_its_diff() -> None:
    table = pa.table({"v": ["a", "b", "a"], "_diff": [3, 1, -2]})
    assert digest(table) == slow_digest(table) == slow_digest(pa.table({"v": ["b", "a"]}))
    assert digest(table.slice(0, 0)) == "0" * 32


def test_records_without_columns_are_counted() -> None:
    def times(n: int) -> int:
        return compute_digest(pa.table({"_diff": [n]}), [])

    assert times(1) != 0
    assert times(3) == 3 * times(1) & MASK


def test_widths_play_no_part_in_a_digest_but_names_do() -> None:
    def of(name: str, kind: pa.DataType, values: list[Any]) -> str:
        return digest(pa.table({name: pa.array(values, kind)}))

    assert of("v", pa.int8(), [1, 2]) == of("v", pa.uint64(), [2, 1])
    assert of("v", pa.string(), ["a"]) == of("v", pa.large_string(), ["a"])
    assert of("v", pa.float32(), [0.5]) == of("v", pa.float64(), [0.5])
    assert of("v", pa.decimal128(9, 2), [Decimal("1.25")]) == of("v", pa.decimal256(50, 2), [Decimal("1.25")])
    assert of("v", pa.int8(), [1]) != of("w", pa.int8(), [1])


def test_a_large_table_has_the_sum_of_its_pieces() -> None:
    table = pa.table({"a": np.arange(200_000), "_diff": np.ones(200_000, np.int64)})
    pieces = [table.slice(at, 70_000) for at in range(0, 200_000, 70_000)]
    assert compute_digest(table, ["a"]) == sum(compute_digest(piece, ["a"]) for piece in pieces) & MASK


def test_what_else_is_asked_for_has_a_digest_as_text() -> None:
    assert hash_text("overwrite") == xxhash.xxh3_64_intdigest(b"overwrite")
