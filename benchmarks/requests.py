"""Requests of operations on a remote store, and how many of them wait for each other: what latencies add up to.

The store is one in memory that says it is remote, and takes `LATENCY_S` for each request. A request waits for all that
had ended when it began, so its depth is one more than the greatest of theirs, and the depth of an operation is that of
its deepest request: its time is that many latencies. Counts hardly depend on the machine, and
`tests/engine/test_requests.py` holds them; depths do a little, where threads are late.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa

import persist
from benchmarks.harness import Row
from benchmarks.ours import QUIET
from benchmarks.workspace import Workspace
from persist.blob.protocol import BlobEntry, MemoryBlob
from persist.engine.follow.checkpoint import write_checkpoint

T = TypeVar("T")

LATENCY_S = 0.02
LOOK = "look"
AGAIN = "again"


@dataclass
class Requests:
    """What was asked of a store: how many of each kind, and how many in a row."""

    kinds: Counter[str] = field(default_factory=Counter)
    spans: list[tuple[float, float]] = field(default_factory=list)

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.kinds.values())

    @property
    def steady(self) -> int:
        """All but looks at free slots of the log, and gets of the same bytes. A busy machine makes more of these."""
        return self.total - self.kinds[LOOK] - self.kinds[AGAIN]

    @property
    def writes(self) -> int:
        """Those that store something."""
        return self.kinds["create"] + self.kinds["set"]

    @property
    def in_a_row(self) -> int:
        """How many of them waited for each other."""
        depths: list[tuple[float, int]] = []  # When a request ended, and how deep it was.
        for began, ended in sorted(self.spans):
            depths.append((ended, 1 + max((depth for end, depth in depths if end <= began), default=0)))
        return max((depth for _, depth in depths), default=0)


class CountedStore(MemoryBlob):
    """A remote store, of which each request takes a while."""

    is_remote = True

    def __init__(self, latency_s: float = 0.0) -> None:
        super().__init__()
        self.latency_s = latency_s
        self.requests = Requests()
        self._counting = threading.Lock()
        self._seen: set[object] = set()  # Gets of this operation.

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        """Count a GET. If the slot of the log is free, it is a look."""
        with self._counting:
            kind = AGAIN if (key, range) in self._seen else "get"
            self._seen.add((key, range))
        return self._counted(
            kind,
            lambda: super(CountedStore, self).get(key, range),
            lambda value: LOOK if value is None and key.startswith("log/") else kind,
        )

    def set(self, key: str, value: bytes) -> None:
        """Count a PUT."""
        self._counted("set", lambda: super(CountedStore, self).set(key, value))

    def create(self, key: str, value: bytes) -> bool:
        """Count a conditional PUT."""
        return self._counted("create", lambda: super(CountedStore, self).create(key, value))

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobEntry]:
        """Count a page of LIST."""
        return iter(self._counted("list", lambda: [*super(CountedStore, self).list(prefix, start_after)]))

    def delete(self, key: str) -> None:
        """Count a DELETE."""
        self._counted("delete", lambda: super(CountedStore, self).delete(key))

    def _counted(self, kind: str, call: Callable[[], T], kind_of: Callable[[T], str] | None = None) -> T:
        began = time.perf_counter()
        if self.latency_s:
            time.sleep(self.latency_s)
        result = call()
        with self._counting:
            self.requests.kinds[kind if kind_of is None else kind_of(result)] += 1
            self.requests.spans.append((began, time.perf_counter()))
        return result

    def of(self, call: Callable[[], object]) -> Requests:
        """Return what a call asks for."""
        self.requests = requests = Requests()
        self._seen = set()
        call()
        self.requests = Requests()
        return requests


@dataclass(frozen=True)
class Operation:
    """An operation, what it asked for, and what is to be reached: requests, in a row, and PUTs (None: whatever)."""

    name: str
    requests: Requests
    reach: tuple[int, int]
    writes_max: int | None = None


def operations(latency_s: float = 0.0, parts: int = 450) -> Iterator[Operation]:
    """Yield the requests of each operation, on stores with this latency and a tail of so many small parts."""
    yield from _opening(latency_s)
    yield from _tail(latency_s, parts)
    yield from _many(latency_s)
    yield from _views(latency_s)


def _opening(latency_s: float) -> Iterator[Operation]:
    store = CountedStore()
    with _opened(store) as client:
        for number in range(1000):
            client.create_or_load(f"rows{number:04}", key={"k": pa.int64()}, value={"v": pa.int64()})
        _settle(store, client)
    store.latency_s = latency_s
    clients: list[persist.Client] = []
    yield Operation("open 1,000 collections", store.of(lambda: clients.append(_opened(store, "read"))), (10, 4))
    store.latency_s = 0.0
    with _opened(store) as writer:
        for number in range(40):
            writer.load("rows0000").write([(number, 1)]).result()
    store.latency_s = latency_s
    yield Operation("catch up 40 commits", store.of(lambda: clients[0].seqno), (45, 8))
    fresh = _opened(store)
    rows = fresh.load("rows0001")
    yield Operation("first write of a client", store.of(lambda: rows.write([(1, 1)]).result()), (2, 2))
    fresh.close()
    clients[0].close()


def _tail(latency_s: float, parts: int) -> Iterator[Operation]:
    store = CountedStore()
    with _opened(store) as client:
        rows = client.create_or_load("rows", key={"k": pa.int64()}, value={"v": pa.int64()})
        rows.write(_rows(0, 200_000, 0), seal=1).result()
        rows.compact()
        for number in range(1, parts + 1):
            rows.write(_rows(number * 200, 5000, number), seal=number + 1).result()
            _wait_for_checkpoint(client)
        _settle(store, client)
    store.latency_s = latency_s
    for name, call, reach in (
        (f"first get, tail of {parts} small parts", lambda c: c["rows"].snapshot().get([777]), (4, 3)),
        ("snapshot of the same", lambda c: c["rows"].snapshot().to_arrow(), (parts + 10, 15)),
    ):
        with _opened(store, "read") as client:
            yield Operation(name, store.of(lambda call=call, client=client: call(client)), reach)  # type: ignore[misc]
    with _opened(store) as client:
        yield Operation(f"compaction of {parts} small parts", store.of(client["rows"].compact), (parts + 150, 40))


def _many(latency_s: float) -> Iterator[Operation]:
    store = CountedStore()
    with _opened(store) as client:
        for number in range(100):
            rows = client.create_or_load(f"rows{number:02}", key={"k": pa.int64()}, value={"v": pa.int64()})
            rows.write([(1, 1)], time=0, seal=1)
        _settle(store, client)
    store.latency_s = latency_s
    with _opened(store) as client:
        names = client.collections()
        read = store.of(lambda: [each.to_arrow() for each in client.snapshots(dict.fromkeys(names)).values()])
        yield Operation("snapshots of 100 collections", read, (105, 6), 2)
    with _opened(store) as client:
        read = store.of(lambda: [client[name].snapshot().to_arrow() for name in names])
        yield Operation("the same, one after the other", read, (340, 300), None)


def _views(latency_s: float) -> Iterator[Operation]:
    store = CountedStore()
    with _opened(store) as client:
        rows = client.create_or_load("rows", key={"k": pa.int64()}, value={"v": pa.int64()})
        rows.write(_rows(0, 100_000, 0), seal=1).result()
        _settle(store, client)
    store.latency_s = latency_s

    with _opened(store) as client:
        views: list[persist.View] = []

        def make() -> None:
            views.append(client.create_view("sums", "SELECT v % 10 AS g, count(*) AS n FROM rows GROUP BY g"))
            views[0].refresh()

        yield Operation("create_view and first refresh", store.of(make), (10, 8))
        _insert(client, 1)
        yield Operation("refresh by an open handle, 10 rows changed", store.of(views[0].refresh), (2, 1))
        yield Operation("the same, nothing changed", store.of(views[0].refresh), (1, 1))
        store.latency_s = 0.0
        for time_ in range(2, 41):
            _insert(client, time_)
        views[0].refresh()
        client["rows"].compact()
        client["sums"].compact()
        _settle(store, client)

    def cold() -> None:
        with _opened(store) as fresh:
            fresh.view("sums").refresh()

    for name, times in (("10 rows changed", [41]), ("nothing changed", [])):
        with _opened(store) as client:
            for time_ in times:
                _insert(client, time_)
        store.latency_s = latency_s
        yield Operation(f"open, refresh a view, end: {name}", store.of(cold), (14, 9))
        store.latency_s = 0.0


def _settle(store: CountedStore, client: persist.Client) -> None:
    """Commit until no checkpoint is due soon, and write one: the background may be late on a busy machine."""
    client.describe("settle").result()
    while client.seqno % 16:
        client.describe(f"at {client.seqno}").result()
    _wait_for_checkpoint(client)
    write_checkpoint(store, *client.engine.follower.get_recent_records())


def _wait_for_checkpoint(client: persist.Client) -> None:
    """Wait until no checkpoint is being made."""
    client.engine.writer("settle").committer.groups.checkpointing.wait()


def _insert(client: persist.Client, time_: int) -> None:
    client["rows"].write(_rows(1_000_000 + 10 * time_, 10, time_), seal=time_ + 1).result()


def _opened(store: CountedStore, mode: str = "shared") -> persist.Client:
    return persist.open(store, mode=mode, settings=QUIET)  # type: ignore[arg-type]


def _rows(first: int, count: int, time_: int) -> pa.Table:
    keys = range(first, first + count)
    return pa.table(
        {"k": keys, "v": [key * 7919 % 1_000_003 for key in keys], "_time": [time_] * count, "_diff": [1] * count}
    )


def requests(work: Workspace) -> list[Row]:
    """Return a line for each operation: now, and what is to be reached."""
    lines = []
    for done in operations(LATENCY_S):
        puts = f", {done.requests.writes} PUTs" if done.writes_max is not None else ""
        most = f"<= {done.reach[0]}, <= {done.reach[1]}"
        most += f", <= {done.writes_max} PUTs" if done.writes_max is not None else ""
        shown = f"{done.requests.total} requests, {done.requests.in_a_row} in a row{puts}"
        lines.append(Row(done.name, "-", most, shown))
    return lines
