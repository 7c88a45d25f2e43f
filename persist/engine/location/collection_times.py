"""Converts users' times of a collection to numbers: moments, words, tags and frontiers.

There is one conversion for each use: `as_time` for reads, `as_bound` for an end of an interval, `to_exact_time` for
writes, `frontier` for seals.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

import numpy as np

from persist.codecs.types.schema import TIME_MAX
from persist.core.antichain import Antichain, to_frontier, to_time_integer
from persist.core.errors import InvalidUsage, TagNotFound
from persist.core.state_rules.contents import CollectionState
from persist.core.timeline import (
    AHEAD_S,
    NOW,
    Moment,
    Timeline,
    is_column_name,
    is_moment,
    is_tag,
    parse_time,
    parse_time_word,
)
from persist.engine.location.engine import Engine
from persist.engine.location.moments import MomentMap, explain_frontier

LATEST = "latest"  # The last sealed time, for arguments of reads.


class CollectionTimes(ABC):
    """The part of a collection's handle that converts times; the handle has the abstract members."""

    __slots__ = ()
    engine: Engine

    @property
    @abstractmethod
    def name(self) -> str:
        """The known name of the collection."""

    @property
    @abstractmethod
    def timeline(self) -> Timeline | None:
        """The conversion between times and moments; None if times are only numbers."""

    @abstractmethod
    def format_time(self, time: int) -> str:
        """Return a time for people: the number, and its moment if there is a timeline."""

    @abstractmethod
    def contents(self) -> CollectionState:
        """Return the newest state of the collection. Cost: one GET."""

    @abstractmethod
    def wait_sealed(
        self, as_of: int | Moment | None, timeout_s: float | None, *, until: int | None = None
    ) -> tuple[CollectionState, int]:
        """Wait until as_of is sealed; return the state then, and the time to read."""

    @abstractmethod
    def _load_moment_map(self) -> MomentMap | None:
        """Return the map from moments to times, if times are positions in a source."""

    @property
    def clocked_timeline(self) -> Timeline | None:
        """The timeline with the client's clock, for times in words such as "now"."""
        return None if self.timeline is None else replace(self.timeline, wall_ms=self.engine.clock.wall_ms)

    def as_time(self, what: str, value: int | Moment | Antichain) -> int:
        """Convert a time to read at: a number, a tag, "latest", or a moment (the last time not after it).

        A word that the clock moves, such as "now" or "yesterday", is the last sealed time if that is earlier.

        `what`: the name of the argument in errors.

        Raises:
            InvalidUsage: it is none of these, or a moment, but the collection has neither a timeline nor a map.
            AsOfNotSealed: it is a moment up to which the collection's source was not read yet.
        """
        if type(value) is int and 0 <= value <= TIME_MAX:
            return value
        if isinstance(value, Antichain):
            raise InvalidUsage(explain_frontier(what, value, self.format_time))
        if self._means_last_sealed(value):
            return self.wait_sealed(None, 0.0)[1]
        by_clock = parse_time_word(value, self.engine.clock.wall_ms())
        if by_clock is not None:
            times, last = self._find_times_of_moments(what, value), self.wait_sealed(None, 0.0)[1]
            is_later = isinstance(times, MomentMap) and by_clock > times.last()
            return last if is_later else min(last, times.to_time(by_clock))
        value = self._parse_time(what, value)
        if is_tag(value):
            return self.load_tag_time(value)
        return (
            self._find_times_of_moments(what, value).to_time(value)
            if is_moment(value)
            else to_time_integer(what, value)
        )

    def _means_last_sealed(self, value: object) -> bool:
        """Return whether an argument means the last sealed time; "now" does without a timeline."""
        word = value.strip().lower() if isinstance(value, str) else None
        return word == LATEST or (word == NOW and self.timeline is None)

    def _parse_time(self, what: str, value: Any) -> Any:
        """Parse a time with `parse_time`; refuse a fractional number."""
        if isinstance(value, (float, np.floating)):
            unit = "" if self.timeline is None else f" of {self.timeline.unit} since 1970"
            raise InvalidUsage(
                f'{what} {value!r} is a float: give a whole number{unit}, a moment such as "2026-11-21T12:00:00Z", or '
                '"now"'
            )
        return parse_time(value, self.timeline)

    def _find_times_of_moments(self, what: str, value: Any) -> MomentMap | Timeline:
        """Return the collection's converter of moments; raise InvalidUsage without one."""
        return self._load_moment_map() or self._get_timeline(what, value)

    def as_bound(self, what: str, value: int | Moment | Antichain, *, most: int = TIME_MAX) -> int:
        """Like `as_time`, with the first time that is not before a moment: the bound of an interval.

        A frontier is also a bound: its time, or the end of all times if it is empty. "latest" means upper.
        """
        if self._means_last_sealed(value):
            return self.contents().upper
        if isinstance(value, Antichain):
            return to_frontier(value)
        by_clock = parse_time_word(value, self.engine.clock.wall_ms())
        if by_clock is not None:
            times, upper = self._find_times_of_moments(what, value), self.contents().upper
            is_later = isinstance(times, MomentMap) and by_clock > times.last()
            return upper if is_later else min(upper, times.to_bound(by_clock))
        value = self._parse_time(what, value)
        if is_tag(value):
            return self.load_tag_time(value)
        if is_moment(value):
            return self._find_times_of_moments(what, value).to_bound(value)
        return to_time_integer(what, value, most=most)

    def load_tag_time(self, name: str) -> int:
        """Return the time that a tag names. Cost: one GET. Raises TagNotFound: there is no such tag."""
        tags = self.contents().tags
        if name not in tags:
            raise TagNotFound(name, tuple(tags))
        return tags[name]

    def to_exact_time(self, what: str, value: int | Moment) -> int:
        """Convert a time to write at: a moment between two times is an error, and words mean the clock's time."""
        value = self._parse_time(what, value)
        if not is_moment(value):
            return to_time_integer(what, value)
        return replace(self._get_timeline(what, value), wall_ms=self.engine.clock.wall_ms).to_exact_time(value)

    def frontier(self, what: str, value: int | Moment | Antichain) -> int:
        """Convert a user's argument to a frontier; a moment means that all earlier times are sealed."""
        if not isinstance(value, int | Antichain):
            if parse_time_word(value, self.engine.clock.wall_ms()) is not None:
                return self.to_exact_time(what, cast(str, value))
            value = self._parse_time(what, value)
        return self.as_bound(what, value) if is_moment(value) else to_frontier(cast(int | Antichain, value))

    def check_plausible(self, what: str, value: Any, *, allow_future: bool) -> None:
        """Refuse an implausible time to write at, or an upper to seal to, if there is a timeline.

        A frontier is not checked, because a program computed it.
        """
        if value is None or self.timeline is None or isinstance(value, Antichain):
            return
        value = parse_time(value, self.timeline)
        if is_column_name(value):
            return
        is_word = parse_time_word(value, self.engine.clock.wall_ms()) is not None
        time = self.to_exact_time(what, value) if is_word else self.as_bound(what, value)
        self._check_time(self.timeline, what, time, is_number=not is_moment(value), allow_future=allow_future)

    def check_times(self, times: Iterable[int], *, allow_future: bool) -> None:
        """Refuse implausible times of updates, if there is a timeline; see `Timeline.check_plausible`."""
        if self.timeline is not None:
            for time in times:
                self._check_time(self.timeline, "the time", time, is_number=False, allow_future=allow_future)

    def _check_time(self, timeline: Timeline, what: str, time: int, *, is_number: bool, allow_future: bool) -> None:
        """Refuse an implausible time, and the time of a clock that is far ahead."""
        wall_ms = self.engine.clock.wall_ms()
        timeline.check_plausible(what, time, wall_ms, is_number=is_number, allow_future=allow_future)
        if not allow_future and time > timeline.get_current_time(wall_ms) - AHEAD_S * timeline.per_second:
            self.engine.check_clock()

    def _get_timeline(self, what: str, moment: Moment) -> Timeline:
        """Return the timeline; raise InvalidUsage for a moment without one."""
        timeline = self.timeline
        if timeline is None:
            raise InvalidUsage(
                f"{what} {moment!r} is not an integer in [0, {TIME_MAX}], and the collection {self.name!r} has no "
                "timeline by which a moment would be one."
            ).with_remedy("Give a number, or create one with {timeline:option:us}.")
        return timeline
