"""The part of a replay that is about what clients did not write: erasures, and what the library derives for itself.

What an index or a view holds follows from what its inputs hold. It is compared at each of the times that a record seals
in it (rule 19), an index at the last one, and somebody must have asked for the record.

An erasure is the one record that changes what sealed times hold (rule 23). The record does not say what it erased; the
call does, and all that it was to erase must be gone from each part of each related collection, and nothing else. Only
what came after the version in which it was worked out stays; that was no earlier than the call.
"""

from bisect import bisect_left
from collections import Counter
from typing import Any

from tests.proofs.simulator.effects import latest_moment
from tests.proofs.simulator.history import Commit, Event
from tests.proofs.simulator.judgement import Judgement
from tests.proofs.simulator.physical import in_any_order, summed
from tests.proofs.simulator.versions import Contents, View
from tests.support.model import EMPTY

# Calls in which the library writes to collections that nobody writes.
DERIVING = ("create_view", "refresh", "drop_view", "index", "drop_index", "erase", "maintain", "gc")
MARK = "m"  # The value that views leave out.


class Deriving(Judgement):
    """Follows erasures, and collections that nobody writes."""

    def _under_way(self, commit: Commit, *ops: str) -> list[Event]:
        """Return the calls of some kinds that a client had made, and had no clear answer to, when its record came."""
        events = [e for e in self.of_client.get(commit.client, []) if e.op in ops and e.invoked < latest_moment(commit)]
        return [e for e in events if e.returned is None or e.returned > commit.at or e.error == "Indeterminate"]

    def _check_derived(self, commit: Commit, before: View, view: View) -> None:
        """Rule 19: what is derived holds what its inputs do, at each time that it has sealed."""
        kinds = ("create", "append", "seal", "destroy")
        touched = {m["collection"] for m in commit.mutations if m["kind"] in kinds and m["collection"] in self.derived}
        if touched and not self._under_way(commit, *DERIVING, "destroy"):
            self.blame("derived", f"nobody asked for anything to be derived: {commit}")
        erased = {m["collection"] for m in commit.mutations if m["kind"] == "erase"}
        stale = {id_ for id_, made in self.derived.items() if erased.intersection(made.get("inputs", ()))}
        for id_ in sorted(touched | stale):
            made, upper = self.derived[id_], view.upper(id_) if view.alive(id_) else 0
            if not made.get("inputs") or not upper:
                continue
            own, inputs = view.contents(id_), [view.contents(each) for each in made["inputs"]]
            first = upper - 1
            if not made["is_index"]:
                first = max(made["start"], before.upper(id_) if before.alive(id_) and id_ not in stale else 0)
            times = {t for each in (own, *inputs) for _, _, t, _ in each.updates if first <= t < upper}
            for time in sorted(times | {upper - 1}):
                wanted, found = self._derived(made, inputs, time), own.as_of(time)
                if wanted != found:
                    self.blame("derived", f"as of {time}, {id_} holds {found} instead of {wanted}: {commit}")
                    break

    def _derived(self, made: dict[str, Any], inputs: list[Contents], time: int) -> dict[Any, int]:
        """Return what a collection that is derived from others holds as of a time."""
        if made["is_index"]:
            return {(v, k): n for (k, v), n in inputs[0].as_of(time).items()}
        rows: Counter[Any] = Counter()
        for each in inputs:
            for (k, v), n in each.as_of(time).items():
                rows[k, v] += n * (v != MARK)
        return {row: n for row, n in rows.items() if n}

    def _check_erase(self, commit: Commit, mutation: dict[str, Any], view: View) -> set[str]:
        """Rule 23: take an erasure in; return the blobs that fall out of use."""
        id_ = mutation["collection"]
        asked = [e for e in self._under_way(commit, "erase") if id_ in self.related(e.args["c"])]
        if not asked:
            self.blame("erase", f"nobody asked to erase from {id_}: {commit}")
            return set()
        keys, physical, contents = {*asked[-1].args["keys"]}, self.physical[id_], view.contents(id_)
        resolved = EMPTY if view.keyed(id_) is None else view.resolved(id_)
        left = physical.left_of(mutation, keys)
        waits = [] if view.keyed(id_) is None else physical.events_left_of(mutation, keys, resolved)
        first = bisect_left(self.latest, asked[-1].invoked)
        for until in range(view.version, first - 1, -1):  # It was worked out in one of these versions.
            kept = [update for update in contents.without(keys, until) if update[2] < resolved]
            late = [row for row in contents.after(until) if row[0] in keys and row[2] >= resolved]
            kept_of_keys = summed(u for u in kept if u[0] in keys and u[2] >= physical.history_from)
            if kept_of_keys == left and in_any_order(late) == waits:
                break
        else:
            self.blame("erase", f"it leaves {left} and {waits}, and not all of that came meanwhile: {commit}")
        for wrong in physical.erase(mutation, keys, kept, 0 if view.keyed(id_) is None else resolved):
            self.blame("erase", f"{wrong}: {commit}")
        view.erase(id_, keys, until)
        known, before = self.erasures.get(commit.seqno, (set(), until))
        self.erasures[commit.seqno] = known | keys, min(until, before)
        if self.tables.get(id_):
            self.tables[id_].append((commit.at, latest_moment(commit), None))
        return {*mutation["unused"]}

    def _check_erased(self, commit: Commit, view: View) -> None:
        """What an erasure was to erase is nowhere among what is related."""
        keys, until = self.erasures.get(commit.seqno, (set(), 0))
        ids = {m["collection"] for m in commit.mutations if m["kind"] == "erase"}
        for other in set[str]().union(*map(self.related, ids)):
            if view.alive(other) and (rest := view.of_keys(other, keys, until)):
                self.blame("erase", f"{other} still has {rest}: {commit}")

    def related(self, id_: str) -> set[str]:
        """Return a collection, what it was cloned from, what was cloned from these, and so on."""
        ids, pairs = {id_}, [(made, mutation["source"]) for made, (_, mutation) in self.cloned.items()]
        while new := {end for pair in pairs if ids.intersection(pair) for end in pair} - ids:
            ids |= new
        return ids


def may_overflow(updates: list[list[Any]]) -> bool:
    """Tell whether there are updates of one record whose sum is not of type int64."""
    sums: Counter[tuple[Any, Any, bool]] = Counter()
    for k, v, _, diff in updates:
        sums[k, v, diff > 0] += diff
    return any(not -(2**63) <= n < 2**63 for n in sums.values())
