"""Raw messages as columns of bytes, and errors for a bad message.

Bytes inside of messages are base64 text, and a decimal is such bytes; both are read whole columns at a time. A decimal
is encoded as by Java's `BigInteger.toByteArray`: big-endian two's complement in as few bytes as possible.

JSON has only numbers, texts and booleans, and a producer may send a date or a decimal as any of these. So samples of
the messages decide how a column is read. Messages that encode it in another way are read again separately.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.blob.errors import InvalidUsage
from persist.codecs.nested import align_fields
from persist.codecs.order.arrays import get_boolean_values, get_int64_values
from persist.codecs.types.arrow_types import is_bytes
from persist.codecs.types.casts import cast_column
from persist.codecs.types.texts import parse_column


class Unreadable(ValueError):
    """A batch contains a bad message; the caller halves the batch until that message is alone."""


KEY, VALUE = "key", "value"


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages in the order in which they arrived.

    Attributes:
        keys: large_binary[n], NULL for messages without a key; None if no message has one.
        values: large_binary[n]; NULL is a tombstone.
        others: all other columns, such as an offset or a partition.
    """

    keys: pa.Array | None
    values: pa.Array
    others: pa.Table

    @classmethod
    def of(cls, value: Any) -> "Messages":
        """Return the messages in a table, a column or a list.

        Tables are record batches, tables, readers, frames, or iterables of batches. A list has bytes or text. A table
        has a column "value", and may have one called "key"; a table of one column is the values.
        """
        if isinstance(value, pa.Array | pa.ChunkedArray):
            return cls(None, _to_bytes(value, VALUE), pa.table({"rows": pa.nulls(len(value))}).select([]))
        table = _to_table(value)
        if isinstance(table, list):
            return cls.of(_to_array(table))
        if VALUE not in table.column_names and table.num_columns == 1:
            table = table.rename_columns([VALUE])
        if VALUE not in table.column_names:
            raise InvalidUsage(
                f"messages have the columns {table.column_names}, and none of them is {VALUE!r}: name the column of "
                f"the messages' bodies {VALUE!r}, and that of their keys, if there is one, {KEY!r}."
            )
        keys = _to_bytes(table[KEY], KEY) if KEY in table.column_names else None
        other_columns = table.select([name for name in table.column_names if name not in (KEY, VALUE)])
        return cls(keys, _to_bytes(table[VALUE], VALUE), other_columns)

    def __len__(self) -> int:
        return len(self.values)


def _to_table(value: Any) -> pa.Table | list[Any]:
    """Return messages as a table; a list of bytes or text stays a list."""
    if isinstance(value, pa.Table):
        return value
    if isinstance(value, pa.RecordBatch):
        return pa.Table.from_batches([value])
    if hasattr(value, "__arrow_c_stream__") or hasattr(value, "__arrow_c_array__"):
        return pa.table(value)
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise InvalidUsage(
            f"messages are {type(value).__name__} {value!r:.40}: give record batches with the columns {VALUE!r} and, "
            f"if there is one, {KEY!r}; a column; or a list of bytes or text."
        )
    items = list(value)
    if items and all(isinstance(item, pa.RecordBatch | pa.Table) for item in items):
        tables = [pa.table(item) if isinstance(item, pa.RecordBatch) else item for item in items]
        return pa.concat_tables(tables)
    return items


def _to_array(items: list[Any]) -> pa.Array:
    """Return a list of messages as an array of bytes."""
    odd = next((item for item in items if not (item is None or isinstance(item, str | bytes))), None)
    if odd is not None:
        raise InvalidUsage(f"a message is {odd!r:.60}: give bytes or text, or None for a tombstone.")
    return pa.array(items, pa.large_binary())


def _to_bytes(column: Any, name: str) -> pa.Array:
    """Return a column as bytes; raise InvalidUsage for another type."""
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


def _make_base64_codes() -> np.ndarray:
    """Return uint8[256]: the six bits that each character of base64 encodes."""
    codes = np.full(256, _NONE, np.uint8)
    codes[np.frombuffer(_ALPHABET, np.uint8)] = np.arange(64)
    codes[ord("=")] = _PAD
    return codes


def decode_base64(texts: pa.Array) -> pa.Array:
    """Decode base64 text to large_binary; NULL stays."""
    offsets, data = _get_offsets_and_bytes(texts)
    lengths = np.diff(offsets)
    codes = _make_base64_codes()[data]
    if (lengths % 4).any() or (codes == _NONE).any():
        raise Unreadable(f"{_quote_example(texts)} is not base64")
    places = np.flatnonzero(codes == _PAD)
    owners = np.searchsorted(offsets[1:], places, "right")
    pads = np.bincount(owners, minlength=len(offsets) - 1)
    if (pads > 2).any() or (places < offsets[1:][owners] - pads[owners]).any():
        raise Unreadable(f"{_quote_example(texts)} is not base64")
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
    return _copy_nulls(texts, pa.Array.from_buffers(pa.large_binary(), len(texts), buffers))


def decode_latin_1(texts: pa.Array) -> pa.Array:
    """Return characters U+0000 to U+00FF as bytes, large_binary; NULL stays."""
    _, data = _get_offsets_and_bytes(texts)
    try:
        content = data.tobytes().decode().encode("latin-1")
    except UnicodeEncodeError as error:
        raise Unreadable("it has characters beyond U+00FF where bytes are expected") from error
    ends = np.cumsum(get_int64_values(pc.utf8_length(texts).fill_null(0).cast(pa.int64())))
    starts = np.concatenate([[0], ends]).astype(np.int64)
    buffers = [None, pa.py_buffer(starts), pa.py_buffer(content)]
    return _copy_nulls(texts, pa.Array.from_buffers(pa.large_binary(), len(texts), buffers))


def to_decimals(unscaled: pa.Array, target: pa.DataType) -> pa.Array:
    """Convert unscaled values as large_binary to decimals of `target`'s scale; NULL stays."""
    offsets, data = _get_offsets_and_bytes(unscaled)
    lengths = np.diff(offsets)
    if (lengths > DECIMAL_BYTES).any() or ((lengths == 0) & get_boolean_values(unscaled.is_valid())).any():
        raise Unreadable(f"a decimal of {int(lengths.max())} bytes does not fit {target}")
    # Arrow has 16 bytes, the lowest first: bytes are turned round, and negative numbers filled with ones.
    nonempty = np.flatnonzero(lengths)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    place = np.repeat(offsets[1:], lengths) - 1 - np.arange(len(data))
    matrix = np.zeros((len(lengths), DECIMAL_BYTES), np.uint8)
    matrix[nonempty[data[offsets[:-1][nonempty]] >= 128]] = 255
    matrix[owner, place] = data
    widest = pa.decimal128(PRECISION_MAX, target.scale)
    wide = pa.Array.from_buffers(widest, len(lengths), [None, pa.py_buffer(matrix)])
    try:
        wide.validate(full=True)
        return _copy_nulls(unscaled, wide.cast(target))
    except pa.ArrowInvalid as error:
        raise Unreadable(f"a decimal does not fit {target}: {error}") from error


def _get_offsets_and_bytes(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return offsets, int64[n + 1] from 0, and all bytes of an array; NULL is empty."""
    plain = array.cast(pa.large_binary()).fill_null(b"")
    _, offset_buffer, data_buffer = plain.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64, len(plain) + 1, plain.offset * 8)
    data = np.frombuffer(data_buffer or b"", np.uint8)[offsets[0] : offsets[-1]]
    return offsets - offsets[0], data


def _quote_example(texts: pa.Array) -> str:
    """Return the first text, quoted and cut, for errors."""
    return repr(texts.drop_null()[0].as_py())[:60]


def _copy_nulls(source: pa.Array, array: pa.Array) -> pa.Array:
    """Return an array with NULL wherever `source` has NULL."""
    if not source.null_count:
        return array
    return pc.if_else(source.is_valid(), array, pa.scalar(None, array.type))


SAMPLES = 24


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads one column of messages: parses JSON, then converts the values.

    Attributes:
        wire: the type that `pyarrow.json` reads.
        convert: turns parsed values into the column's values; raises an error for a bad value.
        target: the type of the converted values.
    """

    wire: pa.DataType
    convert: Callable[[pa.Array], pa.Array]
    target: pa.DataType


def decode_samples(texts: pa.Array) -> list[dict[str, Any]]:
    """Return sample messages as dicts, without values that are not objects."""
    places = {*range(min(len(texts), SAMPLES))}
    if len(texts) > SAMPLES:
        places = {*range(SAMPLES // 2), *(len(texts) * n // SAMPLES for n in range(SAMPLES))}
    documents = []
    for place in sorted(places):
        try:
            document = json.loads(texts[place].as_py())
        except ValueError:
            continue
        if isinstance(document, dict):
            documents.append(document)
    return documents


def list_values(samples: Iterable[Any], *path: str) -> list[Any]:
    """Return the values that samples have at a path, except nulls."""
    values = list(samples)
    for name in path:
        values = [sample[name] for sample in values if isinstance(sample, dict) and sample.get(name) is not None]
    return values


def make_row_reader(readers: Mapping[str, Reader]) -> Reader:
    """Return a reader of objects as structs. A missing member is NULL, unknown ones are skipped."""
    names = list(readers)
    wire = pa.struct([(name, reader.wire) for name, reader in readers.items()])
    target = pa.struct([(name, reader.target) for name, reader in readers.items()])

    def convert(rows: pa.Array) -> pa.Array:
        columns = [_convert_column(name, readers[name].convert, rows.field(name)) for name in names]
        fields = [pa.field(name, column.type) for name, column in zip(names, columns, strict=True)]
        return pa.StructArray.from_arrays(columns, fields=fields, mask=rows.is_null())

    return Reader(wire, convert, target)


def _convert_column(name: str, convert: Callable[[pa.Array], pa.Array], column: pa.Array) -> pa.Array:
    """Convert a column; add its name to an error."""
    try:
        return convert(column)
    except (Unreadable, pa.ArrowException) as error:
        raise Unreadable(f"in column {name!r}: {error}") from error


def make_list_reader(element: Reader) -> Reader:
    """Return a reader of JSON arrays, from the reader of an element."""

    def convert(lists: pa.Array) -> pa.Array:
        values = element.convert(lists.values)
        return pa.ListArray.from_arrays(lists.offsets, values, mask=lists.is_null() if lists.null_count else None)

    return Reader(pa.list_(element.wire), convert, pa.list_(element.target))


def choose_reader(
    target: pa.DataType, samples: list[Any], name: str, binary: Callable[[pa.Array], pa.Array] = decode_base64
) -> Reader:
    """Return the reader of a column of type `target`; samples show how its values are encoded.

    A number for a moment counts units of `target`; `binary` decodes the text of a bytes column.
    """
    if pat.is_struct(target):
        inner = {
            f.name: choose_reader(f.type, list_values(samples, f.name), f"{name}.{f.name}", binary) for f in target
        }
        return add_cast(make_row_reader(inner), target, name)
    if pat.is_list(target) or pat.is_large_list(target) or pat.is_fixed_size_list(target):
        values = [value for sample in samples if isinstance(sample, list) for value in sample if value is not None]
        return add_cast(make_list_reader(choose_reader(target.value_type, values, name, binary)), target, name)
    if pat.is_map(target):
        raise InvalidUsage(
            f"column {name!r} is a map, and maps are not read from JSON. Give it type string or a struct, and let the "
            "connector send it so."
        )
    wire, convert = _choose_flat_reader(target, _classify_samples(samples), binary)
    return Reader(wire, convert, target)


def add_cast(inner: Reader, target: pa.DataType | None, name: str) -> Reader:
    """Return a reader that also casts to `target`, unless None. Missing inner fields are NULL."""
    if target is None or inner.target == target:
        return inner

    def convert(column: pa.Array) -> pa.Array:
        aligned = align_fields(pa.chunked_array([inner.convert(column)]), target)
        return cast_column(aligned, target, name).combine_chunks()

    return Reader(inner.wire, convert, target)


def _parse_documents(texts: pa.Array, target: pa.DataType) -> pa.Array:
    """Parse texts as values of a type."""
    return parse_column(pa.chunked_array([texts]), target).combine_chunks()


def _classify_samples(samples: list[Any]) -> str:
    """Return the kind of the first sample: boolean, number, text or unknown."""
    match samples:
        case [bool(), *_]:
            return "boolean"
        case [int() | float(), *_]:
            return "number"
        case [str(), *_]:
            return "text"
    return "unknown"


def _choose_flat_reader(
    target: pa.DataType, kind: str, binary: Callable[[pa.Array], pa.Array]
) -> tuple[pa.DataType, Callable[[pa.Array], pa.Array]]:
    """Return the type that a flat column is parsed as, and the function that converts it."""
    text = kind == "text"
    if pat.is_null(target):  # Nothing declares the column, and no message of this call has a value in it.
        return target, _keep_column
    if pat.is_boolean(target):
        by_kind = {
            "number": (pa.int64(), _parse_booleans),
            "text": (pa.string(), lambda column: _parse_documents(column, target)),
        }
        return by_kind.get(kind, (target, _keep_column))
    if text and (pat.is_integer(target) or pat.is_floating(target)):
        return pa.string(), lambda column: _parse_documents(column, target)
    if pat.is_integer(target) or pat.is_floating(target):
        wire = pa.bool_() if kind == "boolean" else pa.float64() if pat.is_float16(target) else target
        if pat.is_float16(target):
            return wire, lambda column: _parse_documents(column.cast(pa.string()), target)
        return wire, lambda column: column.cast(target)
    if pat.is_decimal(target):
        return target, _keep_column  # Arrow reads both numbers and text, and refuses what it would have to round.
    if is_bytes(target):
        return pa.string(), lambda column: binary(column).cast(pa.binary()).cast(target)
    if pat.is_timestamp(target):
        return (
            (pa.int64(), lambda column: column.cast(target))
            if kind == "number"
            else (pa.string(), _make_moment_parser(target))
        )
    if pat.is_date(target) or pat.is_time(target) or pat.is_duration(target):
        return (pa.string(), _make_moment_parser(target)) if text else _build_counter(target)
    return pa.string(), lambda column: column.cast(target)


def _keep_column(column: pa.Array) -> pa.Array:
    return column


def _parse_booleans(numbers: pa.Array) -> pa.Array:
    """Return numbers 0 and 1 as booleans; raise Unreadable for others."""
    if not pc.all(pc.and_(pc.greater_equal(numbers, 0), pc.less_equal(numbers, 1)), min_count=0).as_py():
        raise Unreadable("a boolean is a number other than 0 and 1")
    return numbers.cast(pa.bool_())


def _build_counter(target: pa.DataType) -> tuple[pa.DataType, Callable[[pa.Array], pa.Array]]:
    """Return the parsed type and converter for dates and times of day that are sent as numbers."""
    if pat.is_date(target):
        return pa.int32(), lambda column: column.cast(pa.date32()).cast(target)
    wire = pa.int32() if pat.is_time32(target) else pa.int64()
    return wire, lambda column: _check_time_of_day(column.cast(target))


def _check_time_of_day(column: pa.Array) -> pa.Array:
    """Return a column; raise Unreadable if a time of day is not within a day."""
    if pat.is_time(column.type):
        ticks = column.cast(pa.int32() if pat.is_time32(column.type) else pa.int64())
        last = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}[column.type.unit] - 1
        within = pc.and_(pc.greater_equal(ticks, 0), pc.less_equal(ticks, last))
        if not pc.all(within, min_count=0).as_py():
            raise Unreadable("a time of day is not within one day")
    return column


def _make_moment_parser(target: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    """Return a parser of ISO 8601. A missing zone means UTC in columns with zones."""
    if pat.is_duration(target):
        raise InvalidUsage(f"text is not read as {target}: give the column type string.")
    return lambda texts: _parse_documents(texts, target)
