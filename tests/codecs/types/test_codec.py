"""Codecs round trip, are canonical, and refuse what they would change."""

import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist.codecs.errors import CodecMismatch, InvalidUpdate, SchemaMismatch
from persist.codecs.types.codec import Binary, Codec, Int64, Json, Unit, Utf8
from persist.codecs.types.schema import CollectionSchema
from persist.codecs.updates.tuples import iterate_rows, iterate_tuples
from persist.codecs.updates.updates import to_updates

_LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
JSON_VALUES = st.recursive(
    _LEAVES, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=3), v, max_size=3), max_leaves=8
)


class Point(Codec[tuple[int, int]]):
    name = "point"
    arrow_type = pa.string()

    def encode(self, value: tuple[int, int]) -> str:
        x, y = value
        return f"{x:d},{y:d}"

    def decode(self, stored: str) -> tuple[int, int]:
        x, y = stored.split(",")
        return (int(x), int(y))


@pytest.mark.parametrize(
    ("codec", "values"),
    [
        (Utf8(), st.text() | st.none()),
        (Binary(), st.binary() | st.none()),
        (Int64(), st.integers(-(2**63), 2**63 - 1) | st.none()),
        (Json(), JSON_VALUES),
        (Point(), st.tuples(st.integers(), st.integers())),
    ],
    ids=lambda p: getattr(p, "name", ""),
)
@given(data=st.data())
def test_a_codec_gives_back_what_it_was_given(codec: Codec[Any], values: Any, data: st.DataObject) -> None:
    given_values = data.draw(st.lists(values, max_size=5))
    column = codec.encode_all(given_values)
    assert column.type == codec.arrow_type
    assert codec.decode_all(column) == given_values
    for value, stored in zip(given_values, column.to_pylist(), strict=True):
        assert codec.encode(value) == stored
        assert codec.decode(stored) == value


@given(JSON_VALUES)
def test_json_text_does_not_depend_on_the_order_of_keys(value: Any) -> None:
    def turned(v: Any) -> Any:
        if isinstance(v, dict):
            return {k: turned(v[k]) for k in reversed(v)}
        return [turned(x) for x in v] if isinstance(v, list) else v

    assert Json().encode(turned(value)) == Json().encode(value)


def test_json_text_is_canonical() -> None:
    assert Json().encode({"b": [1, 1.0, True, None], "a": "é"}) == '{"a":"é","b":[1,1.0,true,null]}'
    assert Json().encode([-0.0, {"x": -0.0}, "-0.0"]) == '[0.0,{"x":0.0},"-0.0"]'


@pytest.mark.parametrize(
    "value", [math.nan, [math.inf], (1, 2), {1: 2}, {"a": (1,)}, b"x", {1}, object(), "\ud800"], ids=repr
)
def test_json_refuses_what_it_would_change(value: Any) -> None:
    with pytest.raises(InvalidUpdate, match=r"update 1 has .* codec 'json'"):
        Json().encode_all([None, value])


@pytest.mark.parametrize(
    ("codec", "value"),
    [
        *((Utf8(), 5), (Utf8(), b"x"), (Utf8(), "\ud800"), (Binary(), "x"), (Int64(), True), (Int64(), 1.0)),
        *((Int64(), "1"), (Int64(), 2**63), (Point(), 5), (Point(), (1, "x")), (Unit(), 0)),
    ],
    ids=repr,
)
def test_a_codec_refuses_other_values_and_names_the_first_one(codec: Codec[Any], value: Any) -> None:
    fine: dict[str, Any] = {"utf8": "a", "binary": b"a", "int64": 1, "point": (1, 2), "unit": None}
    with pytest.raises(InvalidUpdate, match=f"update 2 has .*codec '{codec.name}'"):
        codec.encode_all([fine[codec.name], fine[codec.name], value, value])


def test_a_users_codec_stores_and_reads_tuples() -> None:
    schema = CollectionSchema.of(Point, Json)
    updates = [(((1, 2), {"a": [1]}), 5, 1), (((-1, 0), None), 6, -1)]
    table = to_updates(updates, schema)
    assert table.column("key").to_pylist() == ["1,2", "-1,0"]
    assert table.column("value").to_pylist() == ['{"a":[1]}', "null"]
    assert list(iterate_tuples(table, schema)) == updates
    assert list(iterate_rows(table, schema)) == [update[0] for update in updates]


def test_an_unknown_codec_reads_as_arrow_and_asks_for_itself_otherwise() -> None:
    known = CollectionSchema.of(Point, None)
    unknown = CollectionSchema.from_json(known.to_json())
    updates = [(((1, 2), None), 5, 1)]
    table = to_updates(updates, known)
    assert to_updates(table, unknown).equals(table)
    for attempt in (
        lambda: iterate_rows(table, unknown),
        lambda: iterate_tuples(table, unknown),
        lambda: to_updates(updates, unknown),
    ):
        with pytest.raises(
            CodecMismatch, match=r"key .* codec 'point' version 1, .* pass that codec to create_or_load"
        ):
            attempt()


def test_a_codec_that_returns_another_column_is_refused() -> None:
    class Short(Point):
        name = "short"

        def encode_all(self, values: Any) -> pa.Array:
            return pa.array(["x"])

    with pytest.raises(CodecMismatch, match="codec 'short' made 1 elements of type string from 2 keys"):
        to_updates([(((1, 2), None), 5, 1)] * 2, CollectionSchema.of(Short, None))


def _variant(**attributes: Any) -> type[Codec[Any]]:
    return type("Mine", (Point,), attributes)


@pytest.mark.parametrize(
    ("codec", "message"),
    [
        (_variant(name=""), "codec Mine has the name ''"),
        (_variant(name="a b"), "has the name 'a b': set 1 to 64 characters"),
        (_variant(name="x" * 65), "set 1 to 64 characters"),
        (_variant(name=None), "has the name None"),
        (_variant(name="utf8"), "has the name 'utf8' of a built-in codec"),
        (_variant(name="unit"), "has the name 'unit' of a built-in codec"),
        (_variant(version=0), "has the version 0: set an integer of 1 or more"),
        (_variant(version=True), "has the version True"),
        (_variant(arrow_type=pa.null()), "codec 'point' has type null"),
        (_variant(arrow_type=str), "codec 'point' has <class 'str'> for a type"),
        (_variant(__init__=lambda self, x: None), "needs arguments .*: give an instance"),
        (Codec, "codec Codec has the name None"),
    ],
)
def test_a_codec_that_is_badly_described_is_refused(codec: Any, message: str) -> None:
    with pytest.raises(SchemaMismatch, match=message):
        CollectionSchema.of(codec, None)


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ("notjson", r"update 1 has 'notjson', which codec 'json' cannot read \((?!\w+\)).*Give what its encode"),
        ('{"b": 1}', r"""update 1 has '{"b": 1}', which codec 'json' writes as '{"b":1}'"""),
        ("-0.0", "writes as '0.0'"),
        ("NaN", "cannot read"),
    ],
)
def test_a_column_holds_only_what_its_codec_makes(stored: str, message: str) -> None:
    schema = CollectionSchema.of(Utf8(), Json())
    rows = {"key": ["a", "b"], "_time": [1, 1], "_diff": [1, 1]}
    with pytest.raises(InvalidUpdate, match=message):
        to_updates(pa.table(rows | {"value": ["1", stored]}), schema)
    canonical = pa.table(rows | {"value": pa.array(['{"b":[1,2.5]}', None])})
    assert to_updates(canonical, schema).column("value").to_pylist() == ['{"b":[1,2.5]}', None]
