"""When collections are looked at, and what waits for compaction."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

import persist
from persist.blob.protocol import MemoryBlob
from persist.core.state_rules.contents import CollectionState
from persist.engine.upkeep import CompactionSchedule
from persist.engine.upkeep.background import COMMITS_MAX
from tests.support.checkpoints import wait_for_checkpoint
from tests.support.clocks import ImpatientClock
from tests.support.rollback import interrupted
from tests.support.tuned import tuned

HOUR_S = 3600.0


@contextmanager
def scheduled(
    clock: ImpatientClock, resolve: Callable[[CollectionState], bool | None] = lambda contents: None, **changed: float
) -> Iterator[tuple[persist.Client, CompactionSchedule]]:
    """Open a client which compacts only when a test says so, and the schedule that it would have."""
    settings = tuned(**{"background": False, "gc_interval_s": HOUR_S, **changed})
    blob = MemoryBlob()
    with persist.open(blob, clock=clock, settings=settings) as client:
        for name in ("a", "b"):
            client.create_or_load(name, key={"k": pa.int64()})
        compactor = client.engine.writer("a test").compactor
        yield client, CompactionSchedule(compactor, client.engine.follower, clock, settings, resolve)


def test_known_collections_are_looked_at_each_time_and_all_of_them_at_intervals() -> None:
    clock, seen = ImpatientClock(), list[str]()
    with scheduled(clock) as (client, _):
        for time in range(1, 200):
            client["a"].seal(time).result()
            wait_for_checkpoint(client)
        with persist.open(client.engine.blob, clock=clock, settings=tuned(background=False)) as other:
            follower, writer = other.engine.follower, other.engine.writer("a test")
            settings = tuned(background=False, gc_interval_s=HOUR_S)
            schedule = CompactionSchedule(
                writer.compactor, follower, clock, settings, lambda contents: seen.append(contents.name)
            )
            follower.require(other["a"].id, "a")
            assert follower.state.entries[client["b"].id].contents is None
            schedule.tick()
            assert seen == ["a"]
            clock.sleep(0.76 * HOUR_S)
            schedule.tick()
            assert sorted(seen[1:]) == ["a", "b"]


def test_one_collection_that_fails_keeps_no_other_from_its_turn() -> None:
    seen = list[str]()

    def resolve(contents: CollectionState) -> None:
        seen.append(contents.name)
        raise persist.Unavailable(f"nothing of {contents.name}")

    with scheduled(ImpatientClock(), resolve) as (_, schedule), pytest.raises(persist.Unavailable) as caught:
        schedule.tick()
    assert str(caught.value) == f"nothing of {seen[0]}"
    assert sorted(seen) == ["a", "b"]


def history_of(client: persist.Client, name: str) -> int:
    return len(client[name].handle.contents().history)


def test_runs_that_are_due_are_merged_and_what_is_not_due_costs_nothing() -> None:
    with scheduled(ImpatientClock(), inline_runs=16) as (client, schedule):
        for time in range(20):
            client["a"].write([((time, None), time, 1)], seal=time + 1).result()
        client["b"].write([((1, None), 0, 1)], seal=1).result()
        seqno = client.engine.follower.state.seqno
        runs = history_of(client, "a")
        schedule.tick()
        assert history_of(client, "a") < runs
        assert history_of(client, "b") == 1
        assert client.engine.follower.state.seqno > seqno
        seqno = client.engine.follower.state.seqno
        schedule.tick()
        assert client.engine.follower.state.seqno == seqno


def test_who_writes_waits_for_a_merge_from_so_many_runs_on_and_not_again_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is tried again, whether it failed or not, when a fourth as many runs have come."""
    with scheduled(ImpatientClock(), runs_max=16, inline_runs=16) as (client, schedule):
        id_ = client["a"].id
        schedule.merge_small_runs("0" * 32)

        def written(times: range) -> list[int]:
            """Return at which times somebody who then writes has to wait for a merge."""
            waited = []
            for time in times:
                before = client.engine.follower.state.seqno
                schedule.merge_small_runs(id_)
                waited += [time] if client.engine.follower.state.seqno > before else []
                client["a"].write([((time, None), time, 1)], seal=time + 1).result()
            return waited

        assert written(range(18)) == [16]
        assert history_of(client, "a") < 16
        schedule.stop()
        counts = []
        for time in range(18, 60):
            caplog.clear()
            schedule.merge_small_runs(id_)
            counts += [history_of(client, "a")] if "'a' has too many runs, and compaction failed" in caplog.text else []
            client["a"].write([((time, None), time, 1)], seal=time + 1).result()
        assert counts == [16, 20, 24, 28, 32, 36, 40, 44]


def test_a_history_of_clients_that_live_for_one_write_stays_short() -> None:
    blob, settings = MemoryBlob(), tuned(background=False)
    for day in range(140):
        with persist.open(blob, settings=settings) as client:
            days = client.create_or_load("days", key={"k": pa.int64()})
            days.write([((day, None), day, 1)], seal=day + 1).result()
            assert len(days.handle.contents().history) <= 128
            assert days.snapshot(min(day, 5)).count() == min(day, 5) + 1
    with persist.open(blob, settings=settings) as client:
        assert len(client["days"].snapshot().get([*range(140)])) == 140


def test_who_writes_waits_for_no_merge_of_large_runs() -> None:
    with scheduled(ImpatientClock(), runs_max=16, inline_runs=2, part_bytes=800) as (client, schedule):
        for time in range(20):
            client["a"].write([((time, None), time, 1)], seal=time + 1).result()
        seqno = client.engine.follower.state.seqno
        schedule.merge_small_runs(client["a"].id)
        assert client.engine.follower.state.seqno == seqno


def test_a_collection_is_due_after_so_many_commits_since_it_was_looked_at() -> None:
    with scheduled(ImpatientClock()) as (client, schedule):
        id_ = client["a"].id
        for _ in range(2):
            assert [schedule.count_commit(id_) for _ in range(COMMITS_MAX)] == [False] * (COMMITS_MAX - 1) + [True]
            schedule.tick()


def test_what_was_retracted_is_destroyed_when_it_has_waited_since_it_was_first_seen() -> None:
    clock = ImpatientClock()
    with scheduled(clock, grace_s=200) as (client, schedule):
        a = client["a"]

        def retract(time: int) -> None:
            a.write([((time, None), time, 1)], seal=time + 1).result()
            a.write([((time, None), time + 1, -1)], seal=time + 2).result()
            a.allow_compaction(time + 1).result()

        def is_destroyed_after(seconds: float) -> bool:
            clock.sleep(seconds)
            schedule.tick()
            return not any(part.negatives for part in a.handle.contents().history_parts)

        retract(0)
        assert [is_destroyed_after(seconds) for seconds in (0, 99, 1)] == [False, False, True]
        retract(10)
        assert [is_destroyed_after(seconds) for seconds in (500, 99, 1)] == [False, False, True]
        retract(20)
        assert not is_destroyed_after(0)
        a.compact()  # Somebody else does it: what comes after that is seen anew.
        schedule.tick()
        retract(30)
        assert [is_destroyed_after(seconds) for seconds in (99, 99, 1)] == [False, False, True]


def test_what_is_retracted_waits_half_the_grace_period() -> None:
    clock = ImpatientClock()
    with scheduled(clock, grace_s=100.0) as (client, schedule):
        a = client["a"]
        a.write([((1, None), 0, 1), ((1, None), 1, -1)], seal=2).result()
        a.allow_compaction(1).result()
        seqnos = []
        for seconds in (0, 49, 1):
            clock.sleep(seconds)
            schedule.tick()
            seqnos.append(client.engine.follower.state.seqno)
        assert seqnos[0] == seqnos[1] < seqnos[2]


def test_a_collection_that_is_dropped_meanwhile_is_no_failure_and_others_have_their_turn() -> None:
    seen = list[str]()

    def resolve(contents: CollectionState) -> None:
        seen.append(contents.name)
        if len(seen) == 1:
            client[contents.name].drop().result()

    with scheduled(ImpatientClock(), resolve) as (client, schedule):
        also = list[str]()
        schedule.also.append(lambda contents: also.append(contents.name))
        schedule.tick()
        assert sorted(seen) == ["a", "b"]
        assert also == seen[1:]


def test_a_client_that_is_closed_meanwhile_looks_at_no_further_collection() -> None:
    seen = list[str]()

    def resolve(contents: CollectionState) -> None:
        seen.append(contents.name)
        raise persist.errors.ClientClosed("reading")

    with scheduled(ImpatientClock(), resolve) as (_, schedule), pytest.raises(persist.errors.ClientClosed):
        schedule.tick()
    assert len(seen) == 1


def test_where_nothing_can_be_committed_nothing_is_looked_at() -> None:
    blob, clock = interrupted()
    with persist.open(blob, clock=clock, settings=tuned(background=False)) as client:
        writer, seen = client.engine.writer("a test"), list[str]()
        schedule = CompactionSchedule(
            writer.compactor, client.engine.follower, clock, tuned(), lambda contents: seen.append(contents.name)
        )
        client["c"].upper  # noqa: B018  It is known.
        schedule.tick()
        assert seen == []


@pytest.mark.parametrize("destroys", [True, False])
def test_a_sweep_destroys_at_once_what_since_has_passed_if_it_is_to(destroys: bool) -> None:
    with scheduled(ImpatientClock()) as (client, schedule):
        for time in range(6):
            client["a"].write([((1, None), time, -1 if time % 2 else 1)], seal=time + 1).result()
        client["a"].allow_compaction(5).result()
        before = history_of(client, "a")
        assert schedule.sweep(destroys=destroys) == int(destroys)
        assert (history_of(client, "a") < before) == destroys
        assert client["a"].snapshot(5).count() == 0
        assert schedule.sweep(destroys=destroys) == 0


def test_a_later_sweep_looks_where_something_has_changed_or_was_left() -> None:
    seen, left = list[str](), {"b"}

    def resolve(contents: CollectionState) -> bool:
        seen.append(contents.name)
        return contents.name in left

    def looked_at() -> list[str]:
        seen.clear()
        schedule.sweep(destroys=False)
        return sorted(seen)

    with scheduled(ImpatientClock(), resolve) as (client, schedule):
        for name in ("c", "d"):
            client.create_or_load(name, key={"k": pa.int64()})
        assert looked_at() == ["a", "b", "c", "d"]
        assert looked_at() == ["b"]
        left.clear()
        client["c"].write([((1, None), 0, 1)], seal=1).result()
        client["a"].drop().result()
        assert looked_at() == ["b", "c"]
        assert looked_at() == []
        with persist.open(client.engine.blob, clock=client.engine.clock) as other:
            other["d"].write([((1, None), 0, -1), ((1, None), 1, 1)], seal=2).result()
            other["d"].allow_compaction(1).result()
        assert looked_at() == ["d"]
        assert looked_at() == ["d"]  # What since has passed waits to be destroyed.
        assert schedule.sweep(destroys=True) == 1
        assert looked_at() == ["d"]
        assert looked_at() == []


def test_a_collection_that_failed_is_looked_at_by_the_next_sweep_though_it_is_as_it_was() -> None:
    seen, fails = list[str](), ["b"]

    def resolve(contents: CollectionState) -> None:
        seen.append(contents.name)
        if contents.name in fails:
            raise persist.Unavailable("not now")

    with scheduled(ImpatientClock(), resolve) as (_, schedule):
        with pytest.raises(persist.Unavailable):
            schedule.sweep(destroys=False)
        assert sorted(seen) == ["a", "b"]
        fails.clear()
        seen.clear()
        schedule.sweep(destroys=False)
        assert seen == ["b"]
        schedule.sweep(destroys=False)
        assert seen == ["b"]


def test_what_an_interrupted_sweep_has_not_looked_at_has_its_turn_in_the_next_one() -> None:
    seen, interrupts = list[str](), [True]

    def resolve(contents: CollectionState) -> None:
        seen.append(contents.name)
        if interrupts:
            raise KeyboardInterrupt

    with scheduled(ImpatientClock(), resolve) as (_, schedule):
        with pytest.raises(KeyboardInterrupt):
            schedule.sweep(destroys=True)
        interrupts.clear()
        seen.clear()
        schedule.sweep(destroys=True)
        assert sorted(seen) == ["a", "b"]
