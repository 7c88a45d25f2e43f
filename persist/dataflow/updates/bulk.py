"""What makes many updates a batch faster than one sort of all: numpy's sort takes most of the time of a bulk load.

A hash is sorted together with its place, which takes the bits that n places need, in place of the lowest ones of the
hash: numpy sorts plain integers several times as fast as it finds their order, and with a place in it the sort is
stable. What the upper bits leave undecided is sorted once more. Pieces that are sorted already are merged by numpy's
stable sort, which is linear then.

Whatever is done here, the batch that comes of it is the same.
"""

from collections.abc import Sequence

import numpy as np

from persist.dataflow.updates.times import Flags, Ints

PACKED_ROWS = 1024  # From so many hashes on, a sort together with places pays.
PREFIX_SHARE = 16  # If more than one in so many is in the wrong place by its upper bits, all are sorted by halves.
PIECES = 16  # Up to so many sorted pieces are merged.
_HALF = 31  # Bits of a place beside half a hash.


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


def _sorted_places(marks: Ints, mask: int) -> Ints:
    """Return the order of marks, which are changed, and whose bits of mask are 0; equal ones by their places."""
    marks |= np.arange(len(marks))
    marks.sort()
    marks &= mask
    return marks
