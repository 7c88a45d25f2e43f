"""Many collections from one query, atomically."""

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import persist
import persist.spark
from persist.blob.stores.file import FileBlob
from tests.connect.spark.data_source.test_stream_write import Feed


@pytest.fixture
def location(tmp_path: Path) -> str:
    path = str(tmp_path / "location")
    with persist.open(path) as client:
        client.create_or_load("all", key={"k": pa.int64()}, value={"v": pa.string()}).seal(5).result()
        client.create_or_load("even", key={"k": pa.int64()}, value=None)
    return path


def run(frame: DataFrame, checkpoint: Path, write: Any) -> StreamingQuery:
    writer = frame.writeStream.option("checkpointLocation", str(checkpoint)).foreachBatch(write)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def updates(location: str, name: str) -> list[tuple[int, int]]:
    with persist.open(location, mode="read") as client:
        c = client.load(name)
        return sorted((time, k) for (k, _), time, _ in c.changes(0, c.upper.time or 0).updates())


def blobs(location: str) -> set[str]:
    return {entry.key for entry in FileBlob(location).list("part/")}


def records(location: str) -> list[bytes]:
    """The records that add updates."""
    blob = FileBlob(location)
    found = [blob.get(entry.key) or b"" for entry in blob.list("log/")]
    return [record for record in found if b'"kind":"append"' in record]


def everything(df: DataFrame) -> DataFrame:
    return df.select("k", "v")


def even(df: DataFrame) -> DataFrame:
    return df.where("k % 2 = 0").select("k")


def test_a_batch_is_one_record_for_all_collections(spark: SparkSession, location: str, tmp_path: Path) -> None:
    feed, checkpoint = Feed(spark, tmp_path, "k long, v string"), tmp_path / "checkpoint"
    write = persist.spark.foreach_batch_writer(location, {"all": everything, "even": even})
    feed.add(*({"k": k, "v": "a"} for k in (1, 2, 3, 4)))
    feed.add({"k": 5, "v": "b"})
    run(feed.frame, checkpoint, write)
    assert updates(location, "all") == [(5, 1), (5, 2), (5, 3), (5, 4), (6, 5)]
    assert updates(location, "even") == [(5, 2), (5, 4)]
    assert len(records(location)) == 2
    (checkpoint / "commits" / "1").unlink()
    (checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    before = blobs(location)
    ran: list[str] = []

    def noted(df: DataFrame) -> DataFrame:
        ran.append("a job for a batch that was done")
        return everything(df)

    run(feed.frame, checkpoint, persist.spark.foreach_batch_writer(location, {"all": noted, "even": even}))
    assert (ran, blobs(location)) == ([], before)
    with persist.open(location, mode="read") as client:
        for name in ("all", "even"):
            c = client.load(name)
            assert c.upper == persist.Antichain(7)
            assert [len(last.runs) for last in c.handle.contents().queries.values()] == [2]


def test_a_batch_that_fails_for_one_collection_writes_none(spark: SparkSession, location: str, tmp_path: Path) -> None:
    feed, checkpoint = Feed(spark, tmp_path, "k long, v string"), tmp_path / "checkpoint"
    feed.add({"k": 1, "v": "a"}, {"k": 2, "v": "b"})

    def bad(df: DataFrame) -> DataFrame:
        return df.selectExpr("k", "10L AS _time", "nullif(k - 2, 0) AS _diff")

    def good(df: DataFrame) -> DataFrame:
        return df.selectExpr("k", "v", "10L AS _time", "1L AS _diff")

    for writes, message in (
        ({"all": good, "even": bad}, "has NULL in _diff"),
        ({"all": everything, "even": bad}, "is written to 'all' has no column _time"),
        ({"all": good, "other": bad}, "no collection 'other'"),
        ({"all": even}, "'v' \\(string\\) is missing"),
    ):
        with pytest.raises(PySparkException, match=message):
            run(feed.frame, checkpoint, persist.spark.foreach_batch_writer(location, writes))
    assert blobs(location) == set()
    assert records(location) == []
    run(feed.frame, checkpoint, persist.spark.foreach_batch_writer(location, {"all": good, "even": even_updates}))
    assert (updates(location, "all"), updates(location, "even")) == ([(10, 1), (10, 2)], [(9, 2)])
    with persist.open(location, mode="read") as client:
        assert [client.load(name).upper for name in ("all", "even")] == [persist.Antichain(11)] * 2


def even_updates(df: DataFrame) -> DataFrame:
    return df.where("k % 2 = 0").selectExpr("k", "9L AS _time", "1L AS _diff")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"writes": {}}, "does not map names of collections to functions"),
        ({"writes": {"c": "SELECT"}}, "does not map names of collections to functions"),
        ({"seal": "max", "watermark": 3}, "seal and watermark both say"),
        ({"late": "ignore"}, "late='ignore' is not one of"),
        ({"query_id": ""}, "query_id='' is not a text"),
    ],
)
def test_a_writer_that_cannot_be_says_why(location: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(persist.InvalidUsage, match=message):
        persist.spark.foreach_batch_writer(location, **{"writes": {"all": everything}, **arguments})


@pytest.mark.thorough
def test_a_batch_outside_of_a_query_needs_an_id(spark: SparkSession, location: str) -> None:
    frame = spark.createDataFrame([(1, "a")], "k long, v string")
    with pytest.raises(persist.InvalidUsage, match="Give foreach_batch_writer a query_id"):
        persist.spark.foreach_batch_writer(location, {"all": everything})(frame, 0)
    write = persist.spark.foreach_batch_writer(location, {"all": everything}, query_id="mine")
    write(frame, 0)
    write(frame, 0)
    assert updates(location, "all") == [(5, 1)]


def test_batches_of_a_query_share_an_engine_until_one_fails(spark: SparkSession, location: str) -> None:
    write: Any = persist.spark.foreach_batch_writer(location, {"all": everything}, query_id="q")
    rows = spark.createDataFrame([(1, "a")], "k long, v string")
    write(rows, 0)
    engine = write.__self__.open_engine("q")
    write(rows, 1)
    assert write.__self__.open_engine("q") is engine
    assert write.__self__.open_engine("another") is not engine
    assert pickle.loads(pickle.dumps(write)).__self__.engines == {}
    with pytest.raises(persist.errors.QueryMismatch):
        write(rows, 0)
    assert engine.is_closed
    write(rows, 2)
    with persist.open(location, mode="read") as client:
        assert client["all"].snapshot().count() == 3
