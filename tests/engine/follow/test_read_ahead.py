"""A client that is far behind in a remote store reads records at once, and each of them in its order."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

import persist
from persist.blob.errors import Unavailable
from persist.blob.layers.unreliable import Fault, UnreliableBlob
from persist.blob.protocol import MemoryBlob
from persist.core.log.records import AHEAD_FIRST, AHEAD_MAX, ONE_BY_ONE
from persist.engine.follow.follower import Follower
from tests.support.clocks import ImpatientClock
from tests.support.stepped import WAIT_S

QUIET = persist.Settings(background=False)


class Far(MemoryBlob):
    """A remote store that counts what is asked, and keeps records back until so many are asked for at once."""

    is_remote = True

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()
        self.lock = threading.Lock()
        self.barrier: threading.Barrier | None = None
        self.together: set[str] = set()

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        with self.lock:
            self.asked["get"] += 1
        if self.barrier is not None and key in self.together:
            self.barrier.wait(WAIT_S)
        return super().get(key, range)

    def list(self, prefix: str, start_after: str | None = None):  # type: ignore[no-untyped-def]
        self.asked["list"] += 1
        return super().list(prefix, start_after)


def grown(store: MemoryBlob, by: int) -> None:
    with persist.open(store, settings=QUIET) as client:
        c = client.create_or_load("c", key={"k": pa.int64()}, value={"v": pa.int64()})
        for n in range(by):
            c.write([(n, 1)]).result()


def test_records_are_read_at_once_after_the_first_few() -> None:
    store = Far()
    grown(store, 1)
    follower = Follower(store, ImpatientClock())
    began = follower.state.seqno
    grown(store, 40)
    ahead = range(began + 1 + ONE_BY_ONE, began + 1 + ONE_BY_ONE + AHEAD_FIRST)
    store.together = {f"log/{seqno:020d}" for seqno in ahead}
    store.barrier = threading.Barrier(AHEAD_FIRST)
    store.asked.clear()
    seqno = follower.refresh().seqno
    assert seqno >= began + 40
    assert store.asked["list"] == 0
    assert store.asked["get"] <= seqno - began + AHEAD_MAX
    assert not store.barrier.broken
    follower.close()


def test_a_record_that_cannot_be_read_ends_the_reading_after_those_before_it() -> None:
    store = Far()
    grown(store, 1)
    unreliable = UnreliableBlob(store)
    follower = Follower(unreliable, ImpatientClock())
    began = follower.state.seqno
    grown(store, 40)
    unreliable.script_faults("get", *[Fault.NONE] * 10, *[Fault.UNAVAILABLE] * 30)
    with pytest.raises(Unavailable):
        follower.refresh()
    assert began + ONE_BY_ONE <= follower.state.seqno <= began + 10
    while True:
        try:
            end = follower.refresh().seqno
            break
        except Unavailable:
            continue
    assert end == max(int(entry.key[4:24]) for entry in store.list("log/"))
    follower.close()


def test_a_follower_keeps_up_with_a_writer_and_sees_every_record_once() -> None:
    store = Far()
    grown(store, 1)
    follower = Follower(store, ImpatientClock())
    seen: list[int] = []
    follower.on_advance = seen.append
    first = follower.state.seqno
    writer = threading.Thread(target=grown, args=(store, 60))
    writer.start()
    while writer.is_alive():
        follower.refresh()
        writer.join(0.01)
    writer.join()
    last = follower.refresh().seqno
    assert seen == [*range(first + 1, last + 1)]
    follower.close()


class Growing(Far):
    """A remote store to which others write some records while the answer of a request of the main thread travels.

    What the threads of a pool ask for meanwhile travels at the same time.
    """

    def __init__(self, grows_by: int) -> None:
        super().__init__()
        self.grows_by = grows_by
        self.later: list[tuple[str, bytes]] = []
        self.asked_ahead = 0

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        found = super().get(key, range)
        if threading.current_thread() is threading.main_thread():
            self.pass_time()
        else:
            with self.lock:
                self.asked_ahead += 1
                if self.asked_ahead % AHEAD_FIRST == 0:
                    self.pass_time()
        return found

    def pass_time(self) -> None:
        for key, value in self.later[: self.grows_by]:
            self.set(key, value)
        del self.later[: self.grows_by]


def test_a_reader_catches_up_with_a_log_that_grows_by_two_records_in_each_round_trip() -> None:
    written = MemoryBlob()
    grown(written, 300)
    log = [(entry.key, written.get(entry.key) or b"") for entry in written.list("log/")]
    store = Growing(2)
    for key, value in log[:50]:
        store.set(key, value)
    with ThreadPoolExecutor(AHEAD_MAX) as pool:  # Where the main thread waits only.
        follower = Follower(store, ImpatientClock(), pool=pool)
        store.later = log[50:]
        for _ in range(5):
            store.pass_time()
        follower.refresh()
        assert len(store.later) > 200, "one by one, it ends where the log does"
        follower.close()


def test_the_log_is_listed_while_the_checkpoint_is_read() -> None:
    class Waiting(Far):
        """A store that keeps a checkpoint back until the log is listed."""

        is_listed = threading.Event()

        def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
            assert not key.startswith("checkpoint/") or self.is_listed.wait(WAIT_S), "the log is listed only afterwards"
            return super().get(key, range)

        def list(self, prefix: str, start_after: str | None = None):  # type: ignore[no-untyped-def]
            if prefix == "log/":
                self.is_listed.set()
            return super().list(prefix, start_after)

    store = Waiting()
    grown(store, 40)
    store.is_listed.clear()
    store.asked.clear()
    follower = Follower(store, ImpatientClock())
    assert [*store.list("checkpoint/")]
    assert follower.state.seqno == max(int(entry.key[4:24]) for entry in store.list("log/"))
    assert store.asked["get"] < 20  # The checkpoint, and the records after it; nothing that is not there.
    follower.close()


def test_a_client_that_may_write_proves_a_remote_store_when_it_opens() -> None:
    store = Far()
    grown(store, 3)
    offered: list[str] = []
    create = store.create

    def noting(key: str, value: bytes) -> bool:
        offered.append(key)
        return create(key, value)

    store.create = noting  # type: ignore[method-assign]
    newest = max(entry.key for entry in store.list("log/"))
    with persist.open(store, settings=QUIET, mode="read"):
        pass
    assert not offered
    with persist.open(store, settings=QUIET) as client:
        client["c"].write([(7, 7)]).result()
        assert offered == [newest, f"log/{client.seqno:020d}"]
