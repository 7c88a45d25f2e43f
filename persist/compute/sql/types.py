"""Types as plans name them, and what they are in Arrow and in DuckDB.

    boolean int8 … int64 uint8 … uint64 hugeint decimal(p,s) float double text blob
    date time timestamp timestamp_s timestamp_ms timestamp_ns timestamptz interval

    list(type) map(type,type) struct("name" type,…)

The fields of a struct without names, DuckDB's TUPLE, are called v1, v2, and so on. A list of a fixed length, its ARRAY,
is a list, and a UUID is a text; inside DuckDB's own expressions they keep their types.

`hugeint`, DuckDB's type of integer sums, is decimal(38,0) in Arrow. A value beyond its 38 digits raises.
"""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from persist.compute.dataflow.plan.types import is_compatible
from persist.compute.query import quote_name
from persist.core.errors import InvalidUsage
from persist.core.expression.term import INTERVAL, Call, Lit, Term

_SIMPLE = {
    "boolean": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "hugeint": pa.decimal128(38, 0),
    "float": pa.float32(),
    "double": pa.float64(),
    "text": pa.string(),
    "blob": pa.binary(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamp_s": pa.timestamp("s"),
    "timestamp_ms": pa.timestamp("ms"),
    "timestamp_ns": pa.timestamp("ns"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "interval": INTERVAL,
    "null": pa.int32(),  # DuckDB's type of an untyped NULL, too.
}
_DUCKDB = {
    "boolean": "BOOLEAN", "int8": "TINYINT", "int16": "SMALLINT", "int32": "INTEGER", "int64": "BIGINT",
    "uint8": "UTINYINT", "uint16": "USMALLINT", "uint32": "UINTEGER", "uint64": "UBIGINT", "hugeint": "HUGEINT",
    "float": "FLOAT", "double": "DOUBLE", "text": "VARCHAR", "blob": "BLOB", "date": "DATE", "time": "TIME",
    "timestamp": "TIMESTAMP", "timestamp_s": "TIMESTAMP_S", "timestamp_ms": "TIMESTAMP_MS",
    "timestamp_ns": "TIMESTAMP_NS", "timestamptz": "TIMESTAMP WITH TIME ZONE", "interval": "INTERVAL", "null": "NULL",
}  # fmt: skip
_NAMES = {name: kind for kind, name in _DUCKDB.items()}
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_EXACT = Context(prec=76)
_ESCAPED = re.compile(rb"\\x([0-9a-fA-F]{2})")  # A byte of a blob.
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


@cache
def to_arrow(kind: str) -> pa.DataType:
    """Return the Arrow type of a type of plans, such as `list(int32)`."""
    match = _DECIMAL.fullmatch(kind)
    if match:
        return pa.decimal128(int(match[1]), int(match[2]))
    form, parts = _split_nested(kind)
    if form == "list":
        return pa.list_(to_arrow(parts[0][1]))
    if form == "map":
        return pa.map_(*(to_arrow(part) for _, part in parts))
    if form == "struct":
        return pa.struct([(name, to_arrow(part)) for name, part in parts])
    return _SIMPLE[kind]


@cache
def _split_nested(kind: str) -> tuple[str, list[tuple[str, str]]]:
    """Return a nested type's kind, and the names and types of its parts.

    They are written as list(int32), map(text,list(int32)) and struct("a" int32,"b" text), with names as in JSON.
    """
    form, opening, inner = kind.partition("(")
    if form not in ("list", "map", "struct") or not opening:
        return "", []
    parts, depth, first, in_name, is_escaped = [], 0, 0, False, False
    for at, sign in enumerate(inner):
        if in_name:
            in_name = is_escaped or sign != '"'
            is_escaped = sign == "\\" and not is_escaped
            continue
        in_name = sign == '"'
        depth += (sign == "(") - (sign == ")")
        if depth < 0 or (sign == "," and not depth):
            parts.append(inner[first:at])
            first = at + 1
    if form != "struct":
        return form, [("", part) for part in parts]
    decoder = json.JSONDecoder()
    return form, [(name, part[end + 1 :]) for part in parts for name, end in [decoder.raw_decode(part)]]


def is_nested(kind: str) -> bool:
    """Return whether a type is of lists, maps or structs."""
    return bool(_split_nested(kind)[0])


def has_interval(kind: str) -> bool:
    """Return whether a type is of intervals, or has them inside."""
    return kind == "interval" or any(has_interval(part) for _, part in _split_nested(kind)[1])


def _parse_nested(form: str, parts: Iterable[tuple[str, str]]) -> str:
    """Return the name of a nested type from the names and types of its parts."""
    named = form == "struct"
    return f"{form}({','.join(f'{json.dumps(name)} {kind}' if named else kind for name, kind in parts)})"


def from_arrow(kind: pa.DataType) -> str | None:
    """Return the query type of a column's Arrow type; None if queries cannot read it."""
    if pat.is_decimal128(kind) and kind.scale >= 0:
        return f"decimal({kind.precision},{kind.scale})"
    nested = _name_nested(kind, from_arrow) if kind != INTERVAL else None
    if nested is not None:
        return nested
    return next(
        (name for name in _SIMPLE if name not in ("interval", "null") and is_compatible(kind, _SIMPLE[name])), None
    )


def _name_nested(kind: pa.DataType, of: Callable[[pa.DataType], str | None]) -> str | None:
    """Return the query type of a nested Arrow type; None for other types, or if a part has none."""
    if pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind):
        form, fields = "list", [("", kind.value_type)]
    elif pat.is_map(kind):
        form, fields = "map", [("", kind.key_type), ("", kind.item_type)]
    elif pat.is_struct(kind):
        form, fields = "struct", [(field.name, field.type) for field in kind]
    else:
        return None
    parts = [(name, of(part)) for name, part in fields]
    named = [(name, part) for name, part in parts if part is not None]
    return _parse_nested(form, named) if len(named) == len(parts) and parts else None


@cache
def name_arrow_type(kind: pa.DataType) -> str:
    """Return our name of an Arrow type; the first if several fit."""
    if pat.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    nested = _name_nested(kind, name_arrow_type) if kind != INTERVAL else None
    return nested or next(name for name, arrow_type in _SIMPLE.items() if arrow_type == kind)


def infer_arrow_type(term: Term) -> pa.DataType:
    """Return the type of a constant or a call of a query's plan."""
    assert isinstance(term, Lit | Call)
    return term.value.type if isinstance(term, Lit) else term.kind


def parse_constant(kind: str, text: str | None) -> Lit:
    """Return a constant of a type from its stored text; None is NULL."""
    return Lit(_parse_scalar(kind, to_arrow(kind), text))


def to_array(literals: Iterable[Lit], kind: pa.DataType) -> pa.Array:
    """Return constants of one type as an Arrow array."""
    return pa.array([literal.value if literal.value.is_valid else None for literal in literals], kind)


def _parse_scalar(kind: str, arrow: pa.DataType, text: str | None) -> pa.Scalar:
    """Return a constant from its text; None is NULL."""
    if text is None:
        return pa.scalar(None, arrow)
    if kind in INTEGERS:
        return pa.scalar(int(text), arrow)
    if kind == "hugeint":
        if abs(int(text)) >= 10**38:
            raise InvalidUsage(f"the number {text} has more than 38 digits; cast it to double")
        return pa.scalar(Decimal(int(text)), arrow)
    if kind.startswith("decimal"):
        return pa.scalar(_EXACT.scaleb(_EXACT.create_decimal(int(text)), -arrow.scale), arrow)
    if kind in ("double", "float"):
        return pa.scalar(float(text), arrow)
    if kind == "boolean":
        return pa.scalar(text == "true", arrow)
    if kind == "interval":
        months, days, micros = map(int, text.split(","))
        return pa.scalar(dict(zip(arrow.names, (months, days, micros), strict=True)), arrow)
    if kind == "blob":
        return pa.scalar(_ESCAPED.sub(lambda match: bytes([int(match[1], 16)]), text.encode()), arrow)
    if kind == "text":
        return pa.scalar(text, arrow)
    if text.lstrip("-").isdigit():
        return pa.scalar(int(text), pa.int64()).cast(pa.int32() if arrow.bit_width == 32 else pa.int64()).cast(arrow)
    return pa.scalar(text).cast(arrow)


def format_scalar(scalar: pa.Scalar) -> str | None:
    """Return the text that `parse_constant` reads; None for NULL."""
    if not scalar.is_valid:
        return None
    kind = scalar.type
    if pat.is_decimal(kind):
        return str(int(_EXACT.scaleb(scalar.as_py(), kind.scale)))
    if kind == INTERVAL:
        return ",".join(str(part) for part in scalar.as_py().values())
    if pat.is_boolean(kind):
        return "true" if scalar.as_py() else "false"
    if pat.is_binary(kind):
        return "".join(f"\\x{byte:02X}" for byte in scalar.as_py())
    return str(scalar.value if pat.is_temporal(kind) else scalar.as_py())


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The type of a column that queries cannot read: DuckDB binds it, and then it is refused.

    Attributes:
        why: the reason for the error.
        arrow: the column's Arrow type; None if it has none.
    """

    why: str
    arrow: pa.DataType | None = None


def to_duckdb(kind: str) -> str:
    """Return DuckDB's name of a type."""
    match = _DECIMAL.fullmatch(kind)
    if match:
        return f"DECIMAL({match[1]},{match[2]})"
    form, parts = _split_nested(kind)
    if form == "list":
        return f"{to_duckdb(parts[0][1])}[]"
    if form == "map":
        return f"MAP({', '.join(to_duckdb(part) for _, part in parts)})"
    if form == "struct":
        return f"STRUCT({', '.join(f'{quote_name(name)} {to_duckdb(part)}' for name, part in parts)})"
    return _DUCKDB[kind]


def from_duckdb_name(name: str) -> str:
    """Return the type for one of DuckDB's type names. Raises KeyError: there is none."""
    match = re.fullmatch(r"DECIMAL\((\d+),(\d+)\)", name)
    return f"decimal({match[1]},{match[2]})" if match else _NAMES[name.strip('"')]


def list_struct_fields(kind: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the names and types of the fields of a struct that DuckDB's plan describes."""
    parts = (kind.get("type_info") or {}).get("child_types")
    if not parts:
        raise InvalidUsage("values of structs without fields are not supported: leave them out")
    return [(part["first"] or f"v{number}", part["second"]) for number, part in enumerate(parts, 1)]


def from_duckdb(kind: dict[str, Any]) -> str:
    """Return the type of a type description in DuckDB's plan."""
    name = kind.get("id", "?")
    alias = (kind.get("type_info") or {}).get("alias")
    if alias not in (None, "", "JSON"):
        raise InvalidUsage(f"values of type {alias} are not supported; cast them to another type, or leave them out")
    if name == "DECIMAL":
        info = kind["type_info"]
        return f"decimal({info['width']},{info['scale']})"
    if kind.get("type_info", {}).get("collation"):
        raise InvalidUsage(f"collation {kind['type_info']['collation']!r}: texts are compared by their bytes only")
    if name in _NAMES:
        return _NAMES[name]
    info = kind.get("type_info") or {}
    if name in ("LIST", "ARRAY"):
        return _parse_nested("list", [("", from_duckdb(info["child_type"]))])
    if name == "MAP":
        return _parse_nested(
            "map", [("", from_duckdb(part["second"])) for part in info["child_type"]["type_info"]["child_types"]]
        )
    if name in ("STRUCT", "TUPLE"):
        nested = _parse_nested("struct", [(name, from_duckdb(part)) for name, part in list_struct_fields(kind)])
        if to_arrow(nested) == INTERVAL:
            raise InvalidUsage(f"a struct whose fields are {INTERVAL.names} is not supported: call them otherwise")
        return nested
    literals = {"SQLNULL": "null", "STRING_LITERAL": "text", "INTEGER_LITERAL": "int32", "UUID": "text"}
    if name in literals:
        return literals[name]
    raise InvalidUsage(f"values of type {name} are not supported; cast them to another type, or leave them out")
