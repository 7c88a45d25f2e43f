"""What a micro-batch of 100 events costs beside an empty trigger of Spark: `python -m benchmarks.upserts_micro`.

    [--rows N] [--batches N]

Three queries over the same files take their turns, a file of 100 rows for each trigger: one whose `foreachBatch` does
nothing, one that upserts by `persist.spark.foreach_batch_writer`, and one by `format("persist")`. Half of the events
have keys that are there. Told is how long Spark says that a trigger took (`triggerExecution`), and the CPU time of the
driver, the JVM and workers meanwhile, in the median.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import persist
import persist.spark
from benchmarks.harness import tree_cpu_s
from benchmarks.ours import QUIET
from benchmarks.spark import session
from benchmarks.upserts import _batches, _made
from benchmarks.upserts_cpu import folder

EVENTS, WARM_UP = 100, 3


class Query:
    """One query over a folder of files, and how long each of its triggers took."""

    def __init__(self, spark: SparkSession, place: Path, start: Callable[[DataFrame, str], StreamingQuery]) -> None:
        self._files = place / "files"
        self._files.mkdir(parents=True)
        frame = spark.readStream.schema("id long, a long, b double, c long, d string, e boolean")
        self._query = start(frame.parquet(str(self._files)), str(place / "checkpoint"))
        self.taken_ms: list[float] = []
        self.cpu_ms: list[float] = []

    def trigger(self, rows: object, number: int) -> None:
        """Give it one more file, and wait until it has taken it."""
        made = self._files / f".{number}.parquet"  # Spark does not look at files that begin with a dot.
        pq.write_table(rows, made)
        made.rename(self._files / f"{number}.parquet")
        began = tree_cpu_s()
        self._query.processAllAvailable()
        self.cpu_ms.append((tree_cpu_s() - began) * 1e3)
        busy = [each["durationMs"] for each in self._query.recentProgress if "addBatch" in each["durationMs"]]
        self.taken_ms.append(float(busy[-1]["triggerExecution"]))

    def stop(self) -> None:
        self._query.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=20)
    given = parser.parse_args()
    with folder() as place, session() as spark:
        for name in ("each", "source"):
            with persist.open(str(place / name), settings=QUIET) as client:
                _made(client, given.rows, persist.Keyed())
        write = persist.spark.foreach_batch_writer(str(place / "each"), {"rows": lambda df: df})

        def nothing(df: DataFrame, number: int) -> None:
            """Look at no row."""

        def by_source(df: DataFrame, checkpoint: str) -> StreamingQuery:
            made = df.writeStream.format("persist").option("collection", "rows").option("mode", "upsert")
            return made.option("checkpointLocation", checkpoint).start(str(place / "source"))

        def each_by(do: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, str], StreamingQuery]:
            return lambda df, checkpoint: (
                df.writeStream.foreachBatch(do).option("checkpointLocation", checkpoint).start()
            )

        starts = {"an empty trigger": each_by(nothing), "foreach_batch_writer": each_by(write), "format": by_source}
        queries = {name: Query(spark, place / f"query-{name}", start) for name, start in starts.items()}
        batches = _batches(given.rows, EVENTS)
        for number in range(given.batches + WARM_UP):
            rows = next(batches)
            for query in queries.values():
                query.trigger(rows, number)
        for query in queries.values():
            query.stop()
    print(f"a trigger of {EVENTS} events into {given.rows:,} rows, median of {given.batches}")
    empty = queries["an empty trigger"]
    for name, query in queries.items():
        told = []
        for each, others in ((query.taken_ms, empty.taken_ms), (query.cpu_ms, empty.cpu_ms)):
            more = median(one - other for one, other in zip(each[WARM_UP:], others[WARM_UP:], strict=True))
            told.append(f"{median(each[WARM_UP:]):>7.0f} ms, {more:>5.0f} ms more")
        print(f"  {name:<22} wall {told[0]}; CPU {told[1]}")


if __name__ == "__main__":
    main()
