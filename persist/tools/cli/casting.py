"""Columns of a file as the columns of a collection, with the times that a write takes."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.blob.errors import InvalidUsage
from persist.codecs.types.casts import cast_column
from persist.codecs.types.schema import TIME_MAX, CollectionSchema
from persist.codecs.types.texts import parse_column
from persist.connect.ingest.row_casts import CastTable, cast_each, cast_rows, cast_texts, fitting
from persist.connect.ingest.row_files import check_columns
from persist.core.timeline import Timeline, timeline_of


@dataclass(frozen=True)
class Caster:
    """What turns a file's columns into those that a write takes.

    Attributes:
        schema: of the collection.
        time_column: where times come from: "_time" of updates, another column of plain rows, or None for no times.
        keys_only: whether only the key is wanted.
        ignored: columns of the file to leave out.
        upper: times before it are sealed, so no row may have them; None for no such check.
        is_events: the rows are events of a keyed collection, which may have `_deleted` and no `_diff`.
    """

    schema: CollectionSchema
    time_column: str | None
    keys_only: bool = False
    ignored: tuple[str, ...] = ()
    upper: int | None = None
    is_events: bool = False

    @property
    def types(self) -> dict[str, pa.DataType]:
        """The columns that must be there, each with its type; of times, int64."""
        names = self.schema.key_names if self.keys_only else self.schema.names
        types = {name: self.schema.arrow.field(name).type for name in names}
        return (
            types if self.time_column is None else {**types, self.time_column: types.get(self.time_column, pa.int64())}
        )

    @property
    def timeline(self) -> Timeline | None:
        return timeline_of(self.schema)

    def wanted(self, names: Sequence[str]) -> list[str]:
        """Return which columns of a file are wanted, in its order."""
        own = () if self.keys_only else ("_deleted",) if self.is_events else ("_diff",)
        return [name for name in names if name in self.types or name in own]

    def check_names(self, names: Sequence[str], file: str) -> None:
        """Raise InvalidUsage unless a file has the columns that are wanted, and no others."""
        missing = [name for name in self.types if name not in names]
        if missing == ["_time"]:
            raise InvalidUsage(
                f"{file} has no column '_time': say at which time the rows are, with --time 12, or --time-column NAME"
            )
        check_columns(names, self.types, file)
        extra = [name for name in names if name not in self.wanted(names) and name not in self.ignored]
        if extra:
            hint = " A time for all rows goes with rows without one." if "_time" in extra else ""
            raise InvalidUsage(
                f"{file} has the column {extra[0]!r}, which the collection has not: leave it out of the file, or "
                f"{self.advice(extra[0])}.{hint}"
            )

    def advice(self, name: str) -> str:
        """Return what to do about a field that is no column."""
        return f"say --ignore {name}"

    def json_types(self, first: dict[str, Any]) -> dict[str, pa.DataType]:
        """Return the fields to read: those of the collection; of times, what the first object has."""
        types = dict(self.types)
        time = self.time_column
        if time is not None and time not in self.schema.names and isinstance(first.get(time), str):
            types[time] = pa.string()
        for name, kind in (("_diff", pa.int64()), ("_deleted", pa.bool_())):
            if self.wanted([name]) and (name in first or name == "_deleted"):
                types[name] = kind
        return types

    def columns_needed(self, *, is_deletion: bool) -> Collection[str]:
        """Return the columns that a line of JSON must have: all, or the key and the time of what is deleted."""
        if is_deletion and self.is_events:
            return [name for name in self.types if name in (*self.schema.key_names, self.time_column)]
        return self.types

    def cast(self, table: pa.Table, *, is_text: bool) -> CastTable:
        """Return a piece of a file with the wanted types.

        Args:
            is_text: text is to be parsed: UTF-8, as string or as binary.
        """
        cast = cast_rows(table, lambda column, name: self._column(column, name, is_text))
        self._check_times(cast.table, cast.misfits)
        return fitting(cast)

    def _column(self, column: pa.ChunkedArray, name: str, is_text: bool) -> tuple[pa.ChunkedArray, dict[int, str]]:
        wanted = self.types.get(name, pa.bool_() if name == "_deleted" else pa.int64())
        if name == self.time_column and name not in self.schema.names:
            return cast_each(column, self._time_cast(is_text), pa.int64(), name)
        cast = cast_texts if is_text else cast_column
        return cast_each(column, lambda piece: cast(piece, wanted, name), wanted, name)

    def _time_cast(self, is_text: bool) -> Callable[[pa.ChunkedArray], pa.ChunkedArray]:
        def cast(piece: pa.ChunkedArray) -> pa.ChunkedArray:
            if is_text and pat.is_binary(piece.type):
                try:
                    return parse_column(piece, pa.int64())
                except pa.ArrowException:
                    piece = piece.cast(pa.string())
            if self.timeline is not None:
                piece = self.timeline.column_of_times(piece, self.time_column or "_time")
            return cast_column(piece, pa.int64(), self.time_column or "_time")

        return cast

    def _check_times(self, table: pa.Table, misfits: dict[int, str]) -> None:
        """Add the rows whose time or diff cannot be one."""
        name = self.time_column
        if name is not None and name not in self.schema.names and name in table.column_names:
            low = self.upper or 0
            times = table[name]
            outside = pc.fill_null(pc.or_(pc.less(times, low), pc.greater(times, TIME_MAX)), True)
            for row in _rows(outside):
                if row not in misfits:
                    misfits[row] = self._about_time(times[row].as_py())
        if "_diff" in table.column_names:
            for row in _rows(pc.is_null(table["_diff"])):
                misfits.setdefault(row, "column '_diff' is missing its number")

    def _about_time(self, time: int | None) -> str:
        if time is None:
            return f"column {self.time_column!r} is empty, and every row needs a time"
        if 0 <= time <= TIME_MAX:
            return f"its time {time} is sealed: times from {self.upper} on can be written"
        return f"its time {time} is none: times go from 0 to {TIME_MAX}"


def _rows(flags: pa.ChunkedArray) -> list[int]:
    return [int(row) for row in np.flatnonzero(flags.combine_chunks().to_numpy(zero_copy_only=False))]
