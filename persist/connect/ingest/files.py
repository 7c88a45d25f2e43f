"""Files of a folder or a prefix, in the order of names: each is one commit and one time.

Each file is read once. A second collection, `NAME.files`, holds name, size, version, rows and time of each file. It is
sealed with the rows, so a crash cannot separate them. The version of a file is the etag of its store or, without one,
the moment of its last change.

A time is the moment of ingestion, or the next free one.
"""

import json
import logging
import posixpath
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Annotated, Any, Literal

import msgspec
import pyarrow as pa

from persist.api.client import Client
from persist.api.collection import Collection
from persist.codecs.errors import did_you_mean
from persist.codecs.nested import find_new_fields, quote_name
from persist.codecs.types.python_types import to_arrow_type
from persist.codecs.types.schema import CollectionSchema, check_field
from persist.codecs.updates.inputs import DELETED
from persist.connect.ingest.row_casts import Misfits
from persist.connect.ingest.row_columns import RowColumns
from persist.connect.ingest.row_files import read_names, read_pieces
from persist.connect.ingest.row_formats import MEND, RowFile, get_format_by_name, read_stored_schema
from persist.connect.ingest.row_types import contains_null, infer_types
from persist.connect.ingest.source import (
    Batch,
    Change,
    PositiveFloat,
    Run,
    Source,
    SourceMoved,
    SourceUnavailable,
    Target,
)
from persist.core.errors import InvalidUsage, PersistError
from persist.core.rendering import hide_passwords
from persist.core.timeline import Timeline

logger = logging.getLogger(__name__)
EMPTY = "ingest.empty"  # A property: columns of files that had no value yet, as JSON.
DRIFT = 'say drift = "add" to add such columns to the collection, or drift = "ignore" to leave them out'
_LIBRARIES = {"aiobotocore", "aiohttp", "azure", "botocore", "gcsfs", "google", "requests", "s3fs", "urllib3"}
_VERSIONS = ("ETag", "etag", "md5Hash", "content_md5", "mtime", "LastModified", "last_modified", "created")


class FilesConfig(msgspec.Struct, kw_only=True):
    """The options of a folder of files; `docs/use/ingest.md` explains them."""

    source: str
    collection: str
    key: list[str] = []
    columns: dict[str, str] = {}
    keyed: bool = False
    format: Literal["csv", "json", "parquet", "arrow"] | None = None
    timeline: Literal["s", "ms", "us", "ns"] = "ms"
    drift: Literal["refuse", "add", "ignore"] = "refuse"
    changed: Literal["refuse", "again", "ignore"] = "refuse"
    poll_s: PositiveFloat = 5.0
    settle_s: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    storage_options: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file as its store lists it; `changed_s`: when it changed, or None if `version` is an etag."""

    path: str
    name: str
    size: int
    version: str
    changed_s: float | None


class Files(Source):
    """A source of files."""

    def __init__(self, config: FilesConfig) -> None:
        self.config = config
        self.name = hide_passwords(config.source)
        if config.source.startswith(("http://", "https://")):
            raise InvalidUsage(f"{self.name}: a web server lists no files. Copy them to a folder or a bucket")
        try:
            import fsspec

            self._files, self._path = fsspec.core.url_to_fs(config.source, **config.storage_options)
        except (ImportError, ValueError, TypeError) as error:
            raise InvalidUsage(f"{self.name} cannot be opened: {hide_passwords(str(error))}") from None
        except OSError as error:
            raise SourceUnavailable(f"{self.name} does not answer: {hide_passwords(str(error))}") from None
        self._is_pattern = any(mark in self._path for mark in "*?[")

    def targets(self, client: Client) -> Sequence[Target]:
        """Return the collections of rows and of read files; the first file decides types of a new one."""
        config, marks = self.config, f"{self.config.collection}.files"
        if config.collection in client:
            timeline = client.load(config.collection).schema.timeline
            main = Target(config.collection, {}, {}, client.load(config.collection).handle.keyed is not None)
        else:
            main, timeline = self._new_target(), config.timeline
        columns = {"size": pa.int64(), "version": pa.string(), "rows": pa.int64(), "time": pa.int64()}
        comment = f"the files of {self.name} that were taken into {config.collection}"
        return [main, Target(marks, {"file": pa.string()}, columns, True, timeline, comment)]

    def batches(self, run: Run) -> Generator[Batch]:
        """Yield a batch for each new file; repeat this until the run stops."""
        marks = run.collections[f"{self.config.collection}.files"]
        marks_by_name = {} if not run.uppers[marks.name] else _load_marks(marks)
        while not run.stop.is_set():
            with self._translate_errors():
                waiting, listed = False, self._list_files()
            run.outage.end()
            for number, file in enumerate(listed):
                if not self._must_read(file, marks_by_name):
                    continue
                if self._may_still_grow(file, run):
                    waiting = True
                    break  # Those after it wait, too, so that files keep their order.
                if file.name in marks_by_name:
                    _warn_of_repetition(run.collections[self.config.collection], file, marks_by_name)
                batch = self._make_batch(run, file)
                batch.behind = sum(later.size for later in listed[number + 1 :] if later.name not in marks_by_name)
                yield batch
                if not batch.is_durable:
                    if run.once:
                        return
                    waiting = True
                    break  # It is read anew, before those after it.
                marks_by_name[file.name] = (file.size, file.version)
                if run.stop.is_set():
                    return
            if run.once and not waiting:
                return
            run.stop.wait(min(self.config.poll_s, self.config.settle_s) if waiting else self.config.poll_s)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Raise SourceUnavailable for errors of the store's libraries."""
        try:
            yield
        except (PersistError, FileNotFoundError, pa.ArrowException):
            raise
        except PermissionError as error:
            raise InvalidUsage(f"{self.name} may not be read: {hide_passwords(str(error))}") from None
        except Exception as error:
            if not isinstance(error, OSError) and type(error).__module__.split(".")[0] not in _LIBRARIES:
                raise
            raise SourceUnavailable(f"{self.name} does not answer: {hide_passwords(str(error))}") from None

    def _new_target(self) -> Target:
        """Return the definition of a collection that is missing, from the options and first files."""
        config = self.config
        declared_types = {name: to_arrow_type(kind, f"column {name!r}") for name, kind in config.columns.items()}
        types, files_by_column = self._infer_types(declared_types)
        if not types:
            raise InvalidUsage(
                f"there is no file with columns at {self.name} yet, and no collection {config.collection!r}: say what "
                'columns it has, such as columns = { id = "int64" }, or begin when the first file is there'
            )
        missing = [name for name in config.key if name not in types]
        if missing:
            hint = did_you_mean(missing[0], types)
            where = next(iter(files_by_column.values()), self.name)
            raise InvalidUsage(
                f"{where}: the key column {missing[0]!r} is not there{hint or '.'} Columns are {', '.join(types)}"
            )
        if config.keyed and not config.key:
            raise InvalidUsage('keyed = true needs the columns that are the key: key = ["id"]')
        for name, kind in types.items():
            if contains_null(kind) and (name in config.key or not pa.types.is_null(kind) or len(types) == 1):
                raise InvalidUsage(
                    f"{files_by_column[name]} has no value in the column {name!r} that tells its type, and neither has "
                    f'any file after it. Say it, such as columns = {{ {name} = "string" }}, or begin when a file has '
                    "values"
                )
            if name in files_by_column and not contains_null(kind):
                types[name] = to_arrow_type(kind, f"column {name!r} of {files_by_column[name]}")
                check_field(name, types[name], f"{files_by_column[name]}: {'key' if name in config.key else 'value'}")
        empty = [name for name, kind in types.items() if contains_null(kind)]
        value = {name: kind for name, kind in types.items() if name not in (*config.key, *empty)}
        key = {name: types[name] for name in config.key}
        about = {EMPTY: json.dumps(empty)} if empty else {}
        return Target(config.collection, key, value, config.keyed, config.timeline, properties=about)

    def _infer_types(self, declared_types: dict[str, pa.DataType]) -> tuple[dict[str, pa.DataType], dict[str, str]]:
        """Return the type of each column, and the file from which it was inferred."""
        types, files_by_column = dict(declared_types), dict[str, str]()
        with self._translate_errors():
            listed = [file for file in self._list_files() if file.size]
            for file in listed:
                source = self._make_row_file(file)
                names = read_names(source)
                file_types = (
                    declared_types
                    if names and {*names} <= declared_types.keys()
                    else infer_types(source, declared_types)
                )
                file_types = {name: kind for name, kind in file_types.items() if name != DELETED}
                is_first = not files_by_column
                for name, kind in file_types.items():
                    if name not in declared_types and (is_first or (name in types and contains_null(types[name]))):
                        types[name] = kind
                        files_by_column[name] = file.path
                if types and not any(map(contains_null, types.values())):
                    break
        return types, files_by_column

    def _list_files(self) -> list[SourceFile]:
        """Return all files, sorted by name, except names that begin with _ or ."""
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
                files.append(_parse_listing(path, name, info))
        return sorted(files, key=lambda file: file.name)

    def _must_read(self, file: SourceFile, marks: Mapping[str, tuple[int, str]]) -> bool:
        """Return whether a file is new, or changed so that it must be read again."""
        earlier = marks.get(file.name)
        if earlier is None or earlier == (file.size, file.version):
            return earlier is None
        if self.config.changed == "refuse":
            raise InvalidUsage(
                f"{file.path} has changed since it was read: it had {earlier[0]:,} bytes, and has {file.size:,}. Each "
                'file is read once, so write new rows to a new file. Or say changed = "again" to read such a file '
                'whole once more, or changed = "ignore"'
            )
        return self.config.changed == "again"

    def _may_still_grow(self, file: SourceFile, run: Run) -> bool:
        """Return whether a file changed less than `settle_s` ago, so that it may be incomplete."""
        if file.changed_s is None:
            return False
        age_s = run.client.engine.clock.wall_ms() / 1000 - file.changed_s
        return 0 <= age_s < self.config.settle_s

    def _make_batch(self, run: Run, file: SourceFile) -> Batch:
        """Return the batch of a file; its rows are read while they are committed."""
        collection = run.collections[self.config.collection]
        timeline, time = collection.schema.timeline, run.uppers[collection.name]
        if timeline is not None:
            run.client.engine.check_clock()
            time = max(time, Timeline(timeline).get_current_time(run.client.engine.clock.wall_ms()))
        batch = Batch((), time + 1)
        batch.changes = self._read_changes(collection, file, time, batch)
        return batch

    def _read_changes(self, collection: Collection, file: SourceFile, time: int, batch: Batch) -> Iterator[Change]:
        """Yield the rows of a file, then the record that it was read; raise SourceMoved if it changed."""
        with self._translate_errors():
            if file.size:
                rows = self._read_rows(collection, file, batch)
                first = next(rows, None)
                if first is not None:
                    yield Change(collection.name, chain([first], rows), time)
            now = self._files.info(file.path)
            if _parse_listing(file.path, file.name, now) != file:
                raise SourceMoved(
                    f"{file.path} changed while it was read: nothing of it was taken in, and it is read anew"
                )
            mark = {"file": file.name, "size": file.size, "version": file.version, "rows": batch.rows, "time": time}
            yield Change(f"{collection.name}.files", [mark], time)

    def _read_rows(self, collection: Collection, file: SourceFile, batch: Batch) -> Iterator[pa.Table]:
        """Yield the rows of a file in the collection's types; raise InvalidUsage for misfits."""
        source, misfits = self._make_row_file(file), Misfits()
        columns = self._plan_columns(collection, source)
        missing = {*collection.schema.names} if source.format == "json" else set()  # A line has only its own fields.
        for piece in read_pieces(source, columns, misfits):
            batch.rows += len(piece)
            missing -= {name for name in missing if piece[name].null_count < len(piece)}
            yield piece
        _warn_of_nulls(source, [name for name in columns.types if name in missing and batch.rows])
        if misfits.count:
            raise misfits.make_error(file.path, batch.rows, MEND)

    def _plan_columns(self, collection: Collection, source: RowFile) -> RowColumns:
        """Return the columns to read; first add new ones to the collection if `drift` allows."""
        mark: Literal["_deleted"] | None = None if collection.handle.keyed is None else "_deleted"
        columns = RowColumns(collection.schema, DRIFT, mark, may_lack_values=True)
        types = columns.types | columns.optional_fields
        drift, empty = self.config.drift, json.loads(collection.about.properties.get(EMPTY, "[]"))
        if source.format == "json" and drift == "refuse" and not {*empty} - {*types}:
            return columns  # A line is refused by itself.
        file_types = (
            infer_types(source, columns.declared_types)
            if source.format == "json"
            else dict.fromkeys(read_names(source), pa.null())
        )
        new_fields = self._find_new_fields(source, columns)
        new_names = [name for name in file_types if name not in types]
        if new_names and (drift == "add" or {*empty} & {*new_names}):
            file_types = infer_types(source, columns.declared_types)
        added = {
            name: file_types[name]
            for name in new_names
            if (drift == "add" or name in empty) and not pa.types.is_null(file_types[name])
        }
        new_names += new_fields
        added_inside = {
            path: kind for path, kind in new_fields.items() if drift == "add" and not pa.types.is_null(kind)
        }
        for name, kind in (*added.items(), *added_inside.items()):
            if contains_null(kind):
                raise InvalidUsage(
                    f"{source.name} has the new column {name!r}, and no value in it tells its type, {kind}. {MEND}"
                )
        if added or added_inside:
            collection.evolve(add={quote_name(name): kind for name, kind in added.items()} | added_inside)
            added |= added_inside
            logger.warning("%s has new columns, which %r has from now on: %s", source.name, collection.name, added)
        ignored = [n for n in new_names if n not in added and (drift != "refuse" or n in empty)]
        if drift == "ignore" and ignored:
            logger.warning("%s has columns that are left out: %s", source.name, ", ".join(ignored))
        if source.format != "json":
            missing = [name for name in collection.schema.names if name not in file_types]
            _warn_of_nulls(source, [*missing, *_find_missing_fields(source, collection.schema)])
        return replace(columns, schema=collection.schema, ignored=tuple(ignored))

    def _find_new_fields(self, source: RowFile, columns: RowColumns) -> dict[str, pa.DataType]:
        """Return types of a file's new inner fields, by path; none if `drift` refuses them."""
        nested = {name: kind for name, kind in columns.types.items() if pa.types.is_nested(kind)}
        if not nested or source.format == "csv" or self.config.drift == "refuse":
            return {}
        flat = {name: kind for name, kind in columns.declared_types.items() if name not in nested}
        types = infer_types(source, flat)
        return {
            path: kind
            for name, collection_type in nested.items()
            if name in types
            for path, kind in find_new_fields(name, types[name], collection_type).items()
        }

    def _make_row_file(self, file: SourceFile) -> RowFile:
        """Return a file with its format, by configuration or by name."""
        by_name, compression = get_format_by_name(file.path)
        form = self.config.format or by_name
        if form is None:
            raise InvalidUsage(
                f'the name {file.path!r} does not determine a format: set format = "csv", "json", "parquet" or '
                '"arrow", or name the files that are meant, such as orders/*.csv'
            )
        return RowFile(file.path, file.path, form, compression, lambda: self._open_file(file))

    @contextmanager
    def _open_file(self, file: SourceFile) -> Iterator[Any]:
        """Yield the bytes of a file."""
        try:
            with self._files.open(file.path, "rb") as raw:
                yield raw
        except FileNotFoundError:
            raise SourceMoved(f"{file.path} was deleted before it was read: nothing of it was taken in") from None


def _find_missing_fields(source: RowFile, schema: CollectionSchema) -> list[str]:
    """Return the paths of inner fields of columns that a file lacks."""
    nested = {name: kind for name, kind in zip(schema.names, schema.types, strict=False) if pa.types.is_nested(kind)}
    if not nested or source.format == "csv":
        return []
    file_types = {field.name: field.type for field in read_stored_schema(source)}
    return [
        path
        for name, kind in nested.items()
        if name in file_types
        for path in find_new_fields(name, kind, file_types[name])
    ]


def _warn_of_repetition(collection: Collection, file: SourceFile, marks: Mapping[str, tuple[int, str]]) -> None:
    """Log what happens to rows of a changed file that is read again."""
    form, later = collection.handle.keyed, sum(name > file.name for name in marks)
    effect = "all of its rows are added once more"
    if form is not None:
        effect = "its rows replace the rows of their keys"
        effect += f", also where one of {later} later files brought them" if later and not form.order_by else ""
    logger.warning("%s has changed and is read again: %s", file.path, effect)


def _warn_of_nulls(source: RowFile, missing: list[str]) -> None:
    """Log the columns that a file lacks, which are NULL."""
    if missing:
        logger.warning("%s does not have all columns, these are NULL: %s", source.name, ", ".join(missing))


def _load_marks(marks: Collection) -> dict[str, tuple[int, str]]:
    """Return by name the size and version of each file that was read."""
    with marks.snapshot(columns=["file", "size", "version"]) as snapshot:
        table = snapshot.to_arrow()
    columns = [table[name].to_pylist() for name in ("file", "size", "version")]
    return {name: (size, version) for name, size, version in zip(*columns, strict=True)}


def _parse_listing(path: str, name: str, info: Mapping[str, Any]) -> SourceFile:
    """Return a file from its entry in a listing of fsspec."""
    by, version = next(((by, info[by]) for by in _VERSIONS if info.get(by) is not None), ("", ""))
    changed = info.get("mtime") if by == "mtime" else None
    return SourceFile(path, name, int(info["size"]), str(version), None if changed is None else float(changed))
