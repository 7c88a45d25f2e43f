"""What databases do seldom, and collections follow or refuse: odd keys, columns and rows, and servers that go."""

import datetime
import threading
from typing import Any

import pytest

import persist
from persist.connect.ingest.postgres.database import PgAddress
from persist.core.rendering import hide_passwords
from tests.connect.ingest.servers import Server, postgres_programs
from tests.connect.ingest.test_postgres import Database, database, server

__all__ = ["database", "server"]  # Fixtures.

pytestmark = [
    pytest.mark.outside,
    pytest.mark.skipif(postgres_programs() is None, reason="no Postgres: Debian's package postgresql has one"),
]


def test_a_column_that_got_two_names_before_it_was_looked_at_keeps_its_values(database: Database) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY, a text)", "INSERT INTO t VALUES (1, 'one')")
    database.ingest()
    database.run("ALTER TABLE t RENAME a TO b")
    database.run("INSERT INTO t VALUES (2, 'two')")
    database.run("ALTER TABLE t RENAME b TO c")
    database.run("INSERT INTO t VALUES (3, 'three')")
    database.ingest()
    assert [tuple(row.values()) for row in database.contents("t")] == [(1, "one"), (2, "two"), (3, "three")]
    assert [*database.contents("t")[0]] == ["id", "c"]


def test_a_column_of_the_key_may_get_another_name(database: Database) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY, a text)", "INSERT INTO t VALUES (1, 'one'), (2, 'two')")
    database.ingest()
    database.run("ALTER TABLE t RENAME id TO number")
    database.run("DELETE FROM t WHERE number = 1", "UPDATE t SET number = 3")
    database.ingest()
    assert database.contents("t") == [{"number": 3, "a": "two"}]


def test_a_column_whose_name_went_to_another_one_is_told(database: Database) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY, a text)", "INSERT INTO t VALUES (1, 'one')")
    database.ingest()
    database.run("ALTER TABLE t RENAME a TO b")
    database.run("INSERT INTO t VALUES (2, 'two')")
    database.run("ALTER TABLE t RENAME b TO c", "ALTER TABLE t ADD b text")
    with pytest.raises(persist.InvalidUsage, match=r"more than once meanwhile.*'a' is.*To copy again"):
        database.ingest()
    assert [tuple(row.values()) for row in database.contents("t")] == [(1, "one")]


def test_a_table_that_is_emptied_twice_in_a_transaction_is_empty(database: Database) -> None:
    database.run("CREATE TABLE t (a int)", "ALTER TABLE t REPLICA IDENTITY FULL", "INSERT INTO t VALUES (1), (1), (2)")
    database.ingest()
    database.run("TRUNCATE t", "INSERT INTO t VALUES (3)", "TRUNCATE t", "INSERT INTO t VALUES (4)")
    database.ingest()
    assert database.contents("t") == [{"a": 4}]


def test_a_column_that_only_the_index_of_the_key_includes_is_not_of_the_key(database: Database) -> None:
    database.run("CREATE TABLE t (id int, a text, PRIMARY KEY (id) INCLUDE (a))", "INSERT INTO t VALUES (1, 'x')")
    database.ingest()
    database.run("UPDATE t SET a = 'y'")
    database.ingest()
    assert database.contents("t") == [{"id": 1, "a": "y"}]


@pytest.mark.parametrize("key", ["PRIMARY KEY", "NOT NULL UNIQUE"])
def test_a_table_whose_rows_are_told_apart_otherwise_by_now_is_refused(database: Database, key: str) -> None:
    database.run(f"CREATE TABLE t (id int {key}, other int NOT NULL UNIQUE)", "INSERT INTO t VALUES (1, 1)")
    if key != "PRIMARY KEY":
        database.run("ALTER TABLE t REPLICA IDENTITY FULL")
    database.ingest()
    database.run("ALTER TABLE t REPLICA IDENTITY USING INDEX t_other_key")
    database.run("UPDATE t SET id = 2")
    database.run("DELETE FROM t")
    if key != "PRIMARY KEY":  # Else a collection without a key is told at the start.
        database.run("ALTER TABLE t REPLICA IDENTITY FULL")
    with pytest.raises(persist.InvalidUsage, match=r"the table t .*identity.*To copy again"):
        database.ingest()


def test_rows_of_one_column_may_be_null(database: Database) -> None:
    database.run("CREATE TABLE t (a int)", "ALTER TABLE t REPLICA IDENTITY FULL")
    database.run("INSERT INTO t VALUES (NULL), (1), (NULL)")
    database.ingest()
    assert database.contents("t") == [{"a": None}, {"a": None}, {"a": 1}]


def test_a_row_that_is_larger_than_a_piece_of_the_copy_is_told(database: Database) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY, a text)", "INSERT INTO t VALUES (1, repeat('x', 10000))")
    with pytest.raises(persist.InvalidUsage, match=r"table t .*copy_bytes = 1000"):
        database.ingest(copy_bytes=1000)
    database.ingest()
    assert len(database.contents("t")[0]["a"]) == 10_000


def test_a_server_that_is_away_for_a_while_is_waited_for(server: Server, database: Database, caplog: Any) -> None:
    import psycopg2

    database.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with persist.open(database.location) as client:
        config = {"source": database.url, "publication": "p"}
        persist.ingest(client, config, once=True)
        stop = threading.Event()
        thread = threading.Thread(target=persist.ingest, args=(client, config), kwargs={"stop": stop}, daemon=True)
        thread.start()
        try:
            database.run("INSERT INTO t VALUES (2)")
            t = client.load("t")
            while thread.is_alive() and len(t.snapshot().to_arrow()) < 2:
                pass
            server.stop()
            while thread.is_alive() and caplog.text.count("it is tried again") < 2:
                pass
            server.start()
            database.connection = psycopg2.connect(database.url)
            database.connection.autocommit = True
            database.run("INSERT INTO t VALUES (3)")
            while thread.is_alive() and len(t.snapshot().to_arrow()) < 3:
                pass
            assert thread.is_alive()
        finally:
            stop.set()
            thread.join()
    assert "does not answer" in caplog.text


@pytest.mark.parametrize(
    "url", ["postgres://me:hun%ter2@host/db", "postgres://me:hun/ter2@host/db", "postgres://me:hun@ter2@host/db"]
)
def test_a_password_that_is_no_part_of_a_url_is_in_no_message(url: str, tmp_path: Any) -> None:
    with pytest.raises(persist.PersistError) as error:
        persist.ingest(str(tmp_path / "l"), {"source": url, "publication": "p"}, once=True)
    assert "hun" not in str(error.value)
    assert "ter2" not in str(error.value)
    assert hide_passwords(f"at {url}: no") == "at postgres://me:***@host/db: no"


def test_a_publication_that_changes_is_told(database: Database, caplog: Any) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
    database.run("DROP PUBLICATION p", "CREATE PUBLICATION p FOR TABLE t, u")
    database.ingest()
    database.run("ALTER PUBLICATION p DROP TABLE u", "INSERT INTO u VALUES (1)", "INSERT INTO t VALUES (1)")
    database.ingest()
    database.ingest()
    assert caplog.text.count("these collections are not filled any more") == 1
    assert (database.contents("t"), database.contents("u")) == ([{"id": 1}], [])
    database.run("ALTER PUBLICATION p ADD TABLE u")
    with pytest.raises(persist.InvalidUsage, match=r"'u' is sealed to .* another writer sealed it. To copy again"):
        database.ingest()
    database.run("DROP PUBLICATION p", "INSERT INTO t VALUES (2)")
    database.run("CREATE PUBLICATION p FOR TABLE t")
    with pytest.raises(
        persist.InvalidUsage, match=r"was made anew.*To copy again and keep the history: persist rename LOCATION"
    ):
        database.ingest()


def test_values_are_the_same_whatever_the_session_and_the_database_say(
    database: Database, server: Server, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg2

    monkeypatch.setenv("PGTZ", "America/New_York")
    monkeypatch.setenv("PGDATESTYLE", "SQL, DMY")
    admin = psycopg2.connect(server.url)
    admin.autocommit = True
    admin.cursor().execute("CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    admin.close()
    latin = Database(server, "other", str(tmp_path / "latin"))
    latin.connection.close()
    latin.url = latin.url.replace("/other?", "/latin?")
    latin.connection = psycopg2.connect(latin.url, client_encoding="UTF8")
    latin.connection.autocommit = True
    latin.run("CREATE PUBLICATION p FOR ALL TABLES")
    try:
        for found in (database, latin):
            found.run("CREATE TABLE t (id int PRIMARY KEY, v text, d date, r tstzrange, m money)")
            for id_ in (1, 2):
                found.run(f"INSERT INTO t VALUES ({id_}, 'é', '2020-02-01', '[2020-02-01 00:00+00,)', 1234.5)")
                found.ingest()
            one, two = ([*row.values()][1:] for row in found.contents("t"))
            assert one == two == ["é", datetime.date(2020, 2, 1), '["2020-02-01 00:00:00+00",)', "$1,234.50"]
    finally:
        latin.close()


def test_an_error_names_the_transaction_the_table_the_column_and_the_value(database: Database) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY, d date)")
    database.ingest()
    database.run("INSERT INTO t VALUES (1, '2020-01-01')")
    database.run("INSERT INTO t VALUES (2, '0044-03-15 BC')")
    with pytest.raises(
        persist.InvalidUsage, match=r"LSN [0-9A-F]+/[0-9A-F]+: a value of t\.d .*'0044-03-15 BC'.*as_text"
    ):
        database.ingest()


def test_infinite_dates_and_moments_come_in_and_stop_no_table(database: Database) -> None:
    database.run(
        "CREATE TABLE t (id date PRIMARY KEY, m timestamp, z timestamptz)", "CREATE TABLE u (id int PRIMARY KEY)"
    )
    database.run("INSERT INTO t VALUES ('infinity', 'infinity', '-infinity'), ('2026-01-01', NULL, '2026-01-01')")
    database.ingest()
    database.run("INSERT INTO t VALUES ('-infinity', '-infinity', 'infinity')", "INSERT INTO u VALUES (1)")
    database.ingest()
    with persist.open(database.location) as client:
        rows = client.sql("SELECT id::VARCHAR AS id, m::VARCHAR AS m, z::VARCHAR AS z FROM t ORDER BY t.id").to_pylist()
    assert ([[*row.values()] for row in rows], database.contents("u")) == (
        [
            ["-infinity", "-infinity", "infinity"],
            ["2026-01-01", None, "2026-01-01 00:00:00+00"],
            ["infinity", "infinity", "-infinity"],
        ],
        [{"id": 1}],
    )


@pytest.mark.parametrize(("place", "mode"), [("db.example", "require"), ("localhost", None), ("", None)])
def test_a_server_elsewhere_must_encrypt(place: str, mode: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGHOST", raising=False)
    monkeypatch.delenv("PGSSLMODE", raising=False)
    address, modes = PgAddress(f"postgresql://{place}/shop", "test"), list[str | None]()

    def connect(**options: str) -> None:
        modes.append(options.get("sslmode"))
        raise address.library.OperationalError

    monkeypatch.setattr(address.library, "connect", connect)
    with pytest.raises(persist.Unavailable):
        address.open_connection()
    assert modes == [mode]
