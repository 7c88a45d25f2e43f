"""Which tests the first tier holds, and which share of the second is added."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ci_only import ALWAYS, WORTH, choose
from tests.support.paths import ROOT
from tests.support.tiers import is_in, read_ci_only

SUITE = """
import pytest
from hypothesis import given, settings, strategies as st
from tests.support.tiers import examples

@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize("case", [*"abc", pytest.param("d"), pytest.param("e", marks=pytest.mark.thorough)])
def test_of_some_cases(case): pass

@pytest.mark.thorough
def test_of_all(): pass

@pytest.mark.thorough
@pytest.mark.costly("it is only run with everything")
def test_that_is_costly(): pass

def test_of_every_run(): pass

@given(st.integers())
@settings(max_examples=examples(50))
def test_of_examples(number): print("example", number)
"""
FIRST = ["test_of_some_cases[a]", "test_of_some_cases[c]", "test_of_every_run", "test_of_examples"]
SECOND = ["test_of_some_cases[b]", "test_of_some_cases[d]", "test_of_some_cases[e]", "test_of_all"]


def run(folder: Path, *options: str) -> str:
    """Return what pytest says of the suite."""
    (folder / "test_suite.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.tiers", "-p", "no:cacheprovider", "--rootdir"]
    done = subprocess.run([*command, str(folder), *options, str(folder)], cwd=ROOT, capture_output=True, text=True)
    return done.stdout + done.stderr


def collected(folder: Path, share: float) -> list[str]:
    """Return the names of the tests that pytest would run."""
    lines = run(folder, "-q", "--collect-only", "--thorough", str(share)).splitlines()
    return [line.partition("::")[2] for line in lines if "::" in line]


@pytest.mark.thorough
def test_the_first_tier_leaves_out_what_is_marked_and_everything_has_it(tmp_path: Path) -> None:
    assert collected(tmp_path, 0) == FIRST
    assert sorted(collected(tmp_path, 1)) == sorted([*FIRST, *SECOND, "test_that_is_costly"])


def test_a_share_of_the_second_tier_holds_each_smaller_one() -> None:
    names = [f"test_{n}" for n in range(1000)]
    tenth, half = ({name for name in names if is_in(share, name)} for share in (0.1, 0.5))
    assert tenth < half
    assert (len(tenth), len(half)) == pytest.approx((100, 500), rel=0.2)


@pytest.mark.thorough
def test_a_share_is_added_to_the_first_tier(tmp_path: Path) -> None:
    some = [name for name in SECOND if is_in(0.99, f"test_suite.py::{name}")]
    assert sorted(collected(tmp_path, 0.99)) == sorted([*FIRST, *some])
    assert some


@pytest.mark.thorough
def test_the_first_tier_makes_the_same_few_examples_each_time(tmp_path: Path) -> None:
    runs = [run(tmp_path, "-s", "--thorough", "0", "-k", "examples") for _ in range(2)]
    examples = [[line for line in text.splitlines() if line.startswith("example")] for text in runs]
    assert examples[0] == examples[1]
    assert 1 < len(examples[0]) <= 5


@pytest.mark.thorough
def test_a_share_that_is_none_is_refused(tmp_path: Path) -> None:
    assert "--thorough 20: the share must be from 0 to 1" in run(tmp_path, "--thorough=20")


def test_dear_tests_without_lines_of_their_own_are_for_ci_only() -> None:
    costs_s = {"cheap": 0.01, "dear": 1.0, "dear twin": 1.1, "dear and idle": 0.5, "test_x.py::test_rule_1_holds": 9.0}
    lines = {("log.py", number) for number in range(int(2 * WORTH))}
    by_test = {"cheap": {("log.py", 0)}, "dear": lines, "dear twin": lines, "dear and idle": {("log.py", 0)}}
    assert choose(costs_s, by_test) == {"dear twin", "dear and idle"}


def test_each_test_that_only_ci_runs_exists() -> None:
    for name in read_ci_only():
        module, _, test = name.partition("::")
        assert f"def {test.partition('[')[0]}(" in (ROOT / module).read_text(), name
        assert not any(part in name for part in ALWAYS), name


def test_a_script_runs_each_module_with_tests_of_what_is_outside() -> None:
    listed = re.findall(r"tests/[\w/*]+\.py", (ROOT / "scripts" / "outside").read_text())
    modules = [path for path in (ROOT / "tests").rglob("test_*.py") if re.search(r"mark\.outside\b", path.read_text())]
    assert [path for path in modules if not any(path.match(pattern) for pattern in listed)] == []
    assert {"test_mysql.py", "test_page.py"} <= {path.name for path in modules}
