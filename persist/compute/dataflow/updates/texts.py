"""A hash table that keeps each different text once, under a number. It consists of arrays, so thousands of texts are
looked up at once.

    data  = uint8[…]      the bytes of all texts, one behind the other
    ends  = int64[n + 1]  row r is data[ends[r] : ends[r + 1]]
    rows  = uint32[…]     the row of a number
    table = uint64[2**b]  0, or tag << 32 | number + 1, at the first free place from the upper b bits of the tag on

A tag is the upper half of a hash of the text. It distinguishes nearly all texts without their bytes, and a larger table
is filled from tags alone. Texts with equal tags are compared by their bytes, so collisions only cost time. The hash
stays in one process, and need not be the same in the next version.

Cost: about 0.3 µs for a text. Memory: its bytes, and 30 to 60 more; in a dictionary of Python, a text takes about 130.
"""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
import xxhash

from persist.compute.dataflow.updates.times import Flags, Ints

Words: TypeAlias = npt.NDArray[np.uint64]

AT_ONCE = 1 << 16  # So many are looked up together, so that what is worked on stays in the processor's caches.
TEXTS_MAX = (1 << 32) - 2
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_BYTES = pa.large_binary()


class TextArray:
    """The texts of an Arrow array without NULL, as bytes, starts and lengths."""

    def __init__(self, array: pa.Array) -> None:
        self.array = array.cast(_BYTES)
        _, offsets, data = self.array.buffers()
        stored: Any = offsets
        if len(array):
            bounds = np.frombuffer(stored, np.int64, len(array) + 1, 8 * self.array.offset)
        else:  # Arrow may leave the buffers out.
            bounds = np.zeros(1, np.int64)
        low, high = int(bounds[0]), int(bounds[-1])
        self.bounds = bounds - low
        self.bytes = np.empty(high - low, np.uint8)
        if high > low:
            self.bytes[:] = np.frombuffer(data, np.uint8, high - low, low)
        self.starts, self.lengths = self.bounds[:-1], np.diff(self.bounds)

    def compute_tags(self) -> Words:
        """Return a hash of 32 bits, the tag, for each text."""
        hashes = map(xxhash.xxh3_64_intdigest, self.array.to_pylist())
        return np.fromiter(hashes, np.uint64, len(self.array)) >> _HALF


class Texts:
    """A table that stores texts under numbers, until they are forgotten."""

    def __init__(self) -> None:
        self._data = np.zeros(64, np.uint8)
        self._ends = np.zeros(17, np.int64)
        self._rows = np.zeros(16, np.uint32)
        self._count = 0  # Rows that are used.
        self._end = 0  # The first unused number.
        self._free: Ints = np.empty(0, np.int64)
        self._table = np.zeros(32, np.uint64)
        self._shift = np.uint64(32 - 5)

    def __len__(self) -> int:
        return self._count

    @property
    def size(self) -> int:
        """How much memory the texts take."""
        return int(self._data.nbytes + self._ends.nbytes + self._rows.nbytes + self._free.nbytes + self._table.nbytes)

    def encode(self, array: pa.Array) -> Ints:
        """Return the numbers of texts; unseen ones get new numbers. `int64[n]`."""
        coded = array.dictionary_encode()
        distinct = coded.dictionary
        pieces = [self._number_distinct(distinct.slice(at, AT_ONCE)) for at in range(0, len(distinct), AT_ONCE)]
        return np.concatenate([np.empty(0, np.int64), *pieces]).take(coded.indices.to_numpy())

    def _number_distinct(self, array: pa.Array) -> Ints:
        """Return the numbers of distinct texts, new ones for those not seen before."""
        texts = TextArray(array)
        tags = texts.compute_tags()
        numbers = self._find_numbers(texts, tags)
        absent = (numbers < 0).nonzero()[0]
        if len(absent):
            numbers[absent] = self._add_texts(texts, tags, absent)
        return numbers

    def get_bytes(self, number: int) -> bytes:
        """Return the text of a number."""
        row = int(self._rows[number])
        return self._data[self._ends[row] : self._ends[row + 1]].tobytes()

    def decode(self, numbers: Ints, kind: pa.DataType, is_null: Flags | None = None) -> pa.Array:
        """Return the texts of numbers as an array of a type; is_null flags rows that are NULL."""
        is_utf8 = pat.is_string(kind) or pat.is_large_string(kind)
        rows = self._rows.take(numbers if is_null is None else np.where(is_null, 0, numbers))
        texts = self._to_array(pa.large_string() if is_utf8 else _BYTES).take(pa.array(rows, mask=is_null))
        return texts if texts.type == kind else texts.cast(kind)

    def retain(self, keep: Flags) -> None:
        """Forget all texts except those with a flagged number."""
        entries = self._table[self._table != 0]
        numbers = (entries & _LOW).astype(np.int64) - 1
        is_kept = keep.take(numbers)
        forgotten = numbers[~is_kept]
        if not len(forgotten):
            return
        entries, numbers = entries[is_kept], numbers[is_kept]
        order = self._rows.take(numbers).argsort()  # As they lie.
        rows = self._rows.take(numbers.take(order))
        texts = TextArray(self._to_array(_BYTES).take(pa.array(rows)))
        self._data, self._ends = texts.bytes, texts.bounds
        self._rows[numbers.take(order)] = np.arange(len(order))
        self._count = len(order)
        self._free = np.concatenate((self._free, forgotten))
        self._clear_table(len(order))
        self._add_entries(entries)

    @property
    def end(self) -> int:
        """The first unused number."""
        return self._end

    def _to_array(self, kind: pa.DataType) -> pa.Array:
        """Return all stored texts as an Arrow array."""
        buffers = [None, pa.py_buffer(self._ends), pa.py_buffer(self._data)]
        return pa.Array.from_buffers(kind, self._count, buffers, 0)

    def _find_numbers(self, given: TextArray, tags: Words) -> Ints:
        """Return the numbers of texts; -1 for unknown ones."""
        all_numbers = np.full(len(tags), -1)
        last = len(self._table) - 1
        todo = np.arange(len(tags))
        at = (tags >> self._shift).view(np.int64)
        while len(todo):
            entries = self._table.take(at)
            if not entries.all():
                # A text is not in the table if its search ends at a free place.
                occupied = entries.nonzero()[0]
                todo, at, entries = todo.take(occupied), at.take(occupied), entries.take(occupied)
            alike = (entries >> _HALF) == tags.take(todo)
            if alike.any():
                # Texts of equal tags are compared; the others go on to the next place.
                alike_texts = todo if alike.all() else todo[alike]
                numbers = (entries if alike_texts is todo else entries[alike]) & _LOW
                numbers = numbers.view(np.int64) - 1
                same = self._are_equal(given, alike_texts, numbers)
                all_numbers[alike_texts[same]] = numbers[same]
                unfound = (all_numbers.take(todo) < 0).nonzero()[0]
                todo, at = todo.take(unfound), at.take(unfound)
            at = (at + 1) & last
        return all_numbers

    def _are_equal(self, given: TextArray, places: Ints, numbers: Ints) -> Flags:
        """Return whether texts at places equal the texts of numbers."""
        stored = self._to_array(_BYTES).take(pa.array(self._rows.take(numbers)))
        asked_for = given.array if len(places) == len(given.array) else given.array.take(pa.array(places))
        same: Flags = pc.equal(stored, asked_for).to_numpy(zero_copy_only=False)
        return same

    def _add_texts(self, given: TextArray, tags: Words, places: Ints) -> Ints:
        """Add texts at places, each once, and return their numbers."""
        lengths = given.lengths.take(places)
        self._make_room(len(places), int(lengths.sum()))
        numbers = self._allocate_numbers(len(places))
        row, end = self._count, int(self._ends[self._count])
        ends = self._ends[row + 1 : row + 1 + len(places)]
        np.cumsum(lengths, out=ends)
        # The place of each byte of the new texts in the array, where they need not be adjacent.
        within = np.arange(int(ends[-1])) - (ends - lengths - given.starts.take(places)).repeat(lengths)
        self._data[end : end + len(within)] = given.bytes.take(within)
        ends += end
        self._rows[numbers] = np.arange(row, row + len(places))
        self._count += len(places)
        self._add_entries(tags.take(places) << _HALF | (numbers + 1).view(np.uint64))
        return numbers

    def _make_room(self, count: int, size: int) -> None:
        """Make room for more texts and bytes."""
        used = int(self._ends[self._count])
        if used + size > len(self._data):
            self._data = _enlarge(self._data, used + size)
        if self._count + count + 1 > len(self._ends):
            self._ends = _enlarge(self._ends, self._count + count + 1)
        if 2 * (self._count + count) > len(self._table):
            entries = self._table[self._table != 0]
            self._clear_table(self._count + count)
            self._add_entries(entries)

    def _clear_table(self, count: int) -> None:
        """Begin an empty hash table with room for `count` texts."""
        bits = max(5, min(32, (2 * count).bit_length()))
        self._table = np.zeros(1 << bits, np.uint64)
        self._shift = np.uint64(32 - bits)

    def _allocate_numbers(self, count: int) -> Ints:
        """Return numbers that are free."""
        again, self._free = self._free[:count], self._free[count:]
        fresh = np.arange(self._end, self._end + count - len(again))
        if self._end + len(fresh) > TEXTS_MAX:
            raise MemoryError(f"a dataflow keeps at most {TEXTS_MAX} different texts of a type, and has more")
        self._end += len(fresh)
        if self._end > len(self._rows):
            self._rows = _enlarge(self._rows, self._end)
        return np.concatenate((again, fresh))

    def _add_entries(self, entries: Words) -> None:
        """Put entries into the table, which has room for them."""
        last = len(self._table) - 1
        at = (entries >> _HALF >> self._shift).view(np.int64)
        while len(entries):
            free = (self._table.take(at) == 0).nonzero()[0]
            self._table[at.take(free)] = entries.take(free)  # If several have one place, one of them stays there.
            unplaced = (self._table.take(at) != entries).nonzero()[0]
            entries, at = entries.take(unplaced), (at.take(unplaced) + 1) & last


def _enlarge(array: Any, least: int) -> Any:
    """Return a longer copy of an array: half as long again, and at least `least`."""
    larger = np.zeros(max(least, len(array) + len(array) // 2), array.dtype)
    larger[: len(array)] = array
    return larger
