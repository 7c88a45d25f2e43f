"""Where a micro-batch ends, if it may hold only so much.

It ends at a time, and holds all updates before that. How many these are follows from the descriptors of parts that hold
one time only; of any other the column `_time` is read, once, as far as it is needed to find the end.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from persist.blob import ByteBoundedLru
from persist.codecs import CollectionSchema, Part
from persist.read import PartReader, Scan

COUNTS_BYTES_MAX = 32 << 20

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class BatchLimits:
    """How much a micro-batch may hold; None for no limit."""

    updates: int | None = None
    times: int | None = None


NO_LIMITS = BatchLimits()


@dataclass(frozen=True)
class TimeCounts:
    """Ascending times, and how many updates each has."""

    times: Ints
    counts: Ints

    @property
    def nbytes(self) -> int:
        return int(self.times.nbytes + self.counts.nbytes)

    def __add__(self, other: "TimeCounts") -> "TimeCounts":
        times, where = np.unique(np.concatenate([self.times, other.times]), return_inverse=True)
        counts = np.zeros(len(times), np.int64)
        np.add.at(counts, where, np.concatenate([self.counts, other.counts]))
        return TimeCounts(times, counts)

    def within(self, lower: int, upper: int) -> "TimeCounts":
        """Return those with `lower <= time < upper`."""
        a, b = self.times.searchsorted([lower, upper])
        return TimeCounts(self.times[a:b], self.counts[a:b])


_NOTHING = TimeCounts(np.zeros(0, np.int64), np.zeros(0, np.int64))


class BatchEnds:
    """Finds where micro-batches end. Memory: `COUNTS_BYTES_MAX`, and 16 bytes for each time of a few parts."""

    def __init__(self) -> None:
        self._kept: ByteBoundedLru[str, TimeCounts] = ByteBoundedLru(
            2 * COUNTS_BYTES_MAX, lambda counts: counts.nbytes, value_bytes_max=COUNTS_BYTES_MAX
        )

    def end(self, scan: Scan, reader: PartReader, limits: BatchLimits) -> int:
        """Return the greatest end of what scan may be cut to, so that it is within limits or of one time only.

        Cost: reading the parts of several times each that it takes to know, if they were not read for this before.

        Raises:
            CorruptBlob: a part is missing or damaged.
        """
        if limits.times is None and (limits.updates is None or sum(p.rows for p in scan.parts) <= limits.updates):
            return scan.time_upper
        parts = sorted(scan.parts, key=lambda part: part.time_min)
        # Of times that later parts cannot hold, and of those that they can.
        updates = times = 0
        open_counts = _NOTHING
        for at, part in enumerate(parts):
            open_counts += self._counts(part, scan, reader)
            bound = parts[at + 1].time_min if at + 1 < len(parts) else scan.time_upper
            closed = open_counts.within(0, bound)
            end = _first_beyond(closed, updates, times, limits)
            if end is not None:
                return end
            updates, times = updates + int(closed.counts.sum()), times + len(closed.times)
            open_counts = open_counts.within(bound, scan.time_upper)
        return scan.time_upper

    def _counts(self, part: Part, scan: Scan, reader: PartReader) -> TimeCounts:
        if part.time_min == part.time_max:
            counts = TimeCounts(np.array([part.time_min]), np.array([part.rows]))
        else:
            kept = self._kept.get(part.rows_id)
            counts = _counted(part, scan.schema, reader) if kept is None else kept
            self._kept.put(part.rows_id, counts)
        return counts.within(scan.time_lower, scan.time_upper)


def _counted(part: Part, schema: CollectionSchema, reader: PartReader) -> TimeCounts:
    total = _NOTHING
    for _, table in reader.tables([part], schema, ["_time"]):
        times, counts = np.unique(table["_time"].to_numpy(), return_counts=True)
        total += TimeCounts(times, counts)
    return total


def _first_beyond(counts: TimeCounts, updates: int, times: int, limits: BatchLimits) -> int | None:
    """Return the first time that does not fit any more after so many updates of so many times, if there is one."""
    fits = np.ones(len(counts.times), np.bool_)
    if limits.updates is not None:
        fits &= updates + np.cumsum(counts.counts) <= limits.updates
    if limits.times is not None:
        fits &= times + np.arange(1, len(counts.times) + 1) <= limits.times
    if times == 0 and len(fits):
        fits[0] = True
    beyond = np.flatnonzero(~fits)
    return int(counts.times[beyond[0]]) if len(beyond) else None
