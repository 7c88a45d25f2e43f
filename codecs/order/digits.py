"""Sorting rows through 64-bit digits: the fast way to one order over columns of every flat type.

A digit is a function from row numbers to uint64 values whose order never contradicts the order of the rows. The digits
of all columns, left to right, most significant first, are together the whole order. Sorting packs as many leading
digits as fit into 64 bits beside the row number. Each digit is reduced by its minimum, so that a common prefix is free.
It sorts these integers, and then continues only with tied rows. Equal rows are found by one comparison with their
neighbour. A history of updates is full of duplicates, and these end the work early.

If the first column holds texts that come often each, all such columns are replaced by the ranks of their texts before.
Ranks take few bits, so the digits of all columns may fit into one word. 120,000 flights with four texts and two numbers
take 21 ms, and 66 with the texts' own digits. If a number comes first, it already separates most rows, and computing
ranks of texts does not pay.

Values are sorted, never indices by value: numpy sorts 64-bit integers with the vector units of the processor. For
250,000 rows with integer keys, that takes 6 ms in any order, and a stable argsort of all 64 bits takes 33. In ten
sorted runs, which suit that timsort, it is 6 for 8; without any vector units 13 for 10. Fewer bits of the digits fit
in, so more rows tie on the first of them, and that costs less than it saves.

If a column has no cheap digits, or more than `WORDS_MAX`, Acero sorts the rows that are still tied. So it does if only
a few tie on the first word: what a step of a view writes is a few rows, each twice, in many columns. Acero orders 20
such rows of 7 columns in 0.23 ms, and further digits in 0.51.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from persist.codecs.order.arrays import boolean_values, byte_ranges, int64_array, stored_values
from persist.codecs.types.arrow_types import is_text

Rows: TypeAlias = npt.NDArray[np.int64]
Bits: TypeAlias = npt.NDArray[np.uint64]
Flags: TypeAlias = npt.NDArray[np.bool_]

WORDS_MAX = 16  # Strings of up to 128 bytes are ordered without Acero.
RANKED_ROWS_MIN, RANKED_TIMES = 4096, 8  # Texts are ranked in so many rows, if each comes so often.
FEW_TIED = 1024  # Up to so many rows that tie on the first word are Acero's.
_DIGIT_BITS = 64
_SAMPLE_ROWS = 1024
_SIGN = np.uint64(1 << 63)
# Byte masks that keep the first 0..8 bytes of a big-endian word.
_KEEP = np.array([((1 << 64) - 1) ^ ((1 << (64 - 8 * kept)) - 1) for kept in range(9)], dtype=np.uint64)

Compute: TypeAlias = Callable[[Rows | None], Bits]


class Digit(msgspec.Struct, frozen=True):
    """One digit of the column of that number.

    `values(rows)` is uint64[len(rows)], None standing for all rows. A digit without values represents the rest of a
    column, which only Acero can sort. A costly one begins a column that is worth avoiding.
    """

    values: Compute | None
    column: int
    costly: bool


class RowSorter:
    """Sorts the rows of some columns, all of them or one subset at a time; a subset may be sorted in any
    thread.

    Args:
        columns: flat arrays of one length n, floats canonical (see `ordering.canonical`).
    """

    def __init__(self, columns: Sequence[pa.Array]) -> None:
        self._columns = columns
        self._rows = len(columns[0]) if columns else 0
        assert self._rows < 1 << 31, "a row number and the number of a run take less than a word together"
        self._digits: list[Digit] = []
        self._packed: Bits | None = None

    @property
    def packed(self) -> Bits:
        """uint64[n]: the leading 64 bits of the order; of two rows the lesser one never has the larger value.

        Made at the first use, by one thread.
        """
        if self._packed is None:
            packed = np.zeros(self._rows, dtype=np.uint64)
            if self._rows > 1:
                if self._rows >= RANKED_ROWS_MIN and repeats(self._columns[0]):
                    self._columns = [rank_texts(column) if repeats(column) else column for column in self._columns]
                self._digits = _make_digits(self._columns)
                packed = _pack(self._digits, None, packed)
            self._packed = packed
        return self._packed

    def halves(self) -> list[Rows]:
        """Split all rows into two subsets of similar size; the first sorts before the second."""
        packed = self.packed
        sample = np.sort(packed[:: max(len(packed) // _SAMPLE_ROWS, 1)])
        below = packed < sample[len(sample) // 2]
        return [np.flatnonzero(below), np.flatnonzero(~below)]

    def sort(self, rows: Rows | None = None) -> tuple[Rows, Flags]:
        """Sort rows, or all, stably: equal rows keep their input order.

        Returns:
            int64[m], the row numbers in order, and bool[m], true where a row (in that order) differs from the
            one before.
        """
        packed = self.packed if rows is None else self.packed[rows]
        order = np.arange(len(packed), dtype=np.int64) if rows is None else rows
        if bool((packed[1:] < packed[:-1]).any()):
            within = _stable_order(packed)
            order, packed = (within if rows is None else rows[within]), packed[within]
        starts = np.ones(len(packed), dtype=np.bool_)
        np.not_equal(packed[1:], packed[:-1], out=starts[1:])
        self._settle_ties(order, starts)
        return order, starts

    def _settle_ties(self, order: Rows, starts: Flags) -> None:
        """Finish, in place, an order by `_packed` alone."""
        if starts.all():
            return
        digits = list(self._digits)
        positions = np.flatnonzero(_mark_ties(starts))
        if digits and 0 < positions.size <= FEW_TIED:
            self._sort_ties_by_acero(self._columns, order, starts, positions)
            return
        while digits:
            # A column without a digit left is equal in all rows that tie.
            columns = sorted({digit.column for digit in digits})
            positions, varying = _unequal_runs(self._columns, columns, order, starts, positions)
            if positions.size == 0:
                return
            digits = [digit for digit in digits if digit.column in varying]
            if digits[0].values is None:
                self._sort_ties_by_acero([self._columns[i] for i in varying], order, starts, positions)
                return
            rows, runs = order[positions], _run_numbers(starts[positions])
            packed = _pack(digits, rows, runs)
            within = _stable_order(packed)
            order[positions], packed = rows[within], packed[within]
            starts[positions[1:]] = packed[1:] != packed[:-1]
            positions = positions[_mark_ties(starts[positions])]

    def _sort_ties_by_acero(self, columns: Sequence[pa.Array], order: Rows, starts: Flags, positions: Rows) -> None:
        """Sort the rows that tie so far by Arrow's Acero, and note where new values begin."""
        rows = order[positions]
        order[positions] = rows = rows[_acero_order(columns, rows, _run_numbers(starts[positions]))]
        starts[positions[1:]] |= np.logical_or.reduce(_differs(columns, rows))


def compute_dense_ranks(columns: Sequence[pa.Array]) -> Rows:
    """int64[n]: 0 for the smallest distinct row of columns, 1 for the next, …; NULL is the largest value."""
    order, starts = RowSorter(columns).sort()
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.cumsum(starts) - 1
    return ranks


def repeats(column: pa.Array) -> bool:
    """Return whether a sample suggests that a column holds texts that each occur often."""
    if not is_text(column.type):
        return False
    sample = column.take(pa.array(np.arange(_SAMPLE_ROWS) * (len(column) - 1) // (_SAMPLE_ROWS - 1)))
    again = _SAMPLE_ROWS - int(pc.count_distinct(sample, mode="all").as_py())
    # Of n drawn from d values, about n² / 2d repeat an earlier one. A few repeats count as chance.
    return again * 2 * len(column) > _SAMPLE_ROWS * _SAMPLE_ROWS * RANKED_TIMES and again > _SAMPLE_ROWS // 32


def rank_texts(column: pa.Array) -> pa.Array:
    """Return the ranks of texts among the distinct ones, NULL for NULL: they sort and compare as the texts do."""
    coded = column.dictionary_encode()
    ranks = np.empty(len(coded.dictionary), np.int32)
    ranks[pc.sort_indices(coded.dictionary).to_numpy()] = np.arange(len(ranks), dtype=np.int32)
    return pa.array(ranks).take(coded.indices)


def _stable_order(packed: Bits) -> Rows:
    """The stable order of packed integers."""
    least, row_bits = packed.min(), len(packed).bit_length()
    # Row numbers fit below the values: sorting values is several times as fast as sorting indices by them.
    pairs = (packed - least) << np.uint64(row_bits)
    pairs |= np.arange(len(packed), dtype=np.uint64)
    pairs.sort()
    pairs &= np.uint64((1 << row_bits) - 1)
    ordered: Rows = pairs.view(np.int64)
    return ordered


def _mark_ties(starts: Flags) -> Flags:
    """Return which rows, in order, are in a run of several."""
    tied = ~starts
    tied[:-1] |= tied[1:]
    return tied


def _run_numbers(starts: Flags) -> Bits:
    numbers: Bits = np.cumsum(starts).astype(np.uint64)
    return numbers


def _unequal_runs(
    columns: Sequence[pa.Array], left: Sequence[int], order: Rows, starts: Flags, positions: Rows
) -> tuple[Rows, list[int]]:
    """Return which positions (whole runs of tied rows) are in runs of unequal rows.

    Also returns the numbers of the columns that vary within a run: no other matters to the order any more.

    Args:
        left: the numbers of the columns that may vary within a run.
    """
    if positions.size == 0:
        return positions, []
    begins = starts[positions]
    inside = ~begins[1:]
    differences = _differs([columns[i] for i in left], order[positions])
    differs = {
        i: inside_runs for i, every in zip(left, differences, strict=True) if (inside_runs := every & inside).any()
    }
    if not differs:
        return positions[:0], []
    runs = np.cumsum(begins) - 1
    unequal = np.zeros(int(runs[-1]) + 1, dtype=np.bool_)
    for inside_runs in differs.values():
        unequal[runs[1:][inside_runs]] = True
    tied: Rows = positions[unequal[runs]]
    return tied, [*differs]


def _differs(columns: Sequence[pa.Array], rows: Rows) -> list[Flags]:
    """Per column bool[len(rows) - 1]: where a row of rows differs from the one before it."""
    taken_rows = int64_array(rows)
    return [neighbours_differ(column.take(taken_rows)) for column in columns]


def neighbours_differ(array: pa.Array) -> Flags:
    """bool[n - 1]: where a value of a flat canonical array differs from the one before; NULL equals NULL."""
    if pt.is_floating(array.type):  # By bits: NaN equals itself.
        array = array.view(pa.int32() if pt.is_float32(array.type) else pa.int64())
    differs = pc.not_equal(array[1:], array[:-1])
    if array.null_count == 0:
        return boolean_values(differs)
    valid = boolean_values(array.is_valid())
    differing: Flags = boolean_values(differs.fill_null(False)) | (valid[1:] != valid[:-1])
    return differing


def _acero_order(columns: Sequence[pa.Array], rows: Rows, runs: Bits) -> Rows:
    """The stable order of rows by run number, then columns."""
    taken_rows = int64_array(rows)
    arrays = [int64_array(runs.astype(np.int64)), *(column.take(taken_rows) for column in columns)]
    names = [str(i) for i in range(len(arrays))]
    table = pa.RecordBatch.from_arrays(arrays, names=names)
    indices = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in names])
    return stored_values(indices).astype(np.int64)


def _pack(digits: list[Digit], rows: Rows | None, packed: Bits) -> Bits:
    """Append to packed as many bits of digits as fit in 64, and drop those bits from digits.

    A costly digit is only ever the first: the digits before it may separate the rows, or all tied rows may be equal.
    Sound on a subset of the rows too: only the order of rows within one run of equal `packed` matters then, and these
    are equal in everything dropped before.
    """
    used, bits = int(packed.max()).bit_length(), _DIGIT_BITS - len(packed).bit_length()
    packs_any = False
    while digits and used < bits and not (packs_any and digits[0].costly):
        if (compute := digits[0].values) is None:
            break
        digit = digits.pop(0)
        values = compute(rows)
        packs_any = True
        least = values.min()
        values = values - least
        width = int(values.max()).bit_length()
        room = bits - used
        if width > room:
            mask = np.uint64((1 << (width - room)) - 1)
            digits.insert(0, msgspec.structs.replace(digit, values=_mask_low_bits(compute, least, mask), costly=False))
            values >>= np.uint64(width - room)
            width = room
        packed = values if used == 0 else (packed << np.uint64(width)) | values
        used += width
    return packed


def _mask_low_bits(compute: Compute, base: np.uint64, mask: np.uint64) -> Compute:
    return lambda rows: (compute(rows) - base) & mask


def _make_digits(columns: Sequence[pa.Array]) -> list[Digit]:
    """The digits of all columns: rows that tie on all of them are equal."""
    digits: list[Digit] = []
    for i, column in enumerate(columns):
        costly = not pt.is_primitive(column.type)
        if not costly:
            computes: list[Compute | None] = [_primitive_digit(column)]
        else:
            computes = _decimal_digits(column) if pt.is_decimal(column.type) else _bytes_digits(column)
        if column.null_count:
            computes.insert(0, _of_values(boolean_values(column.is_null()).astype(np.uint64)))
        digits += [Digit(compute, i, costly and place == 0) for place, compute in enumerate(computes)]
    return digits


def _of_values(values: Bits) -> Compute:
    return lambda rows: values if rows is None else values[rows]


def _primitive_digit(column: pa.Array) -> Compute:
    """Return the digit of booleans, integers, moments or floats; NULL rows get one value."""
    if pt.is_boolean(column.type):
        return _of_values(boolean_values(column.fill_null(False)).astype(np.uint64))
    raw = _replace_nulls(column, stored_values(column))
    return lambda rows: to_ordered_bits(raw if rows is None else raw[rows]).astype(np.uint64, copy=False)


def to_ordered_bits(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return unsigned integers of the same width and order; canonical floats keep theirs, NaN last."""
    width = values.dtype.itemsize
    bits: npt.NDArray[Any] = values.view(f"u{width}")
    top = bits.dtype.type(1 << (8 * width - 1))
    if values.dtype.kind == "u":
        return bits
    ordered: npt.NDArray[Any] = bits ^ top if values.dtype.kind == "i" else np.where(bits & top, ~bits, bits | top)
    return ordered


def _replace_nulls(column: pa.Array, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the values, with the arbitrary ones of NULL rows replaced by one that does not widen the range."""
    if column.null_count == 0:
        return values
    valid = boolean_values(column.is_valid())
    fill = values[int(np.argmax(valid))] if valid.any() else 0
    return np.where(valid, values, np.asarray(fill, dtype=values.dtype))


def _decimal_digits(column: pa.Array) -> list[Compute | None]:
    words = column.type.bit_width // 64
    raw = stored_values(column, "u8").reshape(-1, words)
    limbs: list[Bits] = [_replace_nulls(column, raw[:, limb]) for limb in reversed(range(words))]
    return [_of_values(limbs[0] ^ _SIGN), *map(_of_values, limbs[1:])]


def _bytes_digits(column: pa.Array) -> list[Compute | None]:
    """Eight bytes at a time, zeros after the end; then the length, for `a` sorts before `a` and a zero."""
    begin, length, data = byte_ranges(column)
    if data.size < 8:  # So that a window of eight bytes begins somewhere.
        data = np.concatenate([data, np.zeros(8 - data.size, dtype=np.uint8)])
    shortest, longest = int(length.min()), int(length.max())
    words = -(-longest // 8)
    digits: list[Compute | None] = [_word_digit(begin, length, data, word) for word in range(min(words, WORDS_MAX))]
    if words > WORDS_MAX:
        return [*digits, None]
    if shortest < longest:
        digits.append(_of_values(length.astype(np.uint64)))
    return digits


def _word_digit(begin: Rows, length: Rows, data: npt.NDArray[np.uint8], word: int) -> Compute:
    windows: npt.NDArray[Any] = np.ndarray((data.size - 7,), dtype=">u8", buffer=data, strides=(1,))
    skipped = 8 * word

    def compute(rows: Rows | None) -> Bits:
        start, remaining = (begin, length) if rows is None else (begin[rows], length[rows])
        start, remaining = start + skipped, remaining - skipped
        if remaining.min() >= 8:  # Every value has all eight bytes: twice as fast.
            return windows[start].astype(np.uint64)
        # The last window may begin before the word; shift the bytes that precede it out.
        window = np.minimum(start, np.int64(data.size - 8))
        shift = np.minimum(start - window, np.int64(7)).astype(np.uint64) * np.uint64(8)
        mask = _KEEP[np.clip(remaining, np.int64(0), np.int64(8))]
        values: Bits = (windows[window].astype(np.uint64) << shift) & mask
        return values

    return compute
