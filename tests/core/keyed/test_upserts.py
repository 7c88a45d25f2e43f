"""Upserts as users see them: what events become, in any order of arrival, and what is refused."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.engine.read.keyed import resolution as resolving
from persist.events import AppendDistinct
from tests.support.reads import rows_with
from tests.support.resolving import resolve_events

FRANK = [("frank", "mcsherry"), ("frank", "zappa"), ("frank", None), ("frank", "oz"), ("frank", "oz"), ("frank", None)]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[persist.Client]:
    with persist.open(tmp_path) as client:
        yield client


def updates(collection: persist.Collection, lower: int = 0) -> list[Any]:
    return [*collection.changes(lower).updates()]


@pytest.mark.parametrize("resolve", ["seal", "background"])
@pytest.mark.parametrize("order", [range(6), range(5, -1, -1), [3, 1, 5, 0, 4, 2]])
def test_frank_becomes_what_he_is_in_whatever_order_his_events_arrive(
    client: persist.Client, order: Any, resolve: Any
) -> None:
    people = client.create_or_load(
        "people", key={"first": pa.string()}, value={"last": pa.string()}, keyed=persist.Keyed(resolve=resolve)
    )
    for time in order:
        people.upsert([(*FRANK[time], time)])
    people.seal(6).result()
    assert updates(people) == [
        (("frank", "mcsherry"), 0, 1),
        (("frank", "mcsherry"), 1, -1),
        (("frank", "zappa"), 1, 1),
        (("frank", "zappa"), 2, -1),
        (("frank", "oz"), 3, 1),
        (("frank", "oz"), 5, -1),
    ]
    assert rows_with(people.snapshot(4), ["frank"]).to_pylist() == [{"first": "frank", "last": "oz"}]
    assert people.snapshot(2).count() == 0
    assert client.fsck().is_clean


def test_compaction_resolves_what_waits_and_only_due_work_does_not(client: persist.Client) -> None:
    users = keyed(client, order_by=["mark"], tombstone="gone", resolve="background")
    users.upsert([(1, (5, "new", False))], time=0, seal=1).result()
    users.compact(only_due=True)
    assert users.handle.contents().resolved == persist.Antichain(0)
    users.compact()
    assert users.handle.contents().resolved == persist.Antichain(1)
    assert rows(users.snapshot()) == [(1, 5, "new")]


def keyed(client: persist.Client, **declared: Any) -> persist.Collection:
    fields = {"mark": pa.int64(), "v": pa.string(), "gone": pa.bool_()}
    return client.create_or_load("users", key={"k": pa.int64()}, value=fields, keyed=persist.Keyed(**declared))


def rows(snapshot: Any) -> list[tuple[Any, ...]]:
    return sorted((row["k"], row["mark"], row["v"]) for row in snapshot.to_arrow().to_pylist())


@pytest.mark.parametrize("resolve", ["seal", "background"])
def test_rule_18_a_late_row_never_brings_back_what_was_deleted(client: persist.Client, resolve: Any) -> None:
    users = keyed(client, order_by=["mark"], tombstone="gone", resolve=resolve)
    users.upsert([(1, (5, "new", False))], time=0, seal=1).result()
    users.upsert([(1, (9, None, True))], time=1, seal=2).result()
    users.upsert([(1, (7, "late", False)), (2, (1, "other", None))], time=2, seal=3).result()
    assert rows(users.snapshot(0)) == [(1, 5, "new")]
    assert rows(users.snapshot(1)) == []
    assert rows(users.snapshot(2)) == [(2, 1, "other")]
    assert users.snapshot(2).count() == 1
    assert rows_with(users.snapshot(2), [1, 2]).num_rows == 1
    resolve_events(users)
    users.allow_compaction(2).result()
    users.compact()
    users.upsert([(1, (8, "later", False))], time=3, seal=4).result()
    assert rows(users.snapshot()) == [(2, 1, "other")]
    users.upsert([(1, (9, "back", False))], time=4, seal=5).result()
    assert rows(users.snapshot()) == [(1, 9, "back"), (2, 1, "other")]
    assert client.fsck().is_clean


def test_an_upsert_that_seals_with_nothing_pending_is_one_record(client: persist.Client) -> None:
    users = keyed(client)
    before = client.seqno
    users.upsert([(k, (k, "a", None)) for k in range(1000)], time=0, seal=1).result()
    users.upsert([(k, (k, "b", None)) for k in range(500, 1500)], time=1, seal=2).result()
    assert client.seqno == before + 2
    assert users.snapshot().count() == 1500


def test_a_seal_resolves_what_other_clients_have_pending(client: persist.Client, tmp_path: Path) -> None:
    users = keyed(client)
    with persist.open(tmp_path) as other:
        theirs = other.load("users")
        theirs.upsert([(1, (1, "theirs", None), 3), (2, (1, "later", None), 9)]).result()
        users.upsert([(1, (1, "ours", None), 2), (1, (1, "ours too", None), 3)]).result()
        users.seal(5).result()
        assert rows(theirs.snapshot(2)) == [(1, 1, "ours")]
        assert rows(theirs.snapshot(4)) == [(1, 1, "ours too")]
        theirs.seal(10).result()
        assert rows(users.snapshot()) == [(1, 1, "ours too"), (2, 1, "later")]


def test_events_that_change_nothing_write_nothing(client: persist.Client) -> None:
    users = keyed(client)
    users.upsert([(1, (1, "a", None))], time=0, seal=1).result()
    users.upsert([(1, (1, "a", None)), (2, None)], time=1, seal=2).result()
    assert updates(users, 1) == []
    assert len(users.handle.contents().history_parts) == 1


def test_closing_a_client_finishes_the_seals_that_it_was_asked_for(tmp_path: Path) -> None:
    client = persist.open(tmp_path)
    users = keyed(client)
    futures = [users.upsert([(time, (1, "a", None))], time=time, seal=time + 1) for time in range(4)]
    client.close()
    assert all(future.exception() is None for future in futures)
    with persist.open(tmp_path, mode="read") as client:
        assert client.load("users").upper == persist.Antichain(4)


def test_maintenance_leaves_resolving_to_whoever_has_the_location_for_itself(tmp_path: Path) -> None:
    quiet = persist.Settings(background=False)
    with persist.open(tmp_path, settings=quiet) as shared:
        keyed(shared, resolve="background").upsert([(1, (1, "a", None))], time=0, seal=1).result()
        with persist.open(tmp_path, mode="exclusive", settings=quiet) as alone:
            shared.maintain()
            assert alone.load("users").handle.contents().pending
            alone.maintain()
            assert not alone.load("users").handle.contents().pending


@pytest.mark.parametrize("order_by", [[], ["mark"]])
def test_events_that_are_more_than_the_budget_come_to_the_same_as_at_once(
    client: persist.Client, monkeypatch: pytest.MonkeyPatch, order_by: list[str]
) -> None:
    """They are cut: each of the parts has a few events, which arrived before those of the next one."""
    chance = random.Random(7)
    rows = [(chance.randrange(60), (chance.randrange(3), str(n), n % 5 == 0)) for n in range(200)]
    events = [(*row, time) for time in (1, 2) for row in rows[100 * (time - 1) : 100 * time]]
    key, value = {"id": pa.int64()}, {"mark": pa.int64(), "name": pa.string(), "gone": pa.bool_()}
    form = persist.Keyed(order_by=order_by, tombstone="gone")
    made: list[list[Any]] = []
    for cuts in (False, True):
        if cuts:
            monkeypatch.setattr(resolving, "OWN_SHARE", 1 << 40)
            monkeypatch.setattr(resolving, "SLICE_SHARE", 1 << 17)
            monkeypatch.setattr(resolving, "OWN_PART_SHARE", 1 << 20)
        users = client.create_or_load(f"users {cuts}", key=key, value=value, keyed=form)
        users.upsert([(id_, (0, "old", False), 0) for id_ in range(0, 80, 2)], seal=1).result()
        users.upsert(events, seal=3).result()
        made.append(updates(users))
    assert made[0] == made[1]
    assert len(made[0]) > 100


def test_keys_that_are_deleted_have_no_value_whatever_the_codec(client: persist.Client) -> None:
    docs = client.create_or_load("docs", key={"k": int}, value=persist.Json(), keyed=persist.Keyed())
    docs.upsert([(1, {"a": 1}, 0), (2, [2], 0)], seal=1).result()
    docs.upsert([(1, None, 1), (2, [3], 1), (3, {"b": None}, 1)], seal=2).result()
    assert sorted(docs.upserts(0, 1)) == [(1, {"a": 1}, 0), (2, [2], 0)]
    assert sorted(docs.upserts(1, 2)) == [(1, None, 1), (2, [3], 1), (3, {"b": None}, 1)]


def test_a_key_that_holds_several_values_is_resolved_with_all_of_them(client: persist.Client) -> None:
    form = persist.Keyed(machine=AppendDistinct())
    tags = client.create_or_load("tags", key={"k": int}, value={"tag": str}, keyed=form)
    tags.transition([(1, "a", 0), (1, "b", 0), (2, "a", 0)], seal=1).result()
    tags.transition([(1, "b", 1), (1, "c", 1), (2, None, 1)], seal=2).result()
    assert sorted(tags.snapshot(0).rows()) == [(1, "a"), (1, "b"), (2, "a")]
    assert sorted(tags.snapshot(1).rows()) == [(1, "a"), (1, "b"), (1, "c")]
