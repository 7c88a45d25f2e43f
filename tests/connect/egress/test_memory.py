"""Sinks within a budget, under a hard limit of the operating system, on what is many times the budget.

See `tests/rules/test_memory.py`: a process may take its budget, and what allocators keep, beyond what it has when it
begins.
"""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import persist
from persist.core.settings import Tuning
from tests.rules.test_memory import BUDGET, POOL, ROW_BYTES, SLACK, private_bytes
from tests.support.paths import ROOT

BATCHES = 16
ROWS = 30 * BUDGET // ROW_BYTES // BATCHES  # Of one batch.


def random_rows(at: int, chance: np.random.Generator, rows: int, time: int) -> pa.Table:
    noise = pa.py_buffer(chance.bytes(rows * ROW_BYTES))
    values = pa.Array.from_buffers(pa.binary(ROW_BYTES), rows, [None, noise]).cast(pa.binary())
    keys = np.arange(at * rows, (at + 1) * rows)
    return pa.table({"k": keys, "v": values, "_time": np.full(rows, time), "_diff": np.ones(rows, np.int64)})


def sent(location: str, folder: str, rows: int) -> None:
    """Send contents without a key, and changes of one time by key, into files."""
    settings = persist.Settings(background=False, memory_budget=BUDGET, tuning=Tuning(keyframe_rows_min=10**9))
    chance = np.random.default_rng(1)
    with persist.open(location, settings=settings) as client:
        lines = client.create_or_load("lines", key=None, value={"k": pa.int64(), "v": pa.binary()})
        keyed = client.create_or_load("keyed", key={"k": pa.int64()}, value={"v": pa.binary()})
        keyed.seal(1).result()
        config = {"sink": folder, "name": "files", "file_bytes": 8 << 20}
        persist.egress(client, {**config, "collections": ["keyed"]}, once=True)
        for at in range(BATCHES):
            lines.write(random_rows(at, chance, rows, at), seal=at + 1).result()
            keyed.write(random_rows(at, chance, rows, 1)).result()
        keyed.seal(2).result()
        persist.egress(client, {**config, "collections": ["keyed", "lines"]}, once=True)


def work(location: str, folder: str) -> None:
    """Do everything, first with little data, so that threads have their stacks; then under the limit with all."""
    sent("memory://warm", f"{folder}/warm", 100)
    limit = private_bytes() + BUDGET + SLACK
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    sent(location, f"{folder}/all", ROWS)
    print(json.dumps("sent"), flush=True)


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts private memory on Linux only")
@pytest.mark.timeout(290)
def test_sinks_of_files_work_within_the_budget_on_thirty_times_the_budget(tmp_path: Path) -> None:
    code = f"from tests.connect.egress.test_memory import work; work({str(tmp_path / 'location')!r}, {str(tmp_path)!r})"
    environment = {**os.environ, **POOL, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    for name in ("lines", "keyed"):
        files = [*(tmp_path / "all" / name).iterdir()]
        assert len(files) > 10
        keys = np.sort(np.concatenate([pq.read_table(file, columns=["k"])["k"].to_numpy() for file in files]))
        assert np.array_equal(keys, np.arange(BATCHES * ROWS))
