"""Judges a history by the log: what arrived in which order follows from the tokens, the rest from the ten-line model.

It is checked that

1. a call that its client was told of is in the log once; one that was refused is not; a repetition adds nothing;
2. of two calls that do not overlap, the log has the earlier one first;
3. a refusal names an upper or a late bound that there was, and that refuses some event of the call;
4. what was collected as late is what was late where the call stands in the log, for the reason that was told;
5. every read, whenever it was made and whoever had resolved what by then, is what the model says of the times read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from tests.upsert.faults.history import Call, Line, Read, Row, Wrong
from tests.upsert.model import Event, resolved

EMPTY = 2**63
CHOICES_MAX = 256
KEYS = 8  # Those that are looked up.
Mutation = dict[str, Any]


@dataclass
class _Told:
    """What is known of one collection after a part of the log.

    Attributes:
        arrived: the events that were taken, in order.
        before: upper before the last seal.
        uppers, bounds: that there were.
    """

    is_ordered: bool
    upper: int = 0
    before: int = 0
    bound: int | None = None
    arrived: list[Event] = field(default_factory=list)
    uppers: set[int] = field(default_factory=lambda: {0})
    bounds: set[int] = field(default_factory=set)

    def seal(self, upper: int) -> None:
        self.before, self.upper = self.upper, max(self.upper, upper)
        self.uppers.add(self.upper)

    def reason(self, row: Row, upper: int) -> str | None:
        """Return why an event is late, if it is."""
        if row[2] < upper:
            return "sealed"
        if self.is_ordered and self.bound is not None and (row[3] is None or row[3] < self.bound):
            return "late"
        return None

    def take(self, rows: Sequence[Row], behind: int) -> None:
        self.arrived += (Event(*row) for row in rows)
        marks = [row[3] for row in rows if row[3] is not None]
        if self.is_ordered and marks:
            self.advance(max(marks) - behind)

    def advance(self, bound: int) -> None:
        self.bound = bound if self.bound is None else max(self.bound, bound)
        self.bounds.add(self.bound)


def judge(lines: Sequence[Line], records: Sequence[list[Mutation]], names: dict[str, str], behind: int) -> list[str]:
    """Return what is wrong with a history.

    Args:
        records: the mutations of each record of the log, from its beginning.
        names: of the collections, by their ids; watermarks are declared where it begins with "ordered".
        behind: how far the late bound is behind the greatest watermark.
    """
    wrong = [f"{line.client} {line.doing}: {line.error}" for line in lines if isinstance(line, Wrong)]
    calls = {line.token: line for line in lines if isinstance(line, Call)}
    reads = [line for line in lines if isinstance(line, Read)]
    doubtful = _Replay(calls, records, names, behind, ()).run().doubtful
    if 2**doubtful > CHOICES_MAX:
        return [*wrong, f"{doubtful} calls may have been late in two ways: too many to try"]
    best: list[str] | None = None
    for choices in product((False, True), repeat=doubtful):
        replay = _Replay(calls, records, names, behind, choices).run()
        found = [*replay.wrong, *_wrong_reads(replay.told, reads), *_wrong_refusals(replay, calls)]
        if best is None or len(found) < len(best):
            best = found
    assert best is not None
    return [*wrong, *best]


class _Replay:
    """The log once more, and what each call came to in it.

    Args:
        choices: for each call of which it is not known, whether the seal before it was its own.
    """

    def __init__(
        self,
        calls: dict[str, Call],
        records: Sequence[list[Mutation]],
        names: dict[str, str],
        behind: int,
        choices: tuple[bool, ...],
    ) -> None:
        self._calls = calls
        self._records = records
        self._names = names
        self._behind = behind
        self._choices = choices
        self.doubtful = 0
        self.told = {name: _Told(name.startswith("ordered")) for name in names.values()}
        self.order: list[Call] = []
        self.wrong: list[str] = []

    def run(self) -> "_Replay":
        for mutations in self._records:
            for mutation in mutations:
                if mutation.get("collection") in self._names:
                    self._apply(mutation, self.told[self._names[mutation["collection"]]])
        seen = [call.token for call in self.order]
        for call in self._calls.values():
            n = seen.count(call.token)
            if n > 1 or (call.is_told and n != 1) or (not call.may_have_happened and n):
                self.wrong.append(f"{n} times in the log: {call}")
        self._check_real_time()
        return self

    def _apply(self, mutation: Mutation, told: _Told) -> None:
        kind = mutation["kind"]
        if kind in ("seal", "resolve"):
            told.seal(_time(mutation["upper" if kind == "seal" else "end"]))
        elif kind == "late_bound":
            told.advance(mutation["bound"])
        elif kind == "tokens":
            for token, *_ in mutation["tokens"]:
                if token not in self._calls:
                    self.wrong.append(f"nobody made the call {token} that is in the log")
                    continue
                self.order.append(self._calls[token])
                self._arrive(self._calls[token], told)

    def _arrive(self, call: Call, told: _Told) -> None:
        candidates = [told.upper] if call.seal is None else [told.before, told.upper]
        splits = [_split(call.rows, told, upper) for upper in candidates]
        if not call.collects:
            if not any(not late for _, late in splits):
                self.wrong.append(f"it holds events that were late (upper {told.upper}, bound {told.bound}): {call}")
            told.take(call.rows, self._behind)
            return
        answers = [each.late for each in call.attempts if each.outcome == "ok"]
        if answers and len(call.attempts) == 1:
            found = sorted(map(tuple, answers[0] or ()), key=repr)
            fitting = [split for split in splits if sorted(split[1], key=repr) == found]
            if not fitting:
                self.wrong.append(f"{splits[0][1]} was late (upper {candidates}, bound {told.bound}): {call}")
            timely, _ = (fitting or splits)[0]
        elif len(splits) == 2 and splits[0] != splits[1]:
            chosen = self._choices[self.doubtful] if self.doubtful < len(self._choices) else False
            self.doubtful += 1
            timely, _ = splits[chosen]
        else:
            timely, _ = splits[0]
        told.take(timely, self._behind)

    def _check_real_time(self) -> None:
        latest = 0
        for call in reversed(self.order):
            # Nothing that stands here began after something that stands later had been answered.
            if latest and min(each.invoked_ns for each in call.attempts) > latest:
                self.wrong.append(f"it stands in the log before what was over when it began: {call}")
            ends = [each.returned_ns for each in call.attempts if each.outcome == "ok"]
            if ends:
                latest = min(latest or ends[0], ends[0])


def _split(rows: Sequence[Row], told: _Told, upper: int) -> tuple[list[Row], list[Row]]:
    """Return the events that are in time, and those that are late."""
    timely: list[Row] = []
    late: list[Row] = []
    for row in rows:
        (timely if told.reason(row, upper) is None else late).append(row)
    return timely, late


def _wrong_refusals(replay: _Replay, calls: dict[str, Call]) -> list[str]:
    wrong = []
    for call in calls.values():
        told = replay.told[call.collection]
        for attempt in call.attempts:
            if attempt.outcome == "refused" and not _is_justified(call, attempt.error, attempt.told, told):
                wrong.append(f"nothing refuses {call}")
    return wrong


def _is_justified(call: Call, error: str, about: dict[str, int], told: _Told) -> bool:
    if error == "Unavailable":
        return True
    if error == "UpdateNotBeyondUpper":
        upper = about["upper"]
        return not call.collects and upper in told.uppers and min(row[2] for row in call.rows) < upper
    if error == "FrontierRegression":
        current = about["current"]
        return current in told.uppers and call.seal is not None and call.seal < current
    if error == "LateEvents":
        bound = about["bound"]
        late = [row for row in call.rows if row[3] is None or row[3] < bound]
        return not call.collects and bound in told.bounds and bool(late)
    return False


def _wrong_reads(told: dict[str, _Told], reads: Sequence[Read]) -> list[str]:
    wrong = []
    updates: dict[str, list[tuple[int, Any, int, int]]] = {}
    for name, each in told.items():
        found = resolved(each.arrived, ordered=each.is_ordered, tombstones=each.is_ordered)
        updates[name] = [update for update in found if update[1][1] is not None]
    for read in reads:
        wanted = _wanted(read, updates[read.collection])
        if [tuple(row) for row in read.found] != wanted:
            wrong.append(f"{read} should be {wanted}")
        if read.upper > told[read.collection].upper:
            wrong.append(f"{read} is of an upper that there never was")
    return wrong


def _wanted(read: Read, updates: list[tuple[int, Any, int, int]]) -> list[tuple[Any, ...]]:
    if read.what == "changes":
        inside = [(k, *row, t, d) for k, row, t, d in updates if read.time <= t < read.upper]
        return sorted(inside, key=repr)
    sums: dict[tuple[Any, ...], int] = {}
    for key, row, time, diff in updates:
        if time <= read.time:
            sums[key, *row] = sums.get((key, *row), 0) + diff
    rows = sorted((row for row, n in sums.items() if n), key=repr)
    if read.what == "count":
        return [(len(rows),)]
    return [row for row in rows if row[0] < KEYS] if read.what == "get" else rows


def _time(frontier: list[int]) -> int:
    return frontier[0] if frontier else EMPTY
