"""The side of Pathway: what `benchmarks.against_pathway` starts in an environment that has it, and nothing of ours.

    python -P benchmarks/pathway_side.py counting FACTS CHANGES BATCHES | texts … | reachability NODES EDGES CHANGES

Prints, as JSON, the CPU seconds of the process from when updates are given to when their result was seen: of the load,
and of each change and batch.
"""

import json
import random
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pathway as pw  # type: ignore[import-not-found]

BATCH = 100_000


class Fact(pw.Schema):  # type: ignore[misc]
    id: int
    k: int


class TextFact(pw.Schema):  # type: ignore[misc]
    id: int
    k: str


class TextDimension(pw.Schema):  # type: ignore[misc]
    k: str = pw.column_definition(primary_key=True)
    g: int


class Dimension(pw.Schema):  # type: ignore[misc]
    k: int = pw.column_definition(primary_key=True)
    g: int


class Edge(pw.Schema):  # type: ignore[misc]
    number: int = pw.column_definition(primary_key=True)
    source: int
    target: int


class Node(pw.Schema):  # type: ignore[misc]
    node: int = pw.column_definition(primary_key=True)


class Rows(pw.io.python.ConnectorSubject):  # type: ignore[misc]
    """Rows that are there from the beginning."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        super().__init__()
        self._rows = rows

    def run(self) -> None:
        for row in self._rows:
            self.next(**row)
        self.commit()


class Seen:
    """What came out: how many rows, or the sum of a column of them; and how many times with changes are over."""

    def __init__(self, table: Any, column: str | None = None) -> None:
        self.total = 0
        self.ends = 0
        self._column = column
        self._changed = threading.Condition()
        pw.io.subscribe(table, on_change=self._take, on_time_end=self._end)

    def _take(self, key: Any, row: dict[str, Any], time: int, is_addition: bool) -> None:
        amount = row[self._column] if self._column else 1
        self.total += amount if is_addition else -amount

    def _end(self, time: int) -> None:
        with self._changed:
            self.ends += 1
            self._changed.notify_all()

    def wait(self, is_done: Callable[[], bool]) -> None:
        with self._changed:
            while not self._changed.wait_for(is_done, timeout=60):
                print(f"waiting: total {self.total}, {self.ends} ends", file=sys.stderr, flush=True)


class Counting(pw.io.python.ConnectorSubject):  # type: ignore[misc]
    """Facts: a load, then one at a time, then batches."""

    deletions_enabled = False

    def __init__(self, facts: int, changes: int, batches: int, key: Callable[[int], Any]) -> None:
        super().__init__()
        self._key = key
        self.sizes = [facts, *[1] * changes, *[BATCH] * batches]
        self.dimensions = max(10, facts // 9)
        self.seen: Seen
        self.taken: list[float] = []

    def run(self) -> None:
        chance = random.Random(3)
        number = 0
        for size in self.sizes:
            keys = [self._key(chance.randrange(self.dimensions)) for _ in range(size)]
            began = time.process_time()
            for key in keys:
                self.next(id=number, k=key)
                number += 1
            self.commit()
            self.seen.wait(lambda: self.seen.total == number)  # noqa: B023
            self.taken.append(time.process_time() - began)


def counting(facts: int, changes: int, batches: int, *, texts: bool = False) -> dict[str, Any]:
    """Count facts by what their dimension says."""
    key: Callable[[int], Any] = "customer-{}".format if texts else int
    subject = Counting(facts, changes, batches, key)
    chance = random.Random(5)
    groups = max(1, subject.dimensions // 10)
    rows = [{"k": key(k), "g": chance.randrange(groups)} for k in range(subject.dimensions)]
    left = pw.io.python.read(subject, schema=TextFact if texts else Fact, autocommit_duration_ms=None)
    schema = TextDimension if texts else Dimension
    right = pw.io.python.read(Rows(rows), schema=schema, autocommit_duration_ms=None)
    both = left.join(right, left.k == right.k).select(right.g)
    subject.seen = Seen(both.groupby(both.g).reduce(both.g, n=pw.reducers.count()), "n")
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    load, *rest = subject.taken
    return {"load": load, "changes": rest[:changes], "batches": rest[changes:]}


class Edges(pw.io.python.ConnectorSubject):  # type: ignore[misc]
    """Edges, of which one is moved at a time: a row takes the place of the one with its primary key."""

    def __init__(self, nodes: int, edges: int, changes: int) -> None:
        super().__init__(session_type="upsert")
        self.nodes, self.edges, self.changes = nodes, edges, changes
        self.seen: Seen
        self.taken: list[float] = []

    def run(self) -> None:
        chance = random.Random(5)
        edges = [(chance.randrange(self.nodes), chance.randrange(self.nodes)) for _ in range(self.edges)]
        began = time.process_time()
        for number, (source, target) in enumerate(edges):
            self.next(number=number, source=source, target=target)
        self._given(began, lambda: self.seen.ends > 0)
        for _ in range(self.changes):
            row = chance.randrange(self.edges)
            to = (chance.randrange(self.nodes), chance.randrange(self.nodes))
            ends = self.seen.ends
            began = time.process_time()
            self.next(number=row, source=to[0], target=to[1])
            edges[row] = to
            self._given(began, lambda: self.seen.ends > ends)  # noqa: B023

    def _given(self, began: float, is_done: Callable[[], bool]) -> None:
        self.commit()
        self.seen.wait(is_done)
        self.taken.append(time.process_time() - began)


def reachability(nodes: int, count: int, changes: int) -> dict[str, Any]:
    """Keep the nodes that node 0 reaches."""
    subject = Edges(nodes, count, changes)
    edges = pw.io.python.read(subject, schema=Edge, autocommit_duration_ms=None)
    roots = pw.io.python.read(Rows([{"node": 0}]), schema=Node, autocommit_duration_ms=None)

    def step(reach: Any, edges: Any, roots: Any) -> dict[str, Any]:
        more = reach.join(edges, reach.node == edges.source).select(node=edges.target)
        every = more.concat_reindex(roots)
        return {"reach": every.groupby(every.node).reduce(every.node)}

    start = roots.groupby(roots.node).reduce(roots.node)
    reach = pw.iterate(step, reach=pw.iterate_universe(start), edges=edges, roots=roots).reach
    # The edges come out, too, so that every change shows something: a time without changes is not told of.
    shown = edges.select(node=-1 - edges.source * nodes - edges.target)
    subject.seen = Seen(reach.concat_reindex(shown))
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    return {"load": subject.taken[0], "changes": subject.taken[1:], "reached": subject.seen.total - count}


MEASURES: dict[str, Callable[..., dict[str, Any]]] = {
    "counting": counting,
    "texts": partial(counting, texts=True),
    "reachability": reachability,
}

if __name__ == "__main__":
    print(json.dumps(MEASURES[sys.argv[1]](*map(int, sys.argv[2:]))))
