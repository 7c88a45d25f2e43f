"""The moments of a collection's times: a number of units since 1970-01-01T00:00Z.

This module does all conversions between moments and times. Leap seconds are not counted, as in Unix.
A moment rarely is a whole number of units, so each conversion has a rule: a written time is exact or refused, a read
uses the last time that is not after the moment, and a bound is the first time that is not before it. Text is exact with
any number of digits.

A moment has a zone. Text without one and dates are in UTC. A `datetime`, or a timestamp of NumPy, pandas, Polars or
Arrow, without a zone is refused everywhere, because it is ambiguous.

All text for times is parsed in one way (`parse_time`). Digits are a number; "now", "today", "yesterday" and "tomorrow",
"-1d" and "2 hours ago" are moments by the client's clock. "latest" is the last sealed time; a day and ISO 8601 text are
moments; other text is the name of a tag.

A retention is a number of times, or a span such as "7 days". A span is measured on the collection's timeline, not by a
clock: retention depends on sealed times only. So all clients keep the same history, and a collection without writes
loses nothing.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from math import ceil, floor
from typing import Any, Literal, TypeGuard

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.blob.errors import InvalidUsage
from persist.codecs.errors import InvalidUpdate, SchemaMismatch
from persist.codecs.types.schema import TIME_MAX, TIME_UNITS, CollectionSchema
from persist.core.antichain import Antichain
from persist.core.names import AGO

Times = Literal["int", "timestamp"]  # The form of `_time` in results.
Moment = datetime | date | str | np.datetime64  # And timestamps of Arrow, whose types no checker knows.

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOW = "now"  # As a time to write at: the time of the client's clock.
_MEANT_S = tuple(int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) for year in (1990, 2200))
AHEAD_S = 86_400
_FRACTION = re.compile(r"(\d{4}-?\d\d-?\d\d\D\d\d(:?)\d\d\2\d\d)[.,](\d+)")  # Fractions of seconds only.
_LIKE_A_MOMENT = re.compile(r"\d{4}-?\d\d|[-+]?\d+$|$")
_DAYS_FROM_NOW = {"today": 0, "yesterday": -1, "tomorrow": 1}
_NUMBER = re.compile(r"[-+]?\d+", re.ASCII)
_WITH_A_DAY = re.compile(r"\d{4}-?\d\d-?\d\d")
_BASIC_DAY = re.compile(r"(19|20|21)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])", re.ASCII)
_KINDS = (date, str, np.datetime64, pa.TimestampScalar, pa.Date32Scalar, pa.Date64Scalar)  # A datetime is a date.


def is_moment(value: object) -> TypeGuard[Moment]:
    """Return whether a value has a type of moments, not of numbers."""
    return isinstance(value, _KINDS)


def starts_with_date(text: str) -> bool:
    """Return whether a text begins with a date, unlike names of columns."""
    return _WITH_A_DAY.match(text.strip()) is not None


def is_column_name(time: object) -> TypeGuard[str]:
    """Return whether a time to write at names a column of times."""
    if not isinstance(time, str) or starts_with_date(time) or _NUMBER.fullmatch(time.strip()):
        return False
    word = time.strip().lower()
    return word != NOW and word not in _DAYS_FROM_NOW and AGO.fullmatch(word) is None


def is_tag(value: object) -> TypeGuard[str]:
    """Return whether a value must be a tag: text unlike a moment."""
    return isinstance(value, str) and _LIKE_A_MOMENT.match(value.strip()) is None


def parse_time(value: Any, timeline: "Timeline | None" = None) -> Any:
    """Return text of digits as an integer; leave other values unchanged.

    `timeline`: with one, eight digits that begin with a year are a day, as in ISO 8601.

    Raises InvalidUsage: the text has more digits than any time.
    """
    text = value.strip() if isinstance(value, str) else ""
    if not _NUMBER.fullmatch(text) or (timeline is not None and _BASIC_DAY.fullmatch(text)):
        return value
    if len(text) > _DIGITS_MAX:
        raise InvalidUsage(f"a number of {len(text):,} digits is not a time: give one from 0 to 2^63 - 2")
    return int(text)


def parse_time_word(value: Any, wall_ms: int) -> datetime | None:
    """Return the moment of a word such as "yesterday" or "-1d"; None for another text.

    "now" is the clock's time. A day means its first moment, in UTC. Spans count back from now.
    """
    word = value.strip().lower() if isinstance(value, str) else ""
    now = _EPOCH + timedelta(milliseconds=wall_ms)
    if word == NOW:
        return now
    if word in _DAYS_FROM_NOW:
        return now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=_DAYS_FROM_NOW[word])
    match = AGO.fullmatch(word)
    if match is None:
        return None
    count, name = match[1] or match[3], match[2] or match[4]
    if name not in _SECONDS:
        raise InvalidUsage(f"{value!r} is not a time: spans are in s, min, h, d or w, such as '-1d' or '2 hours ago'")
    try:
        return now - timedelta(seconds=int(count) * _SECONDS[name])
    except OverflowError as error:
        raise InvalidUsage(f"{value!r} is before the year 1: give a shorter span") from error


def read_timeline(schema: CollectionSchema) -> "Timeline | None":
    """Return the timeline of a collection from its schema; None without one."""
    return None if schema.timeline is None else Timeline(schema.timeline)


def show_time(time: int, timeline: "Timeline | None") -> str:
    """Return a time for tables and commands: its moment, else the number.

    The time 0 means the beginning, not a moment.
    """
    return str(time) if timeline is None or not time else timeline.to_text(time)


def format_time(time: int, timeline: "Timeline | None") -> str:
    """Return a time for an error, to be copied into a call: the number, and its moment."""
    return str(time) if timeline is None else f"{time} ({timeline.to_text(time)})"


@dataclass(frozen=True, slots=True)
class Timeline:
    """Converts between moments and times, which count units since 1970-01-01T00:00Z; see `Collection.timeline`.

    Attributes:
        unit: "s", "ms", "us" or "ns".
        wall_ms: the clock for words such as "now" in times of updates; None allows no words.
    """

    unit: str
    wall_ms: Callable[[], int] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.unit not in TIME_UNITS:
            raise InvalidUsage(
                f"unit {self.unit!r} is not a unit of time: use one of {', '.join(map(repr, TIME_UNITS))}"
            )

    def to_time(self, moment: Moment) -> int:
        """Return the last time that is not after a moment: its contents are the moment's contents.

        Args:
            moment: a `datetime`, a pandas `Timestamp` or an Arrow timestamp with a time zone; a `date`, which means its
                first moment in UTC; or ISO 8601 text such as "2026-11-21T12:00:00Z". The text may have a blank for the
                T, no time of day, or an offset such as +01:00. Text without an offset is in UTC.

        Raises InvalidUsage: the moment is none of these, has no time zone, or is before 1970 or too late to be a time.
        """
        return self._check_range(floor(self._to_exact_seconds(moment)), moment)

    def to_bound(self, moment: Moment) -> int:
        """Return the first time that is not before a moment, to bound an interval; moments are as for `to_time`."""
        return self._check_range(ceil(self._to_exact_seconds(moment)), moment)

    def to_exact_time(self, moment: Moment) -> int:
        """Return the time that is exactly a moment, in any form of `to_time`.

        Raises InvalidUsage: as `to_time`; or the moment lies between two times.
        """
        by_clock = None if self.wall_ms is None else parse_time_word(moment, self.wall_ms())
        if by_clock is not None:
            return self.to_time(by_clock)
        exactly = self._to_exact_seconds(moment)
        if exactly.denominator != 1:
            time_before, after = (self._check_range(round_(exactly), moment) for round_ in (floor, ceil))
            raise InvalidUsage(
                f"{moment!r} lies between two times of a timeline in {self.unit}, {self.to_text(time_before)} and "
                f'{self.to_text(after)}: give one of them, "now" for the time of the clock, or use a collection whose '
                "timeline has a finer unit"
            )
        return self._check_range(int(exactly), moment)

    def get_current_time(self, wall_ms: int) -> int:
        """Return the present time, from a clock in milliseconds since 1970."""
        return wall_ms * self.per_second // 1000

    def check_plausible(self, what: str, time: int, wall_ms: int, *, is_number: bool, allow_future: bool) -> None:
        """Raise InvalidUsage for an implausible time to write at or seal to.

        `is_number`: whether the caller passed a number; False if unknown.

        Raises:
            InvalidUsage: the time is before 1990 or after 2199, and is a number, or plausible in another unit; or it is
                more than a day ahead of the clock without `allow_future`.
        """
        if not _MEANT_S[0] <= time // self.per_second < _MEANT_S[1]:
            timelines = (Timeline(unit) for unit in TIME_UNITS)
            likely = next((o for o in timelines if _MEANT_S[0] <= time // o.per_second < _MEANT_S[1]), None)
            if likely is not None or is_number:
                looks = "" if likely is None else f" It looks like {likely.unit}: that would be {likely.to_text(time)}."
                raise InvalidUsage(
                    f"{what} {time} is {self.to_text(time)} in a timeline in {self.unit}, and times are taken from "
                    f"1990 to 2199.{looks} Give a moment, or a number of {self.unit} since 1970."
                )
        if not allow_future and time > self.get_current_time(wall_ms) + AHEAD_S * self.per_second:
            raise InvalidUsage(
                f"{what} {self.to_text(time)} is more than a day ahead of the clock, which says "
                f"{self.to_text(self.get_current_time(wall_ms))}: once it is sealed, nothing can be written before "
                "it any more."
            ).with_remedy("Give {allow_future:option:True} if it is meant.")

    def convert_times(self, times: Sequence[Any]) -> list[Any]:
        """Convert the moments among some times to integers; leave numbers unchanged.

        Raises InvalidUpdate: a moment is between two times; the message names the index.
        """
        integers = []
        for index, time in enumerate(times):
            try:
                integers.append(self.to_exact_time(time) if isinstance(time, _KINDS) else time)
            except InvalidUsage as error:
                raise InvalidUpdate(f"the time of update {index}: {error}") from error
        return integers

    def convert_column(self, column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
        """Convert a column of moments (timestamps with a zone, dates, text) to times; return other columns unchanged.

        Raises:
            SchemaMismatch: the column's timestamps have no zone.
            InvalidUpdate: a moment is between two times; the message names the row.
        """
        kind = column.type
        if pat.is_dictionary(kind):
            column, kind = column.cast(kind.value_type), kind.value_type
        if pat.is_string(kind) or pat.is_large_string(kind) or pat.is_string_view(kind):
            return self._parse_text_column(column)
        if pat.is_timestamp(kind) and kind.tz is None:
            raise SchemaMismatch(
                f"column {name!r} is of type {kind}, without a time zone, so its values may be any of many moments. "
                'Give it one: in pandas with .dt.tz_localize("UTC"), in Polars with .dt.replace_time_zone("UTC"), in '
                'Arrow with pyarrow.compute.assume_timezone(column, "UTC").'
            )
        if not (pat.is_timestamp(kind) or pat.is_date(kind)):
            return column
        target_type = pa.timestamp(self.unit, getattr(kind, "tz", None))
        try:
            return column.cast(target_type).cast(pa.int64())
        except pa.ArrowInvalid as error:
            row = _find_first_changed(column, target_type)
            raise InvalidUpdate(
                f"update {row} has the time {_format_value(column[row])}, which a timeline in {self.unit} cannot hold "
                f"exactly: round it to {self.unit} first, or use a collection with another unit"
            ) from error

    def convert_text_column(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Convert a column of text to times: the last one that is not after each moment, NULL for NULL.

        Raises InvalidUpdate: a text is not a moment; the message names the row.
        """
        coded = column.combine_chunks().dictionary_encode()
        last_times: list[int | None] = []
        for text in coded.dictionary.to_pylist():
            try:
                last_times.append(None if text is None else self.to_time(text))
            except InvalidUsage as error:
                raise InvalidUpdate(f"the time of row {column.index(text).as_py()}: {error}") from error
        return pa.chunked_array([pc.take(pa.array(last_times, pa.int64()), coded.indices)])

    def to_moments(self, times: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return a column of times as timestamps in UTC, without a copy."""
        return pa.chunked_array([chunk.view(self.moment_type) for chunk in times.chunks], self.moment_type)

    @property
    def moment_type(self) -> pa.DataType:
        """The Arrow type of a time as a moment."""
        return pa.timestamp(self.unit, "UTC")

    def to_datetime(self, time: int) -> datetime:
        """Return the moment of a time, in UTC; nanoseconds are rounded down to microseconds.

        Raises InvalidUsage: the number is not a time, or the moment is after the year 9999.
        """
        try:
            if 0 <= time <= TIME_MAX:
                return _EPOCH + timedelta(microseconds=time * 1_000_000 // self.per_second)
        except OverflowError:
            pass
        raise InvalidUsage(
            f"time {time!r} in {self.unit} is not a moment from 1970 to 9999: give a whole number of {self.unit} since "
            "1970"
        )

    def to_text(self, time: int) -> str:
        """Return the moment of a time as exact ISO 8601 text; the number if it is outside of the calendar."""
        seconds, fraction = divmod(time, self.per_second)
        try:
            whole = (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
        except OverflowError:
            return str(time)
        digits = 3 * TIME_UNITS.index(self.unit)
        return f"{whole}.{fraction:0{digits}d}Z" if fraction else f"{whole}Z"

    @property
    def per_second(self) -> int:
        """The number of times in a second."""
        return int(1000 ** TIME_UNITS.index(self.unit))

    def _to_exact_seconds(self, moment: Any) -> Fraction:
        """Return a moment as an exact number of this timeline's units."""
        return _to_seconds(moment) * self.per_second

    def _check_range(self, time: int, moment: Moment) -> int:
        """Return the time; raise InvalidUsage if it is no valid time."""
        if not 0 <= time <= TIME_MAX:
            last = "the year 2262" if self.unit == "ns" else "a time that fits 63 bits"
            raise InvalidUsage(f"{moment!r} is not a time in {self.unit}: these go from 1970-01-01T00:00:00Z to {last}")
        return time

    def _parse_text_column(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Parse a column of ISO texts to times."""
        for target_type in (self.moment_type, pa.timestamp(self.unit)):  # With an offset in each text, or in none.
            try:
                return column.cast(target_type).cast(pa.int64())
            except pa.ArrowInvalid:
                continue
        # More digits than the unit has, or a form that Arrow does not know.
        coded = column.combine_chunks().dictionary_encode()
        texts = coded.dictionary.to_pylist()
        try:
            times = pa.array(self.convert_times(texts), pa.int64())
        except InvalidUpdate:
            self.convert_times(column.to_pylist())  # Raises with the row.
            raise
        return pa.chunked_array([pc.take(times, coded.indices)])


def _to_seconds(moment: Any) -> Fraction:
    """Return the seconds since 1970 of a moment, exactly."""
    if isinstance(moment, pa.Scalar):
        return _convert_scalar(moment)
    if isinstance(moment, str):
        return _parse_iso(moment)
    if isinstance(moment, np.datetime64):
        raise _make_no_zone_error(moment, 'pandas.Timestamp(moment, tz="UTC")')
    if not isinstance(moment, date):
        raise InvalidUsage(
            f"{moment!r} is not a moment: give a datetime with a time zone, a date, or ISO 8601 text such as "
            '"2026-11-21T12:00:00Z"'
        )
    if not isinstance(moment, datetime):
        return Fraction((moment - _EPOCH.date()).days * 86_400)
    if moment != moment:
        raise InvalidUsage(f"{moment!r} is not a moment: every time must be one")
    if moment.utcoffset() is None:
        raise _make_no_zone_error(moment, "moment.astimezone() if it is local, or moment.replace(tzinfo=timezone.utc)")
    return _convert_datetime(moment)


def _convert_scalar(moment: pa.Scalar) -> Fraction:
    """Return an Arrow timestamp or date as seconds since 1970, exactly."""
    if not moment.is_valid or not pat.is_timestamp(moment.type):
        return _to_seconds(moment.as_py())
    if moment.type.tz is None:
        raise _make_no_zone_error(moment, 'pyarrow.compute.assume_timezone(moment, "UTC")')
    return Fraction(moment.value, 1000 ** TIME_UNITS.index(moment.type.unit))


def _make_no_zone_error(moment: object, instead: str) -> InvalidUsage:
    """Return the error for a moment without a time zone."""
    return InvalidUsage(f"{moment!r} has no time zone, so it may be any of many moments. Give one, such as {instead}.")


def _convert_datetime(moment: datetime) -> Fraction:
    """Return a datetime as seconds since 1970, exactly."""
    since = moment - _EPOCH
    finer = getattr(since, "nanoseconds", 0)  # Only pandas' own classes have them.
    return since.days * 86_400 + since.seconds + Fraction(since.microseconds * 1000 + finer, 10**9)


def _find_first_changed(column: pa.ChunkedArray, target_type: pa.DataType) -> int:
    """Return the first row that a cast to the type would change."""
    back = column.cast(target_type, safe=False).cast(column.type, safe=False)
    return int(pc.index(pc.equal(back, column), False).as_py())


def _format_value(value: pa.Scalar) -> str:
    """Return an Arrow value as text for messages."""
    return str(value.cast(pa.string()).as_py())


def _parse_iso(text: str) -> Fraction:
    """Return the seconds since 1970 of ISO 8601 text. `datetime` would drop the digits after the sixth."""
    match = _FRACTION.match(whole := text.strip())
    digits = match.group(3) if match else ""
    if match:
        whole = match.group(1) + whole[match.end() :]
    try:
        if not _WITH_A_DAY.match(whole):
            raise ValueError("it does not begin with a day")
        if "." in whole or "," in whole:
            raise ValueError("a fraction stands after seconds only")
        moment = datetime.fromisoformat(whole)
    except ValueError as error:
        raise InvalidUsage(
            f"{text!r} is not a moment: write it as 2026-11-21T12:00:00Z, with a blank for the T, or an offset "
            f"for the Z "
            "(none means UTC), if you like"
        ) from error
    if moment.utcoffset() is None:
        moment = moment.replace(tzinfo=UTC)
    return _convert_datetime(moment) + (Fraction(int(digits), 10 ** len(digits)) if digits else 0)


def add_timeline(frontier: Antichain, timeline: Timeline | None) -> Antichain:
    """Return a frontier that prints as a moment if a timeline exists."""
    return frontier if timeline is None else DatedFrontier(timeline.unit, *frontier.elements)


class DatedFrontier(Antichain):
    """The frontier of a collection with a timeline; `str` shows its moment."""

    __slots__ = ("unit",)
    unit: str

    def __init__(self, unit: str, *elements: int) -> None:
        super().__init__(*elements)
        object.__setattr__(self, "unit", unit)

    def __reduce__(self) -> tuple[type[Antichain], tuple[Any, ...]]:
        return type(self), (self.unit, *self.elements)

    def __str__(self) -> str:
        return "for ever" if self.time is None else show_time(self.time, Timeline(self.unit))


Retention = int | str | timedelta

_DIGITS_MAX = 30  # More than any span has that can be kept; of thousands Python makes no number.
_SPAN = re.compile(r"\s*(\d+)\s*([a-zA-Z]+)\s*")
_SECONDS = {
    **dict.fromkeys(("s", "second", "seconds"), 1),
    **dict.fromkeys(("min", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), 86_400),
    **dict.fromkeys(("w", "week", "weeks"), 7 * 86_400),
}
_SHOWN = (("week", 7 * 86_400), ("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1))


def to_retention_times(retention: Retention, timeline: Timeline | None) -> int:
    """Convert a retention to a number of times.

    Raises InvalidUsage: the retention is not 1 to TIME_MAX times, or not a valid span, or a span without a timeline.
    """
    if isinstance(retention, bool) or not isinstance(retention, (int, str, timedelta)):
        raise _make_retention_error(retention, "it is neither a number of times nor a span")
    if isinstance(retention, int):
        if not 1 <= retention <= TIME_MAX:
            raise _make_retention_error(retention, f"a number of times is from 1 to {TIME_MAX}")
        return retention
    if timeline is None:
        raise _make_retention_error(
            retention, "the times of this collection are plain numbers, so a span cannot be converted to them"
        )
    times = _parse_span(retention) * timeline.per_second
    if times.denominator != 1 or not 1 <= times <= TIME_MAX:
        raise _make_retention_error(retention, f"it is {float(times):g} times of a timeline in {timeline.unit}")
    return int(times)


def format_retention(times: int, timeline: Timeline | None) -> str:
    """Return a retention in words."""
    if timeline is None:
        return f"{times:,} time{'' if times == 1 else 's'}"
    seconds = Fraction(times, timeline.per_second)
    for name, length in _SHOWN:
        if seconds % length == 0:
            count = int(seconds / length)
            return f"{count:,} {name}{'' if count == 1 else 's'}"
    return f"{times:,} {timeline.unit}"


def _parse_span(span: str | timedelta) -> Fraction:
    """Return a duration, such as "30 days", in seconds."""
    if isinstance(span, timedelta):
        return Fraction((span.days * 86_400 + span.seconds) * 10**6 + span.microseconds, 10**6)
    match = _SPAN.fullmatch(span)
    length = None if match is None else _SECONDS.get(match[2].lower())
    if match is None or length is None:
        raise _make_retention_error(span, "a span is a whole number of seconds, minutes, hours, days or weeks")
    if len(match[1]) > _DIGITS_MAX:
        raise _make_retention_error(span, f"it has more than {_DIGITS_MAX} digits")
    return Fraction(int(match[1]) * length)


def _make_retention_error(value: object, why: str) -> InvalidUsage:
    """Return the error for an invalid retention."""
    return InvalidUsage(
        f"retention={value!r:.100} cannot be kept: {why}. Give a number of times, or, with a timeline, a "
        "span such as '7 days', '12 hours' or a timedelta."
    )
