"""What else keyed collections do: the way back, machines, maintenance, listens, order of calls, kinds of input."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import persist
from persist.core.log import kinds
from persist.events import InsertIfAbsent, PerKey
from tests.support.tuned import tuned
from tests.support.watched import WatchedBlob

KEY, VALUE = {"k": pa.int64()}, {"v": pa.string()}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[persist.Client]:
    with persist.open(tmp_path) as client:
        yield client


def keyed(client: persist.Client, name: str = "users", **declared: Any) -> persist.Collection:
    return client.create_or_load(name, key=KEY, value=VALUE, keyed=persist.Keyed(**declared))


def contents(collection: persist.Collection) -> dict[Any, Any]:
    return {row["k"]: row["v"] for row in collection.snapshot().to_arrow().to_pylist()}


@pytest.mark.parametrize(
    "events",
    [
        [{"k": 1, "v": "a", "_time": 0}, {"k": 2, "v": None, "_time": 0, "_deleted": True}],
        [{"k": 1, "v": "a", "_time": 0}, {"k": 2, "_time": 0, "_deleted": True}],
        {"k": [1, 2], "v": ["a", None], "_time": [0, 0], "_deleted": [None, True]},
        pa.table({"k": [1, 2], "v": ["a", None], "_time": [0, 0], "_deleted": [False, True]}),
        pd.DataFrame({"k": [1, 2], "v": ["a", None], "_time": [0, 0], "_deleted": [False, True]}),
        pl.DataFrame({"k": [1, 2], "v": ["a", None], "_time": [0, 0], "_deleted": [False, True]}),
        [(1, "a", 0), (2, None, 0)],
    ],
    ids=["dicts", "a deletion of a key", "columns", "arrow", "pandas", "polars", "tuples"],
)
def test_events_come_in_any_form(client: persist.Client, events: Any) -> None:
    users = keyed(client)
    users.upsert([(2, "old")], time=0).result()
    users.upsert(events, seal=1).result()
    assert contents(users) == {1: "a"}


def test_events_may_be_a_stream_and_have_a_time_of_their_own(client: persist.Client) -> None:
    users = keyed(client)
    batches = [pa.record_batch({"k": [n, n + 1], "v": [str(n), str(n)], "at": [n, n]}) for n in range(5)]
    users.upsert(pa.RecordBatchReader.from_batches(batches[0].schema, iter(batches)), time="at", seal=9).result()
    assert contents(users) == {0: "0", 1: "1", 2: "2", 3: "3", 4: "4", 5: "4"}
    assert users.snapshot(2).count() == 4
    users.upsert([(0, "x", 9), (0, "z", 11), (0, "y", 10)], seal=12).result()
    assert contents(users)[0] == "z"


def test_maintenance_resolves_what_a_background_policy_left(tmp_path: Path) -> None:
    with persist.open(tmp_path, settings=persist.Settings(background=False)) as client:
        users = keyed(client, resolve="background")
        users.upsert([(k, "a") for k in range(5000)], time=0, seal=1).result()
        users.upsert([(k, "b", 2) for k in range(2500)], seal=2).result()
        before = contents(users)
        assert len(users.handle.contents().pending) == 2
        client.maintain()
        left = users.handle.contents()
        assert (len(left.pending), left.resolved) == (1, 2)
        users.seal(3).result()
        assert contents(users) != before
        client.maintain()
        assert users.handle.contents().pending == {}
        assert sum(v == "b" for v in contents(users).values()) == 2500
        client.gc()
        assert client.fsck().is_clean


@pytest.mark.parametrize("resolve", ["seal", "background"])
def test_listens_and_subscriptions_see_resolved_changes(client: persist.Client, resolve: Any) -> None:
    users = keyed(client, resolve=resolve)
    users.upsert([(1, "a", 0)], seal=1).result()
    with users.subscribe(as_of=0) as subscription:
        assert next(subscription).updates.num_rows == 1
        users.upsert([(1, "b", 1), (2, "c", 1)], seal=2).result()
        found = next(subscription).updates.to_pylist()
    assert [(row["k"], row["v"], row["_diff"]) for row in found] == [(1, "a", -1), (1, "b", 1), (2, "c", 1)]


@pytest.mark.parametrize("resolve", ["seal", "background"])
def test_a_machine_in_the_box_is_known_to_who_opens_the_collection(
    client: persist.Client, tmp_path: Path, resolve: Any
) -> None:
    users = keyed(client, machine=InsertIfAbsent(), resolve=resolve)
    with pytest.raises(persist.InvalidUsage, match="transition"):
        users.upsert([(1, "a", 0)])
    users.transition([(1, "a", 0), (1, "b", 1)]).result()
    with persist.open(tmp_path) as other:
        other.load("users").seal(2).result()
        assert contents(other.load("users")) == {1: "a"}
    with pytest.raises(persist.errors.SchemaMismatch, match="machine"):
        keyed(client, resolve=resolve)


def test_a_machine_of_ones_own_has_to_be_given_and_another_one_is_refused(
    client: persist.Client, tmp_path: Path
) -> None:
    def longest(key: Any, present: Any, events: Any) -> Any:
        raise AssertionError("not called")

    machine = PerKey(longest, name="longest", version=1)
    users = keyed(client, machine=machine)
    users.transition([(1, "a", 0)]).result()
    with persist.open(tmp_path) as other:
        theirs = other.load("users")
        with pytest.raises(persist.errors.SchemaMismatch, match="longest"):
            theirs.seal(1).result()
        with pytest.raises(persist.errors.SchemaMismatch, match="machine"):
            keyed(other, machine=PerKey(longest, name="longest", version=2))
    users.drop().result()


def test_late_data_is_sealed_to_where_lateness_ends(client: persist.Client) -> None:
    users = keyed(client)
    users.upsert([(1, "a", 3)]).result()
    users.seal_to(3 - 5).result()
    assert users.upper.time == 0
    users.seal_to(4).result()
    users.seal_to(2).result()
    assert users.upper.time == 4


def test_what_is_pending_is_told_and_destroyed_with_the_collection(client: persist.Client) -> None:
    users = keyed(client)
    users.upsert([(k, "a" * 50) for k in range(5000)], time=3).result()
    assert users.unsealed is not None
    assert users.unsealed.updates == 5000
    assert "not sealed" in repr(users)
    users.drop().result()
    settings = tuned(grace_s=0, orphan_grace_s=0)
    with persist.open(client.url, settings=settings) as other:
        assert other.gc().parts == 1


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_an_examination_finds_a_key_with_two_values(client: persist.Client, is_forgotten: bool) -> None:
    users = keyed(client)
    users.upsert([(k, "a", 0) for k in range(9)], seal=1).result()
    users.upsert([(2, "b", 1), (3, None, 1)], seal=2).result()
    if is_forgotten:
        users.allow_compaction(1).result()
        users.compact()
    assert client.fsck().is_clean
    wrong = pa.table({"k": [4], "v": ["other"], "_time": [2], "_diff": [1]}, schema=users.schema.arrow)
    parts = client.engine.writer("a test").part_writer().store_parts(users.id, wrong, users.schema, 0)
    step = kinds.Resolve(users.id, (2,), (3,), (), tuple(parts))
    client.engine.submit("a test", [step], {users.id: "users"}).result()
    problems = client.fsck().problems
    assert [(each.kind, "(4,)" in each.what) for each in problems] == [("rule", True)]


def test_garbage_collection_keeps_what_is_pending(tmp_path: Path) -> None:
    settings = tuned(grace_s=0, orphan_grace_s=0, background=False)
    with persist.open(tmp_path, settings=settings) as client:
        users = keyed(client)
        users.upsert([(k, "a" * 50) for k in range(5000)], time=3).result()
        assert users.handle.contents().stored_parts[0].blob
        client.gc()
        users.seal(4).result()
        client.gc()
        assert users.snapshot().count() == 5000
        assert client.fsck().is_clean
    with persist.open(tmp_path, settings=settings) as client:
        assert client.load("users").snapshot().count() == 5000


def test_keys_may_be_nested(client: persist.Client) -> None:
    users = client.create_or_load("n", key={"k": pa.list_(pa.int64())}, value=VALUE, keyed=persist.Keyed())
    # Of what is looked up last, one part holds two times, so that its column is read, and another one does not.
    users.upsert([([0], "a", 0), ([2], "b", 1)], seal=2).result()
    users.upsert([([1], "a", 3)], seal=4).result()
    users.upsert([([2], "b", 5)], seal=6).result()
    users.upsert([([1], "b", 7), ([2], None, 6)], seal=8).result()
    assert [*users.snapshot().rows()] == [([0], "a"), ([1], "b")]
    assert [*users.upserts(4, 8)] == [([2], None, 6), ([1], "b", 7)]


def test_what_waits_is_fetched_once_however_many_slices_it_is_resolved_in() -> None:
    store, rows, batches = WatchedBlob(persist.MemoryBlob()), 20_000, 9
    quiet, chance = persist.Settings(background=False), np.random.default_rng(1)
    with persist.open(store, settings=quiet) as client:
        users = client.create_or_load("n", key=KEY, value={"v": pa.int64()}, keyed=persist.Keyed())
        for time in range(batches):
            values = chance.integers(0, 2**62, rows)
            users.upsert(pa.table({"k": chance.permutation(rows), "v": values}), time=time).result()
    # All of it takes 7 MB, and a slice may take one or two.
    with persist.open(store, settings=persist.Settings(background=False, memory_budget=16 << 20)) as client:
        users = client.load("n")
        store.asked.clear()
        users.seal(batches).result()
        asked = [key for operation, key in store.asked if operation == "get" and key.startswith("part/")]
        assert len(asked) == len({*asked}) == batches
        assert sum(part.rows for part in users.handle.contents().parts) == rows * (2 * batches - 1)
        assert len(users.handle.contents().parts) > 3, "one at least for each slice"
