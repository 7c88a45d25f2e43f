"""The contents as of one time for others to keep: as a folder of Parquet, a Delta table or an Iceberg table.

Each format is written by its own library, which is an extra of this one. Rows go through as a stream, so memory is that
of a slice of the snapshot, and of what the library buffers. An export appears as a whole: a folder is written beside
its place and renamed, tables have commits of their own, and files in a store are marked (`persist.read.export_blobs`).
The time is told with it, as `persist.as_of`.

What the other format has no type for is refused, and nothing is written: by its library, and for Delta before that,
because its library changes some types without a word (`persist.read.export_delta`).
"""

import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any, Literal, TypeVar, get_args

import pyarrow as pa

from persist.blob import FileBlob, InvalidUsage, open_blob
from persist.read.export_blobs import ROWS_PER_GROUP, export_to_store
from persist.read.export_delta import check_delta_types, no_empty_folder
from persist.read.result import ArrowResult, required

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
    if not isinstance(store, FileBlob):
        with closing(store):
            schema = result.schema.with_metadata({"persist.as_of": str(as_of)})
            return export_to_store(result.to_batches(), schema, store, rows_per_file)
    if storage_options:
        raise InvalidUsage(f"storage_options go with the URL of a store, and {text!r} is a folder of this machine")
    return _to_folder(result, as_of, store.url, rows_per_file)


def _to_folder(result: ArrowResult, as_of: int, path: str, rows_per_file: int) -> list[str]:
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

    if os.path.lexists(path) and not (os.path.isdir(path) and not os.listdir(path)):
        raise InvalidUsage(f"{path} is there already, and is not an empty folder: export to another place")
    beside = f"{path}.tmp-{uuid.uuid4().hex}"
    schema = result.schema.with_metadata({"persist.as_of": str(as_of)})
    batches = _Batches(result)

    def write(reader: pa.RecordBatchReader) -> None:
        groups = min(ROWS_PER_GROUP, rows_per_file)
        scanner = ds.Scanner.from_batches((b.replace_schema_metadata(schema.metadata) for b in reader), schema=schema)
        ds.write_dataset(
            scanner,
            beside,
            format="parquet",
            basename_template="part-{i}.parquet",
            min_rows_per_group=groups,
            max_rows_per_group=groups,
            max_rows_per_file=rows_per_file,
            use_threads=False,  # So that rows stay in their order.
        )
        if not os.path.isdir(beside) or not os.listdir(beside):  # Of no rows there would be no schema.
            os.makedirs(beside, exist_ok=True)
            pq.write_table(schema.empty_table(), os.path.join(beside, "part-0.parquet"))

    try:
        batches.given_to(write, f"the folder {path}")
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
    deltalake = required("deltalake", "delta")
    _check_mode(mode)
    if not isinstance(uri, (str, os.PathLike)):
        raise InvalidUsage(f"uri={uri!r} is neither the path nor the URL of a Delta table")
    uri = os.fspath(uri)
    check_delta_types(result.schema)
    told = deltalake.CommitProperties(custom_metadata={"persist.as_of": str(as_of)})
    storage = dict(storage_options or {})

    def write(reader: pa.RecordBatchReader) -> int:
        deltalake.write_deltalake(
            uri,
            reader,
            mode=mode,
            schema_mode="overwrite" if mode == "overwrite" else None,
            commit_properties=told,
            storage_options=storage,
        )
        return int(deltalake.DeltaTable(uri, storage_options=storage).version())

    with no_empty_folder(uri):
        return _Batches(result).given_to(write, f"the Delta table {uri}")


def export_iceberg(result: ArrowResult, as_of: int, catalog: Any, identifier: str, mode: Mode) -> int:
    """Write an Iceberg table as one commit; return the id of its snapshot. See `Snapshot.export_iceberg`."""
    required("pyiceberg", "iceberg")
    _check_mode(mode)
    if not hasattr(catalog, "create_table_transaction"):
        raise InvalidUsage(f'{catalog!r} is no catalog: give one of pyiceberg.catalog.load_catalog("name", …)')
    told = {"persist.as_of": str(as_of)}

    def write(reader: pa.RecordBatchReader) -> int:
        if mode == "error" or not catalog.table_exists(identifier):
            with catalog.create_table_transaction(identifier, schema=result.schema) as created:
                created.append(reader, snapshot_properties=told)
        else:
            table = catalog.load_table(identifier)
            (table.append if mode == "append" else table.overwrite)(reader, snapshot_properties=told)
        return int(catalog.load_table(identifier).current_snapshot().snapshot_id)

    return _Batches(result).given_to(write, f"the Iceberg table {identifier}")


def _check_mode(mode: str) -> None:
    if mode not in get_args(Mode):
        raise InvalidUsage(f'mode={mode!r} is no way to export: give "error" (if it exists), "append" or "overwrite"')
