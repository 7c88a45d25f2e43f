"""Runs out of updates that come in any order: as few as the order allows.

`RunStream` takes tables of updates, sorts and consolidates each, and appends it to the run in progress as long as keys
do not go back; where they do, a new run begins. So updates that come sorted by key become one run, whose parts do not
overlap, and others become a run for each table. Within a key the order does not matter: the updates of the last key are
held back until another key comes, or until they are `HELD_BYTES_MAX`; those of a larger key go on in a new run.

Memory: about four times a table that is added, and what `PartStream` holds.
"""

import numpy as np
import pyarrow as pa

from persist.codecs.order.consolidation import consolidate
from persist.codecs.order.digits import neighbours_differ
from persist.codecs.order.ordering import order_keys, sort_indices
from persist.codecs.part.file_writer import misled_columns
from persist.codecs.part.stream import ROW_GROUP_BYTES_MAX, Encoded, PartStream
from persist.codecs.types.schema import TIME, CollectionSchema

HELD_BYTES_MAX = 16 << 20


class RunStream:
    """Writes updates as parts; blob and inline are left empty in descriptors. After an error it cannot be used."""

    def __init__(self, schema: CollectionSchema, *, row_group_bytes_max: int = ROW_GROUP_BYTES_MAX) -> None:
        self._schema = schema
        self._group_bytes = row_group_bytes_max
        self._held: pa.Table | None = None
        self._last_key: pa.Table | None = None  # Of the run in progress.
        self._stream: PartStream | None = None

    def add(self, table: pa.Table) -> list[Encoded]:
        """Take updates as from `to_updates`; return the parts that they complete.

        Raises:
            DiffOverflow: the diffs of one update sum to outside int64.
            InvalidUpdate: a value that Parquet cannot hold.
        """
        rows, done = self._ordered(table), []
        if self._held is not None and len(rows):
            if self._order(self._held, rows) == 0:
                rows = self._ordered(pa.concat_tables([self._held, rows]))
            else:
                done = self._write(self._held)
            self._held = None
        last = _first_of_last_key(rows, self._schema)
        held = rows.slice(last)
        if held.nbytes > HELD_BYTES_MAX:
            return done + self._write(rows)
        if len(held):  # As a copy, which does not hold on to the rest.
            self._held = held.take(pa.array(np.arange(len(held))))
        return done + self._write(rows.slice(0, last))

    def finish(self) -> list[Encoded]:
        """Return the parts that are left; nothing may be added any more."""
        done = self._write(self._held) if self._held is not None else []
        self._held = None
        return done + self._end_run()

    def _ordered(self, table: pa.Table) -> pa.Table:
        summed = consolidate(table, [*self._schema.names, TIME])
        return pa.Table.from_arrays(summed.columns, schema=self._schema.arrow)

    def _write(self, rows: pa.Table) -> list[Encoded]:
        if not len(rows):
            return []
        done = [] if self._follows(rows) else self._end_run()
        if self._stream is None:
            self._stream = PartStream(self._schema, row_group_bytes_max=self._group_bytes)
        self._stream.without_statistics(misled_columns(rows))
        self._last_key = rows.select(self._schema.key_names).take([len(rows) - 1])
        return done + self._stream.add(rows)

    def _end_run(self) -> list[Encoded]:
        stream, self._stream, self._last_key = self._stream, None, None
        return stream.finish() if stream is not None else []

    def _follows(self, rows: pa.Table) -> bool:
        """Whether the first key of rows is greater than the last key of the run in progress."""
        return self._last_key is None or self._order(self._last_key, rows) > 0

    def _order(self, before: pa.Table, after: pa.Table) -> int:
        """Return 1, 0 or -1: whether the first key of after is greater than the last one of before, equal or less."""
        names = self._schema.key_names
        if not names:
            return 0
        keys = [before.select(names).slice(len(before) - 1), after.select(names).slice(0, 1)]
        both = pa.concat_tables(keys).combine_chunks()
        if not any(neighbours_differ(key).any() for key in order_keys(both, names)):
            return 0
        return 1 if sort_indices(both, names).to_pylist() == [0, 1] else -1


def _first_of_last_key(rows: pa.Table, schema: CollectionSchema) -> int:
    """Return the first row that has the key of the last one, of sorted rows."""
    names, count = schema.key_names, len(rows)
    if not names or not count:
        return 0
    window = 1024
    while True:
        start = max(count - window, 0)
        keys = rows.select(names).slice(start).combine_chunks()
        changes = _last_change(keys, names)
        if changes or not start:
            return start + changes
        window *= 8


def _last_change(keys: pa.Table, names: tuple[str, ...]) -> int:
    """Return the last row whose key differs from the one before it; 0 if there is none."""
    last = 0
    for key in order_keys(keys, names):
        found = neighbours_differ(key)
        last = max(last, len(found) - int(found[::-1].argmax()) if found.any() else 0)
    return last
