"""Raw messages as columns of bytes, whatever they came in (a frame of a Kafka consumer, a column, or a list), and what
is wrong with one: for callers an error that names the first, inside a reason without a place.

Bytes inside of messages are base64 text, and a decimal is such bytes; both are read whole columns at a time. A decimal
travels as Java's `BigInteger.toByteArray`: two's complement, the highest byte first, as few bytes as hold it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.blob import InvalidUsage
from persist.codecs import boolean_values, int64_values


class Unreadable(ValueError):
    """Some message of a piece is bad. Never leaves this room: the piece is halved until the message is alone."""


KEY, VALUE = "key", "value"


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages in the order in which they arrived.

    Attributes:
        keys: large_binary[n], NULL where a message has no key; None if none was given a key.
        values: large_binary[n]; NULL is a tombstone.
        others: the columns besides, such as an offset or a partition.
    """

    keys: pa.Array | None
    values: pa.Array
    others: pa.Table

    @classmethod
    def of(cls, given: Any) -> "Messages":
        """Take a record batch, table, reader, frame, or an iterable of batches; a column; or a list of bytes or text.

        A table has a column "value", and may have one called "key"; a table of one column is the values.
        """
        if isinstance(given, pa.Array | pa.ChunkedArray):
            return cls(None, _as_bytes(given, VALUE), _no_columns(len(given)))
        table = _as_table(given)
        if isinstance(table, list):
            return cls.of(_listed(table))
        if VALUE not in table.column_names and table.num_columns == 1:
            table = table.rename_columns([VALUE])
        if VALUE not in table.column_names:
            raise InvalidUsage(
                f"messages have the columns {table.column_names}, and none of them is {VALUE!r}: name the column of "
                f"the messages' bodies {VALUE!r}, and that of their keys, if there is one, {KEY!r}."
            )
        keys = _as_bytes(table[KEY], KEY) if KEY in table.column_names else None
        others = table.select([name for name in table.column_names if name not in (KEY, VALUE)])
        return cls(keys, _as_bytes(table[VALUE], VALUE), others)

    def __len__(self) -> int:
        return len(self.values)


def _no_columns(rows: int) -> pa.Table:
    return pa.table({"rows": pa.nulls(rows)}).select([])


def _as_table(given: Any) -> pa.Table | list[Any]:
    if isinstance(given, pa.Table):
        return given
    if isinstance(given, pa.RecordBatch):
        return pa.Table.from_batches([given])
    if hasattr(given, "__arrow_c_stream__") or hasattr(given, "__arrow_c_array__"):
        return pa.table(given)
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InvalidUsage(
            f"messages are {type(given).__name__} {given!r:.40}: give record batches with the columns {VALUE!r} and, "
            f"if there is one, {KEY!r}; a column; or a list of bytes or text."
        )
    items = list(given)
    if items and all(isinstance(item, pa.RecordBatch | pa.Table) for item in items):
        tables = [pa.table(item) if isinstance(item, pa.RecordBatch) else item for item in items]
        return pa.concat_tables(tables)
    return items


def _listed(items: list[Any]) -> pa.Array:
    odd = next((item for item in items if not (item is None or isinstance(item, str | bytes))), None)
    if odd is not None:
        raise InvalidUsage(f"a message is {odd!r:.60}: give bytes or text, or None for a tombstone.")
    return pa.array(items, pa.large_binary())


def _as_bytes(column: Any, name: str) -> pa.Array:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), pa.large_binary())
    try:
        return array.cast(pa.large_binary())
    except pa.ArrowException as error:
        raise InvalidUsage(
            f"the column {name!r} of the messages has type {array.type}: it must be bytes or text, one JSON document "
            "in each row."
        ) from error


DECIMAL_BYTES = 16
PRECISION_MAX = 38
_PAD, _NONE = 64, 255
_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def _codes() -> np.ndarray:
    codes = np.full(256, _NONE, np.uint8)
    codes[np.frombuffer(_ALPHABET, np.uint8)] = np.arange(64)
    codes[ord("=")] = _PAD
    return codes


def from_base64(texts: pa.Array) -> pa.Array:
    """Return the bytes that base64 text stands for, as large_binary; NULL stays.

    Raises:
        Unreadable: some text is not base64 of the usual alphabet, padded to a multiple of four.
    """
    offsets, data = _parts(texts)
    lengths = np.diff(offsets)
    codes = _codes()[data]
    if (lengths % 4).any() or (codes == _NONE).any():
        raise Unreadable(f"{_example(texts)} is not base64")
    pads = _pads(codes, offsets, texts)
    codes[codes == _PAD] = 0
    quads = codes.reshape(-1, 4).astype(np.uint32)
    bits = quads[:, 0] << 18 | quads[:, 1] << 12 | quads[:, 2] << 6 | quads[:, 3]
    triples = np.stack([bits >> 16, bits >> 8 & 255, bits & 255], axis=1).astype(np.uint8).ravel()
    ends = np.cumsum(lengths // 4 * 3)
    keep = np.ones(len(triples), bool)
    for back in (1, 2):
        keep[ends[pads >= back] - back] = False
    starts = np.concatenate([[0], np.cumsum(lengths // 4 * 3 - pads)]).astype(np.int64)
    buffers = [None, pa.py_buffer(starts), pa.py_buffer(triples[keep])]
    return _with_nulls_of(texts, pa.Array.from_buffers(pa.large_binary(), len(texts), buffers))


def from_latin_1(texts: pa.Array) -> pa.Array:
    """Return the bytes whose numbers are the characters of a text, as large_binary; NULL stays."""
    _, data = _parts(texts)
    try:
        content = data.tobytes().decode().encode("latin-1")
    except UnicodeEncodeError as error:
        raise Unreadable("it has characters beyond U+00FF where bytes are expected") from error
    ends = np.cumsum(int64_values(pc.utf8_length(texts).fill_null(0).cast(pa.int64())))
    starts = np.concatenate([[0], ends]).astype(np.int64)
    buffers = [None, pa.py_buffer(starts), pa.py_buffer(content)]
    return _with_nulls_of(texts, pa.Array.from_buffers(pa.large_binary(), len(texts), buffers))


def to_decimals(unscaled: pa.Array, target: pa.DataType) -> pa.Array:
    """Return the decimals of `target`'s scale whose unscaled values are given as large_binary; NULL stays.

    Raises:
        Unreadable: a value has no byte, or does not fit `target`.
    """
    offsets, data = _parts(unscaled)
    lengths = np.diff(offsets)
    if (lengths > DECIMAL_BYTES).any() or ((lengths == 0) & boolean_values(unscaled.is_valid())).any():
        raise Unreadable(f"a decimal of {int(lengths.max())} bytes does not fit {target}")
    held = np.flatnonzero(lengths)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    place = np.repeat(offsets[1:], lengths) - 1 - np.arange(len(data))
    matrix = np.zeros((len(lengths), DECIMAL_BYTES), np.uint8)
    matrix[held[data[offsets[:-1][held]] >= 128]] = 255
    matrix[owner, place] = data
    widest = pa.decimal128(PRECISION_MAX, target.scale)
    wide = pa.Array.from_buffers(widest, len(lengths), [None, pa.py_buffer(matrix)])
    try:
        wide.validate(full=True)
        return _with_nulls_of(unscaled, wide.cast(target))
    except pa.ArrowInvalid as error:
        raise Unreadable(f"a decimal does not fit {target}: {error}") from error


def _parts(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the offsets, from 0 and int64[n + 1], and the bytes of a column of bytes or text; NULL has none."""
    plain = array.cast(pa.large_binary()).fill_null(b"")
    _, offset_buffer, data_buffer = plain.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64, len(plain) + 1, plain.offset * 8)
    data = np.frombuffer(data_buffer or b"", np.uint8)[offsets[0] : offsets[-1]]
    return offsets - offsets[0], data


def _pads(codes: np.ndarray, offsets: np.ndarray, texts: pa.Array) -> np.ndarray:
    """Return how many `=` each text ends with: at most two, and none elsewhere."""
    places = np.flatnonzero(codes == _PAD)
    owners = np.searchsorted(offsets[1:], places, "right")
    pads = np.bincount(owners, minlength=len(offsets) - 1)
    if (pads > 2).any() or (places < offsets[1:][owners] - pads[owners]).any():
        raise Unreadable(f"{_example(texts)} is not base64")
    return pads


def _example(texts: pa.Array) -> str:
    return repr(texts.drop_null()[0].as_py())[:60] if texts.null_count < len(texts) else "nothing"


def _with_nulls_of(source: pa.Array, array: pa.Array) -> pa.Array:
    if not source.null_count:
        return array
    return pc.if_else(source.is_valid(), array, pa.scalar(None, array.type))
