"""Encodes row numbers as Delta's deletion vectors: 64-bit Roaring bitmaps in the "portable" form.

    vector = magic u32 = 1681511377, little-endian, and the bitmap as pyroaring writes it, without run containers

Sources: the Delta protocol, "Deletion Vector Format", and the Roaring bitmaps' RoaringFormatSpec.

A blob of vectors has a version byte, 1, then for each vector its length u32, its bytes and their CRC-32; numbers are
big-endian. `Deletes.start` of a vector is the position of its length.
"""

import struct
import zlib
from array import array
from typing import Any

import numpy as np
import numpy.typing as npt

from persist.blob.errors import CorruptBlob
from persist.engine.read.results.result import require_package

Rows = npt.NDArray[np.int64]
MAGIC = struct.pack("<I", 1681511377)
VERSION = b"\x01"


def _bitmap64() -> Any:
    """Return pyroaring's class `BitMap64`; raise InvalidUsage if the package is missing."""
    return require_package("pyroaring>=1.0").BitMap64


def encode_rows(rows: Rows) -> bytes:
    """Return row numbers as a deletion vector."""
    bitmap: bytes = _bitmap64()(array("Q", rows.tobytes()), optimize=False).serialize()
    return MAGIC + bitmap


def decode_rows(vector: bytes, name: str) -> Rows:
    """Return the row numbers of a deletion vector. Raises CorruptBlob: the bytes are not a vector."""
    try:
        if not vector.startswith(MAGIC):
            raise ValueError("it does not begin as a vector does")
        return np.array(_bitmap64().deserialize(vector[len(MAGIC) :]).to_array(), np.int64)
    except (ValueError, IndexError) as error:
        raise CorruptBlob(name, f"it holds no deletion vector as this library writes them: {error}") from error


def frame_vector(vector: bytes) -> bytes:
    """Return a vector between its length and its checksum, as in a blob."""
    return struct.pack(">I", len(vector)) + vector + struct.pack(">I", zlib.crc32(vector))


def unframe_vector(data: bytes, name: str) -> bytes:
    """Return the first vector of a blob. Raises CorruptBlob: the checksum differs."""
    size = int.from_bytes(data[:4], "big")
    vector = data[4 : 4 + size]
    if data[4 + size : 8 + size] != struct.pack(">I", zlib.crc32(vector)):
        raise CorruptBlob(name, "the checksum of a deletion vector in it is wrong")
    return vector
