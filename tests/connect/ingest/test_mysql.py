"""Tables of a real MariaDB into collections: each transaction is a time, and nothing is lost or taken twice."""

import contextlib
import itertools
import random
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import persist
from persist.blob.protocol import MemoryBlob
from tests.connect.ingest import mariadb
from tests.connect.ingest.mariadb import MariaDb, mariadb_programs
from tests.core.keyed.test_crash import SETTINGS, Died, MortalBlob

needs_server = pytest.mark.skipif(
    mariadb_programs() is None,
    reason="no MariaDB: Debian's package mariadb-server has one; pip install mysql-replication",
)


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDb]:
    with mariadb.running() as found:
        yield found


class Shop:
    """A database of its own on a server, and the store that takes it in."""

    def __init__(self, server: MariaDb, name: str) -> None:
        self.name = name
        self.store: Any = MemoryBlob()
        self.at(server)
        self.run(f"CREATE DATABASE {name}", f"USE {name}")

    def at(self, server: MariaDb) -> None:
        """Use a server."""
        self.url = server.url.replace("/shop?", f"/{self.name}?")
        self.connection = server.open_connection()

    def run(self, *statements: str) -> None:
        with self.connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def whole(self, *statements: str) -> None:
        """Run statements as one transaction."""
        self.run("BEGIN", *statements, "COMMIT")

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(query)
            return [*cursor.fetchall()]

    def ingest(self, store: Any = None, **options: Any) -> Any:
        with persist.open(store or self.store, settings=SETTINGS) as client:
            return persist.ingest(client, {"source": self.url, **options}, once=True)

    def contents(self, name: str, as_of: Any = None) -> list[tuple[Any, ...]]:
        with persist.open(self.store, mode="read") as client:
            rows = client.load(name).snapshot(as_of).to_arrow().to_pylist()
        return sorted((tuple(row.values()) for row in rows), key=lambda row: [(v is not None, v) for v in row])

    def times(self, name: str, start: int) -> list[int]:
        with persist.open(self.store, mode="read") as client:
            return sorted({*client.load(name).changes(start).to_arrow()["_time"].to_pylist()})


@pytest.fixture
def shop(server: MariaDb, request: pytest.FixtureRequest) -> Iterator[Shop]:
    pytest.importorskip("pymysqlreplication")
    with server.use_tape(request.node.name):
        found = Shop(server, f"t{zlib.crc32(request.node.name.encode())}")
        yield found
        found.connection.close()


@pytest.mark.outside
def test_the_first_contents_and_then_each_transaction_are_taken_in(shop: Shop) -> None:
    shop.run("CREATE TABLE orders (id bigint PRIMARY KEY, status text)", "CREATE TABLE log (line varchar(9), n int)")
    shop.run("INSERT INTO orders VALUES (1, 'new'), (2, NULL)", "INSERT INTO log VALUES ('x', 1), ('x', 1)")
    first = shop.ingest()
    assert (first.rows, shop.contents("orders"), shop.contents("log")) == (
        4, [(1, "new"), (2, None)], [("x", 1), ("x", 1)],
    )  # fmt: skip
    shop.whole(
        "UPDATE orders SET status = 'paid' WHERE id = 1", "DELETE FROM log LIMIT 1", "INSERT INTO orders VALUES (3, '')"
    )
    shop.run("DELETE FROM orders WHERE id = 2", "UPDATE orders SET id = 30 WHERE id = 3")
    assert len({*shop.ingest().uppers.values()}) == 1
    assert (shop.contents("orders"), shop.contents("log")) == ([(1, "paid"), (30, "")], [("x", 1)])
    times = shop.times("orders", first.uppers["orders"])
    assert (len(times), shop.times("log", first.uppers["log"])) == (3, times[:1])
    assert shop.contents("orders", times[0]) == [(1, "paid"), (2, None), (3, "")]
    assert shop.ingest().rows == 0


@pytest.mark.outside
def test_a_computed_column_is_named_with_how_to_compute_it(shop: Shop, caplog: Any) -> None:
    shop.run("CREATE TABLE t (id int PRIMARY KEY, a int, g int AS (a * 2) STORED, v int AS (a * 3) VIRTUAL)")
    shop.run("INSERT INTO t (id, a) VALUES (1, 5)")
    shop.ingest()
    assert shop.contents("t") == [(1, 5)]
    assert ("'g' is left out" in caplog.text, "'v' is left out" in caplog.text) == (True, True)


@pytest.mark.thorough(except_every=4)
@pytest.mark.outside
@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("enum('z','y','a','x','b')", "('z',1),('y',2),('a',3),('x',4),('b',5)"),
        ("set('z','y','a')", "(0,0),(1,1),(2,2),(3,3),(4,4),(7,5)"),
        ("float", "(16777215,1),(16777214,2),(16777213,3),(0.1,4),(-3.4e38,5)"),
        ("time(1)", "('-30:00:00.5',1),('-01:00:00',2),('25:00:00',3),('30:00:00',4),('838:59:59',5)"),
    ],
    ids=["enum", "set", "float", "time"],
)
def test_a_copy_that_is_cut_off_goes_on_behind_any_key(shop: Shop, key: str, values: str) -> None:
    shop.run(f"CREATE TABLE t (k {key} PRIMARY KEY, v int)", f"INSERT INTO t VALUES {values}")
    deaths = 0
    for dies_at in itertools.count(1):
        mortal = MortalBlob(shop.store, 3 + dies_at % 9, is_after=bool(dies_at % 2))
        with contextlib.suppress(Died, persist.PersistError):
            shop.ingest(mortal, copy_rows=1)
        if not mortal.is_dead:
            break
        deaths += 1
    assert deaths > 2
    assert sorted(v for _, v in shop.contents("t")) == sorted(v for (v,) in shop.rows("SELECT v FROM t"))
    shop.run("UPDATE t SET v = v + 10")
    shop.ingest()
    assert sorted(v for _, v in shop.contents("t")) == sorted(v for (v,) in shop.rows("SELECT v FROM t"))


@pytest.mark.outside
def test_negative_times_and_padded_texts_come_the_same_by_copy_and_by_log(shop: Shop) -> None:
    shop.run("CREATE TABLE t (id int, k char(5), t time(6), u time(1), PRIMARY KEY (id, k))")
    shop.run(
        "INSERT INTO t VALUES (1, 'a', '-838:59:59.999999', '-00:00:00.1'), (2, 'b', '-00:00:00.000001', '-00:00:01.9')"
    )
    shop.run("SET GLOBAL sql_mode = 'PAD_CHAR_TO_FULL_LENGTH'")
    try:
        shop.ingest()
    finally:
        shop.run("SET GLOBAL sql_mode = DEFAULT")
    shop.run("INSERT INTO t SELECT id + 2, k, t, u FROM t")
    shop.ingest()
    one, two = (("a", "-838:59:59.999999", "-00:00:00.100000"), ("b", "-00:00:00.000001", "-00:00:01.900000"))
    assert shop.contents("t") == [(1, *one), (2, *two), (3, *one), (4, *two)]


@pytest.mark.outside
@pytest.mark.parametrize("image", ["MINIMAL", "NOBLOB"])
def test_rows_that_are_logged_without_some_columns_are_refused(shop: Shop, image: str) -> None:
    shop.run(
        "CREATE TABLE t (id int PRIMARY KEY, a int, b text, c int AS (a + 1))",
        "INSERT INTO t VALUES (1, 1, 'x', DEFAULT)",
    )
    shop.ingest()
    shop.run(f"SET SESSION binlog_row_image = '{image}'", "UPDATE t SET a = 2")
    with pytest.raises(persist.InvalidUsage, match=r"rows of t without some of their columns.*To copy again"):
        shop.ingest()
    assert shop.contents("t") == [(1, 1, "x")]


@pytest.mark.outside
def test_a_file_that_was_loaded_as_a_statement_is_refused(shop: Shop, tmp_path: Path) -> None:
    shop.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE other (id int PRIMARY KEY)")
    shop.ingest(tables=["t"])
    (tmp_path / "rows").write_text("7\n")
    shop.run("SET SESSION binlog_format = 'STATEMENT'", f"LOAD DATA INFILE '{tmp_path}/rows' INTO TABLE other")
    shop.ingest(tables=["t"])
    shop.run(f"LOAD DATA INFILE '{tmp_path}/rows' INTO TABLE t")
    with pytest.raises(persist.InvalidUsage, match=r"it changes rows and is logged as a statement"):
        shop.ingest(tables=["t"])


@pytest.mark.outside
def test_a_column_of_a_key_cannot_be_left_out(shop: Shop) -> None:
    shop.run("CREATE TABLE t (a int, b int, PRIMARY KEY (a, b))", "INSERT INTO t VALUES (1, 1), (2, 1)")
    with pytest.raises(persist.InvalidUsage, match=r"the column t\.a is of the table's key"):
        shop.ingest(exclude=["t.a"])


@pytest.mark.outside
def test_every_type_comes_the_same_by_copy_and_by_log(shop: Shop) -> None:
    shop.run(
        "SET time_zone = '+05:00', sql_mode = ''",
        "CREATE TABLE t (id int PRIMARY KEY, a tinyint unsigned, b bigint unsigned, c decimal(10,2), d double, e float, "  # noqa: E501
        "f varchar(20), g char(4), h binary(4), i varbinary(9), j text, k blob, l date, m time(3), n datetime(6), "
        "o timestamp(6) NULL, p year, q enum('x','y z'), r set('a','b'), s bit(10), u json, v uuid, w inet6, "
        "x int AS (id + 1), y geometry, z varchar(5) CHARACTER SET latin1, aa decimal(60, 3), ab date, ac mediumint, ad year, "  # noqa: E501
        "ae timestamp NULL)",
    )
    row = (
        "255, 18446744073709551615, -1.5, 1e300, 0.1, 'é€', 'ab', 'ab', 'x', 'tx', 'bl', '2020-01-02', '-12:30:00.5', "
        "'2020-01-02 03:04:05.000001', '2020-01-02 03:04:05.5', 2020, 'y z', 'b,a', b'1010101010', '{\"b\": [1, 2.5]}', "  # noqa: E501
        "'123e4567-e89b-12d3-a456-426655440000', '::1', point(1, 2), 'é', 12345678901234567890.125, '0000-00-00', -8388608, 0, '0000-00-00'"  # noqa: E501
    )
    query = (
        "SELECT column_name FROM information_schema.columns WHERE table_schema = database() "
        "AND column_name NOT IN ('id', 'x') ORDER BY ordinal_position"
    )
    names = ", ".join(name for (name,) in shop.rows(query))
    shop.run(f"INSERT INTO t (id, {names}) VALUES (1, {row})", "INSERT INTO t (id, r) VALUES (2, '')")
    shop.ingest()
    shop.run(f"INSERT INTO t (id, {names}) VALUES (3, {row})", "INSERT INTO t (id, r) VALUES (4, '')")
    shop.ingest()
    one, empty, three, four = [row[1:] for row in shop.contents("t")]
    assert (str(one), empty) == (str(three), four)
    assert str(one) == (
        "(255, 18446744073709551615, Decimal('-1.50'), 1e+300, 0.10000000149011612, 'é€', 'ab', b'ab\\x00\\x00', b'x', "
        "'tx', b'bl', datetime.date(2020, 1, 2), '-12:30:00.500000', datetime.datetime(2020, 1, 2, 3, 4, 5, 1), "
        "datetime.datetime(2020, 1, 1, 22, 4, 5, 500000, tzinfo=zoneinfo.ZoneInfo(key='UTC')), 2020, 'y z', 'a,b', 682, "  # noqa: E501
        "'{\"b\": [1, 2.5]}', b'\\x12>Eg\\xe8\\x9b\\x12\\xd3\\xa4VBfUD\\x00\\x00', "
        "b'\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x01', "
        "b'\\x00\\x00\\x00\\x00\\x01\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\xf0?\\x00\\x00\\x00\\x00\\x00\\x00\\x00@', "  # noqa: E501
        "'é', '12345678901234567890.125', None, -8388608, 0, None)"
    )
    assert {*empty} == {None, ""}


@pytest.mark.outside
def test_statements_that_change_tables_are_followed(shop: Shop, caplog: Any) -> None:
    shop.run("CREATE TABLE t (id int PRIMARY KEY, a int, b varchar(9))", "CREATE TABLE u (n int)")
    shop.run("INSERT INTO t VALUES (1, 10, 'x'), (2, 20, 'y')", "INSERT INTO u VALUES (1), (1)")
    shop.ingest()
    shop.run("ALTER TABLE t RENAME COLUMN a TO x, ADD COLUMN d int NOT NULL DEFAULT 7, ADD e varchar(5)")
    shop.run("INSERT INTO t (id, x) VALUES (3, 30)")
    shop.run(
        "ALTER TABLE `t` CHANGE x a bigint, /* 'b, */ CHANGE COLUMN b c text, DROP IF EXISTS e",
        "DELETE FROM t WHERE id = 1",
    )
    shop.run("ALTER TABLE u ADD m int DEFAULT -3", "DELETE FROM u LIMIT 1", "INSERT INTO u VALUES (2, 2)")
    shop.ingest()
    assert shop.contents("t") == [(2, 20, "y", 7), (3, 30, None, 7)] == shop.rows("SELECT id, a, c, d FROM t")
    assert shop.contents("u") == [(1, -3), (2, 2)]
    shop.run(
        "ALTER TABLE t RENAME COLUMN a TO d, RENAME COLUMN d TO a", "UPDATE t SET c = 'z' WHERE id = 3", "TRUNCATE u"
    )
    shop.run("INSERT INTO u VALUES (5, 5)")
    done = shop.ingest()
    names = "id, d, c, a"
    assert (shop.contents("t"), shop.contents("u")) == (shop.rows(f"SELECT {names} FROM t"), [(5, 5)])
    assert len(shop.contents("u", shop.times("u", 0)[-1] - 1)) == 0
    shop.run("DROP TABLE u", "CREATE TABLE u (n int, m int)", "INSERT INTO u VALUES (6, 6)", "TRUNCATE TABLE t")
    shop.ingest()
    assert (shop.contents("t"), shop.contents("u")) == ([], [(6, 6)])
    assert "has other columns from here on" in caplog.text
    shop.run("CREATE TABLE v LIKE u", "RENAME TABLE u TO old, v TO u")
    with pytest.raises(persist.InvalidUsage, match=r"it gives tables other names.*persist rename LOCATION t"):
        shop.ingest()
    assert done.uppers["t"] == done.uppers["u"]


@pytest.mark.thorough
@pytest.mark.outside
@needs_server
@pytest.mark.costly("it dies again and again")
def test_whoever_is_killed_around_any_statement_goes_on_right(shop: Shop) -> None:
    shop.run("CREATE TABLE t (id int PRIMARY KEY, a int, b int)", "CREATE TABLE u (n int)")
    shop.run("INSERT INTO t VALUES (1, 10, 20), (2, 11, 21), (3, 12, 22)", "INSERT INTO u VALUES (1), (1), (2)")
    deaths = 0

    def ingested() -> None:
        nonlocal deaths
        for dies_at in itertools.count(1):
            mortal = MortalBlob(shop.store, 3 + dies_at % 9, is_after=bool(dies_at % 2))
            with contextlib.suppress(Died, persist.PersistError):
                shop.ingest(mortal, batch_rows=4, copy_rows=2)
            if not mortal.is_dead:
                return
            deaths += 1
            assert dies_at < 60

    steps = (
        ("INSERT INTO t VALUES (4, 13, 23)",),
        ("ALTER TABLE t RENAME COLUMN a TO b, RENAME COLUMN b TO a", "INSERT INTO t (id, a) VALUES (5, 24)"),
        ("ALTER TABLE t CHANGE a c bigint, ADD a int DEFAULT 3", "UPDATE t SET b = 1 WHERE id < 3"),
        (
            "BEGIN",
            "INSERT INTO u SELECT seq FROM seq_1_to_30",
            "UPDATE u SET n = n + 1",
            "UPDATE t SET c = -c",
            "COMMIT",
        ),
        ("TRUNCATE u", "BEGIN", "INSERT INTO u SELECT seq % 3 FROM seq_1_to_30", "DELETE FROM u WHERE n = 0", "COMMIT"),
        ("ALTER TABLE t DROP b, RENAME COLUMN c TO b", "DELETE FROM t WHERE id = 1"),
    )
    for statements in ((), *steps):
        shop.run(*statements)
        ingested()
        with persist.open(shop.store, mode="read") as client:
            names = client.load("t").schema.names
        assert shop.contents("t") == shop.rows(f"SELECT {', '.join(names)} FROM t ORDER BY id")
        assert shop.contents("u") == sorted(shop.rows("SELECT n FROM u"))
    assert deaths > 12


@pytest.mark.outside
def test_what_the_log_cannot_tell_is_refused(shop: Shop, server: MariaDb) -> None:
    shop.run("CREATE TABLE p (id int PRIMARY KEY)")
    shop.run("CREATE TABLE c (id int PRIMARY KEY, p int, FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE)")
    with pytest.raises(persist.InvalidUsage, match=r"the table c has the foreign key .* \(CASCADE or SET NULL\)"):
        shop.ingest()
    with pytest.raises(persist.InvalidUsage, match=r"has no table 'q'; it has c, p"):
        shop.ingest(tables=["q"])
    shop.ingest(tables=["p"])
    shop.run("CREATE TABLE my (id int PRIMARY KEY) ENGINE = MyISAM")
    shop.ingest(tables=["p"])
    undone = Shop(server, f"u{shop.name}")
    undone.run("CREATE TABLE p (id int PRIMARY KEY)", "CREATE TABLE my (id int PRIMARY KEY) ENGINE = MyISAM")
    undone.ingest()
    undone.whole(
        "SAVEPOINT s",
        "INSERT INTO p VALUES (7)",
        "INSERT INTO my SELECT id FROM p",
        "ROLLBACK TO s",
        "INSERT INTO p VALUES (8)",
    )
    with pytest.raises(persist.InvalidUsage, match=r"it undoes changes that are in the log: 'ROLLBACK"):
        undone.ingest()
    undone.connection.close()
    shop.run("XA START 'x'", "INSERT INTO p VALUES (1)", "XA END 'x'", "XA PREPARE 'x'", "XA ROLLBACK 'x'")
    with pytest.raises(persist.InvalidUsage, match=r"a transaction of XA changed p.*To copy again"):
        shop.ingest(tables=["p"])
    assert shop.contents("p") == []
    shop.run("SET GLOBAL binlog_row_metadata = 'MINIMAL'")
    try:
        with pytest.raises(
            persist.InvalidUsage, match=r"binlog_row_metadata = MINIMAL, and FULL is needed: SET GLOBAL"
        ):
            shop.ingest(tables=["p"])
    finally:
        shop.run("SET GLOBAL binlog_row_metadata = 'FULL'")


@pytest.mark.outside
def test_a_log_that_was_purged_and_a_server_without_our_transactions_are_told(shop: Shop, server: MariaDb) -> None:
    shop.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    shop.ingest()
    before = MemoryBlob()
    for entry in shop.store.list(""):
        before.set(entry.key, shop.store.get(entry.key))
    shop.run("INSERT INTO t VALUES (2)", "FLUSH BINARY LOGS", "INSERT INTO t VALUES (3)", "FLUSH BINARY LOGS")
    shop.ingest()
    [last] = [name for name, *_ in shop.rows("SHOW BINARY LOGS")][-1:]
    while len(shop.rows("SHOW BINARY LOGS")) > 1:  # The server keeps what somebody reads, until it sees that they left.
        shop.run(f"PURGE BINARY LOGS TO '{last}'")
    with pytest.raises(
        persist.InvalidUsage, match=r"Its log was purged.*To copy again and keep the history: persist rename"
    ):
        shop.ingest(before)
    shop.ingest()
    assert shop.contents("t") == [(1,), (2,), (3,)]
    with mariadb.running(2) as other, other.use_tape(shop.name):
        with other.open_connection() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {shop.name}")
            cursor.execute(f"CREATE TABLE {shop.name}.t (id int PRIMARY KEY)")
        shop.at(other)
        with pytest.raises(persist.InvalidUsage, match=r"it lost transactions, or is another server that is behind"):
            shop.ingest()


@pytest.mark.outside
@needs_server
@pytest.mark.thorough
def test_another_server_of_the_group_goes_on_with_the_same_times(shop: Shop, server: MariaDb, tmp_path: Path) -> None:
    """A replica has the same transactions; what is taken in by one server goes on with the other."""
    shop.run("CREATE TABLE t (id int PRIMARY KEY, n int)", "INSERT INTO t VALUES (1, 0)")
    copy = MemoryBlob()
    shop.ingest()
    for entry in shop.store.list(""):
        copy.set(entry.key, shop.store.get(entry.key))
    with mariadb.running(2, **{"skip-networking": "1"}) as replica, replica.open_connection() as there:
        with there.cursor() as cursor:  # Replication needs TCP, so its log is brought by hand.
            [[at]] = shop.rows("SELECT @@gtid_binlog_pos")
            cursor.execute(f"SET GLOBAL gtid_slave_pos = '{at}'")
            cursor.execute("SET sql_log_bin = 0")
            cursor.execute(f"CREATE DATABASE {shop.name}")
            cursor.execute(f"CREATE TABLE {shop.name}.t (id int PRIMARY KEY, n int)")
            cursor.execute(f"INSERT INTO {shop.name}.t VALUES (1, 0)")
            cursor.execute("SET sql_log_bin = 1")
            for number in range(2, 5):
                domain, _, last = at.split("-")
                for name in (shop.connection, there):
                    with name.cursor() as each:
                        each.execute(
                            f"SET gtid_domain_id = {domain}, server_id = 1, gtid_seq_no = {int(last) + number - 1}"
                        )
                        each.execute(f"INSERT INTO {shop.name}.t VALUES ({number}, 0)")
                        each.execute("SET gtid_seq_no = 0")
        shop.ingest()
        times = shop.times("t", 0)
        shop.at(replica)
        shop.store = copy
        shop.ingest()
        assert (shop.times("t", 0), len(shop.contents("t"))) == (times, 4)


@pytest.mark.outside
def test_moments_are_times_of_transactions_and_idle_ones_move(shop: Shop) -> None:
    shop.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    first = shop.ingest().uppers["t"]
    second = shop.ingest().uppers["t"]
    assert first < second < first + 5
    with persist.open(shop.store, mode="read") as client:
        t = client.load("t")
        moments = client.load(f"{shop.name}.transactions").snapshot().to_arrow()["moment"].to_pylist()
        assert ([t.snapshot(moment).count() for moment in moments], len({*moments})) == (
            [1] * len(moments),
            len(moments),
        )


@pytest.mark.thorough
@pytest.mark.outside
@needs_server
@pytest.mark.costly("it starts and kills processes of the command line")
@pytest.mark.parametrize("kills", [1, pytest.param(25, marks=pytest.mark.thorough)])
def test_whoever_is_killed_the_balance_is_right_at_every_time(
    server: MariaDb, kills: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    shop = Shop(server, f"b{zlib.crc32(request.node.name.encode())}")
    shop.store = str(tmp_path / "location")
    shop.run("CREATE TABLE accounts (id int PRIMARY KEY, balance bigint NOT NULL)")
    shop.run("CREATE TABLE transfers (id int PRIMARY KEY, a int, b int, amount int)")
    shop.run("INSERT INTO accounts SELECT seq, 1000 FROM seq_1_to_50")
    config = tmp_path / "bank.toml"
    config.write_text(f'source = "{shop.url}"\nbatch_rows = 20\n')
    shop.ingest()
    stop = threading.Event()
    bank = threading.Thread(target=move_money, args=(server, shop.name, stop))
    bank.start()
    try:
        for seed in range(kills):
            command = [sys.executable, "-m", "persist", "ingest", shop.store, str(config)]
            with persist.open(shop.store, mode="read") as client:
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
    shop.ingest()
    for name in ("accounts", "transfers"):
        assert shop.contents(name) == shop.rows(f"SELECT * FROM {name} ORDER BY 1")
    with persist.open(shop.store, mode="read") as client:
        changes = client.load("accounts").changes(0).to_arrow()
    money = pc.multiply(changes["balance"], changes["_diff"])
    sums = pa.table({"time": changes["_time"], "money": money}).group_by("time").aggregate([("money", "sum")])
    by_time = dict(zip(sums["time"].to_pylist(), sums["money_sum"].to_pylist(), strict=True))
    assert by_time.pop(min(by_time)) == 50_000
    assert ({*by_time.values()}, len(by_time) >= kills) == ({0}, True)
    shop.connection.close()


def move_money(server: MariaDb, database: str, stop: threading.Event) -> None:
    rng = random.Random(3)
    with server.open_connection(database) as connection, connection.cursor() as cursor:
        for number in itertools.count():
            if stop.is_set():
                return
            a, b, amount = rng.randint(1, 50), rng.randint(1, 50), rng.randint(1, 50)
            cursor.execute("BEGIN")
            cursor.execute("UPDATE accounts SET balance = balance - %s WHERE id = %s", (amount, a))
            cursor.execute("UPDATE accounts SET balance = balance + %s WHERE id = %s", (amount, b))
            cursor.execute("INSERT INTO transfers VALUES (%s, %s, %s, %s)", (number, a, b, amount))
            if number % 7 == 0:
                cursor.execute("DELETE FROM transfers WHERE id = %s", (number - 5,))
            cursor.execute("COMMIT")


@pytest.mark.parametrize(
    ("url", "options", "match"),
    [
        ("mysql://host", {}, r"mysql://host is not an address of a database: write mysql://user@host:3306/database"),
        ("mysql://a:hunter2@b@host/db", {}, r"is not an address of a database"),
        ("mysql://host/db?ssl=1", {}, r"Behind a \? may be ssl_ca, ssl_mode, unix_socket"),
        ("mysql://host/db?ssl_mode=perhaps", {}, r"is not disabled, required or verify"),
        ("mysql://host/db", {"batch_rows": 0}, r"batch_rows=0 must be above 0"),
        ("mysql://host/db", {"password_file": "/nowhere"}, r"password_file='/nowhere' cannot be read"),
        ("mariadb://host/db", {"publication": "p"}, r"no option 'publication' of this source"),
        ("mysql://me:hunter2@127.0.0.1:1/db", {}, r"mysql://127\.0\.0\.1:1/db does not answer"),
    ],
)
def test_an_address_says_what_is_wrong_with_it(url: str, options: dict[str, Any], match: str) -> None:
    pytest.importorskip("pymysqlreplication")
    with pytest.raises(persist.PersistError, match=match) as error:
        persist.ingest("memory://address", url, once=True, **options)
    assert "hunter2" not in str(error.value)
