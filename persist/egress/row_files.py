"""Rows as files: Parquet, Arrow IPC, CSV, or JSON lines."""

import json
from collections.abc import Iterable
from typing import Any, BinaryIO, Literal, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from persist.errors import InvalidUsage

Nan = Literal["refuse", "null"]  # What becomes of NaN and infinities in JSON.


class RowWriter(Protocol):
    """Writes batches to a file that somebody else closes."""

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Write the rows of a batch."""
        ...

    def close(self) -> None:
        """Write what is left."""
        ...


def row_writer(schema: pa.Schema, format: str, file: BinaryIO, *, nan: Nan = "null") -> RowWriter:
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
    return JsonLines(file, nan=nan)


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

    def __init__(self, file: BinaryIO, *, nan: Nan = "null") -> None:
        self._file = file
        self._nan: Nan = nan
        self._is_ascii = file.isatty()

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Write the rows of a batch."""
        lines: Iterable[bytes] = json_lines(batch, nan=self._nan)
        if self._is_ascii:
            lines = (json.dumps(json.loads(line)).encode() for line in lines)
        self._file.writelines(line + b"\n" for line in lines)

    def close(self) -> None:
        """Leave the file to whoever opened it."""
        self._file.flush()


def json_lines(batch: pa.RecordBatch | pa.Table, *, nan: Nan = "null") -> list[bytes]:
    """Return each row as a JSON object; what JSON has no form for is text, and NaN and infinities are as `nan` says.

    Raises:
        InvalidUsage: there is one, and that is refused.
    """
    import msgspec

    if nan == "refuse":
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            _check_finite(column, name)

    encode: Any = msgspec.json.Encoder(enc_hook=str).encode
    return [*map(encode, batch.to_pylist())]


def _check_finite(column: pa.Array | pa.ChunkedArray, name: str) -> None:
    kind = column.type
    if pa.types.is_floating(kind):
        if pc.any(pc.invert(pc.is_finite(column)), min_count=0).as_py():
            raise InvalidUsage(
                f'the column {name!r} has NaN or an infinity, and JSON has none. Say nan = "null" to send null for '
                "them, which nobody can tell from NULL then, or use the format parquet"
            )
    elif pa.types.is_nested(kind) and not pa.types.is_dictionary(kind):
        for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
            for part in chunk.flatten() if pa.types.is_struct(kind) else [_values(chunk)]:
                _check_finite(part, name)


def _values(column: pa.Array) -> pa.Array:
    """Return what is in lists, or the values of maps; what a NULL hides is not among it."""
    if pa.types.is_map(column.type):
        return column.drop_null().items
    return column.flatten()
