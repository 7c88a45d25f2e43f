"""FOR SYSTEM_TIME AS OF, VERSION AS OF and TIMESTAMP AS OF: each table of a query at a time of its own."""

from collections.abc import Iterator
from typing import Any

import pytest

import persist
from persist.compute.query.tables import TimedTable, rename_timed_tables

QUIET = persist.Settings(background=False)


@pytest.fixture
def client() -> Iterator[persist.Client]:
    """Orders whose amount is the number of the version, 1 to 3, and clicks on a timeline, as many as the day."""
    with persist.open(persist.MemoryBlob(), settings=QUIET) as client:
        orders = client.create_or_load("orders", key={"id": int}, value={"amount": int})
        shop = client.create_or_load("shop.items", key={"id": int})
        clicks = client.create_or_load("clicks", key={"n": int}, timeline="ms")
        for version in (1, 2, 3):
            orders.overwrite([(1, version)], time=version).result()
            shop.overwrite([(n, None) for n in range(version)], time=version).result()
            moment = f"2026-11-2{version}T00:00:00Z"
            clicks.overwrite([(n, None) for n in range(version)], time=moment).result()
        orders.tag("second", 2)
        yield client


def answer(client: persist.Client, sql: str, **more: Any) -> list[tuple[Any, ...]]:
    with client.sql(sql, **more) as result:
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
def test_a_table_is_read_as_of_its_own_time(client: persist.Client, sql: str, expected: list[Any]) -> None:
    assert answer(client, sql) == expected


def test_tables_without_a_time_of_their_own_have_that_of_the_query(client: persist.Client) -> None:
    both = "SELECT a.amount AS a, b.amount AS b FROM orders VERSION AS OF 3 a, orders b"
    assert answer(client, both, as_of=1) == [(3, 1)]
    assert answer(client, both, as_of={"orders": 2}) == [(3, 2)]


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
def test_a_time_that_is_none_or_of_what_is_no_collection_is_refused(
    client: persist.Client, sql: str, says: str
) -> None:
    with pytest.raises(persist.InvalidUsage, match=says):
        answer(client, sql)


def test_a_table_that_gets_another_name_stays_known_by_its_own() -> None:
    seen: list[TimedTable] = []

    def named(table: TimedTable) -> str:
        seen.append(table)
        return f"t{len(seen)}"

    query = "SELECT * FROM `a b`.`c``d` VERSION AS OF 7 WHERE x IN (FROM o TIMESTAMP AS OF '1' p), o VERSION AS OF 2"
    text = rename_timed_tables(query, named)
    assert text == "SELECT * FROM t1 WHERE x IN (FROM t2 p), t3"
    assert seen == [TimedTable(("a b", "c`d"), 7), TimedTable(("o",), "1"), TimedTable(("o",), 2)]
