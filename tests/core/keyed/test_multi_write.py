"""Events of keyed collections in a `multi_write`: with those of others, and with plain writes, in one record."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.blob.protocol import MemoryBlob
from persist.events import InsertIfAbsent
from tests.support.stepped import Stepped

KEY, VALUE = {"k": int}, {"v": str}
POLICIES = ["seal", "background"]


@pytest.fixture
def store() -> Stepped:
    return Stepped(MemoryBlob())


@pytest.fixture
def client(store: Stepped) -> Iterator[persist.Client]:
    with opened(store) as client:
        yield client


def opened(store: Stepped) -> persist.Client:
    return persist.open(store, settings=persist.Settings(background=False))


def keyed(client: persist.Client, name: str, **declared: Any) -> persist.Collection:
    return client.create_or_load(name, key=KEY, value=VALUE, keyed=persist.Keyed(**declared))


def plain(client: persist.Client, name: str = "plain") -> persist.Collection:
    return client.create_or_load(name, key=KEY, value=VALUE)


def changes(collection: persist.Collection) -> list[Any]:
    return [*collection.changes(0).updates()]


def blobs(store: Stepped, *collections: persist.Collection) -> tuple[set[str], set[str]]:
    """Return the parts that are stored, and those that collections refer to."""
    named = {part.blob for each in collections for part in each.handle.contents().stored_parts if part.blob}
    return {entry.key for entry in store.list("part/")}, named


@pytest.mark.parametrize("second", POLICIES)
def test_two_keyed_tables_with_pending_events_are_sealed_in_one_record(client: persist.Client, second: Any) -> None:
    accounts, owners = keyed(client, "accounts"), keyed(client, "owners", resolve=second)
    accounts.upsert([(1, "pending", 0), (9, "later", 7)])
    owners.upsert([(1, "pending", 0)]).result()
    before = client.engine.follower.refresh().seqno
    with client.multi_write() as multi:
        multi.upsert(accounts, [(1, "10", 1), (2, "20", 1)])
        multi.upsert(owners, pa.table({"k": [1], "v": ["ann"]}), time=1)
        multi.delete(owners, [1], time=2)
        multi.upsert(accounts, [{"k": 2, "v": "21"}], time=1)
        multi.seal(accounts, 2)
        multi.seal(owners, 3)
    assert multi.seqno == client.engine.follower.refresh().seqno == before + 1
    assert changes(accounts) == [((1, "pending"), 0, 1), ((1, "pending"), 1, -1), ((1, "10"), 1, 1), ((2, "21"), 1, 1)]
    assert [*owners.upserts(0, 3)] == [(1, "pending", 0), (1, "ann", 1), (1, None, 2)]
    accounts.seal(8).result()
    assert accounts.snapshot().count() == 3


def test_events_and_plain_writes_are_one_commit(client: persist.Client) -> None:
    events, rows, others = keyed(client, "events"), plain(client), plain(client, "others")
    others.write([(1, "old"), (2, "old")], time=0, seal=1).result()
    with client.multi_write(message="both") as multi:
        multi.write(rows, [(1, "a")], time=0)
        multi.upsert(events, [(1, "b")], time=0)
        multi.overwrite(others, [(1, "new")], time=1)
        multi.seal(rows, 1)
        multi.seal(events, 1)
    assert [*rows.snapshot().rows()] == [(1, "a")]
    assert [*events.snapshot().rows()] == [(1, "b")]
    assert [*others.snapshot().rows()] == [(1, "new")]
    assert {each.upper.time for each in (events, rows)} == {1}


@pytest.mark.parametrize("resolve", POLICIES)
def test_nothing_happens_if_the_block_raises_or_one_part_is_refused(
    client: persist.Client, store: Stepped, resolve: Any
) -> None:
    one, other, rows = keyed(client, "one", resolve=resolve), keyed(client, "other", resolve=resolve), plain(client)
    other.seal(5).result()
    many = pa.table({"k": range(8_000), "v": [f"{n * 7919 % 100_003:x}" for n in range(8_000)]})
    seqno = client.engine.follower.refresh().seqno
    with pytest.raises(RuntimeError), client.multi_write() as multi:
        multi.write(rows, many, time=0)
        multi.upsert(one, many, time=0)
        raise RuntimeError
    with pytest.raises(persist.errors.UpdateNotBeyondUpper), client.multi_write() as multi:
        multi.write(rows, many, time=0)
        multi.upsert(one, many, time=0)
        multi.seal(one, 1)
        multi.upsert(other, [(1, "late", 4), (2, "timely", 6)])
        multi.seal(other, 7)
    with pytest.raises(persist.errors.FrontierRegression), client.multi_write() as multi:
        multi.upsert(one, many, time=0)
        multi.seal(one, 1)
        multi.seal(other, 4)
    with pytest.raises(persist.errors.UpdateNotBeyondUpper), client.multi_write() as multi:
        multi.upsert(one, many, time=0)
        multi.seal(one, 1)
        multi.write(rows, [((1, "a"), 0, 1)])
        rows.seal(9).result()
    assert client.engine.follower.refresh().seqno == seqno + 1, "only the seal in the last block"
    client.close()
    stored, named = blobs(store, *())
    assert (stored, named) == (set(), set())


def test_what_a_block_says_is_checked_in_its_order(client: persist.Client) -> None:
    users = keyed(client, "users")
    with client.multi_write() as multi:
        multi.seal(users, 3)
        with pytest.raises(persist.errors.UpdateNotBeyondUpper, match="time 2"):
            multi.upsert(users, [(1, "a", 2)])
        with pytest.raises(persist.errors.FrontierRegression):
            multi.seal(users, 2)
        with pytest.raises(persist.InvalidUsage, match="put it first"):
            multi.expect_upper(users, 0)
        multi.upsert(users, [(1, "b", 3)])
        multi.seal(users, 4)
        multi.upsert(users, [(1, "c", 4)])
    assert changes(users) == [((1, "b"), 3, 1)]
    assert users.unsealed is not None
    assert users.unsealed.updates == 1


def test_what_makes_sense_on_other_collections_only_says_so(client: persist.Client) -> None:
    users, rows = keyed(client, "users"), plain(client)
    machine = client.create_or_load("m", key=KEY, value=VALUE, keyed=persist.Keyed(machine=InsertIfAbsent()))
    with client.multi_write() as multi:
        with pytest.raises(persist.errors.NotKeyed, match="plain"):
            multi.transition(rows, [(1, "a", 0)])
        with pytest.raises(persist.errors.KeyedCollection, match="users"):
            multi.write(users, [((1, "a"), 0, 1)])
        with pytest.raises(persist.InvalidUsage, match=r"Use transition\(\)"):
            multi.overwrite(machine, [(1, "a")], time=0)
        with pytest.raises(persist.InvalidUsage, match=r"Use transition\(\)"):
            multi.upsert(machine, [(1, "a", 0)])
        with pytest.raises(persist.errors.InvalidUpdate, match="event 0"):
            multi.upsert(users, [(None, "a", 0)])
        multi.transition(machine, [(1, "first", 0), (1, "second", 0)])
        multi.transition(users, [(1, "a", 0)])
        multi.seal(machine, 1)
        multi.seal(users, 1)
    assert [*machine.snapshot().rows(), *users.snapshot().rows()] == [(1, "first"), (1, "a")]


@pytest.mark.parametrize("resolve", POLICIES)
def test_a_token_makes_a_block_happen_once(client: persist.Client, store: Stepped, resolve: Any) -> None:
    def block(client: persist.Client, value: str = "a", name: str = "two") -> int | None:
        with client.multi_write(token="t") as multi:
            multi.upsert(keyed(client, "one", resolve=resolve), [(1, value, 0)])
            multi.upsert(keyed(client, name, resolve=resolve), [(2, "b", 0)])
            multi.write(plain(client), [(3, "c")], time=0)
            for each in (keyed(client, "one", resolve=resolve), keyed(client, name, resolve=resolve), plain(client)):
                multi.seal(each, 1)
        return multi.seqno

    with opened(store) as other:
        first = block(client)
        assert first is not None
        for repeating in (client, other):
            block(repeating)
        with pytest.raises(persist.errors.TokenReused):
            block(other, "z")
        with pytest.raises(persist.InvalidUsage, match="not for the others"):
            block(other, name="three")
        assert [len(changes(client.load(name))) for name in ("one", "two", "plain")] == [1, 1, 1]
        assert client.load("one").upper.time == 1


@pytest.mark.parametrize("resolve", POLICIES)
def test_a_condition_on_a_keyed_collection_fences_the_whole_block(client: persist.Client, resolve: Any) -> None:
    one, other = keyed(client, "one", resolve=resolve), keyed(client, "other", resolve=resolve)
    one.upsert([(1, "pending", 0)]).result()
    for expected in (3, 0):
        context = pytest.raises(persist.errors.UpperMismatch) if expected else nullcontext()
        with context, client.multi_write() as multi:
            multi.expect_upper(one, expected)
            multi.upsert(other, [(1, "a", 0)])
            multi.seal(one, 1)
            multi.seal(other, 1)
    assert [each.upper.time for each in (one, other)] == [1, 1]


def test_a_consumer_acknowledges_with_the_events_it_has_made(client: persist.Client) -> None:
    source, copy, counts = plain(client), keyed(client, "copy"), keyed(client, "counts")
    source.write([(1, "a")], time=0, seal=1).result()
    following = source.follow("copier")
    progress = following.poll()
    assert progress is not None
    with client.multi_write() as multi:
        multi.upsert(copy, progress.updates.drop_columns(["_time", "_diff"]), time=0)
        multi.upsert(counts, [(0, "1")], time=0)
        multi.seal(copy, progress.upper)
        multi.seal(counts, progress.upper)
        multi.ack(following)
    assert [*copy.snapshot().rows(), *counts.snapshot().rows()] == [(1, "a"), (0, "1")]
    assert source.follow("copier").poll() is None


@pytest.mark.parametrize("size", [2, 8_000], ids=["small", "large"])
@pytest.mark.parametrize("theirs", ["upsert", "seal"])
def test_what_somebody_else_commits_in_between_is_resolved_with_the_block(
    store: Stepped, client: persist.Client, size: int, theirs: str
) -> None:
    table = pa.table({"k": range(size), "v": [f"{n * 7919 % 100_003:x}" for n in range(size)]})
    one, two, rows = keyed(client, "one"), keyed(client, "two"), plain(client)
    two.upsert([(5, "pending", 1)]).result()
    with opened(store) as other:
        into = keyed(other, "two")

        def between() -> None:
            into.upsert([(0, "theirs", 2)], seal=2 if theirs == "seal" else None).result()

        store.before("create", "log/", between)
        with client.multi_write() as multi:
            multi.write(rows, table, time=0)
            multi.upsert(one, table, time=0)
            multi.upsert(two, table, time=3)
            multi.seal(one, 1)
            multi.seal(two, 4)
            multi.seal(rows, 1)
        assert store.is_done
    events = [*two.upserts(0, 4)]
    assert (5, "pending", 1) in events
    assert (0, "theirs", 2) in events
    assert (1, table["v"][1].as_py(), 3) in events
    assert one.snapshot().count() == rows.snapshot().count() == size
    stored, named = blobs(store, one, two, rows)
    unnamed = stored - named
    assert not {blob for blob in unnamed if one.id in blob or rows.id in blob}
    client.gc()
    assert client.fsck().is_clean


def test_a_seal_farther_by_somebody_else_in_between_refuses_all(store: Stepped, client: persist.Client) -> None:
    one, two, rows = keyed(client, "one"), keyed(client, "two"), plain(client)
    two.upsert([(5, "pending", 1)]).result()
    with opened(store) as other:
        into = keyed(other, "two")
        store.before("create", "log/", lambda: into.seal(9).result())
        with pytest.raises(persist.errors.UpdateNotBeyondUpper), client.multi_write() as multi:
            multi.write(rows, [(1, "a")], time=0)
            multi.upsert(one, [(1, "a")], time=0)
            multi.upsert(two, [(1, "a")], time=3)
            multi.seal(two, 4)
    assert store.is_done
    assert (one.unsealed, rows.unsealed, two.upper.time) == (None, None, 9)


def test_an_overwrite_in_the_block_is_refused_if_its_collection_changed_and_the_events_with_it(
    store: Stepped, client: persist.Client
) -> None:
    one, rows = keyed(client, "one"), plain(client)
    rows.write([(1, "old")], time=0, seal=1).result()
    with opened(store) as other:
        theirs = plain(other)
        store.before("create", "log/", lambda: theirs.seal(2).result())
        with pytest.raises(persist.errors.UpperMismatch), client.multi_write() as multi:
            multi.overwrite(rows, [(1, "new")], time=1)
            multi.upsert(one, [(1, "a")], time=0)
            multi.seal(one, 1)
    assert store.is_done
    assert one.upper.time == 0
    assert one.unsealed is None


def test_a_block_comes_after_what_the_client_asked_for_before_it(client: persist.Client) -> None:
    one, two = keyed(client, "one"), keyed(client, "two")
    for time in range(0, 12, 3):
        one.upsert([(time, "x", time)], seal=time + 1)
        two.upsert([(1, f"{time}", time)])
        with client.multi_write() as multi:
            multi.upsert(one, [(time, None, time + 1)])
            multi.seal(one, time + 2)
            multi.seal(two, time + 2)
        one.upsert([(1, "y", time + 2)], seal=time + 3)
    assert [*one.snapshot().rows()] == [(1, "y")]
    assert [*two.snapshot().rows()] == [(1, "9")]
