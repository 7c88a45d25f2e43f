"""Casts of numbers and moments as SQL (DuckDB's) means them: they round where digits are lost, and raise where a value
does not fit. All other casts are done by DuckDB itself: see `persist.expression.sql_duckdb`.
"""

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.expression import sql_numbers as numbers

Array = Any

_PER_SECOND = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}
_MOMENTS = (("date", "timestamp"), ("timestamp", "date"), ("timestamp", "time"))


def ordered(value: Array) -> Array:
    """Return values that compare as SQL says: of floats, numbers in their order, with NaN last and equal to itself."""
    if pat.is_boolean(value.type):
        return pc.cast(value, pa.int8())
    if not pat.is_floating(value.type):
        return value
    values = numbers.floats(value) + 0.0
    bits = np.where(np.isnan(values), np.nan, values).view(np.int64)
    words: Any = bits ^ ((bits >> 63) & np.int64(2**63 - 1))
    return numbers.of_floats(words, value)


def cast(value: Array, kind: pa.DataType) -> Array:
    """Return values as another type.

    Raises:
        ValueError: one does not fit.
    """
    if value.type == kind:
        return value
    if value.null_count == len(value):
        return pa.nulls(len(value), kind)
    if pat.is_decimal(kind):
        return _to_decimal(value, kind)
    if pat.is_boolean(kind):
        return pc.not_equal(
            value,
            pa.scalar(0, pa.int8()).cast(value.type)
            if not pat.is_decimal(value.type)
            else pa.scalar(Decimal(0), value.type),
        )
    if pat.is_floating(kind):
        return _to_float(value, kind)
    if pat.is_integer(kind):
        return _to_integer(value, kind)
    return _to_moment(value, kind)


def is_cast(given: pa.DataType, kind: pa.DataType) -> bool:
    """Return whether values of one type are cast to another here, and not by DuckDB."""
    if given == kind:
        return True
    families = [_family(arrow_type) for arrow_type in (given, kind)]
    if pat.is_timestamp(given) and _PER_SECOND[given.unit] > _PER_SECOND[getattr(kind, "unit", "us")]:
        return False  # It is rounded.
    is_known = families[0] == families[1] != "other" or tuple(families) in _MOMENTS
    return is_known and not (pat.is_time(kind) and getattr(given, "tz", None))


def _family(kind: pa.DataType) -> str:
    if pat.is_boolean(kind) or pat.is_integer(kind) or pat.is_floating(kind) or pat.is_decimal(kind):
        return "number"
    tests = (("date", pat.is_date), ("timestamp", pat.is_timestamp), ("time", pat.is_time))
    return next((name for name, test in tests if test(kind)), "other")


def _to_moment(value: Array, kind: pa.DataType) -> Array:
    if pat.is_timestamp(kind):
        if pat.is_timestamp(value.type) and value.type.tz != kind.tz:  # Both are in UTC.
            value = value.cast(pa.timestamp(value.type.unit, kind.tz))
        return pc.cast(value, kind)
    whole = pc.floor_temporal(value, unit="day") if pat.is_date(kind) else value
    return pc.cast(whole, kind, safe=False)


def _to_decimal(value: Array, kind: pa.DataType) -> Array:
    if pat.is_decimal(value.type):
        return numbers.as_decimal(value, kind)
    if pat.is_boolean(value.type):
        value = pc.cast(value, pa.int8())
    if pat.is_integer(value.type):
        return numbers.as_decimal(pc.cast(value, pa.decimal128(20, 0)), kind)
    with np.errstate(over="ignore"):
        scaled = numbers.round_half_away(numbers.floats(value) * 10.0**kind.scale)
    mask = value.is_null().to_numpy(zero_copy_only=False) if value.null_count else None
    if not (np.abs(scaled if mask is None else scaled[~mask]) < 10.0**kind.precision).all():
        raise ValueError(f"a number does not fit {kind}")
    if kind.precision <= 15:
        return numbers.of_unscaled(scaled.astype(np.int64), kind, mask)
    whole = pa.array(scaled, mask=mask).cast(pa.decimal128(38, 0))
    return pa.Array.from_buffers(kind, len(whole), whole.buffers(), offset=whole.offset)


def _to_float(value: Array, kind: pa.DataType) -> Array:
    floats = numbers.to_double(value) if not pat.is_floating(value.type) else value
    if not pat.is_float32(kind):
        return pc.cast(floats, kind)
    if pat.is_integer(value.type):
        return pc.cast(value, kind, safe=False)
    narrow = pc.cast(floats, kind)
    if pc.any(pc.and_(pc.is_inf(narrow), pc.is_finite(floats))).as_py():
        raise ValueError("a number does not fit a float of 32 bits")
    return narrow


def _to_integer(value: Array, kind: pa.DataType) -> Array:
    if pat.is_decimal(value.type):
        return pc.cast(numbers.as_decimal(value, pa.decimal128(38, 0)), kind)
    if pat.is_floating(value.type):
        return pc.cast(pc.round(value, round_mode="half_to_even"), kind)
    return pc.cast(value, kind)
