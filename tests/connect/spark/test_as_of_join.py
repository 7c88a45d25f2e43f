"""In Spark as in Python: each row gets what its key held at the time of the row."""

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import persist
import persist.spark

QUIET = persist.Settings(background=False)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Keys with values that change at times 1 to 5, in blobs; some have none, one has two records."""
    path = str(tmp_path / "location")
    rng = np.random.default_rng(1)
    with persist.open(path, settings=QUIET) as client:
        prices = client.create_or_load(
            "prices", key={"k": pa.int64()}, value={"price": pa.int64(), "note": pa.string()}
        )
        prices.write([(k, (k, "first")) for k in range(0, 4000, 2)], time=0, seal=1).result()
        for time in range(1, 10, 2):
            some = [int(k) for k in rng.choice(4000, 400, replace=False)]
            prices.delete(some, time=time).result()
            prices.write(
                [(k, (k * 10 + time, f"at {time}")) for k in some[:300]], time=time + 1, seal=time + 2
            ).result()
        prices.write([(2, (7, "twice"))], time=11, seal=12).result()
    return path


def test_it_finds_what_the_same_join_in_python_finds(spark: SparkSession, path: str) -> None:
    rows = [(n, (n * 37) % 4100, n % 11, f"row {n}") for n in range(3000)]
    frame = spark.createDataFrame(
        [*rows, (-1, None, 3, None), (-2, 2, None, None)], "n int, who long, at long, of string"
    )
    found = persist.spark.as_of_join(frame, path, "prices", on=["who"], partitions=3)
    assert found.columns == ["n", "who", "at", "of", "price", "note"]
    with persist.open(path, mode="read") as client:
        table = frame.toArrow()
        expected = client.load("prices").as_of_join(table, on=["who"]).to_pylist()

    def ordered(found: list[dict[str, Any]]) -> list[str]:
        return sorted(map(repr, found))

    assert ordered([row.asDict() for row in found.collect()]) == ordered(expected)
    assert sum(row["price"] is None for row in expected) > 100
    assert found.where("n = 10").select("note").count() == 1


@pytest.mark.thorough
def test_moments_are_times_and_columns_are_chosen(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path)
    noon = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)
    with persist.open(path, settings=QUIET) as client:
        c = client.create_or_load("c", key={"k": pa.int64()}, value={"v": str, "w": str}, timeline="ms")
        c.write([(1, ("a", "x"))], time=noon, seal="2026-11-22").result()
    moments = [noon - dt.timedelta(microseconds=1), noon, noon + dt.timedelta(hours=1)]
    frame = spark.range(1, 2).toDF("k").select("k", F.explode(F.array(*map(F.lit, moments))).alias("at"))
    found = persist.spark.as_of_join(frame, path, "c", columns=["w"]).orderBy("at").collect()
    assert [(row["k"], row["w"]) for row in found] == [(1, None), (1, "x"), (1, "x")]
    assert found[0].asDict().keys() == {"k", "at", "w"}


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("1L AS k", {}, "the frame has no column 'at'"),
        ("1L AS k, 1L AS at", {"on": ["who"]}, "the frame has no column 'who'"),
        ("1L AS k, 1L AS at, 2 AS price", {}, "the frame has a column 'price', as the collection has"),
        ("1L AS k, current_timestamp() AS at", {}, "the time of a row is a whole number"),
        ("1L AS k, 1L AS at", {"columns": ["cost"]}, "'cost' is not a column of this collection"),
    ],
)
def test_what_does_not_fit_is_told_before_any_task(
    spark: SparkSession, path: str, columns: str, options: dict[str, Any], message: str
) -> None:
    frame = spark.range(1).selectExpr(*columns.split(", "))
    with pytest.raises(persist.PersistError, match=message):
        persist.spark.as_of_join(frame, path, "prices", **options)


@pytest.mark.thorough
def test_a_time_that_is_not_sealed_fails_the_query(spark: SparkSession, path: str) -> None:
    frame = spark.sql("SELECT 2L AS k, 99L AS at")
    with pytest.raises(PySparkException, match="as_of=99 is not before upper"):
        persist.spark.as_of_join(frame, path, "prices", timeout_s=0).collect()
