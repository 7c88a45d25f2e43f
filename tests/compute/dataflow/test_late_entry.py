"""Records that enter a loop at an iteration of their own, against a loop in plain Python."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import persist
from persist.blob.errors import InvalidUsage
from persist.blob.protocol import MemoryBlob
from persist.core.expression.term import Expression
from persist.dataflow import Captured, Program, Stream, col, lit
from persist.errors import NotConverging, OperatorFailed
from tests.support.tiers import examples

NUMBERS = {"n": pa.int64()}
EVENTS = {"n": pa.int64(), "at": pa.int64()}
Event = tuple[int, int]


def halved(program: Program, enter_with_rounds: Expression) -> tuple[Stream, Captured]:
    """Return a loop in which numbers come late, and each is joined by its half, until there are no new ones."""
    events = program.input("events", key=EVENTS)
    scope = program.scope("halves", limit=50)
    numbers = scope.variable("numbers", schema=NUMBERS)
    entered = scope.enter_at(events, enter_with_rounds).project("n")
    numbers.set((numbers.map(n=col("n") // 2) + entered + numbers).distinct())
    return events, scope.leave(numbers).capture()


def by_hand(events: set[Event]) -> set[int]:
    known: set[int] = set()
    for n, _ in events:
        while n not in known:
            known.add(n)
            n //= 2
    return known


def contents(seen: Captured, time: int) -> Counter[tuple[object, ...]]:
    found: Counter[tuple[object, ...]] = Counter()
    for record, at, diff in seen.rows():
        assert isinstance(at, int)
        found[record] += diff * (at <= time)
    return +found


@settings(max_examples=examples(100), deadline=None)
@given(
    steps=st.lists(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 60)), max_size=4), min_size=1, max_size=6),
    per_step=st.integers(1, 3),
)
def test_what_enters_late_gives_the_fixed_point_as_if_it_had_been_there(
    steps: list[list[Event]], per_step: int
) -> None:
    program = Program("late")
    _, seen = halved(program, col("at"))
    present: set[Event] = set()
    known = []
    with program.open() as running:
        for time, toggled in enumerate(steps):
            for event in set(toggled):
                running["events"].insert([((event, None), time, -1 if event in present else 1)])
                present ^= {event}
            known.append(set(present))
            running["events"].advance_to(time + 1)
            if time % per_step == per_step - 1:
                running.step()
        running.step()
    for time, events in enumerate(known):
        assert contents(seen, time) == Counter((n,) for n in by_hand(events))


def test_an_iteration_begins_with_what_enters_there() -> None:
    """A loop that counts its iterations says when each record has come."""
    program = Program("rounds")
    events = program.input("events", key=EVENTS)
    scope = program.scope("rounds", limit=10)
    clock = scope.variable("clock", program.constant(pa.table({"tick": pa.array([0], pa.int64())})))
    entered = scope.enter_at(events, col("at"))
    before = scope.variable("before", schema={"n": pa.int64(), "tick": pa.int64()})
    first = (entered.cross(clock).project("n", "tick") + before).group_by("n").agg(tick=col("tick").min())
    before.set(first)
    clock.set(clock.map(tick=col("tick") + 1).filter(col("tick") <= 8).distinct())
    seen = scope.leave(first).capture()
    with program.open() as running:
        running["events"].insert([((event, None), 0, 1) for event in [(1, 0), (2, 3), (3, 5)]])
        running["events"].advance_to(1)
        running.step()
    assert contents(seen, 0) == Counter([(1, 0), (2, 3), (3, 5)])


def test_iterations_in_which_nothing_happens_are_skipped_and_do_not_count() -> None:
    program = Program("far")
    _, seen = halved(program, col("at"))
    with program.open() as running:
        running["events"].insert([(((8, 2**40), None), 0, 1), (((3, 0), None), 0, 1)])
        running["events"].advance_to(1)
        running.step()
    assert contents(seen, 0) == Counter((n,) for n in (0, 1, 2, 3, 4, 8))


def test_the_limit_counts_from_the_last_entry() -> None:
    program = Program("endless")
    events = program.input("events", key=EVENTS)
    scope = program.scope("up", limit=20)
    numbers = scope.variable("numbers", schema=NUMBERS)
    entered = scope.enter_at(events, col("at")).project("n")
    numbers.set((numbers.map(n=col("n") + 1) + entered).distinct())
    scope.leave(numbers).capture()
    with program.open() as running:
        running["events"].insert([(((1, 700), None), 0, 1)])
        running["events"].advance_to(1)
        with pytest.raises(NotConverging, match="'up' still had 1 changes after its limit of 20"):
            running.step()


@pytest.mark.parametrize(("at", "shown"), [(-1, "-1"), (None, "NULL"), (2**62 + 1, 2**62 + 1)])
def test_an_iteration_that_is_none_is_an_error_that_names_it(at: int | None, shown: object) -> None:
    program = Program("bad")
    events = program.input("events", key={"n": pa.int64()}, value={"at": pa.int64()})
    scope = program.scope("s")
    scope.leave(scope.enter_at(events, col("at"))).capture()
    with program.open() as running:
        running["events"].insert([((1, at), 0, 1)])
        running["events"].advance_to(1)
        with pytest.raises(OperatorFailed, match=f"enter at iteration {shown}; .*from 0 to {2**62}"):
            running.step()


def test_what_cannot_say_an_iteration_is_refused_when_the_program_is_built() -> None:
    program = Program("bad")
    events = program.input("events", key=EVENTS)
    scope = program.scope("outer")
    with pytest.raises(InvalidUsage, match=r"gives double, and an iteration is a whole number of up to 63 bits"):
        scope.enter_at(events, col("at") / 2)
    with pytest.raises(InvalidUsage, match=r"gives uint64"):
        scope.enter_at(events, lit(1, pa.uint64()))
    with pytest.raises(InvalidUsage, match=r"reads _time\. A record has to be taken away where it entered"):
        scope.enter_at(events, col("_time"))
    inner = scope.scope("inner")
    with pytest.raises(InvalidUsage, match=r"is not in the scope around 'inner'; enter the scopes in between first"):
        inner.enter_at(events, col("at"))


def test_a_plan_says_where_records_enter() -> None:
    program = Program("shown")
    halved(program, col("at") * 2)
    assert "enter at _round(" in program.explain()


def test_digits_of_a_whole_number() -> None:
    program = Program("digits")
    seen = program.input("x", key=NUMBERS).map(n=col("n"), digits=col("n").bit_length()).capture()
    numbers = [0, *itertools.chain(*((2**k - 1, 2**k, -(2**k)) for k in range(1, 63))), 2**63 - 1, -(2**63) + 1]
    with program.open() as running:
        running["x"].insert([((n, None), 0, 1) for n in numbers])
        running["x"].advance_to(1)
        running.step()
    assert contents(seen, 0) == Counter((n, n.bit_length()) for n in numbers)


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
        with pytest.raises(persist.InvalidUsage, match="is inside an iteration, and its output depends on the times"):
            program.open(client)
