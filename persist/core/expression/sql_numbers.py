"""Arithmetic and casts of numbers with DuckDB's meaning: decimals are exact, and integers raise on overflow.

Every function takes arrays of one length, and the type of its result.

Casts of numbers and moments round lost digits, and raise if a value does not fit. DuckDB itself does all other casts
(`persist.core.expression.sql_functions`).
"""

from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

Floats = npt.NDArray[np.float64]
_WIDE = 76  # The digits of decimal256.


def add(one: pa.Array, other: pa.Array, kind: pa.DataType) -> pa.Array:
    return _compute_arithmetic(pc.add_checked, one, other, kind)


def subtract(one: pa.Array, other: pa.Array, kind: pa.DataType) -> pa.Array:
    return _compute_arithmetic(pc.subtract_checked, one, other, kind)


def multiply(one: pa.Array, other: pa.Array, kind: pa.DataType) -> pa.Array:
    return _compute_arithmetic(pc.multiply_checked, one, other, kind)


def _compute_arithmetic(
    function: Callable[..., pa.Array], first: pa.Array, second: pa.Array, kind: pa.DataType
) -> pa.Array:
    """Apply an Arrow function to numbers of the result's type; overflow raises."""
    if pat.is_floating(kind):
        plain = {pc.add_checked: pc.add, pc.subtract_checked: pc.subtract, pc.multiply_checked: pc.multiply}
        return plain[function](convert_number(first, kind), convert_number(second, kind))
    if not pat.is_decimal(kind):
        return function(convert_number(first, kind), convert_number(second, kind))
    first, second = _to_decimal_operand(first), _to_decimal_operand(second)
    if first.type.precision + second.type.precision >= 38:
        # 38 digits are not enough for what is in between.
        first, second = (
            pc.cast(value, pa.decimal256(value.type.precision, value.type.scale)) for value in (first, second)
        )
    if function is pc.multiply_checked and first.type.precision + second.type.precision >= _WIDE:
        return _multiply_decimals(first, second, kind)
    return convert_decimal(function(first, second), kind)


def _multiply_decimals(one: pa.Array, other: pa.Array, kind: pa.DataType) -> pa.Array:
    """Multiply decimals of 38 digits, for which Arrow lacks digits."""
    try:
        narrow = pc.cast(one, pa.decimal256(_WIDE - 1 - other.type.precision, one.type.scale))
        return convert_decimal(pc.multiply(narrow, other), kind)
    except pa.ArrowInvalid:
        pairs = zip(one.to_pylist(), other.to_pylist(), strict=True)
        context = Context(prec=2 * _WIDE)
        products = [None if a is None or b is None else context.multiply(a, b) for a, b in pairs]
        return convert_decimal(pa.array(products, pa.decimal256(_WIDE, one.type.scale + other.type.scale)), kind)


def _to_decimal_operand(value: pa.Array) -> pa.Array:
    """Return integers as decimals; decimals stay as they are."""
    if pat.is_decimal(value.type):
        return value
    return pc.cast(value, pa.decimal128(20, 0))


def convert_decimal(value: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return decimals as another decimal type, rounded half away from zero."""
    if value.type == kind:
        return value
    if value.type.scale > kind.scale:
        value = round_decimal(value, kind.scale)
    if value.type.bit_width == 128 and value.type.precision + max(0, kind.scale - value.type.scale) > 38:
        value = pc.cast(value, pa.decimal256(_WIDE - max(0, kind.scale - value.type.scale), value.type.scale))
    try:
        return pc.cast(value, kind)
    except pa.ArrowInvalid as error:
        raise ValueError(f"a number needs more than the {kind.precision} digits of {kind}: {error}") from error


def round_decimal(value: pa.Array, digits: int) -> pa.Array:
    """Round decimals to so many digits after the point; the type has one digit more, because 99.9 becomes 100.0."""
    precision, scale = value.type.precision, value.type.scale
    if -digits > precision - scale:
        return pc.multiply(value, pa.scalar(Decimal(0), pa.decimal128(1, 0)))
    wide = pa.decimal128(precision + 1, scale) if precision < 38 else pa.decimal256(precision + 1, scale)
    return pc.round(pc.cast(value, wide), ndigits=digits, round_mode="half_towards_infinity")


def divide(one: pa.Array, other: pa.Array, kind: pa.DataType) -> pa.Array:
    """Divide as floats (`/`): x/0 is infinite, 0/0 NaN."""
    return pc.divide(convert_number(one, pa.float64()), convert_number(other, pa.float64())).cast(kind)


def divide_whole(one: pa.Array, other: pa.Array, kind: pa.DataType) -> pa.Array:
    """Divide (`//`) whole numbers towards zero, and floats as `/`. A zero divisor raises."""
    _check_no_zero(one, other)
    if pat.is_floating(kind):
        return pc.divide(convert_number(one, kind), convert_number(other, kind))
    return pc.divide_checked(convert_number(one, kind), _replace_zero(other, kind))


def compute_remainder(dividend: pa.Array, divisor: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the remainder (`%`), with the sign of the dividend; a zero divisor raises unless it is a float."""
    if pat.is_floating(kind):
        with np.errstate(invalid="ignore"):
            values = np.fmod(get_floats(convert_number(dividend, kind)), get_floats(convert_number(divisor, kind)))
        return make_float_array(values, dividend, divisor).cast(kind)
    _check_no_zero(dividend, divisor)
    dividend, divisor = convert_number(dividend, kind), _replace_zero(divisor, kind)
    if pat.is_signed_integer(kind):  # The least number has no quotient by -1, but a remainder.
        divisor = pc.if_else(pc.equal(divisor, pa.scalar(-1, kind)), pa.scalar(1, kind), divisor)
    return pc.subtract(dividend, pc.multiply(pc.divide_checked(dividend, divisor), divisor))


def _check_no_zero(one: pa.Array, divisor: pa.Array) -> None:
    """Raise ValueError if a zero divides a number that is not NULL."""
    is_zero = pc.equal(divisor, pa.scalar(Decimal(0) if pat.is_decimal(divisor.type) else 0, divisor.type))
    if pc.any(pc.and_(is_zero, pc.is_valid(one))).as_py():
        raise ValueError("division by zero; write nullif(divisor, 0) for NULL instead")


def _replace_zero(divisor: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return divisors with NULL in place of zero."""
    divisor = convert_number(divisor, kind)
    return pc.if_else(pc.equal(divisor, pa.scalar(0, kind)), pa.scalar(None, kind), divisor)


def negate(one: pa.Array, kind: pa.DataType) -> pa.Array:
    return pc.negate(one) if pat.is_decimal(kind) else pc.negate_checked(convert_number(one, kind))


def convert_number(value: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast numbers to another type; raise if a value would change."""
    return value if value.type == kind else pc.cast(value, kind)


def get_floats(value: pa.Array) -> Floats:
    """Return floats as numpy; NULL as 0."""
    filled = value.fill_null(0.0) if value.null_count else value
    values: Floats = filled.to_numpy(zero_copy_only=False).astype(np.float64)
    return values


def make_float_array(values: Floats, *given: pa.Array) -> pa.Array:
    """Return floats as Arrow, with NULL wherever a `given` argument is NULL."""
    mask = np.zeros(len(values), np.bool_)
    for argument in given:
        if argument.null_count:
            mask |= argument.is_null().to_numpy(zero_copy_only=False)
    return pa.array(values, mask=mask if mask.any() else None)


def round_half_away(values: Floats) -> Floats:
    """Round to the nearest whole number; halves away from zero."""
    whole = np.trunc(values)
    with np.errstate(invalid="ignore"):
        fraction = np.abs(values - whole)
    rounded_values: Floats = np.where(
        np.isfinite(values), whole + np.where(fraction >= 0.5, np.sign(values), 0.0), values
    )
    return rounded_values


def to_double(value: pa.Array) -> pa.Array:
    """Return numbers as floats, rounded once."""
    if not pat.is_decimal(value.type):
        return pc.cast(pc.cast(value, pa.int8()) if pat.is_boolean(value.type) else value, pa.float64(), safe=False)
    if value.type.precision <= 15:
        return make_float_array(to_unscaled(value).astype(np.float64) / 10.0**value.type.scale, value)
    return pa.array([None if number is None else float(number) for number in value.to_pylist()], pa.float64())


def to_unscaled(value: pa.Array) -> npt.NDArray[np.int64]:
    """Return decimals of at most 18 digits as integers in units of the last digit; NULL as 0."""
    if isinstance(value, pa.ChunkedArray):
        value = value.combine_chunks()
    if value.null_count:
        value = value.fill_null(pa.scalar(Decimal(0), value.type))
    raw = np.frombuffer(value.buffers()[1], np.int64) if len(value) else np.empty(0, np.int64)
    wholes: npt.NDArray[np.int64] = raw[2 * value.offset : 2 * (value.offset + len(value)) : 2]
    return wholes


LIMB = 62  # Bits of the lower limb of a wide decimal.


def extract_limb(value: pa.Array, number: int) -> pa.Array:
    """Return the lower (0) or upper (1) int64 of decimals: value * 10**scale = lower + upper * 2**62."""
    if isinstance(value, pa.ChunkedArray):
        value = value.combine_chunks()
    mask = value.is_null().to_numpy(zero_copy_only=False) if value.null_count else None
    if not len(value):
        return pa.array([], pa.int64())
    raw = np.frombuffer(value.buffers()[1], np.int64)[2 * value.offset : 2 * (value.offset + len(value))]
    low, high = raw[::2], raw[1::2]
    if number == 0:
        return pa.array(low & np.int64(2**LIMB - 1), mask=mask)
    if mask is not None:
        high = np.where(mask, 0, high)
    if len(high) and (high.max() >= 2**61 or high.min() < -(2**61)):
        raise ValueError("a decimal of more than 37 digits is too large for a sum or an average: cast it to DOUBLE")
    return pa.array((high << 2) | ((low >> LIMB) & 3), mask=mask)


def join_decimal_limbs(lower: pa.Array, upper: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return decimals from the sums of their lower and upper parts (`extract_limb`)."""
    lower, upper = (limbs.combine_chunks() if isinstance(limbs, pa.ChunkedArray) else limbs for limbs in (lower, upper))
    if lower.type.bit_width == kind.bit_width == 128 and kind.precision == 38 and not _has_upper(upper):
        return pa.Array.from_buffers(kind, len(lower), lower.buffers(), offset=lower.offset)
    context, sums = Context(prec=_WIDE), list[Decimal | None]()
    for low, high in zip(lower.to_pylist(), upper.to_pylist(), strict=True):
        if low is None:
            sums.append(None)
            continue
        total = int(low) + (int(high) << LIMB)
        if abs(total) >= 10**kind.precision:
            raise ValueError(f"a sum needs more than the {kind.precision} digits of {kind}")
        sums.append(context.scaleb(context.create_decimal(total), -kind.scale))
    return pa.array(sums, kind)


def _has_upper(upper: pa.Array) -> bool:
    """Return whether an upper part is not zero."""
    return bool(pc.any(pc.not_equal(upper, pa.scalar(Decimal(0), upper.type))).as_py())


def compute_mean(lower: pa.Array, upper: pa.Array, counts: pa.Array, scale: pa.Array) -> pa.Array:
    """Return means from counts and the sums of `extract_limb`, rounded once."""
    columns = (column.to_pylist() for column in (lower, upper, counts, scale))
    means = [
        None if low is None or not count else (int(low) + (int(high) << LIMB)) / (count * 10**digits)
        for low, high, count, digits in zip(*columns, strict=True)
    ]
    return pa.array(means, pa.float64())


def from_unscaled(
    words: npt.NDArray[np.int64], kind: pa.DataType, mask: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    """Return decimals from whole numbers of units of their last digit; mask: where NULL is."""
    pairs = np.empty((len(words), 2), np.int64)
    pairs[:, 0], pairs[:, 1] = words, words >> 63
    valid = None if mask is None else pa.py_buffer(np.packbits(~mask, bitorder="little"))
    return pa.Array.from_buffers(kind, len(words), [valid, pa.py_buffer(pairs)])


_PER_SECOND = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}
EXTREME_DAYS = 11_000_000  # From 1970: some 30,000 years. Arrow has 16 bits for a year.
DUCKDB_MOMENTS = {
    pa.date32(): "DATE",
    pa.time64("us"): "TIME",
    pa.timestamp("s"): "TIMESTAMP_S",
    pa.timestamp("ms"): "TIMESTAMP_MS",
    pa.timestamp("us"): "TIMESTAMP",
    pa.timestamp("ns"): "TIMESTAMP_NS",
}
_MOMENTS = (("date", "timestamp"), ("timestamp", "date"), ("timestamp", "time"))


def normalize_for_order(value: pa.Array) -> pa.Array:
    """Return values that Arrow compares in SQL's order: NaN comes last."""
    if pat.is_boolean(value.type):
        return pc.cast(value, pa.int8())
    if not pat.is_floating(value.type):
        return value
    values = get_floats(value) + 0.0
    bits = np.where(np.isnan(values), np.nan, values).view(np.int64)
    words: Any = bits ^ ((bits >> 63) & np.int64(2**63 - 1))
    return make_float_array(words, value)


def cast_values(value: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast values to another type, as SQL does."""
    if value.type == kind:
        return value
    if value.null_count == len(value):
        return pa.nulls(len(value), kind)
    if pat.is_decimal(kind):
        return _cast_to_decimal(value, kind)
    if pat.is_boolean(kind):
        return pc.not_equal(
            value,
            pa.scalar(0, pa.int8()).cast(value.type)
            if not pat.is_decimal(value.type)
            else pa.scalar(Decimal(0), value.type),
        )
    if pat.is_floating(kind):
        return _cast_to_float(value, kind)
    if pat.is_integer(kind):
        return _cast_to_integer(value, kind)
    return _cast_to_moment(value, kind)


def can_cast(source_type: pa.DataType, kind: pa.DataType) -> bool:
    """Return whether this module casts one type to another, without DuckDB."""
    if source_type == kind:
        return True
    families = [_get_family(arrow_type) for arrow_type in (source_type, kind)]
    if pat.is_timestamp(source_type) and _PER_SECOND[source_type.unit] > _PER_SECOND[getattr(kind, "unit", "us")]:
        return False  # It is rounded.
    is_known = families[0] == families[1] != "other" or tuple(families) in _MOMENTS
    return is_known and not (pat.is_time(kind) and getattr(source_type, "tz", None))


def _get_family(kind: pa.DataType) -> str:
    """Return the group of types that are cast by the same rules."""
    if pat.is_boolean(kind) or pat.is_integer(kind) or pat.is_floating(kind) or pat.is_decimal(kind):
        return "number"
    tests = (("date", pat.is_date), ("timestamp", pat.is_timestamp), ("time", pat.is_time))
    return next((name for name, test in tests if test(kind)), "other")


def has_extreme_moments(value: pa.Array) -> bool:
    """Return whether an array has infinite dates or timestamps, or years beyond Arrow's range."""
    if pat.is_date32(value.type):
        bound = EXTREME_DAYS
    elif pat.is_timestamp(value.type):
        bound = min(EXTREME_DAYS * 86_400 * _PER_SECOND[value.type.unit], 2**63 - 2)
    else:
        return False
    ends = pc.min_max(value.view(pa.int32() if pat.is_date32(value.type) else pa.int64())).as_py()
    return ends["min"] is not None and not (-bound <= ends["min"] and ends["max"] <= bound)


def drop_type_zone(kind: pa.DataType) -> pa.DataType:
    """Return a type of timestamps without its zone; another type as it is."""
    return pa.timestamp(kind.unit) if pat.is_timestamp(kind) else kind


def drop_zone(value: pa.Array) -> pa.Array:
    """Convert timestamps to UTC without a zone."""
    return value.cast(drop_type_zone(value.type))


def _cast_to_moment(value: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast dates and timestamps to another such type."""
    if pat.is_timestamp(kind):
        if pat.is_timestamp(value.type) and value.type.tz != kind.tz:  # Both are in UTC.
            value = value.cast(pa.timestamp(value.type.unit, kind.tz))
        return pc.cast(value, kind)
    whole = pc.floor_temporal(value, unit="day") if pat.is_date(kind) else value
    return pc.cast(whole, kind, safe=False)


def _cast_to_decimal(value: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast numbers to decimals; raise an error for those that do not fit."""
    if pat.is_decimal(value.type):
        return convert_decimal(value, kind)
    if pat.is_boolean(value.type):
        value = pc.cast(value, pa.int8())
    if pat.is_integer(value.type):
        return convert_decimal(pc.cast(value, pa.decimal128(20, 0)), kind)
    with np.errstate(over="ignore"):
        scaled = round_half_away(get_floats(value) * 10.0**kind.scale)
    mask = value.is_null().to_numpy(zero_copy_only=False) if value.null_count else None
    if not (np.abs(scaled if mask is None else scaled[~mask]) < 10.0**kind.precision).all():
        raise ValueError(f"a number does not fit {kind}")
    if kind.precision <= 15:
        return from_unscaled(scaled.astype(np.int64), kind, mask)
    whole = pa.array(scaled, mask=mask).cast(pa.decimal128(38, 0))
    return pa.Array.from_buffers(kind, len(whole), whole.buffers(), offset=whole.offset)


def _cast_to_float(value: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast numbers to floats, rounded once."""
    floats = to_double(value) if not pat.is_floating(value.type) else value
    if not pat.is_float32(kind):
        return pc.cast(floats, kind)
    if pat.is_integer(value.type):
        return pc.cast(value, kind, safe=False)
    narrow = pc.cast(floats, kind)
    if pc.any(pc.and_(pc.is_inf(narrow), pc.is_finite(floats))).as_py():
        raise ValueError("a number does not fit a float of 32 bits")
    return narrow


def _cast_to_integer(value: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast numbers to integers, rounded as DuckDB does."""
    if pat.is_decimal(value.type):
        return pc.cast(convert_decimal(value, pa.decimal128(38, 0)), kind)
    if pat.is_floating(value.type):
        return pc.cast(pc.round(value, round_mode="half_to_even"), kind)
    return pc.cast(value, kind)
