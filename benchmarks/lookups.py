"""Many keys at once, in memory: CPU time of a look-up of 10 to 100,000 keys out of 1M, in ten runs of history.

There is no peer: it is the CPU time of the library alone, the least of some rounds, so that two versions can be
compared on a busy machine. `get` with Arrow keys measures versions that have no `lookup`.
"""

import time
from typing import Any

import numpy as np
import pyarrow as pa

import persist
from benchmarks.harness import Row, duration
from benchmarks.workspace import Workspace

KEYS, RUNS = 1_000_000, 10
REACH = {"int64": (0.4, 3, 7, 36), "string": (None, 4, 9, 28)}  # In ms, for as many keys as COUNTS says.
COUNTS = (10, 1000, 10_000, 100_000)


def lookups(work: Workspace) -> list[Row]:
    """Look random keys up that are all there, until the time no longer falls."""
    count = max(10 * RUNS, round(KEYS * work.scale))
    return [row for kind in REACH for row in _measured(work, kind, count)]


def _measured(work: Workspace, kind: str, count: int) -> list[Row]:
    rows, chance = [], np.random.default_rng(5)
    with persist.open(str(work.folder / f"lookups-{kind}"), settings=persist.Settings(background=False)) as client:
        snapshot = _written(client, kind, count).snapshot()
        find = getattr(snapshot, "lookup", snapshot.get)
        for size, reach in zip(COUNTS, REACH[kind], strict=True):
            size = min(size, count)
            chosen = [chance.choice(count, size, replace=False) for _ in range(4)]
            taken = []
            for _ in range(max(work.rounds, 2)):
                for numbers in chosen:
                    keys = pa.table({"k": _keys(numbers, kind)})
                    began = time.process_time()
                    found = find(keys)
                    taken.append(time.process_time() - began)
                    assert found["a"].to_pylist() == sorted(numbers.tolist()), "the rows are wrong"
            wanted = "-" if reach is None else f"<= {reach} ms"
            least = f"{duration(min(taken))} of CPU"
            rows.append(Row(f"lookup of {size:,} of {count:,} {kind} keys, {RUNS} runs, warm", "-", wanted, least))
    return rows


def _keys(numbers: Any, kind: str) -> pa.Array:
    return pa.array(numbers if kind == "int64" else [f"customer-{number:08d}" for number in numbers.tolist()])


def _written(client: persist.Client, kind: str, count: int) -> persist.Collection:
    value = {"a": pa.int64(), "b": pa.float64(), "name": pa.string(), "city": pa.string(), "at": pa.int64()}
    made = client.create_or_load("c", key={"k": _keys(np.zeros(1, np.int64), kind).type}, value=value)
    for run, numbers in enumerate(np.array_split(np.random.default_rng(1).permutation(count), RUNS)):
        columns = {
            "k": _keys(numbers, kind),
            "a": numbers,
            "b": numbers / 7,
            "name": [f"name {number % 5000}" for number in numbers.tolist()],
            "city": [f"city {number % 300}" for number in numbers.tolist()],
            "at": numbers + run,
        }
        updates = columns | {"_time": np.full(len(numbers), run), "_diff": np.ones(len(numbers), np.int64)}
        made.write(pa.table(updates)).result()
    made.seal(RUNS).result()
    return made
