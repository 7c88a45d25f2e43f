"""Events as rows, which a keyed collection stores until they are resolved, and their resolution.

`docs/inside/format.md` ("Keyed collections") defines the columns of events, their order and tombstones. A part of
events is an ordinary part, whose value columns are all columns between the key and `_time`: so its rows are sorted by
(key, arrival), and are verified, pruned and read like updates. The schema of events has versions like the collection's,
so pending events of an earlier version are read as the newest version like any other part.

Resolution is a pure function; other modules read and commit. `prepare_events` groups events by key and sorts the events
of a key, so that the event that counts comes last. A partial event without the columns of `order_by` comes after all
others of its time. The caller then looks up the present rows of these keys, and `resolve_to_updates` calls the machine
with rows and events. Memory and time are proportional to the events; most of the time is sorting.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.codecs.evolution import make_lift
from persist.codecs.order.arrays import get_boolean_values, get_int64_values, make_int64_array
from persist.codecs.order.digits import compute_dense_ranks, sort_rows
from persist.codecs.order.ordering import combine_chunks, make_order_keys, sort_table
from persist.codecs.order.search import SortedKeys
from persist.codecs.types.arrow_types import decode_scalar, decode_type
from persist.codecs.types.schema import CollectionSchema, Side
from persist.core.keyed.machine import DELETED, GIVEN, GROUP, SEQ, Machine, Touched, rank_watermarks
from persist.core.log.fields import KeyedForm

_LEADING = (pa.field(SEQ, pa.int64()), pa.field(DELETED, pa.bool_()))
_LEADING_IDS = (2**31, 2**31 + 1)


def list_event_fields(schema: CollectionSchema, form: KeyedForm) -> tuple[pa.Field, ...]:
    """Return the fields of a collection's events, without the key columns."""
    if form.fields is None:
        return tuple(field.with_nullable(True) for field in schema.value.fields)  # NULL is what a deletion holds.
    return tuple(pa.field(name, decode_type(kind)) for name, kind in form.fields)


def make_event_schema(schema: CollectionSchema, fields: tuple[pa.Field, ...]) -> CollectionSchema:
    """Return the schema of parts that hold events of a collection.

    `fields`: the fields of an event besides its key; in a collection that has evolved, its value fields.
    """
    if not schema.known:
        return _make_event_schema(schema.key, fields, schema.timeline)
    return _evolve_event_schema(schema, schema.known)


@lru_cache(maxsize=256)
def _make_event_schema(key: Side, fields: tuple[pa.Field, ...], timeline: Any) -> CollectionSchema:
    """Return the schema of events with these key columns and other fields."""
    return CollectionSchema(key, Side((*_LEADING, *fields)), timeline)


@lru_cache(maxsize=256)
def _evolve_event_schema(schema: CollectionSchema, known: tuple[CollectionSchema, ...]) -> CollectionSchema:
    """Return the event schema with the event schemas of all versions attached."""
    return replace(_make_event_version(schema), known=tuple(_make_event_version(version) for version in known))


def _make_event_version(schema: CollectionSchema) -> CollectionSchema:
    """Return the schema of events for one version of a collection's schema."""
    keys, fields = len(schema.key_names), (field.with_nullable(True) for field in schema.value.fields)
    ids = (*schema.ids[:keys], *_LEADING_IDS, *schema.ids[keys:])
    return CollectionSchema(
        schema.key,
        Side((*_LEADING, *fields)),
        schema.timeline,
        version=schema.version,
        ids=ids,
        defaults=schema.defaults,
        inner=schema.inner,
    )


def lift_events(events: pa.Table, written: CollectionSchema, schema: CollectionSchema) -> pa.Table:
    """Convert events of an old schema version to a newer one."""
    newest = make_event_schema(schema, schema.value.fields)
    lifted = make_lift(newest, written.version)
    return events if lifted is None else lifted.adapt_table(events, newest.arrow.names)


def number_by_arrival(events: pa.Table) -> pa.Table:
    """Add the order of rows, in which the events arrived, as `_seq`."""
    at = events.schema.get_field_index(SEQ)
    return events.set_column(at, events.schema.field(at), make_int64_array(np.arange(len(events), dtype=np.int64)))


def _get_tombstone_value(kind: pa.DataType, form: KeyedForm) -> pa.Scalar | None:
    """Return the value of a tombstone column that marks a deletion; None if every value but NULL does."""
    if pat.is_boolean(kind):
        return pa.scalar(True)
    return None if form.tombstone_value is None else decode_scalar(form.tombstone_value, kind)


def mark_tombstones(column: pa.ChunkedArray, form: KeyedForm) -> pa.ChunkedArray:
    """Return which values of a tombstone column mark deletions; without NULL."""
    value = _get_tombstone_value(column.type, form)
    return pc.is_valid(column) if value is None else pc.fill_null(pc.equal(column, value), False)


def make_live_filter(schema: CollectionSchema, form: KeyedForm | None) -> pc.Expression | None:
    """Return the filter that excludes tombstones; None if there cannot be any."""
    if form is None or form.tombstone is None:
        return None
    kind, column = schema.arrow.field(form.tombstone).type, pc.field(form.tombstone)
    value = _get_tombstone_value(kind, form)
    if value is None:
        return column.is_null()
    return column.is_null() | (column == pa.scalar(False) if pat.is_boolean(kind) else column != value)


def make_tombstone_filter(schema: CollectionSchema, form: KeyedForm) -> pc.Expression:
    """Return the filter that passes tombstones alone."""
    assert form.tombstone is not None
    value, column = _get_tombstone_value(schema.arrow.field(form.tombstone).type, form), pc.field(form.tombstone)
    return column.is_valid() if value is None else column == value


def mark_deletions(events: pa.Table, form: KeyedForm, deleted: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Return the tombstone column of events, with deletions marked; None if a deletion cannot be marked.

    A boolean column, or a string column with a declared value, can be marked; otherwise events must mark their
    deletions.
    """
    assert form.tombstone is not None
    column = events[form.tombstone]
    value = _get_tombstone_value(column.type, form)
    if value is not None:
        return pc.if_else(deleted, value, column)
    return None if pc.any(pc.and_(deleted, pc.is_null(column))).as_py() else column


Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Prepared:
    """Events, grouped by key and sorted, ready for a machine.

    Attributes:
        schema: of the collection.
        keys: the distinct keys, in order.
        events: in the order of `Touched.events`.
    """

    schema: CollectionSchema
    keys: pa.Table
    events: pa.Table


def prepare_events(schema: CollectionSchema, form: KeyedForm, events: pa.Table) -> Prepared:
    """Group events by key, and sort each key's events, for a machine.

    `events`: event rows with canonical floats, the events of each key in the order of their arrival.
    """
    names = list(schema.key_names)
    events = events.drop_columns([SEQ, "_diff"]).combine_chunks()
    order, starts = sort_table(events, names)
    groups = np.cumsum(starts) - 1
    keys = events.select(names).take(make_int64_array(order[starts]))
    times = get_int64_values(combine_chunks(events["_time"]))[order]
    if form.order_by or form.ties == "greatest" or not _is_ascending(groups, times):
        ranks = _rank_events(schema, form, events)[order]
        within, starts = sort_rows([make_int64_array(groups), make_int64_array(times), make_int64_array(ranks)])
        order, groups = order[within], groups[within]
        if form.ties == "greatest":
            order = _sort_ties_by_value(events, order, starts, _list_value_names(schema, form))
    if (order[1:] <= order[:-1]).any():
        events = events.take(make_int64_array(order))
    return Prepared(schema, keys, events.append_column(_GROUP_FIELD, make_int64_array(groups.astype(np.int64))))


def _rank_events(schema: CollectionSchema, form: KeyedForm, events: pa.Table) -> Ints:
    """Rank each event among the events of its key and time."""
    ranks = rank_watermarks(events, form.order_by) if form.order_by else np.zeros(len(events), np.int64)
    if GIVEN not in events.column_names:
        return ranks
    if not form.order_by:  # The columns that partial events lack are no values, and must not decide a tie.
        is_partial = get_boolean_values(combine_chunks(pc.is_valid(events[GIVEN])))
        return is_partial.astype(np.int64) if form.ties == "greatest" else ranks
    return np.where(mark_lacking(events, schema, form.order_by[0]), len(events), ranks)


def mark_lacking(events: pa.Table, schema: CollectionSchema, name: str) -> npt.NDArray[np.bool_]:
    """Return which events leave a value column as it is (partial events)."""
    texts = combine_chunks(events[GIVEN]).dictionary_encode()
    at = schema.value_names.index(name)
    lacks = np.array([*(not has_column(text, at) for text in texts.dictionary.to_pylist()), False])
    flags: npt.NDArray[np.bool_] = lacks[get_int64_values(texts.indices.cast(pa.int64()).fill_null(-1))]
    return flags


def list_unchanged(events: pa.Table, schema: CollectionSchema) -> pa.Array:
    """Return the value columns that each partial event does not change; NULL for whole events."""
    texts = combine_chunks(events[GIVEN]).dictionary_encode()
    names = [
        [name for at, name in enumerate(schema.value_names) if not has_column(text, at)]
        for text in texts.dictionary.to_pylist()
    ]
    return pa.array(names, pa.list_(pa.string())).take(texts.indices)


def has_column(text: str, at: int) -> bool:
    """Return whether an event's text in `GIVEN` sets value column `at`."""
    return text.split(" ")[1][at] == "1"


def resolve_to_updates(prepared: Prepared, machine: Machine, present: pa.Table) -> pa.Table:
    """Let a machine turn events into updates, which are not consolidated.

    `present`: the present rows of the keys, in any order.
    """
    names = [*prepared.schema.names]
    present = present.select(names)
    groups = number_groups(present, prepared.keys)
    if not _is_ascending(groups, None):
        order = np.argsort(groups, kind="stable")
        present, groups = present.take(make_int64_array(order)), groups[order]
    present = present.append_column(_GROUP_FIELD, make_int64_array(groups))
    touched = Touched(prepared.schema, len(prepared.keys), present, prepared.events)
    return machine.step(touched).select(prepared.schema.arrow.names).cast(prepared.schema.arrow)


def replace_by_event(prepared: Prepared, terms: pa.Table) -> pa.Table:
    """Return updates by which each event replaces its key's rows, not consolidated.

    A key's first event retracts all its rows, and each event retracts the one before. Events have no watermarks.

    `terms`: rows of these keys with `_diff`, not consolidated.
    """
    groups, times = (
        get_int64_values(combine_chunks(prepared.events[GROUP])),
        get_int64_values(combine_chunks(prepared.events["_time"])),
    )
    starts = np.ones(len(groups), np.bool_)
    np.not_equal(groups[1:], groups[:-1], out=starts[1:])
    is_row = ~get_boolean_values(combine_chunks(prepared.events[DELETED]))
    comes, goes = is_row.nonzero()[0], (is_row[:-1] & ~starts[1:]).nonzero()[0]
    rows, names = prepared.events, [*prepared.schema.names]
    if len(comes) != len(rows) or len(goes):
        rows = rows.take(make_int64_array(np.concatenate([comes, goes])))
    at, diffs = np.concatenate([times[comes], times[goes + 1]]), np.ones(len(rows), np.int64)
    diffs[len(comes) :] = -1
    columns = [*rows.select(names).columns, make_int64_array(at), make_int64_array(diffs)]
    updates = pa.Table.from_arrays(columns, schema=prepared.schema.arrow)
    if not len(terms):
        return updates
    first_times = times[starts]
    if (first_times == first_times[0]).all():
        goes_at = np.repeat(first_times[:1], len(terms))
    else:
        goes_at = first_times[number_groups(terms, prepared.keys)]
    columns = [*terms.select(names).columns, make_int64_array(goes_at), pc.negate(terms["_diff"])]
    return pa.concat_tables([updates, pa.Table.from_arrays(columns, schema=prepared.schema.arrow)])


def _sort_ties_by_value(events: pa.Table, order: Ints, starts: npt.NDArray[np.bool_], names: Sequence[str]) -> Ints:
    """Return the order of events with ties sorted by their values, deletions first.

    `starts`: bool[n]: whether an event, in that order, does not tie with the one before it.
    """
    is_tied = ~starts
    is_tied[:-1] |= ~starts[1:]
    tied = np.flatnonzero(is_tied)
    if not len(tied):
        return order
    some = events.select([DELETED, *names]).take(make_int64_array(order[tied])).combine_chunks()
    ties = make_int64_array(np.cumsum(starts, dtype=np.int64)[tied])
    within, _ = sort_rows([ties, pc.invert(combine_chunks(some[DELETED])), *make_order_keys(some, names)])
    settled = order.copy()
    settled[tied] = order[tied][within]
    return settled


def _list_value_names(schema: CollectionSchema, form: KeyedForm) -> list[str]:
    """Return an event's fields in order of creation, which never changes."""
    if form.fields is not None:
        return [name for name, _ in form.fields]
    ids = dict(zip(schema.names, schema.ids, strict=True))
    return sorted(schema.value_names, key=ids.__getitem__)


_GROUP_FIELD = pa.field(GROUP, pa.int64(), nullable=False)


def number_groups(rows: pa.Table, keys: pa.Table) -> Ints:
    """Return for each row its key's position in `keys`, which have all."""
    if not len(rows):
        return np.zeros(0, np.int64)
    groups = SortedKeys(keys).count_less(SortedKeys(rows.select(keys.column_names)))
    if groups is not None:
        assert int(groups.max()) < len(keys), "a row has a key that no event has"
        return groups.astype(np.int64, copy=False)
    keys_and_rows = pa.concat_tables([keys, rows.select(keys.column_names)]).combine_chunks()
    ranks = compute_dense_ranks(make_order_keys(keys_and_rows, keys.column_names))
    assert int(ranks.max()) + 1 == len(keys), "a row has a key that no event has"
    return ranks[len(keys) :]


def _is_ascending(groups: Ints, times: Ints | None) -> bool:
    """Return whether rows are sorted by group, then time."""
    same = groups[1:] == groups[:-1]
    if times is None:
        return bool((groups[1:] >= groups[:-1]).all())
    return bool((~same | (times[1:] >= times[:-1])).all())
