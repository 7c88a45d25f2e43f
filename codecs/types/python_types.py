"""Converts a caller's description of a schema's fields to names with Arrow types.

    a dict             of names to types: `{"id": int, "name": "string", "at": datetime, "n": pa.int32()}`
    a pa.Schema        or anything that exports one: a Polars schema or frame, a table, a reader
    a pandas frame     or its `dtypes`
    a dataclass        or a TypedDict: its annotations

    a type             pa.DataType, a name as Arrow writes it, a Python type, or a dtype of numpy, pandas or Polars; or
                       a pa.Field, which may be not null

Python's types: bool, int (int64), float (float64), str, bytes, date, datetime (timestamp[us, tz=UTC]), time
(time64[us]), timedelta (duration[us]), UUID (fixed_size_binary[16]), `list[T]`, `dict[K, V]` (a map). Dataclasses and
TypedDicts become structs; `T | None`, string and integer enums are supported, and `Annotated[T, pa_type]` names any
other type.

Encodings are not types: a dictionary-encoded or run-end encoded type is stored as the type of its values, a view as the
type without "view", a small decimal as decimal128, and a UUID as its 16 bytes. Arrow's JSON is a type of
whole columns, and text inside of others.
"""

import dataclasses
import datetime as dt
import sys
from collections.abc import Mapping
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints, is_typeddict
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from persist.codecs.errors import SchemaMismatch
from persist.codecs.types.arrow_types import JSON, decode_type, is_flat, list_inner_fields, replace_inner_types

_PYTHON: dict[type, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    bytearray: pa.binary(),
    dt.datetime: pa.timestamp("us", tz="UTC"),
    dt.date: pa.date32(),
    dt.time: pa.time64("us"),
    dt.timedelta: pa.duration("us"),
    UUID: pa.binary(16),
}
_STORED_EXTENSIONS = frozenset({"arrow.uuid", "arrow.json"})
_NESTED = ("large_list", "list", "map", "struct")


class _Unknown(ValueError):
    """Raised for an unsupported type; the message has the reason."""


def parse_fields(spec: Any, side: str) -> list[tuple[Any, pa.DataType, bool]]:
    """Return the names, plain types and nullability of the fields that a caller describes, in order.

    Fields are nullable, unless an Arrow field declares otherwise.

    `side`: "key" or "value", or "schema" for both, for messages.
    """
    pairs = _list_fields(spec)
    if pairs is None:
        if side == "schema":
            raise SchemaMismatch(
                f"{spec!r:.80} has no columns with names: give a frame, a table, a list of dicts, a dict of names and "
                "types, a schema of pyarrow, Polars or pandas, or a dataclass"
            )
        raise SchemaMismatch(
            f"the {side} is {spec!r:.80}: give a dict of names and types, a schema of pyarrow, Polars or pandas, a "
            "dataclass, a Codec, or None for no column at all"
        )
    if not pairs:
        none = "" if side == "schema" else ", or None for no column at all"
        raise SchemaMismatch(f"the {side} has no columns: give at least one{none}")
    return [_parse_field(name, declared, f"{side} field {name!r:.80}") for name, declared in pairs]


def _parse_field(name: Any, value: Any, where: str) -> tuple[Any, pa.DataType, bool]:
    """Return name, Arrow type and nullability of a described field."""
    if not isinstance(value, pa.Field):
        return name, to_arrow_type(value, where), True
    if value.name not in ("", name):
        raise SchemaMismatch(
            f"{where} is given as a field {value.name!r}: call both alike, or leave the field's name empty"
        )
    return name, to_arrow_type(value.type, where), value.nullable


def to_arrow_type(value: Any, where: str) -> pa.DataType:
    """Return the Arrow type that stores values of a Python or library type; `where` names the field in errors."""
    try:
        converted = _convert_type(value)
        is_json = getattr(converted, "extension_name", None) == JSON.extension_name
        return JSON if is_json else get_stored_type(converted)
    except _Unknown as error:
        raise SchemaMismatch(
            f"{where} has {value!r:.80} for a type{error}: give the name of a type of Arrow, such as int64, float64, "
            "string, date32 or timestamp[us, tz=UTC]; in Python, the type itself, or one of Python, such as int or str"
        ) from error


@lru_cache(maxsize=1024)
def get_stored_type(t: pa.DataType) -> pa.DataType:
    """Return a type without encodings such as dictionaries, at all depths."""
    if pat.is_dictionary(t) or pat.is_run_end_encoded(t):
        return get_stored_type(t.value_type)
    if pat.is_list_view(t) or pat.is_large_list_view(t):
        return (pa.list_ if pat.is_list_view(t) else pa.large_list)(get_stored_type(t.value_type))
    if pat.is_decimal32(t) or pat.is_decimal64(t):
        return pa.decimal128(t.precision, t.scale)
    if pat.is_string_view(t):
        return pa.string()
    if pat.is_binary_view(t):
        return pa.binary()
    if isinstance(t, pa.BaseExtensionType):
        return get_stored_type(t.storage_type) if t.extension_name in _STORED_EXTENSIONS else t
    if is_flat(t):
        return t
    inner = [f.type for f in list_inner_fields(t)]
    stored = [get_stored_type(inner_type) for inner_type in inner]
    return t if stored == inner else replace_inner_types(t, stored)


def _list_fields(spec: Any) -> list[tuple[Any, Any]] | None:
    """Return the described fields as names and types; None if not fields."""
    if isinstance(spec, pa.Schema):
        return [(f.name, f) for f in spec]
    if isinstance(spec, type):
        is_one = dataclasses.is_dataclass(spec) or is_typeddict(spec)
        return [*_get_annotations(spec).items()] if is_one else None
    if hasattr(spec, "columns") and hasattr(spec, "iloc"):  # A pandas frame: an empty one only provides the types.
        return [(f.name, f.type) for f in pa.Schema.from_pandas(spec, preserve_index=False)]
    if hasattr(spec, "__arrow_c_schema__"):
        return [(f.name, f) for f in pa.schema(spec)]
    if hasattr(spec, "__arrow_c_stream__") and not hasattr(spec, "iloc"):
        return [(f.name, f) for f in pa.RecordBatchReader.from_stream(spec).schema]
    if isinstance(spec, Mapping) or hasattr(spec, "iloc"):  # The `dtypes` of a pandas frame are one of its series.
        return [*spec.items()]
    return None


def _get_annotations(kind: type) -> dict[str, Any]:
    """Return the types of a dataclass's or TypedDict's fields, by name."""
    hints = get_type_hints(kind, include_extras=True)
    return {f.name: hints[f.name] for f in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else hints


def _convert_type(value: Any) -> pa.DataType:
    """Return the Arrow type of a Python type or a name."""
    if isinstance(value, pa.DataType):
        return value
    if isinstance(value, str):
        return _parse_name(value)
    if get_origin(value) is not None:
        return _convert_generic(get_origin(value), get_args(value))
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        try:
            return pa.from_numpy_dtype(value)
        except pa.ArrowException as error:
            raise _Unknown(", of which only the values tell what they are") from error
    package = (value if isinstance(value, type) else type(value)).__module__.partition(".")[0]
    if package in ("pandas", "polars"):
        return _convert_frame_type(value, package)
    return _convert_class(value) if isinstance(value, type) else _raise_unknown()


def _convert_class(class_: type) -> pa.DataType:
    """Return the Arrow type of a Python class."""
    if (kind := _PYTHON.get(class_)) is not None:
        return kind
    if class_ is Decimal:
        raise _Unknown(', which says nothing of its digits (write "decimal128(38, 10)")')
    if dataclasses.is_dataclass(class_) or is_typeddict(class_):
        return pa.struct([(name, _convert_type(inner)) for name, inner in _get_annotations(class_).items()])
    if issubclass(class_, Enum) and issubclass(class_, (str, int)):
        return pa.string() if issubclass(class_, str) else pa.int64()
    return _raise_unknown()


def _convert_generic(origin: Any, inner: tuple[Any, ...]) -> pa.DataType:
    """Return the Arrow type of a generic such as `list[int]`."""
    if origin is Annotated:
        return next(
            (inner_type for inner_type in inner[1:] if isinstance(inner_type, pa.DataType)), None
        ) or _convert_type(inner[0])
    if origin in (Union, UnionType):
        kinds = [inner_type for inner_type in inner if inner_type is not NoneType]
        return _convert_type(kinds[0]) if len(kinds) == 1 else _raise_unknown(", which may be any of several types")
    if origin is list and len(inner) == 1:
        return pa.list_(_convert_type(inner[0]))
    if origin is dict and len(inner) == 2:
        return pa.map_(_convert_type(inner[0]), _convert_type(inner[1]))
    return _raise_unknown()


def _convert_frame_type(value: Any, package: str) -> pa.DataType:
    """Return the Arrow type of a pandas or Polars type."""
    library: Any = sys.modules[package]
    try:
        if package == "polars":
            return pa.schema(library.Schema({"it": value})).field(0).type
        arrow_type = pa.Schema.from_pandas(library.DataFrame({"it": library.Series([], dtype=value)})).field(0).type
    except Exception as error:  # Libraries may raise anything for other objects.
        raise _Unknown(f", of which Arrow has none ({error})") from error
    return arrow_type


def _parse_name(name: str) -> pa.DataType:
    """Return the Arrow type that has this name."""
    try:
        return decode_type(name)
    except ValueError:
        pass
    kind, _, arguments = name.strip().partition("<")
    if kind in _NESTED and arguments.endswith(">"):
        return _parse_nested(kind, _split_at_commas(arguments[:-1]))
    try:
        return pa.type_for_alias(name)
    except ValueError:
        return _raise_unknown(", and no type is called that")


def _parse_nested(kind: str, inner: list[str]) -> pa.DataType:
    """Return the Arrow type of a name such as "list<int64>"."""
    if kind == "struct":
        fields = [text.partition(":") for text in inner]
        return pa.struct([(name.strip(), _parse_name(of.strip())) for name, _, of in fields])
    if kind == "map" and len(inner) == 2:
        return pa.map_(*[_parse_name(text) for text in inner])
    if kind in ("list", "large_list") and len(inner) == 1:
        item = _parse_name(inner[0].removeprefix("item:").strip())
        return pa.large_list(item) if kind == "large_list" else pa.list_(item)
    return _raise_unknown()


def _split_at_commas(text: str) -> list[str]:
    """Return the pieces between the commas of a text, ignoring commas in brackets."""
    pieces, depth = [""], 0
    for letter in text:
        depth += (letter in "<([") - (letter in ">)]")
        if letter == "," and not depth:
            pieces.append("")
        else:
            pieces[-1] += letter
    return [piece.strip() for piece in pieces]


def _raise_unknown(why: str = "") -> pa.DataType:
    """Raise the error for an unsupported type."""
    raise _Unknown(why)
