"""Parses the columns of a new collection: with their types, or named after columns of a file."""

import os
import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from persist.blob.errors import InvalidUsage
from persist.codecs.errors import did_you_mean
from persist.codecs.types.python_types import to_arrow_type
from persist.connect.ingest.row_formats import READ, RowFile
from persist.connect.ingest.row_types import infer_types

WRITTEN = ("table", *READ)
OWN = ("_time", "_diff")


def parse_columns(key: Sequence[str], value: Sequence[str], like: str | None, format: str | None) -> tuple[Any, Any]:
    """Return key and value for `Client.create_or_load`, from NAME:TYPE, or NAME of a column of a file.

    `like`: the file. If `value` is empty, all columns of the file that are not in the key become values.
    """
    types = {} if like is None else read_columns(RowFile.at(like, format))
    keys = dict(_parse_column(column, types) for column in key)
    values = dict(_parse_column(column, types) for column in value)
    if like is not None and not value:
        values = {name: types[name] for name in types if name not in keys and name not in OWN}
    if not keys and not values:
        raise InvalidUsage("a collection needs columns: say --key id:int64 --value amount:float64, or --like FILE")
    return keys or None, values or None


def parse_named_type(text: str) -> tuple[str, pa.DataType]:
    """Parse NAME:TYPE into a column's name and type."""
    name, kind = _parse_column(text, {})
    return name, to_arrow_type(kind, f"column {name!r}")


def _parse_column(text: str, types: dict[str, pa.DataType]) -> tuple[str, Any]:
    """Parse NAME:TYPE, or NAME with its type in `types`, into name and type."""
    name, colon, kind = text.partition(":")
    if colon:
        return name, re.sub(r",\s*", ", ", kind)  # As Arrow writes them; shells make spaces a bother.
    if name in types:
        return name, types[name]
    hint = did_you_mean(name, types) if types else ""
    raise InvalidUsage(
        f"{text!r} has no type{hint or ':'} write NAME:TYPE, such as id:int64 or at:timestamp[us,tz=UTC]"
    )


def read_columns(file: RowFile) -> dict[str, pa.DataType]:
    """Return the types of a file's columns by name; text for empty columns."""
    if not os.path.exists(file.path):
        raise InvalidUsage(
            f"there is no file {file.path!r}: give the path of one whose columns the collection shall have"
        )
    return {name: pa.string() if pa.types.is_null(kind) else kind for name, kind in infer_types(file).items()}
