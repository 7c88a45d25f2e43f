"""Plain rows in Spark: what a condition finds is deleted or overwritten, and all else stays as it was."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import persist
import persist.spark
from persist.connect.spark.jar import JAR
from tests.connect.spark.sessions import name_catalog

ROWS = "id long, status string, amount double"


def contents(location: str, as_of: int | None = None) -> dict[Any, int]:
    with persist.open(location, mode="read") as client:
        found = client.load("orders").snapshot(as_of, form="diff")
        return {(key, *map(repr, value)): diff for (key, value), diff in found.rows()}


def upper(location: str) -> persist.Antichain:
    with persist.open(location, mode="read") as client:
        return client.load("orders").upper


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize("way", ["text", "column", *(["table"] if JAR.exists() else [])])
def test_what_a_condition_finds_is_deleted(spark: SparkSession, location: str, way: str) -> None:
    before = contents(location)
    what: Any = "id < 1990 OR isnan(amount)"
    if way == "table":
        spark.sql(f"DELETE FROM {name_catalog(spark, location)}.orders WHERE {what}")
    else:
        column = F.col("id").between(0, 1989) | F.isnan("amount")
        persist.spark.delete(spark, location, "orders", column if way == "column" else what)
    assert contents(location) == {k: n for k, n in before.items() if k[0] >= 1990 and k[2] != "nan"}
    assert contents(location, as_of=12) == before
    assert upper(location) == 14


@pytest.mark.thorough
def test_all_records_with_some_keys_are_deleted_once(spark: SparkSession, location: str) -> None:
    with persist.open(location) as client:
        client.load("orders").write([((None, ("x", 1.0)), 13, 2)], seal=14).result()
    before = contents(location)
    keys = spark.createDataFrame([(1,), (2,), (2,), (None,), (77777,)], "id long")
    for _ in range(2):
        persist.spark.delete(spark, location, "orders", keys, time=20, token="these")
    assert upper(location) == 21
    assert contents(location) == {k: n for k, n in before.items() if k[0] not in (1, 2, None)}
    with pytest.raises(persist.errors.TokenReused):
        persist.spark.delete(spark, location, "orders", keys.where("id = 2"), time=20, token="these")
    with persist.open(location) as client:  # It is the same deletion in Python, too.
        again = client.load("orders").delete([1, 2, None, 77777], time=20, token="these")
        seqno = client.seqno
        assert again.result() <= seqno
    assert upper(location) == 21


@pytest.mark.thorough
def test_a_deletion_that_does_not_fit_is_refused(spark: SparkSession, location: str) -> None:
    before = contents(location)
    calls: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
        (
            spark.createDataFrame([(1,)], "ID2 long"),
            {},
            persist.errors.SchemaMismatch,
            r"\['ID2'\], and the key is \['id'\]",
        ),
        ("", {}, persist.InvalidUsage, "not a condition"),
        ("amuont > 5", {}, PySparkException, "amount"),
        ("id = 1", {"time": 3}, persist.errors.UpdateNotBeyondUpper, "time 3 is not beyond"),
        ("id = 1", {"time": "amount"}, persist.InvalidUsage, "not a moment"),
    ]
    for what, options, error, message in calls:
        with pytest.raises(error, match=message):
            persist.spark.delete(spark, location, "orders", what, **options)
    with persist.open(location) as client:
        client.load("orders").write([((9, ("late", 1.0)), 30, 1)], token="late").result()
    with pytest.raises(persist.errors.UpdatesBeyondUpper, match="1 update at time 30 beyond upper"):
        persist.spark.delete(spark, location, "orders", "id = 1")
    assert contents(location) == before


def test_keys_of_a_keyed_collection_are_deleted_by_events(spark: SparkSession, tmp_path: Any) -> None:
    location = str(tmp_path)
    with persist.open(location) as client:
        users = client.create_or_load("users", key={"id": int}, value={"name": str}, keyed=persist.Keyed())
        users.upsert([(1, "a", 0), (2, "b", 0)], seal=1).result()
    keys = spark.createDataFrame([(1,)], "id long")
    with pytest.raises(persist.InvalidUsage, match="Give a DataFrame of keys"):
        persist.spark.delete(spark, location, "users", "id = 1", time=5)
    persist.spark.delete(spark, location, "users", keys, time=5)
    with persist.open(location) as client:
        users = client.load("users")
        users.seal(6).result()
        assert sorted(users.snapshot().rows()) == [(2, "b")]
    persist.spark.delete(spark, location, "users", spark.createDataFrame([(2,)], "id long"))
    with persist.open(location) as client:
        users = client.load("users")
        assert (users.upper.time, list(users.snapshot().rows())) == (7, [])


def overwrite(way: str, frame: DataFrame, location: str, where: Any, **options: Any) -> None:
    if way == "write":
        persist.spark.write(frame, location, "orders", mode="overwrite", where=where, **options)
    else:
        given = {"collection": "orders", "where": where, **options}
        frame.write.format("persist").options(**given).mode("overwrite").save(location)


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize("way", ["write", "format"])
def test_only_what_a_condition_finds_is_overwritten(spark: SparkSession, location: str, way: str) -> None:
    before = contents(location)
    frame = spark.createDataFrame([(5, "new", 1.0), (6, "new", 1.0)], ROWS)
    for _ in range(2):
        overwrite(way, frame, location, "id < 10 and id >= 0", time=15, token="part")
    kept = {k: n for k, n in before.items() if k[0] is None or k[0] >= 10}
    assert contents(location) == {**kept, (5, "'new'", "1.0"): 1, (6, "'new'", "1.0"): 1}
    assert (upper(location), contents(location, as_of=12)) == (persist.Antichain(16), before)
    outside = spark.createDataFrame([(5, "new", 1.0), (60, "new", 1.0)], ROWS)
    with pytest.raises((persist.InvalidUsage, PySparkException), match="is not true for"):
        overwrite(way, outside, location, "id < 10")
    assert upper(location) == 16
    assert contents(location, as_of=12) == before


@pytest.mark.thorough
def test_a_condition_that_does_not_fit_is_refused(spark: SparkSession, location: str) -> None:
    frame = spark.createDataFrame([(5, "new", 1.0)], ROWS)
    with pytest.raises(persist.InvalidUsage, match='goes with mode="overwrite"'):
        persist.spark.write(frame, location, "orders", where="id < 10", time=15)
    with pytest.raises(PySparkException, match=r'goes with .mode\("overwrite"\)'):
        given = {"collection": "orders", "where": "id < 10", "time": 15}
        frame.write.format("persist").options(**given).mode("append").save(location)
    with pytest.raises(PySparkException, match="did you mean 'amount'"):
        overwrite("format", frame, location, "amuont < 10")
    assert upper(location) == 13


@pytest.mark.thorough
def test_sql_overwrites_what_is_there_and_says_what_it_cannot(spark: SparkSession, location: str) -> None:
    given = f"WITH (path = '{location}', collection = 'orders', time = 15)"
    spark.sql("CREATE TABLE sql_orders (id BIGINT, status STRING, amount DOUBLE) USING persist")
    try:
        spark.sql(f"INSERT OVERWRITE sql_orders {given} SELECT 5L, 'new', 1.0D")
        assert contents(location) == {(5, "'new'", "1.0"): 1}
        for refused in ("DELETE FROM sql_orders WHERE id = 5", f"DELETE FROM sql_orders {given} WHERE id = 5"):
            with pytest.raises(PySparkException):
                spark.sql(refused)
    finally:
        spark.sql("DROP TABLE sql_orders")
    assert contents(location) == {(5, "'new'", "1.0"): 1}


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize("name", ["_key_0", "_KEY_0"])
def test_keys_are_deleted_whatever_other_columns_are_called(spark: SparkSession, tmp_path: Path, name: str) -> None:
    path = str(tmp_path)
    with persist.open(path) as client:
        client.write("c", pa.table({"id": [1, 2], name: [2, 1]}), key=["id"]).result()
    persist.spark.delete(spark, path, "c", spark.createDataFrame([(1,)], "id long"))
    with persist.open(path, mode="read") as client:
        assert list(client.load("c").snapshot().rows()) == [(2, 1)]
