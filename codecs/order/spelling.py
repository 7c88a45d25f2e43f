"""Keys of bytes as integers of the same order, so that a table of buckets finds them (see `buckets`).

Of sorted keys of one width, each position of which holds some of 256 bytes, those positions count that do not hold the
same byte everywhere. Each is a digit whose base is the number of different bytes that were seen there, and its value is
how many of these are less. So "customer-00000017" and its like become their numbers, without gaps, where the bytes as
they are would lie in heaps. Positions that do not fit 62 bits any more are left out: then neighbours may be one number.
Where none is left out, a spelling is *whole*: of keys all of whose bytes it knows, equal numbers are equal keys, so
that nobody has to look at the bytes again.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

NUMBER_MAX = 2**62

Keys = npt.NDArray[Any]  # As `persist.codecs.order.packed_keys` has them: of kind "S", or of "u" and 8 bytes.
Numbers = npt.NDArray[np.int64]


class Spelling:
    """Which positions of some keys count, and for what.

    Attributes:
        is_whole: whether none is left out.
        alphabet: which bytes it knows, by position; spellings of one alphabet are the same.
    """

    __slots__ = ("_known", "_positions", "_tables", "alphabet", "is_whole")

    def __init__(self, keys: Keys) -> None:
        """Learn it from sorted keys. Cost: a few ns for each byte of each key."""
        rows = _bytes_of(keys)
        self._known = np.stack([np.bincount(rows[:, at], minlength=256) > 0 for at in range(rows.shape[1])])
        self.alphabet = np.packbits(self._known).tobytes()
        self.is_whole = True
        counting, size = list[tuple[int, npt.NDArray[np.int64]]](), 1
        for at, known in enumerate(self._known):
            found = np.flatnonzero(known)
            if len(found) > 1:
                if size * len(found) > NUMBER_MAX:
                    self.is_whole = False
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

    def known_numbers(self, keys: Keys) -> Numbers:
        """Return the numbers of those keys of which each byte was seen at its position, in their order.

        No other key is equal to one that it was learnt from. Cost: a few ns for each byte of each key.
        """
        rows = _bytes_of(keys)
        is_known = np.ones(len(rows), bool)
        for at, known in enumerate(self._known):
            is_known &= known[rows[:, at]]
        numbers = self.numbers(keys)
        return numbers if is_known.all() else numbers[is_known]


def _bytes_of(keys: Keys) -> npt.NDArray[np.uint8]:
    stored = keys if keys.dtype.kind == "S" else keys.astype(">u8")
    return np.ascontiguousarray(stored).view(np.uint8).reshape(len(keys), keys.dtype.itemsize)
