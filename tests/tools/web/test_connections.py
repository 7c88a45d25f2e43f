"""Connections of the page that do not send, send slowly, or do not take: they end, and keep nobody out."""

import contextlib
import http.client
import json
import re
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

import persist
from persist.core.metrics import Reading
from persist.services.serve import http as limits
from persist.services.serve import http as server
from persist.tools.web.app import serve_page
from persist.tools.web.metrics import group_readings, serve_metrics
from tests.support.paths import ROOT
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


def test_a_page_that_follows_is_left_alone_while_nothing_happens(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_S", 3.0)  # A busy machine needs some time to ask.
    with connected(url, get(f"{url}api/events", "\r\n")) as connection:
        found = connection.recv(1 << 16)
        while b"seqno" not in found:
            data = connection.recv(1 << 16)
            assert data, "it was closed"
            found += data
        connection.settimeout(3.5)  # Longer than any limit here.
        with pytest.raises(TimeoutError):
            connection.recv(1)


QUIET = persist.Settings(background=False)
NASTY = 'or"ders {x="'
LINE = re.compile(r'[a-z_]+(\{[a-z]+="(?:[^"\\\n]|\\["\\n])*"(,[a-z]+="(?:[^"\\\n]|\\["\\n])*")*\})? \S+')


@pytest.fixture
def client(tmp_path: Path) -> Iterator[persist.Client]:
    with persist.open(tmp_path / "location", settings=QUIET) as client:
        orders = client.create_or_load(NASTY, key={"id": "int64"}, timeline="s")
        orders.write([((1, None), datetime(2026, 1, 22, tzinfo=UTC), 1)], seal=datetime(2026, 1, 23, tzinfo=UTC))
        client.create_or_load("empty", key={"id": "int64"}).seal(0).result()
        yield client


def asked(url: str, path: str = "/metrics", **headers: str) -> tuple[int, str]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=WAIT_S)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def numbers(text: str) -> dict[str, str]:
    return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))


def test_a_scrape_tells_of_the_store_and_of_each_collection(client: persist.Client) -> None:
    with serve_metrics(client, "127.0.0.1:0", token=None, insecure=False) as url:
        status, text = asked(url)
        found = numbers(text)
        assert status == 200
        assert all(LINE.fullmatch(line) for line in text.splitlines() if not line.startswith("#"))
        assert (found["persist_up"], found["persist_collections"]) == ("1.0", "2.0")
        assert "# HELP persist_collection_rows Rows, as far as they are known without a read." in text.splitlines()
        label = '{collection="or\\"ders {x=\\""}'
        assert found[f"persist_collection_rows{label}"] == "1.0"
        assert float(found[f"persist_collection_lag_seconds{label}"]) > 0
        assert 'persist_collection_lag_seconds{collection="empty"}' not in found
        assert float(found['persist_store_requests_total{operation="get"}']) > 0
        kinds = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
        assert len(kinds) == len(set(kinds))
        client.load("empty").write([((7, None), 3, 1)]).result()
        again = numbers(asked(url)[1])
        assert again['persist_collection_unsealed_updates{collection="empty"}'] == "1.0"


def test_a_collection_that_has_not_changed_is_not_read_again(tmp_path: Path, client: persist.Client) -> None:
    with (
        persist.open(tmp_path / "location", mode="read", settings=QUIET) as reader,
        serve_metrics(reader, "127.0.0.1:0", token=None, insecure=False) as url,
    ):
        asked(url)
        before = reader.metrics().store["get"].requests
        for _ in range(3):
            asked(url)
        assert reader.metrics().store["get"].requests - before <= 3


def test_who_has_no_token_or_comes_by_another_name_gets_nothing(client: persist.Client) -> None:
    with serve_metrics(client, "127.0.0.1:0", token=None, insecure=False) as url:
        assert asked(url, Host="evil.example:80")[0] == 403
        assert asked(url, Host="localhost")[0] == 200
        assert asked(url, "/")[0] == 404
        assert asked(url, "/metrics?x=1")[0] == 200
    with serve_metrics(client, "127.0.0.1:0", token="secret", insecure=False) as url:
        status, text = asked(url)
        assert (status, "persist_" in text) == (401, False)
        assert asked(url, Authorization="Bearer wrong")[0] == 401
        assert asked(url, Authorization="Bearer secret", Host="elsewhere")[0] == 200


@pytest.mark.parametrize("address", ["9464", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999", "http://127.0.0.1:1", ":1"])
def test_what_is_no_address_is_refused(client: persist.Client, address: str) -> None:
    with (
        pytest.raises(persist.InvalidUsage, match="HOST:PORT"),
        serve_metrics(client, address, token=None, insecure=False),
    ):
        pass


def test_others_need_a_token_and_a_taken_port_is_said(client: persist.Client) -> None:
    with (
        pytest.raises(persist.InvalidUsage, match="without a token"),
        serve_metrics(client, "0.0.0.0:0", token=None, insecure=False),
    ):
        pass
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(persist.InvalidUsage, match="another port"),
        serve_metrics(client, f"127.0.0.1:{taken.getsockname()[1]}", token=None, insecure=False),
    ):
        pass


def test_a_request_that_comes_byte_by_byte_has_no_more_time_than_others(
    client: persist.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REQUEST_S", 0.3)
    with serve_metrics(client, "127.0.0.1:0", token=None, insecure=False) as url:
        parts = urlsplit(url)
        with socket.create_connection((parts.hostname, parts.port), timeout=0.05) as slow:
            for _ in range(6000):
                try:
                    slow.sendall(b"G")
                    if not slow.recv(1):
                        break
                except TimeoutError:
                    continue
                except ConnectionError:
                    break
            else:
                pytest.fail("it was still open after five minutes")


def test_readings_of_one_name_are_one_family() -> None:
    values = [Reading("a.b", value, True, attributes={"c": f"{value}"}) for value in (1.5, float("inf"))]
    [family] = group_readings(values)
    assert (family.name, family.type, [sample.value for sample in family.samples]) == (
        "a_b",
        "counter",
        [1.5, float("inf")],
    )


def test_the_page_has_the_metrics_below_its_secret(client: persist.Client) -> None:
    with serve_page(client, "127.0.0.1", 0) as page:
        thread = threading.Thread(target=page.run)
        thread.start()
        try:
            assert asked(page.url)[0] == 403
            status, text = asked(page.url, urlsplit(page.url).path + "metrics")
            assert (status, numbers(text)["persist_up"]) == (200, "1.0")
        finally:
            page.stop()
            thread.join()


def test_the_dashboard_asks_for_what_there_is(client: persist.Client) -> None:
    board: dict[str, Any] = json.loads((ROOT / "docs" / "run" / "grafana.json").read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked_for = set(re.findall(r"persist_\w+", " ".join(expressions)))
    with serve_metrics(client, "127.0.0.1:0", token=None, insecure=False) as url:
        there = {name.partition("{")[0] for name in numbers(asked(url)[1])}
    assert len(asked_for) >= 6
    assert asked_for <= there
