"""What the first tier of the tests leaves out, and when it is run after all."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.sampling import chosen

ROOT = Path(__file__).parent.parent
SUITE = """
import pytest

@pytest.mark.sampled(0.5)
@pytest.mark.parametrize("case", range(4))
def test_of_many_cases(case): pass

@pytest.mark.sampled(0.5)
def test_of_a_pair(): pass

@pytest.mark.sampled(0.5)
def test_of_the_pair(): pass

def test_of_every_day(): pass
"""


@pytest.mark.parametrize(
    ("share", "seeds", "each"), [(0.2, 5, 2), (0.25, 5, 2), (0.01, 10, 1), (0.5, 2, 5), (1, 1, 10)]
)
@pytest.mark.parametrize("first_seed", [0, 739_577])
def test_successive_seeds_choose_everything_a_share_at_a_time(
    share: float, seeds: int, each: int, first_seed: int
) -> None:
    names = [f"test_{n}" for n in range(10)]
    samples = [chosen(names, share, seed) for seed in range(first_seed, first_seed + seeds)]
    assert [len(set(sample)) for sample in samples] == [each] * seeds
    assert set().union(*samples) == set(names)


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 1])
def test_a_test_that_stands_alone_is_chosen_by_every_seed(share: float) -> None:
    assert all(chosen(["test_this"], share, seed) == ["test_this"] for seed in range(739_577, 739_587))


def collected(folder: Path, *options: str) -> list[str]:
    """Return the names of the tests that pytest would run."""
    (folder / "test_suite.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-p", "tests.sampling", "-q", "--collect-only", "--rootdir", str(folder)]
    done = subprocess.run([*command, *options, str(folder)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line]


def test_a_sample_has_a_share_of_the_cases_and_of_the_functions_and_all_that_is_not_sampled(tmp_path: Path) -> None:
    samples = [collected(tmp_path, "--sample-seed", seed) for seed in ("0", "1")]

    for sample in samples:
        assert sum(name.startswith("test_of_many_cases") for name in sample) == 2
        assert sum(name.endswith("pair") for name in sample) == 1
        assert "test_of_every_day" in sample
    assert set().union(*samples) == set(collected(tmp_path))
    rest = collected(tmp_path, "--sample-seed", "0", "--rest-s", "60")
    assert sorted([*samples[0], *rest]) == sorted(set().union(*samples))


def test_no_more_of_the_rest_is_begun_when_time_is_over(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-p", "tests.sampling", "--sample-seed", "0", "--rest-s", "0"]
    done = subprocess.run(
        [*command, "--rootdir", str(tmp_path), str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert "3 skipped, 4 deselected" in done.stdout


def test_a_share_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "test_wrong.py").write_text("import pytest\n@pytest.mark.sampled(20)\ndef test_it(): pass\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.sampling", "--sample-seed", "1", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0
    assert "the share of a sample is 20" in done.stdout + done.stderr
