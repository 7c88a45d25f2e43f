"""What the README and the page about Python show can be pasted into an interactive Python, where a blank line ends a
block, and only a blank line does."""

import os
import re
import subprocess
import sys
from codeop import compile_command
from pathlib import Path

import pytest

from tests.support.forks import forked_python
from tests.support.paths import ROOT

PAGES = ["README.md", "docs/use/python.md", "docs/use/schemas.md", "docs/use/events.md"]


def blocks_of(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


def pasted(block: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Feed a block to an interactive Python, line by line as a terminal does."""
    env = {**os.environ, "PYTHONPATH": "", "PYTHONSTARTUP": "", "PYTHON_BASIC_REPL": "1"}
    command = [sys.executable, "-i", "-q"]
    return subprocess.run(command, cwd=folder, env=env, input=block + "\n\n", capture_output=True, text=True)


@pytest.mark.parametrize("page", PAGES)
def test_each_line_of_each_block_is_taken_where_it_stands(page: str) -> None:
    assert blocks_of(page)
    for block in blocks_of(page):
        waiting: list[str] = []
        for line in [*block.splitlines(), ""]:
            waiting.append(line)
            if compile_command("\n".join(waiting), symbol="single") is not None:
                waiting.clear()
        assert waiting in ([], [""]), block


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("page", "said"), [("README.md", ""), ("docs/use/python.md", "Antichain(11)"), ("docs/use/schemas.md", "")]
)
def test_a_page_runs_when_it_is_pasted_into_an_interactive_python(page: str, said: str, tmp_path: Path) -> None:
    done = pasted("\n\n".join(blocks_of(page)), tmp_path)
    for word in ("Error", "Traceback", "Warning"):
        assert word not in done.stderr, done.stderr[-3000:]
    assert done.returncode == 0
    assert said in done.stdout


@pytest.mark.parametrize(("page", "said"), [("python", "2026-11-21 18:00:00+00:00"), ("schemas", "")])
def test_all_blocks_of_a_page_run_one_after_the_other(page: str, said: str, tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks_of(f"docs/use/{page}.md")))
    done = subprocess.run([*forked_python(), str(script)], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert said in done.stdout
