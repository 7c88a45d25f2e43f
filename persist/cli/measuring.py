"""What a client can do at a location: commits, writing, reading and look-ups, each by the wall clock."""

import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

import persist
from persist.cli.text import print_table

LOOKUPS = 100


def measure(client: "persist.Client", rows: int, commits: int) -> dict[str, Any]:
    """Return seconds and rates. What is written is destroyed; garbage collection frees it."""
    name = f"persist-bench-{uuid.uuid4().hex[:12]}"
    made = client.create_or_load(name, key={"k": pa.int64()}, value={"v": pa.float64(), "s": pa.string()})
    try:
        keys = np.arange(rows)
        table = pa.table({"k": keys, "v": keys * 0.5, "s": np.char.mod("value %d", keys % 1000)})
        write_s = _timed(lambda: made.write(table, time=0, seal=1).result())
        each_s = [_timed(partial(_commit, made, n)) for n in range(commits)]
        read_s = _timed(lambda: sum(batch.num_rows for batch in made.snapshot(0).to_batches()))
        wanted = pa.table({"k": np.linspace(0, rows - 1, LOOKUPS).astype(np.int64)})
        with made.snapshot(0) as snapshot:
            lookup_s = _timed(lambda: snapshot.lookup(wanted))
        return {
            "location": client.url,
            "rows": rows,
            "write_s": write_s,
            "write_rows_per_s": rows / write_s,
            "read_s": read_s,
            "read_rows_per_s": rows / read_s,
            "commits": commits,
            "commit_median_s": float(np.median(each_s)),
            "commit_max_s": max(each_s),
            "lookup_100_keys_s": lookup_s,
        }
    finally:
        made.destroy().result()


def print_measures(measures: dict[str, Any]) -> None:
    """Print them for people."""
    m = measures
    rows = [
        ("write and seal", f"{m['rows']:,} rows", f"{m['write_s']:.3f} s", f"{m['write_rows_per_s']:,.0f} rows/s"),
        ("read", f"{m['rows']:,} rows", f"{m['read_s']:.3f} s", f"{m['read_rows_per_s']:,.0f} rows/s"),
        (
            "commit of a row",
            f"{m['commits']} commits",
            f"{m['commit_median_s'] * 1000:.1f} ms",
            f"{m['commit_max_s'] * 1000:.1f} ms at most",
        ),
        ("look-up", f"{LOOKUPS} keys", f"{m['lookup_100_keys_s'] * 1000:.1f} ms", ""),
    ]
    print_table(("what", "how much", "took", "that is"), rows, right=(2, 3))


def _commit(made: "persist.Collection", n: int) -> None:
    made.write([((n, (0.0, "x")), n + 1, 1)], seal=n + 2).result()


def _timed(what: Callable[[], object]) -> float:
    began = time.perf_counter()
    what()
    return time.perf_counter() - began
