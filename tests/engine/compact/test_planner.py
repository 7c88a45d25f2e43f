"""What is due, decided from descriptors of parts alone."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

import msgspec
import pytest

from persist.codecs.part.part import Part
from persist.core.antichain import END
from persist.core.log.fields import Keyframe, Numbers
from persist.core.settings import Tuning
from persist.core.state_rules.contents import CollectionState
from persist.engine.compact import LEVEL_BYTES, choose_next_work, planner
from persist.engine.compact.planner import (
    HISTORY_TIMES,
    KEYFRAME_SPACE,
    NAME_ROWS,
    NAMES_TIMES,
    Forget,
    MakeKeyframe,
    MergeRuns,
    Thin,
    Work,
)
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
    small: Any = [part_of(100, 0, 0, keys=(0, 9)), part_of(10**6, 0, 0, keys=(100, 109))]
    for inside, is_due in ((999, False), (1000, True)):
        history = part_of(10, 40, 60, negatives=1), part_of(inside, 50, 60, negatives=1)
        assert (choose_next_work(contents_of(*history, as_of40=small), POLICY) is not None) is is_due


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


# The rules once more: by looking at everything, over small states in which most numbers are at some boundary.

SMALL = Tuning(keyframe_rows_min=6, merge_runs=2, inline_runs=3, inline_bytes=8, part_bytes=20)


def random_contents(chance: random.Random) -> CollectionState:
    """Return a collection of a few runs and keyframes, at few times, with few keys."""
    numbered: dict[int, Part] = {}

    def add(part: Part) -> int:
        numbered[len(numbered)] = part
        return len(numbered) - 1

    def part(keys: Sequence[int], *times: int, most: int = 9) -> Part:
        negatives, inline = int(chance.random() < 0.3), bytes(chance.randrange(1, 5)) * (chance.random() < 0.3)
        json = msgspec.json.encode([[key] for key in keys] if chance.random() < 0.95 else None)
        rows, size = chance.choice([2, 2, 3, 6, most, most]), chance.choice([1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 70])
        changed = {
            "keys_json": msgspec.Raw(json),
            "negatives": negatives,
            "inline": inline,
            "rows": rows,
            "bytes": size,
        }
        return msgspec.structs.replace(EXAMPLE, time_min=min(times), time_max=max(times), **changed)

    def run() -> Numbers:
        ends = sorted(chance.sample(range(8), chance.choice([2, 2, 4])))
        first = chance.randrange(7)
        return tuple(
            add(part(keys, first, first + chance.choice([0, 0, 0, 1, 3])))
            for keys in zip(*[iter(ends)] * 2, strict=True)
        )

    history = tuple(run() for _ in range(chance.randrange(9)))
    history = tuple(chance.sample(history, len(history)))
    keyframes, shared = list[Keyframe](), list[int]()
    for as_of in sorted(chance.sample(range(5), chance.choice([0, 1, 1, 2, 3, 5]))):
        kept = [number for number in shared if chance.random() < 0.8]
        shared = sorted(
            kept + [add(part((key, key + 1), 0, most=90)) for key in range(0, 8, 2) if chance.random() < 0.4]
        )
        keyframes.append(Keyframe(as_of, tuple(sorted(shared, key=lambda number: numbered[number].keys or [[0]]))))
    is_cut = bool(keyframes) and chance.random() < 0.3
    return CollectionState(
        *("0" * 32, "c", contents_of().schema_json),
        since_times=(chance.choice([0, 0, 1, chance.randrange(8), 7]),),
        upper_times=(chance.choice([0, 1, 2, 5, 6, 7, 8, 9, 9]),) if chance.random() < 0.8 else (),
        numbered=numbered,
        next_number=len(numbered),
        history=history,
        keyframes=tuple(keyframes),
        history_from=keyframes[0].as_of + 1 if is_cut else 0,
    )


EXAMPLE = msgspec.structs.replace(part_of(1, 0, 0), blob="")


def find_merge(c: CollectionState, tuning: Tuning, tried: set[int], full: bool) -> Numbers | None:
    spans = dict[Numbers, tuple[int, int]]()
    for run in c.history:
        parts = c.list_parts(run)
        spans[run] = (min(part.time_min for part in parts), max(part.time_max for part in parts))
    groups: dict[bool, dict[Any, list[Numbers]]] = {True: {}, False: {}}
    for run in sorted((run for run in c.history if run[0] not in tried), key=spans.__getitem__):
        interval = [sum(keyframe.as_of < end for keyframe in c.keyframes) for end in spans[run]]
        groups[bool(c.numbered[run[0]].inline)].setdefault(tuple(interval), []).append(run)
    small = sum(map(len, groups[True].values()))
    in_log = sum(len(part.inline) for part in c.numbered.values())
    if small and (full or small >= tuning.inline_runs or in_log >= tuning.inline_bytes):
        return tuple(run[0] for run in max(groups[True].values(), key=len)[: planner.SMALL_RUNS_MAX])
    for runs in groups[False].values():
        sizes = [sum(part.bytes for part in c.list_parts(run)) for run in runs]
        tops = [planner.LEVEL_BYTES * tuning.merge_runs**level for level in range(1, 9)]
        levels = [sum(size >= top for top in tops) for size in sizes]
        for level in range(9):
            for start in range(len(runs)):
                stretch = [*takewhile(level.__ge__, levels[start:])]
                if (not start or levels[start - 1] > level) and stretch.count(level) >= tuning.merge_runs:
                    few = [sum(sizes[start:end]) <= tuning.part_bytes for end in range(start + 1, len(runs) + 1)]
                    most = max(sum(few[: planner.SMALL_RUNS_MAX]), 2 * tuning.merge_runs)
                    return tuple(run[0] for run in runs[start : start + min(most, len(stretch))])
    return None


def find_keyframe(
    c: CollectionState, tuning: Tuning, frames: Mapping[int, Sequence[Part]], sealed: int, full: bool
) -> int | None:
    last = max(frames, default=-1)
    history = [part for part in c.history_parts if part.time_max > last and part.time_min <= sealed]
    rows = sum(part.rows for part in history)
    is_needed = sealed > last and history and (frames or any(part.negatives for part in history))
    if not is_needed or not (full or rows >= tuning.keyframe_rows_min):
        return None
    base = frames.get(last, ())
    if full or rows >= tuning.keyframe_fraction * sum(part.rows for part in base):
        return sealed
    inside = sum(part.rows for part in history if part.time_min > last and part.time_max <= sealed)
    written = planner.NAME_ROWS * len(base)
    keys: list[Any] = [[key for [key] in part.keys or []] for part in base]
    for number, part in enumerate(base):
        lower = [*keys[number][: number > 0], -1][0]
        upper = [*(keys[number + 1][:1] if number + 1 < len(base) else ()), 99][0]
        changed: list[Any] = [[key for [key] in each.keys or []] for each in history]
        is_changed = [not all(keys) or not each or (each[0] < upper and each[-1] >= lower) for each in changed]
        written += part.rows * any(is_changed)
    return sealed if inside >= max(tuning.keyframe_rows_min, HISTORY_TIMES * written) else None


def find_dense(c: CollectionState) -> Numbers:
    frames, dropped = {keyframe.as_of: keyframe.parts for keyframe in c.keyframes}, list[int]()

    def count_rows(after: int, until: int) -> int:
        return sum(part.rows for part in c.history_parts if after < part.time_max <= until)

    while len(frames) > 2:
        times = sorted(frames)
        unshared = {number for time in times[:-1] for number in frames[time]}.difference(frames[times[-1]])
        room = KEYFRAME_SPACE * sum(part.bytes for part in c.history_parts)
        is_wide = sum(map(len, frames.values())) > NAMES_TIMES * len(c.numbered)
        if sum(c.numbered[number].bytes for number in unshared) <= room and not is_wide:
            break
        gaps = {b: count_rows(a, d) for a, b, d in zip([-1, *times], times, times[1:], strict=False)}
        gaps.pop(c.history_from - 1, None)
        dropped.append(min(gaps, key=lambda time: (gaps[time], time)))
        del frames[dropped[-1]]
    return tuple(sorted(dropped))


def find_work(
    c: CollectionState, tuning: Tuning, failed: frozenset[Work], full: bool, destroy: bool, most: int | None
) -> Work | None:
    frames = {keyframe.as_of: c.list_parts(keyframe.parts) for keyframe in c.keyframes}
    sealed = c.upper - 1
    if c.upper == END:
        sealed = max([*(part.time_max for part in c.parts), *frames], default=-1)
    merge = find_merge(
        c, tuning, {run for work in failed if isinstance(work, MergeRuns) for run in work.runs}, full and most is None
    )
    if most is not None:
        size = sum(part.bytes for run in c.history if merge and run[0] in merge for part in c.list_parts(run))
        return MergeRuns(merge) if merge and size <= most else None
    passed = min(c.since, sealed) if c.since else -1
    reached = max((time for time in frames if time <= passed), default=-1)
    gone = [part for part in c.history_parts if part.time_min <= passed]
    owes = gone and any(part.negatives for part in (*gone, *frames.get(reached, ())))
    if (full or destroy) and owes and (passed in frames or MakeKeyframe(passed) not in failed):
        return Forget(passed) if passed in frames else MakeKeyframe(passed)
    if reached >= max(0, c.history_from):
        return Forget(reached)
    keyframe = find_keyframe(c, tuning, frames, sealed, full)
    is_crowded = merge is not None and len(c.history) > planner.CROWDED * tuning.merge_runs
    if keyframe is not None and MakeKeyframe(keyframe) not in failed and not is_crowded:
        return MakeKeyframe(keyframe)
    if merge is not None:
        return MergeRuns(merge)
    return Thin(dense) if (dense := find_dense(c)) else None


@pytest.mark.parametrize("turn", range(2))
def test_what_is_due_is_what_the_rules_say(turn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LEVEL_BYTES": 4, "SMALL_RUNS_MAX": 4, "NAME_ROWS": 1}.items():
        monkeypatch.setattr(planner, name, value)
    chance, seen = random.Random(turn), Counter[type]()
    for _ in range(800):
        contents, failed = random_contents(chance), frozenset[Work]()
        full, destroy, most = chance.random() < 0.2, chance.random() < 0.3, chance.choice([None, None, None, None, 20])
        for _ in range(3):
            work = choose_next_work(contents, SMALL, full=full, destroy=destroy, merge_bytes_max=most, without=failed)
            assert work == find_work(contents, SMALL, failed, full, destroy, most), contents
            seen[type(work)] += 1
            if work is None or isinstance(work, Forget | Thin):
                break
            failed |= {work}
    assert min(seen.values()) > 10, seen
