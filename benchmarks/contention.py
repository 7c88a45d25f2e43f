"""How many commits a second many processes get out of one location, and whether each gets its share.

    python -m benchmarks.contention [--processes N] [--seconds S] [--folder FOLDER]

All processes commit to one folder, durably, and wait for each commit before they ask for the next: the worst case,
because there is nothing to group. Three loads:

- *own*: each process seals a collection of its own;
- *same*: all seal the same one, to one beyond the upper they know. Whoever comes second finds nothing left to do, or is
  refused and learns the upper: both are answers, but only records in the log count as commits;
- *slow*: as *own*, and one process more that appends a large batch with every commit. It starves if what it does to
  validate again after a lost race takes longer than the others take to commit.

A *lost race* is a `create` of a log record that found the slot taken. A process's share is what it got of all answers,
times the number of processes: 1 is fair. CPU time is that of all processes together, for each answer.
"""

import argparse
import multiprocessing
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.synchronize import Barrier
from pathlib import Path
from queue import Queue

import numpy as np
import pyarrow as pa

import persist
from persist.blob.layers.metered import MeteredBlob
from persist.blob.stores.file import FileBlob

LARGE_ROWS = 100_000
WARM_UP_S = 0.5


class RacingBlob(MeteredBlob):
    """Counts lost races, besides."""

    lost = 0

    def create(self, key: str, value: bytes) -> bool:
        created = super().create(key, value)
        self.lost += key.startswith("log/") and not created
        return created


@dataclass
class Tally:
    """What one process got.

    Attributes:
        lost: races.
        cpu_s: spent by this process.
        latencies_s: of each answer.
        refused: how many of the answers were refusals.
        requests: to the store, by operation.
    """

    number: int
    lost: int = 0
    cpu_s: float = 0.0
    refused: int = 0
    latencies_s: list[float] = field(default_factory=list)
    requests: dict[str, int] = field(default_factory=dict)


def seal_loop(collection: persist.Collection, goes_on: Callable[[], bool], tally: Tally) -> None:
    """Seal to one beyond the upper that is known, again and again."""
    upper = collection.upper.time or 0
    while goes_on():
        began = time.perf_counter()
        try:
            collection.seal(upper + 1).result()
            upper += 1
        except persist.errors.FrontierRegression as error:
            tally.refused += 1
            upper = error.current.time or 0
        tally.latencies_s.append(time.perf_counter() - began)


def append_loop(collection: persist.Collection, goes_on: Callable[[], bool], tally: Tally) -> None:
    """Append LARGE_ROWS updates with every commit."""
    keys = np.random.default_rng(tally.number).permutation(LARGE_ROWS)
    times, diffs = np.zeros(LARGE_ROWS, np.int64), np.ones(LARGE_ROWS, np.int64)
    table = pa.table({"k": keys, "_time": times, "_diff": diffs})
    while goes_on():
        began = time.perf_counter()
        collection.write(table).result()
        tally.latencies_s.append(time.perf_counter() - began)


def compete(
    number: int,
    name: str,
    is_large: bool,
    folder: str,
    seconds: float,
    start: Barrier,
    answers: "Queue[Tally]",
) -> None:
    """Be one process."""
    tally = Tally(number)
    blob = RacingBlob(FileBlob(folder))
    with persist.open(blob) as client:
        collection = client.create_or_load(name, key={"k": pa.int64()})
        loop = append_loop if is_large else seal_loop
        start.wait()
        warm_s = time.monotonic() + WARM_UP_S
        loop(collection, lambda: time.monotonic() < warm_s, Tally(number))
        blob.lost = 0
        before, cpu_s = blob.get_counts(), time.process_time()
        ends_s = warm_s + seconds
        loop(collection, lambda: time.monotonic() < ends_s, tally)
        tally.lost = blob.lost
        tally.cpu_s = time.process_time() - cpu_s
        tally.requests = {k: c.requests - before[k].requests for k, c in blob.get_counts().items()}
    answers.put(tally)


def run(load: str, processes: int, folder: Path, seconds: float) -> tuple[list[Tally], float]:
    """Return what each process got, the slow one last, and the commits a second."""
    names = ["same" if load == "same" else f"c{number}" for number in range(processes)]
    names += ["slow"] if load == "slow" else []
    with persist.open(folder) as client:
        for name in names:
            client.create_or_load(name, key={"k": pa.int64()})
    # Forked before this process has threads: a new interpreter for each would take seconds to import all.
    context = multiprocessing.get_context("fork")
    start, answers = context.Barrier(len(names)), context.Queue()
    racers = [
        context.Process(target=compete, args=(n, name, name == "slow", str(folder), seconds, start, answers))
        for n, name in enumerate(names)
    ]
    for racer in racers:
        racer.start()
    tallies = sorted((answers.get(timeout=seconds + 60) for _ in racers), key=lambda tally: tally.number)
    for racer in racers:
        racer.join()
    records = [path.stat().st_mtime for path in (folder / "log").iterdir()]
    ended = max(records)
    in_time = sum(ended - seconds < made <= ended for made in records)
    return tallies, in_time / seconds


def cells(load: str, tallies: list[Tally], rate: float) -> dict[str, str]:
    """Return a line of the report, by column."""
    fast = tallies[:-1] if load == "slow" else tallies
    total = sum(len(t.latencies_s) for t in fast)
    shares = sorted(len(t.latencies_s) / total * len(fast) for t in fast)
    waits = sorted(s for t in fast for s in t.latencies_s)
    lost = sum(t.lost for t in tallies)
    answers = sum(len(t.latencies_s) for t in tallies)
    refused = sum(t.refused for t in tallies)
    gets = sum(t.requests["get"] for t in tallies)
    return {
        "load": load,
        "commits/s": f"{rate:,.0f}",
        "answers": f"{answers:,}",
        "refused": f"{refused / answers:.0%}",
        "least share": f"{shares[0]:.2f}",
        "greatest share": f"{shares[-1]:.2f}",
        "lost races per answer": f"{lost / answers:.2f}",
        "GETs per answer": f"{gets / answers:.1f}",
        "median wait": f"{statistics.median(waits) * 1000:.0f} ms",
        "p99": f"{waits[int(len(waits) * 0.99)] * 1000:.0f} ms",
        "longest": f"{waits[-1] * 1000:.0f} ms",
        "CPU": f"{sum(t.cpu_s for t in tallies) / answers * 1000:.1f} ms",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--loads", nargs="*", default=["own", "same", "slow"], choices=["own", "same", "slow"])
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder by default")
    arguments = parser.parse_args()
    print(
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}"
    )
    print(f"{arguments.processes} processes, {arguments.seconds:g} s each load, durable\n")
    for load in arguments.loads:
        with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="persist-bench-") as name:
            tallies, rate = run(load, arguments.processes, Path(name), arguments.seconds)
        row = cells(load, tallies, rate)
        if load == arguments.loads[0]:
            print("| " + " | ".join(row) + " |\n" + "|---" * len(row) + "|")
        print("| " + " | ".join(row.values()) + " |", flush=True)
        if load == "slow":
            slow = tallies[-1]
            waits = sorted(slow.latencies_s)
            print(
                f"\nThe slow one: {len(waits)} commits of {LARGE_ROWS:,} updates, {slow.lost} lost races, "
                f"median {statistics.median(waits) * 1000:.0f} ms, longest {waits[-1] * 1000:.0f} ms"
            )


if __name__ == "__main__":
    main()
