"""Rows that are Python objects: what they are by name, and as they were when an iterator gave them.

A named tuple or a dataclass says what its fields are, so it is taken by these names and never by position. A tuple of
`(key, value)` or `((key, value), time, diff)` may be a named one, too, if its names are no columns.

An iterator may give the same dict again and again, filled anew each time. What comes from one is copied as far as it
can change, before the next is asked for.
"""

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from persist.codecs.types.schema import CollectionSchema


def owned(value: Any) -> Any:
    """Return a value that nobody else can change: itself if it is hashable, a copy otherwise.

    Cost: a hash. What is hashable and changes nevertheless is none of the values that are written.
    """
    try:
        hash(value)
    except Exception:  # What values raise is theirs to choose.
        return _copied(value)
    return value


def _copied(value: Any) -> Any:
    if is_named(value):
        return type(value)._make(map(owned, value))
    if type(value) in (tuple, list):
        return type(value)(map(owned, value))
    if type(value) is dict:
        return {name: owned(each) for name, each in value.items()}
    try:
        return copy.deepcopy(value)
    except Exception:  # As above. It is taken as it is, then.
        return value


def is_named(value: Any) -> bool:
    """Return whether a value is a named tuple."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


def is_object(value: Any) -> bool:
    """Return whether a value is a dataclass with its fields."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def is_record(value: Any, schema: CollectionSchema | None) -> bool:
    """Return whether a row names its columns: a dict, a dataclass, or a named tuple that names some of a collection.

    Without a schema, any named tuple does. A named tuple `(record, time, diff)` of which the record is a pair is an
    update, whatever its other columns are called.
    """
    if isinstance(value, Mapping) or is_object(value):
        return True
    if not is_named(value):
        return False
    if schema is None:
        return True
    if schema.key.codec_name is not None or schema.value.codec_name is not None:
        return False
    names = {*schema.names}
    if names.issuperset(value._fields):
        return True
    is_update = len(value) == 3 and isinstance(value[0], tuple | list) and len(value[0]) == 2
    return not is_update and not names.isdisjoint(value._fields)


def as_dict(record: Any) -> Mapping[Any, Any]:
    """Return a row that names its columns, one of `is_record`, as a dict."""
    if isinstance(record, Mapping):
        return record
    if is_named(record):
        return dict(zip(record._fields, record, strict=True))
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}


def out_of_place(values: Sequence[Any], places: tuple[str, ...]) -> Any:
    """Return the first named tuple that has one of these names at another place than this has; None if there is none.

    Of a place without a name, anything may be there.
    """
    for kind in {*map(type, values)}:
        fields = getattr(kind, "_fields", ()) if issubclass(kind, tuple) else ()
        if any(name in fields and fields.index(name) != at for at, name in enumerate(places)):
            return next(value for value in values if type(value) is kind)
    return None


def by_name(values: list[Any], names: tuple[str, ...]) -> list[Any] | None:
    """Return tuples of which the named ones have their fields in the order of names; None if one has other fields."""
    kinds = {kind for kind in {*map(type, values)} if issubclass(kind, tuple) and hasattr(kind, "_fields")}
    if all(kind._fields == names for kind in kinds):
        return values
    if any(sorted(kind._fields) != sorted(names) for kind in kinds):
        return None
    ordered = attrgetter(*names)
    return [ordered(value) if type(value) in kinds else value for value in values]
