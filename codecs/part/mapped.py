"""Decoded rows as a file that can be mapped: only the used chunks are read and verified.

    mapped =
        8 bytes   b"prows01\n"
        16 bytes  xxh3_128 of the head
        8 bytes   length of the head, little-endian
        head      4 bytes length of the name, the name; 8 bytes length of the message, 8 bytes its xxh3_64; for each
                  `CHUNK_BYTES` of the message 8 bytes, their xxh3_64. All integers are little-endian
        zeros     to a multiple of 64, for Arrow's buffers
        message   an encapsulated Arrow IPC message: a RecordBatch, not compressed and without a schema; the file's end

Such a file is a copy that may be lost. The name identifies the source of the copy, and thereby its schema. If a
checksum or the name does not match, the file is ignored (`ValueError`), and the rows are decoded again. A chunk is
checked before its first row is used, once for each mapping: a named file is never written to again.

Rejected: one checksum for all (a look-up of some keys would read every byte), Arrow's IPC file format (its footer
repeats the name, and is parsed before any check is possible), compression (it cannot be mapped).
"""

import struct

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat
import xxhash

from persist.codecs.types.arrow_types import is_flat, is_text

CHUNK_BYTES = 4096
_MAGIC = b"prows01\n"
_PREFACE = struct.Struct("<8s16sQ")
_NAME, _LENGTHS = struct.Struct("<I"), struct.Struct("<QQ")
_MESSAGE_PREFIX = struct.Struct("<Ii")
_ALIGNMENT = 64

Rows = npt.NDArray[np.int64]


def encode_mapped_file(batch: pa.RecordBatch, name: bytes) -> list[bytes | memoryview]:
    """Encode rows as a file for memory mapping; return its pieces. Cost: one copy, and checksums."""
    message = memoryview(batch.serialize())
    starts = range(0, len(message), CHUNK_BYTES)
    checksums = [xxhash.xxh3_64_intdigest(message[at : at + CHUNK_BYTES]) for at in starts]
    head = b"".join(
        [
            _NAME.pack(len(name)),
            name,
            _LENGTHS.pack(len(message), xxhash.xxh3_64_intdigest(message)),
            np.array(checksums, "<u8").tobytes(),
        ]
    )
    preface = _PREFACE.pack(_MAGIC, xxhash.xxh3_128_digest(head), len(head))
    return [preface + head + bytes(-(len(preface) + len(head)) % _ALIGNMENT), message]


class MappedRows:
    """The rows of a memory-mapped file, verified by reads. Safe for threads.

    Attributes:
        batch: the rows. Callers must call `verify_rows` before they read any of them.
        nbytes: the length of the file.
    """

    def __init__(self, file: pa.Buffer, name: bytes, schema: pa.Schema, rows: int) -> None:
        """Open the bytes of a file that should have so many rows of a schema under a name.

        Cost: reading the head.

        Raises ValueError, pa.ArrowException, OSError: it is another file, or damaged.
        """
        self.nbytes = int(file.size)
        data = memoryview(file)
        if len(data) < _PREFACE.size:
            raise ValueError("it is shorter than its first fields")
        magic, digest, length = _PREFACE.unpack_from(data)
        head = data[_PREFACE.size : _PREFACE.size + length]
        if magic != _MAGIC or len(head) != length or xxhash.xxh3_128_digest(head) != digest:
            raise ValueError("its head does not match its checksum")
        at = _NAME.size + len(name)
        if bytes(head[:at]) != _NAME.pack(len(name)) + name:
            raise ValueError("it is a copy of the rows of another source")
        size, self._whole = _LENGTHS.unpack_from(head, at)
        start = -(-(_PREFACE.size + length) // _ALIGNMENT) * _ALIGNMENT
        if any(data[_PREFACE.size + length : start]):
            raise ValueError("the bytes between its head and its message are not zero")
        self._message = data[start:]
        if len(self._message) != size:
            raise ValueError(f"it ends after {len(self._message)} of {size} bytes")
        self._checksums = np.frombuffer(head[at + _LENGTHS.size :], "<u8").tolist()
        self._is_checked = np.zeros(len(self._checksums), np.bool_)
        self._is_whole = False
        self._address = int(file.address) + start
        self._verify_chunks(0, 1)
        _, header = _MESSAGE_PREFIX.unpack_from(self._message)
        self._verify_chunks(1, min(-(-(_MESSAGE_PREFIX.size + header) // CHUNK_BYTES), len(self._checksums)))
        self.batch: pa.RecordBatch = pa.ipc.read_record_batch(file.slice(start), schema)
        if self.batch.num_rows != rows:
            raise ValueError(f"it has {self.batch.num_rows} rows instead of {rows}")

    def verify_rows(self, rows: Rows | None) -> None:
        """Verify the chunks that hold some rows; None means all rows.

        Cost: about 1 µs for each of their chunks that was not verified before.
        """
        if self._is_whole:
            return
        if rows is None:
            if xxhash.xxh3_64_intdigest(self._message) != self._whole:
                raise ValueError("its rows do not match their checksum")
            self._is_whole = True
            return
        if not len(rows):
            return
        marks = np.zeros(len(self._checksums) + 1, np.int64)
        for column in self.batch.columns:
            self._mark_rows(marks, column, rows)
        for chunk in np.flatnonzero((np.cumsum(marks[:-1]) > 0) & ~self._is_checked).tolist():
            self._verify_chunks(chunk, chunk + 1)

    @property
    def message_bytes(self) -> int:
        """The length of the message at the end of the file."""
        return len(self._message)

    def list_unchecked(self) -> list[int]:
        """Return the numbers of the chunks that are not verified yet."""
        return [] if self._is_whole else np.flatnonzero(~self._is_checked).tolist()

    def _verify_chunks(self, first: int, end: int) -> None:
        """Raise ValueError unless these chunks match their checksums."""
        for chunk in range(first, end):
            data = self._message[chunk * CHUNK_BYTES : (chunk + 1) * CHUNK_BYTES]
            if xxhash.xxh3_64_intdigest(data) != self._checksums[chunk]:
                raise ValueError(f"its bytes from {chunk * CHUNK_BYTES} on do not match their checksum")
            self._is_checked[chunk] = True

    def _mark_rows(self, marks: Rows, column: pa.Array, rows: Rows) -> None:
        """Add +1 where chunks of some rows begin, -1 after they end."""
        kind, rows = column.type, rows + column.offset
        buffers = column.buffers()
        if not is_text(kind) and not _has_whole_bytes(kind):
            for buffer in buffers:
                if buffer is not None and buffer.size:
                    self._mark_bytes(marks, buffer, np.zeros(1, np.int64), np.array([buffer.size], np.int64))
            return
        if buffers[0] is not None:
            self._mark_bytes(marks, buffers[0], rows >> 3, (rows >> 3) + 1)
        if not is_text(kind):
            width = kind.bit_width // 8
            self._mark_bytes(marks, buffers[1], rows * width, (rows + 1) * width)
            return
        width = 8 if pat.is_large_string(kind) or pat.is_large_binary(kind) else 4
        self._mark_bytes(marks, buffers[1], rows * width, (rows + 2) * width)
        for chunk in np.flatnonzero((np.cumsum(marks[:-1]) > 0) & ~self._is_checked).tolist():
            self._verify_chunks(chunk, chunk + 1)  # The offsets of the values are already used here.
        ends = np.frombuffer(buffers[1], f"<i{width}", len(column) + column.offset + 1)
        if buffers[2] is not None:
            self._mark_bytes(marks, buffers[2], ends[rows].astype(np.int64), ends[rows + 1].astype(np.int64))

    def _mark_bytes(self, marks: Rows, buffer: pa.Buffer, starts: Rows, ends: Rows) -> None:
        """Mark the chunks that hold ranges of a buffer, as `_mark_rows`."""
        some = ends > starts
        at = int(buffer.address) - self._address
        np.add.at(marks, (starts[some] + at) // CHUNK_BYTES, np.int64(1))
        np.add.at(marks, (ends[some] + at - 1) // CHUNK_BYTES + 1, np.int64(-1))


def _has_whole_bytes(kind: pa.DataType) -> bool:
    """Return whether values have a fixed number of whole bytes in one buffer."""
    is_fixed = pat.is_primitive(kind) or pat.is_decimal(kind) or pat.is_fixed_size_binary(kind)
    return is_flat(kind) and is_fixed and not pat.is_boolean(kind)
