"""No path between a collection and Spark moves a timestamp: local times stay local, moments stay moments.

The session has a time zone that is far from UTC, so that whatever takes one for the other shows.
"""

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampNTZType, TimestampType

import persist
import persist.spark
from tests.connect.spark.sessions import WAYS, read
from tests.support.tuned import tuned

QUIET = tuned(background=False, grace_s=0, orphan_grace_s=0)
VALUE = {
    "local": pa.timestamp("us"),
    "moment": pa.timestamp("ms", "Europe/Berlin"),
    "inside": pa.struct([("local", pa.timestamp("ms")), ("moments", pa.list_(pa.timestamp("us", "UTC")))]),
}
NOON = dt.datetime(2026, 7, 1, 12, 0, 0, 125_000)
FIRST = NOON - dt.timedelta(days=1)  # In parts of their own, so that they stand.


def value(local: dt.datetime) -> Any:
    moment = local.replace(tzinfo=dt.UTC)
    return (local, moment, {"local": local, "moments": [moment, None]})


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """A session in New York, which takes TIMESTAMP for a moment."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    return session


@pytest.fixture(params=["blobs", "inline"])
def path(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Rows that stand, some that are replaced at time 1, and one more at time 2; in blobs, or in the log."""
    path = str(tmp_path / "location")
    rows = 3_000 if request.param == "blobs" else 30
    with persist.open(path, settings=QUIET) as client:
        c = client.create_or_load("times", key={"k": pa.int64()}, value=VALUE)
        c.write([((k, value(FIRST)), 0, 1) for k in range(rows)], seal=1).result()
        c.write([((0, value(FIRST)), 1, -1), ((0, value(NOON)), 1, 1)], seal=2).result()
        c.write([((-1, value(NOON)), 2, 1)], seal=3).result()
        assert bool(c.handle.contents().parts[0].blob) == (request.param == "blobs")
    return path


def check(frame: DataFrame, *, keys: tuple[int, ...] = (-1, 0, 1), local: dt.datetime = NOON) -> None:
    """Assert that the newest rows of some keys are as they were written."""
    assert isinstance(frame.schema["local"].dataType, TimestampNTZType)
    assert isinstance(frame.schema["moment"].dataType, TimestampType)
    last = frame.where(F.col("_diff") > 0) if "_diff" in frame.columns else frame
    rows = last.where(F.col("k").isin(*keys)).select(
        "k",
        F.col("local").cast("string").alias("local"),
        F.unix_micros("moment").alias("moment"),
        F.col("inside.local").cast("string").alias("inside"),
        F.unix_micros(F.col("inside.moments")[0]).alias("list"),
    )
    found = {tuple(row) for row in rows.collect()}

    def expected(k: int, local: dt.datetime) -> tuple[Any, ...]:
        text = str(local).rstrip("0")
        micros = int(local.replace(tzinfo=dt.UTC).timestamp() * 1000) * 1000
        return (k, text, micros, text, micros)

    wanted = {expected(k, FIRST if k == 1 else NOON) for k in keys}
    assert wanted <= found
    assert found <= wanted | {expected(k, FIRST) for k in keys}


@pytest.mark.thorough
def test_every_way_of_reading_a_collection_keeps_its_timestamps(session: SparkSession, path: str) -> None:
    source = session.read.format("persist").option("collection", "times")
    check(source.load(path))
    check(source.option("form", "diff").load(path))
    changes = session.read.format("persist").option("collection", "times").option("form", "changes")
    check(changes.option("start", 0).option("until", 3).load(path))
    for way in WAYS:
        check(read(session, path, "times", way))
        check(read(session, path, "times", way, 0), keys=(1,))
    for native in (True, False):
        check(persist.spark.changes(session, path, "times", 1, 3, native=native), keys=(-1, 0))
    with pytest.raises(PySparkException, match="that needs a time zone, and there is none here"):
        session.read.format("persist").schema("k long, local timestamp").option("collection", "times").load(
            path
        ).collect()


def streamed(session: SparkSession, path: str, checkpoint: Path, **options: Any) -> Iterator[DataFrame]:
    name = f"times_{checkpoint.name}"
    stream = session.readStream.format("persist").options(collection="times", **options).load(path)
    query = (
        stream.writeStream.format("memory")
        .queryName(name)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert query.exception() is None
    yield session.table(name)
    session.catalog.dropTempView(name)


@pytest.mark.thorough
def test_streams_keep_timestamps_on_their_way_out_and_in(session: SparkSession, path: str, tmp_path: Path) -> None:
    for frame in streamed(session, path, tmp_path / "read", form="changes", start=0):
        check(frame)
    with persist.open(path, settings=QUIET) as client:
        client.create_or_load("copy", key={"k": pa.int64()}, value=VALUE)
    stream = session.readStream.format("persist").options(collection="times", form="changes", start=0).load(path)
    query = (
        stream.writeStream.format("persist")
        .options(collection="copy", checkpointLocation=str(tmp_path / "write"))
        .trigger(availableNow=True)
        .start(path)
    )
    query.awaitTermination(120)
    assert query.exception() is None
    with persist.open(path, mode="read") as client:
        times, copy = (client.load(name).changes(0, 3).to_arrow().sort_by("_time") for name in ("times", "copy"))
        assert sorted(map(str, copy.to_pylist())) == sorted(map(str, times.to_pylist()))


def test_written_rows_keep_their_timestamps_and_kinds_are_not_mixed_up(session: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path)
    with persist.open(path, settings=QUIET) as client:
        for name in ("a", "b"):
            client.create_or_load(name, key={"k": pa.int64()}, value=VALUE)
    rows = session.sql(
        f"""
        SELECT 5L AS k, local, moment, named_struct('local', local, 'moments', array(moment, NULL)) AS inside
        FROM (SELECT TIMESTAMP_NTZ'{NOON}' AS local, TIMESTAMP'{NOON.replace(tzinfo=dt.UTC)}' AS moment)
        """
    )
    rows.write.format("persist").options(collection="a", time=0, seal=1).mode("append").save(path)
    persist.spark.write(rows, path, "b", mode="append", time=0, seal=1)
    with persist.open(path, mode="read") as client:
        for name in ("a", "b"):
            found = list(client.load(name).snapshot(0).rows())
            assert [(k, v) for k, v in found] == [(5, value(NOON))], name
    mixed = rows.withColumn("local", F.col("moment"))
    for write in (
        lambda: mixed.write.format("persist").options(collection="a", time=1).mode("append").save(path),
        lambda: persist.spark.write(mixed, path, "b", mode="append", time=1),
    ):
        with pytest.raises((PySparkException, persist.errors.SchemaMismatch), match="'local' has type timestamp"):
            write()


@pytest.mark.thorough
def test_a_part_that_goes_on_after_the_time_is_read_natively_up_to_it(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path)
    with persist.open(path, settings=QUIET) as client:
        c = client.create_or_load("c", key={"k": pa.int64()}, value={"v": pa.string()})
        c.write([((k, "v" * 20), k % 3, 1) for k in range(6_000)], seal=3).result()
        (part,) = c.handle.contents().parts
        assert part.blob
        assert not part.negatives
        for time in range(3):
            found = persist.spark.snapshot(spark, path, "c", as_of=time, native=True)
            assert sorted(row.k for row in found.collect()) == [k for k in range(6_000) if k % 3 <= time]
