"""Windows and first rows over partitions that are kept in order have the answers of whole partitions."""

import tracemalloc
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import persist
from persist.compute.dataflow.operators.large_groups import LargeGroups
from persist.compute.dataflow.state.costs import USUAL, Costs
from tests.compute.sql.oracle import changes, check

FIRST = "PARTITION BY a ORDER BY b DESC"
FIRST_ROWS = [
    "SELECT a, b, s FROM t QUALIFY row_number() OVER (PARTITION BY a ORDER BY b DESC, s) <= 2",
    f"SELECT a, b, s FROM t QUALIFY rank() OVER ({FIRST}) <= 3",
    f"SELECT a, b, s FROM t QUALIFY dense_rank() OVER ({FIRST}) <= 2",
    "SELECT a, b, s FROM t QUALIFY rank() OVER (ORDER BY s NULLS FIRST, m) <= 4",
]
ALL = "PARTITION BY a ORDER BY b DESC, s, m"  # DuckDB breaks ties as it likes.
OVER = "OVER (PARTITION BY a ORDER BY b)"
FRAMES = [
    "",
    "ROWS 1 PRECEDING",
    "ROWS BETWEEN 1 PRECEDING AND 2 FOLLOWING",
    "RANGE BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING",
]
FRAMES += ["ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING", "ROWS BETWEEN 2 FOLLOWING AND 3 FOLLOWING"]
FRAMES += ["ROWS BETWEEN UNBOUNDED PRECEDING AND 2 PRECEDING", "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 FOLLOWING"]
WINDOWS = [
    f"SELECT a, b, m, s, row_number() OVER ({ALL}) AS r FROM t",
    f"SELECT a, b, rank() {OVER} AS r, dense_rank() {OVER} AS d FROM t",
    f"SELECT a, b, percent_rank() {OVER} AS p, cume_dist() {OVER} AS c FROM t",
    f"SELECT a, b, m, s, ntile(3) OVER ({ALL}) AS r FROM t",
    f"SELECT a, b, m, s, lag(b, 2) OVER ({ALL}) AS r, lead(m, 1, 9) OVER ({ALL}) AS l FROM t",
    f"SELECT a, b, m, s, first_value(m) OVER ({ALL}) AS r, last_value(m) OVER ({ALL} ROWS 1 PRECEDING) AS l FROM t",
    f"SELECT a, b, m, s, first_value(s) OVER ({ALL} ROWS BETWEEN 2 PRECEDING AND 1 PRECEDING) AS r FROM t",
    f"SELECT a, b, count(*) {OVER} AS n, count(s) {OVER} AS c, sum(b) {OVER} AS t, avg(m) {OVER} AS v FROM t",
    "SELECT b, f, sum(f) OVER (ORDER BY b) AS t, sum(m) OVER (ORDER BY b) AS u FROM t",
    "SELECT b, count(*) OVER () AS n, sum(b) OVER () AS t FROM t",
    *(
        f"SELECT a, b, m, s, max(b) OVER ({ALL} {frame}) AS t, min(m) OVER ({ALL} {frame}) AS u FROM t"
        for frame in FRAMES
        if not frame.endswith("UNBOUNDED FOLLOWING")
    ),
    f"SELECT a, b, min(d) {OVER} AS x, max(f) {OVER} AS y, bool_or(b > 2) {OVER} AS z, sum(b) {OVER} AS t FROM t",
    *(f"SELECT a, b, m, s, sum(b) OVER ({ALL} {frame}) AS t, count(*) OVER ({ALL} {frame}) FROM t" for frame in FRAMES),
]


# Every group is ranked at once, in blocks of few records.
RANKED = Costs(large_rows=1, change_rows=0, block_rows=3, window_rows=2)


@pytest.fixture
def always_ranked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count what is done with ranked groups."""
    done = Counter[str]()
    changed = LargeGroups.apply_changes

    def counted(self: LargeGroups, *arguments: Any) -> Any:
        done["changed"] += 1
        return changed(self, *arguments)

    monkeypatch.setattr(LargeGroups, "apply_changes", counted)
    return done


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize("sql", FIRST_ROWS)
def test_first_rows_of_partitions_in_order(sql: str, always_ranked: Counter[str]) -> None:
    for seed in range(2):
        check(sql, changes(seed, steps=8, size=6), costs=RANKED)
    assert always_ranked["changed"] > 10


@pytest.mark.parametrize(
    "frame", ["GROUPS BETWEEN 1 PRECEDING AND 1 FOLLOWING", "RANGE BETWEEN 1 PRECEDING AND 1 FOLLOWING EXCLUDE GROUP"]
)
def test_functions_of_a_place_have_no_frame(frame: str, always_ranked: Counter[str]) -> None:
    every = ("row_number()", "rank()", "dense_rank()", "percent_rank()", "cume_dist()", "ntile(2)", "lag(b)", "lead(b)")
    shown = ", ".join(f"{each} OVER w AS f{at}" for at, each in enumerate(every))
    asked = f"SELECT a, b, {shown} FROM (SELECT DISTINCT a, b FROM t) WINDOW w AS (PARTITION BY a ORDER BY b {frame})"
    check(asked, changes(1, steps=3, size=6), costs=RANKED)
    assert always_ranked["changed"]


@pytest.mark.parametrize("costs", [RANKED, USUAL])
def test_a_frame_of_the_largest_number_of_rows_ends_with_its_partition(costs: Costs) -> None:
    far = 2**63 - 1
    frames = [f"{mode} BETWEEN 1 PRECEDING AND {far} FOLLOWING" for mode in ("ROWS", "GROUPS")]
    frames += [f"{mode} BETWEEN {far} FOLLOWING AND {far} FOLLOWING" for mode in ("ROWS", "GROUPS")]
    sums = ", ".join(f"sum(b) OVER ({ALL} {frame}) AS t{at}" for at, frame in enumerate(frames))
    check(f"SELECT a, b, m, s, {sums} FROM t", changes(1, steps=2, size=8), costs=costs)
    check(f"SELECT a FROM t ORDER BY a LIMIT {far} OFFSET 1", changes(1, steps=2, size=8), costs=costs)


@pytest.mark.thorough(except_every=16)
@pytest.mark.parametrize("sql", WINDOWS)
def test_windows_over_partitions_in_order(sql: str, always_ranked: Counter[str]) -> None:
    for seed in range(2):
        check(sql, changes(seed, steps=8, size=8), costs=RANKED)
    assert always_ranked["changed"] > 10


def test_a_row_that_moves_away_from_its_equals_changes_their_rank(always_ranked: Counter[str]) -> None:
    rows = [(1, b, text, None, None, None) for b, text in ((5, "a"), (5, "b"), (5, "c"), (5, "d"), (9, "e"))]
    moved = (1, 4, "z", None, None, None)
    steps = [{"t": [(row, 1) for row in rows]}, {"t": [(rows[0], -1), (moved, 1)]}, {"t": [(moved, -1), (rows[0], 1)]}]
    for sql in (f"SELECT s, rank() {OVER} AS r FROM t", f"SELECT s, sum(b) {OVER} - sum(b) {OVER} AS r FROM t"):
        check(sql, steps, costs=RANKED)
    assert always_ranked["changed"]


def test_a_row_that_goes_from_its_equals_to_a_place_of_its_own_changes_the_dense_rank_of_all_behind(
    always_ranked: Counter[str],
) -> None:
    rows = [(1, b, text, None, None, None) for b, text in ((5, "a"), (5, "b"), (7, "c"), (8, "d"), (9, "e"))]
    moved = (1, 4, "z", None, None, None)
    steps = [{"t": [(row, 1) for row in rows]}, {"t": [(rows[0], -1), (moved, 1)]}, {"t": [(moved, -1), (rows[0], 1)]}]
    check(f"SELECT s, dense_rank() {OVER} AS r FROM t", steps, costs=RANKED)
    assert always_ranked["changed"]


def test_copies_of_a_row_are_as_many_rows_in_the_reach_of_a_function(always_ranked: Counter[str]) -> None:
    rows = [(1, b, "x", None, None, None) for b in (2, 2, 3, 4)]
    ahead = [(1, b, "y", None, None, None) for b in (0, 1)]
    steps = [{"t": [(row, 1) for row in rows]}, {"t": [(row, 1) for row in ahead]}, {"t": [(rows[0], -1)]}]
    check(
        "SELECT b, s, first_value(s) OVER (PARTITION BY a ORDER BY b ROWS 2 PRECEDING) AS r FROM t", steps, costs=RANKED
    )
    assert always_ranked["changed"]


def test_a_first_build_of_a_window_holds_few_copies_of_its_rows() -> None:
    rows, chance = 400_000, np.random.default_rng(1)
    table = pa.table({"id": np.arange(rows), "g": chance.integers(0, 10, rows), "x": chance.integers(0, 1000, rows)})
    with persist.open("memory://copies") as client:
        facts = client.create_or_load("facts", key={"id": int}, value={"g": int, "x": int})
        facts.write(table, time=0, seal=1).result()
        view = client.create_view(
            "ranked", "SELECT id, row_number() OVER (PARTITION BY g ORDER BY x, id) AS r FROM facts"
        )
        tracemalloc.start()
        try:
            view.refresh()
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    # An update is 5 numbers, and 6 where it is arranged; Arrow's own memory does not count.
    assert most < 4.1 * 48 * rows
