"""LIKE matches what DuckDB matches, whatever backslashes and lines are in patterns and texts."""

import itertools

import duckdb
import pyarrow as pa
import pytest

import persist
from persist.codecs.types.schema import CollectionSchema
from persist.core.expression.filters import parse_where
from persist.core.expression.patterns import match_like_pattern
from persist.core.expression.sql_functions import FUNCTIONS

TEXTS = [
    *map("".join, itertools.product("a\\%\n", repeat=3)),
    *("", "\\", "a\\b", "xa\\by", "A\\B", "a.b", "ä\\b", "\U0001f600"),
]
PATTERNS = ["%\\", "\\%", "%\\%", "a\\%", "%a\\b", "%a\\b%", "a\\b%", "a\\_b", "_\\b", "\\\\", "\\", "a.b", "%", "a%\\"]


def match_without_case(texts: list[str], pattern: str) -> list[bool]:
    matches: list[bool] = FUNCTIONS["ilike"](pa.array(texts), pa.array([pattern]), pa.bool_()).to_pylist()
    return matches


def test_letters_that_share_only_an_upper_case_letter_differ_without_case() -> None:
    letters = [*"sSiIkK", "\u017f", "\u0130", "\u0131", "\u03c2", "\u03c3", "\u03a3", "\u212a", "\u00df", "\u1e9e"]
    with duckdb.connect() as connection:
        for pattern in letters:
            expected = [connection.execute("SELECT $1 ILIKE $2", [text, pattern]).fetchone() for text in letters]
            assert match_without_case(letters, pattern) == [row[0] for row in expected if row]


@pytest.mark.thorough(except_every=4)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_backslash_is_a_character_of_a_pattern(pattern: str) -> None:
    texts = pa.table({"id": range(len(TEXTS)), "s": TEXTS})
    with duckdb.connect() as connection:
        connection.register("texts", texts)
        found = connection.execute("SELECT s LIKE $1, s ILIKE $1 FROM texts ORDER BY id", [pattern]).fetchall()
    like, ilike = map(list, zip(*found, strict=True))
    assert match_like_pattern(texts["s"], pattern).to_pylist() == like
    assert match_without_case(TEXTS, pattern) == ilike
    schema = CollectionSchema.of({"id": pa.int64()}, {"s": pa.string()})
    chosen = texts.filter(parse_where(f"s like '{pattern}'", schema))["id"].to_pylist()
    assert chosen == [at for at, matches in enumerate(like) if matches]


def test_a_view_matches_backslashes() -> None:
    with persist.open(persist.MemoryBlob()) as client:
        rows = pa.table({"id": [0, 1, 2], "path": ["C:\\x", "C:\\\\x", "C:x"]})
        client.write("paths", rows, key=["id"]).result()
        view = client.create_view("found", "SELECT id FROM paths WHERE path LIKE 'C:\\x%'")
        view.refresh()
        assert view.snapshot().to_pylist() == [{"id": 0}]
