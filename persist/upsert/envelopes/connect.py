"""Kafka Connect's description of a message, as it stands in the "schema" part, and the logical types of Debezium.

A logical type is a name beside a primitive one: a count of days, a count of microseconds, bytes of a decimal. They
are those of Debezium's documentation, "Data type mappings", for its connectors for relational databases.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.blob import InvalidUsage
from persist.codecs import cast_column
from persist.upsert.envelopes.binary import PRECISION_MAX, from_base64, to_decimals
from persist.upsert.envelopes.columns import Reader, list_reader, reader, row_reader, values_at
from persist.upsert.envelopes.errors import Unreadable

DECIMAL = "org.apache.kafka.connect.data.Decimal"
VARIABLE_DECIMAL = "io.debezium.data.VariableScaleDecimal"
ZONED_TIMESTAMP = "io.debezium.time.ZonedTimestamp"
UNAVAILABLE = "__debezium_unavailable_value"
# What counts something: the column's own type follows from the name alone.
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
# Text that means more than text; as text it is kept where no other type is asked for, but for this one.
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
    """One field as Connect describes it.

    Attributes:
        type: primitive, or "struct", "array" or "map".
        name: of the logical type; "" for none.
        parameters: of the logical type, such as a scale.
        fields: of a struct.
        items: of an array.
    """

    type: str
    name: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, "Described"] = field(default_factory=dict)
    items: "Described | None" = None

    @classmethod
    def of(cls, schema: Any) -> "Described":
        """Read a "schema" part.

        Raises:
            Unreadable: it is none.
        """
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
    def named(cls, name: str, target: pa.DataType | None) -> "Described":
        """Return the description of a column that somebody calls a logical type, or "string"."""
        if name not in NAMES:
            raise InvalidUsage(f"{name!r} is no logical type that is known here: give one of {', '.join(NAMES)}.")
        scale = {"scale": str(target.scale)} if target is not None and pat.is_decimal(target) else {}
        kind = "string" if name in ("string", ZONED_TIMESTAMP) else "bytes" if name == DECIMAL else "int64"
        return cls(kind, "" if name == "string" else name, scale)


def described_reader(what: Described, target: pa.DataType | None, samples: list[Any], name: str) -> Reader:
    """Return how a described column is read, as `target`, or as the type that its description stands for."""
    if what.name == VARIABLE_DECIMAL:
        return _variable_decimals(target, name)
    if what.name == DECIMAL:
        return _decimals(what, target, samples, name)
    if what.name in COUNTED:
        return _cast(reader(COUNTED[what.name], samples, name), target, name)
    if what.type == "struct":
        _check_nested(what, target, pat.is_struct, name)
        inner = {
            n: described_reader(f, _field_type(target, n), values_at(samples, n), f"{name}.{n}")
            for n, f in what.fields.items()
            if target is None or target.get_field_index(n) >= 0
        }
        return _cast(row_reader(inner), target, name)
    if what.type == "array" and what.items is not None:
        _check_nested(what, target, pat.is_list, name)
        values = [value for sample in samples if isinstance(sample, list) for value in sample if value is not None]
        item = described_reader(what.items, None if target is None else target.value_type, values, name)
        return _cast(list_reader(item), target, name)
    natural = TEXTS.get(what.name) or PRIMITIVES.get(what.type)
    if natural is None:
        raise InvalidUsage(
            f"column {name!r} has the Connect type {what.type!r}, which is not read from JSON. Let the connector send "
            'text instead (such as hstore.handling.mode "json"), or leave the column out of the schema.'
        )
    if target is not None and natural == pa.binary() and not _is_bytes(target):
        raise InvalidUsage(f"column {name!r} holds bytes, and the schema has {target}: give it a type of bytes.")
    return reader(natural if target is None else target, samples, name)


def _field_type(target: pa.DataType | None, name: str) -> pa.DataType | None:
    return None if target is None else target.field(name).type


def _check_nested(what: Described, target: pa.DataType | None, fits: Callable[[pa.DataType], bool], name: str) -> None:
    if target is not None and not fits(target):
        raise InvalidUsage(f"column {name!r} holds a value of Connect type {what.type!r}, and the schema has {target}.")


def _is_bytes(target: pa.DataType) -> bool:
    return bool(pat.is_binary(target) or pat.is_large_binary(target) or pat.is_fixed_size_binary(target))


def _cast(natural: Reader, target: pa.DataType | None, name: str) -> Reader:
    if target is None or natural.target == target:
        return natural

    def convert(column: pa.Array) -> pa.Array:
        return cast_column(pa.chunked_array([natural.convert(column)]), target, name).combine_chunks()

    return Reader(natural.wire, convert, target)


def _decimals(what: Described, target: pa.DataType | None, samples: list[Any], name: str) -> Reader:
    """Return how base64 of an unscaled value is read, or the number that decimal.format NUMERIC sends."""
    scale = what.parameters.get("scale", "")
    if not scale.lstrip("-").isdigit():
        raise InvalidUsage(f"column {name!r} is a Decimal without a scale: give it a decimal type in the schema.")
    precision = what.parameters.get("connect.decimal.precision", str(PRECISION_MAX))
    natural = pa.decimal128(min(int(precision), PRECISION_MAX), int(scale))
    if samples and not isinstance(samples[0], str):
        return _cast(Reader(natural, lambda column: column, natural), target, name)
    read = Reader(pa.string(), lambda column: to_decimals(from_base64(column), natural), natural)
    return _cast(read, target, name)


def _variable_decimals(target: pa.DataType | None, name: str) -> Reader:
    if target is None or not pat.is_decimal(target):
        raise InvalidUsage(
            f"column {name!r} holds decimals of any scale ({VARIABLE_DECIMAL}): give it a decimal type in the schema."
        )

    def convert(rows: pa.Array) -> pa.Array:
        unscaled, scales = from_base64(rows.field("value")), rows.field("scale")
        result = pa.nulls(len(rows), target)
        for scale in pc.unique(scales.drop_null()).to_pylist():
            here = pc.and_(pc.equal(scales, scale), rows.is_valid()).fill_null(False)
            exact = to_decimals(unscaled.filter(here), pa.decimal128(PRECISION_MAX, scale)).cast(target)
            result = pc.replace_with_mask(result, here, exact)
        return result

    return Reader(pa.struct([("scale", pa.int32()), ("value", pa.string())]), convert, target)
