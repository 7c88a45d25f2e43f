"""Where each of many wanted keys is among sorted ones, without a binary search for each."""

import numpy as np
import numpy.typing as npt

from persist.codecs.order.buckets import BYTES_PER_NUMBER, ROWS_MIN, Buckets
from persist.codecs.order.packed_keys import Packed
from persist.codecs.order.spelling import Spelling


def places_bytes(is_number: bool, rows: int) -> int:
    """Return at most how much `Places` take for each of so many keys: a table, and their numbers if they are none."""
    if rows < ROWS_MIN:
        return 0
    return BYTES_PER_NUMBER if is_number else BYTES_PER_NUMBER + 8


class Places:
    """A table of the places of packed keys, which ascend; for look-ups that come again and again.

    Attributes:
        keys: what the wanted keys are compared with: the packed keys, or their numbers in `spelling`.
        spelling: in which wanted keys have to be given as numbers; None if they are packed ones.
    """

    __slots__ = ("_buckets", "_numbers", "_spelling", "keys", "spelling")

    def __init__(self, keys: Packed, numbers: Packed, spelling: Spelling | None, buckets: Buckets) -> None:
        """Use `of`."""
        is_whole = spelling is not None and spelling.is_whole
        self.keys = numbers if is_whole else keys
        self.spelling = spelling if is_whole else None
        self._numbers = numbers
        self._spelling = None if is_whole else spelling
        self._buckets = buckets

    @classmethod
    def of(cls, keys: Packed) -> "Places | None":
        """Return a table for packed keys, or None where none helps. Cost: 15 ns for a number, 100 for a short text."""
        buckets = Buckets.of(keys)
        if buckets is not None:
            return cls(keys, keys, None, buckets)
        if keys.dtype.kind != "S" and keys.dtype != np.uint64:
            return None
        spelling = Spelling(keys)
        numbers = spelling.numbers(keys)
        buckets = Buckets.of(numbers)
        return None if buckets is None else cls(keys, numbers, spelling, buckets)

    def of_first(self, wanted: Packed) -> tuple[npt.NDArray[np.int64], Packed]:
        """Return the first place of each wanted key that is there, and these keys; both ascend, as wanted does.

        What is wanted lies within the ends of `keys`, and is what these are: packed, or numbers.
        """
        if self._spelling is None:
            places = self._buckets.lower_bounds(wanted)
        else:
            numbers = self._spelling.numbers(wanted)
            # A key with a byte that no other has may be any number, within the table or not.
            inside = np.flatnonzero((numbers >= self._numbers[0]) & (numbers <= self._numbers[-1]))
            numbers, wanted = numbers[inside], wanted[inside]
            places = self._buckets.lower_bounds(numbers)
            is_like = self._numbers[places] == numbers
            places, wanted = places[is_like], wanted[is_like]
            # Keys that differ where it does not count any more are one number.
            before = self.keys[places] < wanted
            if before.any():
                places[before] = self.keys.searchsorted(wanted[before])
        is_there = self.keys[places] == wanted
        return places[is_there], wanted[is_there]
