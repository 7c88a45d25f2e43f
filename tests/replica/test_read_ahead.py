"""A client that is far behind in a remote store reads records at once, and each of them in its order."""

import threading
from collections import Counter

import pyarrow as pa
import pytest

import persist
from persist.blob import Fault, MemoryBlob, Unavailable, UnreliableBlob
from persist.log.commits import AT_ONCE, ONE_BY_ONE
from persist.replica import Follower
from tests.clocks import ImpatientClock

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
            self.barrier.wait(20)
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
    ahead = range(began + 1 + ONE_BY_ONE, began + 1 + ONE_BY_ONE + AT_ONCE)
    store.together = {f"log/{seqno:020d}" for seqno in ahead}
    store.barrier = threading.Barrier(AT_ONCE)
    store.asked.clear()
    seqno = follower.refresh().seqno
    assert seqno >= began + 40
    assert store.asked["list"] == 1
    assert store.asked["get"] <= seqno - began + 1
    assert not store.barrier.broken
    follower.close()


def test_a_record_that_cannot_be_read_ends_the_reading_after_those_before_it() -> None:
    store = Far()
    grown(store, 1)
    unreliable = UnreliableBlob(store)
    follower = Follower(unreliable, ImpatientClock())
    began = follower.state.seqno
    grown(store, 40)
    unreliable.next_faults("get", *[Fault.NONE] * 10, *[Fault.UNAVAILABLE] * 30)
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
