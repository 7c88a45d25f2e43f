"""A view of count and sum by the tasks of Spark, against Spark computing it again: `python -m benchmarks.views_spark`.

    [--facts N] [--dims N] [--changed N ...] [--rounds N] [--memory-budget BYTES] [--master MASTER] [--stream]

Facts are joined with dimensions, and grouped by one of 1,000 groups of these. A change replaces the amounts of some
facts. Each way refreshes a view of its own of the same collections, by turns, and commits durably; an open handle has
its state in memory. Spark's own side reads facts and dimensions from Parquet files, which hold what the collections
hold, and writes the answer to another one. CPU time is of this process, the JVM and Spark's Python workers together.
Told is the median of the rounds. One view is refreshed by what the chooser takes; that is held against the best of the
ways of a new handle in hindsight. `--memory-budget` is of all views, and `--master local-cluster[2,2,1024]` has two
executors of two tasks each, as processes of their own.
`--stream` measures a stream instead, whose `foreachBatch` replaces the amounts of 100 facts and then refreshes a view.
"""

import argparse
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import persist
import persist.spark
from benchmarks.ours import QUIET
from benchmarks.spark import session
from benchmarks.upserts_cpu import folder
from benchmarks.upserts_spark import Taken, taken

QUERY = "SELECT g, count(*) AS n, sum(amount) AS total FROM facts JOIN dims USING (d) GROUP BY g"
GROUPS = 1000
TRIGGERS = 12
HERE, TASKS, STATE = "requests, a new handle", "tasks", "state, a new handle"
CHOSEN, OPEN, PEER = "chosen, a new handle", "state, an open handle", "Spark to Parquet"
WAYS = (HERE, TASKS, STATE)


class Sides:
    """Collections, a view of them for each way, and the same rows as Parquet files."""

    def __init__(self, spark: SparkSession, place: Path, facts: int, dims: int, budget: int | None) -> None:
        self._spark, self._place, self._random = spark, place, np.random.default_rng(1)
        self._of = self._random.integers(0, dims, facts)
        self._amounts = self._random.integers(0, 10_000, facts)
        self._client = persist.open(str(place / "location"), settings=QUIET)
        self._facts = self._client.create_or_load(
            "facts", key={"i": pa.int64()}, value={"d": pa.int64(), "amount": pa.int64()}
        )
        self._dims = self._client.create_or_load("dims", key={"d": pa.int64()}, value={"g": pa.int64()})
        groups = pa.table({"d": np.arange(dims), "g": self._random.integers(0, GROUPS, dims)})
        self._time = 1
        self._facts.write(self._rows(np.arange(facts)), time=0).result()
        self._dims.write(groups, time=0, seal=1).result()
        self._facts.seal(1).result()
        pq.write_table(groups, place / "dims.parquet")
        self.views = {
            name: self._client.create_view(f"by {name}", QUERY, memory_budget=budget) for name in (*WAYS, CHOSEN, OPEN)
        }
        self.chosen: list[str] = []
        for view in self.views.values():
            view.open_state()
            if view is not self.views[OPEN]:
                view.close()

    def change(self, count: int, *, files: bool = True) -> None:
        """Replace the amounts of some facts, at one time, and write the files anew, if these are wanted."""
        at = self._random.choice(len(self._amounts), count, replace=False)
        at.sort()
        old = self._rows(at)
        self._amounts[at] += self._random.integers(1, 100, count)
        diffs = pa.array(np.repeat([-1, 1], count))
        both = pa.concat_tables([old, self._rows(at)]).append_column("_diff", diffs)
        both = both.append_column("_time", pa.array(np.full(2 * count, self._time)))
        self._time += 1
        with self._client.multi_write() as multi:
            multi.write(self._facts, both)
            multi.seal(self._facts, self._time)
            multi.seal(self._dims, self._time)
        if files:
            pq.write_table(self._rows(np.arange(len(self._amounts))), self._place / "facts.parquet")

    def refreshed(self, name: str) -> None:
        """Refresh the view of a way; handles but the open one are new."""
        view = self.views[name]
        if name == OPEN:
            view.refresh()
            return
        if name == CHOSEN:
            found = persist.spark.refresh(view, self._spark)
            self.chosen.append(HERE if found.where == "here" else TASKS)
        elif name == TASKS:
            found = persist.spark.refresh(view, self._spark, where="tasks")
            assert found.where == "tasks", found
        elif name == HERE:
            view.refresh(policy="incremental")
        else:
            view.open_state()
        view.close()

    def estimates(self) -> str:
        """Return what would be read, and where."""
        return persist.spark.explain_refresh(self.views[TASKS], self._spark)

    def to_parquet(self) -> None:
        facts, dims = (self._spark.read.parquet(str(self._place / f"{name}.parquet")) for name in ("facts", "dims"))
        answer = facts.join(dims, "d").groupBy("g").agg(F.count("*").alias("n"), F.sum("amount").alias("total"))
        answer.write.mode("overwrite").parquet(str(self._place / "answer"))

    def check(self) -> None:
        theirs = pq.read_table(self._place / "answer").sort_by("g").to_pylist()
        for name, view in self.views.items():
            assert view.snapshot().to_arrow().sort_by("g").to_pylist() == theirs, f"{name} gives another answer"

    def streamed(self, name: str | None) -> float:
        """Return how many seconds a trigger takes that changes facts and refreshes the view of a way, if any."""

        def each(batch: DataFrame, number: int) -> None:
            self.change(batch.count(), files=False)
            if name is not None:
                self.refreshed(name)

        rows = self._spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).load()
        place = self._place / f"checkpoint-{name}"
        query = rows.writeStream.foreachBatch(each).option("checkpointLocation", str(place)).start()
        try:
            while len(query.recentProgress) < TRIGGERS and query.isActive:
                query.awaitTermination(1)
            found: list[float] = [one.durationMs["triggerExecution"] / 1000 for one in query.recentProgress[2:]]
        finally:
            query.stop()
        return median(found)

    def close(self) -> None:
        self.views[OPEN].close()
        self._client.close()

    def _rows(self, at: np.ndarray) -> pa.Table:
        return pa.table({"i": at, "d": self._of[at], "amount": self._amounts[at]})


def refreshes(sides: Sides, changed: int, rounds: int) -> dict[str, list[Taken]]:
    """Return what each way took in each round; the first one is for all to get warm."""
    found: dict[str, list[Taken]] = {name: [] for name in (*WAYS, CHOSEN, OPEN, PEER)}
    for number in range(rounds + 1):
        sides.change(changed)
        if number == rounds:
            print(sides.estimates())
        for name, each in found.items():
            each.append(taken(sides.to_parquet if name == PEER else partial(sides.refreshed, name)))
    sides.check()
    return {name: each[1:] for name, each in found.items()}


def shown(changed: int, found: dict[str, list[Taken]], chosen: str) -> None:
    print(f"{changed:,} facts changed")
    theirs = found[PEER]
    for name, each in found.items():
        cpu, wall = (median(times) for times in zip(*each, strict=True))
        ratios = [
            median(one[at] / max(other[at], 0.01) for one, other in zip(theirs, each, strict=True)) for at in (0, 1)
        ]
        print(
            f"  {name:<26} {cpu:>7.2f} s CPU {wall:>7.2f} s   {ratios[0]:>6.2f}x CPU {ratios[1]:>6.2f}x wall",
            flush=True,
        )
    best = [min(median(each[at] for each in found[name]) for name in WAYS) for at in (0, 1)]
    ratios = [one / median(each[at] for each in found[CHOSEN]) for at, one in enumerate(best)]
    print(f"  chosen was {chosen}: {ratios[0]:.2f}x CPU {ratios[1]:.2f}x wall of the best way", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--facts", type=int, default=10_000_000)
    parser.add_argument("--dims", type=int, default=1_000_000)
    parser.add_argument("--changed", type=int, nargs="+", default=[10, 1_000_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory-budget", type=int)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--stream", action="store_true")
    given = parser.parse_args()
    with folder() as place, session(given.master) as spark:
        sides = Sides(spark, place, given.facts, given.dims, given.memory_budget)
        print(f"{given.facts:,} facts, {given.dims:,} dimensions, {GROUPS:,} groups")
        if given.stream:
            without = sides.streamed(None)
            print(f"a trigger of 100 facts without a refresh: {without:.2f} s")
            for name in (HERE, TASKS, OPEN):
                print(f"  refreshed by {name}: {sides.streamed(name) - without:.2f} s more", flush=True)
            sides.close()
            return
        for changed in given.changed:
            shown(changed, refreshes(sides, changed, given.rounds), sides.chosen[-1])
        sides.close()


if __name__ == "__main__":
    main()
