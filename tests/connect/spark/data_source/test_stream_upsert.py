"""Upserts by the data source and by streaming queries: each batch once, whatever Spark forgets."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import persist
import persist.spark
from persist.connect.spark.write_functions import foreach_batch
from persist.errors import InvalidUsage
from tests.connect.spark.data_source.test_stream_write import Feed, run


@pytest.fixture
def location(tmp_path: Path) -> str:
    path = str(tmp_path / "location")
    with persist.open(path) as client:
        client.create_or_load("c", key={"k": pa.int64()}, value={"v": pa.string()}, keyed=persist.Keyed())
        client.create_or_load("plain", key={"k": pa.int64()}, value={"v": pa.string()})
    return path


def changes(location: str) -> list[Any]:
    with persist.open(location, mode="read") as client:
        c = client.load("c")
        return sorted(c.changes(0, c.upper.time or 0).updates(), key=lambda each: (each[1], each[0], each[2]))


def forget(checkpoint: Path, batch: int) -> None:
    """As if the driver had died after our commit and before Spark's."""
    (checkpoint / "commits" / str(batch)).unlink()
    (checkpoint / "commits" / f".{batch}.crc").unlink(missing_ok=True)


EXPECTED = [((1, "a"), 0, 1), ((2, "b"), 0, 1), ((1, "a"), 1, -1), ((1, "c"), 1, 1), ((2, "b"), 2, -1)]


def test_a_query_upserts_each_batch_once(spark: SparkSession, location: str, tmp_path: Path) -> None:
    feed, checkpoint = Feed(spark, tmp_path, "k long, v string, _deleted boolean"), tmp_path / "checkpoint"
    feed.add({"k": 1, "v": "a"}, {"k": 2, "v": "b"})
    feed.add({"k": 1, "v": "c"}, {"k": 3, "_deleted": True})
    run(feed.frame, location, checkpoint, mode="upsert")
    forget(checkpoint, 1)
    feed.add({"k": 2, "_deleted": True})
    run(feed.frame.repartition(2), location, checkpoint, mode="upsert")
    assert changes(location) == EXPECTED


@pytest.mark.thorough
@pytest.mark.parametrize("bytes_max", [1 << 20, 0], ids=["driver", "tasks"])
def test_foreach_batch_upserts_each_batch_once(
    spark: SparkSession, location: str, tmp_path: Path, bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreach_batch, "ON_DRIVER_BYTES_MAX", bytes_max)
    feed, checkpoint = Feed(spark, tmp_path, "k long, v string, _deleted boolean"), tmp_path / "checkpoint"

    def once() -> None:
        write = persist.spark.foreach_batch_writer(location, {"c": lambda df: df})
        writer = feed.frame.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()

    feed.add({"k": 1, "v": "a"}, {"k": 2, "v": "b"})
    feed.add({"k": 1, "v": "c"})
    once()
    forget(checkpoint, 1)
    feed.add({"k": 2, "_deleted": True})
    once()
    assert changes(location) == EXPECTED


@pytest.mark.thorough
def test_events_with_times_are_sealed_as_updates_are(spark: SparkSession, location: str, tmp_path: Path) -> None:
    feed, checkpoint = Feed(spark, tmp_path, "k long, v string, _time long"), tmp_path / "checkpoint"
    feed.add({"k": 1, "v": "a", "_time": 10}, {"k": 1, "v": "b", "_time": 12})
    feed.add({"k": 1, "v": "late", "_time": 3}, {"k": 1, "v": "c", "_time": 20})
    run(feed.frame, location, checkpoint, mode="upsert", watermark=5, late="drop")
    assert changes(location) == [((1, "a"), 10, 1), ((1, "a"), 12, -1), ((1, "b"), 12, 1)]
    with persist.open(location, mode="read") as client:
        assert client.load("c").upper == persist.Antichain(15)


@pytest.mark.thorough
def test_of_two_events_of_one_batch_that_tie_the_later_row_counts(
    spark: SparkSession, location: str, tmp_path: Path
) -> None:
    feed = Feed(spark, tmp_path, "k long, v string")
    feed.add({"k": 1, "v": "b"}, {"k": 1, "v": "a"})
    run(feed.frame, location, tmp_path / "checkpoint", mode="upsert")
    assert [(row, diff) for row, _, diff in changes(location)] == [((1, "a"), 1)]


@pytest.mark.thorough
def test_the_data_source_upserts_a_dataframe_as_one_commit(spark: SparkSession, location: str) -> None:
    for time, value in ((1, "a"), (2, "b")):
        frame = spark.range(0, 3, 1, 2).selectExpr("id AS k", f"'{value}' AS v")
        writer = frame.write.format("persist").option("collection", "c").option("mode", "upsert").mode("append")
        for _ in range(2):
            writer.option("time", time).option("seal", time + 1).option("token", value).save(location)
    assert [(v, t, d) for (k, v), t, d in changes(location) if k == 0] == [("a", 1, 1), ("a", 2, -1), ("b", 2, 1)]
    with pytest.raises(PySparkException, match="NotKeyed"):
        writer.option("collection", "plain").option("time", 5).save(location)
    with pytest.raises(PySparkException, match='mode "upsert" adds events'):
        writer.mode("overwrite").option("time", 5).save(location)


@pytest.mark.thorough
def test_a_keyed_collection_is_not_mixed_with_others_in_one_writer(spark: SparkSession, location: str) -> None:
    write = persist.spark.foreach_batch_writer(location, {"c": lambda df: df, "plain": lambda df: df}, query_id="q")
    with pytest.raises(InvalidUsage, match="some are keyed"):
        write(spark.range(1).selectExpr("id AS k", "'a' AS v"), 0)
