"""Draws what clients do, from a seed: a list of steps that can be executed even when some of them are left out.

A step is a dict: `id`, `op`, the `slot` of the client that makes the call, and what the call needs. Steps refer to each
other only by id (read the snapshot that step 7 took); one whose other is missing is not executed. Times are absolute:
the generator follows roughly where the frontiers should be, as if every call succeeded, so that most calls are valid,
and some are not on purpose.

`faults` of a step say what storage does to the next requests of its client, request by request; nothing else is left to
chance, so that a shorter list of steps meets the same weather.
"""

import random
from collections.abc import Collection
from typing import Any

from tests.proofs.simulator.drawing import KEYS, TAGS, VIEW, VIEWED, Asleep, Drawing
from tests.proofs.simulator.expectations import BAD_WRITES, KEYED_WRITE
from tests.proofs.simulator.weights import (
    ASLEEP_WEIGHTS,
    CLONES_WEIGHTS,
    COLLECTORS_WEIGHTS,
    FEATURE_WEIGHTS,
    FLAT_OUT_WEIGHTS,
    KEYED_WEIGHTS,
    PUBLISHES_WEIGHTS,
    RECOVERS_WEIGHTS,
    WEIGHTS,
)
from tests.support.model import EMPTY, ORDERED, TOMBSTONE

Step = dict[str, Any]

SLOTS = 4
NAMES = ("a", "b", "c")
KEYED = ("a", "seal", "background", "transitions", "ordered")  # One of which is not keyed.
KEYED_ONLY = KEYED[1:]
CLONED = "+"  # Ends the name of the clone of a collection; the clone of that one has the name without it.
FIRST_MARKER = 1000
OUTAGE_REQUESTS = 120  # More than a commit tries within its deadline.
FAULTS = ("UNAVAILABLE", "NOT_HAPPENED_DOUBTFUL", "HAPPENED_BUT_FAILED", "SLOW")
REQUESTS = ("create", "get", "list", "set", "delete")
WEATHER = {"clear": 0.0, "showers": 0.12, "storm": 0.5}
SKEW_MAX_S = 10
STOPS_S = (1, 100, 1000, 8000, 20_000)
OLD, FORMATS = 0.5, (6, 7)  # How often a location is of an older format, and which.
PART_BYTES = (64 << 10, 4 << 10, 1)  # For compaction; with 1, each key is a part of its own.


def kind_of(name: str) -> str:
    """Return the name of the collections that are like one of a name, of which that may be a clone."""
    return name.removesuffix(CLONED)


class _Belief:
    """Roughly how a collection stands."""

    def __init__(self) -> None:
        self.exists = False
        self.upper = 0
        self.since = 0
        self.columns: list[str] = []  # That it got, dropped ones too.
        self.records: list[list[Any]] = []  # That it holds.


def generate(
    seed: int,
    size: int,
    features: Collection[str] = (),
    *,
    flat_out: bool = False,
    is_keyed: bool = False,
    collects: bool = False,
    clones: bool = False,
    publishes: bool = False,
    sleeps: bool = False,
    recovers: bool = False,
    slots: int = SLOTS,
) -> list[Step]:
    """Return size steps, of the public operations that features and their predecessors name.

    Args:
        flat_out: after each step, somebody compacts or collects garbage, and time passes.
        is_keyed: most collections are keyed.
        collects: there are many records, and several who collect garbage.
        clones: collections are cloned, dropped, compacted and collected.
        publishes: collections are published as Delta tables, compacted and collected.
        sleeps: one who collects sleeps for hours, and the others commit to one collection and collect meanwhile.
        recovers: contents become what they were, and the store fills up.
    """
    more = (FLAT_OUT_WEIGHTS if flat_out else {}) | (KEYED_WEIGHTS if is_keyed else {})
    more |= COLLECTORS_WEIGHTS if collects else {}
    more |= CLONES_WEIGHTS if clones else {}
    more |= PUBLISHES_WEIGHTS if publishes else {}
    more |= RECOVERS_WEIGHTS if recovers else {}
    kind = {"flat_out": flat_out, "is_keyed": is_keyed, "collects": collects, "publishes": publishes, "sleeps": sleeps}
    return _Generator(seed, frozenset(features), more, slots=slots, **kind).steps(size)


class _Generator(Drawing):
    def __init__(
        self,
        seed: int,
        features: frozenset[str],
        more: dict[str, float],
        *,
        flat_out: bool,
        is_keyed: bool,
        collects: bool,
        publishes: bool,
        sleeps: bool,
        slots: int,
    ) -> None:
        self.publishes = publishes
        self.sleeps = sleeps
        self.asleep: Asleep | None = None
        self.slots = slots
        self.chance = random.Random(seed)
        self.flat_out = flat_out
        self.features = features
        self.names = KEYED if is_keyed else NAMES
        self.belief = {name + mark: _Belief() for name in self.names for mark in ("", CLONED)}
        self.modes: dict[int, str] = {}
        self.viewing: set[int] = set()
        self.belief[VIEW] = _Belief()
        self.handles: dict[int, set[str]] = {slot: set() for slot in range(slots)}
        self.taken: dict[str, list[Step]] = {"snapshot": [], "feed": [], "hold": []}
        self.with_token: list[Step] = []
        self.upsert_with_token: list[Step] = []
        self.multi_with_token: list[Step] = []
        self.weather = "clear"
        self.stops = 0.5 if collects else 0.03  # How often somebody who collects is stopped in the middle of it.
        self.next_marker = FIRST_MARKER
        self.large = self.chance.choice([0.01, 0.01, 0.3])  # Only large writes are blobs of their own.
        self.planned: list[Step] = []
        weights = dict(WEIGHTS)
        for feature, with_feature in FEATURE_WEIGHTS.items():
            weights |= with_feature if feature in features else {}
        weights |= more
        self.ops, self.weights = list(weights), list(weights.values())
        self.weights_asleep = [weight * ASLEEP_WEIGHTS.get(op, 0) for op, weight in weights.items()]

    def steps(self, size: int) -> list[Step]:
        steps: list[Step] = []
        if self.chance.random() < OLD:
            steps.append({"op": "begin", "slot": None, "format": self.chance.choice(FORMATS)})
        for slot in range(max(2, self.slots if self.slots > SLOTS else 0)):
            steps += [self._open(slot, "shared"), *(self._create_or_load(slot, name) for name in self.names)]
        while len(steps) < size:
            if self.chance.random() < 0.03:
                self.weather = self.chance.choices(list(WEATHER), [6, 3, 1])[0]
            if self.sleeps and self.asleep is None and (step := self._fallen_asleep()) is not None:
                steps.append(step)
            op = self.chance.choices(self.ops, self.weights_asleep if self.asleep else self.weights)[0]
            step = self.planned.pop(0) if self.planned else self._step(op)
            if step is not None:
                steps.append(step)
            if self.flat_out and (step := self._upkeep()) is not None:
                steps.append(step)
        for number, step in enumerate(steps):
            step["id"] = number
        return [_resolved(step) for step in steps]

    def _step(self, op: str) -> Step | None:
        chance = self.chance
        if op == "open":
            return self._open(chance.choice(self._awake(range(self.slots))), self._mode())
        if op in ("pass", "up", "down", "deliver", "fill", "empty"):
            return self._about_the_world(op)
        slots = self._awake(self.modes)
        if not slots:
            return self._open(self._awake(range(self.slots))[0], "shared")
        step: Step | None = {"op": op, "slot": chance.choice(slots)}
        assert step is not None
        known = self.handles[step["slot"]]
        if op in ("create_or_load", "load"):
            step = self._create_or_load(step["slot"], chance.choice(self.names), op)
            cloned = step["name"] + CLONED
            if op == "load" and self.belief[cloned].exists and chance.random() < 0.5:
                step["name"] = cloned
                known.add(cloned)
        elif op in ("close", "crash"):
            self._forget(step["slot"], op)
        elif op in ("read", "close_snapshot", "poll", "close_feed", "advance", "release"):
            step = self._about_what_was_taken(op)
        elif op in ("gc", "upgrade"):
            getattr(self, f"_{op}")(step)
        elif op in ("create_view", "refresh", "drop_view"):
            step = self._about_view(op, step["slot"])
        elif op in VIEWED and step["slot"] in self.viewing and chance.random() < 0.25:
            step["name"] = VIEW
            self.belief[VIEW].upper = min(self.belief[name].upper for name in self.names[:2])
            getattr(self, f"_{op}", lambda step, belief: None)(step, self.belief[VIEW])
        elif op == "snapshots":
            step["names"] = chance.sample(sorted(known), k=min(len(known), chance.choice([1, 2, 2, 3])))
        elif op not in ("collections", "settle", "maintain", "backup"):
            if not known:
                return self._create_or_load(step["slot"], chance.choice(self.names))
            step["name"] = chance.choice(sorted(known))
            if self.asleep is not None:
                step["name"] = self.asleep.busy
                if step["name"] not in known:
                    return self._create_or_load(step["slot"], step["name"])
            if op in ("resolve", "restore") and (op == "resolve") != (kind_of(step["name"]) in KEYED_ONLY):
                return None
            getattr(self, f"_{op}", lambda step, belief: None)(step, self.belief[step["name"]])
        if step is not None and "faults" not in step:
            self._add_faults(step)
        return step

    def _upkeep(self) -> Step | None:
        op = self.chance.choices(["compact", "gc", "maintain", "pass"], [10, 4, 1, 4])[0]
        if op == "pass":
            return {"op": op, "slot": None, "seconds": self.chance.choice([1, 10, 10, 60, 130])}
        return self._step(op)

    def _mode(self) -> str:
        if self.chance.random() < 0.12:
            return "exclusive"
        return self.chance.choices(["shared", "read"], [5, 1])[0]

    def _open(self, slot: int, mode: str) -> Step:
        step: Step = {
            "op": "open",
            "slot": slot,
            "mode": mode,
            "skew_s": self.chance.choice([0, 0, -SKEW_MAX_S, SKEW_MAX_S]),
            "part_bytes": self.chance.choice(PART_BYTES),
        }
        if self.publishes:
            step["inline_bytes"] = self.chance.choice([0, 20_000])  # What lies in the log, a table copies.
        if mode == "exclusive":
            step["reentrance_id"] = self.chance.choice(["me", "you"])
            step["force"] = self.chance.random() < 0.4
        self._forget(slot, "crash")
        self.modes[slot] = mode
        self._add_faults(step)
        return step

    def _forget(self, slot: int, op: str) -> None:
        self.handles[slot] = set() if op == "crash" else self.handles[slot]
        if op == "crash" or self.chance.random() < 0.8:  # Calls after close are worth a few tries.
            self.modes.pop(slot, None)
            self.handles[slot] = set()
            self.viewing.discard(slot)

    def _create_or_load(self, slot: int, name: str, op: str = "create_or_load") -> Step:
        self.handles[slot].add(name)
        step: Step = {"op": op, "slot": slot, "name": name}
        if op == "create_or_load":
            step["schema"] = "k" if self.chance.random() < 0.95 else "k2"
            if not self.belief[name].exists:
                self.belief[name] = _Belief()
                self.belief[name].exists = True
        self._add_faults(step)
        return step

    def _about_the_world(self, op: str) -> Step:
        step: Step = {"op": op, "slot": None}
        if op == "pass":
            step["seconds"] = self.chance.choice([0.1, 1, 1, 10, 10, 40, 40, 100, 200, 1000, 4000])
            if self.asleep is not None:
                self._sleep_on(step)
        elif op in ("down", "up"):
            step["slot"] = self.chance.choice([None, *range(self.slots)]) if op == "down" else None
        elif op == "fill":
            step["bytes"] = self.chance.choice([0, 300, 3000, 30_000])
        return step

    def _about_what_was_taken(self, op: str) -> Step | None:
        kind = {"read": "snapshot", "close_snapshot": "snapshot", "poll": "feed", "close_feed": "feed"}.get(op, "hold")
        if not self.taken[kind]:
            return None
        taken = self.chance.choice(self.taken[kind][-6:])
        step: Step = {"op": op, "slot": taken["slot"], "of": taken}
        if op == "read":
            step["count"] = self.chance.random() < 0.15
        elif op == "advance":
            step["time"] = max(0, taken["time"] + self.chance.choice([-1, 0, 1, 2, 3]))
        elif op == "release":
            step["how"] = self.chance.choice(["close", "release"])
        if op in ("close_snapshot", "close_feed", "release") and self.chance.random() < 0.9:
            self.taken[kind].remove(taken)
        return step

    def _updates(self, belief: _Belief) -> list[list[Any]]:
        chance = self.chance
        late = chance.random() < 0.08
        base = 0 if belief.upper == EMPTY else belief.upper
        first = max(0, base - chance.randint(1, 3)) if late else base + chance.choice([0, 0, 0, 1, 2, 5])
        self.next_marker += 1
        updates: list[list[Any]] = [[self.next_marker, "m", first, 1]]
        for _ in range(chance.choice([0, 1, 1, 2, 3])):
            value = "big70000" if chance.random() < self.large else chance.choice("xyz")
            diff = chance.choices([1, -1, 2, 0, 2**62], [30, 16, 5, 1, 0.3])[0]
            record = [chance.randrange(KEYS), value]
            if self.publishes:  # A table cannot show less than none of a record.
                record = belief.records.pop() if diff < 0 and belief.records else record
                diff = 1 if diff < 0 and not belief.records else diff
                belief.records += [record] * (diff in (1, 2)) * diff
            updates.append([*record, first + chance.choice([0, 0, 1, 3]), diff])
        return updates

    def _written(self, name: str) -> Step:
        """Return a write, or for a keyed collection an upsert."""
        if kind_of(name) in KEYED_ONLY:
            return {"op": "upsert", "events": self._events(self.belief[name], name)}
        return {"op": "write", "updates": self._updates(self.belief[name])}

    def _written_in_block(self, name: str) -> list[Any]:
        written = self._written(name)
        return [written["op"], name, written["events" if kind_of(name) in KEYED_ONLY else "updates"]]

    def _events(self, belief: _Belief, name: str) -> list[list[Any]]:
        """Return events of which some delete; all delete in a few, and the first one marks them in any case."""
        found = [[k, v, time] for k, v, time, _ in self._updates(belief)]
        deletes = self.chance.random()
        for event in found[1:] if deletes > 0.08 else found:
            event[1] = None if self.chance.random() < (0.3 if deletes > 0.08 else 1.0) else event[1]
            if kind_of(name) == ORDERED and event[1] is None:
                event[1] = TOMBSTONE
        return found

    def _wait(self, step: Step) -> None:
        step["wait"] = self.chance.choices(["now", "later", "never"], [12, 4, 1])[0]
        if self.chance.random() < 0.012:
            self._crash_in(step, calls=3)

    def _write(self, step: Step, belief: _Belief) -> None:
        chance = self.chance
        if kind_of(step["name"]) in KEYED_ONLY:
            self._upsert(step, belief)
            return
        self._wait(step)
        if self.with_token and chance.random() < 0.15:
            again = chance.choice(self.with_token[-8:])
            names = ("name", "updates", "token", "expected_upper", "seal", "assigned")
            step |= {n: again[n] for n in names if n in again}
            return
        if chance.random() < 0.2:
            self._write_without_time(step, belief)
            return
        step["updates"] = self._updates(belief) if chance.random() < 0.98 else []
        if chance.random() < 0.2:
            step["expected_upper"] = self._about(belief.upper)
        if chance.random() < 0.15:
            self._seal(step, belief)
            step["seal"] = step.pop("upper")
        if step["updates"] and chance.random() < 0.3:
            step["token"] = f"t{step['updates'][0][0]}"
            self.with_token.append(step)

    def _write_without_time(self, step: Step, belief: _Belief) -> None:
        """Write plain rows, of which the commit says at which time they are."""
        self.next_marker += 1
        more = [[self.chance.randrange(KEYS), self.chance.choice("xyz")] for _ in range(self.chance.choice([0, 1, 2]))]
        step["updates"] = [[k, v, None, 1] for k, v in [[self.next_marker, "m"], *more]]
        step["assigned"] = True
        belief.upper += belief.upper < 10**6
        if self.chance.random() < 0.3:
            step["token"] = f"t{self.next_marker}"
            self.with_token.append(step)

    def _upsert(self, step: Step, belief: _Belief) -> None:
        chance = self.chance
        step["op"] = "upsert"
        self._wait(step)
        if self.upsert_with_token and chance.random() < 0.15:
            again = chance.choice(self.upsert_with_token[-8:])
            step |= {n: again[n] for n in ("name", "events", "token", "seal") if n in again}
            return
        step["events"] = self._events(belief, step["name"])
        if (
            step["events"][0][1] is not None and chance.random() < 0.4
        ):  # What only deletes may leave no trace but itself.
            self._seal(step, belief)
            step["seal"] = step.pop("upper")
            step.pop("expected_upper", None)
        if chance.random() < 0.3:
            step["token"] = f"t{step['events'][0][0]}"
            self.upsert_with_token.append(step)

    def _about(self, upper: int) -> int:
        return max(0, upper + self.chance.choice([0, 0, 0, 1, -1])) if upper <= 10**6 else upper

    def _write_bad(self, step: Step, belief: _Belief) -> None:
        step["bad"] = KEYED_WRITE if kind_of(step["name"]) in KEYED_ONLY else self.chance.choice(sorted(BAD_WRITES))
        step["updates"] = []

    def _evolve(self, step: Step, belief: _Belief) -> None:
        """Change the schema, mostly through a handle that was loaded just before; others are refused."""
        self.next_marker += 1
        drops = bool(belief.columns) and self.chance.random() < 0.5
        step["how"] = "drop" if drops else "add"
        # Sometimes one that is there, or is not there any more.
        again = [each for each in belief.columns if self.chance.random() < 0.1]
        step["column"] = self.chance.choice(belief.columns[-2:]) if drops else (again or [f"x{self.next_marker}"])[0]
        if not drops:
            belief.columns.append(step["column"])
        # Handles that know another schema write soon after, with what they know.
        for slot, names in self.handles.items():
            if step["name"] in names and slot in self.modes and self.chance.random() < 0.7:
                if not drops and slot != step["slot"]:
                    self.planned.append({"op": "load", "slot": slot, "name": step["name"]})
                written: Step = {"slot": slot, "name": step["name"], **self._written(step["name"])}
                self.planned.append({**written, "wait": "now"})
        if self.chance.random() < 0.75:
            self._add_faults(step)
            self.planned.insert(0, dict(step))
            step.clear()
            step.update(op="load", slot=self.planned[0]["slot"], name=self.planned[0]["name"])

    def _seal(self, step: Step, belief: _Belief) -> None:
        self._wait(step)
        chance = self.chance
        if chance.random() < 0.015:
            step["upper"] = EMPTY
        elif chance.random() < 0.06:
            step["upper"] = max(0, min(belief.upper, 10**6) - chance.randint(1, 4))
        else:
            step["upper"] = min(belief.upper, 10**6) + chance.choice([0, 1, 1, 2, 2, 3])
        if chance.random() < 0.1:
            step["expected_upper"] = self._about(belief.upper)
        belief.upper = max(belief.upper, step["upper"])

    def _restore(self, step: Step, belief: _Belief) -> None:
        """Mostly after a seal beyond all that was written: with updates that are not sealed, it is refused."""
        self._wait(step)
        step["as_of"] = self._as_of(belief) or 0
        belief.records = []
        if self.chance.random() < 0.7:
            self.planned.insert(0, dict(step))
            belief.upper = min(belief.upper, 10**6) + 8
            step["op"], step["upper"], step["wait"] = "seal", belief.upper, "now"
        belief.upper += belief.upper < 10**6

    def _allow_compaction(self, step: Step, belief: _Belief) -> None:
        self._wait(step)
        ahead = 2 if self.chance.random() < 0.1 else -1
        step["since"] = max(0, min(belief.upper, 10**6) + ahead - self.chance.choice([0, 1, 2, 3, 5]))
        belief.since = max(belief.since, step["since"])

    def _destroy(self, step: Step, belief: _Belief) -> None:
        self._wait(step)
        self.belief[step["name"]] = _Belief()
        if self.chance.random() < 0.5:
            self._plan_reads_of_what_is_gone(step["name"])
        for names in self.handles.values():
            if self.chance.random() < 0.8:  # Some go on with a handle of what is not there any more.
                names.discard(step["name"])

    def _clone(self, step: Step, belief: _Belief) -> None:
        name = step["name"]
        step["target"] = name.removesuffix(CLONED) if name.endswith(CLONED) else name + CLONED
        step["as_of"] = None if self.chance.random() < 0.4 else self._as_of(belief)
        self.handles[step["slot"]].add(step["target"])
        if not (clone := self.belief[step["target"]]).exists:
            clone.exists, clone.columns = True, [*belief.columns]
            clone.since = min(belief.upper, 10**6) - 1 if step["as_of"] is None else step["as_of"]
            clone.upper = clone.since + 1
        if self.chance.random() < 0.3:
            self._plan_reads_of_what_is_gone(name)
            self.planned.insert(0, {"op": "destroy", "slot": step["slot"], "name": name, "wait": "now"})
            self.belief[name] = _Belief()

    def _publish(self, step: Step, belief: _Belief) -> None:
        step["as_of"] = None if self.chance.random() < 0.5 else self._as_of(belief)
        step["deletes"] = "vectors" if self.chance.random() < 0.8 else "none"
        step["feed"] = self.chance.random() < 0.3

    def _plan_reads_of_what_is_gone(self, name: str) -> None:
        """Let garbage be collected soon after, and what was taken before be read again."""
        chance = self.chance
        taken = [each for each in self.taken["snapshot"][-12:] if each["name"] == name]
        for _ in range(chance.choice([1, 2, 3])):
            self.planned.append({"op": "pass", "slot": None, "seconds": chance.choice([10, 40, 100, 200])})
            self.planned.append({"op": chance.choice(["gc", "maintain"]), "slot": chance.randrange(self.slots)})
            for each in taken:
                self.planned.append({"op": "read", "slot": each["slot"], "of": each, "count": False})

    def _multi(self, step: Step, belief: _Belief) -> None:
        chance = self.chance
        if self.multi_with_token and chance.random() < 0.15:
            again = chance.choice(self.multi_with_token[-4:])
            step |= {name: again[name] for name in ("steps", "token", "wait", "raises")}
            return
        known = sorted(self.handles[step["slot"]])
        names = chance.sample(known, k=min(len(known), chance.choice([1, 2, 2, 3])))
        step.pop("name")
        step["steps"] = []
        for name in names:
            # The first write says where the block is in the log.
            if not step["steps"] or chance.random() < 0.85:
                step["steps"].append(self._written_in_block(name))
        leave_no_trace = {name for kind, name, what in step["steps"] if kind == "upsert" and what[0][1] is None}
        for name in names:
            if name not in leave_no_trace and chance.random() < 0.4:
                sealed: Step = {"slot": step["slot"]}
                self._seal(sealed, self.belief[name])
                step["steps"].append(["seal", name, sealed["upper"]])
        self._wait(step)
        step["wait"] = "now"
        step["raises"] = chance.random() < 0.12
        if chance.random() < 0.25:
            step["token"] = f"t{self.next_marker}"
            self.multi_with_token.append(step)

    def _as_of(self, belief: _Belief) -> int | None:
        chance = self.chance
        if chance.random() < 0.12:
            return None
        upper = min(belief.upper, 10**6)
        if chance.random() < 0.1:
            return upper + chance.randint(0, 2)
        if chance.random() < 0.2:
            return max(0, belief.since - chance.randint(-1, 2))
        return max(0, upper - 1 - chance.choice([0, 0, 1, 2]))

    def _snapshot(self, step: Step, belief: _Belief) -> None:
        chance = self.chance
        step["as_of"] = chance.choice(TAGS) if chance.random() < 0.05 else self._as_of(belief)
        step["form"] = chance.choice(["rows", "diff", "diff"])
        step["columns"] = chance.choices(["kv", "k", "v", "vk"], [6, 1, 1, 1])[0]
        step["above"] = chance.randrange(KEYS) if chance.random() < 0.15 else None
        step["reads"] = chance.random() < 0.6
        self.taken["snapshot"].append(step)

    def _changes(self, step: Step, belief: _Belief) -> None:
        upper = min(belief.upper, 10**6)
        step["lower"] = max(0, upper - self.chance.randint(0, 6))
        step["upper"] = max(0, step["lower"] + self.chance.choice([-1, 0, 1, 2, 3, 3, 4, 6]))

    def _listen(self, step: Step, belief: _Belief) -> None:
        step["as_of"] = self._as_of(belief) or 0
        self.taken["feed"].append(step)

    def _subscribe(self, step: Step, belief: _Belief) -> None:
        step["as_of"] = self._as_of(belief)
        self.taken["feed"].append(step)

    def _compact(self, step: Step, belief: _Belief) -> None:
        step["full"] = self.chance.random() < 0.5
        if self.chance.random() < 0.04:
            self._crash_in(step, calls=8)

    def _gc(self, step: Step) -> None:
        if self.chance.random() < self.stops:
            self._stop(step, STOPS_S)
        if self.chance.random() < 0.04:
            self._crash_in(step, calls=8)

    def _stop(self, step: Step, seconds: tuple[float, ...]) -> None:
        chance = self.chance
        request, skipped = chance.choice([("", 40), ("list ", 5), ("list checkpoint/", 3), ("get checkpoint/", 3)])
        step["stop"] = {"request": request, "skipped": chance.randrange(skipped), "seconds": chance.choice(seconds)}

    def _crash_in(self, step: Step, calls: int) -> None:
        step["crash"] = {"calls": self.chance.randrange(calls), "how": self.chance.choice(["before", "after", "limbo"])}
        self._forget(step["slot"], "crash")

    def _hold(self, step: Step, belief: _Belief) -> None:
        step["time"] = self._as_of(belief) or 0
        step["hold"] = self.chance.choice([None, None, "one", "two"])
        self.taken["hold"].append(step)

    def _add_faults(self, step: Step) -> None:
        chance = self.chance
        if chance.random() >= WEATHER[self.weather]:
            return
        kind = chance.choice(["blip", "blip", "noise", "lost", "outage"])
        if kind == "blip":
            step["faults"] = {chance.choice(REQUESTS): [chance.choice(FAULTS)]}
        elif kind == "noise":
            odds = [4, 1, 1, 1, 1]
            step["faults"] = {each: chance.choices(["NONE", *FAULTS], odds, k=12) for each in REQUESTS}
        elif kind == "lost":
            first = chance.choice(FAULTS[1:3])
            step["faults"] = {"create": [first] + ["UNAVAILABLE"] * chance.choice([1, 3, OUTAGE_REQUESTS])}
        else:
            step["faults"] = {each: ["UNAVAILABLE"] * OUTAGE_REQUESTS for each in chance.sample(REQUESTS, 2)}


def _resolved(step: Step) -> Step:
    """Return the step with the step it refers to replaced by its id."""
    return {**step, "of": step["of"]["id"]} if "of" in step else step
