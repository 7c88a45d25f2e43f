"""Processor time is counted wherever it was spent."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SUITE = """
import os, signal, subprocess, sys, time

BUSY = "import time\\nwhile time.process_time() < 0.8: pass\\ntime.sleep(0.5)"

def test_that_is_idle():
    time.sleep(0.1)

def test_whose_children_nobody_waits_for():
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    child = os.fork()
    if not child:
        os.execv(sys.executable, [sys.executable, "-c", BUSY])
    try:
        os.waitpid(child, 0)
    except ChildProcessError:
        pass
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked at in /proc")
def test_the_costs_of_children_that_nobody_waits_for_are_their_tests(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-p", "tests.costs", "-q", "--costs", "9", "--rootdir", str(tmp_path)]
    done = subprocess.run([*command, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    costs = {name: float(cost) for cost, name in re.findall(r"([\d.]+) s  (.*)", done.stdout)}
    idle, busy = (
        "function test_suite.py::test_that_is_idle",
        "function test_suite.py::test_whose_children_nobody_waits_for",
    )
    assert 0.7 < costs[busy] < 3
    assert costs[idle] < costs[busy]
    assert list(costs).index(busy) < list(costs).index(idle)
