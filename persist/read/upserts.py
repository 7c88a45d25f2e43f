"""The way back: the changes of a keyed collection as `(key, value or None, time)`, for sinks that know keys alone.

At each time, a key either has another value, which is the one row that came, or none any more: then its event deletes.
Writing these to another keyed collection gives the same changes. So tombstones are events as well, which delete and
keep their watermark; one that goes because nothing needs it any more is none.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from persist.codecs import (
    CollectionSchema,
    RowSorter,
    boolean_array,
    boolean_values,
    combined,
    int64_array,
    int64_values,
    order_keys,
    to_rows,
)
from persist.errors import InvalidUsage
from persist.log import KeyedForm
from persist.read.changes import Changes
from persist.read.scan import Scan
from persist.upsert import DELETED, is_tombstone


@dataclass(frozen=True)
class UpsertEvents:
    """Makes events of changes.

    Attributes:
        form: of the collection, with the names that its columns have in the schema.
    """

    columns: CollectionSchema
    form: KeyedForm | None

    @property
    def schema(self) -> pa.Schema:
        """The key and value columns, `_time` and `_deleted`."""
        values = [self.columns.arrow.field(name).with_nullable(True) for name in self.columns.value_names]
        keys = [self.columns.arrow.field(name) for name in self.columns.key_names]
        time, deleted = self.columns.arrow.field("_time"), pa.field(DELETED, pa.bool_(), nullable=False)
        return pa.schema([*keys, *values, time, deleted])

    def of(self, changes: pa.Table) -> pa.Table:
        """Return the events of changes, tombstones among them, which hold each (time, key) as a whole.

        Raises:
            InvalidUsage: a key has more than one value.
        """
        if not len(changes):
            return self.schema.empty_table()
        names = ["_time", *self.columns.key_names]
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
        events, is_gone = changes.take(int64_array(at)).drop_columns(["_diff"]), count == 0
        if self.form is None or self.form.tombstone is None:
            return self._given(events, is_gone, is_gone)
        is_dead = boolean_values(combined(is_tombstone(events[self.form.tombstone], self.form)))
        events = events.filter(boolean_array(~(is_dead & is_gone)))
        is_gone, is_dead = is_gone[~(is_dead & is_gone)], is_dead[~(is_dead & is_gone)]
        return self._given(events, is_gone, is_gone | is_dead)

    def _given(self, events: pa.Table, is_gone: NDArray[np.bool_], deleted: NDArray[np.bool_]) -> pa.Table:
        """Return events as they are given out: where nothing came, values are NULL."""
        gone = pa.chunked_array([boolean_array(is_gone)])
        values = [
            pc.if_else(gone, pa.scalar(None, column.type), column) if name in self.columns.value_names else column
            for name, column in zip(events.column_names, events.columns, strict=True)
        ]
        return pa.Table.from_arrays([*values, pa.chunked_array([boolean_array(deleted)])], schema=self.schema)


class Upserts:
    """The events in `[lower, upper)`, in the order of times; see `Collection.upserts`. Read as it is iterated."""

    def __init__(self, changes: Changes, events: UpsertEvents) -> None:
        """Make one of changes, tombstones among them."""
        self._changes = changes
        self._schema = changes.scan.given
        self.events = events

    @property
    def schema(self) -> pa.Schema:
        """The key and value columns, `_time` and `_deleted`."""
        return self.events.schema

    @property
    def scan(self) -> Scan:
        """The plan of the changes."""
        return self._changes.scan

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield batches of events. Memory: as `Changes.to_batches`."""
        for batch in self._changes.to_batches():
            yield from self.events.of(pa.Table.from_batches([batch])).to_batches()

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


def _without_values(table: pa.Table, schema: CollectionSchema, deleted: list[bool]) -> Iterator[tuple[Any, Any]]:
    """Yield (key, value) of each row; values of rows that delete are whatever their NULLs mean, or None."""
    if schema.value.codec_name is None or not any(deleted):
        yield from to_rows(table, schema)
        return
    alone = CollectionSchema(schema.key, type(schema.key)(()), schema.timeline)
    live = to_rows(table.filter(pc.invert(table[DELETED])), schema)
    for (key, _), is_gone in zip(to_rows(table, alone), deleted, strict=True):
        yield (key, None) if is_gone else next(live)
