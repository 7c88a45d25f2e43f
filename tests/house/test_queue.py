"""Processes that share a list of modules run each test once, with the fixtures of its folder, the long ones first."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.queue import known_times_s, names_to_repeat

CONFTEST = """
import pytest

@pytest.fixture(scope="session")
def shared(): return []

@pytest.fixture(scope="package")
def folder(shared): return shared.append("folder")
"""
MODULE = """
def test_one(folder): pass
def test_two(folder, shared): assert shared == ["folder"] * len(shared)
"""
GOOD = "def test_that_passes(): pass"
BAD = "def test_that_fails(): assert False"
CRASH = "import os, signal\ndef test_that_crashes(): os.kill(os.getpid(), signal.SIGKILL)"


def begin(root: Path, queue: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.queue", "-p", "no:cacheprovider", "-rA", "--tb=no"]
    return subprocess.Popen(
        [*command, "--rootdir", str(root), "--queue", str(queue), "."],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.thorough
def test_each_test_is_run_once_by_one_of_two_processes(tmp_path: Path) -> None:
    root = tmp_path / "suite"
    for folder in "ab":
        (root / folder).mkdir(parents=True)
        (root / folder / "conftest.py").write_text(CONFTEST)
        for number in range(3):
            (root / folder / f"test_{folder}{number}.py").write_text(MODULE)
    (root / "test_bad.py").write_text(BAD)

    running = [begin(root, tmp_path / "queue") for _ in range(2)]
    outputs = [process.communicate()[0] for process in running]

    lines = [line.split()[:2] for output in outputs for line in output.splitlines() if "::" in line]
    good = [
        f"{folder}/test_{folder}{n}.py::test_{name}" for folder in "ab" for n in range(3) for name in ("one", "two")
    ]
    assert sorted(lines) == [["FAILED", "test_bad.py::test_that_fails"], *(["PASSED", name] for name in good)], outputs
    assert sorted(process.returncode for process in running) == [0, 1], "whoever comes too late has not failed"


def test_what_failed_and_the_module_whose_process_crashed_are_to_be_repeated(tmp_path: Path) -> None:
    root, queue = tmp_path / "suite", tmp_path / "queue"
    root.mkdir()
    for name, text in (("a", BAD), ("b", GOOD), ("c", CRASH), ("d", GOOD)):
        (root / f"test_{name}.py").write_text(text)

    crashed = begin(root, queue)
    output = crashed.communicate()[0]
    assert crashed.returncode == -signal.SIGKILL, output
    assert names_to_repeat(queue) == ["test_a.py::test_that_fails", "test_c.py", "test_d.py"]


def test_the_modules_that_come_first_are_there() -> None:
    assert [module for module in known_times_s() if not (ROOT / module).is_file()] == []
