"""The log of MySQL and MariaDB without a server: statements, sets of transactions, types and values."""

import queue
import ssl
import threading
from contextlib import nullcontext
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.connect.ingest.mysql.binlog import STEP, Effect, parse_effect, parse_gtids
from persist.connect.ingest.mysql.server import (
    Column,
    MysqlConfig,
    Server,
    decode_logged_values,
    get_logged_type,
    to_arrow_type,
    to_column,
)  # fmt: skip
from persist.connect.ingest.mysql.stream import BinlogPosition, BinlogStream, _read_events, follow_transaction

T = ("shop", "t")
LACKS = "changes rows that are not in the log"
BOTH = [T, ("shop", "select")]
IN_T = Effect(table=T)
NAME = "mysql://host/shop"
MOVED = Effect(refused="it gives the table another name")
BY_FOREIGN_KEY = Effect(table=T, refused="rows that a foreign key changes are not in the log")
IS_TEXT = Effect(refused="it changes rows and is logged as a statement (binlog_format of its session is not ROW)")


STATEMENTS = [
    ("", Effect()),
    ("TRUNCATE t", Effect(emptied=[("shop", "t")])),
    ("truncate table `shop`.`select`", Effect(emptied=[("shop", "select")])),
    ("TRUNCATE other.t", Effect()),
    ("/* x */ DROP TABLE IF EXISTS x, `t`,other.t , shop.select/* by server */", Effect(BOTH)),
    ("DROP TABLE t CASCADE, select", Effect([("shop", "t")])),
    ("DROP DATABASE shop", Effect(BOTH)),
    ("DROP SCHEMA IF EXISTS shop", Effect(BOTH)),
    ("DROP DATABASE x", Effect()),
    ("DROP TEMPORARY TABLE t", Effect()),
    ("CREATE OR REPLACE TABLE t (a int)", Effect([("shop", "t")])),
    ("CREATE OR REPLACE VIEW t AS SELECT 1", Effect()),
    ("CREATE TABLE t (a int)", Effect()),
    ("DROP VIEW t", Effect()),
    ("ALTER DATABASE shop", Effect()),
    ("ALTER EVENT e RENAME TO t", Effect()),
    ("ALTER VIEW v AS TABLE t", Effect()),
    ("ALTER TABLE t ADD a enum('FOREIGN', 'CASCADE')", IN_T),
    ("ALTER TABLE other.t DROP a", Effect()),
    ("ALTER TABLE x RENAME TO y", Effect()),
    ("ALTER TABLE t RENAME COLUMN `a b` TO c, DROP COLUMN IF EXISTS d", Effect([], T, {"a b": "c"}, ["d"])),
    (
        "ALTER ONLINE IGNORE TABLE IF EXISTS shop.t CHANGE a b decimal(3, 2) COMMENT ', RENAME COLUMN x TO y', DROP `e``f`",  # noqa: E501
        Effect([], T, {"a": "b"}, ["e`f"]),
    ),
    ("ALTER TABLE t CHANGE COLUMN IF EXISTS a a int, CHANGE b `column` int", Effect(table=T, renamed={"b": "column"})),
    ("ALTER TABLE t DROP INDEX a, DROP KEY b, RENAME INDEX a TO b, DROP PRIMARY KEY, ADD x int # , DROP y", IN_T),
    ("ALTER TABLE t DROP FOREIGN KEY f, DROP CHECK h, DROP PERIOD FOR p -- , DROP y\n, DROP z", Effect(table=T, dropped=["z"])),  # noqa: E501
    ("ALTER TABLE t RENAME KEY a TO b, DROP CONSTRAINT g", IN_T),
    ("ALTER TABLE t ADD k enum('(', 'it''s', \"a\\\",\"), DROP y", Effect([], T, {}, ["y"])),
    ("ALTER TABLE t /*!50000 RENAME COLUMN a TO b */ /*M!100100 , DROP c */", Effect([], T, {"a": "b"}, ["c"])),
    ("ALTER TABLE t RENAME TO u", Effect(table=T, refused="it gives the table another name")),
    ("ALTER TABLE u RENAME `t`", MOVED),
    ("ALTER TABLE x.t RENAME AS shop.t", MOVED),
    ("ALTER TABLE u RENAME = t, RENAME v", MOVED),
    ("RENAME TABLE a TO b, shop.t TO c", Effect(refused="it gives tables other names")),
    ("RENAME TABLES a TO select", Effect(refused="it gives tables other names")),
    ("RENAME TABLE a TO b, other.t TO shop.c", Effect()),
    ("RENAME USER t TO u", Effect()),
    ("ALTER TABLE t ADD SYSTEM VERSIONING", Effect(table=T, refused=f"ADD SYSTEM {LACKS}")),
    ("ALTER TABLE t EXCHANGE PARTITION p WITH TABLE x", Effect(table=T, refused=f"EXCHANGE PARTITION {LACKS}")),
    ("ALTER TABLE t TRUNCATE PARTITION p, DROP a", Effect([], T, {}, ["a"], f"TRUNCATE PARTITION {LACKS}")),
    ("ALTER TABLE t ADD FOREIGN KEY (a) REFERENCES b (c) ON DELETE SET NULL", BY_FOREIGN_KEY),
    ("ALTER TABLE t ADD FOREIGN KEY (a) REFERENCES b (c) ON UPDATE CASCADE", BY_FOREIGN_KEY),
    ("ALTER TABLE t ADD FOREIGN KEY (a) REFERENCES b (c) ON UPDATE RESTRICT", IN_T),
    ("ALTER TABLE t ALTER a SET DEFAULT 1, ADD b int NULL", IN_T),
    ("INSERT INTO t VALUES (1)", IS_TEXT),
    ("with x as (select 1) delete from `select`", IS_TEXT),
    ("INSERT INTO x VALUES (1)", Effect()),
    ("CREATE INDEX i ON t (a)", Effect()),
    ("ROLLBACK TO s", Effect(is_gone=True)),
    ("COMMIT", Effect()),
]  # fmt: skip


def test_statements_are_understood() -> None:
    for statement, effect in STATEMENTS:
        assert parse_effect(statement, "shop", BOTH) == effect, statement


def test_sets_of_transactions_are_counted() -> None:
    uuid, next_uuid = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "4e11fa47-71ca-11e1-9e33-c80aa9429562"
    found = parse_gtids(f"{next_uuid}:9,\n {uuid.upper()}:1-5:7:20-21:red:1-2", is_mariadb=False)
    text = f"{uuid}:1-5:7:20-21,{uuid}:red:1-2,{next_uuid}:9"
    assert (str(found), found.measure, parse_gtids("", is_mariadb=False).measure) == (text, 11, 0)
    for other, is_in in (("", True), (":2-4:7", True), (":1-5", True), (":5-7", False), (":0-1", False), (":8", False)):
        assert found.has(f"{uuid}{other}" if other else "") == is_in, other
    assert (found.has(f"{uuid}:red:2,{next_uuid}:9"), found.has(f"{uuid}:1,5{uuid[1:]}:1")) == (True, False)
    for number in (1, 3, 5, 7):
        with pytest.raises(persist.InvalidUsage, match=rf"^the transaction {uuid}:{number} was taken in already: copy"):
            found.add(f"{uuid}:{number}")
    for number, intervals in ((9, "1-5:7:9:20-21"), (6, "1-7:9:20-21"), (8, "1-9:20-21"), (22, "1-9:20-22")):
        found.add(f"{uuid.upper()}:{number}")
        assert str(found).split(",")[0] == f"{uuid}:{intervals}"
    found.add(f"5{uuid[1:]}:4")
    assert (str(found).split(",")[-1], found.measure) == (f"5{uuid[1:]}:4", 16)
    domains = parse_gtids("2-9-7,\n 0-1-5", is_mariadb=True)
    domains.add("0-2-9")
    domains.add("3-1-1")
    assert (str(domains), domains.measure) == ("0-2-9,2-9-7,3-1-1", 17)
    assert [domains.has(other) for other in ("", "0-7-9", "0-1-8,2-1-1", "0-1-10", "1-1-1")] == [
        True, True, True, False, False,
    ]  # fmt: skip
    for number in (9, 8):
        with pytest.raises(
            persist.InvalidUsage, match=rf"^the transaction 0-1-{number} comes after number 9 .*run back"
        ):
            domains.add(f"0-1-{number}")


def test_a_transaction_ends_with_its_last_statement() -> None:
    whole = ["BEGIN", "SAVEPOINT `a`", "LOAD DATA INFILE 'x' INTO TABLE o", "/* so */ INSERT INTO o VALUES (1)"]
    for end in ("COMMIT", "ROLLBACK", "COMMIT;"):
        is_begun, ends = False, []
        for statement in (*whole, "ROLLBACK TO `a`", end, "DROP TABLE o", "XA START X'78',X'',1", "XA END X'78',X'',1"):
            is_begun, is_end = follow_transaction(statement, is_begun)
            ends.append(is_end)
        assert ends == [False] * 5 + [True, True, False, False]
    assert follow_transaction("XA COMMIT X'78',X'',1", False) == (False, True)
    assert follow_transaction("CREATE TABLE `o` (a int) START TRANSACTION", False) == (True, False)


def test_documents_of_mysql_are_texts_as_its_queries_return_them() -> None:
    pytest.importorskip("pymysqlreplication")
    from pymysqlreplication.json_binary import JsonDiff, JsonDiffOperation, parse_json

    def logged(value: Any) -> Any:
        column = SimpleNamespace(name="j", type=245)
        return decode_logged_values([column], {"j": value}, {})[0]

    stored = bytes.fromhex("0100 0d00 0b00 0200 05 0700") + "é".encode()  # {"é": 7}
    assert logged(parse_json(0, stored)) == '{"é": 7}'
    document = {b"a": [b'"\\\n', Decimal("1.50"), 2.5, None, True], b"at": datetime(2026, 1, 2, 3), b"t": time(4)}
    text = r'{"a": ["\"\\\n", 1.50, 2.5, null, true], "at": "2026-01-02 03:00:00.000000", "t": "04:00:00.000000"}'
    assert logged(document) == text
    assert (logged([]), logged({}), logged(b"x"), logged(None)) == ("[]", "{}", '"x"', None)
    with pytest.raises(persist.InvalidUsage, match="binlog_row_value_options of a session"):
        logged(JsonDiff(JsonDiffOperation.Remove, b"$.a"))


def test_what_lay_unread_does_not_say_that_nothing_came_since() -> None:
    pytest.importorskip("pymysqlreplication")
    events: queue.Queue[Any] = queue.Queue()
    now_us, waits = 5_000_000, [1_000_000, 0, 30_000]

    class Log:
        log_file, log_pos = "binlog.1", 4

        def fetchone(self) -> object:
            nonlocal now_us
            now_us += waits.pop(0)
            return object()

    _read_events(Log(), events, threading.Event(), lambda: now_us)
    assert [events.get()[4] for _ in range(3)] == [6_000_000, None, None]


def make_server(url: str = NAME, **options: Any) -> Server:
    pytest.importorskip("pymysqlreplication")
    return Server(MysqlConfig(source=url, **options))


def test_an_address_has_all_settings_of_the_connection(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MYSQL_PWD", "of env")
    (tmp_path / "password").write_text("of file\n")
    far = make_server("mysql://me%40x:se%20cret@Host.example:3307/my%20shop", password_file=str(tmp_path / "password"))
    context = far.settings.pop("ssl")
    assert (far.name, far.schema, context.check_hostname, context.verify_mode) == (
        "mysql://host.example:3307/my shop", "my shop", False, ssl.CERT_NONE,
    )  # fmt: skip
    assert far.settings == {
        "host": "host.example", "port": 3307, "user": "me@x", "password": "se cret", "unix_socket": None,
        "charset": "utf8mb4", "connect_timeout": 10,
    }  # fmt: skip
    verified = make_server("mysql://host:3306/shop?ssl_mode=verify", password_file=str(tmp_path / "password"))
    context = verified.settings["ssl"]
    assert (verified.name, context.check_hostname, context.verify_mode) == (
        "mysql://host/shop",
        True,
        ssl.CERT_REQUIRED,
    )
    assert (verified.settings["user"], verified.settings["password"]) == (None, "of file")
    for url in ("mysql:///shop", "mysql://127.0.0.1/shop", "mysql://[::1]/shop", "mysql://far/shop?unix_socket=/s",
                "mysql://far/shop?ssl_mode=disabled"):  # fmt: skip
        near = make_server(url)
        assert ("ssl" in near.settings, near.settings["password"], near.settings["port"]) == (False, "of env", 3306)
    assert "ssl" in make_server("mysql://localhost/shop?ssl_mode=required").settings
    for url in ("mysql://host", "mysql://host/a/b", "mysql://host:x/db", "mysql://host/db?unix_socket", "mysql://host/db?s=1",
                "mysql://a:hunter2@b@host/db"):  # fmt: skip
        with pytest.raises(persist.InvalidUsage, match="is not an address of a database: ") as caught:
            make_server(url)
        assert "hunter2" not in str(caught.value)
    with pytest.raises(persist.InvalidUsage, match=r"^ssl_mode='perhaps' is not disabled, required or verify$"):
        make_server("mysql://host/db?ssl_mode=perhaps")


def test_an_error_of_the_server_says_whether_it_may_pass() -> None:
    import pymysql

    server = make_server("mysql://me:hunter2@host/shop")
    lost, refused = persist.Unavailable, persist.InvalidUsage
    for error, kind, text in [
        (pymysql.OperationalError(2013, "gone\nhunter2"), lost, f"{NAME} does not answer: (2013, 'gone\\n***')"),
        (pymysql.InterfaceError(0, "x"), lost, f"{NAME} does not answer: (0, 'x')"),
        (OSError("broken"), lost, f"{NAME} does not answer: broken"),
        (EOFError("ended"), lost, f"{NAME} does not answer: ended"),
        (
            pymysql.OperationalError(1236, "not there"), refused,
            f"{NAME} does not have what came after the last transaction that was taken in: (1236, 'not there'). Its "
            "log was purged, or it is another server with other transactions",
        ),
        (
            pymysql.OperationalError(1045, "denied"), refused,
            f"{NAME} refuses: (1045, 'denied'). The user needs REPLICATION SLAVE and REPLICATION CLIENT on *.*, and "
            "SELECT on its tables",
        ),
        (pymysql.Error(), refused, f"{NAME} refuses: "),
        (ValueError("odd"), refused, f"{NAME} refuses: odd"),
    ]:  # fmt: skip
        found = server.make_error(error)
        assert (type(found), str(found)[: len(text)]) == (kind, text), error
        assert bool(server.is_lost(error)) == (kind is lost)
    for passed in (persist.Unavailable("x"), persist.InvalidUsage("y")):
        assert server.make_error(passed) is passed
    assert (server.is_lost(persist.Unavailable("x")), server.is_lost(persist.InvalidUsage("y"))) == (True, False)


class Answers:
    """A connection to a server that answers requests by how they begin."""

    def __init__(self, **answers: list[tuple[Any, ...]]) -> None:
        self.answers = {begin.replace("_", " "): rows for begin, rows in answers.items()}
        self.requests: list[str] = []

    def cursor(self) -> Any:
        return nullcontext(self)

    def execute(self, query: str, arguments: tuple[str, ...] = ()) -> None:
        self.requests.append(query % arguments)
        self._rows = next((rows for begin, rows in self.answers.items() if begin in query.replace("_", " ")), [])

    def fetchone(self) -> tuple[Any, ...]:
        return self._rows[0]

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self._rows


MARIADB = {"binlog_format": "ROW", "binlog_row_image": "full", "binlog_row_metadata": "FULL", "log_bin": "ON"}
MYSQL = MARIADB | {"gtid_mode": "ON", "binlog_row_value_options": "", "binlog_transaction_compression": "OFF"}


def test_settings_without_which_rows_are_not_logged_whole_are_refused() -> None:
    server = make_server()
    for version, good in (("10.11.6-MariaDB-log", MARIADB), ("8.0.36", MYSQL)):
        optional = {"log_bin_compress", "binlog_transaction_compression", "binlog_row_value_options"}
        server.check(Answers(version=[(version,)], VARIABLES=[*good.items()]))
        assert server.is_mariadb == ("Maria" in version)
        for name in {*good} | {"log_bin_compress"}:
            for value in ("ODD", None):
                variables = {other: has for other, has in (good | {name: value}).items() if has is not None}
                asked = Answers(version=[(version,)], VARIABLES=[*variables.items()])
                if value is None and name in optional:
                    server.check(asked)
                    continue
                need = {**good, "log_bin_compress": "OFF"}[name].upper()
                with pytest.raises(persist.InvalidUsage) as caught:
                    server.check(asked)
                assert str(caught.value) == (
                    f"{NAME}: the server has {name} = {value or 'not there'}, and {need or 'an empty one'} is "
                    f"needed: SET GLOBAL {name} = '{need}', or set it in the server's configuration. Its earlier log "
                    "stays as it is"
                )


COLUMNS = [
    ("t", "id", "int", "int unsigned", 10, 0, "PRI", "", None, "NO", ""),
    ("t", "v", "text", "text", None, None, "", "", None, "YES", ""),
    ("t", "g", "int", "int", 10, 0, "", "STORED GENERATED", None, "YES", "id * 2"),
    ("t", "at", "timestamp", "timestamp", None, None, "", "DEFAULT_GENERATED", "now()", "YES", ""),
    ("u", "k", "odd", "odd", None, None, "PRI", "VIRTUAL GENERATED", None, "NO", "1"),
    ("w", "o", "odd", "odd", None, None, "", "", None, "YES", ""),
]
KINDS = [
    ("t", "BASE TABLE"),
    ("u", "BASE TABLE"),
    ("v", "VIEW"),
    ("s", "SEQUENCE"),
    ("w", "BASE TABLE"),
    ("x", "SYSTEM VERSIONED"),
]


def test_tables_of_the_catalog_are_taken_or_refused_by_name(caplog: Any) -> None:
    def find(cascades: Any = (), **options: Any) -> Any:
        asked = Answers(
            **{"information schema.tables": KINDS, "information schema.columns": COLUMNS, "referential": cascades}
        )
        return make_server(**options).tables(asked)

    at = Column("at", "timestamp", pa.timestamp("us", "UTC"), False, "")
    v = Column("v", "text", pa.string(), False, None)
    assert find(tables=["t"]) == {"t": [Column("id", "int", pa.uint32(), True, "0"), v, at]}
    assert caplog.messages == [
        "t: the column 'g' is left out, because the server computes it. A view can compute it: (id * 2) "
        'AS g. Say exclude = ["t.g"] if it is not needed'
    ]
    caplog.clear()
    assert find(tables=["t"], exclude=["t.g", "t.at"]) == {"t": [Column("id", "int", pa.uint32(), True, "0"), v]}
    assert caplog.messages == []
    cases: list[tuple[dict[str, Any], str]] = [
        ({"tables": ["q"]}, f"{NAME} has no table 'q'; it has t, u, w, x"),
        ({"tables": ["v"]}, f"{NAME} has no table 'v'; it has t, u, w, x"),
        ({"tables": []}, f"{NAME} has no tables that this user may read. The user needs "),
        ({"tables": ["x"]}, "the table x is a system versioned table, which cannot be followed: name in"),
        ({"tables": ["t"], "cascades": [("t", "f")]}, "the table t has the foreign key f, by which the server changes"),
        ({"tables": ["w"]}, "the type odd of w.o is not known: exclude it, by exclude = [\"w.o\"]"),
        ({"tables": ["u"]}, "the column u.k is of the table's key, and is excluded or computed"),
        ({"tables": ["t"], "exclude": ["t.id"]}, "the column t.id is of the table's key, and is excluded or"),
        ({"tables": ["t"], "exclude": ["w.o"]}, f"exclude: {NAME} has no column 'w.o' that is taken"),
        ({"tables": ["t"], "exclude": ["t"]}, f"exclude: {NAME} has no column 't' that is taken"),
    ]  # fmt: skip
    for options, text in cases:
        with pytest.raises(persist.InvalidUsage) as caught:
            find(**options)
        assert str(caught.value)[: len(text)] == text


def test_defaults_of_older_rows_are_sql_or_unknown() -> None:
    def find(kind: str, default: Any, extra: str = "", nullable: str = "YES", *, is_sql: bool = True) -> str | None:
        answers: Any = {
            "information schema.tables": [("t", "BASE TABLE")],
            "information schema.columns": [("t", "c", kind, kind, 5, 2, "", extra, default, nullable, "")],
        }  # fmt: skip
        asked, server = Answers(**answers), make_server(tables=["t"])
        server.is_mariadb = is_sql
        [column] = server.tables(asked)["t"]
        return column.default

    assert [find(kind, default, nullable=null) for kind, default, null in [
        ("int", None, "YES"), ("int", "NULL", "YES"), ("int", None, "NO"), ("text", "null", "NO"), ("blob", None, "NO"),
        ("enum", None, "NO"), ("date", None, "NO"), ("time", None, "NO"), ("set", None, "YES"), ("int", "-3", "NO"),
        ("text", "'it''s'", "YES"), ("date", "current_timestamp()", "NO"), ("bit", "b'1'", "NO"),
    ]] == [None, None, "0", "''", "''", "", "", "", None, "-3", "'it''s'", "", ""]  # fmt: skip
    assert [find("text", default, extra, is_sql=False) for default, extra in [
        ("it's \\\\", ""), ("7", ""), ("uuid()", "DEFAULT_GENERATED"), ("now()", "default_generated on update now()"),
    ]] == ["'it''s \\\\\\\\'", "'7'", "", ""]  # fmt: skip


def test_types_are_the_same_by_the_catalog_and_by_the_log() -> None:
    def log(code: int, charset: str = "utf8mb4", unsigned: bool = False, **more: int) -> pa.DataType | None:
        return get_logged_type(SimpleNamespace(type=code, character_set_name=charset, unsigned=unsigned, **more))

    whole = {
        "tinyint": (1, "int8"),
        "smallint": (2, "int16"),
        "int": (3, "int32"),
        "mediumint": (9, "int32"),
        "bigint": (8, "int64"),
    }
    for kind, (code, name) in whole.items():
        assert to_arrow_type(kind) == log(code) == pa.type_for_alias(name)
        assert to_arrow_type(kind, unsigned=True) == log(code, unsigned=True) == pa.type_for_alias(f"u{name}")
    for kind, codes, found in [
        ("float", [4], pa.float32()), ("double", [5], pa.float64()), ("year", [13], pa.int16()),
        ("bit", [16], pa.uint64()), ("date", [10], pa.date32()), ("datetime", [12, 18], pa.timestamp("us")),
        ("time", [11, 19], pa.string()),
        ("timestamp", [7, 17], pa.timestamp("us", "UTC")), ("enum", [247], pa.string()), ("set", [248], pa.string()),
        ("json", [245], pa.string()), ("geometry", [255], pa.binary()), ("point", [255], pa.binary()),
        ("varchar", [15], pa.string()), ("char", [254], pa.string()), ("longtext", [252], pa.string()),
        ("uuid", [], pa.binary()), ("odd", [99], None),
    ]:  # fmt: skip
        assert [to_arrow_type(kind), *map(log, codes)] == [found] * (1 + len(codes)), kind
    for kind, code in (("varbinary", 15), ("binary", 254), ("blob", 252)):
        assert to_arrow_type(kind) == log(code, "binary") == pa.binary()
    assert log(247, "binary") == pa.string()
    for precision, scale, found in ((38, 7, pa.decimal128(38, 7)), (39, 7, pa.string())):
        assert to_arrow_type("decimal", precision=precision, scale=scale) == found
        assert log(246, precision=precision, decimals=scale) == found


def test_logged_values_are_those_of_a_query() -> None:
    columns = [SimpleNamespace(name="c", type=code, set_values=["a", "b", "c"], max_length=4) for code in range(256)]
    second, zero = timedelta(seconds=1), datetime(1970, 1, 1)
    cases: list[Any] = [
        (3, 7, 7), (3, None, None), (248, {"c", "a"}, "a,c"), (248, {"b"}, "b"), (16, "101", 5), (16, "0", 0),
        (254, b"ab", b"ab\0\0"), (254, "ab", "ab"), (15, b"ab", b"ab"), (13, 1900, 0), (13, 1901, 1901),
        (3, 1900, 1900), (7, zero, None), (17, zero, None), (18, zero, zero), (17, zero + second, zero + second),
        (245, {}, "{}"),
        (19, second / 4, second / 4), (19, -second, -second), (19, timedelta(), timedelta()),
        (19, -second * 5 / 4, -second * 7 / 4), (18, "0000-00-00", "0000-00-00"),
    ]  # fmt: skip
    for code, logged, found in cases:
        assert decode_logged_values([columns[code]], {"c": logged}, {}) == [found], (code, logged)
    assert decode_logged_values([columns[248]], {"c": None}, {"c": "empty set"}) == [""]
    assert decode_logged_values([columns[248]], {"c": None}, {"c": "null"}) == [None]


def test_values_go_into_columns_or_are_refused_by_name() -> None:
    minute, day = timedelta(minutes=1), date(2026, 1, 2)
    cases: list[Any] = [
        (["x", None, Decimal("1.50")], pa.string(), ["x", None, "1.50"]),
        ([minute * 61 + timedelta(seconds=1), -minute / 60, timedelta(hours=838)], pa.string(),
         ["01:01:01", "-00:00:01", "838:00:00"]),
        ([timedelta(microseconds=5), -timedelta(microseconds=1), timedelta()], pa.string(),
         ["00:00:00.000005", "-00:00:00.000001", "00:00:00"]),
        (["é", b"x", None], pa.binary(), ["é".encode(), b"x", None]),
        ([day, "0000-00-00", None], pa.date32(), [day, None, None]),
        ([datetime(2026, 1, 2), "0000-00-00 00:00:00"], pa.timestamp("us"), [datetime(2026, 1, 2), None]),
        ([b"\1\2", 7, None], pa.uint64(), [258, 7, None]),
        ([Decimal("1.5")], pa.decimal128(5, 2), [Decimal("1.50")]),
    ]  # fmt: skip
    for values, kind, found in cases:
        column = to_column(values, kind, "t.c")
        assert (column.type, column.to_pylist()) == (kind, found)
    for values, kind, why in (
        ([b"x"], pa.string(), "its character set is not known"), (["x"], pa.int32(), ""), ([300], pa.int8(), ""),
    ):  # fmt: skip
        with pytest.raises(persist.InvalidUsage) as caught:
            to_column(values, kind, "t.c")
        assert str(caught.value).startswith(f"a value of t.c is not of type {kind}: {why}")
        assert str(caught.value).endswith('. Leave the column out, by exclude = ["t.c"]; a collection that is there is '
                                          "renamed first, and keeps its history")  # fmt: skip


def test_a_quiet_moment_seals_a_second_before_it() -> None:
    notes: list[Any] = []
    flow = SimpleNamespace(done=5 * STEP, upper=4, note_quiet_until=lambda *note: notes.append(note), make_batch=str)
    stream: Any = BinlogStream.__new__(BinlogStream)
    stream._flow, stream._gtids = flow, SimpleNamespace(measure=5)
    for done, upper, by_us, batches, noted in [
        (5 * STEP + 1, 4, 7_000_000, [f"{5 * STEP + 1}"], [(5 * STEP + 2, 6_000_000)]),
        (6 * STEP, 4, 7_000_000, [f"{6 * STEP}"], []),
        (5 * STEP, 5 * STEP, None, [], []), (5 * STEP, 5 * STEP, 7_000_000, [], [(5 * STEP + 1, 6_000_000)]),
    ]:  # fmt: skip
        flow.done, flow.upper, stream._logs = done, upper, [("a", 1)]
        assert ([*stream._seal_quiet_time(by_us)], notes, stream._logs) == (batches, noted, [])
        notes.clear()


def test_bytes_behind_are_those_after_the_position() -> None:
    stream: Any = BinlogStream.__new__(BinlogStream)
    stream._logs = [("log.1", 10), ("log.2", 20), ("log.3", 30), ("log.4", 40)]
    for file, offset, behind in [
        ("log.1", 10, 90),
        ("log.2", 5, 85),
        ("log.2", 25, 70),
        ("log.4", 40, 0),
        ("log.5", 0, 0),
    ]:
        stream._at = BinlogPosition("", file, offset)
        assert stream._count_bytes_behind() == behind
