"""Lineage: the events that OpenLineage gets of writes and refreshes, as files and over HTTP, against what was done."""

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import persist

EVENTS: list[dict[str, Any]] = []


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        EVENTS.append(json.loads(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(autouse=True)
def _unset() -> Iterator[None]:
    """The package writes into the environment what it has read there."""
    yield
    for name in [name for name in os.environ if name.startswith("OPENLINEAGE")]:
        del os.environ[name]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    EVENTS.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{running.server_port}"
        monkeypatch.setenv("OPENLINEAGE_URL", url)
        yield url
        running.shutdown()
        thread.join()


def dataset(told: dict[str, Any]) -> tuple[str, str | None]:
    return told["name"], told["facets"].get("version", {}).get("datasetVersion")


def told() -> list[tuple[str, list[tuple[str, str | None]], list[tuple[str, str | None]]]]:
    return [
        (event["job"]["name"], sorted(map(dataset, event["inputs"])), sorted(map(dataset, event["outputs"])))
        for event in EVENTS
    ]


def test_events_name_the_times_that_writes_and_refreshes_wrote_and_read(server: str, tmp_path: Path) -> None:
    with persist.open(tmp_path) as client:
        for name in ("orders", "items"):
            rows = pa.table({"id": [1, 2], "amount": [5, 7]})
            client.create_or_load(name, like=rows, key=["id"]).write(rows, time=3, seal=4).result()
        view = client.create_view(
            "totals", "SELECT id, o.amount + i.amount AS amount FROM orders AS o JOIN items AS i USING (id)"
        )
        view.refresh()
        client.load("items").write(pa.table({"id": [3], "amount": [1]}), time=8, seal=9).result()
        with client.multi_write() as multi:
            multi.write(client.load("orders"), pa.table({"id": [3], "amount": [1]}), time=5)
            multi.seal(client.load("orders"), 6)
            multi.seal(client.load("items"), 12)
        view.refresh()
        client.clone("items", "trial", as_of=8)
        location = client.url
    assert told() == [
        ("write orders", [], [("orders", "4")]),
        ("write items", [], [("items", "4")]),
        ("refresh totals", [("items", "4"), ("orders", "4")], [("totals", "4")]),
        ("write items", [], [("items", "9")]),
        ("write orders", [], [("orders", "6")]),
        ("write items", [], [("items", "12")]),
        ("refresh totals", [("items", "6"), ("orders", "6")], [("totals", "6")]),
        ("clone trial", [("items", "9")], [("trial", "9")]),
    ]
    first, refreshed = EVENTS[0], EVENTS[2]
    assert first["job"]["namespace"] == first["outputs"][0]["namespace"] == location
    assert first["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 2
    assert [field["name"] for field in first["outputs"][0]["facets"]["schema"]["fields"]] == ["id", "amount"]
    assert "JOIN items" in refreshed["job"]["facets"]["sql"]["query"]
    assert len({event["run"]["runId"] for event in EVENTS}) == len(EVENTS)


def test_a_write_that_fails_is_no_event(server: str, tmp_path: Path) -> None:
    with persist.open(tmp_path) as client:
        orders = client.create_or_load("orders", key={"id": pa.int64()}, value={"amount": pa.int64()})
        orders.write([(1, 5)], time=1, seal=2).result()
        with pytest.raises(persist.errors.UpdateNotBeyondUpper):
            orders.write([(2, 5)], time=1, seal=2).result()
    assert told() == [("write orders", [], [("orders", "2")])]


def test_a_server_of_lineage_that_is_gone_holds_no_write_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("OPENLINEAGE_URL", raising=False)
    for name, value in {"TYPE": "http", "URL": "http://127.0.0.1:9", "RETRY": '{"total": 0}'}.items():
        monkeypatch.setenv(f"OPENLINEAGE__TRANSPORT__{name}", value)
    with persist.open(tmp_path) as client:
        orders = client.create_or_load("orders", key={"id": pa.int64()}, value={"amount": pa.int64()})
        for n in range(3):
            orders.write([(n, 5)]).result()
    assert client.metrics().groups["lineage"] == {"sent": 0, "failed": 3, "left_out": 0}
    assert sum("lineage" in record.message for record in caplog.records if record.name == "persist.api.lineage") == 1


def test_nobody_is_told_without_the_variable(tmp_path: Path) -> None:
    with persist.open(tmp_path) as client:
        assert "lineage" not in client.metrics().groups
        assert not [thread for thread in threading.enumerate() if thread.name == "persist-lineage"]
