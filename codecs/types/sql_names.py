"""Compares names as DuckDB's SQL does: ignoring the case of ASCII letters only."""

import string
from collections.abc import Iterable

import pyarrow as pa

from persist.blob.errors import InvalidUsage
from persist.codecs.types.arrow_types import is_flat, list_inner_fields

_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def fold_case(name: str) -> str:
    """Return a name in the case by which SQL compares names."""
    return name.translate(_LOWER)


def check_sql_names(collection: str, schema: pa.Schema) -> None:
    """Raise InvalidUsage if SQL cannot distinguish two columns, or two fields of a struct.

    `collection`: the name of the table for the message.
    """
    alike = _find_alike(schema, "")
    if alike is not None:
        first, second = alike
        raise InvalidUsage(
            f"columns {first!r} and {second!r} of {collection!r} differ by case only, and SQL takes them for one: "
            "rename one with evolve, or read them with snapshot(columns=…, where=…), which tells them apart"
        )


def _find_alike(fields: Iterable[pa.Field], inside: str) -> tuple[str, str] | None:
    """Return two names that differ only in case, or None."""
    names: dict[str, str] = {}
    for field in fields:
        first = names.setdefault(fold_case(field.name), field.name)
        if first != field.name:
            return inside + first, inside + field.name
        inner = None if is_flat(field.type) else _find_alike(list_inner_fields(field.type), f"{inside}{field.name}.")
        if inner is not None:
            return inner
    return None
