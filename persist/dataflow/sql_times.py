"""Dates, times and intervals as SQL (DuckDB's) means them. Intervals are constants: months, days and microseconds."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

Array = Any
Ints = npt.NDArray[np.int64]
_DAY_US = 86_400_000_000
_PARTS = {
    "year": "year",
    "month": "month",
    "day": "day",
    "hour": "hour",
    "minute": "minute",
    "second": "second",
    "quarter": "quarter",
    "dayofyear": "day_of_year",
    "doy": "day_of_year",
    "week": "iso_week",
    "isoyear": "iso_year",
    "years": "year",
    "months": "month",
    "days": "day",
    "hours": "hour",
    "minutes": "minute",
    "seconds": "second",
    "quarters": "quarter",
    "weeks": "iso_week",
}
_UNITS = ("year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond", "microsecond")


def shifted(value: Array, interval: Any, sign: int, kind: pa.DataType) -> Array:
    """Return dates or timestamps plus or minus an interval: first months, to the last day at most, then the rest."""
    if interval is None:
        return pa.nulls(len(value), kind)
    months, days, micros = sign * interval.months, sign * interval.days, sign * (interval.nanoseconds // 1000)
    stamps = as_micros(value)
    day, rest = stamps // _DAY_US, stamps % _DAY_US
    if months:
        day = _months_later(day, months)
    found = (day + days) * _DAY_US + rest + micros
    mask = value.is_null().to_numpy(zero_copy_only=False) if value.null_count else None
    return pa.array(found, mask=mask).cast(pa.timestamp("us")).cast(kind)


def as_micros(value: Array) -> Ints:
    """Return dates or timestamps as microseconds since 1970; NULL as 0."""
    stamps = pc.cast(value, pa.timestamp("us", value.type.tz) if pat.is_timestamp(value.type) else pa.timestamp("us"))
    found: Ints = pc.cast(stamps, pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return found


def time_from(value: Array, unit: str, *, after: bool) -> Array:
    """Return the first time that is not before moments, or with after the first that is after them.

    Args:
        value: timestamps or dates, and a unit "s", "ms", "us" or "ns"; or, with the unit "", numbers that are times.
    """
    mask = value.is_null().to_numpy(zero_copy_only=False) if value.null_count else None
    if not unit:
        found = value.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    elif unit == "ns":
        limit = np.iinfo(np.int64).max // 1000
        found = np.clip(as_micros(value), -limit, limit) * 1000
    else:
        size = {"s": 1_000_000, "ms": 1_000, "us": 1}[unit]
        micros = as_micros(value)
        found = micros // size
        if not after:
            found = found + (micros % size != 0)
    if after:
        found = np.minimum(found, np.iinfo(np.int64).max - 1) + 1
    return pa.array(found, mask=mask)


def _months_later(day: Ints, months: int) -> Ints:
    dates = day.astype("datetime64[D]")
    begun = dates.astype("datetime64[M]")
    inside = (dates - begun.astype("datetime64[D]")).astype(np.int64)
    target = begun + np.timedelta64(months, "M")
    first = target.astype("datetime64[D]")
    last = ((target + np.timedelta64(1, "M")).astype("datetime64[D]") - first).astype(np.int64) - 1
    found: Ints = first.astype(np.int64) + np.minimum(inside, last)
    return found


def part(value: Array, unit: str, kind: pa.DataType) -> Array:
    """Return a part of dates, times or timestamps."""
    unit = unit.lower()
    if unit in ("dow", "dayofweek", "weekday"):
        return pc.day_of_week(value, count_from_zero=True, week_start=7).cast(kind)
    if unit == "isodow":
        return pc.day_of_week(value, count_from_zero=False, week_start=1).cast(kind)
    if unit not in _PARTS:
        raise ValueError(f"{unit!r} is no part of a date that is supported; there are {', '.join(sorted(_PARTS))}")
    name = _PARTS[unit]
    if pat.is_date(value.type) and name in ("hour", "minute", "second"):
        value = value.cast(pa.timestamp("us"))
    return getattr(pc, name)(value).cast(kind)


def truncated(unit: str, value: Array, kind: pa.DataType) -> Array:
    """Return the begin of the year, month … that dates or timestamps are in."""
    unit = unit.lower().removesuffix("s")
    if unit not in _UNITS:
        raise ValueError(f"{unit!r} is no unit of date_trunc that is supported; there are {', '.join(_UNITS)}")
    if pat.is_date(value.type) and unit in ("hour", "minute", "second", "millisecond", "microsecond"):
        return value.cast(kind)
    return pc.floor_temporal(value, unit=unit, week_starts_monday=True).cast(kind)


def last_day(value: Array, kind: pa.DataType) -> Array:
    """Return the last day of the month that dates are in."""
    months = pc.cast(value, pa.date32()).cast(pa.int32()).fill_null(0).to_numpy(zero_copy_only=False)
    month = months.astype(np.int64).astype("datetime64[D]").astype("datetime64[M]")
    days = (month + np.timedelta64(1, "M")).astype("datetime64[D]").astype(np.int64) - 1
    mask = value.is_null().to_numpy(zero_copy_only=False) if value.null_count else None
    return pa.array(days.astype(np.int32), mask=mask).cast(pa.date32()).cast(kind)


def difference(unit: str, start: Array, end: Array, kind: pa.DataType) -> Array:
    """Return how many borders of a unit are between two dates or timestamps."""
    unit = unit.lower().removesuffix("s")
    names = {"year": "years", "quarter": "quarters", "month": "month", "day": "days", "hour": "hours"}
    names |= {"minute": "minutes", "second": "seconds", "millisecond": "milliseconds", "microsecond": "microseconds"}
    if unit == "month":
        months = [pc.add(pc.multiply(pc.year(each), 12), pc.month(each)) for each in (start, end)]
        return pc.subtract(months[1], months[0]).cast(kind)
    if unit not in names:
        raise ValueError(f"{unit!r} is no unit of date_diff that is supported; there are {', '.join(names)}")
    stamps = [each.cast(pa.timestamp("us")) for each in (start, end)]
    return getattr(pc, f"{names[unit]}_between")(*stamps).cast(kind)


def minus_date(one: Array, other: Array, kind: pa.DataType) -> Array:
    """Return the days between dates."""
    days = [each.cast(pa.int32()).cast(pa.int64()) for each in (one, other)]
    return pc.subtract(*days).cast(kind)


def plus_days(date: Array, days: Array, sign: int, kind: pa.DataType) -> Array:
    """Return dates so many days later."""
    count = days.cast(pa.int32())
    number = date.cast(pa.int32())
    found = pc.add_checked(number, count) if sign > 0 else pc.subtract_checked(number, count)
    return found.cast(pa.date32()).cast(kind)
