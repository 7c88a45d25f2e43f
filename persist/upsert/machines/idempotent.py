"""Machines that take an event twice as if it came once: `AppendDistinct` adds each event's value to its key, unless the
key has it already; with `InsertIfAbsent` a key's first event stands until one deletes the key.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from persist.codecs import CollectionSchema, SchemaMismatch
from persist.upsert.machine import Touched
from persist.upsert.machines import steps
from persist.upsert.machines.steps import Flags, Ints


class AppendDistinct:
    """Appends values, those apart that a key holds already; an event that deletes takes all values of its key.

    Args:
        by: the value columns by which an event is known again, such as an event's id; None means all of them.
    """

    name, version, has_one_value = "append-distinct", 1, False

    def __init__(self, by: Sequence[str] | None = None) -> None:
        self._by = None if by is None else tuple(by)

    @property
    def options(self) -> Mapping[str, Any]:
        """What it was made with."""
        return {} if self._by is None else {"by": list(self._by)}

    def event_fields(self, schema: CollectionSchema) -> tuple[pa.Field, ...]:
        """Return the value fields: an event is a row to append."""
        for name in self._by or ():
            if name not in schema.value_names:
                raise SchemaMismatch(f"by={list(self._by or ())}: {name!r} is none of {list(schema.value_names)}.")
        return schema.value.fields

    def step(self, touched: Touched) -> pa.Table:
        """Return the updates; see `persist.upsert.machine.Machine.step`."""
        groups, times, gone = steps.event_groups(touched), steps.event_times(touched), steps.deletions(touched)
        present = steps.present_groups(touched)
        by = touched.schema.value_names if self._by is None else self._by
        identity = np.concatenate(steps.identities([touched.present, touched.events], by))
        # A deletion ends an epoch of its key: what was known before it is not known after it.
        total: Ints = np.cumsum(gone) - gone
        epochs = np.concatenate([np.zeros(len(present), np.int64), total - total[steps.starts_of(groups)]])
        owners = np.concatenate([present, groups])
        live = np.concatenate([np.ones(len(present), np.bool_), ~gone])
        stands = _first_of_each(owners, epochs, identity, live)
        stands[: len(present)] = True
        ends = _ends(owners, epochs, groups[gone], times[gone], touched.groups)
        goes = stands & (ends >= 0)
        added = np.flatnonzero(stands[len(present) :])
        picks = [
            (np.flatnonzero(goes), ends[goes], -1),
            (added + len(present), times[added], 1),
        ]
        return steps.updates(touched.schema, steps.all_rows(touched), picks)


def _first_of_each(owners: Ints, epochs: Ints, identity: Ints, live: Flags) -> Flags:
    """Return which live rows are the first of their owner, epoch and identity."""
    rows = np.flatnonzero(live)
    order = rows[np.lexsort((identity[rows], epochs[rows], owners[rows]))]
    first = steps.firsts(owners[order], epochs[order], identity[order])
    stands = np.zeros(len(owners), np.bool_)
    stands[order[first]] = True
    return stands


def _ends(owners: Ints, epochs: Ints, deleted: Ints, times: Ints, count: int) -> Ints:
    """Return the time at which each row's epoch ends; -1 if it does not. Deletions are in order of their groups."""
    counts = np.bincount(deleted, minlength=count)
    bases = np.cumsum(counts) - counts
    is_ended = epochs < counts[owners]
    return np.where(is_ended, np.append(times, -1)[np.where(is_ended, bases[owners] + epochs, -1)], -1)


class InsertIfAbsent:
    """Inserts the value of an event if its key holds nothing; an event that deletes makes room for another one."""

    name, version, has_one_value = "insert-if-absent", 1, True

    @property
    def options(self) -> Mapping[str, Any]:
        """None."""
        return {}

    def event_fields(self, schema: CollectionSchema) -> tuple[pa.Field, ...]:
        """Return the value fields: an event is the row that its key should have."""
        return schema.value.fields

    def step(self, touched: Touched) -> pa.Table:
        """Return the updates; see `persist.upsert.machine.Machine.step`."""
        groups, times, gone = steps.event_groups(touched), steps.event_times(touched), steps.deletions(touched)
        present = steps.present_groups(touched)
        held = np.bincount(present, minlength=touched.groups) > 0
        is_held = steps.before(groups, ~gone, held).astype(np.bool_)
        comes, goes = ~gone & ~is_held, gone & is_held
        inserted = steps.last_at(groups, comes)
        # What a deletion takes away was inserted by an event of this step, or was there before it.
        here, there = goes & (inserted >= 0), goes & (inserted < 0)
        ends = np.full(touched.groups, -1)
        ends[groups[there]] = times[there]
        old = np.flatnonzero(ends[present] >= 0)
        picks = [
            (old, ends[present[old]], -1),
            (inserted[here] + len(present), times[here], -1),
            (np.flatnonzero(comes) + len(present), times[comes], 1),
        ]
        return steps.updates(touched.schema, steps.all_rows(touched), picks)
