"""Writes rows to the screen as a table, or to a file as CSV, JSON lines, Parquet or Arrow IPC.

A file gets its name when it is complete: until then its name ends with .part, and an error deletes it. Output to a
pipe or a device goes there directly.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from persist.blob.errors import InvalidUsage
from persist.codecs.types.objects import to_objects
from persist.connect.egress.files import make_row_writer
from persist.connect.ingest.row_formats import BY_SUFFIX
from persist.core.progress import use_watcher
from persist.tools.cli.columns import WRITTEN
from persist.tools.cli.text import format_cell, print_remark, print_table

SHOWN_MAX = 50  # Rows of a table on the screen without --limit.


def choose_format(requested: str | None, output: str | None, as_json: bool) -> str:
    """Return the requested format, or the one of the file's name, or of the terminal."""
    if requested is not None and requested not in WRITTEN:
        raise InvalidUsage(f"--format {requested!r} is not a format: use one of {', '.join(WRITTEN)}")
    if requested is not None and as_json and requested != "json":
        raise InvalidUsage(f"--json and --format {requested} exclude each other")
    if requested is not None or as_json:
        return requested or "json"
    if output is None:
        return "table"
    file_format = BY_SUFFIX.get(Path(output).suffix.lower())
    if file_format is None:
        raise InvalidUsage(f"the name {output!r} does not determine a format: add --format, one of {WRITTEN[1:]}")
    return file_format


def write_rows(
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    format: str,
    output: str | None,
    limit: int | None,
    *,
    in_order: bool = False,
) -> int:
    """Write at most `limit` rows; return their number. Memory: a batch, or a screen's rows.

    `in_order`: the order of rows has a meaning, so a table on the screen is not sorted.
    """
    if output is None and sys.stdout.isatty():
        with use_watcher(None):  # Rows and bars would write over each other.
            return _write_batches(schema, batches, format, output, limit, in_order)
    return _write_batches(schema, batches, format, output, limit, in_order)


def _write_batches(
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    format: str,
    output: str | None,
    limit: int | None,
    in_order: bool,
) -> int:
    """Write rows to a file, a pipe or the screen; return their number."""
    if format == "table" and output is None:
        return _print_rows(schema, batches, SHOWN_MAX if limit is None else limit, in_order)
    if format in ("parquet", "arrow") and output is None and sys.stdout.isatty():
        raise InvalidUsage(f"--format {format} is not for a terminal: say --output FILE, or pipe it into a program")
    rows = 0
    with open_output(output) as file:
        writer = make_row_writer(schema, format, file)
        try:
            for batch in _limit_batches(batches, limit):
                writer.write_batch(batch)
                rows += batch.num_rows
        finally:
            writer.close()
    return rows


def _limit_batches(batches: Iterable[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    remaining = limit
    for batch in batches:
        if remaining is not None:
            if remaining <= 0:
                return
            batch = batch.slice(0, remaining)
            remaining -= batch.num_rows
        yield batch


def _print_rows(schema: pa.Schema, batches: Iterable[pa.RecordBatch], limit: int, in_order: bool) -> int:
    """Print rows as a table, sorted unless `in_order`; return their number."""
    rows: list[tuple[Any, ...]] = []
    is_more = False
    for batch in batches:
        columns = [to_objects(column, " ") for column in batch.slice(0, limit + 1 - len(rows)).columns]
        rows += zip(*columns, strict=True) if columns else [()] * batch.num_rows
        if len(rows) > limit:
            is_more = True
            break
    if not is_more and not in_order:
        with suppress(TypeError):  # Some values have no order.
            rows.sort(key=lambda row: [(value is not None, value) for value in row])
    numbers = [i for i, f in enumerate(schema) if pa.types.is_integer(f.type) or pa.types.is_floating(f.type)]
    texts = [i for i, f in enumerate(schema) if i not in numbers and not pa.types.is_temporal(f.type)]
    print_table(
        schema.names, [tuple(map(_format_cell, row)) for row in islice(rows, limit)], right=numbers, texts=texts
    )
    if is_more:
        number = "1 row is" if limit == 1 else f"{limit:,} rows are"
        print_remark(f"Only {number} shown: say --limit for more, or --output FILE or --format csv for all.")
    return min(len(rows), limit)


def _format_cell(value: object) -> str:
    """Return a value as a cell; bytes as hexadecimal digits."""
    return value.hex() if isinstance(value, bytes) else format_cell(value)


@contextmanager
def open_output(output: str | None) -> Iterator[BinaryIO]:
    """Open a file, or standard output, for writing."""
    if output is None:
        with _name_in_errors("standard output"):
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
        return
    if os.path.exists(output) and not os.path.isfile(output):
        with _name_in_errors(output), open(output, "wb") as file:
            yield file
        return
    part = f"{output}.part"
    try:
        with _name_in_errors(output), open(part, "wb") as file:
            yield file
        os.replace(part, output)
    except BaseException:
        if os.path.exists(part):
            os.unlink(part)
        raise


@contextmanager
def _name_in_errors(output: str) -> Iterator[None]:
    """Add the file's name to an OSError that lacks one, such as for a full disk."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = output
        raise
