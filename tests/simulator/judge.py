"""Judges a history: did every call get an answer that it may get, and did the log do what was asked and nothing else?

`judge(history)` returns what is wrong, by rule. It works in two passes:

1. *Replay.* Commit by commit, the calls of its client that must be in it (acknowledged at its seqno) or may be (no
   clear answer, and the marker of their write is in the record) are applied in call order to a model. Each must be
   valid where it comes, and together they must amount to exactly what the record says. So it is known which of the
   doubtful calls happened, whatever the groups were in which a client committed.
2. *Answers.* The log has a state at each moment. A call must see one between the moments at which it was invoked and at
   which it returned, so there are few states, mostly one, that can explain its answer. A call that was refused may also
   have come after calls that its client made before it and that are in the next record.

Shares no code with the library, and does not take the log's word for a value: what was asked for comes from the calls,
and what is read is compared with the calls that happened.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.model import EMPTY, Refused
from tests.simulator.history import Commit, Event, History
from tests.simulator.physical import Physical
from tests.simulator.versions import Location, View

TIME_MAX = 2**63 - 2
ROWS_MAX = 2**31 - 1  # More are not given out one by one.
DOUBTS = ("Unavailable", "Indeterminate", "NotDeleted")
FIRST_MARKER = 1000
MUTATING = ("write", "upsert", "seal", "allow_compaction", "destroy", "multi", "evolve")
UNPLACED = ("multi", "evolve")  # Their answers do not say in which record they are.
BAD_WRITES = {
    "time below 0": ("InvalidUpdate",),
    "time too large": ("InvalidUpdate",),
    "diff too large": ("InvalidUpdate",),
    "no tuple": ("InvalidUpdate",),
    "wrong type": ("SchemaMismatch", "InvalidUpdate"),
    "wrong columns": ("SchemaMismatch", "InvalidUpdate"),
}
KEYED_WRITE = "updates for a keyed collection"
REFUSED_WRITES = {**BAD_WRITES, KEYED_WRITE: ("KeyedCollection",)}

# Which rule demands a refusal of the model.
REFUSED_BY = {
    "CollectionNotFound": "destroy",
    "FrontierRegression": "frontier",
    "SchemaMismatch": "schema",
    "SchemaMoved": "schema",
    "UpdateNotBeyondUpper": "late",
    "UpperMismatch": "expected_upper",
}

Errors = dict[str, dict[str, Any]]  # Acceptable classes, each with the attributes it must have (a tuple: one of them).
Effect = tuple[str, str, Any]


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
        """Accept a failure."""
        self.errors[error] = attributes
        self.rules[error] = rule


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
    """A blob that fell out of use: in which record, when, and which leases read its collection then."""

    commit: Commit
    leases: frozenset[str]


def judge(history: History) -> list[Violation]:
    """Return every violation that is seen; an empty list is a verdict of innocence."""
    judgement = _Judgement(history)
    judgement.check_log()
    judgement.replay()
    judgement.check_answers()
    judgement.check_claims()
    judgement.check_deletions()
    return judgement.violations


class _Judgement:
    def __init__(self, history: History) -> None:
        self.violations: list[Violation] = []
        self.history = history
        self.events = sorted(history.events, key=lambda event: event.invoked)
        self.by_id = {event.id: event for event in history.events}
        self.commits: list[Commit] = []
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
        self.physical: dict[str, Physical] = {}
        self.replaced_s: dict[str, list[float]] = {}  # When blobs of a collection were replaced.
        self.evolved: dict[str, list[Commit]] = {}
        self.named: dict[str, Commit] = {}  # Which record brought a blob.
        self.markers: dict[int, Counter[tuple[str, int]]] = {}  # Of each commit.
        self.marked: set[tuple[str, int]] = set()  # By events that have come.
        self.dropped: dict[str, Dropped] = {}
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

    # The log

    def check_log(self) -> None:
        """Records come at consecutive seqnos, each naming the one before, from clients that may write.

        Others store nothing.

        One that lands where the log was truncated before is not part of the log.
        """
        floor = 0
        for commit in sorted(self.history.commits, key=lambda commit: (commit.at, commit.seqno)):
            if commit.seqno < min(floor, len(self.commits)):
                continue
            if commit.seqno != len(self.commits):
                self.blame("log", f"seqno {len(self.commits)} was skipped or taken twice: {commit}")
            last = self.commits[-1].commit if self.commits else None
            if commit.previous != last:
                self.blame("chain", f"it follows {commit.previous}, and the record before it is {last}: {commit}")
            self.commits.append(commit)
            self.moments.append(commit.at)
            self.latest.append(_latest(commit))
            floor = max([floor, *(m["floor"] for m in commit.mutations if m["kind"] == "truncate")])
        for client, mode in self.modes.items():
            if mode == "read" and self.history.stored.get(client):
                self.blame(
                    "read-only", f"{client} only reads, and sent {self.history.stored[client]} writes to storage"
                )

    def replay(self) -> None:
        """Find out which calls are in which record, and that these explain it."""
        for version, commit in enumerate(self.commits):
            said = View(self.location, version)
            for mutation in commit.mutations:
                self._apply_said(commit, mutation, said)
            explained = View(self.location, version)
            self.markers[commit.seqno] = self._new_markers(commit)
            self.included.append(self._explain(commit, explained))
            self._compare(commit, self.included[-1], said, explained)
            said.arrived = [(id_, events) for id_, events in explained.arrived if said.has(id_)]
            said.store()
            self._check_events(commit, View(self.location, version + 1))
        self._check_happened()

    def _apply_said(self, commit: Commit, mutation: dict[str, Any], view: View) -> None:
        kind, id_ = mutation["kind"], mutation.get("collection", "")
        if kind == "create":
            view.create(id_, mutation["name"], mutation["schema"], mutation.get("keyed"))
            self.physical[id_] = Physical()
        elif id_ and not view.alive(id_):
            self.blame("log", f"a {kind} of collection {id_}, which does not exist: {commit}")
        elif kind == "append":
            view.append(id_, mutation["updates"])
            self.physical[id_].append(mutation)
            self.named |= dict.fromkeys(filter(None, mutation.get("blobs", [])), commit)
        elif kind == "pend":
            self.physical[id_].pend(mutation)
            self.named |= dict.fromkeys(filter(None, mutation["blobs"]), commit)
        elif kind == "resolve":
            self._check_resolve(commit, mutation, view)
        elif kind == "replace":
            self._check_replace(commit, mutation, view)
        elif kind == "seal":
            if mutation["upper"] < view.upper(id_):
                self.blame("frontier", f"upper goes back from {view.upper(id_)}: {commit}")
            else:
                view.step("seal", id_, mutation["upper"])
                if view.keyed(id_) is not None and not self.physical[id_].waiting(mutation["upper"]):
                    view.step("resolve", id_, mutation["upper"])
        elif kind == "allow_compaction":
            view.allow(id_, mutation["since"])
        elif kind == "evolve":
            self.evolved.setdefault(id_, []).append(commit)
            view.step(*_said_effect(mutation, view))
        elif kind == "destroy":
            self._drop(commit, id_, self.physical[id_].blobs, view)
            view.step("destroy", id_, None)
            self.gone_s[id_] = commit.clock_s
        elif kind == "tokens":
            for token in mutation["tokens"]:
                view.step("token", id_, token)
        elif kind == "hold":
            self._check_hold(commit, mutation, view)
            view.hold(id_, mutation["hold"], mutation["time"], mutation.get("lease"))
        elif kind == "release":
            view.release(id_, mutation["hold"])
        elif kind == "lease":
            self.location.leases[mutation["lease"]] = (commit.client, mutation["expires_ms"])
            said = commit.at, mutation.get("reads_from", 0)
            self.reads_from.setdefault(mutation["lease"], []).append(said)
        elif kind == "end_lease":
            self._check_lease_end(commit, mutation["lease"], mutation.get("expires_ms"))
            view.end_lease(mutation["lease"])
            self.ended.setdefault(mutation["lease"], commit.at)
        elif kind == "open_writer":
            self._check_open_writer(commit, view)
            view.open_writer(commit.client, mutation["reentrance_id"])
            self.location.exclusive.add(commit.client)
        elif kind == "close_writer":
            view.close_writer()

    def _check_resolve(self, commit: Commit, mutation: dict[str, Any], view: View) -> None:
        """What it is made of is all that waits; whether it is right is judged when all of the commit is known."""
        id_ = mutation["collection"]
        before = self.physical[id_].blobs
        for wrong in self.physical[id_].resolve(mutation, view.resolved(id_)):
            self.blame("resolved", f"{wrong}: {commit}")
        self.named |= dict.fromkeys(filter(None, mutation["blobs"]), commit)
        if mutation["end"] > view.upper(id_):
            view.step("seal", id_, mutation["end"])
        view.step("resolve", id_, mutation["end"])
        self._drop(commit, id_, before - self.physical[id_].blobs, view)
        if before - self.physical[id_].blobs:
            self.replaced_s.setdefault(id_, []).append(commit.clock_s)

    def _check_events(self, commit: Commit, view: View) -> None:
        """Rule 18: what is resolved is what the events of all calls amount to, and the others wait."""
        for id_ in {mutation.get("collection", "") for mutation in commit.mutations}:
            if id_ and view.alive(id_) and view.keyed(id_) is not None:
                known = view.contents(id_)
                for wrong in self.physical[id_].differences(known.events, known.updates, view.resolved(id_)):
                    self.blame("resolved", f"{wrong}: {commit}")

    def _new_markers(self, commit: Commit) -> Counter[tuple[str, int]]:
        """Return the markers that come with a record, and how often; not those of events that were pending before."""
        found = _markers(commit)
        keyed: set[tuple[str, int]] = set()
        for mutation in commit.mutations:
            if mutation["kind"] in ("pend", "resolve"):
                keys = {k for part in mutation["parts"] for k, *_ in part}
                keyed |= {(mutation["collection"], k) for k in keys if k >= FIRST_MARKER}
        found.update(keyed - self.marked)
        self.marked |= keyed
        return found

    def _check_replace(self, commit: Commit, mutation: dict[str, Any], view: View) -> None:
        """Compaction changes nothing that may be read."""
        id_ = mutation["collection"]
        brought = [blob for blob in mutation["blobs"] if blob]
        if late := [blob for blob in brought if blob in self.named]:
            self.blame("compaction", f"{late} are named a second time: {commit}")
        self.named |= dict.fromkeys(brought, commit)
        written = [u for name, updates in view.appended if name == id_ for u in updates]
        updates = [*view.contents(id_).updates, *written]
        if view.keyed(id_) is not None:
            updates = [update for update in updates if update[2] < view.resolved(id_)]
        for wrong in self.physical[id_].replace(mutation, updates, view.since(id_), view.upper(id_)):
            self.blame("compaction", f"{wrong}: {commit}")
        self._drop(commit, id_, set(mutation["unused"]), view)
        if mutation["unused"]:
            self.replaced_s.setdefault(id_, []).append(commit.clock_s)

    def _drop(self, commit: Commit, id_: str, blobs: set[str], view: View) -> None:
        leases = frozenset(lease for _, lease in view.holds(id_).values() if lease is not None)
        for blob in blobs:
            self.dropped.setdefault(blob, Dropped(commit, leases))

    def check_deletions(self) -> None:
        """Rule 10: a blob is deleted when nothing has referred to it for the grace period, and nobody may read it."""
        grace_s = self.history.settings["grace_s"]
        for deletion in self.history.deletions:
            named, dropped = self.named.get(deletion.key), self.dropped.get(deletion.key)
            if named is None:
                continue  # It never became part of anything.
            if dropped is None or deletion.at < dropped.commit.at:
                self.blame("deletion", f"it was deleted while it was in use: {deletion}; it came with {named}")
                continue
            age_s = deletion.clock_s - dropped.commit.clock_s
            if age_s < grace_s:
                self.blame("deletion", f"deleted {age_s:.1f} s after it fell out of use: {deletion}, {dropped}")
            for lease in dropped.leases:
                known = [seqno for at, seqno in self.reads_from[lease] if at < deletion.at]
                is_over = self.ended.get(lease, EMPTY) < deletion.at
                if not is_over and max(known) < dropped.commit.seqno:
                    self.blame("deletion", f"deleted though the lease {lease} may read it: {deletion}, {dropped}")

    def _check_hold(self, commit: Commit, mutation: dict[str, Any], view: View) -> None:
        """A hold begins at or after since; a named one moves by compare-and-set."""
        held = view.holds(mutation["collection"]).get(mutation["hold"])
        if mutation["time"] < view.since(mutation["collection"]):
            self.blame("hold", f"it holds what is behind since={view.since(mutation['collection'])}: {commit}")
        if mutation.get("lease") is None and mutation.get("expected") != (None if held is None else held[0]):
            self.blame("hold", f"it moved from {held}, and expected another time: {commit}")

    def _check_open_writer(self, commit: Commit, view: View) -> None:
        """Rule 12: one writer, unless it is the same one again or is forced to go."""
        opened = next((e for e in self.of_client.get(commit.client, []) if e.op == "open"), None)
        writer = view.writer()
        if opened is None or opened.args["mode"] != "exclusive":
            self.blame("exclusive", f"it was not opened exclusively: {commit}")
        elif writer is not None and writer[1] != opened.args["reentrance_id"] and not opened.args["force"]:
            self.blame("exclusive", f"{writer[0]} has the location: {commit}")

    def _check_lease_end(self, commit: Commit, lease: str, expires_by: int | None) -> None:
        """Others end a lease only after it has expired by anybody's clock (rule 11)."""
        if lease not in self.location.leases:
            return  # It was ended before.
        holder, expires_ms = self.location.leases.pop(lease)
        if holder == commit.client and expires_by is None:
            return
        settings = self.history.settings
        ended_ms = settings["began_ms"] + commit.clock_s * 1000
        if ended_ms < expires_ms + (settings["clock_skew_s"] - settings["skew_max_s"]) * 1000:
            self.blame(
                "lease", f"the lease of {holder} lasts until {expires_ms}, and ended at {ended_ms:.0f}: {commit}"
            )
        self.evicted.setdefault(holder, []).append(commit.at)

    def _explain(self, commit: Commit, view: View) -> list[Event]:
        """Apply to view the calls that are in commit; return them."""
        markers = self.markers[commit.seqno]
        wanted = [_said_effect(mutation, view) for mutation in commit.mutations if _is_asked_for(mutation, view)]
        events = [e for e in self.of_client.get(commit.client, []) if e.invoked < _latest(commit)]
        sure = [e for e in events if e.op in MUTATING and self._is_acknowledged_in(e, commit, markers, wanted)]
        doubtful = [e for e in events if _may_have_happened(e) and e.id not in self.happened]
        doubtful = [e for e in doubtful if e.returned is None or e.returned > commit.at or e.error == "Indeterminate"]
        chosen = sure + [e for e in doubtful if any(marker in markers for marker in _effect_markers(e))]
        for effect in wanted:
            if not any(effect in _effects(e) for e in chosen):
                possible = [e for e in doubtful if e not in chosen and _could_be(e, effect)]
                if not possible:
                    self.blame("phantom", f"nobody asked for {effect}: {commit}")
                chosen += possible[:1]
        applied = []
        for event in sorted(chosen, key=lambda event: event.invoked):
            if event.op == "create_or_load":
                created = next(m for m in commit.mutations if m["kind"] == "create" and m["name"] == event.args["name"])
                view.create(created["collection"], created["name"], created["schema"], created.get("keyed"))
            elif _is_done(event, view):
                self.done.add(event.id)
            else:
                found = self._expected(event, view)
                if found.must_fail:
                    self.blame(
                        next(iter(found.rules.values())), f"accepted, though {found.errors}: {event} in {commit}"
                    )
                _apply(event, view)
                self.happened.add(event.id)
            applied.append(event)
        self._explain_holds(commit, events)
        return applied

    def _explain_holds(self, commit: Commit, events: list[Event]) -> None:
        """Named holds are made, moved and released by those who ask for it."""
        for mutation in commit.mutations:
            name = mutation.get("hold", "")
            if not name or len(name) == HOLD_ID_CHARS:
                continue
            asked = [e for e in events if e.op in ("hold", "advance", "release") and self._hold_of(e)[1] == name]
            asked = [e for e in asked if self._hold_of(e)[0] == mutation["collection"]]
            if mutation["kind"] == "hold":
                asked = [e for e in asked if e.op != "release" and e.args["time"] == mutation["time"]]
            else:
                asked = [e for e in asked if e.op == "release"]
            if not any(e.returned is None or e.returned > commit.at or e.error == "Indeterminate" for e in asked):
                self.blame("hold", f"nobody asked for {mutation}: {commit}")

    def _hold_of(self, event: Event) -> tuple[str, str | None]:
        """Return collection and name of the hold that a call is about."""
        args = (event if event.op == "hold" else self.by_id[event.args["hold"]]).args
        return args["c"], args["name"]

    def _is_acknowledged_in(
        self, event: Event, commit: Commit, markers: Counter[tuple[str, int]], wanted: list[Effect]
    ) -> bool:
        if not event.ok:
            return False
        if event.op == "evolve":
            is_during = event.returned is not None and event.returned > commit.at
            return is_during and event.id not in self.happened and _effects(event)[0] in wanted
        if event.op == "multi":  # Its answer does not say where it is.
            return any(marker in markers for marker in _effect_markers(event)) and event.id not in self.happened
        return bool(event.outcome[1] == commit.seqno)

    def _compare(self, commit: Commit, calls: list[Event], said: View, explained: View) -> None:
        """Report what the calls in commit do not explain of it, and what they should have done and it does not say."""
        wanted, found = _content(explained), _content(said)
        for id_ in {*wanted, *found}:
            self._compare_content(commit, id_, wanted.get(id_, Counter()), found.get(id_, Counter()))
        touched = {m["collection"] for m in commit.mutations if m.get("collection")}
        for id_ in touched | {id_ for event in calls for _, id_, _ in _effects(event)}:
            if said.alive(id_) != explained.alive(id_):
                self.blame("destroy", f"{id_} should {'' if explained.alive(id_) else 'not '}exist after {commit}")
            if not (said.alive(id_) and explained.alive(id_)):
                continue
            if said.upper(id_) != explained.upper(id_):
                self.blame("lost", f"upper should be {explained.upper(id_)}, is {said.upper(id_)}, after {commit}")
            if said.allowed(id_) != explained.allowed(id_):
                text = f"compaction should be allowed up to {explained.allowed(id_)}, not {said.allowed(id_)}"
                self.blame("lost", f"{text}, after {commit}")
            if said.tokens(id_) != explained.tokens(id_):
                self.blame(
                    "token", f"tokens should be {set(explained.tokens(id_))}, not {set(said.tokens(id_))}: {commit}"
                )

    def _compare_content(self, commit: Commit, id_: str, wanted: Counter[Any], found: Counter[Any]) -> None:
        if wanted == found:
            return
        missing = {update: n for update in wanted if (n := wanted[update] - found[update])}
        extra = {update: n for update in found if (n := found[update] - wanted[update])}
        if any(update[1] == "m" and found[update] > 1 for update in extra):
            self.blame("once", f"a write is there twice ({extra}): {commit}")
        elif set(wanted) & set(found) and missing:
            self.blame("atomic", f"only a part of what was written to {id_} is there; {missing} is not: {commit}")
        elif missing:
            self.blame("lost", f"{missing} was acknowledged in {id_} and is not there: {commit}")
        else:
            self.blame("phantom", f"nobody wrote {extra} to {id_}: {commit}")

    def _check_happened(self) -> None:
        """No write is there twice, or in spite of its refusal; multi-writes are whole; calls are in order."""
        seen: dict[tuple[str, int], Commit] = {}
        writes: dict[tuple[str, int], list[Event]] = {}
        for event in self.events:
            for marker in _effect_markers(event):
                writes.setdefault(marker, []).append(event)
        for commit in self.commits:
            for marker in self.markers[commit.seqno]:
                if marker in seen:
                    self.blame("once", f"marker {marker} is in seqno {seen[marker].seqno} and again: {commit}")
                seen[marker] = commit
                asked = writes.get(marker, [])
                if asked and not any(e.id in self.happened for e in asked):
                    self.blame("refused", f"it happened in spite of its answer: {asked[0]} in {commit}")
        for event in self.events:
            places = {seen[m].seqno if m in seen else None for m in _effect_markers(event)}
            if event.op == "multi" and event.id in self.happened and len(places) > 1:
                self.blame("atomic", f"a part of it is in {places} each: {event}")
        for client, events in self.of_client.items():
            # Seals of a keyed collection may take longer than what is asked of others after them (rule 5).
            by_order: dict[str, list[int]] = {}
            for e in events:
                if e.op in MUTATING and e.op not in UNPLACED and e.ok:
                    order = e.args["c"] if self.location.collections[e.args["c"]].machine is not None else "plain"
                    by_order.setdefault(order, []).append(e.outcome[1])
            for seqnos in by_order.values():
                if seqnos != sorted(seqnos):
                    self.blame("order", f"{client} got its writes committed out of call order: {seqnos}")

    # The answers

    def check_answers(self) -> None:
        for event in self.events:
            if event.error in DOUBTS and not event.faults:
                self.blame("outage", f"storage was up all the time: {event}")
            elif event.error not in DOUBTS and event.outcome[0] != "crashed":
                self._check_answer(event)
            self._follow(event)

    def _check_answer(self, event: Event) -> None:
        if event.op in MUTATING and event.ok:
            self._check_acknowledged(event)
            return
        problem: Violation | None = None
        for view in self._views(event):
            problem = self._problem(event, view)
            if problem is None:
                return
        assert problem is not None
        self.violations.append(problem)

    def _window(self, event: Event) -> tuple[int, int]:
        """Return the first and the last version that the call can have seen."""
        assert event.returned is not None
        return bisect_left(self.latest, event.invoked), bisect_left(self.moments, event.returned)

    def _views(self, event: Event) -> Iterator[View]:
        first, last = self._window(event)
        for version in range(first, last + 1):
            yield View(self.location, version)
        if event.op not in MUTATING:
            return
        for version in range(first, min(last + 1, len(self.commits))):
            if self.commits[version].client == event.client:
                view = View(self.location, version)
                for before in self.included[version]:
                    if before.invoked < event.invoked and before.op != "create_or_load":
                        _apply(before, view)
                        yield view.child()

    def _problem(self, event: Event, view: View) -> Violation | None:
        expected = self._expected(event, view)
        if event.ok:
            if expected.must_fail:
                rule = next(iter(expected.rules.values()))
                return Violation(rule, f"it should have failed with {expected.errors}: {event}")
            wrong = expected.check(event.outcome[1])
            return None if wrong is None else Violation(expected.rule, f"{wrong}: {event}")
        error, attributes = event.outcome[1], event.outcome[2]
        if error not in expected.errors:
            if expected.errors:
                return Violation(next(iter(expected.rules.values())), f"it should be one of {expected.errors}: {event}")
            return Violation("refused", f"it was valid: {event}")
        for name, wanted in expected.errors[error].items():
            found = attributes.get(name)
            if not (found in wanted if isinstance(wanted, tuple) else found == wanted):
                return Violation(expected.rules[error], f"its {name} is {found} and should be {wanted}: {event}")
        return None

    def _check_acknowledged(self, event: Event) -> None:
        """What was acknowledged is there, from a moment during the call; or there was nothing to do."""
        first, last = self._window(event)
        if event.id in self.happened:
            landed = [v for v in range(first, last) if event in self.included[v]]
            if not landed:
                self.blame("order", f"it is not among the records made during the call: {event}")
            return
        if event.id in self.done:
            return
        seen = range(first, last + 1) if event.op in UNPLACED else [event.outcome[1] + 1]
        for version in seen:
            view = View(self.location, min(version, last))
            if version <= last and _is_done(event, view):
                return  # However old the state is in which it was seen.
            is_in_time = first <= version <= last
            if is_in_time and not self._expected(event, view).must_fail and _changes_nothing(event, view):
                return
        expected = self._expected(event, View(self.location, min(seen[-1], last)))
        rule = next(iter(expected.rules.values())) if expected.must_fail else "lost"
        self.blame(rule, f"it was acknowledged and is not there; it may be answered {expected.errors}: {event}")

    def _follow(self, event: Event) -> None:
        """Remember what later calls are judged by, and what was promised."""
        if event.op in ("close", "crash"):
            self._end_claims(event, lambda claim: claim.event.client == event.client)
        elif event.op in ("close_snapshot", "close_feed", "release", "advance"):
            of = int(next(event.args[name] for name in ("snapshot", "feed", "hold") if name in event.args))
            is_kept = event.op == "release" and event.args["how"] == "close" and self.holds[of].name is not None
            if not is_kept and not (event.op == "advance" and event.error is not None):
                self._end_claims(event, lambda claim: claim.event.id == of)
            self._follow_end(event, of)
        elif event.op == "poll":
            self._follow_poll(event)
        elif event.ok and event.op in ("snapshot", "listen", "subscribe", "hold"):
            as_of = event.outcome[1]
            if event.op == "hold":
                self.holds[event.id] = Hold(event.args["c"], event.args["name"], as_of)
            elif event.op != "snapshot":
                self.feeds[event.id] = Feed(event.args["c"], as_of + 1, as_of if event.op == "subscribe" else None)
            self._claim(event, event, as_of)

    def _follow_end(self, event: Event, of: int) -> None:
        if event.op == "close_feed":
            self.feeds[of].is_closed = True
        elif event.op == "close_snapshot":
            self.closed_snapshots.add(of)
        elif event.op == "advance" and event.ok:
            self.holds[of].time = event.args["time"]
            self._claim(self.by_id[of], event, event.args["time"])
        elif event.op == "release" and event.error not in ("ClientClosed", "HoldMoved"):
            self.holds[of].is_released = True

    def _follow_poll(self, event: Event) -> None:
        feed = self.feeds[event.args["feed"]]
        if not event.ok or event.outcome[1] is None:
            return
        if feed.first is None:
            self._end_claims(event, lambda claim: claim.event.id == event.args["feed"])
            if event.outcome[1]["upper"] < EMPTY:
                self._claim(self.by_id[event.args["feed"]], event, event.outcome[1]["upper"] - 1)
        feed.first = None
        feed.lower = event.outcome[1]["upper"]

    def _claim(self, owner: Event, since: Event, time: int) -> None:
        if self.modes.get(owner.client) != "read":
            self.claims.append(Claim(owner, owner.args["c"], time))

    def _end_claims(self, event: Event, of: Callable[[Claim], bool]) -> None:
        for claim in self.claims:
            if claim.ends is None and of(claim):
                # A named hold outlives its handle and its client, until somebody moves it.
                is_named = claim.event.op == "hold" and claim.event.args["name"] is not None
                claim.ends = event.invoked
                if is_named:
                    claim.ends = min([claim.ends, *self._moves(claim)])

    def _moves(self, claim: Claim) -> list[int]:
        """Return when the named hold of a claim was moved or released after it was made, by whomever."""
        made, name = claim.event, claim.event.args["name"]
        assert made.returned is not None
        calls = [e for e in self.events if e.op in ("advance", "release") and e.invoked > made.returned]
        return [e.invoked for e in calls if self._hold_of(e) == (claim.collection, name)]

    def check_claims(self) -> None:
        """Since has not passed what a reader relied on, up to the last moment of that (rules 4, 10 and 11)."""
        for claim in self.claims:
            evicted = [at for at in self.evicted.get(claim.event.client, []) if at > claim.event.invoked]
            if claim.event.op == "hold" and claim.event.args["name"] is not None:
                evicted = self._moves(claim)
            ends = min([claim.ends or EMPTY, *evicted])
            view = View(self.location, bisect_left(self.latest, ends))
            if view.alive(claim.collection) and view.since(claim.collection) > claim.time:
                text = f"since went to {view.since(claim.collection)} in spite of a claim at {claim.time}"
                self.blame("hold", f"{text}: {claim.event}")

    # What each call should be answered

    def _expected(self, event: Event, view: View) -> Expected:
        expected = Expected()
        self._expect_lifecycle(event, expected)
        if event.op in ("crash", "close_feed", "close_snapshot"):
            return expected
        if self._may_have_lost_its_lease(event):
            expected.may_fail("lease", "LeaseExpired")
        if event.op in MUTATING:
            self._expect_mutation(event, view, expected)
        else:
            expect = getattr(self, f"_expect_{event.op}", None)
            if expect is not None:
                expect(event, view, expected)
        return expected

    def _expect_lifecycle(self, event: Event, expected: Expected) -> None:
        close = self.closes.get(event.client)
        if close is not None and close.returned is not None and close.returned < event.invoked:
            if event.op in ("release", "advance"):  # Perhaps there is nothing to do.
                expected.may_fail("closed", "ClientClosed")
            elif event.op not in ("close", "close_feed", "close_snapshot"):
                expected.fail("closed", "ClientClosed")
        elif self.modes.get(event.client) == "read" and event.op in MUTATING:
            expected.fail("read-only", "ReadOnly")

    def _may_have_lost_its_lease(self, event: Event) -> bool:
        """Tell whether a reader may be told that what it relied on is gone (rule 11)."""
        if event.op not in ("read", "poll", "advance", "subscribe", "changes", "maintain") or event.returned is None:
            return False
        if self.modes.get(event.client) != "read":
            return any(at < event.returned for at in self.evicted.get(event.client, []))
        if event.op in ("advance", "maintain"):
            return False
        taken = event
        if event.op in ("read", "poll"):
            taken = self.by_id[event.args["snapshot" if event.op == "read" else "feed"]]
        lost_s = [self.gone_s[taken.args["c"]]] if taken.args["c"] in self.gone_s else []
        if event.op == "read":  # All else is read from the state of its own moment.
            lost_s += [at_s for at_s in self.replaced_s.get(taken.args["c"], []) if at_s >= taken.clock_s]
        return any(event.clock_s - at_s >= self.history.settings["grace_s"] for at_s in lost_s)

    def _expect_mutation(self, event: Event, view: View, expected: Expected) -> None:
        if "bad" in event.args:
            for error in REFUSED_WRITES[event.args["bad"]]:
                expected.fail("bad input", error)
            return
        if event.args.get("raises"):
            expected.fail("atomic", "Boom")
            return
        if not _effects(event):
            return  # Nothing is written, so nobody minds.
        if event.faults and event.op in ("write", "upsert", "multi"):
            expected.may_fail("lost", "UploadExpired")  # Its client was stopped between upload and commit.
        if (refused := view.refuses(event.client)) is not None:
            expected.fail("exclusive", refused.error)
        if any(_seen(event, view)):
            if not _is_done(event, view):
                expected.fail("once", "InvalidUsage")
            if any(self.evolved.get(id_) for _, id_, _ in _effects(event)):
                # With another schema it is not the same that is written, which is said before anything else.
                expected.may_fail("once", "TokenReused")
            return
        draft = view.child()
        for kind, id_, value in _effects(event):
            try:
                draft.step(kind, id_, value)
            except Refused as refused:
                attributes = {name: found for name, found in refused.fields.items() if name != "frontier"}
                expected.fail(REFUSED_BY[refused.error], refused.error, **attributes)
                if event.op != "upsert":  # Of which all is looked at before it is said what is wrong.
                    return

    def _expect_open(self, event: Event, view: View, expected: Expected) -> None:
        if event.args["mode"] != "exclusive":
            return
        writer = view.writer()
        is_held = writer is not None and writer[1] != event.args["reentrance_id"]
        if is_held and not event.args["force"]:
            expected.may_fail("exclusive", "Locked")
        expected.rule = "exclusive"
        is_writer = writer is not None and writer[0] == event.client
        expected.check = lambda _: None if is_writer else f"the writer is {writer}"

    def _expect_close(self, event: Event, view: View, expected: Expected) -> None:
        before = [e for e in self.of_client[event.client] if e.args.get("looked") is False and e.error]
        unseen = sorted({e.error for e in before if e.error is not None})
        if self.closes[event.client] is not event:
            return
        also = DOUBTS if event.faults and self.modes.get(event.client) == "exclusive" else ()  # It gives up its epoch.
        if unseen:
            classes = (unseen, *(sorted({*unseen, each}) for each in also))
            expected.fail("unseen error", "Unseen", classes=classes)
        elif also:
            expected.may_fail("unseen error", "Unseen", classes=tuple([each] for each in also))

    def _expect_create_or_load(self, event: Event, view: View, expected: Expected) -> None:
        id_ = view.names().get(event.args["name"])
        if id_ is None:
            if self.modes.get(event.client) == "read":
                expected.fail("read-only", "ReadOnly")
            elif (refused := view.refuses(event.client)) is not None:
                expected.fail("exclusive", refused.error)
            expected.check = lambda _: "there is no collection of that name"
        elif view.contents(id_).schema != event.args["schema"]:
            expected.fail("bad input", "SchemaMismatch")
        else:
            expected.check = lambda found: None if found == id_ else f"that name stands for {id_}"
        expected.rule = "destroy"

    def _expect_load(self, event: Event, view: View, expected: Expected) -> None:
        id_ = view.names().get(event.args["name"])
        if id_ is None:
            expected.fail("destroy", "CollectionNotFound")
        expected.rule = "destroy"
        expected.check = lambda found: None if found == id_ else f"that name stands for {id_}"

    def _expect_collections(self, event: Event, view: View, expected: Expected) -> None:
        expected.rule = "destroy"
        wanted = sorted(view.names())
        expected.check = lambda found: None if found == wanted else f"the names are {wanted}"

    def _expect_upper(self, event: Event, view: View, expected: Expected) -> None:
        self._expect_frontier(event, view, expected, view.upper)

    def _expect_since(self, event: Event, view: View, expected: Expected) -> None:
        self._expect_frontier(event, view, expected, view.since)

    def _expect_frontier(self, event: Event, view: View, expected: Expected, read: Callable[[str], int]) -> None:
        if self._expect_alive(event.args["c"], view, expected):
            wanted = read(event.args["c"])
            expected.rule = "frontier"
            expected.check = lambda found: None if found == wanted else f"it is {wanted}"

    def _expect_alive(self, id_: str, view: View, expected: Expected) -> bool:
        if not view.alive(id_):
            expected.fail("destroy", "CollectionNotFound")
        return view.alive(id_)

    def _expect_readable(self, id_: str, as_of: int | None, view: View, expected: Expected) -> None:
        """Rule 3."""
        if not self._expect_alive(id_, view, expected):
            return
        upper, since = view.upper(id_), view.since(id_)
        time = min(upper - 1, TIME_MAX) if as_of is None else as_of
        if time >= upper or time < 0:
            expected.fail("sealed", "AsOfNotSealed", as_of=as_of, upper=upper)
        if 0 <= time < since:
            expected.fail("since", "AsOfCompacted", as_of=time, since=since)
        expected.rule = "sealed"
        expected.check = lambda found: None if found == time else f"the time to read is {time}"

    def _expect_snapshot(self, event: Event, view: View, expected: Expected) -> None:
        self._expect_readable(event.args["c"], event.args["as_of"], view, expected)

    def _expect_subscribe(self, event: Event, view: View, expected: Expected) -> None:
        self._expect_readable(event.args["c"], event.args["as_of"], view, expected)

    def _expect_listen(self, event: Event, view: View, expected: Expected) -> None:
        as_of = event.args["as_of"]
        if self._expect_alive(event.args["c"], view, expected) and as_of < view.since(event.args["c"]):
            expected.fail("since", "AsOfCompacted", as_of=as_of, since=view.since(event.args["c"]))
        expected.check = lambda found: None if found == as_of else f"it follows from {as_of}"

    def _expect_changes(self, event: Event, view: View, expected: Expected) -> None:
        id_, lower, upper = event.args["c"], event.args["lower"], event.args["upper"]
        if lower > upper:
            expected.fail("bad input", "InvalidUsage")
            return
        if not self._expect_alive(id_, view, expected):
            return
        since = view.since(id_)
        if lower - 1 < since and (lower, since) != (0, 0):
            expected.fail("since", "AsOfCompacted", as_of=(lower - 1, max(0, lower - 1)), since=since)
        if lower < upper and upper > view.upper(id_):
            expected.fail("sealed", "AsOfNotSealed", upper=view.upper(id_))
        expected.rule = "feed"
        wanted = view.contents(id_).summed(lower, upper)
        _expect_overflow(wanted.values(), expected)
        expected.check = lambda found: _difference(found, wanted)

    def _expect_read(self, event: Event, view: View, expected: Expected) -> None:
        taken = self.by_id[event.args["snapshot"]]
        contents = self.location.collections[taken.args["c"]].as_of(taken.outcome[1])
        expected.rule = "snapshot"
        if taken.id in self.closed_snapshots:
            expected.fail("closed", "InvalidUsage")
        above, columns = event.args["above"], event.args["columns"]
        kept: Counter[tuple[Any, ...]] = Counter()
        for record, n in contents.items():
            if above is None or record[0] > above:
                kept[tuple(value for name, value in zip("kv", record, strict=True) if name in columns)] += n
        wanted = {record: n for record, n in kept.items() if n}
        if event.args["how"] == "count":
            total = sum(wanted.values())
            expected.check = lambda found: None if found == total else f"the count is {total}"
            return
        if event.args["how"] == "rows":
            # Each key must have no negative one, even if what is shown of other keys looks like it.
            wanted_by_key: Counter[tuple[Any, ...]] = Counter()
            for (k, v), n in contents.items():
                if above is None or k > above:
                    wanted_by_key[k, v if "v" in columns else None] += n
            _expect_overflow(wanted_by_key.values(), expected)
            if any(n < 0 for n in wanted_by_key.values()):
                expected.fail("negative", "NegativeMultiplicity")
        else:
            _expect_overflow(wanted.values(), expected)
        if event.args["how"] == "rows" and sum(wanted.values()) > ROWS_MAX:
            expected.fail("overflow", "InvalidUsage")
        expected.check = lambda found: _contents_difference(found, wanted)
        if event.args["how"] == "diff":
            expected.check = lambda found: _repeated(found) or _contents_difference(found, wanted)

    def _expect_poll(self, event: Event, view: View, expected: Expected) -> None:
        feed = self.feeds[event.args["feed"]]
        expected.rule = "feed"
        expected.check = lambda found: None if found is None else "there is nothing to tell"
        if feed.is_closed:
            expected.fail("feed", "InvalidUsage")
            return
        contents = self.location.collections[feed.collection]
        if feed.first is not None:
            time = feed.first
            snapshot = {(k, v, time): n for (k, v), n in contents.as_of(time).items()}
            expected.check = lambda found: _progress_difference(found, snapshot, time + 1)
            return
        if feed.lower >= EMPTY or not self._expect_alive(feed.collection, view, expected):
            return
        if any(commit.at < (event.returned or commit.at) for commit in self.evolved.get(feed.collection, [])):
            expected.may_fail("schema", "SchemaMismatch")  # A column of the schema that it began with may be gone.
        upper, since = view.upper(feed.collection), view.since(feed.collection)
        if upper <= feed.lower:
            return
        if feed.lower > 0 and since > feed.lower - 1:
            expected.fail("since", "AsOfCompacted", as_of=feed.lower - 1, since=since)
            return
        changes = contents.summed(feed.lower, upper)
        _expect_overflow(changes.values(), expected)
        expected.check = lambda found: _progress_difference(found, changes, upper)

    def _expect_hold(self, event: Event, view: View, expected: Expected) -> None:
        id_, time, name = event.args["c"], event.args["time"], event.args["name"]
        if self.modes.get(event.client) == "read":
            expected.fail("read-only", "ReadOnly")
        if not self._expect_alive(id_, view, expected):
            return
        expected.rule = "hold"
        held = view.holds(id_).get(name) if name is not None else None
        if name is not None:
            wanted = None if held is None else held[0]
            expected.check = lambda found: None if found == wanted else f"the hold is at {wanted}"
        if held is None and time < view.since(id_):
            expected.fail("since", "AsOfCompacted", as_of=time, since=view.since(id_))

    def _expect_advance(self, event: Event, view: View, expected: Expected) -> None:
        hold, time = self.holds[event.args["hold"]], event.args["time"]
        expected.rule = "hold"
        if time < hold.time:
            expected.fail("frontier", "FrontierRegression", asked=time, current=hold.time)
        if hold.name is None:
            if hold.is_released:
                expected.fail("hold", "InvalidUsage")
            if not view.alive(hold.collection):  # It has nothing to hold any more, and may notice or not.
                expected.may_fail("destroy", "CollectionNotFound")
        elif time > hold.time and self._expect_alive(hold.collection, view, expected):
            held = view.holds(hold.collection).get(hold.name)
            actual = None if held is None else held[0]
            if event.ok:
                expected.check = lambda _: None if actual == time else f"the hold is at {actual}"
            elif actual != hold.time:
                expected.fail("hold", "HoldMoved", expected=hold.time, actual=actual)
                if time < view.since(hold.collection):
                    expected.fail("since", "AsOfCompacted", as_of=time, since=view.since(hold.collection))

    def _expect_release(self, event: Event, view: View, expected: Expected) -> None:
        hold = self.holds[event.args["hold"]]
        if hold.name is not None and event.args["how"] == "release":
            expected.rule = "hold"
            if self._expect_alive(hold.collection, view, expected):
                held = view.holds(hold.collection).get(hold.name)
                if event.ok:
                    expected.check = lambda _: None if held is None else f"it is still at {held[0]}"
                elif held is not None and held[0] != hold.time:
                    expected.fail("hold", "HoldMoved", expected=hold.time, actual=held[0])

    def _expect_holds(self, event: Event, view: View, expected: Expected) -> None:
        if self._expect_alive(event.args["c"], view, expected):
            held = view.holds(event.args["c"])
            wanted = sorted([name, time] for name, (time, lease) in held.items() if lease is None)
            expected.rule = "hold"
            expected.check = lambda found: None if found == wanted else f"the named holds are {wanted}"

    def _expect_compact(self, event: Event, view: View, expected: Expected) -> None:
        self._expect_gc(event, view, expected)
        if self._expect_alive(event.args["c"], view, expected) and _may_overflow(
            view.contents(event.args["c"]).updates
        ):
            expected.may_fail("overflow", "DiffOverflow")

    def _expect_resolve(self, event: Event, view: View, expected: Expected) -> None:
        self._expect_gc(event, view, expected)
        if self._expect_alive(event.args["c"], view, expected) and (refused := view.refuses(event.client)) is not None:
            expected.may_fail("exclusive", refused.error)  # If there is anything to resolve.

    def _expect_gc(self, event: Event, view: View, expected: Expected) -> None:
        if self.modes.get(event.client) == "read":
            expected.fail("read-only", "ReadOnly")

    def _expect_maintain(self, event: Event, view: View, expected: Expected) -> None:
        self._expect_gc(event, view, expected)
        if (refused := view.refuses(event.client)) is not None:
            expected.may_fail("exclusive", refused.error)  # If there is anything to resolve.
        if any(_may_overflow(contents.updates) for contents in self.location.collections.values()):
            expected.may_fail("overflow", "DiffOverflow")

    def _expect_fsck(self, event: Event, view: View, expected: Expected) -> None:
        expected.rule = "fsck"
        expected.check = lambda found: None if not found else f"it found {found}"


def _latest(commit: Commit) -> int:
    return commit.at if commit.by is None else commit.by


def _is_asked_for(mutation: dict[str, Any], before: View) -> bool:
    """Tell whether somebody must have asked for a mutation: for a resolution, if it also seals."""
    if mutation["kind"] == "resolve":
        return bool(mutation["end"] > before.upper(mutation["collection"]))
    return mutation["kind"] in _EXPLAINED


_EXPLAINED = ("create", "seal", "allow_compaction", "destroy", "evolve")
HOLD_ID_CHARS = 32  # Names of leased holds have so many; the named ones of a run are shorter.


def _said_effect(mutation: dict[str, Any], before: View) -> Effect:
    kind = mutation["kind"]
    if kind == "evolve":
        known, columns = before.columns(mutation["collection"]), frozenset(mutation["columns"])
        how = "add" if columns > known else "drop" if columns < known else "neither"
        return kind, mutation["collection"], (how, *sorted(known ^ columns), mutation["version"] - 1)
    if kind == "resolve":
        return "seal", mutation["collection"], mutation["end"]
    value = {"create": "name", "seal": "upper", "allow_compaction": "since"}.get(kind)
    return kind, mutation["collection"], mutation[value] if value else None


def _effects(event: Event) -> list[Effect]:
    """Return what a call wants to have done, in order, with the conditions it makes."""
    args = event.args
    if event.op == "multi":
        found: list[Effect] = []
        for kind, id_, value in args["steps"]:
            if kind != "write" or _is_something(value):
                found.append((kind, id_, value))
                found += [("columns", id_, args["columns"][id_])] if kind == "write" and "columns" in args else []
        return found
    if event.op == "create_or_load":
        return [("create", event.outcome[1], args["name"])] if event.ok else []
    if event.op not in MUTATING:
        return []
    effects: list[Effect] = []
    if args.get("expected_upper") is not None:
        effects.append(("expect", args["c"], args["expected_upper"]))
    if event.op == "write":
        if _is_something(args["updates"]):
            effects.append(("write", args["c"], args["updates"]))
            effects.append(("columns", args["c"], args.get("columns", ())))
        if args.get("seal") is not None:
            effects.append(("seal", args["c"], args["seal"]))
    elif event.op == "upsert":
        effects += [("upsert", args["c"], args["events"]), ("columns", args["c"], args["columns"])]
        effects += [("seal", args["c"], args["seal"])] if args.get("seal") is not None else []
    elif event.op == "destroy":
        effects.append(("destroy", args["c"], None))
    elif event.op == "evolve":
        effects.append(("evolve", args["c"], (args["how"], args["column"], args["version"])))
    else:
        effects.append((event.op, args["c"], args["upper" if event.op == "seal" else "since"]))
    return effects


def _is_something(updates: list[Any]) -> bool:
    return any(diff for *_, diff in updates)


def _effect_markers(event: Event) -> list[tuple[str, int]]:
    """Return (collection, marker) of each write of a call."""
    effects = _effects(event) if event.op in ("write", "multi", "upsert") and "bad" not in event.args else []
    found = [(id_, value[0]) for kind, id_, value in effects if kind in ("write", "upsert")]
    return [(id_, first[0]) for id_, first in found if first[0] >= FIRST_MARKER]


def _apply(event: Event, view: View) -> None:
    """Do what a call wants to have done, apart from what is refused."""
    for kind, id_, value in _effects(event):
        with suppress(Refused):
            view.step(kind, id_, value)
    if event.args.get("token") is not None:
        for id_ in {id_ for _, id_, _ in _effects(event)}:
            with suppress(Refused):
                view.step("token", id_, event.args["token"])


def _seen(event: Event, view: View) -> list[bool]:
    """Tell for each collection of a call whether it has seen its token."""
    token = event.args.get("token")
    ids = {effect[1] for effect in _effects(event)} if token is not None else set()
    return [view.alive(id_) and token in view.tokens(id_) for id_ in ids]


def _is_done(event: Event, view: View) -> bool:
    """Tell whether a call was done before, under its token."""
    seen = _seen(event, view)
    return bool(seen) and all(seen)


def _changes_nothing(event: Event, view: View) -> bool:
    """Tell whether a valid call has nothing to do in this state."""
    if _is_done(event, view):
        return True
    for kind, id_, value in _effects(event):
        if kind in ("write", "upsert"):
            return False
        if kind == "seal" and view.upper(id_) != value:
            return False
        if kind == "allow_compaction" and view.allowed(id_) < value:
            return False
        if kind in ("destroy", "evolve"):
            return False
    return True


def _may_have_happened(event: Event) -> bool:
    if event.op == "create_or_load":  # It may fail after it created, and nothing is lost: it can be repeated.
        return event.ok or event.outcome[0] == "crashed" or event.error in DOUBTS
    return event.op in MUTATING and (event.outcome[0] == "crashed" or event.error == "Indeterminate")


def _could_be(event: Event, effect: Effect) -> bool:
    if event.op == "create_or_load":
        named = effect[0] == "create" and event.args["name"] == effect[2]
        return named and (not event.ok or event.outcome[1] == effect[1])
    return effect in _effects(event) and not _effect_markers(event)


def _markers(commit: Commit) -> Counter[tuple[str, int]]:
    """Return the markers that a record holds, and how often."""
    found: Counter[tuple[str, int]] = Counter()
    for mutation in commit.mutations:
        for k, v, _, diff in mutation["updates"] if mutation["kind"] == "append" else []:
            if v == "m":
                found[mutation["collection"], k] += diff
    return found


def _content(view: View) -> dict[str, Counter[Any]]:
    """Return what was appended, consolidated, by collection."""
    found: dict[str, Counter[Any]] = {}
    for id_, updates in view.appended:
        for k, v, time, diff in updates:
            found.setdefault(id_, Counter())[k, v, time] += diff
    return {id_: Counter({u: n for u, n in sums.items() if n}) for id_, sums in found.items()}


def _expect_overflow(sums: Iterable[int], expected: Expected) -> None:
    if any(not -(2**63) <= n < 2**63 for n in sums):
        expected.fail("overflow", "DiffOverflow")


def _may_overflow(updates: list[list[Any]]) -> bool:
    """Tell whether there are updates of one record whose sum is no int64."""
    sums: Counter[tuple[Any, Any, bool]] = Counter()
    for k, v, _, diff in updates:
        sums[k, v, diff > 0] += diff
    return any(not -(2**63) <= n < 2**63 for n in sums.values())


def _difference(found: list[Any], wanted: dict[tuple[Any, Any, int], int]) -> str | None:
    times = [time for _, _, time, _ in found]
    if times != sorted(times):
        return "its updates are not in time order"
    return _repeated(found) or _contents_difference(found, wanted)


def _repeated(found: list[Any]) -> str | None:
    records = Counter(tuple(record) for *record, _ in found)
    return next((f"{record} is there {n} times" for record, n in records.items() if n > 1), None)


def _contents_difference(found: list[Any], wanted: dict[Any, int]) -> str | None:
    sums: Counter[tuple[Any, ...]] = Counter()
    for *record, n in found:
        sums[tuple(record)] += n
    if dict(sums) == wanted:
        return None
    missing = {record: n for record, n in wanted.items() if sums[record] != n}
    extra = {record: n for record, n in sums.items() if wanted.get(record) != n}
    return f"it should hold {missing} and instead holds {extra}"


def _progress_difference(found: Any, wanted: dict[Any, int], upper: int) -> str | None:
    if found is None:
        return f"there are changes up to {upper}"
    if found["upper"] != upper:
        return f"its upper is {found['upper']}, and should be {upper}"
    return _difference(found["updates"], wanted)
