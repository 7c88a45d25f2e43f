"""What the page about Python shows must run as it stands there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "use" / "python.md").read_text(encoding="utf-8")


RECIPES = re.findall(r"```python\n(.*?)```", PAGE[PAGE.index("## Recipes") : PAGE.index("## Plain rows")], re.DOTALL)


def write_files(folder: Path) -> None:
    """Leave the files that the recipes read."""
    (folder / "2026-11-20.csv").write_text("sku,count\nbolt,5\nnut,7\n")
    (folder / "2026-11-21.csv").write_text("sku,count\nbolt,5\nnut,6\nwasher,1\n")
    (folder / "events.csv").write_text("user,what,at\nada,login,2026-11-21T08:00:00Z\nada,buy,2026-11-21T08:05:00Z\n")


def run(script: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "PYTHONPATH": ""}
    return subprocess.run([sys.executable, "-c", script], cwd=folder, env=env, capture_output=True, text=True)


def test_each_recipe_has_four_lines_or_fewer_besides_imports() -> None:
    assert len(RECIPES) == 3
    for recipe in RECIPES:
        lines = [line for line in recipe.splitlines() if line and not line.startswith(("import ", "client = "))]
        assert len(lines) <= 4, recipe


def test_the_recipes_do_what_they_say(tmp_path: Path) -> None:
    write_files(tmp_path)
    done = run("\n".join(RECIPES), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    shown = [line.split()[1:] for line in done.stdout.splitlines() if "+00:00" in line and not line.startswith("ware")]
    at = ["2026-11-21", "00:00:00+00:00"]
    assert shown == [["nut", "7", *at, "-1"], ["nut", "6", *at, "1"], ["washer", "1", *at, "1"]]
    assert "'what': 'login'" in done.stdout


@pytest.mark.thorough
def test_a_consumer_that_is_killed_before_it_acknowledges_sees_it_all_again_and_nothing_after(tmp_path: Path) -> None:
    write_files(tmp_path)
    made, followed = RECIPES[1], RECIPES[2]
    begin = 'import pandas as pd, persist, functools\nclient = persist.open("here")\n'
    begin += "print = functools.partial(print, flush=True)\n"
    killed = followed.replace("    following.ack()", "    import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    first = run(begin + made + "client.close()\n", tmp_path)
    assert first.returncode == 0, first.stderr
    opened = begin + 'events = client.load("events")\n'
    told = [run(opened + script + "\nclient.close()\n", tmp_path) for script in (killed, killed, followed, followed)]
    assert [each.returncode for each in told] == [-9, -9, 0, 0], told[-1].stderr
    assert told[0].stdout == told[1].stdout == told[2].stdout != ""
    assert told[3].stdout == ""


def test_all_blocks_of_the_page_about_python_run_one_after_the_other(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) >= 5
    write_files(tmp_path)
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks))
    env = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "2026-11-21 18:00:00+00:00" in done.stdout
    assert "Antichain(11)" in done.stdout


def test_all_blocks_of_the_page_about_schemas_run_one_after_the_other(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "use" / "schemas.md").read_text(encoding="utf-8")
    script = tmp_path / "page.py"
    script.write_text("\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)))
    env = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
