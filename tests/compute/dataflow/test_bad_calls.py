"""Calls that cannot be meant are clear errors of this library, and change nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import persist
from persist import InvalidUsage
from persist.codecs.errors import InvalidUpdate
from persist.dataflow import Antichain, Program, Stream, col
from persist.errors import NotConsolidated, OperatorFailed

KV = {"key": {"k": pa.int64()}, "value": {"v": pa.int64()}}


def numbers(dimensions: int = 1) -> tuple[Program, Stream]:
    program = Program("p", dimensions=dimensions)
    return program, program.input("a", **KV)


def raises(_: object) -> None:
    raise RuntimeError("no")


@pytest.mark.parametrize("found", ["no", 1, np.array([True, False])])
def test_a_condition_that_is_no_truth_value_names_operator_and_record(found: Any) -> None:
    program, a = numbers()
    a.filter(lambda _: found).named("odd").capture()
    with program.open() as running:
        running["a"].insert([((7, 1), 0, 1)])
        running["a"].close()
        with pytest.raises(OperatorFailed, match=r"operator odd failed on the record Record\(k=7, v=1\).*True, False"):
            running.step()


def test_conditions_are_true_false_or_null() -> None:
    program, a = numbers()
    seen = a.filter(lambda r: {1: True, 2: False, 3: None, 4: np.True_}[r.k]).capture()
    with program.open() as running:
        running["a"].insert([((key, 0), 0, 1) for key in (1, 2, 3, 4)])
        running["a"].close()
        running.step()
    assert sorted(record for record, _, _ in seen.rows()) == [(1, 0), (4, 0)]


def test_an_inspection_that_raises_names_the_operator() -> None:
    program, a = numbers()
    a.inspect(raises).named("look").capture()
    with program.open() as running:
        running["a"].insert([((7, 1), 0, 1)])
        running["a"].close()
        with pytest.raises(OperatorFailed, match=r"operator look failed.*RuntimeError"):
            running.step()


def test_options_are_checked_when_a_program_is_opened(tmp_path: Path) -> None:
    program, a = numbers()
    a.capture()
    wrongs: list[dict[str, Any]] = [
        *({"budget": 1}, {"optimise": 1}, {"replace": "yes"}, {"jump": None}, {"memory_budget": -1}),
        *({"memory_budget": "1 GB"}, {"memory_budget": 2.0**30}, {"spill_folder": str(tmp_path / "missing")}),
    ]
    for wrong in wrongs:
        with pytest.raises(InvalidUsage, match=next(iter(wrong))):
            program.open(**wrong)
    program.open(spill_folder=tmp_path, memory_budget=0).close()


def test_a_program_that_was_closed_does_nothing_more(client: persist.Client) -> None:
    program, a = numbers()
    a.persist("kept", key=["k"])
    running = program.open(client)
    running.close()
    running.close()
    for wrong in (running.step, running.run, lambda: running.run(until=3)):
        with pytest.raises(InvalidUsage, match="was closed"):
            wrong()
    assert client.load("kept").upper == persist.Antichain(0)


@pytest.mark.parametrize(
    "times",
    [
        pa.array([1.5]),
        pa.array(["1"]),
        pa.array([None], pa.int64()),
        pa.array([-1]),
        pa.array([2**63 - 1]),
        pa.array([2**64 - 1], pa.uint64()),
    ],
)
def test_columns_of_times_are_checked(times: pa.Array) -> None:
    program, a = numbers(2)
    seen = a.capture()
    with program.open() as running:
        with pytest.raises(InvalidUpdate, match="_time_1"):
            running["a"].insert(pa.table({"k": [1], "v": [1], "_time_0": [0], "_time_1": times, "_diff": [1]}))
        with pytest.raises(InvalidUpdate, match="the updates are 5"):
            running["a"].insert(5)
        running["a"].insert(
            pa.table({"k": [1], "v": [1], "_time_0": pa.array([2], pa.uint8()), "_time_1": [2**63 - 2], "_diff": [1]})
        )
        running["a"].close()
        running.step()
        assert seen.rows() == [((1, 1), (2, 2**63 - 2), 1)]


def test_a_loop_that_was_refused_leaves_the_program_as_it_was() -> None:
    program, a = numbers()
    seen = a.capture()
    before = str(program.plan)
    bodies: list[Callable[[Stream], Any]] = [
        *(lambda x: x.extend(v=col("v") + 1), lambda x: None, lambda x: x.project("w").distinct(), raises)
    ]
    for body in bodies:
        with pytest.raises((NotConsolidated, InvalidUsage, RuntimeError)):
            a.iterate(body)
    assert str(program.plan) == before
    with program.open() as running:
        running["a"].close()
        running.step()
    assert seen.rows() == []


def test_mistakes_are_errors_when_the_program_is_built() -> None:
    program, a = numbers()
    other = a.rename({"v": "w"})
    wrongs: list[Callable[[], object]] = [
        lambda: a.persist("../a\n", key=["k"]),
        lambda: a.persist(5, key=["k"]),  # type: ignore[arg-type]
        lambda: program.source(5, schema={"k": pa.int64()}),  # type: ignore[arg-type]
        lambda: program.source("s", schema=5),
        lambda: program.source("s", schema={"_time": pa.int64()}),
        lambda: program.constant([1, 2]),
        lambda: a.join(other, 5),  # type: ignore[arg-type]
        lambda: a.temporal_filter(col("v"), dimension="x"),  # type: ignore[arg-type]
        lambda: a.iterate(5),  # type: ignore[arg-type]
    ]
    for wrong in wrongs:
        with pytest.raises(InvalidUsage):
            wrong()
    assert len(program.plan.nodes) == 2


def test_frontiers_compare_with_times() -> None:
    assert Antichain(3) <= 3
    assert not Antichain(3) < 3
    assert Antichain(3) < 5
    assert Antichain(3) > 1
    assert Antichain((0, 1), (1, 0)) <= (1, 0)
    assert not Antichain((0, 1), (1, 0)) <= (0, 0)
    assert Antichain(3).meet(2) == Antichain(2)
    assert Antichain(3).join(5) == Antichain(5)
    with pytest.raises(InvalidUsage, match="dimensions"):
        Antichain(3) <= (1, 2)  # noqa: B015
    for wrong in ("x", None):
        with pytest.raises(TypeError):
            Antichain(3) <= wrong  # noqa: B015
