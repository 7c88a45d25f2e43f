"""Folds of groups against a model that looks at each group by itself, and statistics of groups that change."""

import math
import random
from collections import Counter
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pytest

from persist.compute.dataflow.operators.folds import iterate_frames, make_fold_logic
from persist.compute.dataflow.operators.large_groups import make_fold_ranking
from persist.compute.dataflow.plan.plan import WindowFunction
from persist.compute.dataflow.updates.words import Domain
from persist.core.expression.term import Aggregate, Col
from persist.dataflow import Program
from tests.compute.dataflow.test_moments import by_definition

SCHEMA = pa.schema(
    {"i": pa.int64(), "u": pa.uint8(), "f": pa.float64(), "m": pa.decimal128(12, 2), "h": pa.decimal128(30, 1)}
)
Values: TypeAlias = list[Any]


def whole(values: Values, share: Fraction | float, *, down: bool = False) -> Any:
    """Return the first value that at least a share of all is at or before."""
    ordered = sorted(values, reverse=down)
    return ordered[max(1, math.ceil(share * len(values))) - 1] if values else None


def between(values: Values, share: Fraction, *, down: bool = False) -> Any:
    """Return what lies at a share of the way from the first value to the last."""
    if not values:
        return None
    ordered = sorted(values, reverse=down)
    exact = (len(values) - 1) * share
    low, high = ordered[math.floor(exact)], ordered[math.ceil(exact)]
    if isinstance(low, float):
        return low + (high - low) * float(exact - math.floor(exact))
    made = Fraction(low) + (Fraction(high) - Fraction(low)) * (exact - math.floor(exact))
    return made if isinstance(low, int) else _towards_zero(made, -low.as_tuple().exponent)


def _towards_zero(value: Fraction, digits: int) -> Decimal:
    return Decimal(int(value * 10**digits)).scaleb(-digits)


def spread(values: Values) -> Any:
    middle = between(values, Fraction(1, 2))
    return None if middle is None else between([abs(value - middle) for value in values], Fraction(1, 2))


def bits(function: Callable[[int, int], int]) -> Callable[[Values], Any]:
    def combined(values: Values) -> Any:
        total = None
        for value in values:
            total = value if total is None else function(total, value)
        return total

    return combined


def call(function: str, column: str, result: Any = None, *constants: Any, **more: Any) -> WindowFunction:
    kind = SCHEMA.field(column).type if result is None else result
    return WindowFunction("r", function, kind, (column,), constants=constants, **more)


HALF, THIRD, QUARTER = (1, 2), (1, 3), (1, 4)
CASES: list[tuple[WindowFunction, Callable[[Values], Any]]] = [
    *((call("bit_and", name), bits(lambda a, b: a & b)) for name in "iu"),
    *((call("bit_or", name), bits(lambda a, b: a | b)) for name in "iu"),
    *((call("bit_xor", name), bits(lambda a, b: a ^ b)) for name in "iu"),
    *((call("count", name, pa.int64()), len) for name in "if"),
    *((call("min", name), lambda values: min(values, default=None)) for name in "ifmh"),
    *((call("max", name), lambda values: max(values, default=None)) for name in "ifmh"),
    *((call("any", name), lambda values: min(values, default=None)) for name in "im"),
    (call("histogram", "i", pa.map_(pa.int64(), pa.uint64())), lambda values: sorted(Counter(values).items()) or None),
    *(
        (call("quantile", name, None, False, False, down, share), lambda values, d=down, s=share: whole(values, Fraction(*s), down=d))  # noqa: E501
        for name in "imfh"
        for down in (False, True)
        for share in (HALF, THIRD, (0, 1), (1, 1), (9, 10))
    ),
    (call("quantile", "i", None, False, False, False, 0.75), lambda values: whole(values, 0.75)),
    *(
        (call("quantile", name, None, True, False, down, share), lambda values, d=down, s=share: between(values, Fraction(*s), down=d))  # noqa: E501
        for name in "fmh"
        for down in (False, True)
        for share in (HALF, QUARTER, (0, 1), (1, 1))
    ),
    (call("quantile", "f", None, True, False, False, 0.25), lambda values: between(values, Fraction(1, 4))),
    (
        call("quantile", "m", pa.list_(pa.decimal128(12, 2)), False, True, False, HALF, (1, 1), (0, 1)),
        lambda values: [whole(values, share) for share in (Fraction(1, 2), 1, 0)] if values else None,
    ),
    (
        call("quantile", "f", pa.list_(pa.float64()), True, True, False, HALF, (1, 1)),
        lambda values: [between(values, share) for share in (Fraction(1, 2), Fraction(1))] if values else None,
    ),
    *((call("mad", name), spread) for name in "fmh"),
]  # fmt: skip


def drawn(chance: random.Random, size: int) -> list[dict[str, Any]]:
    def some(*values: Any) -> Any:
        return None if chance.random() < 0.2 else chance.choice(values)

    return [
        {
            "i": some(-5, 0, 3, 12), "u": some(1, 6, 255), "f": some(-1.5, 0.0, 0.5, 4.0),
            "m": some(*(Decimal(n).scaleb(-2) for n in (-333, 100, 101, 250))),
            "h": some(*map(Decimal, ("1000000000000000000000000000.1", "-1000000000000000000000000000.0", "0.3"))),
        }
        for _ in range(size)
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_a_fold_of_a_group_is_what_a_look_at_its_values_gives(seed: int) -> None:
    chance, domain = random.Random(seed), Domain()
    parts = [drawn(chance, size) for size in (1, 2, 3, 6, 5)]
    rows = [row for part in parts for row in part]
    columns = [domain.encode(pa.array([row[field.name] for row in rows], field.type)) for field in SCHEMA]
    groups = np.arange(5).repeat([len(part) for part in parts])
    owners, made, diffs = make_fold_logic([case for case, _ in CASES], SCHEMA, domain)(
        groups, np.array(columns), np.ones(len(rows), np.int64), None
    )
    assert (owners.tolist(), diffs.tolist()) == ([0, 1, 2, 3, 4], [1] * 5)
    for (case, model), words in zip(CASES, made, strict=True):
        column = case.arguments[0]
        with localcontext(prec=60):
            wanted = [model([row[column] for row in part if row[column] is not None]) for part in parts]
        assert domain.decode(words, case.result).to_pylist() == wanted, case


@pytest.mark.parametrize("by", [(), (("f", False, False),), (("f", True, True),)])
def test_the_mode_is_the_value_that_comes_most_often_and_first_of_several(by: Any) -> None:
    chance, domain = random.Random(len(by)), Domain()
    case = WindowFunction("r", "mode", pa.int64(), ("i",), within=by)
    for _ in range(20):
        rows = drawn(chance, chance.randint(1, 7))
        columns = [domain.encode(pa.array([row[field.name] for row in rows], field.type)) for field in SCHEMA]
        _, made, _ = make_fold_logic([case], SCHEMA, domain)(
            np.zeros(len(rows), np.int64), np.array(columns), np.ones(len(rows), np.int64), None
        )

        def place(row: dict[str, Any]) -> tuple[Any, ...]:
            name, down, first = (by or (("f", False, False),))[0]
            value = row[name] if by else 0.0
            rank = (value is None) != first, 0.0 if value is None else -value if down else value
            return *rank, row["i"]

        values = [row["i"] for row in sorted((row for row in rows if row["i"] is not None), key=place)]
        assert domain.decode(made[0], pa.int64()).to_pylist() == [max(values, key=values.count, default=None)]


def test_only_quantiles_of_one_column_are_taken_from_an_order_that_is_kept() -> None:
    one, two = pa.schema({"i": pa.int64()}), pa.schema({"i": pa.int64(), "f": pa.float64()})
    median = call("quantile", "i", None, False, False, False, HALF)
    assert make_fold_ranking([median], one, Domain()) is not None
    assert make_fold_ranking([median, median], one, Domain()) is not None
    assert make_fold_ranking([median], two, Domain()) is None
    assert make_fold_ranking([median], pa.schema({"i": pa.list_(pa.int64())}), Domain()) is None
    for other in (
        call("mode", "i"),
        call("quantile", "i", None, False, False, False, HALF, is_distinct=True),
        call("quantile", "i", pa.list_(pa.int64()), False, True, False, HALF),
        call("quantile", "i", None, False, False, False, HALF, THIRD),
    ):
        assert make_fold_ranking([median, other], one, Domain()) is None, other


def test_frames_come_in_pieces_of_a_bounded_size_and_a_larger_one_alone() -> None:
    low, high = np.array([0, 1, 1, 3, 3, 2, 0]), np.array([2, 3, 1, 9, 3, 4, 4])
    parts, rows = [], []
    for part, owners, places in iterate_frames(low, high, 4):
        parts.append((part.start, part.stop))
        rows += [(part.start + owner, place) for owner, place in zip(owners.tolist(), places.tolist(), strict=True)]
        assert len(owners) <= 4 or part.stop - part.start == 1
    assert rows == [(at, place) for at in range(len(low)) for place in range(low[at], high[at])]
    assert parts == [(0, 3), (3, 4), (4, 6), (6, 7)]
    assert [*iterate_frames(low[:0], high[:0], 4)] == []


@pytest.mark.parametrize("kind", ["var_pop", "var_samp", "stddev_pop", "stddev_samp", "sem"])
def test_statistics_of_groups_follow_their_rows(kind: str) -> None:
    program, chance = Program("p"), random.Random(1)
    values = program.input("values", key={"k": pa.int64()}, value={"v": pa.float64()})
    seen = values.group_by("k").agg(s=Aggregate(kind, Col("v"))).capture()
    pool, odd = [None, -1.5, 2.0, 0.25, 1e150], math.nan
    rows: list[tuple[int, Any]] = []
    have = Counter[tuple[int, str]]()
    with program.open() as running:
        for time in range(6):
            changes = [((k, chance.choice(pool)), time, 1) for k in range(3) for _ in range(chance.randrange(3))]
            changes += [((3, odd), time, 1)] if time in (1, 2) else []
            gone = [rows.pop(chance.randrange(len(rows))) for _ in range(min(len(rows), 2))]
            rows += [row for row, _, _ in changes]
            running["values"].insert([*changes, *((row, time, -1) for row in gone)])
            running["values"].advance_to(time + 1)
            running.step()
            for record in seen.take().to_pylist():
                have[record["k"], repr(record["s"])] += record["_diff"]
            wanted = {}
            for k in {k for k, _ in rows}:
                group = [v for each, v in rows if each == k and v is not None]
                if any(isinstance(v, float) and math.isnan(v) for v in group):
                    alone = 0.0 if kind in ("var_pop", "stddev_pop") else None if kind != "sem" else math.nan
                    wanted[k, repr(alone if len(group) == 1 else math.nan)] = 1
                    continue
                exact = [Fraction(v) for v in group]
                wanted[k, repr(by_definition(kind, exact, exact) if group else None)] = 1
            assert {record: count for record, count in have.items() if count} == wanted, time
