"""Connections of the page that do not send, send slowly, or do not take: they end, and keep nobody out."""

import contextlib
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from persist.services.serve import http as server
from tests.support.stepped import WAIT_S
from tests.tools.web.places import fill, shown


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("connections") / "shop"
    fill(made)
    return made


@pytest.fixture
def url(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(server, "REQUEST_S", 0.3)
    monkeypatch.setattr(server, "ANSWER_S", 0.3)
    with shown(folder) as url:
        yield url


def connected(url: str, sent: bytes) -> socket.socket:
    parts = urlsplit(url)
    connection = socket.create_connection((parts.hostname, parts.port or 80), timeout=WAIT_S)
    with contextlib.suppress(ConnectionError):
        connection.sendall(sent)
    return connection


def all_of(connection: socket.socket) -> bytes:
    """Return all that comes until the other side ends the connection, which fails after `WAIT_S`."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while data := connection.recv(1 << 16):
            found += data
    return found


def assert_answers(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask once more, with as much time as a busy machine needs."""
    monkeypatch.setattr(server, "REQUEST_S", WAIT_S)
    monkeypatch.setattr(server, "ANSWER_S", WAIT_S)
    with urlopen(url, timeout=WAIT_S) as answer:
        assert answer.status == 200


def get(url: str, more: str = "") -> bytes:
    parts = urlsplit(url)
    return f"GET {parts.path} HTTP/1.1\r\nHost: {parts.hostname}\r\n{more}".encode()


@pytest.mark.parametrize(
    "kind", ["nothing", "half a line", "half of the headers", "a body that lacks", "after an answer"]
)
def test_a_request_that_is_never_whole_ends_its_connection(
    url: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = {
        "nothing": b"",
        "half a line": b"GET /",
        "half of the headers": get(url, "X: y\r\n"),
        "a body that lacks": get(url, "Content-Length: 10\r\n\r\nabc"),
        "after an answer": get(url, "\r\n") + get(url),
    }[kind]
    with ExitStack() as stack:
        opened = [stack.enter_context(connected(url, sent)) for _ in range(20)]
        for connection in opened:
            all_of(connection)
    assert_answers(url, monkeypatch)


def test_headers_that_come_byte_by_byte_have_no_more_time_than_others(url: str) -> None:
    with connected(url, get(url)) as connection, contextlib.suppress(ConnectionError):
        connection.settimeout(0.05)
        for _ in range(6000):
            connection.sendall(b"X")
            try:
                if not connection.recv(1):
                    break
            except TimeoutError:
                continue
        else:
            pytest.fail("it was still open after five minutes")


def test_an_answer_that_nobody_takes_ends_its_connection(url: str) -> None:
    parts = urlsplit(url)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((parts.hostname, parts.port))
        # What is answered fills all buffers on the way, and the end of the connection would stand behind it.
        connection.sendall(get(f"{url}page.js", "\r\n") * 1000)
        ended = select.poll()
        ended.register(connection, select.POLLERR | select.POLLHUP)
        with contextlib.suppress(ConnectionError):
            for _ in range(6000):
                ended.poll(50)
                connection.sendall(b"\r\n")
            pytest.fail("it was still open after five minutes")


def test_more_connections_than_there_may_be_are_closed_and_make_room_when_they_end(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 5)
    with ExitStack() as stack:
        opened = [stack.enter_context(connected(url, b"")) for _ in range(100)]
        for connection in opened:
            assert all_of(connection) == b""
    assert_answers(url, monkeypatch)


def test_headers_larger_than_any_are_refused(url: str) -> None:
    with connected(url, get(url, "X: " + "y" * 100_000)) as connection:
        assert b" 200 " not in all_of(connection)[:20]


def test_a_page_that_follows_is_left_alone_while_nothing_happens(url: str) -> None:
    with connected(url, get(f"{url}api/events", "\r\n")) as connection:
        found = connection.recv(1 << 16)
        while b"seqno" not in found:
            found += connection.recv(1 << 16)
        connection.settimeout(1.0)  # Longer than any limit here.
        with pytest.raises(TimeoutError):
            connection.recv(1)
