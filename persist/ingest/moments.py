"""When each time of a source was: rows for the map of moments, kept in the order of times.

A source says the moment of each time. Moments grow with times here, and those of a later commit are later, so that a
read as of a moment never changes its answer (`persist.engine.moments`). Where a source's clock runs back, a time gets
the moment of the one before it, and the log says so.
"""

import logging
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.codecs import int64_array
from persist.collection import Collection
from persist.engine import MOMENT, MOMENT_TYPE, TIME
from persist.ingest.source import Change, Target
from persist.timeline import Timeline

logger = logging.getLogger(__name__)
BACK_US_MIN = 1_000_000  # Clocks of several processors and processes differ by less.


def moments_target(name: str, source: str) -> Target:
    """Return the collection that maps moments of a source to times."""
    comment = f"at which moment each time of {source} was"
    return Target(name, {MOMENT: MOMENT_TYPE, TIME: pa.int64()}, {}, False, None, comment)


class Moments:
    """Makes the rows of a map, each later than those before it."""

    def __init__(self, collection: Collection) -> None:
        self._name = collection.name
        self._last_us = -1
        if collection.upper.time:
            with collection.snapshot(columns=[MOMENT], where=_at_or_after(collection.upper.time - 1)) as snapshot:
                self._last_us = max(snapshot.to_arrow()[MOMENT].cast(pa.int64()).to_pylist(), default=-1)

    def change(self, moments: Sequence[tuple[int, int]]) -> Change:
        """Return the rows for times, ascending, and their moments in µs since 1970."""
        times, given = np.array(moments, np.int64).T
        kept = np.maximum.accumulate(given.clip(min=self._last_us + 1))
        back_us = int((kept - given).max())
        if back_us >= BACK_US_MIN:
            at = int((kept - given).argmax())
            shown = Timeline("us").text_of
            logger.warning(
                "%s: the clock of the source ran back by %.1f s: time %d is of %s, and counts as of %s",
                self._name, back_us / 1e6, times[at], shown(int(given[at])), shown(int(kept[at])),
            )  # fmt: skip
        self._last_us = int(kept[-1])
        rows = {MOMENT: int64_array(kept).cast(MOMENT_TYPE), TIME: int64_array(times)}
        rows["_time"] = rows[TIME]
        rows["_diff"] = int64_array(np.ones(len(times), np.int64))
        return Change(self._name, pa.table(rows))


def _at_or_after(time: int) -> pc.Expression:
    return pc.field(TIME) >= time
