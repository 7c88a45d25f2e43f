"""Tombstones: rows that say that their key is deleted. They are stored like other rows, and left out when read.

Of the tombstone column, what says so is decided by the first that fits: a boolean says so if it is true; a string, with
a tombstone value declared, if it is that; everything else if it is not NULL.
"""

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.codecs import CollectionSchema, scalar_from_json
from persist.log import KeyedForm


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
