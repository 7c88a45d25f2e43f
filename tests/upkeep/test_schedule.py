"""When collections are looked at, and what waits for compaction."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

import persist
from persist.blob import MemoryBlob
from persist.state import CollectionState
from persist.upkeep.background import COMMITS_MAX, CompactionSchedule
from persist.upkeep.garbage import void_floor
from tests.checkpoints import wait_for_checkpoint
from tests.clocks import ImpatientClock
from tests.tuned import tuned

HOUR_S = 3600.0


@contextmanager
def scheduled(
    clock: ImpatientClock, resolve: Callable[[CollectionState], object] = lambda contents: None, **changed: float
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
            follower.known(other["a"].id, "a")
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


def test_who_writes_waits_for_a_merge_from_so_many_runs_on_and_not_again_at_once() -> None:
    with scheduled(ImpatientClock(), runs_max=16) as (client, schedule):
        id_ = client["a"].id
        schedule.relieve("0" * 32)
        for time in range(16):
            before = client.engine.follower.state.seqno
            schedule.relieve(id_)
            assert client.engine.follower.state.seqno == before, f"{time} runs are not too many"
            client["a"].write([((time, None), time, 1)], seal=time + 1).result()
        before = client.engine.follower.state.seqno
        schedule.relieve(id_)
        assert client.engine.follower.state.seqno > before


def test_a_collection_is_due_after_so_many_commits_since_it_was_looked_at() -> None:
    with scheduled(ImpatientClock()) as (client, schedule):
        id_ = client["a"].id
        for _ in range(2):
            assert [schedule.committed(id_) for _ in range(COMMITS_MAX)] == [False] * (COMMITS_MAX - 1) + [True]
            schedule.tick()


def test_uploads_are_void_before_the_last_checkpoint_that_is_old_enough() -> None:
    with scheduled(ImpatientClock()) as (client, _):
        state = client.engine.follower.state
    checkpoints = [(3, 100.0), (7, 150.0), (9, 199.0)]
    assert void_floor(state, checkpoints, 200.0, 50.0) == 8
    assert void_floor(state, checkpoints, 200.0, 51.0) == 4
    assert void_floor(state, checkpoints, 250.0, 51.0) == 10
    assert void_floor(state, checkpoints, 200.0, 101.0) == 0
    assert void_floor(state, checkpoints, 200.0, 0) == state.seqno + 2
