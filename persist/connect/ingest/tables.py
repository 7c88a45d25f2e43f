"""A source that reads a table of Delta or Iceberg: each version of it becomes one commit, at one time.

The time is the version's moment, or the next free time. A second collection, `NAME.versions`, maps versions to times.
It is sealed with the rows, so a crash cannot separate them. Between two versions, the source reads only files that are
not in both, or the change feed of a Delta table with one. Rows that were copied from one file to another cancel out.

Columns are identified by their ids if the format has ids, and otherwise by their names. When they change, the
collection follows (`evolve`) before the first version that has them.
"""

import logging
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from persist.api.client import Client
from persist.api.collection import Collection
from persist.codecs.errors import InvalidUpdate, SchemaMismatch
from persist.codecs.nested import (
    align_fields,
    find_changes_by_path,
    get_column_node,
    make_node,
    make_node_like,
    quote_name,
)
from persist.codecs.order.arrays import make_int64_array
from persist.codecs.types.arrow_types import list_inner_fields
from persist.codecs.types.casts import cast_column
from persist.connect.ingest.source import Batch, Change, PositiveFloat, Run, Source, Target
from persist.core.errors import InvalidUsage, PersistError
from persist.core.rendering import hide_passwords
from persist.core.timeline import Timeline
from persist.engine.read.results.result import require_package

logger = logging.getLogger(__name__)
FOLLOWED = "ingest.version"  # A property of a collection: the last version whose columns it has got.
BATCH_ROWS = 64 * 1024
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # The library of Delta writes its errors for terminals.
Signed = Iterator[tuple[int, pa.RecordBatch]]
Columns = Mapping[Any, pa.Field]


class TablesConfig(msgspec.Struct, kw_only=True):
    """The options of a table of Delta or Iceberg; `docs/use/from-tables.md` explains them.

    Attributes:
        first: the first version to read (for Iceberg, the id of a snapshot); None for the oldest that exists.
        catalog: of pyiceberg: its name, or properties such as type and uri, or both.
    """

    source: str
    collection: str
    key: list[str] = []
    timeline: str = "ms"
    first: int | None = None
    catalog: dict[str, str] | None = None
    poll_s: PositiveFloat = 5.0
    storage_options: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a table, and its moment in milliseconds."""

    number: int
    at_ms: int


class Tables(Source):
    """A source of one table."""

    def __init__(self, config: TablesConfig) -> None:
        self.config = config
        self.name = hide_passwords(config.source)
        kind, _, place = config.source.partition(":")
        if kind == "delta" and config.catalog is not None:
            raise InvalidUsage("catalog goes with iceberg:, and not with delta:")
        self._table = _Delta(place, config) if kind == "delta" else _Iceberg(place, config)

    def targets(self, client: Client) -> Sequence[Target]:
        """Return the collections of rows and versions; the first version decides a new one's types."""
        name, timeline = self.config.collection, self.config.timeline
        if name in client:
            timeline = client.load(name).schema.timeline or ""
            main = Target(name, {}, {})
        else:
            fields = {field.name: field.type for field in self._table.load_columns(self._find_first_version()).values()}
            if missing := [column for column in self.config.key if column not in fields]:
                raise InvalidUsage(f"key: {self.name} has no column {missing[0]!r}; it has {', '.join(fields)}")
            key = {column: fields.pop(column) for column in self.config.key}
            main = Target(name, key, fields, False, timeline, f"the table {self.name}")
        comment = f"the versions of {self.name} that were taken into {name}"
        columns = {"version": pa.int64(), "at_ms": pa.int64()}
        return [main, Target(f"{name}.versions", {"time": pa.int64()}, columns, False, timeline or None, comment)]

    def batches(self, run: Run) -> Generator[Batch]:
        """Yield a batch for each new version until the run stops."""
        collection = run.collections[self.config.collection]
        previous = _load_last_version(run.collections[f"{self.config.collection}.versions"])
        while not run.stop.is_set():
            versions = self._table.list_versions()
            for version in versions[self._find_next_index(versions, previous) :]:
                if run.stop.is_set():
                    return
                self._follow_columns(collection, previous, version)
                yield self._make_batch(run, collection, previous, version)
                previous = version
            if run.once or run.stop.wait(self.config.poll_s):
                return

    def _find_first_version(self) -> Version:
        """Return the version at which a new collection begins."""
        versions = self._table.list_versions()
        number = self.config.first
        matching = versions[:1] if number is None else [version for version in versions if version.number == number]
        if not matching:
            last_numbers = ", ".join(str(version.number) for version in versions[-5:]) or "none"
            raise InvalidUsage(
                f"{self.name} has no version {'' if number is None else number}: the last are {last_numbers}"
            )
        return matching[0]

    def _find_next_index(self, versions: Sequence[Version], before: Version | None) -> int:
        """Return the index of the version after the last ingested one."""
        if before is None:
            return versions.index(self._find_first_version()) if versions else 0
        at = [place for place, version in enumerate(versions) if version == before]
        if not at:
            raise InvalidUsage(
                f"{self.name} does not have its version {before.number} any more, which was read last. So the changes "
                f"since then are unknown: drop {self.config.collection!r} and its versions, and begin anew"
            )
        return at[-1] + 1

    def _follow_columns(self, collection: Collection, before: Version | None, version: Version) -> None:
        """Give a collection the columns of a version, unless it was done before."""
        if collection.about.properties.get(FOLLOWED) == str(version.number):
            return
        now = self._table.load_columns(version)
        columns_before = now if before is None else self._table.load_columns(before)
        names = {*collection.schema.names}
        rename = {
            columns_before[id_].name: field.name
            for id_, field in now.items()
            if id_ in columns_before and columns_before[id_].name != field.name and columns_before[id_].name in names
        }
        names = {rename.get(name, name) for name in names}
        new_types = {field.name: field.type for field in now.values()}
        types = {rename.get(name, name): collection.schema.arrow.field(name).type for name in collection.schema.names}
        old = {} if before is None else {field.name: field.type for field in columns_before.values()}
        # Columns that the table never had are of the collection alone, and stay, unless they are of its key.
        dropped = [
            name for name in types if name not in new_types and (name in old or name in collection.schema.key_names)
        ]
        change: dict[str, Any] = {
            "rename": {old: quote_name(new) for old, new in rename.items()},
            "add": {quote_name(name): kind for name, kind in new_types.items() if name not in names},
            "drop": dropped,
            "widen": {},
        }
        if before is not None:  # A collection that was there before may have wider types than the table.
            back = {new: name for name, new in rename.items()}
            change["widen"] = {
                name: kind
                for name, kind in new_types.items()
                if name in types
                and types[name] != kind
                and old.get(back.get(name, name)) != kind
                and not (pt.is_nested(kind) and pt.is_nested(types[name]))
            }
        for of_column in self._diff_inner_fields(collection, columns_before, now, before, version):
            for what, names in of_column.items():
                change[what] = change[what] + names if what == "drop" else change[what] | names
        change = {what: names for what, names in change.items() if names}
        if not change:
            return
        try:
            collection.evolve(**change, properties={FOLLOWED: str(version.number)})
        except PersistError as error:
            raise InvalidUsage(
                f"version {version.number} of {self.name} has columns that {collection.name!r} cannot follow: {error}"
            ) from error
        logger.warning("%r follows version %d of %s: %s", collection.name, version.number, self.name, change)

    def _diff_inner_fields(
        self, collection: Collection, columns_before: Columns, now: Columns, before: Version | None, version: Version
    ) -> Iterator[dict[str, Any]]:
        """Yield arguments of `evolve` for changes of fields inside of columns.

        Fields that the table never had stay.
        """
        numbers = {} if before is None else self._table.load_inner_ids(before)
        new_numbers = self._table.load_inner_ids(version)
        for id_, field in now.items():
            if id_ not in columns_before or columns_before[id_].name not in collection.schema.names:
                continue
            if before is None:
                node = get_column_node(collection.schema, field.name)
                yield {"add": find_changes_by_path(node, make_node_like(field.name, field.type, node))["add"]}
                continue
            ids = iter(numbers[id_]) if id_ in numbers else count()
            node = make_node(columns_before[id_].name, columns_before[id_].type, ids)
            if id_ in new_numbers:
                yield find_changes_by_path(node, make_node(field.name, field.type, iter(new_numbers[id_])))
            else:
                yield find_changes_by_path(node, make_node_like(field.name, field.type, node))

    def _make_batch(self, run: Run, collection: Collection, before: Version | None, version: Version) -> Batch:
        """Return the batch of a version; its rows are read when they are committed."""
        timeline, time = collection.schema.timeline, run.uppers[collection.name]
        if timeline is not None:
            # A writer of the table whose clock is ahead must not seal the timeline there.
            run.client.engine.check_clock()
            at_ms = min(version.at_ms, run.client.engine.clock.wall_ms())
            time = max(time, at_ms * Timeline(timeline).per_second // 1000)
        batch = Batch((), time + 1)
        schema = pa.schema([collection.schema.arrow.field(name) for name in collection.schema.names])

        def rows() -> Iterator[pa.RecordBatch]:
            for sign, changed in self._table.read_changes(before, version):
                batch.rows += changed.num_rows
                try:
                    yield _make_updates(changed, schema, sign, time)
                except (SchemaMismatch, InvalidUpdate) as error:
                    raise InvalidUsage(
                        f"version {version.number} of {self.name} does not fit: {error} Nothing of it was taken in"
                    ) from None

        def changes() -> Iterator[Change]:
            """Yield the changes of the table, and the mark of its version."""
            updates = rows()
            first = next(updates, None)
            if first is not None:
                yield Change(collection.name, chain([first], updates))
            mark = {"time": time, "version": version.number, "at_ms": version.at_ms}
            yield Change(f"{collection.name}.versions", [mark], time)

        batch.changes = changes()
        return batch


class _Delta:
    """A table of Delta, read by the package deltalake."""

    def __init__(self, place: str, config: TablesConfig) -> None:
        self._library = require_package("deltalake>=1.6")
        self._uri = place
        self._storage = dict(config.storage_options)

    def list_versions(self) -> list[Version]:
        """Return all versions, oldest first."""
        history = sorted(
            (commit["version"], commit.get("timestamp", 0)) for commit in self._open_version(None).history()
        )
        return [Version(number, at_ms) for number, at_ms in history]

    def load_columns(self, version: Version) -> Columns:
        """Return the columns of a version, by name."""
        schema = pa.schema(self._open_version(version.number).schema().to_arrow())
        return {field.name: _simplify_field(field) for field in schema}

    def load_inner_ids(self, version: Version) -> Mapping[Any, Sequence[int]]:
        """Return {}: the format has no ids."""
        return {}

    def read_changes(self, before: Version | None, version: Version) -> Signed:
        """Yield (sign, rows): 1 for added rows, -1 for removed ones, in the columns of `version`."""
        try:
            if before is not None and self._has_feed(version.number):
                yield from self._read_feed(version.number)
                return
            new = self._list_fragments(version.number)
            old = {} if before is None else self._list_fragments(before.number)
            for sign, some, excluded in ((-1, old, new), (1, new, old)):
                yield from ((sign, batch) for batch in _read_rows(_select_new_tasks(some, excluded)))
        except InvalidUsage:
            raise
        except Exception as error:  # A library may raise anything.
            raise InvalidUsage(self._format_error("read", version.number, error)) from error

    def _open_version(self, version: int | None) -> Any:
        """Return the table at a version; None is the newest."""
        try:
            return self._library.DeltaTable(self._uri, version=version, storage_options=self._storage)
        except Exception as error:
            raise InvalidUsage(self._format_error("opened", version, error)) from error

    def _has_feed(self, version: int) -> bool:
        """Return whether the change feed is enabled at a version."""
        return (
            str(self._open_version(version).metadata().configuration.get("delta.enableChangeDataFeed")).lower()
            == "true"
        )

    def _read_feed(self, version: int) -> Signed:
        """Yield (sign, rows) of the change feed of a version."""
        for batch in pa.RecordBatchReader.from_stream(self._open_version(version).load_cdf(version, version)):
            batch = batch.cast(pa.schema([_simplify_field(field) for field in batch.schema]))
            kind = batch.column("_change_type")
            for sign, kinds in ((-1, ["delete", "update_preimage"]), (1, ["insert", "update_postimage"])):
                yield sign, batch.filter(pc.is_in(kind, pa.array(kinds)))

    def _list_fragments(self, version: int) -> dict[str, tuple[Any, Any]]:
        """Return the files of a version by path, each with its dataset."""
        import pyarrow.dataset as ds

        # INT96 moments become microseconds here; nanoseconds cannot hold other centuries.
        options = ds.ParquetReadOptions(coerce_int96_timestamp_unit="us")
        dataset = self._open_version(version).to_pyarrow_dataset(parquet_read_options=options)
        return {fragment.path: (dataset, fragment) for fragment in dataset.get_fragments()}

    def _format_error(self, done: str, version: int | None, error: object) -> str:
        """Return the message for an error of the library, without colours."""
        at = "" if version is None else f" at version {version}"
        error = " ".join(_COLOURS.sub("", str(error)).split()).removesuffix(" .")
        return (
            f"the Delta table {self._uri} cannot be {done}{at}: {error}. Versions that are not kept any more are left "
            "out with first="
        )


def _read_rows(files: Sequence[tuple[Any, Any]]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files of one dataset, with partition columns."""
    import pyarrow.dataset as ds

    if files:
        whole = files[0][0]
        some = ds.FileSystemDataset([file for _, file in files], whole.schema, whole.format, whole.filesystem)
        yield from some.to_batches(batch_size=BATCH_ROWS, batch_readahead=2, fragment_readahead=1)


class _Iceberg:
    """A table of Iceberg, read by pyiceberg; its versions are all snapshots that were once current."""

    def __init__(self, place: str, config: TablesConfig) -> None:
        require_package("pyiceberg[pyarrow]>=0.12")
        self._place = place
        self._config = config

    def list_versions(self) -> list[Version]:
        """Return all versions, oldest first."""
        metadata = self._load_table().metadata
        snapshot_ids = {snapshot.snapshot_id for snapshot in metadata.snapshots}
        return [
            Version(entry.snapshot_id, entry.timestamp_ms)
            for entry in metadata.snapshot_log
            if entry.snapshot_id in snapshot_ids
        ]

    def load_columns(self, version: Version) -> Columns:
        """Return the columns of a version, by field id."""
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        schema = self._get_schema(self._load_table(), version)
        arrow = schema_to_pyarrow(schema, include_field_ids=False)
        return {id_.field_id: _simplify_field(field) for id_, field in zip(schema.fields, arrow, strict=True)}

    def load_inner_ids(self, version: Version) -> Mapping[Any, Sequence[int]]:
        """Return the ids of the fields inside of each column, by its field id."""
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        schema = self._get_schema(self._load_table(), version)
        arrow = schema_to_pyarrow(schema, include_field_ids=True)
        return {id_.field_id: [*_read_inner_ids(field.type)] for id_, field in zip(schema.fields, arrow, strict=True)}

    def read_changes(self, before: Version | None, version: Version) -> Signed:
        """Read the rows of changed files between two versions."""
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import ArrowScan

        table = self._load_table()
        scan = ArrowScan(table.metadata, table.io, self._get_schema(table, version), AlwaysTrue())
        new = self._list_tasks(table, version)
        old = {} if before is None else self._list_tasks(table, before)
        for sign, tasks in ((-1, _select_new_tasks(old, new)), (1, _select_new_tasks(new, old))):
            if tasks:
                try:
                    yield from ((sign, batch) for batch in scan.to_record_batches(tasks))
                except (OSError, ValueError, pa.ArrowException) as error:
                    raise InvalidUsage(
                        f"snapshot {version.number} of {self._place} cannot be read: {hide_passwords(str(error))}"
                    ) from error

    def _load_table(self) -> Any:
        """Return the table as it is now."""
        try:
            if self._config.catalog is not None:
                from pyiceberg.catalog import load_catalog

                properties = dict(self._config.catalog)
                return load_catalog(properties.pop("name", None), **properties).load_table(self._place)
            from pyiceberg.table import StaticTable

            return StaticTable.from_metadata(self._place, self._config.storage_options)
        except Exception as error:  # A library may raise anything.
            raise InvalidUsage(
                f"the Iceberg table {hide_passwords(self._place)} cannot be opened: {hide_passwords(str(error))}"
            ) from None

    def _get_schema(self, table: Any, version: Version) -> Any:
        """Return the schema of a snapshot."""
        snapshot = table.snapshot_by_id(version.number)
        return table.schemas()[snapshot.schema_id] if snapshot.schema_id is not None else table.schema()

    def _list_tasks(self, table: Any, version: Version) -> dict[Any, Any]:
        """Return the scans of the data files of a version, by path and delete files."""
        tasks = table.scan(snapshot_id=version.number).plan_files()
        return {(task.file.file_path, frozenset(f.file_path for f in task.delete_files)): task for task in tasks}


def _select_new_tasks(some: Mapping[Any, Any], others: Mapping[Any, Any]) -> list[Any]:
    """Return the scans that `others` lacks."""
    return [task for name, task in some.items() if name not in others]


def _load_last_version(versions: Collection) -> Version | None:
    """Return the last ingested version; None without one."""
    if versions.upper.time == 0:
        return None
    with versions.snapshot() as snapshot:
        rows = snapshot.to_arrow()
    if not len(rows):
        return None
    last = rows.take([int(np.argmax(rows["time"].to_numpy()))]).to_pylist()[0]
    return Version(last["version"], last["at_ms"])


def _read_inner_ids(kind: pa.DataType) -> Iterator[int]:
    """Yield the field ids inside of a nested type."""
    for child in list_inner_fields(kind) if pt.is_nested(kind) else ():
        yield int(child.metadata[b"PARQUET:field_id"])
        yield from _read_inner_ids(child.type)


def _simplify_field(field: pa.Field) -> pa.Field:
    """Return a field whose type has 32-bit offsets in place of 64-bit ones and views."""
    kind = field.type
    if pt.is_large_string(kind) or pt.is_string_view(kind):
        kind = pa.string()
    elif pt.is_large_binary(kind) or pt.is_binary_view(kind):
        kind = pa.binary()
    elif pt.is_large_list(kind) or pt.is_list(kind):
        kind = pa.list_(_simplify_field(kind.value_field))
    elif pt.is_struct(kind):
        kind = pa.struct([_simplify_field(child) for child in kind])
    return pa.field(field.name, kind)


def _make_updates(batch: pa.RecordBatch, schema: pa.Schema, sign: int, time: int) -> pa.RecordBatch:
    """Return rows as updates with a time and a diff. Missing columns are NULL."""
    names = {*batch.schema.names}
    columns = [
        cast_column(
            align_fields(pa.chunked_array([batch.column(field.name)]), field.type), field.type, field.name
        ).combine_chunks()
        if field.name in names
        else pa.nulls(len(batch), field.type)
        for field in schema
    ]
    columns += [make_int64_array(np.full(len(batch), value, np.int64)) for value in (time, sign)]
    return pa.RecordBatch.from_arrays(columns, [*schema.names, "_time", "_diff"])
