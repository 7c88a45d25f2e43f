"""Tables of a real Postgres into collections: each transaction is a time, and nothing is lost or taken twice."""

import contextlib
import itertools
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import persist
from persist.errors import AsOfNotSealed
from tests.connect.ingest import servers
from tests.connect.ingest.servers import Server, postgres_programs, running

pytestmark = [
    pytest.mark.outside,
    pytest.mark.skipif(postgres_programs() is None, reason="no Postgres: Debian's package postgresql has one"),
]
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as found:
        yield found


class Database(servers.Database):
    """A database with a publication `p` of all its tables, and the location that takes it in."""

    def ingest(self, **options: Any) -> Any:
        config = {"source": self.url, "publication": "p", **options}
        return persist.ingest(self.location, config, once=True)

    def contents(self, name: str, as_of: Any = None) -> Rows:
        with persist.open(self.location, mode="read") as client:
            rows: Rows = client.load(name).snapshot(as_of).to_arrow().to_pylist()
        return sorted(rows, key=lambda row: [(value is not None, value) for value in row.values()])

    def drop_slot(self) -> None:
        """Drop the slot, once the server has noticed that nobody reads it any more."""
        mine = "FROM pg_replication_slots WHERE database = current_database()"
        while self.rows(f"SELECT 1 {mine} AND active"):
            pass
        self.rows(f"SELECT pg_drop_replication_slot(slot_name) {mine}")

    def close(self) -> None:
        self.drop_slot()
        self.connection.close()


@pytest.fixture
def database(server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Database]:
    name = f"t{abs(hash(request.node.name)) % 10**12}"
    found = Database(server, name, str(tmp_path / "location"))
    found.run("CREATE PUBLICATION p FOR ALL TABLES")
    yield found
    found.close()


def test_the_first_contents_and_then_each_transaction_are_taken_in(database: Database) -> None:
    database.run(
        "CREATE TABLE orders (id bigint PRIMARY KEY, status text)", "INSERT INTO orders VALUES (1, 'new'), (2, NULL)"
    )
    first = database.ingest()
    assert (first.rows, database.contents("orders")) == (2, [{"id": 1, "status": "new"}, {"id": 2, "status": None}])
    database.run("UPDATE orders SET status = 'paid' WHERE id = 1", "INSERT INTO orders VALUES (3, '')")
    database.run("DELETE FROM orders WHERE id = 2")
    second = database.ingest()
    assert database.contents("orders") == [{"id": 1, "status": "paid"}, {"id": 3, "status": ""}]
    assert (second.commits, second.uppers["orders"] > first.uppers["orders"]) == (1, True)
    with persist.open(database.location, mode="read") as client:
        changes = client.load("orders").changes(first.uppers["orders"]).to_arrow().to_pylist()
    times = sorted({change["_time"] for change in changes})
    assert [sorted((c["id"], c["_diff"]) for c in changes if c["_time"] == time) for time in times] == [
        [(1, -1), (1, 1), (3, 1)],
        [(2, -1)],
    ]
    assert database.contents("orders", times[0])[1] == {"id": 2, "status": None}


def test_all_tables_of_a_transaction_are_one_time(database: Database) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    before = database.ingest().uppers
    database.run("INSERT INTO a VALUES (1)", "INSERT INTO b VALUES (1)")
    assert len(set(database.ingest().uppers.values())) == 1
    with persist.open(database.location, mode="read") as client:
        [a, b] = [client.load(name).changes(before[name]).to_arrow()["_time"].to_pylist() for name in ("a", "b")]
    assert a == b


def test_moments_are_times_of_transactions(database: Database) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE other (id int PRIMARY KEY)")
    now = "SELECT clock_timestamp()"
    [[before]] = database.rows(now)
    database.run("INSERT INTO t VALUES (1)")
    database.ingest(tables=["t"])
    between = []
    for id_ in (2, 3):
        between += database.rows(now)
        database.run(f"INSERT INTO t VALUES ({id_})")
    [[after]] = database.rows(now)
    database.ingest(tables=["t"])
    assert [len(database.contents("t", moment)) for [moment] in between] == [1, 2]
    with pytest.raises(persist.InvalidUsage, match=r"is before .*, the first moment of 't'"):
        database.contents("t", before)
    assert len(database.contents("t", after)) == 3
    [[idle]] = database.rows(now)
    with pytest.raises(AsOfNotSealed, match="Not sealed yet are moments after"):
        database.contents("t", idle)
    database.run("INSERT INTO other VALUES (1)")
    assert database.ingest(tables=["t"]).commits == 0
    assert len(database.contents("t", idle)) == 3


def test_a_table_without_a_key_counts_equal_rows_if_it_sends_old_ones(database: Database) -> None:
    database.run("CREATE TABLE log (line text, level int)", "INSERT INTO log VALUES ('x', 1), ('x', 1)")
    with pytest.raises(
        persist.InvalidUsage, match=r"the table log has no key .* ALTER TABLE log REPLICA IDENTITY FULL"
    ):
        database.ingest()
    database.run("ALTER TABLE log REPLICA IDENTITY FULL")
    database.ingest()
    assert database.contents("log") == [{"line": "x", "level": 1}] * 2
    database.run("DELETE FROM log WHERE ctid = (SELECT min(ctid) FROM log)", "INSERT INTO log VALUES (NULL, NULL)")
    database.run("UPDATE log SET level = 2 WHERE line = 'x'")
    database.ingest()
    assert database.contents("log") == [{"line": None, "level": None}, {"line": "x", "level": 2}]


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_long_values_that_were_not_sent_are_what_they_were(database: Database, identity: str) -> None:
    long = "md5(g::text)" + " || md5(g::text)" * 200
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY, n int, long text)",
        "ALTER TABLE t ALTER COLUMN long SET STORAGE EXTERNAL",
        f"ALTER TABLE t REPLICA IDENTITY {identity}",
        f"INSERT INTO t SELECT g, 0, {long} FROM generate_series(1, 3) g",
    )
    database.ingest()
    database.run("UPDATE t SET n = 1 WHERE id = 1")  # What the collection has.
    database.run(f"INSERT INTO t SELECT g, 0, {long} FROM generate_series(4, 4) g")
    database.run("UPDATE t SET n = 2 WHERE id = 4")  # What an earlier change of the batch has.
    database.run("UPDATE t SET n = 3 WHERE id = 4", "UPDATE t SET n = 4, long = 'short' WHERE id = 2")
    database.run("UPDATE t SET n = 5 WHERE id = 2")
    database.ingest()
    assert [tuple(row.values()) for row in database.contents("t")] == database.rows("SELECT * FROM t ORDER BY 1")


def test_a_row_may_get_another_key(database: Database) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY, n int)", "INSERT INTO t VALUES (1, 10), (2, 20)")
    database.ingest()
    database.run("UPDATE t SET id = id + 10")
    database.ingest()
    assert database.contents("t") == [{"id": 11, "n": 10}, {"id": 12, "n": 20}]


@pytest.mark.parametrize("key", ["PRIMARY KEY", ""])
def test_a_truncate_removes_what_there_was(database: Database, key: str) -> None:
    database.run(f"CREATE TABLE t (id int {key}, n int)", "ALTER TABLE t REPLICA IDENTITY FULL")
    database.run("INSERT INTO t VALUES (1, 10), (2, 20)")
    database.ingest()
    database.run("INSERT INTO t VALUES (3, 30)")
    database.run("INSERT INTO t VALUES (4, 40)", "TRUNCATE t", "INSERT INTO t VALUES (1, 11)")
    database.ingest()
    assert database.contents("t") == [{"id": 1, "n": 11}]
    with persist.open(database.location, mode="read") as client:
        emptied = max(client.load("t").changes(0).to_arrow()["_time"].to_pylist())
    assert len(database.contents("t", emptied - 1)) == 3
    database.run("TRUNCATE t")
    database.ingest()
    assert database.contents("t") == []


def test_columns_that_are_added_dropped_renamed_and_widened_are_followed(database: Database) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY, a int, b text, c text)", "INSERT INTO t VALUES (1, 1, 'b', 'c')")
    database.ingest()
    database.run("INSERT INTO t VALUES (2, 2, 'b', 'c')")
    database.run("ALTER TABLE t ADD COLUMN d date", "ALTER TABLE t RENAME COLUMN b TO e", "ALTER TABLE t DROP COLUMN c")
    database.run("ALTER TABLE t ALTER COLUMN a TYPE bigint")
    database.run("INSERT INTO t VALUES (3, 3000000000, 'e', '2026-11-24')")
    database.ingest()
    assert [(row["id"], row["a"], row["e"], row["d"]) for row in database.contents("t")] == database.rows(
        "SELECT id, a, e, d FROM t ORDER BY 1"
    )
    assert "c" not in database.contents("t")[0]


def test_every_type_of_the_table_of_types_comes_as_it_says(database: Database) -> None:
    database.run(
        "CREATE DOMAIN euros AS numeric(10, 2)",
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "CREATE TABLE t (id uuid PRIMARY KEY, a bool, b bytea, c smallint, d int, e bigint, f real, g float8, "
        "h numeric(10, 2), i numeric, j date, k time, l timestamp, m timestamptz, n jsonb, o euros, p mood, q int[], "
        "r interval, s char(3), t varchar(5))",
    )
    row = (
        "('00000000-0000-0000-0000-00000000000{n}', true, '\\x00ff', 1, 2, 3, 'NaN', 1e300, 1.5, 1.50, '2026-11-24', "
        "'12:30', '2026-11-24 12:30:00.000001', '2026-11-24 12:30+02', '{{\"a\": 1}}', 9.99, 'ok', '{{1,NULL}}', "
        "'1 day', 'x', '')"
    )
    database.run("SET timezone = 'Asia/Tokyo'", f"INSERT INTO t VALUES {row.format(n=1)}")
    database.ingest()
    database.run(
        f"INSERT INTO t VALUES {row.format(n=2)}", "INSERT INTO t VALUES ('00000000-0000-0000-0000-000000000003')"
    )
    database.ingest()
    copied, followed, nulls = [
        list(each.values())[1:] for each in sorted(database.contents("t"), key=lambda r: r["id"])
    ]
    assert str(copied) == str(followed)
    assert nulls == [None] * 20
    assert str(copied) == (
        "[True, b'\\x00\\xff', 1, 2, 3, nan, 1e+300, Decimal('1.50'), '1.50', datetime.date(2026, 11, 24), "
        "datetime.time(12, 30), datetime.datetime(2026, 11, 24, 12, 30, 0, 1), "
        "datetime.datetime(2026, 11, 24, 10, 30, tzinfo=zoneinfo.ZoneInfo(key='UTC')), '{\"a\": 1}', Decimal('9.99'), "
        "'ok', [1, None], 'P1D', 'x  ', '']"
    )


def test_a_value_without_counterpart_can_be_taken_as_text_or_left_out(database: Database) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY, at timestamp)", "INSERT INTO t VALUES (1, '0044-03-15 BC')")
    with pytest.raises(persist.InvalidUsage, match=r'a value of t\.at is not of type timestamp.*as_text = \["t\.at"\]'):
        database.ingest()
    database.ingest(as_text=["t.at"])
    assert database.contents("t") == [{"id": 1, "at": "0044-03-15 00:00:00 BC"}]


def test_excluded_columns_and_other_tables_never_come(database: Database) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY, secret text, n int)", "CREATE TABLE other (id int PRIMARY KEY)")
    database.run("INSERT INTO t VALUES (1, 'hush', 1)")
    database.ingest(exclude=["t.secret"], tables=["t"])
    database.run("INSERT INTO t VALUES (2, 'hush', 2)", "INSERT INTO other VALUES (1)")
    done = database.ingest(exclude=["t.secret"], tables=["t"])
    assert ([*done.uppers], database.contents("t")) == (["t", "p.transactions"], [{"id": 1, "n": 1}, {"id": 2, "n": 2}])
    with pytest.raises(persist.InvalidUsage, match=r"exclude: 't\.id' is of the key"):
        database.ingest(exclude=["t.id"])


def test_a_slot_that_is_gone_is_told_with_what_to_do(database: Database) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY)")
    database.ingest()
    database.drop_slot()
    with pytest.raises(persist.InvalidUsage, match=r"the replication slot 'persist_.*' is gone.*persist rename"):
        database.ingest()


def test_a_copy_that_was_killed_is_made_anew(database: Database) -> None:
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY, at timestamp)", "CREATE TABLE u (id int PRIMARY KEY, at timestamp)"
    )
    database.run("INSERT INTO t VALUES (1), (2)", "INSERT INTO u VALUES (1, '0044-03-15 BC')")
    with pytest.raises(persist.InvalidUsage, match=r"a value of u\.at"):  # Once the rows of t are committed.
        database.ingest()
    database.run("UPDATE u SET at = NULL", "DELETE FROM t WHERE id = 1")
    database.ingest()
    assert [row["id"] for row in database.contents("t")] == [2]


def test_the_server_keeps_nothing_that_is_durable(database: Database) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE other (id int PRIMARY KEY)")
    database.ingest(tables=["t"])
    database.run("INSERT INTO other SELECT generate_series(1, 10000)")
    [[end]] = database.rows("SELECT pg_current_wal_lsn()")
    for _ in range(3):  # A busy server may tell how far it is only after an ingest has ended.
        database.ingest(tables=["t"])
        [[is_free]] = database.rows(
            f"SELECT confirmed_flush_lsn >= '{end}' FROM pg_replication_slots WHERE database = current_database()"
        )
        if is_free:
            return
    pytest.fail("the server keeps its log for an ingest that has seen all of it")


def test_a_password_is_in_no_message(server: Server, tmp_path: Path) -> None:
    for url in ("postgresql://me:hunter2@127.0.0.1:1/db", "postgresql://127.0.0.1:1/db?user=me&password=hunter2"):
        with pytest.raises(persist.Unavailable, match="does not answer") as error:
            persist.ingest(str(tmp_path / "l"), {"source": url, "publication": "p"}, once=True)
        assert "hunter2" not in str(error.value)


@pytest.mark.costly("it starts and kills processes of the command line")
@pytest.mark.parametrize("kills", [1, pytest.param(25, marks=pytest.mark.thorough)])
def test_whoever_is_killed_the_balance_is_right_at_every_time(database: Database, kills: int, tmp_path: Path) -> None:
    database.run(
        "CREATE TABLE accounts (id int PRIMARY KEY, balance bigint NOT NULL)",
        "CREATE TABLE transfers (id int PRIMARY KEY, a int, b int, amount int)",
        "INSERT INTO accounts SELECT g, 1000 FROM generate_series(1, 50) g",
    )
    config = tmp_path / "bank.toml"
    config.write_text(f'source = "{database.url}"\npublication = "p"\nbatch_rows = 20\n')
    database.ingest()
    stop, count = threading.Event(), itertools.count()
    bank = threading.Thread(target=move_money, args=(database.url, stop, count))
    bank.start()
    try:
        for seed in range(kills):
            command = [sys.executable, "-m", "persist", "ingest", database.location, str(config)]
            with persist.open(database.location, mode="read") as client:
                accounts = client.load("accounts")
                with accounts.listen((accounts.upper.time or 0) - 1) as listen:
                    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                    for _ in range(random.Random(seed).randint(1, 6)):
                        next(listen)
                    process.kill()
                    process.wait()
    finally:
        stop.set()
        bank.join()
    database.ingest()
    for name in ("accounts", "transfers"):
        assert [tuple(row.values()) for row in database.contents(name)] == database.rows(
            f"SELECT * FROM {name} ORDER BY 1"
        )
    with persist.open(database.location, mode="read") as client:
        changes = client.load("accounts").changes(0).to_arrow()
    money = pc.multiply(changes["balance"], changes["_diff"])
    sums = pa.table({"time": changes["_time"], "money": money}).group_by("time").aggregate([("money", "sum")])
    by_time = dict(zip(sums["time"].to_pylist(), sums["money_sum"].to_pylist(), strict=True))
    assert by_time.pop(min(by_time)) == 50_000
    assert set(by_time.values()) == {0}
    assert len(by_time) >= kills


@pytest.mark.thorough
@pytest.mark.costly("another process refreshes while a bank works")
def test_a_view_of_two_tables_that_another_process_refreshes_never_shows_half_a_transaction(database: Database) -> None:
    database.run(
        "CREATE TABLE accounts (id int PRIMARY KEY, balance bigint NOT NULL)",
        "CREATE TABLE transfers (id int PRIMARY KEY, a int, b int, amount int)",
        "CREATE TABLE kept (id int PRIMARY KEY, place text)",
        "INSERT INTO accounts SELECT g, 1000 FROM generate_series(1, 50) g",
        "INSERT INTO kept SELECT g, 'p' || g % 3 FROM generate_series(1, 50) g",
    )
    database.ingest()
    with persist.open(database.location) as client:
        client.create_view(
            "money",
            "SELECT place, sum(balance) AS total, count(*) AS n FROM accounts JOIN kept ON accounts.id = kept.id "
            "GROUP BY place",
        )
    stop, count = threading.Event(), itertools.count()
    bank = threading.Thread(target=move_money, args=(database.url, stop, count))
    mover = threading.Thread(target=move_places, args=(database.url, stop))
    follower = threading.Thread(
        target=persist.ingest,
        args=(database.location, {"source": database.url, "publication": "p"}),
        kwargs={"stop": stop},
    )
    for thread in (bank, mover, follower):
        thread.start()
    try:
        for _ in range(6):
            subprocess.run([sys.executable, "-m", "persist", "refresh", database.location, "money"], check=True)
    finally:
        stop.set()
        for thread in (bank, mover, follower):
            thread.join()
    with persist.open(database.location) as client:
        money, accounts = client["money"], client["accounts"]
        times = sorted({*money.changes(1 + (money.since.time or 0)).to_arrow()["_time"].to_pylist()})
        assert len(times) > 20
        for time in times[:: 1 + len(times) // 50]:
            rows, all_of_it = money.snapshot(time).to_arrow(), pc.sum(accounts.snapshot(time).to_arrow()["balance"])
            assert (pc.sum(rows["total"]).as_py(), pc.sum(rows["n"]).as_py()) == (all_of_it.as_py(), 50)


def move_places(url: str, stop: threading.Event) -> None:
    """Move an account's money to a new account at another place, in one transaction."""
    import psycopg2

    with contextlib.closing(psycopg2.connect(url)) as connection:
        for number in itertools.count():
            if stop.wait(0.01):
                return
            old, new = (number % 50 + 51, number % 50 + 1)[:: 1 if (number // 50) % 2 else -1]
            with connection, connection.cursor() as cursor:
                cursor.execute("UPDATE accounts SET id = %s WHERE id = %s", (new, old))
                cursor.execute("DELETE FROM kept WHERE id = %s", (old,))
                cursor.execute("INSERT INTO kept VALUES (%s, %s)", (new, f"p{number % 4}"))


def move_money(url: str, stop: threading.Event, count: "itertools.count[int]") -> None:
    import psycopg2

    rng = random.Random(3)
    with contextlib.closing(psycopg2.connect(url)) as connection:
        while not stop.is_set():
            a, b, amount, id_ = rng.randint(1, 50), rng.randint(1, 50), rng.randint(1, 50), next(count)
            with connection, connection.cursor() as cursor:
                cursor.execute("UPDATE accounts SET balance = balance - %s WHERE id = %s", (amount, a))
                cursor.execute("UPDATE accounts SET balance = balance + %s WHERE id = %s", (amount, b))
                cursor.execute("INSERT INTO transfers VALUES (%s, %s, %s, %s)", (id_, a, b, amount))
                if id_ % 7 == 0:
                    cursor.execute("DELETE FROM transfers WHERE id = %s", (id_ - 5,))
