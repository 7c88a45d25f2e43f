"""Names that differ by case only: SQL tells them apart as they are written, or refuses them."""

from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import persist

QUIET = persist.Settings(background=False)


@pytest.fixture
def client() -> Iterator[persist.Client]:
    with persist.open(persist.MemoryBlob(), settings=QUIET) as client:
        client.write("orders", pa.table({"id": [1], "v": ["a"]}), key=["id"]).result()
        client.write("Orders", pa.table({"id": [1, 2], "v": ["b", "b"]}), key=["id"]).result()
        client.write("É", pa.table({"É": [1], "é": [2]}), key=["É"]).result()
        client.write("columns", pa.table({"id": [1], "A": [1], "a": [2]}), key=["id"]).result()
        struct = pa.array([{"a": 1, "A": 2}])
        client.write("nested", pa.table({"id": [1], "s": struct, "l": pa.array([[{"B": 1, "b": 2}]])}), key=["id"])
        yield client


@pytest.mark.parametrize("name", ["columns", "nested"])
@pytest.mark.parametrize(
    "sql", ["SELECT id FROM {}", "UPDATE {} SET id = 5", "DELETE FROM orders USING {} x WHERE x.id = orders.id"]
)
def test_a_collection_with_columns_that_sql_takes_for_one_is_refused_by_every_query(
    client: persist.Client, name: str, sql: str
) -> None:
    with pytest.raises(persist.InvalidUsage, match=r"differ by case only.*rename one with evolve"):
        client.sql(sql.format(name)).to_arrow()
    with pytest.raises(persist.InvalidUsage, match="differ by case only"):
        client.create_view("view", f'SELECT id FROM "{name}"')
    with client.load(name).snapshot() as result, pytest.raises(persist.InvalidUsage, match="differ by case only"):
        result.duckdb(duckdb.connect(), "x")
    assert client.load("orders").snapshot().count() == 1


def test_conditions_and_indexes_tell_such_columns_apart(client: persist.Client) -> None:
    columns = client.load("columns")
    columns.index("a")
    assert [columns.snapshot(where=where).count() for where in ("a = 2", "A = 1", "a = 1")] == [1, 1, 0]
    columns.evolve(rename={"a": "b"})
    assert client.sql("SELECT b, a FROM columns").to_pylist() == [{"b": 2, "A": 1}]


def test_letters_that_duckdb_tells_apart_are_two_names(client: persist.Client) -> None:
    assert client.sql('SELECT "é" AS one, "É" AS other FROM "É"').to_pylist() == [{"one": 2, "other": 1}]
    with pytest.raises(persist.InvalidUsage, match="does not exist"):
        client.sql('SELECT * FROM "é"')


@pytest.mark.parametrize(("table", "count"), [("orders", 1), ("Orders", 2), ('main."Orders"', 2), ('"orders"', 1)])
def test_a_collection_is_the_one_that_is_spelled_so(client: persist.Client, table: str, count: int) -> None:
    assert client.sql(f"SELECT count(*) AS n FROM {table}").to_pylist() == [{"n": count}]
    if "main" not in table:
        view = client.create_view("view", f"SELECT count(*) AS n FROM {table}")
        view.refresh()
        assert view.snapshot().to_pylist() == [{"n": count}]


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT * FROM ORDERS", "may be any of the collections"),
        ('SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM "Orders")', 'write "latest"."main"."[oO]rders"'),
        ('SELECT * FROM orders, main."Orders"', "SQL takes them for one"),
        ('DELETE FROM "Orders" WHERE id IN (SELECT id FROM "orders")', "SQL takes them for one"),
        ("DELETE FROM ORDERS", "may be any of the collections"),
    ],
)
def test_two_collections_that_sql_takes_for_one_are_refused_in_one_query(
    client: persist.Client, sql: str, message: str
) -> None:
    with pytest.raises(persist.InvalidUsage, match=message):
        client.sql(sql).to_arrow()
    if sql.startswith("SELECT ("):
        with pytest.raises(persist.InvalidUsage, match="SQL takes them for one"):
            client.create_view("view", sql)
    assert [client.load(name).snapshot().count() for name in ("orders", "Orders")] == [1, 2]


def test_a_whole_name_tells_two_collections_apart_in_one_query(client: persist.Client) -> None:
    sql = 'SELECT o.v AS one, p.v AS other FROM orders o JOIN latest.main."Orders" p USING (id)'
    assert client.sql(sql).to_pylist() == [{"one": "a", "other": "b"}]
    client.sql('DELETE FROM "Orders" o USING latest.main.orders p WHERE o.id = p.id')
    assert [client.load(name).snapshot().count() for name in ("orders", "Orders")] == [1, 1]


@pytest.fixture
def shop() -> Iterator[persist.Client]:
    with persist.open(persist.MemoryBlob(), settings=QUIET) as client:
        for name in ("orders", "shop.orders", "news"):
            found = client.create_or_load(name, key={"id": int}, value={"a": int})
            found.write([(1, 1), (2, 2)], time=0, seal=1).result()
        yield client


@pytest.mark.thorough(except_every=5)  # The first tier has each name and each statement.
@pytest.mark.parametrize(
    ("table", "name"),
    [
        ("orders", "orders"),
        ("main.orders", "orders"),
        ('"MAIN" . "orders"', "orders"),
        ("latest.main.orders", "orders"),
        ("shop.orders", "shop.orders"),
        ('"shop"."orders"', "shop.orders"),
        ('"shop.orders"', "shop.orders"),
        ("latest.shop.orders", "shop.orders"),
    ],
)
@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("UPDATE {} SET a = 5 WHERE id = 1", [(1, 5), (2, 2)]),
        ("UPDATE {} AS t SET a = n.a + 10 FROM main.news n WHERE n.id = t.id AND n.id = 2", [(1, 1), (2, 12)]),
        ("DELETE FROM {} WHERE id IN (SELECT id FROM latest.main.news WHERE a = 1)", [(2, 2)]),
        ("INSERT INTO {} SELECT id + 2, a FROM \"main\".\"news\" WHERE a = 1", [(1, 1), (2, 2), (3, 1)]),
        ("INSERT INTO {} SELECT 7, count(*) FROM news VERSION AS OF 0", [(1, 1), (2, 2), (7, 2)]),
        ("MERGE INTO {} t USING news n ON t.id = n.id WHEN MATCHED AND n.id = 1 THEN DELETE", [(2, 2)]),
        ("SELECT id, a FROM {} ORDER BY id", [(1, 1), (2, 2)]),
    ],
)  # fmt: skip
def test_a_table_has_the_names_of_a_query_in_every_statement(
    shop: persist.Client, table: str, name: str, sql: str, expected: list[Any]
) -> None:
    answer = shop.sql(sql.format(table)).to_pylist()
    if sql.startswith("SELECT"):
        assert [tuple(row.values()) for row in answer] == expected
    assert sorted(shop.load(name).snapshot().rows()) == expected
    others = {"orders", "shop.orders", "news"} - {name}
    assert all(sorted(shop.load(other).snapshot().rows()) == [(1, 1), (2, 2)] for other in others)


def test_a_statement_reads_what_it_changes_by_any_name_and_at_any_time(shop: persist.Client) -> None:
    shop.sql('UPDATE orders SET a = (SELECT max(a) + 1 FROM main.orders) WHERE id IN (SELECT id FROM "orders")')
    assert sorted(shop.load("orders").snapshot().rows()) == [(1, 3), (2, 3)]
    shop.sql('UPDATE shop.orders SET a = (SELECT sum(a) FROM "shop.orders")')
    assert sorted(shop.load("shop.orders").snapshot().rows()) == [(1, 3), (2, 3)]
    shop.sql("UPDATE main.orders SET a = old.a FROM orders VERSION AS OF 0 AS old WHERE old.id = orders.id")
    assert sorted(shop.load("orders").snapshot().rows()) == [(1, 1), (2, 2)]
    with pytest.raises(persist.InvalidUsage, match="a statement changes what is there now"):
        shop.sql("UPDATE orders VERSION AS OF 0 SET a = 1")


@pytest.mark.parametrize(
    "sql",
    [
        "WITH orders AS (SELECT v FROM orders) SELECT v FROM orders",
        "WITH orders AS (SELECT 1 AS v) SELECT v FROM main.orders",
        "SELECT v FROM orders WHERE id IN (WITH orders AS (SELECT 1 AS id) SELECT id FROM orders)",
    ],
)
def test_a_named_subquery_hides_a_collection_only_where_sql_says_so(client: persist.Client, sql: str) -> None:
    client.drop("Orders").result()
    view = client.create_view("view", sql)
    view.refresh()
    assert client.sql(sql).to_pylist() == view.snapshot().to_arrow().to_pylist() == [{"v": "a"}]


def test_a_view_reads_a_collection_with_a_dot_by_one_name(client: persist.Client) -> None:
    client.write("main.orders", pa.table({"id": [1], "v": ["dot"]}), key=["id"]).result()
    with pytest.raises(persist.InvalidUsage, match=r'the name of a collection with a dot as one name, "main\.orders"'):
        client.create_view("view", "SELECT v FROM main.orders")
    view = client.create_view("view", 'SELECT v FROM "main.orders"')
    view.refresh()
    assert view.snapshot().to_arrow().to_pylist() == client.sql("SELECT v FROM main.orders").to_pylist()
