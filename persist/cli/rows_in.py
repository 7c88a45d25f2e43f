"""Rows from files, typed as a collection wants them; and where and why some of them do not fit.

CSV, JSON lines (both may be compressed: .gz, .bz2 or .zst), Parquet and Arrow IPC (file or stream). Columns are found
by name. All rows are looked at, in pieces of one size, whatever the first reasons are; what does not fit is
found by halving the piece until the rows are alone, so rows that do fit cost nothing more.
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from persist.blob import InvalidUsage
from persist.cli.casting import REASONS_MAX, Caster, Misfits
from persist.cli.text_in import csv_pieces, first_names, head_of, json_pieces
from persist.codecs import arrow_type, did_you_mean
from persist.ingest import READ, format_by_name, schema_of, stored_batches

WRITTEN = ("table", *READ)


@dataclass(frozen=True)
class RowFile:
    """A file of rows.

    Attributes:
        path: of the file itself.
        name: for people: standard input is spooled to another file.
        format: one of `READ`.
    """

    path: str
    name: str
    format: str

    @classmethod
    def of(cls, path: str, format: str | None, *, name: str | None = None) -> "RowFile":
        """Return the file at a path; its format is told from its name, unless it is given.

        Raises:
            InvalidUsage: the format is unknown.
        """
        if format is not None and format not in READ:
            raise InvalidUsage(f"--format {format!r} is no format of rows: use one of {', '.join(READ)}")
        file_format = format or format_by_name(name or path)[0]
        if file_format is None:
            raise InvalidUsage(f"the format of {name or path!r} cannot be told from its name: say --format, of {READ}")
        return cls(path, name or path, file_format)

    def has_column(self, name: str) -> bool:
        """Return whether it has a column of that name; of JSON lines, whether the first of them has it."""
        if self.format == "csv":
            return name in head_of(self.path, self.name)
        if self.format == "json":
            return name in first_names(self.path)
        try:
            return any(name in table.column_names for table in islice(_batches(self.path, self.format), 1))
        except (pa.ArrowException, OSError):
            return False  # Who reads it says what is wrong with it.

    def pieces(self, caster: Caster, misfits: Misfits) -> Iterator[pa.Table]:
        """Yield the rows that fit, typed, in pieces whose sizes depend on nothing but the file.

        Raises:
            InvalidUsage: it is no such file, or its columns are not those wanted.
        """
        try:
            yield from self._pieces(caster, misfits)
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # It is the disk that fails, and not what is on it.
            raise InvalidUsage(
                f"{self.name} cannot be read as {self.format}: {' '.join(str(error).split())}"
            ) from error

    def _pieces(self, caster: Caster, misfits: Misfits) -> Iterator[pa.Table]:
        if self.format == "csv":
            yield from csv_pieces(self.path, self.name, caster, misfits)
        elif self.format == "json":
            yield from json_pieces(self.path, caster, misfits)
        else:
            yield from self._typed_pieces(caster, misfits)

    def _typed_pieces(self, caster: Caster, misfits: Misfits) -> Iterator[pa.Table]:
        start = 0
        for table in _batches(self.path, self.format):
            if not start:
                caster.check_names(table.column_names, self.name)
            cast = caster.cast(table.select(caster.wanted(table.column_names)))
            misfits.add(len(cast.misfits), [f"row {start + row + 1}: {why}" for row, why in cast.first(REASONS_MAX)])
            start += len(table)
            yield cast.table


def _batches(path: str, format: str) -> Iterator[pa.Table]:
    with pa.OSFile(path) as source:
        for batch in stored_batches(source, format):
            yield pa.Table.from_batches([batch])


OWN = ("_time", "_diff")


def sides(key: Sequence[str], value: Sequence[str], like: str | None, format: str | None) -> tuple[Any, Any]:
    """Return key and value as `Client.create_or_load` takes them: a dict of names and types each, or None.

    Args:
        key, value: NAME:TYPE each; of those that a file has, NAME is enough.
        like: the file; its columns that are not named become values, if no value is named.

    Raises:
        InvalidUsage: a type is missing.
    """
    types = {} if like is None else types_of(like, format)
    keys = dict(_column(column, types) for column in key)
    values = dict(_column(column, types) for column in value)
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


def types_of(path: str, format: str | None) -> dict[str, pa.DataType]:
    """Return the types of a file's columns by name; text where a column is empty. CSV and JSON are read whole for it.

    Raises:
        InvalidUsage: there is no such file, or it cannot be read.
    """
    file = RowFile.of(path, format)
    if not os.path.exists(file.path):
        raise InvalidUsage(f"there is no file {path!r}: give the path of one whose columns the collection shall have")
    try:
        schema = _schema_of(file)
    except (pa.ArrowException, OSError) as error:
        raise InvalidUsage(f"{path} cannot be read as {file.format}: {' '.join(str(error).split())}") from error
    return {field.name: pa.string() if pa.types.is_null(field.type) else field.type for field in schema}


def _schema_of(file: RowFile) -> pa.Schema:
    is_text = file.format in ("csv", "json")
    with pa.input_stream(file.path, compression="detect") if is_text else pa.OSFile(file.path) as source:
        return schema_of(source, file.format, is_whole=True)
