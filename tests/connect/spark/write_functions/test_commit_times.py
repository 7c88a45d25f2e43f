"""Batches without times get that of their commit, by every way that Spark writes; and Spark's own scan reads it."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import persist
import persist.spark

QUIET = persist.Settings(background=False)


def made(tmp_path: Path, **more: Any) -> str:
    location = str(tmp_path / "data")
    with persist.open(location, settings=QUIET) as client:
        client.create_or_load("c", key={"k": pa.int64()}, value={"v": pa.string()}, **more).seal(5).result()
    return location


def history(location: str) -> Counter[tuple[Any, ...]]:
    with persist.open(location, mode="read") as client:
        return Counter(tuple(row.values()) for row in client.load("c").changes(0).to_arrow().to_pylist())


def test_plain_rows_and_overwrites_without_a_time_are_commits_at_the_next_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    location = made(tmp_path)
    rows = spark.createDataFrame([(1, "a"), (2, "b")], "k long, v string")
    persist.spark.write(rows, location, "c", mode="append", token="first")
    persist.spark.write(rows, location, "c", mode="append", token="first")
    rows.write.format("persist").option("collection", "c").mode("append").save(location)
    persist.spark.write(rows.where("k = 1"), location, "c", mode="overwrite")
    persist.spark.delete(spark, location, "c", "k = 1")
    expected = Counter({(k, v, time, 1): 1 for k, v in ((1, "a"), (2, "b")) for time in (5, 6)})
    expected.update({(1, "a", 7, -1): 1, (2, "b", 7, -2): 1, (1, "a", 8, -1): 1})
    assert history(location) == expected


@pytest.mark.parametrize("where", ["driver", "tasks"])
def test_events_without_a_time_are_sealed_at_that_of_their_commit(
    spark: SparkSession, tmp_path: Path, where: Any
) -> None:
    location = made(tmp_path, keyed=persist.Keyed())
    events = spark.createDataFrame([(1, "a"), (2, "b")], "k long, v string")
    persist.spark.upsert(events, location, "c", where=where)
    persist.spark.upsert(events.where("k = 1").selectExpr("k", "'z' AS v"), location, "c", where=where)
    assert history(location) == Counter([(1, "a", 5, 1), (2, "b", 5, 1), (1, "a", 6, -1), (1, "z", 6, 1)])


def test_spark_reads_the_times_of_stamped_files_from_their_descriptors(spark: SparkSession, tmp_path: Path) -> None:
    location = made(tmp_path)
    with persist.open(location, settings=QUIET) as client:
        c = client.load("c")
        for number in range(3):
            c.write(pa.table({"k": range(20_000), "v": [str(number)] * 20_000})).result()
        c.evolve(add={"n": pa.int64()})
        client.load("c").write(pa.table({"k": range(20_000), "v": ["new"] * 20_000, "n": [1] * 20_000})).result()
        assert len({part.blob for part in c.handle.contents().history_parts if part.stamped}) == 4
    changes = persist.spark.changes(spark, location, "c", 0, 9, native=True)
    rows = changes.groupBy("_time", "v", "n").count().collect()
    expected = {(5 + n, str(n), None, 20_000) for n in range(3)} | {(8, "new", 1, 20_000)}
    assert {tuple(row) for row in rows} == expected
