"""Events as rows: what a keyed collection keeps of them until they are resolved.

    key columns, _seq, _deleted, event fields, _time, _diff

`_seq` numbers the rows of a part in the order in which they arrived; `_deleted` says that the key is gone, whatever the
event fields hold; `_diff` is 1. A part of events is a part like any other, of the schema whose value is all that is
between the key and `_time`: so its rows are in the order of (key, arrival), and are checked, pruned and read like those
of updates.

That schema has the versions of the collection's, and the ids of its columns, so that events which wait while the
collection evolves are read as the newest version like any other part. `_seq` and `_deleted` have ids that no column of
a collection can have.

A tombstone is a row that says that its key is deleted: it is stored like other rows, and left out when read. Of the
tombstone column, what says so is decided by the first that fits: a boolean says so if it is true; a string, with a
tombstone value declared, if it is that; everything else if it is not NULL.
"""

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.codecs import CollectionSchema, Side, int64_array, lift, scalar_from_json, type_from_json
from persist.log import KeyedForm
from persist.upsert.machine import DELETED, SEQ

_LEADING = (pa.field(SEQ, pa.int64()), pa.field(DELETED, pa.bool_()))
_LEADING_IDS = (2**31, 2**31 + 1)


def event_fields(schema: CollectionSchema, form: KeyedForm) -> tuple[pa.Field, ...]:
    """Return the fields of an event besides its key."""
    if form.fields is None:
        return tuple(field.with_nullable(True) for field in schema.value.fields)  # NULL is what a deletion holds.
    return tuple(pa.field(name, type_from_json(kind)) for name, kind in form.fields)


def events_schema(schema: CollectionSchema, fields: tuple[pa.Field, ...]) -> CollectionSchema:
    """Return the schema of parts that hold events of a collection.

    Args:
        fields: of an event besides its key. Of a collection that has evolved these are its value fields.
    """
    if schema.version == 1 and not schema.known:
        return _events_schema(schema.key, fields, schema.timeline)
    return _evolved_events(schema, schema.known)


@lru_cache(maxsize=256)
def _events_schema(key: Side, fields: tuple[pa.Field, ...], timeline: Any) -> CollectionSchema:
    return CollectionSchema(key, Side((*_LEADING, *fields)), timeline)


@lru_cache(maxsize=256)
def _evolved_events(schema: CollectionSchema, known: tuple[CollectionSchema, ...]) -> CollectionSchema:
    return replace(_version(schema), known=tuple(_version(version) for version in known))


def _version(schema: CollectionSchema) -> CollectionSchema:
    keys, fields = len(schema.key_names), (field.with_nullable(True) for field in schema.value.fields)
    ids = (*schema.ids[:keys], *_LEADING_IDS, *schema.ids[keys:])
    return CollectionSchema(
        schema.key,
        Side((*_LEADING, *fields)),
        schema.timeline,
        version=schema.version,
        ids=ids,
        defaults=schema.defaults,
    )


def lifted_events(events: pa.Table, written: CollectionSchema, schema: CollectionSchema) -> pa.Table:
    """Return events of one version of a collection's schema as those of another, which knows it."""
    newest = events_schema(schema, schema.value.fields)
    lifted = lift(newest, written.version)
    return events if lifted is None else lifted.table(events, newest.arrow.names)


def in_order_of_arrival(events: pa.Table) -> pa.Table:
    """Return events that arrived in the order of their rows, with that order as `_seq`."""
    at = events.schema.get_field_index(SEQ)
    return events.set_column(at, events.schema.field(at), int64_array(np.arange(len(events), dtype=np.int64)))


def is_tombstone(column: pa.ChunkedArray, form: KeyedForm) -> pa.ChunkedArray:
    """Return bool, without NULL: whether a row with that in its tombstone column deletes its key."""
    if pat.is_boolean(column.type):
        return pc.fill_null(column, False)
    if form.tombstone_value is not None:
        return pc.fill_null(pc.equal(column, pa.scalar(form.tombstone_value, column.type)), False)
    return pc.is_valid(column)


def live_filter(schema: CollectionSchema, form: KeyedForm | None) -> pc.Expression | None:
    """Return the filter that passes all rows but tombstones; None where there are none."""
    if form is None or form.tombstone is None:
        return None
    kind, column = schema.arrow.field(form.tombstone).type, pc.field(form.tombstone)
    if pat.is_boolean(kind):
        return column.is_null() | (column == pa.scalar(False))
    if form.tombstone_value is not None:
        return column.is_null() | (column != scalar_from_json(form.tombstone_value, kind))
    return column.is_null()


def dead_filter(schema: CollectionSchema, form: KeyedForm) -> pc.Expression:
    """Return the filter that passes tombstones alone."""
    assert form.tombstone is not None
    kind, column = schema.arrow.field(form.tombstone).type, pc.field(form.tombstone)
    if pat.is_boolean(kind):
        return column == pa.scalar(True)
    if form.tombstone_value is not None:
        return column == scalar_from_json(form.tombstone_value, kind)
    return column.is_valid()


def marked(events: pa.Table, form: KeyedForm, deleted: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Return the tombstone column of events, where those that are deleted say so; None if some cannot.

    A boolean can, and so can a string with a declared value; otherwise what deletes must say so itself.
    """
    assert form.tombstone is not None
    column = events[form.tombstone]
    if pat.is_boolean(column.type):
        return pc.if_else(deleted, pa.scalar(True), column)
    if form.tombstone_value is not None:
        return pc.if_else(deleted, pa.scalar(form.tombstone_value, column.type), column)
    return None if pc.any(pc.and_(deleted, pc.is_null(column))).as_py() else column
