"""The contents as of one time as Parquet files in a store: at a URL that `persist.blob` opens.

    _INCOMPLETE          is created first, if it is not there, and deleted last: who finds it finds half an export
    part-<number>.parquet
    _SUCCESS             as Hadoop and Spark have it: {"as_of": …, "rows": …, "files": […]}, once all files are there

A store has no way to make many objects appear at once. Every object appears as a whole; and while some of them are
missing, `_INCOMPLETE` is there and `_SUCCESS` is not. An export that fails deletes what it has stored; one that is
killed leaves the mark, and the next export to the same place is refused with what to do. Names that begin with an
underscore are no data for Spark, PyArrow, Hive and others that read folders of Parquet.

Memory: a file as it is encoded, which ends at `FILE_BYTES_MAX` even if it may have more rows.
"""

import json
from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq

from persist.blob import Blob, InvalidUsage, PersistError, RetryBlob, delete_all

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
        said = {"as_of": int(schema.metadata[b"persist.as_of"]), "rows": rows, "files": stored}
        blob.set(SUCCESS, json.dumps(said).encode())
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
