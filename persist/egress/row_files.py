"""Rows as files: Parquet, Arrow IPC, CSV, or JSON lines."""

import json
from collections.abc import Iterable
from typing import Any, BinaryIO, Protocol

import pyarrow as pa

from persist.errors import InvalidUsage


class RowWriter(Protocol):
    """Writes batches to a file that somebody else closes."""

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Write the rows of a batch."""
        ...

    def close(self) -> None:
        """Write what is left."""
        ...


def row_writer(schema: pa.Schema, format: str, file: BinaryIO) -> RowWriter:
    """Return what writes rows in a format: parquet, arrow, csv, or else JSON lines.

    Raises:
        InvalidUsage: the format cannot hold a column.
    """
    if format == "parquet":
        import pyarrow.parquet as pq

        return pq.ParquetWriter(file, schema, compression="zstd")  # type: ignore[no-any-return]
    if format == "arrow":
        return pa.ipc.new_stream(file, schema)  # type: ignore[no-any-return]
    if format == "csv":
        return _csv_writer(schema, file)
    return JsonLines(file)


def _csv_writer(schema: pa.Schema, file: BinaryIO) -> RowWriter:
    import pyarrow.csv as csv

    try:
        return csv.CSVWriter(file, schema)  # type: ignore[no-any-return]
    except pa.ArrowException as error:
        raise InvalidUsage(
            f"CSV cannot hold a column of these: {error}. Use the format json, parquet or arrow"
        ) from error


class JsonLines:
    """Writes each row as one JSON object on a line of its own; on a terminal nothing but ASCII."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._is_ascii = file.isatty()

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Write the rows of a batch."""
        lines: Iterable[bytes] = json_lines(batch)
        if self._is_ascii:
            lines = (json.dumps(json.loads(line)).encode() for line in lines)
        self._file.writelines(line + b"\n" for line in lines)

    def close(self) -> None:
        """Leave the file to whoever opened it."""
        self._file.flush()


def json_lines(batch: pa.RecordBatch | pa.Table) -> list[bytes]:
    """Return each row as a JSON object; what JSON has no form for is text."""
    import msgspec

    encode: Any = msgspec.json.Encoder(enc_hook=str).encode
    return [*map(encode, batch.to_pylist())]
