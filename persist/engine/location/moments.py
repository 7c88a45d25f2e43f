"""Moments of collections whose times are positions of a source: another collection maps times to moments.

The property `MOMENTS` of a collection has the id of that other one, its map. A map has a row for each time of the
source: its `moment` and the `time`, its key. The process that fills a map keeps these promises, so answers never
change:

- the collection and its map are sealed by the same commits, to the same upper;
- moments never decrease as times grow, later commits have later moments, and no row is ever removed;
- the last row is the last sealed time.

A moment between two rows means the earlier one. A moment after the last row is not sealed, because the next time may
have that moment or an earlier one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from persist.codecs.types.schema import TIME_MAX
from persist.core.antichain import END, Antichain, to_antichain
from persist.core.errors import AsOfNotSealed, InvalidUsage
from persist.core.timeline import Moment, Timeline

MOMENTS = "ingest.moments"
MOMENT, TIME = "moment", "time"
UNIT = Timeline("us")
MOMENT_TYPE = UNIT.moment_type
# How far before a moment the last row is looked for: rows are dense as a rule, so most of the map is not read.
_SPANS_US = (60_000_000, 3_600_000_000, 30 * 86_400_000_000, None)


@dataclass(frozen=True, slots=True)
class MomentMap:
    """Converts moments to times of a collection.

    Attributes:
        name: the name of the collection whose times are converted.
        upper: the upper of the map.
        read: returns the rows of the map that pass a filter.
    """

    name: str
    upper: int
    read: Callable[[pc.Expression], pa.Table]

    def to_time(self, moment: Moment) -> int:
        """Return the last time that is not after a moment.

        Raises:
            InvalidUsage: it is not a moment, or is before the first one.
            AsOfNotSealed: it is after the last one.
        """
        at = UNIT.to_time(moment)
        last = self._read_last_us()
        if at > last:
            raise self._make_not_sealed_error(last)
        time = self._find_last_row(at)
        if time is None:
            raise self._make_too_early_error(moment)
        return time

    def to_bound(self, moment: Moment) -> int:
        """Return the first time that is not before a moment; otherwise as `to_time`."""
        at = UNIT.to_bound(moment)
        last = self._read_last_us()
        if at > last + 1:
            raise self._make_not_sealed_error(last)
        row_before = self._find_last_row(at - 1)
        if row_before is not None:
            return row_before + 1
        same = self.read(pc.field(MOMENT) == _make_scalar(at))
        if not len(same):
            raise self._make_too_early_error(moment)
        return int(pc.min(same[TIME]).as_py())

    def last(self) -> datetime:
        """Return the last moment; later moments are not sealed."""
        return UNIT.to_datetime(self._read_last_us())

    def at(self, time: int) -> datetime | None:
        """Return the moment of a time; None if it has none of its own."""
        rows = self.read(pc.field(TIME) == time)
        return UNIT.to_datetime(int(pc.max(rows[MOMENT].cast(pa.int64())).as_py())) if len(rows) else None

    def _read_last_us(self) -> int:
        """Return the last moment of the map in microseconds."""
        if self.upper == 0:
            raise AsOfNotSealed(None, to_antichain(self.upper), 0.0)
        rows = self.read(pc.scalar(True) if self.upper == END else pc.field(TIME) >= self.upper - 1)
        return int(pc.max(rows[MOMENT].cast(pa.int64())).as_py())

    def _find_last_row(self, at: int) -> int | None:
        """Return the time of the last row that is not after a moment."""
        for span in _SPANS_US:
            in_range = pc.field(MOMENT) <= _make_scalar(at)
            if span is not None:
                in_range &= pc.field(MOMENT) > _make_scalar(max(0, at - span))
            rows = self.read(in_range)
            if len(rows):
                return int(pc.max(rows[TIME]).as_py())
        return None

    def _make_not_sealed_error(self, last: int) -> AsOfNotSealed:
        beyond = f"moments after {UNIT.to_text(last)}, up to which the source was read"
        return AsOfNotSealed(self.upper, to_antichain(self.upper), 0.0, beyond)

    def _make_too_early_error(self, moment: Moment) -> InvalidUsage:
        first = pc.min(self.read(pc.scalar(True))[MOMENT].cast(pa.int64())).as_py()
        return InvalidUsage(
            f"{moment!r} is before {UNIT.to_text(first)}, the first moment of {self.name!r}: what its source held "
            "before is not known. Read at a later moment"
        )


def _make_scalar(at: int) -> pa.Scalar:
    """Return microseconds since 1970 as an Arrow timestamp."""
    return pa.scalar(at, MOMENT_TYPE)


def check_timeout(timeout_s: float | None) -> None:
    """Raise InvalidUsage unless a timeout is a number of seconds, or None."""
    if timeout_s is not None and not (isinstance(timeout_s, (int, float)) and timeout_s >= 0):
        raise InvalidUsage(f"timeout_s={timeout_s!r} is not a number of seconds; give 0 or more, or None for no limit")


def explain_frontier(what: str, frontier: Antichain, shown: Callable[[int], str]) -> str:
    """Return why a frontier is not a time, and which time to give in its place."""
    last = f"or leave {what} out, where it may be, for the latest sealed time."
    if frontier.time is None:
        return (
            f"{what} {frontier!r} is a frontier: as upper, it says that all times are sealed for ever, so no time is "
            f"the last one before it. Give a number from 0 to {TIME_MAX}; {last}"
        )
    if not frontier.time:
        return (
            f"{what} {frontier!r} is a frontier: as upper, it says that nothing is sealed yet, so no time is "
            "before it. Give a number, such as 0 for the first time, once that is sealed."
        )
    return (
        f"{what} {frontier!r} is a frontier: as upper, it says that times before {shown(frontier.time)} are sealed, "
        f"and {frontier.time} itself is not. Give {shown(frontier.time - 1)}, the last time before it; {last}"
    )
