"""Rows from files, typed as a collection wants them; and where and why some of them do not fit.

CSV, JSON lines (both may be compressed: .gz, .bz2 or .zst), Parquet and Arrow IPC (file or stream). Columns are found
by name. All rows are looked at, in pieces of one size, whatever the first reasons are; what does not fit is
found by halving the piece until the rows are alone, so rows that do fit cost nothing more.

CSV is read as text by Arrow. An empty field is NULL, unless it is in quotes; then it is empty text. Records with more
or fewer fields than the head do not fit. Line numbers are found by reading the file once more, because a record may
span several lines.

JSON lines hold an object on each line. One without a column, or with a field that is no column, is a misfit: null says
that it is NULL. A line with `"_deleted": true` needs no more than its key.
"""

import csv
import io
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader, BytesIO
from itertools import islice
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.json as pa_json
import pyarrow.types as pat

from persist.blob import InvalidUsage
from persist.cli.casting import REASONS_MAX, Caster, Misfits, check_text_types
from persist.codecs import arrow_type, children, did_you_mean, lacks_columns
from persist.ingest import BLOCK_BYTES, READ, csv_batches, format_by_name, schema_of, stored_batches
from persist.shown import counted

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


def first_names(path: str) -> list[str]:
    """Return the names in the first object of a file of JSON lines; none if it cannot be read, as those who do say."""
    with _text(path) as text:
        line = next((line for line in text if line.strip()), "{}")
    try:
        first = msgspec.json.decode(line)
    except msgspec.MsgspecError:
        return []
    return [*first] if isinstance(first, dict) else []


FIELD_CHARS_MAX = 2**31 - 1


def csv_pieces(path: str, name: str, caster: Caster, misfits: Misfits) -> Iterator[pa.Table]:
    """Yield the rows of a CSV file that fit."""
    names = head_of(path, name)
    caster.check_names(names, name)
    check_text_types({column: caster.types[column] for column in caster.wanted(names) if column in caster.types}, "CSV")
    wrong_width = 0

    def skip(row: Any) -> str:
        nonlocal wrong_width
        wrong_width += 1
        return "skip"

    start, located = 0, _Located(path, len(names))
    with pa.input_stream(path, compression="detect") as source:
        types = dict.fromkeys(names, pa.binary())
        for batch in csv_batches(source, types, columns=caster.wanted(names), skipped=skip, is_checked=False):
            cast = caster.cast(pa.Table.from_batches([batch]), is_text=True)
            located.add({start + row: why for row, why in cast.first(REASONS_MAX)})
            misfits.count += len(cast.misfits)
            start += batch.num_rows
            yield cast.table
    misfits.count += wrong_width
    if misfits.count:
        misfits.reasons += located.reasons(wrong_width)


class _Located:
    """Reasons by the number of a record among those of the right width; told with the lines they begin on."""

    def __init__(self, path: str, width: int) -> None:
        self._path = path
        self._width = width
        self._why: dict[int, str] = {}

    def add(self, why: dict[int, str]) -> None:
        if len(self._why) < REASONS_MAX:
            self._why |= why

    def reasons(self, wrong_width: int) -> list[str]:
        """Return the first reasons, in the order of their lines. Cost: reading the file up to the last of them."""
        first_reasons: list[str] = []
        record = 0
        left = min(REASONS_MAX, len(self._why) + wrong_width)
        for line, fields in _records(self._path):
            if len(fields) != self._width:
                first_reasons.append(
                    f"line {line}: it has {counted(len(fields), 'field')}, and the head has {self._width}"
                )
            else:
                if record in self._why:
                    first_reasons.append(f"line {line}: {self._why[record]}")
                record += 1
            if len(first_reasons) >= left:
                break
        return first_reasons


def head_of(path: str, name: str) -> list[str]:
    """Return the names of the columns of a CSV file."""
    with _text(path) as text:
        names = next(csv.reader(text), None)
    if not names:
        raise InvalidUsage(f"{name} is empty: the first line of a CSV file names its columns")
    return names


def _records(path: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line on which each record begins, from the one after the head on, and its fields."""
    csv.field_size_limit(FIELD_CHARS_MAX)
    with _text(path) as text:
        reader = csv.reader(text)
        next(reader, None)
        line = reader.line_num + 1
        for fields in reader:
            if fields:
                yield line, fields
            line = reader.line_num + 1


def _text(path: str) -> io.TextIOWrapper:
    source: Any = pa.input_stream(path, compression="detect")
    return io.TextIOWrapper(io.BufferedReader(source), encoding="utf-8-sig", errors="replace", newline="")


def json_pieces(path: str, caster: Caster, misfits: Misfits) -> Iterator[pa.Table]:
    """Yield the rows of a file of JSON lines that fit."""
    for name, wanted in caster.types.items():
        _check_type(name, wanted)
    number = 0
    schema: pa.Schema | None = None
    raw: Any = pa.input_stream(path, compression="detect")
    with BufferedReader(raw) as source:
        while lines := source.readlines(BLOCK_BYTES):
            numbered = [(number + i, line) for i, line in enumerate(lines, 1) if line.strip()]
            number += len(lines)
            if schema is None and numbered:
                schema = _schema(caster, numbered[0][1])
            if numbered and schema is not None:
                yield from _piece(numbered, schema, caster, misfits)
    if schema is None:
        yield pa.schema(caster.types.items()).empty_table()


def _piece(
    numbered: list[tuple[int, bytes]], schema: pa.Schema, caster: Caster, misfits: Misfits
) -> Iterator[pa.Table]:
    good: list[pa.Table] = []
    at: list[int] = []
    bad = [(number, why) for number, line in numbered if (why := _lacks(line, caster))]
    if bad:
        lacking = {number for number, _ in bad}
        numbered = [(number, line) for number, line in numbered if number not in lacking]

    def halves(start: int, stop: int) -> None:
        try:
            good.append(_parsed([line for _, line in islice(numbered, start, stop)], schema, caster.ignored))
            at.extend(number for number, _ in islice(numbered, start, stop))
        except (pa.ArrowException, InvalidUsage) as error:
            if stop - start > 1:
                middle = (start + stop) // 2
                halves(start, middle)
                halves(middle, stop)
            else:
                bad.append((numbered[start][0], _why(numbered[start][1], schema, caster.ignored, error)))

    if numbered:
        halves(0, len(numbered))
    if good:
        table = pa.concat_tables(good)
        cast = caster.cast(table)
        bad += ((at[row], why) for row, why in cast.misfits.items())
        yield cast.table
    bad.sort()
    misfits.add(len(bad), [f"line {line}: {why}" for line, why in bad[:REASONS_MAX]])


def _lacks(line: bytes, caster: Caster) -> str:
    """Return which columns a line lacks, as a reason; empty if it has all, or is wrong otherwise."""
    try:
        given = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except msgspec.MsgspecError:
        return ""
    is_deletion = caster.is_events and bytes(given.get("_deleted", b"")) == b"true"
    needed = {*caster.schema.key_names, caster.time_column} if is_deletion else caster.types.keys()
    if len(caster.wanted([*given])) + sum(name in caster.ignored for name in given) < len(given):
        return ""  # It has another field, perhaps a column's name that is misspelt, and that is said.
    lacking = [name for name in caster.types if name in needed and name not in given]
    return f"it {lacks_columns(lacking, 'null')}" if lacking else ""


def _parsed(lines: list[bytes], schema: pa.Schema, ignored: tuple[str, ...] = ()) -> pa.Table:
    data = b"".join(line if line.endswith(b"\n") else line + b"\n" for line in lines)
    others = "infer" if ignored else "error"
    options = pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=others)
    table = pa_json.read_json(BytesIO(data), pa_json.ReadOptions(use_threads=False, block_size=len(data) + 1), options)
    if len(table) != len(lines):
        raise InvalidUsage("it is not one object")
    unknown = [name for name in table.column_names if name not in schema.names and name not in ignored]
    if unknown:
        raise InvalidUsage(f"it has the field {unknown[0]!r}")
    return table.select(schema.names)


def _schema(caster: Caster, first: bytes) -> pa.Schema:
    """Return the types to read: those of the collection; of times, what the first line has."""
    try:
        given = json.loads(first)
    except ValueError:
        given = {}
    given = given if isinstance(given, dict) else {}
    fields: dict[str, Any] = dict(caster.types)
    time = caster.time_column
    if time is not None and time not in caster.schema.names and isinstance(given.get(time), str):
        fields[time] = pa.string()
    for name, kind in (("_diff", pa.int64()), ("_deleted", pa.bool_())):
        if caster.wanted([name]) and (name in given or name == "_deleted"):
            fields[name] = kind
    return pa.schema(fields.items())


def _check_type(name: str, wanted: pa.DataType) -> None:
    if pat.is_binary(wanted) or pat.is_large_binary(wanted) or pat.is_fixed_size_binary(wanted) or pat.is_map(wanted):
        raise InvalidUsage(f"column {name!r} of type {wanted} cannot be read from JSON: use Parquet or Arrow")
    for inner in children(wanted):
        _check_type(name, inner.type)


def _why(line: bytes, schema: pa.Schema, ignored: tuple[str, ...], error: Exception) -> str:
    try:
        given = json.loads(line)
    except ValueError as broken:
        return f"it is no JSON: {broken}"
    except RecursionError:
        return "it nests too deeply"
    if not isinstance(given, dict):
        return "it is no JSON object"
    unknown = [name for name in given if name not in schema.names and name not in ignored]
    if unknown:
        return f"it has the field {unknown[0]!r}, which the collection has not: say --ignore {unknown[0]}"
    for name in schema.names:
        if name not in given:
            continue
        try:
            _parsed([json.dumps({name: given[name]}).encode()], pa.schema([schema.field(name)]))
        except (pa.ArrowException, InvalidUsage):
            return f"column {name!r}: {json.dumps(given[name])[:80]} is no {schema.field(name).type}"
    return " ".join(str(error).split())
