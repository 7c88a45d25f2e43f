"""Statements that Spark refuses of a Python data source are carried out by a function of ours."""

from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

import persist
import persist.spark


def test_a_statement_changes_a_collection_that_the_session_then_reads(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "location")
    with persist.open(path) as client:
        orders = client.create_or_load("orders", key={"id": pa.int64()}, value={"amount": pa.float64()})
        orders.write([((1, 9.5), 0, 1), ((2, 3.0), 0, 1)], seal=1).result()
    session = spark.newSession()
    assert persist.spark.sql(session, path, "UPDATE orders SET amount = 0 WHERE amount > 5").rows == 1
    assert persist.spark.sql(session, path, "DELETE FROM orders WHERE id = 2", time=7).rows == 1
    rows = session.read.format("persist").option("collection", "orders").load(path).collect()
    assert [(row.id, row.amount) for row in rows] == [(1, 0.0)]
