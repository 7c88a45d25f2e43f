"""Tags, names, keyed collections and views, from the command line."""

import json
import os
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


@pytest.mark.parametrize("name", ["events.csv", "events.jsonl"])
def test_events_of_a_keyed_collection_come_from_a_file(tmp_path: Path, capsys: Printed, run: Run, name: str) -> None:
    place = str(tmp_path / "new")
    columns = ["--key", "id:int64", "--value", "name:string", "--value", "seen:int64"]
    assert "go with --keyed" in run("create", place, "users", *columns, "--order-by", "seen", status=2)
    assert main(["create", place, "users", *columns, "--keyed"]) == 0
    rows = [(1, "old", 4, 1, "false"), (1, "a", 5, 1, "false"), (2, "b", 1, 1, "false"), (2, None, 2, 2, "true")]
    names = ("id", "name", "seen", "_time", "_deleted")
    if name.endswith("csv"):
        lines = [",".join(names), *(",".join("" if v is None else str(v) for v in row) for row in rows)]
    else:
        pairs = [dict(zip(names, (*row[:4], row[4] == "true"), strict=True)) for row in rows]
        lines = [json.dumps({k: v for k, v in pair.items() if v is not None}) for pair in pairs]
    file = tmp_path / name
    file.write_text("\n".join(lines))
    capsys.readouterr()
    command = ["upsert", place, "users", str(file), "--seal", "3"]
    assert "gave 4 events to users in 1 commit" in run(*command)
    assert "nothing was done" in run(*command)
    assert main(["read", place, "users", "--as-of", "1", "--columns", "id,name", "--json"]) == 0
    read = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sorted(read, key=lambda row: int(row["id"])) == [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
    assert told(run("read", place, "users", "--columns", "id", "--json")) == {"id": 1}
    assert main(["write", place, "users", str(file), "--ignore", "_deleted", "--mode", "append"]) == 2
    assert "its time 1 is sealed" in capsys.readouterr().err


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


def test_one_time_goes_out_as_parquet_and_comes_back(place: str, tmp_path: Path, capsys: Printed) -> None:
    folder = str(tmp_path / "out")
    assert main(["export", place, "orders", folder, "--as-of", "1"]) == 0
    assert main(["export", place, "orders", folder, "--as-of", "1"]) == 2
    columns = ["--key", "id:int64", "--value", "status:string", "--value", "amount:float64"]
    assert main(["create", place, "copy", *columns]) == 0
    [file] = os.listdir(folder)
    assert (
        main(["write", place, "copy", os.path.join(folder, file), "--time", "1", "--seal", "2", "--mode", "append"])
        == 0
    )
    capsys.readouterr()
    assert main(["read", place, "copy", "--columns", "id", "--json"]) == 0
    assert [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()] == [1, 2]


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
