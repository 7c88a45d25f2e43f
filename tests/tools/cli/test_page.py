"""What the page about the command line shows is what happens."""

import re
from pathlib import Path

import pytest
import typer

from persist.tools.cli import dispatch
from persist.tools.cli.command import app
from tests.support.console import matches, run_page
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "use" / "command-line.md"
FILES = {
    "orders.csv": "order_id,status,amount\n1,new,9.5\n2,new,3.0\n3,paid,12.0\n",
    "report.sql": "SELECT max(amount) AS most FROM orders;\nSELECT count(*) AS n FROM orders;\n",
    "late.csv": "order_id,status,amount\n4,new,seven\n5,new\n",
    "views/counts.sql": "-- key: status\nSELECT status, count(*) AS n FROM orders GROUP BY status\n",
    "day2.csv": "order_id,status,amount\n1,paid,9.5\n3,paid,12.0\n",
}


def test_every_command_of_the_page_prints_what_stands_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "views").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    assert run_page(PAGE, capsys) >= 15


def test_what_a_page_expects_can_differ() -> None:
    assert matches(["a  b", "…", "x … z"], ["a b", "1", "2", "x y z"])
    assert not matches(["a", "…"], ["b"])
    assert not matches(["a"], ["a", "b"])


def test_every_command_is_on_a_page() -> None:
    assert dispatch.COMMANDS
    pages = PAGE.read_text() + (ROOT / "docs" / "run" / "operations.md").read_text()
    names = list(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    assert [name for name in names if not re.search(rf"persist {name}\b", pages)] == []
