"""Tables: what is cut and what stays whole, and lists for programs."""

import re
import signal
import subprocess
from pathlib import Path

import pytest

import persist
from persist.tools.cli.text import print_table
from tests.support.console import Run
from tests.support.forks import forked_python

Printed = pytest.CaptureFixture[str]


@pytest.mark.parametrize("width", [30, 44, 60, 100])
def test_a_table_fits_and_keeps_all_of_its_values(width: int, capsys: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    rows = [("a-long-name", 10**6, "xyz " * 20), ("b", 2, "x\x1b[2J[red]")]
    print_table(("name", "rows", "text"), rows, right=[1], texts=[2])
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert all(len(line) <= width for line in lines)
    assert lines[0].split() == ["name", "rows", "text"]
    assert {"a-long-name", "1000000", "b", "2"} <= {word for line in lines for word in line.split()}
    assert " ".join(lines).count("xyz") == 20
    assert width < 60 or any("x\\x1b[2J[red]" in line for line in lines)


def test_a_name_of_any_length_stays_whole_in_a_pipe(tmp_path: Path, run: Run) -> None:
    name = "n" * 255
    with persist.open(tmp_path) as client:
        client.write(name, [{"id": 1, "text": "t" * 300}], key=["id"]).result()
    for command in ("ls", "status"):
        assert name in run(command, str(tmp_path))
    assert "t" * 120 not in run("read", str(tmp_path), name)


@pytest.fixture
def place(tmp_path: Path) -> str:
    with persist.open(tmp_path / "shop", settings=persist.Settings(background=False)) as client:
        orders = client.create_or_load("orders", key={"k": int}, timeline="ms")
        orders.write([(1, None)], time="2026-01-01", seal="2026-01-02").result()
        orders.tag("first", "2026-01-01")
    return str(tmp_path / "shop")


def test_what_is_watched_is_shown_again_when_it_changes_and_ends_well(place: str, run: Run) -> None:
    assert "--watch shows a table" in run("ls", place, "--watch", "--json", status=2)
    command = [*forked_python(), "-m", "persist", "ls", place, "--watch"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline().startswith("name")
        assert "2026-01-02T00:00:00Z" in watching.stdout.readline()
        with persist.open(place, settings=persist.Settings(background=False)) as client:
            client.load("orders").seal("2026-01-03").result()
        while "2026-01-03T00:00:00Z" not in watching.stdout.readline():
            pass
        watching.send_signal(signal.SIGINT)
        watching.stdout.read()
    assert watching.returncode == 0
