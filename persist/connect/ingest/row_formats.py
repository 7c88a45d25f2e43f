"""Files of rows: finds the format by the name, opens the bytes, and reads formats that store types.

A file that ends too early is refused. A compressed file has a checksum. A stream of Arrow has a mark at its end, and
nothing may follow.
"""

import posixpath
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from persist.blob.errors import InvalidUsage
from persist.connect.ingest.int96 import read_batches, read_schema

READ = ("csv", "json", "parquet", "arrow")
BY_SUFFIX = {
    ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet", ".pq": "parquet",
    ".arrow": "arrow", ".arrows": "arrow", ".ipc": "arrow", ".feather": "arrow",
}  # fmt: skip
COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
BLOCK_BYTES = 8 << 20


def get_format_by_name(name: str) -> tuple[str | None, str | None]:
    """Return format and compression by a file's extension; None where unknown."""
    stem, suffix = posixpath.splitext(name)
    compression = COMPRESSED.get(suffix.lower())
    ending = posixpath.splitext(stem)[1] if compression else suffix
    return BY_SUFFIX.get(ending.lower()), compression


@dataclass(frozen=True)
class RowFile:
    """A file of rows, its format and compression; `source` opens its stored bytes.

    Attributes:
        path, name: the path of the file, and its name in messages. They differ for standard input, which is copied
            to a file.
    """

    path: str
    name: str
    format: str
    compression: str | None
    source: Callable[[], AbstractContextManager[Any]]

    @classmethod
    def at(cls, path: str, format: str | None, *, name: str | None = None) -> "RowFile":
        """Return the file at a local path. Its name determines the format by default."""
        if format is not None and format not in READ:
            raise InvalidUsage(f"--format {format!r} is not a format of rows: use one of {', '.join(READ)}")
        by_name, compression = get_format_by_name(name or path)
        file_format = format or by_name
        if file_format is None:
            raise InvalidUsage(f"the name {name or path!r} does not determine a format: add --format, one of {READ}")
        return cls(path, name or path, file_format, compression, lambda: pa.OSFile(path))

    @contextmanager
    def open_bytes(self) -> Iterator[Any]:
        """Yield the uncompressed bytes as a file of Arrow."""
        try:
            with self.source() as raw:
                stream = raw if isinstance(raw, pa.NativeFile) else pa.PythonFile(raw, mode="r")
                yield pa.CompressedInputStream(stream, self.compression) if self.compression else stream
        except (pa.ArrowException, OSError) as error:
            if not isinstance(error, pa.ArrowException) and (type(error) is not OSError or error.errno is not None):
                raise  # It is of the store. Those of a compressed file that is damaged have no number.
            reason = " ".join(str(error).split()).rstrip(".")
            raise InvalidUsage(f"{self.name} cannot be read as {self.format}: {reason}. {MEND}") from error


MEND = "Nothing of it was taken in: mend the file, or move it away"


def read_stored_batches(file: RowFile) -> Iterator[pa.RecordBatch]:
    """Yield the rows of Parquet or Arrow IPC. An empty file yields one empty batch."""
    batch = None
    with file.open_bytes() as stream:
        for batch in read_batches(stream) if file.format == "parquet" else _read_arrow(stream, file):
            yield batch
    if batch is None:
        yield pa.RecordBatch.from_pylist([], schema=read_stored_schema(file))


def read_stored_schema(file: RowFile) -> pa.Schema:
    """Return the schema of Parquet or Arrow IPC."""
    with file.open_bytes() as stream:
        if file.format == "parquet":
            return read_schema(stream)
        return _open_arrow_reader(stream).schema


def _read_arrow(stream: Any, file: RowFile) -> Iterator[pa.RecordBatch]:
    """Yield the batches of an Arrow file or stream; raise InvalidUsage if it was cut off."""
    watched = _ShortReadDetector(stream)
    reader = _open_arrow_reader(stream)
    if isinstance(reader, pa.ipc.RecordBatchFileReader):
        yield from (reader.get_batch(i) for i in range(reader.num_record_batches))
        return
    stream.seek(0)
    yield from pa.ipc.open_stream(pa.PythonFile(watched, mode="r"))
    if watched.is_short:
        raise InvalidUsage(f"{file.name} ends without the mark of the end of a stream: it was cut off. {MEND}")
    if stream.read(1):
        raise InvalidUsage(
            f"{file.name} goes on after the mark of the end of a stream: give each stream a file. {MEND}"
        )


class _ShortReadDetector:
    """Passes on reads, and notes whether the last one returned fewer bytes than requested."""

    closed = False

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.is_short = False

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._stream.read(size)
        self.is_short = len(data) < size
        return data


def _open_arrow_reader(stream: Any) -> Any:
    """Return a reader of an Arrow IPC file, or of a stream."""
    try:
        return pa.ipc.open_file(stream)
    except pa.ArrowInvalid:
        stream.seek(0)
        return pa.ipc.open_stream(stream)
