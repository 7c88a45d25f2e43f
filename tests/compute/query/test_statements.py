"""UPDATE, DELETE, INSERT and MERGE INTO: one commit of exactly what they change, on what they have read."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import persist
from persist.compute.query import execute
from tests.support.stepped import Stepped

QUIET = persist.Settings(background=False)


@pytest.fixture
def client(client: persist.Client) -> persist.Client:
    orders = client.create_or_load(
        "shop.orders", key={"id": pa.int64()}, value={"status": pa.string(), "amount": pa.float64()}
    )
    orders.write([((1, ("new", 9.5)), 0, 1), ((2, ("new", 3.0)), 0, 1), ((3, ("paid", 1.0)), 0, 1)], seal=1).result()
    news = client.create_or_load("news", key={"id": pa.int64()}, value={"status": pa.string()})
    news.write([((2, "paid"), 0, 1), ((4, "new"), 0, 1)], seal=1).result()
    return client


def rows(client: persist.Client) -> list[Any]:
    return sorted(client.load("shop.orders").snapshot().rows())


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize(
    ("statement", "touched", "ids", "updates"),
    [
        ("UPDATE shop.orders SET status = 'paid' WHERE amount > 5", 1, [1, 2, 3], 2),
        ("-- tidy up\ndelete from Shop.Orders where status = 'new';", 2, [3], 2),
        ("DELETE FROM shop.orders USING news WHERE orders.id = news.id", 1, [1, 3], 1),
        ('INSERT INTO "shop"."orders" SELECT id, status, 0 FROM news WHERE id > 2', 1, [1, 2, 3, 4], 1),
        (
            "MERGE INTO shop.orders USING news ON orders.id = news.id "
            "WHEN MATCHED THEN UPDATE SET status = news.status "
            "WHEN NOT MATCHED THEN INSERT VALUES (news.id, news.status, 0)", 2, [1, 2, 3, 4], 3,
        ),
    ],
)  # fmt: skip
def test_a_statement_is_one_commit_of_what_it_changes_and_says_how_many_rows_it_touched(
    client: persist.Client, statement: str, touched: int, ids: list[int], updates: int
) -> None:
    before = client.seqno
    changed = execute(client.engine, statement)
    assert (changed.collection, changed.rows, changed.time) == ("shop.orders", touched, 1)
    assert changed.seqno >= before + 1
    assert [key for key, _ in rows(client)] == ids
    assert client.load("shop.orders").changes(1).to_arrow().num_rows == updates
    assert [key for key, _ in client.load("shop.orders").snapshot(0).rows()] == [1, 2, 3]


def test_a_statement_that_touches_nothing_writes_no_update_and_seals_nothing(client: persist.Client) -> None:
    changed = execute(client.engine, "DELETE FROM shop.orders WHERE amount > 100")
    assert (changed.rows, changed.time) == (0, None)
    assert client.load("shop.orders").upper == persist.Antichain(1)


def test_a_statement_changes_at_a_time_that_is_given(client: persist.Client) -> None:
    execute(client.engine, "UPDATE shop.orders SET amount = 0", 7)
    assert client.load("shop.orders").changes(1).to_arrow()["_time"].unique().to_pylist() == [7]
    with pytest.raises(persist.errors.UpdateNotBeyondUpper):
        execute(client.engine, "UPDATE shop.orders SET amount = 1", 7)


def test_a_statement_that_others_come_before_is_carried_out_on_what_they_have_left() -> None:
    store = Stepped(persist.MemoryBlob())
    with persist.open(store, settings=QUIET) as client, persist.open(store, settings=QUIET) as other:
        client.create_or_load("n", key={"k": pa.int64()}, value={"v": pa.int64()}).write(
            [((1, 1), 0, 1), ((2, 2), 0, 1)], seal=1
        ).result()
        theirs = other.load("n")
        store.before("create", "log/", lambda: theirs.write([((3, 3), 4, 1)], seal=5).result())
        with client.load("n").snapshot():  # Whose lease is there already: the next record is that of the statement.
            changed = execute(client.engine, "UPDATE n SET v = v + 10")
        assert store.is_done
        assert changed.rows == 3
        assert sorted(client.load("n").snapshot().rows()) == [(1, 11), (2, 12), (3, 13)]


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("SELECT 1", "begin with UPDATE"),
        ("UPDATE shop.order SET amount = 0", "'shop.order', which is not a collection here"),
        ("UPDATE shop.orders SET price = 0", "DuckDB refuses the statement"),
        ("UPDATE shop.orders SET amount = 0; DELETE FROM shop.orders", "there are 2 statements"),
        ("DELETE FROM shop.orders RETURNING id", "leave it out"),
        ("INSERT INTO shop.orders SELECT * FROM read_csv('/etc/passwd')", "DuckDB refuses the statement"),
        ("DELETE FROM paid", "is a view"),
        ("DELETE FROM durations", "column 'd' of type duration[us]"),
        ("INSERT INTO users VALUES (1, 2), (1, 3)", "repeat keys, first of all 1"),
    ],
)
def test_what_is_no_statement_or_cannot_be_done_is_refused_and_changes_nothing(
    client: persist.Client, statement: str, says: str
) -> None:
    client.create_view("paid", 'SELECT id FROM "shop.orders"').close()
    client.create_or_load("durations", key={"d": pa.duration("us")})
    client.create_or_load("users", key={"id": pa.int64()}, value={"v": pa.int64()}, keyed=persist.Keyed())
    before = client.seqno
    with pytest.raises(persist.InvalidUsage, match=says.replace("[", r"\[")):
        execute(client.engine, statement)
    assert client.seqno == before or [key for key, _ in rows(client)] == [1, 2, 3]
    assert client.load("shop.orders").upper == persist.Antichain(1)


@pytest.mark.parametrize("resolve", ["seal", "background"])
def test_statements_change_a_keyed_collection_after_the_events_that_wait(resolve: Any) -> None:
    with persist.open(persist.MemoryBlob()) as client:
        keyed = persist.Keyed(resolve=resolve)
        users = client.create_or_load("users", key={"id": pa.int64()}, value={"v": pa.int64()}, keyed=keyed)
        client.write("more", pa.table({"id": [2, 3], "v": [20, 30]}), key=["id"]).result()
        users.upsert([(1, 1), (2, 2)]).result()
        users.upsert([(4, 4, 1), (5, 5, 9)]).result()
        assert users.upper == persist.Antichain(1)
        merge = "MERGE INTO users USING more USING (id) WHEN MATCHED THEN UPDATE SET v = more.v WHEN NOT MATCHED THEN "
        done = [
            execute(client.engine, sql, time)
            for sql, time in [
                ("UPDATE users SET v = v + 1 WHERE id IN (1, 4)", None),
                (f"{merge}INSERT VALUES (more.id, more.v)", None),
                ("DELETE FROM users WHERE id = 4", 7),
            ]
        ]
        assert [(each.rows, each.time) for each in done] == [(2, 1), (2, 2), (1, None)]
        assert [sorted(users.snapshot(time).rows()) for time in (1, 2, 7)] == [
            [(1, 2), (2, 2), (4, 5)],
            [(1, 2), (2, 20), (3, 30), (4, 5)],
            [(1, 2), (2, 20), (3, 30)],
        ]
        before = client.seqno
        assert execute(client.engine, "DELETE FROM users WHERE id = 99").rows == 0
        assert client.seqno == before, "what touches nothing is not a commit"
        users.seal(10).result()
        assert sorted(users.snapshot().rows()) == [(1, 2), (2, 20), (3, 30), (5, 5)]


def test_a_statement_on_a_keyed_collection_is_carried_out_again_if_somebody_comes_first() -> None:
    store = Stepped(persist.MemoryBlob())
    with persist.open(store) as client, persist.open(store) as other:
        users, theirs = (
            each.create_or_load("users", key={"id": int}, value={"v": int}, keyed=persist.Keyed())
            for each in (client, other)
        )
        users.upsert([(1, 1)]).result()
        store.before("create", "log/", lambda: theirs.upsert([(1, 10), (2, 20)]).result())
        assert execute(client.engine, "UPDATE users SET v = v + 1").rows == 2
        assert store.is_done
        assert sorted(users.snapshot().rows()) == [(1, 11), (2, 21)]


@pytest.fixture
def sources() -> Iterator[persist.Client]:
    with persist.open(persist.MemoryBlob(), settings=QUIET) as client:
        client.create_or_load("k", key={"id": int}, value={"a": int}, keyed=persist.Keyed()).upsert(
            [(1, 1), (2, 2)], time=0, seal=1
        ).result()
        source = client.create_or_load("s", key={"id": int}, value={"a": int})
        source.write([(1, 5), (1, 6), (9, 7), (9, 8)], time=0, seal=1).result()
        client.create_or_load("bag", key={"id": int}, value={"a": int}).write([(1, 1)], time=0, seal=1).result()
        yield client


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize(
    "sql",
    [
        "MERGE INTO k t USING s ON t.id = s.id WHEN MATCHED THEN UPDATE SET a = s.a",
        "MERGE INTO k USING s USING (id) WHEN MATCHED THEN UPDATE SET a = s.a;",
        "MERGE INTO main.k USING s ON k.id = s.id WHEN MATCHED AND s.a = 5 THEN UPDATE WHEN MATCHED THEN DELETE",
        'MERGE INTO k AS "T x" USING (VALUES (1, 3), (1, 4)) v(id, a) ON "T x".id = v.id WHEN MATCHED THEN UPDATE',
        "MERGE INTO bag USING s ON s.id = bag.id WHEN NOT MATCHED THEN INSERT WHEN MATCHED THEN UPDATE -- all",
        "UPDATE k SET a = s.a FROM s WHERE s.id = k.id",
        "UPDATE k t SET a = CASE WHEN t.a IS DISTINCT FROM 1 THEN 3 ELSE s.a END FROM s WHERE s.id = t.id",
        "UPDATE bag SET a = 0 FROM s;",
        "INSERT INTO k VALUES (5, 1), (5, 2) ON CONFLICT DO NOTHING",
        "INSERT INTO k SELECT * FROM s ON CONFLICT (id) DO UPDATE SET a = excluded.a",
        "INSERT OR REPLACE INTO k BY NAME SELECT a, id FROM s",
    ],
)  # fmt: skip
def test_a_statement_that_changes_a_row_for_several_rows_of_its_source_is_refused(
    sources: persist.Client, sql: str
) -> None:
    with pytest.raises(persist.InvalidUsage, match=r"several rows for the one with id=[159]"):
        execute(sources.engine, sql)
    assert sorted(sources.load("k").snapshot().rows()) == [(1, 1), (2, 2)]


def test_a_statement_joins_a_collection_without_a_key(sources: persist.Client) -> None:
    loose = sources.create_or_load("loose", key=None, value={"id": int, "a": int})
    loose.write([(None, (1, 1)), (None, (2, 2)), (None, (2, 2))]).result()
    with pytest.raises(persist.InvalidUsage, match="several rows for the one with id=1, a=1"):
        execute(sources.engine, "UPDATE loose SET a = s.a FROM s WHERE s.id = loose.id")
    execute(sources.engine, "MERGE INTO loose USING (SELECT 2 AS id) s USING (id) WHEN MATCHED THEN UPDATE SET a = 7")
    assert sorted(loose.snapshot().to_arrow()["a"].to_pylist()) == [1, 7, 7]


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("MERGE INTO k t USING s ON t.id = s.id WHEN MATCHED AND s.a = 5 THEN UPDATE SET a = s.a", [(1, 5), (2, 2)]),
        (
            "MERGE INTO k t USING s ON t.id = s.id AND CASE WHEN s.a IS DISTINCT FROM 5 THEN true END WHEN MATCHED AND "
            "CASE WHEN t.a > 0 THEN true END THEN UPDATE SET a = CASE WHEN s.a > 0 THEN s.a END", [(1, 6), (2, 2)],
        ),
        ("MERGE INTO k t USING s ON t.id = s.id WHEN MATCHED THEN DELETE", [(2, 2)]),
        ("UPDATE k t SET a = s.a FROM s WHERE s.id = t.id AND s.a = 5", [(1, 5), (2, 2)]),
        ("INSERT OR REPLACE INTO k SELECT id, max(a) FROM s GROUP BY id", [(1, 6), (2, 2), (9, 8)]),
        ("INSERT OR IGNORE INTO k (a, id) SELECT max(a), id FROM s GROUP BY id", [(1, 1), (2, 2), (9, 8)]),
        (
            "INSERT INTO k AS x VALUES (1, 10), (4, 4) ON CONFLICT (id) DO UPDATE SET a = excluded.a + x.a",
            [(1, 11), (2, 2), (4, 4)],
        ),
    ],
)  # fmt: skip
def test_a_source_may_have_several_rows_of_which_one_counts_and_a_key_may_be_there(
    sources: persist.Client, sql: str, expected: list[Any]
) -> None:
    execute(sources.engine, sql)
    assert sorted(sources.load("k").snapshot().rows()) == expected


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("INSERT INTO bag VALUES (1, 2) ON CONFLICT DO NOTHING", "'bag' is not keyed.*MERGE INTO"),
        ("INSERT OR REPLACE INTO bag VALUES (1, 2)", "'bag' is not keyed.*MERGE INTO"),
        ("MERGE INTO k USING s ON true WHEN", "syntax error"),
        ("UPDATE k SET a = ')' FROM s WHERE", "syntax error"),
        ("UPDATE k SET a = 3 -- ; \n; DELETE FROM k", "there are 2 statements"),
    ],
)
def test_a_statement_with_a_wrong_part_is_refused_with_what_is_wrong(
    sources: persist.Client, sql: str, says: str
) -> None:
    with pytest.raises(persist.InvalidUsage, match=says):
        execute(sources.engine, sql)


def test_a_frame_of_the_caller_and_a_file_stand_in_statements_and_queries(
    client: persist.Client, tmp_path: Path
) -> None:
    (tmp_path / "day.csv").write_text("id,status,amount\n8,new,1.5\n")
    news, df = pa.table({"id": [9]}), pd.DataFrame({"id": [2, 7], "status": ["paid", "new"], "amount": [1.0, 2.0]})
    lazy = pl.LazyFrame({"id": [7], "note": ["late"]})
    merge = (
        "MERGE INTO shop.orders USING df ON orders.id = df.id WHEN MATCHED THEN UPDATE SET status = df.status "
        "WHEN NOT MATCHED THEN INSERT VALUES (df.id, df.status, df.amount)"
    )
    insert = f"INSERT INTO shop.orders SELECT * FROM '{tmp_path}/day.csv'"
    for statement in (merge, insert):
        with pytest.raises(persist.InvalidUsage, match=r"files=True lets it read files, URLs and your frames"):
            client.sql(statement)
        assert client.sql(statement, files=True).to_pylist()[0]["rows"] == (2 if statement == merge else 1)
    assert [id for id, _ in rows(client)] == [1, 2, 3, 7, 8]
    assert client["shop.orders"].get([2]) == [(2, ("paid", 3.0))]
    join = "SELECT orders.id, note FROM shop.orders JOIN lazy USING (id)"
    assert client.sql(join, files=True).to_pylist() == [{"id": 7, "note": "late"}]
    with pytest.raises(persist.InvalidUsage, match=r"Table with name df does not exist.*your frames"):
        client.sql("FROM df")
    # A collection comes before a variable of its name, and a named subquery does, too.
    assert client.sql("SELECT count(*) AS n FROM news", files=True).to_pylist() == [{"n": 2}]
    assert client.sql("WITH df AS (SELECT 5 AS id) FROM df", files=True).to_pylist() == [{"id": 5}]
    assert (len(news), len(df), len(lazy.collect())) == (1, 2, 1)


def test_frames_that_sql_takes_for_one_are_refused(client: persist.Client) -> None:
    DF, df = pa.table({"id": [1]}), pa.table({"id": [2]})
    with pytest.raises(persist.InvalidUsage, match="SQL takes the frames 'DF' and 'df' for one table"):
        client.sql("SELECT * FROM DF JOIN df USING (id)", files=True)
    assert len(DF) == len(df)


def test_a_collection_of_the_caller_is_not_the_table_that_a_statement_changes(client: persist.Client) -> None:
    client.write("items", [{"id": 1, "n": 1}], key=["id"]).result()
    items = client["shop.orders"]
    client.sql("UPDATE items SET n = n + 1", files=True)
    assert client["items"].to_pylist() == [{"id": 1, "n": 2}]
    assert items.count() == 3


@pytest.mark.parametrize("keyed", [None, persist.Keyed()])
def test_an_inserted_row_has_the_defaults_of_the_columns_that_it_lacks(keyed: persist.Keyed | None) -> None:
    with persist.open(persist.MemoryBlob()) as client:
        rows = client.create_or_load("t", key={"k": int}, value={"v": int}, keyed=keyed)
        rows.upsert([{"k": 1, "v": 1}]).result()
        rows.evolve(add={"x": pa.string(), "b": pa.binary()}, defaults={"x": "it's", "b": b"\x00'\xff"})
        client.sql("INSERT INTO t (k, v) VALUES (2, 2)")
        client.sql("INSERT INTO t VALUES (3, 3, DEFAULT, NULL)")
        client.sql(
            "MERGE INTO t USING (SELECT 4 AS k) AS s ON t.k = s.k WHEN NOT MATCHED THEN INSERT (k, v, x) "
            "VALUES (s.k, 4, 'own')"
        )
        default = b"\x00'\xff"
        contents = {row["k"]: (row["x"], row["b"]) for row in client["t"].snapshot().to_arrow().to_pylist()}
        assert contents == {1: ("it's", default), 2: ("it's", default), 3: ("it's", None), 4: ("own", default)}


def test_truncate_leaves_no_row(client: persist.Client) -> None:
    for statement, count in (("TRUNCATE shop.orders", 3), ("TRUNCATE TABLE news", 2)):
        assert client.sql(statement).to_pylist()[0]["rows"] == count
    assert (client["shop.orders"].count(), client["news"].count()) == (0, 0)
