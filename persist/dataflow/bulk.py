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


def summed_first(batch: Ints, first_time: int, marks: Ints) -> Ints:
    """Return a batch that is not sorted yet with equal updates summed, if many are; otherwise as it is.

    Args:
        first_time: the row at which times begin.
        marks: int64[n], equal for equal updates.
    """
    count = batch.shape[1]
    sample = np.sort(marks[:: count // SAMPLE])
    if np.count_nonzero(sample[1:] == sample[:-1]) * 2 * count < REPEATS * len(sample) ** 2:
        return batch  # By the birthday paradox: n values of d make n * n / 2d pairs.
    diffs = batch[-1]
    largest = max(int(diffs.max()), -int(diffs.min()))
    coded = pa.array(marks).dictionary_encode()
    codes = coded.indices.to_numpy()
    if 2 * len(coded.dictionary) > count or count * largest >= _EXACT:
        return batch
    # Codes are given out in the order in which marks are met.
    so_far = np.maximum.accumulate(codes)
    firsts = np.concatenate(([0], np.flatnonzero(so_far[1:] != so_far[:-1]) + 1))
    found = batch.take(firsts, axis=1)
    for row in range(1, len(batch) - 1):
        is_one = row >= first_time and (batch[row] == batch[row, 0]).all()
        if not is_one and (found[row].take(codes) != batch[row]).any():
            return batch  # Two different updates have one mark.
    is_inserted = largest == 1 and (diffs == 1).all()
    sums = np.bincount(codes) if is_inserted else np.bincount(codes, weights=diffs).astype(np.int64)
    found[-1] = sums
    return found if is_inserted or sums.all() else found[:, sums != 0]


def _digits(hashes: Ints) -> list[Any]:
    """Return the digits of hashes that differ, uint16[n], the least significant one first."""
    shifts = (0, 16, 32, 48) if np.bitwise_or.reduce(hashes) & 0xFFFFFFFF else (32, 48)
    flipped = hashes.view(np.uint64) ^ np.uint64(1 << 63)
    return [(flipped >> np.uint64(shift)).astype(np.uint16) for shift in shifts]
