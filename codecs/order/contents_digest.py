"""A digest of contents: the same for equal contents, in whatever order, batches and parts they come.

The digest is a sum over records, each as often as its multiplicity, of two 64-bit hashes of the record, modulo 2^64.
So it is linear in the diffs: updates that are not consolidated have the digest of what they consolidate to, nothing is
sorted, and memory is that of one batch. All arithmetic is modulo 2^64, `^` is exclusive or, `>>` shifts in zeros, and
`mix` is the finalizer of SplitMix64:

    mix(x)          x ^= x >> 30;  x *= 0xBF58476D1CE4E5B9;  x ^= x >> 27;  x *= 0x94D049BB133111EB;  x ^= x >> 31
    chain(h, x)     mix((h ^ x) + 0x9E3779B97F4A7C15)
    bytes(h, b)     h = chain(h, length of b), then chain with each 8 bytes of b as a little-endian integer, the
                    last ones padded with zeros
    start(lane)     mix(lane), for the lanes 1 and 2
    seed(column)    bytes(start(lane), UTF-8 of the column's name)

    value(h, NULL)      chain(h, 0)
    value(h, flat)      chain(chain(h, 1), number), or bytes(chain(h, 1), the bytes)
    value(h, nested)    of a struct: chain(h, 1), then value with each field in its order
                        of a list of any kind: chain(chain(h, 1), length), then value with each element; of a map, the
                        key and the value of each entry

    record          the sum over columns of mix(value(seed(column), the column's value))
    digest          for each lane, the sum over records of multiplicity * mix(record), as 16 hexadecimal digits; lane 1
                    first

The number of a flat value is: of a boolean 0 or 1; of an integer, date, time, timestamp or duration what Arrow stores,
modulo 2^64 (dates of either type as days); of a float of any width the bits of the equal float64. Strings and binary
of any width are their bytes. A decimal is bytes: those of the integer that Arrow stores, 32 of them, little-endian in
two's complement. So a digest does not depend on the order of columns, nor on widths, and -0.0 and NaN have one form.

It tells what differs by mistake, and is no defence against somebody who makes up contents to have a certain digest.

Rejected: a cryptographic hash of the sorted records (sorting needs all of the contents at once, and so would the order
of columns); xxHash of each record (no library hashes the rows of columns without a call for each row).
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from persist.codecs.order.arrays import int64_values
from persist.codecs.order.ordering import canonical, combined
from persist.codecs.types.arrow_types import children, is_flat, is_text

Words = npt.NDArray[np.uint64]

LANES = (1, 2)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_MODULUS = 2**64
_ROWS_MAX = 1 << 16  # So many at a time: what is worked on stays in the processor's caches.


class Digest:
    """Gathers the digest of contents from tables of them; columns are told apart by name, so their order is free."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = list(columns)
        self._lanes = [0 for _ in LANES]

    def add(self, table: pa.Table) -> None:
        """Add the rows of a table with these columns; with a column `_diff`, each as often as it says."""
        for start in range(0, table.num_rows, _ROWS_MAX):
            piece = table.slice(start, _ROWS_MAX)
            counts = int64_values(combined(piece["_diff"])).view(np.uint64) if "_diff" in table.column_names else None
            columns = canonical(piece.select(self._columns))
            arrays = [combined(column) for column in columns.columns]
            for number, lane in enumerate(LANES):
                records = np.zeros(piece.num_rows, np.uint64)
                for name, array in zip(self._columns, arrays, strict=True):
                    records += _mixed(_hashed(_seeds(lane, name, len(array)), array))
                hashes = _mixed(records)
                total = hashes.sum(dtype=np.uint64) if counts is None else (hashes * counts).sum(dtype=np.uint64)
                self._lanes[number] = (self._lanes[number] + int(total)) % _MODULUS

    def text(self) -> str:
        """Return the digest of what was added so far: 32 hexadecimal digits."""
        return "".join(f"{lane:016x}" for lane in self._lanes)


def digest_of(tables: Iterable[pa.Table], columns: Sequence[str]) -> str:
    """Return the digest of contents that come in tables."""
    digest = Digest(columns)
    for table in tables:
        digest.add(table)
    return digest.text()


def _seeds(lane: int, name: str, rows: int) -> Words:
    start = _mixed(np.array([lane], np.uint64))
    return np.repeat(_with_bytes(start, pa.array([name.encode()], pa.large_binary())), rows)


def _mixed(values: Words) -> Words:
    values = values ^ (values >> np.uint64(30))
    values *= _FIRST
    values ^= values >> np.uint64(27)
    values *= _SECOND
    values ^= values >> np.uint64(31)
    return values


def _chained(hashes: Words, words: Words) -> Words:
    return _mixed((hashes ^ words) + _GOLDEN)


def _hashed(hashes: Words, array: pa.Array) -> Words:
    """Return `value(h, v)` for each h and v."""
    valid = np.ones(len(array), bool) if not array.null_count else np.asarray(array.is_valid())
    found = _chained(hashes, valid.astype(np.uint64))
    if not valid.all():
        rows = np.flatnonzero(valid)
        if len(rows):
            found[rows] = _present(found[rows], array.take(pa.array(rows)))
        return found
    return _present(found, array) if len(array) else found


def _present(hashes: Words, array: pa.Array) -> Words:
    """Return the same for values of which none is NULL, after the 1 that says so."""
    kind = array.type
    if pt.is_struct(kind):
        for inner in array.flatten():
            hashes = _hashed(hashes, inner)
        return hashes
    if not is_flat(kind):
        return _elements(hashes, array)
    if pt.is_decimal(kind) or pt.is_fixed_size_binary(kind) or is_text(kind):
        return _with_bytes(hashes, _as_binary(array))
    return _chained(hashes, _numbers(array))


def _elements(hashes: Words, array: pa.Array) -> Words:
    """Return the same for lists and maps: element by element, for all lists that have so many."""
    kind = array.type
    if pt.is_map(kind):
        pairs = pa.struct([pa.field(f.name, f.type) for f in children(kind)])
        array = array.cast(pa.list_(pairs))
    elif pt.is_fixed_size_list(kind):
        array = array.cast(pa.list_(kind.value_type))
    inner = array.flatten()
    is_map = pt.is_map(kind)
    lengths = np.asarray(pc.list_value_length(array)).astype(np.int64)
    starts = np.cumsum(lengths) - lengths
    hashes = _chained(hashes, lengths.view(np.uint64))
    for at in range(_most(lengths)):
        rows = np.flatnonzero(lengths > at)
        taken = inner.take(pa.array(starts[rows] + at))
        for each in taken.flatten() if is_map else [taken]:
            hashes[rows] = _hashed(hashes[rows], each)
    return hashes


def _numbers(array: pa.Array) -> Words:
    kind = array.type
    if pt.is_boolean(kind):
        return np.asarray(array.cast(pa.uint8())).astype(np.uint64)
    if pt.is_floating(kind):
        return np.asarray(array).astype(np.float64).view(np.uint64)
    if pt.is_date64(kind):
        array, kind = array.cast(pa.date32()), pa.date32()
    if pt.is_temporal(kind):
        array = array.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    values = np.asarray(array)
    return values.astype(np.uint64 if values.dtype.kind == "u" else np.int64).view(np.uint64)


def _as_binary(array: pa.Array) -> pa.Array:
    kind = array.type
    if pt.is_decimal(kind):
        wide = array.cast(pa.decimal256(76, kind.scale)) if pt.is_decimal128(kind) else array
        stored = pa.Array.from_buffers(pa.binary(32), len(wide), [None, wide.buffers()[1]], offset=wide.offset)
        return stored.cast(pa.binary()).cast(pa.large_binary())
    if pt.is_fixed_size_binary(kind):
        array = array.cast(pa.binary())
    elif pt.is_string(kind) or pt.is_large_string(kind):
        array = array.cast(pa.large_string())
    return array.cast(pa.large_binary())


def _with_bytes(hashes: Words, array: pa.Array) -> Words:
    """Return `bytes(h, b)` for each h and b; cost: a pass for each 8 bytes of the longest, over those as long."""
    offsets = np.frombuffer(array.buffers()[1], np.int64, len(array) + 1, array.offset * 8)
    lengths = offsets[1:] - offsets[:-1]
    found = _chained(hashes, lengths.astype(np.uint64))
    data = array.buffers()[2]
    stored = np.frombuffer(data if data is not None else b"", np.uint8)
    stored = np.concatenate([stored[offsets[0] : offsets[-1]], np.zeros(8, np.uint8)])
    order = np.argsort(-lengths, kind="stable")  # The rows that are still going on are then the first ones.
    begins, ends, going = (offsets[:-1] - offsets[0])[order], lengths[order], found[order]
    descending: npt.NDArray[np.int64] = -ends
    for at in range(0, _most(lengths), 8):
        count = int(np.searchsorted(descending, np.int64(-at)))  # Those with more than `at` bytes.
        words = stored[begins[:count, None] + np.arange(at, at + 8)] if count else np.zeros((0, 8), np.uint8)
        past = np.arange(at, at + 8) >= ends[:count, None]
        words = np.where(past, np.uint8(0), words)
        going[:count] = _chained(going[:count], np.ascontiguousarray(words).view("<u8").reshape(count))
    found[order] = going
    return found


def _most(lengths: npt.NDArray[np.int64]) -> int:
    return int(lengths.max()) if len(lengths) else 0
