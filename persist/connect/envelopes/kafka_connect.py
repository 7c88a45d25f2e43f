"""Kafka Connect's "schema" part of a message, and the logical types of Debezium.

Connect's JSON converter writes the schema before the payload, with the same bytes in each message of a table until that
table is altered. So the schema is parsed once, and the payloads of all messages that begin with it are cut out.

A logical type is a name beside a primitive type. For example, an integer is a number of days or of microseconds.
Debezium's documentation, "Data type mappings", defines them for its connectors of relational databases.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.blob.errors import InvalidUsage
from persist.codecs.order.arrays import get_boolean_values, make_boolean_array
from persist.codecs.types.arrow_types import is_bytes
from persist.connect.envelopes.json_rows import Bad
from persist.connect.envelopes.messages import (
    PRECISION_MAX,
    Reader,
    Unreadable,
    add_cast,
    choose_reader,
    decode_base64,
    list_values,
    make_list_reader,
    make_row_reader,
    to_decimals,
)

DECIMAL = "org.apache.kafka.connect.data.Decimal"
VARIABLE_DECIMAL = "io.debezium.data.VariableScaleDecimal"
ZONED_TIMESTAMP = "io.debezium.time.ZonedTimestamp"
# Counts: the logical name alone determines the column's type.
COUNTED = {
    "org.apache.kafka.connect.data.Date": pa.date32(),
    "org.apache.kafka.connect.data.Time": pa.time32("ms"),
    "org.apache.kafka.connect.data.Timestamp": pa.timestamp("ms"),
    "io.debezium.time.Date": pa.date32(),
    "io.debezium.time.Time": pa.time32("ms"),
    "io.debezium.time.MicroTime": pa.time64("us"),
    "io.debezium.time.NanoTime": pa.time64("ns"),
    "io.debezium.time.Timestamp": pa.timestamp("ms"),
    "io.debezium.time.MicroTimestamp": pa.timestamp("us"),
    "io.debezium.time.NanoTimestamp": pa.timestamp("ns"),
    "io.debezium.time.MicroDuration": pa.duration("us"),
    "io.debezium.time.NanoDuration": pa.duration("ns"),
}
# Text with a meaning; it stays text unless another type is requested, except for this one.
TEXTS = {ZONED_TIMESTAMP: pa.timestamp("us", "UTC")}
PRIMITIVES = {
    "boolean": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "float32": pa.float32(),
    "double": pa.float64(),
    "float64": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
}
NAMES = (*COUNTED, DECIMAL, VARIABLE_DECIMAL, ZONED_TIMESTAMP, "string")


@dataclass(frozen=True)
class Described:
    """A field as Connect's schema describes it, with the name and parameters of its logical type."""

    type: str
    name: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, "Described"] = field(default_factory=dict)
    items: "Described | None" = None

    @classmethod
    def of(cls, schema: Any) -> "Described":
        """Parse a message's schema part."""
        match schema:
            case {"type": str(kind)}:
                fields = schema.get("fields") or []
                if not all(isinstance(f, dict) and isinstance(f.get("field"), str) for f in fields):
                    raise Unreadable("its schema has a field without a name")
                items = cls.of(schema["items"]) if kind == "array" and "items" in schema else None
                inner = {f["field"]: cls.of(f) for f in fields}
                return cls(kind, schema.get("name") or "", schema.get("parameters") or {}, inner, items)
        raise Unreadable(f"its schema is {schema!r:.60}, which Kafka Connect does not write")

    @classmethod
    def for_logical_type(cls, name: str, target: pa.DataType | None) -> "Described":
        """Return the description for a logical type that the user named, or "string"."""
        if name not in NAMES:
            raise InvalidUsage(f"{name!r} is not a logical type that is known here: give one of {', '.join(NAMES)}.")
        scale = {"scale": str(target.scale)} if target is not None and pat.is_decimal(target) else {}
        kind = "string" if name in ("string", ZONED_TIMESTAMP) else "bytes" if name == DECIMAL else "int64"
        return cls(kind, "" if name == "string" else name, scale)


def make_reader(described: Described, target: pa.DataType | None, samples: list[Any], name: str) -> Reader:
    """Return the reader of a described column: as type `target`, or by default as its natural type."""
    if described.name == VARIABLE_DECIMAL:
        return _make_variable_decimal_reader(target, name)
    if described.name == DECIMAL:
        return _make_decimal_reader(described, target, samples, name)
    if described.name in COUNTED:
        return add_cast(choose_reader(COUNTED[described.name], samples, name), target, name)
    if described.type == "struct":
        _check_nested(described, target, pat.is_struct, name)
        inner = {
            n: make_reader(f, None if target is None else target.field(n).type, list_values(samples, n), f"{name}.{n}")
            for n, f in described.fields.items()
            if target is None or target.get_field_index(n) >= 0
        }
        return add_cast(make_row_reader(inner), target, name)
    if described.type == "array" and described.items is not None:
        _check_nested(described, target, pat.is_list, name)
        values = [value for sample in samples if isinstance(sample, list) for value in sample if value is not None]
        item = make_reader(described.items, None if target is None else target.value_type, values, name)
        return add_cast(make_list_reader(item), target, name)
    natural = TEXTS.get(described.name) or PRIMITIVES.get(described.type)
    if natural is None:
        raise InvalidUsage(
            f"column {name!r} has the Connect type {described.type!r}, which is not read from JSON. Let the connector "
            'send text instead (such as hstore.handling.mode "json"), or leave the column out of the schema.'
        )
    if target is not None and natural == pa.binary() and not is_bytes(target):
        raise InvalidUsage(f"column {name!r} holds bytes, and the schema has {target}: give it a type of bytes.")
    return choose_reader(natural if target is None else target, samples, name)


def _check_nested(
    described: Described, target: pa.DataType | None, fits: Callable[[pa.DataType], bool], name: str
) -> None:
    """Raise InvalidUsage if a nested value does not fit the column's type."""
    if target is not None and not fits(target):
        raise InvalidUsage(
            f"column {name!r} holds a value of Connect type {described.type!r}, and the schema has {target}."
        )


def _make_decimal_reader(described: Described, target: pa.DataType | None, samples: list[Any], name: str) -> Reader:
    """Return a reader of decimals: base64, or numbers if decimal.format is NUMERIC."""
    scale = described.parameters.get("scale", "")
    if not scale.lstrip("-").isdigit():
        raise InvalidUsage(f"column {name!r} is a Decimal without a scale: give it a decimal type in the schema.")
    precision = described.parameters.get("connect.decimal.precision", str(PRECISION_MAX))
    natural = pa.decimal128(min(int(precision), PRECISION_MAX), int(scale))
    if samples and not isinstance(samples[0], str):
        return add_cast(Reader(natural, lambda column: column, natural), target, name)
    read = Reader(pa.string(), lambda column: to_decimals(decode_base64(column), natural), natural)
    return add_cast(read, target, name)


def _make_variable_decimal_reader(target: pa.DataType | None, name: str) -> Reader:
    """Return a reader of Connect's decimals with a scale for each row."""
    if target is None or not pat.is_decimal(target):
        raise InvalidUsage(
            f"column {name!r} holds decimals of any scale ({VARIABLE_DECIMAL}): give it a decimal type in the schema."
        )

    def convert(rows: pa.Array) -> pa.Array:
        """Convert the decimals of each scale."""
        unscaled, scales = decode_base64(rows.field("value")), rows.field("scale")
        result = pa.nulls(len(rows), target)
        for scale in pc.unique(scales.drop_null()).to_pylist():
            has_scale = pc.and_(pc.equal(scales, scale), rows.is_valid()).fill_null(False)
            exact = to_decimals(unscaled.filter(has_scale), pa.decimal128(PRECISION_MAX, scale)).cast(target)
            result = pc.replace_with_mask(result, has_scale, exact)
        return result

    return Reader(pa.struct([("scale", pa.int32()), ("value", pa.string())]), convert, target)


SCHEMA_FIRST = r'^\s*\{\s*"schema"\s*:\s*(\{|null)'
PAYLOAD_FIRST = r'^\s*\{\s*"payload"\s*:\s*(\{|null)'


class _SchemaAndPayload(msgspec.Struct):
    """A message with Connect's schema part; both members stay raw JSON."""

    payload: msgspec.Raw
    schema: msgspec.Raw = msgspec.Raw(b"null")


@dataclass(frozen=True, slots=True)
class Group:
    """Messages with the same schema part: their numbers and payloads; `described` is None without a schema."""

    rows: np.ndarray
    texts: pa.Array
    described: Described | None


@dataclass(frozen=True, slots=True)
class UnwrappedMessages:
    """Messages grouped by schema part; the numbers of those with a null payload; bad ones."""

    groups: list[Group]
    empty: np.ndarray
    bad: list[Bad]


def unwrap_messages(texts: pa.Array, rows: np.ndarray) -> UnwrappedMessages:
    """Separate messages into schema part and payload; group them by schema. `rows`: their numbers."""
    schema_first = get_boolean_values(pc.match_substring_regex(texts, SCHEMA_FIRST))
    payload_first = get_boolean_values(pc.match_substring_regex(texts, PAYLOAD_FIRST))
    plain = ~(schema_first | payload_first)
    groups, bad = [], list[Bad]()
    if plain.any():
        groups.append(Group(rows[plain], _select(texts, plain), None))
    _split_by_schema_bytes(_select(texts, schema_first), rows[schema_first], groups, bad)
    _split_one_by_one(_select(texts, payload_first), rows[payload_first], groups, bad)
    groups_with_rows, empty = [], [np.empty(0, np.int64)]
    for group in groups:
        null = get_boolean_values(pc.equal(group.texts, b"null"))
        empty.append(group.rows[null])
        if not null.all():
            groups_with_rows.append(Group(group.rows[~null], _select(group.texts, ~null), group.described))
    return UnwrappedMessages(groups_with_rows, np.concatenate(empty), bad)


def _split_by_schema_bytes(texts: pa.Array, rows: np.ndarray, groups: list[Group], bad: list[Bad]) -> None:
    """Add messages that begin with the same schema to one group, by comparing bytes."""
    while len(texts):
        first = texts[0].as_py()
        try:
            outer = msgspec.json.decode(first, type=_SchemaAndPayload)
            described = _parse_description(outer)
            schema, payload = bytes(outer.schema), bytes(outer.payload)
            start = first.find(payload, first.find(schema) + len(schema))
            end = first[start + len(payload) :]
        except (msgspec.MsgspecError, Unreadable, UnicodeDecodeError) as error:
            bad.append(Bad(int(rows[0]), _format_reason(error)))
            texts, rows = texts.slice(1), rows[1:]
            continue
        same = get_boolean_values(pc.and_(pc.starts_with(texts, first[:start]), pc.ends_with(texts, end)))
        payloads = pc.binary_slice(_select(texts, same), start, -len(end))
        groups.append(Group(rows[same], payloads, described))
        texts, rows = _select(texts, ~same), rows[~same]


def _split_one_by_one(texts: pa.Array, rows: np.ndarray, groups: list[Group], bad: list[Bad]) -> None:
    """Add messages whose payload comes before the schema to groups, one by one."""
    by_schema: dict[bytes, tuple[Described | None, list[int], list[bytes]]] = {}
    for row, text in zip(rows.tolist(), texts.to_pylist(), strict=True):
        try:
            outer = msgspec.json.decode(text, type=_SchemaAndPayload)
            schema = bytes(outer.schema)
            if schema not in by_schema:
                by_schema[schema] = (_parse_description(outer), [], [])
        except (msgspec.MsgspecError, Unreadable, UnicodeDecodeError) as error:
            bad.append(Bad(row, _format_reason(error)))
            continue
        by_schema[schema][1].append(row)
        by_schema[schema][2].append(bytes(outer.payload))
    for described, numbers, payloads in by_schema.values():
        groups.append(Group(np.array(numbers, np.int64), pa.array(payloads, pa.large_binary()), described))


def _parse_description(outer: _SchemaAndPayload) -> Described | None:
    """Return the parsed schema part of a message; None if it is null."""
    schema = msgspec.json.decode(outer.schema)
    return None if schema is None else Described.of(schema)


def _format_reason(error: Exception) -> str:
    """Return the reason why a message is bad."""
    return str(error) if isinstance(error, Unreadable) else f"it is not JSON: {error}"


def _select(array: pa.Array, mask: npt.NDArray[np.bool_]) -> pa.Array:
    """Return the values that a mask selects."""
    return array if mask.all() else array.filter(make_boolean_array(mask))
