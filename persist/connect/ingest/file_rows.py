"""What rows of a file become when they flow into a collection."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from persist.codecs.errors import did_you_mean
from persist.codecs.types.casts import cast_column
from persist.connect.ingest.row_casts import CastTable, cast_each, cast_rows, cast_texts, fitting
from persist.core.errors import InvalidUsage

DELETED = "_deleted"
DRIFT = 'say drift = "add" to add such columns to the collection, or drift = "ignore" to leave them out'


@dataclass(frozen=True)
class FileRows:
    """The columns of a collection; NULL where a file has none.

    Attributes:
        name: of the collection.
        types: of its columns, and of the mark of deleted rows if it is keyed.
        key: which of them are its key.
        ignored: columns of the file to leave out.
    """

    name: str
    types: dict[str, pa.DataType]
    key: tuple[str, ...]
    ignored: tuple[str, ...]

    def wanted(self, names: Sequence[str]) -> list[str]:
        """Return which columns of a file are wanted, in its order."""
        return [name for name in names if name in self.types]

    def check_names(self, names: Sequence[str], file: str) -> None:
        """Raise InvalidUsage if a file lacks a column of the key, or has one that is neither known nor ignored."""
        lost = [name for name in self.key if name not in names]
        if lost:
            raise InvalidUsage(
                f"{file} has no column {lost[0]!r}, which is of the key of {self.name!r}; it has {list(names)}"
            )
        more = [name for name in names if name not in self.types and name not in self.ignored]
        if more:
            raise InvalidUsage(
                f"{file} has the column {more[0]!r}, which the collection {self.name!r} has not"
                f"{did_you_mean(more[0], self.types) or ''}. Nothing of it was taken in: {self.advice(more[0])}"
            )

    def advice(self, name: str) -> str:
        """Return what to do about a field that is no column."""
        if name.partition(".")[0] in self.types:
            return "fields inside of a column cannot be added, so leave it out of the file, or fill another collection"
        return DRIFT

    def json_types(self, first: dict[str, Any]) -> dict[str, pa.DataType]:
        """Return the fields to read."""
        return self.types

    def columns_needed(self, *, is_deletion: bool) -> Collection[str]:
        """Return the columns that a line of JSON must have: those of the key, as those of a file."""
        return self.key

    def cast(self, table: pa.Table, *, is_text: bool) -> CastTable:
        """Return a piece of a file with all columns of the collection."""
        cast = cast_texts if is_text else cast_column
        rows = cast_rows(
            table,
            lambda column, name: cast_each(
                column, lambda piece: cast(piece, self.types[name], name), self.types[name], name
            ),
        )
        columns = {
            name: rows.table[name] if name in rows.table.column_names else pa.nulls(len(table), kind)
            for name, kind in self.types.items()
            if name != DELETED or DELETED in rows.table.column_names
        }
        if DELETED in columns:
            columns[DELETED] = pc.fill_null(columns[DELETED], False)
        return fitting(CastTable(pa.table(columns), rows.misfits))
