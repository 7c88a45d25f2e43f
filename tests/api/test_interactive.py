"""What the README and the page about Python show can be pasted into an interactive Python, where a blank line ends a
block, and only a blank line does."""

import os
import re
import subprocess
import sys
from codeop import compile_command
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PAGES = ["README.md", "docs/use/python.md", "docs/use/schemas.md", "docs/use/events.md"]


def blocks_of(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


def pasted(block: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Feed a block to an interactive Python, line by line as a terminal does."""
    env = {**os.environ, "PYTHONPATH": "", "PYTHONSTARTUP": "", "PYTHON_BASIC_REPL": "1"}
    command = [sys.executable, "-i", "-q"]
    return subprocess.run(command, cwd=folder, env=env, input=block + "\n\n", capture_output=True, text=True)


def assert_clean(done: "subprocess.CompletedProcess[str]") -> None:
    for word in ("Error", "Traceback", "Warning"):
        assert word not in done.stderr, done.stderr[-3000:]
    assert done.returncode == 0


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


def test_the_readme_runs_when_it_is_pasted_into_an_interactive_python(tmp_path: Path) -> None:
    done = pasted("\n\n".join(blocks_of("README.md")), tmp_path)
    assert_clean(done)
    assert done.stdout


@pytest.mark.thorough
def test_the_page_about_python_runs_when_it_is_pasted_into_an_interactive_python(tmp_path: Path) -> None:
    done = pasted("\n\n".join(blocks_of("docs/use/python.md")), tmp_path)
    assert_clean(done)
    assert "Antichain(11)" in done.stdout
    assert "2026-11-21 18:00:00+00:00" in done.stdout
