"""The history of each key as rows with the interval in which they were valid: a slowly changing dimension of type 2.

A row is valid from the time of the event that brought it up to, and not including, the time of the event that replaced
or deleted it. What is valid now has no end: NULL. An event that repeats what is valid changes nothing.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.codecs import CollectionSchema, SchemaMismatch, boolean_array, combined, int64_array, int64_values
from persist.upsert.machine import GROUP, Touched
from persist.upsert.machines import steps
from persist.upsert.machines.steps import Flags, Ints


class History:
    """Keeps all rows that a key ever had, each with its interval; of several events at one time the last counts.

    Args:
        valid_from, valid_to: the two value columns that hold the interval, of type int64, or timestamps in the unit of
            the collection's timeline. Events have the other columns.
    """

    name, version, has_one_value = "history", 1, False

    def __init__(self, valid_from: str = "valid_from", valid_to: str = "valid_to") -> None:
        self._from, self._to = valid_from, valid_to

    @property
    def options(self) -> Mapping[str, Any]:
        """What it was made with."""
        return {"valid_from": self._from, "valid_to": self._to}

    def event_fields(self, schema: CollectionSchema) -> tuple[pa.Field, ...]:
        """Return the value fields without those of the interval."""
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
        """Return the updates; see `persist.upsert.machine.Machine.step`."""
        schema = touched.schema
        open_rows = touched.present.filter(pc.is_null(touched.present[self._to]))
        groups, times = steps.event_groups(touched), steps.event_times(touched)
        last = np.ones(len(groups), np.bool_)
        last[:-1] = steps.firsts(groups, times)[1:]
        events = touched.events.take(int64_array(np.flatnonzero(last)))
        groups, times, live = groups[last], times[last], ~steps.deletions(touched)[last]
        fields = [f.name for f in self.event_fields(schema)]
        stood, comes, standing = self._changes(open_rows, events, groups, live, fields)
        begun = np.concatenate([self._begun(open_rows), times])
        rows = pa.concat_tables([t.select([*schema.key_names, *fields]) for t in (open_rows, events)]).combine_chunks()
        new = np.flatnonzero(comes) + len(open_rows)
        picked = np.concatenate([standing[stood], standing[stood], new])
        ends = np.concatenate([np.zeros(stood.sum(), np.int64), times[stood], np.zeros(len(new), np.int64)])
        ended = np.repeat([False, True, False], [stood.sum(), stood.sum(), len(new)])
        table = self._with_intervals(rows.take(int64_array(picked)), begun[picked], ends, ended, schema)
        at = np.concatenate([times[stood], times[stood], times[comes]])
        counts = [(0, stood.sum(), -1), (stood.sum(), len(picked), 1)]
        return steps.updates(schema, table, [(np.arange(a, b), at[a:b], diff) for a, b, diff in counts])

    def _changes(
        self, open_rows: pa.Table, events: pa.Table, groups: Ints, live: Flags, fields: list[str]
    ) -> tuple[Flags, Flags, Ints]:
        """Return at which events a row ends, at which one begins, and which row it is that stands before each."""
        held, sent = steps.identities([open_rows, events], fields)
        owners = int64_values(combined(open_rows[GROUP]))
        count = int(max([*groups[-1:], *owners[-1:]], default=-1)) + 1
        row_of = np.full(count, -1)
        row_of[owners] = np.arange(len(owners))
        value = np.full(count, -1)
        value[owners] = held
        value_before = steps.before(groups, np.where(live, sent, -1), value).astype(np.int64)
        changes = np.where(live, sent, -1) != value_before
        stood, comes = changes & (value_before >= 0), changes & live
        brought = steps.last_at(groups, comes)
        return stood, comes, np.where(brought >= 0, brought + len(owners), row_of[groups])

    def _begun(self, open_rows: pa.Table) -> Ints:
        return int64_values(combined(open_rows[self._from]).cast(pa.int64()).fill_null(0))

    def _with_intervals(
        self, rows: pa.Table, begun: Ints, ends: Ints, ended: Flags, schema: CollectionSchema
    ) -> pa.Table:
        end = pc.if_else(boolean_array(ended), int64_array(ends), pa.scalar(None, pa.int64()))
        starts = int64_array(begun).cast(schema.arrow.field(self._from).type)
        rows = rows.append_column(self._from, starts)
        return rows.append_column(self._to, end.cast(schema.arrow.field(self._to).type))


def _check_moments(name: str, schema: CollectionSchema) -> None:
    kind = schema.arrow.field(name).type
    if kind == pa.int64() or (pat.is_timestamp(kind) and kind.unit == schema.timeline):
        return
    unit = "" if schema.timeline is None else f", or a timestamp in {schema.timeline}, the unit of the timeline"
    raise SchemaMismatch(f"the column {name!r} holds times of the collection: it must be int64{unit}, not {kind}.")
