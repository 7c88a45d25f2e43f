"""How long history stays readable, as people say it: a number of times, or a span such as "7 days".

A span is of the collection's timeline, and never of a clock: what is kept depends on what is sealed, and on nothing
else. So two clients keep the same, and a collection into which nobody writes loses nothing.
"""

import re
from datetime import timedelta
from fractions import Fraction

from persist.blob import InvalidUsage
from persist.codecs import TIME_MAX
from persist.timeline import Timeline

Retention = int | str | timedelta

_DIGITS_MAX = 30  # More than any span has that can be kept; of thousands Python makes no number.
_SPAN = re.compile(r"\s*(\d+)\s*([a-zA-Z]+)\s*")
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_SECONDS = {
    **dict.fromkeys(("s", "second", "seconds"), 1),
    **dict.fromkeys(("min", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), 86_400),
    **dict.fromkeys(("w", "week", "weeks"), 7 * 86_400),
}
_SHOWN = (("week", 7 * 86_400), ("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1))


def retention_times(given: Retention, timeline: Timeline | None) -> int:
    """Return how many times a retention is.

    Raises:
        InvalidUsage: it is not 1 to TIME_MAX times, no span, or a span where times only count.
    """
    if isinstance(given, bool) or not isinstance(given, (int, str, timedelta)):
        raise _unfit(given, "it is neither a number of times nor a span")
    if isinstance(given, int):
        if not 1 <= given <= TIME_MAX:
            raise _unfit(given, f"a number of times is from 1 to {TIME_MAX}")
        return given
    if timeline is None:
        raise _unfit(given, "the times of this collection only count, so no span is a number of them")
    times = _seconds(given) * _PER_SECOND[timeline.unit]
    if times.denominator != 1 or not 1 <= times <= TIME_MAX:
        raise _unfit(given, f"it is {float(times):g} times of a timeline in {timeline.unit}")
    return int(times)


def retention_text(times: int, timeline: Timeline | None) -> str:
    """Return a retention as people would say it."""
    if timeline is None:
        return f"{times:,} time{'' if times == 1 else 's'}"
    seconds = Fraction(times, _PER_SECOND[timeline.unit])
    for name, length in _SHOWN:
        if seconds % length == 0:
            count = int(seconds / length)
            return f"{count:,} {name}{'' if count == 1 else 's'}"
    return f"{times:,} {timeline.unit}"


def _seconds(given: str | timedelta) -> Fraction:
    if isinstance(given, timedelta):
        return Fraction((given.days * 86_400 + given.seconds) * 10**6 + given.microseconds, 10**6)
    match = _SPAN.fullmatch(given)
    length = None if match is None else _SECONDS.get(match[2].lower())
    if match is None or length is None:
        raise _unfit(given, "a span is a whole number and a unit")
    if len(match[1]) > _DIGITS_MAX:
        raise _unfit(given, f"it has more than {_DIGITS_MAX} digits")
    return Fraction(int(match[1]) * length)


def _unfit(given: object, why: str) -> InvalidUsage:
    return InvalidUsage(
        f"retention={given!r:.100} cannot be kept: {why}. Give a number of times, or, with a timeline, a "
        "span such as '7 days', '12 hours' or a timedelta."
    )
