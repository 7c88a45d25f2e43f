"""Operators that move records in time, inside of iterations: at each time the loop is the fixed point as of then."""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import persist
from persist.blob.protocol import MemoryBlob
from persist.dataflow import Captured, Program, Stream, col
from tests.support.tiers import examples

KV = {"k": pa.int64(), "v": pa.int64()}
Edge = tuple[int, int]
TIMES = 8
UPDATES = st.lists(
    st.tuples(st.tuples(st.integers(0, 3), st.integers(0, 3)), st.integers(0, 5), st.integers(0, 5)), max_size=12
)


def held(captured: Captured, time: tuple[int, ...]) -> Counter[Edge]:
    """Return what is there as of a time."""
    found: Counter[Edge] = Counter()
    for row in captured.updates().to_pylist():
        at = [value for name, value in row.items() if name.startswith("_time")]
        if all(one <= other for one, other in zip(at, time, strict=True)):
            found[row["k"], row["v"]] += row["_diff"]
    return Counter({record: count for record, count in found.items() if count})


def closure_of(edges: set[Edge], is_there: Callable[[Edge, int], bool], time: int) -> set[Edge]:
    """Return the paths of edges, of which only those count, at every step, that are there at a time."""
    paths = {edge for edge in edges if is_there(edge, time)}
    while True:
        longer = {(a, d) for (a, b), (c, d) in product(paths, edges) if b == c and is_there((a, d), time)}
        if longer <= paths:
            return paths
        paths |= longer


def paths(edges: Stream, kept: Callable[[Stream], Stream]) -> Stream:
    def body(path: Stream) -> Stream:
        longer = path.rename({"v": "w"}).join(edges.rename({"k": "w"}), "w").project("k", "v")
        return kept(longer + edges).distinct()

    return edges.filter(col("k") < 0).iterate(body)


def advanced(program: Program, updates: list[Any], dimensions: int) -> Iterator[Any]:
    """Run a program step by step, with the updates at their times."""
    with program.open() as running:
        inserted = [(e, (t, u)[:dimensions] if dimensions > 1 else t, 1) for e, t, u in updates]
        running["edges"].insert(inserted)
        for time in range(1, TIMES + 6):
            running["edges"].advance_to((time,) * dimensions if dimensions > 1 else time)
            running.step()
        yield


def given_edges(updates: list[Any], time: tuple[int, ...]) -> set[Edge]:
    return {edge for edge, *at in updates if all(one <= other for one, other in zip(at, time, strict=False))}


@settings(max_examples=examples(60), deadline=None)
@given(updates=UPDATES, dimensions=st.sampled_from([1, 2]))
def test_a_temporal_filter_in_a_loop_holds_at_every_time(updates: list[Any], dimensions: int) -> None:
    program, last = Program("windows", dimensions=dimensions), dimensions - 1
    edges = program.input("edges", key={"k": pa.int64()}, value={"v": pa.int64()})
    found = paths(edges, lambda s: s.temporal_filter(col("v"), col("k") + 4, dimension=last)).capture()
    for _ in advanced(program, updates, dimensions):
        for time in product(range(TIMES), repeat=dimensions):
            wanted = closure_of(given_edges(updates, time), lambda e, t: e[1] <= t < e[0] + 4, time[last])
            assert held(found, time) == Counter(wanted), time


@settings(max_examples=examples(60), deadline=None)
@given(updates=UPDATES, dimensions=st.sampled_from([1, 2]))
def test_times_of_a_function_in_a_loop_are_those_of_the_program(updates: list[Any], dimensions: int) -> None:
    program = Program("function", dimensions=dimensions)
    edges = program.input("edges", key={"k": pa.int64()}, value={"v": pa.int64()})

    def later(record: Any) -> list[Any]:
        time = (record.k + record.v,) * dimensions
        return [((record.k, record.v), time if dimensions > 1 else time[0], 1)]

    found = paths(edges, lambda s: s.join_function(later, schema=KV)).capture()
    for _ in advanced(program, updates, dimensions):
        for time in product(range(TIMES), repeat=dimensions):
            wanted = closure_of(given_edges(updates, time), lambda e, t: sum(e) <= t, min(time))
            assert held(found, time) == Counter(wanted), time


@settings(max_examples=examples(60), deadline=None)
@given(updates=UPDATES)
def test_a_delay_in_a_loop_lets_each_round_see_what_was_there_when_the_last_window_ended(updates: list[Any]) -> None:
    program = Program("delayed")
    edges = program.input("edges", key={"k": pa.int64()}, value={"v": pa.int64()})

    def body(path: Stream) -> Stream:
        longer = path.rename({"v": "w"}).join(edges.rename({"k": "w"}), "w").project("k", "v")
        return (longer.delay((col("_time") // 3 + 1) * 3) + edges).distinct()

    found = edges.filter(col("k") < 0).iterate(body).capture()
    for _ in advanced(program, updates, 1):
        before: dict[int, set[Edge]] = {}
        for time in range(TIMES):
            here = given_edges(updates, (time,))
            then = time // 3 * 3 - 1  # What of rounds before this time counts is as old as that.
            old = given_edges(updates, (then,)) if then >= 0 else set()
            longer = {(a, d) for (a, b), (c, d) in product(before.get(then, set()), old) if b == c}
            before[time] = here | longer
            assert held(found, (time,)) == Counter(before[time]), time


def test_what_a_loop_delays_cannot_be_resumed_and_is_refused() -> None:
    with persist.open(MemoryBlob()) as client:
        client.create_or_load("edges", key={"k": int}, value={"v": int}).seal(1).result()
        program = Program("kept").using(client)
        edges = program.source("edges")
        edges.iterate(lambda x: (x.delay(col("_time") + 1) + edges).distinct()).persist("out", key=["k"])
        with pytest.raises(persist.InvalidUsage, match="is inside an iteration and gives what depends on when"):
            program.open(client)
