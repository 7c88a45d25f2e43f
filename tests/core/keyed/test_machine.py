"""Two clients upsert, seal, compact and resolve in any order; both policies are held against the model."""

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import persist
from persist.blob.protocol import MemoryBlob
from persist.core.settings import Tuning
from tests.core.keyed.model import Event, resolved
from tests.support.resolving import resolve_events
from tests.support.tiers import examples

POLICY = Tuning(keyframe_rows_min=3, keyframe_fraction=0.1, merge_runs=3, inline_runs=4)
SETTINGS = persist.Settings(background=False, tuning=replace(POLICY, hold_linger_s=0))
MARKS = st.one_of(st.none(), st.sampled_from([-1.5, -0.0, 0.0, 2.5, float("nan"), float("inf")]))
EVENTS = st.lists(
    st.tuples(st.integers(0, 4), st.one_of(st.none(), st.sampled_from("abc")), st.integers(0, 3), MARKS), max_size=6
)


class Upserts(RuleBasedStateMachine):
    """Does to two collections, one of each policy, what a list of events says, too."""

    @initialize(ordered=st.booleans(), tombstones=st.booleans())
    def open(self, ordered: bool, tombstones: bool) -> None:
        self.ordered, self.tombstones = ordered, ordered or tombstones
        blob = MemoryBlob("upserts")
        self.clients = [persist.open(blob, settings=SETTINGS) for _ in range(2)]
        self.events: list[Event] = []
        self.upper = self.since = 0
        self.called, self.added = "v", False
        declared: dict[str, Any] = {"order_by": ["mark"] if ordered else []}
        if self.tombstones:
            declared |= {"tombstone": "state", "tombstone_value": "gone"}
        fields = {"mark": pa.float64(), "v": pa.string(), "state": pa.string()}
        for client in self.clients:
            for policy in ("seal", "background"):
                client.create_or_load(
                    policy, key={"k": pa.int64()}, value=fields, keyed=persist.Keyed(**declared, resolve=policy)
                )

    def each(self, who: int) -> list[persist.Collection]:
        return [self.clients[who].load(policy) for policy in ("seal", "background")]

    def taken(self, drawn: list[Any]) -> tuple[list[Event], pa.Table]:
        """Return events as the model and as the collections have them."""
        events, marks = [], [mark for *_, mark in drawn]
        for key, value, after, mark in drawn:
            # One NaN object for all: the model compares by equality, in which another NaN would be another mark.
            mark = mark if mark is None or mark != mark else mark + 0.0
            events.append(Event(key, value, self.upper + after, mark))
        columns: dict[str, Any] = {"k": [e.key for e in events], "_time": [e.time for e in events]}
        columns |= {"mark": pa.array(marks, pa.float64()), self.called: [e.value for e in events]}
        columns["state"] = ["gone" if self.tombstones and e.value is None else "here" for e in events]
        if not self.tombstones:
            columns["_deleted"] = [e.value is None for e in events]
        if self.added:
            columns["n"] = pa.nulls(len(events), pa.int64())
        return events, pa.table({**columns, self.called: pa.array(columns[self.called], pa.string())})

    @rule(drawn=EVENTS, who=st.integers(0, 1))
    def upsert(self, drawn: list[Any], who: int) -> None:
        events, table = self.taken(drawn)
        for each in self.each(who):
            each.upsert(table).result()
        self.events += events

    @rule(drawn=EVENTS, by=st.integers(0, 4), who=st.integers(0, 1))
    def upsert_and_seal(self, drawn: list[Any], by: int, who: int) -> None:
        events, table = self.taken(drawn)
        for each in self.each(who):
            each.upsert(table, seal=self.upper + by).result()
        self.events += events
        self.upper += by

    @rule(who=st.integers(0, 1))
    def evolve(self, who: int) -> None:
        """Call a column otherwise, and add another one or drop it: what events amount to stays the same."""
        called, self.called = self.called, "w" if self.called == "v" else "v"
        for each in self.each(who):
            change: dict[str, Any] = {"drop": ["n"]} if self.added else {"add": {"n": pa.int64()}}
            each.evolve(rename={called: self.called}, **change)
        self.added = not self.added

    @rule(by=st.integers(0, 4), who=st.integers(0, 1))
    def seal(self, by: int, who: int) -> None:
        self.upper += by
        for each in self.each(who):
            each.seal(self.upper).result()

    @rule(who=st.integers(0, 1), full=st.booleans())
    def compact(self, who: int, full: bool) -> None:
        for each in self.each(who):
            each.compact(only_due=not full)

    @rule(who=st.integers(0, 1))
    def resolve(self, who: int) -> None:
        for each in self.each(who):
            resolve_events(each)

    @rule(by=st.integers(0, 6))
    def allow_compaction(self, by: int) -> None:
        self.since = max(self.since, min(self.since + by, self.upper - 1))
        for each in self.each(0):
            each.allow_compaction(self.since).result()

    @invariant()
    def reads_as_the_model(self) -> None:
        if not hasattr(self, "clients"):
            return
        expected = {
            u for u in resolved(self.events, ordered=self.ordered, tombstones=self.tombstones) if u[2] < self.upper
        }
        shown = {u for u in expected if u[1][1] is not None}
        for each in self.each(len(self.events) % 2):
            since = each.since.time or 0
            if since == 0:
                changes = each.changes(0, self.upper).to_arrow()
                assert as_shown(changes, self.called, "_time", "_diff") == names_of(shown)
            for as_of in sorted({since, (since + self.upper) // 2, self.upper - 1} & {*range(since, self.upper)}):
                contents: dict[Any, int] = {}
                for key, row, time, diff in shown:
                    if time <= as_of:
                        contents[key, str(row)] = contents.get((key, str(row)), 0) + diff
                snapshot = each.snapshot(as_of)
                assert sorted(k for k, n in contents.items() if n) == sorted(
                    (r["k"], str((r["mark"], r[self.called]))) for r in snapshot.to_arrow().to_pylist()
                )
                assert snapshot.count() == sum(contents.values())

    def teardown(self) -> None:
        if hasattr(self, "clients"):
            for each in (*self.each(0), *self.each(1)):
                parts = each.handle.contents()
                assert len(parts.pending) == 0 or each.unsealed is not None or each.name == "background"
            report = self.clients[0].fsck()
            assert report.is_clean, str(report)
            for client in self.clients:
                client.close()


def as_shown(table: pa.Table, called: str, *more: str) -> list[Any]:
    return sorted((r["k"], str((r["mark"], r[called])), *(r[name] for name in more)) for r in table.to_pylist())


def names_of(updates: set[tuple[int, Any, int, int]]) -> list[Any]:
    return sorted((key, str(row), time, diff) for key, row, time, diff in updates)


def test_rule_18_both_policies_and_the_model_agree_whatever_is_done() -> None:
    wanted = settings(max_examples=examples(12), stateful_step_count=12, deadline=None)
    run_state_machine_as_test(Upserts, settings=wanted)
