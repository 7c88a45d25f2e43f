"""Keys of bytes as integers of the same order, so that a table of buckets finds them (see `buckets`).

Of sorted keys of one width, each position of which holds some of 256 bytes, those positions count that do not hold the
same byte everywhere. Each is a digit whose base is the number of different bytes that were seen there, and its value is
how many of these are less. So "customer-00000017" and its like become their numbers, without gaps, where the bytes as
they are would lie in heaps. Positions that do not fit 62 bits any more are left out: then neighbours may be one number.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

NUMBER_MAX = 2**62

Keys = npt.NDArray[Any]  # As `persist.codecs.order.packed_keys` has them: of kind "S", or of "u" and 8 bytes.
Numbers = npt.NDArray[np.int64]


class Spelling:
    """Which positions of some keys count, and for what."""

    __slots__ = ("_positions", "_tables")

    def __init__(self, keys: Keys) -> None:
        """Learn it from sorted keys. Cost: a few ns for each byte of each key."""
        rows = _bytes_of(keys)
        seen = [(at, np.flatnonzero(np.bincount(rows[:, at], minlength=256))) for at in range(rows.shape[1])]
        counting, size = list[tuple[int, npt.NDArray[np.int64]]](), 1
        for at, found in seen:
            if len(found) > 1:
                if size * len(found) > NUMBER_MAX:
                    break
                counting.append((at, found))
                size *= len(found)
        self._positions = [at for at, _ in counting]
        self._tables: list[Numbers] = []
        for _, found in counting:
            size //= len(found)
            ranks = found.searchsorted(np.arange(256))
            self._tables.append(np.minimum(ranks, np.int64(len(found) - 1)) * size)

    def numbers(self, keys: Keys) -> Numbers:
        """Return a number for each key: they ascend with the keys it was learnt from, and equal keys have one number.

        That of a key with a byte which was not seen says nothing.
        """
        rows = _bytes_of(keys)
        found = np.zeros(len(rows), np.int64)
        for at, table in zip(self._positions, self._tables, strict=True):
            found += table[rows[:, at]]
        return found


def _bytes_of(keys: Keys) -> npt.NDArray[np.uint8]:
    stored = keys if keys.dtype.kind == "S" else keys.astype(">u8")
    return np.ascontiguousarray(stored).view(np.uint8).reshape(len(keys), keys.dtype.itemsize)
