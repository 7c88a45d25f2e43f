"""Data of others as collections: a folder of Parquet at one time, and a Delta table with its versions as times.

Both go on where they ended, in any process: what was done is known by the tokens of its commits, and is not read again.
Both read in a stream, so memory is the client's budget.

A folder is one commit for each file, all at times that are not sealed before the last one is there. So readers see all
of it or nothing, and a file that is there twice under one name counts once.

Of a Delta table, each version is one commit, which seals its time. Between two versions that follow each other here
only files are read that one has and the other has not; rows that were copied from the ones to the others cancel out.
Where the collection holds anything else than the version before, the version is compared with all that is there.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from persist.antichain import Antichain
from persist.codecs.order.arrays import int64_array
from persist.engine import CollectionHandle
from persist.engine.overwriting import overwrite_steps, replacement_steps
from persist.errors import InvalidUsage
from persist.read.result import required
from persist.timeline import Moment
from persist.work import Done, task
from persist.write.operations import check_token, with_token

BATCH_ROWS = 64 * 1024
_PER_S = {"s": 1, "ms": 1000, "us": 1000**2, "ns": 1000**3}


@dataclass(frozen=True, slots=True)
class ImportedVersion:
    """A version of a Delta table, and the time that it has become."""

    version: int
    time: int


def import_parquet(
    handle: CollectionHandle,
    source: Any,
    time: int | Moment,
    diff: int | None,
    seal: int | Moment | Antichain | None,
    token: str | None,
) -> int:
    """Write the rows of Parquet files, and seal; return how many files were read. See `Collection.import_parquet`."""
    check_token(None if token is None else _file_token(token, ""))
    handle.engine.writer("import_parquet")
    stamp = handle.stamp(time, diff)
    sealing = [] if seal is None else [handle.seal_step(seal)]
    read = 0
    with task("import", handle.name) as done:
        for name, batches in _files(source):
            mark = None if token is None else _file_token(token, name)
            if mark is not None and mark in handle.contents().tokens:
                continue
            steps = handle.write_steps(_told(batches(), done), stamp, token=mark)
            handle.submit("import_parquet", with_token(mark, [handle.id], steps)).result()
            read += 1
    if sealing:
        handle.submit("import_parquet", sealing).result()
    return read


def import_delta(
    handle: CollectionHandle,
    uri: str | os.PathLike[str],
    first: int | None,
    last: int | None,
    storage_options: Mapping[str, str] | None,
) -> list[ImportedVersion]:
    """Write versions of a Delta table that are not there yet; see `Collection.import_delta`."""
    table = _DeltaTable(required("deltalake", "delta"), os.fspath(uri), dict(storage_options or {}))
    handle.engine.writer("import_delta")
    before = _last_imported(handle, table.id)
    done: list[ImportedVersion] = []
    for version, timestamp_ms in table.history():
        is_new = before is None or version > before.version
        if is_new and (first is None or version >= first) and (last is None or version <= last):
            before = _imported(handle, table, version, timestamp_ms, before)
            done.append(before)
    return done


def _imported(
    handle: CollectionHandle, table: "_DeltaTable", version: int, timestamp_ms: int, before: ImportedVersion | None
) -> ImportedVersion:
    """Commit one version, given the one that was imported last."""
    upper = handle.contents().upper.time
    unit = handle.schema.timeline
    meant = version if unit is None else timestamp_ms * _PER_S[unit] // 1000
    time = max(meant, upper or 0)  # Versions may be closer to each other than the unit tells apart.
    token = f"delta {table.id} {version} {time}"
    rows = table.rows(version)
    names = handle.schema.names
    if before is not None and upper == before.time + 1:
        old = table.rows(before.version)
        updates = _signed(names, time, [(-1, old.without(rows)), (1, rows.without(old))])
        steps = replacement_steps(handle, updates, time)
    else:
        steps = overwrite_steps(handle, (_with_all(names, each) for each in rows.batches()), time, None, token)
    handle.submit("import_delta", with_token(token, [handle.id], steps)).result()
    return ImportedVersion(version, time)


def _last_imported(handle: CollectionHandle, table: str) -> ImportedVersion | None:
    """Return the last version of a Delta table that a collection has, as far as its tokens tell."""
    marks = [token.split(" ") for token in handle.contents().tokens if token.startswith(f"delta {table} ")]
    found = [ImportedVersion(int(version), int(time)) for *_, version, time in marks]
    return max(found, key=lambda each: each.version, default=None)


@dataclass(frozen=True, slots=True)
class _Files:
    """Some of the files of a dataset, by path."""

    dataset: Any
    fragments: Mapping[str, Any]

    @classmethod
    def of(cls, dataset: Any) -> "_Files":
        return cls(dataset, {fragment.path: fragment for fragment in dataset.get_fragments()})

    def without(self, other: "_Files") -> "_Files":
        left = {path: each for path, each in self.fragments.items() if path not in other.fragments}
        return _Files(self.dataset, left)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, with the columns that only the paths of files tell."""
        import pyarrow.dataset as ds

        if self.fragments:
            whole = self.dataset
            some = ds.FileSystemDataset([*self.fragments.values()], whole.schema, whole.format, whole.filesystem)
            yield from some.to_batches(batch_size=BATCH_ROWS, batch_readahead=2, fragment_readahead=1)


@dataclass(frozen=True, slots=True)
class _DeltaTable:
    """A Delta table, read through its own library."""

    library: Any
    uri: str
    storage: dict[str, str]

    def at(self, version: int | None) -> Any:
        try:
            return self.library.DeltaTable(self.uri, version=version, storage_options=self.storage)
        except Exception as error:
            raise InvalidUsage(
                f"the Delta table {self.uri} cannot be opened{_at(version)}: {error}. Versions that are not kept any "
                "more are left out with first="
            ) from error

    @property
    def id(self) -> str:
        return str(self.at(None).metadata().id)

    def history(self) -> list[tuple[int, int]]:
        """Return the versions there are, in order, each with its time in milliseconds."""
        return sorted((each["version"], each.get("timestamp", 0)) for each in self.at(None).history())

    def rows(self, version: int) -> _Files:
        try:
            return _Files.of(self.at(version).to_pyarrow_dataset())
        except InvalidUsage:
            raise
        except Exception as error:  # What a library raises is its own choice.
            raise InvalidUsage(f"the Delta table {self.uri} cannot be read{_at(version)}: {error}") from error


def _at(version: int | None) -> str:
    return "" if version is None else f" at version {version}"


def _signed(names: Sequence[str], time: int, files: Sequence[tuple[int, _Files]]) -> Iterator[pa.Table]:
    """Yield the rows of some files as updates at a time."""
    for diff, each in files:
        for batch in each.batches():
            table = _with_all(names, batch)
            for name, value in (("_time", time), ("_diff", diff)):
                table = table.append_column(name, int64_array(np.full(len(table), value, np.int64)))
            yield table


def _with_all(names: Sequence[str], batch: pa.RecordBatch) -> pa.Table:
    """Return rows with a column of NULL for each that an older version of their table did not have."""
    table = pa.Table.from_batches([batch])
    for name in names:
        if name not in table.column_names:
            table = table.append_column(name, pa.nulls(len(table)))
    return table


def _files(source: Any) -> Iterator[tuple[str, Callable[[], Iterator[pa.RecordBatch]]]]:
    """Yield the files of Parquet below a path, or of a dataset: their names, and what reads their rows."""
    import pyarrow.dataset as ds

    base = ""
    if not isinstance(source, ds.Dataset):
        base = os.path.abspath(os.fspath(source)) if isinstance(source, (str, os.PathLike)) else ""
        try:
            source = ds.dataset(source, format="parquet", partitioning="hive")
        except (OSError, TypeError, ValueError) as error:
            raise InvalidUsage(f"{source!r} is neither files of Parquet nor a folder of them: {error}") from error
    in_paths = [*source.partitioning.schema] if getattr(source, "partitioning", None) is not None else []
    for path, fragment in sorted(_Files.of(source).fragments.items()):
        name = os.path.relpath(path, base) if base and os.path.isabs(path) else path
        # By its own columns: by those of the first file, what others have more or less would go unnoticed.
        own = fragment.physical_schema
        columns = pa.schema([*own, *(field for field in in_paths if field.name not in own.names)])
        whole = ds.FileSystemDataset([fragment], columns, source.format, source.filesystem)
        yield name, _Files(whole, {path: fragment}).batches


def _told(batches: Iterator[pa.RecordBatch], done: Done) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        done(batch.num_rows)
        yield batch


def _file_token(token: str, name: str) -> str:
    return f"{token} {xxhash.xxh3_128_hexdigest(name.encode())}"
