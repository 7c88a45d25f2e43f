"""The functions of SQL, as DuckDB means them, for expressions that a query was translated to: `Call("sql.name", …)`.

They stand beside the functions that programs are written with, because these mean something else in places: there
`/ 0` is NULL, here infinite; here NaN equals itself, decimals are exact, and casts round. Each has one option, the type
of its result. `case`, `and` and `or` look at what follows only for the records that need it, as SQL does: so what one
branch is guarded against does not raise.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.expression import sql_intervals as intervals
from persist.expression import sql_numbers as numbers
from persist.expression import sql_times as times
from persist.expression.sql_casts import cast, ordered, try_cast
from persist.expression.sql_duckdb import computed_by_duckdb
from persist.expression.sql_texts import PATTERNS, TEXTS, check_constants

Array = Any


def compared(function: Callable[..., Array]) -> Callable[..., Array]:
    def compare(one: Array, other: Array, kind: pa.DataType) -> Array:
        return function(ordered(one), ordered(other))

    return compare


def _not_distinct_from(one: Array, other: Array, kind: pa.DataType) -> Array:
    both = pc.and_(pc.is_null(one), pc.is_null(other))
    return pc.or_(both, pc.fill_null(pc.equal(ordered(one), ordered(other)), False))


def _distinct_from(one: Array, other: Array, kind: pa.DataType) -> Array:
    return pc.invert(_not_distinct_from(one, other, kind))


def _in(value: Array, *others: Array) -> Array:
    *candidates, _ = others
    matches = pc.equal(ordered(value), ordered(candidates[0]))
    for other in candidates[1:]:
        matches = pc.or_kleene(matches, pc.equal(ordered(value), ordered(other)))
    return matches


def _not_in(value: Array, *others: Array) -> Array:
    return pc.invert(_in(value, *others))


def _add(*arguments: Any) -> Array:
    *values, kind = arguments
    if len(values) == 1:
        return values[0]
    one, other = values
    if pat.is_interval(kind):
        return intervals.added(one, other, 1)
    return _moved(one, other, 1, kind) if pat.is_temporal(kind) else numbers.add(one, other, kind)


def _subtract(*arguments: Any) -> Array:
    *values, kind = arguments
    if len(values) == 1:
        return intervals.negated(values[0]) if pat.is_interval(kind) else numbers.negate(values[0], kind)
    one, other = values
    if pat.is_date(one.type) and pat.is_date(other.type):
        return times.minus_date(one, other, kind)
    if pat.is_interval(kind):
        return intervals.added(one, other, -1) if pat.is_interval(one.type) else intervals.between(one, other)
    return _moved(one, other, -1, kind) if pat.is_temporal(kind) else numbers.subtract(one, other, kind)


def _multiply(one: Array, other: Array, kind: pa.DataType) -> Array:
    if pat.is_interval(kind):
        return intervals.multiplied(*((one, other) if pat.is_interval(one.type) else (other, one)))
    return numbers.multiply(one, other, kind)


def _moved(one: Array, other: Array, sign: int, kind: pa.DataType) -> Array:
    if pat.is_interval(one.type) or pat.is_integer(one.type) or (pat.is_time(one.type) and pat.is_date(other.type)):
        one, other = other, one
    if pat.is_interval(other.type):
        return intervals.shifted(one, other, sign, kind)
    if pat.is_time(other.type):
        return times.at_time(one, other, kind)
    return times.plus_days(one, other, sign, kind)


def _coalesce(*arguments: Any) -> Array:
    *values, kind = arguments
    return pc.coalesce(*values).cast(kind)


def _nullif(one: Array, other: Array, kind: pa.DataType) -> Array:
    same = pc.fill_null(pc.equal(ordered(one), ordered(other)), False)
    return pc.if_else(same, pa.scalar(None, one.type), one).cast(kind)


def _extreme(is_greatest: bool) -> Callable[..., Array]:
    compare = pc.greater if is_greatest else pc.less

    def extreme(*arguments: Any) -> Array:
        *values, kind = arguments
        best = values[0]
        for value in values[1:]:
            better = pc.fill_null(compare(ordered(value), ordered(best)), False)
            better = pc.or_(better, pc.is_null(best))
            best = pc.if_else(pc.and_(better, pc.is_valid(value)), value, best)
        return best.cast(kind)

    return extreme


def _of_floats(function: Callable[..., Any]) -> Callable[..., Array]:
    def apply(*arguments: Any) -> Array:
        *values, kind = arguments
        arrays = [value.cast(pa.float64()) for value in values]
        with np.errstate(all="ignore"):
            results = function(*map(numbers.floats, arrays))
        return numbers.of_floats(results, *arrays).cast(kind)

    return apply


def _whole(function: Callable[..., Array], mode: str) -> Callable[..., Array]:
    def apply(value: Array, kind: pa.DataType) -> Array:
        if pat.is_integer(value.type):
            return value.cast(kind)
        if pat.is_decimal(value.type):
            whole = numbers.rounded_decimal(value, 0, mode)
            return numbers.as_decimal(whole, kind) if pat.is_decimal(kind) else whole.cast(kind)
        return function(value).cast(kind)

    return apply


def _log(*arguments: Any) -> Array:
    *values, kind = arguments
    if len(values) == 1:
        return _of_floats(np.log10)(*values, kind)
    return _of_floats(lambda base, value: np.log10(value) / np.log10(base))(*values, kind)


def _round(value: Array, *rest: Any) -> Array:
    *digits, kind = rest
    return numbers.rounded(value, digits[0] if digits else None, kind)


def _sign(value: Array, kind: pa.DataType) -> Array:
    signs = pc.sign(value.cast(pa.float64()) if pat.is_decimal(value.type) else value)
    if pat.is_floating(signs.type):  # NaN is of no sign.
        signs = pc.if_else(pc.is_nan(signs), pa.scalar(0, signs.type), signs)
    return signs.cast(kind)


def _part(unit: str) -> Callable[..., Array]:
    return lambda value, kind: times.part(value, unit, kind)


def _date_part(unit: str, value: Array, kind: pa.DataType) -> Array:
    return times.part(value, unit, kind)


def _time_from(*, after: bool) -> Callable[..., Array]:
    return lambda unit, value, kind: times.time_from(value, unit, after=after)


def _error(text: Array, kind: pa.DataType) -> Array:
    return pa.nulls(0, kind)  # Types only; it raises in `persist.expression.evaluation`, where there is a record.


def _logical(function: Callable[..., Array]) -> Callable[..., Array]:
    def apply(*arguments: Any) -> Array:
        *values, _ = arguments
        truths = values[0]
        for value in values[1:]:
            truths = function(truths, value)
        return truths

    return apply


def _case(*arguments: Any) -> Array:
    return pa.nulls(0, arguments[-1])  # Types only; `persist.expression.evaluation` does the work.


def _fits(function: Callable[..., Any]) -> Callable[..., Array]:
    return lambda value, kind: function(value)


def _bucket(*arguments: Any) -> Array:
    *columns, kind = arguments
    return pa.array(numbers.bucket(tuple(columns), BUCKETS)).cast(kind)


BUCKETS = 64
FUNCTIONS: dict[str, Callable[..., Array]] = {
    "add": _add,
    "subtract": _subtract,
    "multiply": _multiply,
    "divide": numbers.divide,
    "divide_whole": numbers.divide_whole,
    "remainder": numbers.remainder,
    "bucket": _bucket,
    "lower_limb": lambda value, kind: numbers.limb(value, 0),
    "upper_limb": lambda value, kind: numbers.limb(value, 1),
    "joined_limbs": numbers.joined_limbs,
    "mean_of_limbs": lambda lower, upper, count, scale, kind: numbers.mean_of_limbs(lower, upper, count, scale),
    "abs": numbers.absolute,
    "ceil": _whole(pc.ceil, "up"),
    "floor": _whole(pc.floor, "down"),
    "trunc": _whole(pc.trunc, "towards_zero"),
    "round": _round,
    "round_even": lambda value, kind: pc.round(value, round_mode="half_to_even"),
    "sign": _sign,
    "sqrt": _of_floats(np.sqrt),
    "exp": _of_floats(np.exp),
    "ln": _of_floats(np.log),
    "log": _log,
    "log10": _of_floats(np.log10),
    "log2": _of_floats(np.log2),
    "power": _of_floats(np.power),
    **{name: _of_floats(getattr(np, name)) for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    **{f"a{name}": _of_floats(getattr(np, f"arc{name}")) for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    "atan2": _of_floats(np.arctan2),
    "cot": _of_floats(lambda value: 1 / np.tan(value)),
    "degrees": _of_floats(lambda value: value * (180 / np.pi)),
    "radians": _of_floats(lambda value: value * (np.pi / 180)),
    "pi": lambda kind: pa.array([np.pi], kind),
    "gcd": numbers.gcd,
    "lcm": numbers.lcm,
    "bit_count": numbers.bit_count,
    "bit_not": lambda value, kind: pc.bit_wise_not(value),
    "isnan": _fits(pc.is_nan),
    "isinf": _fits(pc.is_inf),
    "isfinite": _fits(pc.is_finite),
    "bit_and": lambda one, other, kind: pc.bit_wise_and(one, other),
    "bit_or": lambda one, other, kind: pc.bit_wise_or(one, other),
    "bit_xor": lambda one, other, kind: pc.bit_wise_xor(one, other),
    "equal": compared(pc.equal),
    "not_equal": compared(pc.not_equal),
    "less": compared(pc.less),
    "less_equal": compared(pc.less_equal),
    "greater": compared(pc.greater),
    "greater_equal": compared(pc.greater_equal),
    "distinct_from": _distinct_from,
    "not_distinct_from": _not_distinct_from,
    "in": _in,
    "not_in": _not_in,
    "and": _logical(pc.and_kleene),
    "or": _logical(pc.or_kleene),
    "not": _fits(pc.invert),
    "is_null": _fits(pc.is_null),
    "is_not_null": _fits(pc.is_valid),
    "coalesce": _coalesce,
    "nullif": _nullif,
    "greatest": _extreme(True),
    "least": _extreme(False),
    "case": _case,
    "cast": cast,
    "try_cast": try_cast,
    "error": _error,
    **PATTERNS,
    **TEXTS,
    "date_part": _date_part,
    "date_trunc": times.truncated,
    "date_diff": times.difference,
    "time_from": _time_from(after=False),
    "time_after": _time_from(after=True),
    "last_day": lambda value, kind: times.last_day(value, kind),
    **{name: _part(name) for name in ("year", "month", "day", "hour", "minute", "second", "quarter", "week")},
    **{name: _part(name) for name in ("dayofyear", "dayofweek", "isodow", "isoyear", "yearweek", "decade", "century")},
    **{name: _part(name) for name in ("millennium", "millisecond", "microsecond")},
    **{name: _part(name) for name in ("epoch", "epoch_ms", "epoch_us", "epoch_ns")},
    "dayname": lambda value, kind: times.formatted(value, "%A", kind),
    "monthname": lambda value, kind: times.formatted(value, "%B", kind),
    "strftime": lambda pattern, value, kind: times.formatted(value, pattern, kind),
    "make_date": times.made_date,
    "time_bucket": intervals.bucketed,
    "duckdb": computed_by_duckdb,
    **{f"to_{unit}": intervals.of_units(unit) for unit in intervals.UNITS},
}


# What one of their arguments is, which is a constant: it says what the function does.
_CONSTANT = {
    **dict.fromkeys(("date_part", "date_trunc", "date_diff", "time_from", "time_after"), "unit"),
    "strftime": "format",
    "duckdb": "expression",
}


def called(name: str) -> Callable[..., Any]:
    """Return a function for arrays and scalars: scalars are as many as there are records; of scalars only, one.

    What cannot be right for any record raises for none as well: so it is found when an expression gets its type.
    """
    function = FUNCTIONS[name]

    def call(*arguments: Any) -> Any:
        *values, kind = arguments
        first = _constant_of(name, values) if name in _CONSTANT else ()
        if name in PATTERNS:
            check_constants(name, *(value.as_py() if isinstance(value, pa.Scalar) else None for value in values))
        rows = next((len(value) for value in values if not isinstance(value, pa.Scalar)), None)
        arrays = [_repeated(value, 1 if rows is None else rows) for value in values]
        arrays = [array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array for array in arrays]
        results = function(*first, *arrays, kind)
        if name in ("case", "error"):
            return results
        if results.type != kind:
            results = results.cast(kind)
        return results[0] if rows is None else results

    return call


def _constant_of(name: str, values: list[Any]) -> tuple[str]:
    """Take the constant text that a function needs out of its arguments, of which it may be any, and return it."""
    for at, value in enumerate(values):
        if isinstance(value, pa.Scalar) and pat.is_string(value.type) and value.is_valid:
            del values[at]
            return (value.as_py(),)
    raise ValueError(f"the {_CONSTANT[name]} of {name}() is a constant text in a view")


def _repeated(value: Any, rows: int) -> Any:
    if not isinstance(value, pa.Scalar):
        return value
    if pat.is_interval(value.type):  # Arrow repeats none.
        return pa.array([value.as_py()] * rows, value.type)
    return pa.repeat(value, rows)


SQL_FUNCTIONS = {f"sql.{name}": called(name) for name in FUNCTIONS}
