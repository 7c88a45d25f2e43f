"""What there is to be asked is told as by any database, and what is not a query is refused with the call that "
"does it."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.compute.query import Queries, QueryLimits
from persist.compute.query.catalog import list_tables
from persist.core.keyed.machines import AppendDistinct, InsertIfAbsent


@pytest.fixture(scope="module")
def client() -> Iterator[persist.Client]:
    with persist.open(persist.MemoryBlob(), settings=persist.Settings(background=False)) as client:
        client.write("orders", pa.table({"id": [1], "v": ["a"]}), key=["id"]).result()
        client.write("sales.items", pa.table({"id": [1], "n": [1.5]}), key=["id"]).result()
        client.create_or_load("durations", key={"d": pa.duration("us")})
        client.create_view("totals", "SELECT v, count(*) AS n FROM orders GROUP BY v").refresh()
        yield client


def asked(client: persist.Client, sql: str) -> list[Any]:
    rows = [tuple(row.values()) for row in client.sql(sql).to_pylist()]
    return [row if len(row) > 1 else row[0] for row in rows]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SHOW TABLES", ["durations", "orders", "totals"]),
        ("SHOW TABLES FROM sales", ["items"]),
        ("SELECT name FROM (SHOW ALL TABLES) ORDER BY 1", ["durations", "items", "orders", "totals"]),
        (
            "SELECT table_schema, table_name, table_type FROM information_schema.tables ORDER BY 2",
            [
                *(("main", "durations", "BASE TABLE"), ("sales", "items", "BASE TABLE")),
                *(("main", "orders", "BASE TABLE"), ("main", "totals", "VIEW")),
            ],
        ),
        (
            "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 'items'",
            [("id", "BIGINT"), ("n", "DOUBLE")],
        ),
        ("SELECT table_name FROM duckdb_tables() WHERE schema_name = 'sales'", ["items"]),
        ("SELECT column_name, column_type FROM (DESCRIBE orders)", [("id", "BIGINT"), ("v", "VARCHAR")]),
        ("SELECT column_name FROM (DESCRIBE sales.items)", ["id", "n"]),
        ("SELECT column_name FROM (DESCRIBE SELECT n FROM totals)", ["n"]),
        ("SELECT column_name FROM (SHOW totals)", ["v", "n"]),
        ("SELECT column_name, max FROM (SUMMARIZE orders)", [("id", "1"), ("v", "a")]),
        ("SELECT count(*) FROM orders, information_schema.tables WHERE table_name = 'items'", [1]),
    ],
)  # fmt: skip
def test_collections_are_tables_of_the_catalog(client: persist.Client, sql: str, expected: list[Any]) -> None:
    assert asked(client, sql) == expected
    answer = Queries(client.engine, QueryLimits()).run(sql)
    assert answer.to_arrow().num_rows == len(expected)
    answer.close()


def test_only_a_machine_with_one_value_for_each_key_makes_it_unique() -> None:
    machines = {"upserts": None, "first": InsertIfAbsent(), "all": AppendDistinct()}
    with persist.open(persist.MemoryBlob(), settings=persist.Settings(background=False)) as client:
        for name, machine in machines.items():
            client.create_or_load(name, key={"id": int}, value={"v": str}, keyed=persist.Keyed(machine=machine))
        assert {table.table: table.key for table in list_tables(client.engine)} == {
            "all": (),
            "first": ("id",),
            "upserts": ("id",),
        }


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("CREATE INDEX i ON orders (id)", r"CREATE is neither a query.*collection.index\("),
        ("DROP SCHEMA z", "DROP is neither a query.*DROP TABLE"),
        ("EXPLAIN SELECT * FROM orders", r"explain\(\)"),
        ("SET threads = 1", "SET is neither a query"),
        ("BEGIN", "multi_write"),
        ("FROM (PIVOT orders ON v USING count(*))", "PIVOT is neither a query.*IN"),
        ("WITH n AS (SELECT 5 AS id, '' AS v) INSERT INTO orders FROM n", "INSERT is neither a query.*put WITH behind"),
        ("WITH n AS (SELECT 5 AS id) UPDATE orders SET v = '' FROM n", r"UPDATE is .* FROM \(WITH … SELECT …\) AS"),
        ("WITH n AS (SELECT 5 AS id) DELETE FROM orders USING n", r"DELETE is .* USING \(WITH … SELECT …\) AS"),
        ("SELECT 1; SELECT 2", "it has 2 statements"),
        ("SELEC 1", "not one query that begins with SELECT.*syntax error"),
    ],
)
def test_what_is_no_query_is_refused_with_what_to_do_instead(client: persist.Client, sql: str, message: str) -> None:
    with pytest.raises(persist.InvalidUsage, match=message):
        client.sql(sql)


@pytest.mark.parametrize(
    "sql", ["SHOW TABLES", "DESCRIBE orders", "SUMMARIZE orders", "SELECT table_name FROM information_schema.tables"]
)
def test_a_view_of_the_catalog_is_refused(client: persist.Client, sql: str) -> None:
    with pytest.raises(persist.InvalidUsage, match=r"ask them with client.sql\(\)"):
        client.create_view("view", sql)


def test_a_catalog_with_names_that_sql_takes_for_one_is_refused_with_both() -> None:
    with persist.open(persist.MemoryBlob(), settings=persist.Settings(background=False)) as client:
        for name in ("orders", "Orders"):
            client.create_or_load(name, key={"id": int})
        with pytest.raises(persist.InvalidUsage, match=r"'Orders' and 'orders' for one table.*client.rename\(\)"):
            client.sql("SHOW TABLES")
