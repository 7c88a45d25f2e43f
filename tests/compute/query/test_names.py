"""Names that differ by case only: SQL tells them apart as they are written, or refuses them."""

from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import persist
from persist.compute.query import Queries, QueryLimits
from persist.compute.query.catalog import list_tables
from persist.compute.query.tables import TimedTable, rename_timed_tables
from persist.core.keyed.machines import AppendDistinct, InsertIfAbsent

QUIET = persist.Settings(background=False)


@pytest.fixture
def client(client: persist.Client) -> persist.Client:
    client.write("orders", pa.table({"id": [1], "v": ["a"]}), key=["id"]).result()
    client.write("Orders", pa.table({"id": [1, 2], "v": ["b", "b"]}), key=["id"]).result()
    client.write("É", pa.table({"É": [1], "é": [2]}), key=["É"]).result()
    client.write("columns", pa.table({"id": [1], "A": [1], "a": [2]}), key=["id"]).result()
    struct = pa.array([{"a": 1, "A": 2}])
    client.write("nested", pa.table({"id": [1], "s": struct, "l": pa.array([[{"B": 1, "b": 2}]])}), key=["id"])
    return client


@pytest.mark.thorough(except_every=2)
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


@pytest.fixture(scope="module")
def timed() -> Iterator[persist.Client]:
    """Orders whose amount is the number of the version, 1 to 3, and clicks on a timeline, as many as the day."""
    with persist.open(persist.MemoryBlob(), settings=QUIET) as timed:
        orders = timed.create_or_load("orders", key={"id": int}, value={"amount": int})
        shop = timed.create_or_load("shop.items", key={"id": int})
        clicks = timed.create_or_load("clicks", key={"n": int}, timeline="ms")
        for version in (1, 2, 3):
            orders.overwrite([(1, version)], time=version).result()
            shop.overwrite([(n, None) for n in range(version)], time=version).result()
            moment = f"2026-11-2{version}T00:00:00Z"
            clicks.overwrite([(n, None) for n in range(version)], time=moment).result()
        orders.tag("second", 2)
        yield timed


def answer(timed: persist.Client, sql: str, **more: Any) -> list[tuple[Any, ...]]:
    with timed.sql(sql, **more) as result:
        return [tuple(row.values()) for row in result.to_arrow().to_pylist()]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT amount FROM orders VERSION AS OF 1", [(1,)]),
        ("SELECT orders.amount FROM orders FOR VERSION AS OF 2 WHERE orders.id = 1", [(2,)]),
        ("SELECT amount FROM Orders for system_version as of 'second'", [(2,)]),
        ("SELECT o.amount, now.amount AS latest FROM orders VERSION AS OF 1 o JOIN orders AS now USING (id)", [(1, 3)]),
        (
            "SELECT a.amount AS a, b.amount AS b, c.amount AS c FROM orders VERSION AS OF 1 AS a, "
            "orders VERSION AS OF 2 AS b, orders VERSION AS OF 1 AS c", [(1, 2, 1)],
        ),
        ("SELECT count(*) FROM clicks FOR SYSTEM_TIME AS OF '2026-11-22 12:00:00'", [(2,)]),
        ("SELECT count(*) FROM clicks TIMESTAMP AS OF TIMESTAMP '2026-11-21T00:00:00Z' -- then\n", [(1,)]),
        ("WITH past AS (FROM orders VERSION AS OF 1) SELECT amount FROM past LIMIT 1", [(1,)]),
        ("SELECT (SELECT max(amount) FROM orders VERSION AS OF 2) - amount FROM orders FOR VERSION AS OF 1", [(1,)]),
        ('SELECT count(*) FROM "shop.items" VERSION AS OF 2', [(2,)]),
        ("SELECT count(*) FROM shop.items VERSION AS OF 1", [(1,)]),
        ("SELECT amount AS version, 'orders VERSION AS OF 1' AS said FROM orders", [(3, "orders VERSION AS OF 1")]),
        ("SELECT version AS of, 1 FROM (SELECT amount AS version FROM orders /* VERSION AS OF 1 */)", [(3, 1)]),
    ],
)  # fmt: skip
def test_a_table_is_read_as_of_its_own_time(timed: persist.Client, sql: str, expected: list[Any]) -> None:
    assert answer(timed, sql) == expected


def test_tables_without_a_time_of_their_own_have_that_of_the_query(timed: persist.Client) -> None:
    both = "SELECT a.amount AS a, b.amount AS b FROM orders VERSION AS OF 3 a, orders b"
    assert answer(timed, both, as_of=1) == [(3, 1)]
    assert answer(timed, both, as_of={"orders": 2}) == [(3, 2)]


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("FROM orders VERSION AS OF 9", "as_of=9 is not before upper"),
        ("FROM orders VERSION AS OF 'third'", "'third' is not a time, moment or tag of this collection"),
        ("FROM orders TIMESTAMP AS OF now()", r"orders is to be read as of 'now\(\)': a time is a whole number, or"),
        ("FROM orders FOR SYSTEM_TIME AS OF -1", "a time is a whole number, or"),
        ("FROM order VERSION AS OF 1", "'order' is not a collection, so it has no times"),
        ("WITH new AS (FROM orders) FROM new VERSION AS OF 1", "'new' is not a collection, so it has no times"),
    ],
)
def test_a_time_that_is_none_or_of_what_is_no_collection_is_refused(timed: persist.Client, sql: str, says: str) -> None:
    with pytest.raises(persist.InvalidUsage, match=says):
        answer(timed, sql)


def test_a_table_that_gets_another_name_stays_known_by_its_own() -> None:
    seen: list[TimedTable] = []

    def named(table: TimedTable) -> str:
        seen.append(table)
        return f"t{len(seen)}"

    query = "SELECT * FROM `a b`.`c``d` VERSION AS OF 7 WHERE x IN (FROM o TIMESTAMP AS OF '1' p), o VERSION AS OF 2"
    text = rename_timed_tables(query, named)
    assert text == "SELECT * FROM t1 WHERE x IN (FROM t2 p), t3"
    assert seen == [TimedTable(("a b", "c`d"), 7), TimedTable(("o",), "1"), TimedTable(("o",), 2)]


@pytest.fixture(scope="module")
def catalogued() -> Iterator[persist.Client]:
    with persist.open(persist.MemoryBlob(), settings=QUIET) as catalogued:
        catalogued.write("orders", pa.table({"id": [1], "v": ["a"]}), key=["id"]).result()
        catalogued.write("sales.items", pa.table({"id": [1], "n": [1.5]}), key=["id"]).result()
        catalogued.create_or_load("durations", key={"d": pa.duration("us")})
        catalogued.create_view("totals", "SELECT v, count(*) AS n FROM orders GROUP BY v").refresh()
        yield catalogued


def asked(catalogued: persist.Client, sql: str) -> list[Any]:
    rows = [tuple(row.values()) for row in catalogued.sql(sql).to_pylist()]
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
def test_collections_are_tables_of_the_catalog(catalogued: persist.Client, sql: str, expected: list[Any]) -> None:
    assert asked(catalogued, sql) == expected
    answer = Queries(catalogued.engine, QueryLimits()).run(sql)
    assert answer.to_arrow().num_rows == len(expected)
    answer.close()


def test_only_a_machine_with_one_value_for_each_key_makes_it_unique() -> None:
    machines = {"upserts": None, "first": InsertIfAbsent(), "all": AppendDistinct()}
    with persist.open(persist.MemoryBlob(), settings=persist.Settings(background=False)) as catalogued:
        for name, machine in machines.items():
            catalogued.create_or_load(name, key={"id": int}, value={"v": str}, keyed=persist.Keyed(machine=machine))
        assert {table.table: table.key for table in list_tables(catalogued.engine)} == {
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
def test_what_is_no_query_is_refused_with_what_to_do_instead(
    catalogued: persist.Client, sql: str, message: str
) -> None:
    with pytest.raises(persist.InvalidUsage, match=message):
        catalogued.sql(sql)


@pytest.mark.parametrize(
    "sql", ["SHOW TABLES", "DESCRIBE orders", "SUMMARIZE orders", "SELECT table_name FROM information_schema.tables"]
)
def test_a_view_of_the_catalog_is_refused(catalogued: persist.Client, sql: str) -> None:
    with pytest.raises(persist.InvalidUsage, match=r"query them with client.sql\(\)"):
        catalogued.create_view("view", sql)


def test_a_catalog_with_names_that_sql_takes_for_one_is_refused_with_both() -> None:
    with persist.open(persist.MemoryBlob(), settings=persist.Settings(background=False)) as catalogued:
        for name in ("orders", "Orders"):
            catalogued.create_or_load(name, key={"id": int})
        with pytest.raises(persist.InvalidUsage, match=r"'Orders' and 'orders' for one table.*client.rename\(\)"):
            catalogued.sql("SHOW TABLES")
