"""Groups and rows that are compared with a value of all of them: only those between the old and the new one change."""

from collections import Counter
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from persist.compute.dataflow.operators.join import BoundedJoin
from persist.compute.dataflow.state.costs import Costs
from persist.compute.dataflow.state.ranked import Ranked
from persist.compute.dataflow.updates.times import Ints
from persist.dataflow import Program, col
from tests.compute.sql.oracle import changes, check

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
RANKED = Costs(large_rows=1, change_rows=0, block_rows=2)


@pytest.fixture
def always_ranked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count what is looked up in what is kept in order."""
    done, between = Counter[str](), Ranked.select_between

    def counted(self: Ranked, one: int, other: int) -> Ints:
        done["between"] += 1
        return between(self, one, other)

    monkeypatch.setattr(Ranked, "select_between", counted)
    return done


@pytest.mark.thorough(except_every=9)
@pytest.mark.parametrize("sql", BOUNDED)
def test_what_lies_between_two_bounds_is_looked_up(sql: str, always_ranked: Counter[str]) -> None:
    for seed in range(5):
        check(sql, changes(seed, steps=8, size=6), costs=RANKED)
    assert always_ranked["between"] > 1


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize("sql", WHOLE)
def test_a_join_that_shows_its_bound_or_asks_for_more_looks_up_all(sql: str, always_ranked: Counter[str]) -> None:
    check(sql, changes(1), costs=RANKED)
    assert not always_ranked["between"]


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
    always_ranked: Counter[str],
) -> None:
    program = Program("below")
    left, right = program.input("left", key={"x": of_left}), program.input("right", key={"y": of_bound})
    seen = left.cross(right).filter(col("x") < col("y")).map(x=col("x")).capture()
    with program.open(costs=RANKED) as running:
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
    assert bool(always_ranked["between"]) == is_ordered


def _moment(value: Any) -> Any:
    return datetime(value.year, value.month, value.day) if isinstance(value, date) else value


def test_what_is_kept_in_order_is_dropped_when_many_rows_change(
    always_ranked: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped = Counter[bool]()
    run = BoundedJoin.run

    def counted(self: BoundedJoin) -> None:
        had = self.bytes() > 0
        run(self)
        dropped[had and not self.bytes()] += 1

    monkeypatch.setattr(BoundedJoin, "run", counted)
    for seed in range(6):
        check(BOUNDED[2], changes(seed, steps=8, size=3 + seed), costs=replace(RANKED, change_rows=2))
    assert dropped[True]
    assert always_ranked["between"]
