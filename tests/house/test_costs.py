"""Processor time is counted wherever it was spent, and a test that takes much of it says why."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

SUITE = """
import subprocess, sys, time
import pytest
from tests.support import costs

costs.LIMIT_S = 0.4
DEAR_S = costs.LIMIT_S + 0.3
BUSY = "import time\\nwhile time.process_time() < 0.4: pass\\nprint('done', flush=True)\\ninput()"

def test_that_is_idle():
    time.sleep(0.1)

def test_whose_child_goes_on(running=[]):
    child = subprocess.Popen([sys.executable, "-c", BUSY], stdin=-1, stdout=-1, text=True)
    running.append(child)
    assert child.stdout.readline() == "done\\n"

def busy():
    end_s = time.process_time() + DEAR_S
    while time.process_time() < end_s:
        pass

def test_that_is_dear():
    busy()

@pytest.mark.costly("it counts to a large number")
def test_that_says_why():
    busy()

@pytest.fixture(scope="module")
def shared():
    busy()

def test_whose_fixture_is_shared(shared):
    pass
"""


@pytest.mark.thorough
@pytest.mark.costly("the suite has to take long")
def test_a_dear_test_is_named_unless_it_says_why_and_passes(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.costs", "-p", "no:cacheprovider", "-W", "ignore"]
    done = subprocess.run(
        [*command, "--costs-to", str(tmp_path / "costs"), "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    costs = {name.partition("::")[2]: s for name, s in json.loads((tmp_path / "costs").read_text())["tests"].items()}

    assert max(costs["test_that_is_idle"], 0.35) < costs["test_whose_child_goes_on"]
    assert costs["test_whose_fixture_is_shared"] < costs["test_that_is_dear"]
    assert "5 passed" in done.stdout
    assert "Make these tests cheaper" in done.stdout
    assert re.search(r"s  \S*test_suite\.py::test_that_is_dear\b", done.stdout), done.stdout
    assert "test_that_says_why" not in done.stdout
    assert "s of processor time; the costliest modules:" in done.stdout
    assert "s  test_suite.py" in done.stdout
