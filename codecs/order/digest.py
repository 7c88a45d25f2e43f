"""A digest of updates or contents that ignores order, batches, parts, widths and unconsolidated diffs.

`docs/inside/format.md` defines it ("Digests"); the names below are from its formulas. Each row's hash is multiplied by
its diff, so consolidation does not change the digest, and the digests of batches add up. Nothing is sorted, and memory
suffices for 64 Ki rows. Contents use two sums with different seeds (lanes), 128 bits; a write with a token stores the
first. The digest detects accidental differences; it does not protect against contents that imitate a digest.

Cost: 10 to 20 ns for each value of up to 64 bits and lane, 70 ns for a short text. Rejected: checksums of parts, which
depend on how rows were split into parts; a cryptographic hash of the sorted records, which needs all of the contents at
once; xxh3 of each row, which would be a Python loop.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt
import xxhash

from persist.codecs.order.arrays import get_boolean_values, get_byte_ranges, get_int64_values, get_stored_numbers
from persist.codecs.order.ordering import combine_chunks, make_canonical
from persist.codecs.types.arrow_types import list_inner_fields
from persist.codecs.types.schema import DIFF

Words: TypeAlias = npt.NDArray[np.uint64]
Ints: TypeAlias = npt.NDArray[np.int64]

DIGEST_MODULUS = 1 << 64
_LANES = (1, 2)
_ROWS_AT_ONCE = 64 * 1024  # This many rows stay in the processor's caches.
_DAY_MS = 86_400_000
_G = np.uint64(0x9E3779B97F4A7C15)
_A = np.uint64(0xBF58476D1CE4E5B9)
_B = np.uint64(0x94D049BB133111EB)
_NULL = np.uint64(0xD6E8FEB86659FD93)


class Digest:
    """Adds up a digest that ignores the order of rows and columns."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = list(columns)
        self._lanes = [0 for _ in _LANES]

    def add(self, table: pa.Table) -> None:
        """Add the rows of a table with these columns; `_diff`, if present, is their multiplicity."""
        sums = _sum_row_hashes(table, self._columns, _LANES)
        self._lanes = [(lane + more) % DIGEST_MODULUS for lane, more in zip(self._lanes, sums, strict=True)]

    def format_text(self) -> str:
        """Return the digest of all added rows: 32 hexadecimal digits."""
        return "".join(f"{lane:016x}" for lane in self._lanes)


def compute_digest(table: pa.Table, columns: Sequence[str]) -> int:
    """Return a 64-bit digest of updates, by some columns and `_diff`."""
    return _sum_row_hashes(table, columns, _LANES[:1])[0]


def hash_rows(table: pa.Table, columns: Sequence[str]) -> Words:
    """Return a hash of each row by some columns, in their order: equal for equal values, in every process.

    NULL equals NULL, NaN equals NaN, 0.0 equals -0.0, and a whole number has one hash in all widths. `uint64[n]`.
    """
    key = _mix_bits(np.array(_LANES[:1], np.uint64))[0]
    hashes = np.full(len(table), key)
    for column in make_canonical(table.select([*columns])).columns:
        hashes = _mix_bits(hashes + _hash_values(combine_chunks(column), key))
    return hashes


def hash_text(text: str) -> int:
    """Return the xxh3_64 hash of a text's UTF-8."""
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))


def _sum_row_hashes(table: pa.Table, columns: Sequence[str], lanes: Sequence[int]) -> list[int]:
    """Return for each hash seed (lane) the sum of rows' hashes."""
    keys = _mix_bits(np.array(lanes, np.uint64))
    names = [pa.array([name.encode()], pa.binary()) for name in columns]
    sums = [0 for _ in lanes]
    for start in range(0, len(table), _ROWS_AT_ONCE):
        rows = table.slice(start, _ROWS_AT_ONCE)
        columns_of_rows = [combine_chunks(column) for column in make_canonical(rows.select([*columns])).columns]
        diffs = (
            get_int64_values(combine_chunks(rows[DIFF])).view(np.uint64) if DIFF in table.column_names else np.uint64(1)
        )
        for lane, key in enumerate(keys):
            records = np.full(len(rows), key)
            for name, array in zip(names, columns_of_rows, strict=True):
                records += _mix_bits(_hash_values(name, key) ^ _hash_values(array, key))
            sums[lane] += int(np.sum(_mix_bits(records) * diffs, dtype=np.uint64))
    return [total % DIGEST_MODULUS for total in sums]


def _mix_bits(x: Words) -> Words:
    """Return a bijective hash of 64-bit integers."""
    x = (x ^ (x >> np.uint64(30))) * _A
    x = (x ^ (x >> np.uint64(27))) * _B
    return x ^ (x >> np.uint64(31))


def _hash_values(array: pa.Array, key: np.uint64) -> Words:
    """Return a 64-bit hash of each value; NULL has its own."""
    words = _hash_values_except_nulls(array, key)
    if array.null_count:
        words = np.where(get_boolean_values(array.is_null()), _NULL, words)
    return words


def _hash_values_except_nulls(array: pa.Array, key: np.uint64) -> Words:
    """Return a hash of each value; hashes of NULLs are arbitrary."""
    kind = array.type
    if not len(array) or pt.is_null(kind):
        return np.zeros(len(array), np.uint64)
    if pt.is_boolean(kind):
        return get_boolean_values(array.fill_null(False)).astype(np.uint64)
    if pt.is_struct(kind):
        hashes = np.full(len(array), key)
        for field in array.flatten():
            hashes = _mix_bits((hashes + _G) ^ _hash_values(field, key))
        return hashes
    if pt.is_map(kind):
        return _hash_lists(
            array.cast(pa.list_(pa.struct([pa.field(f.name, f.type) for f in list_inner_fields(kind)]))), key
        )
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return _hash_lists(array, key)
    if pt.is_decimal(kind):
        width = array.type.bit_width // 8
        values = get_stored_numbers(array, f"i{min(width, 8)}").reshape(len(array), -1).astype(np.int64)
        signs = np.repeat(values[:, -1:] >> 63, 4 - values.shape[1], axis=1)
        words = np.concatenate([values, signs], axis=1).view(np.uint64)
        return _chain_words(words.reshape(-1), np.full(len(array), 4), np.full(len(array), 32), key)
    is_number = pt.is_integer(kind) or pt.is_floating(kind) or pt.is_temporal(kind)
    return _widen_numbers(array) if is_number else _hash_bytes(array, key)


def _widen_numbers(array: pa.Array) -> Words:
    """Return fixed-width values as 64-bit integers."""
    kind, values = array.type, get_stored_numbers(array)
    if pt.is_date64(kind):
        values = values // _DAY_MS
    words: Words = values.astype(f"{values.dtype.kind}8").view(np.uint64)
    return words


def _hash_lists(array: pa.Array, key: np.uint64) -> Words:
    """Return a hash of each list, from the hashes of its elements."""
    lengths = get_int64_values(array.value_lengths().fill_null(0).cast(pa.int64()))
    return _chain_words(_hash_values(array.flatten(), key), lengths, lengths, key)


def _hash_bytes(array: pa.Array, key: np.uint64) -> Words:
    """Return a hash of each text or binary value."""
    starts, lengths, data = get_byte_ranges(array)
    counts = (lengths + 7) >> 3
    return _chain_words(_split_into_words(data, starts, lengths, counts), counts, lengths, key)


def _split_into_words(data: npt.NDArray[np.uint8], starts: Ints, lengths: Ints, counts: Ints) -> Words:
    """Split the bytes of values into 64-bit integers, padded with zeros."""
    at = _number_words(counts) << 3
    if not len(at):
        return np.zeros(len(at), np.uint64)
    low, high = int(starts.min()), int((starts + lengths).max())
    padded = np.zeros(high - low + 8, np.uint8)
    padded[: high - low] = data[low:high]
    every = np.ndarray((high - low + 1,), np.dtype("<u8"), padded.data, strides=(1,))
    remaining = np.minimum(np.repeat(lengths, counts) - at, np.int64(8)).astype(np.uint64)
    mask = ~np.uint64(0) >> (np.uint64(64) - remaining * np.uint64(8))
    words: Words = every[np.repeat(starts - low, counts) + at] & mask
    return words


def _number_words(counts: Ints) -> Ints:
    """Return 0, 1, … for the 64-bit pieces of each value."""
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1]) if len(ends) else 0, dtype=np.int64) - np.repeat(ends - counts, counts)


def _chain_words(words: Words, counts: Ints, lengths: Ints, key: np.uint64) -> Words:
    """Hash each value from its pieces; `counts`: how many each value has."""
    mixed = _mix_bits((key ^ words) + _G * (_number_words(counts) + 1).astype(np.uint64))
    sums = np.zeros(len(mixed) + 1, np.uint64)
    np.cumsum(mixed, out=sums[1:])
    ends = np.cumsum(counts)
    return _mix_bits(key + lengths.astype(np.uint64) + sums[ends] - sums[ends - counts])
