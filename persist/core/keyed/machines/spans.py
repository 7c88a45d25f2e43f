"""Machines whose rows have an interval of time: the history of each key, and sessions of its events.

`History` is a slowly changing dimension of type 2. A row is valid from the time of its event up to, but excluding, the
time of the event that replaced or deleted it. The end of a valid row is NULL. An event that repeats the valid row
changes nothing.

`Sessions` has the begin, the end and the size of each group of close events. Two events belong to one session if they
are at most `gap` apart, or if events between them connect them. A late event may join two sessions. The result for a
key depends on its events alone, not on their order.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.codecs.errors import InvalidUpdate, SchemaMismatch
from persist.codecs.order.arrays import get_int64_values, make_boolean_array, make_int64_array
from persist.codecs.order.ordering import combine_chunks
from persist.codecs.types.schema import CollectionSchema
from persist.core.keyed.machine import GROUP, Touched
from persist.core.keyed.machines import steps
from persist.core.keyed.machines.steps import Flags, Ints


class History:
    """Keeps all rows that a key ever had, each with its interval; among events at one time, the last counts.

    Args:
        valid_from, valid_to: the two value columns that hold the interval, of type int64, or timestamps in the unit of
            the collection's timeline. Events have the other columns.
    """

    name, version, has_one_value = "history", 1, False

    def __init__(self, valid_from: str = "valid_from", valid_to: str = "valid_to") -> None:
        self._from, self._to = valid_from, valid_to
        self.options: Mapping[str, Any] = {"valid_from": valid_from, "valid_to": valid_to}

    def event_fields(self, schema: CollectionSchema) -> tuple[pa.Field, ...]:
        """Return the value fields without the columns of the interval."""
        for name in (self._from, self._to):
            if name not in schema.value_names:
                raise SchemaMismatch(f"history needs the value column {name!r}, and there are {schema.value_names}.")
            _check_moments(name, schema)
        if self._from == self._to:
            raise SchemaMismatch(f"valid_from and valid_to are both {self._from!r}: an interval has two columns.")
        if self._to in schema.required:
            raise SchemaMismatch(f"the column {self._to!r} is NULL in what is valid now: it cannot be nullable=False.")
        return tuple(f for f in schema.value.fields if f.name not in (self._from, self._to))

    def step(self, touched: Touched) -> pa.Table:
        """Return the updates that the events cause; see `persist.core.keyed.machine.Machine.step`."""
        schema = touched.schema
        open_rows = touched.present.filter(pc.is_null(touched.present[self._to]))
        groups, times = steps.get_event_groups(touched), steps.get_event_times(touched)
        # Among the events of one key and time, the last one counts.
        last = np.ones(len(groups), np.bool_)
        last[:-1] = steps.mark_changes(groups, times)[1:]
        events = touched.events.take(make_int64_array(np.flatnonzero(last)))
        groups, times, live = groups[last], times[last], ~steps.mark_deletions(touched)[last]
        fields = [f.name for f in self.event_fields(schema)]
        stood, comes, standing = self._find_changes(open_rows, events, groups, live, fields)
        from_times = combine_chunks(open_rows[self._from]).cast(pa.int64()).fill_null(0)
        begun = np.concatenate([get_int64_values(from_times), times])
        rows = pa.concat_tables([t.select([*schema.key_names, *fields]) for t in (open_rows, events)]).combine_chunks()
        new = np.flatnonzero(comes) + len(open_rows)
        # A row that ends is there twice: open, to be taken back, and closed. Then come the rows that begin.
        picked = np.concatenate([standing[stood], standing[stood], new])
        ends = np.concatenate([np.zeros(stood.sum(), np.int64), times[stood], np.zeros(len(new), np.int64)])
        ended = np.repeat([False, True, False], [stood.sum(), stood.sum(), len(new)])
        table = self._add_intervals(rows.take(make_int64_array(picked)), begun[picked], ends, ended, schema)
        at = np.concatenate([times[stood], times[stood], times[comes]])
        counts = [(0, stood.sum(), -1), (stood.sum(), len(picked), 1)]
        return steps.make_updates(schema, table, [(np.arange(a, b), at[a:b], diff) for a, b, diff in counts])

    def _find_changes(
        self, open_rows: pa.Table, events: pa.Table, groups: Ints, live: Flags, fields: list[str]
    ) -> tuple[Flags, Flags, Ints]:
        """Return which events end or begin a row, and the rows before."""
        present_identities, sent = steps.number_distinct_rows([open_rows, events], fields)
        owners = get_int64_values(combine_chunks(open_rows[GROUP]))
        count = int(max([*groups[-1:], *owners[-1:]], default=-1)) + 1
        # The open row of each key, and what it holds as a number; -1 for none.
        row_of = np.full(count, -1)
        row_of[owners] = np.arange(len(owners))
        value = np.full(count, -1)
        value[owners] = present_identities
        value_before = steps.shift_in_groups(groups, np.where(live, sent, -1), value).astype(np.int64)
        # An event that brings what is there already changes nothing.
        changes = np.where(live, sent, -1) != value_before
        stood, comes = changes & (value_before >= 0), changes & live
        arrived = steps.find_last_before(groups, comes)
        return stood, comes, np.where(arrived >= 0, arrived + len(owners), row_of[groups])

    def _add_intervals(
        self, rows: pa.Table, begun: Ints, ends: Ints, ended: Flags, schema: CollectionSchema
    ) -> pa.Table:
        """Return rows with the columns of begin and end of their intervals."""
        end = pc.if_else(make_boolean_array(ended), make_int64_array(ends), pa.scalar(None, pa.int64()))
        starts = make_int64_array(begun).cast(schema.arrow.field(self._from).type)
        rows = rows.append_column(self._from, starts)
        return rows.append_column(self._to, end.cast(schema.arrow.field(self._to).type))


def _check_moments(name: str, schema: CollectionSchema) -> None:
    """Raise SchemaMismatch unless a column is one of integers or moments."""
    kind = schema.arrow.field(name).type
    if kind == pa.int64() or (pat.is_timestamp(kind) and kind.unit == schema.timeline):
        return
    unit = "" if schema.timeline is None else f", or a timestamp in {schema.timeline}, the unit of the timeline"
    raise SchemaMismatch(f"the column {name!r} holds times of the collection: it must be int64{unit}, not {kind}.")


SUM_MAX = 2.0**63 * (1 - 2.0**-40)  # A sum of floats is near the true one, which is refused if it may not fit.


class Sessions:
    """Groups the events of a key into sessions; a deletion removes all earlier sessions of its key.

    The value columns are the start, the end and the count, and any number of int64 columns, each the sum of the events'
    column of that name; NULL counts as 0. Floats are not summed: their sum would depend on the order.

    Args:
        gap: the greatest distance within a session, in the unit of the moments.
        at: the column of events with their moments: an integer or a timestamp, of the type of start and end.
        start, end: the columns for the least and the greatest moment of a session.
        count: the column for the number of its events, int64.
    """

    name, version, has_one_value = "sessions", 1, False

    def __init__(
        self, gap: int, *, at: str = "at", start: str = "start", end: str = "end", count: str = "events"
    ) -> None:
        if not isinstance(gap, int) or isinstance(gap, bool) or not 0 <= gap < 2**64:
            raise SchemaMismatch(
                f"gap={gap!r}: give a distance in the unit of the moments, an integer from 0 to {2**64 - 1}."
            )
        self._gap, self._at, self._start, self._end, self._count = gap, at, start, end, count
        self.options: Mapping[str, Any] = {"gap": gap, "at": at, "start": start, "end": end, "count": count}

    def event_fields(self, schema: CollectionSchema) -> tuple[pa.Field, ...]:
        """Return the moment column, and the columns to sum."""
        kinds = {f.name: f.type for f in schema.value.fields}
        for name in (self._start, self._end, self._count):
            if name not in kinds:
                raise SchemaMismatch(f"sessions need the value column {name!r}, and there are {list(kinds)}.")
        moment = kinds[self._start]
        if not (moment == pa.int64() or pat.is_timestamp(moment)) or kinds[self._end] != moment:
            raise SchemaMismatch(
                f"{self._start!r} and {self._end!r} have types {moment} and {kinds[self._end]}: both must be int64, or "
                "the same timestamp."
            )
        sums = [f for f in schema.value.fields if f.name not in (self._start, self._end, self._count)]
        for name, kind in [(self._count, kinds[self._count]), *((f.name, f.type) for f in sums)]:
            if kind != pa.int64():
                raise SchemaMismatch(f"the column {name!r} is summed up and has type {kind}: it must be int64.")
        return (pa.field(self._at, moment, nullable=False), *(f.with_nullable(True) for f in sums))

    def may_refuse(self, schema: CollectionSchema) -> bool:
        """Return whether a summed column may overflow."""
        return len(self.event_fields(schema)) > 1

    def step(self, touched: Touched) -> pa.Table:
        """Return the updates that the events cause; see `persist.core.keyed.machine.Machine.step`."""
        schema = touched.schema
        sums = [f.name for f in self.event_fields(schema)[1:]]
        state = self._load_present_sessions(touched, sums)
        points = self._make_point_sessions(touched, sums)
        groups, times, is_deletion = (
            steps.get_event_groups(touched),
            steps.get_event_times(touched),
            steps.mark_deletions(touched),
        )
        changed_spans = list[tuple[_Spans, Ints, int]]()
        for rows in steps.iterate_rounds(groups, times):
            now = np.full(touched.groups, -1)
            now[groups[rows]] = times[rows]
            cut = np.full(touched.groups, -1)
            cut[groups[rows[is_deletion[rows]]]] = rows[is_deletion[rows]]
            is_touched = now[state.groups] >= 0
            old = state.select(is_touched)
            remaining_points = old.select(cut[old.groups] < 0)
            new = points.select(rows[~is_deletion[rows] & (rows > cut[groups[rows]])])
            after = _join_intervals(remaining_points.concat(new), self._gap)
            changed_spans += [(old, now[old.groups], -1), (after, now[after.groups], 1)]
            state = _sort_spans(state.select(~is_touched).concat(after))
        return self._make_updates(touched, changed_spans, sums)

    def _load_present_sessions(self, touched: Touched, sums: list[str]) -> "_Spans":
        """Return the present rows as sessions."""
        columns = [self._start, self._end, self._count, *sums]
        values = [
            get_int64_values(combine_chunks(touched.present[name]).cast(pa.int64()).fill_null(0)) for name in columns
        ]
        return _Spans(steps.get_present_groups(touched), values[0], values[1], values[2:])

    def _make_point_sessions(self, touched: Touched, sums: list[str]) -> "_Spans":
        """Return each event as a session of its own, at its moment."""
        moments = combine_chunks(touched.events[self._at])
        live = make_boolean_array(~steps.mark_deletions(touched))
        if pc.any(pc.and_(moments.is_null(), live), min_count=0).as_py():
            raise InvalidUpdate(f"an event has NULL in {self._at!r}, and so belongs to no session. Leave it out.")
        at = get_int64_values(moments.cast(pa.int64()).fill_null(0))
        values = [get_int64_values(combine_chunks(touched.events[name]).fill_null(0)) for name in sums]
        return _Spans(steps.get_event_groups(touched), at, at, [np.ones(len(at), np.int64), *values])

    def _make_updates(self, touched: Touched, changes: list[tuple["_Spans", Ints, int]], sums: list[str]) -> pa.Table:
        """Return the updates that replace some sessions by others."""
        schema = touched.schema
        first = np.flatnonzero(steps.mark_changes(steps.get_event_groups(touched)))
        keys = touched.events.select([*schema.key_names]).take(make_int64_array(first))
        everything = changes[0][0]
        for spans, _, _ in changes[1:]:
            everything = everything.concat(spans)
        rows = keys.take(make_int64_array(everything.groups))
        values = [everything.starts, everything.ends, *everything.sums]
        for name, column in zip((self._start, self._end, self._count, *sums), values, strict=True):
            rows = rows.append_column(name, make_int64_array(column).cast(schema.arrow.field(name).type))
        bounds = np.cumsum([0, *(len(spans.groups) for spans, _, _ in changes)])
        picks = [(np.arange(bounds[i], bounds[i + 1]), times, diff) for i, (_, times, diff) in enumerate(changes)]
        return steps.make_updates(schema, rows, picks)


@dataclass(frozen=True, slots=True)
class _Spans:
    """Sessions, or single events: intervals by group, with counts and sums."""

    groups: Ints
    starts: Ints
    ends: Ints
    sums: list[Ints]

    def select(self, rows: Any) -> "_Spans":
        """Return the sessions at these positions."""
        return _Spans(self.groups[rows], self.starts[rows], self.ends[rows], [column[rows] for column in self.sums])

    def concat(self, other: "_Spans") -> "_Spans":
        """Return these sessions and, after them, the others."""
        sums = [np.concatenate([a, b]) for a, b in zip(self.sums, other.sums, strict=True)]
        return _Spans(
            np.concatenate([self.groups, other.groups]),
            np.concatenate([self.starts, other.starts]),
            np.concatenate([self.ends, other.ends]),
            sums,
        )


def _sort_spans(spans: _Spans) -> _Spans:
    """Return the sessions sorted by group, then start."""
    return spans.select(np.lexsort((spans.starts, spans.groups)))


def _join_intervals(spans: _Spans, gap: int) -> _Spans:
    """Join intervals that are close together into sessions."""
    if not len(spans.groups):
        return spans
    spans = _sort_spans(spans)
    # The greatest end so far, in each group: by ranks of (group, end), where a later group is above all before it.
    by_end = np.lexsort((spans.ends, spans.groups))
    ranks = np.empty(len(by_end), np.int64)
    ranks[by_end] = np.arange(len(by_end))
    reached = spans.ends[by_end][np.maximum.accumulate(ranks)]
    new = steps.mark_changes(spans.groups)
    # Moments may be as far apart as int64 allows, so the distance is compared as unsigned.
    distance = spans.starts[1:].astype(np.uint64) - reached[:-1].astype(np.uint64)
    new[1:] |= (spans.starts[1:] > reached[:-1]) & (distance > np.uint64(gap))
    at = np.flatnonzero(new)
    ends = np.append(at[1:], len(new)) - 1
    sums = [_sum_groups(column, at) for column in spans.sums]
    return _Spans(spans.groups[at], spans.starts[at], reached[ends], sums)


def _sum_groups(column: Ints, at: Ints) -> Ints:
    """Return the sums of consecutive groups that begin at positions `at`."""
    about = np.add.reduceat(column.astype(np.float64), at)
    if (np.abs(about) > SUM_MAX).any():
        raise InvalidUpdate(
            "the sum of a session is too large for int64, and nothing was sealed. An event that deletes the key at the "
            "same time takes out what came before it. Leave the column out, or sum smaller numbers."
        )
    return np.add.reduceat(column, at)
