"""Columns of a file as the columns of a collection: what casts, row by row where it must be, and what does not."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.blob import InvalidUsage, PersistError
from persist.codecs import TIME_MAX, CollectionSchema, cast_column, cut, did_you_mean, parse_column
from persist.timeline import Timeline, timeline_of

Cast = Callable[[pa.ChunkedArray], pa.ChunkedArray]
REASON_CHARS_MAX = 200


@dataclass(frozen=True)
class CastTable:
    """The rows of a piece that fit; and the others by their index in the piece, each with its reason."""

    table: pa.Table
    misfits: dict[int, str]

    def first(self, count: int) -> list[tuple[int, str]]:
        """Return the first misfits, in order."""
        return [(row, self.misfits[row]) for row in sorted(self.misfits)[:count]]


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
        """Raise InvalidUsage unless a file has the columns that are wanted, once each, and no others."""
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InvalidUsage(f"{file} has the column {twice[0]!r} more than once: give each a name of its own")
        missing = [name for name in self.types if name not in names]
        if missing == ["_time"]:
            raise InvalidUsage(
                f"{file} has no column '_time': say at which time the rows are, with --time 12, or --time-column NAME"
            )
        if missing:
            hint = did_you_mean(missing[0], names) or ""
            raise InvalidUsage(f"{file} has no column {missing[0]!r}{hint.rstrip(',')}; it has {list(names)}")
        extra = [name for name in names if name not in self.wanted(names) and name not in self.ignored]
        if extra:
            hint = " A time for all rows goes with rows without one." if "_time" in extra else ""
            raise InvalidUsage(
                f"{file} has the column {extra[0]!r}, which the collection has not: leave it out of the file, or say "
                f"--ignore {extra[0]}.{hint}"
            )

    def cast(self, table: pa.Table, *, is_text: bool = False) -> CastTable:
        """Return a piece of a file with the wanted types.

        Args:
            is_text: all columns are UTF-8 as binary, to be read as text is.
        """
        misfits: dict[int, str] = {}
        columns = {}
        for name in table.column_names:
            column, failed = self._column(table[name], name, is_text)
            columns[name] = column
            for row, why in failed.items():
                misfits.setdefault(row, why)
        cast_rows = pa.table(columns) if columns else table
        self._check_times(cast_rows, misfits)
        if misfits:
            keep = np.ones(len(cast_rows), bool)
            keep[[*misfits]] = False
            cast_rows = cast_rows.filter(pa.array(keep))
        return CastTable(cast_rows, misfits)

    def _column(self, column: pa.ChunkedArray, name: str, is_text: bool) -> tuple[pa.ChunkedArray, dict[int, str]]:
        wanted = self.types.get(name, pa.bool_() if name == "_deleted" else pa.int64())
        if name == self.time_column and name not in self.schema.names:
            return cast_each(column, self._time_cast(is_text), pa.int64(), name)
        if is_text:
            return cast_each(column, lambda piece: parse_column(piece, wanted), wanted, name)
        return cast_each(column, lambda piece: cast_column(piece, wanted, name), wanted, name)

    def _time_cast(self, is_text: bool) -> Cast:
        def cast(piece: pa.ChunkedArray) -> pa.ChunkedArray:
            if is_text:
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


def cast_each(
    column: pa.ChunkedArray, cast: Cast, wanted: pa.DataType, name: str
) -> tuple[pa.ChunkedArray, dict[int, str]]:
    """Return a column cast as a whole, or, where that fails, in halves; NULL for the rows that fail by themselves."""
    failed: dict[int, str] = {}

    def halves(start: int, stop: int) -> list[pa.ChunkedArray]:
        piece = column.slice(start, stop - start)
        try:
            return [cast(piece)]
        except (pa.ArrowException, PersistError) as error:
            if stop - start > 1:
                middle = (start + stop) // 2
                return [*halves(start, middle), *halves(middle, stop)]
            failed[start] = f"column {name!r}: {_why(piece, wanted, error)}"
            return [pa.chunked_array([pa.nulls(1, wanted)])]

    pieces = halves(0, len(column)) if len(column) else [pa.chunked_array([], wanted)]
    return pa.chunked_array([chunk for piece in pieces for chunk in piece.chunks], wanted), failed


def check_text_types(types: dict[str, pa.DataType], format: str) -> None:
    """Raise InvalidUsage if values of some type cannot be read from text."""
    for name, wanted in types.items():
        try:
            parse_column(pa.chunked_array([pa.array([], pa.binary())]), wanted)
        except pa.ArrowNotImplementedError as error:
            raise InvalidUsage(
                f"column {name!r} of type {wanted} cannot be read from {format}: use Parquet or Arrow"
            ) from error


def _why(piece: pa.ChunkedArray, wanted: pa.DataType, error: Exception) -> str:
    value = piece[0].as_py()
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return f"{cut(value)} is not UTF-8"
    if isinstance(error, PersistError):
        return str(error).replace("the time of update 0: ", "").replace("update 0 ", "it ")[:REASON_CHARS_MAX]
    return f"{cut(value)} is no {wanted}"


def _rows(flags: pa.ChunkedArray) -> list[int]:
    return [int(row) for row in np.flatnonzero(flags.combine_chunks().to_numpy(zero_copy_only=False))]


REASONS_MAX = 10


@dataclass
class Misfits:
    """The rows that do not fit: how many, and the first reasons with their places."""

    count: int = 0
    reasons: list[str] = field(default_factory=list)

    def add(self, count: int, reasons: list[str]) -> None:
        """Count some more, with the reasons of the first of them."""
        self.count += count
        self.reasons += reasons[: REASONS_MAX - len(self.reasons)]

    def __str__(self) -> str:
        more = self.count - len(self.reasons)
        return "\n".join([*self.reasons, *([f"and {more:,} more"] if more > 0 else [])])
