"""Streaming queries that write to a collection, run by Spark."""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import persist
from persist.blob.stores.file import FileBlob


@pytest.fixture
def location(tmp_path: Path) -> str:
    path = str(tmp_path / "location")
    with persist.open(path) as client:
        client.create_or_load("c", key={"k": pa.int64()}, value={"v": pa.string()})
    return path


class Feed:
    """A folder of files, of which each becomes a micro-batch."""

    def __init__(self, spark: SparkSession, folder: Path, schema: str) -> None:
        self._folder = folder / "feed"
        self._folder.mkdir()
        self._count = 0
        self.frame = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(self._folder))

    def add(self, *rows: dict[str, Any]) -> None:
        at = self._folder / f"{self._count}.json"
        at.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(at, (self._count, self._count))  # Spark takes the oldest first.
        self._count += 1


def run(frame: DataFrame, location: str, checkpoint: Path, **options: Any) -> StreamingQuery:
    """Run a query until it has read all there is."""
    writer = frame.writeStream.format("persist").option("collection", "c").option("checkpointLocation", str(checkpoint))
    query = writer.options(**options).trigger(availableNow=True).start(location)
    query.awaitTermination()
    return query


def updates(location: str) -> list[tuple[int, int]]:
    with persist.open(location, mode="read") as client:
        c = client.load("c")
        return sorted((time, k) for (k, _), time, _ in c.changes(0, c.upper.time or 0).updates())


def test_a_query_writes_each_batch_once_whatever_spark_forgets(
    spark: SparkSession, location: str, tmp_path: Path
) -> None:
    feed, checkpoint = Feed(spark, tmp_path, "k long, v string"), tmp_path / "checkpoint"
    feed.add({"k": 1, "v": "a"}, {"k": 2, "v": "b"})
    feed.add({"k": 3, "v": "c"})
    run(feed.frame, location, checkpoint)
    assert updates(location) == [(0, 1), (0, 2), (1, 3)]
    # As if the driver had died after our commit and before Spark's.
    (checkpoint / "commits" / "1").unlink()
    (checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    feed.add({"k": 4, "v": "d"})
    run(feed.frame.repartition(2), location, checkpoint)
    assert updates(location) == [(0, 1), (0, 2), (1, 3), (2, 4)]
    with persist.open(location) as client:
        named = {part.blob for part in client.load("c").handle.contents().parts}
        last = next(iter(client.load("c").handle.contents().queries.values()))
    assert {entry.key for entry in FileBlob(location).list("part/")} == named
    assert (last.batch, len(last.runs)) == (2, 2)
    # The checkpoint goes with this location only.
    other = str(tmp_path / "other")
    with persist.open(other) as client:
        client.create_or_load("c", key={"k": pa.int64()}, value={"v": pa.string()})
    feed.add({"k": 5, "v": "e"})
    with pytest.raises(PySparkException) as caught:
        run(feed.frame, other, checkpoint)
    assert "persist.errors.QueryMismatch: batch 3 of query" in str(caught.value)
    assert "its checkpoint belongs to another location" in str(caught.value)
    assert [*FileBlob(other).list("part/")] == []


@pytest.mark.thorough
def test_a_late_event_ends_the_query_with_its_reason(spark: SparkSession, location: str, tmp_path: Path) -> None:
    feed, checkpoint = Feed(spark, tmp_path, "k long, v string, at timestamp"), tmp_path / "checkpoint"
    feed.add({"k": 1, "v": "a", "at": "1970-01-01T00:01:40Z"}, {"k": 2, "v": "b", "at": "1970-01-01T00:01:35Z"})
    options = {"time": "at", "watermark": 5_000_000}
    run(feed.frame, location, checkpoint, **options)
    with persist.open(location, mode="read") as client:
        assert client.load("c").upper == persist.Antichain(95_000_000)
    feed.add({"k": 3, "v": "c", "at": "1970-01-01T00:01:34Z"}, {"k": 4, "v": "d", "at": "1970-01-01T00:02:00Z"})
    with pytest.raises(PySparkException) as caught:
        run(feed.frame, location, checkpoint, **options)
    assert "persist.errors.UpdateNotBeyondUpper: update at time 94000000 is not beyond upper=95000000" in str(
        caught.value
    )
    assert "File " not in str(caught.value)
    run(feed.frame, location, checkpoint, **options, late="drop")
    assert updates(location) == [(95_000_000, 2), (100_000_000, 1)]
    with persist.open(location, mode="read") as client:
        assert client.load("c").upper == persist.Antichain(115_000_000)


@pytest.mark.thorough
def test_other_output_modes_are_refused(spark: SparkSession, location: str, tmp_path: Path) -> None:
    feed = Feed(spark, tmp_path, "k long, v string")
    feed.add({"k": 1, "v": "a"})
    counts = feed.frame.groupBy("k").count().selectExpr("k", "'x' AS v")
    for mode, message in (("complete", 'Use outputMode\\("append"\\)'), ("update", "does not support Update mode")):
        writer = (
            counts.writeStream.format("persist").outputMode(mode).option("checkpointLocation", str(tmp_path / mode))
        )
        with pytest.raises(PySparkException, match=message):
            query = writer.option("collection", "c").trigger(availableNow=True).start(location)
            query.awaitTermination()
    assert updates(location) == []
