"""Makes the pieces of an Iceberg table's metadata: its schema, its snapshot, and the manifests of its files.

Row lineage: the ids of the rows of a file begin at the number of its part times 2**32. So a row keeps its id as long as
its file is in the table. A file counts as changed when more of its rows are left out. A reader of changed rows may read
a row twice, but misses none.

Source: the Iceberg table spec: "Manifests", "Manifest Lists", "Row Lineage"; "Column Projection" for ids and the
mapping of names; the Puffin spec, "deletion-vector-v1".
"""

import hashlib
import io
import json
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from persist.codecs.part.file_writer import make_file_schema
from persist.codecs.part.part import Part
from persist.codecs.types.arrow_types import list_inner_fields
from persist.codecs.types.schema import CollectionSchema
from persist.core.log import kinds
from persist.core.log.fields import Deletes
from persist.core.log.keys import make_manifest_key, parse_vectors_size
from persist.core.state_rules.contents import CollectionState, Publication, PublishedFile, resolve_numbers
from persist.core.state_rules.schemas import load_schema_version
from persist.engine.location.collection_handle import CollectionHandle
from persist.services.publish.bitmaps import frame_vector
from persist.services.publish.planning import COMMON_NAMES, read_format_version

HAS = (
    "Iceberg has bool, int8 to int64, float32, float64, decimal128, strings, binary, dates, times and timestamps in "
    "microseconds, and in nanoseconds with format_version=3, and lists, maps and structs of those"
)
FILE_PATH, POSITION = 2147483546, 2147483545  # Reserved field ids of position deletes.
ROW_POSITION = 2147483645  # The reserved field id of a row's place in its file.
FIELD_ID = b"PARQUET:field_id"
NAMES = COMMON_NAMES | {
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.time64("us"): "time",
    pa.timestamp("us"): "timestamp",
}


def to_iceberg_type(kind: pa.DataType, version: int = 3) -> Any:
    """Return the Iceberg type of a column, with ids of its inner fields; None without an equivalent type."""
    if kind in NAMES:
        return NAMES[kind]
    if pt.is_decimal128(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    if pt.is_fixed_size_binary(kind):
        return f"fixed[{kind.byte_width}]"
    if pt.is_timestamp(kind):
        name = "timestamp" if kind.tz is None else "timestamptz"
        return {"us": name, "ns": f"{name}_ns" if version > 2 else None}.get(kind.unit)
    if not pt.is_nested(kind):
        return None
    inside = [
        (_get_field_id(child), child.name, to_iceberg_type(child.type, version)) for child in list_inner_fields(kind)
    ]
    if any(written is None for _, _, written in inside):
        return None
    if pt.is_struct(kind):
        return {"type": "struct", "fields": [_make_field(*child) for child in inside]}
    (first_id, _, first), *_ = inside
    if pt.is_map(kind):
        (_, (second_id, _, second)) = inside
        ends = {"key-id": first_id, "key": first, "value-id": second_id, "value": second}
        return {"type": "map", **ends, "value-required": False}
    return {"type": "list", "element-id": first_id, "element": first, "element-required": False}


def _get_field_id(field: pa.Field) -> int:
    """Return the id of a column or inner field, -1 without one."""
    return int((field.metadata or {}).get(FIELD_ID, -1))


def _make_field(id_: int, name: str, written: Any) -> dict[str, Any]:
    """Return an optional field in the schema of an Iceberg table."""
    return {"id": id_, "name": name, "required": False, "type": written}


def make_table_metadata(
    contents: CollectionState, schema: CollectionSchema, location: str, version: int
) -> dict[str, Any]:
    """Return the metadata of a table without snapshots."""
    return {
        "format-version": version,
        **({"next-row-id": 0} if version > 2 else {}),
        "location": location,
        "last-sequence-number": 0,
        "last-column-id": max((id_ for id_, *_ in iterate_fields(schema)), default=0),
        "current-schema-id": schema.version,
        "schemas": [make_schema(schema)],
        "default-spec-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "last-partition-id": 999,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": {"persist.collection": contents.id, "gc.enabled": "false"},
        "refs": {},
        "snapshots": [],
        "snapshot-log": [],
        "metadata-log": [],
        "statistics": [],
        "partition-statistics": [],
    }


def make_snapshot(contents: CollectionState, publication: Publication, format_url: Any, now_ms: int) -> dict[str, Any]:
    """Return the snapshot of a table's present version."""
    parts = [contents.get_part(number) for number in publication.files]
    left_out = [file.deletes for file in publication.files.values() if file.deletes is not None]
    summary = {
        "operation": "overwrite",
        "total-data-files": str(len(parts)),
        "total-delete-files": str(len(left_out)),
        "total-records": str(sum(part.rows for part in parts)),
        "total-position-deletes": str(sum(deletes.rows for deletes in left_out)),
        "total-equality-deletes": "0",
        "persist.as_of": str(publication.as_of),
        "persist.collection": contents.id,
        **({} if publication.digest is None else {"persist.digest": publication.digest}),
    }
    return {
        "snapshot-id": compute_snapshot_id(publication.id, publication.version),
        "sequence-number": publication.version + 1,
        "timestamp-ms": now_ms,
        "manifest-list": format_url(publication.metadata[0]),
        "summary": summary,
        "schema-id": publication.schema,
        **(_make_row_range(contents, publication) if read_format_version(publication.options) > 2 else {}),
    }


def _make_row_range(contents: CollectionState, publication: Publication) -> dict[str, int]:
    """Return the range of row ids that a snapshot must name; no file has ids in it."""
    return {
        "first-row-id": compute_first_row_id(contents.next_number + publication.version),
        "added-rows": compute_first_row_id(1),
    }


def compute_first_row_id(number: int) -> int:
    """Return the id of the first row of a part."""
    return number << 32


def encode_puffin(vectors: Sequence[tuple[str, bytes, int]]) -> tuple[bytes, list[int]]:
    """Return a Puffin file of deletion vectors, and each one's start.

    `vectors`: the URL of the data file of each, its bytes, and how many rows it has.
    """
    magic, starts, blobs = b"PFA1", [], []
    data = bytearray(magic)
    for url, vector, rows in vectors:
        framed = frame_vector(vector)
        starts.append(len(data))
        blobs.append(
            {
                "type": "deletion-vector-v1",
                "fields": [ROW_POSITION],
                "snapshot-id": -1,
                "sequence-number": -1,
                "offset": len(data),
                "length": len(framed),
                "properties": {"referenced-data-file": url, "cardinality": str(rows)},
            }
        )
        data += framed
    footer = json.dumps({"blobs": blobs, "properties": {"created-by": "persist"}}).encode()
    data += magic + footer + struct.pack("<i", len(footer)) + bytes(4) + magic
    return bytes(data), starts


def compute_snapshot_id(table: str, version: int) -> int:
    """Return the snapshot id of a version, unique over tables and versions."""
    return int.from_bytes(hashlib.blake2b(f"{table} {version}".encode(), digest_size=8).digest(), "big") >> 1


def make_properties(contents: CollectionState, publication: Publication) -> dict[str, str]:
    """Return a table's properties: its owner, a ban on deleting its files, and the names of columns."""
    return {
        "persist.collection": contents.id,
        "persist.table": publication.id,
        "gc.enabled": "false",
        "schema.name-mapping.default": json.dumps(make_name_mapping(load_schema_version(contents, publication.schema))),
    }


def make_schema(schema: CollectionSchema) -> dict[str, Any]:
    """Return a table's schema."""
    written = {f.name: f for f in make_file_schema(schema)}
    fields = [
        _make_field(_get_field_id(written[name]), name, to_iceberg_type(written[name].type)) for name in schema.columns
    ]
    return {"type": "struct", "schema-id": schema.version, "identifier-field-ids": [], "fields": fields}


def make_name_mapping(schema: CollectionSchema) -> list[dict[str, Any]]:
    """Return the mapping of column names to field ids, for parts without ids."""

    def mapped(field: pa.Field) -> dict[str, Any]:
        inside = inner_names(field.type)
        return {"field-id": _get_field_id(field), "names": [field.name], **({"fields": inside} if inside else {})}

    def inner_names(kind: pa.DataType) -> list[dict[str, Any]]:
        """Return the mapping of a type's inner fields."""
        if not pt.is_nested(kind):
            return []
        named = ["key", "value"] if pt.is_map(kind) else None if pt.is_struct(kind) else ["element"]
        inner = list_inner_fields(kind)
        return [mapped(f.with_name(named[at] if named else f.name)) for at, f in enumerate(inner)]

    return [mapped(field) for field in make_file_schema(schema)]


def iterate_fields(schema: CollectionSchema) -> Iterator[tuple[int, pa.DataType]]:
    """Yield the id and type of each column and inner field."""

    def below(fields: Iterable[pa.Field]) -> Iterator[tuple[int, pa.DataType]]:
        for field in fields:
            yield _get_field_id(field), field.type
            yield from below(list_inner_fields(field.type) if pt.is_nested(field.type) else ())

    return below(field for field in make_file_schema(schema) if field.name in schema.names)


class Manifests:
    """Writes the manifests of a version that is about to be recorded."""

    def __init__(
        self, handle: CollectionHandle, contents: CollectionState, step: kinds.Publish, format_url: Any
    ) -> None:
        from pyiceberg.partitioning import PartitionSpec
        from pyiceberg.schema import Schema

        self._handle = handle
        self._step = step
        self._url_of = format_url
        self._columns = load_schema_version(contents, step.schema)
        self._schema = Schema.model_validate(make_schema(self._columns))
        self._spec = PartitionSpec()
        publication = contents.published.get(step.table)
        old_files = publication.files if publication is not None else {}
        files = {n: file for n, file in old_files.items() if n not in step.removed}
        numbers = resolve_numbers(tuple(file.number for file in step.files), contents.next_number)
        came = zip(numbers, step.files, strict=True)
        files |= {number: PublishedFile(step.version, file.deletes) for number, file in came}
        new_parts = dict(enumerate(step.parts, contents.next_number))
        self._files = [(n, new_parts[n] if n in new_parts else contents.get_part(n), file) for n, file in files.items()]
        self._version = read_format_version(step.options)

    def store(self) -> tuple[str, ...]:
        """Store the manifests and their list; return the keys."""
        from pyiceberg.manifest import ManifestContent

        id_ = compute_snapshot_id(self._step.id, self._step.version)
        described = DataFiles(self._columns, self._url_of, self._version)
        keys, manifests = [], []
        left_out = [(number, part, file) for number, part, file in self._files if file.deletes is not None]
        kinds_of_files: list[tuple[Any, Any, Callable[[int, Part, Deletes | None], Any]]] = [
            (ManifestContent.DATA, self._files, described.data_file),
            (ManifestContent.DELETES, left_out, described.delete_file),
        ]
        for content, files, describe in kinds_of_files:
            if not files:
                continue
            output = _Output(self._url_of(key := self._key()))
            with make_manifest_writer(content, self._version, self._spec, self._schema, output, id_) as writer:
                for number, part, file in files:
                    writer.add_entry(self._make_manifest_entry(file, describe(number, part, file.deletes)))
            self._handle.engine.blob.set(key, output.value)
            keys.append(key)
            manifests.append(writer.to_manifest_file())
        output = _Output(self._url_of(key := self._key()))
        with make_list_writer(self._version, output, id_, self._step.version + 1) as listing:
            listing.add_manifests(manifests)
        self._handle.engine.blob.set(key, output.value)
        return (key, *keys)

    def _key(self) -> str:
        """Return a new key for a manifest or a manifest list."""
        return make_manifest_key(self._handle.id, self._handle.engine.follower.find_next_seqno())

    def _make_manifest_entry(self, file: PublishedFile, described: Any) -> Any:
        """Return the manifest entry of a file: as added by this version, or as existing before."""
        from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus

        is_new = file.version == self._step.version
        sequence = file.version + 1 if described.content or self._version > 2 else 1
        return ManifestEntry.from_args(
            _table_format_version=self._version,
            status=ManifestEntryStatus.ADDED if is_new else ManifestEntryStatus.EXISTING,
            snapshot_id=compute_snapshot_id(self._step.id, file.version),
            sequence_number=sequence,
            file_sequence_number=sequence,
            data_file=described,
        )


def make_manifest_writer(content: Any, version: int, spec: Any, schema: Any, output: "_Output", snapshot: int) -> Any:
    """Return a manifest writer for any content and format version.

    pyiceberg's writers support data files up to version 2.
    """
    from pyiceberg.avro.file import AvroOutputFile
    from pyiceberg.manifest import ManifestEntry, ManifestWriterV2

    class Writer(ManifestWriterV2):  # type: ignore[misc]
        def content(self) -> Any:
            return content

        @property
        def version(self) -> Any:
            return version

        @property
        def _meta(self) -> dict[str, str]:
            return {**super()._meta, "content": content.name.lower()}

        def new_writer(self) -> Any:
            entry = self._with_partition(version)
            return AvroOutputFile[ManifestEntry](self._output_file, entry, "manifest_entry", entry, self._meta)

    return Writer(spec, schema, output, snapshot, "deflate")


def make_list_writer(version: int, output: "_Output", snapshot: int, sequence: int) -> Any:
    """Return a manifest list writer for any format version. pyiceberg's writers support up to version 2."""
    from pyiceberg.avro.file import AvroOutputFile
    from pyiceberg.manifest import MANIFEST_LIST_FILE_SCHEMAS, ManifestContent, ManifestFile, ManifestListWriterV2

    class Listing(ManifestListWriterV2):  # type: ignore[misc]
        def __enter__(self) -> Any:
            schema, meta = MANIFEST_LIST_FILE_SCHEMAS[version], {**self._meta, "format-version": str(version)}
            self._writer = AvroOutputFile[ManifestFile](self._output_file, schema, "manifest_file", schema, meta)
            self._writer.__enter__()
            return self

        def prepare_manifest(self, manifest: Any) -> Any:
            """Return the entry of a manifest in the list."""
            prepared = super().prepare_manifest(manifest)
            if version == 2:
                return prepared
            # Readers take the ids of data files only if their manifest has an id.
            whole = ManifestFile.from_args(_table_format_version=3)
            for at in range(len(prepared)):
                whole[at] = prepared[at]
            whole[len(prepared)] = 0 if prepared.content == ManifestContent.DATA else None
            return whole

    return Listing(output, snapshot, None, sequence, "deflate")


class DataFiles:
    """Describes a table's files for manifests, for one schema and version of the format."""

    def __init__(self, columns: CollectionSchema, format_url: Callable[[str], str], version: int) -> None:
        self._columns = columns
        self._url_of = format_url
        self._version = version

    def data_file(self, number: int, part: Part, _: Deletes | None = None) -> Any:
        """Return the description of a part."""
        low, high, nulls = self._compute_bounds(part)
        lineage = {"first_row_id": compute_first_row_id(number)} if self._version > 2 else {}
        bounds = {"lower_bounds": low, "upper_bounds": high, "null_value_counts": nulls}
        return self._make_data_file(0, part.blob, part.rows, part.bytes, **bounds, **lineage)

    def delete_file(self, number: int, part: Part, deletes: Deletes | None) -> Any:
        """Return the description of the file with a part's omitted rows."""
        assert deletes is not None
        data_file, size = self._url_of(part.blob), parse_vectors_size(deletes.blob)
        if size is None:
            bound = {FILE_PATH: data_file.encode()}
            return self._make_data_file(
                1, deletes.blob, deletes.rows, deletes.bytes, lower_bounds=bound, upper_bounds=bound
            )
        place = {"content_offset": deletes.start, "content_size_in_bytes": deletes.bytes + 8}
        return self._make_data_file(1, deletes.blob, deletes.rows, size, referenced_data_file=data_file, **place)

    def _make_data_file(self, content: int, blob: str, rows: int, size: int, **more_fields: Any) -> Any:
        """Return pyiceberg's description of a file."""
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
        from pyiceberg.typedef import Record

        described = DataFile.from_args(
            _table_format_version=self._version,
            content=DataFileContent(content),
            file_path=self._url_of(blob),
            file_format=FileFormat.PUFFIN if "content_offset" in more_fields else FileFormat.PARQUET,
            partition=Record(),
            record_count=rows,
            file_size_in_bytes=size,
            **more_fields,
        )
        described.spec_id = 0
        return described

    def _compute_bounds(self, part: Part) -> tuple[dict[int, bytes], dict[int, bytes], dict[int, int]]:
        """Return each column's least and greatest value, encoded, and number of NULLs."""
        low, high, nulls = dict[int, bytes](), dict[int, bytes](), dict[int, int]()
        for field in make_file_schema(self._columns):
            stats = part.stats.get(field.name)
            if stats is None or field.name not in self._columns.names:
                continue
            nulls[_get_field_id(field)] = stats[2]
            for bounds, value in ((low, stats[0]), (high, stats[1])):
                written = _encode_bound(value, self._columns.arrow.field(field.name).type)
                if written is not None:
                    bounds[_get_field_id(field)] = written
        return low, high, nulls


def _encode_bound(value: Any, kind: pa.DataType) -> bytes | None:
    """Return a value, encoded as a bound of Iceberg; None if Iceberg cannot have it."""
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
    """A file of pyiceberg in memory, which is stored like other blobs."""

    def __init__(self, location: str) -> None:
        self.location = location
        self.value = b""

    def __len__(self) -> int:
        return len(self.value)

    def create(self, overwrite: bool = False) -> "_Stream":
        return _Stream(self)


class _Stream(io.BytesIO):
    """A stream for pyiceberg; at `close`, the `_Output` gets its bytes."""

    def __init__(self, output: _Output) -> None:
        super().__init__()
        self._output = output

    def close(self) -> None:
        if not self.closed:
            self._output.value = self.getvalue()
        super().close()
