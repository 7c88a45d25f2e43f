"""Casts as SQL (DuckDB's) means them: they round where digits are lost, and raise where a value does not fit."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.dataflow import sql_numbers as numbers

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
        ValueError: one does not fit, or there is no such cast.
    """
    if value.type == kind:
        return value
    if value.null_count == len(value):
        return pa.nulls(len(value), kind)
    if pat.is_decimal(kind):
        return _to_decimal(value, kind)
    if pat.is_float64(kind) and not pat.is_string(value.type):
        return numbers.to_double(value)
    if pat.is_integer(kind):
        return _to_integer(value, kind)
    if pat.is_string(kind):
        return _to_text(value)
    if pat.is_string(value.type):
        value = pc.utf8_trim_whitespace(value)
        if pat.is_boolean(kind):
            value = pc.utf8_lower(value)
        if pat.is_time(kind):
            return _to_time(value, kind)
    if pat.is_date(kind) and pat.is_timestamp(value.type):
        return pc.floor_temporal(value, unit="day").cast(kind)
    if pat.is_boolean(value.type):
        return pc.cast(pc.cast(value, pa.int8()), kind)
    return pc.cast(value, kind)


def _to_time(text: Array, kind: pa.DataType) -> Array:
    """Return texts such as 9:30, 09:30:15 and 09:30:15.25 as times of day; Arrow reads them as those of a moment."""
    text = pc.replace_substring_regex(text, r"^(\d:)", r"0\1")
    bad = text.filter(pc.invert(pc.match_substring_regex(text, r"^\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?$")))
    bad = bad.drop_null()
    if len(bad):
        raise ValueError(f"{bad[0].as_py()!r} is no time of day: write it as 09:30:00")
    moments = pc.cast(pc.binary_join_element_wise("1970-01-01", text, " "), pa.timestamp("us"))
    return pc.cast(moments, kind)


def _to_decimal(value: Array, kind: pa.DataType) -> Array:
    if pat.is_decimal(value.type):
        return numbers.as_decimal(value, kind)
    if pat.is_boolean(value.type):
        value = pc.cast(value, pa.int8())
    if pat.is_integer(value.type):
        return numbers.as_decimal(pc.cast(value, pa.decimal128(20, 0)), kind)
    if pat.is_floating(value.type):
        scaled = numbers.round_half_away(numbers.floats(value) * 10.0**kind.scale)
        if kind.precision <= 15 and (np.abs(scaled) < 10.0**kind.precision).all():
            mask = value.is_null().to_numpy(zero_copy_only=False) if value.null_count else None
            return numbers.of_unscaled(scaled.astype(np.int64), kind, mask)
    return pc.cast(value, kind)


def _to_integer(value: Array, kind: pa.DataType) -> Array:
    if pat.is_boolean(value.type):
        return pc.cast(value, kind)
    if pat.is_decimal(value.type):
        return pc.cast(numbers.as_decimal(value, pa.decimal128(38, 0)), kind)
    if pat.is_floating(value.type):
        return pc.cast(pc.round(value, round_mode="half_to_even"), kind)
    if pat.is_string(value.type):
        return pc.cast(pc.utf8_trim_whitespace(value), kind)
    return pc.cast(value, kind)


def is_cast_to_text(kind: pa.DataType) -> bool:
    """Return whether Arrow writes values of a type as DuckDB does."""
    return not pat.is_floating(kind) and not (pat.is_decimal(kind) and kind.scale > TEXT_PLACES_MAX)


def _to_text(value: Array) -> Array:
    kind = value.type
    if not is_cast_to_text(kind):
        raise ValueError(f"values of {kind} are not cast to text in a view: {CAST_TO_TEXT_AS}")
    if pat.is_timestamp(kind):
        text = pc.strftime(value, format="%Y-%m-%d %H:%M:%S")
        return pc.replace_substring_regex(pc.replace_substring_regex(text, r"(\.\d*?)0+$", r"\1"), r"\.$", "")
    return pc.cast(value, pa.string())


def try_cast(value: Array, kind: pa.DataType) -> Array:
    """Return values as another type, and NULL for what does not fit."""
    try:
        return cast(value, kind)
    except (pa.ArrowException, ValueError):
        if len(value) == 1:
            return pa.nulls(1, kind)
    half = len(value) // 2
    return pa.concat_arrays([try_cast(value[:half], kind), try_cast(value[half:], kind)])
