"""Random arrivals: which updates come when, and how the inputs' frontiers advance."""

from typing import Any

from hypothesis import strategies as st

from persist.dataflow import Antichain, Running
from tests.compute.dataflow.oracle import Record, Time, Updates, updates_of

VALUES = st.one_of(st.none(), st.integers(0, 3))


def updates_strategy(dimensions: int, size: int) -> st.SearchStrategy[list[tuple[Record, Time, int]]]:
    times = st.tuples(*[st.integers(0, 3)] * dimensions)
    records = st.tuples(VALUES, VALUES)
    return st.lists(st.tuples(records, times, st.sampled_from([1, 1, 1, -1])), max_size=size)


def frontiers(draw: Any, dimensions: int, steps: int) -> list[Antichain]:
    """Return frontiers that advance."""
    points = st.tuples(*[st.integers(0, 4)] * dimensions)
    found, at = [], Antichain((0,) * dimensions)
    for _ in range(steps):
        # Now and then an input is complete for ever, while others go on.
        least = draw(st.sampled_from([1, 1, 1, 0]))
        at = at.join(Antichain(*draw(st.lists(points, min_size=least, max_size=2))))
        found.append(at)
    return found


def drive(
    draw: Any, running: Running, inputs: list[list[tuple[Record, Time, int]]], dimensions: int, steps: int
) -> None:
    """Give each input its updates in a random order that its frontiers allow, and step in between."""
    plans = [frontiers(draw, dimensions, steps) for _ in inputs]
    left = [list(each) for each in inputs]
    for step in range(steps):
        for number, updates in enumerate(left):
            frontier = plans[number][step]
            early = draw(st.integers(0, len(updates))) if updates else 0
            due = [u for i, u in enumerate(updates) if i < early or not frontier.has_beyond(u[1])]
            left[number] = [u for i, u in enumerate(updates) if not (i < early or not frontier.has_beyond(u[1]))]
            give(running, number, due, dimensions)
            running[f"in{number}"].advance_to(frontier)
        if draw(st.booleans()):
            running.step()
    for number, updates in enumerate(left):
        give(running, number, updates, dimensions)
        if draw(st.booleans()):
            running[f"in{number}"].close()
    running.step()


def give(running: Running, number: int, updates: list[tuple[Record, Time, int]], dimensions: int) -> None:
    handle = running[f"in{number}"]
    handle.insert([(record, time if dimensions > 1 else time[0], diff) for record, time, diff in updates])


def complete(updates: Updates, frontier: Antichain) -> Updates:
    """Return the updates at times not beyond a frontier."""
    return {key: diff for key, diff in updates.items() if not frontier.has_beyond(key[1])}


def captured(rows: list[tuple[Any, Any, int]]) -> Updates:
    """Return what a capture holds as the oracle writes it."""
    found = updates_of((record, time if isinstance(time, tuple) else (time,), diff) for record, time, diff in rows)
    assert len(found) == len(rows), "a capture is consolidated"
    return found
