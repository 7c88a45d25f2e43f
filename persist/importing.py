"""Data of others as collections: a folder of Parquet at one time, and a Delta table with its versions as times.

Both go on where they ended, in any process: what was done is known by the tokens of its commits, and is not read again.
Both read in a stream, so memory is the client's budget.

A folder is one commit for each file, all at times that are not sealed before the last one is there. So readers see all
of it or nothing, and a file that is there twice under one name counts once.

Of a Delta table, each version is one commit, which seals its time. Between two versions that follow each other here
only files are read that one has and the other has not; rows that were copied from the ones to the others cancel out.
Where the collection holds anything else than the version before, or the table has deleted files of that, the version is
compared with all that is there.
"""

import logging
import os
import posixpath
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from persist.antichain import Antichain
from persist.codecs import int64_array
from persist.engine import CollectionHandle, overwrite_steps, replacement_steps
from persist.errors import InvalidUsage
from persist.read import INCOMPLETE, SUCCESS, required
from persist.timeline import Moment
from persist.work import task
from persist.write import Step, check_token, with_token

BATCH_ROWS = 64 * 1024
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # The library writes its errors for terminals.
_Refusal = Callable[[object], InvalidUsage]


@dataclass(frozen=True, slots=True)
class ImportedVersion:
    """A version of a Delta table, and the time that it has become.

    Attributes:
        is_compared: whether all of it was compared with all that the collection held, because the files of the version
            before could not be read any more, or the collection held something else.
    """

    version: int
    time: int
    is_compared: bool = False


@dataclass(frozen=True, slots=True)
class ImportedFiles:
    """How many files an import has read, those left out that were read before; and their rows."""

    files: int
    rows: int


class _Gone(InvalidUsage):
    """The version that was imported last cannot be read any more."""


logger = logging.getLogger(__name__)


def import_parquet(
    handle: CollectionHandle,
    source: Any,
    time: int | Moment,
    diff: int | None,
    seal: int | Moment | Antichain | None,
    token: str | None,
) -> ImportedFiles:
    """Write the rows of Parquet files, and seal. See `Collection.import_parquet`."""
    check_token(None if token is None else _file_token(token, ""))
    handle.engine.writer("import_parquet")
    stamp = handle.stamp(time, diff)
    sealing = [] if seal is None else [handle.seal_step(seal)]
    files = rows = 0
    with task("import", handle.name) as done:

        def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            nonlocal rows
            for batch in batches:
                done(batch.num_rows)
                rows += batch.num_rows
                yield batch

        for name, batches in _files(source, handle.schema.names):
            mark = None if token is None else _file_token(token, name)
            if mark is not None and mark in handle.contents().tokens:
                continue
            steps = handle.write_steps(counted(batches()), stamp, token=mark)
            handle.submit("import_parquet", with_token(mark, [handle.id], steps)).result()
            files += 1
    if sealing:
        handle.submit("import_parquet", sealing).result()
    return ImportedFiles(files, rows)


def import_delta(
    handle: CollectionHandle,
    uri: str | os.PathLike[str],
    first: int | None,
    last: int | None,
    storage_options: Mapping[str, str] | None,
) -> list[ImportedVersion]:
    """Write versions of a Delta table that are not there yet; see `Collection.import_delta`."""
    library = required("deltalake>=1.6")
    if not isinstance(uri, (str, os.PathLike)):
        raise InvalidUsage(f"uri={uri!r} is neither the path nor the URL of a Delta table")
    table = DeltaVersions(library, os.fspath(uri), dict(storage_options or {}))
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
    handle: CollectionHandle, table: "DeltaVersions", version: int, timestamp_ms: int, before: ImportedVersion | None
) -> ImportedVersion:
    """Commit one version, given the one that was imported last."""
    upper = handle.contents().upper.time
    meant = version if handle.timeline is None else timestamp_ms * handle.timeline.per_second // 1000
    time = max(meant, upper or 0)  # Versions may be closer to each other than the unit tells apart.
    token = f"delta {table.id} {version} {time}"
    rows = table.rows(version)
    names = handle.schema.names
    steps: list[Step] | None = None
    if before is not None and upper == before.time + 1:
        try:
            old = table.rows(before.version, _Gone)
            updates = _signed(names, time, [(-1, old.without(rows)), (1, rows.without(old))])
            steps = replacement_steps(handle, updates, time)
        except _Gone as gone:
            logger.warning("version %d is compared with all that %r holds: %s", version, handle.name, gone)
    is_compared = steps is None
    if steps is None:
        new = (_with_all(names, each) for each in rows.batches())
        steps = overwrite_steps(handle, new, time, None, token, multiset=True)
    handle.submit("import_delta", with_token(token, [handle.id], steps)).result()
    return ImportedVersion(version, time, is_compared)


def _last_imported(handle: CollectionHandle, table: str) -> ImportedVersion | None:
    """Return the last version of a Delta table that a collection has, as far as its tokens tell."""
    marks = [token.split(" ") for token in handle.contents().tokens if token.startswith(f"delta {table} ")]
    versions = [ImportedVersion(int(version), int(time)) for *_, version, time in marks]
    return max(versions, key=lambda each: each.version, default=None)


@dataclass(frozen=True, slots=True)
class DatasetFiles:
    """Some of the files of a dataset, by path, and what is raised if they cannot be read."""

    dataset: Any
    fragments: Mapping[str, Any]
    refused: _Refusal

    @classmethod
    def of(cls, dataset: Any, refused: _Refusal) -> "DatasetFiles":
        """Return all files of a dataset."""
        return cls(dataset, {fragment.path: fragment for fragment in dataset.get_fragments()}, refused)

    def without(self, other: "DatasetFiles") -> "DatasetFiles":
        """Return those that another one does not have."""
        left = {path: each for path, each in self.fragments.items() if path not in other.fragments}
        return DatasetFiles(self.dataset, left, self.refused)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, with the columns that only the paths of files tell."""
        import pyarrow.dataset as ds

        if self.fragments:
            whole = self.dataset
            some = ds.FileSystemDataset([*self.fragments.values()], whole.schema, whole.format, whole.filesystem)
            try:
                yield from some.to_batches(batch_size=BATCH_ROWS, batch_readahead=2, fragment_readahead=1)
            except (OSError, pa.ArrowException) as error:
                raise self.refused(error) from error


@dataclass(frozen=True, slots=True)
class DeltaVersions:
    """A Delta table, read through its own library."""

    library: Any
    uri: str
    storage: dict[str, str]

    def at(self, version: int | None, refused: type[InvalidUsage] = InvalidUsage) -> Any:
        """Return the table at a version, or now; refused is raised if there is none."""
        try:
            return self.library.DeltaTable(self.uri, version=version, storage_options=self.storage)
        except Exception as error:
            raise refused(self._reason("opened", version, error)) from error

    @property
    def id(self) -> str:
        """What tells the table from others."""
        return str(self.at(None).metadata().id)

    def has_feed(self, version: int) -> bool:
        """Return whether a version says what it changed."""
        return str(self.at(version).metadata().configuration.get("delta.enableChangeDataFeed")).lower() == "true"

    def feed(self, version: int) -> Iterator[pa.RecordBatch]:
        """Yield what a version changed: its columns, and `_change_type`."""
        try:
            yield from pa.RecordBatchReader.from_stream(self.at(version).load_cdf(version, version))
        except InvalidUsage:
            raise
        except Exception as error:
            raise InvalidUsage(self._reason("read", version, error)) from error

    def history(self) -> list[tuple[int, int]]:
        """Return the versions there are, in order, each with its time in milliseconds."""
        return sorted((each["version"], each.get("timestamp", 0)) for each in self.at(None).history())

    def rows(self, version: int, refused: type[InvalidUsage] = InvalidUsage) -> DatasetFiles:
        """Return the files of a version; refused is raised if it cannot be read, by now or when its rows are."""
        try:
            dataset = self.at(version, refused).to_pyarrow_dataset()
            return DatasetFiles.of(dataset, lambda error: refused(self._reason("read", version, error)))
        except InvalidUsage:
            raise
        except Exception as error:  # What a library raises is its own choice.
            raise refused(self._reason("read", version, error)) from error

    def _reason(self, done: str, version: int | None, error: object) -> str:
        at = "" if version is None else f" at version {version}"
        error = " ".join(_COLOURS.sub("", str(error)).split()).removesuffix(" .")
        return (
            f"the Delta table {self.uri} cannot be {done}{at}: {error}. Versions that are not kept any more are left "
            "out with first="
        )


def _signed(names: Sequence[str], time: int, files: Sequence[tuple[int, DatasetFiles]]) -> Iterator[pa.Table]:
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


def _files(source: Any, columns: Collection[str]) -> Iterator[tuple[str, Callable[[], Iterator[pa.RecordBatch]]]]:
    """Yield the files of Parquet of a source: their names, and what reads their rows with some columns."""
    import pyarrow.dataset as ds

    dataset, base = _opened(source)
    files = DatasetFiles.of(
        dataset, lambda error: InvalidUsage(f"{source!r} cannot be read as Parquet: {error}")
    ).fragments
    _check_whole(source, dataset.filesystem, {*map(os.path.dirname, files), *([] if base is None else [base])})
    if not files:
        raise InvalidUsage(
            f"{source!r} holds no files of Parquet: nothing was imported or sealed. Names that begin with _ or . are "
            "no data. Check the path; to seal without rows, call seal()"
        )
    in_paths = [] if dataset.partitioning is None else [*dataset.partitioning.schema]
    if base is None:  # Folders above the files were not given, so what they tell is taken only where it is wanted.
        in_paths = [field for field in in_paths if field.name in columns]
    is_single, is_local = isinstance(source, (str, os.PathLike)), dataset.filesystem.type_name == "local"
    for path, fragment in sorted(files.items()):
        refused = _refusal(path)
        try:
            # By its own columns: by those of the first file, what others have more or less would go unnoticed.
            own = fragment.physical_schema
        except (OSError, pa.ArrowException) as error:
            raise refused(error) from error
        schema = pa.schema([*own, *(field for field in in_paths if field.name not in own.names)])
        whole = ds.FileSystemDataset([fragment], schema, dataset.format, dataset.filesystem)
        yield (
            _name(path, base, is_single, is_local),
            DatasetFiles(whole, {path: fragment}, refused).batches,
        )


def _opened(source: Any) -> tuple[Any, str | None]:
    """Return a dataset, and the folder that it is if it is one; local paths in it are absolute."""
    import pyarrow.dataset as ds
    import pyarrow.fs as fs

    base = None
    try:
        if isinstance(source, (str, os.PathLike)):
            text = os.fspath(source)
            is_url = "://" in text and not os.path.exists(text)
            files, path = fs.FileSystem.from_uri(text) if is_url else (fs.LocalFileSystem(), os.path.abspath(text))
            base = path.rstrip("/") if files.get_file_info(path).type == fs.FileType.Directory else None
            dataset = ds.dataset(path, filesystem=files, format="parquet", partitioning="hive")
        elif isinstance(source, (list, tuple)):
            local = [os.path.abspath(each) if isinstance(each, (str, os.PathLike)) else each for each in source]
            dataset = ds.dataset(local, format="parquet", partitioning="hive")
        else:
            dataset = source
    except (OSError, TypeError, ValueError) as error:
        raise InvalidUsage(f"{source!r} is neither files of Parquet nor a folder of them: {error}") from error
    if not isinstance(dataset, ds.FileSystemDataset):
        raise InvalidUsage(f"{source!r} is neither files of Parquet nor a folder of them, nor a dataset of files")
    return dataset, base


def _check_whole(source: Any, filesystem: Any, folders: Collection[str]) -> None:
    """Refuse what an export to a store has left half done."""
    for info in filesystem.get_file_info([posixpath.join(folder, INCOMPLETE) for folder in sorted(folders)]):
        if info.is_file:
            raise InvalidUsage(
                f"{source!r} holds {info.path}: an export is under way there, or one was killed, so files may be "
                f"missing. Wait for it, or export again to another place; if {SUCCESS} is beside it and no export is "
                f"running, all files are there: delete {INCOMPLETE}"
            )


def _name(path: str, base: str | None, is_single: bool, is_local: bool) -> str:
    """Return what tells a file from the others of an import, in whatever way its source was written.

    Below a folder it is the path from there. A single file has its name, after the `name=value` folders above it, which
    tell files of one name apart. In lists and datasets it is the whole path.
    """
    if base is not None:
        return posixpath.relpath(path, base)
    if not is_single:
        return os.path.abspath(path) if is_local else path
    *folders, name = path.split("/")
    for folder in reversed(folders):
        if "=" not in folder:
            break
        name = f"{folder}/{name}"
    return name


def _refusal(path: str) -> "_Refusal":
    return lambda error: InvalidUsage(f"the file {path} cannot be read as Parquet: {error}. Nothing of it was written")


def _file_token(token: str, name: str) -> str:
    return f"{token} {xxhash.xxh3_128_hexdigest(name.encode())}"
