"""The Arrow types that a field may have, and the JSON form of types and single flat values.

`docs/inside/format.md` has both forms (under "Schemas" and "Parts"). A type has exactly one form, and reading it
returns the *plain* type: inner fields nullable, without metadata, list items named "item". So two schemas are equal
exactly when their JSON is. A value's form is read with its type. Rejected: Arrow's IPC form of types, which is binary,
carries metadata, and has several forms for one type.

Not supported, with the reason: intervals and `null` (Arrow cannot order them), extension types (Arrow does not define
their meaning; JSON is the exception), and types that Parquet cannot hold: structs without fields, fixed sizes of 0,
decimals with a scale below 0 or above their precision, decimal32 and decimal64 (Parquet returns decimal128). Unions,
run-end encodings and dictionaries are not types but encodings, and Parquet returns views without "view"; `python_types`
uses the type of the values where it can.
"""

import base64
import decimal
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, total_ordering
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from persist.codecs.errors import SchemaMismatch

# Documents of JSON, stored and compared as text. A type of whole value columns: inside of others they are plain text.
JSON: pa.DataType = pa.json_(pa.string())
Json = None | bool | int | float | str | list[Any] | dict[str, Any]

DEPTH_MAX = 16
SUPPORTED = (
    "bool, int8 to int64, uint8 to uint64, float16, float32, float64, decimal128, decimal256, string, large_string, "
    "binary, large_binary, fixed_size_binary, date32, date64, time32, time64, timestamp, duration, and list, "
    f"large_list, fixed_size_list, struct and map of these, nested up to {DEPTH_MAX} deep"
)

_NAMES = {
    name: pa.type_for_alias(name)
    for name in [
        "bool",
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
        *(f"float{bits}" for bits in (16, 32, 64)),
        *(f"{large}{kind}" for kind in ("string", "binary") for large in ("", "large_")),
        *("date32", "date64", "time32[s]", "time32[ms]", "time64[us]", "time64[ns]"),
        *(f"{kind}[{unit}]" for kind in ("timestamp", "duration") for unit in ("s", "ms", "us", "ns")),
    ]
}
_NAME_OF = {arrow_type: name for name, arrow_type in _NAMES.items()}
_ZONED = re.compile(r"timestamp\[(s|ms|us|ns), tz=([A-Za-z0-9_+:/-]{1,64})\]")
_DECIMAL = re.compile(r"decimal(128|256)\((0|[1-9][0-9]*), (0|[1-9][0-9]*)\)")
_FIXED_BINARY = re.compile(r"fixed_size_binary\[([1-9][0-9]{0,8})\]")
_FIXED_SIZE_MAX = 2**31 - 1


def encode_type(t: pa.DataType) -> Json:
    """Return the JSON form of a supported type; raises ValueError for any other type."""
    return "json" if t == JSON else _encode_type(t, 1)


def decode_type(j: Json) -> pa.DataType:
    """Return the plain type with the JSON form `j`; raises ValueError for an invalid form."""
    return JSON if j == "json" else _decode_type(j, 1)


def format_type(t: pa.DataType) -> str:
    """Return a type's name for messages."""
    return "json" if t == JSON else str(t)


def check_type(t: pa.DataType, where: str) -> None:
    """Raise SchemaMismatch if a field cannot have type `t`.

    Args:
        t: the type.
        where: the owner of the type for the message, such as "key field 'id'".
    """
    if not isinstance(t, pa.DataType):
        raise SchemaMismatch(f"{where} has {t!r} for a type: give a pyarrow type, such as pa.int64() or pa.string()")
    try:
        encode_type(t)
        _check_zones(t)
    except ValueError as error:
        raise SchemaMismatch(f"{where} has type {t}, and {error}. Supported are {SUPPORTED}.") from error


@lru_cache(maxsize=1024)
def is_flat(t: pa.DataType) -> bool:
    """Return whether a value of type `t` is one scalar rather than a list, struct or map of others."""
    return not pat.is_nested(t)


def contains_map(t: pa.DataType) -> bool:
    """Return whether `t` is a map or contains one."""
    return not is_flat(t) and (pat.is_map(t) or any(contains_map(field.type) for field in list_inner_fields(t)))


def is_number(t: pa.DataType) -> bool:
    """Return whether `t` is one of the integers or floats."""
    return bool(pat.is_integer(t) or pat.is_floating(t))


def is_text(t: pa.DataType) -> bool:
    """Return whether values of `t` are strings or bytes of any length."""
    return bool(pat.is_string(t) or pat.is_large_string(t) or pat.is_binary(t) or pat.is_large_binary(t))


def is_bytes(t: pa.DataType) -> bool:
    """Return whether values of `t` are bytes."""
    return bool(pat.is_binary(t) or pat.is_large_binary(t) or pat.is_binary_view(t) or pat.is_fixed_size_binary(t))


@lru_cache(maxsize=1024)
def has_floats(t: pa.DataType) -> bool:
    """Return whether a value of type `t` is or contains a float, which has more bit patterns than values."""
    return any(map(pat.is_floating, list_leaf_types(t)))


def list_inner_fields(t: pa.DataType) -> list[pa.Field]:
    """Return the fields directly inside a nested type: the items of a list, key and value of a map."""
    if pat.is_map(t):
        return [t.key_field, t.item_field]
    return [t.field(i) for i in range(t.num_fields)]


def iterate_leaf_arrays(array: pa.Array) -> Iterator[pa.Array]:
    """Yield the flat arrays inside a nested one, without values under NULL."""
    t = array.type
    if is_flat(t):
        yield array
    elif pat.is_struct(t):
        for inner in array.flatten():
            yield from iterate_leaf_arrays(inner)
    elif pat.is_map(t):
        pairs = pa.struct([("key", t.key_type), ("value", t.item_type)])
        yield from iterate_leaf_arrays(array.cast(pa.list_(pairs)).flatten())
    else:
        yield from iterate_leaf_arrays(array.flatten())


def list_leaf_types(t: pa.DataType) -> list[pa.DataType]:
    """Return the flat types in a type, in order (itself if it is flat); Parquet has a column for each."""
    return [t] if is_flat(t) else [leaf for f in list_inner_fields(t) for leaf in list_leaf_types(f.type)]


def list_inner_arrays(array: pa.Array) -> list[pa.Array]:
    """Return the arrays directly inside; of a sliced list, every element."""
    if pat.is_struct(array.type):
        return [array.field(at) for at in range(array.type.num_fields)]
    return [array.keys, array.items] if pat.is_map(array.type) else [array.values]


def rebuild_nested(array: pa.Array, t: pa.DataType, inner: Sequence[pa.Array]) -> pa.Array:
    """Return a nested array of type `t` with other arrays inside."""
    if pat.is_struct(t):
        return pa.StructArray.from_arrays(inner, fields=[*t], mask=array.is_null())
    if pat.is_map(t):  # Keys and items are arrays of the whole column, like the values of a list.
        inner = [pa.StructArray.from_arrays(inner, fields=[t.key_field, t.item_field])]
    buffers = array.buffers()[: 1 if pat.is_fixed_size_list(t) else 2]
    return pa.Array.from_buffers(t, len(array), buffers, offset=array.offset, children=[*inner])


def replace_inner_types(t: pa.DataType, inner: Sequence[pa.DataType | pa.Field]) -> pa.DataType:
    """Return the nested type `t` with other inner types or fields, in the order of `list_inner_fields`."""
    if pat.is_map(t):
        return pa.map_(*inner)
    if pat.is_struct(t):
        pairs = zip(list_inner_fields(t), inner, strict=True)
        return pa.struct([i if isinstance(i, pa.Field) else pa.field(f.name, i) for f, i in pairs])
    if pat.is_fixed_size_list(t):
        return pa.list_(inner[0], t.list_size)
    return pa.large_list(inner[0]) if pat.is_large_list(t) else pa.list_(inner[0])


def _encode_type(t: pa.DataType, depth: int) -> Json:
    """Return the JSON form of a type; `depth`: its nesting level."""
    if is_flat(t):
        return _encode_flat_type(t)
    if depth > DEPTH_MAX:
        raise ValueError(f"it is nested more than {DEPTH_MAX} deep")
    if pat.is_struct(t):
        _check_struct_names([f.name for f in list_inner_fields(t)])
        return {"struct": [[f.name, _encode_type(f.type, depth + 1)] for f in list_inner_fields(t)]}
    if not (pat.is_map(t) or pat.is_list(t) or pat.is_large_list(t) or pat.is_fixed_size_list(t)):
        raise ValueError(f"{t} is not supported")
    inner = [_encode_type(f.type, depth + 1) for f in list_inner_fields(t)]
    if pat.is_map(t):
        return {"map": inner}
    if pat.is_fixed_size_list(t):
        if t.list_size < 1:
            raise ValueError("a fixed_size_list needs a size of 1 or more")
        return {"fixed_size_list": inner[0], "size": t.list_size}
    return {"large_list" if pat.is_large_list(t) else "list": inner[0]}


def _encode_flat_type(t: pa.DataType) -> str:
    """Return the name of a flat type, as stored."""
    if (name := _NAME_OF.get(t)) is not None:
        return name
    if pat.is_decimal128(t) or pat.is_decimal256(t):
        name = f"decimal{t.bit_width}({t.precision}, {t.scale})"
    elif pat.is_fixed_size_binary(t) and not pat.is_decimal(t):
        name = f"fixed_size_binary[{t.byte_width}]"
    elif pat.is_timestamp(t):
        name = f"timestamp[{t.unit}, tz={t.tz}]"
    else:
        raise ValueError(f"{t} is not supported")
    _decode_flat_type(name)
    return name


def _decode_type(j: Json, depth: int) -> pa.DataType:
    """Return the type of a JSON form; `depth`: its nesting level."""
    if isinstance(j, str):
        return _decode_flat_type(j)
    if depth > DEPTH_MAX:
        raise ValueError(f"it is nested more than {DEPTH_MAX} deep")
    match j:
        case {"list": inner, **rest} if not rest:
            return pa.list_(_decode_type(inner, depth + 1))
        case {"large_list": inner, **rest} if not rest:
            return pa.large_list(_decode_type(inner, depth + 1))
        case {"fixed_size_list": inner, "size": int(size), **rest} if not rest:
            if isinstance(size, bool) or not 1 <= size <= _FIXED_SIZE_MAX:
                raise ValueError(f"a fixed_size_list cannot have the size {size}")
            return pa.list_(_decode_type(inner, depth + 1), size)
        case {"map": [key, value], **rest} if not rest:
            return pa.map_(_decode_type(key, depth + 1), _decode_type(value, depth + 1))
        case {"struct": list(fields), **rest} if not rest:
            return _decode_struct(fields, depth)
    raise ValueError(f"{j!r:.80} is not the written form of a type")


def _decode_struct(fields: list[Any], depth: int) -> pa.DataType:
    """Return the struct type of a JSON list of names and types."""
    if not all(isinstance(f, list) and len(f) == 2 and isinstance(f[0], str) for f in fields):
        raise ValueError(f"{fields!r:.80} is not the written form of a struct's fields")
    _check_struct_names([name for name, _ in fields])
    return pa.struct([pa.field(name, _decode_type(inner, depth + 1)) for name, inner in fields])


def _decode_flat_type(name: str) -> pa.DataType:
    """Return the flat type of a stored name; raise ValueError if unknown."""
    if (named := _NAMES.get(name)) is not None:
        return named
    if match := _ZONED.fullmatch(name):
        return pa.timestamp(match[1], tz=match[2])
    if match := _FIXED_BINARY.fullmatch(name):
        return pa.binary(int(match[1]))
    if match := _DECIMAL.fullmatch(name):
        precision, scale = int(match[2]), int(match[3])
        if scale <= precision <= (38 if match[1] == "128" else 76) and precision >= 1:
            return (pa.decimal128 if match[1] == "128" else pa.decimal256)(precision, scale)
    raise ValueError(f"{name} is not supported")


def _check_struct_names(names: list[str]) -> None:
    """Raise ValueError unless fields have distinct names that are not empty."""
    if not names:
        raise ValueError("a struct needs at least one field")
    if len(set(names)) != len(names) or not all(names):
        raise ValueError("the fields of a struct need names that are not empty and differ from each other")


def _check_zones(t: pa.DataType) -> None:
    """Raise an error for unknown time zones, before values are read.

    `decode_type` does not call it, because a stored schema must open on a machine with an older list of zones.
    """
    for leaf in list_leaf_types(t):
        if pat.is_timestamp(leaf) and leaf.tz is not None:
            try:
                pa.lib.string_to_tzinfo(leaf.tz)
            except Exception as error:
                raise ValueError(f"{leaf.tz!r} is not a known time zone") from error


def encode_scalar(value: pa.Scalar) -> Json:
    """Return the JSON form of a flat value; raise ValueError if nested."""
    t = value.type
    if not is_flat(t):
        raise ValueError(f"{t} is not a flat type")
    if not value.is_valid:
        return None
    if pat.is_temporal(t):
        return int(value.value)
    stored: Any = value.as_py()
    if pat.is_floating(t):
        return repr(float(stored))
    if pat.is_decimal(t):
        return str(stored)
    return base64.b64encode(stored).decode("ascii") if isinstance(stored, bytes) else stored


def decode_scalar(j: Json, t: pa.DataType) -> pa.Scalar:
    """Return the scalar of type `t` with the JSON form `j`; raises ValueError for an invalid form."""
    if not is_flat(t):
        raise ValueError(f"{t} is not a flat type")
    if j is None:
        return pa.scalar(None, t)
    expected = get_written_type(t)
    if type(j) is not expected:
        raise ValueError(f"{j!r:.80} is not the written form of a value of type {t}")
    try:
        return _decode_written(j, t)
    except (pa.ArrowException, OverflowError, decimal.InvalidOperation, ValueError) as error:
        raise ValueError(f"{j!r:.80} is not the written form of a value of type {t}: {error}") from error


@lru_cache(maxsize=1024)
def get_written_type(t: pa.DataType) -> type:
    """Return the Python type of the JSON form of a type's values."""
    if pat.is_boolean(t):
        return bool
    return int if pat.is_integer(t) or pat.is_temporal(t) else str


def _decode_written(j: Any, t: pa.DataType) -> pa.Scalar:
    """Return a flat value from its JSON form."""
    if pat.is_temporal(t):
        return pa.array([j], pa.int32() if t.bit_width == 32 else pa.int64()).view(t)[0]
    if pat.is_floating(t):
        return pa.scalar(float(j), t)
    if pat.is_decimal(t):
        return pa.scalar(decimal.Decimal(j), t)
    if is_bytes(t):
        return pa.scalar(base64.b64decode(j, validate=True), t)
    return pa.scalar(j, t)


Bound = list[Any]  # A whole key, its fields in their written form.
Orderable = Any  # For a key of one field its value, or NaN or NULL as below; for other keys a tuple of these.


@total_ordering
class _Last:
    """A value that sorts after all others: NaN, and NULL after it.

    Other values are compared directly, because collections with very many parts compare millions of keys.
    """

    __slots__ = ("_rank",)

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def __lt__(self, other: object) -> bool:
        return isinstance(other, _Last) and self._rank < other._rank

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Last) and self._rank == other._rank

    def __hash__(self) -> int:
        return hash(self._rank)


_NAN, _NULL = _Last(1), _Last(2)


@lru_cache(maxsize=256)
def make_key_order(types: tuple[pa.DataType, ...]) -> Callable[[Bound], Orderable]:
    """Return a function that turns keys in JSON form into comparable values.

    The function raises ValueError or ArithmeticError for a value that is not a key of these types.
    """
    orders = make_keys_order(types)
    return lambda key: orders([key])[0]


@lru_cache(maxsize=256)
def make_keys_order(types: tuple[pa.DataType, ...]) -> Callable[[Sequence[Bound]], list[Orderable]]:
    """Return `make_key_order` for many keys at once, which is faster."""
    fields = [(get_written_type(t), _make_value_order(t)) for t in types]

    def orders(keys: Sequence[Bound]) -> list[Orderable]:
        if not keys or not fields:
            return [()] * len(keys)
        columns = [
            _make_comparable(values, kind, value_order)
            for (kind, value_order), values in zip(fields, zip(*keys, strict=True), strict=True)
        ]
        return [*columns[0]] if len(columns) == 1 else [*zip(*columns, strict=True)]

    return orders


def _make_comparable(values: Sequence[Any], kind: type, value_order: Callable[[Any], Any] | None) -> Sequence[Any]:
    """Convert the values of a field to ones that sort like rows."""
    kinds = {*map(type, values)}
    if not kinds <= {kind, type(None)}:
        wrong = next(value for value in values if value is not None and type(value) is not kind)
        raise ValueError(f"{wrong!r:.80} where {kind.__name__} belongs")
    if value_order is None:
        return values if kinds == {kind} else [_NULL if value is None else value for value in values]
    ordered = [_NULL if value is None else value_order(value) for value in values]
    return [_NAN if value != value else value for value in ordered] if value_order is float else ordered


def _make_value_order(t: pa.DataType) -> Callable[[Any], Any] | None:
    """Return the function that makes JSON values comparable; None if they are."""
    if pat.is_floating(t):
        return float
    if pat.is_decimal(t):
        return _parse_finite_decimal
    if is_bytes(t):
        return lambda text: decode_scalar(text, t).as_py()
    return None


def _parse_finite_decimal(text: str) -> decimal.Decimal:
    """Parse a decimal; raise ValueError for NaN and infinity."""
    number = decimal.Decimal(text)
    if not number.is_finite():  # NaN cannot be compared.
        raise ValueError(f"{text!r:.80} where a decimal belongs")
    return number
