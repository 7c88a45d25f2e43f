"""Rows that are Python objects count by the names of their fields, and as they were when they were given."""

from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import persist
from persist.blob.protocol import MemoryBlob
from persist.codecs.updates.tuples import copy_if_mutable
from tests.support.reads import rows_with

PLAIN = [(1, (10, "a")), (2, (20, "b")), (3, (30, "c"))]


class Row(NamedTuple):
    note: str
    amount: int
    id: int


class Value(NamedTuple):
    note: str
    amount: int


class Pair(NamedTuple):
    value: Any
    key: Any


class Update(NamedTuple):
    record: Any
    diff: int
    time: int


class Other(NamedTuple):
    colour: str
    amount: int


@dataclass
class Order:
    amount: int
    note: str
    id: int


@pytest.fixture
def client() -> Iterator[persist.Client]:
    with persist.open(MemoryBlob(), settings=persist.Settings(background=False)) as client:
        yield client


@pytest.fixture
def orders(client: persist.Client) -> persist.Collection:
    return client.create_or_load("orders", key={"id": int}, value={"amount": int, "note": str})


def contents(collection: persist.Collection) -> list[Any]:
    return sorted(collection.snapshot().rows())


def dicts() -> Iterator[Any]:
    row: dict[str, Any] = {}
    for key, (amount, note) in PLAIN:
        row.update(id=key, amount=amount, note=note)
        yield row


def pairs_of_dicts() -> Iterator[Any]:
    value: dict[str, Any] = {}
    for key, (amount, note) in PLAIN:
        value.update(amount=amount, note=note)
        yield key, value


def lists() -> Iterator[Any]:
    pair: list[Any] = [None, [None, None]]
    for key, value in PLAIN:
        pair[0], pair[1][:] = key, value
        yield pair


def objects() -> Iterator[Any]:
    row = Order(0, "", 0)
    for key, (amount, note) in PLAIN:
        row.id, row.amount, row.note = key, amount, note
        yield row


@pytest.mark.parametrize("given", [dicts, pairs_of_dicts, lists, objects])
def test_an_iterator_may_fill_the_same_object_again_and_again(
    orders: persist.Collection, given: Callable[[], Iterator[Any]]
) -> None:
    orders.write(given(), time=0, seal=1).result()
    assert contents(orders) == PLAIN
    orders.overwrite(given(), time=1).result()
    assert contents(orders) == PLAIN
    assert orders.changes(1).to_arrow().num_rows == 0


def test_events_and_keys_from_an_iterator_may_be_the_same_object_again(client: persist.Client) -> None:
    users = client.create_or_load("users", key={"a": int, "b": int}, value={"v": int}, keyed=persist.Keyed())

    def keys() -> Iterator[list[int]]:
        key = [0, 0]
        for number in (1, 2):
            key[:] = number, number
            yield key

    users.upsert(((key, 5) for key in keys()), time=0, seal=1).result()
    assert contents(users) == [((1, 1), 5), ((2, 2), 5)]
    assert len(rows_with(users.snapshot(), keys())) == 2


def test_what_cannot_change_is_not_copied() -> None:
    for value in ((1, ("a", None)), "text", 5, (b"x", (1.5,))):
        assert copy_if_mutable(value) is value
    array = np.zeros(2)
    assert copy_if_mutable((1, [array]))[1][0] is not array


ROWS: list[list[Any]] = [
    [Row(note, amount, key) for key, (amount, note) in PLAIN],
    [Order(amount, note, key) for key, (amount, note) in PLAIN],
    [(key, Value(note, amount)) for key, (amount, note) in PLAIN],
    [{"id": key, "amount": amount, "note": note} for key, (amount, note) in PLAIN],
]


@pytest.mark.parametrize("as_iterator", [False, True], ids=["list", "iterator"])
@pytest.mark.parametrize("rows", ROWS, ids=["named tuples", "dataclasses", "named values", "dicts"])
def test_fields_are_taken_by_name(orders: persist.Collection, rows: list[Any], as_iterator: bool) -> None:
    orders.write(iter(rows) if as_iterator else rows, time=0, seal=1).result()
    assert contents(orders) == PLAIN


def test_the_rows_of_a_pandas_frame_are_named_tuples_too(orders: persist.Collection) -> None:
    frame = pd.DataFrame({"note": ["a"], "id": [1], "amount": [10], "at": [3]})
    orders.write(frame.itertuples(index=False), time="at", seal=4).result()
    assert orders.changes(3).to_pylist() == [{"id": 1, "amount": 10, "note": "a", "_time": 3, "_diff": 1}]
    with pytest.raises(persist.errors.SchemaMismatch, match="'Index' is unexpected"):
        orders.write(frame.drop(columns="at").itertuples(), time=5)


@pytest.mark.parametrize(
    ("rows", "time"),
    [
        ([(1, Other("red", 10))], 0),
        ([Pair(key=1, value=(10, "a"))], 0),
        ([Update(record=(1, (10, "a")), diff=1, time=2)], None),
        ([((1, (10, "a")), 0, 1), ((1, Other("red", 10)), 0, 1)], None),
        ([Other("red", 10)], 0),
        ([Row("a", 10, 1), (1, (10, "a"))], 0),
    ],
)
def test_named_tuples_with_other_fields_or_in_other_places_are_refused(
    orders: persist.Collection, rows: list[Any], time: int | None
) -> None:
    with pytest.raises(persist.InvalidUsage, match=r"fields|places|unexpected|are dicts"):
        orders.write(rows, time=time)


def test_named_updates_in_their_places_are_taken(orders: persist.Collection) -> None:
    named = namedtuple("named", "record time diff")
    pair = namedtuple("pair", "key value")
    orders.write([named(pair(1, (10, "a")), 0, 1)], seal=1).result()
    assert contents(orders) == PLAIN[:1]


def test_keys_and_events_are_taken_by_name(client: persist.Client) -> None:
    class Key(NamedTuple):
        b: int
        a: int

    class Event(NamedTuple):
        time: int
        key: Any
        value: Any

    users = client.create_or_load("users", key={"a": int, "b": int}, value={"v": int}, keyed=persist.Keyed())
    users.upsert([(Key(a=1, b=2), 5, 0)], seal=1).result()
    assert contents(users) == [((1, 2), 5)]
    assert len(rows_with(users.snapshot(), [Key(a=1, b=2)])) == 1
    with pytest.raises(persist.errors.InvalidUpdate, match="places"):
        users.upsert([Event(1, (1, 2), 6)])


@pytest.mark.parametrize("kind", [pa.list_(pa.string()), pa.map_(pa.string(), pa.string())], ids=str)
def test_categories_inside_of_lists_and_maps_are_text(client: persist.Client, kind: pa.DataType) -> None:
    c = client.create_or_load("c", key={"id": int}, value={"v": kind})
    coded = pa.dictionary(pa.int8(), pa.string_view() if pa.types.is_list(kind) else pa.string())
    given: list[Any] = [["x"], None, [], ["a", None, "b"], ["b"]]
    if pa.types.is_map(kind):
        given = [None if each is None else [(f"k{i}", v) for i, v in enumerate(each)] for each in given]
    source = pa.list_(coded) if pa.types.is_list(kind) else pa.map_(pa.string(), coded)
    array = pa.array(given, kind)
    inner = array.values if pa.types.is_list(kind) else array.items
    plain = inner.dictionary_encode().cast(pa.dictionary(pa.int8(), pa.string()))
    encoded = pa.DictionaryArray.from_arrays(plain.indices, plain.dictionary.cast(coded.value_type))
    child = encoded
    if pa.types.is_map(kind):
        child = pa.StructArray.from_arrays([array.keys, encoded], fields=[source.key_field, source.item_field])
    column = pa.Array.from_buffers(source, len(array), array.buffers()[:2], children=[child]).slice(1)
    c.write(pa.table({"id": range(4), "v": column}), time=0, seal=1).result()
    assert [v for _, v in contents(c)] == given[1:]


def test_categories_of_polars_inside_of_lists_and_structs_are_text(client: persist.Client) -> None:
    enum = pl.Enum(["a", "b"])
    frame = pl.DataFrame(
        {
            "id": [1, 2],
            "c": pl.Series([["a", "b"], None], dtype=pl.List(pl.Categorical)),
            "e": pl.Series([{"x": ["a"]}, {"x": None}], dtype=pl.Struct({"x": pl.List(enum)})),
        }
    )
    value = {"c": "list<string>", "e": "struct<x: list<string>>"}
    c = client.create_or_load("c", key={"id": int}, value=value)
    for at, given in enumerate((frame, frame.lazy(), frame.to_arrow())):
        c.overwrite(given, time=at).result()
        assert contents(c) == [(1, (["a", "b"], {"x": ["a"]})), (2, (None, {"x": None}))]


@pytest.mark.parametrize("value", [2049, -4097, np.int64(10_001)])
def test_integers_that_a_narrow_float_cannot_hold_are_refused(client: persist.Client, value: Any) -> None:
    c = client.create_or_load("c", key={"id": int}, value={"v": pa.float16()})
    for rows in ([(1, value)], [{"id": 1, "v": value}], pd.DataFrame({"id": [1], "v": [int(value)]})):
        with pytest.raises(persist.errors.InvalidUpdate, match=r"not.* exact as halffloat"):
            c.write(rows, time=0)
    c.write([(1, 2048), (2, 4096), (3, 2049.0)], time=0, seal=1).result()
    assert contents(c) == [(1, 2048.0), (2, 4096.0), (3, 2048.0)]  # Floats are rounded to the nearest.


def test_integers_of_numpy_are_integers(orders: persist.Collection) -> None:
    numbers: list[Any] = [np.int64(0), np.int64(1), np.int64(2), np.int8(-2)]
    orders.write(PLAIN, time=numbers[0], diff=numbers[2], seal=numbers[1]).result()
    orders.write(PLAIN, time=1, diff=numbers[3], seal=2).result()
    assert orders.snapshot(numbers[0]).count() == 6
    assert contents(orders) == []
    wrong: Any
    for wrong in (np.int64(0), np.float64(1), np.bool_(True)):
        with pytest.raises(persist.errors.InvalidUpdate, match="is not a change"):
            orders.write(PLAIN, time=2, diff=wrong)


def test_objects_of_polars_are_refused_as_keys(client: persist.Client) -> None:
    c = client.create_or_load("c", key={"id": bytes}, value={"v": int})
    c.write([(b"a", 1)], time=0, seal=1).result()
    keys = pl.Series("id", [b"a"], dtype=pl.Object)
    for given in (keys, pl.DataFrame([keys])):
        for call in (c.snapshot().get, lambda keys: c.delete(keys, time=1)):
            with pytest.raises(persist.errors.SchemaMismatch, match="Polars' type Object"):
                call(given)
