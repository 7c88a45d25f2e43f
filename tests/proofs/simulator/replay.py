"""The first pass of a judgement: which calls are in which record, and whether they explain it."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from tests.proofs.simulator.effects import (
    FIRST_MARKER,
    MUTATING,
    Effect,
    apply_call,
    content_of,
    could_be,
    effect_markers,
    effects_of,
    is_asked_for,
    is_done,
    latest_moment,
    markers_of,
    may_have_happened,
    said_effect,
)
from tests.proofs.simulator.expectations import Expectations
from tests.proofs.simulator.history import Commit, Deletion, Event
from tests.proofs.simulator.judgement import Dropped
from tests.proofs.simulator.physical import Physical
from tests.proofs.simulator.versions import OWN, TAG, View
from tests.support.model import EMPTY, Refused

UNPLACED = ("multi", "evolve")  # Their answers do not say in which record they are.
OWN_HOLDS = ("published ", "view ", "index ")  # Keep what tables, views and indexes go on from.
HOLD_ID_CHARS = 32  # Names of leased holds have so many; the named ones of a run are shorter.


class Replay(Expectations):
    """Replays the log in the model, commit by commit."""

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
            if commit.format < (before := self.commits[-1].format if self.commits else 0) or (
                0 < before < commit.format and not any(m["kind"] == "upgrade" for m in commit.mutations)
            ):
                self.blame("upgrade", f"the format was {before}, and is {commit.format}: {commit}")
            self.commits.append(commit)
            self.moments.append(commit.at)
            self.latest.append(latest_moment(commit))
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
            self._check_erased(commit, View(self.location, version + 1))
            self._check_derived(commit, View(self.location, version), View(self.location, version + 1))
        self._check_happened()

    def _apply_said(self, commit: Commit, mutation: dict[str, Any], view: View) -> None:
        kind, id_ = mutation["kind"], mutation.get("collection", "")
        if kind == "create":
            view.create(id_, mutation["name"], mutation["schema"], mutation.get("keyed"))
            is_view = not mutation.get("is_index", True)  # Whose rows are its keys.
            self.physical[id_] = Physical(2 if is_view else 1)
            if "inputs" in mutation or mutation["name"].startswith(OWN):
                self.derived[id_] = mutation
        elif kind == "clone":
            self._check_clone(commit, mutation, view)
        elif id_ and not view.alive(id_):
            self.blame("log", f"a {kind} of collection {id_}, which does not exist: {commit}")
        elif kind == "append":
            view.append(id_, mutation["updates"])
            self.physical[id_].append(mutation)
            self._name(commit, id_, mutation.get("blobs", []))
        elif kind == "pend":
            self.physical[id_].pend(mutation)
            self._name(commit, id_, mutation["blobs"])
        elif kind == "resolve":
            self._check_resolve(commit, mutation, view)
        elif kind == "replace":
            self._check_replace(commit, mutation, view)
        elif kind in ("publish", "unpublish"):
            self._check_published(commit, mutation, view)
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
            view.step(*said_effect(mutation, view))
        elif kind == "destroy":
            self._drop(commit, id_, self.physical[id_].blobs, view)
            view.step("destroy", id_, None)
            self.gone_s[id_] = commit.clock_s
            self.tables.setdefault(id_, []).append((commit.at, latest_moment(commit), None))
        elif kind == "tokens":
            for token in mutation["tokens"]:
                view.step("token", id_, token)
        elif kind == "hold":
            self._check_hold(commit, mutation, view)
            view.hold(id_, mutation["hold"], mutation["time"], mutation.get("lease"))
        elif kind == "release":
            view.release(id_, mutation["hold"])
        elif kind == "erase":
            unused = self._check_erase(commit, mutation, view)
            self._name(commit, id_, mutation["blobs"])
            self._drop(commit, id_, unused, view)
            self.replaced_s.setdefault(id_, []).append(commit.clock_s)
        elif kind in ("tag", "drop_tag"):
            self._check_tag(commit, mutation, view)
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
        self._name(commit, id_, mutation["blobs"])
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
        found = markers_of(commit)
        if self._under_way(commit, "restore"):  # It takes markers back, and brings them again.
            found = Counter({marker: n for marker, n in found.items() if marker not in self.brought})
        self.brought.update(found)
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
        self._name(commit, id_, brought)
        written = [u for name, updates in view.appended if name == id_ for u in updates]
        updates = [*view.contents(id_).updates, *written]
        if view.keyed(id_) is not None:
            updates = [update for update in updates if update[2] < view.resolved(id_)]
        for wrong in self.physical[id_].replace(mutation, updates, view.since(id_), view.upper(id_)):
            self.blame("compaction", f"{wrong}: {commit}")
        self._drop(commit, id_, set(mutation["unused"]), view)
        if mutation["unused"]:
            self.replaced_s.setdefault(id_, []).append(commit.clock_s)

    def _check_published(self, commit: Commit, mutation: dict[str, Any], view: View) -> None:
        """Rule 22: a table holds what the collection does, and what it names is not called unused."""
        id_, physical = mutation["collection"], self.physical[mutation["collection"]]
        if mutation["kind"] == "publish":
            self._name(commit, id_, [*mutation["blobs"], *mutation["also"]])
            contents = view.contents(id_).as_of(mutation["as_of"])
            wrongs = [*physical.publish(mutation, contents)]
            if mutation["as_of"] >= view.upper(id_):
                wrongs.append(f"upper is {view.upper(id_)}")
        else:
            wrongs = [*physical.unpublish(mutation)]
        for wrong in wrongs:
            self.blame("published", f"{wrong}: {commit}")
        table = physical.tables.get(mutation["table"])
        known = self.tables if mutation["table"] == "delta" else self.iceberg_tables
        known.setdefault(id_, []).append((commit.at, latest_moment(commit), table))
        self._drop(commit, id_, {*mutation.get("unused", ())}, view)

    def _check_clone(self, commit: Commit, mutation: dict[str, Any], view: View) -> None:
        """A clone names what its source names, and holds what that held."""
        id_, source, as_of = mutation["collection"], mutation["source"], mutation["as_of"]
        if not view.alive(source):
            self.blame("clone", f"its source is not there: {commit}")
            return
        try:
            view.clone(id_, mutation["name"], source, as_of)
        except Refused as refused:
            self.blame("clone", f"it should have been refused with {refused}: {commit}")
            return
        physical = self.physical[source]
        self.physical[id_] = clone = replace(physical, keyframes={**physical.keyframes})
        for wrong in clone.cloned(mutation, view.contents(id_).updates, f"part/{id_}/"):
            self.blame("clone", f"{wrong}: {commit}")
        self._name(commit, id_, mutation["blobs"])
        self.cloned[id_] = commit, mutation

    def _name(self, commit: Commit, id_: str, blobs: Iterable[str]) -> None:
        """Note that a collection names blobs from a record on."""
        for blob in filter(None, blobs):
            self.named.setdefault(blob, commit)
            self.namers.setdefault(blob, set()).add(id_)

    def _drop(self, commit: Commit, id_: str, blobs: set[str], view: View) -> None:
        leases = frozenset(lease for _, lease in view.holds(id_).values() if lease is not None)
        for blob in blobs:
            self.namers.get(blob, set()).discard(id_)
            is_last = not self.namers.get(blob)
            self.dropped.setdefault(blob, []).append(Dropped(commit, leases, is_last))

    def check_deletions(self) -> None:
        """Rule 10: a blob is deleted when nothing has referred to it for the grace period, and nobody may read it."""
        grace_s = self.history.settings["grace_s"]
        for deletion in self.history.deletions:
            named = self.named.get(deletion.key)
            if named is None:
                continue  # It never became part of anything.
            drops = [each for each in self.dropped.get(deletion.key, []) if each.commit.at <= deletion.at]
            if not any(each.is_last for each in drops):
                self.blame("deletion", f"it was deleted while it was in use: {deletion}; it came with {named}")
                continue
            for dropped in drops:
                self._check_deletion(deletion, dropped, grace_s)

    def _check_deletion(self, deletion: Deletion, dropped: Dropped, grace_s: float) -> None:
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

    def _check_tag(self, commit: Commit, mutation: dict[str, Any], view: View) -> None:
        """A tag is of a time that can be read, and moves by compare-and-set, when somebody asks for that."""
        id_, tag, op = mutation["collection"], mutation["tag"], {"tag": "tag", "drop_tag": "untag"}[mutation["kind"]]
        if mutation.get("expected") != view.tags(id_).get(tag):
            self.blame("tag", f"the tag is at {view.tags(id_).get(tag)}: {commit}")
        if op == "tag" and not view.since(id_) <= mutation["time"] < view.upper(id_):
            self.blame("tag", f"since is {view.since(id_)}, and upper {view.upper(id_)}: {commit}")
        asked = [e for e in self._under_way(commit, op) if (e.args["c"], e.args["tag"]) == (id_, tag)]
        if not any(op == "untag" or e.args["time"] in (None, mutation["time"]) for e in asked):
            self.blame("tag", f"nobody asked for {mutation}: {commit}")
        if op == "tag":
            view.hold(id_, TAG + tag, mutation["time"], None)
        else:
            view.release(id_, TAG + tag)

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
        wanted = [said_effect(mutation, view) for mutation in commit.mutations if is_asked_for(mutation, view)]
        wanted = [effect for effect in wanted if not self._is_derived(effect)]
        events = [e for e in self.of_client.get(commit.client, []) if e.invoked < latest_moment(commit)]
        sure = [e for e in events if e.op in MUTATING and self._is_acknowledged_in(e, commit, markers, wanted)]
        doubtful = [e for e in events if may_have_happened(e) and e.id not in self.happened]
        doubtful = [e for e in doubtful if e.returned is None or e.returned > commit.at or e.error == "Indeterminate"]
        chosen = sure + [e for e in doubtful if any(marker in markers for marker in effect_markers(e))]
        for effect in wanted:
            if not any(effect in effects_of(e) for e in chosen):
                possible = [e for e in doubtful if e not in chosen and could_be(e, effect)]
                possible.sort(key=lambda e: e.op == "restore")  # Which may have sealed to anything.
                if not possible:
                    self.blame("phantom", f"nobody asked for {effect}: {commit}")
                chosen += possible[:1]
        applied = []
        for event in sorted(chosen, key=lambda event: event.invoked):
            if event.op == "create_or_load":
                created = next(m for m in commit.mutations if m["kind"] == "create" and m["name"] == event.args["name"])
                view.create(created["collection"], created["name"], created["schema"], created.get("keyed"))
            elif event.op == "clone":
                made = next(m for m in commit.mutations if m["kind"] == "clone" and m["name"] == event.args["target"])
                if view.alive(made["source"]):
                    view.clone(made["collection"], made["name"], made["source"], made["as_of"])
            elif is_done(event, view):
                self.done.add(event.id)
            else:
                if event.op == "restore" and event.args["assigned"] is None:
                    sealed = [
                        m["upper"]
                        for m in commit.mutations
                        if (m["kind"], event.args["c"]) == ("seal", m.get("collection"))
                    ]
                    event.args["assigned"] = max(sealed) - 1
                found = self._expected(event, view)
                if found.must_fail:
                    self.blame(
                        next(iter(found.rules.values())), f"accepted, though {found.errors}: {event} in {commit}"
                    )
                apply_call(event, view)
                self.happened.add(event.id)
            applied.append(event)
        self._explain_holds(commit, events)
        return applied

    def _is_derived(self, effect: Effect) -> bool:
        """Tell whether an effect is on a collection that nobody writes."""
        return effect[1] in self.derived

    def _explain_holds(self, commit: Commit, events: list[Event]) -> None:
        """Named holds are made, moved and released by those who ask for it."""
        for mutation in commit.mutations:
            name = mutation.get("hold", "")
            if not name or len(name) == HOLD_ID_CHARS or name.startswith(OWN_HOLDS):
                continue
            asked = [e for e in events if e.op in ("hold", "advance", "release") and self._hold_of(e)[1] == name]
            asked = [e for e in asked if self._hold_of(e)[0] == mutation["collection"]]
            if mutation["kind"] == "hold":
                asked = [e for e in asked if e.op != "release" and e.args["time"] == mutation["time"]]
            else:
                asked = [e for e in asked if e.op == "release"]
            if not any(e in asked for e in self._under_way(commit, "hold", "advance", "release")):
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
            return is_during and event.id not in self.happened and effects_of(event)[0] in wanted
        if event.op == "multi":  # Its answer does not say where it is.
            return any(marker in markers for marker in effect_markers(event)) and event.id not in self.happened
        return bool(event.outcome[1] == commit.seqno)

    def _compare(self, commit: Commit, calls: list[Event], said: View, explained: View) -> None:
        """Report what the calls in commit do not explain of it, and what they should have done and it does not say."""
        wanted, found = content_of(explained), content_of(said)
        for id_ in {*wanted, *found} - self.derived.keys():
            self._compare_content(commit, id_, wanted.get(id_, Counter()), found.get(id_, Counter()))
        touched = {m["collection"] for m in commit.mutations if m.get("collection")}
        for id_ in touched | {id_ for event in calls for _, id_, _ in effects_of(event)}:
            if id_ in self.derived:
                continue
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
            for marker in effect_markers(event):
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
            places = {seen[m].seqno if m in seen else None for m in effect_markers(event)}
            if event.op == "multi" and event.id in self.happened and len(places) > 1:
                self.blame("atomic", f"a part of it is in {places} each: {event}")
        for client, events in self.of_client.items():
            # Seals of a keyed collection may take longer than what is asked of others after them (rule 5).
            by_order: dict[str, list[int]] = {}
            for e in events:
                if e.op not in MUTATING or e.op in UNPLACED or not e.ok:
                    continue
                # Whoever repeats a token is told of a record by which it was done, and a server may know fewer of them.
                if "token" in e.args and any(seen[m].seqno < e.outcome[1] for m in effect_markers(e) if m in seen):
                    continue
                order = e.args["c"] if self.location.collections[e.args["c"]].machine is not None else "plain"
                by_order.setdefault(order, []).append(e.outcome[1])
            for seqnos in by_order.values():
                if seqnos != sorted(seqnos):
                    self.blame("order", f"{client} got its writes committed out of call order: {seqnos}")
