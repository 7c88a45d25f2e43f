"""Loops of a dataflow under changes of one edge, against plain Python that computes the answer again.

CPU time of this process, all threads. An edge is moved at each time. Both give the same answer at the end.
"""

import statistics
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa

from benchmarks.dataflows import degrees, updates
from benchmarks.harness import Row, duration
from benchmarks.workspace import Workspace
from examples.dataflow import EDGES, components, connected, distances, page_rank, reachable
from persist.dataflow import Program, Stream

CHANGES = 60
RANK_ROUNDS = 10
Edges = list[tuple[int, int]]
Answer = Counter[tuple[object, ...]]


def following(edges: Edges) -> dict[int, list[int]]:
    targets: dict[int, list[int]] = {}
    for source, target in edges:
        targets.setdefault(source, []).append(target)
    return targets


def ring_by_ring(edges: Edges) -> dict[int, int]:
    """Return how far away each node is that can be reached from 0."""
    targets, known, queue = following(edges), {0: 0}, deque([0])
    while queue:
        node = queue.popleft()
        for target in targets.get(node, ()):
            if target not in known:
                known[target] = known[node] + 1
                queue.append(target)
    return known


def least_connected(edges: Edges) -> Iterable[tuple[int, int]]:
    """Return each node with the least that it is connected with, by sets that are united."""
    above: dict[int, int] = {}

    def top(node: int) -> int:
        above.setdefault(node, node)
        while above[node] != node:
            above[node] = above[above[node]]
            node = above[node]
        return node

    for source, target in edges:
        one, other = sorted((top(source), top(target)))
        above[other] = one
    return ((node, top(node)) for node in list(above))


def within_components(edges: Edges) -> Iterable[tuple[int, int]]:
    """Return the edges within strongly connected components. (Kosaraju's algorithm.)"""
    forwards, backwards = following(edges), following([(target, source) for source, target in edges])
    order: list[int] = []
    seen: set[int] = set()
    for root in {node for edge in edges for node in edge}:
        if root in seen:
            continue
        seen.add(root)
        path = [(root, iter(forwards.get(root, ())))]
        while path:
            node, targets = path[-1]
            new = next((target for target in targets if target not in seen), None)
            if new is None:
                order.append(node)
                path.pop()
            else:
                seen.add(new)
                path.append((new, iter(forwards.get(new, ()))))
    component: dict[int, int] = {}
    for root in reversed(order):
        left = [] if root in component else [root]
        while left:
            node = left.pop()
            if node not in component:
                component[node] = root
                left += backwards.get(node, ())
    return ((source, target) for source, target in set(edges) if component[source] == component[target])


def ranked(edges: Edges) -> Iterable[tuple[int, int]]:
    """Return where the surfers are; see `examples.dataflow.page_rank`."""
    degree = Counter(source for source, _ in edges)
    ranks = dict.fromkeys({node for edge in edges for node in edge}, 1000)
    for _ in range(RANK_ROUNDS):
        sent = dict.fromkeys(ranks, 166)
        for source, target in edges:
            sent[target] += ranks[source] * 5 // (degree[source] * 6)
        ranks = sent
    return ranks.items()


Made = Callable[[Stream, Stream], Stream]
Recomputed = Callable[[Edges], Iterable[tuple[object, ...]]]
LOOPS: tuple[tuple[str, int, int, Made, Recomputed], ...] = (
    ("reachability", 300_000, 1_000_000, reachable, lambda edges: ((node,) for node in ring_by_ring(edges))),
    ("breadth first", 100_000, 200_000, distances, lambda edges: ring_by_ring(edges).items()),
    ("connected components", 100_000, 200_000, lambda edges, _: connected(edges), least_connected),
    ("connected components", 300_000, 1_000_000, lambda edges, _: connected(edges), least_connected),
    ("strongly connected components", 20_000, 40_000, lambda edges, _: components(edges), within_components),
    ("page rank", 20_000, 40_000, lambda edges, _: page_rank(edges, RANK_ROUNDS), ranked),
)


def graphs(work: Workspace) -> list[Row]:
    """Each loop, and the distribution of degrees under rounds of changes."""
    return [*(_loop(work.scale, *loop) for loop in LOOPS), degrees(work)]


def _loop(scale: float, name: str, most_nodes: int, most_edges: int, made: Made, recomputed: Recomputed) -> Row:
    nodes, count = int(most_nodes * scale), int(most_edges * scale)
    chance = np.random.default_rng(5)
    edges = chance.integers(0, nodes, (count, 2))
    program = Program("loop")
    stream, roots = program.input("edges", key=EDGES), program.input("roots", key={"node": pa.int64()})
    seen = made(stream, roots).capture()
    changes_s = []
    with program.open() as running:
        running["roots"].insert([((0, None), 0, 1)])
        running["roots"].close()
        running["edges"].insert(updates({"source": edges[:, 0], "target": edges[:, 1]}, 0))
        running["edges"].advance_to(1)
        load_s = _cpu_s(running.step)
        for at in range(1, CHANGES + 1):
            row, new = int(chance.integers(0, count)), chance.integers(0, nodes, 2)
            (a, b), (c, d) = edges[row].tolist(), new.tolist()
            edges[row] = new
            running["edges"].insert([(((a, b), None), at, -1), (((c, d), None), at, 1)])
            running["edges"].advance_to(at + 1)
            changes_s.append(_cpu_s(running.step))
    answer: Answer = Counter()
    for record, _, diff in seen.rows():
        answer[record] += diff
    plain = [(a, b) for a, b in edges.tolist()]
    wanted: list[Answer] = []
    again_s = _cpu_s(lambda: wanted.append(Counter(recomputed(plain))))
    assert +answer == wanted[0], name
    mean_s, median_s = statistics.mean(changes_s), statistics.median(changes_s)
    return Row(
        f"{name}, {nodes:,} nodes, {count:,} edges: an edge moved",
        "plain Python, again",
        "-",
        f"load {duration(load_s)}; mean {duration(mean_s)}, median {duration(median_s)}",
        theirs=duration(again_s),
        ratio=f"{again_s / mean_s:.0f}x",
    )


def _cpu_s(do: Callable[[], object]) -> float:
    began_s = time.process_time()
    do()
    return time.process_time() - began_s
