"""Plans: the cheapest parts from which to read the contents as of a time, or the changes in an interval.

The contents as of a time are an earlier keyframe plus the history after it, or a later keyframe minus the history
between the time and it. Diffs can be subtracted, so both ways are exact. As long as no history was dropped, all history
up to the time is a third way. The candidates are the nearest keyframe on either side, and none. Their costs are
estimated from the descriptors of parts: rows to decode, and rows to merge, which cost several times as much. Nothing is
read.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import pyarrow.compute as pc

from persist.codecs.part.filters import add_both_zeros
from persist.codecs.part.part import Part
from persist.codecs.part.printing import print_filter
from persist.codecs.types.schema import TIME_MAX, CollectionSchema
from persist.core.keyed.events import make_live_filter, make_tombstone_filter
from persist.core.log.fields import Keyframe, Numbers
from persist.core.rendering import Shown
from persist.core.state_rules.contents import CollectionState, Unsealed, summarize_unsealed
from persist.core.state_rules.keyed_rules import list_due_parts, load_form
from persist.core.state_rules.schemas import attach_versions
from persist.core.timeline import Timeline, format_time, read_timeline
from persist.engine.read.planning.scan import Scan

MERGE_COST = 4  # To merge a row costs so many times as much as to decode it.


@dataclass(frozen=True)
class Explanation(Shown):
    """The cost of reading a snapshot, for people; print it.

    Attributes:
        as_of: the time of the snapshot.
        keyframe: the time of the keyframe from which it starts; None without one.
        direction: "forwards" or "backwards" from there in time.
        parts, bytes, rows: the amount to read, of keyframe and history; rows is an upper bound if parts are cut.
        base_parts, base_bytes, base_rows: the keyframe's share of these.
        memory: the decoded size of all these, in bytes.
        slices: how many independent slices `to_batches` reads one after the other.
        columns, form, filter: as requested.
        pruned: how many parts are not read, by reason: "time", "filter", or "keyframe" for history that the keyframe
            replaces.
        index: the columns of the index that is read instead to find the filter's rows; None without one.
        index_memory: the decoded size of the rows that are read by the index, in bytes.
        timeline: the timeline of the collection, to show times as moments.
        unsealed: describes updates at unsealed times, which no snapshot shows; None without any.
    """

    as_of: int
    keyframe: int | None
    direction: str
    parts: int
    bytes: int
    rows: int
    base_parts: int
    base_bytes: int
    base_rows: int
    memory: int
    slices: int
    columns: tuple[str, ...]
    form: str
    filter: str | None
    pruned: dict[str, int] = field(default_factory=dict)
    index: tuple[str, ...] | None = None
    index_memory: int | None = None
    unsealed: Unsealed | None = None
    timeline: Timeline | None = None

    def __str__(self) -> str:
        as_of, keyframe = format_time(self.as_of, self.timeline), format_time(self.keyframe or 0, self.timeline)
        base = "no keyframe" if self.keyframe is None else f"the keyframe as of {keyframe}, {self.direction}"
        lines = [
            f"snapshot as of {as_of}, form {self.form!r}, columns {list(self.columns)}",
            f"  from {base}",
            _format_line("keyframe", self.base_parts, self.base_rows, self.base_bytes),
            _format_line(
                "history", self.parts - self.base_parts, self.rows - self.base_rows, self.bytes - self.base_bytes
            ),
            f"  slices    {self.slices}, {self.memory / 2**20:,.1f} MiB decoded in all",
            "  pruned    " + (", ".join(f"{n} parts by {by}" for by, n in self.pruned.items() if n) or "nothing"),
        ]
        lines += [f"  filter    {self.filter}"] if self.filter is not None else []
        if self.index is not None and self.index_memory is not None:
            size = self.index_memory / 2**20
            lines.append(f"  index     {', '.join(self.index)}: {size:,.1f} MiB decoded, in place of the above")
        lines += [f"  unsealed  {self.unsealed}, which no snapshot shows yet"] if self.unsealed is not None else []
        return "\n".join(lines)


def _format_line(what: str, parts: int, rows: int, size: int) -> str:
    """Return a line of an explanation: parts, rows and bytes that are read."""
    return f"  {what:<9} {parts:,} parts, {rows:,} rows, {size / 2**20:,.1f} MiB"


def plan_snapshot(
    contents: CollectionState,
    schema: CollectionSchema,
    as_of: int,
    columns: Sequence[str] | None,
    filter: pc.Expression | None = None,
    *,
    raw: bool = False,
) -> Scan:
    """Return the plan to read the contents as of a readable time; raw includes tombstones."""
    schema, filter = _prepare_schema(contents, schema, filter, raw=raw)
    names = schema.columns if columns is None else tuple(columns)
    history = contents.history_parts
    candidates = _list_nearest_keyframes(contents, as_of)
    best = candidates[0]
    if len(candidates) > 1:
        best = min(candidates, key=lambda keyframe: _estimate_cost(contents, history, keyframe, as_of))
    return _make_scan(contents, history, schema, best, as_of, names, filter).with_newest_types().prune()


def explain_scan(
    contents: CollectionState, scan: Scan, form: str, slices: int, index: tuple[tuple[str, ...], int] | None = None
) -> Explanation:
    """Explain a plan of `plan_snapshot` with so many slices, or the index that replaces it."""
    forwards = scan.sign > 0
    time = scan.time_lower - 1 if forwards else scan.time_upper - 1
    keyframe = next((candidate for candidate in contents.keyframes if candidate.as_of == time), None)
    history = contents.history_parts
    base = contents.list_parts(keyframe.parts) if keyframe is not None else ()
    early = sum(part.time_max < scan.time_lower for part in history)
    late = sum(part.time_min >= scan.time_upper for part in history)
    covered = early if keyframe is not None else 0  # The keyframe replaces them.
    return Explanation(
        as_of=scan.as_of,
        keyframe=None if keyframe is None else keyframe.as_of,
        direction="forwards" if forwards else "backwards",
        parts=len(scan.all_parts),
        bytes=sum(part.bytes for part in scan.all_parts),
        rows=sum(part.rows for part in scan.all_parts),
        base_parts=len(scan.base),
        base_bytes=sum(part.bytes for part in scan.base),
        base_rows=sum(part.rows for part in scan.base),
        memory=scan.memory,
        slices=slices,
        columns=scan.columns,
        form=form,
        filter=None if scan.filter is None else print_filter(scan.filter),
        pruned={
            "keyframe": covered,
            "time": early + late - covered,
            "filter": len(base) + len(history) - early - late - len(scan.all_parts),
        },
        index=None if index is None else index[0],
        index_memory=None if index is None else index[1],
        unsealed=summarize_unsealed(contents),
        timeline=read_timeline(scan.schema),
    )


def plan_changes_scan(
    contents: CollectionState,
    schema: CollectionSchema,
    lower: int,
    upper: int,
    columns: Sequence[str] | None,
    filter: pc.Expression | None = None,
    *,
    raw: bool = False,
) -> Scan:
    """Return the plan to read the updates with `lower <= time < upper`, all readable; raw includes tombstones."""
    schema, filter = _prepare_schema(contents, schema, filter, raw=raw)
    names = schema.columns if columns is None else tuple(columns)
    return Scan(schema, contents.history_parts, lower, upper, names, filter).with_newest_types().prune()


def _prepare_schema(
    contents: CollectionState, schema: CollectionSchema, filter: pc.Expression | None, *, raw: bool
) -> tuple[CollectionSchema, pc.Expression | None]:
    """Return the schema with all its versions, and a filter that also leaves out tombstones unless raw."""
    schema = attach_versions(schema, contents)
    filter = None if filter is None else add_both_zeros(filter)
    live = None if raw else make_live_filter(schema, load_form(contents, schema, resolves=False))
    return schema, filter if live is None else live if filter is None else live & filter


def _make_scan(
    contents: CollectionState,
    history: tuple[Part, ...],
    schema: CollectionSchema,
    keyframe: Keyframe | None,
    as_of: int,
    columns: tuple[str, ...],
    filter: pc.Expression | None,
) -> Scan:
    """Return the scan of a keyframe, and of the history between it and a time."""
    if keyframe is None:
        return Scan(schema, history, 0, as_of + 1, columns, filter)
    base = contents.list_parts(keyframe.parts)
    if keyframe.as_of <= as_of:
        return Scan(schema, history, keyframe.as_of + 1, as_of + 1, columns, filter, base=base)
    return Scan(schema, history, as_of + 1, keyframe.as_of + 1, columns, filter, base=base, sign=-1)


def _list_nearest_keyframes(contents: CollectionState, as_of: int) -> list[Keyframe | None]:
    """Return the nearest keyframes before and after a time; also None, if history reaches back to 0.

    A farther keyframe never costs less: with the history between, it has at least the records of the nearer one.
    """
    after = bisect_right(contents.keyframes, as_of, key=lambda keyframe: keyframe.as_of)
    nearest: list[Keyframe | None] = [*contents.keyframes[max(0, after - 1) : after + 1]]
    return nearest if contents.history_from else [*nearest, None]


def _estimate_cost(
    contents: CollectionState, history: tuple[Part, ...], keyframe: Keyframe | None, as_of: int
) -> float:
    """Estimate the cost of starting from a keyframe, in units of one read update."""
    base = 0 if keyframe is None else sum(part.rows for part in contents.list_parts(keyframe.parts))
    start, end = (-1, as_of) if keyframe is None else sorted((keyframe.as_of, as_of))
    touched = [part for part in history if part.time_min <= end and part.time_max > start]
    decoded = sum(part.rows for part in touched)
    if keyframe is None and not any(part.negatives for part in touched):
        return decoded  # Nothing cancels, so nothing is merged.
    return base + decoded + MERGE_COST * sum(_estimate_rows_between(part, start, end) for part in touched)


def _estimate_rows_between(part: Part, start: int, end: int) -> float:
    """Estimate how many rows of a part have times in `(start, end]`, if they are spread evenly."""
    first, last = max(part.time_min, start + 1), min(part.time_max, end)
    return part.rows * (last - first + 1) / (part.time_max - part.time_min + 1)


def count_records(contents: CollectionState) -> int | None:
    """Return the sum of all diffs, sealed or not: the number of records, while no multiplicity is negative.

    None if this needs a read of parts, because of tombstones or unresolved sealed events.
    """
    base = contents.list_parts(contents.keyframes[0].parts) if contents.history_from else ()
    parts = (*base, *contents.history_parts)
    form = contents.keyed
    if form is not None and list_due_parts(contents, contents.upper):
        return None
    if form is not None and form.tombstone is not None:
        schema = contents.schema
        dead = Scan(schema, parts, 0, TIME_MAX + 1, schema.names, make_tombstone_filter(schema, form))
        if dead.prune().parts:
            return None
    return sum(part.diff_sum for part in parts)


class UnreadParts:
    """Tracks the parts of one collection's history with times at or after a growing bound."""

    def __init__(self) -> None:
        self._runs: tuple[Numbers, ...] = ()
        self._numbers: Numbers = ()

    def select_from_frontier(self, contents: CollectionState, lower: int) -> tuple[Part, ...]:
        """Return the parts with times >= lower; as `find_numbers_from_frontier`."""
        return contents.list_parts(self.find_numbers_from_frontier(contents, lower))

    def find_numbers_from_frontier(self, contents: CollectionState, lower: int) -> Numbers:
        """Return the numbers of the parts with times >= lower.

        Contents and lower must not go back from one call to the next.

        Cost: O(new and unread parts), and one comparison of pointers for each run; after a compaction O(parts).
        """
        known_runs, runs = self._runs, contents.history
        if runs[: len(known_runs)] == known_runs:
            candidates = chain(self._numbers, chain.from_iterable(runs[len(known_runs) :]))
        else:
            candidates = chain.from_iterable(contents.history)
        self._runs = runs
        self._numbers = tuple(number for number in candidates if contents.numbered[number].time_max >= lower)
        return self._numbers
