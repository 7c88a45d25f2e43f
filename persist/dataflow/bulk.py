"""What makes many updates a batch faster than one sort of all: numpy's sort takes most of the time of a bulk load.

- Where most updates say the same (columns that nobody reads are left out, so facts of one key are alike), they are
  summed first, by a hash table of Arrow's, and only what differs is sorted. Whether that pays is told by a sample.
- Hashes are sorted by 16 bits at a time, for which numpy has a radix sort. Without a value the lower half of a hash is
  0, and two passes are enough. Pieces that are sorted already are merged by numpy's stable sort, which is linear then.

Whatever is done here, the batch that comes of it is the same.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from persist.dataflow.times import Flags, Ints

MANY_ROWS = 1 << 15  # From so many updates on, it pays to look.
SAMPLE = 4096
REPEATS = 4  # Updates are summed first if there are about so many of each in the mean.
DIGITS_ROWS = 4096  # From so many hashes on, a sort by digits pays.
PIECES = 16  # Up to so many sorted pieces are merged.
_EXACT = 1 << 53  # Sums of floats below this are exact.


def order_of(hashes: Ints, descents: Flags) -> Ints:
    """Return the stable order of hashes, given where one is less than the one before it."""
    if len(hashes) < DIGITS_ROWS or np.count_nonzero(descents) < PIECES:
        return hashes.argsort(kind="stable")
    least, *others = _digits(hashes)
    order: Ints = least.argsort(kind="stable")
    for digit in others:
        order = order.take(digit.take(order).argsort(kind="stable"))
    return order


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
    found = updates.take(firsts, axis=1)
    for row in range(len(updates) - 1):
        is_one = row >= first_time and (updates[row] == updates[row, 0]).all()
        if not is_one and (found[row].take(codes) != updates[row]).any():
            return updates  # Two different updates have one mark.
    is_inserted = largest == 1 and (diffs == 1).all()
    sums = np.bincount(codes) if is_inserted else np.bincount(codes, weights=diffs).astype(np.int64)
    found[-1] = sums
    return found if is_inserted or sums.all() else found[:, sums != 0]


def _digits(hashes: Ints) -> list[Any]:
    """Return the digits of hashes that differ, uint16[n], the least significant one first."""
    shifts = (0, 16, 32, 48) if np.bitwise_or.reduce(hashes) & 0xFFFFFFFF else (32, 48)
    flipped = hashes.view(np.uint64) ^ np.uint64(1 << 63)
    return [(flipped >> np.uint64(shift)).astype(np.uint16) for shift in shifts]
