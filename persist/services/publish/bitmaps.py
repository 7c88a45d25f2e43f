"""Row numbers as Delta's deletion vectors: 64-bit Roaring bitmaps, in the form that the Delta protocol calls portable.

    vector     = magic u32 = 1681511377, buckets u64, { high 32 bits u32, bitmap }*   little-endian
    bitmap     = cookie u32 = 12346, containers u32, { high 16 bits u16, rows less 1 u16 }*, { offset u32 }*, container*
    container  = up to 4,096 rows: their low 16 bits u16 each; more: 65,536 bits

Sources: the Delta protocol, "Deletion Vector Format", and the Roaring bitmaps' RoaringFormatSpec. Run containers are
not written, and so not read: what is read here was written here.

A blob of vectors has a version byte, 1, then for each of them its length u32, its bytes and their CRC-32, both
big-endian. `Deletes.start` of a vector is the position of its length.
"""

import struct
import zlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from persist.blob.errors import CorruptBlob

Rows = npt.NDArray[np.int64]
MAGIC, COOKIE = 1681511377, 12346
ARRAY_MAX = 4096
VERSION = b"\x01"


def encoded_rows(rows: Rows) -> bytes:
    """Return ascending, distinct row numbers as a vector. Cost: a pass over them."""
    buckets = list(_groups(rows, rows >> 32))
    out = [struct.pack("<IQ", MAGIC, len(buckets))]
    for high, within in buckets:
        out += [struct.pack("<I", high), _bitmap(within & 0xFFFFFFFF)]
    return b"".join(out)


def decoded_rows(vector: bytes, name: str) -> Rows:
    """Return the row numbers of a vector that `encoded_rows` made.

    Raises:
        CorruptBlob: it is none.
    """
    try:
        magic, buckets = struct.unpack_from("<IQ", vector)
        if magic != MAGIC:
            raise ValueError("it does not begin as a vector does")
        at, pieces = 12, []
        for _ in range(buckets):
            (high,) = struct.unpack_from("<I", vector, at)
            rows, at = _decode_bitmap(vector, at + 4)
            pieces.append(rows | high << 32)
        return np.concatenate(pieces) if pieces else np.zeros(0, np.int64)
    except (ValueError, struct.error) as error:
        raise CorruptBlob(name, f"it holds no deletion vector as this library writes them: {error}") from error


def frame_vector(vector: bytes) -> bytes:
    """Return a vector with its length and checksum, as a blob of vectors contains it."""
    return struct.pack(">I", len(vector)) + vector + struct.pack(">I", zlib.crc32(vector))


def unframe_vector(data: bytes, name: str) -> bytes:
    """Return the vector at the beginning of frame_vector data.

    Raises:
        CorruptBlob: the checksum differs.
    """
    size = int.from_bytes(data[:4], "big")
    vector = data[4 : 4 + size]
    if len(data) < size + 8 or zlib.crc32(vector) != int.from_bytes(data[4 + size : 8 + size], "big"):
        raise CorruptBlob(name, "the checksum of a deletion vector in it is another one")
    return vector


def _groups(rows: Rows, keys: Rows) -> Iterator[tuple[int, Rows]]:
    """Yield the rows of each key; keys ascend."""
    if not len(rows):
        return
    starts = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
    for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
        yield int(keys[start]), rows[start:end]


def _bitmap(rows: Rows) -> bytes:
    containers = list(_groups(rows, rows >> 16))
    heads = b"".join(struct.pack("<HH", high, len(within) - 1) for high, within in containers)
    bodies = [_container(within & 0xFFFF) for _, within in containers]
    first = 8 + len(heads) + 4 * len(bodies)
    offsets = np.cumsum([first, *map(len, bodies)])[:-1].astype("<u4").tobytes()
    return struct.pack("<II", COOKIE, len(bodies)) + heads + offsets + b"".join(bodies)


def _container(low: Rows) -> bytes:
    if len(low) <= ARRAY_MAX:
        return low.astype("<u2").tobytes()
    bits = np.zeros(1 << 16, np.uint8)
    bits[low] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def _decode_bitmap(vector: bytes, at: int) -> tuple[Rows, int]:
    """Return the rows of the bitmap at a place, and where it ends."""
    cookie, containers = struct.unpack_from("<II", vector, at)
    if cookie != COOKIE:
        raise ValueError(f"it has a bitmap of the kind {cookie}")
    # For each container: the upper bits of its rows, and their number less one. Offsets, which follow, are not needed.
    heads = np.frombuffer(vector, "<u2", 2 * containers, at + 8).reshape(-1, 2).astype(np.int64)
    at += 8 + 8 * containers
    pieces = []
    for high, last in heads:
        if last < ARRAY_MAX:
            low = np.frombuffer(vector, "<u2", last + 1, at).astype(np.int64)
            at += 2 * (last + 1)
        else:
            bits = np.unpackbits(np.frombuffer(vector, np.uint8, 1 << 13, at), bitorder="little")
            low = np.flatnonzero(bits).astype(np.int64)
            at += 1 << 13
        pieces.append(low | high << 16)
    return np.concatenate(pieces) if pieces else np.zeros(0, np.int64), at
