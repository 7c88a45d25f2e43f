"""The machine of `upsert`: the newest event of a key is its value.

Of the events of one time only the last in their order counts (`persist.upsert.resolution`). It changes nothing if its
watermark, the columns of `order_by`, is below that of the row that stands; otherwise the row that stands is retracted,
and the event's own row takes its place, unless the event deletes and there is no tombstone column that could say so.
Where watermarks are declared, what stands after some events is the event with the greatest of them, and of equal ones
the latest: a running maximum for each key.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from persist.codecs import CollectionSchema, RowSorter, boolean_values, combined, int64_array, int64_values, order_keys
from persist.log import KeyedForm
from persist.upsert.machine import DELETED, GROUP, Touched

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

NAME, VERSION = "upsert", 1


class Replacing:
    """See the module's docstring.

    Args:
        order_by: the columns of the watermark, the first decides first; none means that what arrived last is newest.
        has_tombstone: whether events that delete leave a row, which says so.
    """

    name, version, has_one_value = NAME, VERSION, True

    def __init__(self, order_by: Sequence[str] = (), *, has_tombstone: bool = False) -> None:
        self._order_by = tuple(order_by)
        self._has_tombstone = has_tombstone

    @classmethod
    def of(cls, form: KeyedForm) -> "Replacing":
        """Return the machine that a declaration asks for."""
        return cls(form.order_by, has_tombstone=form.tombstone is not None)

    @property
    def options(self) -> Mapping[str, Any]:
        """None: what it depends on is in the declaration already."""
        return {}

    def event_fields(self, schema: CollectionSchema) -> tuple[pa.Field, ...]:
        """Return the value fields: an event is the row that its key should have."""
        return schema.value.fields

    def step(self, touched: Touched) -> pa.Table:
        """Return the updates; see `persist.upsert.machine.Machine.step`."""
        names = [*touched.schema.names]
        groups, times = int64_values(combined(touched.events[GROUP])), int64_values(combined(touched.events["_time"]))
        last = _last_of_each(groups, times)
        events = touched.events if last.all() else touched.events.take(int64_array(np.flatnonzero(last)))
        groups, times = groups[last], times[last]
        # What each key holds, then its events: rows of one table, and for each the one before it of the same key.
        rows = pa.concat_tables([touched.present.select(names), events.select(names)]).combine_chunks()
        present = int64_values(combined(touched.present[GROUP]))
        order, group = _with_present_first(present, groups)
        if self._order_by:
            stands = _stands(watermark_ranks(rows, self._order_by)[order], group)
            order, group = order[stands], group[stands]
        is_event = order >= len(present)
        at = order[is_event] - len(present)
        is_row = np.ones(len(order), np.bool_)
        if not self._has_tombstone:
            is_row[is_event] = ~boolean_values(combined(events[DELETED]))[at]
        has_before = np.zeros(len(order), np.bool_)
        has_before[1:] = (group[1:] == group[:-1]) & is_row[:-1]
        time = np.zeros(len(order), np.int64)
        time[is_event] = times[at]
        goes, comes = np.flatnonzero(is_event & has_before), np.flatnonzero(is_event & is_row)
        return _updates(touched.schema, rows, order, time, goes, comes)


def watermark_ranks(rows: pa.Table, order_by: Sequence[str]) -> Ints:
    """Return int64[rows]: equal for equal watermarks, and greater for greater ones; NULL is below everything."""
    columns = []
    for column in order_keys(rows, order_by):
        columns += [pc.is_valid(column), column]
    order, starts = RowSorter(columns).sort()
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.cumsum(starts)
    return ranks


def _last_of_each(groups: Ints, times: Ints) -> Flags:
    last = np.ones(len(groups), np.bool_)
    last[:-1] = (groups[1:] != groups[:-1]) | (times[1:] != times[:-1])
    return last


def _with_present_first(present: Ints, groups: Ints) -> tuple[Ints, Ints]:
    """Return the rows of both, by group and those that are present first, and the groups of these."""
    both = np.concatenate([present, groups])
    order = np.argsort(both, kind="stable")
    return order, both[order]


def _stands(ranks: Ints, group: Ints) -> Flags:
    """Return which rows, ordered by group, are not below one before them of their group."""
    if not len(ranks):
        return np.zeros(0, np.bool_)
    width = int(ranks.max()) + 1
    stands: Flags = np.maximum.accumulate(group * width + ranks) == group * width + ranks
    return stands


def _updates(schema: CollectionSchema, rows: pa.Table, order: Ints, time: Ints, goes: Ints, comes: Ints) -> pa.Table:
    """Return the retractions of the rows before those at goes, and the insertions of those at comes."""
    chosen = np.concatenate([order[goes - 1], order[comes]])
    times, diffs = np.concatenate([time[goes], time[comes]]), np.ones(len(chosen), np.int64)
    diffs[: len(goes)] = -1
    if len(chosen) == len(rows) and bool(np.bincount(chosen, minlength=len(rows)).all()):
        # Mostly each row goes or comes once, and then they may stay where they are: they are sorted later anyway.
        times[chosen], diffs[chosen] = times.copy(), diffs.copy()
    else:
        rows = rows.take(int64_array(chosen))
    return pa.Table.from_arrays([*rows.columns, int64_array(times), int64_array(diffs)], schema=schema.arrow)
