"""Casts columns of a file, row by row if necessary, and collects misfits."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from persist.blob.errors import InvalidUsage, PersistError
from persist.codecs.errors import SchemaMismatch
from persist.codecs.types.arrow_types import (
    JSON,
    is_bytes,
    is_flat,
    is_text,
    list_inner_arrays,
    list_inner_fields,
    rebuild_nested,
    replace_inner_types,
)
from persist.codecs.types.casts import cast_column
from persist.codecs.types.texts import parse_column
from persist.codecs.types.values import shorten
from persist.connect.envelopes import Unreadable, decode_base64

Cast = Callable[[pa.ChunkedArray], pa.ChunkedArray]
REASON_CHARS_MAX = 200
REASONS_MAX = 10


@dataclass(frozen=True)
class CastTable:
    """The rows of a table in other types; `misfits`: by row number, why a row does not fit them."""

    table: pa.Table
    misfits: dict[int, str]

    def get_first(self, count: int) -> list[tuple[int, str]]:
        """Return the first misfits: (row number, reason)."""
        return [(row, self.misfits[row]) for row in sorted(self.misfits)[:count]]


@dataclass
class Misfits:
    """The number of rows that do not fit, and the first reasons."""

    count: int = 0
    reasons: list[str] = field(default_factory=list)

    def add(self, count: int, reasons: list[str]) -> None:
        """Count more misfits, with the reasons of the first ones."""
        self.count += count
        self.reasons += reasons[: REASONS_MAX - len(self.reasons)]

    def make_error(self, file: str, rows: int, remedy: str) -> InvalidUsage:
        """Return the error for the misfits of a file with `rows` fitting rows."""
        error = InvalidUsage(
            f"{self.count:,} of the {rows + self.count:,} rows of {file} do not fit. {remedy}:\n{self}"
        )
        setattr(error, "has_lines", True)  # noqa: B010
        return error

    def __str__(self) -> str:
        more = self.count - len(self.reasons)
        return "\n".join([*self.reasons, *([f"and {more:,} more"] if more > 0 else [])])


def cast_rows(
    table: pa.Table, cast: Callable[[pa.ChunkedArray, str], tuple[pa.ChunkedArray, dict[int, str]]]
) -> CastTable:
    """Cast a table column by column; collect the reasons of misfits by row number."""
    misfits: dict[int, str] = {}
    columns = {}
    for name in table.column_names:
        columns[name], failed = cast(table[name], name)
        for row, why in failed.items():
            misfits.setdefault(row, why)
    return CastTable(pa.table(columns) if columns else table, misfits)


def keep_fitting(cast: CastTable) -> CastTable:
    """Return a cast table without the rows that do not fit."""
    if not cast.misfits:
        return cast
    keep = np.ones(len(cast.table), bool)
    keep[[*cast.misfits]] = False
    return CastTable(cast.table.filter(pa.array(keep)), cast.misfits)


def cast_each(
    column: pa.ChunkedArray, cast: Cast, target_type: pa.DataType, name: str
) -> tuple[pa.ChunkedArray, dict[int, str]]:
    """Cast a column, in halves if that fails. A row that fails is NULL."""
    failed: dict[int, str] = {}

    def halves(start: int, stop: int) -> list[pa.ChunkedArray]:
        piece = column.slice(start, stop - start)
        try:
            return [cast(piece)]
        except SchemaMismatch:
            raise  # It is the type that does not fit, so no row does.
        except (pa.ArrowException, PersistError) as error:
            if stop - start > 1:
                middle = (start + stop) // 2
                return [*halves(start, middle), *halves(middle, stop)]
            failed[start] = f"column {name!r}: {_explain_misfit(piece, target_type, error)}"
            return [pa.chunked_array([pa.nulls(1, target_type)])]

    pieces = halves(0, len(column)) if len(column) else [pa.chunked_array([], target_type)]
    return pa.chunked_array([chunk for piece in pieces for chunk in piece.chunks], target_type), failed


def cast_texts(column: pa.ChunkedArray, target_type: pa.DataType, name: str) -> pa.ChunkedArray:
    """Cast a column; parse its texts if the target type is not text."""
    if is_flat(target_type):
        if not is_text(column.type):
            return cast_column(column, target_type, name)
        return pa.chunked_array([_parse_texts(chunk, target_type) for chunk in column.chunks], target_type)
    natural = _get_parsed_type(column.type, target_type)
    if natural != column.type:
        whole = [chunk.take(pa.array(np.arange(len(chunk)))) for chunk in column.chunks]  # Without what slices hide.
        column = pa.chunked_array([_parse_texts(chunk, natural) for chunk in whole], natural)
    return cast_column(column, target_type, name)


def get_wire_type(target_type: pa.DataType) -> pa.DataType:
    """Return the type as which a value of a type is parsed from JSON, such as text for moments."""
    if pat.is_temporal(target_type) or pat.is_large_string(target_type) or target_type == JSON or is_bytes(target_type):
        return pa.string()
    if pat.is_float16(target_type):
        return pa.float64()
    if is_flat(target_type):
        return target_type
    inner = [get_wire_type(f.type) for f in list_inner_fields(target_type)]
    if pat.is_map(target_type):
        key = pa.string() if is_flat(target_type.key_type) else inner[0]
        return pa.list_(pa.struct([("key", key), ("value", inner[1])]))
    return replace_inner_types(target_type, inner) if pat.is_struct(target_type) else pa.list_(inner[0])


def _get_parsed_type(source_type: pa.DataType, target_type: pa.DataType) -> pa.DataType:
    """Return the type of a column after its texts are parsed as `target_type`."""
    if is_flat(target_type):
        return source_type if not is_text(source_type) or pat.is_string(target_type) else target_type
    pairs = zip(list_inner_fields(source_type), list_inner_fields(target_type), strict=True)
    return replace_inner_types(source_type, [_get_parsed_type(f.type, w.type) for f, w in pairs])


def _parse_texts(array: pa.Array, natural: pa.DataType) -> pa.Array:
    """Parse an array of texts without offset as values of type `natural`."""
    if array.type == natural:
        return array
    if is_bytes(natural):
        try:
            return decode_base64(array).cast(pa.binary()).cast(natural)
        except Unreadable as error:
            raise pa.ArrowInvalid(str(error)) from None
    if is_flat(natural):
        return parse_column(pa.chunked_array([array]), natural).combine_chunks()
    inner = [
        _parse_texts(part, field.type)
        for part, field in zip(list_inner_arrays(array), list_inner_fields(natural), strict=True)
    ]
    return rebuild_nested(array, natural, inner)


def check_text_types(types: dict[str, pa.DataType], format: str) -> None:
    """Raise InvalidUsage if a type cannot be read from text."""
    for name, kind in types.items():
        try:
            parse_column(pa.chunked_array([pa.array([], pa.binary())]), kind)
        except pa.ArrowNotImplementedError as error:
            raise InvalidUsage(
                f"column {name!r} of type {kind} cannot be read from {format}: use Parquet or Arrow"
            ) from error


def _explain_misfit(piece: pa.ChunkedArray, target_type: pa.DataType, error: Exception) -> str:
    """Return the reason why a value does not fit."""
    try:
        value = piece[0].as_py()
    except (ValueError, OverflowError):
        value = " ".join(piece.to_string().split())
    if isinstance(value, bytes) and not pat.is_binary(target_type) and not pat.is_fixed_size_binary(target_type):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return f"{shorten(value)} is not UTF-8"
    if isinstance(error, PersistError):
        return str(error).replace("the time of update 0: ", "").replace("update 0 ", "it ")[:REASON_CHARS_MAX]
    rounded = " without rounding" if "rounded" in str(error) or "data loss" in str(error) else ""
    return f"{shorten(value)} is not of type {target_type}{rounded}"
