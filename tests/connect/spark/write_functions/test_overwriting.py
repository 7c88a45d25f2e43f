"""Overwrites by Spark whose rows repeat keys."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import persist
import persist.spark
from persist.connect.spark.jar import JAR
from tests.connect.spark.sessions import name_catalog

QUIET = persist.Settings(background=False)
TABLE = ["table"] if JAR.exists() else []


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
    if way == "table":
        df.createOrReplaceTempView("new_orders")
        given = ", ".join(f"'{name}' = '{value}'".lower() for name, value in options.items() if name != "where")
        table = f"{name_catalog(df.sparkSession, location)}.orders" + (f" WITH ({given})" if given else "")
        if "where" in options:
            df.sparkSession.sql(f"INSERT INTO {table} REPLACE WHERE {options['where']} SELECT * FROM new_orders")
        else:
            df.sparkSession.sql(f"INSERT OVERWRITE {table} SELECT * FROM new_orders")
        return
    writer = df.write.format("persist").option("collection", "orders").mode("overwrite")
    writer.options(**options).save(location)


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize("way", ["function", "format", *TABLE])
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


@pytest.mark.parametrize("way", ["function", *TABLE])
def test_an_overwrite_gives_no_key_a_second_row_beside_its_condition(
    spark: SparkSession, location: str, way: str
) -> None:
    rows = spark.createDataFrame([(1, "a", 6)], "id long, day string, v long")
    with pytest.raises((PySparkException, persist.InvalidUsage), match=r"keys of new rows, first of all \(1, 'a'\)"):
        overwrite(way, rows, location, where="v > 1")
    overwrite(way, rows, location, where="v > 0")
    assert held(location) == [((1, "a"), 6)]
