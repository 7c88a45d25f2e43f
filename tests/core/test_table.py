"""A collection as a table: made from a frame, read with conditions in text, compared between two times, queried."""

from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import persist


@pytest.fixture
def orders(client: persist.Client) -> persist.Collection:
    made = client.create_or_load("orders", key={"id": int}, value={"amount": float})
    made.write([(1, 5.0), (2, 9.0), (3, 1.0)], time=0, seal=1).result()
    made.overwrite([(1, 5.0), (2, 8.0), (4, 7.0)], time=1).result()
    return made


def test_a_condition_is_text_or_an_expression_wherever_there_is_one(orders: persist.Collection) -> None:
    for where in ("amount > 5", pc.field("amount") > 5):
        assert orders.snapshot(where=where).to_arrow()["id"].to_pylist() == [2, 4]
        assert orders.changes(1, where=where).to_arrow()["id"].to_pylist() == [2, 2, 4]
    orders.overwrite([(2, 3.0)], time=2, where="id = 2").result()
    orders.delete(where="amount < 4", time=3).result()
    assert orders.to_pandas()["id"].tolist() == [1, 4]
    with pytest.raises(persist.InvalidUsage, match="'price' is not a column of this collection"):
        orders.snapshot(where="price > 5")
    with pytest.raises(persist.InvalidUsage, match=r"where=7 is not a condition"):
        orders.snapshot(where=7)


def test_what_to_delete_is_keys_or_a_condition_and_not_both(orders: persist.Collection) -> None:
    wrong: Any
    for wrong in ({}, {"keys": [1], "where": "id = 1"}):
        with pytest.raises(persist.InvalidUsage, match=r"delete\(\) takes keys, or where="):
            orders.delete(time=2, **wrong)
    with pytest.raises(persist.InvalidUsage, match=r"delete\(where="):
        orders.delete(pc.field("id") == 1, time=2)


def test_a_collection_is_looked_at_like_a_table(orders: persist.Collection) -> None:
    assert len(orders) == 3
    assert orders.columns == ["id", "amount"]
    assert orders.head(2).to_pydict() == {"id": [1, 2], "amount": [5.0, 8.0]}
    assert orders.to_pandas()["amount"].sum() == 20.0
    assert bool(orders)


def test_a_collection_is_made_like_a_frame(client: persist.Client) -> None:
    frame = pd.DataFrame({"id": [1], "status": ["new"], "amount": [9.5]})
    for like in (
        frame,
        pl.from_pandas(frame),
        pa.Table.from_pandas(frame),
        frame.to_dict("list"),
        pa.schema([("id", pa.int64()), ("status", pa.string()), ("amount", pa.float64())]),
    ):
        made = client.create_or_load("orders", like=like, key=["id"])
        assert made.schema.key_names == ("id",)
        assert made.schema.value_names == ("status", "amount")
    assert [str(t) for t in made.schema.arrow.types[:3]] == ["int64", "string", "double"]
    events = client.create_or_load("events", like=frame, key=[])
    assert events.schema.value_names == ("id", "status", "amount")


def test_what_is_made_like_a_frame_has_its_key_among_the_columns(client: persist.Client) -> None:
    frame = pd.DataFrame({"id": [1], "status": ["new"]})
    with pytest.raises(persist.InvalidUsage, match=r"key=\['ids'\].*did you mean 'id'"):
        client.create_or_load("orders", like=frame, key=["ids"])
    with pytest.raises(persist.InvalidUsage, match=r"key=\[\.\.\.\]"):
        client.create_or_load("orders", like=frame)
    with pytest.raises(persist.InvalidUsage, match="value"):
        client.create_or_load("orders", like=frame, key=["id"], value={"x": int})
    assert client.collections() == []


def test_a_difference_shows_old_and_new_values_side_by_side(orders: persist.Collection) -> None:
    found = orders.diff(0, 1).to_arrow().to_pydict()
    assert found == {
        "id": [2, 3, 4],
        "amount": [8.0, None, 7.0],
        "_change": ["update", "delete", "insert"],
        "_old_amount": [9.0, 1.0, None],
    }
    assert orders.diff(1, 0).to_arrow().to_pydict()["_change"] == ["update", "insert", "delete"]
    assert orders.diff(0, "latest", where="id = 3").to_arrow()["_change"].to_pylist() == ["delete"]
    assert len(orders.diff(1, 1)) == 0


def test_records_that_share_a_key_are_paired_in_the_order_of_their_values(client: persist.Client) -> None:
    made = client.create_or_load("events", key={"id": int}, value={"n": int})
    made.write([(1, 1), (1, 2), (2, 5)], time=0, seal=1).result()
    made.overwrite([(1, 1), (1, 3), (1, 4), (2, 5)], time=1, multiset=True).result()
    assert made.diff(0, 1).to_arrow().select(["id", "n", "_old_n"]).to_pylist() == [
        {"id": 1, "n": 3, "_old_n": 2},
        {"id": 1, "n": 4, "_old_n": None},
    ]


def test_keys_give_what_they_were_asked_in(orders: persist.Collection) -> None:
    latest = orders.snapshot()
    assert orders.get([2, 4]) == latest.get([2, 4]) == [(2, 8.0), (4, 7.0)]
    assert latest.get((9, 1)) == ((1, 5.0),)
    assert latest.get(pa.array([2])).to_pydict() == {"id": [2], "amount": [8.0]}
    assert latest.get(pa.table({"id": [2]})).num_rows == 1
    assert isinstance(latest.get(pd.DataFrame({"id": [2]})), pd.DataFrame)
    assert isinstance(latest.get(pd.Series([2, 4])), pd.DataFrame)
    assert isinstance(latest.get(pl.Series([2, 4])), pl.DataFrame)
    assert isinstance(latest.get(pl.DataFrame({"id": [2]})), pl.DataFrame)
    assert orders.get([9]) == []


def test_changes_show_what_goes_before_what_comes_and_moments_if_there_is_a_timeline(client: persist.Client) -> None:
    made = client.create_or_load("clicks", key={"id": int}, value={"n": int}, timeline="s")
    made.write([(1, 1), (2, 2)], time="2026-01-01", seal="2026-01-02").result()
    made.overwrite([(1, 5), (2, 0)], time="2026-01-02").result()
    found = made.changes("2026-01-02").to_arrow()
    assert found["_diff"].to_pylist() == [-1, 1, -1, 1]
    assert str(found["_time"][0].as_py()) == "2026-01-02 00:00:00+00:00"
    assert made.changes("2026-01-02", times="int").to_arrow().schema.field("_time").type == pa.int64()


def test_a_query_reads_all_of_one_point_of_the_log(client: persist.Client, orders: persist.Collection) -> None:
    items = client.create_or_load("items", key={"id": int}, value={"n": int})
    items.write([(1, 2), (4, 3)], time=0, seal=2).result()
    query = "SELECT sum(amount * n)::DOUBLE AS total FROM orders JOIN items USING (id)"
    assert client.sql(query).to_arrow().to_pylist() == [{"total": 31.0}]
    assert client.sql(query, as_of=0).to_pandas()["total"].tolist() == [10.0]
    assert client.sql(query, as_of={"orders": 0}).to_polars()["total"].to_list() == [10.0]
    seen = [batch.num_rows for batch in client.sql("FROM orders")]
    assert sum(seen) == 3


def test_a_query_reads_no_files_and_says_so(client: persist.Client, orders: persist.Collection, tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("a\n1\n")
    with pytest.raises(persist.InvalidUsage, match=r"files=True"):
        client.sql(f"FROM '{tmp_path}/secret.csv'").to_arrow()
    assert client.sql(f"FROM '{tmp_path}/secret.csv'", files=True).to_arrow().num_rows == 1
    with pytest.raises(persist.InvalidUsage, match="The collections are"):
        client.sql("FROM nothing").to_arrow()
