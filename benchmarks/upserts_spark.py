"""Upserts by Spark, in CPU and wall time, side by side in turns: `python -m benchmarks.upserts_spark`.

    [--rows N] [--events N] [--rounds N]

Half of the events have keys that are there. Spark's own side is what one does without a table format: the stored rows,
full outer joined with the events, are written anew as Parquet. The embedded side upserts the same rows in this process.
CPU time is of this process, the JVM and Spark's Python workers together. Told is the median of the rounds of each side.
"""

import argparse
import shutil
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import persist
import persist.spark
from benchmarks.harness import tree_cpu_s
from benchmarks.ours import QUIET
from benchmarks.spark import session
from benchmarks.upserts import _batches, _made
from benchmarks.upserts_cpu import folder

Taken = tuple[float, float]  # CPU and wall seconds.


def taken(do: Callable[[], object]) -> Taken:
    cpu, wall = tree_cpu_s(), time.perf_counter()
    do()
    return tree_cpu_s() - cpu, time.perf_counter() - wall


class Sides:
    """The same rows on each side, and batches of events, given to each as a Parquet file of its own."""

    def __init__(self, spark: SparkSession, place: Path, rows: int, events: int) -> None:
        self._spark, self._place = spark, place
        self._batches = _batches(rows, events)
        self._numbers = count()
        for name in ("spark", "embedded"):
            with persist.open(str(place / name), settings=QUIET) as client:
                table = _made(client, rows, persist.Keyed()).snapshot().to_arrow()
        self._stored = place / "stored-0"
        self._stored.mkdir()
        pq.write_table(table, self._stored / "rows.parquet")
        self._client = persist.open(str(place / "embedded"), settings=QUIET)

    def batch(self) -> pa.Table:
        """Draw the next events, and put them where Spark reads them."""
        found = next(self._batches)
        pq.write_table(found, self._place / "events.parquet")
        return found

    def events(self) -> DataFrame:
        return self._spark.read.parquet(str(self._place / "events.parquet"))

    def by_spark(self, seal: int) -> None:
        persist.spark.upsert(self.events(), str(self._place / "spark"), "rows", time=seal - 1, seal=seal, where="tasks")

    def embedded(self, batch: pa.Table, seal: int) -> None:
        self._client.load("rows").upsert(batch, time=seal - 1, seal=seal).result()

    def rewritten(self) -> None:
        """Join and rewrite everything, and remove what was before."""
        before = self._spark.read.parquet(str(self._stored)).alias("s")
        joined = before.join(self.events().alias("e"), "id", "full_outer")
        is_new = F.col("e.c").isNotNull()
        names = [name for name in self.events().columns if name != "id"]
        chosen = [F.when(is_new, F.col(f"e.{name}")).otherwise(F.col(f"s.{name}")).alias(name) for name in names]
        after = self._place / f"stored-{next(self._numbers) + 1}"
        joined.select("id", *chosen).write.parquet(str(after))
        shutil.rmtree(self._stored)
        self._stored = after

    def check(self) -> None:
        with persist.open(str(self._place / "spark"), mode="read") as client:
            ours = client.load("rows").snapshot().to_arrow().sort_by("id")
        embedded = self._client.load("rows").snapshot().to_arrow().sort_by("id")
        theirs = pq.read_table(self._stored).select(ours.column_names).cast(ours.schema).sort_by("id")
        assert ours == embedded == theirs, "the sides hold other rows"
        self._client.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with folder() as place, session() as spark:
        sides = Sides(spark, place, given.rows, given.events)
        found: dict[str, list[Taken]] = {"persist.spark.upsert": [], "embedded": [], "join and rewrite": []}
        for seal in range(2, given.rounds + 3):  # The first round is for the JVM to get warm.
            batch = sides.batch()
            for name, do in (
                ("persist.spark.upsert", lambda at=seal: sides.by_spark(at)),
                ("embedded", lambda rows=batch, at=seal: sides.embedded(rows, at)),
                ("join and rewrite", sides.rewritten),
            ):
                found[name].append(taken(do))
        sides.check()
    print(f"{given.events:,} events into {given.rows:,} rows, median of {given.rounds} rounds")
    ours = found["persist.spark.upsert"][1:]
    for name, each in found.items():
        cpu, wall = (median(times) for times in zip(*each[1:], strict=True))
        ratios = [median(one[at] / other[at] for one, other in zip(each[1:], ours, strict=True)) for at in (0, 1)]
        print(f"  {name:<22} {cpu:>7.2f} s CPU {wall:>7.2f} s   {ratios[0]:>5.2f}x CPU {ratios[1]:>5.2f}x wall")


if __name__ == "__main__":
    main()
