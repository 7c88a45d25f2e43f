"""Publishes a table as Iceberg, version 2 or 3: metadata, by pyiceberg's writers, that names the existing parts.

    part/<collection>/<seqno>-<32 hex>.parquet             rows that are left out of one part, as position deletes
    part/<collection>/<seqno>/deletion_vector_<uuid>.bin   rows that are left out of several, as a Puffin file
    part/<collection>/metadata/<seqno>-<32 hex>.avro       a manifest, or the list of a snapshot's manifests
    part/<collection>/metadata/v<version + 1>.metadata.json   the table at one version, after the record of the version
    part/<collection>/metadata/version-hint.text           which of these is the newest

pyiceberg's `add_files` accepts no file with columns that the table lacks, and parts have `_time` and `_diff`. So the
manifests are written entry by entry. Readers find columns by their field ids; in parts without ids, by a mapping of
names. All names in an Iceberg table are whole URLs, so a location that was moved must be published again.

Each version is one snapshot, the only one in its metadata. If other rows of a part are left out than before, all
position deletes of the part are written again, in one file for each part, because a reader then reads only what it
needs. Version 3 of the format has deletion vectors instead, and each version of the table stores all of its new ones in
one Puffin file. Older position deletes stay. Version 3 also has timestamps in nanoseconds, and row lineage
(`persist.services.publish.iceberg_files`).

Each version can also be registered with a catalog of pyiceberg, which then writes its own metadata beside ours.

Source: the Iceberg table spec: "Position Delete Files", "Deletion Vectors", "Table Metadata Fields".
"""

import io
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from persist.blob.errors import MissingBlob
from persist.codecs.part.part import Part
from persist.codecs.types.schema import CollectionSchema
from persist.core.errors import InvalidUsage, Superseded, Unavailable
from persist.core.log import kinds
from persist.core.log.fields import PIN_PREFIX, Deletes
from persist.core.log.keys import get_table_root, make_part_key, make_vectors_key, parse_vectors_size
from persist.core.state_rules.contents import CollectionState, Publication
from persist.core.state_rules.schemas import load_schema_version
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.read.results.result import require_package
from persist.services.publish.bitmaps import Rows, decode_rows, encode_rows, unframe_vector
from persist.services.publish.iceberg_files import (
    FIELD_ID,
    FILE_PATH,
    HAS,
    POSITION,
    Manifests,
    encode_puffin,
    make_properties,
    make_schema,
    make_snapshot,
    make_table_metadata,
    to_iceberg_type,
)
from persist.services.publish.planning import (
    REPLACES,
    PlannedFile,
    check_columns,
    compute_omitted_rows,
    make_foreign_error,
    read_format_version,
)


class IcebergTable:
    """A collection as an Iceberg table; see `persist.services.publish.publication.TableFormat`."""

    def __init__(
        self, handle: CollectionHandle, options: Mapping[str, str], catalog: Any = None, *, pinned: int | None = None
    ) -> None:
        """Make the writer of a table; it registers versions with `catalog`, by default the catalog that options name.

        `pinned` is a time that stays readable beside the newest version.
        """
        require_package("pyiceberg[pyarrow]>=0.12")
        self.name = "iceberg" if pinned is None else f"{PIN_PREFIX}{pinned}"
        self._handle = handle
        self._blob = handle.engine.blob
        self._catalog = catalog
        self._catalog_name = options.get("catalog", "")

    def check(self, schema: CollectionSchema, options: Mapping[str, str]) -> None:
        """Raise InvalidUsage if a table, or other programs, cannot have these columns."""
        url = self._blob.url
        if url.startswith("memory://"):
            raise InvalidUsage(f"{url} is in this process alone, so no other process could read a table there")
        if url.startswith("grpc"):
            raise InvalidUsage(f"Iceberg readers cannot open {url}: publish from a client that opens the store itself")
        if "://" in url and "#" in url:
            raise InvalidUsage(f"Iceberg readers cut {url} off at its '#': publish from a location without that")
        if read_format_version(options) > 2 and "identifier" in options:
            raise InvalidUsage(
                "catalogs of pyiceberg take no new versions of tables of Iceberg's format 3: publish without catalog=, "
                "or serve the location as a catalog by serve(iceberg=)"
            )
        check_columns(schema, "iceberg", partial(to_iceberg_type, version=read_format_version(options)), HAS)

    def store_deletes(
        self, pieces: Sequence[tuple[PlannedFile, Deletes | None]], is_anew: bool, options: Mapping[str, str]
    ) -> list[Deletes | None]:
        """Store omitted rows that changed; return their places."""
        deletes: list[Deletes | None] = []
        changed: dict[int, tuple[Part, Rows]] = {}
        for at, (file, previous) in enumerate(pieces):
            rows = compute_omitted_rows(file, None if previous is None else self._read_omitted_rows(previous), is_anew)
            deletes.append(previous if rows is None else None)
            if rows is not None and len(rows):
                changed[at] = (file.part, rows)
        if read_format_version(options) == 2:
            stored = [self._store_deletes(part, rows) for part, rows in changed.values()]
        else:
            stored = self._store_deletion_vectors([*changed.values()])
        for at, written in zip(changed, stored, strict=True):
            deletes[at] = written
        return deletes

    def _store_deletion_vectors(self, changed: Sequence[tuple[Part, Rows]]) -> list[Deletes]:
        """Store deletion vectors in one Puffin file."""
        if not changed:
            return []
        vectors = [encode_rows(rows) for _, rows in changed]
        paths = [self.format_url(part.blob) for part, _ in changed]
        data, starts = encode_puffin([*zip(paths, vectors, (len(rows) for _, rows in changed), strict=True)])
        key, _ = make_vectors_key(self._handle.id, self._handle.engine.follower.find_next_seqno(), len(data))
        self._blob.set(key, data)
        places = zip(starts, vectors, changed, strict=True)
        return [Deletes(key, start, len(vector), len(rows)) for start, vector, (_, rows) in places]

    def _store_deletes(self, part: Part, rows: Rows) -> Deletes:
        """Store the omitted rows of a part as a file of position deletes."""
        key = make_part_key(self._handle.id, self._handle.engine.follower.find_next_seqno())
        paths = pa.DictionaryArray.from_arrays(np.zeros(len(rows), np.int8), [self.format_url(part.blob)]).cast(
            pa.string()
        )
        sink = io.BytesIO()
        pq.write_table(pa.table({"file_path": paths, "pos": rows}, schema=_DELETES), sink, compression="zstd")
        self._blob.set(key, sink.getvalue())
        return Deletes(key, 0, len(sink.getvalue()), len(rows))

    def _read_omitted_rows(self, deletes: Deletes) -> Rows:
        """Return the rows that a blob of deletes omits. Cost: a GET."""
        data = self._blob.get(deletes.blob)
        if data is None:
            raise MissingBlob(
                deletes.blob, "it is missing, but a published table needs it to leave out rows", "unpublish it"
            )
        if parse_vectors_size(deletes.blob) is not None:
            return decode_rows(unframe_vector(data[deletes.start :], deletes.blob), deletes.blob)
        rows: Rows = pq.read_table(pa.BufferReader(data), columns=["pos"])["pos"].to_numpy()
        return rows

    def store_metadata(self, contents: CollectionState, step: kinds.Publish) -> tuple[str, ...]:
        """Store a version's manifest list and manifests; return their keys, the list first."""
        return Manifests(self._handle, contents, step, self.format_url).store()

    def show(self, contents: CollectionState, publication: Publication, *, is_new: bool) -> None:
        """Write the present version's metadata unless it exists, and point to it."""
        root, number = f"{get_table_root(contents.id)}metadata/", publication.version + 1
        key, hint = f"{root}v{number}.metadata.json", f"{root}version-hint.text"
        current = None if is_new else self._blob.get(key)
        if current is None and not self._blob.create(key, self._encode_table(contents, publication)):
            current = self._blob.get(key)
        pointer = self._blob.get(hint)
        newest = int(pointer) if pointer is not None and pointer.strip().isdigit() else 0
        if newest > number:
            key = f"{root}v{newest}.metadata.json"
            current = self._blob.get(key)
        if current is not None and self.mark(publication.id) not in current.replace(b" ", b""):
            raise make_foreign_error(f"{self._blob.url}/{key}", contents.name)
        if current is not None and (below := json.loads(current)["location"]) != self.location(contents):
            raise InvalidUsage(
                f"the iceberg table of {contents.name!r} names its files below {below}, and they lie below "
                f'{self.location(contents)}: call unpublish("iceberg"), and publish again'
            )
        if newest < number:
            self._blob.set(hint, str(number).encode())
            if number > 2 and "identifier" not in publication.options:  # Or else a catalog may point to it.
                self._blob.delete(f"{root}v{number - 2}.metadata.json")
        if self._catalog is not None or self._catalog_name:
            catalog_table = CatalogTable(self._catalog, self._catalog_name, publication.options["identifier"])
            now_ms = self._handle.engine.clock.wall_ms()
            catalog_table.register_version(
                contents, publication, self.format_url, self.url(contents, publication), now_ms
            )

    def mark(self, table: str) -> bytes:
        """Return the marker in each metadata file."""
        return f'"table-uuid":"{UUID(table)}"'.encode()

    def find_visible_since_s(self, publication: Publication) -> float | None:
        """Return when the present version's metadata was written; None if it is not there."""
        listed = self._blob.list(f"{get_table_root(self._handle.id)}metadata/v{publication.version + 1}.metadata.json")
        return next((entry.modified_s for entry in listed), None)

    def url(self, contents: CollectionState, publication: Publication) -> str:
        """Return the URL of the newest metadata."""
        return self.format_url(f"{get_table_root(contents.id)}metadata/v{publication.version + 1}.metadata.json")

    def ensure_metadata(self, contents: CollectionState, publication: Publication) -> dict[str, Any]:
        """Return the present version's metadata; store it if missing.

        Raises Superseded: the table was given up meanwhile.
        """
        key = f"{get_table_root(contents.id)}metadata/v{publication.version + 1}.metadata.json"
        data = self._blob.get(key)
        if data is None:
            self.show(contents, publication, is_new=False)
            data = self._blob.get(key)
        if data is None or self.mark(publication.id) not in data.replace(b" ", b""):
            raise Superseded(f"the iceberg table of {contents.name!r} was published anew meanwhile: load it again")
        metadata: dict[str, Any] = json.loads(data)
        return metadata

    def format_url(self, key: str) -> str:
        """Return a blob's URL as readers expect it: not percent-encoded."""
        url = f"{self._blob.url.rstrip('/')}/{key}".removeprefix("fsspec+")
        # pyiceberg drops these and the following characters from a URL; it uses a path as a whole.
        is_sure = url.startswith("/") and not {"?", "#"} & {*url}
        return f"file://{url}" if is_sure else url

    def location(self, contents: CollectionState) -> str:
        """Return the URL of the table's folder."""
        return self.format_url(get_table_root(contents.id).rstrip("/"))

    def _encode_table(self, contents: CollectionState, publication: Publication) -> bytes:
        """Return the metadata of the present version as JSON."""
        schema, now_ms = load_schema_version(contents, publication.schema), self._handle.engine.clock.wall_ms()
        moment = get_moment_ms(self._handle, publication.as_of)
        if moment is None or moment > now_ms:
            moment = min(publication.as_of, now_ms - READER_BEGAN_MS)
        snapshot = make_snapshot(contents, publication, self.format_url, moment)
        table = make_table_metadata(
            contents, schema, self.location(contents), read_format_version(publication.options)
        ) | {
            "table-uuid": str(UUID(publication.id)),
            "last-sequence-number": publication.version + 1,
            "last-updated-ms": now_ms,
            "properties": make_properties(contents, publication),
            **({"next-row-id": snapshot["first-row-id"] + snapshot["added-rows"]} if "added-rows" in snapshot else {}),
            "current-snapshot-id": snapshot["snapshot-id"],
            "refs": {"main": {"snapshot-id": snapshot["snapshot-id"], "type": "branch"}},
            "snapshots": [snapshot],
            "snapshot-log": [{"snapshot-id": snapshot["snapshot-id"], "timestamp-ms": moment}],
        }
        return json.dumps(table).encode()


READER_BEGAN_MS = 60_000  # A load publishes no later than this after the transaction of its reader has begun.


def get_moment_ms(handle: CollectionHandle, time: int) -> int | None:
    """Return the moment of a time in ms since 1970; None without one up to the year 9999."""
    try:
        moment = handle.find_moment(time)
    except InvalidUsage:  # It is after the year 9999.
        return None
    return None if moment is None else int(moment.timestamp() * 1000)


class CatalogTable:
    """A published table in a catalog of pyiceberg.

    `catalog`: the catalog; None to load it by its name, from where pyiceberg is configured.
    """

    def __init__(self, catalog: Any, name: str, identifier: str) -> None:
        self._catalog = catalog
        self._name = name
        self._identifier = identifier

    def register_version(
        self, contents: CollectionState, publication: Publication, format_url: Any, url: str, now_ms: int
    ) -> None:
        """Register the present version with the catalog, if it lacks it.

        If the catalog has a table that an erasure gave up, this one replaces it. The old table's metadata may be
        deleted, so the catalog cannot load it.

        Raises:
            InvalidUsage: another table has that name there.
            Unavailable: the catalog did not accept it; this can be tried again.
        """
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NoSuchTableError

        try:
            catalog = self._catalog if self._catalog is not None else load_catalog(self._name)
            table, replaced = None, publication.options.get(REPLACES, "").split()
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
            if table.properties.get("persist.table") == publication.id:
                self._update_catalog(
                    catalog, table, contents, publication, make_snapshot(contents, publication, format_url, now_ms)
                )
                return
        except Exception as error:  # The exception depends on the kind of catalog.
            raise Unavailable(
                f"the catalog did not take version {publication.version} of {self._identifier}: {error}. It is "
                "published, and publishing again tells the catalog of it"
            ) from error
        raise InvalidUsage(
            f"the catalog has another table called {self._identifier!r}, which was not published from "
            f"{contents.name!r}, or before it was unpublished: drop that table there, or give another identifier"
        )

    @staticmethod
    def _update_catalog(
        catalog: Any, table: Any, contents: CollectionState, publication: Publication, snapshot: dict[str, Any]
    ) -> None:
        """Send the schema, properties and snapshot of a version to the catalog."""
        from pyiceberg.schema import Schema
        from pyiceberg.table import update as updates
        from pyiceberg.table.snapshots import Snapshot

        current = table.current_snapshot()
        if current is not None and current.snapshot_id == snapshot["snapshot-id"]:
            return
        changes: list[Any] = []
        if publication.schema not in {schema.schema_id for schema in table.metadata.schemas}:
            schema = Schema.model_validate(make_schema(load_schema_version(contents, publication.schema)))
            changes.append(updates.AddSchemaUpdate(schema=schema))
        if publication.schema != table.metadata.current_schema_id:
            changes.append(updates.SetCurrentSchemaUpdate(schema_id=publication.schema))
        snapshot |= {} if current is None else {"parent-snapshot-id": current.snapshot_id}
        id_ = snapshot["snapshot-id"]
        snapshot_ids = [older.snapshot_id for older in table.metadata.snapshots]  # Their files are removed as well.
        changes += [
            updates.AddSnapshotUpdate(snapshot=Snapshot.model_validate(snapshot)),
            updates.SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=id_),
            updates.SetPropertiesUpdate(updates=make_properties(contents, publication)),
            *([updates.RemoveSnapshotsUpdate(snapshot_ids=snapshot_ids)] if snapshot_ids else []),
        ]
        required_state = (
            updates.AssertTableUUID(uuid=table.metadata.table_uuid),
            updates.AssertRefSnapshotId(ref="main", snapshot_id=None if current is None else current.snapshot_id),
        )
        catalog.commit_table(table, required_state, tuple(changes))


class CatalogTransaction:
    """Collects updates of several tables for one request to a catalog.

    A REST catalog with that endpoint applies all updates, or none. Other catalogs are updated table by table, in order.
    New tables, and tables whose rows were erased, are registered immediately, because a catalog's transaction cannot
    register tables.

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
        """Send all collected updates to the catalog.

        Raises Unavailable: it did not accept all updates (an atomic catalog: any of them). This can be tried again.
        """
        pending, self._asked = self._asked, []
        try:
            if len(pending) > 1 and self.is_atomic:
                self._send_updates(pending)
            else:
                for table, requirements, changes in pending:
                    self._catalog.commit_table(table, requirements, changes)
        except Exception as error:  # The exception depends on the kind of catalog.
            names = ", ".join(".".join(table.name()) for table, *_ in pending)
            raise Unavailable(
                f"the catalog did not take new versions of {names}: {error}. They are published, and publishing again "
                "tells the catalog of them"
            ) from error

    @property
    def is_atomic(self) -> bool:
        """Whether the catalog changes several tables at once."""
        return self.ENDPOINT in map(str, getattr(self._catalog, "_supported_endpoints", ()))

    def _send_updates(self, asked: Sequence[tuple[Any, Any, Any]]) -> None:
        """Commit the changes of several tables by one request to the catalog."""
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


_DELETES = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {FIELD_ID: str(FILE_PATH).encode()}),
        pa.field("pos", pa.int64(), False, {FIELD_ID: str(POSITION).encode()}),
    ]
)
