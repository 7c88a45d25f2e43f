"""The first records of groups, against sorting them: most are passed over by the first column of the order."""

import random
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from persist.compute.dataflow.operators import logic
from persist.compute.dataflow.state.costs import Costs
from persist.compute.dataflow.updates.words import NULL, Domain
from persist.dataflow import Program

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
def test_the_first_records_of_groups_are_those_that_sorting_gives(seed: int) -> None:
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
    made = logic.make_top_k_logic(count, [(0, True, True)], KINDS, domain, skip=skip)
    owners, values, taken = made(groups, np.array([first, texts, last]), diffs, lambda at: at)
    shown = domain.decode(values[1], pa.string()).to_pylist()
    assert list(zip(owners, values[0], shown, values[2], taken, strict=True)) == sorted_out(rows, count, skip)


def ranked_first(rows: list[tuple[int | None, int, int]], count: int, counted: str, down: bool) -> Counter[Any]:
    """Return the records, (first, last, diff), whose number among those of their group is at most count."""

    def place(first: int | None) -> tuple[bool, int]:
        return first is None, 0 if first is None else -first if down else first

    there = [row for row in rows if row[2] > 0]
    found = Counter[Any]()
    for first, last, diff in there:
        before = [row for row in there if place(row[0]) < place(first)]
        number = 1 + (len({row[0] for row in before}) if counted == "dense_rank" else sum(row[2] for row in before))
        if number <= count:
            found[first, last] = diff
    return found


@pytest.mark.parametrize("counted", ["rank", "dense_rank"])
@pytest.mark.parametrize("large", [False, True])
def test_records_that_agree_in_the_order_are_in_or_out_together(counted: Any, large: bool) -> None:
    costs = Costs(large_rows=1, change_rows=0, block_rows=3) if large else Costs()
    for seed in range(6):
        chance, count, down = random.Random(seed), seed % 4 + 1, seed % 2 > 0
        program, held, have = Program("first"), Counter[Any](), Counter[Any]()
        rows = program.input("rows", key={"g": pa.int64(), "first": pa.int64(), "last": pa.int64()})
        seen = rows.group_by("g").top_k(count, "first", descending=down, counted=counted).capture()
        with program.open(costs=costs) as running:
            for time in range(5):
                changes = Counter[Any]()
                for _ in range(5):
                    record = (chance.randrange(2), chance.choice([None, 1, 2, 3]), chance.randrange(2))
                    changes[record] += chance.choice([1, 1, 2, -1])
                running["rows"].insert([((record, None), time, diff) for record, diff in changes.items() if diff])
                running["rows"].advance_to(time + 1)
                running.step()
                held.update(changes)
                for row in seen.take().to_pylist():
                    have[row["g"], row["first"], row["last"]] += row["_diff"]
                want = Counter[Any]()
                for group in (0, 1):
                    own = [(first, last, diff) for (g, first, last), diff in held.items() if g == group]
                    for (first, last), diff in ranked_first(own, count, counted, down).items():
                        want[group, first, last] = diff
                assert {record: diff for record, diff in have.items() if diff} == want, (seed, time)
