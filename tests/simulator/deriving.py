"""The part of a replay that is about what clients did not write: erasures, and what the library derives for itself.

An erasure is the one record that changes what sealed times hold (rule 23). The record does not say what it erased; the
call does, and all that it was to erase must be gone from each part of each related collection, and nothing else.
"""

from collections import Counter
from typing import Any

from tests.simulator.effects import latest_moment
from tests.simulator.history import Commit, Event
from tests.simulator.judgement import Judgement
from tests.simulator.versions import View


class Deriving(Judgement):
    """Follows erasures, and collections that nobody writes."""

    def _under_way(self, commit: Commit, *ops: str) -> list[Event]:
        """Return the calls of some kinds that a client had made, and had no clear answer to, when its record came."""
        events = [e for e in self.of_client.get(commit.client, []) if e.op in ops and e.invoked < latest_moment(commit)]
        return [e for e in events if e.returned is None or e.returned > commit.at or e.error == "Indeterminate"]

    def _check_erase(self, commit: Commit, mutation: dict[str, Any], view: View) -> set[str]:
        """Rule 23: take an erasure in; return the blobs that fall out of use."""
        id_ = mutation["collection"]
        asked = [e for e in self._under_way(commit, "erase") if id_ in self.related(e.args["c"])]
        if not asked:
            self.blame("erase", f"nobody asked to erase from {id_}: {commit}")
            return set()
        keys = {*asked[-1].args["keys"]}
        left = [update for update in view.contents(id_).updates if update[0] not in keys]
        if view.keyed(id_) is not None:
            left = [update for update in left if update[2] < view.resolved(id_)]
        for wrong in self.physical[id_].erase(mutation, keys, left):
            self.blame("erase", f"{wrong}: {commit}")
        view.erase(id_, keys)
        self.erasures.setdefault(commit.seqno, set()).update(keys)
        if self.tables.get(id_):
            self.tables[id_].append((commit.at, latest_moment(commit), None))
        return {*mutation["unused"]}

    def _check_erased(self, commit: Commit, view: View) -> None:
        """What an erasure was to erase is nowhere among what is related."""
        keys = self.erasures.get(commit.seqno, set())
        ids = {m["collection"] for m in commit.mutations if m["kind"] == "erase"}
        for other in set[str]().union(*map(self.related, ids)):
            if view.alive(other) and (rest := view.of_keys(other, keys)):
                self.blame("erase", f"{other} still has {rest}: {commit}")

    def related(self, id_: str) -> set[str]:
        """Return a collection, what it was cloned from, what was cloned from these, and so on."""
        ids, pairs = {id_}, [(made, mutation["source"]) for made, (_, mutation) in self.cloned.items()]
        while new := {end for pair in pairs if ids.intersection(pair) for end in pair} - ids:
            ids |= new
        return ids


def may_overflow(updates: list[list[Any]]) -> bool:
    """Tell whether there are updates of one record whose sum is no int64."""
    sums: Counter[tuple[Any, Any, bool]] = Counter()
    for k, v, _, diff in updates:
        sums[k, v, diff > 0] += diff
    return any(not -(2**63) <= n < 2**63 for n in sums.values())
