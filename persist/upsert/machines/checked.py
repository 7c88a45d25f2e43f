"""Change events that say what they changed: the row before, which is held against the row that is there.

A difference means that events were lost, came twice, or came in another order. What then happens is for the caller to
choose.
"""

from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.codecs import CollectionSchema, SchemaMismatch, boolean_values, combined
from persist.errors import BeforeDiffers, InvalidUsage
from persist.upsert.machine import Touched
from persist.upsert.machines import steps
from persist.upsert.machines.steps import Flags, Ints

BEFORE = "_before"
ABSENT = -1
OnDifference = Literal["fail", "skip", "trust"]


class Checked:
    """Replaces the value of a key, if the event's row before the change is the one that the key holds.

    Events have the value columns and `_before`, a struct of these, as `persist.upsert.debezium(…, before=True)` gives
    them. Where `_before` is NULL, an event says nothing about what was there, and is not checked.

    Args:
        on_difference: "fail": resolving fails with `BeforeDiffers`. "skip": the event changes nothing. "trust": the
            event counts, and what is there is replaced.
        created_absent: take a NULL `_before` of an event that does not delete for "there was no row". For producers
            that send every row before a change, and never a row twice, such as those of a snapshot.
    """

    name, version, has_one_value = "checked", 1, True

    def __init__(self, on_difference: OnDifference = "fail", *, created_absent: bool = False) -> None:
        if on_difference not in get_args(OnDifference):
            raise InvalidUsage(f"on_difference={on_difference!r} is none of 'fail', 'skip' and 'trust'.")
        self._policy, self._created_absent = on_difference, created_absent

    @property
    def options(self) -> Mapping[str, Any]:
        """What it was made with."""
        return {"on_difference": self._policy, "created_absent": self._created_absent}

    def event_fields(self, schema: CollectionSchema) -> tuple[pa.Field, ...]:
        """Return the value fields, and these once more as a struct."""
        if not schema.value_names:
            raise SchemaMismatch("a collection without value columns has no row before a change to check.")
        return (*schema.value.fields, pa.field(BEFORE, pa.struct(list(schema.value.fields))))

    def may_refuse(self, schema: CollectionSchema) -> bool:
        """Tell whether a difference is refused."""
        return self._policy == "fail"

    def step(self, touched: Touched) -> pa.Table:
        """Return the updates; see `persist.upsert.machine.Machine.step`.

        Raises:
            BeforeDiffers: some event does, and the policy is "fail".
        """
        groups, times, gone = steps.event_groups(touched), steps.event_times(touched), steps.deletions(touched)
        held, after, image_before, unchecked = self._identities(touched, gone)
        counts = np.ones(len(groups), np.bool_)
        value_before = steps.before(groups, after, held).astype(np.int64)
        differs = ~unchecked & (image_before != value_before)
        if differs.any() and self._policy == "fail":
            raise self._difference(touched, int(np.flatnonzero(differs)[0]), value_before)
        if differs.any() and self._policy == "skip":
            counts = _that_count(groups, after, image_before, unchecked, held, differs)
        return _replaced(touched, np.flatnonzero(counts), groups, times, after)

    def _identities(self, touched: Touched, gone: Flags) -> tuple[Ints, Ints, Ints, Flags]:
        """Return what each group holds, what it holds after each event, what each says, and if that is nothing."""
        names = [*touched.schema.value_names]
        structs = combined(touched.events[BEFORE])
        # Members under a NULL struct may be anything, so they are made NULL.
        images = pa.Table.from_arrays([pc.struct_field(structs, [name]) for name in names], names=names)
        present, after, image_before = steps.identities([touched.present, touched.events, images], names)
        held = np.full(touched.groups, ABSENT)
        held[steps.present_groups(touched)] = present
        silent = boolean_values(structs.is_null())
        is_absent = silent & ~gone if self._created_absent else np.zeros(len(silent), np.bool_)
        return held, np.where(gone, ABSENT, after), np.where(silent, ABSENT, image_before), silent & ~is_absent

    def _difference(self, touched: Touched, at: int, value_before: Ints) -> BeforeDiffers:
        names = [*touched.schema.value_names]
        event = touched.events.slice(at, 1).to_pylist()[0]
        group = int(steps.event_groups(touched)[at])
        held = None
        if value_before[at] != ABSENT:
            earlier = at > 0 and steps.event_groups(touched)[at - 1] == group
            rows = touched.events.slice(at - 1, 1) if earlier else _of_group(touched, group)
            held = rows.select(names).to_pylist()[0]
        key = tuple(event[name] for name in touched.schema.key_names)
        return BeforeDiffers(key[0] if len(key) == 1 else key, event["_time"], event[BEFORE], held)


def _of_group(touched: Touched, group: int) -> pa.Table:
    return touched.present.slice(int(np.searchsorted(steps.present_groups(touched), group)), 1)


def _that_count(groups: Ints, after: Ints, said: Ints, unchecked: Flags, held: Ints, differs: Flags) -> Flags:
    """Return which events count if those that differ do not: in rounds, for the groups that have such."""
    counts = np.ones(len(groups), np.bool_)
    value = held.copy()
    rows = np.flatnonzero(np.isin(groups, groups[differs]))
    for round_ in steps.rounds(groups[rows], np.arange(len(rows))):
        at = rows[round_]
        fits = unchecked[at] | (said[at] == value[groups[at]])
        counts[at] = fits
        value[groups[at[fits]]] = after[at[fits]]
    return counts


def _replaced(touched: Touched, kept: Ints, groups: Ints, times: Ints, after: Ints) -> pa.Table:
    """Return the updates of events that replace what their key holds."""
    groups, times, after = groups[kept], times[kept], after[kept]
    present = steps.present_groups(touched)
    row_of = np.full(touched.groups, -1)
    row_of[present] = np.arange(len(present))
    rows = np.where(after != ABSENT, kept + len(present), -1)
    goes = steps.before(groups, rows, row_of).astype(np.int64)
    picks = [(goes[goes >= 0], times[goes >= 0], -1), (rows[rows >= 0], times[rows >= 0], 1)]
    return steps.updates(touched.schema, steps.all_rows(touched), picks)
