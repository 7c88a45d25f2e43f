"""What a commit costs in a location of many collections: `python -m benchmarks.directory`.

For each number of collections, a client opens the location and commits again and again, and what it stores is counted
by kind, and its CPU time taken. Bytes depend on what is written alone; CPU time includes all threads of the process.

    one     each commit seals one collection, another one each time
    claim   each commit is a claim on another collection, alone
    claims  all collections are claimed together, in one commit
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

import persist
from persist.blob.protocol import MemoryBlob
from persist.engine.hold import WantedClaim

COLLECTIONS = (10, 1_000, 10_000)
COMMITS = 1_600
SETTINGS = persist.Settings(background=False)


class CountingBlob(MemoryBlob):
    """Counts the bytes that are stored below each folder, and the requests of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.stored: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()

    def set(self, key: str, value: bytes) -> None:
        self.stored[key.partition("/")[0]] += len(value)
        super().set(key, value)

    def create(self, key: str, value: bytes) -> bool:
        self.stored[key.partition("/")[0]] += len(value)
        return super().create(key, value)

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        self.requests["get"] += 1
        return super().get(key, range)


@dataclass(frozen=True)
class Cost:
    """What some commits cost: bytes by folder and CPU seconds in all, and how many commits they were."""

    what: str
    collections: int
    commits: int
    stored: Counter[str]
    cpu_s: float

    def row(self) -> str:
        directory = sum(self.stored[each] for each in ("checkpoint", "directory", "state")) / self.commits
        log, cpu_ms = self.stored["log"] / self.commits, self.cpu_s * 1000 / self.commits
        return f"| {self.what} | {self.collections:,} | {log:,.0f} | {directory:,.0f} | {cpu_ms:.2f} |"


def location_of(blob: CountingBlob, count: int) -> None:
    """Make a location of that many collections, each with a few rows, for one record each thousand."""
    with persist.open(blob, settings=SETTINGS) as client:
        for start in range(0, count, 1000):
            names = [f"collection-{n:05}" for n in range(start, min(count, start + 1000))]
            made = [client.create_or_load(name, key={"k": pa.int64()}, value={"v": pa.string()}) for name in names]
            with client.multi_write() as multi:
                for each in made:
                    multi.write(each, [((1, "one"), 0, 1), ((2, "two"), 0, 1)])
                    multi.seal(each, 1)


def measured(what: str, blob: CountingBlob, commits: int, work: Callable[[persist.Client], object]) -> Cost:
    with persist.open(blob, settings=SETTINGS) as client:
        collections = len(client.collections())
        blob.stored.clear()
        began_s = time.process_time()
        work(client)
        client.engine.pool.submit(int).result()  # The last checkpoint may still be under way.
        cpu_s = time.process_time() - began_s
        return Cost(what, collections, commits, Counter(blob.stored), cpu_s)


def seal_each_in_turn(client: persist.Client, commits: int) -> None:
    names = client.collections()
    handles = [client.load(name) for name in names[: min(len(names), commits)]]
    for n in range(commits):
        handle = handles[n * 7919 % len(handles)]
        handle.seal(2 + n).result()


def claim_each(client: persist.Client, commits: int) -> None:
    state = client.engine.follower.state
    for name in client.collections()[:commits]:
        client.engine.claim(state.ids[name], name, 0)


def claim_all(client: persist.Client) -> None:
    state = client.engine.follower.state
    client.engine.claim_all([WantedClaim(state.ids[name], name, 0) for name in client.collections()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--collections", type=int, nargs="*", default=COLLECTIONS)
    parser.add_argument("--commits", type=int, default=COMMITS)
    asked = parser.parse_args()
    print("| what | collections | bytes of log per commit | of checkpoints and what they name | CPU ms per commit |")
    print("|---|---|---|---|---|")
    for count in asked.collections:
        blob = CountingBlob()
        location_of(blob, count)
        print(measured("one", blob, asked.commits, lambda c: seal_each_in_turn(c, asked.commits)).row())
        claims = min(count, asked.commits)
        print(measured("claim", blob, claims, lambda c: claim_each(c, claims)).row())  # noqa: B023
        print(measured("claims", blob, 1, claim_all).row())
        blob.requests.clear()
        began_s = time.process_time()
        persist.open(blob, mode="read").close()
        opened = f"{blob.requests['get']} GETs, {1000 * (time.process_time() - began_s):.0f} ms of CPU"
        print(f"opening {count:,} collections: {opened}", file=sys.stderr)


if __name__ == "__main__":
    main()
