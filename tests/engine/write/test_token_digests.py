"""A token stands for the data that it was first used with: the same data again is done, other data is refused."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import persist
from persist.blob.protocol import MemoryBlob
from persist.engine.write.write_options import compute_delete_digest, compute_overwrite_digest, format_filter

ROWS = [(1, "a"), (2, "b")]


@pytest.fixture
def store() -> MemoryBlob:
    return MemoryBlob()


@pytest.fixture
def client(store: MemoryBlob) -> Iterator[persist.Client]:
    with persist.open(store, settings=persist.Settings(background=False)) as client:
        yield client


@pytest.fixture
def orders(client: persist.Client) -> persist.Collection:
    return client.create_or_load("orders", key={"k": pa.int64()}, value={"v": pa.string()})


def held(orders: persist.Collection) -> list[Any]:
    return sorted(orders.snapshot(orders.upper.time - 1).rows()) if orders.upper.time else []


def again(orders: persist.Collection) -> dict[str, Any]:
    """The same two updates in other forms, orders and batches; one of them written as a sum."""
    table = pa.table({"k": [2, 1, 1, 1], "v": ["b", "a", "a", "a"], "_time": [5] * 4, "_diff": [1, -1, 1, 1]})
    return {
        "tuples": [((2, "b"), 5, 1), ((1, "a"), 5, 1)],
        "table": table,
        "stream": iter(table.slice(at, 1) for at in range(4)),
        "dicts": iter([{"v": "b", "k": 2, "_time": 5, "_diff": 1}, {"v": "a", "k": 1, "_time": 5, "_diff": 1}]),
        "pandas": table.to_pandas(),
    }


@pytest.mark.parametrize("form", ["tuples", "table", "stream", "dicts", "pandas"])
def test_the_same_updates_in_another_form_are_a_repetition(orders: persist.Collection, form: str) -> None:
    orders.write(ROWS, time=5, seal=6, token="t").result()
    orders.write(again(orders)[form], token="t", seal=6).result()
    assert held(orders) == ROWS


OTHERS: dict[str, Any] = {
    "a value": [((1, "a"), 5, 1), ((2, "B"), 5, 1)],
    "a key": [((1, "a"), 5, 1), ((3, "b"), 5, 1)],
    "a time": [((1, "a"), 5, 1), ((2, "b"), 6, 1)],
    "a diff": [((1, "a"), 5, 1), ((2, "b"), 5, 2)],
    "less": [((1, "a"), 5, 1)],
    "nothing": [],
    "NULL": [((1, "a"), 5, 1), ((2, None), 5, 1)],
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_other_updates_under_a_token_are_refused_and_nothing_is_written(
    client: persist.Client, orders: persist.Collection, other: Any
) -> None:
    orders.write(ROWS, time=5, token="t").result()
    before = client.metrics().groups["log"]["seqno"]
    with pytest.raises(
        persist.errors.TokenReused, match=r"the token 't' was used before, .* to the collection 'orders'"
    ):
        orders.write(other, token="t").result()
    assert client.metrics().groups["log"]["seqno"] == before
    orders.seal(6).result()
    assert held(orders) == ROWS


def test_other_updates_under_a_token_are_refused_in_the_same_group_of_commits(orders: persist.Collection) -> None:
    futures = [orders.write([(n, "x")], time=5, token="t") for n in (1, 1, 2)]
    assert futures[0].result() == futures[1].result()
    with pytest.raises(persist.errors.TokenReused):
        futures[2].result()


def test_a_large_write_under_a_used_token_leaves_no_blob(orders: persist.Collection, store: MemoryBlob) -> None:
    table = pa.table({"k": np.arange(50_000), "v": ["some text"] * 50_000})
    orders.write(table, time=5, seal=6, token="t").result()
    blobs = {entry.key for entry in store.list("part/")}
    pieces = (table.slice(at, 7_000) for at in reversed(range(0, 50_000, 7_000)))
    orders.write(pieces, time=5, token="t").result()
    with pytest.raises(persist.errors.TokenReused):
        orders.write(table.slice(1), time=5, token="t").result()
    assert {entry.key for entry in store.list("part/")} == blobs


def test_another_client_knows_what_a_token_was_used_for(store: MemoryBlob, orders: persist.Collection) -> None:
    orders.write(ROWS, time=5, token="t").result()
    with persist.open(store) as other:
        other.load("orders").write(ROWS, time=5, token="t").result()
        with pytest.raises(persist.errors.TokenReused):
            other.load("orders").write(ROWS[:1], time=5, token="t").result()


@pytest.mark.parametrize("where", [None, pc.field("k") < 9])
def test_an_overwrite_that_was_done_is_done_when_it_is_tried_again(
    orders: persist.Collection, store: MemoryBlob, where: Any
) -> None:
    orders.write([(1, "a"), (7, "z")], time=1, seal=2).result()
    orders.overwrite(ROWS, time=5, where=where, token="t").result()
    orders.write([(8, "later")], time=6, seal=7).result()
    blobs = {entry.key for entry in store.list("part/")}
    orders.overwrite(ROWS[::-1], time=5, where=where, token="t").result()
    assert held(orders) == [*ROWS, (8, "later")]
    for time, rows, filter in ((5, ROWS[:1], where), (6, ROWS, where), (5, ROWS, pc.field("k") < 10)):
        with pytest.raises(persist.errors.TokenReused):
            orders.overwrite(rows, time=time, where=filter, token="t").result()
    with pytest.raises(persist.errors.TokenReused):
        orders.write(ROWS, time=5, token="t").result()
    assert held(orders) == [*ROWS, (8, "later")]
    assert {entry.key for entry in store.list("part/")} == blobs


def test_an_overwrite_without_its_token_is_refused_as_before(orders: persist.Collection) -> None:
    orders.overwrite(ROWS, time=5, token="t").result()
    with pytest.raises(persist.errors.UpdateNotBeyondUpper):
        orders.overwrite(ROWS, time=5, token="another").result()


def test_a_deletion_that_was_done_is_done_when_it_is_tried_again(orders: persist.Collection) -> None:
    orders.write([*ROWS, (3, "c")], time=1, seal=2).result()
    orders.delete([1, 2], time=5, token="keys").result()
    orders.delete(where=pc.field("v") == "c", time=6, token="filter").result()
    orders.write(ROWS, time=8, seal=9).result()
    orders.delete(pa.array([2, 1, 2]), time=5, token="keys").result()
    orders.delete(where=pc.field("v") == "c", time=6, token="filter").result()
    assert held(orders) == ROWS
    for what, token in (([1], "keys"), (pc.field("v") == "b", "filter"), ([1, 2], "filter")):
        with pytest.raises(persist.errors.TokenReused):
            by: dict[str, Any] = {"keys": what} if isinstance(what, list) else {"where": what}
            orders.delete(**by, time=5 if token == "keys" else 6, token=token).result()


def test_a_commit_to_several_collections_is_compared_for_each(
    client: persist.Client, orders: persist.Collection
) -> None:
    items = client.create_or_load("items", key={"k": pa.int64()})
    orders.write(ROWS, time=1, seal=2).result()

    def commit(rows: Any, keys: Any) -> None:
        with client.multi_write(token="both") as multi:
            multi.overwrite(orders, rows, time=3)
            multi.write(items, [(key, None) for key in keys], time=3)
            multi.write(orders, [(9, "i")], time=4)
            multi.seal(orders, 5)

    commit(ROWS[1:], [7, 8])
    commit(ROWS[1:], [8, 7])
    for rows, keys in ((ROWS, [7, 8]), (ROWS[1:], [7])):
        with pytest.raises(persist.errors.TokenReused):
            commit(rows, keys)
    assert held(orders) == [(2, "b"), (9, "i")]
    items.seal(4).result()
    assert held(items) == [(7, None), (8, None)]


def test_other_data_is_what_is_said_first_of_a_token_that_only_some_collections_know(
    client: persist.Client, orders: persist.Collection
) -> None:
    items = client.create_or_load("items", key={"k": pa.int64()})
    orders.write(ROWS, time=1, token="t").result()

    def commit(rows: Any) -> None:
        with client.multi_write(token="t") as multi:
            multi.write(items, [(7, None)], time=1)
            multi.write(orders, rows, time=1)

    with pytest.raises(persist.InvalidUsage, match="not a repetition") as caught:
        commit(ROWS)
    assert not isinstance(caught.value, persist.errors.TokenReused)
    with pytest.raises(persist.errors.TokenReused, match="to the collection 'orders'"):
        commit(ROWS[:1])
    items.seal(2).result()
    assert held(items) == []


def test_a_tiny_write_without_a_token_is_not_made_a_table_for_a_digest(
    orders: persist.Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("it costs more than all else that a tiny write does")

    monkeypatch.setattr("persist.engine.write.write_steps.gather_updates", refuse)
    orders.write([((1, "a"), 0, 1)]).result()
    with pytest.raises(AssertionError, match="costs more"):
        orders.write([((1, "a"), 0, 1)], token="t")


LONG = [*range(100)]


def one_of(keys: list[int]) -> pc.Expression:
    return pc.field("k").isin(keys)


def test_a_filter_with_many_values_is_compared_with_all_of_them(orders: persist.Collection) -> None:
    orders.write([*ROWS, (50, "kept")], time=1, seal=2).result()
    other = [*LONG[:40], 1000, *LONG[41:]]
    orders.overwrite(ROWS, time=5, where=one_of(LONG), token="over").result()
    orders.delete(where=one_of(LONG[:60]), time=6, token="gone").result()
    orders.overwrite(ROWS, time=5, where=one_of([*LONG]), token="over").result()
    orders.delete(where=one_of(LONG[:60]), time=6, token="gone").result()
    with pytest.raises(persist.errors.TokenReused):
        orders.overwrite(ROWS, time=5, where=one_of(other), token="over").result()
    with pytest.raises(persist.errors.TokenReused):
        orders.delete(where=one_of([*LONG[:30], 1000, *LONG[31:60]]), time=6, token="gone").result()


def test_digests_of_overwrites_and_deletions_are_the_same_in_all_releases() -> None:
    assert [compute_overwrite_digest(7, 5), compute_overwrite_digest(7, None, "x")] == [
        10286090534985745305,
        10073244390751034933,
    ]
    assert [compute_delete_digest(7, 5), compute_delete_digest(0, None, "x")] == [
        16207535398200912420,
        2942538914070632573,
    ]


@pytest.mark.parametrize("call", ["overwrite", "delete"])
def test_a_filter_in_another_form_is_refused_and_never_applied_twice(orders: persist.Collection, call: str) -> None:
    orders.write([*ROWS, (50, "kept")], time=1, seal=2).result()

    def repeat(where: pc.Expression) -> None:
        if call == "overwrite":
            orders.overwrite([(3, "c")], time=5, where=where, token="t").result()
        else:
            orders.delete(where=where, time=5, token="t").result()

    repeat(pc.field("k") < 9)
    orders.write([(4, "later")], time=6, seal=7).result()
    before = held(orders)
    with pytest.raises(persist.errors.TokenReused):
        repeat(pc.scalar(9) > pc.field("k"))
    assert held(orders) == before
    repeat(pc.field("k") < 9)
    assert held(orders) == before


def test_a_filter_has_the_digest_that_it_had_in_all_releases() -> None:
    """These digests are stored with tokens, so no release of this package or of Arrow may change them."""
    filters = {
        "k in 0 … 99 and v = 'a'": one_of(LONG) & (pc.field("v") == "a"),
        "k > 5": pc.field("k") > 5,
        "a.b is NULL or NaN": pc.field(("a", "b")).is_null(nan_is_null=True),
        "v begins with x, or not k = 3": pc.starts_with(pc.field("v"), "x") | ~(pc.field("k").cast(pa.int32()) == 3),
        "t at a moment": pc.field("t") == pa.scalar(1_600_000_000_000_000, pa.timestamp("us", "UTC")),
        "f among NaN and -0.0": pc.field("f").isin([float("nan"), -0.0, None]),
    }
    golden = {
        "k in 0 … 99 and v = 'a'": "5055f26a48543cdb",
        "k > 5": "f3aeab154d8af48b",
        "a.b is NULL or NaN": "c5445b72eb8ca816",
        "v begins with x, or not k = 3": "e05962532def9a17",
        "t at a moment": "7f40d72f3f25b63b",
        "f among NaN and -0.0": "fea649b728f24405",
    }
    assert {
        name: f"{compute_overwrite_digest(0, 7, format_filter(each, 't')):x}" for name, each in filters.items()
    } == golden


def test_a_condition_in_text_has_the_digest_of_the_same_filter(orders: persist.Collection) -> None:
    orders.write(ROWS, time=1, seal=2).result()
    orders.delete(where="k > 1 and v <> 'b'", token="gone").result()
    orders.delete(where=(pc.field("k") > 1) & (pc.field("v") != "b"), token="gone").result()
    with pytest.raises(persist.errors.TokenReused):
        orders.delete(where="k > 2 and v <> 'b'", token="gone").result()
