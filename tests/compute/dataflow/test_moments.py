"""Statistics from exact sums: against fractions, whatever the order of rows, to the last digit."""

import math
import statistics as python
from collections import Counter
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persist.compute.dataflow.operators.moments import (
    LOWEST,
    STATISTICS,
    compute_statistics,
    round_square_root,
    sum_products,
)
from persist.compute.dataflow.updates.words import NULL, Domain, compute_ranks
from persist.core.expression.sql_numbers import join_decimal_limbs
from persist.dataflow import Program, col
from tests.support.tiers import examples

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
SMALL = st.floats(-1e6, 1e6) | st.integers(-5, 5).map(float)
PAIRS = st.lists(st.tuples(st.integers(0, 2), FLOATS, FLOATS), max_size=20)


@given(PAIRS, st.integers(0, 3))
@settings(max_examples=examples(100), deadline=None)
def test_sums_of_products_are_those_of_fractions(rows: list[tuple[int, float, float]], more: int) -> None:
    rows.sort(key=lambda row: row[0])
    owners, xs, ys = (np.array([row[at] for row in rows]) for at in range(3))
    sums = sum_products(owners.astype(np.int64), [xs.astype(float)] * more + [ys.astype(float)], 3)
    for owner in range(3):
        exact = sum((Fraction(x) ** more * Fraction(y) for o, x, y in rows if o == owner), Fraction(0))
        assert Fraction(sums[owner], 2 ** (LOWEST * (more + 1))) == exact


@given(st.fractions(min_value=0))
@settings(max_examples=examples(200), deadline=None)
def test_a_root_is_the_float_that_is_next_to_it(square: Fraction) -> None:
    near = round_square_root(square.numerator, square.denominator)
    for other in (math.nextafter(near, math.inf), math.nextafter(near, 0.0)):
        middle = (Fraction(near) + Fraction(other)) / 2
        assert (middle**2 <= square) == (other < near) or middle**2 == square


@given(st.lists(SMALL, min_size=1, max_size=20), st.randoms())
@settings(max_examples=examples(60), deadline=None)
def test_statistics_do_not_depend_on_the_order_of_rows(values: list[float], chance: object) -> None:
    mixed = list(values)
    chance.shuffle(mixed)  # type: ignore[attr-defined]
    for name, (products, _) in STATISTICS.items():
        count = 2 if "y" in "".join(products) else 1
        ones, others = ([np.array(each), np.array(each) ** 2][:count] for each in (values, mixed))
        owners = np.zeros(len(values), np.int64)
        one, other = compute_statistics(name, owners, ones, 1), compute_statistics(name, owners, others, 1)
        assert repr(one) == repr(other), name


@given(st.lists(SMALL, min_size=2, max_size=20))
@settings(max_examples=examples(60), deadline=None)
def test_variances_are_those_of_fractions(values: list[float]) -> None:
    owners = np.zeros(len(values), np.int64)
    exact = python.variance([Fraction(value) for value in values])
    assert compute_statistics("var_samp", owners, [np.array(values)], 1) == [float(exact)]
    assert compute_statistics("stddev_samp", owners, [np.array(values)], 1) == [
        round_square_root(exact.numerator, exact.denominator)
    ]


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_makes_its_own_group_nan(odd: float) -> None:
    owners = np.array([0, 0, 1, 1])
    one, other, none = compute_statistics("var_pop", owners, [np.array([1.0, odd, 1.0, 3.0])], 3)
    assert math.isnan(one if one is not None else 0.0)
    assert (other, none) == (1.0, None)


def rooted(square: Fraction) -> float:
    return round_square_root(square.numerator, square.denominator)


def central(values: list[Fraction], power: int) -> Fraction:
    middle = sum(values, Fraction(0)) / len(values)
    return sum(((value - middle) ** power for value in values), Fraction(0)) / len(values)


def by_definition(name: str, xs: list[Fraction], ys: list[Fraction]) -> float | None:
    """Return a statistic as books define it; of regressions, x depends on y."""
    n, second = len(xs), central(xs, 2)
    mean_x, mean_y = (sum(values, Fraction(0)) / n for values in (xs, ys))
    both = sum(((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)), Fraction(0))
    of_x, of_y = n * second, n * central(ys, 2)
    slope = both / of_y if of_y else None
    match name:
        case "var_pop" | "covar_pop":
            return float((of_x if name == "var_pop" else both) / n)
        case "var_samp" | "covar_samp":
            return float((of_x if name == "var_samp" else both) / (n - 1)) if n > 1 else None
        case "stddev_pop":
            return rooted(second)
        case "stddev_samp":
            return rooted(of_x / (n - 1)) if n > 1 else None
        case "sem":
            return rooted(second / n)
        case "skewness":
            if n < 3 or not second:
                return None
            third = central(xs, 3)
            size = rooted(third**2 / second**3 * Fraction(n * (n - 1), (n - 2) ** 2))
            return size if third >= 0 else -size
        case "kurtosis":
            if n < 4 or not second:
                return None
            return float(Fraction(n - 1, (n - 2) * (n - 3)) * ((n + 1) * central(xs, 4) / second**2 - 3 * (n - 1)))
        case "kurtosis_pop":
            return float(central(xs, 4) / second**2 - 3) if n > 1 and second else None
        case "corr":
            return (1 if both >= 0 else -1) * rooted(both**2 / of_x / of_y) if of_x and of_y else math.nan
        case "regr_slope":
            return math.nan if slope is None else float(slope)
        case "regr_intercept":
            return None if slope is None else float(mean_x - slope * mean_y)
        case "regr_r2":
            return None if not of_y else float(both**2 / of_x / of_y) if of_x else 1.0
        case "regr_avgx" | "regr_avgy":
            return float(mean_y if name == "regr_avgx" else mean_x)
        case "regr_sxx" | "regr_syy" | "regr_sxy":
            return float({"regr_sxx": of_y, "regr_syy": of_x, "regr_sxy": both}[name])
    raise AssertionError(name)


SAMPLES: list[list[float]] = [
    [1.0], [1.0, 1.0], [2.0, 2.0, 2.0, 2.0], [1.0, 2.0], [1.0, 2.0, 4.0], [-4.0, -2.0, -1.0], [0.1, 0.2, 0.3, -7.0],
    [1e200, -1e200, 3.0], [5e-324, 0.0, 5e-324, 1e-300], [1.0, 2.0, 3.0, 4.0, 100.0], [-1.5, 2.5, -1.5, 2.5],
    [2.0**53, 2.0**53 + 2, 2.0**53 + 6],
]  # fmt: skip


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize("name", STATISTICS)
def test_each_statistic_is_what_its_definition_gives_exactly(name: str) -> None:
    for xs in SAMPLES:
        for ys in ([x * x % 7.0 if abs(x) < 1e9 else x for x in xs], [3.0] * len(xs), [1.0 - x / 2**20 for x in xs]):
            count = 2 if "y" in "".join(STATISTICS[name][0]) else 1
            columns = [np.array(column) for column in ([xs, ys] if count == 2 or name[:4] == "regr" else [xs])]
            [made] = compute_statistics(name, np.zeros(len(xs), np.int64), columns, 1)
            try:
                wanted = by_definition(name, [*map(Fraction, xs)], [*map(Fraction, ys)])
            except OverflowError:
                wanted = math.inf if made is None or made > 0 else -math.inf
            assert repr(made) == repr(wanted), (xs, ys)


# Of how many rows on a statistic of values that are not all finite is NaN; it is NULL below that.
NAN_FROM = {"var_samp": 2, "stddev_samp": 2, "covar_samp": 2, "kurtosis_pop": 2, "skewness": 3, "kurtosis": 4}


@pytest.mark.parametrize("name", STATISTICS)
def test_a_statistic_of_what_is_not_finite_is_told_by_the_number_of_rows(name: str) -> None:
    for odd in (math.nan, math.inf):
        for rows in range(1, 6):
            values = [np.array([odd, *range(1, rows)], float), np.array([odd, *range(rows, 1, -1)], float)]
            made = compute_statistics(name, np.zeros(rows, np.int64), values, 1)[0]
            if name in ("regr_avgx", "regr_avgy"):
                assert repr(made) == repr(odd)
            elif rows == 1 and name in ("var_pop", "stddev_pop", "regr_sxx", "regr_syy"):
                assert made == 0.0
            elif name == "regr_intercept" or rows < NAN_FROM.get(name, 2 if name == "regr_r2" else 1):
                assert made is None, (odd, rows)
            else:
                assert made is not None
                assert math.isnan(made)


@pytest.mark.parametrize(("ys", "wanted"), [([2.0, 2.0], None), ([2.0, 3.0], math.nan), ([math.inf] * 2, math.nan)])
def test_what_fits_to_one_value_is_told_of_what_is_not_finite_too(ys: list[float], wanted: float | None) -> None:
    made = compute_statistics("regr_r2", np.zeros(2, np.int64), [np.array([math.inf, 1.0]), np.array(ys)], 1)
    assert repr(made) == repr([wanted])


KIND = pa.decimal128(38, 3)
EXACT = Context(prec=76)
EDGES = [0, 1, -1, 2**61, 2**62 - 1, 2**62, -(2**62), -(2**62) - 1, 2**63, -(2**63), 2**64 + 5, 10**37, -(10**37)]
numbers = st.one_of(st.none(), st.sampled_from(EDGES), st.integers(-(10**20), 10**20))


def decimals(values: list[int | None]) -> pa.Array:
    made = [None if each is None else EXACT.scaleb(EXACT.create_decimal(each), -3) for each in values]
    return pa.array(made, KIND)


@settings(max_examples=examples(500))
@given(st.lists(numbers, max_size=120), st.integers(0, 3))
def test_wide_decimals_are_the_same_after_they_were_words(values: list[int | None], skipped: int) -> None:
    domain, array = Domain(), decimals(values)[skipped:]
    words = domain.encode(array)
    assert domain.decode(words, KIND).equals(array)
    assert words.tolist() == domain.encode(array).tolist()
    by_word = dict(zip(words.tolist(), array.to_pylist(), strict=True))
    assert len(by_word) == len(set(array.to_pylist()))
    assert all(
        domain.get_interner(KIND).get_value(word) == value for word, value in by_word.items() if value is not None
    )
    order = sorted(range(len(words)), key=compute_ranks(domain, words, KIND).tolist().__getitem__)
    expected = sorted(array.to_pylist(), key=lambda each: (each is None, each or Decimal(0)))
    assert [array[at].as_py() for at in order] == expected


def test_wide_decimals_that_are_gone_are_forgotten_and_others_keep_their_words() -> None:
    domain = Domain()
    interner = domain.get_interner(KIND)
    words = domain.encode(decimals([7, 10**30, 10**31, None, 10**32]))
    constant = domain.encode_constant(decimals([10**33])[0])
    interner.retain(words[[0, 2, 3]])
    assert len(interner) == 2
    assert domain.decode(words[[0, 2, 3]], KIND).equals(decimals([7, 10**31, None]))
    assert domain.encode(decimals([7, 10**31])).tolist() == words[[0, 2]].tolist()
    assert domain.encode(decimals([10**33])).tolist() == [constant]


@settings(max_examples=examples(200))
@given(st.lists(st.tuples(numbers, st.integers(1, 3)), max_size=30), st.data())
def test_sums_of_wide_decimals_are_exact_and_forget_what_goes(updates: list[tuple[int | None, int]], data: Any) -> None:
    program = Program("sums", dimensions=1)
    given = program.input("a", key={"n": pa.int64()}, value={"v": KIND})
    seen = given.group_by().agg(total=col("v").sum(), mean=col("v").mean()).capture()
    gone = data.draw(st.integers(0, len(updates)))
    with program.open(None) as running:
        rows = [
            ((n, value), count) for n, ((_, count), value) in enumerate(zip(updates, decimals_of(updates), strict=True))
        ]
        running["a"].insert([(record, 0, count) for record, count in rows])
        running["a"].insert([(record, 1, -count) for record, count in rows[:gone]])
        running["a"].advance_to(2)
        running.step()
    for time, left in ((0, updates), (1, updates[gone:])):
        values = [(value, count) for value, count in left if value is not None]
        total, count = sum(value * count for value, count in values), sum(count for _, count in values)
        expected = (
            [(EXACT.scaleb(EXACT.create_decimal(total), -3), total / (1000 * count))] if values else [(None, None)]
        )
        assert held(seen.updates(), time) == (expected if left else [])


def decimals_of(updates: list[tuple[int | None, int]]) -> list[Decimal | None]:
    return decimals([value for value, _ in updates]).to_pylist()


def held(updates: pa.Table, time: int) -> list[tuple[Decimal | None, float | None]]:
    counts = Counter[tuple[Decimal | None, float | None]]()
    for row in updates.to_pylist():
        if row["_time"] <= time:
            counts[row["total"], row["mean"]] += row["_diff"]
    return [record for record, count in counts.items() if count]


@pytest.mark.parametrize("upper", [0, 1, -1])
def test_joined_limbs_are_their_sum(upper: int) -> None:
    limbs = [(0, 0), (5, upper), (2**61, 0), (2**70, upper), (None, None)]
    lower, higher = (
        pa.array([None if n is None else Decimal(n) for n in each], pa.decimal128(38, 0))
        for each in zip(*limbs, strict=True)
    )
    expected = decimals([None if low is None else low + (high << 62) for low, high in limbs])
    assert join_decimal_limbs(lower, higher, KIND).equals(expected)
    assert join_decimal_limbs(lower[1:], higher[1:], KIND).equals(expected[1:])
    assert NULL not in Domain().encode(expected[:4]).tolist()
