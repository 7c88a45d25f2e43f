"""What a step reads of a collection: all of it, or what touched keys hold; in slices, with an estimate of the bytes.

Of the past, a source stage needs what `needs.py` says. If that is said by the whole key of the collection, the keys are
looked up: a task has some of them, in order, and reads the row groups that may hold one. Otherwise slices of the
collection are scanned, of the parts that may have such records, and what is not needed is left out at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from persist.codecs import Part
from persist.engine import CollectionHandle
from persist.read import KeySamples, Lookup, Scan, Wanted, narrowed_scan
from persist.source import CollectionAddress
from persist.spark.read.slicing import count_for
from persist.spark.step.needs import Need
from persist.spark.step.tasks import Slice, SourceSlices
from persist.spark.step.touched import Condition, TouchedKeys, filter_of

LOOKED_UP_KEYS = 50_000  # For each task that looks up, at least.


@dataclass(frozen=True)
class Reading:
    """What a step reads of a source.

    Attributes:
        contents: as of a time.
        changes: after it; None if there are none.
        columns: of the source, with the types that the plan takes them for.
    """

    address: CollectionAddress
    handle: CollectionHandle
    contents: Scan
    changes: Scan | None
    as_of: int
    columns: pa.Schema

    @property
    def contents_bytes(self) -> int:
        """What the contents take decoded."""
        return self.contents.memory

    @property
    def changes_bytes(self) -> int:
        """What the changes take decoded."""
        return 0 if self.changes is None else self.changes.memory

    @property
    def changed(self) -> int:
        """At most how many updates there are after the contents."""
        return 0 if self.changes is None else sum(part.rows for part in self.changes.all_parts)

    def sliced(self, need: Need, known: Mapping[int, TouchedKeys], parallel: int) -> tuple[SourceSlices, int]:
        """Return what tasks read if that is needed of the contents, and about how many bytes that is, decoded."""
        size, slices = self._needed(need, known, parallel)
        if self.changes is not None:
            slices += [Slice(each, is_changes=True) for each in self.changes.slices(count_for(self.changes, parallel))]
        condition = Condition.of(need, known)
        size += self.changes_bytes
        return SourceSlices(self.address, slices, size, self.as_of, self.columns, condition), size

    def _needed(self, need: Need, known: Mapping[int, TouchedKeys], parallel: int) -> tuple[int, list[Slice]]:
        if need is not None and not any(len(known[each.exchange].hashes) for each in need):
            return 0, []
        keys = self._keys(need, known)
        if keys is not None:
            size, parts = self._looked_up(keys)
            if 2 * size <= self.contents_bytes or not parts:
                count = max(1, min(parallel, len(keys) // LOOKED_UP_KEYS))
                cuts = [len(keys) * at // count for at in range(count + 1)]
                slices = [Slice(self.contents, keys=keys.slice(start, end - start)) for start, end in pairwise(cuts)]
                return size, slices if parts else []
        scan = narrowed_scan(self.contents, filter_of(need, known, self.columns)) or self.contents
        return scan.memory, [Slice(each) for each in scan.slices(count_for(scan, parallel))]

    def _keys(self, need: Need, known: Mapping[int, TouchedKeys]) -> pa.Table | None:
        """Return the keys to look up, in order, if whole keys say what is needed."""
        names = self.contents.schema.key_names
        if not need or not names or any(each.columns != names for each in need):
            return None
        schema = pa.schema([self.contents.schema.arrow.field(name) for name in names])
        schema = pa.schema([pa.field(each.name, each.type) for each in schema])
        found = [known[each.exchange].as_keys(schema) for each in need]
        if any(each is None for each in found):
            return None
        wanted = Lookup(self.contents).wanted(pa.concat_tables([each for each in found if each is not None]))
        return schema.empty_table() if wanted.keys is None else pa.Table.from_batches([wanted.keys.batch])

    def _looked_up(self, keys: pa.Table) -> tuple[int, int]:
        """Return about how many bytes and of how many parts looking up keys reads, decoded. No I/O."""
        wanted = Wanted.of(keys, self.contents.schema)
        sizes = [_hit_bytes(part, wanted, self.contents) for part in self.contents.all_parts]
        return sum(sizes), sum(size > 0 for size in sizes)


def _hit_bytes(part: Part, wanted: Wanted, scan: Scan) -> int:
    """Return about how many bytes of a part the row groups take that may hold a wanted key: between two known keys."""
    samples = KeySamples.of(part, scan.schema)
    bounds = None if samples is None or wanted.keys is None else wanted.keys.bounds_of(samples.keys)
    if samples is None or bounds is None or len(bounds[0]) < 2:
        return part.memory
    less, not_greater = bounds
    hit = not_greater[1:] > less[:-1]
    rows = np.diff(samples.at)[hit].sum()
    return int(part.memory * rows // max(part.rows - 1, 1)) if hit.any() else 0
