"""The digest of updates says the same of them however they are cut, ordered, summed or laid out in memory."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from persist.codecs import digest_of, digest_of_text
from tests.golden.make import FIELDS

MASK = 2**64 - 1
G, A, B, NULL = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93


def mixed(x: int) -> int:
    """As the grammar in `persist.codecs.order.digest` has it, one word at a time."""
    x = ((x ^ (x >> 30)) * A) & MASK
    x = ((x ^ (x >> 27)) * B) & MASK
    return x ^ (x >> 31)


def chain(words: list[int], n: int) -> int:
    return mixed((n + sum(mixed((word + G * (at + 1)) & MASK) for at, word in enumerate(words))) & MASK)


def fold(words: list[int]) -> int:
    h = 0
    for word in words:
        h = mixed(((h + G) & MASK) ^ word)
    return h


def word_of(value: Any) -> int:
    if value is None:
        return NULL
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes):
        eights = [int.from_bytes(value[at : at + 8], "little") for at in range(0, len(value), 8)]
        return chain(eights, len(value))
    if isinstance(value, list):
        return chain([word_of(each) for each in value], len(value))
    if isinstance(value, dict):
        return fold([word_of(value[name]) for name in sorted(value)])
    if isinstance(value, float):
        return int(np.float64(value).view(np.uint64))
    return int(value) & MASK


KIND = pa.struct([("i", pa.int32()), ("l", pa.list_(pa.string()))])
ROWS = st.fixed_dictionaries(
    {
        "a": st.none() | st.integers(-(2**63), 2**63 - 1),
        "b": st.none() | st.text(max_size=20),
        "c": st.none() | st.floats(allow_nan=False).filter(bool),
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


@given(st.lists(ROWS, max_size=8), st.integers(0, 8))
def test_it_is_what_the_grammar_says_however_rows_are_cut(rows: list[dict[str, Any]], cut: int) -> None:
    expected = sum(row["_diff"] * fold([word_of(row[name]) for name in COLUMNS]) for row in rows) & MASK
    table = pa.Table.from_pylist(rows, SCHEMA)
    assert digest_of(table, COLUMNS) == expected
    assert digest_of(pa.concat_tables([table.slice(cut), table.slice(0, cut)]), COLUMNS) == expected


@pytest.mark.parametrize("name", FIELDS)
def test_of_every_type_it_tells_values_apart_and_knows_equal_ones(name: str) -> None:
    kind, value = FIELDS[name]

    def digest(values: list[Any], diffs: list[int]) -> int:
        # Behind an offset, and behind a NULL, other values lie in the buffers.
        chunks = [pa.array([value, each, value], kind).slice(1, 1) for each in values]
        return digest_of(pa.table({"x": pa.chunked_array(chunks, kind), "_diff": diffs}), ["x"])

    assert digest([value, None, value], [1, 1, 1]) == digest([None, value], [1, 2])
    assert digest([value], [1]) != digest([None], [1])
    assert digest([value, value], [1, -1]) == 0


def test_a_large_table_has_the_sum_of_its_pieces() -> None:
    table = pa.table({"a": np.arange(200_000), "_diff": np.ones(200_000, np.int64)})
    pieces = [table.slice(at, 70_000) for at in range(0, 200_000, 70_000)]
    assert digest_of(table, ["a"]) == sum(digest_of(piece, ["a"]) for piece in pieces) & MASK


def test_what_else_is_asked_for_has_a_digest_as_text() -> None:
    assert digest_of_text("overwrite") == xxhash.xxh3_64_intdigest(b"overwrite")
