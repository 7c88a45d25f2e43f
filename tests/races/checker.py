"""Judges a history of calls: is there one order of events that explains every answer? Imports nothing of the library.

The library says in which order commits happened, by their seqnos; so nothing has to be searched for. It is checked that

1. *one order*: each seqno is the commit of one client (calls of one client may share one: a group), or of nobody whose
   answer we have. In this order, every acknowledged call is one that the model allows where it stands.
2. *real time*: what was answered before a call began comes before it; and the calls of a client are in call order.
   A commit that changed nothing is not in the log: its seqno is that of the state in which there was nothing to do.
3. *answers*: every refusal and every read is what the model says in some state that the call could meet, and these
   choices obey real time among themselves, too: once a read has seen a state, no later one sees an older.
4. *contents*: a snapshot holds exactly the updates, at times up to its own, that were accepted ever; likewise changes.
   Definiteness says that no later one can be accepted, and 1 checks that.

A *state* has an index: 0 is the empty location, and each call that was committed makes the next one, so a record of a
group makes several. Only the author of a group may meet those inside it, in a refusal: others see whole records.

A call that was not answered may have happened or not: its place is sought among the seqnos that nobody else has, or
that its answer says are possible, up to `PLACEMENTS_MAX` combinations of all such calls.
"""

import bisect
import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests import model
from tests.model import Refused
from tests.races.history import Call
from tests.races.states import (
    EXCLUSIVE,
    SHARED,
    State,
    answer,
    changes_nothing,
    closed,
    committed,
    is_repeated,
    opened,
)

PLACEMENTS_MAX = 1000
NO_MACHINES: Mapping[str, str] = {}
LATER = 2**63
REFUSALS = {
    "UpdateNotBeyondUpper",
    "FrontierRegression",
    "UpperMismatch",
    "Locked",
    "WriterFenced",
    "AsOfCompacted",
    "AsOfNotSealed",
}
NOTHING_HAPPENED = {"Unavailable"}


@dataclass
class Report:
    """What a check found.

    Attributes:
        violations: what no order of events explains, each with the call.
        records: how many seqnos the calls of the history account for.
        states: those after each call that was committed.
        updates: (id, time, diff) that were accepted, by collection; of a keyed one those of its events.
        events: [id, value or None, time] that were accepted, in the order of arrival, by collection.
    """

    violations: list[str] = field(default_factory=list)
    records: int = 0
    states: list[State] = field(default_factory=list)
    updates: dict[str, list[tuple[Any, int, int]]] = field(default_factory=dict)
    events: dict[str, list[list[Any]]] = field(default_factory=dict)

    def contents(self, collection: str, as_of: int) -> dict[Any, int]:
        """Return the diffs of each id as of a time."""
        return model.contents(self.updates.get(collection, ()), as_of)


def check(
    calls: Sequence[Call], *, healthy: bool = True, holds: bool = False, machines: Mapping[str, str] = NO_MACHINES
) -> Report:
    """Return what is wrong with a history, if anything.

    Args:
        holds: clients that may write take snapshots, too, which hold since back: it is at most what was asked for.
        machines: of the keyed collections, by name. How far these are resolved is not known, nor how far since may go.
        healthy: the store never failed, so `Unavailable` and `Indeterminate` are violations.
    """
    best: Report | None = None
    for placed in _placements(calls):
        report = _Check(placed, healthy, holds or bool(machines), machines).run()
        if not report.violations:
            return report
        if best is None or len(report.violations) < len(best.violations):
            best = report
    assert best is not None
    return best


def _placements(calls: Sequence[Call]) -> Iterator[list[Call]]:
    """Yield the history with each call whose seqno is not known left out, or put at a seqno that nobody has."""
    exclusive = {call.client for call in calls if call.op == "open" and call.args["mode"] == EXCLUSIVE}
    known: list[Call] = []
    unplaced: list[Call] = []
    for call in calls:
        commits = call.op == "commit" or (call.op in ("open", "close") and call.client in exclusive)
        has_place = call.error is not None and not call.is_unknown
        (known if not commits or has_place or "seqno" in call.answer else unplaced).append(call)
    placed = [call for call in known if "seqno" in call.answer]
    taken = {call.answer["seqno"] for call in placed}
    free = sorted(set(range(max(taken, default=-1) + 1 + len(unplaced))) - taken)
    choices = []
    for call in unplaced:
        low = max((c.answer["seqno"] for c in placed if c.returned_ns < call.invoked_ns), default=-1)
        high = min((c.answer["seqno"] for c in placed if c.invoked_ns > call.returned_ns), default=LATER)
        places: list[int | None] = [seqno for seqno in call.answer.get("places", free) if low < seqno < high]
        choices.append([*places, None] if call.is_unknown else places)
    for tried, choice in enumerate(itertools.product(*choices)):
        if tried == PLACEMENTS_MAX:
            raise ValueError(f"{len(unplaced)} calls without an answer have too many places to try")
        found = [
            replace(call, answer={**call.answer, "seqno": seqno})
            for call, seqno in zip(unplaced, choice, strict=True)
            if seqno is not None
        ]
        yield sorted([*known, *found], key=lambda call: call.invoked_ns)


@dataclass
class _Event:
    """A committed call, and where.

    Attributes:
        index: of the state it makes.
        record_first: that of the first state of its record.
        begun_ns: no state of the record can be seen before.
        before_later: the last state that an earlier call of its client can have met.
    """

    call: Call
    index: int
    record_first: int
    begun_ns: int
    before_later: int


@dataclass
class _Attempt:
    """What a record may have been: its calls and the states they make; and those of its seqno that change nothing."""

    made: list[tuple[Call, State]]
    idle: list[tuple[Call, set[int]]]


class _Check:
    def __init__(self, calls: Sequence[Call], healthy: bool, holds: bool, machines: Mapping[str, str]) -> None:
        self.calls = calls
        self.machines = machines
        self.healthy = healthy
        self.report = Report()
        self.modes = {call.client: str(call.args["mode"]) for call in calls if call.op == "open"}
        self.states = self.report.states
        self.states.append(State(holds=holds))
        self.owners: list[str | None] = [None]
        self.is_end = [True]
        self.events: list[_Event] = []
        # Commits that changed nothing, to the states in which there can have been nothing to do.
        self.idle: dict[tuple[str, int], set[int]] = {}

    def run(self) -> Report:
        self.replay()
        self.real_time()
        self.answers()
        self.contents()
        if self.healthy:
            for call in self.calls:
                if call.error in {"Indeterminate", *NOTHING_HAPPENED}:
                    self.complain(call, "the store was healthy")
        return self.report

    def complain(self, about: Call | None, what: str) -> None:
        self.report.violations.append(f"{what}: {about}" if about is not None else what)

    def mode(self, client: str) -> str:
        return self.modes.get(client, SHARED)

    # One order.

    def replay(self) -> None:
        by_seqno: dict[int, list[Call]] = defaultdict(list)
        for call in self.calls:
            if "seqno" in call.answer:
                by_seqno[call.answer["seqno"]].append(call)
        for seqno in sorted(by_seqno):
            self.replay_record(seqno, by_seqno[seqno])

    def replay_record(self, seqno: int, calls: list[Call]) -> None:
        groups: dict[str, list[Call]] = defaultdict(list)
        for call in sorted(calls, key=lambda call: call.number):
            groups[call.client].append(call)
        refusals: list[str] = []
        # If several could be the author, any of them may have come after another, finding nothing left to do.
        answered = sorted(groups, key=lambda client: min(call.returned_ns for call in groups[client]))
        attempts = [self.try_author(author, groups, refusals) for author in (None, *answered)]
        fitting = [attempt for attempt in attempts if attempt is not None]
        if fitting:
            self.accept(fitting)
            return
        clients = f"{len(groups)} clients" if len(groups) > 1 else "its client"
        self.complain(None, f"seqno {seqno} is not what {clients} can have committed there: {'; '.join(refusals)}")

    def try_author(self, author: str | None, groups: dict[str, list[Call]], refusals: list[str]) -> "_Attempt | None":
        """Return what a record by author would be, or None if that cannot be."""
        attempt = _Attempt([], [])
        first, state = len(self.states), self.states[-1]
        for call in groups.get(author, []) if author is not None else []:
            if self.is_idle(state, call):  # In the group, or after it.
                attempt.idle.append((call, {first - 1 + len(attempt.made)}))
                continue
            try:
                state = self.after(state, call)
            except Refused as refused:
                refusals.append(f"{answer(refused)} is the answer there to {call}")
                return None
            attempt.made.append((call, state))
        attempt.idle += [(call, set()) for client, calls in groups.items() if client != author for call in calls]
        for call, places in attempt.idle:
            if self.is_idle(state, call):
                places.add(first - 1 + len(attempt.made))
            if not places:
                refusals.append(f"it would change something there: {call}")
                return None
        return attempt

    def accept(self, fitting: "list[_Attempt]") -> None:
        """Append the states of the first attempt; the others would make the same state in the end."""
        attempt, first = fitting[0], len(self.states)
        begun_ns = min((call.invoked_ns for each in fitting for call, _ in each.made), default=0)
        last = first - 1 + len(attempt.made)
        for call, state in attempt.made:
            index = len(self.states)
            if len(fitting) > 1:
                self.events.append(_Event(call, index, first, begun_ns, last))
            else:
                self.events.append(_Event(call, index, first, call.invoked_ns, index - 1))
            self.states.append(state)
            self.owners.append(call.client)
            self.is_end.append(index == last)
            for kind, collection, argument in call.args.get("steps", ()):
                if kind == "write":
                    self.report.updates.setdefault(collection, []).extend(map(tuple, argument))
                if kind == "upsert":
                    self.report.events.setdefault(collection, []).extend(argument)
        self.report.records += bool(attempt.made)
        self.idle |= {(call.client, call.number): places for call, places in attempt.idle}

    def after(self, state: State, call: Call) -> State:
        if call.op == "open":
            return opened(state, call.client, call.args)
        if call.op == "close":
            return closed(state, call.client)
        return committed(state, call.client, self.mode(call.client), call.args["steps"])

    def is_idle(self, state: State, call: Call) -> bool:
        return call.op == "commit" and changes_nothing(state, call.client, self.mode(call.client), call.args["steps"])

    # Real time.

    def real_time(self) -> None:
        answered: list[tuple[int, int]] = []
        floor = -1
        for event in sorted(self.events, key=lambda event: event.call.invoked_ns):
            while answered and answered[0][0] < event.call.invoked_ns:
                floor = max(floor, heapq.heappop(answered)[1])
            if event.index <= floor:
                self.complain(event.call, "it is ordered before a commit that was answered before it began")
            heapq.heappush(answered, (event.call.returned_ns, event.index))
        last: dict[str, _Event] = {}
        for event in sorted(self.events, key=lambda event: event.call.number):
            before = last.setdefault(event.call.client, event)
            if event.index < before.index:
                self.complain(event.call, "it is ordered before an earlier call of its client")
            last[event.call.client] = event

    # Answers.

    def answers(self) -> None:
        """Give each refusal and each read the first state that explains it and real time allows."""
        window = _Window(self.events)
        answered: list[tuple[int, int]] = []
        floor = 0
        floors: dict[str, int] = {}  # What each client has met itself: its calls are applied in call order.
        committed_at = {(event.call.client, event.call.number): event.index for event in self.events}
        for call in self.calls:
            while answered and answered[0][0] < call.invoked_ns:
                floor = max(floor, heapq.heappop(answered)[1])
            place = committed_at.get((call.client, call.number))
            if place is not None:
                floors[call.client] = max(place, floors.get(call.client, 0))
                continue
            meets = self.explanation(call)
            if meets is None:
                continue
            low = max(floor, window.low(call), floors.get(call.client, 0))
            high = min(window.high(call), len(self.states) - 1)
            found = next((i for i in range(low, high + 1) if meets(i)), None)
            if found is None:
                seen = [self.states[i] for i in {low, min(high, len(self.states) - 1)} if low <= high]
                self.complain(call, f"no state from {low} to {high} explains the answer (such as {seen})")
                continue
            heapq.heappush(answered, (call.returned_ns, found))
            floors[call.client] = max(found, floors.get(call.client, 0))

    def explanation(self, call: Call) -> Callable[[int], bool] | None:
        """Return what a state must be like to explain the answer to call; None if there is nothing to explain."""
        idle_at = self.idle.get((call.client, call.number))
        if idle_at is not None:
            # A repeated commit may say any seqno since the first: no state but the first one's is what it depends on.
            return lambda i: i in idle_at or is_repeated(self.states[i], call.args["steps"])
        if call.is_unknown or call.error in NOTHING_HAPPENED:
            return None
        if call.error is not None and call.error not in REFUSALS:
            self.complain(call, "nothing that it asks for is refused so")
            return None
        if call.op in ("commit", "open", "close"):
            return (lambda i: self.refuses(i, call)) if call.error is not None else None
        return lambda i: self.is_end[i] and _shows(self.states[i], call)

    def refuses(self, index: int, call: Call) -> bool:
        if not self.is_end[index] and self.owners[index] != call.client:
            return False
        state = self.states[index]
        if state.holds and call.answer.get("frontier") == "since":
            [(kind, collection, asked)] = call.args["steps"]
            return bool(kind == "allow_compaction" and asked < call.answer["current"] <= state.since(collection))
        try:
            self.after(state, call)
        except Refused as refused:
            return answer(refused).items() <= call.answer.items()
        return False

    # Contents.

    def contents(self) -> None:
        for collection, events in self.report.events.items():
            # What is read was sealed, so that no later event is part of it.
            amount = model.resolved(events, self.machines[collection])
            self.report.updates[collection] = [(f"{id_}={value}", time, n) for id_, value, time, n in amount]
        for call in self.calls:
            if "rows" not in call.answer:
                continue
            collection = call.args["collection"]
            expected: Counter[tuple[Any, ...]] = Counter()
            found = Counter({tuple(row[:-1]): row[-1] for row in call.answer["rows"]})
            if call.op == "snapshot":
                expected = Counter(
                    {(id_,): n for id_, n in self.report.contents(collection, call.args["as_of"]).items()}
                )
            else:
                updates = self.report.updates.get(collection, ())
                expected = Counter(model.changes(updates, call.args["lower"], call.args["upper"]))
            if found != expected:
                lost, extra = dict(expected - found), dict(found - expected)
                self.complain(call, f"it lacks {_some(lost)} and has besides {_some(extra)}")


class _Window:
    """Which states a call can meet, by what was committed certainly before it and certainly after."""

    def __init__(self, events: list[_Event]) -> None:
        by_answer = sorted(events, key=lambda event: event.call.returned_ns)
        self.answered_ns = [event.call.returned_ns for event in by_answer]
        self.highest = [0, *itertools.accumulate((event.index for event in by_answer), max)]
        by_start = sorted(events, key=lambda event: -event.begun_ns)
        self.started_ns = [-event.begun_ns for event in by_start]
        self.lowest = [LATER, *itertools.accumulate((event.record_first for event in by_start), min)]
        self.own: dict[str, list[tuple[int, _Event]]] = defaultdict(list)
        for event in sorted(events, key=lambda event: event.call.number):
            self.own[event.call.client].append((event.call.number, event))

    def low(self, call: Call) -> int:
        answered_before = self.highest[bisect.bisect_left(self.answered_ns, call.invoked_ns)]
        own = self.own[call.client]
        at = bisect.bisect_left(own, call.number, key=lambda item: item[0])
        return max(answered_before, own[at - 1][1].index if at else 0)

    def high(self, call: Call) -> int:
        begun_after = self.lowest[bisect.bisect_left(self.started_ns, -call.returned_ns)] - 1
        own = self.own[call.client]
        at = bisect.bisect_right(own, call.number, key=lambda item: item[0])
        return min(begun_after, own[at][1].before_later if at < len(own) else LATER)


def _shows(state: State, call: Call) -> bool:
    """Return whether a read may answer so in that state."""
    collection = call.args["collection"]
    upper = state.upper(collection)
    if call.error == "AsOfNotSealed":
        return bool(upper == call.answer["upper"] <= call.args["as_of"])
    if call.error == "AsOfCompacted":
        return _may_be_since(state, collection, call.answer["since"]) and call.answer["since"] > call.answer["as_of"]
    if call.op == "upper":
        return bool(call.answer["value"] == upper)
    if call.op == "since":
        return _may_be_since(state, collection, call.answer["value"])
    since = 0 if state.holds else state.since(collection)
    if call.op == "snapshot":
        return bool(since <= call.args["as_of"] < upper)
    assert call.op == "changes"
    lower = call.args["lower"]
    return bool((since < lower or lower == since == 0) and call.args["upper"] <= upper)


def _may_be_since(state: State, collection: str, since: int) -> bool:
    return since <= state.since(collection) if state.holds else since == state.since(collection)


def _some(items: dict[Any, int]) -> str:
    shown = dict(itertools.islice(items.items(), 5))
    return f"{shown}{f' and {len(items) - 5} more' if len(items) > 5 else ''}"
