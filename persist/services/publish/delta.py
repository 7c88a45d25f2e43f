"""Publishes a table as a Delta log: a JSON object with actions for each version, and checkpoints of them.

    part/<collection>/_delta_log/<version, 20 digits>.json                 created once, after the record of the version
    part/<collection>/_delta_log/<version, 20 digits>.checkpoint.parquet   after every `CHECKPOINT_EVERY` versions
    part/<collection>/_delta_log/_last_checkpoint

The root of the table is the folder of the collection's parts, because some readers (Polars, pyarrow) only accept names
below the root. The state of the collection determines each version, so any client that finds an outdated table can
write the version.

A program that maintains this table as its own would delete the parts that the table does not name, as VACUUM does. So
the table's protocol requires of writers a feature, `GUARD`, that no program has: the Delta protocol forbids programs
without it to write. Readers need not know it. Some programs delete files without asking the protocol. So the table also
sets a retention of a hundred years for deleted files: these programs refuse a shorter one unless forced.

A table may have a change feed. Then each version after the first has a file of the rows that came and went since the
version before (`change_rows`), and readers of the feed look at nothing else. `Publication.metadata` names these files,
newest first, as far back as the log shows versions.

Source: the Delta protocol (delta-io/delta, PROTOCOL.md): "Actions", "Deletion Vectors", "Per-file Statistics",
"Checkpoints", "Table Features", "Add CDC File", "Change Data Files".
"""

import datetime
import io
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from persist.blob.errors import MissingBlob
from persist.blob.protocol import delete_all
from persist.codecs.part.part import Part
from persist.codecs.types.arrow_types import list_inner_fields
from persist.codecs.types.schema import CollectionSchema
from persist.core.errors import AsOfCompacted, InvalidUsage
from persist.core.log import kinds
from persist.core.log.fields import Deletes
from persist.core.log.keys import get_table_root, is_table_key, make_part_key, make_vectors_key
from persist.core.state_rules.contents import CollectionState, Publication, PublishedFile
from persist.core.state_rules.schemas import load_schema_version
from persist.engine.collection.reads import difference
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.read.following.changes import CHANGE, OLD
from persist.services.publish.bitmaps import VERSION, Rows, decode_rows, encode_rows, frame_vector, unframe_vector
from persist.services.publish.planning import (
    COMMON_NAMES,
    PlannedFile,
    check_columns,
    compute_omitted_rows,
    make_foreign_error,
)

CHECKPOINT_EVERY = 10
VERSIONS_SHOWN = 3 * CHECKPOINT_EVERY  # At most: then those before a checkpoint that has a later one go.
CHANGE_TYPE = "_change_type"
FEED = {"delta.enableChangeDataFeed": "true"}
FEED_COLUMNS = (CHANGE_TYPE, "_commit_version", "_commit_timestamp", CHANGE)
HEAD_BYTES = 1024  # The first bytes of a version, which name its writer.
GUARD = "persistPublication"
KEPT = {"delta.deletedFileRetentionDuration": "interval 36500 days", "delta.enableExpiredLogCleanup": "false"}
NAMES = COMMON_NAMES | {pa.int8(): "byte", pa.int16(): "short", pa.int32(): "integer", pa.int64(): "long"}
HAS = (
    "Delta has bool, int8 to int64, float32, float64, decimal128, strings, binary, dates, timestamps in microseconds, "
    "and lists, maps and structs of those"
)


def to_delta_type(kind: pa.DataType) -> Any:
    """Return the Delta type of a column; None if Delta has no type for all its values."""
    if kind in NAMES:
        return NAMES[kind]
    if pt.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pt.is_timestamp(kind) and kind.unit == "us":
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    if not pt.is_nested(kind):
        return None
    inner = [to_delta_type(child.type) for child in list_inner_fields(kind)]
    if None in inner:
        return None
    if pt.is_struct(kind):
        named = zip(list_inner_fields(kind), inner, strict=True)
        return {"type": "struct", "fields": [_make_field(child.name, written) for child, written in named]}
    if pt.is_map(kind):
        return {"type": "map", "keyType": inner[0], "valueType": inner[1], "valueContainsNull": True}
    [element] = inner
    return {"type": "array", "elementType": element, "containsNull": True}


class DeltaTable:
    """A collection as a Delta table; see `persist.services.publish.publication.TableFormat`."""

    name = "delta"

    def __init__(self, handle: CollectionHandle) -> None:
        self._handle = handle
        self._blob = handle.engine.blob

    def check(self, schema: CollectionSchema, options: Mapping[str, str]) -> None:
        """Raise InvalidUsage if a table cannot have these columns."""
        check_columns(schema, self.name, to_delta_type, HAS)
        clash = [name for name in schema.names if name in FEED_COLUMNS or name.startswith(OLD)]
        if has_feed(options) and clash:
            raise InvalidUsage(
                f"column {clash[0]!r} has a name that means something else in a change feed: rename it with evolve, or "
                "publish without feed"
            )

    def store_deletes(
        self, pieces: Sequence[tuple[PlannedFile, Deletes | None]], is_anew: bool, options: Mapping[str, str]
    ) -> list[Deletes | None]:
        """Store the deletion vectors that changed, in one blob; return the place of the vector of each file."""
        key, _ = make_vectors_key(self._handle.id, self._handle.engine.follower.find_next_seqno())
        blob, deletes = bytearray(VERSION), list[Deletes | None]()
        rows_by_deletes = self._read_omitted_rows([previous for _, previous in pieces if previous is not None])
        for file, previous in pieces:
            rows = compute_omitted_rows(file, None if previous is None else rows_by_deletes[previous], is_anew)
            if rows is None:
                deletes.append(previous)
            elif not len(rows):
                deletes.append(None)
            else:
                vector = encode_rows(rows)
                deletes.append(Deletes(key, len(blob), len(vector), len(rows)))
                blob += frame_vector(vector)
        if len(blob) > len(VERSION):
            self._blob.set(key, bytes(blob))
        return deletes

    def _read_omitted_rows(self, wanted: Sequence[Deletes]) -> dict[Deletes, Rows]:
        """Return the rows that vectors omit. Cost: a GET for each blob."""
        rows: dict[Deletes, Rows] = {}
        for name in {deletes.blob for deletes in wanted}:
            inside = [deletes for deletes in wanted if deletes.blob == name]
            first = min(deletes.start for deletes in inside)
            data = self._blob.get(name, (first, max(deletes.start + deletes.bytes + 8 for deletes in inside)))
            if data is None:
                raise MissingBlob(
                    name, "it is missing, but a published table needs it to leave out rows", "unpublish it"
                )
            rows |= {
                deletes: decode_rows(unframe_vector(data[deletes.start - first :], name), name) for deletes in inside
            }
        return rows

    def store_metadata(self, contents: CollectionState, step: kinds.Publish) -> tuple[str, ...]:
        """Store the change feed of a version, if enabled; return its files.

        The paths of the table's other files are only in the Delta log.
        """
        publication = contents.published.get(self.name)
        if publication is None or not has_feed(step.options) or not has_feed(publication.options):
            return ()
        earlier = publication.metadata[: VERSIONS_SHOWN - 1]
        rows = read_change_rows(self._handle, publication.as_of, step.as_of, step.schema)
        if rows is None:
            return earlier
        key, sink = make_part_key(self._handle.id, self._handle.engine.follower.find_next_seqno()), io.BytesIO()
        pq.write_table(rows, sink, compression="zstd")
        self._blob.set(key, sink.getvalue())
        return (key, *earlier)

    def show(self, contents: CollectionState, publication: Publication, *, is_new: bool) -> None:
        """Write the present version to the Delta log, unless that has it."""
        key, now_ms = log_key(contents.id, publication.version), self._handle.engine.clock.wall_ms()
        head = None if is_new else self._blob.get(key, (0, HEAD_BYTES))
        changes = [] if head is not None else [*map(self._make_change_file, publication.metadata[:1])]
        changes = [] if publication.metadata[:1] == publication.metadata_before[:1] else changes
        if head is None and not self._blob.create(key, encode_version(contents, publication, now_ms, changes)):
            head = self._blob.get(key, (0, HEAD_BYTES))
        if head is not None and self.mark(publication.id) not in head:
            raise make_foreign_error(f"{self._blob.url}/{key}", contents.name)
        if head is None and publication.version and publication.version % CHECKPOINT_EVERY == 0:
            checkpoint, last = make_checkpoint_keys(contents.id, publication.version)
            for name, data in zip((checkpoint, last), encode_checkpoint(contents, publication, now_ms), strict=True):
                self._blob.set(name, data)
            self._delete_old_versions(publication.version - 2 * CHECKPOINT_EVERY)

    def mark(self, table: str) -> bytes:
        """Return the marker in the first line of each version."""
        return f'"persist.table":"{table}"'.encode()

    def find_visible_since_s(self, publication: Publication) -> float | None:
        """Return when the present version was written, or None."""
        listed = self._blob.list(log_key(self._handle.id, publication.version))
        return next((entry.modified_s for entry in listed), None)

    def _make_change_file(self, key: str) -> dict[str, Any]:
        """Return the action of a file of the change feed."""
        size = next((entry.bytes for entry in self._blob.list(key) if entry.key == key), 0)
        path = key.removeprefix(get_table_root(self._handle.id))
        return {"cdc": {"path": path, "partitionValues": {}, "size": size, "dataChange": False}}

    def _delete_old_versions(self, version: int) -> None:
        """Delete the log's files before the checkpoint at `version`."""
        end, _ = make_checkpoint_keys(self._handle.id, max(0, version))
        listed = (entry.key for entry in self._blob.list(f"{get_table_root(self._handle.id)}_delta_log/"))
        delete_all(
            self._blob, [key for key in listed if is_table_key(key, self._handle.id) and key < end and version > 0]
        )

    def url(self, contents: CollectionState, publication: Publication) -> str:
        """Return the table's root."""
        return f"{self._blob.url.rstrip('/')}/{get_table_root(contents.id).rstrip('/')}"


def log_key(collection: str, version: int) -> str:
    """Return the key of a table's version."""
    return f"{get_table_root(collection)}_delta_log/{version:020d}.json"


def make_checkpoint_keys(collection: str, version: int) -> tuple[str, str]:
    """Return the keys of a checkpoint, and of the pointer to it."""
    folder = f"{get_table_root(collection)}_delta_log/"
    return f"{folder}{version:020d}.checkpoint.parquet", f"{folder}_last_checkpoint"


def encode_version(
    contents: CollectionState, publication: Publication, now_ms: int, changes: Sequence[dict[str, Any]] = ()
) -> bytes:
    """Return the present version as lines of actions."""
    description = {
        "persist.as_of": str(publication.as_of),
        "persist.collection": contents.id,
        "persist.table": publication.id,
        **({"persist.digest": publication.digest} if publication.digest is not None else {}),
    }
    info = {
        "timestamp": now_ms,
        "operation": "PUBLISH",
        "operationParameters": {},
        "engineInfo": "persist",
        **description,
    }
    actions: list[dict[str, Any]] = [{"commitInfo": info}]
    if publication.is_renewed:
        actions += _make_header_actions(contents, publication, now_ms)
    actions += [{"remove": _make_remove_action(contents, n, file, now_ms)} for n, file in publication.before.items()]
    came = ((number, file) for number, file in publication.files.items() if file.version == publication.version)
    actions += [{"add": _make_add_action(contents, publication.schema, number, file, now_ms)} for number, file in came]
    actions += changes
    return "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions).encode()


def encode_checkpoint(contents: CollectionState, publication: Publication, now_ms: int) -> tuple[bytes, bytes]:
    """Return a checkpoint of the present version, and the pointer to it."""
    rows = _make_header_actions(contents, publication, now_ms)
    rows += [
        {"add": _make_add_action(contents, publication.schema, number, file, now_ms)}
        for number, file in publication.files.items()
    ]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=_CHECKPOINT), sink)
    return sink.getvalue(), json.dumps({"version": publication.version, "size": len(rows)}).encode()


def read_change_rows(handle: CollectionHandle, first: int, second: int, schema: int) -> pa.Table | None:
    """Return the changes between two times as rows of a change feed.

    If a key lost one row and gained another, it was updated: both rows follow each other. None if the changes cannot be
    read any more. Memory: the updates between the two times.
    """
    try:
        changed = difference(handle, first, second, schema=schema).to_arrow()
    except AsOfCompacted:
        return None
    kind, names = changed[CHANGE], [name for name in changed.column_names if not name.startswith(OLD)][:-1]
    old_names = [OLD + name if OLD + name in changed.column_names else name for name in names]
    sides = [(old_names, "insert", "delete", "update_preimage"), (names, "delete", "insert", "update_postimage")]
    tables = []
    for columns, absent, alone, paired in sides:
        kinds_of_rows = pc.if_else(pc.equal(kind, "update"), paired, alone)
        rows = changed.select(columns).rename_columns(names).append_column(CHANGE_TYPE, kinds_of_rows)
        tables.append(rows.filter(pc.not_equal(kind, absent)))
    return pa.concat_tables(tables, promote_options="permissive")


def has_feed(options: Mapping[str, str]) -> bool:
    """Return whether options enable a change feed."""
    return options.get("feed") == "true"


def has_vectors(publication: Publication) -> bool:
    """Return whether the table may omit rows of files."""
    return publication.options.get("deletes", "vectors") == "vectors"


def _make_header_actions(contents: CollectionState, publication: Publication, now_ms: int) -> list[dict[str, Any]]:
    """Return the protocol and metadata actions of a table."""
    schema = load_schema_version(contents, publication.schema)
    fields = [_make_field(name, to_delta_type(schema.arrow.field(name).type)) for name in schema.columns]
    has_ntz = any('"timestamp_ntz"' in json.dumps(field) for field in fields)
    features = ["deletionVectors"] * has_vectors(publication) + ["timestampNtz"] * has_ntz
    written = [*features, *["changeDataFeed"] * has_feed(publication.options), GUARD]
    protocol: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": written}
    if features:
        protocol |= {"minReaderVersion": 3, "readerFeatures": features}
    metadata = {
        "id": str(UUID(publication.id)),
        "name": contents.name,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": [],
        "configuration": {**KEPT, **(FEED if has_feed(publication.options) else {}), "persist.collection": contents.id},
        "createdTime": now_ms,
    }
    return [{"protocol": protocol}, {"metaData": metadata}]


def _make_field(name: str, written: Any) -> dict[str, Any]:
    """Return a nullable column in the schema of a Delta table."""
    return {"name": name, "type": written, "nullable": True, "metadata": {}}


def _make_add_action(
    contents: CollectionState, schema: int, number: int, file: PublishedFile, now_ms: int
) -> dict[str, Any]:
    """Return the action that adds a part to the table."""
    part = contents.get_part(number)
    stats = _make_stats(part, load_schema_version(contents, schema), is_whole=file.deletes is None)
    return _make_file_action(contents, part, file) | {"modificationTime": now_ms, "stats": json.dumps(stats)}


def _make_remove_action(contents: CollectionState, number: int, file: PublishedFile, now_ms: int) -> dict[str, Any]:
    """Return the action that removes a part from the table."""
    action = _make_file_action(contents, contents.get_part(number), file)
    return action | {"deletionTimestamp": now_ms, "extendedFileMetadata": True}


def _make_file_action(contents: CollectionState, part: Part, file: PublishedFile) -> dict[str, Any]:
    """Return the common members of the actions that add and remove a part."""
    path = part.blob.removeprefix(get_table_root(contents.id))
    action = {"path": path, "partitionValues": {}, "size": part.bytes, "dataChange": True}
    return action if file.deletes is None else {**action, "deletionVector": _make_vector_descriptor(file.deletes)}


def _make_vector_descriptor(deletes: Deletes) -> dict[str, Any]:
    """Return a deletion vector's descriptor. Its blob is `<seqno>/deletion_vector_<id>.bin`."""
    *_, folder, name = deletes.blob.split("/")
    id_ = bytes.fromhex(name.removeprefix("deletion_vector_").removesuffix(".bin").replace("-", ""))
    return {
        "storageType": "u",
        "pathOrInlineDv": folder + _encode_z85(id_),
        "offset": deletes.start,
        "sizeInBytes": deletes.bytes,
        "cardinality": deletes.rows,
    }


def _encode_z85(data: bytes) -> str:
    """Return bytes in ZeroMQ's base 85; their number is a multiple of four."""
    digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    words = struct.unpack(f">{len(data) // 4}I", data)
    return "".join(digits[word // 85**power % 85] for word in words for power in (4, 3, 2, 1, 0))


def _make_stats(part: Part, schema: CollectionSchema, *, is_whole: bool) -> dict[str, Any]:
    """Return statistics by which readers can skip a part, with only those bounds that JSON represents exactly."""
    stats = {name: bounds for name, bounds in part.stats.items() if name in schema.names}
    least = _format_bounds(((name, bounds[0]) for name, bounds in stats.items()), schema)
    greatest = _format_bounds(((name, bounds[1]) for name, bounds in stats.items()), schema)
    nulls = {name: bounds[2] for name, bounds in stats.items()}
    return {
        "numRecords": part.rows,
        "minValues": least,
        "maxValues": greatest,
        "nullCount": nulls,
        "tightBounds": is_whole,
    }


def _format_bounds(values: Iterable[tuple[str, Any]], schema: CollectionSchema) -> Mapping[str, Any]:
    """Return bounds by column in the form of Delta's statistics."""
    bounds: dict[str, Any] = {}
    for name, value in values:
        kind = schema.arrow.field(name).type
        if value is None:
            continue
        if pt.is_integer(kind) or pt.is_string(kind) or pt.is_large_string(kind):
            bounds[name] = value
        elif pt.is_date32(kind) and -719_162 <= value <= 2_932_896:  # The years 1 to 9999.
            bounds[name] = (datetime.date(1970, 1, 1) + datetime.timedelta(days=value)).isoformat()
    return bounds


_TEXTS = pa.map_(pa.string(), pa.string())
_VECTOR = pa.struct(
    [
        ("storageType", pa.string()),
        ("pathOrInlineDv", pa.string()),
        ("offset", pa.int32()),
        ("sizeInBytes", pa.int32()),
        ("cardinality", pa.int64()),
    ]
)
_ADD = pa.struct(
    [
        ("path", pa.string()),
        ("partitionValues", _TEXTS),
        ("size", pa.int64()),
        ("modificationTime", pa.int64()),
        ("dataChange", pa.bool_()),
        ("stats", pa.string()),
        ("deletionVector", _VECTOR),
    ]
)
_METADATA = pa.struct(
    [
        ("id", pa.string()),
        ("name", pa.string()),
        ("format", pa.struct([("provider", pa.string()), ("options", _TEXTS)])),
        ("schemaString", pa.string()),
        ("partitionColumns", pa.list_(pa.string())),
        ("configuration", _TEXTS),
        ("createdTime", pa.int64()),
    ]
)
_PROTOCOL = pa.struct(
    [
        ("minReaderVersion", pa.int32()),
        ("minWriterVersion", pa.int32()),
        ("readerFeatures", pa.list_(pa.string())),
        ("writerFeatures", pa.list_(pa.string())),
    ]
)
_CHECKPOINT = pa.schema([("protocol", _PROTOCOL), ("metaData", _METADATA), ("add", _ADD)])
