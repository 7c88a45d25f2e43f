"""The contents as of one time for others to keep: as Parquet in a folder or a store.

Rows go through as a stream, so memory is that of a slice of the snapshot, and of a file as it is encoded, which ends at
`FILE_BYTES_MAX` even if it may have more rows. The time is told with it, as `persist.as_of`. Other formats need nothing
from here: their libraries take a snapshot as the stream of Arrow that it is.

An export appears as a whole: a folder is written beside its place and renamed, and files in a store are marked, because
a store has no way to make many objects appear at once:

    _INCOMPLETE          is created first, if it is not there, and deleted last: who finds it finds half an export
    part-<number>.parquet
    _SUCCESS             as Hadoop and Spark have it: {"as_of": …, "rows": …, "files": […]}, once all files are there

While some objects are missing, `_INCOMPLETE` is there and `_SUCCESS` is not. An export that fails deletes what it has
stored; one that is killed leaves the mark, and the next export to the same place is refused with what to do. Names that
begin with an underscore are no data for Spark, PyArrow, Hive and others that read folders of Parquet.
"""

import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from persist.blob.errors import InvalidUsage, PersistError
from persist.blob.layers.retry import RetryBlob
from persist.blob.protocol import Blob, delete_all
from persist.blob.stores.file import FileBlob
from persist.blob.url import open_blob
from persist.engine.read.results.result import ArrowResult

INCOMPLETE, SUCCESS = "_INCOMPLETE", "_SUCCESS"
FILE_BYTES_MAX = 64 << 20
ROWS_PER_GROUP = 128 * 1024


def export_to_store(
    batches: Iterator[pa.RecordBatch],
    schema: pa.Schema,
    store: Blob,
    rows_per_file: int,
) -> list[str]:
    """Write batches as Parquet files to a store where nothing is yet; return their URLs.

    Raises:
        InvalidUsage: something is there already.
        ReadOnlyStore: the store has no atomic create, so others could see half a file.
        What the store raises; then nothing is left, or at least `_INCOMPLETE`.
    """
    blob = RetryBlob(store)
    _claim(blob)
    stored: list[str] = []
    try:
        rows = 0
        for data, count in _files(batches, schema, rows_per_file):
            stored.append(f"part-{len(stored)}.parquet")
            rows += count
            blob.set(stored[-1], data)
        summary = {"as_of": int(schema.metadata[b"persist.as_of"]), "rows": rows, "files": stored}
        blob.set(SUCCESS, json.dumps(summary).encode())
    except BaseException:
        # The mark goes last, and stays if anything else does.
        with suppress(PersistError):
            delete_all(blob, [SUCCESS, *stored])
            blob.delete(INCOMPLETE)
        raise
    blob.delete(INCOMPLETE)
    return [f"{blob.url.rstrip('/')}/{key}" for key in stored]


def _claim(blob: Blob) -> None:
    """Mark an empty place as that of this export."""
    _check_empty(blob, None)
    if not blob.create(INCOMPLETE, b"{}"):
        raise _taken(blob, INCOMPLETE)
    try:
        _check_empty(blob, INCOMPLETE)  # Somebody else may have begun and ended since the first look.
    except InvalidUsage:
        blob.delete(INCOMPLETE)
        raise


def _check_empty(blob: Blob, besides: str | None) -> None:
    for entry in blob.list(""):
        if entry.key != besides:
            raise _taken(blob, entry.key)


def _taken(blob: Blob, key: str) -> InvalidUsage:
    if key == INCOMPLETE:
        return InvalidUsage(
            f"{blob.url} holds {INCOMPLETE}: another export is under way there, or one was killed. If none is running, "
            "delete what is there, or export to another place."
        )
    return InvalidUsage(f"{blob.url} is not empty: {key!r} is there already. Export to another place.")


def _files(batches: Iterator[pa.RecordBatch], schema: pa.Schema, rows_max: int) -> Iterator[tuple[bytes, int]]:
    """Yield encoded files and how many rows each has; one without rows if there are none, for the schema."""
    made, sink, writer, rows = 0, pa.BufferOutputStream(), None, 0
    for group in _groups(batches, schema, min(ROWS_PER_GROUP, rows_max)):
        at = 0
        while at < len(group):
            piece = group.slice(at, rows_max - rows)
            if writer is None:
                writer = pq.ParquetWriter(sink, schema)
            writer.write_table(piece)
            rows, at = rows + len(piece), at + len(piece)
            if rows >= rows_max or sink.tell() >= FILE_BYTES_MAX:
                writer.close()
                yield sink.getvalue().to_pybytes(), rows
                made, sink, writer, rows = made + 1, pa.BufferOutputStream(), None, 0
    if writer is None and not made:
        writer = pq.ParquetWriter(sink, schema)
    if writer is not None:
        writer.close()
        yield sink.getvalue().to_pybytes(), rows


def _groups(batches: Iterator[pa.RecordBatch], schema: pa.Schema, rows_max: int) -> Iterator[pa.Table]:
    """Yield tables of rows_max rows, the last one perhaps of fewer."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        held.append(batch.replace_schema_metadata(schema.metadata))
        rows += len(batch)
        if rows >= rows_max:
            yield pa.Table.from_batches(held, schema)
            held, rows = [], 0
    if rows:
        yield pa.Table.from_batches(held, schema)


def export_parquet(
    result: ArrowResult,
    as_of: int,
    folder: str | os.PathLike[str],
    rows_per_file: int,
    storage_options: Mapping[str, Any] | None,
) -> list[str]:
    """Write a folder that is not there yet, or empty; return the paths of its files. See `Snapshot.export_parquet`."""
    if isinstance(rows_per_file, bool) or not isinstance(rows_per_file, int) or rows_per_file < 1:
        raise InvalidUsage(f"rows_per_file={rows_per_file!r} is not a whole number from 1 on")
    if not isinstance(folder, (str, os.PathLike)):
        raise InvalidUsage(f"folder={folder!r} is neither a path nor a URL")
    text = os.fspath(folder)
    store = open_blob(text, storage_options)  # Which refuses what is neither a path nor a URL.
    schema = result.schema.with_metadata({"persist.as_of": str(as_of)})
    if not isinstance(store, FileBlob):
        with closing(store):
            return export_to_store(result.to_batches(), schema, store, rows_per_file)
    if storage_options:
        raise InvalidUsage(f"storage_options go with the URL of a store, and {text!r} is a folder of this machine")
    return _to_folder(result, schema, store.url, rows_per_file)


def _to_folder(result: ArrowResult, schema: pa.Schema, path: str, rows_per_file: int) -> list[str]:
    if os.path.lexists(path) and not (os.path.isdir(path) and not os.listdir(path)):
        raise InvalidUsage(f"{path} is there already, and is not an empty folder: export to another place")
    beside = f"{path}.tmp-{uuid.uuid4().hex}"

    try:
        os.makedirs(beside)
        for at, (data, _) in enumerate(_files(result.to_batches(), schema, rows_per_file)):
            with open(os.path.join(beside, f"part-{at}.parquet"), "wb") as file:
                file.write(data)
        if os.path.isdir(path):
            os.rmdir(path)
        os.rename(beside, path)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return sorted(os.path.join(path, name) for name in os.listdir(path))
