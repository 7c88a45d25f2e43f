"""Converts values to Python objects for tables, JSON and messages, without changing them.

Python has no dates before the year 1 or after 9999, no durations beyond 2.7 million years, and nothing smaller than a
microsecond. Such values become text, as ISO 8601 writes them, moments with a zone in UTC. All other values become the
same objects as in Arrow.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY_S = 86_400
_ARROW_S = 30_000 * 31_556_952  # Arrow writes years of up to 32,767 as text.


def to_objects(array: pa.Array | pa.ChunkedArray, separator: str = "T") -> list[Any]:
    """Return the values of a column as Python objects, or as text if Python has no exact object.

    `separator`: the character between the date and the time of a text.
    """
    if isinstance(array, pa.ChunkedArray):
        return [value for chunk in array.chunks for value in to_objects(chunk, separator)]
    units, kind = {*_iterate_time_units(array.type)}, array.type
    is_nested = pat.is_nested(kind) or pat.is_dictionary(kind)
    with suppress(pa.ArrowInvalid, ValueError, OverflowError):
        if "ns" not in units:
            return array.to_pylist()  # type: ignore[no-any-return]
        if not is_nested:  # The objects of Arrow would lose nanoseconds, or need pandas.
            return array.cast(_to_microseconds(kind)).to_pylist()  # type: ignore[no-any-return]
    if is_nested:
        return [_to_object(value, separator) for value in array]
    if len(array) == 1:
        return [_to_text(array[0], separator)]
    return [value for at in range(len(array)) for value in to_objects(array.slice(at, 1), separator)]


def to_dicts(table: pa.Table | pa.RecordBatch, separator: str = "T") -> list[dict[str, Any]]:
    """Return a dict of `to_objects` for each row."""
    names = table.schema.names
    columns = [to_objects(column, separator) for column in table.columns]
    rows = zip(*columns, strict=True) if columns else [()] * table.num_rows
    return [dict(zip(names, row, strict=True)) for row in rows]


def find_unwritable(table: pa.Table | pa.RecordBatch) -> str | None:
    """Return the first column with a date or moment that Arrow cannot write as text; None without one."""
    names: list[str] = table.schema.names
    for name, column in zip(names, table.columns, strict=True):
        kind = column.type
        if pat.is_date(kind) or pat.is_timestamp(kind):
            unit = 1 / _DAY_S if pat.is_date(kind) else _PER_SECOND[kind.unit]
            numbers = column.cast(pa.date32()).cast(pa.int32()) if pat.is_date(kind) else column.cast(pa.int64())
            ends = pc.min_max(numbers).as_py()
            low, high = (ends["min"], ends["max"]) if ends["min"] is not None else (0, 0)
            if low < -_ARROW_S * unit or high > _ARROW_S * unit:
                return str(name)
    return None


def _to_object(value: pa.Scalar, separator: str) -> Any:
    """Return a value as a Python object; nested values become dicts and lists."""
    kind = value.type
    if not value.is_valid:
        return None
    if pat.is_dictionary(kind):
        return _to_object(value.value, separator)
    if pat.is_map(kind):
        entries = value.values
        return [*zip(to_objects(entries.field(0), separator), to_objects(entries.field(1), separator), strict=True)]
    if pat.is_struct(kind):
        return {field.name: _to_object(value[at], separator) for at, field in enumerate(kind)}
    if pat.is_nested(kind):
        return to_objects(value.values, separator)
    return to_objects(pa.array([value]), separator)[0]


def _iterate_time_units(kind: pa.DataType) -> Iterator[str]:
    """Yield the units of all times, timestamps and durations in a type."""
    if pat.is_dictionary(kind):
        yield from _iterate_time_units(kind.value_type)
    elif pat.is_nested(kind):
        for at in range(kind.num_fields):
            yield from _iterate_time_units(kind.field(at).type)
    elif pat.is_time(kind) or pat.is_timestamp(kind) or pat.is_duration(kind):
        yield kind.unit


def _to_microseconds(kind: pa.DataType) -> pa.DataType:
    """Return a type of times in microseconds."""
    if pat.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    return pa.time64("us") if pat.is_time(kind) else pa.duration("us")


def _to_text(value: pa.Scalar, separator: str) -> str | None:
    """Return a date, time or duration as ISO text; None for NULL."""
    kind = value.type
    if not value.is_valid:
        return None
    if pat.is_time(kind):
        return value.cast(pa.string()).as_py()  # type: ignore[no-any-return]
    if pat.is_duration(kind):
        unit = _PER_SECOND[kind.unit]
        seconds, rest = divmod(abs(value.value), unit)
        fraction = f".{rest:0{len(str(unit)) - 1}d}".rstrip("0") if rest else ""
        return f"{'-' if value.value < 0 else ''}PT{seconds}{fraction}S"
    if pat.is_date(kind):
        return _format_moment(np.datetime64(value.cast(pa.date32()).value, "D"))
    zone = "" if kind.tz is None else "Z"
    return _format_moment(np.datetime64(value.value, kind.unit)).replace("T", separator) + zone


def _format_moment(moment: np.datetime64) -> str:
    """Return a moment as text, its year with four digits or more."""
    text = str(moment)
    return f"-{text[1:].zfill(len(text[1:]) + max(0, 4 - text[1:].index('-')))}" if text[0] == "-" else text
