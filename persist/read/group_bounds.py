"""Which row groups of a part may hold wanted keys, and which of them are kept together once they are decoded.

Sampled keys of the part's descriptor say it roughly, without a request; the footer's statistics of the first key field
say it nearly exactly. All wanted keys are held against all bounds at once. Parts without either (nested keys, very long
ones) may hold any key anywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from persist.codecs import (
    CollectionSchema,
    Part,
    PartIndex,
    SortedKeys,
    ordered_keys,
    part_lift,
    sample_rows,
    scalar_from_json,
)

BLOCK_BYTES = 32 << 20  # Of consecutive row groups, decoded: they are fetched, kept and searched as one.

Numbers: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class KeySamples:
    """Some keys of a part, in order, the first and the last among them, and the rows that have them."""

    keys: SortedKeys
    at: Numbers

    @property
    def nbytes(self) -> int:
        """About what it takes."""
        return 1000 + self.keys.nbytes

    @classmethod
    def of(cls, part: Part, schema: CollectionSchema) -> "KeySamples | None":
        """Return those in the descriptor of a part, or None if there are none. Cost: some 2 µs for each value."""
        if not schema.key_names or ordered_keys(part, schema) is None:
            return None
        found = part.keys or []
        fields = [schema.arrow.field(name) for name in schema.key_names]
        columns = [_array([key[at] for key in found], field.type) for at, field in enumerate(fields)]
        keys = pa.Table.from_arrays(columns, schema=pa.schema(fields))
        return cls(SortedKeys(keys), np.array(sample_rows(part.rows, len(found)), np.int64))

    def may_hold(self, wanted: SortedKeys) -> bool:
        """Return False only if the part has none of the wanted keys."""
        bounds = wanted.bounds_of(self.keys)
        if bounds is None:
            return True
        less, not_greater = bounds
        # Between two samples, or at one.
        return bool((less < not_greater).any() or (not_greater[:-1] < less[1:]).any())


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return an array of values as descriptors have them."""
    if (pat.is_integer(kind) or pat.is_temporal(kind)) and None not in values:
        stored = np.dtype(f"{'u' if pat.is_unsigned_integer(kind) else 'i'}{kind.bit_width // 8}")
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.array(values, stored))])
    return pa.array([scalar_from_json(value, kind) for value in values], kind)


@dataclass(frozen=True, slots=True)
class GroupBounds:
    """Where the row groups of a part begin and end, in rows and in values of the first key field.

    Attributes:
        firsts: the first row of each, and the number of all rows.
        group_count_max: of a block.
        leasts, greatests: of the first key field, ascending; None if they are not known of every group.
    """

    firsts: Numbers
    group_count_max: int
    leasts: SortedKeys | None
    greatests: SortedKeys | None

    @property
    def nbytes(self) -> int:
        """About what it takes."""
        limits = 0 if self.leasts is None or self.greatests is None else self.leasts.nbytes + self.greatests.nbytes
        return 1000 + self.firsts.nbytes + limits

    @classmethod
    def of(
        cls, part: Part, index: PartIndex, schema: CollectionSchema, block_bytes: int = BLOCK_BYTES
    ) -> "GroupBounds":
        """Make it from a footer. Cost: some 10 µs for each row group.

        Args:
            block_bytes: what a block takes at most when decoded, unless a single row group is larger.
        """
        firsts = np.array([*(group.first_row for group in index.groups), part.rows], np.int64)
        count = max(1, block_bytes * len(index.groups) // max(part.memory, 1))
        lifted = part_lift(part, schema)
        stored = schema if lifted is None else lifted.stored
        limits = index.first_field_limits(stored.arrow.types[0]) if schema.key_names else None
        if limits is None:
            return cls(firsts, count, None, None)
        kind, (leasts, greatests) = schema.arrow.types[0], limits
        if pat.is_floating(kind) and greatests:
            greatests[-1] = np.nan  # Statistics leave NaN out, which is greater than all other numbers.
        return cls(firsts, count, _limits(leasts, kind), _limits(greatests, kind))

    def hit(self, samples: KeySamples | None, wanted: SortedKeys) -> Numbers:
        """Return, ascending, the numbers of the row groups that may hold wanted keys."""
        one = self.hit_by_one(wanted)
        if one is not None:
            return np.arange(one.start, max(one.start, one.stop))
        may = np.ones(len(self.firsts) - 1, np.bool_)
        bounds = None if samples is None else wanted.bounds_of(samples.keys)
        if samples is not None and bounds is not None:
            # The last sample at or before a group's first row, and the first at or after its last one.
            before = samples.at.searchsorted(self.firsts[:-1], "right") - 1
            after = samples.at.searchsorted(self.firsts[1:] - 1)
            may = bounds[0][before] < bounds[1][np.minimum(after, np.int64(len(samples.at) - 1))]
        if self.leasts is not None and self.greatests is not None:
            first = wanted.first_field()
            least, greatest = first.bounds_of(self.leasts), first.bounds_of(self.greatests)
            if least is not None and greatest is not None:
                may &= least[0] < greatest[1]
        return np.flatnonzero(may)

    def hit_by_one(self, wanted: SortedKeys) -> range | None:
        """Return what `hit` does for a single key of one field that is a number, far quicker; None for other keys."""
        if len(wanted) != 1 or self.leasts is None or self.greatests is None or not wanted.is_number:
            return None
        starts, ends = self.leasts.bounds_of(wanted), self.greatests.bounds_of(wanted)
        assert starts is not None
        assert ends is not None
        return range(int(ends[0][0]), int(starts[1][0]))

    def span(self, block: int) -> tuple[int, int]:
        """Return the row groups `[first, end)` of a block."""
        return block * self.group_count_max, min((block + 1) * self.group_count_max, len(self.firsts) - 1)

    def blocks(self, groups: Numbers) -> list[tuple[int, int, list[int]]]:
        """Return the blocks that some groups are in, each as `[first, end)`, and the groups of it."""
        found = []
        for block in sorted({group // self.group_count_max for group in groups.tolist()}):
            first, end = self.span(block)
            found.append((first, end, groups[(groups >= first) & (groups < end)].tolist()))
        return found


def _limits(values: Sequence[Any], kind: pa.DataType) -> SortedKeys:
    if pat.is_integer(kind) or pat.is_floating(kind):
        letter = "f" if pat.is_floating(kind) else "u" if pat.is_unsigned_integer(kind) else "i"
        numbers = np.array(values, f"{letter}{kind.bit_width // 8}")
        column = pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(numbers)])
    else:
        column = pa.array(values, pa.large_binary())
    return SortedKeys(pa.table({"k": column}))
