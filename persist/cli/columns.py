"""The columns of a new collection, as they are given on the command line or found in a file."""

import os
import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from persist.blob import InvalidUsage
from persist.cli.rows_in import RowFile
from persist.codecs import arrow_type, did_you_mean

OWN = ("_time", "_diff")


def sides(key: Sequence[str], value: Sequence[str], like: str | None, format: str | None) -> tuple[Any, Any]:
    """Return key and value as `Client.create_or_load` takes them: a dict of names and types each, or None.

    Args:
        key, value: NAME:TYPE each; of those that a file has, NAME is enough.
        like: the file; its columns that are not named become values, if no value is named.

    Raises:
        InvalidUsage: a type is missing.
    """
    types = {} if like is None else _types_of(like, format)
    keys = dict(_column(each, types) for each in key)
    values = dict(_column(each, types) for each in value)
    if like is not None and not value:
        values = {name: types[name] for name in types if name not in keys and name not in OWN}
    if not keys and not values:
        raise InvalidUsage("a collection needs columns: say --key id:int64 --value amount:float64, or --like FILE")
    return keys or None, values or None


def typed(text: str) -> tuple[str, pa.DataType]:
    """Return the name and the type of a column that is given as NAME:TYPE."""
    name, kind = _column(text, {})
    return name, arrow_type(kind, f"column {name!r}")


def _column(text: str, types: dict[str, pa.DataType]) -> tuple[str, Any]:
    name, colon, kind = text.partition(":")
    if colon:
        return name, re.sub(r",\s*", ", ", kind)  # As Arrow writes them; shells make spaces a bother.
    if name in types:
        return name, types[name]
    hint = did_you_mean(name, types) if types else ""
    raise InvalidUsage(
        f"{text!r} has no type{hint or ':'} write NAME:TYPE, such as id:int64 or at:timestamp[us,tz=UTC]"
    )


def _types_of(path: str, format: str | None) -> dict[str, pa.DataType]:
    file = RowFile.of(path, format)
    if not os.path.exists(file.path):
        raise InvalidUsage(f"there is no file {path!r}: give the path of one whose columns the collection shall have")
    try:
        schema = _schema_of(file)
    except (pa.ArrowException, OSError) as error:
        raise InvalidUsage(f"{path} cannot be read as {file.format}: {' '.join(str(error).split())}") from error
    return {field.name: pa.string() if pa.types.is_null(field.type) else field.type for field in schema}


def _schema_of(file: RowFile) -> pa.Schema:
    if file.format == "csv":
        import pyarrow.csv as csv

        return csv.read_csv(file.path).schema
    if file.format == "json":
        import pyarrow.json as json

        return json.read_json(file.path).schema
    if file.format == "parquet":
        import pyarrow.parquet as pq

        return pq.read_schema(file.path)
    with pa.OSFile(file.path) as source:
        try:
            return pa.ipc.open_file(source).schema
        except pa.ArrowInvalid:
            source.seek(0)
            return pa.ipc.open_stream(source).schema
