"""Clones beside writes, compaction, garbage collection, evolution and drops, against a model that copies rows.

Two clients of one location do random things to plain and keyed collections and to clones of them, of all generations.
After each, every time of every collection that may be read must read as the model says. Now and then everything is
examined, and in the end, when all is dropped, no blob of a part may be left.
"""

import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.errors import CollectionExists, FrontierRegression, NegativeMultiplicity
from persist.services.fsck import FsckReport
from tests.support.clocks import DatedBlob, ImpatientClock
from tests.support.resolving import resolve_events
from tests.support.tuned import tuned

KEYS = 5
BIG = random.Random(0).randbytes(50_000).hex()  # A write with it is not an inline part.
Row = dict[int, Any]  # By the ids of columns.


@dataclass
class Modelled:
    """A collection: its updates, or its events if it is keyed, and its columns as (id, name) in order."""

    keyed: bool
    updates: list[tuple[int, Row | None, int, int]] = field(default_factory=list)
    columns: list[tuple[int, str]] = field(default_factory=lambda: [(1, "v")])
    next_id: int = 2
    upper: int = 0

    def held(self, as_of: int) -> list[tuple[int, Row, int]]:
        if self.keyed:
            now: dict[int, Row] = {}
            for k, row, time, _ in sorted(self.updates, key=lambda update: update[2]):
                if time <= as_of:
                    now.pop(k, None)
                    if row is not None:
                        now[k] = row
            return [(k, row, 1) for k, row in now.items()]
        return [(k, row, diff) for k, row, time, diff in self.updates if time <= as_of and row is not None]

    def contents(self, as_of: int) -> dict[Any, int]:
        sums: Counter[Any] = Counter()
        for k, row, diff in self.held(as_of):
            sums[k, *(row.get(id_) for id_, _ in self.columns)] += diff
        return {record: n for record, n in sums.items() if n}

    def clone(self, as_of: int) -> "Modelled":
        updates = [(k, row, as_of, diff) for k, row, diff in self.held(as_of)]
        return replace(self, updates=updates, columns=[*self.columns], upper=as_of + 1)  # type: ignore[arg-type]


class Run:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.blob = self.new_blob()
        self.clients = [self.opened(), self.opened()]
        self.models: dict[str, Modelled] = {}
        self.snapshots: list[tuple[persist.Snapshot, list[str], dict[Any, int]]] = []
        self.made = 0
        for name, keyed in (("plain", None), ("keyed", persist.Keyed()), ("late", persist.Keyed(resolve="background"))):
            self.clients[0].create_or_load(name, key={"k": pa.int64()}, value={"v": pa.string()}, keyed=keyed)
            self.models[name] = Modelled(keyed is not None)

    def new_blob(self) -> DatedBlob:
        return DatedBlob(ImpatientClock())

    def opened(self) -> persist.Client:
        settings = tuned(
            background=False, hold_linger_s=0, lease_s=1e6, grace_s=60, orphan_grace_s=120, log_retention_s=600,
            log_retention_records=20, keyframe_rows_min=4, keyframe_fraction=0.3, merge_runs=2, inline_runs=3,
            inline_bytes=20_000, part_bytes=self.chance.choice([1, 64 << 10]),
        )  # fmt: skip
        return persist.open(self.blob, clock=self.blob.clock, settings=settings)

    def step(self) -> None:
        weights = {
            "write": 8, "seal": 5, "clone": 4, "compact": 5, "allow": 3, "gc": 4, "drop": 1.5, "evolve": 1,
            "reopen": 1, "snapshot": 1, "resolve": 1, "maintain": 2, "publish": 1,
        }  # fmt: skip
        op = self.chance.choices(list(weights), list(weights.values()))[0]
        client = self.chance.choice(self.clients)
        if not self.models:
            self.clients[0].create_or_load("plain", key={"k": pa.int64()}, value={"v": pa.string()})
            self.models["plain"] = Modelled(False)
        name = self.chance.choice(sorted(self.models))
        getattr(self, f"_{op}")(client, name, self.models[name])

    def _write(self, client: persist.Client, name: str, model: Modelled) -> None:
        chance, rows = self.chance, []
        for _ in range(chance.randint(1, 6)):
            values = [chance.choice(["x", "y", BIG if chance.random() < 0.2 else "z"]) for _ in model.columns]
            row: Row | None = dict(zip((id_ for id_, _ in model.columns), values, strict=True))
            if model.keyed and chance.random() < 0.25:
                row = None
            rows.append(
                (chance.randrange(KEYS), row, model.upper + chance.choice([0, 0, 1, 3]), chance.choice([1, 1, -1]))
            )
        loaded = client.load(name)
        if model.keyed:
            loaded.upsert([(k, self._value(row), time) for k, row, time, _ in rows]).result()
        else:
            loaded.write([((k, self._value(row)), time, diff) for k, row, time, diff in rows]).result()
        model.updates += rows

    def _value(self, row: Row | None) -> Any:
        values = None if row is None else tuple(row.values())
        return values[0] if values is not None and len(values) == 1 else values

    def _seal(self, client: persist.Client, name: str, model: Modelled) -> None:
        model.upper += self.chance.choice([1, 1, 2, 4])
        client.load(name).seal(model.upper).result()

    def _clone(self, client: persist.Client, name: str, model: Modelled) -> None:
        source = client.load(name)
        since = source.since.time or 0
        if since >= model.upper or len(self.models) > 8:
            return
        as_of = self.chance.choice([None, self.chance.randrange(since, model.upper)])
        self.made += 1
        clone = client.clone(name, f"clone{self.made}", as_of=as_of)
        time = model.upper - 1 if as_of is None else as_of
        assert (clone.since.time, clone.upper.time) == (time, time + 1)
        self.models[clone.name] = model.clone(time)
        with pytest.raises(CollectionExists):
            client.clone(name, clone.name)

    def _compact(self, client: persist.Client, name: str, model: Modelled) -> None:
        client.load(name).compact(only_due=self.chance.random() < 0.5)

    def _allow(self, client: persist.Client, name: str, model: Modelled) -> None:
        loaded = client.load(name)
        with suppress(FrontierRegression):
            loaded.allow_compaction(max(0, model.upper - self.chance.randint(1, 4))).result()

    def _gc(self, client: persist.Client, name: str, model: Modelled) -> None:
        self.blob.clock.sleep(self.chance.choice([1, 70, 130, 700]))
        if not self.snapshots and self.chance.random() < 0.6:
            self._reopen_all()  # Whoever reads keeps what was dropped meanwhile.
            self.blob.clock.sleep(130)
        self.clients[0].gc()

    def _maintain(self, client: persist.Client, name: str, model: Modelled) -> None:
        self.blob.clock.sleep(self.chance.choice([1, 40, 130]))
        for each in self.clients:
            each.maintain()

    def _drop(self, client: persist.Client, name: str, model: Modelled) -> None:
        client.drop(name).result()
        del self.models[name]

    def _publish(self, client: persist.Client, name: str, model: Modelled) -> None:
        loaded = client.load(name)
        if loaded.published() and self.chance.random() < 0.5:
            loaded.unpublish("delta")
        elif model.upper:
            with suppress(NegativeMultiplicity):
                loaded.publish("delta")

    def _resolve(self, client: persist.Client, name: str, model: Modelled) -> None:
        if model.keyed:
            resolve_events(client.load(name))

    def _evolve(self, client: persist.Client, name: str, model: Modelled) -> None:
        how = self.chance.choice(["add", "drop", "rename"])
        at = self.chance.randrange(len(model.columns))
        id_, column = model.columns[at]
        new = f"c{self.chance.randrange(10**6)}"
        if how == "add":
            client.load(name).evolve(add={new: pa.string()})
            model.columns.append((model.next_id, new))
            model.next_id += 1
        elif how == "rename":
            client.load(name).evolve(rename={column: new})
            model.columns[at] = (id_, new)
        elif len(model.columns) > 1 and not model.keyed:
            client.load(name).evolve(drop=[column])
            del model.columns[at]

    def _reopen(self, client: persist.Client, name: str, model: Modelled) -> None:
        if not self.snapshots:
            self._reopen_all()

    def _reopen_all(self) -> None:
        for client in self.clients:
            client.close()
        self.clients = [self.opened(), self.opened()]

    def _snapshot(self, client: persist.Client, name: str, model: Modelled) -> None:
        if len(self.snapshots) > 2:
            self._read_one()
        elif model.upper:
            snapshot = client.load(name).snapshot(model.upper - 1, form="diff")
            self.snapshots.append((snapshot, [n for _, n in model.columns], model.contents(model.upper - 1)))

    def _read_one(self) -> None:
        snapshot, columns, wanted = self.snapshots.pop(0)
        with snapshot:
            assert self.sums(snapshot, columns) == wanted

    def sums(self, snapshot: persist.Snapshot, columns: list[str]) -> dict[Any, int]:
        table = snapshot.to_arrow()
        return {
            tuple(record): n
            for *record, n in zip(*(table[c].to_pylist() for c in ("k", *columns, "_diff")), strict=True)
        }

    def check(self, names: list[str], reader: persist.Client | None = None) -> None:
        client = reader or self.chance.choice(self.clients)
        for name in names:
            model, loaded = self.models[name], client.load(name)
            assert loaded.upper.time == model.upper
            for as_of in range(loaded.since.time or 0, model.upper):
                with loaded.snapshot(as_of, form="diff") as snapshot:
                    assert self.sums(snapshot, [n for _, n in model.columns]) == model.contents(as_of), (name, as_of)

    def examine(self) -> None:
        report: FsckReport = self.clients[0].fsck()
        assert not report.problems, report
        assert not [leak for leak in report.unreferenced if leak.kind == "foreign"], report

    def finish(self) -> None:
        self.check(sorted(self.models))
        self.examine()
        while self.snapshots:
            self._read_one()
        for name in sorted(self.models, key=lambda _: self.chance.random()):
            self.clients[1].drop(name).result()
            if self.chance.random() < 0.5:
                self._gc(self.clients[0], name, self.models[name])
        for client in self.clients:
            client.close()
        with self.opened() as client:
            for _ in range(4):
                self.blob.clock.sleep(700)
                client.gc()
        assert [entry.key for entry in self.blob.list("part/")] == []


def run(seed: int, steps: int) -> None:
    state = Run(seed)
    for number in range(steps):
        state.step()
        if state.models:
            state.check([state.chance.choice(sorted(state.models))])
        if number % 20 == 19:
            state.check(sorted(state.models))
        if number % 60 == 59:
            state.examine()
    state.finish()


def test_clones_and_their_sources_hold_what_copies_would() -> None:
    run(seed=1, steps=60)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(2, 12))
def test_many_clones_and_their_sources_hold_what_copies_would(seed: int) -> None:
    run(seed, steps=150)
