"""What a writing client does in the background: nothing that takes long delays its lease."""

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

import persist
from persist.blob.protocol import BlobEntry, MemoryBlob
from persist.engine.follow.follower import Follower
from persist.engine.upkeep import Upkeep
from persist.engine.upkeep.background import COMMITS_MAX, RepeatingThread
from tests.support.clocks import ImpatientClock
from tests.support.stepped import WAIT_S, wait_until
from tests.support.tuned import tuned


class SlowToListParts(MemoryBlob):
    """A store whose listing of parts, which garbage collection needs, takes until it is let go on."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.goes_on = threading.Event(), threading.Event()

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobEntry]:
        if prefix.startswith("part/"):
            self.asked.set()
            assert self.goes_on.wait(WAIT_S)
        return super().list(prefix, start_after)


def test_a_lease_is_renewed_while_the_collection_of_garbage_takes_long() -> None:
    blob = SlowToListParts()
    settings = tuned(lease_s=1.0, gc_interval_s=1.0)
    with persist.open(blob, settings=settings) as client:
        c = client.create_or_load("c", key={"k": pa.int64()})
        c.hold(0)
        assert blob.asked.wait(WAIT_S)
        try:
            (lease,) = client.engine.follower.refresh().control.leases.values()

            def is_renewed() -> bool | None:
                (now,) = client.engine.follower.state.control.leases.values()
                return now.expires_ms > lease.expires_ms or None

            assert client.engine.follower.wait_for(is_renewed, 5.0)
        finally:
            blob.goes_on.set()


def test_all_threads_end_with_their_client() -> None:
    before = set(threading.enumerate())
    client = persist.open(MemoryBlob())
    names = {thread.name for thread in set(threading.enumerate()) - before}
    assert {"persist-leases", "persist-upkeep"} <= names
    client.close()
    assert set(threading.enumerate()) <= before


class Due:
    """What is due of a client by a clock that a test moves, where collecting and shortening only take note."""

    def __init__(self, client: persist.Client, clock: ImpatientClock, **changed: float) -> None:
        writer = client.engine.writer("a test")
        self.done: list[str] = []
        self.client, self.clock = client, clock
        self.failing: persist.PersistError | None = None
        settings = tuned(**{"background": False, "gc_interval_s": 3600.0, **changed})
        follower = Follower(client.engine.blob, clock, policy=settings.tuning.policy)
        self.upkeep = Upkeep(
            writer.leases, writer.consumers, writer.compaction, self.collect, self.shorten, clock, settings, follower
        )

    def collect(self) -> None:
        self.done.append("collect")
        if self.failing is not None:
            raise self.failing

    def shorten(self) -> None:
        self.done.append("shorten")

    def after(self, seconds: float) -> list[str]:
        """Return what is done when so much time has passed."""
        self.clock.sleep(seconds)
        self.done.clear()
        self.upkeep.tick()
        return [*self.done]


@pytest.fixture
def due() -> Iterator[Due]:
    clock = ImpatientClock()
    with persist.open(MemoryBlob(), clock=clock, settings=tuned(background=False)) as client:
        yield Due(client, clock)


def test_garbage_is_collected_and_the_log_looked_at_at_intervals(due: Due) -> None:
    assert due.after(29) == []
    assert due.after(31.1) == ["shorten"]
    assert due.after(59) == []
    assert due.after(1) == ["shorten"]
    assert due.after(1600) == ["shorten"]  # Not half an interval has passed since the beginning.
    assert due.after(1900) == ["collect"]
    assert due.after(1) == ["shorten"]
    assert due.after(3598) == ["shorten"]
    assert due.after(1) == ["collect"]


def test_garbage_is_collected_although_compaction_fails_and_what_fails_has_had_its_turn(due: Due) -> None:
    due.upkeep.compaction.stop()
    due.failing = persist.Unavailable("the store is down")
    with pytest.raises(persist.Unavailable, match="the store is down"):
        due.after(3601)
    assert due.done == ["collect"]
    assert due.after(60) == ["shorten"]


def test_leases_of_others_that_ran_out_are_ended_every_tenth_of_a_lease(due: Due) -> None:
    with persist.open(
        due.upkeep.compaction._follower._blob, clock=due.clock, settings=tuned(background=False)
    ) as other:
        c = other.create_or_load("c", key={"k": pa.int64()})
        c.hold(0)
        follower = due.upkeep.compaction._follower
        (lease,) = follower.refresh().control.leases.values()
        due.after(lease.expires_ms / 1000 - due.clock.wall_ms() / 1000 + 29.9)
        assert len(follower.refresh().control.leases) == 1
        due.after(59.9)
        assert len(follower.refresh().control.leases) == 1
        due.after(0.2)
        assert not follower.refresh().control.leases


@pytest.mark.parametrize(
    ("settings", "leases_s", "work_s"),
    [
        ({"lease_s": 10.0, "hold_linger_s": 60.0, "gc_interval_s": 5.0}, 1.0, 5.0),
        ({"lease_s": 600.0, "hold_linger_s": 2.0, "compaction_interval_s": 3.0}, 2.0, 3.0),
        ({"lease_s": 600.0, "hold_linger_s": 600.0}, 30.0, 30.0),
        ({"hold_linger_s": 0.0, "compaction_interval_s": 0.05}, 0.05, 0.05),
    ],
)
def test_a_client_looks_often_enough_for_its_lease_and_never_without_a_pause(
    due: Due, settings: dict[str, float], leases_s: float, work_s: float
) -> None:
    made = Due(due.client, due.clock, background=True, **settings)
    leases, work = (thread._pause_s for thread in made.upkeep._threads)
    made.upkeep.close()
    assert leases() == pytest.approx(leases_s)
    assert all(0.75 * work_s <= work() <= 1.25 * work_s for _ in range(20))


def test_a_thread_goes_on_after_any_failure_and_ends_when_its_client_does(caplog: pytest.LogCaptureFixture) -> None:
    failures = iter(
        [persist.Unavailable("down"), ZeroDivisionError("odd"), None, persist.errors.ClientClosed("reading"), None]
    )
    began = list[object]()

    def do() -> None:
        failure = next(failures)
        began.append(failure)
        if failure is not None:
            raise failure

    thread = RepeatingThread("a test", do, lambda: 0.001)
    thread.join()
    assert len(began) == 4
    said = [(record.levelname, record.getMessage().partition(" and ")[0]) for record in caplog.records]
    assert said == [
        ("WARNING", "upkeep of the location failed"),
        ("ERROR", "upkeep of the location failed unexpectedly; it will be tried again"),
    ]


def test_a_thread_pauses_until_it_is_woken_or_stopped() -> None:
    done, seen = threading.Event(), list[int]()

    def do() -> None:
        seen.append(1)
        done.set()

    thread = RepeatingThread("a test", do, lambda: 3600.0)
    assert not seen
    thread.wake()
    assert done.wait(WAIT_S)
    thread.request_stop()
    thread.join()
    assert seen == [1]


def test_a_client_is_closed_once_its_threads_have_ended() -> None:
    blob = SlowToListParts()
    client = persist.open(blob, settings=persist.Settings(gc_interval_s=1.0))
    client.create_or_load("c", key={"k": pa.int64()})
    assert blob.asked.wait(WAIT_S)
    closing = threading.Thread(target=client.close)
    closing.start()
    closing.join(0.1)
    assert closing.is_alive()
    blob.goes_on.set()
    closing.join(WAIT_S)
    assert not closing.is_alive()


def test_many_commits_are_compacted_before_the_interval_has_passed() -> None:
    settings = tuned(compaction_interval_s=3600.0, gc_interval_s=3600.0, inline_runs=COMMITS_MAX)
    with persist.open(MemoryBlob(), settings=settings) as client:
        c = client.create_or_load("c", key={"k": pa.int64()})
        for time in range(COMMITS_MAX):
            c.write([((time, None), time, 1)], seal=time + 1).result()
        wait_until(lambda: len(client["c"].handle.contents().history) < COMMITS_MAX)
