"""Each path within its share of memory, in a process of its own: `python -m benchmarks.budgets` has the same paths."""

import sys
from pathlib import Path

import pytest

from benchmarks.budgets import PATHS, measured, prepared

BUDGET = 16 << 20
ROWS = 1_500_000  # About 90 MiB decoded, in each of four collections.

# How many MiB a path may take at most: what was measured, and a third more for what allocators keep of what was freed,
# which differs from run to run. `docs/inside/performance.md` says what those hold besides that take the most.
USUAL = 120
BOUNDS = {
    "consumer": 200,
    "write a dataset": 290,
    "ingest files": 210,
    "upsert everything": 340,
    "read sealed unresolved events": 165,
    "put back": 155,
    "merge runs": 200,
    "maintain": 200,  # It merges runs.
    "keyframe": 150,
    "overwrite": 130,
    "delete where": 130,
    "drop history": 130,
    "seal pending events": 135,
    "index": 160,
    "publish delta": 155,
    "publish iceberg": 155,
    "export parquet": 170,
    "fsck": 200,
    "verify": 200,
    "view filter": 300,
    "view group": 320,
    "view group of a history": 720,
    "view join": 800,
    "view window": 620,
    "view distinct": 670,
    "sql sort": 280,
    "sql group": 135,
    "sql update": 260,
    "as of join": 130,
}


def test_bounds_are_of_paths_that_there_are() -> None:
    assert BOUNDS.keys() <= PATHS.keys()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where prepared locations are, for all paths."""
    folder = tmp_path_factory.mktemp("budgets")
    prepared(folder, ROWS, BUDGET)
    return folder


@pytest.mark.thorough
@pytest.mark.costly("four collections of 1.5 million rows are written for it")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forgets the peak of a process")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PATHS)
def test_a_path_takes_no_more_than_its_bound(name: str, folder: Path) -> None:
    taken = measured(name, folder, ROWS, BUDGET).resident / 2**20
    assert taken <= BOUNDS.get(name, USUAL), f"{name} takes {taken:.0f} MiB with a budget of {BUDGET >> 20}"
