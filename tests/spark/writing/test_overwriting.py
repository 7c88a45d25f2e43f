"""Overwrites and deletions by Spark: keys that come twice, and other writers that come first."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import persist
import persist.spark

QUIET = persist.Settings(background=False)
WAYS = ["function", "format"]


@pytest.fixture
def location(tmp_path: Path) -> str:
    made = str(tmp_path / "data")
    with persist.open(made, settings=QUIET) as client:
        orders = client.create_or_load("orders", key={"id": int, "day": str}, value={"v": int})
        orders.write([((1, "a"), 1), ((2, "b"), 2)], time=4, seal=5).result()
    return made


def held(location: str) -> list[Any]:
    with persist.open(location, mode="read") as client:
        return sorted(client.load("orders").snapshot().rows())


def overwrite(way: str, df: DataFrame, location: str, **options: Any) -> None:
    if way == "function":
        persist.spark.write(df, location, "orders", mode="overwrite", **options)
        return
    writer = df.write.format("persist").option("collection", "orders").mode("overwrite")
    writer.options(**options).save(location)


@pytest.mark.parametrize("way", WAYS)
def test_an_overwrite_whose_rows_repeat_a_key_is_refused_by_its_tasks(
    spark: SparkSession, location: str, way: str
) -> None:
    rows = [(1, "a", 1), (2, "b", 5), (2, "c", 5), (1, "a", 7)]
    repeated = spark.createDataFrame(rows, "id long, day string, v long").repartition(3)
    with pytest.raises((PySparkException, persist.InvalidUsage), match=r"repeat keys, first of all \(1, 'a'\)"):
        overwrite(way, repeated, location)
    assert held(location) == [((1, "a"), 1), ((2, "b"), 2)]
    overwrite(way, repeated, location, multiset=True)
    assert held(location) == [((1, "a"), 1), ((1, "a"), 7), ((2, "b"), 5), ((2, "c"), 5)]
    overwrite(way, repeated.where("v = 5"), location)
    assert held(location) == [((2, "b"), 5), ((2, "c"), 5)]


def coming_first(location: str, done: str) -> Any:
    """Return a function of tasks, the first of which writes to the collection by a client of its own."""

    def passed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            Path(done).touch(exist_ok=False)
        except FileExistsError:
            yield from batches
            return
        with persist.open(location, settings=persist.Settings(background=False)) as client:
            client.load("orders").write([((9, "z"), 9)]).result()
        yield from batches

    return passed


@pytest.mark.parametrize("way", WAYS)
def test_an_overwrite_without_a_time_is_made_again_if_somebody_comes_first(
    spark: SparkSession, location: str, tmp_path: Path, way: str
) -> None:
    for number, options in enumerate(({}, {"time": 20})):
        columns = "id long, day string, v long"
        rows = spark.createDataFrame([(1, "a", 3)], columns).mapInArrow(
            coming_first(location, str(tmp_path / f"done{number}")), columns
        )
        if options:
            with pytest.raises((PySparkException, persist.Conflict), match="upper"):
                overwrite(way, rows, location, **options)
            assert held(location) == [((1, "a"), 3), ((9, "z"), 9)]
        else:
            overwrite(way, rows, location)
            assert held(location) == [((1, "a"), 3)]


def test_a_deletion_without_a_time_is_made_again_if_somebody_comes_first(
    spark: SparkSession, location: str, tmp_path: Path
) -> None:
    columns = "id long, day string"
    keys = spark.createDataFrame([(1, "a"), (9, "z")], columns).mapInArrow(
        coming_first(location, str(tmp_path / "done")), columns
    )
    persist.spark.delete(spark, location, "orders", keys)
    assert held(location) == [((2, "b"), 2)]
