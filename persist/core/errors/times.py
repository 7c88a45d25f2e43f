"""Errors that name times of one collection, and show them as moments if it has a timeline."""

from dataclasses import dataclass
from typing import TypeVar

from persist.blob.errors import Conflict, InvalidUsage
from persist.core.antichain import Antichain
from persist.core.timeline import Timeline


class AboutTimes:
    """A mixin for errors that name times of one collection.

    `timeline`: the unit of the collection's timeline, to also show times as moments; None without one.
    """

    timeline: str | None = None

    def format_time(self, time: "int | Antichain | None") -> str:
        number = time.time if isinstance(time, Antichain) else time
        if number is None:
            return "the end of time" if isinstance(time, Antichain) else str(time)
        return str(number) if self.timeline is None else f"{number} ({Timeline(self.timeline).to_text(number)})"


T = TypeVar("T", bound=BaseException)


def attach_timeline(error: T, unit: str | None) -> T:
    """Let an error show times as moments, if the collection has a timeline."""
    if isinstance(error, AboutTimes):
        error.timeline = unit
    return error


@dataclass(eq=False, repr=False)
class UpdateNotBeyondUpper(AboutTimes, InvalidUsage):
    """A write has an update at a sealed time; the whole write was rejected (rule 2)."""

    time: int
    upper: Antichain

    def describe(self) -> str:
        if self.upper.is_empty:
            return (
                f"update at time {self.format_time(self.time)} is not beyond upper: the collection is "
                "complete for ever and takes no more updates. Write to another collection."
            )
        return (
            f"update at time {self.format_time(self.time)} is not beyond upper={self.format_time(self.upper)}: "
            f"times before {self.upper.time} are sealed. "
            f"Write at times >= {self.upper.time}; nothing of this write was applied."
        )


@dataclass(eq=False, repr=False)
class PendingEvents(AboutTimes, InvalidUsage):
    """A seal would pass pending events without resolving them."""

    name: str
    upper: Antichain
    first: int

    template = (
        "events of the keyed collection {name!r} at time {first:time} are pending, and a seal "
        "to {upper:time} would pass them."
    )
    remedy = "{seal:call}, or {upsert:call} with {seal:option}, resolves them."


@dataclass(eq=False, repr=False)
class FrontierRegression(AboutTimes, InvalidUsage):
    """A seal or allow_compaction would move a frontier back (rules 1 and 4)."""

    frontier: str
    asked: Antichain
    current: Antichain

    @property
    def template(self) -> str:  # type: ignore[override]
        if self.current.is_empty:
            return "{frontier} cannot go back to {asked:time}: it is complete for ever."
        return "{frontier} cannot go back from {current:time} to {asked:time}. Ask for {current.time} or later."


@dataclass(eq=False, repr=False)
class AsOfCompacted(AboutTimes, InvalidUsage):
    """A read at a time before since (rule 3). `lower` is set for a read of changes."""

    as_of: int
    since: Antichain
    lower: int | None = None

    def describe(self) -> str:
        if self.lower is not None and self.since.time is not None:
            return (
                f"changes from {self.format_time(self.lower)} on are merged with earlier ones: "
                f"since={self.format_time(self.since)}, so times up to {self.since.time} are indistinguishable. "
                f"Ask for changes from {self.since.time + 1} or later."
            )
        since = self.format_time(self.since)
        what = f"as_of={self.format_time(self.as_of)} is before since={since}: history before since has been compacted."
        if self.since.is_empty:
            return f"{what} Since is empty: no time can be read any more."
        return f"{what} Read at as_of >= {self.since.time}."


@dataclass(eq=False, repr=False)
class BeforeViewBegan(AsOfCompacted):
    """A read at a time before a view begins, when it has no contents yet.

    Attributes:
        start: the time at which the view begins.
        view: its name.
    """

    start: int = 0
    view: str = ""

    def describe(self) -> str:
        start = self.format_time(self.start)
        if self.lower is not None:
            return (
                f"changes from {self.format_time(self.lower)} on are merged with earlier ones: the view "
                f"{self.view!r} begins at {start}, with its complete contents at that time. Ask for changes from "
                f"{self.start + 1} or later."
            )
        return (
            f"as_of={self.format_time(self.as_of)} is before the view {self.view!r} begins, at {start}: it holds "
            f"its answers from then on. Read at as_of >= {self.start}."
        )

    remedy = "{redefine:call} with {start:option} begins {view!r} earlier, with another history, as another view would."


@dataclass(eq=False, repr=False)
class AsOfNotSealed(AboutTimes, InvalidUsage):
    """A read at a time that was not sealed within the caller's timeout (rule 3).

    Attributes:
        as_of: the time; None if the latest sealed time was requested and nothing is sealed.
        unsealed: describes the unsealed updates; "" without any, or if unknown.
        until: the upper bound of a read of changes.
        view: the name of the view; "" for a collection that its writers seal.
    """

    as_of: int | None
    upper: Antichain
    timeout_s: float
    unsealed: str = ""
    until: int | None = None
    view: str = ""

    def describe(self) -> str:
        unsealed_names = f" Not sealed yet are {self.unsealed}." if self.unsealed else ""
        if self.as_of is None:
            if self.view:
                return f"the view {self.view!r} was never refreshed, so it holds no answer."
            unsealed_names = unsealed_names or " The collection is empty."
            return f"nothing is sealed yet, so there is no latest time to read.{unsealed_names}"
        sealed = "nothing is sealed yet" if self.upper.time == 0 else f"times before {self.upper.time} are sealed"
        waited = f", and waiting {self.timeout_s:g} s did not change that" if self.timeout_s else ""
        waited = f"{sealed}{waited}.{unsealed_names}"
        if self.until is not None:
            return (
                f"changes until {self.format_time(self.until)} are not complete, because "
                f"upper={self.format_time(self.upper)}: {waited}"
            )
        return f"as_of={self.format_time(self.as_of)} is not before upper={self.format_time(self.upper)}: {waited}"

    @property
    def remedy(self) -> str:  # type: ignore[override]
        if self.as_of is None and self.until is None:
            if self.view:
                return "{refresh:call} refreshes it."
            return "" if self.unsealed else "Write, then {seal:call} makes times before its upper readable."
        read = 'Read at an earlier time, or at "latest"'
        if self.until is not None:
            read = "Ask for changes until {upper.time} (the default)"
        upper = self.until or (self.as_of or 0) + 1
        advance = "refresh the view {view!r} with {refresh:call}" if self.view else f"seal to {upper} or later"
        return f"{read}, {advance}, or wait for it with {{timeout_s:option}}."


@dataclass(eq=False, repr=False)
class UpperMismatch(AboutTimes, Conflict):
    """A write or seal expected another upper, because another writer was first. Nothing was applied."""

    expected: Antichain
    actual: Antichain

    template = (
        "expected upper={expected:time}, and it is {actual:time}; nothing of this was "
        "applied. Read what was written meanwhile, then decide anew."
    )


@dataclass(eq=False, repr=False)
class _Moved(AboutTimes, Conflict):
    """A named hold or tag is not where its owner left it."""

    name: str
    expected: int | None
    actual: int | None

    @property
    def expected_place(self) -> str:
        return self._format_place(self.expected)

    @property
    def actual_place(self) -> str:
        return self._format_place(self.actual)

    def _format_place(self, time: int | None) -> str:
        """Return "not there", or the time of the hold or tag."""
        return "not there" if time is None else f"at {self.format_time(time)}"


class HoldMoved(_Moved):
    """A named hold is not where its owner left it: another process moves it too, or has taken the name."""

    template = (
        "the hold {name!r} was expected to be {expected_place}, and is {actual_place}; it was not moved. Load it again "
        "to go on from where it is."
    )


class TagMoved(_Moved):
    """A tag was changed by another client before it could be created, moved or dropped."""

    template = "the tag {name!r} was expected to be {expected_place}, and is {actual_place}; it was left as it is."
    remedy = "To move a tag that exists, give {move:option:True}."


@dataclass(eq=False, repr=False)
class UpdatesBeyondUpper(AboutTimes, Conflict):
    """A commit must be the only addition to the sealed contents, but another writer has added updates.

    Attributes:
        time: of the latest such update; None if this client's own writes in the same commit are meant.
        first: the least time of the unsealed updates. `updates`: their number, if known.
    """

    upper: Antichain
    time: int | None
    first: int | None = None
    updates: int | None = None

    def describe(self) -> str:
        if self.time is None:
            return (
                f"this client writes updates at times beyond upper={self.format_time(self.upper)} in the same commit, "
                "without a seal; nothing of this was applied. Wait for that write and seal it, then try again."
            )
        updates = f"updates at times until {self.format_time(self.time)}"
        if self.first is not None and self.updates is not None:
            updates = self._describe_updates(self.updates, self.first, self.time)
        are, their = ("is", "its") if self.updates == 1 else ("are", "their")
        return (
            f"{updates} beyond upper={self.format_time(self.upper)} {are} not sealed, so the contents "
            f"are not final yet; nothing of this was applied. Let {their} writer finish and "
            f"seal to {self.time + 1}, or seal that far yourself if nothing else will be written; then try again "
            f"at time {self.format_time(self.time + 1)} or later."
        )

    def _describe_updates(self, count: int, first: int, last: int) -> str:
        at = (
            f"time {self.format_time(first)}"
            if first == last
            else f"times {self.format_time(first)} to {self.format_time(last)}"
        )
        return f"{count:,} update{'' if count == 1 else 's'} at {at}"
