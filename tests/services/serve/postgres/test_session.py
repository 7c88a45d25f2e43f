"""Blocks, cursors, settings, subscriptions and errors of the sessions of Postgres clients."""

import threading
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

import persist
from persist.api.serving import Servers
from persist.compute.query import QueryLimits
from tests.services.serve.postgres.places import Raw, a_server, startup

psycopg = pytest.importorskip("psycopg")


@pytest.fixture
def served() -> Iterator[tuple[persist.Client, Servers]]:
    with a_server(write=True) as served:
        yield served


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[persist.Client, Servers]]:
    """A server for tests that change nothing."""
    with a_server(write=True) as served:
        yield served


def connect(servers: Servers, **options: Any) -> Any:
    return psycopg.connect(servers.postgres_url + "?user=me", **options)


def state_of(run: Any) -> str:
    """Return the SQLSTATE of the error that a call raises."""
    with pytest.raises(psycopg.Error) as caught:
        run()
    return str(caught.value.sqlstate)


def test_a_block_is_one_commit_over_collections(served: tuple[persist.Client, Servers]) -> None:
    client, servers = served
    with connect(servers) as connection:
        connection.execute("INSERT INTO orders VALUES (3, 'sent', 2)")
        connection.execute("UPDATE users SET name = 'zoe' WHERE id = 2")
        assert connection.execute("SELECT count(*) FROM orders").fetchone() == (3,)  # It reads its own changes.
        assert client["orders"].count() == 2
        before = client.engine.follower.refresh().seqno
        connection.commit()
    assert client["orders"].count() == 3
    assert [*client["users"].snapshot().rows()][1] == (2, "zoe")
    records = [str(record) for record in client.history().to_pylist() if record["seqno"] > before]
    assert any("orders" in record and "users" in record for record in records), records


def test_a_block_that_rolls_back_or_fails_changes_nothing(served: tuple[persist.Client, Servers]) -> None:
    client, servers = served
    with connect(servers) as connection:
        connection.execute("DELETE FROM orders")
        connection.rollback()
        connection.execute("DELETE FROM orders")
        assert state_of(lambda: connection.execute("SELECT nothing")) == "42703"
        assert state_of(lambda: connection.execute("SELECT 1")) == "25P02"
        connection.commit()  # Which rolls back.
    assert client["orders"].count() == 2


def test_the_second_of_two_blocks_that_change_one_collection_fails(served: tuple[persist.Client, Servers]) -> None:
    client, servers = served
    with connect(servers) as first, connect(servers) as second:
        first.execute("UPDATE orders SET amount = 100 WHERE id = 1")
        second.execute("UPDATE orders SET amount = amount + 1 WHERE id = 1")
        first.commit()
        assert state_of(second.commit) == "40001"
        second.rollback()
        second.execute("UPDATE orders SET amount = amount + 1 WHERE id = 1")
        second.commit()
    assert [row["amount"] for row in client["orders"].to_pylist() if row["id"] == 1] == [101.0]


def test_a_serializable_block_fails_if_what_it_read_has_changed(served: tuple[persist.Client, Servers]) -> None:
    _, servers = served
    for level, state in (("REPEATABLE READ", None), ("SERIALIZABLE", "40001")):
        with connect(servers, autocommit=True) as first, connect(servers, autocommit=True) as second:
            first.execute(f"BEGIN ISOLATION LEVEL {level}")
            (count,) = first.execute("SELECT count(*) FROM users").fetchone()
            first.execute("UPDATE orders SET amount = %s WHERE id = 1", (count,))
            second.execute("UPDATE users SET name = name || '!' WHERE id = 1")
            if state is None:
                first.execute("COMMIT")
            else:
                assert state_of(lambda: first.execute("COMMIT")) == state


def test_a_block_reads_one_point_of_the_log(served: tuple[persist.Client, Servers]) -> None:
    client, servers = served
    with connect(servers) as connection:
        assert connection.execute("SELECT count(*) FROM orders").fetchone() == (2,)
        client.write("orders", [{"id": 7, "status": "new", "amount": 1.0}], key=["id"])
        assert connection.execute("SELECT count(*) FROM orders").fetchone() == (2,)
        connection.commit()
        assert connection.execute("SELECT count(*) FROM orders").fetchone() == (3,)


def test_statements_of_one_text_are_one_commit(served: tuple[persist.Client, Servers]) -> None:
    client, servers = served
    with connect(servers, autocommit=True) as connection:
        assert state_of(lambda: connection.execute("DELETE FROM orders; SELECT nothing")) == "42703"
        assert client["orders"].count() == 2
        connection.execute("DELETE FROM orders WHERE id = 1; INSERT INTO orders VALUES (5, ';', 1)")
    assert [row[0] for row in client["orders"].snapshot().rows()] == [2, 5]


def test_savepoints_let_a_block_go_on_after_an_error(served: tuple[persist.Client, Servers]) -> None:
    client, servers = served
    with connect(servers) as connection:
        connection.execute("DELETE FROM orders WHERE id = 1")
        with pytest.raises(psycopg.Error), connection.transaction():
            connection.execute("SELECT nothing")
        connection.execute("SAVEPOINT a")
        connection.execute("DELETE FROM orders WHERE id = 2")
        assert state_of(lambda: connection.execute("ROLLBACK TO a")) == "0A000"
        connection.rollback()
    assert client["orders"].count() == 2


def test_a_session_reads_a_time_by_its_database_or_setting(served: tuple[persist.Client, Servers]) -> None:
    client, servers = served
    orders = client["orders"]
    orders.tag("before", orders.snapshot().as_of)
    client.write("orders", [{"id": 7, "status": "new", "amount": 1.0}], key=["id"])
    query = "SELECT count(*) FROM orders"
    with connect(servers, autocommit=True) as connection:
        assert connection.execute(query).fetchone() == (3,)
        connection.execute("SET persist.as_of = 'before'")
        assert connection.execute(query).fetchone() == (2,)
        assert state_of(lambda: connection.execute("DELETE FROM orders")) == "25006"
        connection.execute("RESET persist.as_of")
        assert connection.execute("SELECT count(*) FROM orders VERSION AS OF 'before'").fetchone() == (2,)
    with connect(servers, dbname="before") as connection:
        assert connection.execute(query).fetchone() == (2,)
    with pytest.raises(psycopg.OperationalError, match='there is no database "nonsense"'):
        connect(servers, dbname="nonsense")


@pytest.mark.parametrize("wrong", ["rubbish", "2026-13-45", "-1x", "9" * 30])
def test_a_time_that_is_none_is_refused_at_once(shared: tuple[persist.Client, Servers], wrong: str) -> None:
    client, servers = shared
    client["orders"].tag("before", client["orders"].snapshot().as_of)
    with connect(servers, autocommit=True) as connection:
        for fine in ("before", "5", "@5", "2026-11-23T12:00Z", "2026-11-23", "now", "yesterday", "-1d", "latest", ""):
            connection.execute(f"SET persist.as_of = '{fine}'")
        with pytest.raises(psycopg.Error, match=r"persist\.as_of = ") as refused:
            connection.execute(f"SET persist.as_of = '{wrong}'")
        assert (refused.value.sqlstate, refused.value.diag.message_hint) == (
            "22023",
            'Give a number, a moment such as "2026-11-23T12:00Z", "now", "yesterday", "-1d", or one of latest, before.',
        )
        assert connection.execute("SELECT count(*) FROM orders").fetchone() == (2,)  # The setting is as before.
    with pytest.raises(psycopg.OperationalError, match=r"persist\.as_of = "):
        connect(servers, dbname=f"@{wrong}")
    with pytest.raises(psycopg.OperationalError, match=r"persist\.as_of = "):
        connect(servers, options=f"-c persist.as_of={wrong}")


def test_a_subscription_streams_contents_and_changes(served: tuple[persist.Client, Servers]) -> None:
    client, servers = served
    with connect(servers, autocommit=True) as connection:
        rows = []
        for row in connection.cursor().stream("SUBSCRIBE TO orders WITH (PROGRESS)"):
            rows.append(row)
            if row[1] and len(rows) == 3:  # The contents, and how far they go.
                client.write("orders", [{"id": 2, "status": "sent", "amount": 1.25}], key=["id"])
            if row[1] and len(rows) > 3:
                break
    assert [row[2:4] for row in rows[:2]] == [(1, 1), (1, 2)]
    assert sorted((row[2], row[4]) for row in rows[3:-1]) == [(-1, "paid"), (1, "sent")]
    upto = rows[-1][0]
    with connect(servers) as connection:
        changes = connection.execute(
            f"SUBSCRIBE TO orders AS OF {rows[2][0] - 1} UP TO {upto} WITH (SNAPSHOT = false)"
        ).fetchall()
        assert sorted((row[1], row[3]) for row in changes) == [(-1, "paid"), (1, "sent")]
        connection.execute("DECLARE c CURSOR FOR SUBSCRIBE TO orders")
        assert len(connection.execute("FETCH 2 FROM c").fetchall()) == 2


ENDLESS = "VIEW endless AS WITH RECURSIVE r(n) AS (SELECT id FROM orders UNION SELECT n + 1 FROM r) SELECT n FROM r"


def test_no_error_shows_where_the_location_is(served: tuple[persist.Client, Servers]) -> None:
    client, servers = served
    with connect(servers, autocommit=True) as connection, pytest.raises(psycopg.Error, match="the location") as caught:
        connection.execute("SUBSCRIBE TO nope")
    assert client.url not in str(caught.value)


def test_what_runs_long_is_cancelled(served: tuple[persist.Client, Servers]) -> None:
    client, servers = served
    with connect(servers, autocommit=True) as connection:
        for statement in (
            "SELECT count(*) FROM range(100000000) a, range(1000) b WHERE a.range + b.range = 7",
            "SUBSCRIBE TO orders",
            f"CREATE {ENDLESS}",
        ):
            begun = threading.Event()

            def cancel(begun: threading.Event = begun) -> None:
                while not begun.wait(0.2):  # Until it has come: a cancellation before the statement does nothing.
                    connection.cancel_safe()  # The other call holds the lock that the server needs, too.

            thread = threading.Thread(target=cancel, daemon=True)
            thread.start()
            assert state_of(lambda: connection.execute(statement)) == "57014"  # noqa: B023
            begun.set()
            thread.join()
        while True:  # A late cancellation may meet this.
            try:
                assert connection.execute("SELECT 1").fetchone() == (1,)
                break
            except psycopg.errors.QueryCanceled:
                continue
    assert "endless" not in client


def test_views_keep_the_limits_of_a_server() -> None:
    limits = QueryLimits(timeout_s=0.2)
    with a_server(write=True, sql=limits) as (client, servers), connect(servers, autocommit=True) as connection:
        assert state_of(lambda: connection.execute(f"CREATE {ENDLESS}")) == "57014"
        assert "endless" not in client
        client.create_view("endless", ENDLESS.partition(" AS ")[2])
        assert state_of(lambda: connection.execute("REFRESH VIEW endless")) == "57014"


@pytest.mark.parametrize(
    ("sql", "state", "position"),
    [
        ("SELECT 1 +", "42601", 10),
        ("SELECT 'no end; SELECT 1", "42601", None),
        ("SELECT * FROM nope", "42P01", None),
        ("SELECT nothing FROM orders", "42703", None),
        ("SELECT '1x'::int", "22P02", 12),
        ("SELECT nofunction(1)", "42883", None),
        ("LISTEN orders", "0A000", None),
        ("COPY orders FROM STDIN", "0A000", None),
        ("SET TimeZone = 'Europe/Berlin'", "22023", None),
        ("SET no_such_setting = 1", "42704", None),
        ("SUBSCRIBE TO nope", "42P01", None),
        ("UPDATE nope SET a = 1", "42P01", None),
        ("FETCH 1 FROM nope", "34000", None),
        ("DEALLOCATE nope", "26000", None),
        ("SELECT $1", "42P02", None),
        ("SELECT TIMESTAMP_NS '2026-01-01 00:00:00.000000001'", "22008", None),
    ],
)
def test_errors_have_their_states(
    shared: tuple[persist.Client, Servers], sql: str, state: str, position: int | None
) -> None:
    with connect(shared[1], autocommit=True) as connection, pytest.raises(psycopg.Error) as caught:
        connection.execute(sql)
    assert caught.value.sqlstate == state, caught.value
    if position is not None:
        assert int(caught.value.diag.statement_position) == position


def test_a_portal_is_read_in_pieces(served: tuple[persist.Client, Servers]) -> None:
    raw = Raw(served[1], startup())
    raw.read_until(b"Z")
    raw.message(b"P", b"\0SELECT i FROM range(5) t(i)\0\0\0")
    raw.message(b"B", b"\0\0\0\0\0\0\0\0")
    raw.message(b"E", b"\0" + (2).to_bytes(4, "big"))
    raw.message(b"E", b"\0" + (2).to_bytes(4, "big"))
    raw.message(b"E", b"\0" + (9).to_bytes(4, "big"))
    raw.message(b"S")
    kinds = b"".join(kind for kind, _ in raw.read_until(b"Z"))
    assert kinds == b"12DDsDDsDCZ"
    raw.close()


def test_a_parameter_cannot_become_sql(served: tuple[persist.Client, Servers]) -> None:
    with connect(served[1]) as connection:
        text = "\n, (SELECT string_agg(name, ',') FROM users) --"
        assert connection.execute("SELECT 10 -%s, %s", (Decimal(-5), text)).fetchone() == (15, text)
        assert connection.execute("SELECT -%s, 2 -%s", (-5, -1)).fetchone() == (5, 3)
        assert connection.execute("SELECT 'a' LIKE'\\' OR %s = %s", ("b", "b")).fetchone() == (True,)
        assert connection.execute(
            "SELECT %s = ANY(%s)", (Decimal("1.23456789"), [Decimal("1.23456789")])
        ).fetchone() == (True,)
    with connect(served[1], cursor_factory=psycopg.ClientCursor) as connection:
        assert connection.execute("SELECT %s", (b"\x00\xffA",)).fetchone() == (b"\x00\xffA",)


def test_a_block_keeps_events_that_came_meanwhile_and_nothing_erased(served: tuple[persist.Client, Servers]) -> None:
    client, servers = served
    accounts = client.create_or_load("accounts", key={"id": int}, value={"v": int}, keyed=persist.Keyed())
    accounts.upsert([(1, 10), (2, 20)], time=5, seal=6).result()
    with connect(servers) as connection:
        connection.execute("UPDATE accounts SET v = 21 WHERE id = 2")
        accounts.upsert([(1, 999)], time=6).result()
        connection.commit()
    assert accounts.to_pylist() == [{"id": 1, "v": 999}, {"id": 2, "v": 21}]
    with connect(servers) as connection:
        connection.execute("UPDATE orders SET amount = 5 WHERE id = 1")
        client["orders"].erase(where="id = 2", reason="a request")
        assert state_of(connection.commit) == "40001"
    assert [row["id"] for row in client["orders"].to_pylist()] == [1]


def test_clients_cannot_change_the_catalog(served: tuple[persist.Client, Servers]) -> None:
    with connect(served[1], autocommit=True) as connection:
        for sql in (
            "DROP VIEW pg.pg_am /* pg_am */",
            "ALTER TABLE pg.pg_class ADD COLUMN x INT",
            "COPY (SELECT * FROM pg_class) TO '/tmp/never'",
        ):
            with pytest.raises(psycopg.Error):
                connection.execute(sql)
        connection.execute("CREATE TABLE pg.pg_roles AS SELECT 'hacked' AS rolname")  # A collection like any other.
        assert connection.execute("SELECT rolname FROM pg_roles").fetchall() == [("me",)]
        assert connection.execute("SHOW search_path").fetchone() == ("main",)


def test_a_client_with_rights_defines_collections_outside_of_blocks(served: tuple[persist.Client, Servers]) -> None:
    client, servers = served
    with connect(servers, autocommit=True) as connection:
        assert connection.execute("CREATE TABLE t (k BIGINT PRIMARY KEY, v TEXT)").statusmessage == "CREATE TABLE"
        assert connection.execute("INSERT INTO t VALUES (1, 'a')").statusmessage == "INSERT 0 1"
        assert connection.execute("CREATE TABLE u AS SELECT k + 1 AS k FROM t").statusmessage == "SELECT 1"
        assert connection.execute("CREATE VIEW w AS SELECT count(*) AS n FROM t").statusmessage == "CREATE VIEW"
        assert connection.execute("SELECT n, k FROM w, u").fetchall() == [(1, 2)]
        assert connection.execute("COMMENT ON TABLE u IS 'more'").statusmessage == "COMMENT"
        assert connection.execute("ALTER TABLE u ADD COLUMN note TEXT").statusmessage == "ALTER TABLE"
        assert connection.execute("TRUNCATE u").statusmessage == "TRUNCATE TABLE"
        assert connection.execute("SELECT k, note FROM u").fetchall() == []
        assert client["u"].comment == "more"
        for name in ("VIEW w", "TABLE u", "TABLE t"):
            connection.execute(f"DROP {name}")
        assert "t" not in client
        assert state_of(lambda: connection.execute("CREATE INDEX i ON orders (id)")) == "22023"
        assert state_of(lambda: connection.execute("CREATE TABLE f AS FROM '/etc/passwd'")) != "00000"
        assert state_of(lambda: connection.execute("COPY orders TO '/tmp/never.csv'")) == "0A000"
        connection.execute("BEGIN")
        assert state_of(lambda: connection.execute("DROP TABLE orders")) == "25001"
        connection.execute("ROLLBACK")
        connection.execute("SET default_transaction_read_only = on")
        assert state_of(lambda: connection.execute("DROP TABLE orders")) == "25006"
    with a_server(write=False) as (_, others), connect(others, autocommit=True) as connection:
        for sql in ("DROP TABLE orders", "DELETE FROM orders", "INSERT INTO orders VALUES (9, 'a', 1)"):
            assert state_of(lambda: connection.execute(sql)) == "25006"  # noqa: B023


def test_read_only_sessions_and_local_settings_end_with_their_blocks(served: tuple[persist.Client, Servers]) -> None:
    client, servers = served
    orders = client["orders"]
    orders.tag("before", orders.snapshot().as_of)
    with connect(servers, autocommit=True, options="-c default_transaction_read_only=on") as connection:
        assert state_of(lambda: connection.execute("DELETE FROM orders")) == "25006"
    client.write("orders", [{"id": 7, "status": "new", "amount": 1.0}], key=["id"])
    with connect(servers, autocommit=True) as connection:
        assert state_of(lambda: connection.execute("BEGIN READ ONLY; DELETE FROM orders; COMMIT")) == "25006"
        connection.execute("ROLLBACK")
        connection.execute("BEGIN; SET LOCAL persist.as_of = 'before'; COMMIT")
        assert connection.execute("SELECT count(*) FROM orders").fetchone() == (3,)
        connection.execute("BEGIN")
        connection.execute("DELETE FROM orders WHERE id = 7")
        assert connection.execute("SELECT count(*) FROM latest.main.orders").fetchone() == (2,)
        connection.execute("COMMIT")


def test_a_serializable_block_may_change_what_it_reads(served: tuple[persist.Client, Servers]) -> None:
    with connect(served[1], autocommit=True) as connection:
        connection.execute("BEGIN ISOLATION LEVEL SERIALIZABLE")
        connection.execute("SELECT * FROM orders")
        connection.execute("UPDATE orders SET amount = 1")
        connection.execute("COMMIT")


@pytest.mark.parametrize("value", ["1::uhugeint", "'101'::bit", "'12:00:00+02'::timetz", "union_value(x := 1)"])
def test_values_that_arrow_would_change_are_refused(shared: tuple[persist.Client, Servers], value: str) -> None:
    with connect(shared[1], autocommit=True) as connection:
        with pytest.raises(psycopg.Error, match="cast it to VARCHAR"):
            connection.execute(f"SELECT {value}")
        assert connection.execute(f"SELECT ({value})::VARCHAR").fetchone() is not None


def pipeline(raw: Raw, *statements: str) -> bytes:
    """Send statements by the extended protocol with one Sync; return the kinds of the answers."""
    for sql in statements:
        raw.message(b"P", b"\0" + sql.encode() + b"\0\0\0")
        raw.message(b"B", b"\0\0\0\0\0\0\0\0")
        raw.message(b"E", b"\0\0\0\0\0")
    raw.message(b"S")
    return b"".join(kind for kind, _ in raw.read_until(b"Z"))


def test_a_pipeline_is_one_commit_or_none(served: tuple[persist.Client, Servers]) -> None:
    client, servers = served
    raw = Raw(servers, startup())
    raw.read_until(b"Z")
    insert = "INSERT INTO orders VALUES ({}, 'a', 1)"
    assert pipeline(raw, insert.format(3), "SELECT nothing FROM orders", insert.format(4)) == b"12C1EZ"
    assert client["orders"].count() == 2
    assert pipeline(raw, insert.format(3), "SELECT id FROM orders WHERE id = 3") == b"12C12DCZ"  # It reads its own.
    appended = sum("append" in row["operations"] for row in client.history().to_pylist())
    assert pipeline(raw, insert.format(4), "UPDATE users SET name = 'zoe'", insert.format(5)) == b"12C12C12CZ"
    records = [row["collections"] for row in client.history().to_pylist() if "append" in row["operations"]]
    assert (len(records), sorted(records[-1])) == (appended + 1, ["orders", "users"])
    assert pipeline(raw, insert.format(6), "BEGIN", insert.format(7)) == b"12C12C12CZ"  # The block is the client's.
    assert client["orders"].count() == 5
    assert pipeline(raw, "ROLLBACK") == b"12CZ"
    assert pipeline(raw, insert.format(8)) == b"12CZ"
    raw.message(b"P", b"\0DELETE FROM orders\0\0\0")
    raw.message(b"B", b"\0\0\0\0\0\0\0\0")
    raw.message(b"E", b"\0\0\0\0\0")
    raw.message(b"H")
    assert raw.read_until(b"C")[-1][1] == b"DELETE 6\0"
    raw.message(b"X")  # Without a Sync, nothing is committed.
    raw.read()
    assert client["orders"].count() == 6


def test_a_statement_ends_at_its_timeout(served: tuple[persist.Client, Servers]) -> None:
    slow = "SELECT count(*) FROM range(100000000) a, range(1000) b WHERE a.range + b.range = 7"
    with connect(served[1], autocommit=True, options="-c statement_timeout=200ms") as connection:
        for sql in (slow, f"UPDATE orders SET amount = ({slow})", "SUBSCRIBE TO orders", f"{slow}; SELECT 1"):
            with pytest.raises(psycopg.errors.QueryCanceled, match="due to statement timeout"):
                connection.execute(sql)
    with connect(served[1], autocommit=True) as connection:
        connection.execute("SET statement_timeout = '1min'")
        assert connection.execute("SELECT count(*) FROM orders").fetchone() == (2,)
        assert state_of(lambda: connection.execute("SET statement_timeout = 'soon'")) == "22023"
        connection.execute("BEGIN; SET LOCAL statement_timeout = 100")
        assert state_of(lambda: connection.execute(slow)) == "57014"


def test_the_user_of_a_session_is_one_beside_collections(served: tuple[persist.Client, Servers]) -> None:
    with connect(served[1], autocommit=True) as connection:
        query = "SELECT current_user, session_user, current_database(), 'current_user' FROM orders LIMIT 1"
        assert connection.execute(query).fetchone() == ("me", "me", "latest", "current_user")
        connection.execute("UPDATE orders SET status = current_user WHERE id = 1")
        assert connection.execute("SELECT status FROM orders WHERE id = 1").fetchone() == ("me",)
        assert "PostgreSQL 15" in str(connection.execute("SELECT version() FROM orders").fetchone())


def test_a_block_never_reads_a_collection_that_was_sealed_later(served: tuple[persist.Client, Servers]) -> None:
    client, servers = served
    late = client.create_or_load("late", key={"id": int}, value={"v": int})
    with connect(servers) as connection:
        connection.execute("SELECT count(*) FROM orders")
        late.write([(1, 10)], time=1, seal=2).result()
        assert state_of(lambda: connection.execute("SELECT * FROM late")) == "22023"
        connection.rollback()
        assert connection.execute("SELECT v FROM late").fetchall() == [(10,)]
        connection.rollback()
    later = client.create_or_load("later", key={"id": int}, value={"v": int})
    with connect(servers) as connection:
        connection.execute("SELECT count(*) FROM orders")
        later.write([(1, 10)], time=1, seal=2).result()
        assert state_of(lambda: connection.execute("DELETE FROM orders WHERE id IN (SELECT id FROM later)")) == "42P01"
