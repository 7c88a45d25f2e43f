"""Keyed collections whose schema changes, events that wait and tombstones included; and how others become keyed."""

import datetime
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.core.errors import Superseded
from persist.core.log import kinds
from persist.core.state_rules.collection_rules import ExpectParts
from persist.events import History, InsertIfAbsent
from tests.support.resolving import resolve_events
from tests.support.stepped import WAIT_S

KEY = {"id": pa.int32()}
VALUE = {"at": pa.int32(), "city": pa.string(), "gone": pa.bool_()}
POLICIES = pytest.mark.parametrize("resolve", ["seal", "background"])
QUIET = persist.Settings(background=False)


@pytest.fixture
def client() -> Iterator[persist.Client]:
    with persist.open(persist.MemoryBlob(), settings=QUIET) as client:
        yield client
        assert client.fsck().is_clean


def users_of(client: persist.Client, resolve: Any) -> persist.Collection:
    users = client.create_or_load(
        "users", key=KEY, value=VALUE, keyed=persist.Keyed(order_by=["at"], tombstone="gone", resolve=resolve)
    )
    users.upsert([(1, (1, "Bern", None)), (2, (1, "Basel", None))], time=0, seal=1).result()
    return users


def rows(collection: persist.Collection, *args: Any, **options: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in collection.snapshot(*args, **options).to_arrow().to_pylist())


@POLICIES
def test_events_that_wait_have_the_default_of_a_column_that_is_added(client: persist.Client, resolve: Any) -> None:
    users = users_of(client, resolve)
    users.upsert([(1, (2, "Zug", None))], time=1).result()
    users.evolve(add={"zip": pa.int64()}, defaults={"zip": 7})
    users.upsert([(3, (2, "Chur", None, 5))], time=1).result()
    users.seal(2).result()
    assert rows(users) == [(1, 2, "Zug", None, 7), (2, 1, "Basel", None, 7), (3, 2, "Chur", None, 5)]
    assert [*users.changes(1, 2).updates()] == [
        ((1, (1, "Bern", None, 7)), 1, -1),
        ((1, (2, "Zug", None, 7)), 1, 1),
        ((3, (2, "Chur", None, 5)), 1, 1),
    ]
    assert rows(users, 1, schema=1) == [(1, 2, "Zug", None), (2, 1, "Basel", None), (3, 2, "Chur", None)]


@POLICIES
def test_watermark_and_tombstone_can_be_renamed_and_widened(client: persist.Client, resolve: Any) -> None:
    users = users_of(client, resolve)
    users.upsert([(2, (5, None, True))], time=1).result()
    users.evolve(rename={"at": "ts", "gone": "dead"}, widen={"at": pa.int64(), "id": pa.int64()})
    users.upsert([(2, (4, "late", None)), (1, (3, "Zug", None))], time=2, seal=3).result()
    assert rows(users) == [(1, 3, "Zug", None)]
    assert rows(users, schema=1) == [(1, 3, "Zug", None)]
    again = client.load("users")
    assert again.handle.keyed is not None
    assert (again.handle.keyed.order_by, again.handle.keyed.tombstone) == (("ts",), "dead")
    again.upsert([(2, (6, "back", None))], time=3, seal=4).result()
    assert rows(again) == [(1, 3, "Zug", None), (2, 6, "back", None)]
    with pytest.raises(persist.errors.SchemaMismatch):
        client.create_or_load("users", key=KEY, value=VALUE, keyed=persist.Keyed(order_by=["at"], tombstone="gone"))
    resolve_events(again)
    again.allow_compaction(3).result()
    again.compact()
    assert rows(again) == [(1, 3, "Zug", None), (2, 6, "back", None)]


@POLICIES
def test_dropping_a_column_leaves_one_value_per_key(client: persist.Client, resolve: Any) -> None:
    users = users_of(client, resolve)
    users.upsert([(1, (2, "Zug", None))], time=1).result()
    users.evolve(drop=["city"])
    users.upsert([(2, (2, None))], time=1).result()
    users.seal(2).result()
    assert rows(users) == [(1, 2, None), (2, 2, None)]
    assert [*users.upserts(1, 2)] == [(1, (2, None), 1), (2, (2, None), 1)]


@POLICIES
def test_who_upserts_with_an_old_schema_is_lifted_over_additions_and_told_of_others(
    client: persist.Client, resolve: Any
) -> None:
    users = users_of(client, resolve)
    old = client.load("users")
    users.evolve(add={"zip": pa.int64()})
    old.upsert([(1, (2, "Zug", None))], time=1, seal=2, token="once").result()
    old.upsert([(1, (2, "Zug", None))], time=1, seal=2, token="once").result()
    assert rows(users)[0] == (1, 2, "Zug", None, None)
    old.upsert([(4, (2, "late", None))], time=0, late="collect").result()
    assert old.late_counts == {"sealed": 1}
    users.evolve(rename={"city": "town"})
    for seal in (None, 3):
        with pytest.raises(persist.errors.SchemaMismatch, match="'city' was renamed to 'town'"):
            old.upsert([(1, (3, "Chur", None))], time=2, seal=seal).result()
    users.upsert([(3, (3, "Chur", None, 1))], time=2).result()
    old.seal(3).result()  # A seal writes nothing of its own: it resolves with the newest schema.
    assert [row[0] for row in rows(users)] == [1, 2, 3]


def test_events_of_both_schemas_come_in_one_group(client: persist.Client) -> None:
    users = users_of(client, "seal")
    old = client.load("users")
    users.evolve(add={"zip": pa.int64()})
    futures = [
        each.upsert([(1, (2, "x", None, *more))], time=1) for each, more in ((old, ()), (users, (9,)), (old, ()))
    ]
    for future in futures:
        future.result()
    users.seal(2).result()
    assert rows(users)[0] == (1, 2, "x", None, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"drop": ["at"]}, "'at' is the order_by"),
        ({"drop": ["gone"]}, "'gone' is the tombstone"),
        ({"add": {"_seq": pa.int64()}}, "'_seq' means something else"),
        ({"rename": {"city": "_deleted"}}, "'_deleted' means something else"),
        ({"keyed": persist.Keyed()}, "keyed already"),
        ({"keyed": "yes"}, "not a declaration"),
    ],
)
def test_what_a_keyed_collection_needs_stays(client: persist.Client, change: dict[str, Any], message: str) -> None:
    users = users_of(client, "seal")
    with pytest.raises(persist.InvalidUsage, match=message):
        users.evolve(**change)
    assert users.handle.contents().schema.version == 1


def test_a_late_bound_keeps_its_unit(client: persist.Client) -> None:
    events = client.create_or_load(
        "events",
        key=KEY,
        value={"at": pa.timestamp("s"), "n": pa.int8()},
        keyed=persist.Keyed(order_by=["at"], late_bound=persist.Behind(datetime.timedelta(days=1))),
    )
    with pytest.raises(persist.errors.SchemaMismatch, match="late bound"):
        events.evolve(widen={"at": pa.timestamp("us")})
    free = client.create_or_load("free", key=KEY, value={"at": pa.timestamp("s")}, keyed=persist.Keyed(order_by=["at"]))
    free.evolve(widen={"at": pa.timestamp("us")})
    events.evolve(widen={"n": pa.int64()}, rename={"at": "when"})
    events.upsert([(1, (datetime.datetime(2026, 1, 3), 1))], time=0, seal=1).result()
    with pytest.raises(persist.errors.LateEvents):
        events.upsert([(1, (datetime.datetime(2026, 1, 1), 1))], time=1).result()


def timed(client: persist.Client, resolve: Any) -> persist.Collection:
    return client.create_or_load(
        "timed", key=KEY, value={"at": pa.timestamp("s"), "v": pa.string()}, keyed=persist.Keyed(resolve=resolve)
    )


@POLICIES
def test_times_of_events_that_wait_must_fit_a_finer_unit(client: persist.Client, resolve: Any) -> None:
    users = timed(client, resolve)
    users.upsert([(2, (datetime.datetime(2026, 1, 1), "near"))], time=0, seal=1).result()
    users.upsert([(1, (datetime.datetime(2500, 1, 1), "far")), (2, None)], time=2).result()
    with pytest.raises(persist.errors.SchemaMismatch, match="'at' holds times that"):
        users.evolve(widen={"at": pa.timestamp("ns")})
    users.evolve(widen={"at": pa.timestamp("ms")}, rename={"v": "text"})
    with pytest.raises(persist.errors.SchemaMismatch, match="'at' holds times that"):
        users.evolve(widen={"at": pa.timestamp("ns")})  # Also of events that are of an earlier version.
    users.evolve(widen={"at": pa.timestamp("us")})
    users.seal(3).result()
    assert rows(users) == [(1, datetime.datetime(2500, 1, 1), "far")]


def test_an_event_that_comes_after_the_look_makes_an_evolve_look_again(client: persist.Client) -> None:
    users = timed(client, "seal")
    looked_at = users.handle.contents()
    users.upsert([(1, (datetime.datetime(2500, 1, 1), "far"))], time=0).result()
    following = looked_at.schema.to_json() | {"version": 2, "ids": [0, 1, 2]}
    with pytest.raises(Superseded):
        users.handle.submit(
            "evolve", [ExpectParts(users.id, looked_at.next_number), kinds.Evolve(users.id, following)]
        ).result()
    assert users.handle.contents().schema.version == 1


def test_machines_whose_events_are_values_evolve_and_others_say_why_not(client: persist.Client) -> None:
    first = client.create_or_load(
        "first", key=KEY, value={"v": pa.int64()}, keyed=persist.Keyed(machine=InsertIfAbsent())
    )
    first.transition([(1, 1)], time=0).result()
    first.evolve(add={"n": pa.int8()})
    first.transition([(1, (2, 2)), (2, (2, 2))], time=0, seal=1).result()
    assert rows(first) == [(1, 1, None), (2, 2, 2)]
    interval = {"v": pa.int64(), "a": pa.int64(), "b": pa.int64()}
    spans = client.create_or_load(
        "spans", key=KEY, value=interval, keyed=persist.Keyed(machine=History("a", "b"), order_by=[])
    )
    spans.transition([(1, 5)], time=3).result()
    spans.transition([(1, 6)], time=4, seal=5).result()
    for change in ({"add": {"n": pa.int8()}}, {"rename": {"v": "w"}}, {"reorder": ["b", "a", "v"]}):
        with pytest.raises(persist.InvalidUsage, match=r"columns of their own.*changes into a plain collection"):
            spans.evolve(**change)
    assert spans.evolve(comments={"v": "the value"}) == 1
    # What the error says to do.
    copy = client.create_or_load("copy", key=KEY, value=interval)
    copy.write(spans.changes(0, 5).to_arrow(), seal=5).result()
    copy.evolve(add={"n": pa.int8()})
    assert rows(copy) == [(1, 5, 3, 4, None), (1, 6, 4, None, None)]


@POLICIES
def test_a_collection_with_one_value_per_key_becomes_keyed(client: persist.Client, resolve: Any) -> None:
    users = client.create_or_load("users", key=KEY, value={"city": pa.string()})
    users.write([((1, "Bern"), 0, 1), ((2, "Basel"), 0, 1), ((1, "Bern"), 1, -1), ((1, "Zug"), 1, 1)], seal=2).result()
    old = client.load("users")
    listen = old.listen(1)
    assert users.evolve(add={"at": pa.int64()}, keyed=persist.Keyed(order_by=["at"], resolve=resolve)) == 2
    users.upsert([(1, ("Chur", 5)), (3, ("Olten", None))], time=2, seal=3).result()
    assert rows(users) == [(1, "Chur", 5), (2, "Basel", None), (3, "Olten", None)]
    assert rows(users, 0) == [(1, "Bern", None), (2, "Basel", None)]
    progress = listen.poll(timeout_s=WAIT_S)
    assert progress is not None
    assert sorted(progress.updates.to_pydict()["_diff"]) == [-1, 1, 1]
    listen.close()
    with pytest.raises(persist.errors.KeyedCollection):
        old.write([((1, "x"), 3, 1)]).result()
    with pytest.raises(persist.errors.KeyedCollection):
        old.overwrite([(1, "x")], time=3)
    with pytest.raises(persist.errors.KeyedCollection):
        old.delete([1], time=3)
    with pytest.raises(persist.InvalidUsage, match="load it again"):
        old.upsert([(1, "x")], time=3)
    assert client.load("users").upsert([(1, ("Bern", 4))], time=3, seal=4).result()
    assert rows(client.load("users"))[0] == (1, "Chur", 5)
    old.seal(5).result()
    assert old.upper == persist.Antichain(5)


def test_ten_keys_that_stand_against_it_are_named(client: persist.Client) -> None:
    users = client.create_or_load("users", key=KEY, value={"city": pa.string()})
    users.write([((k, str(n)), k % 3, 1) for k in range(20) for n in range(1 + k % 2)], seal=3).result()
    with pytest.raises(persist.errors.NotOneValue, match=r"the first are 1 at 1, 3 at 0, 5 at 2, .* 19 at 1") as caught:
        users.evolve(keyed=persist.Keyed())
    assert [key for key, _ in caught.value.keys] == [(k,) for k in range(1, 20, 2)]
    assert users.handle.contents().keyed is None
    # At an old time only: once that is forgotten, nothing stands against it.
    users.write([((k, "1"), 3, -1) for k in range(1, 20, 2)], seal=4).result()
    with pytest.raises(persist.errors.NotOneValue, match="let since pass them"):
        users.evolve(keyed=persist.Keyed())
    users.seal(5).result()
    users.allow_compaction(3).result()
    users.compact()
    users.evolve(keyed=persist.Keyed())
    users.upsert([(1, "x")], time=5, seal=6).result()
    assert len(rows(users)) == 20


def test_a_value_that_is_there_less_than_no_times_stands_against_it(client: persist.Client) -> None:
    users = client.create_or_load("users", key=KEY, value={"city": pa.string()})
    users.write([((1, "a"), 0, 1), ((1, "b"), 0, 1), ((1, "c"), 0, -1)], seal=1).result()
    with pytest.raises(persist.errors.NotOneValue, match="the first are 1 at 0"):
        users.evolve(keyed=persist.Keyed())


def test_a_key_that_is_null_in_all_fields_stands_against_it(client: persist.Client) -> None:
    users = client.create_or_load("users", key={"a": pa.int64(), "b": pa.int64()}, value={"city": pa.string()})
    users.write([(((None, None), "x"), 0, 1)], seal=1).result()
    with pytest.raises(persist.errors.NotOneValue, match=r"some keys are NULL.*\(None, None\) at 0"):
        users.evolve(keyed=persist.Keyed())


def test_a_row_that_would_become_a_tombstone_stands_against_it(client: persist.Client) -> None:
    users = client.create_or_load("users", key=KEY, value={"at": int, "gone": bool})
    users.write([(1, (1, True)), (2, (2, False)), (3, (3, None))]).result()
    users.delete([1]).result()
    sealed = users.snapshot(0).to_pylist()
    with pytest.raises(persist.InvalidUsage, match=r"column 'gone' would vanish .* such as the key \(1,\) at time 0"):
        users.evolve(keyed=persist.Keyed(order_by=["at"], tombstone="gone"))
    users.evolve(add={"dead": bool}, keyed=persist.Keyed(order_by=["at"], tombstone="dead"))
    assert [{**row, "dead": None} for row in sealed] == users.snapshot(0).to_pylist()


def test_what_is_not_sealed_stands_against_it(client: persist.Client) -> None:
    users = client.create_or_load("users", key=KEY, value={"city": pa.string()})
    users.write([((1, "a"), 0, 1)]).result()
    with pytest.raises(persist.errors.UpdatesBeyondUpper):
        users.evolve(keyed=persist.Keyed())
    users.seal(1).result()
    with pytest.raises(persist.errors.SchemaMismatch, match="order_by names 'at'"):
        users.evolve(keyed=persist.Keyed(order_by=["at"]))
    users.evolve(keyed=persist.Keyed())
    with pytest.raises(persist.InvalidUsage, match="keyed already"):
        users.evolve(keyed=persist.Keyed())


def test_a_collection_with_codecs_becomes_keyed(client: persist.Client) -> None:
    coded = client.create_or_load("coded", key=persist.Utf8, value=persist.Json)
    coded.write([(("a", {"n": 1}), 0, 1)], seal=1).result()
    coded.evolve(keyed=persist.Keyed())
    coded.upsert([("a", {"n": 2}), ("b", [])], time=1, seal=2).result()
    assert sorted(coded.snapshot().rows()) == [("a", {"n": 2}), ("b", [])]


def test_an_upsert_replaces_the_sum_of_what_was_written_before_the_collection_became_keyed() -> None:
    with persist.open(persist.MemoryBlob(), settings=persist.Settings(background=False)) as client:
        users = client.create_or_load("users", key={"k": pa.int64()}, value={"v": pa.int64()})
        # Three parts of one time, which cancel each other but for one row of each key.
        users.write([((1, 1), 0, 1), ((1, 2), 0, -1), ((4, 1), 0, 1)]).result()
        users.write([((1, 2), 0, 1), ((1, 1), 0, -1), ((4, 1), 0, -1)]).result()
        users.write([((1, 3), 0, 1), ((2, 5), 0, 1), ((4, 2), 0, 1)], seal=1).result()
        users.evolve(keyed=persist.Keyed())
        users = client.load("users")
        users.upsert([(1, 7), (2, None)], time=1, seal=2).result()
        users.upsert([(4, 8)], time=2, seal=3).result()
        assert users.snapshot().to_arrow().to_pylist() == [{"k": 1, "v": 7}, {"k": 4, "v": 8}]
        assert client.fsck().is_clean
