"""Errors that name times of one collection, which they show as moments where it has a timeline."""

from typing import TypeVar

from persist.antichain import Antichain
from persist.blob import Conflict, InvalidUsage
from persist.timeline import Timeline


class AboutTimes:
    """Mixed into errors that name times of one collection.

    Attributes:
        timeline: the unit of the collection's timeline, so that the times are shown as moments, too; None if they only
            count.
    """

    timeline: str | None = None

    def shown(self, time: "int | Antichain | None") -> str:
        """Return a time or a frontier for a message."""
        number = time.time if isinstance(time, Antichain) else time
        if number is None or self.timeline is None:
            return str(time)
        moment = Timeline(self.timeline).text_of(number)
        return f"{time} ({moment})"


T = TypeVar("T", bound=BaseException)


def with_timeline(error: T, unit: str | None) -> T:
    """Let an error that names times of a collection show them as moments, too, if the collection has a timeline."""
    if isinstance(error, AboutTimes):
        error.timeline = unit
    return error


class UpdateNotBeyondUpper(AboutTimes, InvalidUsage):
    """A write holds an update at a time that was sealed already; the whole write was rejected (rule 2)."""

    def __init__(self, time: int, upper: Antichain) -> None:
        super().__init__(time, upper)
        self.time = time
        self.upper = upper

    def __str__(self) -> str:
        if self.upper.is_empty:
            return (
                f"update at time {self.shown(self.time)} is not beyond upper={self.upper}: the collection is "
                "complete for ever and takes no more updates. Write to another collection."
            )
        return (
            f"update at time {self.shown(self.time)} is not beyond upper={self.shown(self.upper)}: times before "
            f"{self.upper.time} are sealed. "
            f"Write at times >= {self.upper.time}; nothing of this write was applied."
        )


class PendingEvents(AboutTimes, InvalidUsage):
    """A seal would pass events that are pending, without resolving them."""

    def __init__(self, name: str, upper: Antichain, first: int) -> None:
        super().__init__(name, upper, first)
        self.name = name
        self.upper = upper
        self.first = first

    def __str__(self) -> str:
        return (
            f"events of the keyed collection {self.name!r} at time {self.shown(self.first)} are pending, and a seal "
            f"to {self.shown(self.upper)} would pass them. Seal by Collection.seal(), or with upsert(..., seal=...): "
            "these resolve them."
        )


class FrontierRegression(AboutTimes, InvalidUsage):
    """A seal or allow_compaction would move a frontier back (rules 1 and 4)."""

    def __init__(self, frontier: str, asked: Antichain, current: Antichain) -> None:
        super().__init__(frontier, asked, current)
        self.frontier = frontier
        self.asked = asked
        self.current = current

    def __str__(self) -> str:
        return (
            f"{self.frontier} cannot go back from {self.shown(self.current)} to {self.shown(self.asked)}. "
            f"Ask for a frontier at or beyond {self.current}."
        )


class AsOfCompacted(AboutTimes, InvalidUsage):
    """A read asks for a time before since (rule 3); lower is set if it asked for changes."""

    def __init__(self, as_of: int, since: Antichain, lower: int | None = None) -> None:
        super().__init__(as_of, since, lower)
        self.as_of = as_of
        self.since = since
        self.lower = lower

    def __str__(self) -> str:
        if self.lower is not None and self.since.time is not None:
            return (
                f"changes from {self.shown(self.lower)} on cannot be told from what came before: "
                f"since={self.shown(self.since)}, so times up to {self.since.time} are one. "
                f"Ask for changes from {self.since.time + 1} or later."
            )
        since = self.shown(self.since)
        what = f"as_of={self.shown(self.as_of)} is before since={since}: history before since has been compacted."
        if self.since.is_empty:
            return f"{what} Since is empty: no time can be read any more."
        return f"{what} Read at as_of >= {self.since.time}."


class AsOfNotSealed(AboutTimes, InvalidUsage):
    """A read asks for a time that was not sealed within the caller's timeout (rule 3).

    Attributes:
        as_of: the time; None is the latest sealed one, of which there is none.
        unsealed: what is there at times that are not sealed, in words; "" if that is nothing, or not known.
        until: the upper bound, if the read asked for changes.
    """

    def __init__(
        self, as_of: int | None, upper: Antichain, timeout_s: float, unsealed: str = "", until: int | None = None
    ) -> None:
        super().__init__(as_of, upper, timeout_s, unsealed, until)
        self.as_of = as_of
        self.upper = upper
        self.timeout_s = timeout_s
        self.unsealed = unsealed
        self.until = until

    def __str__(self) -> str:
        there = f" Not sealed yet are {self.unsealed}." if self.unsealed else ""
        if self.as_of is None:
            there = there or " The collection is empty: write, then seal(upper) makes times before upper readable."
            return f"nothing is sealed yet, so there is no latest time to read.{there}"
        known = "nothing is sealed yet" if self.upper.time == 0 else f"times before {self.upper.time} are sealed"
        waited = f"{known}, and waiting {self.timeout_s:g} s did not change that.{there}"
        if self.until is not None:
            return (
                f"changes until {self.shown(self.until)} are not complete, because upper={self.shown(self.upper)}: "
                f"{waited} Ask for changes "
                f"until {self.upper.time} (the default), seal to {self.until} or later, or allow a longer timeout."
            )
        return (
            f"as_of={self.shown(self.as_of)} is not before upper={self.shown(self.upper)}: {waited} Read at an earlier "
            f"time, seal to {self.as_of + 1} or later, or allow a longer timeout."
        )


class UpperMismatch(AboutTimes, Conflict):
    """A write or seal expected another upper: somebody else came first. Nothing of it was applied."""

    def __init__(self, expected: Antichain, actual: Antichain) -> None:
        super().__init__(expected, actual)
        self.expected = expected
        self.actual = actual

    def __str__(self) -> str:
        return (
            f"expected upper={self.shown(self.expected)}, and it is {self.shown(self.actual)}; nothing of this was "
            "applied. Read what was written meanwhile, then decide anew."
        )


class HoldMoved(AboutTimes, Conflict):
    """A named hold is not where its owner left it: another process moves it too, or has taken the name."""

    def __init__(self, name: str, expected: int | None, actual: int | None) -> None:
        super().__init__(name, expected, actual)
        self.name = name
        self.expected = expected
        self.actual = actual

    def __str__(self) -> str:
        def place(time: int | None) -> str:
            return "not there" if time is None else f"at {self.shown(time)}"

        return (
            f"the hold {self.name!r} was expected to be {place(self.expected)}, and is {place(self.actual)}; it was "
            "not moved. Load it again to go on from where it is."
        )


class TagMoved(AboutTimes, Conflict):
    """A tag is not where it was when it was to be made, moved or dropped: somebody else came first."""

    def __init__(self, name: str, expected: int | None, actual: int | None) -> None:
        super().__init__(name, expected, actual)
        self.name = name
        self.expected = expected
        self.actual = actual

    def __str__(self) -> str:
        def place(time: int | None) -> str:
            return "not there" if time is None else f"at {self.shown(time)}"

        return (
            f"the tag {self.name!r} was expected to be {place(self.expected)}, and is {place(self.actual)}; it was "
            "left as it is. To move a tag that exists, give move=True."
        )
