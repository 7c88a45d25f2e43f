"""Intervals as SQL (DuckDB's) means them: months, days and microseconds, of which none becomes another.

They are columns like others, of Arrow's month_day_nano, and no collection holds them. Arrow computes nothing with them,
so what is done here is done with their three parts, `int64[n]` each.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

Array = Any
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
DAY_US = 86_400_000_000
MONDAY_US = 10_959 * DAY_US  # 2000-01-03.
_2000 = 30 * 12  # Its first month, since 1970.
_RECORD = np.dtype([("months", "<i4"), ("days", "<i4"), ("nanos", "<i8")])
_MICROS_MAX = np.iinfo(np.int64).max // 1000
_STAMP_MAX = 2**63 - 1
# How many months, days or microseconds a unit has.
UNITS = {
    "years": ("months", 12),
    "quarters": ("months", 3),
    "months": ("months", 1),
    "weeks": ("days", 7),
    "days": ("days", 1),
    "hours": ("micros", 3_600_000_000),
    "minutes": ("micros", 60_000_000),
    "seconds": ("micros", 1_000_000),
    "milliseconds": ("micros", 1000),
    "microseconds": ("micros", 1),
}


def nulls_of(*arrays: Array) -> Flags | None:
    """Return where one of some arrays is NULL; None if none is anywhere."""
    nulls: Flags | None = None
    for array in arrays:
        if array.null_count:
            null = array.is_null().to_numpy(zero_copy_only=False)
            nulls = null if nulls is None else nulls | null
    return nulls


def parts(intervals: Array) -> tuple[Ints, Ints, Ints]:
    """Return the months, days and microseconds of intervals; NULL as nothing."""
    if not len(intervals):
        return (np.empty(0, np.int64),) * 3
    records = np.frombuffer(intervals.buffers()[1], _RECORD, len(intervals), 16 * intervals.offset)
    null = nulls_of(intervals)
    fields = records["months"].astype(np.int64), records["days"].astype(np.int64), records["nanos"] // 1000
    if null is None:
        return fields
    months, days, micros = (np.where(null, 0, field) for field in fields)
    return months, days, micros


def made(months: Ints | int, days: Ints | int, micros: Ints | int, null: Flags | None, rows: int) -> Array:
    """Return intervals of parts.

    Raises:
        ValueError: months or days need more than 32 bits, or microseconds are more than 292 years.
    """
    records = np.zeros(rows, _RECORD)
    limits = (("months", months, 2**31 - 1), ("days", days, 2**31 - 1), ("nanos", micros, _MICROS_MAX))
    for name, values, limit in limits:
        whole = np.broadcast_to(np.asarray(values, np.int64), rows)
        beyond = (whole > limit) | (whole < -limit)
        if null is not None:
            beyond &= ~null
        if beyond.any():
            what = "microseconds" if name == "nanos" else name
            raise ValueError(f"an interval has up to {limit} {what}, and this one has {int(whole[beyond.argmax()])}")
        records[name] = np.where(beyond, 0, whole) * (1000 if name == "nanos" else 1)
    valid = None if null is None else pa.py_buffer(np.packbits(~null, bitorder="little"))
    return pa.Array.from_buffers(pa.month_day_nano_interval(), rows, [valid, pa.py_buffer(records)])


def of_units(unit: str) -> Callable[[Array, pa.DataType], Array]:
    """Return the function that makes intervals of so many units each."""
    part, size = UNITS[unit]

    def of_count(count: Array, kind: pa.DataType) -> Array:
        null = nulls_of(count)
        if pat.is_floating(count.type):
            with np.errstate(over="ignore"):
                given: Floats = count.fill_null(0.0).to_numpy(zero_copy_only=False) * size
            if not (np.abs(given) < 2.0**63).all():
                raise ValueError(f"to_{unit}() takes what fits an interval, and this does not")
            whole = np.rint(given).astype(np.int64)
        else:
            numbers = count.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
            whole = times_checked(numbers, np.int64(size))
        values = {"months": 0, "days": 0, "micros": 0} | {part: whole}
        return made(values["months"], values["days"], values["micros"], null, len(count))

    return of_count


def times_checked(one: Ints, other: Ints | np.int64) -> Ints:
    """Return products of whole numbers; one that does not fit 64 bits raises."""
    products: Ints = one * other
    if (np.abs(one.astype(np.float64) * np.asarray(other, np.float64)) > 2.0**63 - 2.0**12).any():
        raise ValueError("an interval does not fit 64 bits")
    return products


def plus_checked(one: Ints, other: Ints) -> Ints:
    """Return sums of whole numbers; one that does not fit 64 bits raises."""
    sums: Ints = one + other
    if (((one ^ sums) & (other ^ sums)) < 0).any():
        raise ValueError("a moment does not fit 64 bits")
    return sums


def added(one: Array, other: Array, sign: int) -> Array:
    """Return intervals plus or minus intervals, part by part."""
    months, days, micros = (a + sign * b for a, b in zip(parts(one), parts(other), strict=True))
    return made(months, days, micros, nulls_of(one, other), len(one))


def negated(one: Array) -> Array:
    months, days, micros = parts(one)
    return made(-months, -days, -micros, nulls_of(one), len(one))


def multiplied(one: Array, count: Array) -> Array:
    """Return intervals so many whole times."""
    if not pat.is_integer(count.type):
        raise TypeError("an interval times a number with a fraction is not supported in a view")
    factor = count.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    null = nulls_of(one, count)
    factor = factor if null is None else np.where(null, 0, factor)
    if (np.abs(factor.astype(np.float64)) >= 2.0**31).any():
        raise ValueError("an interval is multiplied by a number of up to 32 bits")
    months, days, micros = (times_checked(part, factor) for part in parts(one))
    return made(months, days, micros, null, len(one))


def between(later: Array, earlier: Array) -> Array:
    """Return the intervals from one moment to another, of days and microseconds."""
    one, other = as_micros(later), as_micros(earlier)
    micros = plus_checked(one, -other)
    days = np.sign(micros) * (np.abs(micros) // DAY_US)
    return made(0, days, micros - days * DAY_US, nulls_of(later, earlier), len(later))


def as_micros(value: Array) -> Ints:
    """Return dates or timestamps as microseconds since 1970, rounded down; NULL as 0."""
    if pat.is_timestamp(value.type) and value.type.unit == "ns":
        return _split_nanos(value)[0]
    stamps = pc.cast(value, pa.timestamp("us", value.type.tz) if pat.is_timestamp(value.type) else pa.timestamp("us"))
    micros: Ints = pc.cast(stamps, pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return micros


def shifted(value: Array, intervals: Array, sign: int, kind: pa.DataType) -> Array:
    """Return dates, times or timestamps plus or minus intervals: first months, to the last day at most, then the rest.

    A time of day goes round at midnight, and takes no notice of months and days.
    """
    months, days, micros = (sign * part for part in parts(intervals))
    null = nulls_of(value, intervals)
    if pat.is_time(value.type):
        of_day = value.cast(pa.time64("us")).cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        return pa.array((of_day + micros) % DAY_US, mask=null).cast(pa.time64("us")).cast(kind)
    # Below a microsecond nothing is added. DuckDB keeps what is there since 2.0.1, and said TIMESTAMP of it before.
    keeps_nanos = pat.is_timestamp(kind) and kind.unit == "ns"
    stamps = as_micros(value)
    day, rest = stamps // DAY_US, stamps % DAY_US
    if months.any():
        day = np.where(months == 0, day, _months_later(day, months))
    day = day + days
    if (np.abs(day) > _STAMP_MAX // DAY_US - 1).any():
        raise ValueError("a moment plus an interval is beyond what a timestamp can be")
    moments = plus_checked(day * DAY_US + rest, micros)
    if keeps_nanos:
        nanos = _split_nanos(value)[1]
        return pa.array(plus_checked(times_checked(moments, np.int64(1000)), nanos), mask=null).cast(kind)
    return pa.array(moments, mask=null).cast(pa.timestamp("us")).cast(kind)


def _split_nanos(value: Array) -> tuple[Ints, Ints]:
    """Return timestamps as microseconds since 1970, rounded down, and the nanoseconds beyond; NULL as 0."""
    nanos: Ints = value.cast(pa.timestamp("ns")).cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return nanos // 1000, nanos % 1000


def _months_later(day: Ints, months: Ints) -> Ints:
    dates = day.astype("datetime64[D]")
    begun = dates.astype("datetime64[M]")
    inside = (dates - begun.astype("datetime64[D]")).astype(np.int64)
    target = begun + months.astype("timedelta64[M]")
    first = target.astype("datetime64[D]")
    last = ((target + np.timedelta64(1, "M")).astype("datetime64[D]") - first).astype(np.int64) - 1
    days: Ints = first.astype(np.int64) + np.minimum(inside, last)
    return days


def bucketed(widths: Array, value: Array, kind: pa.DataType) -> Array:
    """Return the begin of the buckets of widths that dates, times or timestamps are in.

    Buckets of months begin with 2000-01-01, those of days and less with Monday, 2000-01-03, and those of times of day
    at midnight.
    """
    null = nulls_of(widths, value)
    months, days, rest = parts(widths)
    micros = plus_checked(times_checked(days, np.int64(DAY_US)), rest)
    is_known = np.ones(len(value), np.bool_) if null is None else ~null
    if pat.is_time(value.type):
        raise ValueError("time_bucket() takes dates and timestamps in a view: add a time of day to a date first")
    wrong = (
        ((months != 0) & ((days != 0) | (rest != 0))) | (months < 0) | (micros < 0) | ((months == 0) & (micros == 0))
    )
    if pat.is_timestamp(value.type) and value.type.tz is not None:
        wrong |= (days != 0) & (rest != 0)
    if (wrong & is_known).any():
        raise ValueError(
            "time_bucket() takes a width above nothing, of months and years or of days and less, not of both"
        )
    stamps = as_micros(value)
    by_time = (stamps - MONDAY_US) // np.maximum(micros, 1) * np.maximum(micros, 1) + MONDAY_US
    month = (stamps // DAY_US).astype("datetime64[D]").astype("datetime64[M]").astype(np.int64) - _2000
    begun = month // np.maximum(months, 1) * np.maximum(months, 1) + _2000
    by_month = begun.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64) * DAY_US
    begins = np.where(months > 0, by_month, by_time)
    if pat.is_date(kind):
        begins = begins // DAY_US * DAY_US
    return pa.array(begins, mask=null).cast(pa.timestamp("us")).cast(kind)
