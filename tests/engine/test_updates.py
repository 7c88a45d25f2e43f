"""Updates of some columns by key, of plain and keyed collections, against a model of a few lines."""

import base64
import json
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings

import persist
from persist import Behind, errors
from persist.events import debezium
from tests.support.tiers import examples

ORDERED = persist.Keyed(order_by=["ts"], tombstone="gone")
KEYED: dict[str, persist.Keyed | None] = {
    "plain": None,
    "keyed": persist.Keyed(),
    "ordered": ORDERED,
    "keyed, in the background": persist.Keyed(resolve="background"),
}
every_kind = pytest.mark.parametrize("keyed", KEYED.values(), ids=KEYED)
VALUE = {"a": int, "b": str, "ts": int, "gone": bool}


def filled(client: persist.Client, keyed: persist.Keyed | None = None, rows: int = 3) -> persist.Collection:
    orders = client.create_or_load("orders", key={"id": int}, value=VALUE, keyed=keyed)
    orders.upsert([(at, (at, f"old {at}", 5, False)) for at in range(rows)]).result()
    return orders


def held(collection: persist.Collection, as_of: int | None = None) -> list[Any]:
    return [(key, *value[:2]) for key, value in sorted(collection.snapshot(as_of).rows())]


@every_kind
def test_an_update_changes_the_columns_that_rows_have(client: persist.Client, keyed: persist.Keyed | None) -> None:
    orders = filled(client, keyed)
    before = orders.upper
    orders.update([{"id": 1, "b": "new"}, {"id": 0, "a": 7}, {"id": 2, "a": None, "b": "both"}]).result()
    assert held(orders) == [(0, 7, "old 0"), (1, 1, "new"), (2, None, "both")]
    orders.update(pa.table({"a": [9], "id": [1]})).result()
    orders.update(pd.DataFrame({"id": [0], "b": ["frame"]})).result()
    orders.update(iter([{"id": 2, "a": 3}])).result()
    orders.update([pa.table({"id": [2], "b": ["x"]}), pa.table({"id": [1], "a": [4]})]).result()
    assert held(orders) == [(0, 7, "frame"), (1, 4, "new"), (2, 3, "x")]
    transitions = orders.changes(before, form="transitions").to_arrow()
    assert transitions.num_rows == 8, "each row is one change, and other keys have none"


@every_kind
def test_a_missing_key_is_refused_inserted_or_left_out(client: persist.Client, keyed: persist.Keyed | None) -> None:
    orders = filled(client, keyed, 1)
    rows = [{"id": 0, "a": 7}, {"id": 8, "a": 1}, {"id": 9, "b": "y"}]
    with pytest.raises(persist.InvalidUsage, match="'orders' has no row to update for id=8; id=9; nothing"):
        orders.update(rows).result()
    assert held(orders) == [(0, 0, "old 0")]
    orders.update(rows, missing="ignore").result()
    assert held(orders) == [(0, 7, "old 0")]
    orders.update(rows, missing="insert").result()
    assert held(orders) == [(0, 7, "old 0"), (8, 1, None), (9, None, "y")]
    orders.update([], missing="error").result()
    with pytest.raises(persist.InvalidUsage, match='"error", "insert" or "ignore"'):
        orders.update(rows, missing="skip")  # type: ignore[arg-type]


@every_kind
def test_rows_that_do_not_fit_are_refused(client: persist.Client, keyed: persist.Keyed | None) -> None:
    orders = filled(client, keyed)
    for rows, why in [
        ([{"a": 1}], "lacks the key column 'id'"),
        ([{"id": 1, "c": 1}], "'c' is unexpected"),
        ([{"id": 1, "a": "text"}], "column 'a'"),
        ([(1, (2, "x", 5, False))], "does not name its columns"),
        ([None], "None does not name its columns"),
        ([{"id": None, "a": 1}], "NULL in the key"),
        ([{"id": 1, "_deleted": True}], "an update deletes nothing"),
        ([{"id": 1, "a": 2, "_time": 9}, {"id": 1, "a": 2}], "some rows have a '_time'"),
    ]:
        with pytest.raises(persist.InvalidUsage, match=why):
            orders.update(rows).result()
    assert held(orders) == [(at, at, f"old {at}") for at in range(3)]


def test_a_row_that_may_not_have_null_is_not_inserted_without_its_value(client: persist.Client) -> None:
    value = pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.string())])
    orders = client.create_or_load("orders", key={"id": int}, value=value)
    orders.upsert([(1, (1, "x"))]).result()
    orders.update([{"id": 1, "b": "y"}]).result()
    with pytest.raises(errors.SchemaMismatch, match="a row lacks 'a', which is not null"):
        orders.update([{"id": 2, "b": "y"}], missing="insert")
    with pytest.raises(errors.InvalidUpdate, match="NULL in 'a'"):
        orders.update([{"id": 1, "a": None}])
    assert [*orders.snapshot().rows()] == [(1, (1, "y"))]


@every_kind
def test_an_inserted_row_has_the_defaults_of_columns(client: persist.Client, keyed: persist.Keyed | None) -> None:
    orders = filled(client, keyed)
    orders.evolve(add={"n": pa.int64()}, defaults={"n": 5})
    orders = client.load("orders")
    orders.update([{"id": 9, "a": 1}, {"id": 1, "n": None}], missing="insert").result()
    assert {row["id"]: row["n"] for row in orders.snapshot().to_pylist()} == {0: 5, 1: None, 2: 5, 9: 5}


@pytest.mark.parametrize("keyed", [None, persist.Keyed()])
def test_rows_may_lack_columns_that_have_a_default(client: persist.Client, keyed: persist.Keyed | None) -> None:
    orders = client.create_or_load("orders", key={"id": int}, value={"a": int}, keyed=keyed)
    at = pa.scalar(1_000_000_001, pa.timestamp("ns"))
    added = {"n": pa.int64(), "at": pa.timestamp("ns"), "l": pa.decimal128(5, 2), "other": pa.string()}
    orders.evolve(add=added, defaults={"n": 5, "at": at, "l": Decimal("1.50")})
    orders = client.load("orders")
    orders.upsert(pa.table({"id": [1], "a": [1], "other": ["x"]})).result()
    orders.upsert([{"id": 2, "a": 2, "other": None}]).result()
    orders.upsert([{"id": 3, "a": 3, "other": "y", "n": None}, {"id": 4, "a": 4, "other": "z", "at": None}]).result()
    orders.upsert([{"id": 4, "_deleted": True}, {"id": 5, "a": 5, "other": None}]).result()
    rows = {row["id"]: row for row in orders.snapshot().to_arrow().to_pylist()}
    assert {id_: row["n"] for id_, row in rows.items()} == {1: 5, 2: 5, 3: None, 5: 5}
    assert [row["l"] for row in rows.values()] == [Decimal("1.50")] * 4
    assert orders.snapshot().to_arrow()["at"].cast(pa.int64()).to_pylist() == [1_000_000_001] * 4
    with pytest.raises(errors.SchemaMismatch, match=r"'other' \(string\) is missing"):
        orders.upsert([{"id": 6, "a": 6}]).result()


def test_appended_rows_may_lack_columns_that_have_a_default(client: persist.Client) -> None:
    log = client.create_or_load("log", key={"id": int}, value={"a": int})
    log.evolve(add={"n": pa.int64()}, defaults={"n": 5})
    log = client.load("log")
    log.write(pa.table({"id": [1], "a": [1]})).result()
    log.write([((2, (2, 6)), 9, 1)], seal=10).result()
    log.write(pa.table({"id": [1], "a": [1], "_time": [10], "_diff": [-1]}), seal=11).result()
    assert log.snapshot().to_pylist() == [{"id": 2, "a": 2, "n": 6}]


def test_columns_may_have_any_name(client: persist.Client) -> None:
    orders = client.create_or_load("orders", key={"id": int}, value={"_given": str, "n": int})
    orders.upsert([(1, ("error 00", 1))]).result()
    orders.update([{"id": 1, "_given": "insert 11"}], token="named").result()
    assert orders.get([1]) == [(1, ("insert 11", 1))]


def test_a_view_takes_no_update(client: persist.Client) -> None:
    filled(client)
    client.create_view("big", "SELECT id, a FROM orders WHERE a > 0")
    with pytest.raises(persist.InvalidUsage, match="'big' is a view"):
        client["big"].update([{"id": 1, "a": 5}], missing="insert").result()


def test_a_key_with_several_rows_is_refused(client: persist.Client) -> None:
    orders = filled(client)
    orders.write([(1, (9, "second", 5, False))]).result()
    with pytest.raises(persist.InvalidUsage, match="'orders' has several rows for id=1, and an update"):
        orders.update([{"id": 1, "a": 2}]).result()
    with pytest.raises(errors.DuplicateKeys):
        orders.update([{"id": 0, "a": 2}, {"id": 0, "b": "x"}])
    orders.update([{"id": 0, "a": 2}, {"id": 0, "a": 2}]).result()
    assert orders.get([0]) == [(0, (2, "old 0", 5, False))]


@every_kind
def test_an_update_with_a_token_is_done_once(client: persist.Client, keyed: persist.Keyed | None) -> None:
    orders = filled(client, keyed)
    for _ in range(2):
        orders.update([{"id": 1, "a": 2}], token="once").result()
        upper = orders.upper
    orders.update([{"id": 1, "a": 3}]).result()
    orders.update([{"id": 1, "a": 2}], token="once").result()
    assert (orders.get([1])[0][1][0], orders.upper > upper) == (3, True)
    with pytest.raises(errors.TokenReused):
        orders.update([{"id": 1, "a": 2, "b": None}], token="once").result()


@every_kind
def test_an_update_is_part_of_a_commit(client: persist.Client, keyed: persist.Keyed | None) -> None:
    orders, log = filled(client, keyed), client.create_or_load("log", key={"n": int})
    with client.multi_write() as multi:
        multi.update(orders, [{"id": 1, "a": 5}])
        multi.write(log, [(1, None)])
    assert (held(orders)[1], log.snapshot().count()) == ((1, 5, "old 1"), 1)
    with pytest.raises(persist.InvalidUsage, match="no row to update for id=7"), client.multi_write() as multi:
        multi.update(orders, [{"id": 7, "a": 5}])
        multi.write(log, [(2, None)])
    assert log.snapshot().count() == 1


def test_an_update_follows_an_upsert_of_one_commit(client: persist.Client) -> None:
    orders = filled(client, None, 1)
    with client.multi_write() as multi:
        multi.upsert(orders, [(7, (7, "whole", 5, False))])
        multi.update(orders, [{"id": 7, "a": 8}, {"id": 0, "b": "z"}])
    assert held(orders) == [(0, 0, "z"), (7, 8, "whole")]


@every_kind
def test_an_upsert_follows_an_update_of_one_commit_at_the_same_time(
    client: persist.Client, keyed: persist.Keyed | None
) -> None:
    orders = filled(client, keyed, 2)
    time = orders.upper.time or 0
    with client.multi_write() as multi:
        multi.update(orders, [{"id": id_, "a": 8, "ts": 7} for id_ in (0, 1)], time=time)
        multi.upsert(orders, [{"id": 1, "a": 9, "b": "whole", "ts": 10, "gone": False}], time=time)
        if keyed is not None:
            multi.seal(orders, time)
    assert held(orders) == [(0, 8, "old 0"), (1, 9, "whole")]
    assert orders.upper.time == time + 1


@pytest.mark.parametrize("resolve", ["seal", "background"])
def test_an_update_follows_whole_rows_of_its_time_also_where_the_greatest_counts(
    client: persist.Client, resolve: Any
) -> None:
    orders = client.create_or_load(
        "orders", key={"id": int}, value={"a": str, "b": str}, keyed=persist.Keyed(ties="greatest", resolve=resolve)
    )
    orders.upsert([(1, ("zz", "old")), (2, ("a", "old"))], time=0).result()
    orders.update([{"id": 1, "a": "b"}, {"id": 2, "b": "new"}], time=0).result()
    assert sorted(orders.snapshot().rows()) == [(1, ("b", "old")), (2, ("a", "new"))]


def test_rows_of_several_times_follow_each_other(client: persist.Client) -> None:
    orders = filled(client)
    start = orders.upper.time
    assert start is not None
    rows = [{"id": 1, "a": 5, "_time": start + 2}, {"id": 1, "b": "x", "_time": start + 4}]
    orders.update(rows).result()
    assert [held(orders, start + after)[1] for after in (1, 2, 4)][1:] == [(1, 5, "old 1"), (1, 5, "x")]
    keyed = client.create_or_load("keyed", key={"id": int}, value={"a": int, "b": str}, keyed=persist.Keyed())
    keyed.upsert([(1, (1, "old"), 0), (1, (2, "newer"), 5)]).result()
    keyed.update([{"id": 1, "a": 5, "_time": 1}, {"id": 1, "b": "x", "_time": 3}]).result()
    keyed.seal(6).result()
    assert [[*keyed.snapshot(time).rows()] for time in (0, 1, 3, 5)] == [
        [(1, (1, "old"))], [(1, (5, "old"))], [(1, (5, "x"))], [(1, (2, "newer"))]
    ]  # fmt: skip


def test_an_ignored_row_makes_no_later_one_late(client: persist.Client) -> None:
    orders = filled(client, ORDERED, 1)
    orders.upsert([{"id": 0, "a": 1, "b": "x", "ts": 6, "gone": True}]).result()
    start = orders.upper.time or 0
    with client.multi_write() as multi:
        multi.update(orders, [{"id": 0, "ts": 9, "a": 3}], time=start, missing="ignore")
        multi.upsert(orders, [{"id": 0, "a": 4, "b": "y", "ts": 7, "gone": False}], time=start + 1)
        multi.update(orders, [{"id": 0, "ts": 8, "b": "z"}], time=start + 2, missing="ignore")
        multi.update(orders, [{"id": 0, "ts": 7, "b": "late"}], time=start + 3, missing="ignore")
    assert orders.get([0]) == [(0, (4, "z", 8, False))]


LONG = {"t": pa.string(), "data": pa.binary(), "list": pa.list_(pa.int64())}


@pytest.mark.parametrize("keyed", [None, persist.Keyed(), persist.Keyed(order_by=["lsn"], tombstone="gone")])
def test_values_that_a_message_lacks_stay_as_they_are(client: persist.Client, keyed: persist.Keyed | None) -> None:
    value = {"n": pa.int64(), "lsn": pa.int64(), "gone": pa.bool_(), **LONG}
    rows = client.create_or_load("rows", key={"id": pa.int64()}, value=value, keyed=keyed)
    long, left_out = ("text", b"\x01\x02", [1, 2]), b"__debezium_unavailable_value"
    encoded = base64.b64encode(left_out).decode()
    lacking = {"t": left_out.decode(), "data": encoded, "list": [*left_out]}
    whole = {"t": "text", "data": "AQI=", "list": [1, 2]}
    messages = [("c", 1, {"n": 1, **whole}), ("u", 2, {"n": 2, **lacking}), ("u", 3, {"n": 3, **lacking, "t": "new"})]
    texts = [json.dumps({"op": op, "after": {"id": 1, "lsn": lsn, **row}}) for op, lsn, row in messages]
    schema = {"id": pa.int64(), **value}
    for some in (texts[:1], texts[1:2], texts[2:]) if keyed is None else (texts[:2], texts[2:]):
        rows.upsert(debezium(some, key="id", schema=schema)).result()
    assert rows.get([1]) == [(1, (3, 3, None, "new", *long[1:]))]
    late = debezium(texts[1:2], key="id", schema=schema)
    if keyed is not None:
        with pytest.raises(persist.InvalidUsage, match="seal beyond that in the same commit"):
            rows.upsert(late, time=rows.upper.time)
        rows.upsert(late, time=rows.upper.time, seal=(rows.upper.time or 0) + 1).result()
        assert rows.get([1])[0][1][0] == (3 if keyed.order_by else 2)
    unknown = debezium([texts[1].replace('"id": 1', '"id": 5')], key="id", schema=schema)
    with pytest.raises(persist.InvalidUsage, match="no row to update for id=5"):
        rows.upsert(unknown).result()


def test_a_late_row_leaves_nothing_to_those_after_it(client: persist.Client) -> None:
    orders = filled(client, ORDERED, 1)
    orders.update([{"id": 0, "ts": 2, "a": 9}, {"id": 0, "ts": 7, "b": "new"}]).result()
    assert orders.get([0]) == [(0, (0, "new", 7, False))]
    orders.update([{"id": 0, "ts": 8, "gone": True}]).result()
    orders.update([{"id": 0, "ts": 7, "a": 1}], missing="insert").result()
    assert held(orders) == []
    orders.update([{"id": 0, "ts": 9, "a": 1}], missing="insert").result()
    assert orders.get([0]) == [(0, (1, None, 9, None))]


def test_a_late_bound_refuses_late_rows(client: persist.Client) -> None:
    keyed = persist.Keyed(order_by=["ts"], late_bound=Behind(3))
    orders = client.create_or_load("orders", key={"id": int}, value=VALUE, keyed=keyed)
    orders.upsert([(1, (1, "x", 10, False))]).result()
    orders.update([{"id": 1, "a": 2, "ts": 12}]).result()
    with pytest.raises(errors.LateEvents):
        orders.update([{"id": 1, "a": 3, "ts": 8}]).result()
    orders.update([{"id": 1, "a": 4}]).result()
    assert held(orders) == [(1, 4, "x")]


def test_a_tombstone_without_an_order_is_forgotten_where_there_is_a_late_bound(client: persist.Client) -> None:
    keyed = persist.Keyed(order_by=["ts"], late_bound=Behind(3), tombstone="gone")
    orders = client.create_or_load("orders", key={"id": int}, value=VALUE, keyed=keyed)
    orders.upsert([(1, (1, "x", None, True)), (2, (2, "y", 10, False))]).result()
    with pytest.raises(persist.InvalidUsage, match="no row to update for id=1"):
        orders.update([{"id": 1, "gone": True}]).result()


ROWS = st.fixed_dictionaries(
    {"id": st.integers(0, 1)},
    optional={"a": st.none() | st.integers(0, 9), "b": st.none() | st.sampled_from("xyz"), "ts": st.integers(0, 4)},
)


@given(st.lists(st.tuples(st.lists(ROWS, max_size=4, unique_by=lambda row: row["id"]), st.booleans()), max_size=6))
@settings(max_examples=examples(40), deadline=None)
def test_updates_of_a_plain_collection_are_what_the_model_says(steps: list[Any]) -> None:
    with persist.open(persist.MemoryBlob()) as client:
        orders = client.create_or_load("orders", key={"id": int}, value={"a": int, "b": str, "ts": int})
        orders.upsert([(0, (1, "x", 1)), (1, (2, "y", 2))]).result()
        model = {0: {"a": 1, "b": "x", "ts": 1}, 1: {"a": 2, "b": "y", "ts": 2}}
        for rows, inserts in steps:
            orders.update(rows, missing="insert" if inserts else "ignore").result()
            for row in rows:
                if inserts or row["id"] in model:
                    values = {name: value for name, value in row.items() if name != "id"}
                    model[row["id"]] = {"a": None, "b": None, "ts": None, **model.get(row["id"], {}), **values}
        assert sorted(orders.snapshot().rows()) == sorted((id_, (*row.values(),)) for id_, row in model.items())
