"""Resolution: what events amount to, given what their keys hold. Pure; the reading and the committing are elsewhere.

`prepared` groups events by key and puts those of a key in their order: by time, then `order_by`. Events that are equal
in both are in the order of arrival, which is the order in which they are given; with ties="greatest" they are in the
order of their values instead, and those that delete come first. So whatever counts comes last. The rows that the keys
hold are then looked up by whoever called, and `resolved` has the machine say what becomes of them. Memory and time are
in proportion to the events, and sorting them is most of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from persist.codecs import (
    CollectionSchema,
    RowSorter,
    SortedKeys,
    combined,
    int64_array,
    int64_values,
    order_keys,
    row_sorter,
)
from persist.log import KeyedForm
from persist.upsert.machine import DELETED, GROUP, SEQ, Machine, Touched, watermark_ranks

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Prepared:
    """Events, grouped by key and in order.

    Attributes:
        schema: of the collection.
        keys: the distinct keys, in order.
        events: as `Touched` has them.
    """

    schema: CollectionSchema
    keys: pa.Table
    events: pa.Table


def prepared(schema: CollectionSchema, form: KeyedForm, events: pa.Table) -> Prepared:
    """Return events ready to be resolved.

    Args:
        events: rows of `persist.upsert.events`, floats canonical, those of each key in the order of their arrival.
    """
    names = list(schema.key_names)
    events = events.drop_columns([SEQ, "_diff"]).combine_chunks()
    order, starts = row_sorter(events, names).sort()
    groups = np.cumsum(starts) - 1
    keys = events.select(names).take(int64_array(order[starts]))
    times = int64_values(combined(events["_time"]))[order]
    if form.order_by or form.ties == "greatest" or not _ascends(groups, times):
        ranks = watermark_ranks(events, form.order_by)[order] if form.order_by else np.zeros(len(order), np.int64)
        within, starts = RowSorter([int64_array(groups), int64_array(times), int64_array(ranks)]).sort()
        order, groups = order[within], groups[within]
        if form.ties == "greatest":
            order = _by_value(events, order, starts, _value_names(schema, form))
    if not _is_whole(order):
        events = events.take(int64_array(order))
    return Prepared(schema, keys, events.append_column(_GROUP_FIELD, int64_array(groups.astype(np.int64))))


def resolved(prepared: Prepared, machine: Machine, present: pa.Table) -> pa.Table:
    """Return the updates that events amount to, not consolidated.

    Args:
        present: the rows that the keys hold, in any order.
    """
    names = [*prepared.schema.names]
    present = present.select(names)
    groups = _groups_of(present, prepared.keys)
    if not _ascends(groups, None):
        order = np.argsort(groups, kind="stable")
        present, groups = present.take(int64_array(order)), groups[order]
    present = present.append_column(_GROUP_FIELD, int64_array(groups))
    touched = Touched(prepared.schema, len(prepared.keys), present, prepared.events)
    return machine.step(touched).select(prepared.schema.arrow.names).cast(prepared.schema.arrow)


def replaced(prepared: Prepared, machine: Machine, present: pa.Table) -> pa.Table:
    """Return what `resolved` does where keys may hold several rows: all of these go with the first event of their key.

    Args:
        present: the rows that the keys hold, and `_diff`, how often.
    """
    comes = resolved(prepared, machine, prepared.schema.arrow.empty_table())
    groups, times = (int64_values(combined(prepared.events[name])) for name in (GROUP, "_time"))
    first_times = times[np.searchsorted(groups, np.arange(len(prepared.keys)))]
    goes_at = int64_array(first_times[_groups_of(present, prepared.keys)])
    columns = [*present.select([*prepared.schema.names]).columns, goes_at, pc.negate(present["_diff"])]
    return pa.concat_tables([comes, pa.Table.from_arrays(columns, schema=prepared.schema.arrow)])


def _by_value(events: pa.Table, order: Ints, starts: npt.NDArray[np.bool_], names: Sequence[str]) -> Ints:
    """Return the order of events with those that tie in the order of their values, and deletions before them.

    Args:
        starts: bool[n]: whether an event, in that order, does not tie with the one before it.
    """
    is_tied = ~starts
    is_tied[:-1] |= ~starts[1:]
    tied = np.flatnonzero(is_tied)
    if not len(tied):
        return order
    some = events.select([DELETED, *names]).take(int64_array(order[tied])).combine_chunks()
    ties = int64_array(np.cumsum(starts, dtype=np.int64)[tied])
    within, _ = RowSorter([ties, pc.invert(combined(some[DELETED])), *order_keys(some, names)]).sort()
    settled = order.copy()
    settled[tied] = order[tied][within]
    return settled


def _value_names(schema: CollectionSchema, form: KeyedForm) -> list[str]:
    """Return the fields of an event in the order in which the collection got them, which an evolution leaves alone."""
    if form.fields is not None:
        return [name for name, _ in form.fields]
    ids = dict(zip(schema.names, schema.ids, strict=True))
    return sorted(schema.value_names, key=ids.__getitem__)


_GROUP_FIELD = pa.field(GROUP, pa.int64(), nullable=False)


def _groups_of(rows: pa.Table, keys: pa.Table) -> Ints:
    """Return the number of the key of each row, all of which are among the keys."""
    if not len(rows):
        return np.zeros(0, np.int64)
    groups = SortedKeys(keys).less_than(SortedKeys(rows.select(keys.column_names)))
    if groups is not None:
        assert int(groups.max()) < len(keys), "a row has a key that no event has"
        return groups.astype(np.int64, copy=False)
    both = pa.concat_tables([keys, rows.select(keys.column_names)]).combine_chunks()
    order, starts = RowSorter(order_keys(both, keys.column_names)).sort()
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.cumsum(starts) - 1
    assert int(ranks.max()) + 1 == len(keys), "a row has a key that no event has"
    return ranks[len(keys) :]


def _ascends(groups: Ints, times: Ints | None) -> bool:
    """Whether rows are in the order of groups, and of times within these."""
    same = groups[1:] == groups[:-1]
    if times is None:
        return bool((groups[1:] >= groups[:-1]).all())
    return bool((~same | (times[1:] >= times[:-1])).all())


def _is_whole(order: Ints) -> bool:
    return bool((order[1:] > order[:-1]).all())
