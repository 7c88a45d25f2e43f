"""Every operator gives what recomputing from scratch at every time gives."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persist.compute.dataflow.state.costs import USUAL, Costs
from tests.compute.dataflow.oracle import updates_of
from tests.compute.dataflow.programs import OPERATORS, build
from tests.compute.dataflow.schedule import captured, complete, drive, updates_strategy
from tests.support.tiers import examples

NAMES = [operator.__name__ for _, operator in OPERATORS]


def compare(
    data: st.DataObject, dimensions: int, choices: list[tuple[int, list[int]]], size: int, costs: Costs = USUAL
) -> None:
    program, streams = build(dimensions, 2, choices)
    captures = [each.stream.capture() for each in streams]
    probes = [each.stream.probe() for each in streams]
    inputs = [data.draw(updates_strategy(dimensions, size), label=f"in{number}") for number in range(2)]
    if data.draw(st.booleans(), label="in pieces"):
        costs = replace(costs, piece_rows=2)
    with program.open(optimise=data.draw(st.booleans()), costs=costs) as running:
        drive(data.draw, running, inputs, dimensions, data.draw(st.integers(0, 4), label="steps"))
    given = [updates_of(each) for each in inputs]
    for stream, capture, probe in zip(streams, captures, probes, strict=True):
        assert probe.frontier is not None
        expected = complete(stream.of(given), probe.frontier)
        assert captured(capture.rows()) == expected, stream.stream.node


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("which", range(len(OPERATORS)), ids=[f"{at}-{name}" for at, name in enumerate(NAMES)])
@settings(max_examples=examples(25))
@given(data=st.data())
def test_an_operator_agrees_with_recomputing_from_scratch(dimensions: int, which: int, data: Any) -> None:
    arguments = data.draw(st.lists(st.integers(0, 1), min_size=3, max_size=3), label="arguments")
    compare(data, dimensions, [(which, arguments)], 8)


@pytest.mark.parametrize("dimensions", [1, 2])
@settings(max_examples=examples(60))
@given(data=st.data())
def test_random_programs_agree_with_recomputing_from_scratch(dimensions: int, data: Any) -> None:
    choice = st.tuples(st.integers(0, len(OPERATORS) - 1), st.lists(st.integers(0, 5), min_size=3, max_size=3))
    compare(data, dimensions, data.draw(st.lists(choice, min_size=2, max_size=4), label="operators"), 6)


@settings(max_examples=examples(100))
@given(data=st.data(), cells=st.sampled_from([1, 4, 16]))
def test_many_times_at_once_are_reduced_block_by_block(data: Any, cells: int) -> None:
    compare(data, 1, [(data.draw(st.integers(0, len(OPERATORS) - 1)), [0, 1, 0])], 12, Costs(cells=cells))
