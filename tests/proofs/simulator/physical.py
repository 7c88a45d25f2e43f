"""How the log says that a collection is stored, and whether that still is what was written.

The parts of each collection by number, with the updates that their bytes hold, and which of them its runs and keyframes
list. A replace must not change what any of it stands for: the history is all updates at times `>= history_from`, and
each keyframe is the contents as of its time. Of a keyed collection, parts of events are pending until what they amount
to is in the history. Shares no code with the library.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tests.proofs.simulator.tables import Table, plan_next_version
from tests.support.model import EMPTY

Update = list[Any]  # k, v, time, diff
Run = list[int]


@dataclass(frozen=True, slots=True)
class Stored:
    """A part: what it holds, and the key of its blob, or "" for one that lives in the log."""

    updates: list[Update]
    blob: str


@dataclass(frozen=True, slots=True)
class Pending:
    """A part of events, `[k, v or None, time]`, in the order of arrival."""

    events: list[list[Any]]
    blob: str


@dataclass(slots=True)
class Physical:
    """One collection, as the records up to some seqno describe it; resolved are all updates that events became."""

    key_columns: int = 1
    numbered: dict[int, Stored] = field(default_factory=dict)
    next_number: int = 0
    history: list[Run] = field(default_factory=list)
    keyframes: dict[int, Run] = field(default_factory=dict)
    history_from: int = 0
    pending: dict[int, Pending] = field(default_factory=dict)
    resolved: list[Update] = field(default_factory=list)
    tables: dict[str, Table] = field(default_factory=dict)
    kept: dict[int, Stored] = field(default_factory=dict)  # Parts that tables name and no run.

    @property
    def blobs(self) -> set[str]:
        blobs = [part.blob for parts in (self.numbered, self.kept) for part in parts.values()]
        blobs += [part.blob for part in self.pending.values()]
        return {blob for blob in blobs if blob}.union(*(table.blobs for table in self.tables.values()))

    def publish(self, mutation: dict[str, Any], contents: Mapping[tuple[Any, Any], int]) -> Iterator[str]:
        """Take in a version of a table; yield what is wrong with it, given what the collection holds as of its time."""
        before, known = self.blobs, self.tables.get(mutation["table"])
        if mutation["version"] != (0 if known is None else known.version + 1):
            yield f"it is version {mutation['version']}, and follows {known}"
        numbers = self._number(mutation)
        made = plan_next_version(known, mutation, {-1 - n: number for n, number in enumerate(numbers)})
        self.tables[mutation["table"]] = made
        self.kept |= {number: self.numbered.pop(number) for number in numbers}
        brought = {self.kept[number].blob for number in numbers} | {*mutation["also"]}
        yield from self._keep_published({}, before | brought, mutation)
        rows: Counter[tuple[Any, Any]] = Counter()
        for number, (_, left_out) in made.files.items():
            part = self.numbered.get(number) or self.kept[number]
            rows.update((k, v) for at, (k, v, *_) in enumerate(part.updates) if at not in left_out)
        if rows != Counter(contents):
            yield f"the table holds {dict(rows)}, and the collection {dict(contents)}"

    def unpublish(self, mutation: dict[str, Any]) -> Iterator[str]:
        """Take in that a table is given up; yield what is wrong with that."""
        before = self.blobs
        if self.tables.pop(mutation["table"], None) is None:
            yield "there is no such table"
        yield from self._keep_published({}, before, mutation)

    def _keep_published(self, given_up: dict[int, Stored], before: set[str], mutation: dict[str, Any]) -> Iterator[str]:
        numbers = {number for table in self.tables.values() for number in table.numbers}
        there = self.kept | given_up
        self.kept = {number: part for number, part in there.items() if number in numbers}
        if missing := numbers - self.kept.keys() - self.numbered.keys():
            yield f"a table names the parts {missing}, which are not there"
        if {*mutation.get("unused", ())} != before - self.blobs:
            yield f"it says that {mutation.get('unused')} fall out of use, and {before - self.blobs} do"

    def erase(self, mutation: dict[str, Any], keys: set[int], updates: list[Update], resolved: int) -> Iterator[str]:
        """Take in an erasure; yield what is wrong with it, given what it is to erase and all updates that stay.

        Events at times that are resolved stand for nothing any more: a part of them alone may go with what is erased.
        """
        before, first, count = self.blobs, self.next_number, len(mutation["parts"])
        brought = [*zip(range(first, first + count), mutation["parts"], mutation["blobs"], strict=True)]
        at = count - mutation["events"]
        new = {n: Stored(part, blob) for n, part, blob in brought[:at]}
        waiting = {n: Pending(part, blob) for n, part, blob in brought[at:]}
        places = {number: [_resolved(n, first) for n in names] for number, names in mutation["replaced"]}
        for number, names in places.items():
            old = self.numbered[number].updates if number in self.numbered else self.pending[number].events
            left = [row for row in old if row[0] not in keys]
            came = [row for n in names for row in (new[n].updates if n in new else waiting[n].events)]
            if number in self.pending and not any(row[2] >= resolved for row in left):
                left = []
            order = _by_key if number in self.pending else in_any_order
            if order(left) != order(came):
                yield f"of part {number} stays {came} instead of {left}"
        self.numbered |= new
        self.history = [run for each in self.history if (run := _exchanged(each, places))]
        self.keyframes = {as_of: _exchanged(run, places) for as_of, run in self.keyframes.items()}
        in_use = {n for run in (*self.history, *self.keyframes.values()) for n in run}
        yield from self._check_numbers(in_use)
        self.numbered = {number: part for number, part in self.numbered.items() if number in in_use}
        there = self.pending | waiting
        self.next_number += count
        self.pending = dict(enumerate((there[n] for n in _exchanged([*self.pending], places)), self.next_number))
        self.next_number += len(self.pending)
        self.resolved = [update for update in self.resolved if update[0] not in keys]
        self.tables, self.kept = {}, {}
        if {*mutation["unused"]} != before - self.blobs:
            yield f"it says that {mutation['unused']} fall out of use, and {before - self.blobs} do"
        yield from self._check_contents(updates)

    def left_of(self, mutation: dict[str, Any], keys: set[int]) -> dict[tuple[Any, ...], int]:
        """Return the updates of some keys that an erasure leaves in the history, because they came meanwhile."""
        replaced = {number for number, _ in mutation["replaced"]}
        rows = (u for run in self.history for n in run if n not in replaced for u in self.numbered[n].updates)
        return summed(update for update in rows if update[0] in keys)

    def events_left_of(self, mutation: dict[str, Any], keys: set[int], resolved: int) -> list[list[Any]]:
        """Return the events of some keys that wait beyond resolved, and that an erasure leaves, in any order."""
        replaced = {number for number, _ in mutation["replaced"]}
        events = (event for n, part in self.pending.items() if n not in replaced for event in part.events)
        return in_any_order([event for event in events if event[0] in keys and event[2] >= resolved])

    def cloned(self, mutation: dict[str, Any], updates: list[Update], folder: str) -> Iterator[str]:
        """Become a clone's description of another collection, this one; yield what is wrong with it.

        Args:
            updates: all that the clone is to hold.
            folder: where its own blobs lie.
        """
        shared = {part.blob for part in self.numbered.values()}
        if strange := [b for b in mutation["blobs"] if b and b not in shared and not b.startswith(folder)]:
            yield f"it names {strange}, which its source does not"
        self.numbered, self.next_number, self.pending = {}, 0, {}
        self.tables, self.kept = {}, {}
        in_use = {*self._number(mutation)}
        self.history = [list(run) for run in mutation["runs"]]
        self.keyframes = {as_of: list(numbers) for as_of, numbers in mutation["keyframes"]}
        self.history_from = max((as_of + 1 for as_of in self.keyframes), default=0)
        self.resolved = [update for update in self.resolved if update[2] <= mutation["as_of"]]
        if in_use != {n for run in (*self.history, *self.keyframes.values()) for n in run}:
            yield "it brings parts that are in no run"
        yield from self._check_numbers(in_use)
        yield from self._check_contents(updates)

    def pend(self, mutation: dict[str, Any]) -> None:
        """Take in the parts of a pend."""
        for events, blob in zip(mutation["parts"], mutation["blobs"], strict=True):
            self.pending[self.next_number] = Pending(events, blob)
            self.next_number += 1

    def waiting(self, end: int) -> list[int]:
        """Return the numbers of the pending parts with an event before end."""
        return [number for number, part in self.pending.items() if min(time for *_, time in part.events) < end]

    def resolve(self, mutation: dict[str, Any], resolved: int) -> Iterator[str]:
        """Take in a resolve; yield what is wrong with it, given up to where everything is resolved."""
        start, end, before = mutation["start"], mutation["end"], self.blobs
        if start != resolved or end < start:
            yield f"it resolves from {start} to {end}, and {resolved} is resolved"
        if mutation["pending"] != self.waiting(end):
            yield f"it is made of {mutation['pending']}, and before {end} wait {self.waiting(end)}"
        wrong = [update for update in mutation["updates"] if not start <= update[2] < end]
        if wrong:
            yield f"{wrong} are at times that it does not resolve"
        self.pending = {n: part for n, part in self.pending.items() if max(t for *_, t in part.events) >= end}
        self.append(mutation)
        self.resolved += mutation["updates"]
        if set(mutation["unused"]) != before - self.blobs:
            yield f"it says that {mutation['unused']} fall out of use, and {before - self.blobs} do"

    def differences(self, events: list[list[Any]], updates: list[Update], resolved: int) -> Iterator[str]:
        """Yield in what the updates and the events that wait are others than all events that arrived say."""
        wanted, found = summed(u for u in updates if u[2] < resolved), summed(self.resolved)
        if wanted != found:
            yield f"its events became {_less(found, wanted)} instead of {_less(wanted, found)}"
        arrived = [event for part in self.pending.values() for event in part.events if event[2] >= resolved]
        waiting = [event for event in events if event[2] >= resolved]
        if _by_key(arrived) != _by_key(waiting):
            yield f"what waits to be resolved is {arrived} instead of {waiting}"

    def append(self, mutation: dict[str, Any]) -> None:
        """Take in the parts of an append, each a run by itself."""
        self.history += [[number] for number in self._number(mutation)]

    def replace(self, mutation: dict[str, Any], updates: list[Update], since: int, upper: int) -> Iterator[str]:
        """Take in a replace; yield what is wrong with it, given all that was written, since and upper."""
        first, before = self.next_number, self.blobs
        for _ in self._number(mutation):
            pass
        removed = [run for run in self.history if run[0] in mutation["removed_runs"]]
        if len(removed) != len(mutation["removed_runs"]):
            yield f"it removes runs {mutation['removed_runs']}, and there are {self.history}"
        self.history = [run for run in self.history if run not in removed]
        self.history += [[_resolved(n, first) for n in run] for run in mutation["runs"]]
        for as_of in mutation["removed_keyframes"]:
            if self.keyframes.pop(as_of, None) is None:
                yield f"it removes a keyframe as of {as_of}, which is not there"
        for as_of, numbers in mutation["keyframes"]:
            if as_of in self.keyframes or as_of >= upper:
                yield f"it makes a keyframe as of {as_of}; there are {sorted(self.keyframes)}, and upper is {upper}"
            self.keyframes[as_of] = [_resolved(n, first) for n in numbers]
        if mutation["history_from"] is not None:
            if not self.history_from <= mutation["history_from"] <= min(since + 1, EMPTY):
                yield f"its history begins at {mutation['history_from']}, since is {since}, and {self.history_from} was"
            self.history_from = mutation["history_from"]
        in_use = {n for run in (*self.history, *self.keyframes.values()) for n in run}
        yield from self._check_numbers(in_use)
        given_up = {number: part for number, part in self.numbered.items() if number not in in_use}
        self.numbered = {number: part for number, part in self.numbered.items() if number in in_use}
        yield from self._keep_published(given_up, before | {blob for blob in mutation["blobs"] if blob}, mutation)
        yield from self._check_contents(updates)

    def _number(self, mutation: dict[str, Any]) -> list[int]:
        parts = mutation.get("parts", [mutation.get("updates", [])])
        blobs = mutation.get("blobs", [""] * len(parts))
        numbers = list(range(self.next_number, self.next_number + len(parts)))
        self.numbered |= {n: Stored(u, b) for n, u, b in zip(numbers, parts, blobs, strict=True)}
        self.next_number += len(parts)
        return numbers

    def _check_numbers(self, in_use: set[int]) -> Iterator[str]:
        if missing := in_use - self.numbered.keys():
            yield f"nothing has the numbers {missing}"
            for number in missing:
                self.numbered[number] = Stored([], "")
        listed = [n for run in self.history for n in run]
        keyframed = {n for run in self.keyframes.values() for n in run}
        if len(set(listed)) < len(listed) or keyframed.intersection(listed):
            yield f"a part is in two runs: {self.history}, keyframes {self.keyframes}"
        if self.history_from and self.history_from - 1 not in self.keyframes:
            yield f"the history begins at {self.history_from}, and keyframes are at {sorted(self.keyframes)}"

    def _check_contents(self, updates: list[Update]) -> Iterator[str]:
        wanted = summed(u for u in updates if u[2] >= self.history_from)
        found = summed(u for run in self.history for n in run for u in self.numbered[n].updates)
        if wanted != found:
            yield f"the history lacks {_less(wanted, found)} and has {_less(found, wanted)} besides"
        for as_of, run in self.keyframes.items():
            kept = [u for n in run for u in self.numbered[n].updates]
            if any(time > as_of for _, _, time, _ in kept) or len({(k, v) for k, v, *_ in kept}) != len(kept):
                yield f"the keyframe as of {as_of} has later times, or records twice: {kept}"
            contents = summed([k, v, 0, d] for k, v, t, d in updates if t <= as_of)
            stands_for = summed([k, v, 0, d] for k, v, _, d in kept)
            if contents != stands_for:
                lacks, has = _less(contents, stands_for), _less(stands_for, contents)
                yield f"the keyframe as of {as_of} lacks {lacks} and has {has} besides"
        for run in (*self.history, *self.keyframes.values()):
            keyed = [[(*u[: self.key_columns],) for u in part] for part in self._parts(run) if part]
            spans = [(min(keys), max(keys)) for keys in keyed]
            if any(one[1] >= other[0] for one, other in pairwise(spans)):
                yield f"the parts of run {run} overlap in key: {spans}"

    def _parts(self, run: Run) -> list[list[Update]]:
        return [self.numbered[n].updates for n in run]


def _resolved(number: int, first: int) -> int:
    """Return the number of a part: -1, -2, … are those that come with the record."""
    return number if number >= 0 else first - 1 - number


def _exchanged(run: Run, places: Mapping[int, Run]) -> Run:
    """Return a run with other parts in the places of some."""
    return [n for number in run for n in places.get(number, [number])]


def in_any_order(rows: list[list[Any]]) -> list[list[Any]]:
    return sorted(rows, key=repr)


def _by_key(events: list[list[Any]]) -> list[list[Any]]:
    """Return events by key and time, and those of one key and time in the order in which they are given."""
    return sorted(events, key=lambda event: (event[0], event[2]))


def summed(updates: Iterable[Update]) -> dict[tuple[Any, ...], int]:
    sums: Counter[tuple[Any, ...]] = Counter()
    for k, v, time, diff in updates:
        sums[k, v, time] += diff
    return {update: n for update, n in sums.items() if n}


def _less(one: dict[tuple[Any, ...], int], other: dict[tuple[Any, ...], int]) -> dict[tuple[Any, ...], int]:
    return {update: n for update, n in one.items() if other.get(update) != n}
