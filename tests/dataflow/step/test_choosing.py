"""Which way is taken, by what there is to do."""

from dataclasses import replace

import pytest

from persist.dataflow.step.choosing import Estimate, Work, best, could_pay, estimates

GIB = 1 << 30
NEW = Work(
    10 * GIB, 1 << 10, 1 << 20, jobs=1, slots=2, spent_s=0.0, free_bytes=100 * GIB, budget_bytes=4 * GIB
)  # fmt: skip


def state(work: Work) -> Estimate:
    [found] = [each for each in estimates(work) if each.way == "state"]
    return found


@pytest.mark.parametrize(
    ("work", "way"),
    [
        (NEW, "step here, touched"),
        (replace(NEW, slots=0), "step here, touched"),
        (replace(NEW, bytes=1 << 20), "state here, everything"),
        (replace(NEW, needed_bytes=2 * GIB, changed_bytes=GIB, slots=8), "step tasks, touched"),
        (replace(NEW, needed_bytes=2 * GIB, changed_bytes=GIB, slots=8, free_bytes=GIB), "step tasks, touched"),
        (replace(NEW, needed_bytes=None, slots=64), "step tasks, everything"),
        (replace(NEW, needed_bytes=None, slots=0), "state here, everything"),
        (replace(NEW, needed_bytes=10 * GIB, whole_bytes=10 * GIB, slots=0), "state here, everything"),
    ],
)
def test_the_way_follows_from_what_there_is_to_do(work: Work, way: str) -> None:
    taken = best(estimates(work))
    assert f"{taken.way} {taken.where}, {taken.reads}" == way


def test_state_is_opened_once_the_steps_of_a_handle_have_taken_as_long_as_it_does() -> None:
    work, ways = replace(NEW, slots=0), []
    for _ in range(10_000):
        taken = best(estimates(work), work.spent_s)
        ways.append(taken.way)
        if taken.way == "state":
            break
        work = replace(work, spent_s=work.spent_s + taken.seconds)
    assert ways == ["step"] * (len(ways) - 1) + ["state"]
    assert work.spent_s <= state(work).seconds < work.spent_s + 2 * HERE_AT_MOST_S
    assert not could_pay(work)


def test_what_state_would_take_is_held_against_its_budget_and_what_is_free() -> None:
    fits, spills, does_not_fit = (
        state(replace(NEW, budget_bytes=budget, free_bytes=free))
        for budget, free in ((40 * GIB, 100 * GIB), (4 * GIB, 100 * GIB), (40 * GIB, 4 * GIB))
    )
    assert fits.seconds < spills.seconds < does_not_fit.seconds
    assert f"{4 * GIB:,} may be used" in spills.note


def test_a_step_here_is_no_way_where_what_it_needs_has_no_room() -> None:
    needy = replace(NEW, needed_bytes=2 * GIB, free_bytes=GIB)
    assert [(each.way, each.where) for each in estimates(needy)] == [
        ("state", "here"), ("step", "tasks"), ("step", "tasks"),
    ]  # fmt: skip


HERE_AT_MOST_S = 0.1
