"""Decide what compaction does to a collection, from its state alone and without I/O.

Keyframes cut the history into *intervals* of time: after one keyframe, up to and including the next. Four kinds of
work:

| work | why | when |
|---|---|---|
| keyframe | reads near it cost a scan of their result | the history since the last one has grown past a share of it |
| forget | drop history and keyframes that can no longer be read | since has passed a keyframe |
| merge | few runs to read and to look a key up in | an interval has many runs of similar size (size-tiered) |
| thin | old keyframes must not outgrow the history, nor their part lists the state | since stays behind for long |

A merge never crosses a keyframe's time: a reader near a keyframe would decode updates only to drop them. For the same
reason it merges runs that are adjacent in time. Levels are sizes: a run is of level n if it has at least `LEVEL_BYTES *
merge_runs**n` bytes. `merge_runs` consecutive runs of one level, and any smaller ones between them, become one run of
the next level; or of a later level at once, if very many small runs have accumulated. So an update is rewritten at most
once for each level (O'Neil et al., The log-structured merge-tree, 1996, in its size-tiered form), and each level has at
most `merge_runs` runs for each interval.

If no update retracts another, the history equals the contents, and no keyframe is made.

A new keyframe shares the parts whose keys no update has touched, so it costs the other parts only. It is due when the
history since the last one has `keyframe_fraction` of the rows of all parts. It is also due when the history has
`HISTORY_TIMES` the rows of the parts that it touches, however large the rest is. So frequently changed keys are
rewritten often: the latest contents of a small range of keys stay cheap to read in a large collection, and such
keyframes add at most 1 / `HISTORY_TIMES` to the incoming bytes. Each of them names all its parts, and planning a read
costs all these names. So the names in all keyframes together are bounded by a multiple of the existing parts
(`NAMES_TIMES`).

Retracted records must be destroyed once since has passed the retraction. A keyframe as of since then replaces all
history before it, however little that is.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Any

from persist.codecs.part.key_range import load_comparable_keys
from persist.codecs.part.part import Part
from persist.core.antichain import END
from persist.core.log.fields import Keyframe, Numbers
from persist.core.settings import Tuning
from persist.core.state_rules.contents import CollectionState

LEVEL_BYTES = 64 << 10
SMALL_RUNS_MAX = 1000  # Merged at a time: of those in the log, or of small blobs.
CROWDED = 2
KEYFRAME_SPACE = 0.5  # Bytes of keyframes that the newest does not share, for each byte of the history.
HISTORY_TIMES = 2  # Rows of history for each row of the parts that it touches, at which these are written anew.
NAME_ROWS = 64  # The cost of naming a part: forgetting history rewrites all descriptors.
NAMES_TIMES = 4  # Names of parts in keyframes, for each part.


@dataclass(frozen=True)
class MergeRuns:
    """Merge the runs with these first numbers."""

    runs: Numbers


@dataclass(frozen=True)
class MakeKeyframe:
    """Write the contents as of a time as a keyframe."""

    as_of: int


@dataclass(frozen=True)
class Forget:
    """Drop the history up to the time of a keyframe, and the keyframes before it."""

    as_of: int


@dataclass(frozen=True)
class Thin:
    """Drop some keyframes that are not needed."""

    keyframes: Numbers


Work = MergeRuns | MakeKeyframe | Forget | Thin


def choose_next_work(
    contents: CollectionState,
    tuning: Tuning,
    *,
    full: bool = False,
    destroy: bool = False,
    merge_bytes_max: int | None = None,
    without: "frozenset[Work]" = frozenset(),
) -> Work | None:
    """Return the work to do first, or None if nothing is due.

    Args:
        full: do all work, and make a keyframe as of the last sealed time, however little has changed.
        destroy: retracted records that since has passed must be destroyed now.
        merge_bytes_max: only merges of at most this total size; None for all work.
        without: work that failed; its runs are not merged.
    """
    if merge_bytes_max is not None:
        runs = _find_due_merge(contents, tuning, _list_merged_runs(without), full=False)
        merged = contents.list_parts(chain.from_iterable(run for run in contents.history if run[0] in (runs or ())))
        return MergeRuns(runs) if runs and sum(part.bytes for part in merged) <= merge_bytes_max else None
    if (full or destroy) and (time := must_destroy(contents)) is not None:
        is_made = any(keyframe.as_of == time for keyframe in contents.keyframes)
        if is_made or MakeKeyframe(time) not in without:
            return Forget(time) if is_made else MakeKeyframe(time)
    if (time := _find_forgettable_time(contents)) is not None:
        return Forget(time)
    runs = _find_due_merge(contents, tuning, _list_merged_runs(without), full=full)
    time = _find_due_keyframe(contents, tuning, full=full)
    if time is not None and MakeKeyframe(time) in without:
        time = None
    # A keyframe of very many runs would look into each of them for each slice of keys: merge them before.
    if time is not None and (runs is None or len(contents.history) <= CROWDED * tuning.merge_runs):
        return MakeKeyframe(time)
    if runs is not None:
        return MergeRuns(runs)
    if thinned := _find_too_dense_keyframes(contents, tuning):
        return Thin(thinned)
    return None


def _list_merged_runs(works: "frozenset[Work]") -> frozenset[int]:
    """Return the first numbers of all runs that some works merge."""
    return frozenset(run for work in works if isinstance(work, MergeRuns) for run in work.runs)


def must_destroy(contents: CollectionState) -> int | None:
    """Return the time up to which history must be dropped to destroy retracted records; None if there are none."""
    last = find_last_readable_time(contents)
    passed = [part for part in contents.history_parts if part.time_min <= last]
    # Later updates may also balance a negative multiplicity in the keyframe.
    keyframes_before = [keyframe for keyframe in contents.keyframes if keyframe.as_of <= last][-1:]
    owing = contents.list_parts(chain.from_iterable(keyframe.parts for keyframe in keyframes_before))
    return last if passed and any(part.negatives for part in (*passed, *owing)) else None


def find_last_readable_time(contents: CollectionState) -> int:
    """Return the latest sealed time that since has reached; -1 without one."""
    return -1 if contents.since == 0 else min(contents.since, find_last_resolved(contents))


def find_last_resolved(contents: CollectionState) -> int:
    """Return the last sealed time whose updates are complete, -1 without one; if keyed, the last resolved time.

    If the collection is complete for ever, return the time of its last change.
    """
    if contents.resolved == END:
        times = [part.time_max for part in contents.numbered.values()]
        return max([*times, *(keyframe.as_of for keyframe in contents.keyframes)], default=-1)
    return contents.resolved - 1


def _find_due_keyframe(contents: CollectionState, tuning: Tuning, *, full: bool) -> int | None:
    """Return the time of the next keyframe, None if none is due."""
    sealed = find_last_resolved(contents)
    last = contents.keyframes[-1] if contents.keyframes else None
    since_last = -1 if last is None else last.as_of
    if since_last >= sealed:
        return None
    parts = [part for part in contents.history_parts if since_last < part.time_max and part.time_min <= sealed]
    if not parts or (last is None and not any(part.negatives for part in parts)):
        return None
    if full:
        return sealed
    rows = sum(part.rows for part in parts)
    if rows < tuning.keyframe_rows_min:
        return None
    base = () if last is None else contents.list_parts(last.parts)
    if rows >= tuning.keyframe_fraction * sum(part.rows for part in base):
        return sealed
    # A part with few rows in this interval would be counted again for each keyframe, so it counts for nothing here.
    inside = sum(part.rows for part in parts if since_last < part.time_min and part.time_max <= sealed)
    if inside < tuning.keyframe_rows_min:
        return None
    written = _count_touched_rows(contents, base, parts) + NAME_ROWS * len(base)
    return sealed if inside >= HISTORY_TIMES * written else None


def _count_touched_rows(contents: CollectionState, base: Sequence[Part], history: Sequence[Part]) -> int:
    """Count the rows in the parts of a keyframe whose key ranges history may touch.

    The range of a part ends where the next one begins, as in `persist.engine.compact.rewriter`. Cost: O(parts), and a
    binary search for each part of the history.
    """
    schema = contents.schema
    is_known = all(part.has_keys for part in base)

    def assign_number(key: Any) -> int:
        return max(0, bisect_right(base, key, key=lambda part: (load_comparable_keys(part, schema) or [key])[0]) - 1)

    # The changes, from one part to the next, of the number of history parts in the range.
    changes = [0] * (len(base) + 1)
    for part in history:
        keys = load_comparable_keys(part, schema) if is_known and base else None
        first, last = (0, len(base) - 1) if keys is None else (assign_number(keys[0]), assign_number(keys[-1]))
        changes[first] += 1
        changes[last + 1] -= 1
    return sum(part.rows for part, touching in zip(base, accumulate(changes), strict=False) if touching)


def _find_forgettable_time(contents: CollectionState) -> int | None:
    """Return the time of the newest keyframe that since has reached, if there is anything before it to drop."""
    last = find_last_readable_time(contents)
    reached = [keyframe.as_of for keyframe in contents.keyframes if keyframe.as_of <= last]
    return reached[-1] if reached and reached[-1] >= contents.history_from else None


def _find_due_merge(
    contents: CollectionState, tuning: Tuning, without: frozenset[int], *, full: bool
) -> Numbers | None:
    """Return the runs to merge next, None if none are due."""
    runs = [run for run in contents.history if run[0] not in without]
    inline = [run for run in runs if contents.numbered[run[0]].inline]
    inline_bytes = sum(len(part.inline) for part in contents.numbered.values())  # Not of pending events.
    is_many = inline_bytes >= tuning.inline_bytes or len(inline) >= tuning.inline_runs
    if inline and (is_many or full):
        # All that lives in the log, so that it becomes one part: but not across keyframes.
        groups = _group_by_keyframes(contents, inline)
        return tuple(run[0] for run in max(groups, key=len)[:SMALL_RUNS_MAX])
    for group in _group_by_keyframes(contents, [run for run in runs if not contents.numbered[run[0]].inline]):
        sizes = [sum(part.bytes for part in contents.list_parts(run)) for run in group]
        if (similar := _find_similar_runs(sizes, tuning.merge_runs, tuning.part_bytes)) is not None:
            return tuple(run[0] for run in group[similar[0] : similar[1]])
    return None


def _group_by_keyframes(contents: CollectionState, runs: list[Numbers]) -> list[list[Numbers]]:
    """Return runs by the keyframes around them, in order of time; a run that crosses a keyframe is alone."""
    times = [keyframe.as_of for keyframe in contents.keyframes]
    by_interval: dict[tuple[int, int], list[Numbers]] = {}
    spans = {run: _get_run_times(contents, run) for run in runs}
    for run in sorted(runs, key=spans.__getitem__):
        first, last = spans[run]
        interval = sum(as_of < first for as_of in times), sum(as_of < last for as_of in times)
        by_interval.setdefault(interval, []).append(run)
    return list(by_interval.values())


def _get_run_times(contents: CollectionState, run: Numbers) -> tuple[int, int]:
    """Return the first and the last time of the updates in a run."""
    parts = contents.list_parts(run)
    return min(part.time_min for part in parts), max(part.time_max for part in parts)


def _find_similar_runs(sizes: list[int], merge_runs: int, bytes_max: int) -> tuple[int, int] | None:
    """Return the first interval of adjacent runs to merge: `merge_runs` of one size level, and smaller ones.

    The interval has at most twice as many runs, or as many as have bytes_max, so that accumulated small runs are merged
    once, not once for each level.
    """
    levels = [_compute_level(size, merge_runs) for size in sizes]
    for level in sorted(set(levels)):
        start = 0
        for at, current in enumerate([*levels, level + 1]):
            if current > level:
                if levels[start:at].count(level) >= merge_runs:
                    few = sum(size <= bytes_max for size in accumulate(sizes[start : start + SMALL_RUNS_MAX]))
                    return start, min(at, start + max(few, 2 * merge_runs))
                start = at + 1
    return None


def _compute_level(size: int, merge_runs: int) -> int:
    """Return the size level of a run."""
    level = 0
    while size >= LEVEL_BYTES * merge_runs:
        size //= merge_runs
        level += 1
    return level


def _find_too_dense_keyframes(contents: CollectionState, tuning: Tuning) -> Numbers:
    """Return the keyframes to drop, first those with the least history between their neighbours."""
    keyframes, history = [*contents.keyframes], contents.history_parts
    room = KEYFRAME_SPACE * sum(part.bytes for part in history)
    times = sorted((part.time_max, part.rows) for part in history)
    rows_until = [0, *accumulate(rows for _, rows in times)]
    rows_before = {k.as_of: rows_until[bisect_right(times, (k.as_of, 2**63))] for k in keyframes}
    dropped: list[int] = []
    names_max = NAMES_TIMES * len(contents.numbered)
    while len(keyframes) > 2 and (
        _sum_older_bytes(contents, keyframes) > room or sum(len(keyframe.parts) for keyframe in keyframes) > names_max
    ):
        gaps = [
            (rows_before[after.as_of] - (rows_before[keyframes[at - 1].as_of] if at else 0), at)
            for at, (keyframe, after) in enumerate(pairwise(keyframes))
            if keyframe.as_of != contents.history_from - 1
        ]
        dropped.append(keyframes.pop(min(gaps)[1]).as_of)
    return tuple(sorted(dropped))


def _sum_older_bytes(contents: CollectionState, keyframes: Sequence[Keyframe]) -> int:
    """Return the bytes of older keyframes that the newest keyframe does not share."""
    *older, newest = keyframes
    numbers = {*chain.from_iterable(keyframe.parts for keyframe in older)}.difference(newest.parts)
    return sum(part.bytes for part in contents.list_parts(numbers))
