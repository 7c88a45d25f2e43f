"""What works in Spark SQL with the data source, and what says what to use instead; columns; reads at one seqno."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import persist
import persist.spark
from persist.connect.spark.types import quoted


@pytest.mark.thorough
def test_a_temporary_view_takes_options(spark: SparkSession, location: str) -> None:
    options = f"path '{location}', collection 'orders', as_of '9'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW then USING persist OPTIONS ({options})")
    assert spark.sql("SELECT count(*) FROM then WHERE status = 'new'").collect()[0][0] == 2000


@pytest.mark.thorough
def test_a_table_says_what_to_use_and_takes_options_at_each_use(spark: SparkSession, location: str) -> None:
    spark.sql("DROP TABLE IF EXISTS t")
    try:
        spark.sql(f"CREATE TABLE t USING persist OPTIONS (path '{location}', collection 'orders')")
        assert spark.table("t").columns == ["id", "status", "amount"]
        for query in ("SELECT * FROM t", "INSERT INTO t VALUES (1, 'x', 1.0)"):
            with pytest.raises(PySparkException, match=r"Spark does not pass on the options of a table"):
                spark.sql(query).collect()
        options = f"path = '{location}', collection = 'orders'"
        assert spark.sql(f"SELECT * FROM t WITH ({options}, as_of = 9)").count() == 2000
        spark.sql(f"INSERT INTO t WITH ({options}, time = 13, seal = 14) VALUES (9000, 'x', 1.0)")
        assert spark.sql(f"SELECT * FROM t WITH ({options})").count() == 2003
    finally:
        spark.sql("DROP TABLE IF EXISTS t")


def test_a_name_for_each_collection_needs_no_options(spark: SparkSession, location: str) -> None:
    persist.spark.register(spark, "orders_of_test", location=location, collection="orders")
    spark.sql("DROP TABLE IF EXISTS orders_table")
    spark.sql("CREATE TABLE orders_table USING orders_of_test")
    try:
        assert spark.table("orders_table").count() == 2002
        assert spark.sql("SELECT * FROM orders_table WITH (as_of = 10)").count() == 2000
        assert spark.read.format("orders_of_test").option("as_of", 10).load().count() == 2000
        new = spark.createDataFrame(
            [(7000, "x", 1.0, 13, 1)], "id long, status string, amount double, _time long, _diff long"
        )
        new.write.format("orders_of_test").option("seal", 14).mode("append").save()
        assert spark.read.format("orders_of_test").load().count() == 2003
    finally:
        spark.sql("DROP TABLE orders_table")
    for name, given, message in [
        ("persist", {"location": location, "collection": "orders"}, "cannot be the name of a source"),
        ("my orders", {"location": location, "collection": "orders"}, "cannot be the name of a source"),
        ("good", {"location": location}, "needs location= and collection="),
        (None, {"location": location}, "needs a name"),
    ]:
        with pytest.raises(persist.InvalidUsage, match=message):
            persist.spark.register(spark, name, **given)  # type: ignore[arg-type]


@pytest.mark.thorough
def test_the_columns_that_a_query_needs_are_derived(spark: SparkSession, location: str) -> None:
    frame = spark.read.format("persist").option("collection", "orders").load(location)
    queries: dict[str, Callable[[DataFrame], DataFrame]] = {
        "status": lambda rows: rows.groupBy("status").count(),
        "id,amount": lambda rows: rows.where(F.col("amount") > 5).agg(F.sum("id")),
        "id,status,amount": lambda rows: rows.where("amount > 5"),
        "": lambda rows: rows.agg(F.count("*")),
        "id,status": lambda rows: rows.alias("a").join(rows.select("id").alias("b"), "id").select("status"),
    }
    for columns, query in queries.items():
        assert ",".join(persist.spark.columns_used(frame, query)) == columns
        found = Counter(map(str, persist.spark.pruned(spark, location, "orders", query).collect()))
        assert found == Counter(map(str, query(frame).collect()))
    with pytest.raises(persist.InvalidUsage, match="does not fit the columns"):
        persist.spark.columns_used(frame, lambda rows: rows.select("nothing"))


def test_reads_at_one_seqno_belong_together(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path)
    with persist.open(path) as client:
        a, b = (client.create_or_load(name, key={"id": pa.int64()}) for name in "ab")
        for time in range(3):
            with client.multi_write() as multi:
                for each in (a, b):
                    multi.write(each, [((time, None), time, 1)])
                    multi.seal(each, time + 1)
            if time == 1:
                seqno = multi.seqno

        def read(name: str, **options: Any) -> DataFrame:
            reader = spark.read.format("persist").options(collection=name, **options)
            return reader.load(path)

        assert read("a", seqno=seqno).count() == read("b", seqno=seqno).count() == 2
        assert read("a", seqno=seqno, form="changes", start=1, until=2).collect() == [(1, 1, 1)]
        refused: list[tuple[dict[str, Any], str]] = [
            ({"seqno": seqno, "as_of": 2}, "AsOfNotSealed"),
            ({"seqno": seqno, "form": "changes", "start": 0, "until": 3}, "AsOfNotSealed"),
            ({"seqno": 999}, "is not in the log"),
            ({"seqno": "x"}, "option seqno='x' is not a number"),
        ]
        for options, message in refused:
            with pytest.raises(PySparkException, match=message):
                read("a", **options).collect()
        b.drop().result()
        client.create_or_load("b", key={"id": pa.int64()})
        with pytest.raises(PySparkException, match="CollectionNotFound"):
            read("b", seqno=seqno)


def test_the_option_columns_takes_a_json_list(spark: SparkSession, location: str) -> None:
    reader = spark.read.format("persist").option("collection", "orders").option("columns", json.dumps(["amount", "id"]))
    assert reader.load(location).columns == ["amount", "id"]


def test_braces_in_a_query_of_no_collection_stay_as_they_are(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path)
    with persist.open(path) as client:
        client.create_or_load("c", key={"id": int}, value={"v": int}).write([(1, 1)]).result()
    for query in ("""SELECT '{"a":1}' AS j, '{{}}' AS k""", "SELECT '{t0}' AS j, '}{' AS k"):
        assert persist.spark.sql(spark, path, query).collect() == spark.sql(query).collect()
        found = persist.spark.sql(spark, path, f"{query} FROM c").collect()
        assert found == spark.sql(query).collect()


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize("name", ["a{b}", "{0}", "}{`"])
def test_a_collection_whose_name_has_braces_is_queried_by_it(spark: SparkSession, tmp_path: Path, name: str) -> None:
    path = str(tmp_path)
    with persist.open(path) as client:
        client.write(name, {"id": [1], "v": ["{x}"]}, key=["id"], time=0, seal=1).result()
    for table in (quoted(name), f"{quoted(name)} VERSION AS OF 0"):
        [row] = persist.spark.sql(spark, path, f"SELECT id FROM {table} WHERE v = '{{x}}'").collect()
        assert row.id == 1
