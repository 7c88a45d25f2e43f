"""Queries with times of tables, and statements, which Spark refuses: a function of ours does both."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
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


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Orders whose amount is the number of the version, 1 to 3, and items, as many as that."""
    path = str(tmp_path / "location")
    with persist.open(path) as client:
        orders = client.create_or_load("orders", key={"id": pa.int64()}, value={"amount": pa.int64()})
        items = client.create_or_load("shop.items", key={"id": pa.int64()})
        client.create_or_load("empty", key={"id": pa.int64()})
        for version in (1, 2, 3):
            orders.overwrite([(1, version)], time=version).result()
            items.overwrite([(n, None) for n in range(version)], time=version).result()
        orders.tag("second", 2)
    return path


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT amount FROM orders FOR SYSTEM_TIME AS OF 'second'", [(2,)]),
        (
            "WITH orders AS (SELECT * FROM orders VERSION AS OF 1), n AS (SELECT count(*) AS n FROM `shop.items`)\n"
            "SELECT o.amount, p.amount, n.n, '{x}' FROM orders o JOIN Orders VERSION AS OF 2 p USING (id) "
            "CROSS JOIN n ORDER BY 1; -- done", [(1, 2, 3, "{x}")],
        ),
        ("SELECT orders.amount, empty FROM orders VERSION AS OF 1 CROSS JOIN (SELECT 5 AS empty)", [(1, 5)]),
        ("SELECT 7", [(7,)]),
    ],
)  # fmt: skip
def test_a_query_of_spark_reads_each_table_as_of_its_own_time(
    spark: SparkSession, path: str, query: str, expected: list[Any]
) -> None:
    before = len(spark.catalog.listTables())
    answer = persist.spark.sql(spark, path, query)
    assert [tuple(row) for row in answer.collect()] == expected
    assert len(spark.catalog.listTables()) == before, "no name is left behind"


def test_a_query_has_a_time_for_all_and_refuses_what_is_none(spark: SparkSession, path: str) -> None:
    joined = "SELECT a.amount, b.amount FROM orders a CROSS JOIN orders VERSION AS OF 3 b"
    assert [tuple(row) for row in persist.spark.sql(spark, path, joined, as_of=1).collect()] == [(1, 3)]
    refused: list[tuple[str, str, dict[str, Any]]] = [
        ("'order' is not a collection, so it has no times", "SELECT * FROM order VERSION AS OF 1", {}),
        ("is not before upper", "SELECT * FROM orders VERSION AS OF 9", {}),
        ("time= is of what a statement changes", "SELECT 1", {"time": 3}),
        ("as_of= is of a query", "DELETE FROM orders", {"as_of": 3}),
    ]
    for error, query, more in refused:
        with pytest.raises(persist.InvalidUsage, match=error):
            persist.spark.sql(spark, path, query, **more)
