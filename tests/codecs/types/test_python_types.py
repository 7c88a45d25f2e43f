"""A schema can be described in the words of whatever library its user works with."""

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Annotated, Any, TypedDict
from uuid import UUID

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from persist.codecs.errors import SchemaMismatch
from persist.codecs.types.schema import CollectionSchema

EXPECTED = {"id": pa.int64(), "name": pa.string(), "at": pa.timestamp("us", tz="UTC")}


@dataclass
class Event:
    id: int
    name: str | None
    at: dt.datetime


class Typed(TypedDict):
    id: int
    name: str
    at: dt.datetime


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


class Plain(Enum):
    ONE = 1


class Text(str): ...


FRAME = pl.DataFrame(schema={"id": pl.Int64, "name": pl.String, "at": pl.Datetime("us", "UTC")})
PANDAS = pd.DataFrame(
    {
        "id": pd.Series([], dtype="Int64"),
        "name": pd.Series([], dtype=pd.ArrowDtype(pa.string())),
        "at": pd.Series([], dtype="datetime64[us, UTC]"),
    }
)


@pytest.mark.parametrize(
    "spec",
    [
        EXPECTED,
        pa.schema(EXPECTED),
        {"id": int, "name": str, "at": dt.datetime},
        {"id": "int64", "name": "string", "at": "timestamp[us, tz=UTC]"},
        {"id": np.int64, "name": "str" if False else str, "at": pl.Datetime("us", "UTC")},
        Event,
        Typed,
        FRAME,
        FRAME.schema,
        PANDAS,
        PANDAS.dtypes,
        pa.schema(EXPECTED).empty_table(),
    ],
    ids=lambda spec: type(spec).__module__ + "." + getattr(spec, "__name__", type(spec).__name__),
)
def test_the_same_fields_can_be_described_in_many_ways(spec: Any) -> None:
    schema = CollectionSchema.of(spec, None)
    assert {field.name: field.type for field in schema.key.fields} == EXPECTED


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (bool, pa.bool_()),
        (float, pa.float64()),
        (bytes, pa.binary()),
        (dt.date, pa.date32()),
        (dt.time, pa.time64("us")),
        (dt.timedelta, pa.duration("us")),
        (UUID, pa.binary(16)),
        (int | None, pa.int64()),
        (Colour, pa.string()),
        (Level, pa.int64()),
        (Annotated[int, "of something"], pa.int64()),
        (list[str], pa.list_(pa.string())),
        (dict[str, int], pa.map_(pa.string(), pa.int64())),
        (Typed, pa.struct(list(EXPECTED.items()))),
        (Annotated[Decimal, pa.decimal128(9, 2)], pa.decimal128(9, 2)),
        (np.dtype("float32"), pa.float32()),
        (pd.Int8Dtype(), pa.int8()),
        (pl.UInt8, pa.uint8()),
        (pl.List(pl.String), pa.large_list(pa.string())),
        ("decimal128(38, 10)", pa.decimal128(38, 10)),
        ("list<item: timestamp[us, tz=UTC]>", pa.list_(pa.timestamp("us", tz="UTC"))),
        ("map<string, decimal128(5, 2)>", pa.map_(pa.string(), pa.decimal128(5, 2))),
        ("struct<a: int8, b: list<string>>", pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string()))])),
        (pa.dictionary(pa.int8(), pa.large_string()), pa.large_string()),
        (pa.string_view(), pa.string()),
        (pa.binary_view(), pa.binary()),
        (pa.uuid(), pa.binary(16)),
        (pa.list_(pa.dictionary(pa.int8(), pa.string_view())), pa.list_(pa.string())),
    ],
    ids=str,
)
def test_a_type_is_stored_as_its_plain_one(given: Any, stored: pa.DataType) -> None:
    assert CollectionSchema.of({"x": given}, None).arrow.field("x").type == stored


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            object,
            r"key field 'x' has <class 'object'> for a type: give the name of a type of Arrow, .* or one of Python",
        ),
        *((kind, "for a type") for kind in (Plain, Text, tuple[int], list, dict)),
        (Decimal, r"which says nothing of its digits \(write \"decimal128\(38, 10\)\"\)"),
        (int | str, "which may be any of several types"),
        ("int65", "and no type is called that"),
        (np.dtype("O"), "has dtype"),
        (7, "has 7 for a type"),
    ],
    ids=str,
)
def test_what_is_no_type_is_refused_with_what_is_one(given: Any, message: str) -> None:
    with pytest.raises(SchemaMismatch, match=message):
        CollectionSchema.of({"x": given}, None)


def test_a_column_that_does_not_exist_is_told_with_the_one_that_was_meant() -> None:
    schema = CollectionSchema.of({"id": int}, {"amount": float})
    with pytest.raises(SchemaMismatch, match=r"'Amont' is not a column of this collection, did you mean 'amount'\?"):
        schema.check_distinct("columns", ["Amont"])
    with pytest.raises(SchemaMismatch, match="'id' is there twice") as caught:
        schema.check_distinct("columns", ["id", "id"])
    assert "unknown" not in str(caught.value)
