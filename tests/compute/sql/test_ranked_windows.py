"""Windows and first rows over partitions that are kept in order have the answers of whole partitions."""

import tracemalloc
from collections import Counter
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import persist
from persist.compute.dataflow.operators.join import BoundedJoin
from persist.compute.dataflow.state.costs import USUAL, Costs
from persist.compute.dataflow.state.ranked import Ranked
from persist.compute.dataflow.updates.times import Ints
from persist.compute.sql.algebra import TopK, iterate_nodes
from persist.compute.sql.compile import plan_query
from persist.compute.sql.rewrite import rewrite_plan
from persist.dataflow import Program, col
from tests.compute.dataflow.test_large_groups import always_ranked
from tests.compute.sql.oracle import TABLES, changes, check, schemas

__all__ = ["always_ranked"]  # A fixture.
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


@pytest.mark.thorough(except_every=9)
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


@pytest.mark.thorough(except_every=32)
@pytest.mark.parametrize("sql", WINDOWS)
def test_windows_over_partitions_in_order(sql: str, always_ranked: Counter[str]) -> None:
    for seed in range(2):
        check(sql, changes(seed, steps=8, size=8), costs=RANKED)
    assert always_ranked["changed"] > 10


@pytest.mark.parametrize(
    ("values", "functions"),
    [((5, 5, 5, 5, 9), ["rank() {0}", "sum(b) {0} - sum(b) {0}"]), ((5, 5, 7, 8, 9), ["dense_rank() {0}"])],
)
def test_a_row_that_moves_away_from_its_equals_changes_the_rank_of_others(
    values: tuple[int, ...], functions: list[str], always_ranked: Counter[str]
) -> None:
    rows = [(1, b, text, None, None, None) for b, text in zip(values, "abcde", strict=True)]
    moved = (1, 4, "z", None, None, None)
    steps = [{"t": [(row, 1) for row in rows]}, {"t": [(rows[0], -1), (moved, 1)]}, {"t": [(moved, -1), (rows[0], 1)]}]
    for function in functions:
        check(f"SELECT s, {function.format(OVER)} AS r FROM t", steps, costs=RANKED)
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


BOUNDED = [
    "SELECT b, sum(a) AS s FROM t GROUP BY b HAVING sum(a) > (SELECT sum(a) * 0.2 FROM t)",
    "SELECT s, count(*) AS n FROM t GROUP BY s HAVING count(*) * 5 <= (SELECT count(*) FROM t)",
    "SELECT a, b FROM t WHERE b > (SELECT avg(b) FROM t)",
    "SELECT a, b FROM t WHERE (SELECT max(b) FROM u) < b",
    "SELECT a, f FROM t WHERE f >= (SELECT min(x) FROM w)",
    "SELECT a, s FROM t WHERE s < (SELECT max(s) FROM u) AND a > 1",
    "SELECT a, m FROM t WHERE m >= (SELECT avg(b) FROM u)",
    "SELECT a, d FROM t WHERE d <= (SELECT max(d) - 30 FROM t)",
]
WHOLE = [
    "SELECT a, b FROM t WHERE b = (SELECT max(b) FROM u)",
    "SELECT a, b, c FROM t, (SELECT max(b) AS c FROM u) WHERE b < c",
    "SELECT a, b FROM t, (SELECT max(b) AS c, min(b) AS e FROM u) WHERE b < c AND b > e",
]


NAN = float("nan")
EARLY = datetime(2020, 1, 2)


# Every left is kept in order, in blocks of few records.
LOOKED_UP = Costs(large_rows=1, change_rows=0, block_rows=2)


@pytest.fixture
def always_looked_up(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count what is looked up in what is kept in order."""
    done, between = Counter[str](), Ranked.select_between

    def counted(self: Ranked, one: int, other: int) -> Ints:
        done["between"] += 1
        return between(self, one, other)

    monkeypatch.setattr(Ranked, "select_between", counted)
    return done


@pytest.mark.thorough(except_every=9)
@pytest.mark.parametrize("sql", BOUNDED)
def test_what_lies_between_two_bounds_is_looked_up(sql: str, always_looked_up: Counter[str]) -> None:
    for seed in range(5):
        check(sql, changes(seed, steps=8, size=6), costs=LOOKED_UP)
    assert always_looked_up["between"] > 1


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize("sql", WHOLE)
def test_a_join_that_shows_its_bound_or_asks_for_more_looks_up_all(sql: str, always_looked_up: Counter[str]) -> None:
    check(sql, changes(1), costs=LOOKED_UP)
    assert not always_looked_up["between"]


ORDERED = [
    (pa.float64(), pa.float64(), [1.0, 7.0, NAN, None], [5.0, NAN], False),
    (pa.float64(), pa.float64(), [1.0, 7.0, NAN, None], [NAN, 5.0, 0.5], False),
    (pa.int64(), pa.float64(), [1, 3, 7], [5.0, 2.0], False),
    (pa.decimal128(9, 2), pa.decimal128(9, 3), [Decimal("1.00"), Decimal("3.00")], [Decimal(5), Decimal(2)], False),
    (pa.date32(), pa.timestamp("us"), [date(2020, 1, 1), date(2020, 1, 3)], [datetime(2020, 1, 5), EARLY], False),
    (pa.int64(), pa.int64(), [1, 3, 7, None], [5, 2, None, 9], True),
]


@pytest.mark.parametrize(("of_left", "of_bound", "values", "bounds", "is_ordered"), ORDERED)
def test_only_what_has_the_order_of_the_comparison_is_looked_up_by_it(
    of_left: pa.DataType,
    of_bound: pa.DataType,
    values: list[Any],
    bounds: list[Any],
    is_ordered: bool,
    always_looked_up: Counter[str],
) -> None:
    program = Program("below")
    left, right = program.input("left", key={"x": of_left}), program.input("right", key={"y": of_bound})
    seen = left.cross(right).filter(col("x") < col("y")).map(x=col("x")).capture()
    with program.open(costs=LOOKED_UP) as running:
        running["left"].insert([((value, None), 0, 1) for value in values])
        before: list[Any] = []
        below = Counter[Any]()
        for time, bound in enumerate(bounds):
            running["right"].insert([((value, None), time, diff) for value, diff in [*before, (bound, 1)]])
            before = [(bound, -1)]
            for name in ("left", "right"):
                running[name].advance_to(time + 1)
            running.step()
            for row in seen.take().to_pylist():
                below[row["x"]] += row["_diff"]
            want = [value for value in values if None not in (value, bound) and _moment(value) < _moment(bound)]
            assert sorted(below.elements()) == want
    assert bool(always_looked_up["between"]) == is_ordered


def _moment(value: Any) -> Any:
    return datetime(value.year, value.month, value.day) if isinstance(value, date) else value


@pytest.mark.thorough
def test_what_is_kept_in_order_is_dropped_when_many_rows_change(
    always_looked_up: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped = Counter[bool]()
    run = BoundedJoin.run

    def counted(self: BoundedJoin) -> None:
        had = self.bytes() > 0
        run(self)
        dropped[had and not self.bytes()] += 1

    monkeypatch.setattr(BoundedJoin, "run", counted)
    for seed in range(6):
        check(BOUNDED[2], changes(seed, steps=8, size=3 + seed), costs=replace(LOOKED_UP, change_rows=2))
    assert dropped[True]
    assert always_looked_up["between"]


BY = "PARTITION BY a ORDER BY b DESC, m, s"
PEERS = "PARTITION BY a ORDER BY b DESC"
NUMBER = f"SELECT a, b, m, s, row_number() OVER ({BY}) AS r FROM t"
FOREMOST = {
    f"SELECT * FROM ({NUMBER}) WHERE r <= 3": 3,
    f"SELECT a, b FROM ({NUMBER}) WHERE r = 1 AND m > 0": 1,
    f"SELECT * FROM ({NUMBER}) WHERE 3 > r AND r > 1": 2,
    f"SELECT * FROM ({NUMBER}) WHERE r < 2.5": 2,
    f"SELECT * FROM ({NUMBER}) WHERE r::INTEGER BETWEEN 2 AND 3": 3,
    f"SELECT * FROM ({NUMBER}) WHERE r <= CAST(2.6 AS INTEGER)": 3,
    f"{NUMBER} QUALIFY r IN (1, 3)": 3,
    f"{NUMBER} QUALIFY r = 1 OR (r = 2 AND b > 1)": 2,
    f"SELECT a, b, m, s, lag(b, 2) OVER ({BY}) AS l FROM t QUALIFY row_number() OVER ({BY}) <= 2": 2,
    f"SELECT a, b, rank() OVER ({PEERS}) AS r FROM t QUALIFY r <= 2": 2,
    f"SELECT a, b, dense_rank() OVER ({PEERS}) AS r, sum(b) OVER ({PEERS}) FROM t QUALIFY r <= 2": 2,
    "SELECT a, b FROM t QUALIFY rank() OVER (ORDER BY b, m NULLS FIRST) <= 4": 4,
    "SELECT a, b FROM t QUALIFY row_number() OVER (PARTITION BY a + 1 ORDER BY b) <= 2": 2,
    "SELECT t.a, l.b FROM t, LATERAL (SELECT b FROM u WHERE u.a = t.a ORDER BY b LIMIT 2) l": 2,
    "SELECT t.a, (SELECT b FROM u WHERE u.a = t.a ORDER BY b LIMIT 1) AS l FROM t": 1,
}
FOREMOST |= {
    f"SELECT a, m, s, sum(b) OVER ({BY} ROWS UNBOUNDED PRECEDING) AS l FROM t QUALIFY row_number() OVER ({BY}) < 3": 2,
    f"SELECT a, b, m, s, lag(b) OVER ({BY}) AS l, lag(b, 0) OVER ({BY}) FROM t QUALIFY row_number() OVER ({BY}) < 4": 3,
    f"SELECT a, b, max(b) OVER ({PEERS} ROWS UNBOUNDED PRECEDING) AS l FROM t QUALIFY rank() OVER ({PEERS}) = 2": 2,
    f"SELECT a, b, rank() OVER ({PEERS}) AS r, row_number() OVER ({PEERS}) FROM t QUALIFY r <= 2": 2,
    f"SELECT a, rank() OVER ({PEERS}) AS r, dense_rank() OVER ({PEERS}) AS k FROM t QUALIFY r <= 3 AND k <= 2": 2,
    f"SELECT * FROM ({NUMBER}) WHERE r <= 1000": 1000,
    f"SELECT * FROM ({NUMBER}) WHERE r < 1.0": 0,
    f"SELECT * FROM ({NUMBER}) WHERE r < 1.5": 1,
    f"SELECT * FROM ({NUMBER}) WHERE 2 = r": 2,
}
FOREMOST = {sql: most for sql, most in FOREMOST.items() if most}  # No place is 0: such a condition is left as it is.
ALL_ROWS = [
    f"SELECT * FROM ({NUMBER}) WHERE r < 1.0",
    f"SELECT * FROM ({NUMBER}) WHERE r < b",
    f"SELECT * FROM ({NUMBER}) WHERE 3 <= r",
    f"SELECT * FROM ({NUMBER}) WHERE r IN (1, b)",
    f"SELECT * FROM ({NUMBER}) WHERE r <> 1",
    f"SELECT * FROM ({NUMBER}) WHERE r <= NULL",
    f"SELECT * FROM ({NUMBER}) WHERE r <= 'NaN'::DOUBLE",
    f"SELECT a, b, ntile(2) OVER ({BY}) AS l FROM t QUALIFY row_number() OVER ({BY}) <= 2",
    f"SELECT a, b, sum(b) OVER ({BY} ROWS 1 PRECEDING) AS l FROM t QUALIFY row_number() OVER ({BY}) <= 2",
    f"SELECT a, b, sum(b) OVER ({BY} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 FOLLOWING) FROM t "
    f"QUALIFY row_number() OVER ({BY}) <= 2",
    f"SELECT a, sum(b) OVER ({BY} ROWS UNBOUNDED PRECEDING EXCLUDE TIES) FROM t QUALIFY row_number() OVER ({BY}) < 3",
    f"SELECT a, b, sum(b) OVER ({PEERS}) AS l FROM t QUALIFY row_number() OVER ({BY}) <= 2",
    f"SELECT * FROM ({NUMBER}) WHERE r >= 2",
    f"SELECT * FROM ({NUMBER}) WHERE r <= b",
    f"SELECT * FROM ({NUMBER}) WHERE r::BOOLEAN = CAST(1 AS BOOLEAN)",
    f"SELECT * FROM ({NUMBER}) WHERE r::BOOLEAN::INTEGER <= 1",
    f"SELECT * FROM ({NUMBER}) WHERE r <= 1 OR b > 2",
    f"SELECT * FROM ({NUMBER}) WHERE r <= 5000",
    f"SELECT a, b, lead(b) OVER ({BY}) AS l FROM t QUALIFY row_number() OVER ({BY}) <= 2",
    f"SELECT a, b, lag(b, -1) OVER ({BY}) AS l FROM t QUALIFY row_number() OVER ({BY}) <= 2",
    f"SELECT a, b, count(*) OVER ({BY}) AS n FROM t QUALIFY row_number() OVER ({BY}) <= 2",
    f"SELECT a, b, sum(b) OVER (PARTITION BY a) AS l FROM t QUALIFY rank() OVER ({PEERS}) <= 2",
    "SELECT a, b FROM t QUALIFY rank() OVER (PARTITION BY a) <= 2",
]


def limits(sql: str) -> list[int | None]:
    plan = rewrite_plan(plan_query(sql, schemas(TABLES))[0])
    return [node.limit for node in iterate_nodes(plan) if isinstance(node, TopK)]


def test_a_condition_says_how_many_rows_of_a_partition_are_looked_at() -> None:
    assert {sql: limits(sql) for sql in FOREMOST} == {sql: [most] for sql, most in FOREMOST.items()}
    assert {sql: limits(sql) for sql in ALL_ROWS} == {sql: [] for sql in ALL_ROWS}


@pytest.mark.thorough(except_every=40)
@pytest.mark.parametrize("sql", FOREMOST)
def test_only_the_first_rows_of_partitions_are_looked_at(sql: str) -> None:
    assert limits(sql) == [FOREMOST[sql]]
    for seed in range(4):
        check(sql, changes(seed))


@pytest.mark.parametrize("counted", ["rank", "dense_rank"])
def test_rows_that_agree_in_the_order_are_in_together(counted: str) -> None:
    sql = f"SELECT a, b, s FROM t QUALIFY {counted}() OVER ({PEERS}) <= 2"
    [first] = [
        node for node in iterate_nodes(rewrite_plan(plan_query(sql, schemas(TABLES))[0])) if isinstance(node, TopK)
    ]
    assert first.counted == counted
    assert limits(f"{NUMBER} QUALIFY rank() OVER ({PEERS}) <= 2") == [], "the other function has another order"
    check(sql, changes(7, size=12))
