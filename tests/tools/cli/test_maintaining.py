"""What looks after a location: maintain, cost, and what is logged meanwhile."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

import persist
from persist.blob import MemoryBlob
from persist.tools.cli.logs import parse_setting
from persist.tools.cli.main import main
from persist.tools.reports.costs import estimate_costs
from tests.support.console import Run
from tests.support.forks import forked_python
from tests.support.stepped import WAIT_S
from tests.support.tuned import tuned


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("maintaining") / "shop"
    with persist.open(folder, settings=persist.Settings(background=False)) as client:
        for n in range(9):
            client.write("orders", [{"id": n, "amount": n}], key=["id"])
        client.create_view("total", "SELECT sum(amount) AS total FROM orders").close()
    return folder


@pytest.fixture
def shop(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "shop"))


def total(shop: Path) -> list[dict[str, int]]:
    with persist.open(shop, mode="read") as client:
        rows: list[dict[str, int]] = client.load("total").snapshot().to_arrow().to_pylist()
        return rows


def test_maintain_does_what_is_due_and_then_nothing_is(shop: Path, run: Run) -> None:
    assert json.loads(run("maintain", str(shop), "--json"))["views refreshed"] == 1
    assert total(shop) == [{"total": 36}]
    again = json.loads(run("maintain", str(shop), "--json"))
    assert not again.get("views refreshed")
    assert not again.get("collections compacted")


def test_a_collection_that_is_dropped_meanwhile_is_not_compacted(
    shop: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(persist.Client, "collections", lambda client: ["gone", "orders"])
    assert [each["collection"] for each in json.loads(run("compact", str(shop), "--json"))] == ["orders"]


def test_maintain_goes_on_until_it_is_ended(shop: Path) -> None:
    command = [*forked_python(), "-m", "persist", "maintain", str(shop), "--every", "0.1", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["views refreshed"] == 1
        with persist.open(shop) as client:
            client.write("orders", [{"id": 100, "amount": 100}], mode="append")
        assert json.loads(process.stdout.readline())["views refreshed"] == 1
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, err) == (0, "")
    assert total(shop) == [{"total": 136}]


def test_cost_counts_what_was_stored_and_what_is(
    shop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], run: Run
) -> None:
    assert main(["cost", str(shop), "--json"]) == 0
    out, err = capsys.readouterr()
    found = {row["kind"]: row for row in map(json.loads, out.splitlines())}
    files = [path for path in shop.rglob("*") if path.is_file()]
    logs = list((shop / "log").iterdir())
    assert found["records"]["objects"] == len(logs)
    assert found["PUT"]["requests"] == found["all"]["objects"] == len(files)
    assert found["GET"]["requests"] > 0, "this command reads the location"
    assert found["all"]["bytes"] == found["PUT"]["request_bytes"] == sum(path.stat().st_size for path in files)
    puts, stored = found["PUT"]["dollars"], found["all"]["bytes"] / 2**30 * 0.023
    assert len(files) / 1000 * 0.005 * 30 * 24 / 25 <= puts <= len(files) / 1000 * 0.005 * 30
    own = sum(found[kind]["dollars"] for kind in ("GET", "LIST", "DELETE"))
    assert found["all"]["dollars"] == pytest.approx(puts + stored + own)
    assert "This command itself has sent" in err
    for path in files:  # Of two days ago.
        os.utime(path, (path.stat().st_mtime - 172_800,) * 2)
    prices = tmp_path / "prices.json"
    prices.write_text('{"stored_gib_month": 1024, "gets_1000": 0, "lists_1000": 0}')
    rows = [json.loads(line) for line in run("cost", str(shop), "--json", "--prices", str(prices)).splitlines()]
    everything = rows[-1]
    assert (rows[0]["kind"], rows[0]["requests"]) == ("PUT", 0)
    assert everything["dollars"] == pytest.approx(everything["bytes"] / 2**20)


def test_requests_are_counted_in_the_process_and_never_in_the_log() -> None:
    class RemoteMemory(MemoryBlob):
        is_remote = True

    store = RemoteMemory()
    with persist.open(store, settings=tuned(background=False)) as client:
        for number in range(150):
            client.write("orders", [{"id": number}], key=["id"], mode="append").result()
        client.maintain()
        records = client.seqno + 1
        requests, costs = client.metrics().store, estimate_costs(client)
        by_kind = {cost.kind: cost.requests for cost in costs.kinds}
        assert by_kind["PUT"] == requests["create"].requests + requests["set"].requests >= 150
        assert by_kind["GET"] == requests["get"].requests > 0
    with persist.open(store, mode="read") as client:
        assert client.seqno + 1 == records
        assert client.properties == {}
        costs = estimate_costs(client)
        assert costs.kinds[0].requests == costs.made == len([*store.list("")]), "each object took a PUT"


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize(
    "text", ["[]", "{", '{"gold": 1}', '{"puts_1000": "1"}', '{"puts_1000": -1}', '{"puts_1000": NaN}']
)
def test_prices_that_are_none_are_refused(shop: Path, tmp_path: Path, text: str, run: Run) -> None:
    (tmp_path / "prices.json").write_text(text)
    assert "prices.json" in run("cost", str(shop), "--prices", str(tmp_path / "prices.json"), status=2)


def test_logs_are_remarks_or_lines_or_json(
    shop: Path, capsys: pytest.CaptureFixture[str], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["maintain", str(shop), "--json"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["compact", str(shop), "orders", "--json", "--verbose"]) == 0
    assert "persist: compact: collections 1, in " in capsys.readouterr().err
    monkeypatch.setenv("PERSIST_LOG", "debug")
    assert main(["read", str(shop), "orders", "--format", "csv"]) == 0
    assert "Z debug persist.core.progress: read orders: rows 9, in 0." in capsys.readouterr().err
    monkeypatch.setenv("PERSIST_LOG", "debug,json")
    assert main(["delete", str(shop), "orders", "--where", "id = 3"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    [commit] = [line for line in lines if line.get("what") == "commit" and line["seqno"] is not None]
    assert {"at", "level", "logger", "message", "action", "location", "collections", "seconds"} <= {*commit}
    assert (commit["collections"], commit["level"]) == (["orders"], "debug")
    monkeypatch.setenv("PERSIST_LOG", "loud")
    assert "'loud' is neither a level nor a format" in run("ls", str(shop), status=2)


@pytest.mark.parametrize(
    ("said", "verbose", "wanted"),
    [
        ("", False, (30, "remark")), ("", True, (20, "remark")), ("json", False, (30, "json")),
        ("json", True, (20, "json")), ("error", True, (40, "line")), (" INFO , json", False, (20, "json")),
        ("json,debug", False, (10, "json")),
    ],
)  # fmt: skip
def test_a_level_and_a_format_are_chosen(said: str, verbose: bool, wanted: tuple[int, str]) -> None:
    assert parse_setting(said, verbose) == wanted
