"""Tombstones that nothing can need any more, found when events are resolved, and retracted by the same record.

A tombstone is kept so that a late row does not bring its key back. Once its watermark is below the late bound, every
row that could is refused. Rows that are pending came before, and may be below the bound as it is now; so what counts is
a *floor*, below which no event is that is still to be resolved. Retractions of tombstones are seen by nobody: these are
left out of whatever is read, at every time.

To find them is a scan of two columns, of the parts that may hold tombstones. It is made when the updates that were
resolved since the last one are a quarter of all rows, so it costs a fraction of what resolving them did.
"""

import threading
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.antichain import Antichain
from persist.codecs import (
    TIME_MAX,
    CollectionSchema,
    RowSorter,
    boolean_array,
    int64_array,
    order_keys,
    scalar_from_json,
)
from persist.read.merging import read_snapshot, snapshot_slices
from persist.read.part_reader import PartReader
from persist.read.plan import snapshot_scan
from persist.state import CollectionState, among_versions, form_in, pending_after
from persist.upsert import NAME, dead_filter

SHARE = 4  # Of the rows, this fraction must have been resolved since tombstones were looked for.
SEEN_MAX = 1000  # Bounds that are remembered; with fewer, tombstones are kept longer.


class Purged:
    """Tombstones to be retracted, while what they are is worked out.

    Args:
        rows: the columns of key and value.
        time: when they are retracted.
    """

    def __init__(self, rows: pa.Table, time: int) -> None:
        self._rows = rows
        self._time = time

    def touched(self, keys: pa.Table) -> None:
        """Leave out the tombstones of some distinct keys, because events decide what becomes of these."""
        if not len(self._rows):
            return
        names = keys.column_names
        both = pa.concat_tables([keys, self._rows.select(names)]).combine_chunks()
        order, starts = RowSorter(order_keys(both, names)).sort()
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.cumsum(starts) - 1
        is_touched = np.zeros(int(ranks.max()) + 1, np.bool_)
        is_touched[ranks[: len(keys)]] = True
        self._rows = self._rows.filter(boolean_array(~is_touched[ranks[len(keys) :]]))

    def updates(self, schema: CollectionSchema) -> pa.Table:
        """Return the retractions."""
        times = int64_array(np.full(len(self._rows), self._time, np.int64))
        diffs = int64_array(np.full(len(self._rows), -1, np.int64))
        columns = [*self._rows.select([*schema.names]).columns, times, diffs]
        return pa.Table.from_arrays(columns, schema=schema.arrow)


@dataclass(slots=True)
class _Known:
    """Of one collection: rows resolved since the last look, and (next number of a part, late bound) as they were."""

    resolved: int = 0
    seen: list[tuple[int, int]] = field(default_factory=list)


class Purging:
    """Decides when to look for tombstones that are not needed, and below what; safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}

    def resolved(self, collection: str, rows: int) -> None:
        """Account for updates that were resolved."""
        with self._lock:
            self._known.setdefault(collection, _Known()).resolved += rows

    def purged(
        self, contents: CollectionState, schema: CollectionSchema, end: Antichain, reader: PartReader
    ) -> Purged | None:
        """Return the tombstones to retract with a resolution up to end, if it is time to look for them.

        Memory: a slice of the snapshot, and a sixteenth of the budget for what is found; more is left for later.
        """
        schema = among_versions(schema, contents)
        form, lower = form_in(contents, schema), contents.resolved.time
        if form is None or form.tombstone is None or form.machine.name != NAME or contents.late_bound is None:
            return None
        if not lower:
            return None
        floor = self._floor(contents, end)
        if floor is None or not self._is_due(contents):
            return None
        mark = pc.field(form.order_by[0])
        try:
            bound = scalar_from_json(floor, schema.arrow.field(form.order_by[0]).type)
        except (pa.ArrowException, OverflowError, ValueError):
            return None  # Below all watermarks that there can be.
        dead = dead_filter(schema, form) & ((mark < bound) | mark.is_null())
        scan = snapshot_scan(contents, schema, lower - 1, None, dead, raw=True)
        tables = [scan.empty(schema.names)]
        left = reader.memory_budget // 16
        for each in snapshot_slices(scan, "rows", reader.slice_bytes):
            for table in read_snapshot(each, "rows", reader):
                tables.append(table)
                left -= table.nbytes
            if left <= 0:
                break
        return Purged(pa.concat_tables(tables), TIME_MAX if end.time is None else end.time - 1)

    def _floor(self, contents: CollectionState, end: Antichain) -> int | None:
        """Return a watermark below which no event is that is not resolved by end; None if none is known."""
        assert contents.late_bound is not None
        waiting = pending_after(contents, end.elements)
        with self._lock:
            seen = self._known.setdefault(contents.id, _Known()).seen
            if not seen or seen[-1] != (contents.next_number, contents.late_bound):
                seen.append((contents.next_number, contents.late_bound))
                del seen[:-SEEN_MAX]
            if not waiting:
                return contents.late_bound
            first = min(waiting)
            return max((bound for number, bound in seen if number <= first), default=None)

    def _is_due(self, contents: CollectionState) -> bool:
        rows = sum(part.rows for part in contents.parts)
        with self._lock:
            known = self._known.setdefault(contents.id, _Known())
            if known.resolved * SHARE < rows:
                return False
            known.resolved = 0
            return True
