"""Dataflows in memory: 900k facts joined with 100k dimensions and counted in 10k groups; and degrees of a graph.

A change is one new fact, at a time of its own. Times of single changes are medians of many, so that the garbage of the
peers does not count. The peer of dictionaries loads a thirtieth, because it takes a minute for more.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.dictionaries import JoinAndCount
from benchmarks.harness import Measure, Row, Side, duration
from benchmarks.workspace import Workspace
from examples.dataflow import EDGES
from persist.dataflow import Captured, Program, Running, Stream

FACTS, DIMENSIONS, GROUPS, CHANGES = 900_000, 100_000, 10_000, 200
Ints = npt.NDArray[np.int64]


def counted(facts: Stream, dimensions: Stream) -> Stream:
    """Return how many facts each group has."""
    return facts.join(dimensions, "k").group_by("g").count()


class Counting:
    """The join and count in memory, by integers or by texts."""

    def __init__(self, facts: int, *, texts: bool = False, seed: int = 3) -> None:
        self.chance, self.texts, self.number, self.time = np.random.default_rng(seed), texts, 0, 0
        self.dimensions = max(10, facts * DIMENSIONS // FACTS)
        kind = pa.string() if texts else pa.int64()
        program = Program("counting")
        inputs = [
            program.input("facts", key={"id": pa.int64()}, value={"k": kind}),
            program.input("dimensions", key={"k": kind}, value={"g": pa.int64()}),
        ]
        self.seen: Captured = counted(inputs[0], inputs[1]).capture()
        self.groups = self.chance.integers(0, max(1, self.dimensions // 10), self.dimensions)
        self.facts = self.more(facts)
        self.running: Running = program.open()

    def key(self, keys: Ints) -> pa.Array:
        return pa.array(np.char.add("customer-", keys.astype(np.str_))) if self.texts else pa.array(keys)

    def more(self, count: int) -> pa.Table:
        keys = self.key(self.chance.integers(0, self.dimensions, count))
        self.number += count
        return updates({"id": np.arange(self.number - count, self.number), "k": keys}, self.time)

    def load(self) -> None:
        columns = {"k": self.key(np.arange(self.dimensions)), "g": self.groups}
        self.running["dimensions"].insert(updates(columns, self.time))
        self.insert(self.facts)

    def insert(self, table: pa.Table) -> None:
        self.running["facts"].insert(table)
        self.advance()

    def advance(self) -> None:
        self.time += 1
        for name in ("facts", "dimensions"):
            self.running[name].advance_to(self.time)
        self.running.step()

    def change(self) -> float:
        """Insert a fact; return how long the step took."""
        self.running["facts"].insert(self.more(1))
        began = time.perf_counter()
        self.advance()
        return time.perf_counter() - began


def updates(columns: dict[str, Any], at: int) -> pa.Table:
    rows = len(next(iter(columns.values())))
    return pa.table({**columns, "_time": np.full(rows, at), "_diff": np.ones(rows, np.int64)})


def join_and_count(work: Workspace) -> list[Row]:
    """Load, change by one and change by 100k; against dictionaries, and against DuckDB computing all of it again."""
    return [row for texts in (False, True) for row in _join_and_count(work, texts=texts)]


def _join_and_count(work: Workspace, *, texts: bool) -> list[Row]:
    facts = int(FACTS * work.scale)
    what = f"join and count, {facts:,} facts{', texts as keys' * texts}"
    fresh: list[Counting] = []
    mine = Side(lambda: fresh[0].load(), before=lambda: fresh.__setitem__(slice(None), [Counting(facts, texts=texts)]))
    few = Counting(facts // 30)
    changes = [((key, at), 0, 1) for at, key in enumerate(few.facts["k"].to_pylist())]
    dimensions = [((at, int(group)), 0, 1) for at, group in enumerate(few.groups)]
    peer = Side(lambda: JoinAndCount().step(changes, dimensions, 0), "dictionaries", units=1 / 30)
    reach = ">= 15x" if texts else ">= 30x"
    measure = Measure(f"{what}: load", "dictionaries, a thirtieth of it", reach, mine, [peer])
    rows = [measure.run(work.rounds, work.memory_of, work.clock)]
    ours = fresh[0]
    rows.append(_changes(what, ours, work))
    # Made before it is timed, at the time that has come by then.
    taken = statistics.median([_timed(partial(ours.insert, ours.more(100_000))) for _ in range(work.rounds)])
    rows.append(Row(f"{what}: changes of 100k", "-", "-", f"{duration(taken)}, {0.1 / taken:.2f}M/s"))
    bytes_ = ours.running.metrics()["state_bytes"]
    arrow = 8 * 4 * (ours.number + ours.dimensions)
    state = f"{bytes_ / 2**20:.0f} MiB"
    rows.append(Row(f"{what}: state", "Arrow size of both inputs", "<= 3x", state, ratio=f"{bytes_ / arrow:.2f}x"))
    return rows


def _changes(what: str, ours: Counting, work: Workspace) -> Row:
    taken = [ours.change() for _ in range(CHANGES)]
    with duckdb.connect() as connection:
        table, groups = ours.facts, pa.table({"k": ours.key(np.arange(ours.dimensions)), "g": ours.groups})
        connection.register("facts", table).execute("CREATE TABLE f AS FROM facts")
        connection.register("groups", groups).execute("CREATE TABLE d AS FROM groups")
        query = "SELECT g, count(*) FROM f JOIN d USING (k) GROUP BY g"
        duck = [_timed(lambda: connection.execute(query).fetchall()) for _ in range(work.rounds)]
    ratio = f"{statistics.median(duck) / statistics.median(taken):.0f}x"
    mine = f"{duration(statistics.median(taken))} (99%: {duration(float(np.percentile(taken, 99)))})"
    return Row(f"{what}: one change", "DuckDB recomputing", ">= 100x", mine, duration(statistics.median(duck)), ratio)


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def state(work: Workspace) -> list[Row]:
    """What a change takes as the state grows."""
    found = []
    for facts in (10**4, 10**5, 10**6, int(10**7 * work.scale)):
        ours = Counting(facts)
        ours.load()
        taken = [ours.change() for _ in range(CHANGES)]
        found.append(
            f"{facts:,}: {duration(statistics.median(taken))} (99%: {duration(float(np.percentile(taken, 99)))})"
        )
    return [Row("join and count: one change, by facts", "-", "flat or logarithmic", "; ".join(found))]


def degrees(work: Workspace, batch: int = 10_000) -> Row:
    """Return the distribution of the degrees of a graph under rounds of changes."""
    nodes, count = int(100_000 * work.scale), int(1_000_000 * work.scale)
    chance = np.random.default_rng(7)
    edges = chance.integers(0, nodes, (count, 2))
    program = Program("degrees")
    stream = program.input("edges", key=EDGES)
    probe = stream.group_by("source").count("degree").group_by("degree").count("nodes").probe()
    taken = []
    with program.open() as running:
        running["edges"].insert(updates({"source": edges[:, 0], "target": edges[:, 1]}, 0))
        running["edges"].advance_to(1)
        load = _timed(running.step)
        for turn in range(work.rounds):
            gone = chance.choice(count, batch, replace=False)
            new = chance.integers(0, nodes, (batch, 2))
            both = np.concatenate((edges[gone], new))
            at = np.tile(np.arange(1 + turn * batch, 1 + (turn + 1) * batch), 2)
            table = pa.table(
                {"source": both[:, 0], "target": both[:, 1], "_time": at, "_diff": np.repeat([-1, 1], batch)}
            )
            edges[gone] = new
            running["edges"].insert(table)
            running["edges"].advance_to(1 + (turn + 1) * batch)
            taken.append(_timed(running.step))
        assert probe.done(len(taken) * batch)
    rate = 2 * batch / statistics.median(taken)
    mine = f"load {count / load / 1e6:.2f}M/s; {rate / 1e3:.0f}k changes/s"
    return Row(
        f"degrees of {nodes:,} nodes, {count:,} edges: rounds of 2 changes, {batch:,} times at once",
        "about 400k changes/s in differential dataflow's README",
        ">= 0.3x",
        mine,
        ratio=f"{rate / 400_000:.2f}x",
    )
