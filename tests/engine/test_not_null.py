"""A field that is given as not null holds no NULL: it is refused where it is written, in whatever form."""

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import persist
from persist.blob.protocol import MemoryBlob
from persist.codecs.types.schema import CollectionSchema

KEY = pa.schema([pa.field("k", pa.int64(), nullable=False)])
VALUE = {"v": pa.field("v", pa.string(), nullable=False), "w": pa.float64()}


@pytest.fixture
def client() -> Iterator[persist.Client]:
    with persist.open(MemoryBlob(), settings=persist.Settings(background=False)) as client:
        yield client


@pytest.fixture
def orders(client: persist.Client) -> persist.Collection:
    return client.create_or_load("orders", key=KEY, value=VALUE)


def test_the_schema_shows_what_is_not_null_to_every_client(client: persist.Client, orders: persist.Collection) -> None:
    declared = pa.schema([KEY.field("k"), pa.field("v", pa.string(), nullable=False), ("w", pa.float64())])
    for collection in (orders, client.load("orders")):
        assert collection.schema.declared == declared
        assert collection.schema.required == ("k", "v")
        assert "v  string  required" in repr(collection.schema)
    assert CollectionSchema.from_json(orders.schema.to_json()) == orders.schema


# The second of three has a NULL in v.
FORMS: dict[str, Any] = {
    "tuples": lambda: [((1, ("a", 1.0)), 0, 1), ((2, (None, 1.0)), 0, 1), ((3, ("c", None)), 0, 1)],
    "tuples of dicts": lambda: [((k, {"v": v, "w": 1.0}), 0, 1) for k, v in ((1, "a"), (2, None), (3, "c"))],
    "arrow": lambda: pa.table(
        {"k": [1, 2, 3], "v": ["a", None, "c"], "w": [1.0] * 3, "_time": [0] * 3, "_diff": [1] * 3}
    ),
    "a diff of 0 before it": lambda: pa.table(
        {"k": [1, 2, 3], "v": ["a", None, "c"], "w": [1.0] * 3, "_time": [0] * 3, "_diff": [0, 1, 1]}
    ),
    "pandas": lambda: pd.DataFrame({"k": [1, 2, 3], "v": ["a", None, "c"], "w": [1.0] * 3, "_time": 0, "_diff": 1}),
    "dicts": lambda: [{"k": k, "v": v, "w": 1.0, "_time": 0, "_diff": 1} for k, v in ((1, "a"), (2, None), (3, "c"))],
    "many": lambda: pa.table(
        {"k": range(100_000), "v": ["a", None, *["c"] * 99_998], "w": [1.0] * 100_000, "_time": [0] * 100_000,
         "_diff": [1] * 100_000}
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_null_is_refused_with_its_column_and_row_and_nothing_is_written(
    client: persist.Client, orders: persist.Collection, form: Any
) -> None:
    before = client.metrics().groups["log"]["seqno"]
    with pytest.raises(persist.errors.InvalidUpdate, match=r"update 1 has NULL in 'v', which is not null by .* schema"):
        orders.write(form())
    orders.seal(1).result()
    assert client.metrics().groups["log"]["seqno"] == before + 1
    assert orders.snapshot(0).count() == 0


def test_a_null_in_a_stream_is_refused_with_where_in_the_stream_it_is(orders: persist.Collection) -> None:
    batches = [pa.table({"k": [k], "v": pa.array([v], pa.string()), "w": [0.0]}) for k, v in ((1, "a"), (2, None))]
    with pytest.raises(persist.errors.InvalidUpdate, match="from row 1 of the stream on, update 0 has NULL in 'v'"):
        orders.write(iter(batches), time=0)


def test_a_null_key_is_refused_and_other_values_and_nulls_are_not(orders: persist.Collection) -> None:
    with pytest.raises(persist.errors.InvalidUpdate, match="update 0 has NULL in 'k'"):
        orders.write([((None, ("a", 1.0)), 0, 1)])
    orders.write([((1, ("a", None)), 0, 1)], seal=1).result()
    assert list(orders.snapshot().rows()) == [(1, ("a", None))]


def test_overwriting_and_multi_writes_refuse_nulls_too(client: persist.Client, orders: persist.Collection) -> None:
    with pytest.raises(persist.errors.InvalidUpdate, match="NULL in 'v'"):
        orders.overwrite([(1, (None, 1.0))], time=0)
    with pytest.raises(persist.errors.InvalidUpdate, match="NULL in 'v'"), client.multi_write() as multi:
        multi.write(orders, [(1, (None, 1.0))], time=0)


def test_a_collection_is_loaded_by_its_types_alone_and_stays_not_null(
    client: persist.Client, orders: persist.Collection
) -> None:
    again = client.create_or_load("orders", key={"k": int}, value={"v": str, "w": float})
    assert again.schema.required == ("k", "v")
    with pytest.raises(persist.errors.InvalidUpdate, match="NULL in 'v'"):
        again.write([(1, (None, 1.0))], time=0)


def test_what_may_hold_null_by_now_is_not_declared_otherwise(client: persist.Client) -> None:
    client.create_or_load("plain", key={"k": int}, value={"v": str})
    with pytest.raises(persist.errors.SchemaMismatch, match="'v' is stored as nullable, given as not null"):
        client.create_or_load("plain", key={"k": int}, value={"v": pa.field("v", pa.string(), nullable=False)})


def test_a_field_of_another_name_is_refused(client: persist.Client) -> None:
    with pytest.raises(persist.errors.SchemaMismatch, match="is given as a field 'x': call both alike"):
        client.create_or_load("odd", key={"k": pa.field("x", pa.int64())})


def test_an_examination_finds_a_null_where_there_must_be_none(
    client: persist.Client, orders: persist.Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("persist.codecs.updates.updates.check_declared", lambda table, schema: None)
    table = pa.table({"k": [1, 2], "v": ["a", None], "w": [1.0, 2.0], "_time": [0, 0], "_diff": [1, 1]})
    orders.write(table, seal=1).result()
    report = client.fsck()
    assert not report.is_clean
    assert "column 'v' is not null by the schema, and has 1 NULLs" in str(report)
