"""CSV: read as text by Arrow, in pieces, then cast; line numbers are looked up only when they are asked for.

An empty field is NULL, unless it is in quotes; then it is empty text. Records with more or fewer fields than the head
do not fit. Line numbers are found by reading the file once more, because a record may span several lines.
"""

import csv
import io
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv

from persist.blob import InvalidUsage
from persist.cli.casting import Caster, check_text_types
from persist.cli.misfits import REASONS_MAX, Misfits
from persist.shown import counted

BLOCK_BYTES = 8 << 20
FIELD_CHARS_MAX = 2**31 - 1


def csv_pieces(path: str, name: str, caster: Caster, misfits: Misfits) -> Iterator[pa.Table]:
    """Yield the rows of a CSV file that fit."""
    names = _head(path, name)
    caster.check_names(names, name)
    check_text_types({each: caster.types[each] for each in caster.wanted(names) if each in caster.types}, "CSV")
    wrong_width = 0

    def skip(row: Any) -> str:
        nonlocal wrong_width
        wrong_width += 1
        return "skip"

    start, located = 0, _Located(path, len(names))
    with pa.input_stream(path, compression="detect") as source:
        for batch in pa_csv.open_csv(
            source,
            pa_csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
            pa_csv.ParseOptions(newlines_in_values=True, invalid_row_handler=skip),
            pa_csv.ConvertOptions(
                column_types={each: pa.binary() for each in names},
                include_columns=caster.wanted(names),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                check_utf8=False,
            ),
        ):
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
        found: list[str] = []
        record = 0
        left = min(REASONS_MAX, len(self._why) + wrong_width)
        for line, fields in _records(self._path):
            if len(fields) != self._width:
                found.append(f"line {line}: it has {counted(len(fields), 'field')}, and the head has {self._width}")
            else:
                if record in self._why:
                    found.append(f"line {line}: {self._why[record]}")
                record += 1
            if len(found) >= left:
                break
        return found


def _head(path: str, name: str) -> list[str]:
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
