"""A published table as Iceberg, version 2: metadata by pyiceberg's writers, over the parts as they lie.

    part/<collection>/<seqno>-<32 hex>.parquet             rows that are left out of one part, as position deletes
    part/<collection>/metadata/<seqno>-<32 hex>.avro       a manifest, or the list of a snapshot's manifests
    part/<collection>/metadata/v<version + 1>.metadata.json   the table at one version, after the record of the version
    part/<collection>/metadata/version-hint.text           which of these is the newest

pyiceberg's `add_files` takes no file with columns that the table has not, and parts have `_time` and `_diff`. So the
manifests are written entry by entry. Columns are found by their field ids, and in parts that have none by a mapping of
names. All names in an Iceberg table are whole URLs: a location that is moved has to be published again.

Each version is one snapshot, and its metadata has no other. Position deletes are written anew for a part of which other
rows are left out, in a file for each part, because a reader then reads only what it needs.

A catalog of pyiceberg may be told of each version, too. It then writes metadata of its own beside ours.

Source: the Iceberg table spec, version 2: "Manifests", "Manifest Lists", "Position Delete Files", "Table Metadata
Fields"; "Column Projection" for ids and the mapping of names.
"""

import hashlib
import io
import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from persist.blob import MissingBlob
from persist.codecs import CollectionSchema, Part, children, file_schema
from persist.engine import CollectionHandle
from persist.errors import InvalidUsage, Unavailable
from persist.log import Deletes, Table, kinds, manifest_key, part_key, table_root
from persist.publish.bitmaps import Rows
from persist.publish.planning import COMMON_NAMES, REPLACES, PlannedFile, check_columns, foreign, rows_left_out
from persist.read import required
from persist.state import CollectionState, Publication, PublishedFile, resolved_numbers, version_of

HAS = (
    "Iceberg has bool, int8 to int64, float32, float64, decimal128, strings, binary, dates, times and timestamps in "
    "microseconds, and lists, maps and structs of those"
)
FILE_PATH, POSITION = 2147483546, 2147483545  # Reserved field ids of position deletes.
FIELD_ID = b"PARQUET:field_id"
NAMES = COMMON_NAMES | {
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.time64("us"): "time",
    pa.timestamp("us"): "timestamp",
}


def iceberg_type(kind: pa.DataType) -> Any:
    """Return the type of a column as Iceberg writes it, with the ids of fields inside; None if it has none."""
    if kind in NAMES:
        return NAMES[kind]
    if pt.is_decimal128(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    if pt.is_fixed_size_binary(kind):
        return f"fixed[{kind.byte_width}]"
    if pt.is_timestamp(kind):
        return "timestamptz" if kind.unit == "us" else None
    if not pt.is_nested(kind):
        return None
    inside = [(_id_of(child), child.name, iceberg_type(child.type)) for child in children(kind)]
    if any(written is None for _, _, written in inside):
        return None
    if pt.is_struct(kind):
        return {"type": "struct", "fields": [_field(*child) for child in inside]}
    (first_id, _, first), *_ = inside
    if pt.is_map(kind):
        (_, (second_id, _, second)) = inside
        ends = {"key-id": first_id, "key": first, "value-id": second_id, "value": second}
        return {"type": "map", **ends, "value-required": False}
    return {"type": "list", "element-id": first_id, "element": first, "element-required": False}


def _id_of(field: pa.Field) -> int:
    return int((field.metadata or {}).get(FIELD_ID, -1))


def _field(id_: int, name: str, written: Any) -> dict[str, Any]:
    return {"id": id_, "name": name, "required": False, "type": written}


class IcebergTable:
    """A collection as an Iceberg table; see `persist.publish.publication.TableFormat`."""

    name: Table = "iceberg"

    def __init__(self, handle: CollectionHandle, options: Mapping[str, str], catalog: Any = None) -> None:
        """Take what makes tables of a collection; catalog is told of each version, or that which options name."""
        required("pyiceberg[pyarrow]>=0.12")
        self._handle = handle
        self._blob = handle.engine.blob
        self._catalog = catalog
        self._catalog_name = options.get("catalog", "")

    def check(self, schema: CollectionSchema, options: Mapping[str, str]) -> None:
        """Raise InvalidUsage if a table cannot have such columns, or nobody else could read what is there."""
        if self._blob.url.startswith("memory://"):
            raise InvalidUsage(f"{self._blob.url} is in this process alone, so nobody else could read a table there")
        check_columns(schema, self.name, iceberg_type, HAS)

    def left_out(self, pieces: Sequence[tuple[PlannedFile, Deletes | None]], is_anew: bool) -> list[Deletes | None]:
        """Store position deletes, a file for each part, as far as they are not what was before."""
        deletes: list[Deletes | None] = []
        for file, before in pieces:
            rows = rows_left_out(file, None if before is None else self._rows_of(before), is_anew)
            deletes.append(before if rows is None else self._stored(file.part, rows) if len(rows) else None)
        return deletes

    def _stored(self, part: Part, rows: Rows) -> Deletes:
        key = part_key(self._handle.id, self._handle.engine.follower.next_seqno())
        paths = pa.DictionaryArray.from_arrays(np.zeros(len(rows), np.int8), [self._url_of(part.blob)]).cast(
            pa.string()
        )
        sink = io.BytesIO()
        pq.write_table(pa.table({"file_path": paths, "pos": rows}, schema=_DELETES), sink, compression="zstd")
        self._blob.set(key, sink.getvalue())
        return Deletes(key, 0, len(sink.getvalue()), len(rows))

    def _rows_of(self, deletes: Deletes) -> Rows:
        data = self._blob.get(deletes.blob)
        if data is None:
            raise MissingBlob(
                deletes.blob, "it is missing, and a published table leaves rows out by it", "unpublish it"
            )
        rows: Rows = pq.read_table(pa.BufferReader(data), columns=["pos"])["pos"].to_numpy()
        return rows

    def metadata(self, contents: CollectionState, step: kinds.Publish) -> tuple[str, ...]:
        """Store the manifests of a version and the list of them, which comes first in the result."""
        return _Metadata(self._handle, contents, step, self._url_of).stored()

    def show(self, contents: CollectionState, known: Publication, *, is_new: bool) -> None:
        """Write the metadata of the present version, unless it is there, and say that it is the newest."""
        root, number = f"{table_root(contents.id)}metadata/", known.version + 1
        key, hint = f"{root}v{number}.metadata.json", f"{root}version-hint.text"
        shown = None if is_new else self._blob.get(key)
        if shown is None and not self._blob.create(key, self._table_bytes(contents, known)):
            shown = self._blob.get(key)
        pointer = self._blob.get(hint)
        newest = int(pointer) if pointer is not None and pointer.strip().isdigit() else 0
        if newest > number:
            key = f"{root}v{newest}.metadata.json"
            shown = self._blob.get(key)
        if shown is not None and self.mark(known.id) not in shown.replace(b" ", b""):
            raise foreign(f"{self._blob.url}/{key}", contents.name)
        if newest < number:
            self._blob.set(hint, str(number).encode())
            if number > 2 and "identifier" not in known.options:  # Or else a catalog may point to it.
                self._blob.delete(f"{root}v{number - 2}.metadata.json")
        if self._catalog is not None or self._catalog_name:
            told = CatalogTable(self._catalog, self._catalog_name, known.options["identifier"])
            told.take(contents, known, self._url_of, self.url(contents, known), self._handle.engine.clock.wall_ms())

    def mark(self, table: str) -> bytes:
        """Return what each metadata file says of its table."""
        return f'"table-uuid":"{UUID(table)}"'.encode()

    def shown_at_s(self, known: Publication) -> float | None:
        """Return since when the metadata of the present version is there."""
        listed = self._blob.list(f"{table_root(self._handle.id)}metadata/v{known.version + 1}.metadata.json")
        return next((entry.modified_s for entry in listed), None)

    def url(self, contents: CollectionState, known: Publication) -> str:
        """Return the newest metadata of the table."""
        return self._url_of(f"{table_root(contents.id)}metadata/v{known.version + 1}.metadata.json")

    def _url_of(self, key: str) -> str:
        url = f"{self._blob.url.rstrip('/')}/{key}"
        return url if "://" in url else Path(url).absolute().as_uri()

    def _table_bytes(self, contents: CollectionState, known: Publication) -> bytes:
        schema, now_ms = version_of(contents, known.schema), self._handle.engine.clock.wall_ms()
        snapshot = snapshot_json(contents, known, self._url_of, now_ms)
        table = {
            "format-version": 2,
            "table-uuid": str(UUID(known.id)),
            "location": self._url_of(table_root(contents.id).rstrip("/")),
            "last-sequence-number": known.version + 1,
            "last-updated-ms": now_ms,
            "last-column-id": max((id_ for id_, *_ in _all_fields(schema)), default=0),
            "current-schema-id": known.schema,
            "schemas": [schema_json(schema)],
            "default-spec-id": 0,
            "partition-specs": [{"spec-id": 0, "fields": []}],
            "last-partition-id": 999,
            "default-sort-order-id": 0,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "properties": properties(contents, known),
            "current-snapshot-id": snapshot["snapshot-id"],
            "refs": {"main": {"snapshot-id": snapshot["snapshot-id"], "type": "branch"}},
            "snapshots": [snapshot],
            "snapshot-log": [{"snapshot-id": snapshot["snapshot-id"], "timestamp-ms": now_ms}],
            "metadata-log": [],
            "statistics": [],
            "partition-statistics": [],
        }
        return json.dumps(table).encode()


class CatalogTable:
    """A published table as a catalog of pyiceberg knows it, with metadata of the catalog's own.

    Args:
        catalog: the catalog; None to load it by its name, from where pyiceberg is configured.
    """

    def __init__(self, catalog: Any, name: str, identifier: str) -> None:
        self._catalog = catalog
        self._name = name
        self._identifier = identifier

    def take(self, contents: CollectionState, known: Publication, url_of: Any, url: str, now_ms: int) -> None:
        """Let the catalog have the present version, unless it has.

        If an erasure gave up the table that the catalog has, this one takes its place. That one may have no metadata
        any more, so the catalog cannot load it.

        Raises:
            InvalidUsage: another table has that name there.
            Unavailable: the catalog did not take it, which can be tried again.
        """
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NoSuchTableError

        try:
            catalog = self._catalog if self._catalog is not None else load_catalog(self._name)
            table, replaced = None, known.options.get(REPLACES, "").split()
            try:
                table = catalog.load_table(self._identifier)
            except NoSuchTableError:
                catalog.register_table(self._identifier, url)
                return
            except FileNotFoundError:
                if not replaced:
                    raise
            if table is None or table.properties.get("persist.table") in replaced:
                catalog.drop_table(self._identifier)
                catalog.register_table(self._identifier, url)
                return
            if table.properties.get("persist.table") == known.id:
                self._update(catalog, table, contents, known, snapshot_json(contents, known, url_of, now_ms))
                return
        except Exception as error:  # What is raised depends on the kind of catalog.
            raise Unavailable(
                f"the catalog did not take version {known.version} of {self._identifier}: {error}. It is published, "
                "and publishing again tells the catalog of it"
            ) from error
        raise InvalidUsage(
            f"the catalog has another table called {self._identifier!r}, which was not published from "
            f"{contents.name!r}, or before it was unpublished: drop that table there, or give another identifier"
        )

    @staticmethod
    def _update(
        catalog: Any, table: Any, contents: CollectionState, known: Publication, snapshot: dict[str, Any]
    ) -> None:
        from pyiceberg.schema import Schema
        from pyiceberg.table import update as updates
        from pyiceberg.table.snapshots import Snapshot

        current = table.current_snapshot()
        if current is not None and current.snapshot_id == snapshot["snapshot-id"]:
            return
        changes: list[Any] = []
        if known.schema not in {schema.schema_id for schema in table.metadata.schemas}:
            schema = Schema.model_validate(schema_json(version_of(contents, known.schema)))
            changes.append(updates.AddSchemaUpdate(schema=schema))
        if known.schema != table.metadata.current_schema_id:
            changes.append(updates.SetCurrentSchemaUpdate(schema_id=known.schema))
        snapshot |= {} if current is None else {"parent-snapshot-id": current.snapshot_id}
        id_ = snapshot["snapshot-id"]
        gone = [older.snapshot_id for older in table.metadata.snapshots]  # Their files go, too.
        changes += [
            updates.AddSnapshotUpdate(snapshot=Snapshot.model_validate(snapshot)),
            updates.SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=id_),
            updates.SetPropertiesUpdate(updates=properties(contents, known)),
            *([updates.RemoveSnapshotsUpdate(snapshot_ids=gone)] if gone else []),
        ]
        required_state = (
            updates.AssertTableUUID(uuid=table.metadata.table_uuid),
            updates.AssertRefSnapshotId(ref="main", snapshot_id=None if current is None else current.snapshot_id),
        )
        catalog.commit_table(table, required_state, tuple(changes))


class CatalogTransaction:
    """Gathers what a catalog of pyiceberg is told of several tables; to `CatalogTable` it is a catalog.

    A REST catalog that has the endpoint takes all of it at once, or nothing. Others are told table by table, in order.
    Tables that a catalog does not know yet, or whose rows were erased, are registered at once, because no transaction
    of a catalog does that.

    Source: the Iceberg REST catalog's specification, `commitTransaction`. pyiceberg has no call for it.
    """

    ENDPOINT = "POST /v1/{prefix}/transactions/commit"

    def __init__(self, catalog: Any) -> None:
        from pyiceberg.catalog import load_catalog

        self._catalog = load_catalog(catalog) if isinstance(catalog, str) else catalog
        self._asked: list[tuple[Any, Any, Any]] = []

    def load_table(self, identifier: str) -> Any:
        return self._catalog.load_table(identifier)

    def register_table(self, identifier: str, url: str) -> Any:
        return self._catalog.register_table(identifier, url)

    def drop_table(self, identifier: str) -> None:
        self._catalog.drop_table(identifier)

    def commit_table(self, table: Any, requirements: Any, changes: Any) -> None:
        self._asked.append((table, requirements, changes))

    def commit(self) -> None:
        """Tell the catalog.

        Raises:
            Unavailable: it did not take all of it, or none where it takes all at once. That can be tried again.
        """
        asked, self._asked = self._asked, []
        try:
            if len(asked) > 1 and self.is_atomic:
                self._send(asked)
            else:
                for table, requirements, changes in asked:
                    self._catalog.commit_table(table, requirements, changes)
        except Exception as error:  # What is raised depends on the kind of catalog.
            names = ", ".join(".".join(table.name()) for table, *_ in asked)
            raise Unavailable(
                f"the catalog did not take new versions of {names}: {error}. They are published, and publishing again "
                "tells the catalog of them"
            ) from error

    @property
    def is_atomic(self) -> bool:
        """Whether the catalog changes several tables at once."""
        return self.ENDPOINT in map(str, getattr(self._catalog, "_supported_endpoints", ()))

    def _send(self, asked: Sequence[tuple[Any, Any, Any]]) -> None:
        from pyiceberg.table import CommitTableRequest, TableIdentifier

        requests = []
        for table, requirements, changes in asked:
            *namespace, name = table.name()
            identifier = TableIdentifier(namespace=namespace, name=name)
            request = CommitTableRequest(identifier=identifier, requirements=requirements, updates=changes)
            requests.append(request.model_dump_json())
        body = f'{{"table-changes":[{",".join(requests)}]}}'
        answer = self._catalog._session.post(self._catalog.url("transactions/commit"), data=body.encode())
        answer.raise_for_status()


def snapshot_json(contents: CollectionState, known: Publication, url_of: Any, now_ms: int) -> dict[str, Any]:
    """Return the snapshot of the present version of a table."""
    parts = [contents.part(number) for number in known.files]
    left_out = [file.deletes for file in known.files.values() if file.deletes is not None]
    summary = {
        "operation": "overwrite",
        "total-data-files": str(len(parts)),
        "total-delete-files": str(len(left_out)),
        "total-records": str(sum(part.rows for part in parts)),
        "total-position-deletes": str(sum(deletes.rows for deletes in left_out)),
        "total-equality-deletes": "0",
        "persist.as_of": str(known.as_of),
        "persist.collection": contents.id,
        **({} if known.digest is None else {"persist.digest": known.digest}),
    }
    return {
        "snapshot-id": snapshot_id(known.id, known.version),
        "sequence-number": known.version + 1,
        "timestamp-ms": now_ms,
        "manifest-list": url_of(known.metadata[0]),
        "summary": summary,
        "schema-id": known.schema,
    }


def snapshot_id(table: str, version: int) -> int:
    """Return the id of the snapshot of a version, which is another one for each table and version."""
    return int.from_bytes(hashlib.blake2b(f"{table} {version}".encode(), digest_size=8).digest(), "big") >> 1


def properties(contents: CollectionState, known: Publication) -> dict[str, str]:
    """Return the properties of a table: whose it is, that nobody deletes files of it, and names of columns."""
    return {
        "persist.collection": contents.id,
        "persist.table": known.id,
        "gc.enabled": "false",
        "schema.name-mapping.default": json.dumps(name_mapping(version_of(contents, known.schema))),
    }


def schema_json(schema: CollectionSchema) -> dict[str, Any]:
    """Return the schema of a table."""
    written = {f.name: f for f in file_schema(schema)}
    fields = [_field(_id_of(written[name]), name, iceberg_type(written[name].type)) for name in schema.columns]
    return {"type": "struct", "schema-id": schema.version, "identifier-field-ids": [], "fields": fields}


def name_mapping(schema: CollectionSchema) -> list[dict[str, Any]]:
    """Return what columns are called in parts that have no field ids, `_time` and `_diff` among them."""

    def mapped(field: pa.Field) -> dict[str, Any]:
        inside = named_inside(field.type)
        return {"field-id": _id_of(field), "names": [field.name], **({"fields": inside} if inside else {})}

    def named_inside(kind: pa.DataType) -> list[dict[str, Any]]:
        if not pt.is_nested(kind):
            return []
        named = ["key", "value"] if pt.is_map(kind) else None if pt.is_struct(kind) else ["element"]
        inner = children(kind)
        return [mapped(f.with_name(named[at] if named else f.name)) for at, f in enumerate(inner)]

    return [mapped(field) for field in file_schema(schema)]


def _all_fields(schema: CollectionSchema) -> Iterator[tuple[int, pa.DataType]]:
    def below(fields: Iterable[pa.Field]) -> Iterator[tuple[int, pa.DataType]]:
        for field in fields:
            yield _id_of(field), field.type
            yield from below(children(field.type) if pt.is_nested(field.type) else ())

    return below(field for field in file_schema(schema) if field.name in schema.names)


class _Metadata:
    """The manifests of a version that is about to be recorded."""

    def __init__(self, handle: CollectionHandle, contents: CollectionState, step: kinds.Publish, url_of: Any) -> None:
        from pyiceberg.partitioning import PartitionSpec
        from pyiceberg.schema import Schema

        self._handle = handle
        self._step = step
        self._url_of = url_of
        self._columns = version_of(contents, step.schema)
        self._schema = Schema.model_validate(schema_json(self._columns))
        self._spec = PartitionSpec()
        known = contents.published.get("iceberg")
        files = {} if known is None else {n: file for n, file in known.files.items() if n not in step.removed}
        numbers = resolved_numbers(tuple(file.number for file in step.files), contents.next_number)
        came = zip(numbers, step.files, strict=True)
        files |= {number: PublishedFile(step.version, file.deletes) for number, file in came}
        brought = dict(enumerate(step.parts, contents.next_number))
        self._files = [(brought[n] if n in brought else contents.part(n), file) for n, file in files.items()]

    def stored(self) -> tuple[str, ...]:
        from pyiceberg.manifest import ManifestContent, ManifestListWriterV2, ManifestWriterV2

        class Deleting(ManifestWriterV2):  # type: ignore[misc]
            """Writes manifests of delete files, which pyiceberg only reads."""

            def content(self) -> Any:
                return ManifestContent.DELETES

            @property
            def _meta(self) -> dict[str, str]:
                return {**super()._meta, "content": "deletes"}

        id_ = snapshot_id(self._step.id, self._step.version)
        keys, manifests = [], []
        left_out = [(part, file) for part, file in self._files if file.deletes is not None]
        kinds_of_files = [(ManifestWriterV2, self._files, self._data_file), (Deleting, left_out, self._delete_file)]
        for writer_of, files, described in kinds_of_files:
            if not files:
                continue
            output = _Output(self._url_of(key := self._key()))
            with writer_of(self._spec, self._schema, output, id_, "deflate") as writer:
                for part, file in files:
                    writer.add_entry(self._entry(file, described(part, file)))
            self._handle.engine.blob.set(key, output.value)
            keys.append(key)
            manifests.append(writer.to_manifest_file())
        output = _Output(self._url_of(key := self._key()))
        with ManifestListWriterV2(output, id_, None, self._step.version + 1, "deflate") as listing:
            listing.add_manifests(manifests)
        self._handle.engine.blob.set(key, output.value)
        return (key, *keys)

    def _key(self) -> str:
        return manifest_key(self._handle.id, self._handle.engine.follower.next_seqno())

    def _entry(self, file: PublishedFile, described: Any) -> Any:
        from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus

        is_new = file.version == self._step.version
        sequence = file.version + 1 if described.content else 1
        return ManifestEntry.from_args(
            status=ManifestEntryStatus.ADDED if is_new else ManifestEntryStatus.EXISTING,
            snapshot_id=snapshot_id(self._step.id, file.version),
            sequence_number=sequence,
            file_sequence_number=sequence,
            data_file=described,
        )

    def _data_file(self, part: Part, _: PublishedFile) -> Any:
        low, high, nulls = self._bounds(part)
        return self._described(
            0, part.blob, part.rows, part.bytes, lower_bounds=low, upper_bounds=high, null_value_counts=nulls
        )

    def _delete_file(self, part: Part, file: PublishedFile) -> Any:
        deletes = file.deletes
        assert deletes is not None
        bound = {FILE_PATH: self._url_of(part.blob).encode()}
        return self._described(1, deletes.blob, deletes.rows, deletes.bytes, lower_bounds=bound, upper_bounds=bound)

    def _described(self, content: int, blob: str, rows: int, size: int, **known: Any) -> Any:
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
        from pyiceberg.typedef import Record

        described = DataFile.from_args(
            _table_format_version=2,
            content=DataFileContent(content),
            file_path=self._url_of(blob),
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=rows,
            file_size_in_bytes=size,
            **known,
        )
        described.spec_id = 0
        return described

    def _bounds(self, part: Part) -> tuple[dict[int, bytes], dict[int, bytes], dict[int, int]]:
        """Return the least and greatest values of columns, as Iceberg writes them, and how many NULLs there are."""
        low, high, nulls = dict[int, bytes](), dict[int, bytes](), dict[int, int]()
        for field in file_schema(self._columns):
            known = part.stats.get(field.name)
            if known is None or field.name not in self._columns.names:
                continue
            nulls[_id_of(field)] = known[2]
            for bounds, value in ((low, known[0]), (high, known[1])):
                written = _written(value, self._columns.arrow.field(field.name).type)
                if written is not None:
                    bounds[_id_of(field)] = written
        return low, high, nulls


def _written(value: Any, kind: pa.DataType) -> bytes | None:
    if value is None:
        return None
    if pt.is_string(kind) or pt.is_large_string(kind):
        return str(value).encode()
    if pt.is_int64(kind) or pt.is_timestamp(kind):
        return struct.pack("<q", value)
    if pt.is_integer(kind) or pt.is_date32(kind):
        return struct.pack("<i", value)
    return None


class _Output:
    """A file that pyiceberg writes, in memory: it is stored as all blobs are."""

    def __init__(self, location: str) -> None:
        self.location = location
        self.value = b""

    def __len__(self) -> int:
        return len(self.value)

    def exists(self) -> bool:
        return False

    def create(self, overwrite: bool = False) -> "_Stream":
        return _Stream(self)


class _Stream(io.BytesIO):
    def __init__(self, output: _Output) -> None:
        super().__init__()
        self._output = output

    def close(self) -> None:
        if not self.closed:
            self._output.value = self.getvalue()
        super().close()


_DELETES = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {FIELD_ID: str(FILE_PATH).encode()}),
        pa.field("pos", pa.int64(), False, {FIELD_ID: str(POSITION).encode()}),
    ]
)
