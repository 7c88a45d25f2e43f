"""The first contents of tables of a real Postgres: cut off anywhere, and gone on with, while the tables change."""

import contextlib
import itertools
import random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import persist
from persist.blob.protocol import MemoryBlob
from persist.errors import AsOfCompacted
from tests.connect.ingest.servers import postgres_programs
from tests.connect.ingest.test_postgres import Database, database, server
from tests.core.keyed.test_crash import SETTINGS, Died, MortalBlob

__all__ = ["database", "server"]  # Fixtures.

pytestmark = [
    pytest.mark.outside,
    pytest.mark.skipif(postgres_programs() is None, reason="no Postgres: Debian's package postgresql has one"),
]
ROWS = 120
MONEY = 1_000 * ROWS


def bank(database: Database) -> None:
    long = "md5(g::text)" + " || md5(g::text)" * 100
    database.run(
        "CREATE TABLE accounts (name text, id int, balance bigint, long text, PRIMARY KEY (name, id))",
        "ALTER TABLE accounts ALTER COLUMN long SET STORAGE EXTERNAL",
        f"INSERT INTO accounts SELECT 'n' || (g % 7), g, 1000, {long} FROM generate_series(1, {ROWS}) g",
        "CREATE TABLE lines (line text, n int)",
        "ALTER TABLE lines REPLICA IDENTITY FULL",
        "INSERT INTO lines SELECT 'x', g % 3 FROM generate_series(1, 30) g",
    )


def change(database: Database, rng: random.Random) -> None:
    """Move money, and rows between keys: long values are not sent then. Money stays the same after each transaction."""
    for _ in range(rng.randint(1, 6)):
        a, b, amount = rng.randint(1, ROWS), rng.randint(1, ROWS), rng.randint(1, 9)
        take = f"UPDATE accounts SET balance = balance - {amount} WHERE id = {a}"
        give = f"UPDATE accounts SET balance = balance + {amount} WHERE id = {b}"
        is_there = (
            f"SELECT 1 / count(*) FROM accounts WHERE id IN ({a}, {b}) HAVING count(DISTINCT id) = {2 - (a == b)}"
        )
        if database.rows(f"SELECT count(DISTINCT id) FROM accounts WHERE id IN ({a}, {b})") == [(2 - (a == b),)]:
            database.run(is_there, take, give)
        kind = rng.randrange(4)
        if kind == 0:  # A row goes, and its money with it to another one.
            all_of_it = f"(SELECT coalesce(sum(balance), 0) FROM accounts WHERE id = {a})"
            database.run(
                f"UPDATE accounts SET balance = balance + {all_of_it} "
                f"WHERE id = (SELECT min(id) FROM accounts WHERE id <> {a})",
                f"DELETE FROM accounts WHERE id = {a}",
            )
        elif kind == 1:  # A row comes back, or is there for the first time, with a long value of its own.
            database.run(f"INSERT INTO accounts VALUES ('n{a % 7}', {a}, 0, repeat('z', 3000)) ON CONFLICT DO NOTHING")
        elif kind == 2:
            database.run(f"INSERT INTO lines VALUES ('y', {a})", f"DELETE FROM lines WHERE n = {b % 5}")
        else:
            database.run(f"UPDATE lines SET line = line || '.' WHERE n = {a % 3}")


def run(database: Database, store: Any) -> None:
    config = {"source": database.url, "publication": "p", "copy_bytes": 8_000, "batch_rows": 3}
    with persist.open(store, settings=SETTINGS) as client:
        persist.ingest(client, config, once=True)


@pytest.fixture
def store() -> MemoryBlob:
    return MemoryBlob()


def rows_of(collection: Any, as_of: int | None = None) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in collection.snapshot(as_of).to_arrow().to_pylist())


@pytest.mark.costly("it copies tables of a real server, and dies again and again")
@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.thorough) for n in range(2, 20))])
def test_a_copy_that_is_cut_off_goes_on_and_is_right_at_every_time(
    database: Database, store: MemoryBlob, seed: int
) -> None:
    rng = random.Random(seed)
    bank(database)
    deaths = 0
    for _ in range(rng.randint(2, 5)):
        mortal = MortalBlob(store, rng.randint(3, 16), is_after=rng.random() < 0.5)
        try:
            run(database, mortal)
        except (Died, persist.PersistError):
            deaths += mortal.is_dead
        change(database, rng)
    run(database, store)
    change(database, rng)
    run(database, store)
    assert deaths
    with persist.open(store, mode="read") as client:
        accounts, lines = client.load("accounts"), client.load("lines")
        assert rows_of(accounts) == database.rows('SELECT * FROM accounts ORDER BY name COLLATE "C", id')
        assert rows_of(lines) == sorted(database.rows("SELECT * FROM lines"))
        since, upper = accounts.since.time or 0, accounts.upper.time or 0
        times = accounts.changes(since + 1).to_arrow()["_time"].to_pylist() if since + 1 < upper else []
        for time in {since, upper - 1, *times} - {0}:
            assert pc.sum(accounts.snapshot(time).to_arrow()["balance"]).as_py() == MONEY


def test_what_was_copied_is_not_read_again(database: Database, store: MemoryBlob) -> None:
    bank(database)
    mortal = MortalBlob(store, 14, is_after=True)
    with pytest.raises((Died, persist.PersistError)):
        run(database, mortal)
    with persist.open(store, settings=SETTINGS) as client:
        before = {row["seqno"] for row in client.history().to_pylist()}
        [after] = [client.load("accounts").about.properties["ingest.copy"]]
    assert '"after":["n' in after
    database.run(
        "UPDATE accounts SET balance = balance + 1 WHERE id = 7",
        "UPDATE accounts SET balance = balance - 1 WHERE id = 8",
    )
    run(database, store)
    with persist.open(store, settings=SETTINGS) as client:
        accounts = client.load("accounts")
        assert rows_of(accounts) == database.rows('SELECT * FROM accounts ORDER BY name COLLATE "C", id')
        written = pa.table({"seqno": client.history().column("seqno"), "updates": client.history().column("updates")})
        again = [row["updates"] or 0 for row in written.to_pylist() if row["seqno"] not in before]
        assert 0 < sum(again) < ROWS + 60
        with pytest.raises(AsOfCompacted):
            accounts.snapshot(0)


def test_a_table_that_comes_to_the_publication_later_is_copied_then(database: Database) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    database.ingest()
    database.run("CREATE TABLE b (id int PRIMARY KEY, n int)", "INSERT INTO b VALUES (1, 1), (2, 2)")
    database.run("CREATE TABLE c (n int)", "ALTER TABLE c REPLICA IDENTITY FULL", "INSERT INTO c VALUES (5), (5)")
    database.run("UPDATE b SET n = 3 WHERE id = 1", "INSERT INTO a VALUES (2)", "DELETE FROM c WHERE ctid = '(0,1)'")
    done = database.ingest()
    assert len(set(done.uppers.values())) == 1
    assert database.contents("b") == [{"id": 1, "n": 3}, {"id": 2, "n": 2}]
    assert (database.contents("a"), database.contents("c")) == ([{"id": 1}, {"id": 2}], [{"n": 5}])
    database.run("UPDATE b SET n = 4 WHERE id = 1", "INSERT INTO a VALUES (3)", "INSERT INTO c VALUES (6)")
    database.ingest()
    assert database.contents("b")[0] == {"id": 1, "n": 4}
    assert (len(database.contents("a")), database.contents("c")) == (3, [{"n": 5}, {"n": 6}])


def test_a_slot_that_nobody_reads_is_told(database: Database, caplog: Any) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY)")
    database.rows("SELECT pg_create_logical_replication_slot('persist_forgotten', 'pgoutput')")
    database.ingest()
    assert "no process reads the slot 'persist_forgotten'" in caplog.text
    assert "SELECT pg_drop_replication_slot('persist_forgotten')" in caplog.text


def test_a_copy_whose_slot_is_gone_says_what_to_do(database: Database, store: MemoryBlob) -> None:
    bank(database)
    with pytest.raises((Died, persist.PersistError)):
        run(database, MortalBlob(store, 14, is_after=True))
    database.drop_slot()
    with pytest.raises(
        persist.InvalidUsage, match=r"is gone.*persist rename LOCATION accounts accounts-before; persist ren"
    ):
        run(database, store)


def test_a_column_that_is_made_anew_while_its_copy_is_cut_off_has_its_values(
    database: Database, store: MemoryBlob
) -> None:
    bank(database)
    with pytest.raises((Died, persist.PersistError)):
        run(database, MortalBlob(store, 14, is_after=True))
    database.run(
        "ALTER TABLE accounts DROP balance, ADD balance bigint", "UPDATE accounts SET balance = 0 WHERE id = 7"
    )
    run(database, store)
    with persist.open(store, mode="read") as client:
        found = client.load("accounts").snapshot().to_arrow().sort_by("id")
    assert [*zip(*found.select(["id", "balance"]).to_pydict().values(), strict=True)] == database.rows(
        "SELECT id, balance FROM accounts ORDER BY id"
    )


@pytest.mark.costly("it starts anew for each step at which it is killed")
@pytest.mark.parametrize("is_after", [False, True])
def test_a_start_that_is_killed_at_any_step_begins_again(database: Database, is_after: bool) -> None:
    """With a slot that has a name, too."""
    config = {"source": database.url, "publication": "p", "slot": f"mine_{is_after}".lower(), "copy_bytes": 2_000}
    database.run("CREATE TABLE t (id int PRIMARY KEY, v int)")
    database.run("INSERT INTO t SELECT g, 0 FROM generate_series(1, 300) g")
    is_slot_there = set()
    for dies_at in itertools.count(1):
        store = MemoryBlob()
        mortal = MortalBlob(store, dies_at, is_after=is_after)
        with contextlib.suppress(Died, persist.Unavailable, persist.Indeterminate), persist.open(mortal) as client:
            persist.ingest(client, config, once=True)
        if not mortal.is_dead:
            break
        is_slot_there.add(
            bool(database.rows(f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{config['slot']}'"))
        )
        database.run(f"UPDATE t SET v = v + 1 WHERE id = {dies_at}")
        with persist.open(store) as client:
            persist.ingest(client, config, once=True)
            assert rows_of(client.load("t")) == database.rows("SELECT * FROM t ORDER BY 1"), dies_at
        database.drop_slot()
    assert is_slot_there == {False, True}


def test_a_slot_of_somebody_else_is_not_taken(database: Database) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY)")
    database.rows("SELECT pg_create_logical_replication_slot('theirs', 'pgoutput')")
    with pytest.raises(persist.InvalidUsage, match=r"the slot 'theirs' is there, and this location has not made it"):
        database.ingest(slot="theirs")
    assert database.rows("SELECT 1 FROM pg_replication_slots WHERE slot_name = 'theirs'")


def test_a_table_that_cannot_be_followed_is_copied_again_and_keeps_its_history(database: Database) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 5)")
    database.run("CREATE TABLE u (id int PRIMARY KEY)", "INSERT INTO u VALUES (1)")
    database.ingest()
    database.run("ALTER TABLE t ALTER v TYPE text USING 'v' || v")
    database.run("INSERT INTO t VALUES (2, 'v6')", "INSERT INTO u VALUES (2)")
    with pytest.raises(persist.InvalidUsage, match="persist rename LOCATION t t-before; and give the same command"):
        database.ingest()
    with persist.open(database.location) as client:
        client.rename("t", "t-before").result()
    database.ingest()
    database.run("INSERT INTO t VALUES (3, 'v7')")
    database.ingest()
    assert [(row["id"], row["v"]) for row in database.contents("t")] == [(1, "v5"), (2, "v6"), (3, "v7")]
    assert (database.contents("t-before"), len(database.contents("u"))) == ([{"id": 1, "v": 5}], 2)


def test_large_transactions_at_once_come_in_pieces(database: Database) -> None:
    import psycopg2

    [[name]] = database.rows("SELECT current_database()")
    database.run(f"ALTER DATABASE {name} SET logical_decoding_work_mem = '64kB'")
    database.run("CREATE TABLE t (id int PRIMARY KEY, pad text)", "CREATE TABLE u (n int)")
    database.run("ALTER TABLE u REPLICA IDENTITY FULL", "INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    first = database.ingest()

    def many(table: str, start: int) -> str:
        pad = ", repeat('x', 100)" if table == "t" else ""
        return f"INSERT INTO {table} SELECT g{pad} FROM generate_series({start}, {start + 1999}) g"

    one, other, gone = (psycopg2.connect(database.url) for _ in range(3))
    steps = [
        (one, many("t", 1000)), (other, many("u", 0)), (gone, many("t", 50_000)), (one, "SAVEPOINT a"),
        (one, many("t", 10_000)), (other, "TRUNCATE u"), (one, "ROLLBACK TO a"), (other, many("u", 7)),
        (one, "UPDATE t SET pad = 'c' WHERE id < 1500"), (gone, many("t", 60_000)), (one, "DELETE FROM t WHERE id = 2"),
    ]  # fmt: skip
    for connection, statement in steps:
        connection.cursor().execute(statement)
    other.commit()
    one.commit()
    gone.rollback()
    for connection in (one, other, gone):
        connection.close()
    database.run(
        "ALTER TABLE t ADD COLUMN more int", "INSERT INTO t SELECT g, 'y', 1 FROM generate_series(7000, 9999) g"
    )
    assert database.ingest(batch_rows=100).commits > 60  # Each large one in pieces.
    for table in ("t", "u"):
        rows = [tuple(row.values()) for row in database.contents(table)]
        assert sorted(rows, key=str) == sorted(database.rows(f"SELECT * FROM {table}"), key=str)
    times = [first.uppers["t"]]
    with persist.open(database.location, mode="read") as client:
        times = [len({*client.load(table).changes(times[0]).to_arrow()["_time"].to_pylist()}) for table in ("t", "u")]
    assert times == [2, 1]


def test_a_transaction_larger_than_a_batch_is_committed_in_pieces_and_is_one_time(
    database: Database, store: MemoryBlob
) -> None:
    """Whoever is killed between two pieces. A truncate, and long values that were not sent, find what is not sealed."""
    long = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 90) i) || g"
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY, n int, long text)",
        "ALTER TABLE t ALTER COLUMN long SET STORAGE EXTERNAL",
        "CREATE TABLE u (n int)",
        "ALTER TABLE u REPLICA IDENTITY FULL",
        "INSERT INTO t SELECT g, 0, 'old' FROM generate_series(1, 30) g",
        "INSERT INTO u SELECT g % 5 FROM generate_series(1, 30) g",
    )
    run(database, store)
    database.run("UPDATE t SET n = 1 WHERE id = 1")
    database.run(
        "INSERT INTO u SELECT 9 FROM generate_series(1, 25) g",
        "INSERT INTO t SELECT g, 0, 'gone' FROM generate_series(100, 140) g",
        "TRUNCATE t, u",
        f"INSERT INTO t SELECT g, 0, {long} FROM generate_series(1, 25) g",
        "INSERT INTO u SELECT g % 3 FROM generate_series(1, 25) g",
        "UPDATE t SET n = 7 WHERE id % 2 = 0",
        "DELETE FROM u WHERE n = 1",
    )
    deaths = 0
    while True:
        mortal = MortalBlob(store, 5 + deaths % 7, is_after=bool(deaths % 2))
        with contextlib.suppress(Died, persist.PersistError):
            run(database, mortal)
        if not mortal.is_dead:
            break
        deaths += 1
        assert deaths < 60
        with persist.open(store, mode="read") as client:
            assert {client.load(name).snapshot().count() for name in ("t", "u")} in ({30}, {25, 17})
    with persist.open(store, mode="read") as client:
        t, u = client.load("t"), client.load("u")
        assert rows_of(t) == database.rows("SELECT * FROM t ORDER BY 1")
        assert rows_of(u) == sorted(database.rows("SELECT * FROM u"))
        changes = [{*each.changes(1 + (each.since.time or 0)).to_arrow()["_time"].to_pylist()} for each in (t, u)]
        assert ([*map(len, changes)], changes[1] < changes[0]) == ([3, 2], True)
    assert deaths > 8


def test_columns_are_told_apart_whoever_is_killed_around_their_changes(database: Database, store: MemoryBlob) -> None:
    """Names that are exchanged, and given again: if a change were made twice, or half, columns would be mixed up."""
    database.run("CREATE TABLE t (id int PRIMARY KEY, a int, b int)", "INSERT INTO t VALUES (1, 10, 20)")
    run(database, store)
    rename, deaths = "ALTER TABLE t RENAME COLUMN", 0
    for number, steps in enumerate(
        (
            (f"{rename} a TO x", f"{rename} b TO a", f"{rename} x TO b"),
            (f"{rename} a TO c", "ALTER TABLE t ADD COLUMN a bigint"),
            (f"{rename} b TO d", "ALTER TABLE t DROP COLUMN c", f"{rename} a TO c"),
        )
    ):
        database.run(*steps, f"INSERT INTO t (id, {'a' if number < 2 else 'd'}) VALUES ({number + 2}, {number})")
        for dies_at in range(1, 40):
            mortal = MortalBlob(store, dies_at, is_after=bool(dies_at % 2))
            with contextlib.suppress(Died, persist.PersistError):
                run(database, mortal)
            if not mortal.is_dead:
                break
            deaths += 1
        with persist.open(store, mode="read") as client:
            table = client.load("t")
            assert rows_of(table) == database.rows(f"SELECT {', '.join(table.schema.names)} FROM t ORDER BY 1")
    assert deaths >= 9
