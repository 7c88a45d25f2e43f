"""What each command prints, as a whole, and with which exit status: `transcript.md`, section by section."""

import shlex
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from persist.tools.cli.main import main
from tests.support.console import commands_of, matches
from tests.tools.cli.test_wording import PYTHON

SECTIONS = Path(__file__).with_name("transcript.md").read_text(encoding="utf-8").split("\n## ")[1:]
FILES = {
    "orders.csv": "id,status,amount\n1,new,9.5\n2,new,3.0\n3,,12.0\n",
    "more.csv": "id,status,amount\n3,paid,12.0\n4,new,1.0\n",
    "empty.csv": "id,status,amount\n",
    "bad.csv": "id,status,amount\n7,new,many\n8,new,1.0\n9\n",
    "times.csv": "id,_time,_diff,extra\n1,1,1,x\n1,2,-1,y\n2,2,2,z\n",
    "events.csv": "id,name,_deleted\n1,Ada,false\n2,Bob,false\n1,,true\n",
    "users.csv": "id,name\n1,Ada Lovelace\n2,Bob\n3,Eve\n",
    "keys.csv": "id\n2\n9\n",
    "queries.sql": "SELECT 1 AS one;\n.format\n.format json\n.tables ord\n.as-of 1\nSELECT count(*) AS n FROM orders;\n"
    '.as-of\nSELECT count(*) AS n\nFROM orders;\n.schema "orders"\nUPDATE orders SET amount = 7 WHERE id = 1;\n.help\n'
    "SELECT 2 AS two",
    "wrong.sql": ".format xml\n",
    "worse.sql": "SELECT 1 AS one; .exit\nexit;\nSELECT 2 AS two;\n",
    "views/paid.sql": "-- key: id\nSELECT id, amount FROM orders WHERE status = 'paid';\n",
    "views/sums/all.sql": "SELECT sum(amount) AS total FROM paid\n",
    "twice/a.b.sql": "SELECT 1 AS one",
    "twice/a/b.sql": "SELECT 2 AS one",
    "empty/.hidden.sql": "SELECT 1 AS one",
    "keyless/a.sql": "-- key: ,\nSELECT 1 AS one",
    "startless/a.sql": "-- key: one\n-- start:\nSELECT 1 AS one",
    "blank/a.sql": " ;\n",
    "other/paid.sql": "-- start: 1\nSELECT id FROM orders",
    "pairs.csv": "k,v\n1,5\n1,5\n",
    "rows.csv": "k,v\n1,9\n",
    "gone.csv": "k,v,_deleted\n1,9,false\n2,,true\n",
    "photos/cat.jpg": "cat",
    "open.json": "{}",
}


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.partition("\n")[0])
def test_each_command_prints_what_stands_there_and_ends_with_the_status(
    section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o644)
    for command, expected in commands_of(section):
        program, *arguments = shlex.split(command)
        if program == "cat":
            printed = Path(arguments[0]).read_text()
        else:
            with ExitStack() as stack:
                source = stack.enter_context(
                    open(arguments.pop() if "<" in arguments else "/dev/null", encoding="utf-8")
                )
                monkeypatch.setattr(sys, "stdin", source)
                status = main([argument for argument in arguments if argument != "<"])
            printed = "".join(capsys.readouterr()) + f"[{status}]\n" * bool(status)
        assert section[:6] != "Errors" or not PYTHON.search(printed), "it speaks of calls and arguments"
        assert matches(expected, printed.splitlines()), f"$ {command}\n{printed}\ninstead of\n" + "\n".join(expected)
