"""Maps in JSON, as objects or lists of pairs: they become lists of objects for Arrow's parser, and maps again after it.

Keys of an object are text, so all keys go through the parser as text. Only columns with maps are rewritten, by Python.
"""

import json
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from persist.codecs.types.arrow_types import (
    contains_map,
    is_flat,
    list_inner_arrays,
    list_inner_fields,
    rebuild_nested,
    replace_inner_types,
)
from persist.connect.envelopes.messages import Unreadable


class _Number(str):
    """A number with its original text."""


class _Object(list[tuple[str, Any]]):
    """The members of an object, duplicates included."""


_DECODER = json.JSONDecoder(object_pairs_hook=_Object, parse_float=_Number, parse_int=_Number, parse_constant=_Number)


def encode_maps(value: bytes, kind: pa.DataType) -> bytes:
    """Return a JSON value with each map as a list of objects with key and value."""
    return _write_value(_DECODER.decode(value.decode()), kind).encode()


def _write_value(value: Any, kind: pa.DataType | None) -> str:
    """Return a parsed value as JSON, in which maps are lists of objects with key and value."""
    if isinstance(value, _Number):
        return value
    if kind is not None and pat.is_map(kind) and _is_map(value):
        return f"[{','.join(_write_entry(key, item, kind) for key, item in value)}]"
    if isinstance(value, _Object):
        types = {field.name: field.type for field in kind} if kind is not None and pat.is_struct(kind) else {}
        members = (f"{json.dumps(name)}:{_write_value(member, types.get(name))}" for name, member in value)
        return f"{{{','.join(members)}}}"
    if isinstance(value, list):
        is_list = kind is not None and not is_flat(kind) and not pat.is_struct(kind) and not pat.is_map(kind)
        inner = kind.value_type if is_list and kind is not None else None
        return f"[{','.join(_write_value(item, inner) for item in value)}]"
    return json.dumps(value)


def _is_map(value: Any) -> bool:
    """Return whether a value is an object, or a list of pairs."""
    pairs = isinstance(value, list) and all(type(item) is list and len(item) == 2 for item in value)
    return isinstance(value, _Object) or pairs


def _write_entry(key: Any, value: Any, kind: pa.DataType) -> str:
    """Return an entry of a map as a JSON object with key and value; the key becomes text."""
    name = _write_value(key, kind.key_type)
    if is_flat(kind.key_type) and name[:1] != '"' and key is not None:
        name = json.dumps(name)
    return f'{{"key":{name},"value":{_write_value(value, kind.item_type)}}}'


def restore_maps(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Turn lists of entries in a parsed array into maps, as a type requires."""
    if not contains_map(kind):
        return array
    if not pat.is_map(kind):
        pairs = zip(list_inner_arrays(array), list_inner_fields(kind), strict=True)
        inner = [restore_maps(part, field.type) for part, field in pairs]
        return rebuild_nested(array, replace_inner_types(array.type, [part.type for part in inner]), inner)
    fields = zip(list_inner_arrays(array.values), list_inner_fields(kind), strict=True)
    keys, items = (restore_maps(part, field.type) for part, field in fields)
    if keys.null_count:
        raise Unreadable("it has null as the key of a map")
    return rebuild_nested(array, pa.map_(keys.type, items.type), [keys, items])
