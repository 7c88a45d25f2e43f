"""Statements read the rows that they may touch, and have the effect that DuckDB has on the whole table."""

import random
import uuid
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import persist
from persist.blob.layers.metered import MeteredBlob
from persist.compute.query import execute
from persist.compute.query.databases import QueryLimits
from persist.compute.query.statements import BEFORE_SHARE
from persist.compute.query.transaction import Transaction
from tests.support.tiers import examples

QUIET = persist.Settings(background=False)
KINDS = [pytest.param(None, id="plain"), pytest.param(persist.Keyed(), id="keyed")]


def stored_rows(generator: random.Random) -> pa.Table:
    ids = sorted(generator.sample(range(60), 40))
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "a": pa.array([generator.choice([None, *range(8)]) for _ in ids], pa.int64()),
            "b": pa.array([generator.choice([None, "x", "y", "Z", ""]) for _ in ids], pa.string()),
            "f": pa.array([generator.choice([None, 0.0, -0.0, 1.5, float("nan"), -2.0]) for _ in ids], pa.float64()),
        }
    )


def source_rows(generator: random.Random) -> pa.Table:
    ids = generator.sample(range(70), generator.randint(0, 12))
    return pa.table(
        {
            "id": pa.array([generator.choice([id_, id_, id_, None]) for id_ in ids], pa.int64()),
            "k": pa.array([*map(str, ids)], pa.string()),
            "i": pa.array(ids, pa.int32()),
            "a": pa.array([generator.randint(0, 9) for _ in ids], pa.int64()),
            "b": pa.array([generator.choice(["x", "new"]) for _ in ids], pa.string()),
        }
    )


def statement(generator: random.Random) -> str:
    one = generator.choice
    condition = one(
        [
            "a = 3", "a > 4", "id BETWEEN 5 AND 20", "id IN (1, 2, 30, 31)", "b = 'x' AND a < 5", "b IS NULL",
            "a IS NOT NULL AND NOT (a = 2)", "f = 0", "isnan(f)", "f > 1", "lower(b) = 'z'", "id % 7 = 0",
            "b IN (SELECT b FROM s)", "id IN (SELECT id FROM s)", "a > (SELECT avg(a) FROM t)", "b LIKE 'x%' OR a = 1",
            "id = 5 OR id = 50", "id >= '50'", "a = 2.0", "NOT b = 'y'", "EXISTS (SELECT 1 FROM s WHERE s.i = t.id)",
        ]
    )  # fmt: skip
    join = one(
        [
            "t.id = s.id", "s.id = t.id AND t.a > 2", "t.id = s.i", "t.id = s.k", "t.b = s.b AND t.id = s.id",
            "t.a = s.a AND t.id = s.id + 1", "t.id = s.id AND s.b = 'x'", "t.id = s.id AND t.b IS DISTINCT FROM s.b",
        ]
    )  # fmt: skip
    return one(
        [
            f"DELETE FROM t WHERE {condition}",
            f"UPDATE t SET a = coalesce(a, 0) + 1 WHERE {condition}",
            f"UPDATE t SET b = 'set', f = a WHERE {condition}",
            f"UPDATE t SET id = id + 1000 WHERE {condition}",
            f"DELETE FROM t USING s WHERE {join}",
            f"UPDATE t SET a = s.a, b = s.b FROM s WHERE {join}",
            "UPDATE t AS u SET a = s.a FROM (SELECT id, max(a) AS a FROM s GROUP BY id) s WHERE u.id = s.id",
            f"MERGE INTO t USING s ON {join} WHEN MATCHED THEN UPDATE SET b = s.b "
            "WHEN NOT MATCHED AND s.id IS NOT NULL THEN INSERT VALUES (s.id + 2000, s.a, s.b, 0)",
            f"MERGE INTO t USING s ON {join} WHEN MATCHED AND t.a > 3 THEN DELETE WHEN MATCHED THEN UPDATE SET a = -1",
            "MERGE INTO t USING (SELECT DISTINCT id, 5 AS n FROM s WHERE id IS NOT NULL) v USING (id) "
            "WHEN MATCHED THEN UPDATE SET a = v.n WHEN NOT MATCHED THEN INSERT VALUES (v.id, v.n, NULL, NULL)",
            "MERGE INTO t USING s ON t.id = s.id WHEN NOT MATCHED BY SOURCE THEN DELETE",
            "INSERT INTO t SELECT i + 3000, a, b, 1 FROM s",
            "INSERT INTO t SELECT id + 4000, a, b, f FROM t",
            "TRUNCATE t",
        ]
    )  # fmt: skip


def refusal(call: Callable[[], object]) -> str:
    """Return why a call was refused; "" if it was not."""
    try:
        call()
    except persist.InvalidUsage as error:
        return str(error)
    return ""


def contents(rows: Any) -> list[str]:
    return sorted(repr([value if value != 0 else 0 for value in row.values()]) for row in rows.to_pylist())


def by_duckdb(rows: pa.Table, source: pa.Table, sql: str) -> list[str] | None:
    """Return the contents of the whole table after a statement; None if DuckDB refuses it."""
    with duckdb.connect() as connection:
        connection.register("r", rows)
        connection.register("s", source)
        connection.execute("CREATE TABLE t AS FROM r")
        try:
            connection.execute(sql).fetchall()
        except duckdb.Error:
            return None
        return contents(connection.sql("FROM t").to_arrow_table())


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize("keyed", KINDS)
def test_a_statement_on_the_rows_it_touches_is_the_statement_on_the_table(keyed: persist.Keyed | None) -> None:
    generator, done = random.Random(f"touched {keyed}"), 0
    for _ in range(examples(60)):
        with persist.open(persist.MemoryBlob(), settings=QUIET) as client:
            rows, source, sql = stored_rows(generator), source_rows(generator), statement(generator)
            table = client.create_or_load("t", like=rows, key=["id"], keyed=keyed)
            table.upsert(rows, time=0, seal=1).result()
            client.create_or_load("s", like=source, key=[]).write(source, time=0, seal=1).result()
            expected = by_duckdb(rows, source, sql)
            refused = refusal(partial(execute, client.engine, sql))
            if refused:
                assert expected is None or "several rows" in refused or "repeat keys" in refused, sql
                expected = contents(rows)
            assert contents(table.snapshot().to_arrow()) == expected, sql
            done += expected != contents(rows)
    assert done > examples(60) // 3, "most statements change something"


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize("keyed", KINDS)
def test_the_statements_of_a_transaction_see_those_before_them(keyed: persist.Keyed | None) -> None:
    generator = random.Random(f"transactions {keyed}")
    for _ in range(examples(25)):
        with persist.open(persist.MemoryBlob(), settings=QUIET) as client:
            rows, source = stored_rows(generator), source_rows(generator)
            table = client.create_or_load("t", like=rows, key=["id"], keyed=keyed)
            table.upsert(rows, time=0, seal=1).result()
            client.create_or_load("s", like=source, key=[]).write(source, time=0, seal=1).result()
            transaction = Transaction(client.engine, QueryLimits())
            present, ran = rows, []
            for _ in range(3):
                sql = statement(generator)
                after = by_duckdb(present, source, sql)
                if after is None or (keyed is not None and "INSERT" in sql):
                    continue
                if refused := refusal(partial(transaction.execute, sql)):
                    assert "several rows" in refused, sql
                    continue
                ran.append(sql)
                if generator.random() < 0.3:
                    assert contents(transaction.query("FROM t").to_arrow()) == after, ran
                with duckdb.connect() as connection:
                    connection.register("r", present)
                    connection.register("s", source)
                    connection.execute("CREATE TABLE t AS FROM r")
                    connection.execute(sql).fetchall()
                    present = connection.sql("FROM t").to_arrow_table().cast(rows.schema)
            ids = present["id"].to_pylist()
            if keyed is not None and len({*ids}) < len(ids):
                transaction.close()
                continue
            transaction.commit()
            transaction.close()
            assert contents(table.snapshot().to_arrow()) == contents(present), ran


ROWS = 1_000_000


@pytest.fixture(scope="module")
def large() -> tuple[persist.MemoryBlob, int]:
    blob, generator = persist.MemoryBlob(), np.random.default_rng(7)
    values = {f"c{at}": generator.random(ROWS) for at in range(3)}
    with persist.open(blob, settings=QUIET) as client:
        table = pa.table({"id": np.arange(ROWS), "day": np.arange(ROWS) // 1000, **values})
        client.write("t", table, key=["id"]).result()
        client.write("s", pa.table({"id": np.arange(150_000, 150_200), "c1": np.zeros(200)}), key=["id"]).result()
        size = sum(part.bytes for part in client["t"].handle.contents().parts)
    return blob, size


@pytest.mark.thorough(except_every=2)
@pytest.mark.costly("a collection must have many row groups before few of them are a small share")
@pytest.mark.parametrize(
    ("sql", "touched"),
    [
        (
            "MERGE INTO t USING s ON t.id = s.id WHEN MATCHED THEN UPDATE SET c1 = s.c1 + 1 "
            "WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)", 200,
        ),
        ("UPDATE t SET c1 = s.c1 FROM s WHERE s.id = t.id AND t.c2 < 2", 200),
        ("UPDATE t SET c1 = 3 WHERE id BETWEEN 10 AND 19", 10),
        ("DELETE FROM t WHERE day = 7 AND id < 7100", 100),
        ("INSERT INTO t SELECT id + 1000000, 0, c1, c1, c1 FROM s", 200),
        ("DELETE FROM t USING s WHERE t.id = s.id", 200),
    ],
)  # fmt: skip
def test_a_statement_reads_a_small_part_of_the_collection(
    large: tuple[persist.MemoryBlob, int], sql: str, touched: int
) -> None:
    blob, size = large
    metered = MeteredBlob(blob)
    with persist.open(metered, settings=QUIET) as client:
        before = metered.get_counts()["get"].bytes
        assert execute(client.engine, sql).rows == touched
        assert metered.get_counts()["get"].bytes - before < size // 5


@pytest.mark.thorough
@pytest.mark.costly("the touched rows exceed the least memory budget")
def test_a_statement_may_touch_more_than_the_memory_budget() -> None:
    least, count = 16 << 20, 150_000
    with persist.open(persist.MemoryBlob(), settings=persist.Settings(background=False, memory_budget=least)) as client:
        rows = pa.table({"id": np.arange(count), **{f"c{at}": np.arange(count) for at in range(4)}})
        client.write("t", rows, key=["id"]).result()
        assert rows.nbytes > least // BEFORE_SHARE
        assert execute(client.engine, f"UPDATE t SET c1 = -1 WHERE id < {count - 10}").rows == count - 10
        assert client["t"].snapshot(where="c1 = -1").count() == count - 10
        assert client["t"].snapshot().count() == count


@pytest.mark.parametrize(
    "sql",
    [
        "MERGE INTO t USING s ON t.id = s.id WHEN MATCHED THEN UPDATE SET a = s.a",
        "UPDATE t SET a = s.a FROM s WHERE t.id = s.id",
    ],
)
def test_equal_rows_of_a_source_agree(sql: str) -> None:
    with persist.open(persist.MemoryBlob(), settings=QUIET) as client:
        table = client.create_or_load("t", key={"id": int}, value={"a": int})
        table.upsert([(1, 1), (2, 2)], time=0, seal=1).result()
        source = client.create_or_load("s", key={"id": int}, value={"a": int})
        source.write([(1, 5), (1, 5)], time=0, seal=1).result()
        execute(client.engine, sql)
        assert sorted(table.snapshot().rows()) == [(1, 5), (2, 2)]
        source.write([(1, 6)], time=1, seal=2).result()
        with pytest.raises(persist.InvalidUsage, match="several rows for the one with id=1"):
            execute(client.engine, sql)


@pytest.fixture
def five() -> Any:
    """A client with `t`, five rows; `log`, which is empty; and `s`, whose key is NULL once."""
    with persist.open(f"memory://{uuid.uuid4().hex}", settings=QUIET) as client:
        t = client.create_or_load("t", key={"id": pa.int64()}, value={"v": pa.string()})
        t.write([((i, "aBcde"[i - 1]), 0, 1) for i in range(1, 6)], seal=1).result()
        log = client.create_or_load("log", key={"n": pa.int64()})
        log.seal(1).result()
        s = client.create_or_load("s", key={"w": pa.string()}, value={"id": pa.int64()})
        s.write([(("A", 1), 0, 1), (("b", None), 0, 1), (("C", 7), 0, 1)], seal=1).result()
        yield client


def count(client: persist.Client, name: str) -> int:
    return client.load(name).snapshot().count()


@pytest.mark.parametrize(
    ("sql", "touched"),
    [
        ("INSERT INTO t SELECT id + 10, v FROM 't'", 5),
        ("UPDATE t SET v = 'hit' WHERE id IN (SELECT max(id) FROM query_table('t'))", 1),
        ("UPDATE t SET v = 'hit' WHERE v <> E'\\'' AND id IN (SELECT max(id) FROM t) AND 'x' = 'x'", 1),
        ("DELETE FROM t USING (SELECT w COLLATE NOCASE AS w FROM s) s WHERE t.v = s.w", 3),
        ("UPDATE t AS o /* hi */ SET v = s.w FROM s WHERE o.id = s.id", 1),
    ],
)
def test_a_table_that_a_statement_reads_in_another_way_is_whole(five: persist.Client, sql: str, touched: int) -> None:
    assert execute(five.engine, sql).rows == touched


def test_a_null_in_the_source_equals_no_key(five: persist.Client) -> None:
    five.sql("CREATE TABLE p (id BIGINT PRIMARY KEY, v VARCHAR)")
    five.sql("INSERT INTO p VALUES (1, 'a')")
    assert execute(five.engine, "MERGE INTO p USING s ON p.id = s.id WHEN MATCHED THEN UPDATE SET v = w").rows == 1


def test_a_block_sees_all_rows_of_what_it_changed(five: persist.Client) -> None:
    with closing(Transaction(five.engine, QueryLimits())) as block:
        block.execute("UPDATE t SET v = 'z' WHERE id = 1")
        block.execute("INSERT INTO log SELECT count(*) FROM t")
        block.commit()
    assert [*five.load("log").snapshot().rows()] == [(5, None)]


def test_a_serializable_block_has_read_what_it_did_not_find(five: persist.Client) -> None:
    with closing(Transaction(five.engine, QueryLimits())) as block:
        assert block.execute("DELETE FROM t WHERE id = 100") == 0
        block.execute("INSERT INTO log VALUES (1)")
        five.load("t").write([((100, "new"), 5, 1)], seal=6).result()
        with pytest.raises(persist.errors.UpperMismatch):
            block.commit(is_serializable=True)
    assert count(five, "log") == 0


def test_a_statement_that_fails_leaves_the_rows_of_a_block(five: persist.Client) -> None:
    five.sql("CREATE TABLE k (id BIGINT PRIMARY KEY, v VARCHAR)")
    five.sql("INSERT INTO k VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    with closing(Transaction(five.engine, QueryLimits())) as block:
        block.execute("INSERT OR REPLACE INTO k VALUES (1, 'z')")
        block.execute("INSERT INTO k VALUES (2, 'dup')")
        with pytest.raises(persist.InvalidUsage):
            block.execute("UPDATE k SET v = 'q' WHERE id IN (2, 3)")
        with pytest.raises(persist.PersistError):
            block.commit()
    assert count(five, "k") == 3
