"""Statistics of floats: variances, correlations, regressions, skewness, from exact sums that are rounded once.

Each is a fraction of sums of products: of x, of x * x, of x * y and so on. A float is a whole number times a power of
two, so a product of floats is one, too. Digits of the products, at base 2**27, are summed by their places as whole
numbers (as in `operators.aggregates`), and the sums of a group are put together as a fraction. What is made of it is
exact up to the last step, which rounds. So the order of rows does not matter, and equal values have the variance 0.

A group with a NaN or an infinity has none of this: its statistics are NaN, as in DuckDB.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import isqrt, nan
from typing import Any

import numpy as np
import numpy.typing as npt

from persist.dataflow.updates.times import Ints

_DIGIT = 27
_MASK = np.int64((1 << _DIGIT) - 1)
_LOWEST = 1126  # The least positive float is 2**-1074; its whole number of 53 bits begins at 2**-1126.
Floats = npt.NDArray[np.float64]


def _product(factors: Sequence[Floats]) -> tuple[list[Ints], Ints]:
    """Return the digits of the products of floats, least first, all of one sign in a row; and their places in bits."""
    digits: list[Ints] = [np.ones(len(factors[0]), np.int64)]
    places = np.zeros(len(factors[0]), np.int64)
    for factor in factors:
        mantissas, exponents = np.frexp(factor)
        whole = np.ldexp(mantissas, 53).astype(np.int64)
        places += exponents.astype(np.int64) - 53 + _LOWEST
        parts = (whole & _MASK, whole >> _DIGIT)  # The upper one has the sign.
        sums = [np.zeros(len(factor), np.int64) for _ in range(len(digits) + 1)]
        for at, digit in enumerate(digits):
            for number, part in enumerate(parts):
                sums[at + number] = sums[at + number] + digit * part
        digits = []
        carry = np.zeros(len(factor), np.int64)
        for total in sums:
            carry = carry + total
            digits.append(carry & _MASK)
            carry = carry >> _DIGIT
        digits.append(carry)
    return digits, places


def summed_products(owners: Ints, factors: Sequence[Floats], count: int) -> list[Fraction]:
    """Return for each of count groups the exact sum of the products of finite floats.

    Args:
        owners: the group of each row.
    """
    digits, places = _product(factors)
    rows, limbs, amounts = [], [], []
    for at, digit in enumerate(digits):
        there = digit.nonzero()[0]
        place = places.take(there) + _DIGIT * at
        shifted = digit.take(there) << (place & 31)
        for number, amount in enumerate((shifted & 0xFFFFFFFF, shifted >> np.int64(32))):
            rows.append(owners.take(there))
            limbs.append((place >> 5) + number)
            amounts.append(amount)
    every, limb, amount = np.concatenate(rows), np.concatenate(limbs), np.concatenate(amounts)
    order = np.lexsort((limb, every))
    every, limb, amount = every.take(order), limb.take(order), amount.take(order)
    totals = [0] * count
    if len(every):
        firsts = np.concatenate(([0], np.flatnonzero((every[1:] != every[:-1]) | (limb[1:] != limb[:-1])) + 1))
        sums = np.add.reduceat(amount, firsts)
        for owner, place, total in zip(
            every.take(firsts).tolist(), limb.take(firsts).tolist(), sums.tolist(), strict=True
        ):
            totals[owner] += total << (32 * place)
    unit = 1 << (_LOWEST * len(factors))
    return [Fraction(total, unit) for total in totals]


def rounded(value: Fraction) -> float:
    """Return the float next to a fraction; an infinity beyond the greatest."""
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def root(value: Fraction) -> float:
    """Return the float next to the square root of a fraction that is not negative."""
    if not value:
        return 0.0
    # So many bits that what is cut off only ever matters between two floats, where the last bit, set, stands for it.
    shift = max(0, 132 - value.numerator.bit_length() + value.denominator.bit_length())
    shift += shift & 1
    scaled = (value.numerator << shift) // value.denominator
    whole = isqrt(scaled)
    is_exact = whole * whole == scaled and (value.numerator << shift) % value.denominator == 0
    return rounded(Fraction(2 * whole + (not is_exact), 1 << (shift // 2 + 1)))


class Sums:
    """The sums of one group: `sums.of("xy")` is that of x * y, and `sums.central("xy")` that around the means."""

    def __init__(self, count: int, sums: dict[str, Fraction]) -> None:
        self.count = count
        self._sums = sums

    def of(self, product: str) -> Fraction:
        return self._sums[product]

    def central(self, product: str) -> Fraction:
        """Return the sum of the products of two deviations from the mean."""
        return self.of(product) - self.of(product[0]) * self.of(product[1]) / self.count

    def power(self, exponent: int) -> Fraction:
        """Return the mean of the third or fourth powers of the deviations from the mean."""
        n = self.count
        mean, second, third = self.of("x") / n, self.of("xx") / n, self.of("xxx") / n
        if exponent == 3:
            return third - 3 * second * mean + 2 * mean**3
        return self.of("xxxx") / n - 4 * third * mean + 6 * second * mean**2 - 3 * mean**4


def _variance(sums: Sums, *, less: int) -> Fraction | None:
    return sums.central("xx") / (sums.count - less) if sums.count > less else None


def _var_pop(sums: Sums) -> float | None:
    return rounded(sums.central("xx") / sums.count)


def _var_samp(sums: Sums) -> float | None:
    variance = _variance(sums, less=1)
    return None if variance is None else rounded(variance)


def _stddev_pop(sums: Sums) -> float | None:
    return root(sums.central("xx") / sums.count)


def _stddev_samp(sums: Sums) -> float | None:
    variance = _variance(sums, less=1)
    return None if variance is None else root(variance)


def _sem(sums: Sums) -> float | None:
    return root(sums.central("xx") / sums.count**2)


def _skewness(sums: Sums) -> float | None:
    n, variance = sums.count, sums.central("xx") / sums.count
    if n <= 2 or not variance:
        return None
    third = sums.power(3)
    square = third**2 / variance**3 * Fraction(n * (n - 1), (n - 2) ** 2)
    return root(square) if third >= 0 else -root(square)


def _kurtosis(sums: Sums) -> float | None:
    n, variance = sums.count, sums.central("xx") / sums.count
    if n <= 3 or not variance:
        return None
    ratio = sums.power(4) / variance**2
    return rounded(Fraction(n - 1, (n - 2) * (n - 3)) * ((n + 1) * ratio - 3 * (n - 1)))


def _kurtosis_pop(sums: Sums) -> float | None:
    variance = sums.central("xx") / sums.count
    if sums.count <= 1 or not variance:
        return None
    return rounded(sums.power(4) / variance**2 - 3)


def _covar_pop(sums: Sums) -> float | None:
    return rounded(sums.central("xy") / sums.count)


def _covar_samp(sums: Sums) -> float | None:
    return rounded(sums.central("xy") / (sums.count - 1)) if sums.count > 1 else None


def _corr(sums: Sums) -> float | None:
    ones, others, both = sums.central("xx"), sums.central("yy"), sums.central("xy")
    if not ones or not others:
        return nan
    size = root(both**2 / (ones * others))
    return size if both >= 0 else -size


# Of regressions, x is what depends, and y what it depends on: DuckDB's first and second argument.
def _slope(sums: Sums) -> float | None:
    spread = sums.central("yy")
    return rounded(sums.central("xy") / spread) if spread else nan


def _intercept(sums: Sums) -> float | None:
    spread = sums.central("yy")
    if not spread:
        return None
    return rounded((sums.of("x") - sums.central("xy") / spread * sums.of("y")) / sums.count)


def _r2(sums: Sums) -> float | None:
    ones, others = sums.central("xx"), sums.central("yy")
    if not others:
        return None
    return rounded(sums.central("xy") ** 2 / (ones * others)) if ones else 1.0


Statistic = Callable[[Sums], float | None]
_ONE, _TWO = ("x", "xx"), ("x", "y", "xx", "yy", "xy")
STATISTICS: dict[str, tuple[tuple[str, ...], Statistic]] = {
    "var_pop": (_ONE, _var_pop),
    "var_samp": (_ONE, _var_samp),
    "stddev_pop": (_ONE, _stddev_pop),
    "stddev_samp": (_ONE, _stddev_samp),
    "sem": (_ONE, _sem),
    "skewness": (("x", "xx", "xxx"), _skewness),
    "kurtosis": (("x", "xx", "xxx", "xxxx"), _kurtosis),
    "kurtosis_pop": (("x", "xx", "xxx", "xxxx"), _kurtosis_pop),
    "covar_pop": (("x", "y", "xy"), _covar_pop),
    "covar_samp": (("x", "y", "xy"), _covar_samp),
    "corr": (_TWO, _corr),
    "regr_avgx": (("y",), lambda sums: rounded(sums.of("y") / sums.count)),
    "regr_avgy": (("x",), lambda sums: rounded(sums.of("x") / sums.count)),
    "regr_intercept": (_TWO, _intercept),
    "regr_r2": (_TWO, _r2),
    "regr_slope": (_TWO, _slope),
    "regr_sxx": (("y", "yy"), lambda sums: rounded(sums.central("yy"))),
    "regr_sxy": (("x", "y", "xy"), lambda sums: rounded(sums.central("xy"))),
    "regr_syy": (("x", "xx"), lambda sums: rounded(sums.central("xx"))),
}


def statistics(name: str, owners: Ints, values: Sequence[Floats], count: int) -> list[float | None]:
    """Return a statistic of each of count groups; None of one without rows.

    Args:
        owners: the group of each row, ascending.
        values: x, and y if there is one, of each row.
    """
    products, made_of = STATISTICS[name]
    is_finite = np.logical_and.reduce([np.isfinite(value) for value in values])
    has_other = np.zeros(count, np.bool_)
    has_other[owners[~is_finite]] = True
    columns: dict[str, Any] = {letter: value[is_finite] for letter, value in zip("xy", values, strict=False)}
    finite = owners[is_finite]
    sums = {product: summed_products(finite, [columns[letter] for letter in product], count) for product in products}
    counts = np.bincount(owners, minlength=count).tolist()
    made: list[float | None] = []
    for at, (rows, other) in enumerate(zip(counts, has_other.tolist(), strict=True)):
        if not rows:
            made.append(None)
        elif other:
            made.append(nan)
        else:
            made.append(made_of(Sums(rows, {product: totals[at] for product, totals in sums.items()})))
    return made
