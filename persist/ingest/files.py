"""Files of a folder or a prefix: each one is read once, as one commit and one time, in the order of their names.

A second collection, `NAME.files`, holds what was read: name, size, version and rows of each file, and its time. It is
sealed with the rows, so both agree whoever is killed when. The version of a file is the etag of its store; where there
is none, it is the moment of its last change.

A time is a moment: that at which a file was taken in, or the next one that is free.
"""

import logging
import posixpath
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from persist.blob import Backoff
from persist.client import Client
from persist.codecs import arrow_type, did_you_mean
from persist.collection import Collection
from persist.errors import InvalidUsage, PersistError
from persist.ingest.row_formats import BLOCK_BYTES, csv_batches, format_by_name, schema_of, stored_batches
from persist.ingest.source import Batch, Change, Run, SourceMoved, SourceUnavailable, Target
from persist.shown import without_secrets
from persist.timeline import Timeline

logger = logging.getLogger(__name__)
DELETED = "_deleted"
RETRY_S = 600.0
_LIBRARIES = {"aiobotocore", "aiohttp", "azure", "botocore", "gcsfs", "google", "requests", "s3fs", "urllib3"}
_VERSIONS = ("ETag", "etag", "md5Hash", "content_md5", "mtime", "LastModified", "last_modified", "created")


class FilesConfig(msgspec.Struct, kw_only=True):
    """The options of a folder of files.

    Attributes:
        source: a folder, a prefix, or a pattern of names, such as s3://bucket/orders/*.csv.
        collection: that gets the rows.
        key: columns that are the key, if the collection is made.
        columns: types of columns, if the collection is made; others are those of the first file.
        keyed: a row replaces the one that its key had, if the collection is made.
        format: csv, json (lines), parquet or arrow; else each file's name tells.
        timeline: the unit of times, if the collection is made.
        drift: what becomes of a file with columns that the collection has not: "refuse", "add" them to the collection,
            or "ignore" them.
        changed: what becomes of a file that was read and has changed since: "refuse", read it "again" whole, or
            "ignore" it.
        poll_s: how often to look for new files.
        settle_s: how long ago a file must have changed last, where the store has no etags: it may not be whole.
        storage_options: for the store of the files.
    """

    source: str
    collection: str
    key: list[str] = []
    columns: dict[str, str] = {}
    keyed: bool = False
    format: Literal["csv", "json", "parquet", "arrow"] | None = None
    timeline: Literal["s", "ms", "us", "ns"] = "ms"
    drift: Literal["refuse", "add", "ignore"] = "refuse"
    changed: Literal["refuse", "again", "ignore"] = "refuse"
    poll_s: float = 5.0
    settle_s: float = 1.0
    storage_options: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file as its store lists it; changed_s is None where the version is an etag."""

    path: str
    name: str
    size: int
    version: str
    changed_s: float | None


class Files:
    """A source of files."""

    moments = None

    def __init__(self, config: FilesConfig) -> None:
        self.config = config
        self.name = without_secrets(config.source)
        if config.source.startswith(("http://", "https://")):
            raise InvalidUsage(f"{self.name}: a web server lists no files. Copy them to a folder or a bucket")
        try:
            import fsspec

            self._files, self._path = fsspec.core.url_to_fs(config.source, **config.storage_options)
        except (ImportError, ValueError, TypeError) as error:
            raise InvalidUsage(f"{self.name} cannot be opened: {without_secrets(str(error))}") from None
        except OSError as error:
            raise SourceUnavailable(f"{self.name} does not answer: {without_secrets(str(error))}") from None
        self._problem: SourceUnavailable | None = None
        self._tries: Backoff | None = None
        self._is_pattern = any(mark in self._path for mark in "*?[")
        if not config.poll_s > 0 or not config.settle_s >= 0:
            raise InvalidUsage(f"poll_s={config.poll_s} must be above 0, and settle_s={config.settle_s} not below it")

    def targets(self, client: Client) -> Sequence[Target]:
        """Return the collection of rows, and that of files; of one that is not there, the first file tells types."""
        config, marks = self.config, f"{self.config.collection}.files"
        if config.collection in client:
            timeline = client.load(config.collection).schema.timeline
            main = Target(config.collection, {}, {}, client.load(config.collection).handle.keyed is not None)
        else:
            main, timeline = self._made(), config.timeline
        columns = {"size": pa.int64(), "version": pa.string(), "rows": pa.int64(), "time": pa.int64()}
        comment = f"the files of {self.name} that were taken into {config.collection}"
        return [main, Target(marks, {"file": pa.string()}, columns, True, timeline, comment)]

    def batches(self, run: Run) -> Generator[Batch]:
        """Yield a batch for each new file, and look for more until the run stops."""
        marks = run.collections[f"{self.config.collection}.files"]
        known = {} if not run.uppers[marks.name] else _known(marks)
        while not run.stop.is_set():
            try:
                with self._answering():
                    waiting, listed = False, self._listed()
            except SourceUnavailable as problem:
                if run.once:
                    raise
                run.failed(problem)
                self._back_off(run)
                continue
            run.tell(None)
            for number, file in enumerate(listed):
                if not self._is_new(file, known):
                    continue
                if self._is_fresh(file, run):
                    waiting = True
                    break  # Those after it wait, too, so that files keep their order.
                batch = self._batch(run, file)
                batch.behind = sum(later.size for later in listed[number + 1 :] if later.name not in known)
                yield batch
                if batch.is_durable:
                    known[file.name] = (file.size, file.version)
                    self._tries = None
                elif self._problem is not None:
                    self._back_off(run)
                    waiting = True
                    break
                if run.stop.is_set():
                    return
            if run.once and not waiting:
                return
            run.wait(min(self.config.poll_s, self.config.settle_s) if waiting else self.config.poll_s)

    def close(self) -> None:
        """Do nothing: no file stays open."""

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Say by one error of ours that the store of the files does not answer."""
        self._problem = None
        try:
            yield
        except (PersistError, FileNotFoundError, pa.ArrowException):
            raise
        except PermissionError as error:
            raise InvalidUsage(f"{self.name} may not be read: {without_secrets(str(error))}") from None
        except Exception as error:
            if not isinstance(error, OSError) and type(error).__module__.split(".")[0] not in _LIBRARIES:
                raise
            self._problem = SourceUnavailable(f"{self.name} does not answer: {without_secrets(str(error))}")
            raise self._problem from None

    def _back_off(self, run: Run) -> None:
        """Wait before the store is asked again; raise what is wrong, if it has been so for long."""
        assert self._problem is not None
        self._tries = self._tries or Backoff(run.client.engine.clock, RETRY_S, first_s=0.2, bound_max_s=5.0)
        if not self._tries.wait():
            raise self._problem

    def _made(self) -> Target:
        """Return the collection as the options and the first file say."""
        config = self.config
        types = {name: arrow_type(kind, f"column {name!r}") for name, kind in config.columns.items()}
        with self._answering():
            first = next(iter(self._listed()), None)
        if first is not None:
            with self._answering(), self._opened(first) as (stream, form):
                schema = _schema_of(stream, form, first.path)
            named = {field.name: field.type for field in schema if field.name not in (DELETED, *types)}
            types |= {name: pa.string() if pa.types.is_null(kind) else kind for name, kind in named.items()}
        elif not types:
            raise InvalidUsage(
                f"there is no file at {self.name} yet, and no collection {config.collection!r}: say what columns it "
                'has, such as columns = { id = "int64" }, or begin when the first file is there'
            )
        missing = [name for name in config.key if name not in types]
        if missing:
            hint = did_you_mean(missing[0], types)
            raise InvalidUsage(
                f"the key column {missing[0]!r} is not there{hint or ''}. Columns are {', '.join(types)}"
            )
        if config.keyed and not config.key:
            raise InvalidUsage('keyed = true needs the columns that are the key: key = ["id"]')
        value = {name: kind for name, kind in types.items() if name not in config.key}
        key = {name: types[name] for name in config.key}
        return Target(config.collection, key, value, config.keyed, config.timeline)

    def _listed(self) -> list[SourceFile]:
        """Return all files there are, in the order of their names. Names that begin with _ or . are no data."""
        self._files.invalidate_cache()
        if self._is_pattern:
            listing = self._files.glob(self._path, detail=True)
        else:
            listing = self._files.find(self._path, detail=True)
        base = posixpath.dirname(self._path.split("*")[0].rstrip("/") + "/x") if self._is_pattern else self._path
        files = []
        for path, info in listing.items():
            name = posixpath.relpath(path, base) if path != base else posixpath.basename(path)
            if info.get("type") == "file" and not any(part[0] in "_." for part in name.split("/") if part != ".."):
                files.append(_described(path, name, info))
        return sorted(files, key=lambda file: file.name)

    def _is_new(self, file: SourceFile, known: Mapping[str, tuple[int, str]]) -> bool:
        before = known.get(file.name)
        if before is None or before == (file.size, file.version):
            return before is None
        if self.config.changed == "refuse":
            raise InvalidUsage(
                f"{file.path} has changed since it was read: it had {before[0]:,} bytes, and has {file.size:,}. Each "
                'file is read once, so write new rows to a new file. Or say changed = "again" to read such a file '
                'whole once more, or changed = "ignore"'
            )
        return self.config.changed == "again"

    def _is_fresh(self, file: SourceFile, run: Run) -> bool:
        """Return whether a file may still be written, as far as the clock tells."""
        if file.changed_s is None:
            return False
        age_s = run.client.engine.clock.wall_ms() / 1000 - file.changed_s
        return 0 <= age_s < self.config.settle_s

    def _batch(self, run: Run, file: SourceFile) -> Batch:
        collection = run.collections[self.config.collection]
        timeline, time = collection.schema.timeline, run.uppers[collection.name]
        if timeline is not None:
            run.client.engine.check_clock()
            time = max(time, Timeline(timeline).now(run.client.engine.clock.wall_ms()))
        batch = Batch((), time + 1)
        batch.changes = self._answered(self._changes(collection, file, time, batch))
        return batch

    def _answered(self, changes: Iterator[Change]) -> Iterator[Change]:
        with self._answering():
            yield from changes

    def _changes(self, collection: Collection, file: SourceFile, time: int, batch: Batch) -> Iterator[Change]:
        """Yield the rows of a file, and then its mark, if it is still the same file."""
        if file.size:
            with self._opened(file) as (stream, form):
                rows = self._rows(collection, stream, form, file, batch)
                first = next(rows, None)
                if first is not None:
                    yield Change(collection.name, _reader(first, rows), time)
        now = self._files.info(file.path)
        if _described(file.path, file.name, now) != file:
            raise SourceMoved(f"{file.path} changed while it was read: nothing of it was taken in, and it is read anew")
        mark = {"file": file.name, "size": file.size, "version": file.version, "rows": batch.rows, "time": time}
        yield Change(f"{collection.name}.files", [mark], time)

    def _rows(
        self, collection: Collection, stream: Any, form: str, file: SourceFile, batch: Batch
    ) -> Iterator[pa.RecordBatch]:
        names = collection.schema.names
        is_keyed = collection.handle.keyed is not None
        wanted = {name: collection.schema.arrow.field(name).type for name in names}
        wanted |= {DELETED: pa.bool_()} if is_keyed else {}
        is_first = True
        try:
            for rows in _batches(stream, form, wanted):
                if is_first:
                    self._check_columns(collection, rows.schema, wanted, file)
                    is_first = False
                batch.rows += rows.num_rows
                yield _typed(rows, wanted)
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # It is of the store. Those of a compressed file that is damaged have no number.
            raise InvalidUsage(
                f"{file.path} cannot be read as {form}: {' '.join(str(error).split())}. Nothing of it was taken in: "
                "mend the file, or move it away"
            ) from None

    def _check_columns(
        self, collection: Collection, schema: pa.Schema, wanted: dict[str, pa.DataType], file: SourceFile
    ) -> None:
        """Say what a file has more or less than the collection, or refuse it, or let the collection follow."""
        names = collection.schema.names
        more = [name for name in schema.names if name not in wanted]
        less = [name for name in names if name not in schema.names]
        lost = [name for name in less if name in collection.schema.key_names]
        if lost:
            raise InvalidUsage(f"{file.path} has no column {lost[0]!r}, which is of the key of {collection.name!r}")
        if more and self.config.drift == "refuse":
            raise InvalidUsage(
                f"{file.path} has the column {more[0]!r}, which the collection {collection.name!r} has not"
                f'{did_you_mean(more[0], names)}. Nothing of it was taken in. Say drift = "add" to add such columns to '
                'the collection, or drift = "ignore" to leave them out'
            )
        if more and self.config.drift == "add":
            added = {name: schema.field(name).type for name in more}
            added = {name: pa.string() if pa.types.is_null(kind) else kind for name, kind in added.items()}
            collection.evolve(add=added)
            wanted |= added
            logger.warning("%s has new columns, which %r has from now on: %s", file.path, collection.name, added)
        elif more:
            logger.warning("%s has columns that are left out: %s", file.path, ", ".join(more))
        if less:
            logger.warning("%s does not have all columns, these are NULL: %s", file.path, ", ".join(less))

    @contextmanager
    def _opened(self, file: SourceFile) -> Iterator[tuple[Any, str]]:
        """Yield the bytes of a file, and its format."""
        told, compression = format_by_name(file.path)
        form = self.config.format or told
        if form is None:
            raise InvalidUsage(
                f'the format of {file.path} cannot be told from its name: say format = "csv", "json", "parquet" or '
                '"arrow", or name the files that are meant, such as orders/*.csv'
            )
        try:
            with self._files.open(file.path, "rb") as raw:
                yield (pa.CompressedInputStream(pa.PythonFile(raw), compression) if compression else raw), form
        except FileNotFoundError:
            raise SourceMoved(f"{file.path} was deleted before it was read: nothing of it was taken in") from None


def _known(marks: Collection) -> dict[str, tuple[int, str]]:
    """Return size and version of each file that was read."""
    with marks.snapshot(columns=["file", "size", "version"]) as snapshot:
        table = snapshot.to_arrow()
    columns = [table[name].to_pylist() for name in ("file", "size", "version")]
    return {name: (size, version) for name, size, version in zip(*columns, strict=True)}


def _described(path: str, name: str, info: Mapping[str, Any]) -> SourceFile:
    by, version = next(((by, info[by]) for by in _VERSIONS if info.get(by) is not None), ("", ""))
    changed = info.get("mtime") if by == "mtime" else None
    return SourceFile(path, name, int(info["size"]), str(version), None if changed is None else float(changed))


def _batches(stream: Any, form: str, wanted: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file in blocks; columns that are wanted get their types, if text tells none."""
    if form == "csv":
        yield from csv_batches(stream, wanted)
    elif form == "json":
        import pyarrow.json as pa_json

        options = pa_json.ParseOptions(explicit_schema=pa.schema(wanted.items()), unexpected_field_behavior="infer")
        yield from pa_json.open_json(stream, pa_json.ReadOptions(False, BLOCK_BYTES), options)
    else:
        yield from stored_batches(stream, form)


def _schema_of(stream: Any, form: str, path: str) -> pa.Schema:
    """Return the columns of a file."""
    try:
        return schema_of(stream, form)
    except pa.ArrowException as error:
        raise InvalidUsage(f"{path} cannot be read as {form}: {' '.join(str(error).split())}") from None


def _typed(rows: pa.RecordBatch, wanted: Mapping[str, pa.DataType]) -> pa.RecordBatch:
    """Return rows with just the columns of the collection, and NULL where the file has none."""
    arrays = {
        name: rows.column(name).cast(kind) if name in rows.schema.names else pa.nulls(rows.num_rows, kind)
        for name, kind in wanted.items()
        if name != DELETED or DELETED in rows.schema.names
    }
    if DELETED in arrays:
        arrays[DELETED] = pc.fill_null(arrays[DELETED], False)
    return pa.RecordBatch.from_arrays([*arrays.values()], [*arrays])


def _reader(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> pa.RecordBatchReader:
    def both() -> Iterator[pa.RecordBatch]:
        yield first
        yield from rest

    return pa.RecordBatchReader.from_batches(first.schema, both())
