"""Codecs and written schemas from an attacker: an answer, or an error of the library."""

import json
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

from persist.codecs.types.codec import BUILT_IN
from persist.codecs.types.schema import CollectionSchema
from persist.codecs.updates.small import convert_small_updates
from persist.codecs.updates.updates import to_updates
from persist.errors import Corruption, PersistError
from tests.codecs.strategies import arrays
from tests.support.tiers import examples

QUICK = settings(max_examples=examples(100, quick=5))

JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=5),
        st.sampled_from(
            ["key", "value", "fields", "codec", "utf8", "json", "int64", "list", "struct", "map", "string"]
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(["key", "value", "fields", "codec", "version", "type", "list", "struct", "map", "size"]),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)


@QUICK
@given(st.data())
@pytest.mark.parametrize("name", BUILT_IN)
def test_a_codec_decodes_whatever_its_column_may_hold_or_says_that_it_is_corrupt(
    name: str, data: st.DataObject
) -> None:
    codec = BUILT_IN[name]()
    column = data.draw(arrays(codec.arrow_type))
    try:
        assert len(codec.decode_all(column)) == len(column)
    except Corruption:
        assert name == "json"


@pytest.mark.parametrize(
    "text",
    ["", "{", "[" * 100_000, "NaN", "-Infinity", "9" * 5000, '{"a":' * 5000, "[1,]", "\0", "nul", '"\\ud800'],
    ids=lambda text: text[:8],
)
def test_what_is_not_json_is_corrupt(text: str) -> None:
    with pytest.raises(Corruption, match="codec 'json'"):
        BUILT_IN["json"]().decode_all(pa.array([text]))


@QUICK
@given(JSON)
def test_a_written_schema_is_one_or_a_value_error(written: Any) -> None:
    for candidate in (written, {"key": written, "value": None}, {"key": None, "value": {"fields": [["a", written]]}}):
        try:
            schema = CollectionSchema.from_json(candidate)
        except ValueError:
            continue
        assert CollectionSchema.from_json(json.loads(json.dumps(schema.to_json()))) == schema


DEEPER: dict[str, Callable[[Any], Any]] = {
    "list": lambda inner: {"list": inner},
    "fixed_size_list": lambda inner: {"fixed_size_list": inner, "size": 2},
    "struct": lambda inner: {"struct": [["a", inner]]},
    "map": lambda inner: {"map": ["int8", inner]},
}


@pytest.mark.parametrize("kind", DEEPER)
def test_a_type_nested_too_deep_is_no_type(kind: str) -> None:
    written: Any = "int64"
    for _ in range(500):
        written = DEEPER[kind](written)
    with pytest.raises(ValueError, match="deep"):
        CollectionSchema.from_json({"key": {"fields": [["k", written]]}, "value": None})


def test_a_built_in_codec_over_another_type_is_refused() -> None:
    with pytest.raises(ValueError, match="codec 'json' stores string"):
        CollectionSchema.from_json({"key": {"codec": "json", "version": 1, "type": "int64"}, "value": None})


@QUICK
@given(
    st.recursive(
        st.one_of(st.none(), st.integers(), st.text(max_size=3), st.floats(), st.binary(max_size=2), st.booleans()),
        lambda inner: st.one_of(st.lists(inner, max_size=4), st.tuples(inner, inner, inner), st.tuples(inner, inner)),
        max_leaves=10,
    )
)
def test_whatever_is_given_for_updates_is_taken_or_refused(data: Any) -> None:
    schema = CollectionSchema.of({"k": pa.int64()}, {"v": pa.string()})
    small = convert_small_updates(data, schema)
    try:
        table = to_updates(data, schema)
    except PersistError:
        assert small is None
        return
    assert table.schema.equals(schema.arrow)
