"""Export of the contents as of one time, as Parquet in a folder or a store.

Rows are a stream. Memory: a slice of the snapshot, and a file while it is encoded. A file ends at `FILE_BYTES_MAX`, or
at the requested number of rows. Its metadata have the time as `persist.as_of`. Libraries of other formats take a
snapshot as a stream of Arrow.

An export appears as a whole. A folder is written beside its place and renamed. In a store, many objects cannot appear
at once, so markers show whether they are complete:

    _INCOMPLETE          created first (it must not exist) and deleted last: the export is not complete
    part-<number>.parquet
    _SUCCESS             created after all files, as by Hadoop and Spark: {"as_of": …, "rows": …, "files": […]}

While objects are missing, `_INCOMPLETE` exists and `_SUCCESS` does not. An export that fails deletes its objects. A
killed export leaves `_INCOMPLETE`, and the next export to that place is refused. Spark, PyArrow, Hive and others ignore
names that begin with an underscore.
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
    """Write batches as Parquet files to an empty place of a store; return their URLs.

    Raises:
        InvalidUsage: the place is not empty.
        ReadOnlyStore: the store has no atomic create, so others could see half a file.
        PersistError: from the store; then no object is left, or at least `_INCOMPLETE`.
    """
    blob = RetryBlob(store)
    _claim_place(blob)
    stored: list[str] = []
    try:
        rows = 0
        for data, count in _encode_files(batches, schema, rows_per_file):
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


def _claim_place(blob: Blob) -> None:
    """Mark an empty place for this export."""
    _check_empty(blob, None)
    if not blob.create(INCOMPLETE, b"{}"):
        raise _explain_taken_name(blob, INCOMPLETE)
    try:
        _check_empty(blob, INCOMPLETE)  # Another export may have begun and ended meanwhile.
    except InvalidUsage:
        blob.delete(INCOMPLETE)
        raise


def _check_empty(blob: Blob, besides: str | None) -> None:
    """Raise InvalidUsage if a store has another object than `besides`."""
    for entry in blob.list(""):
        if entry.key != besides:
            raise _explain_taken_name(blob, entry.key)


def _explain_taken_name(blob: Blob, key: str) -> InvalidUsage:
    """Return the error for an export to a place that has an object at `key`."""
    if key == INCOMPLETE:
        return InvalidUsage(
            f"{blob.url} holds {INCOMPLETE}: another export is under way there, or one was killed. If none is running, "
            "delete what is there, or export to another place."
        )
    return InvalidUsage(f"{blob.url} is not empty: {key!r} is there already. Export to another place.")


def _encode_files(batches: Iterator[pa.RecordBatch], schema: pa.Schema, rows_max: int) -> Iterator[tuple[bytes, int]]:
    """Yield encoded files and their numbers of rows; without any row, one file that has the schema."""
    file_count, sink, writer, rows = 0, pa.BufferOutputStream(), None, 0
    for group in _regroup(batches, schema, min(ROWS_PER_GROUP, rows_max)):
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
                file_count, sink, writer, rows = file_count + 1, pa.BufferOutputStream(), None, 0
    if writer is None and not file_count:
        writer = pq.ParquetWriter(sink, schema)
    if writer is not None:
        writer.close()
        yield sink.getvalue().to_pybytes(), rows


def _regroup(batches: Iterator[pa.RecordBatch], schema: pa.Schema, rows_max: int) -> Iterator[pa.Table]:
    """Yield tables of rows_max rows, the last one perhaps of fewer."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch.replace_schema_metadata(schema.metadata))
        rows += len(batch)
        if rows >= rows_max:
            yield pa.Table.from_batches(waiting, schema)
            waiting, rows = [], 0
    if rows:
        yield pa.Table.from_batches(waiting, schema)


def export_parquet(
    result: ArrowResult,
    as_of: int,
    folder: str | os.PathLike[str],
    rows_per_file: int,
    storage_options: Mapping[str, Any] | None,
) -> list[str]:
    """Write a new or empty folder; return the paths of its files. See `Snapshot.export_parquet`."""
    if isinstance(rows_per_file, bool) or not isinstance(rows_per_file, int) or rows_per_file < 1:
        raise InvalidUsage(f"rows_per_file={rows_per_file!r} is not a whole number from 1 on")
    if not isinstance(folder, (str, os.PathLike)):
        raise InvalidUsage(f"folder={folder!r} is neither a path nor a URL")
    text = os.fspath(folder)
    store = open_blob(text, storage_options)  # It raises if text is neither a path nor a URL.
    schema = result.schema.with_metadata({"persist.as_of": str(as_of)})
    if not isinstance(store, FileBlob):
        with closing(store):
            return export_to_store(result.to_batches(), schema, store, rows_per_file)
    if storage_options:
        raise InvalidUsage(f"storage_options go with the URL of a store, and {text!r} is a folder of this machine")
    return _export_to_folder(result, schema, store.url, rows_per_file)


def _export_to_folder(result: ArrowResult, schema: pa.Schema, path: str, rows_per_file: int) -> list[str]:
    """Write the files to a temporary folder, and rename it when complete."""
    if os.path.lexists(path) and not (os.path.isdir(path) and not os.listdir(path)):
        raise InvalidUsage(f"{path} is there already, and is not an empty folder: export to another place")
    beside = f"{path}.tmp-{uuid.uuid4().hex}"

    try:
        os.makedirs(beside)
        for at, (data, _) in enumerate(_encode_files(result.to_batches(), schema, rows_per_file)):
            with open(os.path.join(beside, f"part-{at}.parquet"), "wb") as file:
                file.write(data)
        if os.path.isdir(path):
            os.rmdir(path)
        os.rename(beside, path)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return sorted(os.path.join(path, name) for name in os.listdir(path))
