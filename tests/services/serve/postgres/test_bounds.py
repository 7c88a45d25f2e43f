"""Hostile and careless clients of the Postgres protocol cost bounded memory, and only themselves."""

import random
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import duckdb
import pytest

from persist.api.serving import Servers
from persist.core.errors import InvalidUsage
from persist.services.serve.postgres import server as limits
from persist.services.serve.postgres.catalog import Catalog
from persist.services.serve.postgres.settings import Settings
from persist.services.serve.postgres.wire import MESSAGE_BYTES_MAX
from tests.services.serve.postgres.places import Raw, a_server, startup
from tests.services.serve.test_serve import made_certificate
from tests.support.stepped import WAIT_S

psycopg = pytest.importorskip("psycopg")


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with a_server() as (_, servers):
        yield servers


def check_alive(servers: Servers, **options: Any) -> None:
    with psycopg.connect(servers.postgres_url + "?user=me", **options) as connection:
        assert connection.execute("SELECT count(*) FROM orders").fetchone() == (2,)


@pytest.mark.parametrize(
    "first",
    [
        struct.pack("!ii", 8, 2 << 16),  # An older protocol.
        struct.pack("!ii", 2**31 - 1, 3 << 16),  # A longer message than any.
        struct.pack("!ii", -5, 3 << 16),
        struct.pack("!i", 4),
        startup(user=""),
        startup(replication="database"),
        startup(client_encoding="LATIN1"),
        struct.pack("!ii", 12, 3 << 16) + b"user",  # A text without an end.
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_a_bad_first_message_is_refused(servers: Servers, first: bytes) -> None:
    raw = Raw(servers, first)
    assert b"SFATAL\0" in raw.read()
    check_alive(servers)


def test_messages_of_random_bytes_end_only_their_connection(servers: Servers) -> None:
    rng = random.Random(7)
    for _ in range(60):
        raw = Raw(servers, startup())
        raw.read_until(b"Z")
        kind = rng.choice(b"QPBDECSHFfdcpXYZ\x00\xff").to_bytes(1, "big")
        body = rng.randbytes(rng.randrange(40))
        raw.message(kind, body)
        with suppress(ConnectionError):
            raw.message(b"X")
        raw.read()
    check_alive(servers)


def test_extended_messages_with_wrong_counts_are_refused(servers: Servers) -> None:
    bodies = [
        (b"B", b"\0\0" + struct.pack("!h", 30_000)),
        (b"B", b"\0nothing\0\0\0\0\0\0\0"),
        (b"P", b"\0SELECT 1\0" + struct.pack("!h", -1)),
        (b"D", b"Q\0"),
        (b"E", b"nothing\0\0\0\0\0"),
        (b"P", b"\0SELECT 1; SELECT 2\0\0\0"),
        (b"F", b"\0\0\0\0"),
    ]
    for kind, body in bodies:
        raw = Raw(servers, startup())
        raw.read_until(b"Z")
        raw.message(kind, body)
        with suppress(ConnectionError):
            raw.message(b"S")
            raw.message(b"X")
        assert b"E" in raw.read()
    check_alive(servers)


def test_a_wrong_number_of_format_codes_is_refused_as_such(servers: Servers) -> None:
    value = struct.pack("!hi", 1, 1) + b"7"
    for body, error in [
        (struct.pack("!hhh", 2, 0, 0) + value + b"\0\0", b"2 format codes were sent for 1 parameters"),
        (b"\0\0\0\0\0\0", b"0 parameters were sent, and 1 are needed"),
        (b"\0\0" + value + struct.pack("!hhh", 2, 0, 0), b"the format codes [0, 0] do not fit 1 columns"),
    ]:
        raw = Raw(servers, startup())
        raw.read_until(b"Z")
        raw.message(b"P", b"\0SELECT $1\0\0\0")
        raw.message(b"B", b"\0\0" + body)
        with suppress(ConnectionError):
            raw.message(b"S")
            raw.message(b"X")
        assert error in raw.read()


def test_a_long_statement_is_refused(servers: Servers) -> None:
    raw = Raw(servers, startup())
    raw.read_until(b"Z")
    raw.message(b"Q", b"SELECT '" + b"x" * (5 << 20) + b"'\0")
    assert dict(raw.read_until(b"Z"))[b"E"].find(b"C54000\0") > 0
    raw.socket.sendall(b"Q" + struct.pack("!i", MESSAGE_BYTES_MAX + 1))
    assert b"C08P01\0" in raw.read()
    huge = Raw(servers, startup())
    huge.read_until(b"Z")
    huge.socket.sendall(b"Q" + struct.pack("!i", 100 << 20) + b"SELECT 1")
    assert b"104,857,600 bytes" in huge.read()  # At once: the rest is not waited for.


def test_more_connections_than_the_limit_are_refused(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONNECTIONS_MAX", 3)
    first = [Raw(servers, startup()) for _ in range(3)]
    for raw in first:
        raw.read_until(b"Z")
    assert b"C53300\0" in Raw(servers, startup()).read()
    for raw in first:
        raw.message(b"X")
        raw.read()
    check_alive(servers)


def test_a_thousand_connections_leave_room_for_as_many_as_the_limit(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "GREETING_S", WAIT_S)
    threads = threading.active_count()
    held = [Raw(servers) for _ in range(limits.CONNECTIONS_MAX)]
    for _ in range(1000 - len(held)):
        assert b"C53300\0" in Raw(servers).read()
    assert threading.active_count() <= threads + limits.CONNECTIONS_MAX
    for raw in held:
        raw.close()
    while True:  # The server counts them until their threads have ended.
        with suppress(psycopg.OperationalError):
            return check_alive(servers)


def test_a_silent_client_and_an_open_block_are_disconnected(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GREETING_S", 0.1)
    assert Raw(servers).read() == b""
    monkeypatch.undo()
    monkeypatch.setattr(limits, "BLOCK_S", 0.1)
    raw = Raw(servers, startup())
    raw.read_until(b"Z")
    raw.message(b"Q", b"BEGIN\0")
    raw.read_until(b"Z")
    assert b"C25P03\0" in raw.read()


def test_tokens_grant_reading_and_writing() -> None:
    with a_server(token="reads", write_token="writes", write=True) as (client, servers):
        for password in ("", "wrong", "read", "readss"):
            with pytest.raises(psycopg.OperationalError, match=r"not a token|no password"):
                check_alive(servers, password=password)
        check_alive(servers, password="reads")
        with psycopg.connect(servers.postgres_url + "?user=me", password="reads", autocommit=True) as connection:
            with pytest.raises(psycopg.Error) as caught:
                connection.execute("DELETE FROM orders")
            assert caught.value.sqlstate == "25006"
        with psycopg.connect(servers.postgres_url + "?user=me", password="writes", autocommit=True) as connection:
            connection.execute("DELETE FROM orders WHERE id = 1")
        assert client["orders"].count() == 1


def test_a_server_with_a_certificate_speaks_tls_only() -> None:
    chain, key = made_certificate()
    with a_server(token="reads", certificate=(chain, key)) as (_, servers):
        check_alive(servers, password="reads", sslmode="require")
        with pytest.raises(psycopg.OperationalError, match="only accepts TLS"):
            check_alive(servers, password="reads", sslmode="disable")
        raw = Raw(servers, struct.pack("!ii", 8, 80877103) + b"before the handshake")
        assert raw.read()[:1] == b"S"


def test_a_server_that_others_reach_needs_a_token() -> None:
    with pytest.raises(InvalidUsage, match="everybody there could read"), a_server() as (client, _):
        client.serve(postgres="0.0.0.0:0")


def test_closing_ends_connections() -> None:
    with a_server() as (_, servers):
        raw = Raw(servers, startup())
        raw.read_until(b"Z")
        servers.close()
        assert raw.read() == b""


def test_the_database_of_a_catalog_is_closed_though_its_first_query_fails() -> None:
    databases = [duckdb.connect(), duckdb.connect()]
    databases[0].execute("CREATE SCHEMA pg")  # The catalog cannot make its own.
    waiting = iter(databases)
    catalog = Catalog(lambda: next(waiting))
    session = Settings("me", "me", 1, lambda text: None)
    with pytest.raises(duckdb.Error, match="pg"):
        catalog.answer("SELECT 1 AS a", (), session, lambda end: None)
    assert catalog.answer("SELECT 1 AS a", (), session, lambda end: None) is not None
    with pytest.raises(duckdb.ConnectionException):
        databases[0].execute("SELECT 1")
    catalog.close()
