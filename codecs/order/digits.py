"""Sorts rows by 64 leading bits of their order, for columns of every flat type.

A digit is a uint64 for each row, whose order never contradicts the order of the rows. The digits of all columns, most
significant first, define the whole order. As many leading digits as fit are packed into 64 bits beside the row number,
and these integers are sorted. Each digit is reduced by its minimum, so that a common prefix takes no bits. Most tied
rows are equal, which one comparison of neighbours finds, because a history of updates has many duplicates. Acero sorts
the others, by the columns that differ.

If the first column has frequently repeated texts, all such columns are first replaced by the ranks of their texts.
Ranks take few bits, so the digits of all columns may fit into one word. 120,000 flights with two texts and two numbers
take 19 ms, and 67 with the texts' own digits, so writing them takes 50 ms in place of 92. If a number comes first, it
already separates most rows, and computing ranks of texts does not pay.

Values are sorted, never indices by value: numpy sorts 64-bit integers with the vector units of the processor. To
consolidate 400,000 rows of 5 columns takes 42 ms of CPU time, and 106 if Acero sorts them. For 40,000 updates in pairs,
it is 7 and 17. An upsert of 20,000 rows would take 1.9 times as long.
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from persist.codecs.order.arrays import get_boolean_values, get_byte_ranges, get_stored_numbers, make_int64_array
from persist.codecs.types.arrow_types import is_text

Rows: TypeAlias = npt.NDArray[np.int64]
Bits: TypeAlias = npt.NDArray[np.uint64]
Flags: TypeAlias = npt.NDArray[np.bool_]

RANKED_ROWS_MIN, RANKED_TIMES = 4096, 8  # Texts are ranked in so many rows, if each comes so often.
_SAMPLE_ROWS = 1024
WORDS_MAX = 16  # The words of a text that may be skipped because they are equal in all rows.
_DIGIT_BITS = 64
_SIGN = np.uint64(1 << 63)
# Byte masks that keep the first 0..8 bytes of a big-endian word.
_KEEP = np.array([((1 << 64) - 1) ^ ((1 << (64 - 8 * kept)) - 1) for kept in range(9)], dtype=np.uint64)


def sort_rows(columns: Sequence[pa.Array]) -> tuple[Rows, Flags]:
    """Sort rows stably: equal rows keep their input order.

    `columns`: flat arrays of one length n, floats canonical (see `ordering.make_canonical`).

    Returns:
        int64[n], the row numbers in order, and bool[n], true where a row (in that order) differs from the one before.
    """
    rows = len(columns[0]) if columns else 0
    assert rows < 1 << 31, "a row number and its bits take less than a word together"
    order, starts = np.arange(rows, dtype=np.int64), np.ones(rows, dtype=np.bool_)
    if rows < 2:
        return order, starts
    if rows >= RANKED_ROWS_MIN and is_repetitive(columns[0]):
        columns = [rank_texts(column) if is_repetitive(column) else column for column in columns]
    packed, whole = _pack_digits(columns)
    if bool((packed[1:] < packed[:-1]).any()):
        order = _sort_stably(packed)
        packed = packed[order]
    np.not_equal(packed[1:], packed[:-1], out=starts[1:])
    if whole < len(columns) and not starts.all():
        positions, varying = _find_unequal_runs(columns[whole:], order, starts, np.flatnonzero(_mark_ties(starts)))
        if positions.size:
            rows_tied = order[positions]
            rows_tied = rows_tied[_sort_by_acero(varying, rows_tied, np.cumsum(starts[positions]))]
            order[positions] = rows_tied
            starts[positions[1:]] |= np.logical_or.reduce(_find_changes(varying, rows_tied))
    return order, starts


def compute_dense_ranks(columns: Sequence[pa.Array]) -> Rows:
    """Return the ranks of rows among the distinct ones, int64[n] from 0; NULL is the largest value."""
    order, starts = sort_rows(columns)
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.cumsum(starts) - 1
    return ranks


def is_repetitive(column: pa.Array) -> bool:
    """Return whether a sample suggests that a column holds texts that each occur often."""
    if not is_text(column.type):
        return False
    sample = column.take(pa.array(np.arange(_SAMPLE_ROWS) * (len(column) - 1) // (_SAMPLE_ROWS - 1)))
    again = _SAMPLE_ROWS - int(pc.count_distinct(sample, mode="all").as_py())
    # Of n drawn from d values, about n² / 2d repeat an earlier one. A few repeats count as chance.
    return again * 2 * len(column) > _SAMPLE_ROWS * _SAMPLE_ROWS * RANKED_TIMES and again > _SAMPLE_ROWS // 32


def rank_texts(column: pa.Array) -> pa.Array:
    """Return the ranks of texts among the distinct ones, which sort and compare like them; NULL for NULL."""
    coded = column.dictionary_encode()
    ranks = np.empty(len(coded.dictionary), np.int32)
    ranks[pc.sort_indices(coded.dictionary).to_numpy()] = np.arange(len(ranks), dtype=np.int32)
    return pa.array(ranks).take(coded.indices)


def _sort_stably(packed: Bits) -> Rows:
    """Return the row numbers that sort packed integers, stably."""
    least, row_bits = packed.min(), len(packed).bit_length()
    # Row numbers fit below the values: sorting values is several times as fast as sorting indices by them.
    pairs = packed - least
    pairs <<= np.uint64(row_bits)
    pairs |= np.arange(len(packed), dtype=np.uint64)
    pairs.sort()
    pairs &= np.uint64((1 << row_bits) - 1)
    ordered: Rows = pairs.view(np.int64)
    return ordered


def _mark_ties(starts: Flags) -> Flags:
    """Return which rows equal a neighbour; `starts` marks the runs' first rows."""
    tied = ~starts
    tied[:-1] |= tied[1:]
    return tied


def _find_unequal_runs(
    columns: Sequence[pa.Array], order: Rows, starts: Flags, positions: Rows
) -> tuple[Rows, list[pa.Array]]:
    """Return positions in tied runs whose rows differ, and the differing columns."""
    begins = starts[positions]
    differences = [every & ~begins[1:] for every in _find_changes(columns, order[positions])]
    varying = [column for column, inside in zip(columns, differences, strict=True) if inside.any()]
    runs = np.cumsum(begins) - 1
    unequal = np.zeros(int(runs[-1]) + 1, dtype=np.bool_)
    for inside in differences:
        unequal[runs[1:][inside]] = True
    return positions[unequal[runs]], varying


def _find_changes(columns: Sequence[pa.Array], rows: Rows) -> list[Flags]:
    """Return for each column which rows differ from the row before."""
    taken_rows = make_int64_array(rows)
    return [mark_changes(column.take(taken_rows)) for column in columns]


def mark_changes(array: pa.Array) -> Flags:
    """Return where a value of a flat canonical array differs from the previous one: bool[n - 1]; NULL equals NULL."""
    if pt.is_floating(array.type):  # By bits: NaN equals itself.
        array = array.view(pa.int32() if pt.is_float32(array.type) else pa.int64())
    differs = pc.not_equal(array[1:], array[:-1])
    if array.null_count == 0:
        return get_boolean_values(differs)
    valid = get_boolean_values(array.is_valid())
    differing: Flags = get_boolean_values(differs.fill_null(False)) | (valid[1:] != valid[:-1])
    return differing


def _sort_by_acero(columns: Sequence[pa.Array], rows: Rows, runs: Rows) -> Rows:
    """Return the stable order of rows by run number, then by columns."""
    taken_rows = make_int64_array(rows)
    arrays = [make_int64_array(runs), *(column.take(taken_rows) for column in columns)]
    names = [str(i) for i in range(len(arrays))]
    table = pa.RecordBatch.from_arrays(arrays, names=names)
    indices = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in names])
    return get_stored_numbers(indices).astype(np.int64)


def _pack_digits(columns: Sequence[pa.Array]) -> tuple[Bits, int]:
    """Pack the leading bits of each row's columns into a sortable uint64.

    Returns also the number of leading columns that it contains completely. Texts and decimals are packed only in the
    first column, because earlier columns may separate the rows, or all rows may be equal.
    """
    packed, used = np.zeros(len(columns[0]), dtype=np.uint64), 0
    bits = _DIGIT_BITS - len(packed).bit_length()
    for whole, column in enumerate(columns):
        if whole and not pt.is_primitive(column.type):
            return packed, whole
        for values in _split_digits(column):
            if values is None or used == bits:
                return packed, whole
            values = values - values.min()
            width, room = int(values.max()).bit_length(), bits - used
            if width > room:
                packed <<= np.uint64(room)
                values >>= np.uint64(width - room)
                packed |= values
                return packed, whole
            packed <<= np.uint64(width)
            packed |= values
            used += width
    return packed, len(columns)


def _split_digits(column: pa.Array) -> Iterator[Bits | None]:
    """Yield integers that together sort like a column, most significant first.

    The last one is None if some texts are longer.
    """
    if column.null_count:
        yield get_boolean_values(column.is_null()).astype(np.uint64)
    if pt.is_boolean(column.type):
        yield get_boolean_values(column.fill_null(False)).astype(np.uint64)
    elif pt.is_primitive(column.type):
        yield to_ordered_bits(_replace_nulls(column, get_stored_numbers(column))).astype(np.uint64, copy=False)
    elif pt.is_decimal(column.type):
        words = column.type.bit_width // 64
        raw = get_stored_numbers(column, "u8").reshape(-1, words)
        for limb in reversed(range(words)):
            values: Bits = _replace_nulls(column, raw[:, limb])
            yield values ^ _SIGN if limb == words - 1 else values
    else:
        yield from _split_byte_digits(column)


def to_ordered_bits(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return unsigned integers of the same width and order; canonical floats keep theirs, NaN last."""
    width = values.dtype.itemsize
    bits: npt.NDArray[Any] = values.view(f"u{width}")
    if values.dtype.kind == "u":
        return bits
    top = bits.dtype.type(1 << (8 * width - 1))
    if values.dtype.kind == "i":
        flipped: npt.NDArray[Any] = bits ^ top
        return flipped
    # All bits of negative floats are turned over, and the sign of others.
    turned: npt.NDArray[Any] = (values.view(f"i{width}") >> (8 * width - 1)).view(bits.dtype)
    turned |= top
    turned ^= bits
    return turned


def _replace_nulls(column: pa.Array, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Give NULL rows a value that occurs, so that the range stays."""
    if column.null_count == 0:
        return values
    valid = get_boolean_values(column.is_valid())
    return np.where(valid, values, values[int(np.argmax(valid))])  # If all are NULL, any value will do.


def _split_byte_digits(column: pa.Array) -> Iterator[Bits | None]:
    """Yield texts as big-endian integers of eight bytes, then their lengths."""
    begin, length, data = get_byte_ranges(column)
    if data.size < 8:  # So that a window of eight bytes begins somewhere.
        data = np.concatenate([data, np.zeros(8 - data.size, dtype=np.uint8)])
    windows: npt.NDArray[Any] = np.ndarray((data.size - 7,), dtype=">u8", buffer=data, strides=(1,))
    words = -(-int(length.max()) // 8)
    for skipped in range(0, 8 * min(words, WORDS_MAX), 8):
        # The last window may begin before the word; shift the bytes that precede it out.
        window = np.minimum(begin + skipped, np.int64(data.size - 8))
        shift = np.minimum(begin + skipped - window, np.int64(7)).astype(np.uint64) * np.uint64(8)
        mask = _KEEP[np.clip(length - skipped, np.int64(0), np.int64(8))]
        yield (windows[window].astype(np.uint64) << shift) & mask
    yield None if words > WORDS_MAX else length.astype(np.uint64)
