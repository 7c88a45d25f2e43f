"""Writing, merging, compaction and `to_batches` within a budget, under a hard limit of the operating system.

A process of its own writes a collection of 20 times the budget, and is then allowed no more private memory than it has
after its imports, the budget and what allocators may keep of what was freed. What goes beyond fails to be allocated.
"""

import itertools
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import persist
from persist.core.settings import Tuning
from tests.support.paths import ROOT

BUDGET = 16 << 20
SLACK = 200 << 20
POOL: dict[str, str] = {}
ROW_BYTES = 400
BATCHES = 24
ROWS = 20 * BUDGET // ROW_BYTES // BATCHES  # Of one batch.
KEYS = BATCHES * ROWS // 3


def batches() -> Iterator[pa.Table]:
    """Yield inserts of random records, and retractions of a third of them some batches later."""
    chance = np.random.default_rng(1)
    recent: list[tuple[np.ndarray, pa.Array]] = []
    for at in range(BATCHES):
        keys = chance.integers(0, KEYS, ROWS)
        noise = pa.py_buffer(chance.bytes(ROWS * ROW_BYTES))
        values = pa.Array.from_buffers(pa.binary(ROW_BYTES), ROWS, [None, noise]).cast(pa.binary())
        tables = [(keys, values, 1)]
        recent.append((keys[: ROWS // 3], values[: ROWS // 3]))
        if len(recent) > 3:
            tables.append((*recent.pop(0), -1))
        yield pa.concat_tables(
            pa.table({"k": k, "v": v, "_time": np.full(len(k), at), "_diff": np.full(len(k), d)}) for k, v, d in tables
        )


def private_bytes() -> int:
    """Return what RLIMIT_DATA counts."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmData:")[1].split()[0]) << 10


def everything(location: str, some: Iterator[pa.Table], settings: persist.Settings) -> dict[str, int]:
    """Write batches and read them in every way; return what came of it."""
    with persist.open(location, settings=settings) as client:
        c = client.create_or_load("c", key={"k": pa.int64()}, value={"v": pa.binary()})
        upper = 0
        for table in some:
            upper += 1
            c.write(table, seal=upper).result()
        return {
            "merged": c.compact(only_due=True).runs_merged,
            "raw": sum(batch.num_rows for batch in c.snapshot().to_batches()),
            "changes": sum(batch.num_rows for batch in c.changes(upper // 2, upper // 2 + 1).to_batches()),
            "compacted": len(c.compact().keyframes),
            "back": sum(batch.num_rows for batch in c.snapshot(upper - 3).to_batches()),
            "count": c.snapshot().count(),
            "stored": stored(client, c),
        }


def stored(client: persist.Client, collection: persist.Collection) -> int:
    """Return what all parts take decoded."""
    contents = client.engine.follower.load(collection.id)
    assert contents is not None
    return sum(part.memory for part in contents.parts)


def work(location: str) -> None:
    """Do everything, first with little data, so that threads have their stacks; then under the limit with all."""
    policy = Tuning(keyframe_rows_min=10**9, merge_runs=8)
    settings = persist.Settings(background=False, memory_budget=BUDGET, tuning=policy)
    everything("memory://warm", itertools.islice(batches(), 4), settings)
    limit = private_bytes() + BUDGET + SLACK
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    print(json.dumps(everything(location, batches(), settings)), flush=True)


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts private memory on Linux only")
@pytest.mark.timeout(290)
def test_everything_works_within_the_budget_on_a_collection_of_twenty_times_the_budget(tmp_path: Path) -> None:
    code = f"from tests.rules.test_memory import work; work({str(tmp_path)!r})"
    environment = {**os.environ, **POOL, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    assert found["stored"] >= 20 * BUDGET
    assert found["raw"] == found["count"] == BATCHES * ROWS - (BATCHES - 3) * (ROWS // 3)
    assert found["compacted"] == 1
    assert found["merged"] >= 8
