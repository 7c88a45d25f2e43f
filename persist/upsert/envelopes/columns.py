"""How a column of a message becomes a column of a collection: what JSON holds, and what that stands for.

JSON has numbers, texts, booleans and nothing else, so which of these a producer sends for a date or a decimal is
looked up in a few of its messages. If others of its messages hold something else, they are read again apart.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.blob import InvalidUsage
from persist.upsert.envelopes.messages import Unreadable, from_base64

SAMPLES = 24


@dataclass(frozen=True, slots=True)
class Reader:
    """How one column is read.

    Attributes:
        wire: what `pyarrow.json` is to read.
        convert: makes of that what the column holds; raises where a value is bad.
        target: the type of what it makes.
    """

    wire: pa.DataType
    convert: Callable[[pa.Array], pa.Array]
    target: pa.DataType


def samples_of(texts: pa.Array) -> list[dict[str, Any]]:
    """Return some of the documents as Python values, from all over; those that are no objects are left out."""
    places = {
        *range(min(len(texts), SAMPLES // 2)),
        *(len(texts) * n // SAMPLES for n in range(SAMPLES if len(texts) else 0)),
    }
    documents = []
    for place in sorted(places):
        try:
            document = json.loads(texts[place].as_py())
        except ValueError:
            continue
        if isinstance(document, dict):
            documents.append(document)
    return documents


def values_at(samples: Iterable[Any], *path: str) -> list[Any]:
    """Return what samples hold at a path, without what is missing or null."""
    values = list(samples)
    for name in path:
        values = [sample[name] for sample in values if isinstance(sample, dict) and sample.get(name) is not None]
    return values


def row_reader(readers: Mapping[str, Reader]) -> Reader:
    """Return what reads objects with certain members; a missing one is NULL, others are passed over."""
    names = list(readers)
    wire = pa.struct([(name, reader.wire) for name, reader in readers.items()])
    target = pa.struct([(name, reader.target) for name, reader in readers.items()])

    def convert(rows: pa.Array) -> pa.Array:
        columns = [_named(name, readers[name].convert, rows.field(name)) for name in names]
        fields = [pa.field(name, column.type) for name, column in zip(names, columns, strict=True)]
        return pa.StructArray.from_arrays(columns, fields=fields, mask=rows.is_null())

    return Reader(wire, convert, target)


def _named(name: str, convert: Callable[[pa.Array], pa.Array], column: pa.Array) -> pa.Array:
    try:
        return convert(column)
    except (Unreadable, pa.ArrowException) as error:
        raise Unreadable(f"in column {name!r}: {error}") from error


def list_reader(element: Reader) -> Reader:
    """Return what reads arrays of what `element` reads."""

    def convert(lists: pa.Array) -> pa.Array:
        values = element.convert(lists.values)
        return pa.ListArray.from_arrays(lists.offsets, values, mask=lists.is_null() if lists.null_count else None)

    return Reader(pa.list_(element.wire), convert, pa.list_(element.target))


def reader(
    target: pa.DataType, samples: list[Any], name: str, binary: Callable[[pa.Array], pa.Array] = from_base64
) -> Reader:
    """Return how a column of type `target` is read where nothing but the samples tells what producers send.

    Numbers for moments count the units of `target`; text for bytes is what `binary` reads.
    """
    if pat.is_struct(target):
        inner = {f.name: reader(f.type, values_at(samples, f.name), f"{name}.{f.name}", binary) for f in target}
        return _cast_after(row_reader(inner), target)
    if pat.is_list(target) or pat.is_large_list(target) or pat.is_fixed_size_list(target):
        values = [value for sample in samples if isinstance(sample, list) for value in sample if value is not None]
        return _cast_after(list_reader(reader(target.value_type, values, name, binary)), target)
    if pat.is_map(target):
        raise InvalidUsage(
            f"column {name!r} is a map, and maps are not read from JSON. Give it type string or a struct, and let the "
            "connector send it so."
        )
    wire, convert = _flat(target, _kind(samples), binary)
    return Reader(wire, convert, target)


def _cast_after(inner: Reader, target: pa.DataType) -> Reader:
    return Reader(inner.wire, lambda column: inner.convert(column).cast(target), target)


def _kind(samples: list[Any]) -> str:
    match samples:
        case [bool(), *_]:
            return "boolean"
        case [int() | float(), *_]:
            return "number"
        case [str(), *_]:
            return "text"
    return "unknown"


def _flat(
    target: pa.DataType, kind: str, binary: Callable[[pa.Array], pa.Array]
) -> tuple[pa.DataType, Callable[[pa.Array], pa.Array]]:
    text = kind == "text"
    if pat.is_null(target):  # Nothing declares the column, and no message of this call has a value in it.
        return target, _same
    if pat.is_boolean(target):
        by_kind = {"number": (pa.int64(), _truth), "text": (pa.string(), lambda column: column.cast(target))}
        return by_kind.get(kind, (target, _same))
    if pat.is_integer(target) or pat.is_floating(target):
        wire = pa.string() if text else pa.bool_() if kind == "boolean" else target
        wire = pa.float32() if pat.is_float16(wire) else wire
        return wire, lambda column: column.cast(target)
    if pat.is_decimal(target):
        return target, _same  # Arrow reads both numbers and text, and refuses what it would have to round.
    if pat.is_binary(target) or pat.is_large_binary(target) or pat.is_fixed_size_binary(target):
        return pa.string(), lambda column: _bytes(binary(column), target)
    if pat.is_timestamp(target):
        return (pa.int64(), lambda column: column.cast(target)) if kind == "number" else (pa.string(), _moments(target))
    if pat.is_date(target) or pat.is_time(target) or pat.is_duration(target):
        return (pa.string(), _from_text(target)) if text else _counted(target)
    return pa.string(), lambda column: column.cast(target)


def _same(column: pa.Array) -> pa.Array:
    return column


def _truth(numbers: pa.Array) -> pa.Array:
    if not pc.all(pc.and_(pc.greater_equal(numbers, 0), pc.less_equal(numbers, 1)), min_count=0).as_py():
        raise Unreadable("a boolean is a number other than 0 and 1")
    return numbers.cast(pa.bool_())


def _bytes(column: pa.Array, target: pa.DataType) -> pa.Array:
    return column.cast(pa.binary()).cast(target)


def _counted(target: pa.DataType) -> tuple[pa.DataType, Callable[[pa.Array], pa.Array]]:
    """Return how days, or units of a day, are read from numbers."""
    if pat.is_date(target):
        return pa.int32(), lambda column: column.cast(pa.date32()).cast(target)
    wire = pa.int32() if pat.is_time32(target) else pa.int64()
    return wire, lambda column: _within_a_day(column.cast(target))


def _within_a_day(column: pa.Array) -> pa.Array:
    if pat.is_time(column.type):
        ticks = column.cast(pa.int32() if pat.is_time32(column.type) else pa.int64())
        last = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}[column.type.unit] - 1
        within = pc.and_(pc.greater_equal(ticks, 0), pc.less_equal(ticks, last))
        if not pc.all(within, min_count=0).as_py():
            raise Unreadable("a time of day is not within one day")
    return column


def _from_text(target: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    if pat.is_duration(target):
        raise InvalidUsage(f"text is not read as {target}: give the column type string.")
    plain = pa.date32() if pat.is_date64(target) else target
    return lambda column: column.cast(plain).cast(target)


def _moments(target: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    """Return what reads ISO 8601; text without a zone stands for UTC in a column with one."""

    def convert(texts: pa.Array) -> pa.Array:
        if target.tz is None:
            return texts.cast(target)
        zoned = pc.match_substring_regex(texts, r"(Z|[+-]\d\d:?(\d\d)?)$")
        utc = pc.if_else(zoned, texts, pc.binary_join_element_wise(texts, "Z", ""))
        return utc.cast(target)

    return convert
