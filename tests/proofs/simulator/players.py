"""Executes steps against the library and writes down what happened.

One thread issues all calls, so the order of calls is that of the steps. What remains to chance is when the threads
inside the clients get their turn: which calls a client commits together, and who wins a race for a seqno while calls
are left pending. The history says what became of it, and the judge takes it from there.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import persist
from persist import backup, copy
from persist.blob.layers.unreliable import Fault, UnreliableBlob
from persist.blob.protocol import Blob, MemoryBlob
from persist.core.log.framing import FORMAT
from persist.core.settings import Tuning
from persist.engine.collection.clones import commit_clone
from persist.events import InsertIfAbsent
from tests.proofs.simulator.acting import Acting
from tests.proofs.simulator.assigned import with_assigned_times
from tests.proofs.simulator.baton import Baton
from tests.proofs.simulator.calls import Pending, Slot
from tests.proofs.simulator.drawing import VIEW
from tests.proofs.simulator.history import Event, History
from tests.proofs.simulator.language import SKEW_MAX_S, Step, kind_of
from tests.proofs.simulator.log_reader import Added, frontier, read_commit
from tests.proofs.simulator.spelling import (
    DEFAULT,
    Boom,
    added_columns,
    antichain_at,
    bad_updates,
    contents_by_name,
    contents_of,
    event_tuples,
    real_name,
    row_tuples,
    subscribed_at,
    times_of,
    update_tuples,
    updates_of,
)
from tests.proofs.simulator.tables import found_table
from tests.proofs.simulator.world import BEGAN_MS, ClientClock, ClientStore, Nuisance, Tap
from tests.support.model import EMPTY, GREATEST, ORDERED, TOMBSTONE
from tests.support.resolving import resolve_events
from tests.support.tuned import tuned

SLOW_S = 2.0
PLACED = ("write", "upsert", "seal", "allow_compaction", "destroy", "restore")  # Their answer is a seqno.
# Short, so that what takes days happens within the few hours that a run takes by the clock of its world.
SETTINGS: dict[str, Any] = {
    "lease_s": 60.0,
    "clock_skew_s": 30.0,
    "hold_linger_s": 5.0,
    "grace_s": 120.0,
    "orphan_grace_s": 900.0,
    "log_retention_s": 3600.0,
    "log_retention_records": 16,
    "gc_interval_s": 100.0,
}
KEYED = {
    "seal": persist.Keyed(ties=GREATEST),
    "background": persist.Keyed(resolve="background"),
    "transitions": persist.Keyed(machine=InsertIfAbsent()),
    ORDERED: persist.Keyed(order_by=["v"], tombstone="v", tombstone_value=TOMBSTONE, resolve="background"),
}


def _policy(part_bytes: int | None, inline_bytes: int) -> Tuning:
    """Return a policy under which a few updates are enough for all that compaction does."""
    policy = Tuning(
        keyframe_rows_min=4,
        keyframe_fraction=0.3,
        merge_runs=2,
        inline_runs=3,
        inline_bytes=inline_bytes,
        runs_max=100_000,
    )
    return policy if part_bytes is None else replace(policy, part_bytes=part_bytes)


def features() -> frozenset[str]:
    """Return which operations the library has got that it did not always have."""
    return frozenset(name for name in ("compact",) if hasattr(persist.Collection, name))


class Run(Acting):
    """One execution of steps on an empty location."""

    slow_s = SLOW_S
    store_type = ClientStore
    nuisance: Nuisance | None = None
    name = "c"
    sees_all = True  # Whether all requests to the store pass the tap.

    def __init__(self, blob: Blob | None = None, baton: Baton | None = None) -> None:
        super().__init__(baton)
        self.tap = Tap(blob or MemoryBlob(), self.moments, self.world.now_s)
        self.backed_up = MemoryBlob()
        self.slots: dict[int, Slot] = {}
        self.gone: list[Pending] = []
        self.stores: list[ClientStore] = []
        self._delivered_s = 0.0  # When what was under way arrived.
        self.faults: Counter[str] = Counter()
        self.retries: Counter[str] = Counter()  # And how commits went, as the clients counted.
        self._names: Counter[int] = Counter()

    def execute(self, steps: list[Step]) -> History:
        """Do all steps, then read everything with a client whose storage is up."""
        for step in steps:
            self._do(step)
        self._finish()
        for number in list(self.slots):
            self._leave(number)
        for store in self.stores:
            store.deliver()
        self._empty({})
        self._read_everything()
        self._await(self.gone)
        blobs = self.tap.values
        added = Added()
        commits = [
            read_commit(each.value, each.at, each.client, each.clock_s, blobs, added) for each in self.tap.landed
        ]
        self.tap.broken += with_assigned_times(self.events, commits)
        return History(
            self.events,
            commits,
            self.tap.stored,
            SETTINGS | {"skew_max_s": SKEW_MAX_S, "began_ms": BEGAN_MS, "format": FORMAT},
            self.tap.deletions,
        )

    def _ended(self, slot: Slot, event: Event, faults_before: int, answer: list[Any]) -> None:
        if self.sees_all and answer[0] == "ok" and event.op in PLACED:
            self.tap.check(f"#{event.id}", lambda: self.tap.standing.acknowledge(slot.name, answer[1]))
        super()._ended(slot, event, faults_before, answer)

    def _forget_claims(self, of: Callable[[int, str], bool]) -> None:
        if self.sees_all:
            self.tap.standing.release(of)

    def _finish(self) -> None:
        """Let what is under way come to its end."""

    # Steps

    def _do(self, step: Step) -> None:
        if step["slot"] is None:
            getattr(self, f"_{step['op']}")(step)
            return
        if step["op"] == "open":
            self._open(step)
            return
        slot = self.slots.get(step["slot"])
        if slot is None:
            return
        if step["op"] == "down":
            self._down(step)
            return
        self._set_weather(slot, step)
        getattr(self, f"_{step['op']}")(slot, step)
        if "crash" in step:
            self._leave(step["slot"])

    def _set_weather(self, slot: Slot, step: Step) -> None:
        slot.unreliable.clear_faults()
        if slot.is_down:
            slot.unreliable.go_down()
        for operation, faults in step.get("faults", {}).items():
            slot.unreliable.script_faults(operation, *(Fault[name] for name in faults))
        if "stop" in step:
            slot.store.stop_at(**step["stop"])
        if "doom" in step:
            slot.store.cut_at(**step["doom"])
        if "crash" in step:
            slot.store.cut_at(step["crash"]["calls"], step["crash"]["how"])

    def _down(self, step: Step) -> None:
        for number, slot in [*self.slots.items()]:
            if step["slot"] in (None, number):
                slot.is_down = True
                slot.unreliable.go_down()

    def _up(self, step: Step) -> None:
        for slot in [*self.slots.values()]:
            slot.is_down = False
            slot.unreliable.clear_faults()

    def _pass(self, step: Step) -> None:
        # A request does not travel for longer than garbage waits: a checkpoint would name what is deleted by then.
        if self.world.now_s() + step["seconds"] - self._delivered_s >= SETTINGS["grace_s"] / 2:
            self._deliver(step)
        self.world.advance(step["seconds"])

    def _deliver(self, step: Step) -> None:
        self._delivered_s = self.world.now_s()
        for store in self.stores:
            store.deliver()

    def _open(self, step: Step) -> None:
        number = step["slot"]
        self._leave(number)
        self._names[number] += 1
        name = f"{self.name}{number}.{self._names[number]}"
        store = self.store_type(self.tap, name, self.nuisance)
        clock = ClientClock(self.world, step["skew_s"])
        unreliable = UnreliableBlob(store, sleep=lambda: clock.sleep(self.slow_s))
        self.stores.append(store)
        options: dict[str, Any] = {option: step[option] for option in ("reentrance_id", "force") if option in step}
        for operation, faults in step.get("faults", {}).items():
            unreliable.script_faults(operation, *(Fault[name] for name in faults))
        slot = Slot(name, None, store, unreliable, clock)  # type: ignore[arg-type]

        def opened() -> None:
            policy, more = _policy(step.get("part_bytes"), step.get("inline_bytes", 20_000)), self._more_settings(step)
            settings = tuned(policy, background=False, **SETTINGS, **more)
            also = self._more_options(step, name)
            slot.client = persist.open(unreliable, mode=step["mode"], clock=clock, settings=settings, **options, **also)

        through = {"through": True} if step.get("is_through") else {}
        event = self._call(slot, "open", {"mode": step["mode"], **options, **through}, opened)
        if event.ok:
            self.slots[number] = slot
        else:
            self._count_faults(slot)

    def _more_settings(self, step: Step) -> dict[str, Any]:
        """Return settings that a kind of run opens its clients with, besides."""
        return {}

    def _more_options(self, step: Step, name: str) -> dict[str, Any]:
        """Return options that a kind of run opens its clients with, besides, given what the client is called."""
        return {}

    def _leave(self, number: int) -> None:
        """The client dies."""
        slot = self.slots.pop(number, None)
        if slot is None:
            return
        slot.store.cut()
        slot.clock.die()
        self._forget_claims(lambda _, client: client == slot.name)
        if not slot.is_closed:
            event = self._began(slot, "crash", {})
            event.outcome, event.returned = ["ok", None], self.moments.next()
        self.gone += slot.pending
        self._count_faults(slot)
        self._count_retries(slot)

    def _crash(self, slot: Slot, step: Step) -> None:
        self._leave(step["slot"])

    def _maintain(self, slot: Slot, step: Step) -> None:
        self._call(slot, "maintain", {}, slot.client.maintain)

    def _compact(self, slot: Slot, step: Step) -> None:
        def call(c: persist.Collection) -> None:
            report = c.compact(only_due=not step["full"])
            made = {
                "keyframes": len(report.keyframes),
                "times that history was forgotten": report.forgotten is not None,
            }
            names = ("runs_merged", "keyframes_dropped", "parts_written", "parts_shared", "superseded")
            self.retries.update({f"compaction: {name}": int(n) for name, n in made.items()})
            self.retries.update({f"compaction: {name}": getattr(report, name) for name in names})

        self._on_handle(slot, step, {"full": step["full"]}, call)

    def _gc(self, slot: Slot, step: Step) -> None:
        self._call(slot, "gc", {}, lambda: slot.client.gc() and None)

    def _hold(self, slot: Slot, step: Step) -> None:
        def call(c: persist.Collection) -> int:
            found.append(c.hold(step["time"], name=step["hold"]))
            return found[0].time

        found: list[persist.Hold] = []
        event = self._on_handle(slot, step, {"time": step["time"], "name": step["hold"]}, call)
        if event is not None and event.ok:
            slot.taken[step["id"]] = event, found[0]

    def _advance(self, slot: Slot, step: Step) -> None:
        if step["of"] in slot.taken:
            event, hold = slot.taken[step["of"]]
            self._call(slot, "advance", {"hold": event.id, "time": step["time"]}, lambda: hold.advance(step["time"]))

    def _release(self, slot: Slot, step: Step) -> None:
        if step["of"] in slot.taken:
            event, hold = slot.taken[step["of"]]
            self._call(slot, "release", {"hold": event.id, "how": step["how"]}, getattr(hold, step["how"]))

    def _holds(self, slot: Slot, step: Step) -> None:
        def call(c: persist.Collection) -> list[list[Any]]:
            return sorted([hold.name, hold.time] for hold in c.holds() if hold.name is not None and not hold.is_tag)

        self._on_handle(slot, step, {}, call)

    def _count_faults(self, slot: Slot) -> None:
        self.faults.update({fault.name: n for fault, n in slot.unreliable.faults.items()})

    def _count_retries(self, slot: Slot) -> None:
        metrics = slot.client.metrics()
        self.retries.update({f"retries of {operation}": each.retries for operation, each in metrics.retries.items()})
        self.retries.update({f"commits: {name}": int(n) for name, n in metrics.groups.get("commits", {}).items()})

    def _close(self, slot: Slot, step: Step) -> None:
        for each in slot.pending:
            each.event.args.setdefault("looked", False)
        self._forget_claims(lambda _, client: client == slot.name)
        self._call(slot, "close", {}, slot.client.close)
        self._await(slot.pending)
        slot.pending = []
        slot.is_closed = True

    def _settle(self, slot: Slot, step: Step) -> None:
        for each in slot.pending:
            if "looked" not in each.event.args:
                self._look(each)
        slot.pending = [each for each in slot.pending if each.event.args["looked"] is False]

    def _collections(self, slot: Slot, step: Step) -> None:
        self._call(slot, "collections", {}, lambda: list(slot.client.collections()))

    def _create_or_load(self, slot: Slot, step: Step) -> None:
        def call() -> str:
            key, value = {step["schema"]: pa.int64()}, {"v": pa.string()}
            name, keyed = step["name"], KEYED.get(kind_of(step["name"]))
            slot.handles[name] = found = slot.client.create_or_load(name, key=key, value=value, keyed=keyed)
            return found.id

        self._call(slot, "create_or_load", {"name": step["name"], "schema": step["schema"]}, call)

    def _clone(self, slot: Slot, step: Step) -> None:
        def call(c: persist.Collection) -> str:
            made = commit_clone(
                c.handle, step["target"], step["as_of"]
            )  # Of that very one, whatever has its name by now.
            slot.handles[step["target"]] = persist.Collection(made)
            return made.id

        self._on_handle(slot, step, {"target": step["target"], "as_of": step["as_of"]}, call)

    def _table(self, slot: Slot, step: Step) -> None:
        """Read the table as a program does that has the files alone, all at one moment."""
        self._on_handle(slot, step, {}, lambda c: found_table(self.tap.inner, c.id))

    def _load(self, slot: Slot, step: Step) -> None:
        def call() -> str:
            slot.handles[step["name"]] = found = slot.client.load(step["name"])
            return found.id

        self._call(slot, "load", {"name": step["name"]}, call)

    def _write(self, slot: Slot, step: Step) -> None:
        options: dict[str, Any] = {name: step[name] for name in ("token", "expected_upper", "seal") if name in step}
        given: dict[str, Any] = {n: v if n == "token" else antichain_at(v) for n, v in options.items()}
        args = {"updates": step["updates"], "columns": added_columns(slot.handles.get(step["name"])), **options}
        if step.get("assigned"):
            args["assigned"] = None  # The time that the future tells.
            self._submit(slot, step, args, lambda c: c.write(row_tuples(step, c), **given))
            return
        self._submit(slot, step, args, lambda c: c.write(update_tuples(step, c), **given))

    def _upsert(self, slot: Slot, step: Step) -> None:
        options: dict[str, Any] = {name: step[name] for name in ("token", "seal") if name in step}
        given: dict[str, Any] = {n: v if n == "token" else antichain_at(v) for n, v in options.items()}
        args = {"events": step["events"], "columns": added_columns(slot.handles.get(step["name"])), **options}

        def call(c: persist.Collection) -> Any:
            take = c.transition if kind_of(step["name"]) == "transitions" else c.upsert
            return take(event_tuples(step["events"], c), **given)

        self._submit(slot, step, args, call)

    def _resolve(self, slot: Slot, step: Step) -> None:
        self._on_handle(slot, step, {}, lambda c: resolve_events(c))

    def _write_bad(self, slot: Slot, step: Step) -> None:
        args = {"updates": [], "bad": step["bad"]}
        write = {**step, "op": "write", "wait": "now"}
        self._submit(slot, write, args, lambda c: c.write(bad_updates(step["bad"], c)))

    def _evolve(self, slot: Slot, step: Step) -> None:
        def call(c: persist.Collection) -> None:
            if step["how"] == "add":
                c.evolve(add={step["column"]: pa.string()}, defaults={step["column"]: DEFAULT})
            else:
                c.evolve(drop=[step["column"]])

        known = slot.handles.get(step["name"])
        args = {"how": step["how"], "column": step["column"], "version": known.schema.version if known else 0}
        self._on_handle(slot, step, args, call)

    def _seal(self, slot: Slot, step: Step) -> None:
        options = {name: step[name] for name in ("expected_upper",) if name in step}
        given: dict[str, Any] = {name: antichain_at(value) for name, value in options.items()}
        args = {"upper": step["upper"], **options}
        self._submit(slot, step, args, lambda c: c.seal(antichain_at(step["upper"]), **given))

    def _allow_compaction(self, slot: Slot, step: Step) -> None:
        self._submit(slot, step, {"since": step["since"]}, lambda c: c.allow_compaction(step["since"]))

    def _destroy(self, slot: Slot, step: Step) -> None:
        self._submit(slot, step, {}, lambda c: c.drop())

    def _multi(self, slot: Slot, step: Step) -> None:
        handles = [slot.handles.get(name) for _, name, _ in step["steps"]]
        if None in handles:
            return
        options = {"token": step["token"]} if "token" in step else {}
        pairs = list(zip(step["steps"], handles, strict=True))
        args = {"steps": [[kind, c.id, what] for (kind, _, what), c in pairs if c], "raises": step["raises"], **options}
        args["columns"] = {c.id: added_columns(c) for c in handles if c}

        def call() -> None:
            with slot.client.multi_write(**options) as multi:
                for (kind, _, what), collection in pairs:
                    assert collection is not None
                    if kind == "write":
                        multi.write(collection, update_tuples({"updates": what}, collection))
                    elif kind == "upsert":
                        _take_events(multi, collection, what)
                    else:
                        multi.seal(collection, antichain_at(what))
                if step["raises"]:
                    raise Boom

        self._call(slot, "multi", args, call)

    def _upper(self, slot: Slot, step: Step) -> Event | None:
        return self._on_handle(slot, step, {}, lambda c: frontier(list(c.upper.elements)))

    def _since(self, slot: Slot, step: Step) -> Event | None:
        return self._on_handle(slot, step, {}, lambda c: frontier(list(c.since.elements)))

    def _snapshot(self, slot: Slot, step: Step) -> None:
        def call(c: persist.Collection) -> int:
            columns = [real_name(c, name) for name in step["columns"]]
            above = None if step["above"] is None else pc.field(real_name(c, "k")) > step["above"]
            found.append(c.snapshot(step["as_of"], columns=columns, where=above, form=step["form"], timeout_s=0))
            return found[0].as_of

        found: list[persist.Snapshot] = []
        before = self.tap.standing.seqno if self.sees_all else 0
        event = self._on_handle(slot, step, {"as_of": step["as_of"]}, call)
        if event is not None and event.ok:
            # Who only reads relies on the grace period.
            if self.sees_all and slot.client.mode != "read" and not slot.is_closed and "no_room" not in event.args:
                self.tap.standing.claim(event.id, slot.name, event.args["c"], before)
            slot.taken[step["id"]] = event, (found[0], step)
            if step["reads"]:
                self._read(slot, {"of": step["id"], "count": False})

    def _snapshots(self, slot: Slot, step: Step) -> None:
        """Count what several collections hold in one state of the location."""
        handles = [slot.handles[name] for name in step["names"] if name in slot.handles]

        def call() -> list[list[Any]]:
            with ExitStack() as closing:
                found = slot.client.snapshots(dict.fromkeys(handles), timeout_s=0)
                for snapshot in found.values():
                    closing.enter_context(snapshot)
                return [[c.id, snapshot.as_of, snapshot.count()] for c, snapshot in found.items()]

        if handles:
            self._call(slot, "snapshots", {"cs": [c.id for c in handles]}, call)

    def _backup(self, slot: Slot, step: Step) -> None:
        """Back up to where the last one went, restore that elsewhere, and tell what is there."""

        def call() -> list[Any]:
            seqno = backup(slot.unreliable, self.backed_up, clock=slot.clock).seqno
            restored = MemoryBlob()
            copy(self.backed_up, restored, clock=slot.clock)
            return [seqno, contents_by_name(restored)]

        self._call(slot, "backup", {}, call)

    def _read(self, slot: Slot, step: Step) -> None:
        if step["of"] not in slot.taken:
            return
        event, (snapshot, taken) = slot.taken[step["of"]]
        how = "count" if step["count"] else taken["form"]
        columns = "kv" if step["count"] else taken["columns"]
        args = {"snapshot": event.id, "how": how, "columns": columns, "above": taken["above"]}
        self._call(slot, "read", args, snapshot.count if step["count"] else lambda: contents_of(snapshot, columns))

    def _close_snapshot(self, slot: Slot, step: Step) -> None:
        if step["of"] in slot.taken:
            event, (snapshot, _) = slot.taken[step["of"]]
            self._forget_claims(lambda of, _: of == event.id)
            self._call(slot, "close_snapshot", {"snapshot": event.id}, snapshot.close)

    def _changes(self, slot: Slot, step: Step) -> None:
        def call(c: persist.Collection) -> list[list[Any]]:
            names = [real_name(c, name) for name in "kv"]
            return updates_of(c.changes(step["lower"], step["upper"], columns=names, timeout_s=0).to_arrow())

        self._on_handle(slot, step, {"lower": step["lower"], "upper": step["upper"]}, call)

    def _listen(self, slot: Slot, step: Step) -> None:
        self._follow(slot, step, lambda c: c.listen(step["as_of"]))

    def _subscribe(self, slot: Slot, step: Step) -> None:
        self._follow(slot, step, lambda c: c.subscribe(step["as_of"], timeout_s=0))

    def _follow(self, slot: Slot, step: Step, follow: Callable[[persist.Collection], persist.Listen]) -> None:
        def call(c: persist.Collection) -> int:
            feed.append(follow(c))
            return step["as_of"] if step["op"] == "listen" else subscribed_at(feed[0], step["as_of"])

        feed: list[persist.Listen] = []
        event = self._on_handle(slot, step, {"as_of": step["as_of"]}, call)
        if event is not None and event.ok:
            slot.taken[step["id"]] = event, feed[0]

    def _poll(self, slot: Slot, step: Step) -> None:
        if step["of"] not in slot.taken:
            return
        event, feed = slot.taken[step["of"]]

        def call() -> dict[str, Any] | None:
            progress = feed.poll()
            if progress is None:
                return None
            return {"updates": updates_of(progress.updates), "upper": frontier(list(progress.upper.elements))}

        self._call(slot, "poll", {"feed": event.id}, call)

    def _close_feed(self, slot: Slot, step: Step) -> None:
        if step["of"] in slot.taken:
            event, feed = slot.taken[step["of"]]
            self._call(slot, "close_feed", {"feed": event.id}, feed.close)

    def _read_everything(self) -> None:
        """What is still there, as a client sees it that comes when all is over."""
        exclusive = {"mode": "exclusive", "reentrance_id": "last", "force": True}
        self._open({"op": "open", "slot": -1, "skew_s": 0, **exclusive})
        slot = self.slots.get(-1)
        if slot is None:
            return
        names = self._call(slot, "collections", {}, lambda: list(slot.client.collections()))
        for name in names.outcome[1] if names.ok else []:
            self._load(slot, {"name": name})
            if name in slot.handles:
                self._read_whole(slot, name)
        # All who began a checkpoint may have died of it, so that one is overdue.
        examined = slot.client.fsck
        self._call(slot, "fsck", {}, lambda: [str(each) for each in examined().problems if each.kind != "overdue"])
        self._close(slot, {})

    def _read_whole(self, slot: Slot, name: str) -> None:
        """Seal a collection beyond all that was written, so that all can be read, and read it."""
        step: Step = {"name": name, "wait": "now"}
        read = [self._upper(slot, {**step, "op": "upper"}), self._since(slot, {**step, "op": "since"})]
        if not all(each is not None and each.ok for each in read):
            return
        upper, since = (each.outcome[1] for each in read if each is not None)
        end = upper if upper == EMPTY or name == VIEW else max([upper, *times_of(self.events)]) + 1
        if end == 0:
            return
        if end != upper:
            self._seal(slot, {**step, "op": "seal", "upper": end})
        last = min(end - 1, 10**6)
        self._table(slot, {**step, "op": "table"})
        for as_of in sorted({since, (since + last) // 2, last}):
            options = {"as_of": as_of, "form": "diff", "columns": "kv", "above": None, "reads": True}
            self._snapshot(slot, {**step, "op": "snapshot", "id": -1 - as_of, **options})
        lower = 0 if since == 0 else since + 1
        self._changes(slot, {**step, "op": "changes", "lower": lower, "upper": max(lower, last + 1)})


def _take_events(multi: persist.MultiWrite, collection: persist.Collection, events: list[Any]) -> None:
    """Give events to a block: those that delete keys at one time as a `delete`, if they are all."""
    times = {time for _, value, time in events if value is None}
    keys = {key for key, value, _ in events if value is None}
    if len(times) == 1 and len(keys) == len(events):
        multi.delete(collection, [key for key, _, _ in events], time=times.pop())
        return
    take = multi.transition if kind_of(collection.name) == "transitions" else multi.upsert
    take(collection, event_tuples(events, collection))
