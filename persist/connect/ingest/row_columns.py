"""Maps the columns of a file to the columns of a collection, and checks the times of its rows."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeGuard

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.blob.errors import InvalidUsage
from persist.codecs.errors import did_you_mean
from persist.codecs.nested import align_fields, find_new_fields
from persist.codecs.types.arrow_types import JSON
from persist.codecs.types.casts import cast_column
from persist.codecs.types.documents import check_documents
from persist.codecs.types.schema import TIME_MAX, CollectionSchema
from persist.codecs.types.texts import parse_column
from persist.codecs.updates.inputs import DELETED
from persist.connect.ingest.row_casts import CastTable, cast_each, cast_rows, cast_texts, keep_fitting
from persist.core.timeline import read_timeline

MARKS = {"_diff": pa.int64(), DELETED: pa.bool_()}


@dataclass(frozen=True)
class RowColumns:
    """How the columns of a file fill the columns of a collection.

    Attributes:
        schema: of the collection.
        remedy: advice for an unknown column of the file, whose name replaces `{}`.
        mark: "_diff" if rows are updates, "_deleted" if they are events: files may have this column.
        time_column: the column with the times: "_time" of updates, another one of plain rows; None for no times.
        keys_only: read the key alone.
        may_lack_values: a value column that a file lacks is NULL; otherwise the file is refused.
        ignored: the columns of the file, and the fields inside of columns, to leave out, by their paths.
        upper: times before it are sealed, so rows at such times are misfits; None for no such check.
    """

    schema: CollectionSchema
    remedy: str
    mark: Literal["_diff", "_deleted"] | None = None
    time_column: str | None = None
    keys_only: bool = False
    may_lack_values: bool = False
    ignored: tuple[str, ...] = ()
    upper: int | None = None

    @cached_property
    def types(self) -> dict[str, pa.DataType]:
        """The type of each column to read; the column of times is int64."""
        names = self.schema.key_names if self.keys_only else self.schema.names
        types = {name: self.schema.arrow.field(name).type for name in names}
        if self.time_column is not None:
            types.setdefault(self.time_column, pa.int64())
        return types

    @property
    def declared_types(self) -> dict[str, pa.DataType]:
        """All types that a file may have: columns, JSON documents, and `_diff` or `_deleted`."""
        documents = {name: JSON for name in self.schema.json if name in self.types}
        return self.types | documents | self.optional_fields

    @property
    def optional_fields(self) -> dict[str, pa.DataType]:
        """The column that a file may have: `_diff` or `_deleted`, with its type; {} for none."""
        return {} if self.mark is None else {self.mark: MARKS[self.mark]}

    def list_required_names(self, *, is_deletion: bool = False) -> Collection[str]:
        """Return the columns that a file or line must have.

        An event that deletes needs only the key and the column of times.
        """
        if self.may_lack_values or (is_deletion and self.mark == DELETED):
            return [name for name in self.types if name in (*self.schema.key_names, self.time_column)]
        return self.types

    def select_names(self, names: Sequence[str]) -> list[str]:
        """Return which of a file's columns to read, in the order of the file."""
        return [name for name in names if name in self.types or name == self.mark]

    def check_names(self, names: Sequence[str], file: str) -> None:
        """Raise InvalidUsage unless a file has the required columns, and no unknown ones."""
        missing = [name for name in self.list_required_names() if name not in names]
        if missing:
            hint = did_you_mean(missing[0], names) or ""
            raise InvalidUsage(f"{file} has no column {missing[0]!r}{hint.rstrip(',')}; it has {list(names)}")
        unknown = [name for name in names if name not in {*self.select_names(names), *self.ignored}]
        if unknown:
            hint = " A time for all rows goes with rows without one." if "_time" in unknown else ""
            raise InvalidUsage(f"{file} has the column {self.explain_unknown_name(unknown[0])}.{hint}")

    def explain_unknown_name(self, name: str) -> str:
        """Return a message: a field that is not a column, and a remedy."""
        remedy = self.remedy.format(name)
        return f"{name!r}, which the collection has not{did_you_mean(name, self.types) or ':'} {remedy}"

    def get_json_types(self, first: dict[str, Any]) -> dict[str, pa.DataType]:
        """Return the types of fields to parse; times are text if the first object has text."""
        types = dict(self.types)
        time = self.time_column
        if self._has_row_times(time) and isinstance(first.get(time), str):
            types[time] = pa.string()
        return types | {name: kind for name, kind in self.optional_fields.items() if name in first or name == DELETED}

    def cast(self, table: pa.Table, *, is_text: bool) -> CastTable:
        """Return a piece of a file in the types of the columns, and its misfits. With `is_text`, UTF-8 is parsed."""
        if self.may_lack_values:
            table = self._align_inner_fields(table)
        cast = cast_rows(table, lambda column, name: self._cast_column(column, name, is_text))
        self._check_times(cast.table, cast.misfits)
        return keep_fitting(CastTable(self._add_null_columns(cast.table), cast.misfits))

    def _align_inner_fields(self, table: pa.Table) -> pa.Table:
        """Return a table whose structs have the collection's fields, if other fields are ignored."""
        for at, name in enumerate(table.column_names):
            kind = self.types.get(name)
            if kind is not None and self.ignores_new_fields(name, table.schema.types[at]):
                column = align_fields(table.column(at), kind)
                table = table.set_column(at, name, column)
        return table

    def ignores_new_fields(self, name: str, kind: pa.DataType) -> bool:
        """Return whether the options ignore all inner fields that a column does not have."""
        return find_new_fields(name, kind, self.types[name]).keys() <= {*self.ignored}

    def _cast_column(self, column: pa.ChunkedArray, name: str, is_text: bool) -> tuple[pa.ChunkedArray, dict[int, str]]:
        """Cast one column; return it, and reasons of misfits by row."""
        kind = (self.types | self.optional_fields)[name]
        if self._has_row_times(name):
            return cast_each(column, self._make_time_cast(is_text), kind, name)
        cast = cast_texts if is_text else cast_column
        if name in self.schema.json:
            return cast_each(column, lambda piece: _cast_documents(piece, name, cast), kind, name)
        return cast_each(column, lambda piece: cast(piece, kind, name), kind, name)

    def _make_time_cast(self, is_text: bool) -> Callable[[pa.ChunkedArray], pa.ChunkedArray]:
        """Return the function that casts the column of times."""
        timeline = read_timeline(self.schema)

        def cast(piece: pa.ChunkedArray) -> pa.ChunkedArray:
            if is_text and not pat.is_integer(piece.type):
                try:
                    return parse_column(piece, pa.int64())
                except pa.ArrowException:
                    if timeline is None:
                        raise
                    piece = piece.cast(pa.string())
            if timeline is not None:
                piece = timeline.convert_column(piece, self.time_column or "_time")
            return cast_column(piece, pa.int64(), self.time_column or "_time")

        return cast

    def _add_null_columns(self, table: pa.Table) -> pa.Table:
        """Return a table with NULL for missing columns."""
        for name, kind in self.types.items():
            if name not in table.column_names:
                table = table.append_column(name, pa.nulls(len(table), kind))
        return table

    def _has_row_times(self, name: str | None) -> TypeGuard[str]:
        """Return whether a column has the times of rows, without being a column of the collection."""
        return name is not None and name == self.time_column and name not in self.schema.names

    def _check_times(self, table: pa.Table, misfits: dict[int, str]) -> None:
        """Add rows with a sealed or NULL time, or a NULL diff, to misfits."""
        if self._has_row_times(self.time_column) and self.time_column in table.column_names:
            times = table[self.time_column]
            outside = pc.fill_null(pc.or_(pc.less(times, self.upper or 0), pc.greater(times, TIME_MAX)), True)
            for row in _find_rows(outside):
                misfits.setdefault(row, self._explain_time(times[row].as_py()))
        if "_diff" in table.column_names:
            for row in _find_rows(pc.is_null(table["_diff"])):
                misfits.setdefault(row, "column '_diff' is missing its number")

    def _explain_time(self, time: int | None) -> str:
        """Return why a time cannot be written."""
        if time is None:
            return f"column {self.time_column!r} is empty, and every row needs a time"
        if 0 <= time <= TIME_MAX:
            return f"its time {time} is sealed: times from {self.upper} on can be written"
        return f"its time {time} is not allowed: times go from 0 to {TIME_MAX}"


def _cast_documents(
    piece: pa.ChunkedArray, name: str, cast: Callable[[pa.ChunkedArray, pa.DataType, str], pa.ChunkedArray]
) -> pa.ChunkedArray:
    """Return a column of JSON as text, after checking that each value is valid JSON."""
    documents = cast(piece, pa.string(), name)
    check_documents(documents, name)
    return documents


def _find_rows(flags: pa.ChunkedArray) -> list[int]:
    """Return the numbers of true rows."""
    return [int(row) for row in np.flatnonzero(flags.combine_chunks().to_numpy(zero_copy_only=False))]
