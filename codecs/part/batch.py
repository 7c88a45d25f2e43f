"""A few updates as one Arrow record batch: the form of a tiny part that lives inside a record of the log.

    batch = one encapsulated Arrow IPC message: a RecordBatch of metadata version 5, its columns those of a part in
            their order, not compressed and without a schema, which is the collection's; nothing before or after it

A Parquet file takes 1.5 ms to write and to check and 0.8 ms to read, whatever is in it; a batch takes 0.05 ms and 0.03.
Of some hundred rows a Parquet file is a fifth as long, so only what takes a few kilobytes has this form.

Nothing is unpacked or copied when it is read: the columns are views of the bytes, so they cannot take more memory than
these. Before Arrow sees the message, its header is looked at here, because it could ask for what these bytes do not
have:

- compressed buffers, of which a few bytes stand for gigabytes, are refused;
- there is a node for each column and each nested field, and their lengths sum to at most `VALUES_PER_BYTE` times the
  bytes;
- the body is as long as the descriptor's `memory` and fills the message.

Afterwards Arrow's full validation holds every offset, count and text against the buffers.

Rejected: an IPC stream with its schema (twice as long, twice as slow, and one more thing that may disagree with the
collection's schema), buffers framed by ourselves (as fast, and nobody else reads it), Arrow's compression (it saves
nothing on so few bytes, and readers could not bound it).
"""

import struct

import pyarrow as pa
import pyarrow.types as pt

from persist.codecs.part.storage_types import storage_type
from persist.codecs.types.arrow_types import children

VALUES_PER_BYTE = 64
_PREFIX = struct.Struct("<Ii")  # The mark of a message, and the length of its header.
_MARK, _VERSION, _RECORD_BATCH = 0xFFFFFFFF, 4, 3
_NODE_BYTES = 16


def has_batch_form(schema: pa.Schema) -> bool:
    """Return whether rows of a schema may be written so.

    Not if Parquet stores a type as another one: only writing it shows that its values fit, and they must, because the
    next merge writes them.
    """
    return all(storage_type(kind) == kind for kind in schema.types)


def to_batch(rows: pa.Table) -> bytes:
    """Return rows, at least one, as a message."""
    (batch,) = rows.combine_chunks().to_batches()
    return batch.serialize().to_pybytes()  # type: ignore[no-any-return]


def from_batch(data: bytes | memoryview, schema: pa.Schema, *, rows: int, memory: int) -> pa.Table:
    """Return the columns of a message that must hold exactly that many rows of schema in a body of memory bytes.

    Raises:
        ValueError, pa.ArrowException, OSError: it holds something else, or contradicts itself.
    """
    found_rows, body = _check_header(memoryview(data), _node_count(schema))
    if (found_rows, body) != (rows, memory):
        raise ValueError(
            f"it claims {found_rows} rows in {body} bytes, and its descriptor says {rows} rows and memory {memory}"
        )
    batch = pa.ipc.read_record_batch(pa.py_buffer(data), schema)
    batch.validate(full=True)
    return pa.Table.from_batches([batch])


def body_bytes(data: bytes | memoryview) -> int:
    """Return how long the body of a message is: what its columns take as Arrow holds them."""
    _, header = _PREFIX.unpack_from(data)
    return len(data) - _PREFIX.size - int(header)


def _node_count(schema: pa.Schema) -> int:
    def nodes(kind: pa.DataType) -> int:
        inner = children(kind) if pt.is_nested(kind) else []
        # A map is a list of entries, which are structs of key and item.
        return 1 + int(pt.is_map(kind)) + sum(nodes(field.type) for field in inner)

    return sum(map(nodes, schema.types))


def _check_header(data: memoryview, nodes: int) -> tuple[int, int]:
    """Return the rows and the length of the body that a message claims, after the checks of the module's promise."""
    data = data.cast("B")
    try:
        mark, length = _PREFIX.unpack_from(data)
        if mark != _MARK or length % 8 or not 0 < length <= len(data) - _PREFIX.size:
            raise ValueError("it does not begin as an Arrow message does")
        header = data[_PREFIX.size : _PREFIX.size + length]
        message = _Table(header, _uint32(header, 0))
        if (message.integer(0, "<h"), message.integer(1, "<B")) != (_VERSION, _RECORD_BATCH):
            raise ValueError("it is not a record batch of this version of Arrow's format")
        body = message.integer(3, "<q")
        if body != len(data) - _PREFIX.size - length:
            raise ValueError(f"it claims a body of {body} of its {len(data)} bytes")
        batch = message.table(2)
        if batch.has(3):
            raise ValueError("its buffers are compressed, or say that they are")
        rows = batch.integer(0, "<q")
        lengths = [number for number, _ in struct.iter_unpack("<qq", batch.structs(1, _NODE_BYTES))]
    except (struct.error, IndexError) as error:
        raise ValueError(f"its header ends in the middle: {error}") from error
    if len(lengths) != nodes or any(number < 0 for number in lengths):
        raise ValueError(f"it has {len(lengths)} columns and nested fields where {nodes} belong")
    if sum(lengths) > VALUES_PER_BYTE * len(data):
        raise ValueError(f"it claims {sum(lengths)} values in {len(data)} bytes")
    return rows, body


class _Table:
    """A table of a flatbuffer: at a position, with its fields by number (see flatbuffers, "internals")."""

    __slots__ = ("_at", "_data", "_fields")

    def __init__(self, data: memoryview, at: int) -> None:
        self._data, self._at = data, at
        table = at - _int32(data, at)
        if table < 0:
            raise IndexError("a table lies outside of it")
        (size,) = struct.unpack_from("<H", data, table)
        self._fields = struct.unpack_from(f"<{max(size // 2 - 2, 0)}H", data, table + 4)

    def has(self, field: int) -> bool:
        return field < len(self._fields) and self._fields[field] != 0

    def integer(self, field: int, form: str) -> int:
        """Return a number, 0 where it is left out."""
        return int(struct.unpack_from(form, self._data, self._at + self._fields[field])[0]) if self.has(field) else 0

    def table(self, field: int) -> "_Table":
        return _Table(self._data, self._target(field))

    def structs(self, field: int, size: int) -> memoryview:
        """Return the bytes of a vector of structs of a size."""
        start = self._target(field)
        length = _uint32(self._data, start) * size
        if start + 4 + length > len(self._data):
            raise IndexError("a vector lies outside of it")
        return self._data[start + 4 : start + 4 + length]

    def _target(self, field: int) -> int:
        if not self.has(field):
            raise IndexError("a member is missing")
        at = self._at + int(self._fields[field])
        return at + _uint32(self._data, at)


def _uint32(data: memoryview, at: int) -> int:
    return int(struct.unpack_from("<I", data, at)[0])


def _int32(data: memoryview, at: int) -> int:
    return int(struct.unpack_from("<i", data, at)[0])
