"""Slow reads: a second request, the first answer, and no thread that stays."""

import gc
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from persist.blob.errors import Throttled, Unavailable
from persist.blob.layers.metered import MeteredBlob
from persist.blob.layers.pacing import DELAY_AT_FIRST_S, HEDGES_SAVED_MAX, _Pace
from persist.blob.layers.retry import RetryBlob, RetryCount, RetryPolicy
from persist.blob.protocol import Blob, MemoryBlob
from persist.blob.threads import DaemonThreads

NAME = "persist-read"


class Script(MemoryBlob):
    """A remote store whose reads do in turn what a list says, and then work."""

    is_remote = True

    def __init__(self, *turns: Callable[[], object]) -> None:
        super().__init__()
        self.lock = threading.Lock()
        self.turns = list(turns)
        self.reads = 0
        super().set("key", b"value")

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        with self.lock:
            turn = self.turns.pop(0) if self.turns else lambda: None
            self.reads += 1
        turn()
        return super().get(key, range)


class ThrottlesOneWrite(Script):
    """Refuses its first write because there are too many requests."""

    throttles = True

    def set(self, key: str, value: bytes) -> None:
        if self.throttles:
            self.throttles = False
            raise Throttled("slow down")
        super().set(key, value)


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == NAME]


@pytest.fixture
def hang() -> Iterator[threading.Event]:
    """What a read that hangs waits for; set in the end."""
    event = threading.Event()
    yield event
    event.set()


Retried = Callable[..., RetryBlob]


@pytest.fixture
def retried(hang: threading.Event) -> Iterator[Retried]:
    """Make a RetryBlob of a store and a policy; it is closed in the end, and then no reader may be left."""
    opened: list[RetryBlob] = []

    def retried(store: Blob, **policy: float | bool) -> RetryBlob:
        opened.append(RetryBlob(store, RetryPolicy(**policy)))  # type: ignore[arg-type]
        return opened[-1]

    yield retried
    hang.set()
    for blob in opened:
        blob.close()
    assert readers() == []


def test_a_slow_read_is_asked_again_and_the_first_answer_wins(hang: threading.Event, retried: Retried) -> None:
    store = Script(hang.wait)
    blob = retried(store, hedge_after_s=0.001)

    assert blob.get("key") == b"value"

    assert not hang.is_set()
    assert store.reads == 2
    assert blob.counts()["get"] == RetryCount(hedges=1, hedges_won=1)


def test_a_range_is_hedged_as_well(hang: threading.Event, retried: Retried) -> None:
    blob = retried(Script(hang.wait), hedge_after_s=0.001)
    assert blob.get("key", (1, 3)) == b"al"


def test_the_first_request_wins_when_the_second_hangs(hang: threading.Event, retried: Retried) -> None:
    hedged = threading.Event()

    def answer_after_the_hedge() -> None:
        assert hedged.wait(5)

    def hang_as_hedge() -> None:
        hedged.set()
        hang.wait()

    blob = retried(Script(answer_after_the_hedge, hang_as_hedge), hedge_after_s=0.001)

    assert blob.get("key") == b"value"
    assert blob.counts()["get"] == RetryCount(hedges=1)


def test_a_failed_request_does_not_win_while_the_other_is_under_way(retried: Retried) -> None:
    asked = threading.Event()

    def answer_after_the_failure() -> None:
        assert asked.wait(5)
        time.sleep(0.01)

    def fail() -> None:
        asked.set()
        raise Unavailable("no")

    blob = retried(Script(answer_after_the_failure, fail), hedge_after_s=0.001)

    assert blob.get("key") == b"value"
    assert blob.counts()["get"] == RetryCount(hedges=1), "no further attempt was needed"


def test_both_failing_is_one_failed_attempt(retried: Retried) -> None:
    both = threading.Barrier(2, timeout=5)

    def fail() -> None:
        both.wait()
        raise Unavailable("no")

    blob = retried(Script(fail, fail), hedge_after_s=0.001, first_s=0.001)

    assert blob.get("key") == b"value"
    count = blob.counts()["get"]
    assert count.retries == 1
    assert count.hedges >= 1, "a busy machine may hedge the second attempt, too"


def test_a_read_without_any_answer_in_time_is_tried_again(hang: threading.Event, retried: Retried) -> None:
    store = Script(hang.wait, hang.wait)
    blob = retried(store, hedge_after_s=0.001, read_timeout_s=1.0, first_s=0.001)

    assert blob.get("key") == b"value"

    assert not hang.is_set()
    count = blob.counts()["get"]
    assert (count.retries, count.timeouts) == (1, 1)
    assert count.hedges >= 1, "a busy machine may hedge the second attempt, too"


def test_reads_that_all_hang_are_given_up_as_unavailable(hang: threading.Event, retried: Retried) -> None:
    blob = retried(Script(*[hang.wait] * 100), hedge=True, read_timeout_s=0.01, attempts_max=3, first_s=0.001)

    with pytest.raises(Unavailable, match=r"given up after .* had no answer within 0\.01 s"):
        blob.get("key")

    assert blob.counts()["get"] == RetryCount(retries=2, timeouts=3, gave_up=1)


def test_a_quick_read_is_asked_once(retried: Retried) -> None:
    store = Script()
    blob = retried(store, hedge_after_s=30)  # Of a busy machine, no read is slow.
    for _ in range(100):
        assert blob.get("key") == b"value"
    assert blob.get("absent") is None
    assert store.reads == 101
    assert blob.counts()["get"] == RetryCount()
    assert len(readers()) == 1, "one caller at a time needs one thread"


def test_threads_are_bounded_and_reads_beyond_them_are_made_by_their_callers(
    hang: threading.Event, retried: Retried
) -> None:
    arrived = threading.Semaphore(0)

    def wait() -> None:
        arrived.release()
        hang.wait()

    store = Script(*[wait] * 6)
    blob = retried(store, read_threads_max=4, hedge_after_s=10)
    with ThreadPoolExecutor(6) as pool:
        reads = [pool.submit(blob.get, "key") for _ in range(6)]
        for _ in range(6):
            assert arrived.acquire(timeout=5)
        assert len(readers()) == 4
        assert blob.get("key") == b"value"
        hang.set()
        assert [read.result(5) for read in reads] == [b"value"] * 6


def test_a_store_that_throttles_is_not_asked_twice(retried: Retried) -> None:
    store = ThrottlesOneWrite(lambda: time.sleep(0.05))
    blob = retried(store, hedge_after_s=0.001, first_s=0.001)
    blob.set("other", b"value")
    assert blob.requests_per_s_max is not None
    assert blob.get("key") == b"value"
    assert store.reads == 1
    assert blob.counts()["get"] == RetryCount()


def test_a_local_store_is_read_without_threads(retried: Retried) -> None:
    blob = retried(MemoryBlob())
    blob.set("key", b"value")
    assert blob.get("key") == b"value"
    assert readers() == []
    wrapped = retried(MeteredBlob(Script()))
    assert wrapped.is_remote
    assert wrapped.get("key") == b"value"
    assert len(readers()) == 1, "a wrapper around a remote store is remote"


def test_close_ends_all_threads_and_a_read_after_it_needs_none() -> None:
    blob = RetryBlob(Script())
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(blob.get, ["key"] * 100))
    assert readers()
    blob.close()
    blob.close()
    assert readers() == []
    assert blob.get("key") == b"value"
    assert readers() == []


def test_close_does_not_wait_for_a_read_that_hangs(
    hang: threading.Event, retried: Retried, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("persist.blob.layers.retry.CLOSE_TIMEOUT_S", 0.05)
    blob = retried(Script(hang.wait), hedge_after_s=0.001)
    assert blob.get("key") == b"value"
    began_s = time.monotonic()
    blob.close()
    assert time.monotonic() - began_s < 2
    (stuck,) = readers()
    assert stuck.daemon, "it must not keep the process from ending"
    hang.set()
    stuck.join(5)
    assert not stuck.is_alive()


def test_a_client_dropped_without_close_leaves_no_thread() -> None:
    blob = RetryBlob(Script())
    blob.get("key")
    (thread,) = readers()
    del blob
    gc.collect()
    thread.join(5)
    assert not thread.is_alive()


def test_the_delay_follows_what_recent_reads_took() -> None:
    pace = _Pace(None, 0.01)
    assert pace.delay_s() == DELAY_AT_FIRST_S
    for n in range(100):
        pace.record(0.1 + 0.001 * n)
    assert pace.delay_s() == pytest.approx(0.19, rel=0.05)
    for _ in range(2000):
        pace.record(0.5)
    assert pace.delay_s() == pytest.approx(0.5, rel=0.05)
    for _ in range(2000):
        pace.record(0.0001)
    assert pace.delay_s() == 0.01, "no less than the floor"


def test_hedges_are_a_tenth_of_the_reads() -> None:
    pace = _Pace(0.0, 0.01)
    assert sum(pace.take_hedge() for _ in range(100)) == HEDGES_SAVED_MAX
    hedges = 0
    for _ in range(1000):
        pace.record(1.0)
        hedges += pace.take_hedge()
    assert 95 <= hedges <= 101


def test_a_crew_runs_each_job_at_once_or_not_at_all() -> None:
    crew = DaemonThreads(2, "test-crew")
    go, done = threading.Event(), threading.Semaphore(0)

    def job() -> Callable[[], None]:
        go.wait(5)
        return done.release

    assert [crew.try_run(job) for _ in range(4)] == [True, True, False, False]
    go.set()
    assert all(done.acquire(timeout=5) for _ in range(2))
    for _ in range(1000):
        assert crew.try_run(job), "a thread is idle when its report is given"
        assert done.acquire(timeout=5)
    crew.close(5)
    assert not crew.try_run(job)
    assert not [thread for thread in threading.enumerate() if thread.name == "test-crew"]


def test_a_crew_takes_jobs_beyond_its_threads_in_their_order_and_then_runs_at_once_again() -> None:
    crew, ran = DaemonThreads(1, "test-crew"), list[int]()
    go, done = threading.Event(), threading.Semaphore(0)

    def job(number: int) -> Callable[[], None]:
        go.wait(5)
        ran.append(number)
        return done.release

    assert all(crew.run(partial(job, number)) for number in range(5))
    assert not crew.try_run(partial(job, 5))
    go.set()
    assert all(done.acquire(timeout=5) for _ in range(5))
    assert ran == [0, 1, 2, 3, 4]
    assert crew.try_run(partial(job, 6))
    crew.close(None)
    assert ran[-1] == 6
    assert not crew.run(partial(job, 7))
