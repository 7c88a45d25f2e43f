"""Events as rows: what a keyed collection keeps of them until they are resolved.

    key columns, _seq, _deleted, event fields, _time, _diff

`_seq` numbers the rows of a part in the order in which they arrived; `_deleted` says that the key is gone, whatever the
event fields hold; `_diff` is 1. A part of events is a part like any other, of the schema whose value is all that is
between the key and `_time`: so its rows are in the order of (key, arrival), and are checked, pruned and read like those
of updates.
"""

from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from persist.codecs import CollectionSchema, Side, type_from_json
from persist.codecs.order.arrays import int64_array
from persist.log.records import KeyedForm
from persist.upsert.machine import DELETED, SEQ

_LEADING = (pa.field(SEQ, pa.int64()), pa.field(DELETED, pa.bool_()))


def event_fields(schema: CollectionSchema, form: KeyedForm) -> tuple[pa.Field, ...]:
    """Return the fields of an event besides its key."""
    if form.fields is None:
        return tuple(field.with_nullable(True) for field in schema.value.fields)  # NULL is what a deletion holds.
    return tuple(pa.field(name, type_from_json(kind)) for name, kind in form.fields)


def events_schema(schema: CollectionSchema, fields: tuple[pa.Field, ...]) -> CollectionSchema:
    """Return the schema of parts that hold events of a collection."""
    return _events_schema(schema.key, fields, schema.timeline)


@lru_cache(maxsize=256)
def _events_schema(key: Side, fields: tuple[pa.Field, ...], timeline: Any) -> CollectionSchema:
    return CollectionSchema(key, Side((*_LEADING, *fields)), timeline)


def in_order_of_arrival(events: pa.Table) -> pa.Table:
    """Return events that arrived in the order of their rows, with that order as `_seq`."""
    at = events.schema.get_field_index(SEQ)
    return events.set_column(at, events.schema.field(at), int64_array(np.arange(len(events), dtype=np.int64)))
