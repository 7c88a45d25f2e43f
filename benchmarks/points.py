"""1,000 single keys out of the 2M of `cdc-5m`, on a keyframe and a tail of 5%, each read alone.

The peers take so long for each key that they read a few of the same keys only; times are per key.
"""

import statistics
import time
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

import persist
from benchmarks.harness import Job, Measure, Row, Side, duration
from benchmarks.ours import COLLECTION, read_points
from benchmarks.targets import same_rows
from benchmarks.workspace import Workspace

SET = "cdc-5m"
READS, PEER_READS = 1000, 20


def points(work: Workspace) -> list[Row]:
    """Read keys one by one, against deltalake with a filter and DuckDB over the parts."""
    location, table = work.with_tail(SET), DeltaTable(work.delta(SET))
    [contents] = work.data(SET).contents([work.data(SET).uppers[-1] - 1])
    chance = np.random.default_rng(11)
    # Keys of all that ever were, so that some are not there.
    keys = [int(key) for key in chance.integers(0, contents["id"].to_numpy().max() + 1, READS)]
    # Those of nothing but the latest contents, in order of keys: the best that there is for the peer.
    query = f'SELECT id, name, amount, "at" FROM read_parquet({work.result_files(SET)}) WHERE id = ?'
    with persist.open(location, mode="read") as client, duckdb.connect() as connection:
        rows: Any = client.load(COLLECTION)
        snapshot = rows.snapshot()

        def ours() -> None:
            for key in keys:
                snapshot.get([key])

        def delta(key: int) -> pa.Table:
            return table.to_pyarrow_table(filters=[("id", "=", key)])

        def duck(key: int) -> pa.Table:
            return connection.sql(query, params=[key]).to_arrow_table()

        for key in keys[:5]:
            expected = contents.filter(pc.equal(contents["id"], key))
            assert same_rows(snapshot.get(pa.array([key])), expected, ["id"]), f"our record of key {key} is wrong"
            assert same_rows(delta(key), expected, ["id"]), f"deltalake has another record of key {key}"
            assert same_rows(duck(key), expected, ["id"]), f"DuckDB finds another record of key {key}"
        measure = f"{READS:,} point reads out of {len(contents):,} keys, each"
        work.explain(measure, snapshot)
        sides = [
            Side(lambda: [delta(key) for key in keys[:PEER_READS]], "deltalake", units=PEER_READS),
            Side(lambda: [duck(key) for key in keys[:PEER_READS]], "DuckDB", units=PEER_READS),
        ]
        what = f"deltalake with a filter, DuckDB over the compacted parts ({PEER_READS} keys each)"
        job = Job(read_points, [location, keys])
        row = Measure(measure, what, ">= 20x", Side(ours, units=READS), sides, job).run(
            work.rounds, work.memory_of, work.clock
        )
        return [row, _latency(snapshot, keys)]


def _latency(snapshot: Any, keys: list[int]) -> Row:
    taken = []
    for key in keys:
        began = time.perf_counter()
        snapshot.get([key])
        taken.append(time.perf_counter() - began)
    taken.sort()
    ours = f"{duration(statistics.median(taken))} (p99 {duration(taken[int(len(taken) * 0.99)])})"
    return Row("a point read, median", "-", "< 5 ms", ours)
