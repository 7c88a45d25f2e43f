"""Crews of daemon threads: bounded, in order, and gone when they are dropped."""

import gc
import threading
from collections.abc import Callable
from functools import partial

from persist.blob.threads import DaemonThreads, Pool


def test_a_crew_takes_jobs_beyond_its_threads_in_their_order() -> None:
    crew, ran = DaemonThreads(1, "test-crew"), list[int]()
    go, done = threading.Event(), threading.Semaphore(0)

    def job(number: int) -> Callable[[], None]:
        go.wait(5)
        ran.append(number)
        return done.release

    assert all(crew.run(partial(job, number)) for number in range(5))
    go.set()
    assert all(done.acquire(timeout=5) for _ in range(5))
    assert ran == [0, 1, 2, 3, 4]
    crew.close(None)
    assert not crew.run(partial(job, 7))


def test_a_pool_dropped_without_shutdown_leaves_no_thread() -> None:
    pool = Pool(2, "test-pool")
    assert pool.submit(lambda: 1).result() == 1
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "test-pool"]
    assert thread.daemon, "it must not keep the process from ending"
    del pool
    gc.collect()
    thread.join(5)
    assert not thread.is_alive()
