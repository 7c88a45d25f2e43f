"""The way back: the changes of a keyed collection as `(key, value or None, time)`, for sinks that know keys alone.

At each time, a key either has another value, which is the one row that came, or none any more: then its event deletes.
Writing these to another keyed collection gives the same changes.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.codecs import CollectionSchema, order_keys, to_rows
from persist.codecs.order.arrays import boolean_array, int64_array, int64_values
from persist.codecs.order.digits import RowSorter
from persist.codecs.order.ordering import combined
from persist.errors import InvalidUsage
from persist.read.changes import Changes
from persist.upsert.machine import DELETED


class Upserts:
    """The events in `[lower, upper)`, in the order of times; see `Collection.upserts`. Read as it is iterated."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._schema = changes.scan.schema

    @property
    def schema(self) -> pa.Schema:
        """The key and value columns, `_time` and `_deleted`."""
        fields = [self._schema.arrow.field(name) for name in (*self._schema.names, "_time")]
        return pa.schema([*fields, pa.field(DELETED, pa.bool_(), nullable=False)])

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield batches of events. Memory: as `Changes.to_batches`."""
        for batch in self._changes.to_batches():
            for table in self._events(pa.Table.from_batches([batch])):
                yield from table.to_batches()

    def to_arrow(self) -> pa.Table:
        """Return all events as one table."""
        return pa.Table.from_batches(self.to_batches(), self.schema)

    def __iter__(self) -> Iterator[tuple[Any, Any, int]]:
        """Yield `(key, value, time)`; value is None where a key is deleted, () where there are no value columns."""
        nothing = () if not self._schema.value_names else None
        for batch in self.to_batches():
            table = pa.Table.from_batches([batch])
            deleted, times = table[DELETED].to_pylist(), table["_time"].to_pylist()
            keys = _without_values(table, self._schema, deleted)
            for (key, value), time, is_gone in zip(keys, times, deleted, strict=True):
                yield key, None if is_gone else (nothing if value is None and nothing is not None else value), time

    def close(self) -> None:
        """Give up the claim; idempotent."""
        self._changes.close()

    def __enter__(self) -> "Upserts":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _events(self, changes: pa.Table) -> Iterator[pa.Table]:
        """Yield the events of changes, which hold each (time, key) as a whole."""
        if not len(changes):
            return
        names = ["_time", *self._schema.key_names]
        changes = changes.combine_chunks()
        order, starts = RowSorter(order_keys(changes, names)).sort()
        group = np.cumsum(starts) - 1
        comes = int64_values(combined(changes["_diff"]))[order] > 0
        count = np.bincount(group[comes], minlength=int(group[-1]) + 1)
        if (count > 1).any() or (np.abs(int64_values(combined(changes["_diff"]))) > 1).any():
            raise InvalidUsage("a key has more than one value, so its changes are no upserts: read changes() instead")
        # Of each key and time the row that comes, or one that goes.
        first = np.flatnonzero(starts)
        at = order[first]
        at[group[comes]] = order[comes]
        deleted = pa.chunked_array([boolean_array(count == 0)])
        events = changes.take(int64_array(at)).drop_columns(["_diff"])
        values = [
            pc.if_else(deleted, pa.scalar(None, column.type), column) if name in self._schema.value_names else column
            for name, column in zip(events.column_names, events.columns, strict=True)
        ]
        yield pa.Table.from_arrays([*values, deleted], schema=self.schema)


def _without_values(table: pa.Table, schema: CollectionSchema, deleted: list[bool]) -> Iterator[tuple[Any, Any]]:
    """Yield (key, value) of each row; values of rows that delete are whatever their NULLs mean, or None."""
    if schema.value.codec_name is None or not any(deleted):
        yield from to_rows(table, schema)
        return
    alone = CollectionSchema(schema.key, type(schema.key)(()), schema.timeline)
    live = to_rows(table.filter(pc.invert(table[DELETED])), schema)
    for (key, _), is_gone in zip(to_rows(table, alone), deleted, strict=True):
        yield (key, None) if is_gone else next(live)
