"""The first event of a key stands, and later ones change nothing, until one deletes it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from persist.codecs import CollectionSchema
from persist.upsert.machine import Touched
from persist.upsert.machines import steps


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
