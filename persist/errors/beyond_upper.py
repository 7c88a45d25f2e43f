"""The error of a commit that must be alone beside updates that are not sealed, which says whose these are."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from persist.antichain import Antichain
from persist.blob import Conflict
from persist.errors.times import AboutTimes

WRITERS_SHOWN = 3
TOKENS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class UnsealedWrites:
    """What one writer has added to a collection at times that are not sealed.

    Attributes:
        writer: the name of its client, as in the log: host, process, and six digits.
        is_own: whether it is the client that is told this.
        epoch: the record with which it opened the location exclusively; None if it did not.
        updates: how many, as it wrote them; first and last are the least and greatest of their times.
        seqno: the latest of its records that added some, and when it was written, by its clock.
        tokens: of these writes, those that had one; the latest first.
    """

    writer: str
    is_own: bool
    epoch: int | None
    updates: int
    first: int
    last: int
    seqno: int
    written_ms: int
    tokens: tuple[str, ...] = ()


@dataclass(eq=False, repr=False)
class UpdatesBeyondUpper(AboutTimes, Conflict):
    """A commit was to be alone in what it adds to the sealed contents, and somebody has added updates, too.

    Attributes:
        time: the latest of theirs; None if they come with the same record of the log.
        first: the least of those that are not sealed, and updates is how many there are, as far as is known.
        writes: whose they are, the latest first; empty where the log does not tell any more.
    """

    upper: Antichain
    time: int | None
    first: int | None = None
    updates: int | None = None
    writes: tuple[UnsealedWrites, ...] = ()

    def with_writes(self, writes: Sequence[UnsealedWrites]) -> "UpdatesBeyondUpper":
        """Return this error, saying whose the updates are."""
        self.writes = tuple(writes)
        return self

    def __str__(self) -> str:
        if self.time is None:
            return (
                f"this client writes updates at times beyond upper={self.shown(self.upper)} in the same commit, "
                "without a seal; nothing of this was applied. Wait for that write and seal it, then try again."
            )
        return (
            f"{self._what} beyond upper={self.shown(self.upper)} {self._are} not sealed, so what is there is not known "
            f"yet; nothing of this was applied.{self._whose} Let {'its' if self._is_one else 'their'} writer finish "
            f"and seal({self.time + 1}), or seal that far yourself if that is all; then try again at time "
            f"{self.shown(self.time + 1)} or later."
        )

    @property
    def _is_one(self) -> bool:
        return self.updates == 1

    @property
    def _are(self) -> str:
        return "is" if self._is_one else "are"

    @property
    def _what(self) -> str:
        if self.first is None or self.updates is None:
            return f"updates at times until {self.shown(self.time)}"
        return _updates(self, self.updates, self.first, self.time or 0)

    @property
    def _whose(self) -> str:
        if not self.writes:
            return ""
        said = "; ".join(_said(self, each, only=len(self.writes) == 1) for each in self.writes[:WRITERS_SHOWN])
        more = len(self.writes) - WRITERS_SHOWN
        return f" Written by {said}{f'; and by {more} more' if more > 0 else ''}."


def _updates(error: AboutTimes, count: int, first: int, last: int) -> str:
    at = f"time {error.shown(first)}" if first == last else f"times {error.shown(first)} to {error.shown(last)}"
    return f"{count:,} update{'' if count == 1 else 's'} at {at}"


def _said(error: AboutTimes, each: UnsealedWrites, *, only: bool) -> str:
    who = f"this client ({each.writer})" if each.is_own else each.writer
    what = "" if only else f": {_updates(error, each.updates, each.first, each.last)}"
    moment = datetime.fromtimestamp(each.written_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    details = [f"last in record {each.seqno} at {moment}"]
    if each.epoch is not None:
        details.append(f"writing exclusively since record {each.epoch}")
    if each.tokens:
        more = len(each.tokens) - TOKENS_SHOWN
        named = ", ".join(map(repr, each.tokens[:TOKENS_SHOWN]))
        details.append(f"token{'s' if len(each.tokens) > 1 else ''} {named}{f' and {more} more' if more > 0 else ''}")
    return f"{who}{what} ({', '.join(details)})"
