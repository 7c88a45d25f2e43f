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
from collections.abc import Callable, Iterator

from tests.proofs.simulator.effects import DOUBTS, MUTATING, apply_call, changes_nothing, is_done
from tests.proofs.simulator.history import Event, History
from tests.proofs.simulator.judgement import Claim, Feed, Hold, Violation
from tests.proofs.simulator.replay import UNPLACED, Replay
from tests.proofs.simulator.versions import View
from tests.support.model import EMPTY


def judge(history: History) -> list[Violation]:
    """Return every violation that is seen; an empty list is a verdict of innocence."""
    judgement = Answers(history)
    judgement.check_log()
    judgement.replay()
    judgement.check_answers()
    judgement.check_claims()
    judgement.check_deletions()
    return judgement.violations


class Answers(Replay):
    """The second pass: whether each call got an answer that it may get, and each promise was kept."""

    def check_answers(self) -> None:
        for event in self.events:
            if event.error in DOUBTS and not event.faults and not self._may_doubt_its_server(event):
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

    def _taken(self, event: Event) -> Event:
        """Return the call that chose the state which a call reads, if that is not itself."""
        if event.op == "read":
            return self.by_id[event.args["snapshot"]]
        if event.op == "poll" and self.feeds[event.args["feed"]].first is not None:
            return self.by_id[event.args["feed"]]
        return event

    def _may_doubt_its_server(self, event: Event) -> bool:
        """Whether the records are truncated in which a client would look for what its server gave no answer about."""
        opened = (e for e in self.of_client[event.client] if e.op == "open" and e.args.get("through"))
        return event.error == "Indeterminate" and any(
            mutation["kind"] == "truncate" and commit.at < event.returned
            for since in opened
            for commit in self.commits
            if commit.at > since.invoked and event.returned is not None
            for mutation in commit.mutations
        )

    def _views(self, event: Event) -> Iterator[View]:
        first, last = self._window(self._taken(event))
        for version in range(first, last + 1):
            yield View(self.location, version)
        if event.op not in MUTATING:
            return
        for version in range(first, min(last + 1, len(self.commits))):
            if self.commits[version].client == event.client:
                view = View(self.location, version)
                for before in self.included[version]:
                    if before.invoked < event.invoked and before.op not in ("create_or_load", "clone"):
                        apply_call(before, view)
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
        seen = range(last + 1) if event.op in UNPLACED else [event.outcome[1] + 1]
        for version in seen:
            view = View(self.location, min(version, last))
            if version <= last and is_done(event, view):
                return  # However old the state is in which it was seen.
            is_in_time = first <= version <= last
            if is_in_time and not self._expected(event, view).must_fail and changes_nothing(event, view):
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
            if not is_kept and not (event.op == "advance" and event.error not in (None, "Indeterminate")):
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
        elif event.op == "advance" and event.error in (None, "Indeterminate"):
            # It may have moved, or move by a later record of its client; either way it does not pass that time.
            if event.ok:
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
        """Note what compaction must keep; who reads without a lease, for lack of room, relies on the grace period."""
        if self.modes.get(owner.client) != "read" and "no_room" not in owner.args:
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
