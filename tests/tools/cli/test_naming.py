"""Tags, names, keyed collections and views, from the command line."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.tools.cli.main import main
from tests.support.console import Run

Printed = pytest.CaptureFixture[str]


@pytest.fixture
def place(tmp_path: Path) -> str:
    location = str(tmp_path / "location")
    with persist.open(location, settings=persist.Settings(background=False)) as client:
        orders = client.create_or_load("orders", key={"id": "int64"}, value={"status": "string", "amount": "float64"})
        orders.write([((1, ("new", 2.0)), 1, 1), ((2, ("new", 3.0)), 1, 1)], seal=2).result()
        orders.write([((1, ("new", 2.0)), 5, -1), ((1, ("paid", 2.0)), 5, 1)], seal=6).result()
    return location


def told(printed: str) -> Any:
    return json.loads(printed)


def told_rows(printed: str) -> list[Any]:
    return [json.loads(line) for line in printed.splitlines()]


def test_a_collection_that_keeps_its_name_writes_no_record(place: str) -> None:
    with persist.open(place) as client:
        before = client.seqno
        assert client.load("orders").rename("orders").result() == before
        orders = client.load("orders")
        renamed, back = orders.rename("sales"), orders.rename("orders")
        assert (renamed.result(), back.result()) == (before + 1, before + 2)


def test_what_a_refresh_keeps_is_bounded_and_a_bound_that_is_none_is_refused(
    place: str, tmp_path: Path, run: Run
) -> None:
    assert main(["view", place, "totals", "SELECT status, sum(amount) AS total FROM orders GROUP BY status"]) == 0
    bounds = ["--memory-budget", "0", "--spill-folder", str(tmp_path)]
    for names in (["totals"], []):
        run("refresh", place, *names, *bounds)
        printed = run("refresh", place, *names, "--memory-budget", "-1", status=2)
        assert "--memory-budget -1 is not a number of bytes" in printed
        assert "is not a folder" in run("refresh", place, *names, "--spill-folder", str(tmp_path / "missing"), status=2)


def test_without_names_all_views_are_refreshed_in_one_commit(place: str, capsys: Printed, run: Run) -> None:
    assert main(["refresh", place]) == 0
    assert "there is no view here" in capsys.readouterr().err
    assert main(["view", place, "totals", "SELECT status, sum(amount) AS total FROM orders GROUP BY status"]) == 0
    assert main(["view", place, "large", "SELECT * FROM totals WHERE total > 2"]) == 0
    with persist.open(place) as client:
        client.load("orders").write([((3, ("paid", 1.0)), 7, 1)], seal=8).result()
    capsys.readouterr()
    assert sorted(run("refresh", place).splitlines()) == [
        "large is up to date before 8",
        "totals is up to date before 8",
    ]
    with persist.open(place) as client:
        appended = [each["collections"] for each in client.history().to_pylist() if "append" in each["operations"]]
    assert {"large", "totals"} <= {*appended[-1]}


def test_a_view_that_reads_a_view_needs_it_at_no_time(place: str, run: Run) -> None:
    assert main(["view", place, "paid", "SELECT id, amount FROM orders WHERE status = 'paid'"]) == 0
    run("view", place, "total", "SELECT sum(amount) AS total FROM paid")
    for command in (["show", place, "paid"], ["holds", place]):
        shown = run(*command)
        assert "view total" in shown
        assert str(2**63 - 2) not in shown
    assert [hold["time"] for hold in told(run("show", place, "paid", "--json"))["holds"]] == [None]
    assert [hold["time"] for hold in told_rows(run("holds", place, "paid", "--json"))] == [None]


@pytest.mark.parametrize("format", ["csv", "json"])
def test_times_of_day_and_durations_come_back_from_text(format: str, place: str, tmp_path: Path) -> None:
    units, counts = ("s", "ms", "us", "ns"), [90_061, -1, None, 5_000, 86_400_000_001]
    columns = {f"d_{unit}": pa.array(counts, pa.int64()).cast(pa.duration(unit)) for unit in units}
    times = pa.array([0, 86_399_999_999, None, 1, 3_600_000_000], pa.int64())
    rows = pa.table({"id": range(5), **columns, "t": times.cast(pa.time64("us"))})
    with persist.open(place) as client:
        client.write("kinds", rows, key=["id"]).result()
    file = str(tmp_path / f"kinds.{format}")
    assert main(["read", place, "kinds", "--output", file]) == 0
    assert main(["write", place, "kinds", file, "--mode", "overwrite"]) == 0
    with persist.open(place) as client:
        assert client["kinds"].snapshot().to_arrow().sort_by("id").select(rows.column_names).equals(rows)
