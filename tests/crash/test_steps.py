"""Processes killed before and after each change to the store, from "blob uploaded" to "record created"."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.crash.child import Step
from tests.crash.nursery import Nursery, nursery
from tests.crash.steps import kill_at_each, steps_of

SHARE = 5
KINDS = {"checkpoint", "directory", "list", "log", "part", "state"}


@pytest.fixture(scope="module")
def children() -> Iterator[Nursery]:
    with nursery() as warm:
        yield warm


def numbered(parent: str) -> Callable[[], str]:
    numbers = count()
    return lambda: f"{parent}/{next(numbers)}"


def sampled(steps: list[Step]) -> list[Step]:
    """Return some steps of each sort; `scripts/soak crash` takes all of them."""
    sorts: dict[tuple[str, str], list[Step]] = {}
    for step in steps:
        sorts.setdefault((step.operation, step.kind), []).append(step)
    return [step for n, some in enumerate(sorts.values()) for step in some[n % SHARE :: SHARE]]


@pytest.mark.sampled(0.15, group="long")
def test_a_call_happens_when_its_record_is_created_whichever_step_its_process_dies_at(
    children: Nursery, tmp_path: Path
) -> None:
    # What was written survives its process without an fsync; power cuts have tests of their own.
    options = {"fsync": False}
    new_location = numbered(str(tmp_path))
    every = steps_of(children, new_location(), options)
    assert {step.kind for step in every} >= KINDS
    assert {step.kind for step in every if step.operation == "delete"} >= {"part"}
    assert len(every) > 150
    steps = sampled(every)

    tally = kill_at_each(children, new_location, options, steps)

    # The last checkpoints may be left out, see kill_at_each.
    assert len(steps) - 6 <= tally.kills <= len(steps)
    assert tally.only_found >= 2
    assert tally.lost > 15


@pytest.mark.sampled(0.15, group="long")
def test_a_write_that_is_made_again_with_its_token_happens_once_whichever_step_its_process_died_at(
    children: Nursery, tmp_path: Path
) -> None:
    options = {"fsync": False}
    new_location = numbered(str(tmp_path))
    steps = [step for step in steps_of(children, new_location(), options) if step.kind == "log"][2:17]

    tally = kill_at_each(children, new_location, options, steps, retry=True)

    assert tally.kills == len(steps)
    assert tally.retried >= 6


@pytest.mark.sampled(0.15, group="long")
def test_the_same_in_a_bucket(children: Nursery, s3_location: tuple[str, dict[str, Any]]) -> None:
    url, options = s3_location
    steps = [
        Step("set", "part", 2, "after"),
        Step("create", "log", 5, "before"),
        Step("create", "log", 5, "after"),
    ]

    tally = kill_at_each(children, numbered(url), options, steps)

    assert tally.kills == len(steps)
