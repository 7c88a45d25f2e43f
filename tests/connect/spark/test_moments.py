"""Where a collection has a timeline, moments are times in Spark, too: in options, in columns, and in what is read."""

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType

import persist
import persist.spark

NOON = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)
NOON_MS = 1795262400_000
ONE = dt.datetime(2026, 11, 21, 13, tzinfo=dt.UTC)
HOUR_MS = 3600_000


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = str(tmp_path / "location")
    with persist.open(path, settings=persist.Settings(background=False)) as client:
        for unit in ("ms", "ns"):
            client.create_or_load(unit, key={"k": pa.int64()}, timeline=unit)
        client.create_or_load("plain", key={"k": pa.int64()})
    return path


def updates(path: str, name: str = "ms") -> list[tuple[int, int, int]]:
    with persist.open(path, mode="read") as client:
        collection = client.load(name)
        return sorted((key, time, diff) for (key, _), time, diff in collection.changes(0).updates())


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize("way", ["write", "format"])
def test_times_and_seals_of_a_write_are_moments(spark: SparkSession, path: str, way: str) -> None:
    def write(frame: Any, mode: Any = "append", **options: Any) -> None:
        if way == "write":
            persist.spark.write(frame, path, "ms", mode=mode, **options)
        else:
            frame.write.format("persist").options(collection="ms", **options).mode(mode).save(path)

    frame = spark.range(1, 3).toDF("k")
    write(frame, time="2026-11-21T12:00:00Z", seal="2026-11-21T12:30:00Z")
    write(frame.where("k = 1"), "overwrite", time="2026-11-21 13:00")
    late = frame.where("k = 2").withColumn("at", F.lit(ONE + dt.timedelta(hours=1)))
    write(late, time="at")
    write(late.withColumnRenamed("at", "_time").withColumn("_diff", F.lit(3)), seal="2026-11-22")
    two = NOON_MS + 2 * HOUR_MS
    assert updates(path) == [(1, NOON_MS, 1), (2, NOON_MS, 1), (2, NOON_MS + HOUR_MS, -1), (2, two, 4)]
    day_after = NOON_MS + 12 * HOUR_MS
    with persist.open(path, mode="read") as client:
        assert client.load("ms").upper == persist.Antichain(day_after)
    for options, message in (
        ({"time": "2026-11-23T00:00:00.0001Z"}, "lies between two times of a timeline in ms"),
        ({"time": "at"}, "'at' has times|cannot hold exactly"),
    ):
        odd = (
            frame.withColumn("at", F.lit(ONE + dt.timedelta(days=2, microseconds=1)))
            if "at" in options.values()
            else frame
        )
        with pytest.raises((persist.PersistError, PySparkException), match=message):
            write(odd, **options)
    with persist.open(path, mode="read") as client:
        assert client.load("ms").unsealed is None


@pytest.mark.thorough
def test_a_timestamp_is_no_time_where_there_is_no_timeline(spark: SparkSession, path: str) -> None:
    frame = spark.range(1).toDF("k")
    with pytest.raises(persist.InvalidUsage, match="the collection 'plain' has no timeline"):
        persist.spark.write(frame, path, "plain", mode="append", time="2026-11-21")
    with pytest.raises(persist.errors.SchemaMismatch, match="it has no timeline"):
        persist.spark.write(frame.withColumn("_time", F.lit(NOON)), path, "plain", mode="append")
    with pytest.raises(PySparkException, match="'plain' has none: its times are numbers"):
        changes = spark.read.format("persist").options(collection="plain", form="changes", until=0, times="timestamp")
        changes.option("start", 0).load(path)
    with pytest.raises(persist.errors.SchemaMismatch, match="without a time zone"):
        persist.spark.write(frame.withColumn("_time", F.lit(NOON).cast("timestamp_ntz")), path, "ms", mode="append")


@pytest.mark.thorough(except_every=4)
@pytest.mark.parametrize("unit", ["ms", "ns"])
@pytest.mark.parametrize("native", [None, False])
def test_times_come_as_timestamps_when_that_is_asked_for(
    spark: SparkSession, path: str, unit: str, native: bool | None
) -> None:
    with persist.open(path, settings=persist.Settings(background=False)) as client:
        collection = client.load(unit)
        collection.write([(k, None) for k in range(20_000)], time=NOON, seal=ONE).result()
        collection.write([(1, None)], time=ONE, seal=ONE + dt.timedelta(hours=1)).result()
    frame = persist.spark.changes(
        spark, path, unit, NOON, ONE + dt.timedelta(hours=1), times="timestamp", native=native
    )
    assert isinstance(frame.schema["_time"].dataType, TimestampType)
    counts = {
        row["at"]: row["n"]
        for row in frame.groupBy(F.col("_time").cast("string").alias("at")).agg(F.count("*").alias("n")).collect()
    }
    assert counts == {"2026-11-21 12:00:00": 20_000, "2026-11-21 13:00:00": 1}
    times = {row["_time"] for row in persist.spark.changes(spark, path, unit, NOON, ONE, native=native).collect()}
    assert times == {NOON_MS * (1 if unit == "ms" else 10**6)}


@pytest.mark.thorough
def test_a_stream_of_timestamps_goes_to_a_collection_with_another_unit(
    spark: SparkSession, path: str, tmp_path: Path
) -> None:
    with persist.open(path) as client:
        client.load("ms").write([(1, None)], time=NOON, seal="2026-11-22").result()
    stream = spark.readStream.format("persist").options(collection="ms", form="changes", times="timestamp")
    frame = stream.option("start", "2026-11-21").load(path)
    assert isinstance(frame.schema["_time"].dataType, TimestampType)
    writer = frame.writeStream.format("persist").option("collection", "ns")
    query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start(path)
    query.awaitTermination()
    assert updates(path, "ns") == [(1, NOON_MS * 10**6, 1)]


@pytest.mark.thorough
def test_event_times_of_a_stream_count_in_the_unit_of_the_timeline(
    spark: SparkSession, path: str, tmp_path: Path
) -> None:
    source = str(tmp_path / "events")
    spark.range(1).toDF("k").withColumn("at", F.lit(NOON)).write.parquet(source)
    events = spark.readStream.schema("k long, at timestamp").parquet(source)
    options = {"collection": "ms", "time": "at", "checkpointLocation": str(tmp_path / "c")}
    query = events.writeStream.format("persist").options(**options).trigger(availableNow=True).start(path)
    query.awaitTermination()
    assert updates(path) == [(0, NOON_MS, 1)]


@pytest.mark.thorough
def test_plans_show_moments(spark: SparkSession, path: str) -> None:
    with persist.open(path) as client:
        client.load("ms").write([(1, None)], time=NOON, seal="2026-11-22").result()
    with persist.spark.location(spark, path) as here:
        assert "(2026-11-21T12:00:00Z)" in str(here.plan_changes("ms", NOON, ONE))
        assert "2026-11-21T23:59:59.999Z" in str(here.plan("ms"))
