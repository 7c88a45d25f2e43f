"""The updates of a collection in an interval of times: an exact change feed.

Updates are consolidated per (key, value, time), ordered by time, then key, then value. The contents as of
`lower - 1` plus the changes in `[lower, upper)` are the contents as of `upper - 1`, exactly.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.codecs import Part, combined, consolidate, int64_array, int64_values, part_lift, to_tuples
from persist.read.claimed_read import ClaimedRead
from persist.read.part_reader import PartReader
from persist.read.result import ArrowResult
from persist.read.scan import Scan, narrowed_scan
from persist.timeline import Timeline, shown_time, timeline_of


def read_changes(scan: Scan, reader: PartReader) -> pa.Table:
    """Return the updates of one slice: its columns, `_time`, `_diff`. Memory: its updates.

    Raises:
        CorruptBlob: a part is missing or damaged.
        DiffOverflow: the diffs of equal updates sum to more than int64 holds.
    """
    wanted = [*scan.columns, "_time", "_diff"]
    apart = _apart_in_time(scan)
    tables = scan.updates(reader, wanted, apart)
    updates = pa.concat_tables([scan.empty(wanted), *tables])
    if apart is not None:
        return scan.given_out(_by_time(updates))
    return scan.given_out(consolidate(updates, ["_time", *scan.columns]).select(wanted))


def _apart_in_time(scan: Scan) -> list[Part] | None:
    """Return the parts of a scan in the order of their times, if no two have updates of one time; else None.

    The rows of a part are distinct, and sorted by key, value and time, as long as all columns are read as they were
    stored. To put them in the order of time is then all that is left to do, for less than half of a consolidation.
    """
    if scan.columns != tuple(scan.schema.names) or any(part_lift(part, scan.schema) for part in scan.parts):
        return None
    parts = sorted(scan.parts, key=lambda part: part.time_min)
    return parts if all(before.time_max < after.time_min for before, after in pairwise(parts)) else None


def _by_time(updates: pa.Table) -> pa.Table:
    """Return updates in the order of time, and as they came within one time."""
    updates = updates.combine_chunks()
    times = int64_values(combined(updates["_time"]))
    if not len(times) or (times[1:] >= times[:-1]).all():
        return updates
    times = times - times.min()
    if times.max() <= 0xFFFF:  # NumPy sorts these by their digits, in a tenth of the time.
        times = times.astype(np.uint16)
    return updates.take(int64_array(np.argsort(times, kind="stable")))


def with_moments(updates: pa.Table, moments: Timeline | None) -> pa.Table:
    """Return updates with `_time` as timestamps, if there is a timeline to tell them by."""
    if moments is None:
        return updates
    at = updates.schema.get_field_index("_time")
    field = pa.field("_time", moments.type, nullable=False)
    return updates.set_column(at, field, moments.column_of_moments(updates["_time"]))


class Changes(ArrowResult):
    """The updates in `[lower, upper)`; see `Collection.changes`. Nothing is read until a method asks for it."""

    def __init__(self, scan: Scan, reading: ClaimedRead, moments: Timeline | None = None) -> None:
        """Make one; with moments, `_time` is given out as timestamps of that timeline."""
        super().__init__(reading)
        self.moments = moments
        self.lower = scan.time_lower
        self.upper = scan.time_upper
        self.scan = scan

    @property
    def schema(self) -> pa.Schema:
        """The columns asked for, `_time` and `_diff`."""
        plain = pa.schema([self.scan.given.arrow.field(n) for n in (*self.scan.columns, "_time", "_diff")])
        return plain if self.moments is None else with_moments(plain.empty_table(), self.moments).schema

    def slices(self, count: int) -> list[Scan]:
        """Return at most count plans for `read_changes` that together are these changes."""
        return self.scan.slices(count)

    def updates(self) -> Iterator[tuple[tuple[Any, Any], int, int]]:
        """Yield `((key, value), time, diff)` tuples."""
        for table in self._tables():
            yield from to_tuples(table, self.scan.given)

    def _read(self) -> Iterator[pa.Table]:
        return self._read_scan(self.scan)

    def _read_narrowed(self, columns: Sequence[str], filter: pc.Expression | None) -> Iterator[pa.Table]:
        scan = narrowed_scan(self.scan, filter)
        if scan is None:
            yield from super()._read_narrowed(columns, filter)
            return
        with self._reading.explained():
            yield from self._read_scan(scan)

    def _read_scan(self, whole: Scan) -> Iterator[pa.Table]:
        reader = self._reading()
        for scan in whole.time_slices(reader.slice_bytes):
            # Updates of one time come in the order of keys, so they can be cut there, too.
            is_one_time = scan.time_upper - scan.time_lower == 1
            for each in scan.slices_within(reader.slice_bytes) if is_one_time else [scan]:
                yield with_moments(read_changes(each, self._reading.checked(reader)), self.moments)

    def __repr__(self) -> str:
        lower, upper = (shown_time(time, timeline_of(self.scan.schema)) for time in (self.lower, self.upper))
        return f"Changes({lower}, {upper}, columns={list(self.scan.columns)})"
