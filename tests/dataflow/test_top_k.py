"""The first records of groups, against sorting them: most are passed over by the first column of the order."""

import numpy as np
import pyarrow as pa
import pytest

from persist.dataflow.operators import logic
from persist.dataflow.updates.words import NULL, Domain

KINDS = [pa.int64(), pa.string(), pa.int64()]


def sorted_out(
    rows: list[tuple[int, int, str, int, int]], count: int, skip: int
) -> list[tuple[int, int, str, int, int]]:
    """Return what is left of (group, number, text, number, diff): by the number against its order, NULL first, then by
    the others."""
    found = []
    for group in sorted({row[0] for row in rows}):
        here = [row for row in rows if row[0] == group and row[4] > 0]
        here.sort(key=lambda row: (row[1] != NULL, -row[1], row[2], row[3]))
        passed, left = skip, count
        for row in here:
            hidden = min(passed, row[4])
            shown = min(row[4] - hidden, left)
            passed, left = passed - hidden, left - shown
            if shown:
                found.append((*row[:4], shown))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_the_first_records_of_groups_are_those_that_sorting_gives(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logic, "FOREMOST_ROWS", 1)
    random_, domain = np.random.default_rng(seed), Domain()
    count, skip = int(random_.integers(1, 6)), int(random_.integers(0, 3))
    drawn = {
        (int(group), NULL if first == 0 else int(first), str(text), int(last)): int(diff)
        for group, first, text, last, diff in zip(
            random_.integers(0, 4, 60), random_.integers(0, 8, 60), random_.choice(["a", "b", "é", ""], 60),
            random_.integers(0, 3, 60), random_.choice([-1, 1, 1, 2, 5], 60), strict=True,
        )
    }  # fmt: skip
    rows = sorted((*record, diff) for record, diff in drawn.items())
    texts = domain.encode(pa.chunked_array([[row[2] for row in rows]]))
    groups, first, last, diffs = (np.array([row[at] for row in rows], np.int64) for at in (0, 1, 3, 4))
    made = logic.top_k(count, [(0, True, True)], KINDS, domain, skip=skip)
    owners, values, taken = made(groups, np.array([first, texts, last]), diffs, lambda at: at)
    shown = domain.decode(values[1], pa.string()).to_pylist()
    assert list(zip(owners, values[0], shown, values[2], taken, strict=True)) == sorted_out(rows, count, skip)
