"""A new process that finds what others have decoded: 1,000 of 10M keys looked up with a cache folder, in CPU time.

    python -m benchmarks mapped
    python -m benchmarks.mapped LOCATION FOLDER KEYS    what the measure starts as the new process

There is no peer. One process looks keys up until all is in the folder; others, which begin with the page cache warm,
open the client, look 1,000 random keys up, and then others again.
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

import persist
from benchmarks.harness import Row, duration
from benchmarks.workspace import Workspace

KEYS, RUNS, WANTED, PER_RUN_MAX = 10_000_000, 10, 1000, 1_000_000
FOLDER_BYTES = 8 << 30


def mapped(work: Workspace) -> list[Row]:
    """Look keys up in new processes, one after the other."""
    count = max(100_000, round(KEYS * work.scale))
    location, folder = str(work.folder / "mapped"), str(work.folder / "mapped-cache")
    _write(location, count)
    _child(location, folder, count, [], repeats=40)  # So that whole blocks have been asked for, and are in the folder.
    taken = [_child(location, folder, count, [seed]) for seed in range(work.rounds)]
    opening, first, following = (statistics.median(each) for each in zip(*taken, strict=True))
    what = f"lookup of {WANTED:,} of {count:,} keys with cache_folder, in a new process"
    return [
        Row(f"{what}: opening and the first", "-", "<= 50 ms", f"{duration(opening + first)} of CPU"),
        Row(f"{what}: the next ones", "-", "-", f"{duration(following)} of CPU"),
    ]


def _write(location: str, count: int) -> None:
    """Write count keys in runs whose keys lie all over the key space."""
    with persist.open(location, settings=persist.Settings(background=False)) as client:
        value = {"a": pa.int64(), "b": pa.float64(), "name": pa.string(), "city": pa.string(), "at": pa.int64()}
        target = client.create_or_load("c", key={"k": pa.int64()}, value=value)
        names = pa.array([f"name {number}" for number in range(5000)])
        cities = pa.array([f"city {number}" for number in range(300)])
        for run in range(RUNS):
            keys = np.arange(run, count, RUNS)
            columns = {
                "k": keys,
                "a": keys,
                "b": keys / 7,
                "name": names.take(pa.array(keys % 5000)),
                "city": cities.take(pa.array(keys % 300)),
                "at": keys + run,
                "_time": np.full(len(keys), run),
                "_diff": np.ones(len(keys), np.int64),
            }
            target.write(pa.table(columns)).result()
        target.seal(RUNS).result()


def _child(location: str, folder: str, count: int, seeds: list[int], repeats: int = 1) -> list[float]:
    command = [sys.executable, "-m", "benchmarks.mapped", location, folder, str(count), str(repeats), *map(str, seeds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent.parent)
    return [float(each) for each in done.stdout.split()]


def look(location: str, folder: str, count: int, repeats: int, seed: int = 99) -> None:
    """Print the CPU seconds of opening, of the first look-up, and the median of the next ones."""
    settings = persist.Settings(background=False, cache_folder=folder, cache_folder_bytes=FOLDER_BYTES)
    chance, taken = np.random.default_rng(seed), []
    began = time.process_time()
    with persist.open(location, mode="read", settings=settings) as client:
        snapshot = client["c"].snapshot()
        opening = time.process_time() - began
        for _ in range(max(6, repeats)):
            keys = np.sort(chance.choice(count, WANTED, replace=False))
            wanted = pa.table({"k": keys})  # Beforehand: the first time, Arrow imports pandas for it.
            began = time.process_time()
            found = snapshot.get(wanted)
            taken.append(time.process_time() - began)
            assert found["a"].equals(pa.chunked_array([pa.array(keys)])), "the rows are wrong"
    print(opening, taken[0], statistics.median(taken[1:]))


if __name__ == "__main__":
    look(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
