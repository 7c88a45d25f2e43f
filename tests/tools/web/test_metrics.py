"""Metrics over HTTP, as Prometheus reads them."""

import http.client
import json
import re
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import persist
from persist.core.metrics import Reading
from persist.services.serve import http as limits
from persist.tools.web.app import serve_page
from persist.tools.web.metrics import group_readings, serve_metrics
from tests.support.paths import ROOT
from tests.support.stepped import WAIT_S

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
