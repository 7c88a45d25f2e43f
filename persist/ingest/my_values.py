"""Types of MySQL and MariaDB as Arrow's, and values as the library gives them as columns.

The catalog tells the types of a table that is made; the log tells those that follow. Both come to the same here.
"""

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from persist.errors import InvalidUsage

ZERO = datetime(1970, 1, 1)
NO_TIME, SECOND = timedelta(), timedelta(seconds=1)
BINARY = "binary"  # A character set.
_DIGITS_MAX = 38
_WHOLE = {
    "tinyint": (pa.int8(), pa.uint8()), "smallint": (pa.int16(), pa.uint16()), "mediumint": (pa.int32(), pa.uint32()),
    "int": (pa.int32(), pa.uint32()), "bigint": (pa.int64(), pa.uint64()),
}  # fmt: skip
_OTHERS = {
    "float": pa.float32(), "double": pa.float64(), "year": pa.int16(), "date": pa.date32(), "bit": pa.uint64(),
    "datetime": pa.timestamp("us"), "timestamp": pa.timestamp("us", "UTC"), "time": pa.string(), "enum": pa.string(),
    "set": pa.string(), "json": pa.string(), "geometry": pa.binary(),
}  # fmt: skip
_TEXTS = {"char", "varchar", "tinytext", "text", "mediumtext", "longtext"}
_BYTES = {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "uuid", "inet4", "inet6"}
_GEOMETRIES = {"point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon", "geometrycollection"}
PADDED = {"binary", "uuid", "inet4", "inet6"}  # The log leaves zeros at their end out.
BY_CODE = {
    1: "tinyint", 2: "smallint", 3: "int", 4: "float", 5: "double", 8: "bigint", 9: "mediumint", 10: "date",
    12: "datetime", 18: "datetime", 7: "timestamp", 17: "timestamp", 11: "time", 19: "time", 13: "year", 16: "bit",
    245: "json", 246: "decimal", 247: "enum", 248: "set", 255: "geometry", 15: "varchar", 254: "char", 252: "text",
}  # fmt: skip


def arrow_type_of(kind: str, *, unsigned: bool = False, precision: int = 0, scale: int = 0) -> pa.DataType | None:
    """Return the Arrow type of a column, given the name of its type as the catalog has it; None for one unknown."""
    if kind in _WHOLE:
        return _WHOLE[kind][unsigned]
    if kind == "decimal":
        return pa.decimal128(precision, scale) if precision <= _DIGITS_MAX else pa.string()
    if kind in _TEXTS:
        return pa.string()
    if kind in _BYTES | _GEOMETRIES:
        return pa.binary()
    return _OTHERS.get(kind)


def logged_type(column: Any) -> pa.DataType | None:
    """Return the Arrow type of a column as the log describes it."""
    kind = BY_CODE.get(column.type, "")
    if kind in _TEXTS and column.character_set_name == BINARY:
        return pa.binary()
    return arrow_type_of(
        kind,
        unsigned=bool(column.unsigned),
        precision=getattr(column, "precision", 0),
        scale=getattr(column, "decimals", 0),
    )


def logged_values(columns: Sequence[Any], values: dict[str, Any], sources: dict[str, str]) -> list[Any]:
    """Return a row of the log as the values that a query would give."""
    row = []
    for column in columns:
        value = values[column.name]
        if value is None:
            if sources.get(column.name) == "empty set":
                value = ""
        elif column.type == 248:
            value = ",".join(each for each in column.set_values if each in value)
        elif column.type == 19 and value < NO_TIME:
            value = _negative(value)
        elif column.type == 16:
            value = int(value, 2)
        elif column.type == 254 and isinstance(value, bytes):
            value = value.ljust(column.max_length, b"\0")
        elif column.type == 13 and value == 1900:
            value = 0  # Years begin at 1901, and the log has none of 0000 but that.
        elif column.type in (7, 17) and value == ZERO:
            value = None  # A timestamp of zeros; the first moment that one can have is a second later.
        elif column.type == 245:
            value = json.dumps(value, default=_decoded)
        row.append(value)
    return row


def _negative(value: timedelta) -> timedelta:
    """Return a negative time as it is: the library takes the fraction of a second from the wrong end of the second."""
    fraction = -value % SECOND
    return value + 2 * fraction - SECOND if fraction else value


def _decoded(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else str(value)


def typed(values: list[Any], kind: pa.DataType, where: str) -> pa.Array:
    """Return values as the library gives them, of a query or of the log, as a column.

    Dates with zeros, which no calendar has, are NULL; times are text.

    Raises:
        InvalidUsage: a value is none of that type.
    """
    try:
        if pa.types.is_string(kind):
            return pa.array([text_of(value) for value in values], kind)
        if pa.types.is_binary(kind):
            return pa.array([value.encode() if isinstance(value, str) else value for value in values], kind)
        if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
            return pa.array([None if isinstance(value, str) else value for value in values], kind)
        if kind == pa.uint64():
            values = [int.from_bytes(value, "big") if isinstance(value, bytes) else value for value in values]
        return pa.array(values, kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise InvalidUsage(
            f"a value of {where} is no {kind}: {' '.join(str(error).split())}. Leave the column out, by exclude = "
            f'["{where}"], or copy the table again'
        ) from None


def text_of(value: Any) -> Any:
    """Return a value as text, if it is none yet; None stays."""
    if isinstance(value, timedelta):
        micros = value // timedelta(microseconds=1)
        sign, micros = ("-", -micros) if micros < 0 else ("", micros)
        seconds, micros = divmod(micros, 1_000_000)
        text = f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        return f"{text}.{micros:06d}" if micros else text
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        raise ValueError("its character set is not known")
    return value
