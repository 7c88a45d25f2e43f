"""A consumer that resumes sees the contents and every change once, whenever it dies."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

import persist
from persist.blob.protocol import MemoryBlob
from persist.core.log.kinds import SetHold
from tests.support.clocks import ImpatientClock

QUIET = persist.Settings(background=False)


def opened(blob: MemoryBlob) -> persist.Client:
    return persist.open(blob, clock=ImpatientClock(), settings=QUIET)


def collections(client: persist.Client) -> tuple[persist.Collection, persist.Collection]:
    source, target = (client.create_or_load(name, key={"k": int}, value={"v": str}) for name in ("source", "target"))
    return source, target


def contents(collection: persist.Collection, as_of: int) -> list[tuple[int, str]]:
    return sorted((row["k"], row["v"]) for row in collection.snapshot(as_of).to_pylist())


def test_a_consumer_gets_the_contents_then_changes_and_resumes_after_what_it_acknowledged(blob: MemoryBlob) -> None:
    with opened(blob) as client:
        source, _ = collections(client)
        source.write([((1, "a"), 0, 1), ((2, "b"), 0, 1), ((2, "b"), 1, -1)], seal=2).result()
        with source.follow("mailer") as following:
            first = following.poll()
            assert first is not None
            assert first.updates.to_pylist() == [{"k": 1, "v": "a", "_time": 1, "_diff": 1}]
        assert not any(hold.name for hold in source.holds())  # So it starts from the contents again.
        with source.follow("mailer") as following:
            assert following.poll() == first
            following.ack()
            source.write([((3, "c"), 2, 1)], seal=3).result()
            assert [row["k"] for row in following.poll().updates.to_pylist()] == [3]  # type: ignore[union-attr]
        with source.follow("mailer") as following:
            assert [row["k"] for row in following.poll().updates.to_pylist()] == [3]  # type: ignore[union-attr]
            following.ack()
            assert following.poll() is None
        assert [hold.time for hold in source.holds() if hold.name == "mailer"] == [2]


def test_history_that_a_consumer_needs_is_kept_while_it_is_down(blob: MemoryBlob) -> None:
    with opened(blob) as client:
        source, _ = collections(client)
        source.write([((1, "a"), 0, 1)], seal=1).result()
        with source.follow("mailer") as following:
            next(following)
            following.ack()
        source.write([((1, "a"), 1, -1), ((1, "b"), 1, 1), ((1, "b"), 2, -1)], seal=3).result()
        source.allow_compaction(3).result()
        source.compact()
    with opened(blob) as client, client.load("source").follow("mailer") as following:
        assert len(next(following).updates) == 3


def test_of_two_consumers_with_one_name_the_second_is_told(blob: MemoryBlob) -> None:
    with opened(blob) as client:
        source, target = collections(client)
        source.write([((1, "a"), 0, 1)], seal=1).result()
        with source.follow("copy") as one:
            progress = next(one)
            other = source.follow("copy")  # Takes over at once; what was given out may still be acknowledged.
            assert next(other) == progress
            with pytest.raises(persist.errors.LeaseExpired, match="another one follows as 'copy'"):
                one.poll()
            with client.multi_write() as multi:
                multi.write(target, progress.updates)
                multi.seal(target, progress.upper)
                multi.ack(one)
            with pytest.raises(persist.errors.HoldMoved), client.multi_write() as multi:
                multi.write(target, [((9, "z"), 5, 1)])
                multi.ack(other)
            with pytest.raises(persist.errors.HoldMoved):
                other.ack()
            assert one.held == 0
            assert other.held is None
        target.seal(6).result()
        assert contents(target, 5) == [(1, "a")]


def test_a_consumer_of_an_older_handle_begins_again_with_the_changed_schema(blob: MemoryBlob) -> None:
    with opened(blob) as client:
        source, _ = collections(client)
        source.write([((1, "a"), 0, 1)], seal=1).result()
        older = client.load("source")
        with older.follow("mailer") as following:
            next(following)
            following.ack()
            source.evolve(add={"w": pa.string()}, drop=["v"])
            source.write([((2, "b"), 1, 1)], seal=2).result()
            with pytest.raises(persist.errors.SchemaMismatch, match="begins again"):
                following.poll()
        with older.follow("mailer") as following:
            assert next(following).updates.to_pylist() == [{"k": 2, "w": "b", "_time": 1, "_diff": 1}]
            following.ack()
        with older.follow("another") as following:
            assert next(following).updates.column_names == ["k", "w", "_time", "_diff"]


def leased(collection: persist.Collection) -> list[int]:
    return sorted(hold.time for hold in collection.holds() if hold.name is None)


def test_what_a_killed_consumer_held_ends_when_the_next_of_its_name_appears(blob: MemoryBlob) -> None:
    killed = opened(blob)  # It never comes to its end, and no clock moves.
    source, _ = collections(killed)
    source.write([((1, "a"), 0, 1)], seal=1).result()
    first = source.follow("mailer")
    assert len(next(first).updates) == 1
    source.write([((1, "a"), 1, -1), ((1, "b"), 1, 1)], seal=5).result()
    other = source.follow("another")
    with opened(blob) as client:
        source = client.load("source")
        assert leased(source) == [0, 4]
        with source.follow("mailer") as following:
            assert leased(source) == [4, 4]
            assert len(next(following).updates) == 1
            following.ack()
            source.allow_compaction(5).result()
            assert source.since == persist.Antichain(4)
        with pytest.raises(persist.errors.LeaseExpired, match="another one follows as 'mailer'"):
            for _ in range(2):
                first.poll()
        assert len(next(other).updates) == 1  # It has another name.
        assert killed.load("source").snapshot(4).to_pylist() == [{"k": 1, "v": "b"}]
    killed.close()


def test_a_consumer_that_was_replaced_can_begin_again(blob: MemoryBlob) -> None:
    with opened(blob) as one, opened(blob) as other:
        source, _ = collections(one)
        source.write([((1, "a"), 0, 1)], seal=1).result()
        for client in (one, other, one, other):
            following = client.load("source").follow("mailer")
            assert len(next(following).updates) == 1
        assert len(one.engine.follower.refresh().control.leases) == 1
        with one.load("source").follow("mailer") as again:
            next(again)
            again.ack()
        with pytest.raises(persist.errors.HoldMoved):
            following.ack()


def test_consumers_leave_no_lease_behind(blob: MemoryBlob) -> None:
    with opened(blob) as client:
        source, _ = collections(client)
        source.write([((1, "a"), 0, 1)], seal=1).result()
        followings = [source.follow(name) for name in ("a", "b", "b")]
        assert client.metrics().groups["leases"]["granted"] == 2
        for following in followings:
            following.close()
        client.engine.writer("a test").consumers.tick()
        assert client.metrics().groups["leases"]["reads"] == 0
        source.follow("c")
    with opened(blob) as client:
        assert client.engine.follower.refresh().control.leases == {}


def test_what_is_complete_for_ever_is_consumed_to_its_end(blob: MemoryBlob) -> None:
    with opened(blob) as client:
        source, _ = collections(client)
        with source.follow("all") as following:  # Before anything is sealed.
            assert following.poll() is None
            with pytest.raises(persist.InvalidUsage, match="nothing was taken"):
                following.ack()
            source.write([((1, "a"), 7, 1)], seal=persist.Antichain()).result()
            assert [len(progress.updates) for progress in following] == [1]
            following.ack()
        with source.follow("all") as following:
            assert following.is_finished
            assert [*following] == []


def test_a_client_that_only_reads_cannot_follow_by_name(tmp_path: Path) -> None:
    with persist.open(tmp_path) as client:
        collections(client)
    with persist.open(tmp_path, mode="read") as client, pytest.raises(persist.errors.ReadOnly):
        client.load("source").follow("mailer")


def test_a_second_consumer_of_the_name_takes_over_in_the_same_client_too(blob: MemoryBlob) -> None:
    with opened(blob) as client:
        source, _ = collections(client)
        source.write([((1, "a"), 0, 1)], seal=1).result()
        first, second = source.follow("mailer"), source.follow("mailer")
        with pytest.raises(persist.errors.LeaseExpired, match="another one follows as 'mailer'"):
            first.poll()  # Not even the contents, which it holds already.
        assert len(next(second).updates) == 1
        second.ack()
        source.write([((2, "b"), 1, 1)], seal=2).result()
        with pytest.raises(persist.errors.LeaseExpired), first:
            next(first)
        assert [row["k"] for row in next(second).updates.to_pylist()] == [2]
        leases = client.engine.follower.refresh().control.leases.values()
        assert [each.consumer.partition("/")[2] for each in leases if each.consumer] == ["mailer"]
    with opened(blob) as client:
        assert not client.engine.follower.refresh().control.leases


@pytest.mark.parametrize("times", range(3))
def test_of_consumers_that_begin_at_once_one_lives(blob: MemoryBlob, times: int) -> None:
    with opened(blob) as client:
        source, _ = collections(client)
        source.write([((1, "a"), 0, 1)], seal=1).result()

        def begin(_: int) -> persist.Following | None:
            with suppress(persist.errors.LeaseExpired):  # Replaced before it had read the contents.
                return source.follow("mailer")
            return None

        with ThreadPoolExecutor(8) as threads:
            begun = [*threads.map(begin, range(8))]
        lived = 0
        for each in begun:
            with suppress(persist.errors.LeaseExpired):
                lived += each is not None and each.poll() is not None
        assert lived == 1


def test_to_poll_what_was_closed_is_an_error(blob: MemoryBlob) -> None:
    with opened(blob) as client:
        source, target = collections(client)
        source.write([((1, "a"), 0, 1)], seal=1).result()
        target.seal(1).result()
        for each in (
            source.follow("mailer"),
            source.listen(),
            source.subscribe(),
            client.follow({source: 0, target: 0}),
        ):
            each.close()
            with pytest.raises(persist.InvalidUsage, match="was closed"):
                each.poll()
            assert each.is_finished
            assert [*each] == []  # A loop that somebody else ends just ends.


def test_a_hold_that_a_multi_write_moves_is_moved_with_the_commit_or_nothing_happens() -> None:
    with persist.open(persist.MemoryBlob(), settings=persist.Settings(background=False)) as client:
        orders = client.create_or_load("orders", key={"k": pa.int64()}, value=None)
        orders.seal(10).result()
        orders.hold(2, name="mine")

        def write_and_move(key: int, time: int) -> None:
            with client.multi_write() as multi:
                multi.write(orders, [((key, None), 10, 1)])
                multi._commit.add(orders.handle, [SetHold(orders.id, "mine", time, None, 2)])

        write_and_move(1, 5)
        with pytest.raises(persist.errors.HoldMoved, match="at 2, and is at 5"):
            write_and_move(2, 7)
        assert [(hold.name, hold.time) for hold in orders.holds()] == [("mine", 5)]
        orders.seal(11).result()
        assert orders.snapshot(10).count() == 1
