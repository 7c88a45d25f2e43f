"""A digest of updates that depends on what they say alone: not on their order, nor on how they were cut or summed.

    digest(updates) = sum over updates of diff * hash(update), modulo 2**64
    hash(update)    = fold of the words of its columns, in the collection's order, and of `_time` at last
    word(value)     = NULL: N
                      at most 64 bits wide: its bits, as Arrow has them, sign-extended
                      text, bytes, decimals: chain of their bytes by eights, little-endian, the last filled up with
                      zeros; with their length in bytes
                      list or map: chain of the words of its elements, with their number; those of a map are structs
                      struct: fold of the words of its fields
    fold(words)     = h = 0, then h = mix((h + G) ^ word) for each of them
    chain(words, n) = mix(n + sum over i of mix(word_i + G * (i + 1)))
    mix             = the last step of splitmix64: x ^= x >> 30, *= A; x ^= x >> 27, *= B; x ^= x >> 31

G, A, B and N are the constants below. Because diffs multiply, updates and their consolidation have one digest, and the
digests of batches add up. Different updates have one digest by chance once in 2**64; on purpose it can be had.

Cost: 5 to 10 ns for each value of up to 64 bits, 70 ns for a short text. Memory: some megabytes.
Rejected: checksums of parts, which depend on how rows came to be in parts; hashing rows one by one with xxh3, which
would be a Python loop.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt
import xxhash

from persist.codecs.order.arrays import boolean_values
from persist.codecs.types.schema import DIFF

Words: TypeAlias = npt.NDArray[np.uint64]
Ints: TypeAlias = npt.NDArray[np.int64]

DIGEST_MODULUS = 1 << 64
_ROWS_AT_ONCE = 64 * 1024
_G = np.uint64(0x9E3779B97F4A7C15)
_A = np.uint64(0xBF58476D1CE4E5B9)
_B = np.uint64(0x94D049BB133111EB)
_NULL = np.uint64(0xD6E8FEB86659FD93)
_INTS: dict[int, np.dtype[np.signedinteger[Any]]] = {
    1: np.dtype("<i1"),
    2: np.dtype("<i2"),
    4: np.dtype("<i4"),
    8: np.dtype("<i8"),
}


def digest_of(table: pa.Table, columns: Sequence[str]) -> int:
    """Return the digest of updates by some of their columns, and `_diff`; floats must be canonical."""
    total = 0
    for start in range(0, len(table), _ROWS_AT_ONCE):
        rows = table.slice(start, _ROWS_AT_ONCE).combine_chunks()
        hashes = np.zeros(len(rows), np.uint64)
        for name in columns:
            hashes = _mix((hashes + _G) ^ _words(_single(rows[name])))
        diffs = _bits(_single(rows[DIFF]))
        total += int(np.sum(hashes * diffs, dtype=np.uint64))
    return total % DIGEST_MODULUS


def digest_of_text(text: str) -> int:
    """Return the digest of what else is asked for: xxh3_64 of its UTF-8."""
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))


def _single(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _mix(x: Words) -> Words:
    x = (x ^ (x >> np.uint64(30))) * _A
    x = (x ^ (x >> np.uint64(27))) * _B
    return x ^ (x >> np.uint64(31))


def _words(array: pa.Array) -> Words:
    """Return one word for each value."""
    words = _words_but_nulls(array)
    if array.null_count:
        words = np.where(boolean_values(array.is_null()), _NULL, words)
    return words


def _words_but_nulls(array: pa.Array) -> Words:
    kind = array.type
    if not len(array) or pt.is_null(kind):
        return np.zeros(len(array), np.uint64)
    if pt.is_boolean(kind):
        return boolean_values(array.fill_null(False)).astype(np.uint64)
    if pt.is_struct(kind):
        hashes = np.zeros(len(array), np.uint64)
        for field in array.flatten():
            hashes = _mix((hashes + _G) ^ _words(field))
        return hashes
    if pt.is_map(kind):
        return _of_lists(array.cast(pa.list_(pa.struct([("k", kind.key_type), ("v", kind.item_type)]))))
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return _of_lists(array)
    is_number = pt.is_integer(kind) or pt.is_floating(kind) or pt.is_temporal(kind)
    return _bits(array) if is_number else _of_bytes(array)


def _bits(array: pa.Array) -> Words:
    """Return the bits of values that are as wide as one of Arrow's integers."""
    width = array.type.bit_width // 8
    stored: Any = array.buffers()[1]
    values = np.frombuffer(stored, _INTS[width], len(array), array.offset * width)
    words: Words = values.astype(np.int64).view(np.uint64)
    return words


def _of_lists(array: pa.Array) -> Words:
    counts = array.value_lengths().fill_null(0).cast(pa.int64())
    lengths = _bits(counts).view(np.int64)
    return _chain(_words(array.flatten()), lengths, lengths)


def _of_bytes(array: pa.Array) -> Words:
    kind = array.type
    if pt.is_fixed_size_binary(kind) or pt.is_decimal(kind):
        width = kind.bit_width // 8
        starts = np.arange(array.offset, array.offset + len(array), dtype=np.int64) * width
        lengths = np.full(len(array), width, np.int64)
        data = array.buffers()[1]
    else:
        is_large = pt.is_large_string(kind) or pt.is_large_binary(kind)
        of = np.dtype("<i8" if is_large else "<i4")
        stored: Any = array.buffers()[1]
        bounds = np.frombuffer(stored, of, len(array) + 1, array.offset * of.itemsize).astype(np.int64)
        starts, lengths = bounds[:-1], np.diff(bounds)
        data = array.buffers()[2]
    if array.null_count:  # What lies behind a NULL is nobody's.
        lengths = np.where(boolean_values(array.is_null()), np.int64(0), lengths)
    counts = (lengths + 7) >> 3
    return _chain(_eights(data, starts, lengths, counts), counts, lengths)


def _eights(data: pa.Buffer | None, starts: Ints, lengths: Ints, counts: Ints) -> Words:
    """Return the bytes of all values by eights, each value filled up with zeros."""
    at = _positions(counts) << 3
    if data is None or not len(at):
        return np.zeros(len(at), np.uint64)
    low, high = int(starts.min()), int((starts + lengths).max())
    padded = np.zeros(high - low + 8, np.uint8)
    padded[: high - low] = np.frombuffer(memoryview(data), np.uint8, high - low, low)
    every = np.ndarray((high - low + 1,), np.dtype("<u8"), padded.data, strides=(1,))
    left = np.minimum(np.repeat(lengths, counts) - at, np.int64(8)).astype(np.uint64)
    kept = ~np.uint64(0) >> (np.uint64(64) - left * np.uint64(8))
    words: Words = every[np.repeat(starts - low, counts) + at] & kept
    return words


def _positions(counts: Ints) -> Ints:
    """Return 0, 1, … for each value's words."""
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1]) if len(ends) else 0, dtype=np.int64) - np.repeat(ends - counts, counts)


def _chain(words: Words, counts: Ints, lengths: Ints) -> Words:
    mixed = _mix(words + _G * (_positions(counts) + 1).astype(np.uint64))
    sums = np.zeros(len(mixed) + 1, np.uint64)
    np.cumsum(mixed, out=sums[1:])
    ends = np.cumsum(counts)
    return _mix(lengths.astype(np.uint64) + sums[ends] - sums[ends - counts])
