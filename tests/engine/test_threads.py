"""How many threads a client has that writes to, and reads from, a remote store."""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

import persist
from persist.blob.protocol import MemoryBlob
from tests.support.tuned import tuned

POOL_MAX, NAMED_MAX = 16, 8
KEY, VALUE = {"k": pa.int64()}, {"v": pa.int64()}


class RemoteStore(MemoryBlob):
    """A remote store that notes the most threads of a client which live while it is asked for something."""

    is_remote = True

    def __init__(self) -> None:
        super().__init__()
        self.most: Counter[str] = Counter()
        self.before = {*threading.enumerate()}

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        self.note()
        return super().get(key, range)

    def create(self, key: str, value: bytes) -> bool:
        self.note()
        return super().create(key, value)

    def delete_page(self, keys: Sequence[str]) -> Mapping[str, persist.PersistError]:
        for key in keys:
            self.delete(key)
        return {}

    def note(self) -> None:
        threading.Event().wait(0.002)  # As a network would, so that requests are under way together.
        names = Counter(t.name for t in {*threading.enumerate()} - self.before if t.name.startswith("persist-"))
        self.most |= names


def test_a_writing_client_has_one_pool_and_at_most_eight_other_threads() -> None:
    store = RemoteStore()
    settings = tuned(inline_bytes=0, compaction_interval_s=0.05, gc_interval_s=1.0)
    with persist.open(store, settings=settings) as other:
        orders = other.create_or_load("orders", key=KEY, value=VALUE)
        for number in range(60):
            orders.write([((number, number), 0, 1)]).result()
        orders.seal(1).result()
    store.before = {*threading.enumerate()}
    store.most.clear()
    with persist.open(store, settings=settings) as client, ThreadPoolExecutor(12) as callers:
        users = client.create_or_load("users", key=KEY, value=VALUE, keyed=persist.Keyed())
        orders = client.load("orders")

        def work(number: int) -> None:
            orders.write([((number, n), 1, 1) for n in range(50)]).result()
            users.upsert([(number, number)]).result()
            assert orders.snapshot(0).count() == 60
            assert orders.snapshot(0).to_arrow().num_rows == 60
            client.collections()

        assert [*callers.map(work, range(24))] == [None] * 24
        client.gc()
    pool = store.most.pop("persist-io")
    assert 4 < pool <= POOL_MAX, "many requests are under way together, and the pool bounds them"
    others = store.most
    assert sum(others.values()) <= NAMED_MAX, others
    assert {*others.values()} == {1}, "each other thread has a name of its own"
