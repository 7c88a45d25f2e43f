"""The example programs, while what they are given is inserted and taken away, against plain recomputation."""

import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pytest

from examples.dataflow import (
    EDGES,
    components,
    connected,
    distances,
    main,
    page_rank,
    reachable,
    transitive_closure,
)
from persist.dataflow import Captured, Program, Stream, col

Edge = tuple[int, int]
Row = tuple[Any, ...]


def contents(seen: Captured, time: int) -> Counter[Row]:
    found: Counter[Row] = Counter()
    for record, at, diff in seen.rows():
        assert isinstance(at, int)
        if at <= time:
            found[record] += diff
    return +found


def following(edges: Iterable[Edge], start: Iterable[int]) -> dict[int, int]:
    """Return the nodes that can be reached, with how many edges away they are."""
    distance = dict.fromkeys(start, 0)
    ring = list(distance)
    while ring:
        ring = sorted({b for a, b in edges if a in ring} - set(distance))
        distance |= dict.fromkeys(ring, 1 + max(distance.values()))
    return distance


def paths(edges: set[Edge]) -> set[Edge]:
    found = set(edges)
    while more := {(a, d) for a, b in found for c, d in edges if b == c} - found:
        found |= more
    return found


def within_components(edges: set[Edge]) -> set[Edge]:
    whole = paths(edges)
    return {(a, b) for a, b in edges if a == b or (b, a) in whole}


def least_connected(edges: set[Edge]) -> Iterable[Row]:
    both = edges | {(b, a) for a, b in edges}
    return [(node, min(following(both, [node]))) for node, _ in both]


def ranked(edges: set[Edge]) -> dict[int, int]:
    nodes = {node for edge in edges for node in edge}
    degrees = Counter(a for a, _ in edges)
    ranks = dict.fromkeys(nodes, 1000)
    for _ in range(8):
        shares = {node: rank * 5 // (degrees[node] * 6) for node, rank in ranks.items() if degrees[node]}
        ranks = {node: 166 + sum(shares[a] for a, b in edges if b == node) for node in nodes}
    return ranks


GRAPHS: dict[str, tuple[Callable[[Stream, Stream], Stream], Callable[[set[Edge]], Iterable[Row]]]] = {
    "reachable": (reachable, lambda edges: {(node,) for node in following(edges, [0])}),
    "transitive closure": (lambda edges, roots: transitive_closure(edges), paths),
    "distances": (distances, lambda edges: following(edges, [0]).items()),
    "components": (lambda edges, roots: components(edges), within_components),
    "connected": (lambda edges, roots: connected(edges), lambda edges: set(least_connected(edges))),
    "page rank": (lambda edges, roots: page_rank(edges), lambda edges: ranked(edges).items()),
}


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize(("name", "per_step"), [*zip(GRAPHS, [1, 4] * 3, strict=True)])
def test_a_graph_program_follows_edges_that_come_and_go(name: str, per_step: int) -> None:
    made, recomputed = GRAPHS[name]
    rng = random.Random(7)
    program = Program("graph")
    edges = program.input("edges", key=EDGES)
    roots = program.input("roots", key={"node": pa.int64()})
    seen = made(edges, roots).capture()
    known: list[set[Edge]] = []
    present: set[Edge] = set()
    with program.open() as running:
        running["roots"].insert([((0, None), 0, 1)])
        running["roots"].close()
        for time in range(16):
            for _ in range(6 if time == 0 else 2):
                edge = (rng.randrange(8), rng.randrange(8))
                running["edges"].insert([((edge, None), time, -1 if edge in present else 1)])
                present ^= {edge}
            known.append(set(present))
            running["edges"].advance_to(time + 1)
            if time % per_step == per_step - 1:
                running.step()
    for time, edges_then in enumerate(known):
        assert contents(seen, time) == Counter(tuple(row) for row in recomputed(edges_then)), time


def test_mutually_recursive_variables_come_to_their_fixed_point() -> None:
    """Even and odd distances from 0, each made of the other."""
    program = Program("parity")
    edges = program.input("edges", key=EDGES)
    roots = program.input("roots", key={"node": pa.int64()})
    scope = program.scope("parity")
    even = scope.variable("even", roots)
    odd = scope.variable("odd", schema={"node": pa.int64()})

    def stepped(nodes: Stream) -> Stream:
        return nodes.join(scope.enter(edges), {"node": "source"}).map(node=col("target"))

    even.set((stepped(odd) + roots).distinct())
    odd.set(stepped(even).distinct())
    evens, odds = scope.leave(even).capture(), scope.leave(odd).capture()
    with program.open() as running:
        running["roots"].insert([((0, None), 0, 1)])
        running["edges"].insert([((edge, None), 0, 1) for edge in [(0, 1), (1, 2), (2, 3), (3, 4)]])
        running["edges"].insert([(((4, 0), None), 1, 1), (((1, 2), None), 2, -1)])
        for name in ("roots", "edges"):
            running[name].advance_to(3)
        running.step()
    assert (set(contents(evens, 0)), set(contents(odds, 0))) == ({(0,), (2,), (4,)}, {(1,), (3,)})
    assert set(contents(evens, 1)) == set(contents(odds, 1)) == {(node,) for node in range(5)}
    assert (set(contents(evens, 2)), set(contents(odds, 2))) == ({(0,)}, {(1,)})


def test_the_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    shown = capsys.readouterr().out
    assert "a glider after 3 generations\n.....\n.#...\n..##.\n.##..\n.....\n" in shown
    assert "their total: [((0,), 0, 1)]" in shown
