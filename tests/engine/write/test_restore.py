"""`Collection.restore`: the contents of an earlier time again, as a change of one later time."""

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

import persist

ORDERS: dict[str, Any] = {"key": {"id": int}, "value": {"amount": float}}


def contents(collection: persist.Collection, as_of: int | None = None) -> Counter[Any]:
    table = collection.snapshot(as_of, form="diff").to_arrow()
    return Counter({tuple(row[:-1]): row[-1] for row in zip(*table.to_pydict().values(), strict=True)})


def test_a_restored_collection_holds_what_it_held_and_keeps_its_history(client: persist.Client) -> None:
    orders = client.create_or_load("orders", **ORDERS)
    orders.write([(1, 9.5), (2, 3.0), (2, 3.0)], time=1, seal=2).result()
    orders.overwrite([(1, 8.0), (3, 7.0)], time=2).result()
    restored = orders.restore(1)
    restored.result()
    assert restored.time == 3
    assert contents(orders) == contents(orders, 1) == {(1, 9.5): 1, (2, 3.0): 2}
    assert contents(orders, 2) == {(1, 8.0): 1, (3, 7.0): 1}
    assert Counter(orders.changes(3, form="updates").to_arrow()["_diff"].to_pylist()) == {-1: 2, 1: 1, 2: 1}
    orders.restore(2, time=10).result()
    assert (contents(orders), orders.upper) == (contents(orders, 2), persist.Antichain(11))


def test_tags_and_moments_say_what_to_restore(client: persist.Client) -> None:
    orders = client.create_or_load("orders", **ORDERS, timeline="s")
    orders.write([(1, 9.5)], time="2026-01-01", seal="2026-01-02").result()
    orders.tag("before", "2026-01-01")
    orders.overwrite([], time="2026-02-01").result()
    orders.restore("2026-01-15").result()
    assert len(orders) == 1
    orders.overwrite([]).result()
    orders.restore("before").result()
    assert len(orders) == 1


def test_a_past_that_cannot_be_read_is_not_restored(client: persist.Client) -> None:
    orders = client.create_or_load("orders", **ORDERS)
    for time in range(4):
        orders.overwrite([(time, 1.0)], time=time).result()
    with pytest.raises(persist.errors.AsOfNotSealed):
        orders.restore(4)
    orders.allow_compaction(2).result()
    with pytest.raises(persist.errors.AsOfCompacted):
        orders.restore(1)
    with pytest.raises(persist.errors.UpdateNotBeyondUpper):
        orders.restore(2, time=3)
    orders.write([(9, 9.0)], time=7).result()
    with pytest.raises(persist.errors.UpdatesBeyondUpper):
        orders.restore(2)
    assert contents(orders) == {(3, 1.0): 1}


def test_a_view_is_not_restored(client: persist.Client) -> None:
    client.create_or_load("orders", **ORDERS).write([(1, 9.5)], time=0, seal=1).result()
    view = client.create_view("totals", "SELECT id, sum(amount) AS total FROM orders GROUP BY id")
    view.refresh()
    with pytest.raises(persist.InvalidUsage, match=r"'totals' is a view.*Restore its inputs, and refresh it"):
        client.load("totals").restore(0)


def test_a_token_restores_once(client: persist.Client) -> None:
    orders = client.create_or_load("orders", **ORDERS)
    orders.write([(1, 9.5)], time=1, seal=2).result()
    orders.overwrite([], time=2).result()
    orders.restore(1, token="back").result()
    orders.overwrite([(5, 5.0)]).result()
    orders.restore(1, token="back").result()
    assert contents(orders) == {(5, 5.0): 1}
    with pytest.raises(persist.errors.TokenReused):
        orders.restore(2, token="back").result()


def test_a_restore_reads_the_past_with_the_columns_of_today(client: persist.Client) -> None:
    orders = client.create_or_load("orders", **ORDERS)
    orders.write([(1, 9.5)], time=1, seal=2).result()
    orders.evolve(add={"note": pa.string()}, rename={"amount": "price"})
    orders.overwrite([(2, (3.0, "x"))], time=2).result()
    orders.restore(1).result()
    assert orders.snapshot().to_arrow().to_pylist() == [{"id": 1, "price": 9.5, "note": None}]


@pytest.mark.parametrize("resolve", ["seal", "background"])
def test_a_keyed_collection_is_restored_after_what_waits_is_resolved(client: persist.Client, resolve: Any) -> None:
    keyed = persist.Keyed(order_by=["v"], tombstone="gone", resolve=resolve)
    users = client.create_or_load("users", key={"id": int}, value={"v": int, "city": str, "gone": bool}, keyed=keyed)
    users.upsert([(1, (5, "Bern", False)), (2, (5, "Basel", False))], time=1, seal=2).result()
    users.upsert([(1, (6, "Biel", False)), (3, (6, "Brig", False))], time=2, seal=3).result()
    users.upsert([(1, (7, "Chur", False)), (2, (7, None, True))], time=3).result()  # They wait.
    users.restore(1, time=4).result()
    assert sorted(users.snapshot(3).rows()) == [(1, (7, "Chur", False)), (3, (6, "Brig", False))]
    assert sorted(users.snapshot().rows()) == sorted(users.snapshot(1).rows())
    users.restore(2).result()
    assert sorted(users.snapshot().rows()) == sorted(users.snapshot(2).rows())
    assert len(users) == 3


def test_rows_that_a_late_event_could_bring_back_are_not_taken_away(client: persist.Client) -> None:
    keyed = persist.Keyed(order_by=["v"])
    users = client.create_or_load("users", key={"id": int}, value={"v": int}, keyed=keyed)
    users.upsert([(1, 5)], time=1, seal=2).result()
    users.upsert([(2, 6)], time=2, seal=3).result()
    with pytest.raises(persist.InvalidUsage, match="late events could restore them"):
        users.restore(1).result()
    assert sorted(users.snapshot().rows()) == [(1, 5), (2, 6)]


def test_keys_that_were_deleted_come_back_and_those_that_came_are_deleted(client: persist.Client) -> None:
    users = client.create_or_load("users", key={"id": int}, value={"city": str}, keyed=persist.Keyed())
    users.upsert([(1, "Bern"), (2, "Basel")], time=1, seal=2).result()
    users.upsert([(1, None), (3, "Brig")], time=2, seal=3).result()
    users.restore(1, token="back").result()
    users.restore(1, token="back").result()
    assert sorted(users.snapshot().rows()) == [(1, "Bern"), (2, "Basel")]
    users.upsert([(2, None)]).result()
    assert sorted(users.snapshot().rows()) == [(1, "Bern")]
