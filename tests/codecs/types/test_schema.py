"""Schemas say what is stored, read back as written, and show how two of them differ."""

import json
import pickle
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given

from persist.codecs.errors import CodecMismatch, SchemaMismatch
from persist.codecs.types.codec import Codec, Int64, Json, Unit, Utf8
from persist.codecs.types.schema import CollectionSchema
from tests.codecs.strategies import schemas

ORDERS = CollectionSchema.of({"id": pa.int64()}, {"status": pa.string(), "amount": pa.float64()})


class Point(Codec[tuple[int, int]]):
    name = "point"
    arrow_type = pa.list_(pa.int32(), 2)

    def encode(self, value: tuple[int, int]) -> list[int]:
        return list(value)

    def decode(self, stored: list[int]) -> tuple[int, int]:
        return (stored[0], stored[1])


class Point2(Point):
    version = 2


@given(schemas())
def test_every_schema_survives_json_and_pickle(schema: CollectionSchema) -> None:
    again = CollectionSchema.from_json(json.loads(json.dumps(schema.to_json())))
    assert again == schema
    assert again.arrow.equals(schema.arrow, check_metadata=True)
    assert pickle.loads(pickle.dumps(schema)) == schema
    assert schema.reconcile(again, "c") == schema


def test_columns_are_key_then_value_then_time_and_diff() -> None:
    assert ORDERS.key_names == ("id",)
    assert ORDERS.value_names == ("status", "amount")
    assert ORDERS.names == ("id", "status", "amount")
    assert ORDERS.arrow.names == ["id", "status", "amount", "_time", "_diff"]
    assert [f.nullable for f in ORDERS.arrow] == [True, True, True, False, False]
    assert ORDERS.arrow.field("_time").type == ORDERS.arrow.field("_diff").type == pa.int64()


def test_a_pyarrow_schema_stands_for_its_fields_without_metadata() -> None:
    given_key = pa.schema([pa.field("id", pa.int64(), metadata={"a": "b"})], metadata={"c": "d"})
    value = {"status": pa.string(), "amount": pa.float64()}
    schema = CollectionSchema.of(given_key, value)
    assert schema == ORDERS
    assert schema.arrow.equals(ORDERS.arrow, check_metadata=True)


def test_a_codec_side_is_one_column_named_after_the_side() -> None:
    schema = CollectionSchema.of(Point, Json())
    assert schema.names == ("key", "value")
    assert schema.key.fields[0].type == pa.list_(pa.int32(), 2)
    assert (schema.key.codec_name, schema.key.codec_version) == ("point", 1)
    assert schema.to_json() == {
        "key": {"codec": "point", "version": 1, "type": {"fixed_size_list": "int32", "size": 2}},
        "value": {"codec": "json", "version": 1, "type": "string"},
    }


def test_reading_resolves_built_in_codecs_and_leaves_others_unknown() -> None:
    again = CollectionSchema.from_json(CollectionSchema.of(Point(), Json).to_json())
    assert again.key.codec is None
    assert again.key.codec_name == "point"
    assert isinstance(again.value.codec, Json)


@pytest.mark.parametrize("unit", [None, Unit, Unit()])
def test_unit_has_no_column(unit: Any) -> None:
    schema = CollectionSchema.of({"id": pa.int64()}, unit)
    assert schema.value.fields == ()
    assert schema.to_json()["value"] is None
    assert CollectionSchema.of(unit, unit).names == ()


def test_reconcile_gives_the_stored_schema_the_codec_objects() -> None:
    point = Point()
    stored = CollectionSchema.from_json(CollectionSchema.of(Point, {"v": pa.int8()}).to_json())
    reconciled = CollectionSchema.of(point, {"v": pa.int8()}).reconcile(stored, "c")
    assert reconciled == stored
    assert reconciled.key.codec is point


@pytest.mark.parametrize(
    ("value", "difference"),
    [
        ({"status": pa.string()}, r"value field 'amount' \(double\) is missing"),
        ({"status": pa.string(), "amount": pa.float64(), "x": pa.int8()}, r"value field 'x' \(int8\) is unexpected"),
        ({"status": pa.string(), "amount": pa.int64()}, "value field 'amount' is stored as double, given as int64"),
        (
            {"amount": pa.float64(), "status": pa.string()},
            r"stored in the order \['status', 'amount'\], given in the order \['amount', 'status'\]",
        ),
        (None, r"the value is stored as fields \{status: string, amount: double\}, given as unit"),
        (Json, r"the value is stored as fields \{status.*\}, given as codec 'json' version 1"),
    ],
)
def test_another_schema_is_a_mismatch_that_shows_the_difference(value: Any, difference: str) -> None:
    given_schema = CollectionSchema.of({"id": pa.int64()}, value)
    with pytest.raises(SchemaMismatch, match=f"collection 'orders' .*{difference}.*Give the stored schema"):
        given_schema.reconcile(ORDERS, "orders")


def test_all_differences_are_shown_at_once() -> None:
    with pytest.raises(SchemaMismatch) as caught:
        CollectionSchema.of({"no": pa.int32()}, {"status": pa.binary()}).reconcile(ORDERS, "orders")
    for part in ("'id' (int64) is missing", "'no' (int32) is unexpected", "string, given as binary", "'amount'"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("given_key", "stored_key", "message"),
    [
        (Utf8, Int64, "stored with codec 'int64' version 1, and codec 'utf8' version 1 was given"),
        (Point2, Point, "stored with codec 'point' version 1, and codec 'point' version 2 was given"),
    ],
)
def test_another_codec_or_version_is_a_codec_mismatch(given_key: Any, stored_key: Any, message: str) -> None:
    stored = CollectionSchema.of(stored_key, None)
    with pytest.raises(CodecMismatch, match=f"the key of collection 'c' is {message}"):
        CollectionSchema.of(given_key, None).reconcile(stored, "c")


def test_a_codec_that_changed_its_type_but_not_its_version_is_a_schema_mismatch() -> None:
    class Wide(Point):
        arrow_type = pa.list_(pa.int64(), 2)

    with pytest.raises(SchemaMismatch, match=r"key field 'key' is stored as .*int32.*given as .*int64"):
        CollectionSchema.of(Wide, None).reconcile(CollectionSchema.of(Point, None), "c")


@pytest.mark.parametrize("name", ["", "_time", "_diff", "a\nb", "a\x00", "\x9f", "x" * 129, "\ud800", 5, None])
def test_a_field_name_that_is_not_allowed_is_refused(name: Any) -> None:
    with pytest.raises(SchemaMismatch, match=r"value field .* is not allowed: .*Choose another name"):
        CollectionSchema.of({"id": pa.int64()}, {name: pa.int8()})


@pytest.mark.parametrize("name", ["x" * 128, "é ü", "_id", "a.b", "key", "Ω/…"])
def test_other_names_are_fine(name: str) -> None:
    assert CollectionSchema.of({name: pa.int64()}, None).names == (name,)


def test_a_name_may_not_be_on_both_sides() -> None:
    with pytest.raises(SchemaMismatch, match="field 'id' occurs 2 times in key"):
        CollectionSchema.of({"id": pa.int64()}, {"id": pa.int64()})
    with pytest.raises(SchemaMismatch, match="field 'key' occurs 2 times"):
        CollectionSchema.of(Utf8, {"key": pa.int64()})
    with pytest.raises(SchemaMismatch, match="field 'a' occurs 2 times"):
        CollectionSchema.of(pa.schema([("a", pa.int8()), ("a", pa.int8())]), None)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ({}, "the key has no columns: give at least one, or None"),
        (pa.schema([]), "the key has no columns"),
        ("id", "the key is 'id': give a dict of names and types"),
        (int, "the key is <class 'int'>: give a dict"),
        ({"id": object}, "key field 'id' has <class 'object'> for a type"),
        ({"id": pa.null()}, "key field 'id' has type null"),
    ],
)
def test_what_is_no_side_is_refused(key: Any, message: str) -> None:
    with pytest.raises(SchemaMismatch, match=message):
        CollectionSchema.of(key, None)


@pytest.mark.parametrize(
    "written",
    [
        *(None, [], {}, {"key": None}, {"key": None, "value": None, "more": None}, {"key": 1, "value": None}),
        *({"key": {"fields": []}, "value": None}, {"key": {"fields": [["a"]]}, "value": None}),
        *({"key": {"fields": [["a", "int"]]}, "value": None}, {"key": {"codec": "utf8"}, "value": None}),
    ],
    ids=str,
)
def test_reading_a_schema_is_strict(written: Any) -> None:
    with pytest.raises(ValueError, match=r"written form|not supported"):
        CollectionSchema.from_json(written)


def test_an_order_of_columns_is_stored_and_checked() -> None:
    schema = replace(CollectionSchema.of({"g": pa.int64()}, {"n": pa.int64()}), order=("n", "g"))
    assert (schema.names, schema.columns) == (("g", "n"), ("n", "g"))
    assert CollectionSchema.from_json(schema.to_json()) == schema
    for wrong in (["n"], ["n", 1], "ng", {"n": 1}):
        with pytest.raises(ValueError, match=r"order|list of names"):
            CollectionSchema.from_json({**schema.to_json(), "order": wrong})


@pytest.mark.parametrize(
    ("later", "says"),
    [
        ({"version": 1, "ids": [0, 1]}, "written form"),
        ({"version": 2, "ids": [0, 1], "defaults": {"7": 1}}, "not the defaults of columns"),
        ({"version": 2, "ids": [0, 1], "defaults": [1]}, "not the defaults of columns"),
    ],
)
def test_what_later_versions_store_is_checked(later: dict[str, Any], says: str) -> None:
    written = CollectionSchema.of({"g": pa.int64()}, {"n": pa.int64()}).to_json()
    with pytest.raises(ValueError, match=says):
        CollectionSchema.from_json({**written, **later})
