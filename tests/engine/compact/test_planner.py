"""What is due, decided from descriptors of parts alone."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from persist.codecs.part.part import Part
from persist.core.settings import Tuning
from persist.engine.compact import LEVEL_BYTES, choose_next_work
from persist.engine.compact.planner import HISTORY_TIMES, NAME_ROWS, NAMES_TIMES, Forget, MakeKeyframe, MergeRuns, Thin
from tests.support.keyframes import contents_of, part_of

POLICY = Tuning(keyframe_rows_min=1000)


def test_a_keyframe_is_due_when_the_history_since_the_last_has_grown_past_a_fraction_of_it() -> None:
    def due(rows: int, **keyframes: int) -> object:
        return choose_next_work(contents_of(part_of(rows, 50, 60, negatives=1), **keyframes), POLICY)

    assert due(999) is None
    assert due(1000) == MakeKeyframe(99)
    assert due(4999, as_of40=10_000) is None
    assert due(5000, as_of40=10_000) == MakeKeyframe(99)
    assert due(5000, as_of99=10_000) is None


def row_of_parts() -> list[Part]:
    """Ten parts of 10,000 rows, with keys from 0 to 9, from 100 to 109, and so on."""
    return [part_of(10_000, 0, 0, keys=(first, first + 9)) for first in range(0, 1000, 100)]


TEN_NAMES = NAME_ROWS * 10


@pytest.mark.parametrize(
    ("keys", "parts"),
    [
        ((905, 2000), 1),
        ((450, 470), 1),  # Where the fifth part has none yet.
        ((-9, -1), 1),
        ((305, 400), 2),
        ((309, 399), 1),
        ((100, 108), 1),
        ((0, 9), 1),
    ],
)
def test_a_keyframe_is_due_when_the_history_is_twice_the_parts_that_it_touches(
    keys: tuple[int, int], parts: int
) -> None:
    def due(*rows: int, at: int = 50) -> object:
        history = [part_of(each, at, 60, negatives=1, keys=keys) for each in rows]
        return choose_next_work(contents_of(*history, as_of40=row_of_parts()), POLICY)

    enough = HISTORY_TIMES * (10_000 * parts + TEN_NAMES)
    assert due(enough - 1) is None
    assert due(enough) == due(enough // 2, enough // 2) == MakeKeyframe(99)
    assert due(enough, at=40) is None, "it lies across the last keyframe, and might count for each new one"


def test_history_that_touches_most_parts_waits_until_it_is_a_fraction_of_all_of_them() -> None:
    def due(rows: int, *keys: Sequence[int]) -> object:
        history = [part_of(rows // len(keys), 50, 60, negatives=1, keys=each) for each in keys]
        return choose_next_work(contents_of(*history, as_of40=row_of_parts()), POLICY)

    assert due(49_998, (150, 950)) is due(49_998, (150, 151), (250, 260), (901, 2000)) is None
    assert due(50_000, (150, 950)) == MakeKeyframe(99)
    without = [msgspec.structs.replace(part, keys_json=msgspec.Raw(b"null")) for part in row_of_parts()]
    hot = part_of(49_999, 50, 60, negatives=1, keys=(905, 2000))
    assert choose_next_work(contents_of(hot, as_of40=row_of_parts()), POLICY) == MakeKeyframe(99)
    assert choose_next_work(contents_of(hot, as_of40=without), POLICY) is None, "then it may touch any of them"


def test_no_keyframe_is_made_where_nothing_was_retracted() -> None:
    contents = contents_of(part_of(10**6, 0, 60), part_of(10**6, 61, 70))
    assert choose_next_work(contents, POLICY) is choose_next_work(contents, POLICY, full=True, destroy=True) is None


def test_no_keyframe_is_made_of_times_that_are_not_sealed() -> None:
    assert choose_next_work(contents_of(part_of(5000, 0, 9, negatives=9), upper=0), POLICY, full=True) is None
    assert choose_next_work(contents_of(part_of(5000, 7, 9, negatives=9), upper=5), POLICY, full=True) is None


def test_runs_of_similar_size_that_follow_each_other_in_time_are_merged() -> None:
    small = [part_of(100, at, at) for at in range(8)]
    assert choose_next_work(contents_of(*small[:7]), POLICY) is None
    assert choose_next_work(contents_of(*small), POLICY) == MergeRuns(tuple(range(8)))
    large = part_of(10**6, 4, 4)
    assert choose_next_work(contents_of(*small[:4], large, *small[4:]), POLICY) is None, "it lies between them"
    shuffled = [small[n] for n in (3, 0, 7, 1, 5, 2, 6, 4)]
    assert choose_next_work(contents_of(*shuffled), POLICY) == MergeRuns((1, 3, 5, 0, 7, 4, 6, 2))
    tiers = [part_of(40_000, at, at) for at in range(8)]
    between = contents_of(*tiers[:4], part_of(10, 4, 4), *tiers[4:])
    assert choose_next_work(between, POLICY) == MergeRuns(tuple(range(9))), "a small one is merged on the way"


def test_a_run_of_the_first_level_has_less_than_as_many_bytes_as_are_merged_into_the_next() -> None:
    most = LEVEL_BYTES * POLICY.merge_runs // 20  # A row has 20 bytes.
    small = [part_of(100, at, at) for at in range(7)]
    assert choose_next_work(contents_of(*small, part_of(most, 7, 7)), POLICY) == MergeRuns(tuple(range(8)))
    assert choose_next_work(contents_of(*small, part_of(most + 1, 7, 7)), POLICY) is None


def test_runs_are_not_merged_across_the_time_of_a_keyframe() -> None:
    small = [part_of(100, at, at) for at in range(8)]
    assert choose_next_work(contents_of(*small, as_of3=10_000), POLICY) is None
    assert choose_next_work(contents_of(*small, as_of7=10_000), POLICY) == MergeRuns(tuple(range(8)))
    astride = part_of(100, 2, 9)
    assert choose_next_work(contents_of(*small[:7], astride, as_of6=10_000), POLICY) is None


def test_history_before_a_keyframe_that_since_has_reached_is_forgotten() -> None:
    history = [part_of(100, 0, 9, negatives=5), part_of(100, 10, 19, negatives=5)]
    assert choose_next_work(contents_of(*history, since=8, as_of9=1000), POLICY) is None
    assert choose_next_work(contents_of(*history, since=9, as_of9=1000), POLICY) == Forget(9)
    assert choose_next_work(contents_of(*history, since=19, as_of9=1000, as_of15=1000), POLICY) == Forget(15)


def test_what_was_retracted_before_since_is_destroyed_when_it_must_be() -> None:
    history = [part_of(100, 0, 9, negatives=5), part_of(100, 10, 19, negatives=5)]
    contents = contents_of(*history, since=15, as_of9=1000)
    assert choose_next_work(contents, POLICY) == Forget(9)
    assert choose_next_work(contents, POLICY, destroy=True) == MakeKeyframe(15)
    assert choose_next_work(contents_of(*history, since=15, as_of15=1000), POLICY, destroy=True) == Forget(15)
    assert choose_next_work(contents_of(*history, since=0), POLICY, destroy=True) is None, "nothing was given up yet"
    beyond = contents_of(*history, since=500, upper=20)
    assert choose_next_work(beyond, POLICY, destroy=True) == MakeKeyframe(19), (
        "since may pass upper; a keyframe may not"
    )


def test_keyframes_are_thinned_evenly_where_they_outgrow_the_history() -> None:
    history = [part_of(1000, at, at, negatives=1) for at in range(0, 60, 10)]
    policy = Tuning(merge_runs=9)
    every = {f"as_of{at}": 1000 for at in range(9, 60, 10)}
    work = choose_next_work(contents_of(*history, **every, upper=60), policy)
    assert isinstance(work, Thin)
    kept = [at for at in range(9, 60, 10) if at not in work.keyframes]
    assert len(work.keyframes) == 2
    assert kept[-1] == 59
    assert max(b - a for a, b in zip([0, *kept], kept, strict=False)) <= 20


def test_keyframes_that_share_most_parts_cost_what_they_do_not_share() -> None:
    shared = row_of_parts()
    made: dict[str, Any] = {f"as_of{at}": [*shared[:9], part_of(100, 0, 0, keys=(900, 909))] for at in range(9, 60, 10)}
    history = [part_of(200, at, at, negatives=1) for at in range(0, 60, 10)]
    assert choose_next_work(contents_of(*history, **made, upper=60), Tuning(merge_runs=9)) is None
    crowded = [part_of(70, at, at, negatives=1) for at in range(0, 60, 10)]
    work = choose_next_work(contents_of(*crowded, **made, upper=60), Tuning(merge_runs=9))
    assert isinstance(work, Thin)
    assert len(work.keyframes) == 3, "two of 100 rows fit into a half of 420"


def test_keyframes_together_do_not_name_many_times_the_parts_that_there_are() -> None:
    shared = row_of_parts()
    made: dict[str, Any] = {f"as_of{at}": [*shared[:9], part_of(100, 0, 0, keys=(900, 909))] for at in range(1, 60)}
    history = [part_of(20_000, at, at, negatives=1) for at in range(0, 60, 10)]
    contents = contents_of(*history, **made, upper=60)
    work = choose_next_work(contents, Tuning(merge_runs=9))
    assert isinstance(work, Thin)
    kept = len(contents.keyframes) - len(work.keyframes)
    assert kept == NAMES_TIMES * len(contents.numbered) // 10
