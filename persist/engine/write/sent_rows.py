"""Rows that are sent to another client: one record batch of Arrow, without schema and compression.

The receiver checks the head of sent rows first, before Arrow allocates anything. A compressed batch of kilobytes could
become gigabytes, and so could a batch whose columns claim to be longer than their bytes, or share bytes. The head is a
flatbuffer (Message.fbs of Arrow, version 1.0):

    0xFFFFFFFF, length of the head (int32), head, body
    head         = offset of a Message
    Message      = {0: version, 1: kind of its header (uint8; 3 is a record batch), 2: header, …}
    RecordBatch  = {0: rows (int64), 1: columns, nested ones too, each (length int64, NULLs int64), 2: buffers,
                    3: compression, …}
    a table      = offset back to its (bytes, bytes of the table, offset of field 0, 1, …; 0 where there is none)
"""

import struct
from collections.abc import Sequence

import pyarrow as pa

from persist.codecs.types.schema import CollectionSchema
from persist.codecs.updates.updates import to_updates

RECORD_BATCH = 3
ROW_BYTES_MIN = 16  # Each row has a time and a diff of 8 bytes.
VALUES_PER_BYTE_MAX = 8  # No value has less than a bit.


def encode_rows(table: pa.Table) -> bytes:
    """Encode the rows of a table for sending."""
    (batch,) = table.combine_chunks().to_batches()
    data: bytes = batch.serialize().to_pybytes()
    return data


def check_sent_rows(data: bytes) -> None:
    """Raise ValueError if rows would take more memory than they have bytes. Cost: their head is read."""
    try:
        rows, lengths, buffers, is_compressed = _read_head(data)
    except (struct.error, ValueError) as error:
        raise ValueError(f"its rows are not an Arrow record batch: {error}") from error
    if is_compressed:
        raise ValueError("its rows are compressed: send a record batch without compression")
    if not 0 <= rows * ROW_BYTES_MIN <= len(data):
        raise ValueError(f"it claims {rows:,} rows, which {len(data):,} bytes cannot hold")
    if min(buffers, default=0) < 0 or sum(buffers) > len(data):
        raise ValueError(f"its columns share bytes: they claim {sum(buffers):,} of {len(data):,} bytes")
    if not all(0 <= length <= VALUES_PER_BYTE_MAX * len(data) for length in lengths):
        raise ValueError(f"a column claims more values than {len(data):,} bytes can hold")


def decode_rows(data: bytes, schema: CollectionSchema) -> pa.Table:
    """Decode sent rows, and check them like a user's. Raises ValueError or InvalidUsage."""
    check_sent_rows(data)
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(data), schema.arrow)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, EOFError) as error:
        raise ValueError(f"its rows are not a batch of the collection's schema: {error}") from error
    return to_updates(pa.Table.from_batches([batch]), schema)


def _read_head(data: bytes) -> tuple[int, Sequence[int], Sequence[int], bool]:
    """Return how many rows there are, the lengths of columns and of buffers, and whether these are compressed."""
    mark, length = struct.unpack_from("<Ii", data)
    if mark != 0xFFFFFFFF or not 0 < length <= len(data) - 8:
        raise ValueError("it has no head")
    head = data[8 : 8 + length]
    message = _follow_offset(head, 0)
    kind = _find_field(head, message, 1)
    if kind is None or head[kind] != RECORD_BATCH:
        raise ValueError("it is not a record batch")
    batch = _follow_offset(head, _require_place(_find_field(head, message, 2)))
    (rows,) = struct.unpack_from("<q", head, field) if (field := _find_field(head, batch, 0)) is not None else (0,)
    lengths = _read_pairs(head, _require_place(_find_field(head, batch, 1)))[::2]
    buffers = _read_pairs(head, _require_place(_find_field(head, batch, 2)))[1::2]
    return rows, lengths, buffers, _find_field(head, batch, 3) is not None


def _read_pairs(head: bytes, place: int) -> Sequence[int]:
    """Return the numbers of a flatbuffer vector of int64 pairs, one after the other."""
    vector = _follow_offset(head, place)
    (count,) = struct.unpack_from("<I", head, vector)
    if count * 16 > len(head):
        raise ValueError("its head is cut off")
    return struct.unpack_from(f"<{2 * count}q", head, vector + 4)


def _follow_offset(head: bytes, place: int) -> int:
    """Return the place to which the flatbuffer offset at a place points."""
    (offset,) = struct.unpack_from("<I", head, place)
    return int(place + offset)


def _find_field(head: bytes, table: int, number: int) -> int | None:
    """Return the place of a field of a flatbuffer table; None if the table lacks it."""
    (back,) = struct.unpack_from("<i", head, table)
    fields = table - back
    if not 0 <= fields <= len(head):
        raise ValueError("its head is damaged")
    (size,) = struct.unpack_from("<H", head, fields)
    entry = 4 + 2 * number
    (offset,) = struct.unpack_from("<H", head, fields + entry) if entry + 2 <= size else (0,)
    place = table + offset if offset else None
    if place is not None and place >= len(head):
        raise ValueError("its head is damaged")
    return place


def _require_place(place: int | None) -> int:
    """Return the place of a field. Raises ValueError if the head lacks it."""
    if place is None:
        raise ValueError("its head lacks a field")
    return place
