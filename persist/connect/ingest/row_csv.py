"""Rows of CSV, read as text by Arrow, so that misfits have line numbers.

An empty field is NULL, unless it is in quotes; then it is empty text. Records with more or fewer fields than the head
do not fit. Line numbers are found by reading the file once more, because a record may span several lines.

A quote that is never closed would turn the rest of the file into one value. In a correct file, each quote begins or
ends a field or is doubled, so their number is even; all bytes are checked for that. Any other file is read once more,
record by record.
"""

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from persist.blob.errors import InvalidUsage
from persist.connect.ingest.row_casts import REASONS_MAX, Misfits, check_text_types
from persist.connect.ingest.row_columns import RowColumns
from persist.connect.ingest.row_formats import BLOCK_BYTES, MEND, RowFile
from persist.core.rendering import format_count

FIELD_CHARS_MAX = 2**31 - 1


def read_csv_pieces(file: RowFile, columns: RowColumns, misfits: Misfits) -> Iterator[pa.Table]:
    """Yield the rows of a CSV file that fit, in pieces."""
    names = read_header(file)
    columns.check_names(names, file.name)
    selected = columns.select_names(names)
    check_text_types({column: columns.types[column] for column in selected if column in columns.types}, "CSV")
    wrong_width = 0

    def skip(row: Any) -> str:
        nonlocal wrong_width
        wrong_width += 1
        return "skip"

    start, located = 0, _RejectedRows(file, len(names))
    for batch in read_text_batches(file, names, selected, skip):
        cast = columns.cast(pa.Table.from_batches([batch]), is_text=True)
        located.add({start + row: why for row, why in cast.get_first(REASONS_MAX)})
        misfits.count += len(cast.misfits)
        start += batch.num_rows
        yield cast.table
    if not start:
        yield pa.schema(columns.types.items()).empty_table()
    misfits.count += wrong_width
    if misfits.count:
        misfits.reasons += located.find_reasons(wrong_width)


def read_text_batches(
    file: RowFile, names: list[str], columns: list[str], skipped: Callable[[Any], str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield some columns of a CSV file as bytes, in batches.

    Args:
        names: of all columns.
        skipped: called with records of the wrong width; returns "skip" or "error".
    """
    import pyarrow.csv as pa_csv

    with file.open_bytes() as stream:
        quotes = _QuoteChecker(stream)
        try:
            reader: Iterable[pa.RecordBatch] = pa_csv.open_csv(
                pa.PythonFile(quotes, mode="r"),
                pa_csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
                pa_csv.ParseOptions(newlines_in_values=True, invalid_row_handler=skipped),
                pa_csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.binary()),
                    include_columns=columns,
                    null_values=[""],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                    check_utf8=False,
                ),
            )
            yield from reader
        except pa.ArrowInvalid:
            _check_quotes(file)
            raise
    if quotes.are_wrong:
        _check_quotes(file)


class _QuoteChecker:
    """Passes on the bytes of a CSV file, and notes misplaced and unclosed quotes."""

    closed = False
    _BEFORE = np.isin(np.arange(256), [*b',\n\r"'])  # Also what follows: a second quote is one inside of a field.

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._last = b"\n"
        self._is_open = False
        self.are_wrong = False

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes, and note wrong quotes in them."""
        data: bytes = self._stream.read(size)
        if not data:
            self.are_wrong |= self._is_open
        elif not self.are_wrong and (b'"' in data or self._last == b'"'):
            self._note_misplaced(np.frombuffer(self._last + data, np.uint8))
        self._last = data[-1:] or self._last
        return data

    def _note_misplaced(self, data: np.ndarray) -> None:
        """Note whether an undoubled quote neither begins nor ends a field."""
        places = np.flatnonzero(data[1:] == ord('"')) + 1
        opening, closing = places[int(self._is_open) :: 2], places[int(not self._is_open) :: 2]
        if data[0] == ord('"') and not self._is_open:
            closing = np.concatenate([[0], closing])
        followed = closing[closing < len(data) - 1] + 1
        self.are_wrong = not (self._BEFORE[data[opening - 1]].all() and self._BEFORE[data[followed]].all())
        self._is_open ^= bool(len(places) % 2)


def _check_quotes(file: RowFile) -> None:
    """Raise InvalidUsage if a quoted field does not end, or goes on after its end."""
    line = 1
    with _open_text(file) as text:
        reader = csv.reader(text, strict=True)
        try:
            for _ in reader:
                line = reader.line_num + 1
        except csv.Error as error:
            what = "do not end" if "end of data" in str(error) else "end before their field does"
            raise InvalidUsage(
                f"{file.name} cannot be read as csv: quotes of the record that begins on line {line} {what}. {MEND}"
            ) from None


class _RejectedRows:
    """Collects the rejected rows of a CSV file, and finds their lines."""

    def __init__(self, file: RowFile, width: int) -> None:
        self._file = file
        self._width = width
        self._why: dict[int, str] = {}

    def add(self, why: dict[int, str]) -> None:
        """Add reasons by row number, up to a limit."""
        if len(self._why) < REASONS_MAX:
            self._why |= why

    def find_reasons(self, wrong_width: int) -> list[str]:
        """Return the first reasons with line numbers. Cost: reading the file up to these lines."""
        first_reasons: list[str] = []
        record = 0
        remaining = min(REASONS_MAX, len(self._why) + wrong_width)
        for line, fields in _parse_records(self._file):
            if len(fields) != self._width:
                first_reasons.append(
                    f"line {line}: it has {format_count(len(fields), 'field')}, and the head has {self._width}"
                )
            else:
                if record in self._why:
                    first_reasons.append(f"line {line}: {self._why[record]}")
                record += 1
            if len(first_reasons) >= remaining:
                break
        return first_reasons


def read_header(file: RowFile) -> list[str]:
    """Return the names of the columns of a CSV file."""
    with _open_text(file, errors="surrogateescape") as text:
        names = next(filter(None, csv.reader(text)), None)
    if not names:
        raise InvalidUsage(f"{file.name} is empty: the first line of a CSV file names its columns")
    if any("\udc80" <= char <= "\udcff" or char == "\0" for name in names for char in name):
        raise InvalidUsage(
            f"{file.name} cannot be read as csv: its first line is not UTF-8. Convert it, such as with iconv -t utf-8"
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidUsage(f"{file.name} has the column {twice[0]!r} more than once: give each a name of its own")
    return names


def find_record_line(file: RowFile, column: str, matches: Callable[[str], bool]) -> int | None:
    """Return the line of the first record whose field in `column` matches, or None."""
    at = read_header(file).index(column)
    records = _parse_records(file, "surrogateescape")
    return next((line for line, fields in records if len(fields) > at and matches(fields[at])), None)


def _parse_records(file: RowFile, errors: str = "replace") -> Iterator[tuple[int, list[str]]]:
    """Yield the first line and the fields of each record after the header."""
    with _open_text(file, errors) as text:
        reader = csv.reader(text)
        next(filter(None, reader), None)
        line = reader.line_num + 1
        for fields in reader:
            if fields:
                yield line, fields
            line = reader.line_num + 1


@contextmanager
def _open_text(file: RowFile, errors: str = "replace") -> Iterator[io.TextIOWrapper]:
    """Yield a CSV file as text, without a byte order mark."""
    csv.field_size_limit(FIELD_CHARS_MAX)
    with file.open_bytes() as stream:
        yield io.TextIOWrapper(io.BufferedReader(stream), encoding="utf-8-sig", errors=errors, newline="")
