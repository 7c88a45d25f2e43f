"""Casts as SQL (DuckDB's) means them: they round where digits are lost, and raise where a value does not fit."""

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.expression import sql_numbers as numbers
from persist.expression.sql_text_casts import of_text, rounded, text_of_blob

Array = Any

TEXT_PLACES_MAX = 6
CAST_TO_TEXT_AS = f"cast them to a decimal of at most {TEXT_PLACES_MAX} places first"


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
    if pat.is_string(value.type):
        return of_text(value, kind)
    if pat.is_string(kind):
        return _to_text(value)
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


def why_not_cast(given: pa.DataType, kind: pa.DataType) -> str | None:
    """Return why values of one type are not cast to another; None if they are."""
    if given == kind:
        return None
    if pat.is_interval(given) or pat.is_interval(kind):
        return "an interval is made of constants (INTERVAL 1 DAY) or of numbers (to_days(n))"
    if pat.is_string(given):
        return None
    if pat.is_string(kind):
        return None if _is_cast_to_text(given) else CAST_TO_TEXT_AS
    families = [_family(arrow_type) for arrow_type in (given, kind)]
    is_known = families[0] == families[1] != "other" or tuple(families) in _MOMENTS
    is_ns_to_s = pat.is_timestamp(given) and pat.is_timestamp(kind) and (given.unit, kind.unit) == ("ns", "s")
    if is_known and not is_ns_to_s and not (pat.is_time(kind) and getattr(given, "tz", None)):
        return None
    return "DuckDB has no such cast"


_MOMENTS = (("date", "timestamp"), ("timestamp", "date"), ("timestamp", "time"))


def _family(kind: pa.DataType) -> str:
    if pat.is_boolean(kind) or pat.is_integer(kind) or pat.is_floating(kind) or pat.is_decimal(kind):
        return "number"
    tests = (("date", pat.is_date), ("timestamp", pat.is_timestamp), ("time", pat.is_time))
    return next((name for name, test in tests if test(kind)), "other")


def _to_moment(value: Array, kind: pa.DataType) -> Array:
    if not pat.is_timestamp(kind):
        micros = _to_moment(value, pa.timestamp("us"))
        return pc.floor_temporal(micros, unit="day").cast(kind) if pat.is_date(kind) else pc.cast(micros, kind)
    if pat.is_timestamp(value.type) and value.type.tz != kind.tz:  # Both are in UTC.
        value = value.cast(pa.timestamp(value.type.unit, kind.tz))
    if not pat.is_timestamp(value.type) or _PER_SECOND[value.type.unit] <= _PER_SECOND[kind.unit]:
        return pc.cast(value, kind)
    size = _PER_SECOND[value.type.unit] // _PER_SECOND[kind.unit]
    counts = pc.cast(value, pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    mask = value.is_null().to_numpy(zero_copy_only=False) if value.null_count else None
    return pa.array(rounded(counts, size), mask=mask).cast(kind)


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


def _is_cast_to_text(kind: pa.DataType) -> bool:
    """Return whether Arrow writes values of a type as DuckDB does."""
    return not pat.is_floating(kind) and not (pat.is_decimal(kind) and kind.scale > TEXT_PLACES_MAX)


def _to_text(value: Array) -> Array:
    kind = value.type
    if not _is_cast_to_text(kind):
        raise ValueError(f"values of {kind} are not cast to text in a view: {CAST_TO_TEXT_AS}")
    if pat.is_binary(kind):
        return text_of_blob(value)
    if pat.is_timestamp(kind):
        text = pc.strftime(value.cast(pa.timestamp(kind.unit)), format="%Y-%m-%d %H:%M:%S")
        text = _without_zeros(text)
        return pc.binary_join_element_wise(text, "+00", "") if kind.tz else text
    if pat.is_time(kind):
        return _without_zeros(pc.cast(value, pa.string()))
    return pc.cast(value, pa.string())


def _without_zeros(text: Array) -> Array:
    return pc.replace_substring_regex(pc.replace_substring_regex(text, r"(\.\d*?)0+$", r"\1"), r"\.$", "")


def try_cast(value: Array, kind: pa.DataType) -> Array:
    """Return values as another type, and NULL for what does not fit."""
    if pat.is_string(value.type) and value.type != kind:
        return of_text(value, kind, tries=True)
    try:
        return cast(value, kind)
    except (pa.ArrowException, ValueError):
        if len(value) == 1:
            return pa.nulls(1, kind)
    half = len(value) // 2
    return pa.concat_arrays([try_cast(value[:half], kind), try_cast(value[half:], kind)])


_PER_SECOND = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}
