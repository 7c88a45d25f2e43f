"""Dates and times as SQL (DuckDB's) means them; intervals are in `persist.expression.sql_intervals`."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.expression.sql_intervals import DAY_US, as_micros, nulls_of

Array = Any
Ints = npt.NDArray[np.int64]
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
_LONG = {"millennium": 1000, "century": 100, "decade": 10}  # How many years.
_SIZES_US = {
    "day": DAY_US,
    "hour": 3_600_000_000,
    "minute": 60_000_000,
    "second": 1_000_000,
    "millisecond": 1000,
    "microsecond": 1,
}
_UNITS = (*_LONG, "year", "quarter", "month", "week", *_SIZES_US)
_OF_DAY = ("hour", "minute", "second", "millisecond", "microsecond")


def time_from(value: Array, unit: str, *, after: bool) -> Array:
    """Return the first time that is not before moments, or with after the first that is after them.

    Args:
        value: timestamps or dates, and a unit "s", "ms", "us" or "ns"; or, with the unit "", numbers that are times.
    """
    mask = value.is_null().to_numpy(zero_copy_only=False) if value.null_count else None
    if not unit:
        times = value.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    elif unit == "ns":
        limit = np.iinfo(np.int64).max // 1000
        times = np.clip(as_micros(value), -limit, limit) * 1000
    else:
        size = {"s": 1_000_000, "ms": 1_000, "us": 1}[unit]
        micros = as_micros(value)
        times = micros // size
        if not after:
            times = times + (micros % size != 0)
    if after:
        times = np.minimum(times, np.iinfo(np.int64).max - 1) + 1
    return pa.array(times, mask=mask)


def part(value: Array, unit: str, kind: pa.DataType) -> Array:
    """Return a part of dates, times or timestamps."""
    unit = unit.lower()
    if unit in ("dow", "dayofweek", "weekday"):
        return pc.day_of_week(value, count_from_zero=True, week_start=7).cast(kind)
    if unit == "isodow":
        return pc.day_of_week(value, count_from_zero=False, week_start=1).cast(kind)
    if unit in _COUNTED:
        return _COUNTED[unit](value).cast(kind)
    if unit not in _PARTS:
        raise ValueError(
            f"{unit!r} is no part of a date that is supported; there are {', '.join(sorted({*_PARTS, *_COUNTED}))}"
        )
    name = _PARTS[unit]
    if pat.is_date(value.type) and name in ("hour", "minute", "second"):
        value = value.cast(pa.timestamp("us"))
    return getattr(pc, name)(value).cast(kind)


def truncated(unit: str, value: Array, kind: pa.DataType) -> Array:
    """Return the begin of the year, month … that dates or timestamps are in."""
    unit = unit.lower().removesuffix("s")
    if unit not in _UNITS:
        raise ValueError(f"{unit!r} is no unit of date_trunc that is supported; there are {', '.join(_UNITS)}")
    _check_moment(value, "date_trunc")
    if pat.is_date(value.type) and unit in _OF_DAY:
        return value.cast(kind)
    if unit in _LONG:
        months = _months(value) // (12 * _LONG[unit]) * 12 * _LONG[unit] - 1970 * 12
        days = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64).astype(np.int32)
        return pa.array(days, mask=nulls_of(value)).cast(pa.date32()).cast(pa.timestamp("us")).cast(kind)
    return pc.floor_temporal(value, unit=unit, week_starts_monday=True).cast(kind)


def _check_moment(value: Array, function: str) -> None:
    if not (pat.is_date(value.type) or pat.is_timestamp(value.type)):
        raise TypeError(f"{function}() takes dates and timestamps in a view, not {value.type}")


def _months(value: Array) -> Ints:
    """Return the months since the year 0 that moments are in."""
    days = as_micros(value) // DAY_US
    months: Ints = days.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64) + 1970 * 12
    return months


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
    known = [name for name in _UNITS if name != "week"]
    if unit not in known:
        raise ValueError(f"{unit!r} is no unit of date_diff that is supported; there are {', '.join(known)}")
    for moment in (start, end):
        _check_moment(moment, "date_diff")
    months = {"month": 1, "quarter": 3, "year": 12} | {name: 12 * years for name, years in _LONG.items()}
    if unit in months:
        counts = [_months(moment) // months[unit] for moment in (start, end)]
    else:
        counts = [as_micros(moment) // _SIZES_US[unit] for moment in (start, end)]
    return pa.array(counts[1] - counts[0], mask=nulls_of(start, end)).cast(kind)


def minus_date(one: Array, other: Array, kind: pa.DataType) -> Array:
    """Return the days between dates."""
    days = [date.cast(pa.int32()).cast(pa.int64()) for date in (one, other)]
    return pc.subtract(*days).cast(kind)


def plus_days(date: Array, days: Array, sign: int, kind: pa.DataType) -> Array:
    """Return dates so many days later."""
    count = days.cast(pa.int32())
    number = date.cast(pa.int32())
    day_numbers = pc.add_checked(number, count) if sign > 0 else pc.subtract_checked(number, count)
    if pc.any(pc.greater_equal(pc.abs(day_numbers.cast(pa.int64())), 2**31 - 1)).as_py():
        raise ValueError("a date is out of the range of dates")
    return day_numbers.cast(pa.date32()).cast(kind)


def at_time(date: Array, time: Array, kind: pa.DataType) -> Array:
    """Return dates with a time of day as timestamps."""
    of_day = time.cast(pa.time64("us")).cast(pa.int64()).cast(pa.duration("us"))
    return pc.add_checked(date.cast(pa.timestamp("us")), of_day).cast(kind)


def made_date(year: Array, month: Array, day: Array, kind: pa.DataType) -> Array:
    """Return the dates of years, months and days of the month; one that is not in the calendar raises."""
    numbers = [field.fill_null(1).to_numpy(zero_copy_only=False).astype(np.int64) for field in (year, month, day)]
    months = (numbers[0] - 1970) * 12 + numbers[1] - 1
    first = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    last = (months + 1).astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    days = first + numbers[2] - 1
    wrong = (numbers[1] < 1) | (numbers[1] > 12) | (numbers[2] < 1) | (days >= last)
    null = np.logical_or.reduce([field.is_null().to_numpy(zero_copy_only=False) for field in (year, month, day)])
    if (wrong & ~null).any():
        at = int(np.argmax(wrong & ~null))
        raise ValueError(f"there is no date {'-'.join(str(number[at]) for number in numbers)}")
    return pa.array(days.astype(np.int32), mask=null).cast(pa.date32()).cast(kind)


def formatted(value: Array, pattern: str, kind: pa.DataType) -> Array:
    """Return dates or timestamps as texts, by a pattern of strftime."""
    if not (pat.is_date(value.type) or pat.is_timestamp(value.type)):
        raise ValueError(f"strftime() takes dates and timestamps in a view, not {value.type}")
    if not pattern:
        raise ValueError("the format of strftime() is empty")
    stamps = value.cast(pa.timestamp("us")) if pat.is_date(value.type) else value
    pattern = re.sub(r"%(.)", lambda match: _TOGETHER.get(match[1], match[0]), pattern)
    pieces: list[Any] = []
    at = 0
    while at < len(pattern):
        if pattern[at] != "%":
            end = pattern.find("%", at)
            end = len(pattern) if end < 0 else end
            pieces.append(pa.scalar(pattern[at:end]))
            at = end
            continue
        name = pattern[at + 1 : at + 3] if pattern.startswith("%-", at) else pattern[at + 1 : at + 2]
        if name not in _FORMATS:
            known = ", ".join(f"%{directive}" for directive in _FORMATS)
            raise ValueError(f"strftime() does not know %{name} in a view; there are {known}")
        made = _FORMATS[name]
        pieces.append(pa.scalar(made) if isinstance(made, str) else made(stamps))
        at += 1 + len(name)
    # Where a moment is NULL, so is the text, though nothing of it be shown.
    blank = pc.if_else(pc.is_valid(value), "", pa.scalar(None, pa.string()))
    return pc.binary_join_element_wise(blank, *pieces, "").cast(kind)


def _number(of: Callable[[Array], Array], digits: int) -> Callable[[Array], Array]:
    return lambda value: pc.utf8_zfill(of(value).cast(pa.string()), digits)


def _named(names: tuple[str, ...], of: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda value: pa.array(names).take(of(value))


def _of_year(function: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]]) -> Callable[[Array], Array]:
    def apply(value: Array) -> Array:
        years = pc.year(value)
        mask = years.is_null().to_numpy(zero_copy_only=False) if years.null_count else None
        return pa.array(function(years.fill_null(1).to_numpy(zero_copy_only=False)), mask=mask)

    return apply


def _ages(size: int) -> Callable[[Array], Array]:
    """Return which hundred or thousand years moments are in: the first begins with year 1, the one before is -1."""
    return _of_year(lambda year: np.where(year > 0, (year - 1) // size + 1, -(-year // size) - 1))


def _since_1970(per_second: int) -> Callable[[Array], Array]:
    def count(value: Array) -> Array:
        if not (pat.is_date(value.type) or pat.is_timestamp(value.type)):
            raise ValueError(f"epoch() and its like take dates and timestamps in a view, not {value.type}")
        if per_second > 1_000_000 and pat.is_timestamp(value.type) and value.type.unit == "ns":
            return pc.cast(value, pa.int64())
        micros = as_micros(value)
        mask = value.is_null().to_numpy(zero_copy_only=False) if value.null_count else None
        if per_second == 1:
            return pa.array(micros / 1e6, mask=mask)
        if per_second > 1_000_000:
            return pc.multiply_checked(pa.array(micros, mask=mask), per_second // 1_000_000)
        size = 1_000_000 // per_second
        return pa.array(np.sign(micros) * ((np.abs(micros) + size // 2) // size), mask=mask)

    return count


def _half_hour(value: Array) -> Array:
    hours = pc.hour(value)
    return pc.add(pc.subtract(hours, pc.multiply(pc.divide(pc.add(hours, 11), 12), 12)), 12)


def _micros(value: Array) -> Array:
    return pc.add(pc.multiply(pc.millisecond(value), 1000), pc.microsecond(value))


_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
_COUNTED: dict[str, Callable[[Array], Array]] = {
    "decade": _of_year(lambda year: np.sign(year) * (np.abs(year) // 10)),
    "century": _ages(100),
    "millennium": _ages(1000),
    "yearweek": lambda value: pc.add(pc.multiply(pc.iso_year(value), 100), pc.iso_week(value)),
    "millisecond": lambda value: pc.add(pc.multiply(pc.second(value), 1000), pc.millisecond(value)),
    "microsecond": lambda value: pc.add(pc.multiply(pc.second(value), 1_000_000), _micros(value)),
    "epoch": _since_1970(1),
    "epoch_ms": _since_1970(1_000),
    "epoch_us": _since_1970(1_000_000),
    "epoch_ns": _since_1970(1_000_000_000),
}


def _week_of_year(value: Array, starts: int) -> Array:
    """Return which week of the year moments are in: the first begins with the first Sunday (7) or Monday (1)."""
    inside = pc.subtract(pc.add(pc.day_of_year(value), 6), pc.day_of_week(value, week_start=starts))
    return pc.divide(inside, 7)


def _month_number(value: Array) -> Array:
    return pc.subtract(pc.month(value), 1)


# What a pattern of strftime may name: how it is made of moments, or a text.
_FORMATS: dict[str, str | Callable[[Array], Array]] = {
    "Y": _number(pc.year, 4),
    "y": _number(lambda value: pc.subtract(pc.year(value), pc.multiply(pc.divide(pc.year(value), 100), 100)), 2),
    "m": _number(pc.month, 2),
    "-m": _number(pc.month, 1),
    "d": _number(pc.day, 2),
    "-d": _number(pc.day, 1),
    "H": _number(pc.hour, 2),
    "-H": _number(pc.hour, 1),
    "I": _number(_half_hour, 2),
    "-I": _number(_half_hour, 1),
    "M": _number(pc.minute, 2),
    "-M": _number(pc.minute, 1),
    "S": _number(pc.second, 2),
    "-S": _number(pc.second, 1),
    "f": _number(_micros, 6),
    "g": _number(pc.millisecond, 3),
    "j": _number(pc.day_of_year, 3),
    "-j": _number(pc.day_of_year, 1),
    "p": lambda value: pc.if_else(pc.less(pc.hour(value), 12), "AM", "PM"),
    "A": _named(_WEEKDAYS, pc.day_of_week),
    "a": _named(tuple(weekday[:3] for weekday in _WEEKDAYS), pc.day_of_week),
    "B": _named(_MONTHS, _month_number),
    "b": _named(tuple(month[:3] for month in _MONTHS), _month_number),
    "w": _number(lambda value: pc.day_of_week(value, week_start=7), 1),
    "u": _number(lambda value: pc.day_of_week(value, count_from_zero=False), 1),
    "G": _number(pc.iso_year, 4),
    "V": _number(pc.iso_week, 2),
    "U": _number(lambda value: _week_of_year(value, 7), 2),
    "W": _number(lambda value: _week_of_year(value, 1), 2),
    "%": "%",
}
# Those that stand for others.
_TOGETHER = {"c": "%Y-%m-%d %H:%M:%S", "x": "%Y-%m-%d", "X": "%H:%M:%S"}
