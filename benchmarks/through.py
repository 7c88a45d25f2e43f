"""How many commits a second many processes get out of one location on S3: racing for it, and through a server.

    python -m benchmarks.through [--processes N] [--seconds S] [--put-ms MS]

Every process seals a collection of its own, waits for the answer, and seals again: the worst case, because no process
has anything to group. The store is moto on this machine, and each PUT takes `--put-ms` more, as one to S3 does. Commits
are what was answered with success within the seconds; every answer is that of a durable record. CPU is that of all
clients, for each commit. Where the cores are busy with moto and 64 clients, both figures are lower than those of
machines of their own would be, and racing more so, because whoever loses a race reads a record and tries again.
"""

import argparse
import multiprocessing
import os
import platform
import statistics
import time
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier, Event
from queue import Queue
from typing import Any

import pyarrow as pa
import pyarrow.flight

import persist
from benchmarks.contention import Tally
from persist.blob.layers.metered import MeteredBlob
from persist.blob.stores.s3 import S3Blob
from tests.support.servers.fixtures import make_bucket, options_of, running_moto

QUIET = persist.Settings(background=False)
WARM_UP_S = 3.0


class FarBlob(MeteredBlob):
    """A store to which each PUT takes longer."""

    def __init__(self, bucket: str, options: dict[str, Any], put_s: float) -> None:
        super().__init__(S3Blob(bucket, "location", options))
        self._put_s = put_s

    def create(self, key: str, value: bytes) -> bool:
        time.sleep(self._put_s)
        return super().create(key, value)

    def set(self, key: str, value: bytes) -> None:
        time.sleep(self._put_s)
        super().set(key, value)


Store = tuple[str, dict[str, Any], float]


def serve(store: Store, told: Connection, ended: Event) -> None:
    """Commit for others, until that has ended."""
    with persist.open(FarBlob(*store), settings=QUIET) as client:
        server = client.serve("grpc://127.0.0.1:0", commits=True)
        told.send(server.url)
        ended.wait()
        told.send((client.metrics().groups["commits"]["records"], time.process_time()))


def compete(
    number: int, store: Store, url: str | None, seconds: float, start: Barrier, answers: "Queue[Tally]"
) -> None:
    """Be one process."""
    tally = Tally(number)
    with persist.open(FarBlob(*store), settings=QUIET, commit_through=url) as client:
        collection = client.load(f"c{number}")
        start.wait()
        warm_s = time.monotonic() + WARM_UP_S
        cpu_s, now_s, upper = 0.0, 0.0, 0
        while now_s < warm_s + seconds:
            if now_s < warm_s:
                cpu_s = time.process_time()
            began_s, upper = time.monotonic(), upper + 1
            collection.seal(upper).result()
            now_s = time.monotonic()
            if warm_s <= now_s < warm_s + seconds:
                tally.latencies_s.append(now_s - began_s)
        tally.cpu_s = time.process_time() - cpu_s
        tally.lost = int(client.metrics().groups["commits"]["lost_races"])
        tally.refused = int(client.metrics().groups["commits"]["in_doubt"])
    answers.put(tally)


def run(store: Store, processes: int, seconds: float, *, is_through: bool) -> tuple[list[Tally], str]:
    """Return what each process got, and what the server did."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    ended, url, said = context.Event(), None, ""
    server = context.Process(target=serve, args=(store, there, ended))
    if is_through:
        server.start()
        url = here.recv()
    start, answers = context.Barrier(processes), context.Queue()
    racers = [context.Process(target=compete, args=(n, store, url, seconds, start, answers)) for n in range(processes)]
    for racer in racers:
        racer.start()
    tallies = [answers.get(timeout=seconds + 300) for _ in racers]
    for racer in racers:
        racer.join()
    if is_through:
        ended.set()
        made, cpu_s = here.recv()
        said = f"; the server made {made:,} records with {cpu_s:.1f} s of CPU"
        server.join()
    return tallies, said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--put-ms", type=float, default=60.0)
    arguments = parser.parse_args()
    print(
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, load "
        f"{os.getloadavg()[0]:.1f}; {arguments.processes} processes, {arguments.seconds:g} s each, "
        f"{arguments.put_ms:g} ms added to each PUT",
        flush=True,
    )
    rates = []
    with running_moto() as endpoint:
        options = options_of(endpoint)
        for is_through in (False, True):
            store = make_bucket(options), options, arguments.put_ms / 1000
            with persist.open(FarBlob(store[0], options, 0.0), settings=QUIET) as client, client.multi_write():
                for n in range(arguments.processes):
                    client.create_or_load(f"c{n}", key={"k": pa.int64()})
            tallies, said = run(store, arguments.processes, arguments.seconds, is_through=is_through)
            waits = sorted(wait for tally in tallies for wait in tally.latencies_s)
            rates.append(len(waits) / arguments.seconds)
            print(
                f"{'through a server' if is_through else 'racing'}: {rates[-1]:,.1f} commits/s, median wait "
                f"{statistics.median(waits) * 1000 if waits else 0:,.0f} ms, p99 "
                f"{waits[int(len(waits) * 0.99)] * 1000 if waits else 0:,.0f} ms, "
                f"{sum(t.lost for t in tallies):,} races lost, {sum(t.refused for t in tallies)} in doubt, "
                f"{sum(t.cpu_s for t in tallies) / max(1, len(waits)) * 1000:.1f} ms of CPU per commit, "
                f"least and most commits of one {min(len(t.latencies_s) for t in tallies)} and "
                f"{max(len(t.latencies_s) for t in tallies)}{said}",
                flush=True,
            )
    print(f"{rates[1] / max(rates[0], 0.01):.1f}x")


if __name__ == "__main__":
    main()
