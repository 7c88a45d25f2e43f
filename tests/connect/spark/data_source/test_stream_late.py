"""Late events in Spark: refused, dropped, or collected with their reason, by batches, queries and `foreachBatch`."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import persist
import persist.spark
from persist.connect.spark.write_functions import foreach_batch
from persist.errors import InvalidUsage, LateEvents, UpdateNotBeyondUpper
from tests.connect.spark.data_source.test_stream_upsert import forget
from tests.connect.spark.data_source.test_stream_write import Feed, run

WHERE = ["driver", "tasks"]


@pytest.fixture
def location(tmp_path: Path) -> str:
    """A location with `c`, sealed up to 5, whose late bound is 10 behind the greatest watermark, which is 100."""
    path = str(tmp_path / "location")
    with persist.open(path) as client:
        keyed = persist.Keyed(order_by=["at"], tombstone="gone", late_bound=persist.Behind(10))
        value = {"at": pa.int64(), "v": pa.string(), "gone": pa.bool_()}
        c = client.create_or_load("c", key={"k": pa.int64()}, value=value, keyed=keyed)
        c.upsert([(1, (100, "a", None))], time=4, seal=5).result()
    return path


def rows(location: str, name: str = "c") -> Counter[Any]:
    with persist.open(location, mode="read") as client:
        found = client.load(name).snapshot().to_arrow().to_pylist()
    return Counter(tuple(row.values()) for row in found)


def late_in(table: pa.Table | None) -> set[tuple[int, str]]:
    assert table is not None
    return {(row["k"], row["_reason"]) for row in table.to_pylist()}


COLUMNS = "k long, at long, v string, gone boolean, _time long"
SOME: list[tuple[Any, ...]] = [
    (2, 101, "in time", None, 6),
    (3, 102, "sealed", None, 4),
    (4, 50, "late", None, 6),
    (5, None, "no watermark", None, 7),
]
LATE = {(3, "sealed"), (4, "late"), (5, "late")}


@pytest.mark.thorough
@pytest.mark.parametrize("where", WHERE)
def test_a_batch_gives_back_what_is_late(spark: SparkSession, location: str, where: Any) -> None:
    batch = spark.createDataFrame(SOME, COLUMNS)
    with pytest.raises((UpdateNotBeyondUpper, LateEvents)):
        persist.spark.upsert(batch, location, "c", seal=9, where=where)
    late = persist.spark.upsert(batch, location, "c", seal=9, where=where, late="collect", token="t")
    assert late_in(late) == LATE
    assert rows(location) == {(1, 100, "a", None): 1, (2, 101, "in time", None): 1}
    assert persist.spark.upsert(batch, location, "c", seal=9, where=where, late="collect", token="t") is None
    everything = batch.where("_time < 9")
    assert len(late_in(persist.spark.upsert(everything, location, "c", where=where, late="collect"))) == 4
    with pytest.raises(InvalidUsage, match="late='drop' is not one of"):
        persist.spark.upsert(batch, location, "c", late="drop")  # type: ignore[arg-type]


@pytest.mark.thorough
def test_a_batch_of_one_time_that_is_sealed_is_late_as_a_whole(spark: SparkSession, location: str) -> None:
    batch = spark.createDataFrame([(7, 101, "x", None)], "k long, at long, v string, gone boolean")
    late = persist.spark.upsert(batch, location, "c", time=3, late="collect")
    assert late_in(late) == {(7, "sealed")}
    assert rows(location) == {(1, 100, "a", None): 1}


COLLECTED = {
    (3, 102, "sealed", None, False, 4, "sealed"): 1,
    (4, 50, "late", None, False, 6, "late"): 1,
    (5, None, "no watermark", None, False, 7, "late"): 1,
}


@pytest.mark.thorough
def test_the_data_source_adds_late_events_to_a_collection_by_the_same_commit(
    spark: SparkSession, location: str
) -> None:
    batch = spark.createDataFrame(SOME, COLUMNS)
    writer = batch.write.format("persist").option("collection", "c").option("mode", "upsert").mode("append")
    writer = writer.option("seal", 9).option("token", "t").option("late", "collect")
    with pytest.raises(PySparkException, match="go together"):
        writer.save(location)
    for _ in range(2):
        writer.option("late_collection", "c late").save(location)
    assert rows(location) == {(1, 100, "a", None): 1, (2, 101, "in time", None): 1}
    assert rows(location, "c late") == COLLECTED
    with persist.open(location, mode="read") as client:
        last = client.history(1).to_pylist()[0]
    assert last["collections"] == ["c", "c late"], last


def feed(spark: SparkSession, tmp_path: Path) -> Feed:
    made = Feed(spark, tmp_path, COLUMNS)
    made.add(*(dict(zip(("k", "at", "v", "gone", "_time"), each, strict=True)) for each in SOME))
    return made


def test_a_query_collects_what_is_late_once(spark: SparkSession, location: str, tmp_path: Path) -> None:
    given, checkpoint = feed(spark, tmp_path), tmp_path / "checkpoint"
    for _ in range(2):
        run(given.frame, location, checkpoint, mode="upsert", late="collect", late_collection="c late")
        forget(checkpoint, 0)
    assert rows(location, "c late") == COLLECTED
    assert rows(location) == {(1, 100, "a", None): 1, (2, 101, "in time", None): 1}
    given.add({"k": 9, "at": 3, "v": "late again", "_time": 9})
    run(given.frame, location, checkpoint, mode="upsert", late="collect", late_collection="c late")
    assert rows(location, "c late").total() == 4


@pytest.mark.thorough
def test_a_query_drops_what_is_below_the_late_bound_too(spark: SparkSession, location: str, tmp_path: Path) -> None:
    run(feed(spark, tmp_path).frame, location, tmp_path / "checkpoint", mode="upsert", late="drop")
    assert rows(location) == {(1, 100, "a", None): 1, (2, 101, "in time", None): 1}


@pytest.mark.thorough
def test_rows_without_times_may_be_late_by_their_watermark(spark: SparkSession, location: str, tmp_path: Path) -> None:
    given = Feed(spark, tmp_path, "k long, at long, v string, gone boolean")
    given.add({"k": 2, "at": 101, "v": "b"}, {"k": 3, "at": 7, "v": "late"})
    run(given.frame, location, tmp_path / "checkpoint", mode="upsert", late="collect", late_collection="c late")
    assert rows(location) == {(1, 100, "a", None): 1, (2, 101, "b", None): 1}
    assert [row[-1] for row in rows(location, "c late")] == ["late"]


@pytest.mark.thorough
@pytest.mark.parametrize("bytes_max", [1 << 20, 0], ids=WHERE)
def test_foreach_batch_collects_what_is_late_once(
    spark: SparkSession, location: str, tmp_path: Path, bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreach_batch, "ON_DRIVER_BYTES_MAX", bytes_max)
    given, checkpoint = feed(spark, tmp_path), tmp_path / "checkpoint"
    write = persist.spark.foreach_batch_writer(
        location, {"c": lambda df: df}, late="collect", late_collection="c late", seal="max"
    )
    for _ in range(2):
        query = given.frame.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint))
        query.trigger(availableNow=True).start().awaitTermination()
        forget(checkpoint, 0)
    assert rows(location, "c late") == COLLECTED
    assert rows(location) == {(1, 100, "a", None): 1, (2, 101, "in time", None): 1}


@pytest.mark.thorough
def test_what_collects_late_updates_of_a_plain_collection_is_refused(
    spark: SparkSession, location: str, tmp_path: Path
) -> None:
    with persist.open(location) as client:
        client.create_or_load("plain", key={"k": pa.int64()}, value={"v": pa.string()})
    with pytest.raises(PySparkException, match="goes with events for a keyed collection"):
        run(
            feed(spark, tmp_path).frame.select("k", "v", "_time"), location, tmp_path / "checkpoint",
            collection="plain", late="collect", late_collection="c late",
        )  # fmt: skip
