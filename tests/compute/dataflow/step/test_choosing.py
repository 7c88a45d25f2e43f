"""Which way is taken, by what there is to do."""

from dataclasses import replace

import pytest

from persist.compute.dataflow.step.choosing import Estimate, Work, best, could_pay, estimates, is_small, least_bytes

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


SEEN = Work(
    600_000_000, 1_000_000, 60_000_000, jobs=2, slots=4, spent_s=0.0, free_bytes=1_800_000_000,
    budget_bytes=1_800_000_000, whole_bytes=5_000_000, parts=3,
)  # fmt: skip
WAYS = {"state": 8.02, "step here": 0.6, "step tasks": 1.925, "step everything": 11.55}
OTHERS = {"step tasks": 1.925, "step everything": 11.55}


@pytest.mark.parametrize(
    ("work", "seconds"),
    [
        (SEEN, WAYS),
        (replace(SEEN, budget_bytes=SEEN.budget_bytes - 1), WAYS | {"state": 8.02 * 1.2}),
        (replace(SEEN, free_bytes=SEEN.free_bytes - 1), WAYS | {"state": 8.02 * 4}),
        (replace(SEEN, free_bytes=180_000_000), WAYS | {"state": 8.02 * 4}),
        (replace(SEEN, free_bytes=180_000_000 - 1), OTHERS | {"state": 8.02 * 4}),
        (replace(SEEN, slots=0), {"state": 8.02, "step here": 0.6}),
        (replace(SEEN, needed_bytes=None), {"state": 8.02, "step everything": 11.55}),
        (replace(SEEN, jobs=3), WAYS | {"step tasks": 2.725}),
        # As much as is read is passed on at most, by each part.
        (replace(SEEN, changed_bytes=100_000_000), WAYS | {"step here": 3.35, "step tasks": 4.675}),
        (replace(SEEN, whole_bytes=65_000_000), WAYS | {"step here": 1.6, "step tasks": 2.925}),
    ],
)
def test_what_a_way_takes_is_told_by_bytes_and_rates(work: Work, seconds: dict[str, float]) -> None:
    named = {
        f"{each.way} {'everything' if each.reads == 'everything' else each.where}".replace(
            "state everything", "state"
        ): each
        for each in estimates(work)
    }
    assert {name: each.seconds for name, each in named.items()} == pytest.approx(seconds)
    read = {"state": work.bytes, "step everything": work.bytes}
    assert {name: each.bytes for name, each in named.items()} == {
        name: read.get(name, work.needed_bytes) for name in seconds
    }


def test_a_way_is_told_in_words() -> None:
    assert [str(each) for each in estimates(SEEN)] == [
        "state here, of everything: about 600,000,000 bytes to read and 8.0 s "
        "(keeps about 1,800,000,000 bytes, 1,800,000,000 are free, and 1,800,000,000 may be used)",
        "step here, of what touched keys hold: about 60,000,000 bytes to read and 0.6 s (one stage at a time)",
        "step by tasks, of what touched keys hold: about 60,000,000 bytes to read and 1.9 s "
        "(2 jobs, 4 tasks at a time)",
        "step by tasks, of everything: about 600,000,000 bytes to read and 11.6 s (1 job, 4 tasks at a time)",
    ]


def test_what_a_step_reads_at_least_is_what_is_new_and_what_is_needed_whole() -> None:
    assert least_bytes(SEEN) == 6_000_000
    assert could_pay(replace(SEEN, needed_bytes=None))
    assert not could_pay(replace(SEEN, whole_bytes=600_000_000, slots=0))
    assert not could_pay(replace(SEEN, needed_bytes=1, spent_s=7.9))
    assert could_pay(replace(SEEN, needed_bytes=None, spent_s=7.5))


@pytest.mark.parametrize(("size", "spent_s", "is_it"), [
    (2_000_000, 0.0, True), (2_250_000, 0.0, False), (3_000_000, 0.0, False), (75_000_000, 0.98, True),
    (75_000_000, 0.96, False),
])  # fmt: skip
def test_state_of_little_takes_no_longer_than_a_step(size: int, spent_s: float, is_it: bool) -> None:
    assert is_small(size, spent_s) == is_it


HERE_AT_MOST_S = 0.1
