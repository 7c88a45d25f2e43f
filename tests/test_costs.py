"""Processor time is counted wherever it was spent, and a test that takes much of it says why."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SUITE = """
import subprocess, sys, time
BUSY = "import time\\nwhile time.process_time() < 0.8: pass\\nprint('done', flush=True)\\ninput()"

def test_that_is_idle():
    time.sleep(0.1)

def test_whose_child_goes_on(running=[]):
    child = subprocess.Popen([sys.executable, "-c", BUSY], stdin=-1, stdout=-1, text=True)
    running.append(child)
    assert child.stdout.readline() == "done\\n"
"""


def test_what_a_child_used_is_the_cost_of_its_test(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-p", "tests.costs", "-p", "no:cacheprovider", "-W", "ignore"]
    done = subprocess.run(
        [*command, "--costs-to", str(tmp_path / "costs"), "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    costs = {name.partition("::")[2]: s for name, s in json.loads((tmp_path / "costs").read_text())["tests"].items()}

    assert costs["test_that_is_idle"] < 0.7 < costs["test_whose_child_goes_on"]
    assert "s of processor time; the costliest modules:" in done.stdout
    assert "s  test_suite.py" in done.stdout
