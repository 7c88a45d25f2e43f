"""What tells rows of Postgres apart: keys that change while long values stay, and keys that do not tell them apart."""

import contextlib
import random
import threading
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.blob.protocol import MemoryBlob
from persist.connect.ingest.driver import load_source
from persist.connect.ingest.source import Run
from tests.connect.ingest.servers import postgres_programs
from tests.connect.ingest.test_postgres import Database, database, server
from tests.core.keyed.test_crash import Died, MortalBlob

__all__ = ["database", "server"]  # Fixtures.

pytestmark = [
    pytest.mark.outside,
    pytest.mark.skipif(postgres_programs() is None, reason="no Postgres: Debian's package postgresql has one"),
]
TABLE = (
    "CREATE TABLE t (id int PRIMARY KEY, long text, n int, bytes bytea, at timestamp, items int[])",
    "ALTER TABLE t ALTER long SET STORAGE EXTERNAL, ALTER bytes SET STORAGE EXTERNAL, ALTER items SET STORAGE EXTERNAL",
)


def row(number: int) -> str:
    """Return an insert of a row with three long values, and the last moments that Python has."""
    long = f"repeat('{number % 10}', 9000), {number}, decode(repeat('0{number % 10}', 9000), 'hex')"
    rest = f"'9999-12-31 23:59:59.99999{number}', array_fill({number}, ARRAY[3000])"
    return f"INSERT INTO t VALUES ({number}, {long}, {rest})"


def stored(store: Any) -> list[Any]:
    with persist.open(store, mode="read") as client:
        rows = client.load("t").snapshot().to_arrow().sort_by("id")
    listed: list[Any] = rows.set_column(4, "at", rows["at"].cast(pa.int64())).to_pylist()
    return listed


def in_database(database: Database) -> list[Any]:
    micros = "(extract(epoch FROM at) * 1000000)::int8"
    rows = database.rows(f"SELECT id, long, n, bytes, {micros}, items FROM t ORDER BY id")
    names = ("id", "long", "n", "bytes", "at", "items")
    return [dict(zip(names, (*r[:3], bytes(r[3]), *r[4:]), strict=True)) for r in rows]


MOVES = {
    "one row": ["UPDATE t SET id = 9 WHERE id = 1"],
    "a row that changed before": ["UPDATE t SET n = 7 WHERE id = 1", "UPDATE t SET id = 9 WHERE id = 1"],
    "a row that changes later": ["UPDATE t SET id = 9 WHERE id = 1", "UPDATE t SET n = 7 WHERE id = 9"],
    "from one key to the next": [f"UPDATE t SET id = {id_ + 10} WHERE id = {id_}" for id_ in (1, 11, 21, 31)],
    "there and back": ["UPDATE t SET id = 9 WHERE id = 1", "UPDATE t SET id = 1 WHERE id = 9"],
    "two rows exchange their keys": [
        f"UPDATE t SET id = {new} WHERE id = {old}" for old, new in ((1, 9), (2, 1), (9, 2))
    ],
    "all rows move up": ["UPDATE t SET id = id + 10", "UPDATE t SET id = id - 9"],
    "where another row was deleted": ["DELETE FROM t WHERE id = 2", "UPDATE t SET id = 2 WHERE id = 1"],
    "away from where a row comes then": [
        "UPDATE t SET id = 9 WHERE id = 1",
        row(1),
        "UPDATE t SET id = 8 WHERE id = 1",
    ],
    "a row that was just inserted": [row(5), "UPDATE t SET id = 6 WHERE id = 5", "UPDATE t SET id = 7 WHERE id = 6"],
    "a row that is deleted then": ["UPDATE t SET id = 9 WHERE id = 1", "DELETE FROM t WHERE id = 9"],
    "one value is sent, and the other is not": ["UPDATE t SET id = 9, long = 'short' WHERE id = 1"],
}


@pytest.mark.costly("it follows a real server through many changes of keys")
@pytest.mark.parametrize("how", ["each alone", "one transaction", "in pieces", "read at once"])
def test_a_row_takes_long_values_with_it_to_another_key(database: Database, how: str) -> None:
    database.run(*TABLE)
    for what, moves in MOVES.items():
        database.run("TRUNCATE t", *map(row, (1, 2, 3)))
        database.ingest()
        if how in ("one transaction", "in pieces"):
            database.run(*moves)
        for move in moves if how not in ("one transaction", "in pieces") else ():
            database.run(move)
            if how == "each alone":
                database.ingest()
        database.ingest(batch_rows=1 if how == "in pieces" else 20_000)
        assert stored(database.location) == in_database(database), what


def test_a_long_key_that_stays_is_found(database: Database) -> None:
    database.run("CREATE TABLE t (id text PRIMARY KEY, n int)", "ALTER TABLE t ALTER id SET STORAGE EXTERNAL")
    database.run("INSERT INTO t VALUES (repeat('x', 2400), 1)")
    database.ingest()
    database.run("UPDATE t SET n = 2")
    database.run("UPDATE t SET n = 3, id = repeat('y', 2400)")
    database.run("UPDATE t SET n = 4")
    database.ingest()
    assert database.contents("t") == [{"id": "y" * 2400, "n": 4}]


@pytest.mark.costly("it follows a real server, and dies again and again")
@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.thorough) for n in range(2, 12))])
def test_long_values_stay_with_their_rows_whatever_happens_to_keys(database: Database, seed: int) -> None:
    rng, store = random.Random(seed), MemoryBlob()
    database.run(*TABLE, *map(row, range(1, 7)))
    config = {"source": database.url, "publication": "p", "batch_rows": 3}

    def run(to: Any) -> None:
        with contextlib.suppress(Died), persist.open(to) as client:
            persist.ingest(client, config, once=True)

    run(store)
    keys = {*range(1, 7)}
    for _ in range(rng.randint(4, 8)):
        statements = []
        for _ in range(rng.randint(1, 9)):
            id_, new = rng.randint(1, 9), rng.randint(1, 9)
            if id_ not in keys:
                statements.append(row(id_))
                keys.add(id_)
            elif new not in keys:
                statements.append(f"UPDATE t SET id = {new} WHERE id = {id_}")
                keys = keys - {id_} | {new}
            elif rng.random() < 0.4:
                statements.append(f"DELETE FROM t WHERE id = {id_}")
                keys.remove(id_)
            else:
                statements.append(f"UPDATE t SET n = n + 1{rng.choice(['', ', long = n::text'])} WHERE id = {id_}")
        database.run(*statements)
        if rng.random() < 0.7:
            with contextlib.suppress(persist.PersistError):
                run(MortalBlob(store, rng.randint(2, 12), is_after=rng.random() < 0.5))
    run(store)
    assert stored(store) == in_database(database)


def test_a_generated_column_is_named_with_how_to_compute_it(database: Database, caplog: Any) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY, a int, g int GENERATED ALWAYS AS (a * 2) STORED)")
    database.run("INSERT INTO t VALUES (1, 5)")
    database.ingest()
    assert "t: the column 'g' is left out, because it is generated" in caplog.text
    assert "((a * 2)) AS g" in caplog.text
    caplog.clear()
    database.run("UPDATE t SET a = 6")
    database.ingest(exclude=["t.g"])
    assert (database.contents("t"), "generated" in caplog.text) == ([{"id": 1, "a": 6}], False)


def test_a_generated_column_that_comes_later_is_named(database: Database, caplog: Any) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t VALUES (1, 5)")
    database.ingest()
    with persist.open(database.location) as client:
        source = load_source({"source": database.url, "publication": "p"}, {})
        source.targets(client)  # What a process knows that follows the table already.
        database.run("ALTER TABLE t ADD g int GENERATED ALWAYS AS (a * 2) STORED", "UPDATE t SET a = 6")
        run = Run(client, {name: client.load(name) for name in ("t", "p.transactions")}, True, threading.Event())
        for _ in source.batches(run):
            pass
    assert "t has got generated columns" in caplog.text
    assert "left out: g" in caplog.text


@pytest.mark.parametrize("key", ["id, g", "g"])
def test_a_key_with_a_generated_column_tells_no_rows_apart(database: Database, key: str) -> None:
    database.run(
        "CREATE TABLE t (id int NOT NULL, a int, g int GENERATED ALWAYS AS (a * 2) STORED)",
        f"ALTER TABLE t ADD PRIMARY KEY ({key})",
        "INSERT INTO t VALUES (1, 5), (1, 6)",
    )
    with pytest.raises(persist.InvalidUsage, match=r"the table t has no key .*, because g of its key is not sent"):
        database.ingest()
    database.run("ALTER TABLE t REPLICA IDENTITY FULL")
    database.ingest()
    database.run("UPDATE t SET a = 7 WHERE a = 6")
    database.ingest()
    assert database.contents("t") == [{"id": 1, "a": 5}, {"id": 1, "a": 7}]


def test_rows_whose_keys_are_exchanged_in_one_statement_all_stay(database: Database, caplog: Any) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY DEFERRABLE, a text)", "ALTER TABLE t REPLICA IDENTITY FULL")
    database.run("INSERT INTO t VALUES (1, 'one'), (2, 'two'), (3, 'three')")
    database.ingest()
    assert "its key is DEFERRABLE" in caplog.text
    for statement in ("UPDATE t SET id = 4 - id", "UPDATE t SET id = id + 1"):
        database.run(statement)
        database.ingest()
        assert [(row["id"], row["a"]) for row in database.contents("t")] == database.rows("SELECT * FROM t ORDER BY 1")
