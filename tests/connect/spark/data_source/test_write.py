"""Writing from Spark: one commit, or nothing."""

import datetime
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import persist
from persist.blob.stores.file import FileBlob
from persist.connect.spark.jar import JAR
from tests.connect.spark.sessions import name_catalog

UPDATES = "id long, status string, amount double, _time long, _diff long"
ROWS = "id long, status string, amount double"
WAYS = ["format", *(["table"] if JAR.exists() else [])]


def append(frame: DataFrame, location: str, way: str = "format", **options: Any) -> None:
    if way == "table":
        frame.writeTo(f"{name_catalog(frame.sparkSession, location)}.orders").options(**options).append()
        return
    frame.write.format("persist").option("collection", "orders").options(**options).mode("append").save(location)


def records(location: str) -> int:
    return len(list(FileBlob(location).list("log/")))


def parts(location: str) -> set[str]:
    return {entry.key for entry in FileBlob(location).list("part/")}


def test_updates_are_appended_and_sealed_as_one_commit(spark: SparkSession, location: str) -> None:
    before = records(location)
    updates = [(i, "late", 1.0, 13 + i % 2, 1) for i in range(500)] + [(0, "paid", 0.0, 14, -1)]
    append(spark.createDataFrame(updates, UPDATES).repartition(3), location, seal=15)
    assert records(location) == before + 1
    with persist.open(location, mode="read") as client:
        orders = client.load("orders")
        assert orders.upper == persist.Antichain(15)
        changes = orders.changes(13, 15).to_arrow()
        assert sorted(tuple(row.values()) for row in changes.to_pylist()) == sorted(updates)


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize("way", WAYS)
def test_plain_rows_are_inserted_at_the_time_of_the_option(spark: SparkSession, location: str, way: str) -> None:
    append(spark.createDataFrame([(6000, "x", None), (6001, None, 2.0)], ROWS), location, way, time=20, seal="end")
    with persist.open(location, mode="read") as client:
        orders = client.load("orders")
        assert orders.upper == persist.Antichain()
        found = list(orders.changes(13, 30).updates())
        assert found == [((6000, ("x", None)), 20, 1), ((6001, (None, 2.0)), 20, 1)]


@pytest.mark.thorough
def test_an_empty_dataframe_may_still_seal(spark: SparkSession, location: str) -> None:
    append(spark.createDataFrame([], ROWS), location, time=13, seal=30)
    with persist.open(location, mode="read") as client:
        assert client.load("orders").upper == persist.Antichain(30)


def fail_in_one_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    assert context is not None
    yield from batches
    if context.partitionId() == 1:
        raise RuntimeError("this task fails for ever")


def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    assert context is not None
    yield from batches
    if context.partitionId() == 1 and context.attemptNumber() == 0:
        raise RuntimeError("this task fails once")


@pytest.mark.parametrize("way", WAYS)
def test_an_aborted_write_leaves_nothing_visible(spark: SparkSession, location: str, way: str) -> None:
    before, parts_before = records(location), parts(location)
    frame = spark.range(0, 30_000, 1, 3).selectExpr("id", "'x' AS status", "1.5D AS amount")
    frame = frame.mapInArrow(fail_in_one_task, "id long, status string, amount double")
    with pytest.raises((Py4JJavaError, PySparkException), match="this task fails for ever"):
        append(frame, location, way, time=13, seal=14)
    assert records(location) == before
    with persist.open(location, mode="read") as client:
        assert client.load("orders").upper == persist.Antichain(13)
        assert client.load("orders").snapshot().count() == 2002
    assert len(parts(location) - parts_before) <= 2  # A task that ran on after the abort may leave its blob.


@pytest.mark.parametrize("way", WAYS)
def test_a_task_that_is_retried_counts_once(spark: SparkSession, location: str, way: str) -> None:
    frame = spark.range(0, 30_000, 1, 3).selectExpr("id + 10000 AS id", "'x' AS status", "1.5D AS amount")
    append(frame.mapInArrow(fail_once, ROWS), location, way, time=13, seal=14)
    with persist.open(location, mode="read") as client:
        assert client.load("orders").snapshot().count() == 2002 + 30_000
        assert sum(diff for _, _, diff in client.load("orders").changes(13, 14).updates()) == 30_000


def test_every_type_that_spark_has_survives_the_round_trip(spark: SparkSession, tmp_path: Path) -> None:
    types = {
        "b": pa.bool_(),
        "i8": pa.int8(),
        "u8": pa.uint8(),
        "u32": pa.uint32(),
        "u64": pa.uint64(),
        "f16": pa.float16(),
        "f32": pa.float32(),
        "s": pa.large_string(),
        "bin": pa.binary(3),
        "d": pa.date32(),
        "d64": pa.date64(),
        "ts": pa.timestamp("us", "Europe/Berlin"),
        "ntz": pa.timestamp("ms"),
        "dec": pa.decimal128(10, 2),
        "dur": pa.duration("ms"),
        "l": pa.large_list(pa.int16()),
        "st": pa.struct({"x": pa.uint16(), "y": pa.string()}),
        "m": pa.map_(pa.string(), pa.float64()),
    }
    at = datetime.datetime(2026, 1, 2, 3, 4, 5)
    row: dict[str, Any] = {
        "b": True, "i8": -128, "u8": 255, "u32": 2**32 - 1, "u64": 2**64 - 1, "f16": 1.5, "f32": 0.25, "s": "ü",
        "bin": b"abc", "d": at.date(), "d64": at.date(), "ts": at.replace(tzinfo=datetime.UTC), "ntz": at,
        "dec": Decimal("-12.34"), "dur": datetime.timedelta(seconds=3), "l": [1, None], "st": {"x": 65535, "y": None},
        "m": [("k", 1.0)],
    }  # fmt: skip
    path = str(tmp_path / "types")
    table = pa.table(
        {"k": pa.array([1, 2])} | {name: pa.array([row[name], None], type_) for name, type_ in types.items()}
    )
    with persist.open(path) as client:
        collections = [client.create_or_load(n, key={"k": pa.int64()}, value=types) for n in ("a", "b")]
        updates = table.append_column("_time", pa.array([0, 0])).append_column("_diff", pa.array([1, 1]))
        collections[0].write(updates)
        collections[0].seal(1).result()
        frame = spark.read.format("persist").option("collection", "a").load(path)
        frame.write.format("persist").options(collection="b", time=0, seal=1).mode("append").save(path)
        copied, original = (c.snapshot(0).to_arrow().sort_by("k") for c in reversed(collections))
        assert copied.equals(original)
        assert original.num_rows == 2
