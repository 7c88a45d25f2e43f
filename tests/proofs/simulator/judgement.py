"""What a judgement knows at any moment: the history, what is wrong, and what was promised to whom."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.proofs.simulator.history import Commit, Event, History
from tests.proofs.simulator.physical import Physical
from tests.proofs.simulator.tables import Table
from tests.proofs.simulator.versions import Location

Errors = dict[str, dict[str, Any]]  # Acceptable classes, each with the attributes it must have (a tuple: one of them).


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that was broken, and how."""

    rule: str
    text: str

    def __str__(self) -> str:
        return f"[{self.rule}] {self.text}"


@dataclass(slots=True)
class Expected:
    """What a call may be answered in one state.

    Attributes:
        errors: the errors it may get.
        rules: for each of them, which rule demands it.
        must_fail: whether it may not succeed.
        check: tells what is wrong with the value of its success, or None.
        rule: the rule that check is about.
    """

    errors: Errors = field(default_factory=dict)
    rules: dict[str, str] = field(default_factory=dict)
    must_fail: bool = False
    check: Callable[[Any], str | None] = lambda _: None
    rule: str = "answer"

    def fail(self, rule: str, error: str, **attributes: Any) -> None:
        """Demand a failure; if there is more than one reason, each will do."""
        self.may_fail(rule, error, **attributes)
        self.must_fail = True

    def may_fail(self, rule: str, error: str, **attributes: Any) -> None:
        """Accept a failure; if an error has several reasons, with the attributes of any."""
        known = self.errors.get(error)
        if known is not None:
            both = {name: (known[name], value) for name, value in attributes.items() if name in known}
            attributes = {name: tuple(v for each in pair for v in _alternatives(each)) for name, pair in both.items()}
        self.errors[error] = attributes
        self.rules[error] = rule


def _alternatives(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


@dataclass(slots=True)
class Feed:
    """How far a listen or subscribe has come; first is the snapshot that was not given out yet."""

    collection: str
    lower: int
    first: int | None = None
    is_closed: bool = False


@dataclass(slots=True)
class Hold:
    """A handle of a hold, and where it believes it to be."""

    collection: str
    name: str | None
    time: int
    is_released: bool = False


@dataclass(slots=True)
class Claim:
    """A promise to a reader: since stays at or before time, from the answer that made it to the moment it ends."""

    event: Event
    collection: str
    time: int
    ends: int | None = None


@dataclass(frozen=True, slots=True)
class Dropped:
    """A blob that a collection gave up: in which record, and which leases read the collection then.

    Attributes:
        is_last: whether no other collection named it any more.
    """

    commit: Commit
    leases: frozenset[str]
    is_last: bool


class Judgement:
    """What the passes of a judgement share."""

    def __init__(self, history: History) -> None:
        self.violations: list[Violation] = []
        self.history = history
        self.events = sorted(history.events, key=lambda event: event.invoked)
        self.by_id = {event.id: event for event in history.events}
        self.commits: list[Commit] = []
        self.newest_format = int(history.settings.get("format", 0))
        self.moments: list[int] = []  # When each record was there at the earliest, and at the latest.
        self.latest: list[int] = []
        self.location = Location()
        self.included: list[list[Event]] = []  # Per commit: the calls in it, in call order.
        self.happened: set[int] = set()
        self.done: set[int] = set()  # Repetitions of calls that had happened.
        self.feeds: dict[int, Feed] = {}
        self.closed_snapshots: set[int] = set()
        self.holds: dict[int, Hold] = {}
        self.claims: list[Claim] = []
        self.gone_s: dict[str, float] = {}  # When collections were destroyed, by the world's clock.
        self.evicted: dict[str, list[int]] = {}  # When others ended a client's lease.
        self.derived: dict[str, dict[str, Any]] = {}  # How collections were created that nobody writes.
        self.erasures: dict[int, tuple[set[int], int]] = {}  # Of records that erased: which keys, until which version.
        self.physical: dict[str, Physical] = {}
        self.replaced_s: dict[str, list[float]] = {}  # When blobs of a collection were replaced.
        self.evolved: dict[str, list[Commit]] = {}
        self.named: dict[str, Commit] = {}  # Which record brought a blob.
        self.markers: dict[int, Counter[tuple[str, int]]] = {}  # Of each commit.
        self.marked: set[tuple[str, int]] = set()  # By events that have come.
        self.brought: set[tuple[str, int]] = set()  # By writes that have come.
        self.namers: dict[str, set[str]] = {}  # Which collections name a blob.
        self.cloned: dict[str, tuple[Commit, dict[str, Any]]] = {}
        self.dropped: dict[str, list[Dropped]] = {}
        self.tables: dict[str, list[tuple[int, int, Table | None]]] = {}  # From when to when a record of it came.
        self.iceberg_tables: dict[str, list[tuple[int, int, Table | None]]] = {}
        self.ended: dict[str, int] = {}  # When leases ended.
        self.reads_from: dict[str, list[tuple[int, int]]] = {}  # What leases said of it, and when.
        self.reentrance = {e.client: e.args.get("reentrance_id") for e in self.events if e.op == "open"}
        self.modes = {e.client: e.args["mode"] for e in self.events if e.op == "open"}
        self.closes = {e.client: e for e in reversed(self.events) if e.op == "close"}  # The first of each.
        self.of_client: dict[str, list[Event]] = {}
        for event in self.events:
            self.of_client.setdefault(event.client, []).append(event)

    def blame(self, rule: str, text: str) -> None:
        self.violations.append(Violation(rule, text))
