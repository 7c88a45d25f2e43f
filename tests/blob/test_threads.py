"""Crews of daemon threads: bounded, in order, and gone when they are dropped."""

import gc
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

import pytest

from persist.blob.threads import DaemonThreads, Pool, SystemClock
from tests.support.stepped import WAIT_S


def test_the_clocks_are_those_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    slept = list[float]()
    for name, replaced in (("time_ns", lambda: 1_999_999), ("monotonic", lambda: 2.5), ("sleep", slept.append)):
        monkeypatch.setattr(time, name, replaced)
    clock = SystemClock()
    clock.sleep(0.5)
    assert (clock.wall_ms(), clock.monotonic_s(), slept) == (1, 2.5, [0.5])


def test_a_crew_takes_jobs_beyond_its_threads_in_their_order() -> None:
    crew, ran = DaemonThreads(1, "test-crew"), list[int]()
    go, done = threading.Event(), threading.Semaphore(0)

    def job(number: int) -> Callable[[], None]:
        go.wait(WAIT_S)
        ran.append(number)
        return done.release

    assert all(crew.submit(partial(job, number)) for number in range(5))
    go.set()
    assert all(done.acquire(timeout=WAIT_S) for _ in range(5))
    assert ran == [0, 1, 2, 3, 4]
    crew.close(None)
    assert not crew.submit(partial(job, 7))


def test_a_pool_dropped_without_shutdown_leaves_no_thread() -> None:
    pool = Pool(2, "test-pool")
    assert pool.submit(lambda: 1).result() == 1
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "test-pool"]
    assert thread.daemon, "it must not keep the process from ending"
    del pool
    gc.collect()
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_work_of_a_full_pool_waits_for_other_work_of_it() -> None:
    pool, lock = Pool(1, "test-pool"), threading.Lock()

    def halve(number: int) -> int:
        with lock:
            pass
        return number if number == 1 else 1 + sum(pool.map(halve, [number // 2]))

    with lock:  # The only thread waits for it.
        waiting = pool.submit(halve, 64)
        assert pool.submit(abs, -1).result() == 1
        assert not waiting.done()
    assert waiting.result() == 7
    pool.shutdown()


def test_each_call_is_made_once_and_its_error_is_that_of_the_result() -> None:
    pool, calls = Pool(2, "test-pool"), list[int]()

    def fail(number: int) -> None:
        calls.append(number)
        raise ValueError(number)

    futures: list[Future[None]] = [pool.submit(fail, number) for number in range(100)]
    assert [str(future.exception()) for future in reversed(futures)] == [f"{number}" for number in range(99, -1, -1)]
    pool.shutdown()
    assert sorted(calls) == [*range(100)]


def test_what_is_cancelled_before_it_begins_is_not_computed() -> None:
    pool, go, calls = Pool(1, "test-pool"), threading.Event(), list[int]()
    begun = threading.Event()

    def begin() -> bool:
        begun.set()
        return go.wait(WAIT_S)

    before = pool.submit(begin)
    assert begun.wait(WAIT_S)
    assert pool.submit(calls.append, 1).cancel()
    go.set()
    assert before.result()
    pool.shutdown()
    assert calls == []


def test_a_thread_cleans_up_after_each_job() -> None:
    names, called = list[str](), threading.Semaphore(0)

    def note() -> None:
        names.append(threading.current_thread().name)
        called.release()

    pool = Pool(1, "test-pool", note)
    for number in range(2):
        assert pool.submit(abs, -number).result() == number
    assert all(called.acquire(timeout=WAIT_S) for _ in range(2))
    pool.shutdown()
    assert names == ["test-pool"] * 2


def test_threads_start_when_all_are_busy_up_to_their_number_and_end_when_closed() -> None:
    crew, done, go = DaemonThreads(3, "test-three"), threading.Semaphore(0), threading.Event()

    def count() -> int:
        return sum(thread.name == "test-three" for thread in threading.enumerate())

    def job(is_slow: bool) -> Callable[[], None]:
        assert not is_slow or go.wait(WAIT_S)
        return done.release

    of_crew = [one for one in weakref.finalize._registry if (one.peek() or [None])[0] is crew]  # type: ignore[attr-defined]
    assert [one.atexit for one in of_crew] == [False], "jobs of other threads may come at the end of the process"
    assert not crew.are_alive
    for _ in range(3):  # The report comes when the thread is free again.
        assert crew.submit(partial(job, False))
        assert done.acquire(timeout=WAIT_S)
        assert (count(), crew.are_alive) == (1, True)
    for expected in (1, 2, 3, 3, 3):
        assert crew.submit(partial(job, True))
        assert count() == expected
    crew.close(0.0)
    crew.close(0.0)
    assert (count(), crew.are_alive, crew.submit(partial(job, False))) == (3, True, False)
    go.set()
    crew.close(WAIT_S)
    assert (count(), crew.are_alive) == (0, False)
    assert all(done.acquire(blocking=False) for _ in range(5))
    assert not done.acquire(blocking=False)


def test_a_result_that_is_waited_for_with_a_limit_is_left_to_the_threads() -> None:
    pool, go, calls = Pool(1, "test-pool"), threading.Event(), list[str]()
    pool.submit(go.wait, WAIT_S)
    future = pool.submit(lambda: calls.append(threading.current_thread().name))
    for wait in (future.result, future.exception):
        with pytest.raises(TimeoutError):
            wait(0.001)
    go.set()
    pool.shutdown()
    assert (calls, future.exception(WAIT_S)) == (["test-pool"], None)
    with pytest.raises(RuntimeError, match="this pool was shut down"):
        pool.submit(go.wait)
