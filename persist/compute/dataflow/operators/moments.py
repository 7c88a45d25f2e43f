"""Statistics of floats: variances, correlations, regressions, skewness, from exact sums that are rounded once.

Each is a quotient of sums of products: of x, of x * x, of x * y and so on. A float is a whole number times a power of
two, and so is a product of floats. The digits of the products, at base 2**27, are summed by their places as whole
numbers (as in `operators.aggregates`). They make up one whole number for each group and product. Its unit is 2**-1126
to the power of the number of factors. Statistics of them are exact up to the last step, which rounds. So the order of
rows does not matter, and equal values have the variance 0.

The statistics of a group with a NaN or an infinity are NaN, as in DuckDB, unless it has one row only.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import isqrt, nan
from typing import Any

import numpy as np
import numpy.typing as npt

from persist.compute.dataflow.updates.batch import find_run_starts
from persist.compute.dataflow.updates.times import Ints

_DIGIT = 27
_MASK = np.int64((1 << _DIGIT) - 1)
LOWEST = 1126  # The least positive float is 2**-1074; its whole number of 53 bits begins at 2**-1126.
Floats = npt.NDArray[np.float64]


def split_products(factors: Sequence[Floats]) -> tuple[Ints, Ints, Ints]:
    """Split products of finite floats into 32-bit digits: row, place and amount.

    The product of row i is the sum of its amounts times `2**(32 * place - 1126 * len(factors))`.
    """
    digits: list[Ints] = [np.ones(len(factors[0]), np.int64)]
    lows = np.zeros(len(factors[0]), np.int64)
    for factor in factors:
        # A float is a whole number of 53 bits, which has two digits of 27 bits, times a power of two.
        mantissas, exponents = np.frexp(factor)
        whole = np.ldexp(mantissas, 53).astype(np.int64)
        lows += exponents.astype(np.int64) - 53 + LOWEST
        parts = (whole & _MASK, whole >> _DIGIT)  # The upper one has the sign.
        # Each digit times each digit, by their places; then carry, as on paper.
        sums = [np.zeros(len(factor), np.int64) for _ in range(len(digits) + 1)]
        for at, digit in enumerate(digits):
            for number, part in enumerate(parts):
                sums[at + number] = sums[at + number] + digit * part
        digits, carry = [], np.zeros(len(factor), np.int64)
        for total in sums:
            carry = carry + total
            digits.append(carry & _MASK)
            carry = carry >> _DIGIT
        digits.append(carry)
    rows, places, amounts = [], [], []
    for at, digit in enumerate(digits):
        is_digit = digit.nonzero()[0]
        # A digit, moved to its power of two, reaches into two units of 32 bits at most.
        low = lows.take(is_digit) + _DIGIT * at
        shifted = digit.take(is_digit) << (low & 31)
        for number, amount in enumerate((shifted & 0xFFFFFFFF, shifted >> np.int64(32))):
            is_some = amount.nonzero()[0]
            rows.append(is_digit.take(is_some))
            places.append((low.take(is_some) >> 5) + number)
            amounts.append(amount.take(is_some))
    return np.concatenate(rows), np.concatenate(places), np.concatenate(amounts)


def sum_products(owners: Ints, factors: Sequence[Floats], count: int) -> list[int]:
    """Return each group's exact sum of products of finite floats, in `2**(-1126 * factors)`.

    `owners`: the group of each row; `count`: how many groups there are.
    """
    rows, places, amounts = split_products(factors)
    every = owners.take(rows)
    # Amounts of one group and place are summed as int64, and only the sums as Python's integers.
    order = np.lexsort((places, every))
    every, places, amounts = every.take(order), places.take(order), amounts.take(order)
    totals = [0] * count
    if len(every):
        firsts = find_run_starts(every, places)
        sums = np.add.reduceat(amounts, firsts)
        for owner, place, total in zip(
            every.take(firsts).tolist(), places.take(firsts).tolist(), sums.tolist(), strict=True
        ):
            totals[owner] += total << (32 * place)
    return totals


def divide_and_round(over: int, under: int) -> float:
    """Return the float next to a quotient of whole numbers; an infinity beyond the greatest."""
    try:
        return over / under
    except OverflowError:
        return float("inf") if (over > 0) == (under > 0) else float("-inf")


def round_square_root(over: int, under: int) -> float:
    """Return the float next to the square root of a quotient that is not negative."""
    if not over:
        return 0.0
    # Enough bits that the rest only matters between two floats; a set last bit represents it.
    shift = max(0, 132 - over.bit_length() + under.bit_length())
    shift += shift & 1
    scaled, remainder = divmod(over << shift, under)
    whole = isqrt(scaled)
    is_exact = not remainder and whole * whole == scaled
    return divide_and_round(2 * whole + (not is_exact), 1 << (shift // 2 + 1))


class Sums:
    """The number of rows of one group, and the sums of products of x and y, in `2**(-1126 * factors)`."""

    def __init__(self, count: int, sums: dict[str, int]) -> None:
        self.count = count
        self._sums = sums

    def get(self, product: str) -> int:
        """Return the sum of a product of x and y, such as "x" or "xy"."""
        return self._sums[product]

    def sum_deviations(self, product: str) -> int:
        """Return the sum of the products of two deviations from the mean, times the count, in `2**-2252`."""
        return self.count * self.get(product) - self.get(product[0]) * self.get(product[1])

    def compute_mean(self, value: str) -> float:
        """Return the mean of x or y, rounded once."""
        return divide_and_round(self.get(value), self.count << LOWEST)

    def compute_mean_power(self, exponent: int) -> Fraction:
        """Return the mean of the third or fourth powers of the deviations from the mean, in `2**(-1126 * exponent)`."""
        n = self.count
        mean, second, third = (Fraction(self.get("x" * power), n) for power in (1, 2, 3))
        if exponent == 3:
            return third - 3 * second * mean + 2 * mean**3
        return Fraction(self.get("xxxx"), n) - 4 * third * mean + 6 * second * mean**2 - 3 * mean**4


_SQUARE = 2 * LOWEST


Statistic = Callable[[Sums], float | None]


def _make_statistic(
    product: str, size: Callable[[int], int], round_: Callable[[int, int], float] = divide_and_round, least: int = 1
) -> Statistic:
    """Return a statistic that divides a sum of products of deviations by a size."""
    return lambda sums: (
        round_(sums.sum_deviations(product), size(sums.count) << _SQUARE) if sums.count >= least else None
    )


def _get_population_size(n: int) -> int:
    """Return the divisor of a population's variance, for sums of deviations times n."""
    return n**2


def _get_sample_size(n: int) -> int:
    """Return the divisor of a sample's variance, for sums of deviations times n."""
    return n * (n - 1)


def _skewness(sums: Sums) -> float | None:
    """Return the sample skewness; None for fewer than three rows, or equal values."""
    n, variance = sums.count, Fraction(sums.sum_deviations("xx"), sums.count**2)
    if n <= 2 or not variance:
        return None
    third = sums.compute_mean_power(3)
    square = third**2 / variance**3 * Fraction(n * (n - 1), (n - 2) ** 2)
    size = round_square_root(square.numerator, square.denominator)
    return size if third >= 0 else -size


def _kurtosis(sums: Sums) -> float | None:
    """Return the excess kurtosis of a sample; None if it is undefined."""
    n, variance = sums.count, Fraction(sums.sum_deviations("xx"), sums.count**2)
    if n <= 3 or not variance:
        return None
    excess = Fraction(n - 1, (n - 2) * (n - 3)) * ((n + 1) * sums.compute_mean_power(4) / variance**2 - 3 * (n - 1))
    return divide_and_round(excess.numerator, excess.denominator)


def _kurtosis_pop(sums: Sums) -> float | None:
    """Return the excess kurtosis of a population; None if it is undefined."""
    variance = Fraction(sums.sum_deviations("xx"), sums.count**2)
    if sums.count <= 1 or not variance:
        return None
    excess = sums.compute_mean_power(4) / variance**2 - 3
    return divide_and_round(excess.numerator, excess.denominator)


def _corr(sums: Sums) -> float | None:
    """Return the correlation of x and y; NaN if one of them is constant."""
    x_spread, y_spread, xy_spread = (sums.sum_deviations(product) for product in ("xx", "yy", "xy"))
    if not x_spread or not y_spread:
        return nan
    size = round_square_root(xy_spread**2, x_spread * y_spread)
    return size if xy_spread >= 0 else -size


# In regressions, x depends on y. They are DuckDB's first and second argument.
def _slope(sums: Sums) -> float | None:
    """Return the slope of the regression of x on y; NaN for constant y."""
    spread = sums.sum_deviations("yy")
    return divide_and_round(sums.sum_deviations("xy"), spread) if spread else nan


def _intercept(sums: Sums) -> float | None:
    """Return the intercept of the regression of x on y; None for constant y."""
    spread = sums.sum_deviations("yy")
    if not spread:
        return None
    return divide_and_round(
        sums.get("x") * spread - sums.sum_deviations("xy") * sums.get("y"), sums.count * spread << LOWEST
    )


def _r2(sums: Sums) -> float | None:
    """Return the share of x's variance that y explains; None for constant y."""
    x_spread, y_spread = sums.sum_deviations("xx"), sums.sum_deviations("yy")
    if not y_spread:
        return None
    return divide_and_round(sums.sum_deviations("xy") ** 2, x_spread * y_spread) if x_spread else 1.0


_ONE, _TWO = ("x", "xx"), ("x", "y", "xx", "yy", "xy")
STATISTICS: dict[str, tuple[tuple[str, ...], Statistic]] = {
    "var_pop": (_ONE, _make_statistic("xx", _get_population_size)),
    "var_samp": (_ONE, _make_statistic("xx", _get_sample_size, least=2)),
    "stddev_pop": (_ONE, _make_statistic("xx", _get_population_size, round_square_root)),
    "stddev_samp": (_ONE, _make_statistic("xx", _get_sample_size, round_square_root, 2)),
    "sem": (_ONE, _make_statistic("xx", lambda n: n**3, round_square_root)),
    "skewness": (("x", "xx", "xxx"), _skewness),
    "kurtosis": (("x", "xx", "xxx", "xxxx"), _kurtosis),
    "kurtosis_pop": (("x", "xx", "xxx", "xxxx"), _kurtosis_pop),
    "covar_pop": (("x", "y", "xy"), _make_statistic("xy", _get_population_size)),
    "covar_samp": (("x", "y", "xy"), _make_statistic("xy", _get_sample_size, least=2)),
    "corr": (_TWO, _corr),
    "regr_avgx": (("y",), lambda sums: sums.compute_mean("y")),
    "regr_avgy": (("x",), lambda sums: sums.compute_mean("x")),
    "regr_intercept": (_TWO, _intercept),
    "regr_r2": (_TWO, _r2),
    "regr_slope": (_TWO, _slope),
    "regr_sxx": (("y", "yy"), _make_statistic("yy", int)),
    "regr_sxy": (("x", "y", "xy"), _make_statistic("xy", int)),
    "regr_syy": (("x", "xx"), _make_statistic("xx", int)),
}


def compute_statistics(name: str, owners: Ints, values: Sequence[Floats], count: int) -> list[float | None]:
    """Return a statistic for each of `count` groups; None for a group without rows.

    Args:
        owners: the group of each row, ascending.
        values: x of each row, and y if the statistic has two arguments.
    """
    products, made_of = STATISTICS[name]
    columns: dict[str, Any] = dict(zip("xy", values, strict=False))
    letters = sorted({*"".join(products)})
    is_finite = np.logical_and.reduce([np.isfinite(columns[letter]) for letter in letters])
    has_other = np.zeros(count, np.bool_)
    has_other[owners[~is_finite]] = True
    finite = owners[is_finite]
    sums = {
        product: sum_products(finite, [columns[letter][is_finite] for letter in product], count) for product in products
    }
    results: list[float | None] = []
    for at, rows in enumerate(np.bincount(owners, minlength=count).tolist()):
        if not rows:
            results.append(None)
        elif not has_other[at]:
            results.append(made_of(Sums(rows, {product: totals[at] for product, totals in sums.items()})))
        elif name in ("regr_avgx", "regr_avgy"):
            results.append(
                float(columns[letters[0]][owners == at].sum())
            )  # An infinity, which no count changes, or NaN.
        elif name == "regr_r2" and np.isfinite(y := columns["y"][owners == at]).all() and (y == y[0]).all():
            results.append(None)
        else:
            results.append(compute_non_finite(name, rows))
    return results


def compute_non_finite(name: str, rows: int) -> float | None:
    """Return the statistic of a group in which some floats are not finite."""
    if rows == 1 and name in ("var_pop", "stddev_pop", "regr_sxx", "regr_syy"):
        return 0.0
    return nan if rows >= _ROWS_MIN.get(name, 1) and name != "regr_intercept" else None


_ROWS_MIN = {
    **dict.fromkeys(("var_samp", "stddev_samp", "covar_samp", "kurtosis_pop", "regr_r2"), 2),
    "skewness": 3,
    "kurtosis": 4,
}
