"""The latest contents in Spark, with a tail: processor time of the JVM and of Python, beside plain Parquet.

    python -m benchmarks.spark_latest [ROWS] [ROUNDS] [FOLDER]

Each query is run by both sides in alternation; the first round warms up and does not count. Planning is in the time.
The tail is upserts, so each key has one row, and what it replaces is taken out by key.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import persist
import persist.spark
from benchmarks.spark import session

PIECE_ROWS = 4_000_000
TAIL = 0.0085  # Of the rows are replaced, which makes twice as many updates.
QUERIES: dict[str, Callable[[DataFrame], Any]] = {
    "group by and sum": lambda rows: rows.groupBy((F.col("id") % 1000).alias("g")).agg(F.sum("amount")).collect(),
    "count": lambda rows: rows.count(),
    "one id": lambda rows: rows.where("id = 123456").collect(),
}


def rows_of(ids: Any, rng: np.random.Generator) -> pa.Table:
    words = np.array(["new", "paid", "sent", "done"])
    return pa.table(
        {
            "id": ids,
            "status": pa.array(words[rng.integers(0, 4, len(ids))]),
            "amount": np.round(rng.random(len(ids)) * 1000, 2),
            "at": pa.array(rng.integers(16 * 10**14, 17 * 10**14, len(ids)), pa.timestamp("us")),
        }
    )


def make(path: str, plain: Path, count: int) -> None:
    """Make a collection with a tail, and files of the same rows."""
    rng = np.random.default_rng(1)
    bounds = [*range(0, count, PIECE_ROWS), count]
    plain.mkdir(parents=True)
    with persist.open(path, settings=persist.Settings(background=False)) as client:
        for first, end in pairwise(bounds):
            client.write("orders", rows_of(np.arange(first, end), rng), key=["id"]).result()
        client.load("orders").compact()
        some = np.sort(rng.choice(count, int(TAIL * count), replace=False))
        client.write("orders", rows_of(some, rng), key=["id"]).result()
        for first, end in pairwise(bounds):
            rows = client.load("orders").snapshot(where=f"id >= {first} and id < {end}").to_arrow().sort_by("id")
            file = plain / f"{first:012}.parquet"
            pq.write_table(rows, file, compression="zstd", compression_level=1, row_group_size=1 << 17)


def processor_time() -> float:
    """Return the seconds of processor time of this process and all below it."""
    here = psutil.Process()
    times = [process.cpu_times() for process in (here, *here.children(recursive=True))]
    return float(sum(time.user + time.system for time in times))


def main(count: int, rounds: int, folder: str | None) -> None:
    at = Path(folder or tempfile.mkdtemp())
    path, plain = str(at / "location"), at / "plain"
    if not plain.exists():
        make(path, plain, count)
    with session(catalog=path) as spark:
        measure(spark, path, plain, rounds)


def measure(spark: SparkSession, path: str, plain: Path, rounds: int) -> None:
    print(persist.spark.explain(spark, path, "orders"), flush=True)
    sides: dict[str, Callable[[], DataFrame]] = {
        "plain": lambda: spark.read.parquet(str(plain)),
        "ours": lambda: persist.spark.snapshot(spark, path, "orders"),
        "catalog": lambda: spark.table("persist.orders"),
    }
    for name, query in QUERIES.items():
        spent: dict[str, list[float]] = {side: [] for side in sides}
        answers = []
        for _ in range(rounds + 1):
            for side, rows in sides.items():
                before = processor_time()
                answer = query(rows())
                time.sleep(0.2)  # What the JVM still does for it.
                spent[side].append(processor_time() - before)
                answers.append(answer if isinstance(answer, int) else len(answer))
        assert len({*answers}) == 1, answers
        medians = {side: statistics.median(seconds[1:]) for side, seconds in spent.items()}
        shares = ", ".join(f"{side} {s:.2f} s ({s / medians['plain']:.2f})" for side, s in medians.items())
        print(f"{name}: {shares}", spent, flush=True)


if __name__ == "__main__":
    count, rounds, folder = [*sys.argv[1:], *("6000000", "3", "")[len(sys.argv) - 1 :]]
    main(int(count), int(rounds), folder or None)
