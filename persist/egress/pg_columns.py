"""Columns of Arrow as Postgres': the type that each becomes, and its values as the text that COPY reads.

The table in `docs/egress.md` says the same. Zeros have no sign, as in collections, where both are equal.
"""

import io

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from persist.errors import InvalidUsage

_PLAIN = {
    pa.bool_(): "boolean", pa.int8(): "smallint", pa.int16(): "smallint", pa.uint8(): "smallint",
    pa.int32(): "integer", pa.uint16(): "integer", pa.int64(): "bigint", pa.uint32(): "bigint",
    pa.uint64(): "numeric(20,0)", pa.float16(): "real", pa.float32(): "real", pa.float64(): "double precision",
    pa.date32(): "date", pa.date64(): "date",
}  # fmt: skip
# Types that hold all values of another one: a table that is there may have them.
_WIDER = {
    "smallint": ("integer", "bigint", "numeric"),
    "integer": ("bigint", "numeric"),
    "bigint": ("numeric",),
    "numeric(20,0)": ("numeric",),
    "real": ("double precision",),
    "timestamp without time zone": (),
}
_JSON = msgspec.json.Encoder(enc_hook=str)


def type_of(kind: pa.DataType, where: str) -> str:
    """Return the type of Postgres that a column gets, as the server writes it.

    Raises:
        InvalidUsage: it has none.
    """
    if kind in _PLAIN:
        return _PLAIN[kind]
    if pt.is_decimal(kind):
        digits, scale = max(kind.precision, kind.scale), max(kind.scale, 0)
        return f"numeric({digits - min(kind.scale, 0)},{scale})"
    if pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind):
        return "text"
    if _is_bytes(kind):
        return "bytea"
    if pt.is_time(kind):
        return "time without time zone"
    if pt.is_timestamp(kind):
        return "timestamp without time zone" if kind.tz is None else "timestamp with time zone"
    if pt.is_duration(kind):
        return "interval"
    if pt.is_nested(kind):
        return "jsonb"
    raise InvalidUsage(f"the column {where} has the type {kind}, which Postgres has no counterpart for: leave it out")


def fits(ours: str, theirs: str) -> bool:
    """Return whether a column of a table that is there can hold what would be of another type if it was made here.

    Text may be of any type: the server reads it, and says what it is not.
    """
    if ours == theirs or ours == "text" or (ours == "jsonb" and theirs in ("json", "text")):
        return True
    if ours.startswith("numeric(") and theirs.startswith("numeric("):
        (digits, scale), (their_digits, their_scale) = _numbers(ours), _numbers(theirs)
        return their_scale >= scale and their_digits - their_scale >= digits - scale
    return theirs in _WIDER.get(ours, ()) or (ours.startswith("numeric(") and theirs == "numeric")


def copy_text(rows: pa.RecordBatch | pa.Table, table: str) -> io.BytesIO:
    """Return rows as COPY reads them in format csv: NULL is nothing, and empty text is in quotes.

    Raises:
        InvalidUsage: a value has more digits than its column.
    """
    import pyarrow.csv as pa_csv

    columns = [_texts(rows.column(name), f"{table}.{name}") for name in rows.schema.names]
    out = io.BytesIO()
    texts = pa.Table.from_arrays(columns, [*rows.schema.names])
    pa_csv.write_csv(texts, out, pa_csv.WriteOptions(include_header=False))
    out.seek(0)
    return out


def _texts(values: pa.Array | pa.ChunkedArray, where: str) -> pa.Array:
    """Return values of a type that Arrow writes as Postgres reads it, or as texts."""
    kind = values.type
    try:
        if kind == pa.float16():
            values, kind = values.cast(pa.float32()), pa.float32()
        if pt.is_floating(kind):
            return pc.add(values, pa.scalar(0.0, kind))
        if _is_bytes(kind):
            return _hex(values)
        if pt.is_time(kind):
            return values.cast(pa.time64("us"))
        if pt.is_timestamp(kind):
            return values.cast(pa.timestamp("us", None if kind.tz is None else "UTC"))
        if pt.is_duration(kind):
            number = values.cast(pa.duration("us")).cast(pa.int64()).cast(pa.string())
            return pc.binary_join_element_wise(number, pa.scalar("microseconds"), " ")
        if pt.is_nested(kind):
            return pa.array([None if v is None else _JSON.encode(v).decode() for v in values.to_pylist()], pa.string())
    except (pa.ArrowException, ValueError) as error:
        raise InvalidUsage(
            f"a value of the column {where} does not fit {type_of(kind, where)}: {' '.join(str(error).split())}"
        ) from None
    return values


def _hex(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return bytes as text of hexadecimal digits, which are two for each byte, so that offsets are twice as large."""
    import numpy as np

    chunk = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    chunk = chunk.cast(pa.large_binary())
    offsets = np.frombuffer(chunk.buffers()[1], np.int64)[chunk.offset : chunk.offset + len(chunk) + 1]
    data = b"" if chunk.buffers()[2] is None else chunk.buffers()[2].slice(int(offsets[0])).to_pybytes()
    digits = pa.py_buffer(data[: int(offsets[-1] - offsets[0])].hex().encode())
    places = pa.py_buffer(np.ascontiguousarray(2 * (offsets - offsets[0])))
    texts = pa.LargeStringArray.from_buffers(len(chunk), places, digits)
    marked = pc.binary_join_element_wise(pa.scalar("\\x", pa.large_string()), texts, pa.scalar("", pa.large_string()))
    return pc.if_else(chunk.is_valid(), marked, pa.scalar(None, pa.large_string()))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind) or pt.is_binary_view(kind)
    )


def _numbers(numeric: str) -> tuple[int, int]:
    digits, _, scale = numeric.removeprefix("numeric(").rstrip(")").partition(",")
    return int(digits), int(scale or 0)
