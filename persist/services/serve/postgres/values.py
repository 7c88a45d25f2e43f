"""Values of rows for Postgres clients: columns of Arrow become the bytes of each value, and of each row.

| Arrow | Postgres |
|---|---|
| bool; int8, int16, uint8; int32, uint16; int64, uint32 | boolean; int2; int4; int8 |
| uint64, decimals | numeric, with the scale of the column |
| float16, float32; float64 | float4; float8 |
| strings, binaries, UUIDs | text, bytea, uuid |
| dates, times, timestamps without and with a zone | date, time, timestamp, timestamptz: to the microsecond |
| durations, intervals | interval |
| lists, structs, maps, JSON | json, with numbers in full |

A value that its type cannot hold, such as a part of a microsecond, is an error. No Python runs for
each row: each column becomes one array of bytes, and Arrow joins them row by row. Nested values are the exception.

Source: PostgreSQL 15's `src/backend/utils/adt`, the functions `*_send` and `*_out`.
"""

import binascii
import json
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.services.serve.postgres.wire import Column, Failure

BOOL, BYTEA, INT8, INT2, INT4, TEXT, JSON = 16, 17, 20, 21, 23, 25, 114
FLOAT4, FLOAT8, DATE, TIME, TIMESTAMP, TIMESTAMPTZ, INTERVAL, NUMERIC, UUID = (
    700, 701, 1082, 1083, 1114, 1184, 1186, 1700, 2950,
)  # fmt: skip

# By oid: the name, as SQL has it, the name in pg_type, the size, and the category of pg_type.
TYPES: dict[int, tuple[str, str, int, str]] = {
    BOOL: ("boolean", "bool", 1, "B"),
    BYTEA: ("bytea", "bytea", -1, "U"),
    INT8: ("bigint", "int8", 8, "N"),
    INT2: ("smallint", "int2", 2, "N"),
    INT4: ("integer", "int4", 4, "N"),
    TEXT: ("text", "text", -1, "S"),
    JSON: ("json", "json", -1, "U"),
    FLOAT4: ("real", "float4", 4, "N"),
    FLOAT8: ("double precision", "float8", 8, "N"),
    DATE: ("date", "date", 4, "D"),
    TIME: ("time without time zone", "time", 8, "D"),
    TIMESTAMP: ("timestamp without time zone", "timestamp", 8, "D"),
    TIMESTAMPTZ: ("timestamp with time zone", "timestamptz", 8, "D"),
    INTERVAL: ("interval", "interval", 16, "T"),
    NUMERIC: ("numeric", "numeric", -1, "N"),
    UUID: ("uuid", "uuid", 16, "U"),
}

# The types of lists, by what they contain.
ARRAYS = {1000: BOOL, 1001: BYTEA, 1016: INT8, 1005: INT2, 1007: INT4, 1009: TEXT, 1015: TEXT, 1021: FLOAT4,
          1022: FLOAT8, 1182: DATE, 1183: TIME, 1115: TIMESTAMP, 1185: TIMESTAMPTZ, 1187: INTERVAL, 1231: NUMERIC,
          2951: UUID}  # fmt: skip

EPOCH_S = 946_684_800  # 2000-01-01, from 1970-01-01.
_EPOCH_DAYS = 10_957
US_MAX, DAYS_MAX = 2**63 - 1, 2**31 - 1  # DuckDB's infinities, and Postgres's.
_UNIT_US = {"s": 1_000_000, "ms": 1_000, "us": 1}
_TEXT_BYTES_MAX = 1 << 30  # Postgres holds no larger value.


def describe_column(field: pa.Field) -> Column:
    """Return the description of a column for Postgres clients."""
    kind = _to_plain_type(field.type)
    oid, modifier = _find_oid(kind), -1
    if pat.is_decimal(kind) and kind.scale >= 0:
        modifier = (kind.precision << 16 | kind.scale) + 4
    return Column(field.name, oid, TYPES[oid][2], modifier)


def describe_listed_column(field: pa.Field) -> Column:
    """Return the description of a column for a list of columns; an unknown type is text."""
    try:
        return describe_column(field)
    except Failure:
        return Column(field.name, TEXT)


def _to_plain_type(kind: pa.DataType) -> pa.DataType:
    """Return a type without dictionary and run-end encoding, and without an extension that has no type of its own."""
    while pat.is_dictionary(kind) or pat.is_run_end_encoded(kind):
        kind = kind.value_type
    if isinstance(kind, pa.BaseExtensionType) and _find_extension_oid(kind) is None:
        return _to_plain_type(kind.storage_type)
    return kind


def _find_extension_oid(kind: pa.BaseExtensionType) -> int | None:
    """Return the oid of an extension type, or None."""
    return {"arrow.uuid": UUID, "arrow.json": JSON}.get(kind.extension_name)


_OIDS: list[tuple[Callable[[pa.DataType], bool], int]] = [
    (pat.is_boolean, BOOL),
    (lambda kind: kind in (pa.int8(), pa.int16(), pa.uint8()), INT2),
    (lambda kind: kind in (pa.int32(), pa.uint16()), INT4),
    (lambda kind: kind in (pa.int64(), pa.uint32()), INT8),
    (lambda kind: pat.is_uint64(kind) or pat.is_decimal(kind), NUMERIC),
    (lambda kind: kind in (pa.float16(), pa.float32()), FLOAT4),
    (pat.is_float64, FLOAT8),
    (lambda kind: pat.is_string(kind) or pat.is_large_string(kind) or pat.is_string_view(kind), TEXT),
    (lambda kind: pat.is_binary(kind) or pat.is_large_binary(kind) or pat.is_fixed_size_binary(kind), BYTEA),
    (pat.is_binary_view, BYTEA),
    (pat.is_date, DATE),
    (pat.is_time, TIME),
    (lambda kind: pat.is_timestamp(kind) and kind.tz is None, TIMESTAMP),
    (pat.is_timestamp, TIMESTAMPTZ),
    (lambda kind: pat.is_duration(kind) or pat.is_interval(kind), INTERVAL),
    (pat.is_nested, JSON),
    (pat.is_null, TEXT),
]


def _find_oid(kind: pa.DataType) -> int:
    """Return the oid of an Arrow type."""
    if isinstance(kind, pa.BaseExtensionType):
        return _find_extension_oid(kind) or TEXT
    for fits, oid in _OIDS:
        if fits(kind):
            return oid
    raise Failure("0A000", f"Postgres clients have no type for {kind}: cast the column, for example to VARCHAR")


# Rows.


def encode_rows(batch: pa.RecordBatch, formats: Sequence[int]) -> memoryview:
    """Return the messages `DataRow` of a batch, one after the other; each column in format 0 (text) or 1 (binary)."""
    return _frame_rows(batch, formats, b"D")


def copy_rows(batch: pa.RecordBatch) -> memoryview:
    """Return the messages `CopyData` of a batch in the binary format, one for each row."""
    return _frame_rows(batch, [1] * batch.num_columns, b"d")


def _frame_rows(batch: pa.RecordBatch, formats: Sequence[int], kind: bytes) -> memoryview:
    """Return the rows of a batch as messages, one for each."""
    if not batch.num_rows:
        return memoryview(b"")
    fields: list[Any] = []
    lengths = np.full(batch.num_rows, 6, np.int64)
    for array, form in zip(batch.columns, formats, strict=True):
        values = encode_values(array) if form else format_values(array)
        sizes = np.where(_find_nulls(values), 0, _measure_lengths(values))
        lengths += sizes + 4
        fields += _encode_prefixes(np.where(_find_nulls(values), -1, sizes)), values
    if lengths.max() > _TEXT_BYTES_MAX:
        raise Failure(
            "54000", f"a row has {lengths.max():,} bytes, and Postgres clients read {_TEXT_BYTES_MAX:,} at most"
        )
    head = np.empty(batch.num_rows, np.dtype([("kind", "S1"), ("length", ">i4"), ("columns", ">i2")]))
    head["kind"], head["length"], head["columns"] = kind, lengths, batch.num_columns
    return _join_fields([_split_fixed_entries(head), *fields], lengths + 1)


def encode_copy_rows(batch: pa.RecordBatch, separator: str, null: str, *, csv: bool) -> memoryview:
    """Return the messages `CopyData` of a batch as lines of text, one for each row."""
    if not batch.num_rows:
        return memoryview(b"")
    columns: list[Any] = []
    for array in batch.columns:
        values = format_values(array).cast(pa.large_string())
        values = _quote_elements(values, separator, null) if csv else _escape_texts(values, separator)
        columns.append(values.fill_null(null))
    lines = pc.binary_join_element_wise(*columns, pa.scalar(separator, pa.large_string()))
    sizes = _measure_lengths(lines) + 1
    head = np.empty(batch.num_rows, np.dtype([("kind", "S1"), ("length", ">i4")]))
    head["kind"], head["length"] = b"d", sizes + 4
    end = pa.array(["\n"] * batch.num_rows, pa.large_binary())
    return _join_fields([_split_fixed_entries(head), lines.cast(pa.large_binary()), end], sizes + 5)


def _escape_texts(values: pa.Array, separator: str) -> pa.Array:
    """Return texts with the escapes of COPY."""
    for character, letter in zip("\\\n\r\t\b\f\v", "\\nrtbfv", strict=True):
        values = pc.replace_substring(values, character, "\\" + letter)
    return values if separator == "\t" else pc.replace_substring(values, separator, "\\" + separator)


def _quote_elements(values: pa.Array, separator: str, null: str) -> pa.Array:
    """Return list elements, quoted where Postgres needs it."""
    quotes = pc.is_in(values, pa.array([null, "\\."], values.type))  # The second alone on a line ends the data.
    for character in (separator, '"', "\n", "\r"):
        quotes = pc.or_(quotes, pc.match_substring(values, character))
    quote, nothing = pa.scalar('"', pa.large_string()), pa.scalar("", pa.large_string())
    doubled = pc.binary_join_element_wise(quote, pc.replace_substring(values, '"', '""'), quote, nothing)
    return pc.if_else(quotes, doubled, values)


def _find_nulls(values: pa.Array) -> np.ndarray:
    """Return whether each value is NULL."""
    return np.asarray(values.is_null().to_numpy(zero_copy_only=False))


def _measure_lengths(values: pa.Array) -> np.ndarray:
    """Return the bytes of each value; 0 for NULL."""
    return np.asarray(pc.binary_length(values).fill_null(0).to_numpy(zero_copy_only=False)).astype(np.int64)


def _encode_prefixes(sizes: np.ndarray) -> pa.Array:
    """Return each length as four bytes, most significant first."""
    return _split_fixed_entries(np.ascontiguousarray(sizes.astype(">i4")))


def _split_fixed_entries(rows: np.ndarray) -> pa.Array:
    """Return each entry of an array as bytes; all entries have one size."""
    offsets = np.arange(len(rows) + 1, dtype=np.int64) * rows.dtype.itemsize
    return _make_binary_array(offsets, rows.tobytes())


def _make_binary_array(offsets: np.ndarray, data: bytes, nulls: np.ndarray | None = None) -> pa.Array:
    """Return an Arrow array of bytes from its offsets and data."""
    buffers = [None, pa.py_buffer(offsets.astype(np.int64)), pa.py_buffer(data)]
    values = pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
    return values if nulls is None or not nulls.any() else pc.if_else(pa.array(nulls), None, values)


def _join_fields(fields: list[Any], lengths: np.ndarray) -> memoryview:
    """Return the bytes of all rows, row by row."""
    fields = [field if field.type == pa.large_binary() else field.cast(pa.large_binary()) for field in fields]
    nothing = pa.scalar(b"", pa.large_binary())
    rows = pc.binary_join_element_wise(*fields, nothing, null_handling="replace", null_replacement="")
    return memoryview(rows.buffers()[2])[: int(lengths.sum())]


# Text.


def format_values(array: pa.Array) -> pa.Array:
    """Return each value as Postgres writes it, as strings or bytes of UTF-8."""
    array = _decode_dictionary(array)
    oid = _find_oid(array.type)
    writer = _TEXT.get(oid)
    return pc.cast(array, pa.string()) if writer is None else writer(array)


def _decode_dictionary(array: pa.Array) -> pa.Array:
    """Return an array without dictionaries, run ends and unknown extension types."""
    kind = _to_plain_type(array.type)
    while pat.is_dictionary(array.type) or pat.is_run_end_encoded(array.type):
        is_dictionary = pat.is_dictionary(array.type)
        array = array.dictionary_decode() if is_dictionary else pc.run_end_decode(array)
    if isinstance(array.type, pa.BaseExtensionType) and not isinstance(kind, pa.BaseExtensionType):
        return _decode_dictionary(array.storage)
    return array


def _get_storage(array: pa.Array) -> pa.Array:
    """Return the stored values of an extension array; other arrays unchanged."""
    return array.storage if isinstance(array.type, pa.BaseExtensionType) else array


def _format_floats(array: pa.Array) -> pa.Array:
    """Return floats as Postgres writes them."""
    wide = array.cast(pa.float32()) if pat.is_float16(array.type) else array
    text = wide.cast(pa.string())
    text = pc.if_else(pc.is_nan(wide), "NaN", text)
    return pc.if_else(pc.is_inf(wide), pc.if_else(pc.greater(wide, 0), "Infinity", "-Infinity"), text)


def _format_decimals(array: pa.Array) -> pa.Array:
    """Return decimals as text, with all digits."""
    text = array.cast(pa.string())
    if not pc.any(pc.match_substring(text, "E"), min_count=0).as_py():
        return text
    return pa.array([None if value is None else f"{value:f}" for value in array.to_pylist()], pa.string())


def _format_bytes(array: pa.Array) -> pa.Array:
    """Return bytes as `\\x` and hexadecimal digits."""
    values = array.cast(pa.large_binary())
    offsets = np.frombuffer(values.buffers()[1], np.int64)[values.offset : values.offset + len(values) + 1]
    data = memoryview(values.buffers()[2] or b"")[offsets[0] : offsets[-1]]
    digits = _make_binary_array((offsets - offsets[0]) * 2, binascii.hexlify(data), _find_nulls(values)).cast(
        pa.large_string()
    )
    start, nothing = pa.scalar("\\x", pa.large_string()), pa.scalar("", pa.large_string())
    return pc.binary_join_element_wise(start, digits, nothing)


def _format_dates(array: pa.Array) -> pa.Array:
    """Return dates as text."""
    days = _to_days(array)
    is_infinite = np.abs(days) == DAYS_MAX
    _check_years(days[~is_infinite & ~_find_nulls(array)].astype(np.int64) * 86_400)
    finite = pa.array(np.where(is_infinite, 0, days).astype(np.int32), pa.int32(), mask=_find_nulls(array))
    return _replace_infinities(finite.cast(pa.date32()).cast(pa.string()), is_infinite, days)


def _format_timestamps(array: pa.Array) -> pa.Array:
    """Return timestamps as text, in UTC if they have a zone."""
    us = _to_microseconds(array)
    is_infinite = np.abs(us) == US_MAX
    _check_years(us[~is_infinite & ~_find_nulls(array)] // 1_000_000)
    finite = pa.array(np.where(is_infinite, 0, us), pa.int64(), mask=_find_nulls(array)).cast(pa.timestamp("us"))
    text = _strip_zeros(finite.cast(pa.string()))
    if array.type.tz is not None:
        text = pc.binary_join_element_wise(text, "+00", "")
    return _replace_infinities(text, is_infinite, us)


def _replace_infinities(text: pa.Array, is_infinite: np.ndarray, values: np.ndarray) -> pa.Array:
    """Put `infinity` and `-infinity` in the place of some texts."""
    if not is_infinite.any():
        return text
    signs = pa.array(np.where(values > 0, "infinity", "-infinity"))
    return pc.if_else(pa.array(is_infinite & ~_find_nulls(text)), signs, text)


def _check_years(seconds: np.ndarray) -> None:
    """Raise Failure for dates that drivers of Postgres do not read: before the year 1, and after 9999."""
    if len(seconds) and not (seconds.min() >= -62_135_596_800 and seconds.max() < 253_402_300_800):
        raise Failure("22008", "a date is before the year 1 or after 9999: cast the column to VARCHAR to read it")


def _strip_zeros(text: pa.Array) -> pa.Array:
    """Return texts with six decimal places without their trailing zeros."""
    return pc.replace_substring_regex(text, r"\.?0*$", "")


def _format_intervals(array: pa.Array) -> pa.Array:
    """Return intervals as text."""
    digit_text = [None if value is None else _format_interval(*value) for value in _list_intervals(array)]
    return pa.array(digit_text, pa.string())


def _format_interval(months: int, days: int, us: int) -> str:
    """Return an interval as Postgres writes it."""
    years, months = int(months / 12), int(months - 12 * int(months / 12))
    parts = [f"{years} years"] * bool(years) + [f"{months} mons"] * bool(months) + [f"{days} days"] * bool(days)
    if us or not parts:
        seconds, fraction_us = divmod(abs(us), 1_000_000)
        fraction = f".{fraction_us:06d}".rstrip("0") if fraction_us else ""
        parts.append(f"{'-' * (us < 0)}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{fraction}")
    return " ".join(parts)


def _format_uuids(array: pa.Array) -> pa.Array:
    """Return UUIDs as text."""
    digits = pc.utf8_slice_codeunits(_format_bytes(_get_storage(array)), 2, 34)
    places = [(0, 8), (8, 12), (12, 16), (16, 20), (20, 32)]
    return pc.binary_join_element_wise(
        *(pc.utf8_slice_codeunits(digits, start, end) for start, end in places), pa.scalar("-", pa.large_string())
    )


def _format_json(array: pa.Array) -> pa.Array:
    """Return nested values as JSON."""
    if isinstance(array.type, pa.BaseExtensionType):
        return _get_storage(array).cast(pa.string())
    nulls = _find_nulls(array)
    return pa.array([None if null else part for part, null in zip(_list_json(array), nulls, strict=True)], pa.string())


def _list_json(array: pa.Array) -> list[str]:
    """Return each value as JSON, `null` for NULL."""
    array = _decode_dictionary(array)
    kind, nulls = array.type, _find_nulls(array)
    if pat.is_struct(kind):
        names = [json.dumps(field.name) for field in kind]
        members = [_list_json(child) for child in array.flatten()]
        rows = zip(*members, strict=True) if members else iter([()] * len(array))
        parts = ["{" + ", ".join(map(": ".join, zip(names, row, strict=True))) + "}" for row in rows]
    elif pat.is_map(kind):
        keys, items = _list_inner_json(array, array.keys), _list_inner_json(array, array.items)
        is_text = pat.is_string(kind.key_type) or pat.is_large_string(kind.key_type)
        parts = []
        for key, item in zip(keys, items, strict=True):
            pairs = list(zip(key, item, strict=True))
            if is_text:
                parts.append("{" + ", ".join(map(": ".join, pairs)) + "}")
            else:
                parts.append("[" + ", ".join(f"[{name}, {value}]" for name, value in pairs) + "]")
    elif pat.is_nested(kind):
        parts = ["[" + ", ".join(values) + "]" for values in _list_inner_json(array)]
    else:
        text = format_values(array)
        texts = text.cast(pa.string()).to_pylist()
        is_number = pat.is_integer(kind) or pat.is_floating(kind) or pat.is_decimal(kind)
        if pat.is_boolean(kind):
            parts = ["true" if value else "false" for value in array.to_pylist()]
        elif isinstance(kind, pa.BaseExtensionType) and _find_extension_oid(kind) == JSON:
            parts = [value or "" for value in texts]
        else:
            # JSON has no number for these; Postgres also writes texts.
            odd = ("NaN", "Infinity", "-Infinity")
            parts = [value if is_number and value not in odd else json.dumps(value) for value in texts]
    return ["null" if null else part for part, null in zip(parts, nulls, strict=True)]


def _list_inner_json(array: pa.Array, values: pa.Array | None = None) -> list[list[str]]:
    """Return the values of each list of an array as JSON; of a map, `values` are its keys or items."""
    if values is None:
        sizes, flat = pc.list_value_length(array).fill_null(0).to_pylist(), array.flatten()
    else:  # With the entries of other slices and of NULL.
        starts = array.offsets.to_numpy()[: len(array)]
        sizes = np.where(_find_nulls(array), 0, np.diff(array.offsets.to_numpy())).tolist()
        pieces = [values.slice(start, size) for start, size in zip(starts, sizes, strict=True)]
        flat = pa.concat_arrays([values.slice(0, 0), *pieces])
    parts, ends = _list_json(flat), np.cumsum(sizes, dtype=np.int64).tolist()
    return [parts[end - size : end] for size, end in zip(sizes, ends, strict=True)]


_TEXT: dict[int, Callable[[pa.Array], pa.Array]] = {
    BOOL: lambda array: pc.if_else(array, "t", "f"),
    FLOAT4: _format_floats,
    FLOAT8: _format_floats,
    NUMERIC: _format_decimals,
    BYTEA: _format_bytes,
    DATE: _format_dates,
    TIMESTAMP: _format_timestamps,
    TIMESTAMPTZ: _format_timestamps,
    TIME: lambda array: _strip_zeros(_to_whole_us_time(array).cast(pa.string())),
    INTERVAL: _format_intervals,
    UUID: _format_uuids,
    JSON: _format_json,
}


# Binary.


def encode_values(array: pa.Array) -> pa.Array:
    """Return each value in Postgres's binary form. Raises Failure as `format_values` does."""
    array = _decode_dictionary(array)
    oid = _find_oid(array.type)
    if oid in (TEXT, JSON):
        return format_values(array)
    if oid == BYTEA:
        return array.cast(pa.large_binary())
    if oid == UUID:
        return _get_storage(array).cast(pa.large_binary())
    if oid == NUMERIC:
        return _encode_decimals(array)
    if oid == INTERVAL:
        packed = [None if value is None else struct.pack("!qii", *value[::-1]) for value in _list_intervals(array)]
        return pa.array(packed, pa.large_binary())
    numbers, kind = _get_numbers(array, oid)
    encoded = _split_fixed_entries(np.ascontiguousarray(numbers.astype(kind)))
    return pc.if_else(array.is_null(), None, encoded) if array.null_count else encoded


def _get_numbers(array: pa.Array, oid: int) -> tuple[np.ndarray, str]:
    """Return a column as numbers (0 for NULL), and the type in which Postgres sends them."""
    if oid == DATE:
        days = _to_days(array)
        return np.where(np.abs(days) == DAYS_MAX, days, days - _EPOCH_DAYS) - (days == -DAYS_MAX), ">i4"
    if oid in (TIMESTAMP, TIMESTAMPTZ):
        us = _to_microseconds(array)
        is_infinite = np.abs(us) == US_MAX
        if us[~is_infinite].size and us[~is_infinite].min() < -US_MAX + EPOCH_S * 1_000_000:
            raise Failure("22008", "a moment is too early for Postgres: cast the column to VARCHAR to read it")
        return np.where(is_infinite, us - (us == -US_MAX), us - EPOCH_S * 1_000_000), ">i8"
    if oid == TIME:
        return np.asarray(_to_whole_us_time(array).cast(pa.int64()).fill_null(0)), ">i8"
    if oid == BOOL:
        return np.asarray(array.cast(pa.int8()).fill_null(0)), ">i1"
    values = array.cast(pa.float32()) if pat.is_float16(array.type) else array
    kinds = {INT2: ">i2", INT4: ">i4", INT8: ">i8", FLOAT4: ">f4", FLOAT8: ">f8"}
    return np.asarray(values.fill_null(0)), kinds[oid]


def _to_days(array: pa.Array) -> np.ndarray:
    """Return dates as days since 1970, 0 for NULL."""
    days = array.cast(pa.date32()).cast(pa.int32())
    return np.asarray(days.fill_null(0)).astype(np.int64)


def _to_microseconds(array: pa.Array) -> np.ndarray:
    """Return timestamps as microseconds since 1970, 0 for NULL. Raises Failure if one is not a whole number of them."""
    numbers = np.asarray(array.cast(pa.int64()).fill_null(0))
    if array.type.unit == "ns":
        return _to_whole_us(numbers)
    factor = _UNIT_US[array.type.unit]
    if len(numbers) and np.abs(numbers // 2).max() > US_MAX // factor // 2:
        raise Failure("22008", "a moment is too far away for Postgres: cast the column to VARCHAR to read it")
    return numbers * factor


def _to_whole_us(nanoseconds: np.ndarray) -> np.ndarray:
    """Return nanoseconds as microseconds. Raises Failure if digits would be lost."""
    if (nanoseconds % 1000).any():
        raise Failure(
            "22008",
            "a value has nanoseconds, and Postgres has microseconds",
            "Cast the column to VARCHAR to read all digits, or to TIMESTAMP or TIME to round it.",
        )
    return nanoseconds // 1000


def _to_whole_us_time(array: pa.Array) -> pa.Array:
    """Return times of day in microseconds. Raises Failure if digits would be lost."""
    if array.type == pa.time64("ns"):
        us = _to_whole_us(np.asarray(array.cast(pa.int64()).fill_null(0)))
        return pa.array(us, pa.int64(), mask=_find_nulls(array)).cast(pa.time64("us"))
    return array.cast(pa.time64("us"))


def _list_intervals(array: pa.Array) -> list[tuple[int, int, int] | None]:
    """Return each interval as months, days and microseconds."""
    if pat.is_duration(array.type):
        numbers = array.cast(pa.int64()).to_pylist()
        if array.type.unit == "ns":
            _to_whole_us(np.array([number for number in numbers if number is not None], np.int64))
            return [None if number is None else (0, 0, number // 1000) for number in numbers]
        factor = _UNIT_US[array.type.unit]
        return [None if number is None else (0, 0, number * factor) for number in numbers]
    values = array.to_pylist()
    _to_whole_us(np.array([value[2] for value in values if value is not None], np.int64))
    return [None if value is None else (value[0], value[1], value[2] // 1000) for value in values]


def _encode_decimals(array: pa.Array) -> pa.Array:
    """Return decimals as groups of four digits, which Postgres aligns to the decimal point."""
    if pat.is_uint64(array.type):
        array = array.cast(pa.decimal128(20, 0))
    nulls, kind = _find_nulls(array), array.type
    scale, digits_max = max(kind.scale, 0), kind.precision + max(-kind.scale, 0)
    text = _format_decimals(array).fill_null("0")
    fraction = -(-scale // 4)
    groups = fraction + max(-(-(digits_max - scale) // 4), 1)
    digits = pc.binary_join_element_wise(pc.replace_substring_regex(text, "[-.]", ""), "0" * (-scale % 4), "")
    padded = pc.utf8_lpad(digits, 4 * groups, "0").cast(pa.binary(4 * groups))
    matrix = np.frombuffer(padded.buffers()[1], np.uint8).reshape(len(array), groups, 4)
    numbers = (matrix - ord("0")).astype(np.int64) @ np.array([1000, 100, 10, 1])
    is_digit = numbers != 0
    first = np.where(is_digit.any(axis=1), is_digit.argmax(axis=1), groups)
    rows = np.empty((len(array), 4 + groups), ">u2")
    rows[:, 0] = groups - first
    rows[:, 1] = (groups - fraction - 1 - first).astype(np.int64) & 0xFFFF
    rows[:, 2] = np.where(np.asarray(pc.starts_with(text, "-")), 0x4000, 0)
    rows[:, 3] = scale
    rows[:, 4:] = numbers
    is_sent = np.arange(4 + groups)[None, :] - 4 >= first[:, None]
    is_sent[:, :4] = True
    offsets = np.concatenate([[0], np.cumsum(is_sent.sum(axis=1) * 2)])
    return _make_binary_array(offsets, rows[is_sent].tobytes(), nulls)
