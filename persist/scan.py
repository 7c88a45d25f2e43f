"""What a read will read, as a value, and how it is read.

A `Scan` names parts, an interval of times, a slice of the key space, columns and a filter. It is planned from the
state alone and can be cut into slices that are independent of each other: threads read them here, tasks in Spark.
`updates` returns the matching updates of all parts as they are stored; `persist.snapshot` and `persist.changes` say
what they amount to.

Every blob is verified before one of its rows is believed.
"""

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from persist.blob import Blob, MissingBlob, get_checked
from persist.codecs import ROW_GROUP_ROWS, CollectionSchema, KeyRange, Part, key_ranges, parts_that_may_match

ALL_KEYS = KeyRange()
SLICE_ROWS_TARGET = 2_000_000
AMPLIFICATION_MAX = 4  # Decoding is several times cheaper than consolidating what was decoded.


@dataclass(frozen=True, slots=True)
class Scan:
    """The updates of parts with `time_lower <= time < time_upper`, in a slice of the key space, that pass filter.

    Attributes:
        columns: the key and value columns wanted, in the order wanted.
        filter: an expression over key and value columns, or None.
    """

    schema: CollectionSchema
    parts: tuple[Part, ...]
    time_lower: int
    time_upper: int
    columns: tuple[str, ...]
    filter: pc.Expression | None = None
    keys: KeyRange = ALL_KEYS

    @property
    def rows_max(self) -> int:
        """An upper bound of the number of updates."""
        return sum(part.rows for part in self.parts)

    def pruned(self) -> "Scan":
        """Return this scan without the parts that cannot hold any of its updates."""
        kept = [
            part
            for part in self.parts
            if part.time_min < self.time_upper
            and part.time_max >= self.time_lower
            and self.keys.may_overlap(part, self.schema)
        ]
        if self.filter is not None and kept:
            kept = parts_that_may_match(kept, self.filter, self.schema)
        return replace(self, parts=tuple(kept))

    def slices(self, count: int) -> "list[Scan]":
        """Return at most count scans that together are this one, of about equal size, in key order."""
        ranges = key_ranges(self.parts, self.schema, count)
        return [replace(self, keys=keys).pruned() for keys in ranges]

    def slices_of_rows(self, rows_target: int = SLICE_ROWS_TARGET) -> "list[Scan]":
        """Return slices of about rows_target updates each, or larger ones where slicing finely would cost too much.

        A part that several slices overlap is decoded for each of them, by row groups. Where parts overlap each other in
        key, as in raw history, that adds up: no more slices are made than `AMPLIFICATION_MAX` allows.
        """
        count = max(1, -(-self.rows_max // rows_target))
        while True:
            slices = self.slices(count)
            decoded = sum(scan.decoded_rows_max for scan in slices)
            if count == 1 or decoded <= AMPLIFICATION_MAX * self.rows_max:
                return slices
            count = max(1, count // 2)

    @property
    def decoded_rows_max(self) -> int:
        """An upper bound of the number of updates that are decoded, whole row groups at a time."""
        return sum(_decoded_rows(part, self.keys, self.schema) for part in self.parts)

    def time_slices(self, rows_target: int = SLICE_ROWS_TARGET) -> "list[Scan]":
        """Return scans of about rows_target updates each that together are this one, in time order.

        They are cut where parts begin in time. A part that spans many times is read for each of its slices, so there
        are only as many as `AMPLIFICATION_MAX` allows.
        """
        while True:
            slices = self._cut_in_time(rows_target)
            if len(slices) == 1 or sum(scan.rows_max for scan in slices) <= AMPLIFICATION_MAX * self.rows_max:
                return slices
            rows_target *= 2

    def _cut_in_time(self, rows_target: int) -> "list[Scan]":
        bounds, rows = [self.time_lower], 0
        for part in sorted(self.parts, key=lambda part: part.time_min):
            if rows >= rows_target and part.time_min > bounds[-1]:
                bounds.append(part.time_min)
                rows = 0
            rows += part.rows
        ends = [*bounds[1:], self.time_upper]
        cut = (replace(self, time_lower=a, time_upper=b) for a, b in zip(bounds, ends, strict=True))
        return [scan.pruned() for scan in cut]

    def updates(self, blob: Blob, executor: Executor | None, *, with_time: bool) -> pa.Table:
        """Return the updates: columns, then `_time` if asked for, then `_diff`. Memory: all of them.

        Raises:
            CorruptBlob: a part is missing or not what its descriptor says.
            InvalidUsage: the filter does not fit the columns.
        """
        wanted = [*self.columns, *(["_time"] if with_time else []), "_diff"]
        run = map if executor is None else executor.map
        tables = list(run(lambda part: self._read(blob, part, wanted), self.parts))
        if not tables:
            return pa.schema([self.schema.arrow.field(name) for name in wanted]).empty_table()
        return pa.concat_tables(tables)

    def _read(self, blob: Blob, part: Part, wanted: Sequence[str]) -> pa.Table:
        inside = part.time_min >= self.time_lower and part.time_max < self.time_upper
        columns = list(wanted) if inside or "_time" in wanted else [*wanted, "_time"]

        def decoded(data: bytes) -> pa.Table:
            return self.keys.decode(data, part, self.schema, columns=columns, filter=self.filter)

        table = decoded(part.inline) if part.inline else get_checked(blob, part.blob, decoded)
        if table is None:
            raise MissingBlob(
                part.blob, f"it is missing, and {part.bytes} bytes with checksum {part.checksum} belong there"
            )
        if not inside:
            time = table["_time"]
            table = table.filter(pc.and_(pc.greater_equal(time, self.time_lower), pc.less(time, self.time_upper)))
        return table.select(list(wanted))


def _decoded_rows(part: Part, keys: KeyRange, schema: CollectionSchema) -> int:
    start, end = keys.bracket(part, schema)
    group = ROW_GROUP_ROWS
    return min(part.rows, -(-end // group) * group) - start // group * group
