"""What the times of a collection mean, if they mean moments: a number of units since 1970-01-01T00:00Z.

Leap seconds are not counted, as nowhere in Unix. A moment rarely is a whole number of units, and a `datetime` not of
nanoseconds, so each conversion says to which side it rounds; text is taken exactly, however many digits it has.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from math import ceil, floor

from persist.blob import InvalidUsage
from persist.codecs import TIME_MAX, TIME_UNITS

Moment = datetime | str

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FRACTION = re.compile(r"(?<=\d)[.,](\d+)")
_WITH_A_DAY = re.compile(r"\d{4}-?\d\d-?\d\d")


@dataclass(frozen=True, slots=True)
class Timeline:
    """Times that count units since 1970-01-01T00:00Z; `Collection.timeline` has that of a collection.

    Attributes:
        unit: "s", "ms", "us" or "ns".
    """

    unit: str

    def __post_init__(self) -> None:
        if self.unit not in TIME_UNITS:
            raise InvalidUsage(f"unit {self.unit!r} is no unit of time: use one of {', '.join(map(repr, TIME_UNITS))}")

    def time_of(self, moment: Moment) -> int:
        """Return the last time that is not after a moment: whose contents are those of that moment.

        Args:
            moment: a `datetime` with a time zone, or ISO 8601 text such as "2026-11-21T12:00:00Z", with a blank for the
                T, without the time of day, or with an offset such as +01:00. Text without an offset is in UTC.

        Raises:
            InvalidUsage: it is none of these, has no time zone, or is before 1970 or too late to be a time.
        """
        return self._checked(floor(self._exactly(moment)), moment)

    def bound_of(self, moment: Moment) -> int:
        """Return the first time that is not before a moment, as the bound of an interval; otherwise as `time_of`."""
        return self._checked(ceil(self._exactly(moment)), moment)

    def datetime_of(self, time: int) -> datetime:
        """Return the moment of a time, in UTC; of nanoseconds, the last microsecond before it.

        Raises:
            InvalidUsage: it is not a time, or after the year 9999.
        """
        try:
            if 0 <= time <= TIME_MAX:
                return _EPOCH + timedelta(microseconds=time * 1_000_000 // self._per_second)
        except OverflowError:
            pass
        raise InvalidUsage(
            f"time {time!r} in {self.unit} is no moment from 1970 to 9999: give a whole number that is one"
        )

    @property
    def _per_second(self) -> int:
        return int(1000 ** TIME_UNITS.index(self.unit))

    def _exactly(self, moment: Moment) -> Fraction:
        if isinstance(moment, str):
            return _parsed(moment) * self._per_second
        if not isinstance(moment, datetime):
            raise InvalidUsage(f"{moment!r} is no moment: give a datetime with a time zone, or ISO 8601 text")
        if moment.utcoffset() is None:
            raise InvalidUsage(
                f"{moment!r} has no time zone, so it may be any of many moments. Give one, such as "
                "datetime.now(timezone.utc) or moment.replace(tzinfo=timezone.utc)."
            )
        return _seconds(moment) * self._per_second

    def _checked(self, time: int, moment: Moment) -> int:
        if not 0 <= time <= TIME_MAX:
            last = "the year 2262" if self.unit == "ns" else "a time that fits 63 bits"
            raise InvalidUsage(f"{moment!r} is no time in {self.unit}: these go from 1970-01-01T00:00:00Z to {last}")
        return time


def _seconds(moment: datetime) -> Fraction:
    since = moment - _EPOCH
    return Fraction(since.days * 86_400 + since.seconds) + Fraction(since.microseconds, 1_000_000)


def _parsed(text: str) -> Fraction:
    """Return the seconds since 1970 of ISO 8601 text. `datetime` would drop the digits after the sixth."""
    found = _FRACTION.search(text)
    digits = found.group(1) if found else ""
    whole = _FRACTION.sub("", text.strip(), count=1)
    try:
        if not _WITH_A_DAY.match(whole):
            raise ValueError("it does not begin with a day")
        moment = datetime.fromisoformat(whole)
    except ValueError as error:
        raise InvalidUsage(
            f"{text!r} is no moment: write it as 2026-11-21T12:00:00Z, with a blank for the T, or an offset for the Z "
            "(none means UTC), if you like"
        ) from error
    if moment.utcoffset() is None:
        moment = moment.replace(tzinfo=UTC)
    return _seconds(moment) + (Fraction(int(digits), 10 ** len(digits)) if digits else 0)
