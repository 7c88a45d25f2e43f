"""A new version of everything: an overwrite of 1M rows of which 1% changed, against what it must at least do.

What it must at least do: read what is there, and write as many new rows and read them, as whoever compares two tables
of files would. CPU time of the library alone, in alternation.
"""

import time
from typing import Any

import numpy as np
import pyarrow as pa

import persist
from benchmarks.harness import Row, duration
from benchmarks.workspace import Workspace

ROWS = 1_000_000


def overwrites(work: Workspace) -> list[Row]:
    """Overwrite a collection with nearly the same rows, again and again."""
    count = max(1000, round(ROWS * work.scale))
    chance = np.random.default_rng(3)
    ours, least = [], []
    with persist.open(str(work.folder / "overwrites"), settings=persist.Settings(background=False)) as client:
        schema: dict[str, Any] = {"key": {"k": int}, "value": {"a": int, "b": float, "name": str}}
        orders = client.create_or_load("orders", **schema)
        rows = _rows(count)
        orders.overwrite(rows, time=0).result()
        for turn in range(1, max(work.rounds, 2) + 1):
            changed = chance.choice(count, count // 100, replace=False)
            values = rows["a"].to_numpy().copy()
            values[changed] += turn
            rows = rows.set_column(1, "a", pa.array(values))
            began = time.process_time()
            orders.overwrite(rows, time=turn).result()
            ours.append(time.process_time() - began)
            assert orders.changes(turn).to_arrow().num_rows == 2 * len(changed), "the difference is wrong"
            other = client.create_or_load(f"other {turn}", **schema)
            began = time.process_time()
            assert len(orders.snapshot(turn - 1).to_arrow()) == count
            other.write(rows, time=0, seal=1).result()
            assert len(other.snapshot().to_arrow()) == count
            least.append(time.process_time() - began)
    ratio = np.median([them / us for them, us in zip(least, ours, strict=True)])
    against = f"reading both sides and one write, {duration(min(least))} of CPU"
    shown = f"{duration(min(ours))} of CPU, {ratio:.2f} times as fast"
    return [Row(f"overwrite of {count:,} rows, 1% changed", against, ">= 1", shown)]


def _rows(count: int) -> pa.Table:
    numbers = np.arange(count)
    names = pa.array([f"customer-{number % 5000:05d}" for number in range(count)])
    return pa.table({"k": numbers, "a": numbers * 7, "b": numbers / 3, "name": names})
