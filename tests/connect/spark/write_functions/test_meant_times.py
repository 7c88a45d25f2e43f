"""On a timeline, Spark's writers refuse times that nobody is likely to mean, as Python's do."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import persist
import persist.spark
from persist.blob.stores.file import FileBlob

QUIET = persist.Settings(background=False)
FAR = (datetime.now(UTC) + timedelta(days=30)).isoformat(timespec="milliseconds")
ROW, KIND = [(1, "a")], "k long, v string"


@pytest.fixture
def location(tmp_path: Path) -> str:
    location = str(tmp_path / "data")
    with persist.open(location, settings=QUIET) as client:
        sides: dict[str, Any] = {"key": {"k": pa.int64()}, "value": {"v": pa.string()}, "timeline": "ms"}
        client.create_or_load("plain", **sides)
        client.create_or_load("keyed", **sides, keyed=persist.Keyed())
    return location


def test_times_far_ahead_or_in_another_unit_are_refused_unless_they_are_allowed(
    spark: SparkSession, location: str
) -> None:
    rows = spark.createDataFrame(ROW, KIND)
    ahead = rows.selectExpr("*", f"unix_millis(timestamp '{FAR}') AS _time", "1L AS _diff")
    writes: list[Any] = [
        lambda **more: persist.spark.write(rows, location, "plain", mode="append", time=FAR, **more),
        lambda **more: persist.spark.write(rows, location, "plain", mode="overwrite", time=FAR, **more),
        lambda **more: persist.spark.write(ahead, location, "plain", **more),
        lambda **more: persist.spark.delete(spark, location, "plain", "k = 1", time=FAR, **more),
        lambda **more: persist.spark.upsert(rows, location, "keyed", time=FAR, **more),
        lambda **more: persist.spark.upsert(rows, location, "keyed", time="2026-11-23", seal=FAR, **more),
        lambda **more: persist.spark.upsert(ahead.drop("_diff"), location, "keyed", where="driver", **more),
        lambda **more: persist.spark.upsert(ahead.drop("_diff"), location, "keyed", where="tasks", **more),
        lambda **more: rows.write.format("persist").mode("append").options(collection="plain", time=FAR, **more).save(
            location
        ),
    ]  # fmt: skip
    before = {entry.key for entry in FileBlob(location).list("")}
    for write in writes:
        with pytest.raises((persist.InvalidUsage, PySparkException), match="is more than a day ahead of the clock"):
            write()
    with pytest.raises(persist.InvalidUsage, match="It looks like s: that would be 2026"):
        persist.spark.write(rows, location, "plain", mode="append", time=1_790_000_000)
    assert {entry.key for entry in FileBlob(location).list("")} == before, "and nothing is left behind"
    writes[2](allow_future=True)
    writes[0](allow_future=True)
    for upsert in writes[5:8]:
        upsert(allow_future=True)
    with persist.open(location, mode="read") as client:
        assert client.load("plain").upper == persist.Antichain(0), "nothing of it is sealed"
        assert list(client.load("keyed").snapshot("2026-11-23").rows()) == [(1, "a")]


@pytest.mark.thorough
def test_a_stream_of_times_far_ahead_ends_before_it_seals_them(
    spark: SparkSession, location: str, tmp_path: Path
) -> None:
    rows = spark.createDataFrame(ROW, KIND).selectExpr("*", f"unix_millis(timestamp '{FAR}') AS _time", "1L AS _diff")
    for name, frame, mode in (("plain", rows, "append"), ("keyed", rows.drop("_diff"), "upsert")):
        folder = str(tmp_path / name)
        frame.write.mode("append").parquet(folder)
        stream = spark.readStream.schema(frame.schema).parquet(folder).writeStream.format("persist")
        stream = stream.options(collection=name, mode=mode, checkpointLocation=str(tmp_path / f"{name} is at"))
        with pytest.raises(PySparkException, match="is more than a day ahead of the clock"):
            stream.trigger(availableNow=True).start(location).awaitTermination()
        stream.option("allow_future", True).trigger(availableNow=True).start(location).awaitTermination()
        with persist.open(location, mode="read") as client:
            assert client.load(name).snapshot().count() == 1
