"""Columns of DataFrames are found by the names that a session of Spark finds them by, whatever characters they have."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import persist
import persist.spark
from persist.connect.spark.frames import match_names
from tests.connect.spark.sessions import NAMES, WAYS, conf, read, records


@pytest.mark.thorough(except_every=len(NAMES))
@pytest.mark.parametrize("name", NAMES)
def test_names_with_dots_and_backticks_are_taken_everywhere(spark: SparkSession, tmp_path: Path, name: str) -> None:
    path, key = str(tmp_path), f"k{name}"
    quoted = f"`{name.replace('`', '``')}`"
    frame = spark.createDataFrame([(1, 10), (2, 20), (3, 30)], "k long, v long").toDF(key, name)
    persist.spark.write(frame, path, "c", key=[key])
    persist.spark.write(frame.where(f"{quoted} < 30"), path, "c", mode="overwrite")
    persist.spark.write(frame.where(f"{quoted} = 30"), path, "c", mode="append")
    persist.spark.write(frame.where(f"{quoted} = 30"), path, "c", mode="overwrite", where=f"{quoted} > 20")
    persist.spark.delete(spark, path, "c", frame.where(f"{quoted} = 20").select(f"`{key.replace('`', '``')}`"))
    persist.spark.delete(spark, path, "c", f"{quoted} = 10", token="once")
    assert records(path, "c") == [(3, 30)]
    writer: Any = frame.write.format("persist").option("collection", "c")
    writer.mode("overwrite").save(path)
    for way in WAYS:
        assert sorted(map(tuple, read(spark, path, "c", way).collect())) == [(1, 10), (2, 20), (3, 30)]
    assert persist.spark.snapshot(spark, path, "c").selectExpr(f"sum({quoted})").collect() == [(60,)]
    with persist.open(path) as client:
        client.create_or_load("u", key={key: int}, value={name: int}, keyed=persist.Keyed())
    for where in ("driver", "tasks"):
        persist.spark.upsert(frame, path, "u", where=where)
    persist.spark.delete(spark, path, "u", frame.where(f"{quoted} = 20").select(f"`{key.replace('`', '``')}`"))
    persist.spark.foreach_batch_writer(path, {"u": lambda df: df}, query_id="q")(frame.where(f"{quoted} = 10"), 0)
    persist.spark.foreach_batch_writer(path, {"c": lambda df: df}, query_id="q")(frame.where(f"{quoted} = 10"), 0)
    assert records(path, "u") == [(1, 10), (3, 30)]
    assert len(records(path, "c")) == 4
    times = frame.where("false").toDF(key, "at.time")
    assert persist.spark.as_of_join(times, path, "c", time="at.time").columns == [key, "at.time", name]


def test_columns_are_found_as_the_session_finds_them(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path)
    with persist.open(path) as client:
        client.create_or_load("c", key={"id": int}, value={"status": str})
        client.create_or_load("u", key={"id": int}, value={"status": str}, keyed=persist.Keyed())
    frame = spark.createDataFrame([(1, "a"), (2, "b")], "ID long, Status string")

    def writes(frame: DataFrame, batch: int) -> list[Any]:
        return [
            lambda: persist.spark.write(frame, path, "c", mode="overwrite"),
            lambda: persist.spark.write(frame, path, "c", key=["id"], mode="append"),
            lambda: persist.spark.upsert(frame, path, "u"),
            lambda: persist.spark.upsert(frame, path, "u", where="tasks"),
            lambda: persist.spark.delete(spark, path, "c", frame.select("ID").where("Status = 'a'")),
            lambda: persist.spark.delete(spark, path, "u", frame.select("ID").where("Status = 'a'")),
            lambda: persist.spark.foreach_batch_writer(path, {"c": lambda df: df}, query_id="q")(frame, batch),
        ]

    for write in writes(frame, 0):
        write()
    assert records(path, "c") == [(1, "a"), (2, "b"), (2, "b"), (2, "b")]
    assert records(path, "u") == [(2, "b")]
    with conf(spark, caseSensitive="true"):
        for number, write in enumerate(writes(frame, 1)):
            with pytest.raises(persist.errors.SchemaMismatch):
                write()
                raise AssertionError(number)
    twice = spark.sql("SELECT 1L AS id, 'x' AS Status, 'y' AS STATUS")
    with pytest.raises(persist.errors.SchemaMismatch, match="unexpected"):
        persist.spark.write(twice, path, "c", mode="append")
    assert len(records(path, "c")) == 4


def test_a_name_in_the_right_case_comes_first() -> None:
    assert match_names(["A", "b", "c"], ["a", "A", "B"]) == ["A", "B", "c"]
    assert match_names(["A", "a"], ["a"]) == ["A", "a"]
    assert match_names(["B", "b", "C"], ["bB", "c", "C"]) == ["B", "b", "C"]
    assert match_names(["x"], ["X", "x́", "Xx"], folds=False) == ["x"]
    assert match_names(["X"], ["x", "x"]) == ["x"]
    assert match_names(["X"], ["xa", "Xa"]) == ["X"]
