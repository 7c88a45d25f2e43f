"""What makes many updates a batch faster than one sort of all: numpy's sort takes most of the time of a bulk load.

- Where most updates say the same (columns that nobody reads are left out, so facts of one key are alike), they are
  summed first, by a hash table of Arrow's, and only what differs is sorted. Whether that pays is told by a sample.
  A load of a million updates that are counted by one or two columns takes two thirds of the CPU time with it.
- A hash is sorted together with its place, which takes the bits that n places need, in place of the lowest ones of the
  hash: numpy sorts plain integers several times as fast as it finds their order, and with a place in it the sort is
  stable. What the upper bits leave undecided is sorted once more. Pieces that are sorted already are merged by numpy's
  stable sort, which is linear then.

Whatever is done here, the batch that comes of it is the same.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from persist.dataflow.updates.times import Flags, Ints

MANY_ROWS = 1 << 15  # From so many updates on, it pays to look.
SAMPLE = 4096
REPEATS = 32  # Updates are summed first if there are about so many of each in the mean.
PACKED_ROWS = 1024  # From so many hashes on, a sort together with places pays.
PREFIX_SHARE = 16  # If more than one in so many is in the wrong place by its upper bits, all are sorted by halves.
PIECES = 16  # Up to so many sorted pieces are merged.
_HALF = 31  # Bits of a place beside half a hash.
_EXACT = 1 << 53  # Sums of floats below this are exact.


def order_of(hashes: Ints, descents: Flags) -> Ints:
    """Return the stable order of hashes, given where one is less than the one before it."""
    count = len(hashes)
    bits = count.bit_length()
    if count < PACKED_ROWS or np.count_nonzero(descents) < PIECES or bits > _HALF:
        return hashes.argsort(kind="stable")
    mask = (1 << bits) - 1
    order = _sorted_places(hashes & ~mask, mask)
    sorted_hashes = hashes.take(order)
    wrong = np.count_nonzero(sorted_hashes[1:] < sorted_hashes[:-1])
    if not wrong:
        return order
    if wrong * PREFIX_SHARE > count:
        # The upper bits say little: of few keys with many values each. Halves do fit beside a place.
        order = _sorted_places((hashes & 0xFFFFFFFF) << bits, mask)
        return order.take(_sorted_places((hashes >> 32).take(order) << bits, mask))
    tied = (sorted_hashes[1:] ^ sorted_hashes[:-1]) <= mask
    member = np.zeros(count, np.bool_)
    member[1:] = tied
    member[:-1] |= tied
    places = order[member]
    order[member] = places.take(hashes.take(places).argsort(kind="stable"))
    return order


def order_by(columns: Sequence[Ints]) -> Ints:
    """Return an order of rows by columns, the first one above all; of rows that are equal in all, any comes first.

    Columns that together need 63 bits are sorted as one number, which numpy does ten times as fast as `lexsort`.
    """
    if not len(columns[0]):
        return np.empty(0, np.int64)
    marks, end = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        least = int(column.min())
        span = int(column.max()) - least + 1
        end *= span
        if end >= 2**63:
            return np.lexsort(columns[::-1])
        marks *= span
        marks += column
        marks -= least
    return marks.argsort()


def reordered(rows: Ints, order: Ints, out: Ints) -> None:
    """Write rows into out, their columns in another order. One that is the same throughout, as the time and the diff of
    a bulk mostly are, is not looked at place by place."""
    if len(order) < PACKED_ROWS:
        rows.take(order, axis=1, out=out, mode="clip")
        return
    for row, target in zip(rows, out, strict=True):
        if row[0] == row[-1] and (row == row[0]).all():
            target.fill(row[0])
        else:
            row.take(order, out=target, mode="clip")


def has_repeats(sample: Any, count: int) -> bool:
    """Return whether summing updates first pays, given the marks of a sample and how many there are in all."""
    ordered = np.sort(sample)
    pairs = np.count_nonzero(ordered[1:] == ordered[:-1])
    return bool(pairs * 2 * count >= REPEATS * len(sample) ** 2)  # Birthdays: n values of d make n * n / 2d pairs.


def summed_first(updates: Ints, first_time: int, marks: Ints) -> Ints:
    """Return updates with equal ones summed; as they are, if that turns out not to pay, or sums might not be exact.

    Args:
        first_time: the row at which times begin.
        marks: int64[n], equal for equal updates.
    """
    count = updates.shape[1]
    diffs = updates[-1]
    largest = max(int(diffs.max()), -int(diffs.min()))
    coded = pa.array(marks).dictionary_encode()
    codes = coded.indices.to_numpy()
    if 2 * len(coded.dictionary) > count or count * largest >= _EXACT:
        return updates
    # Codes are given out in the order in which marks are met.
    so_far = np.maximum.accumulate(codes)
    firsts = np.concatenate(([0], np.flatnonzero(so_far[1:] != so_far[:-1]) + 1))
    merged = updates.take(firsts, axis=1)
    for row in range(len(updates) - 1):
        is_one = row >= first_time and (updates[row] == updates[row, 0]).all()
        if not is_one and (merged[row].take(codes) != updates[row]).any():
            return updates  # Two different updates have one mark.
    is_inserted = largest == 1 and (diffs == 1).all()
    sums = np.bincount(codes) if is_inserted else np.bincount(codes, weights=diffs).astype(np.int64)
    merged[-1] = sums
    return merged if is_inserted or sums.all() else merged[:, sums != 0]


def _sorted_places(marks: Ints, mask: int) -> Ints:
    """Return the order of marks, which are changed, and whose bits of mask are 0; equal ones by their places."""
    marks |= np.arange(len(marks))
    marks.sort()
    marks &= mask
    return marks
