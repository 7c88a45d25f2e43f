"""The contents as of one time for others to keep: as Parquet in a folder or a store, a Delta table or an Iceberg table.

Each format is written by its own library, which is an extra of this one. Rows go through as a stream, so memory is that
of a slice of the snapshot, and of what the library buffers. The time is told with it, as `persist.as_of`. What the
other format has no type for is refused, and nothing is written: by its library, and for Delta before that, because its
library changes some types without a word (`_unknown`).

An export appears as a whole: a folder is written beside its place and renamed, tables have commits of their own, and
files in a store are marked, because a store has no way to make many objects appear at once:

    _INCOMPLETE          is created first, if it is not there, and deleted last: who finds it finds half an export
    part-<number>.parquet
    _SUCCESS             as Hadoop and Spark have it: {"as_of": …, "rows": …, "files": […]}, once all files are there

While some objects are missing, `_INCOMPLETE` is there and `_SUCCESS` is not. An export that fails deletes what it has
stored; one that is killed leaves the mark, and the next export to the same place is refused with what to do. Names that
begin with an underscore are no data for Spark, PyArrow, Hive and others that read folders of Parquet. Memory of both
forms of Parquet: a file as it is encoded, which ends at `FILE_BYTES_MAX` even if it may have more rows.
"""

import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Any, Literal, TypeVar, get_args
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from persist.blob import Blob, FileBlob, InvalidUsage, PersistError, RetryBlob, delete_all, open_blob
from persist.read.results.result import ArrowResult, required

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


def _check_delta_types(schema: pa.Schema) -> None:
    """Refuse columns that Delta has no type for.

    Raises:
        InvalidUsage: names the first one.
    """
    for field in schema:
        lost = _unknown(field.type)
        if lost is not None:
            inside = "" if lost == field.type else f", because of {lost} in it"
            raise InvalidUsage(
                f"Delta has no type for column {field.name!r} of type {field.type}{inside}, so nothing was written: "
                "leave it out with columns=, or export to Parquet, which keeps all types. Delta has bool, int8 to "
                "int64, float32, float64, decimal128, strings, binary, dates, timestamps to the microsecond, and "
                "lists, maps and structs of those"
            )


def _unknown(kind: pa.DataType) -> pa.DataType | None:
    """Return the type that Delta does not have: a type itself, or one inside it."""
    if pt.is_nested(kind):
        unknown_types = (_unknown(kind.field(at).type) for at in range(kind.num_fields))
        return next((inner_type for inner_type in unknown_types if inner_type is not None), None)
    is_known = (
        pt.is_boolean(kind) or pt.is_signed_integer(kind) or pt.is_float32(kind) or pt.is_float64(kind)
        or pt.is_decimal128(kind) or pt.is_date(kind) or (pt.is_timestamp(kind) and kind.unit != "ns")
        or pt.is_string(kind) or pt.is_large_string(kind)
        or pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind)
    )  # fmt: skip
    return None if is_known else kind


@contextmanager
def _no_empty_folder(uri: str) -> Iterator[None]:
    """Delete the folder of a table that a failure has left empty, if it was not there before.

    Only what is empty goes: files may be those of somebody else who makes the table at the same time.
    """
    is_url = "://" in uri
    from urllib.request import url2pathname  # Here, because it loads HTTP and TLS, which nothing else needs.

    path = url2pathname(urlsplit(uri).path) if uri.startswith("file://") else uri
    was_there = (is_url and not uri.startswith("file://")) or os.path.lexists(path)
    try:
        yield
    except BaseException:
        if not was_there:
            for folder in (os.path.join(path, "_delta_log"), path):
                with suppress(OSError):
                    os.rmdir(folder)
        raise


Mode = Literal["error", "append", "overwrite"]
T = TypeVar("T")


class _Batches:
    """Batches on their way through another library, which would make text of the error that ends them."""

    def __init__(self, result: ArrowResult) -> None:
        self._result = result
        self._error: BaseException | None = None
        self.reader = pa.RecordBatchReader.from_batches(result.schema, self._all())

    def _all(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._result.to_batches()
        except BaseException as error:
            self._error = error
            raise

    def given_to(self, write: Callable[[pa.RecordBatchReader], T], what: str) -> T:
        """Return what write does with them.

        Raises:
            InvalidUsage: the other library refused; what ended the batches is raised as it is.
        """
        try:
            return write(self.reader)
        except Exception as error:
            if self._error is not None:
                raise self._error from None
            raise InvalidUsage(f"{what} was not written: {error}") from error


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

    def write(reader: pa.RecordBatchReader) -> None:
        os.makedirs(beside)
        for at, (data, _) in enumerate(_files(reader, schema, rows_per_file)):
            with open(os.path.join(beside, f"part-{at}.parquet"), "wb") as file:
                file.write(data)

    try:
        _Batches(result).given_to(write, f"the folder {path}")
        if os.path.isdir(path):
            os.rmdir(path)
        os.rename(beside, path)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return sorted(os.path.join(path, name) for name in os.listdir(path))


def export_delta(
    result: ArrowResult, as_of: int, uri: str | os.PathLike[str], mode: Mode, storage_options: Mapping[str, str] | None
) -> int:
    """Write a Delta table as one version of it; return that. See `Snapshot.export_delta`."""
    deltalake = required("deltalake>=1.6")
    _check_mode(mode)
    if not isinstance(uri, (str, os.PathLike)):
        raise InvalidUsage(f"uri={uri!r} is neither the path nor the URL of a Delta table")
    uri = os.fspath(uri)
    _check_delta_types(result.schema)
    properties = deltalake.CommitProperties(custom_metadata={"persist.as_of": str(as_of)})
    storage = dict(storage_options or {})

    def write(reader: pa.RecordBatchReader) -> int:
        deltalake.write_deltalake(
            uri,
            reader,
            mode=mode,
            schema_mode="overwrite" if mode == "overwrite" else None,
            commit_properties=properties,
            storage_options=storage,
        )
        return int(deltalake.DeltaTable(uri, storage_options=storage).version())

    with _no_empty_folder(uri):
        return _Batches(result).given_to(write, f"the Delta table {uri}")


def export_iceberg(result: ArrowResult, as_of: int, catalog: Any, identifier: str, mode: Mode) -> int:
    """Write an Iceberg table as one commit; return the id of its snapshot. See `Snapshot.export_iceberg`."""
    required("pyiceberg[pyarrow]>=0.12")
    _check_mode(mode)
    if not hasattr(catalog, "create_table_transaction"):
        raise InvalidUsage(f'{catalog!r} is no catalog: give one of pyiceberg.catalog.load_catalog("name", …)')
    properties = {"persist.as_of": str(as_of)}

    def write(reader: pa.RecordBatchReader) -> int:
        if mode == "error" or not catalog.table_exists(identifier):
            with catalog.create_table_transaction(identifier, schema=result.schema) as created:
                created.append(reader, snapshot_properties=properties)
        else:
            table = catalog.load_table(identifier)
            (table.append if mode == "append" else table.overwrite)(reader, snapshot_properties=properties)
        return int(catalog.load_table(identifier).current_snapshot().snapshot_id)

    return _Batches(result).given_to(write, f"the Iceberg table {identifier}")


def _check_mode(mode: str) -> None:
    if mode not in get_args(Mode):
        raise InvalidUsage(f'mode={mode!r} is no way to export: give "error" (if it exists), "append" or "overwrite"')
