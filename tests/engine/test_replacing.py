"""Overwrites, upserts and deletes of every collection, keyed or not, against a model of a few lines."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

import persist
from persist import errors
from persist.events import AppendDistinct
from tests.support.tiers import examples

KEYED: dict[str, persist.Keyed | None] = {
    "plain": None,
    "keyed": persist.Keyed(),
    "keyed, in the background": persist.Keyed(resolve="background"),
}


def made(client: persist.Client, keyed: persist.Keyed | None = None, name: str = "orders") -> persist.Collection:
    return client.create_or_load(name, key={"id": int}, value={"amount": float}, keyed=keyed)


def held(collection: persist.Collection, as_of: int | None = None) -> list[Any]:
    return sorted(collection.snapshot(as_of).rows())


@pytest.mark.parametrize("keyed", KEYED.values(), ids=KEYED)
def test_every_collection_takes_upserts_overwrites_and_deletes(
    client: persist.Client, keyed: persist.Keyed | None
) -> None:
    orders = made(client, keyed)
    orders.upsert([(1, 1.0), (2, 2.0)]).result()
    orders.upsert([(2, 3.0), (3, 4.0), (1, None)]).result()
    assert held(orders) == [(2, 3.0), (3, 4.0)]
    orders.overwrite([(3, 4.0), (5, 5.0), (6, 1.0)]).result()
    assert held(orders) == [(3, 4.0), (5, 5.0), (6, 1.0)]
    before = orders.upper
    orders.delete(where="amount < 5").result()
    assert held(orders) == [(5, 5.0)]
    changes = sorted((row, diff) for row, _, diff in orders.changes(before).updates())
    assert changes == [((3, 4.0), -1), ((6, 1.0), -1)], "what stays is not touched"
    orders.overwrite([(5, 7.0)], where="amount > 4").result()
    assert held(orders) == [(5, 7.0)]
    orders.delete([5]).result()
    assert held(orders) == []
    last = orders.upper.time
    assert last is not None
    orders.overwrite([(1, 1.0), (2, 2.0)], time=last + 5).result()
    orders.upsert([(1, 2.0)], time=last + 6, seal=last + 9).result()
    orders.delete(where="id = 2", time=last + 10).result()
    assert [held(orders, last + after) for after in (5, 6, 10)] == [
        [(1, 1.0), (2, 2.0)],
        [(1, 2.0), (2, 2.0)],
        [(1, 2.0)],
    ]
    assert orders.upper == persist.Antichain(last + 11)


@pytest.mark.parametrize("keyed", KEYED.values(), ids=KEYED)
def test_what_was_done_under_a_token_is_not_done_again(client: persist.Client, keyed: persist.Keyed | None) -> None:
    orders = made(client, keyed)
    for _ in range(2):
        orders.overwrite([(1, 1.0), (2, 2.0)], token="load").result()
    orders.upsert([(1, 5.0)], token="one").result()
    orders.delete(where="id = 2", token="two").result()
    upper = orders.upper
    orders.overwrite([(1, 1.0), (2, 2.0)], token="load").result()
    orders.upsert([(1, 5.0)], token="one").result()
    orders.delete(where="id = 2", token="two").result()
    assert (held(orders), orders.upper) == ([(1, 5.0)], upper)
    with pytest.raises(errors.TokenReused):
        orders.overwrite([(1, 1.0)], token="load").result()
    with pytest.raises(errors.TokenReused):
        orders.upsert([(1, 6.0)], token="one").result()
    with pytest.raises(errors.TokenReused):
        orders.delete(where="id = 3", token="two").result()


@pytest.mark.parametrize("resolve", ["seal", "background"])
def test_an_overwrite_of_a_keyed_collection_comes_after_the_events_that_wait(
    client: persist.Client, resolve: Any
) -> None:
    orders = made(client, persist.Keyed(resolve=resolve))
    orders.upsert([(1, 1.0, 2), (2, 2.0, 4), (3, 3.0, 9)]).result()
    orders.overwrite([(2, 5.0)], time=5).result()
    orders.seal(10).result()
    assert [held(orders, time) for time in (2, 4, 5, 9)] == [
        [(1, 1.0)],
        [(1, 1.0), (2, 2.0)],
        [(2, 5.0)],
        [(2, 5.0), (3, 3.0)],
    ]


def test_an_upsert_takes_the_place_of_all_rows_of_a_key(client: persist.Client) -> None:
    orders = made(client)
    orders.write([(1, 1.0), (1, 1.0), (1, 2.0), (2, 2.0)], time=0, seal=1).result()
    orders.write([((3, 3.0), 1, -1)], seal=2).result()
    orders.upsert([(1, 2.0), (3, 1.0)], time=3).result()
    assert held(orders) == [(1, 2.0), (2, 2.0), (3, 1.0)]
    rows = pa.table({"id": [1, 1, 2], "amount": [5.0, 6.0, 7.0], "at": [5, 7, 6], "_deleted": [False, False, True]})
    orders.upsert(rows, time="at").result()
    assert [held(orders, time) for time in (4, 5, 6, 7)] == [
        [(1, 2.0), (2, 2.0), (3, 1.0)],
        [(1, 5.0), (2, 2.0), (3, 1.0)],
        [(1, 5.0), (3, 1.0)],
        [(1, 6.0), (3, 1.0)],
    ]
    assert orders.upper == persist.Antichain(8)


def test_an_upsert_that_cannot_be_says_why(client: persist.Client) -> None:
    orders, flags = made(client), client.create_or_load("flags", key={"id": int})
    with pytest.raises(persist.InvalidUsage, match="'flags' has no value columns"):
        flags.upsert([(1, ())])
    with pytest.raises(errors.DuplicateKeys, match=r"'orders' repeat keys, first of all 1, and nothing") as raised:
        orders.upsert([(1, 1.0), (2, 2.0), (1, 2.0)])
    assert raised.value.keys == [(1,)]
    orders.upsert([(1, 1.0), (1, 1.0)]).result()
    with pytest.raises(persist.InvalidUsage, match='late="collect" is for keyed collections'):
        orders.upsert([(1, 1.0)], late="collect")
    with pytest.raises(persist.InvalidUsage, match="Leave seal out, or give time="):
        orders.upsert([(1, 1.0)], seal=9)
    with pytest.raises(persist.errors.UpdateNotBeyondUpper):
        orders.upsert([(1, 1.0)], time=0)
    with pytest.raises(persist.errors.InvalidUpdate, match="NULL in the key column 'id'"):
        orders.upsert([(None, 1.0)])
    orders.write([(1, 1.0)], time=9).result()
    with pytest.raises(persist.errors.UpdatesBeyondUpper):
        orders.upsert([(1, 1.0)])
    assert held(orders) == [(1, 1.0)]


def test_an_overwrite_that_repeats_a_key_is_refused_with_the_first_ten(client: persist.Client) -> None:
    orders, users = made(client), made(client, persist.Keyed(), "users")
    rows = [(key, float(n)) for key in range(30) for n in range(1 + key % 2)]
    for collection in (orders, users):
        with pytest.raises(errors.DuplicateKeys, match="repeat keys, first of all 1, 3, 5") as raised:
            collection.overwrite(rows).result()
        assert raised.value.keys == [(key,) for key in range(1, 20, 2)]
        assert collection.upper == persist.Antichain(0), "nothing was committed"
    orders.overwrite(rows, multiset=True).result()
    assert held(orders) == rows
    with pytest.raises(persist.InvalidUsage, match="holds one value for each key"):
        users.overwrite(rows, multiset=True)


def test_an_overwrite_of_a_stream_that_repeats_a_key_is_refused() -> None:
    with persist.open(persist.MemoryBlob(), settings=persist.Settings(memory_budget=32 << 20)) as client:
        orders = made(client)
        size = 60_000
        batches = [
            pa.table({"id": np.arange(start, start + size), "amount": np.ones(size)})
            for start in (*range(0, 4 * size, size), 59_999)
        ]
        with pytest.raises(errors.DuplicateKeys) as raised:
            orders.overwrite(iter(batches)).result()
        assert raised.value.keys == [(key,) for key in range(59_999, 60_009)]


def test_an_overwrite_gives_no_key_a_second_row_beside_its_condition(client: persist.Client) -> None:
    orders = made(client)
    orders.write([(1, 1.0), (2, 5.0), (3, None)], time=0, seal=1).result()
    for rows in ([(1, 6.0)], [(2, 7.0), (3, 8.0)]):
        with pytest.raises(errors.DuplicateKeys, match=r"keys of new rows, first of all \d: these keys would have two"):
            orders.overwrite(rows, where="amount > 4").result()
    with pytest.raises(errors.DuplicateKeys), client.multi_write() as multi:
        multi.overwrite(orders, [(1, 6.0)], where="amount > 4")
    assert orders.snapshot().count() == 3
    orders.overwrite([(2, 7.0), (4, 8.0)], where="amount > 4").result()
    orders.overwrite([(1, 2.0)], where="id = 1").result()
    assert held(orders) == [(1, 2.0), (2, 7.0), (3, None), (4, 8.0)]
    orders.overwrite([(1, 9.0)], where="amount > 4", multiset=True).result()
    assert held(orders) == [(1, 2.0), (1, 9.0), (3, None)]


def test_what_an_overwrite_deletes_is_not_brought_back_by_a_late_row(client: persist.Client) -> None:
    key, value = {"id": int}, {"name": str, "at": int, "gone": bool}
    keyed = persist.Keyed(order_by=["at"], tombstone="gone")
    users = client.create_or_load("users", key=key, value=value, keyed=keyed)
    users.upsert([(1, ("a", 5, False)), (2, ("b", 5, False)), (3, ("c", 5, False))]).result()
    users.overwrite([(1, ("z", 3, False)), (4, ("d", 1, False))]).result()
    users.delete(where="name = 'd'").result()
    assert held(users) == [(1, ("z", 3, False))]
    users.upsert([(2, ("late", 4, False)), (3, ("new", 6, False)), (1, ("newer", 4, False)), (4, ("d", 0, False))])
    assert held(users) == [(1, ("newer", 4, False)), (3, ("new", 6, False))]
    users.overwrite([(2, ("back", 1, False))]).result()
    assert held(users) == [(2, ("back", 1, False))]
    assert not [*client.fsck().problems]
    with pytest.raises(persist.InvalidUsage, match="is a tombstone by its column 'gone'"):
        users.overwrite([(2, ("b", 9, True))]).result()


def test_what_a_keyed_collection_cannot_do_is_said(client: persist.Client) -> None:
    value = {"name": str, "at": int}
    users = client.create_or_load("users", key={"id": int}, value=value, keyed=persist.Keyed(order_by=["at"]))
    users.upsert([(1, ("a", 5))]).result()
    with pytest.raises(persist.InvalidUsage, match="late events could restore them"):
        users.delete(where="id = 1").result()
    users.overwrite([(1, ("b", 1))]).result()
    assert held(users) == [(1, ("b", 1))]
    sessions = persist.Keyed(machine=AppendDistinct())
    tags = client.create_or_load("tags", key={"id": int}, value={"tag": str}, keyed=sessions)
    with pytest.raises(persist.InvalidUsage, match=r"overwrite is refused\. Use transition\(\)"):
        tags.overwrite([(1, "a")])
    with pytest.raises(persist.InvalidUsage, match=r"Use transition\(\)"):
        tags.delete(where="id = 1")
    with pytest.raises(persist.errors.UpdateNotBeyondUpper):
        users.overwrite([(1, ("b", 1))], time=0).result()


ROWS = st.dictionaries(st.integers(0, 4), st.integers(0, 3), max_size=4)
STEPS = st.one_of(
    st.tuples(st.just("overwrite"), ROWS),
    st.tuples(st.just("upsert"), st.dictionaries(st.integers(0, 4), st.none() | st.integers(0, 3), max_size=4)),
    st.tuples(st.just("delete"), st.sets(st.integers(0, 4), max_size=3)),
    st.tuples(st.just("delete where"), st.integers(0, 3)),
    st.tuples(st.just("overwrite where"), ROWS),
)


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize("keyed", KEYED.values(), ids=KEYED)
@settings(max_examples=examples(40))
@given(steps=st.lists(st.tuples(STEPS, st.integers(0, 1), st.none() | st.integers(0, 2)), max_size=8))
def test_two_clients_agree_with_the_model(keyed: persist.Keyed | None, steps: list[Any]) -> None:
    blob, model, seen = persist.MemoryBlob(), dict[int, float](), list[tuple[int, list[Any]]]()
    with persist.open(blob) as first, persist.open(blob) as second:
        collections = [made(first, keyed), made(second, keyed)]
        for (kind, given_rows), who, gap in steps:
            collection = collections[who]
            time = None if gap is None else (collection.upper.time or 0) + gap
            if kind == "overwrite":
                model = {key: float(value) for key, value in given_rows.items()}
                future = collection.overwrite([*model.items()], time=time)
            elif kind == "upsert":
                model |= {key: None if value is None else float(value) for key, value in given_rows.items()}
                events = [(key, None if value is None else float(value)) for key, value in given_rows.items()]
                future = collection.upsert(events, time=time)
            elif kind == "delete":
                model = {key: value for key, value in model.items() if key not in given_rows}
                future = collection.delete([*given_rows], time=time)
            elif kind == "delete where":
                model = {key: value for key, value in model.items() if value != given_rows}
                future = collection.delete(where=f"amount = {given_rows}", time=time)
            else:
                rows = {key: float(value) for key, value in given_rows.items() if value > 1}
                if keyed is None and any(model.get(key, 2.0) <= 1 for key in rows):
                    with pytest.raises(errors.DuplicateKeys, match="would have two rows"):
                        collection.overwrite([*rows.items()], time=time, where="amount > 1").result()
                    continue
                model = {key: value for key, value in model.items() if value <= 1} | rows
                future = collection.overwrite([*rows.items()], time=time, where="amount > 1")
            model = {key: value for key, value in model.items() if value is not None}
            future.result()
            if time is not None:
                collection.seal(max(time + 1, collection.upper.time or 0)).result()
            upper = collection.upper.time or 0
            if upper:
                seen.append((upper - 1, sorted(model.items())))
        for time, expected in seen:
            for collection in collections:
                assert held(collection, time) == expected
        assert not first.fsck().problems
