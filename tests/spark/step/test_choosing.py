"""Who is to compute a step, by what there is to do."""

from dataclasses import replace

import pytest

from persist.spark.step.choosing import Estimate, Way, Work, best, estimates

GIB = 1 << 30
NEW = Work(10 * GIB, 1 << 10, 1 << 20, jobs=1, slots=2, is_open=False, free_bytes=100 * GIB, budget_bytes=4 * GIB)


def of(work: Work, way: Way) -> Estimate:
    [found] = [each for each in estimates(work) if each.way == way]
    return found


@pytest.mark.parametrize(
    ("work", "way"),
    [
        (NEW, "driver"),
        (replace(NEW, is_open=True), "embedded"),
        (replace(NEW, bytes=1 << 20), "embedded"),
        (replace(NEW, needed_bytes=2 * GIB, changed_bytes=GIB, slots=8), "spark"),
        (replace(NEW, needed_bytes=2 * GIB, changed_bytes=GIB, slots=8, free_bytes=GIB), "spark"),
        (replace(NEW, needed_bytes=None, slots=64), "recompute"),
        (replace(NEW, needed_bytes=10 * GIB, changed_bytes=5 * GIB, slots=64, is_open=True), "spark"),
    ],
)
def test_the_way_follows_from_what_there_is_to_do(work: Work, way: Way) -> None:
    assert best(estimates(work)).way == way


def test_what_the_embedded_engine_would_keep_is_held_against_its_budget_and_what_is_free() -> None:
    fits, spills, does_not_fit = (
        of(replace(NEW, budget_bytes=budget, free_bytes=free), "embedded")
        for budget, free in ((40 * GIB, 100 * GIB), (4 * GIB, 100 * GIB), (40 * GIB, 4 * GIB))
    )
    assert fits.seconds < spills.seconds < does_not_fit.seconds
    assert f"{4 * GIB:,} may be used" in spills.note
    assert of(replace(NEW, budget_bytes=0, is_open=True), "embedded").seconds < 0.001  # What it has, it has.


def test_tasks_on_the_driver_are_no_way_where_what_they_need_has_no_room() -> None:
    needy = replace(NEW, needed_bytes=2 * GIB, free_bytes=GIB)
    assert {each.way for each in estimates(needy)} == {"embedded", "spark", "recompute"}
