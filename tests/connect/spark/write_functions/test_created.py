"""A collection that is missing: what to do about it, and a write that makes it."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import persist
import persist.spark
from tests.connect.spark.sessions import records


def test_a_write_with_a_key_makes_the_collection_with_the_columns_of_the_frame(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "location")
    kinds = "id long, line int, status string, at timestamp, tags array<string>"
    rows = spark.createDataFrame([(1, 2, "new", None, ["x"]), (2, 1, None, None, None)], kinds)
    persist.spark.write(rows, path, "orders", key=["id", "line"])
    persist.spark.write(rows.where("id = 1"), path, "orders", key=["id", "line"], mode="overwrite")
    with persist.open(path, mode="read") as client:
        orders = client.load("orders")
        assert orders.handle.schema.key_names == ("id", "line")
        assert orders.handle.schema.arrow.field("at").type == pa.timestamp("us", "UTC")
        assert [tuple(row) for row in orders.snapshot().rows()] == [((1, 2), ("new", None, ["x"]))]
    with pytest.raises(persist.errors.SchemaMismatch, match=r"key=\['id'\] is not the key of the collection 'orders'"):
        persist.spark.write(rows, path, "orders", key=["id"])
    with pytest.raises(persist.InvalidUsage, match=r"key=\['nr'\] names no column 'nr'"):
        persist.spark.write(rows, path, "others", key=["nr"])
    with persist.open(path, mode="read") as client:
        assert [*client.collections()] == ["orders"]


def test_a_write_with_a_key_that_is_repeated_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "location")
    rows = spark.createDataFrame([(1, None, "a"), (2, 3, "b")], "k long, n long, v string")
    for frame in (rows, rows, rows.where("k = 1").withColumn("v", F.lit("c"))):
        persist.spark.write(frame, path, "c", key=["k", "n"], token=None)
    with persist.open(path, mode="read") as client:
        assert sorted(client["c"].snapshot().rows(), key=str) == [((1, None), "c"), ((2, 3), "b")]
        assert client["c"].changes(0).to_arrow().num_rows == 4
    persist.spark.write(rows, path, "c", key=["k", "n"], mode="append")
    with persist.open(path, mode="read") as client:
        assert client["c"].snapshot().count() == 4
    with pytest.raises(persist.errors.CollectionExists, match="'c' exists already"):
        persist.spark.write(rows, path, "c", key=["k", "n"], mode="error")
    with pytest.raises(persist.InvalidUsage, match='use "upsert", "append"'):
        persist.spark.write(rows, path, "c", mode="replace")  # type: ignore[arg-type]
    with pytest.raises(PySparkException, match="repeat keys"):
        persist.spark.write(rows.unionAll(rows.withColumn("v", F.lit("d"))), path, "d", key=["k", "n"])


def test_plain_rows_for_a_collection_with_a_key_say_their_mode(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path)
    with persist.open(path) as client:
        client.create_or_load("plain", key={"k": int}, value={"v": str})
        client.create_or_load("keyed", key={"k": int}, value={"v": str}, keyed=persist.Keyed())
        client.create_or_load("free", key=None, value={"k": int, "v": str})
    rows = spark.createDataFrame([(1, "a")], "k long, v string")
    options: Any
    for options in ({}, {"time": 3}):
        with pytest.raises(persist.InvalidUsage, match='mode="upsert" to replace these rows, or mode="append" to add'):
            persist.spark.write(rows, path, "plain", **options)
    with pytest.raises(persist.InvalidUsage, match="'keyed' is keyed, so only events change it"):
        persist.spark.write(rows, path, "keyed")
    for mode in ("append", "upsert"):
        persist.spark.write(rows, path, "plain", mode=mode)
    persist.spark.write(
        rows.selectExpr("*", "99999999999999L AS _time", "1L AS _diff"), path, "plain", allow_future=True
    )
    persist.spark.write(rows, path, "free")
    assert (records(path, "plain"), records(path, "free")) == ([(1, "a")], [(None, (1, "a"))])


def test_an_update_changes_the_columns_of_the_frame(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "location")
    keyed = persist.Keyed(groups={"at": ["v"]})
    with persist.open(path) as client:
        client.write("plain", [{"k": k, "v": "old", "n": k} for k in range(3)], key=["k"]).result()
        client.create_or_load("keyed", key={"k": int}, value={"v": str, "at": int, "n": int}, keyed=keyed)
        client["keyed"].upsert([(1, ("old", 5, 1))]).result()
    frame = spark.createDataFrame([(1, 7), (2, None)], "K long, n int")
    persist.spark.write(frame, path, "plain", mode="update", token="once")
    persist.spark.write(frame, path, "plain", mode="update", token="once", key=["k"])
    for at, text in ((4, "late"), (6, "new")):
        persist.spark.write(
            spark.createDataFrame([(1, text, at)], "k long, v string, at long"), path, "keyed", mode="update"
        )
    with persist.open(path, mode="read") as client:
        assert sorted(client["plain"].snapshot().rows()) == [(0, ("old", 0)), (1, ("old", 7)), (2, ("old", None))]
        assert [*client["keyed"].snapshot().rows()] == [(1, ("new", 6, 1))]
    bad: list[tuple[str, dict[str, Any], type[Exception]]] = [
        ("none", {}, persist.errors.CollectionNotFound),
        ("plain", {"key": ["n"]}, persist.errors.SchemaMismatch),
        ("plain", {"seal": 5}, persist.InvalidUsage),
    ]
    for name, options, error in bad:
        with pytest.raises(error):
            persist.spark.write(frame, path, name, mode="update", **options)


def test_the_option_key_makes_the_collection_and_keeps_to_the_modes_of_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "location")
    rows = spark.createDataFrame([(1, 2, "new"), (2, 1, None)], "Id long, line int, status string")
    source: Any = rows.write.format("persist").option("collection", "orders").option("key", "id,line")
    for mode, count in (("append", 2), ("append", 4), ("overwrite", 2)):
        source.mode(mode).save(path)
        with persist.open(path, mode="read") as client:
            assert client["orders"].handle.schema.key_names == ("Id", "line")
            assert client["orders"].snapshot().count() == count
    rows.write.format("persist").option("collection", "log").option("key", "[]").mode("append").save(path)
    with persist.open(path, mode="read") as client:
        assert client["log"].handle.schema.key_names == ()
    with pytest.raises(PySparkException, match="is not the key of the collection 'orders'"):
        source.option("key", "id").mode("append").save(path)
    with pytest.raises(PySparkException, match=r"key does not go with mode=\"upsert\""):
        source.option("mode", "upsert").mode("append").save(path)


def test_a_missing_collection_says_what_makes_it(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "location")
    rows = spark.createDataFrame([(1, "a")], "k long, v string")
    persist.spark.write(rows, path, "c", key=["k"])
    source: Any = rows.write.format("persist").option("collection", "nope")
    writes: list[Any] = [
        lambda: persist.spark.write(rows, path, "nope"),
        lambda: persist.spark.write(rows, path, "nope", mode="overwrite"),
        lambda: persist.spark.upsert(rows, path, "nope"),
        lambda: persist.spark.delete(spark, path, "nope", "k = 1"),
        lambda: source.mode("append").save(path),
    ]
    for write in writes:
        with pytest.raises((persist.errors.CollectionNotFound, PySparkException)) as caught:
            write()
        assert "no collection 'nope' at" in str(caught.value)
        assert "persist.spark.write(df, location, 'nope', key=[…]) creates it" in str(caught.value)
        assert "only reads" not in str(caught.value)


def test_a_table_outside_of_the_catalog_says_what_to_use(spark: SparkSession, tmp_path: Path) -> None:
    for options in ("", f"LOCATION '{tmp_path}'", f"OPTIONS (path '{tmp_path}', collection 'c')"):
        with pytest.raises(PySparkException, match="use a table of the catalog"):
            spark.sql(f"CREATE TABLE made USING persist {options}")


def test_an_empty_write_seals_its_time(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path)
    rows = spark.createDataFrame([(1, "a")], "id long, v string")
    persist.spark.write(rows.where("false"), path, "created", key=["id"])
    assert records(path, "created") == []
    with persist.open(path) as client:
        client.create_or_load("there", key={"id": int}, value={"v": str})
    rows.where("false").write.format("persist").option("collection", "there").mode("append").save(path)
    assert records(path, "there") == []
