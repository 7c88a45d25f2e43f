"""Rows as text for the page: JavaScript has no integers of 64 bits, and nothing there may be read as anything else."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

import persist

CELL_CHARS_MAX = 2000


def cells(table: pa.Table) -> dict[str, Any]:
    """Return column names, and the rows as lists of texts, with None for NULL."""
    columns = [[cell(value) for value in column.to_pylist()] for column in table.columns]
    rows = [list(row) for row in zip(*columns, strict=True)] if columns else [[] for _ in range(len(table))]
    return {"columns": table.column_names, "rows": rows}


def cell(value: object) -> str | None:
    """Return a value as text, cut if it is long."""
    if value is None:
        return None
    text = value.hex() if isinstance(value, bytes) else str(value)
    return text if len(text) <= CELL_CHARS_MAX else text[: CELL_CHARS_MAX - 1] + "…"


def first_rows(batches: Iterable[pa.RecordBatch], schema: pa.Schema, offset: int, count: int) -> pa.Table:
    """Return some rows of a stream, and read no more of it than that takes."""
    found: list[pa.RecordBatch] = []
    skip, left = offset, count
    for batch in batches:
        if skip >= batch.num_rows:
            skip -= batch.num_rows
            continue
        piece = batch.slice(skip, left)
        skip, left = 0, left - piece.num_rows
        found.append(piece)
        if not left:
            break
    return pa.Table.from_batches(found, schema)


def key_of(text: str, schema: Any) -> pa.Table:
    """Return the key that somebody typed, as a table of one row.

    Several fields are divided by commas; text in a field stays as it is.

    Raises:
        InvalidUsage: it is no key of the collection.
    """
    names = schema.key_names
    parts = [text] if len(names) == 1 else [part.strip() for part in text.split(",")]
    if len(parts) != len(names):
        raise persist.InvalidUsage(
            f"{text!r:.200} is no key of this collection: give {', '.join(names)}, with commas between them"
        )
    columns = {}
    for name, part in zip(names, parts, strict=True):
        wanted = schema.arrow.field(name).type
        try:
            columns[name] = pa.array([part]).cast(wanted) if part != "NULL" else pa.nulls(1, wanted)
        except pa.ArrowException as error:
            raise persist.InvalidUsage(f"{part!r:.200} is no value of {name!r}, which is of type {wanted}") from error
    return pa.table(columns)
