"""Statistics from exact sums: against fractions, whatever the order of rows, to the last digit."""

import math
import statistics as python
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persist.dataflow.operators.moments import LOWEST, STATISTICS, root, statistics, summed_products
from tests.tiers import examples

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
SMALL = st.floats(-1e6, 1e6) | st.integers(-5, 5).map(float)
PAIRS = st.lists(st.tuples(st.integers(0, 2), FLOATS, FLOATS), max_size=20)


@given(PAIRS, st.integers(0, 3))
@settings(max_examples=examples(100), deadline=None)
def test_sums_of_products_are_those_of_fractions(rows: list[tuple[int, float, float]], more: int) -> None:
    rows.sort(key=lambda row: row[0])
    owners, xs, ys = (np.array([row[at] for row in rows]) for at in range(3))
    sums = summed_products(owners.astype(np.int64), [xs.astype(float)] * more + [ys.astype(float)], 3)
    for owner in range(3):
        exact = sum((Fraction(x) ** more * Fraction(y) for o, x, y in rows if o == owner), Fraction(0))
        assert Fraction(sums[owner], 2 ** (LOWEST * (more + 1))) == exact


@given(st.fractions(min_value=0))
@settings(max_examples=examples(200), deadline=None)
def test_a_root_is_the_float_that_is_next_to_it(square: Fraction) -> None:
    near = root(square.numerator, square.denominator)
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
        one, other = statistics(name, owners, ones, 1), statistics(name, owners, others, 1)
        assert repr(one) == repr(other), name


@given(st.lists(SMALL, min_size=2, max_size=20))
@settings(max_examples=examples(60), deadline=None)
def test_variances_are_those_of_fractions(values: list[float]) -> None:
    owners = np.zeros(len(values), np.int64)
    exact = python.variance([Fraction(value) for value in values])
    assert statistics("var_samp", owners, [np.array(values)], 1) == [float(exact)]
    assert statistics("stddev_samp", owners, [np.array(values)], 1) == [root(exact.numerator, exact.denominator)]


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_makes_its_own_group_nan(odd: float) -> None:
    owners = np.array([0, 0, 1, 1])
    one, other, none = statistics("var_pop", owners, [np.array([1.0, odd, 1.0, 3.0])], 3)
    assert math.isnan(one if one is not None else 0.0)
    assert (other, none) == (1.0, None)
