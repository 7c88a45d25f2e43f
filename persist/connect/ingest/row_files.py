"""Reads rows of files in a collection's types; reports rows that do not fit.

CSV, JSON lines (both may be compressed: .gz, .bz2 or .zst), Parquet and Arrow IPC (file or stream). Columns are found
by name. All rows are checked, in pieces of one size. Halving a piece isolates misfits, so rows that fit cost nothing
extra.

Each line of JSON lines is an object. A line that lacks a required column or has an unknown field is a misfit.
`RowColumns` names the required columns; other missing ones are NULL.
"""

import json
from collections.abc import Iterator
from io import BufferedReader
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from persist.blob.errors import InvalidUsage
from persist.codecs.errors import SchemaMismatch
from persist.codecs.nested import align_fields, find_new_fields, quote_name
from persist.codecs.types.arrow_types import contains_map, format_type, is_flat, list_inner_fields
from persist.codecs.updates.inputs import DELETED
from persist.codecs.updates.tuples import describe_lacking_columns
from persist.connect.envelopes import (
    Unreadable,
    encode_mixed_members,
    find_suspects,
    merge_in_order,
    parse,
    read_separately,
    restore_maps,
)
from persist.connect.ingest.row_casts import REASONS_MAX, Misfits, get_wire_type
from persist.connect.ingest.row_columns import RowColumns
from persist.connect.ingest.row_csv import read_csv_pieces, read_header
from persist.connect.ingest.row_formats import BLOCK_BYTES, MEND, RowFile, read_stored_batches, read_stored_schema


def read_pieces(file: RowFile, columns: RowColumns, misfits: Misfits) -> Iterator[pa.Table]:
    """Yield a file's fitting rows in the collection's types, in pieces that are equal at each run."""
    if file.format == "csv":
        yield from read_csv_pieces(file, columns, misfits)
    elif file.format == "json":
        yield from _read_json_pieces(file, columns, misfits)
    else:
        yield from _read_typed_pieces(file, columns, misfits)


def read_names(file: RowFile) -> list[str]:
    """Return the columns of a file; for JSON lines, the fields of the first one."""
    if file.format == "csv":
        return read_header(file)
    if file.format == "json":
        return [*_load_first_object(file)]
    schema = read_stored_schema(file)
    check_unique_names(schema, file.name)
    return list(schema.names)


def check_unique_names(fields: pa.Schema | pa.DataType, file: str, path: str = "") -> None:
    """Raise InvalidUsage if a column, or an inner field, occurs twice."""
    inner = list(fields) if isinstance(fields, pa.Schema) else [] if is_flat(fields) else list_inner_fields(fields)
    names = [field.name for field in inner]
    for field in inner:
        if names.count(field.name) > 1 and not (isinstance(fields, pa.DataType) and pat.is_map(fields)):
            raise InvalidUsage(
                f"{file} has the column {path + field.name!r} more than once: give each a name of its own. {MEND}"
            )
        if pat.is_nested(field.type):
            check_unique_names(field.type, file, f"{path}{field.name}.")


def _read_typed_pieces(file: RowFile, columns: RowColumns, misfits: Misfits) -> Iterator[pa.Table]:
    """Yield the fitting rows of a file of Parquet or Arrow; count the others in `misfits`."""
    start = 0
    for batch in read_stored_batches(file):
        if not start:
            check_unique_names(batch.schema, file.name)
            columns.check_names(batch.schema.names, file.name)
        table = pa.Table.from_batches([batch])
        try:
            cast = columns.cast(table.select(columns.select_names(table.column_names)), is_text=False)
        except SchemaMismatch as error:
            new = (find_new_fields(field.name, field.type, columns.types[field.name]) for field in batch.schema
                   if field.name in columns.types)  # fmt: skip
            if (path := next((path for paths in new for path in paths), None)) is not None:
                raise InvalidUsage(f"{file.name} has the field {columns.explain_unknown_name(path)}. {MEND}") from None
            raise InvalidUsage(f"{file.name} does not fit: {error} {MEND}") from None
        misfits.add(len(cast.misfits), [f"row {start + row + 1}: {why}" for row, why in cast.get_first(REASONS_MAX)])
        start += len(table)
        yield cast.table


def read_json_blocks(file: RowFile) -> Iterator[tuple[np.ndarray, pa.Array]]:
    """Yield blocks of (line numbers, lines that are not blank)."""
    number = 0
    with file.open_bytes() as stream:
        source = BufferedReader(stream)
        while lines := source.readlines(BLOCK_BYTES):
            if not number:
                lines[0] = lines[0].removeprefix(b"\xef\xbb\xbf")
            numbers = [number + at for at, line in enumerate(lines, 1) if line.strip()]
            texts = [line.strip() for line in lines if line.strip()]
            number += len(lines)
            if texts:
                yield np.array(numbers, np.int64), pa.array(texts, pa.large_binary())


def _load_first_object(file: RowFile) -> dict[str, Any]:
    """Return the first object of JSON lines; {} if it is unreadable, which a later read reports."""
    try:
        _, texts = next(read_json_blocks(file), (None, [pa.scalar(b"{}")]))
        first = json.loads(texts[0].as_py())
    except (ValueError, RecursionError):
        return {}
    return first if isinstance(first, dict) else {}


def _read_json_pieces(file: RowFile, columns: RowColumns, misfits: Misfits) -> Iterator[pa.Table]:
    """Yield the rows of JSON lines that fit, in pieces."""
    types = columns.get_json_types(_load_first_object(file))
    lines = _LineParser({name: get_wire_type(kind) for name, kind in types.items()}, columns)
    is_empty = True
    for numbers, texts in read_json_blocks(file):
        is_empty = False
        sifted_rows = read_separately(texts, lines, numbers)
        bad: list[tuple[int, str]] = []
        if sifted_rows.bad:
            first = {
                misfit.row: misfit.reason for misfit in sorted(sifted_rows.bad, key=lambda one: one.row)[:REASONS_MAX]
            }
            at = {int(number): row for row, number in enumerate(numbers)}
            bad = [(row, lines.explain(texts[at[row]].as_py(), why)) for row, why in first.items()]
        if sifted_rows.pieces:
            rows, table = merge_in_order(
                sifted_rows.pieces, pa.concat_tables([table for _, table in sifted_rows.pieces])
            )
            cast = columns.cast(table, is_text=True)
            bad += [(int(rows[row]), why) for row, why in cast.get_first(REASONS_MAX)]
            misfits.count += len(cast.misfits)
            yield cast.table
        misfits.count += len(sifted_rows.bad)
        misfits.add(0, [f"line {line}: {why}" for line, why in sorted(bad)])
    if is_empty:
        yield pa.schema(columns.types.items()).empty_table()


class _LineParser:
    """Parses JSON lines as rows of some columns."""

    def __init__(self, wires: dict[str, pa.DataType], columns: RowColumns) -> None:
        self._fields = pa.schema(wires.items())
        self._columns = columns

    def read(self, texts: pa.Array) -> pa.Table:
        """Parse JSON texts of rows."""
        texts = encode_mixed_members(texts, self._columns.declared_types)
        table = parse(texts, self._fields, "infer" if self._columns.ignored else "error")
        for name in table.column_names:
            if name not in self._fields.names and name not in self._columns.ignored:
                raise Unreadable(f"it has the field {name!r}")
        table = table.select(self._fields.names)
        for at, field in enumerate(self._fields if self._columns.ignored else ()):
            if field.name in self._columns.types and self._columns.ignores_new_fields(
                field.name, table.schema.types[at]
            ):
                table = table.set_column(at, field, align_fields(table.column(at), field.type))
        if table.schema != self._fields:
            raise Unreadable("it has fields that are not columns")
        if self._find_incomplete(texts, table).any():
            raise Unreadable("it lacks a column")
        return pa.table({name: self._restore_column(table[name], name) for name in table.column_names})

    def _restore_column(self, column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
        """Return a parsed column in which lists of entries are maps again."""
        kind = self._columns.types.get(name)
        if kind is None or not contains_map(kind):
            return column
        return pa.chunked_array([restore_maps(chunk, kind) for chunk in column.chunks])

    def find_suspects(self, texts: pa.Array) -> npt.NDArray[np.bool_]:
        """Return bool[texts]: lines that look bad."""
        documents = encode_mixed_members(texts, self._columns.declared_types)
        return find_suspects(documents, self._fields) | self._find_incomplete(texts)

    def _find_incomplete(self, texts: pa.Array, table: pa.Table | None = None) -> npt.NDArray[np.bool_]:
        """Return bool[texts]: lines that lack a required column."""
        lacking = np.ones(len(texts), np.bool_)
        if table is not None:
            needed = [table[name] for name in self._columns.list_required_names() if name in table.schema.names]
            nulls = [column.is_null().to_numpy() for column in needed if column.null_count]
            lacking = np.logical_or.reduce([np.zeros_like(lacking), *nulls])
        for row in np.flatnonzero(lacking):
            lacking[row] = bool(self._list_missing(texts[int(row)].as_py()))
        return lacking

    def _list_missing(self, line: bytes) -> list[str]:
        """Return the required columns that a line lacks; [] if it is unreadable."""
        try:
            values = _parse_members(line)
        except (ValueError, RecursionError):
            return []
        is_deletion = DELETED in self._fields.names and values.get(DELETED) == b"true"
        return [name for name in self._columns.list_required_names(is_deletion=is_deletion) if name not in values]

    def explain(self, line: bytes, why: str) -> str:
        """Return why a line cannot be read, in better words than the parser's reason `why`."""
        try:
            document = json.loads(line, object_pairs_hook=_refuse_duplicates)
        except _DuplicateField as twice:
            return f"it has the field {twice.args[0]!r} twice"
        except UnicodeDecodeError:
            return "it is not UTF-8"
        except ValueError as broken:
            return f"it is not JSON: {broken}"
        except RecursionError:
            return "it nests too deeply"
        if not isinstance(document, dict):
            return "it is not a JSON object"
        more = [
            path
            for path in find_unknown_fields(document, pa.struct(list(self._fields)))
            if path not in self._columns.ignored
        ]
        if more:
            return f"it has the field {self._columns.explain_unknown_name(more[0])}"
        if lacking := self._list_missing(line):
            return f"it {describe_lacking_columns(lacking, 'null')}"
        line = encode_mixed_members(pa.array([line], pa.large_binary()), self._columns.declared_types)[0].as_py()
        values = _parse_members(line)
        for field in self._fields:
            if (value := values.get(field.name)) is not None:
                alone = pa.array([b"{%s: %s}" % (json.dumps(field.name).encode(), value)], pa.large_binary())
                try:
                    parse(alone, pa.schema([field]))
                except (Unreadable, pa.ArrowException):
                    kind = format_type(self._columns.declared_types.get(field.name, field.type))
                    rounds = " without rounding" if "round" in why else ""
                    return f"column {field.name!r}: {value.decode()[:80]} is not of type {kind}{rounds}"
        return why


def _parse_members(line: bytes) -> dict[str, bytes]:
    """Return an object's members as bytes; raise ValueError if it is not an object."""
    try:
        return {name: bytes(value) for name, value in msgspec.json.decode(line, type=dict[str, msgspec.Raw]).items()}
    except msgspec.MsgspecError:  # It does not read NaN and infinities, which columns of floats hold.
        document = json.loads(line)
        if not isinstance(document, dict):
            raise ValueError("it is no object") from None
        return {name: json.dumps(value).encode() for name, value in document.items()}


class _DuplicateField(ValueError):
    """A JSON object has a field twice."""


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object's members as a dict; raise _DuplicateField if a name repeats."""
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise _DuplicateField(name)
    return dict(pairs)


def find_unknown_fields(value_in_json: Any, target_type: pa.DataType, path: str = "") -> Iterator[str]:
    """Yield the paths of fields in a JSON value that a type lacks."""
    if isinstance(value_in_json, dict) and pat.is_struct(target_type):
        for name, value in value_in_json.items():
            if target_type.get_field_index(name) < 0:
                yield path + (quote_name(name) if path else name)
            else:
                yield from find_unknown_fields(value, target_type.field(name).type, f"{path}{quote_name(name)}.")
    elif isinstance(value_in_json, list) and pat.is_list(target_type):
        for value in value_in_json:
            yield from find_unknown_fields(value, target_type.value_type, f"{path}element.")
