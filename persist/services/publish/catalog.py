"""A location as an Iceberg catalog: each collection and view is a table, and loading it publishes its newest sealed
time.

    orders            the table "orders" of the namespace "main"
    shop.eu.orders    the table "orders" of the namespace ["shop", "eu"]
    orders@17         the same table as of the time 17, or of a moment or a tag

A load returns the metadata of the newest version. Apart from the newest snapshot, it has *pins*: a snapshot for each
tag, which is also a tag of Iceberg, and for each requested time. A pin is a publication of its own
(`CollectionState.pins`), so its files stay when later versions are published. A later load removes a pin whose tag is
gone, or whose time was requested more than `PIN_S` ago. Snapshots have their time in the property `persist.as_of`.

The timestamp of a snapshot is the moment of its time. A time that is not a moment counts as milliseconds after 1970.
DuckDB reads the newest snapshot that is older than its transaction, which began before the load that publishes. So a
snapshot whose moment is not over gets a timestamp one minute before its publication, and each pin an older one than the
newest version.

Invariants: catalogs keep nothing outside of the log, so one location may have many; a catalog publishes a table at most
once in an interval, and returns the last version in between.

Source: the Iceberg REST catalog's specification; the Iceberg table spec, version 2, "Snapshot References".
"""

import hashlib
import json
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from persist.core.antichain import to_antichain
from persist.core.errors import AsOfCompacted, AsOfNotSealed, InvalidUsage, PersistError, Superseded
from persist.core.state_rules.contents import CollectionState, Publication, get_last_sealed
from persist.core.state_rules.schemas import load_schema_version
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.location.engine import Engine
from persist.engine.read.results.result import require_package
from persist.services.publish.iceberg import IcebergTable, get_moment_ms
from persist.services.publish.iceberg_files import (
    DataFiles,
    compute_snapshot_id,
    make_schema,
    make_snapshot,
    make_table_metadata,
)
from persist.services.publish.planning import FORMAT_VERSION, read_format_version
from persist.services.publish.publication import pin, publish, unpin

MAIN = "main"  # The namespace of names without a dot, and the branch of the newest version.
PINNING_S = 10.0  # One load pins tags for so long.
PIN_S = 24 * 3600.0  # A requested time stays readable for so long.
PINS_MAX = 64  # Of one table.
REQUESTED_MAX = 32  # Of the pins, the times that readers requested. The others are for tags.
RESIDUAL_BYTES_MAX = 32 << 20  # A plan repeats the filter for each file.
LOCK_S = 10.0  # A load waits for another load of the same table for so long.
CHECKED_MAX = 1000  # So many tables of a namespace are checked for columns that Iceberg has not.

Namespace = tuple[str, ...]
# What pyiceberg raises for expressions that are malformed, too deep, or have values that do not fit a column.
MALFORMED = (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError)


class NotListed(LookupError):
    """The catalog lacks this namespace or table."""


class CatalogReader(Protocol):
    """The methods of a client that a catalog needs."""

    engine: Engine

    def load(self, name: str) -> Any:
        """Return the collection of that name."""

    def collections(self) -> Sequence[str]:
        """Return the names of all collections."""


@dataclass(frozen=True)
class LoadedTable:
    """The metadata of a table, the place where it is stored, and an ETag that changes with it."""

    url: str | None
    metadata: dict[str, Any]
    tag: str


@dataclass
class _TableCache:
    """The last publication and the metadata of one table, cached by a catalog."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    published_s: float = float("-inf")
    metadata: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)


class IcebergCatalog:
    """The tables of a location; safe to use from many threads."""

    def __init__(self, client: CatalogReader, publish_interval_s: float, format_version: int = 2) -> None:
        """Make a catalog for a client that may write, because a load commits what it publishes.

        `format_version`: the least format version of the tables; a table that was published with a newer one keeps it.
        """
        require_package("pyiceberg[pyarrow]>=0.12")
        self._client = client
        self._interval_s = publish_interval_s
        self._options = {FORMAT_VERSION: str(format_version)} if format_version > 2 else {}
        self._clock = client.engine.clock
        self._lock = threading.Lock()
        self._slots: dict[str, _TableCache] = {}

    @property
    def url(self) -> str:
        """The URL of the location."""
        return self._client.engine.blob.url

    def namespaces(self, parent: Namespace = ()) -> list[Namespace]:
        """Return the child namespaces of a namespace, sorted. Raises NotListed: the parent does not exist."""
        spaces = {space[:depth] for space, _ in self._list_identifiers() for depth in range(1, len(space) + 1)}
        spaces.add((MAIN,))
        if parent and parent not in spaces:
            raise NotListed(f"there is no namespace {'.'.join(parent)[:200]!r}")
        depth = len(parent)
        return sorted(space for space in spaces if len(space) == depth + 1 and space[:depth] == parent)

    def tables(self, space: Namespace) -> list[str]:
        """Return the table names of a namespace, sorted."""
        self.namespaces(space)
        return sorted(table for above, table in self._list_identifiers() if above == space)

    def properties(self, space: Namespace) -> dict[str, str]:
        """Return the properties of a namespace: the location, and its unpublishable tables.

        Each table that cannot be published has a property `persist.unavailable.NAME` with the reason. At most
        `CHECKED_MAX` tables are checked.
        """
        properties = {"location": self.url}
        self.namespaces(space)
        identifiers = {name: to_identifier(name) for name in self._client.collections()}
        names = {table: name for name, (above, table) in identifiers.items() if above == space}
        for table in sorted(names)[:CHECKED_MAX]:
            try:
                self._check(self._client.load(names[table]).handle)
            except PersistError as error:
                properties[f"persist.unavailable.{table}"] = str(error)
        return properties

    def check(self, space: Namespace, table: str) -> None:
        """Raise NotListed if a table does not exist. Cost: one GET."""
        self._get_collection_name(space, self._split_table(space, table)[0])

    def load(self, space: Namespace, table: str) -> LoadedTable:
        """Publish a table's newest sealed time if necessary; return its metadata.

        Raises:
            NotListed: there is no such table.
            InvalidUsage: the table cannot be published, or the requested time is not a time.
            AsOfCompacted, AsOfNotSealed: the requested time cannot be read.
        """
        table, as_of = self._split_table(space, table)
        name = self._get_collection_name(space, table)
        with self._lock:
            slot = self._slots.setdefault(name, _TableCache())
        handle: CollectionHandle = self._client.load(name).handle
        self._check(handle)
        if handle.contents().upper == 0:
            return _make_empty_table(handle, handle.get_known_state(), read_format_version(self._options))
        requested = None if as_of is None else handle.as_time("as_of", as_of)
        if not slot.lock.acquire(timeout=LOCK_S):  # Or else loads of one table would take all threads of a server.
            raise Superseded(f"{handle.name!r} is being published: load it again")
        try:
            contents = self._publish(slot, handle, handle.contents(), requested)
            contents = self._pin(handle, contents, requested)
            return self._describe_table(slot, handle, contents, requested)
        finally:
            slot.lock.release()

    def plan(self, space: Namespace, table: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the files that a scan must read.

        `request`: a `PlanTableScanRequest` of the protocol, decoded from JSON.
        """
        from pydantic import ValidationError
        from pyiceberg.catalog.rest.scan_planning import PlanTableScanRequest
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.expressions.visitors import _InclusiveMetricsEvaluator
        from pyiceberg.schema import Schema

        try:
            asked = PlanTableScanRequest.model_validate(request)
        except (ValidationError, *MALFORMED) as error:
            raise InvalidUsage(f"the request for a plan is malformed: {error}") from error
        if asked.start_snapshot_id is not None or asked.end_snapshot_id is not None:
            raise InvalidUsage("plans of the changes between two snapshots are not served: read one snapshot")
        table, as_of = self._split_table(space, table)
        handle: CollectionHandle = self._client.load(self._get_collection_name(space, table)).handle
        contents = handle.contents()
        chosen = contents.published.get("iceberg")
        if asked.snapshot_id is not None:
            chosen = _find_publication(contents, asked.snapshot_id)
        elif chosen is not None and as_of is not None and (time_ := handle.as_time("as_of", as_of)) != chosen.as_of:
            chosen = contents.pins.get(time_)
        elif chosen is None and contents.upper == 0:
            return {"status": "completed", "delete-files": [], "file-scan-tasks": []}
        if chosen is None:
            raise InvalidUsage("the table has no such snapshot any more: load the table again")
        schema = load_schema_version(contents, chosen.schema)
        filter = AlwaysTrue() if asked.filter is None else asked.filter
        files = DataFiles(schema, IcebergTable(handle, {}).format_url, read_format_version(chosen.options))
        try:
            matches = _InclusiveMetricsEvaluator(
                Schema.model_validate(make_schema(schema)), filter, asked.case_sensitive
            ).eval
            described = [(number, contents.get_part(number), file) for number, file in chosen.files.items()]
            scanned = [(*file, entry) for file in described if matches(entry := files.data_file(*file[:2]))]
        except MALFORMED as error:
            raise InvalidUsage(f"the filter does not fit the table: {error}") from error
        deletes: list[dict[str, Any]] = []
        tasks: list[dict[str, Any]] = []
        if asked.filter is not None and len(json.dumps(request["filter"])) * len(scanned) > RESIDUAL_BYTES_MAX:
            raise InvalidUsage("the filter is too long for so many files: plan the scan in the client")
        for number, part, file, entry in scanned:
            task: dict[str, Any] = {"data-file": _encode_content_file(entry, "data")}
            if asked.filter is not None:
                task["residual-filter"] = request["filter"]
            if file.deletes is not None:
                task["delete-file-references"] = [len(deletes)]
                deletes.append(_encode_content_file(files.delete_file(number, part, file.deletes), "position-deletes"))
            tasks.append(task)
        return {"status": "completed", "delete-files": deletes, "file-scan-tasks": tasks}

    def _publish(
        self, slot: _TableCache, handle: CollectionHandle, contents: CollectionState, requested: int | None
    ) -> CollectionState:
        """Publish the newest sealed time, unless the request needs no newer one."""
        known = contents.published.get("iceberg")
        is_current = known is not None and known.as_of >= get_last_sealed(contents)
        is_current = is_current and known is not None and known.schema == handle.load_schema(contents, None).version
        keeps = known is not None and "identifier" in known.options  # Catalogs of pyiceberg take version 2 alone.
        raised = {} if keeps else self._options
        if known is not None and read_format_version(known.options) < read_format_version(raised):
            is_current = False
        now_s = time.monotonic()
        is_behind = known is None or (requested is not None and known.as_of < requested <= get_last_sealed(contents))
        if is_current or (not is_behind and now_s - slot.published_s < self._interval_s):
            return contents
        options = {"deletes": "vectors"} if known is None else dict(known.options)
        options |= raised
        publish(handle, IcebergTable(handle, options), None, options=options)
        slot.published_s = now_s
        return handle.get_known_state()

    def _pin(self, handle: CollectionHandle, contents: CollectionState, requested: int | None) -> CollectionState:
        """Pin tagged and requested times, and drop unneeded pins; return the contents."""
        newest, now_ms = _get_newest(contents).as_of, self._clock.wall_ms()
        tagged = {time for time in contents.tags.values() if time < newest}
        for time_, publication in contents.pins.items():
            until_ms = int(publication.options.get("until_ms", "0"))
            if time_ not in tagged and time_ != requested and until_ms < now_ms:
                unpin(handle, time_)
        pinned = handle.get_known_state().pins.keys()
        missing = sorted(tagged - pinned, reverse=True)[: max(0, PINS_MAX - len(pinned))]
        until_s = time.monotonic() + PINNING_S  # The next loads pin the others.
        for time_ in missing:
            if time.monotonic() > until_s:
                break
            try:
                pin(handle, time_, self._get_version_option(handle.get_known_state()))
            except AsOfCompacted:  # The tag was deleted meanwhile.
                continue
        if requested is not None and requested != newest and requested not in handle.get_known_state().pins:
            if requested > newest:
                raise AsOfNotSealed(requested, to_antichain(contents.upper), 0.0)
            pins = handle.get_known_state().pins.values()
            requests = sum("until_ms" in pinned_.options for pinned_ in pins)
            if len(pins) >= PINS_MAX or requests >= REQUESTED_MAX:
                raise InvalidUsage(
                    f"{requests} of {REQUESTED_MAX} requested times of {handle.name!r}, and {len(pins)} of {PINS_MAX} "
                    "times in all, are pinned already: read one of these"
                )
            until = {"until_ms": str(now_ms + int(PIN_S * 1000))}
            pin(handle, requested, {**until, **self._get_version_option(handle.get_known_state())})
        return handle.get_known_state()

    def _describe_table(
        self, slot: _TableCache, handle: CollectionHandle, contents: CollectionState, requested: int | None
    ) -> LoadedTable:
        """Return a table's metadata, from the cache or made now."""
        table = IcebergTable(handle, {})
        known = _get_newest(contents)
        version = (known.id, known.version)  # The URL comes again if the table is published anew after an erasure.
        if version not in slot.metadata:
            slot.metadata = {version: table.ensure_metadata(contents, known)}
        metadata = dict(slot.metadata[version])
        current = metadata["snapshots"][0]
        end_ms = current["timestamp-ms"]
        pins = {at: _make_pin_snapshot(handle, contents, known_, table, end_ms) for at, known_ in contents.pins.items()}
        newest = known.as_of if requested is None else requested
        by_time = {at: snapshot for at, snapshot in {**pins, known.as_of: current}.items() if at <= newest}
        snapshots = [*by_time.values()]  # In order of time. Some readers take the last one, whatever is said elsewhere.
        versions = {
            snapshot["schema-id"]: load_schema_version(contents, snapshot["schema-id"]) for snapshot in snapshots
        }
        if newest not in by_time:
            raise Superseded(f"the time {newest} of {handle.name!r} is not pinned any more: load it again")
        chosen = by_time[newest]
        tags = {name: by_time[at] for name, at in contents.tags.items() if at in by_time and name != MAIN}
        metadata |= {
            "schemas": [make_schema(schema) for schema in versions.values()],
            "current-schema-id": chosen["schema-id"],
            "current-snapshot-id": chosen["snapshot-id"],
            "snapshots": snapshots,
            "refs": {MAIN: {"snapshot-id": chosen["snapshot-id"], "type": "branch"}}
            | {name: {"snapshot-id": s["snapshot-id"], "type": "tag"} for name, s in tags.items()},
            "snapshot-log": [{"snapshot-id": s["snapshot-id"], "timestamp-ms": s["timestamp-ms"]} for s in snapshots],
        }
        return LoadedTable(table.url(contents, known) if requested is None else None, metadata, _compute_tag(metadata))

    def _check(self, handle: CollectionHandle) -> None:
        """Raise InvalidUsage if a collection cannot be published as an Iceberg table."""
        contents = handle.get_known_state()
        IcebergTable(handle, {}).check(handle.load_schema(contents, None), self._get_version_option(contents))

    def _get_version_option(self, contents: CollectionState) -> dict[str, str]:
        """Return the option of the format version: the greater one of the catalog's and the published table's."""
        known = contents.published.get("iceberg")
        version = max(read_format_version(self._options), read_format_version({} if known is None else known.options))
        return {FORMAT_VERSION: str(version)} if version > 2 else {}

    def _has(self, space: Namespace, table: str) -> bool:
        """Return whether the location has a table of that name."""
        return (space, table) in {*self._list_identifiers()}

    def _split_table(self, space: Namespace, table: str) -> tuple[str, str | int | None]:
        """Return a table's name, and the time after its `@`, if any."""
        name, at, as_of = table.rpartition("@")
        if not at or self._has(space, table):
            return table, None
        return name, int(as_of) if as_of.isdecimal() and len(as_of) < 20 else as_of

    def _get_collection_name(self, space: Namespace, table: str) -> str:
        """Return the collection behind a table identifier."""
        for name in (table, ".".join((*space, table))):
            if to_identifier(name) == (space, table) and name in {*self._client.collections()}:
                return name
        raise NotListed(f"there is no table {'.'.join((*space, table))[:200]!r}")

    def _list_identifiers(self) -> Iterator[tuple[Namespace, str]]:
        """Yield the namespace and table name of each collection."""
        return map(to_identifier, self._client.collections())


def to_identifier(name: str) -> tuple[Namespace, str]:
    """Return a collection's namespace and table name. They are unique.

    A name whose parts Iceberg cannot distinguish, such as "a..b", as a whole names a table of "main".
    """
    *space, table = name.split(".")
    if not space or not all((*space, table)) or space == [MAIN]:
        return (MAIN,), name
    return tuple(space), table


def _get_newest(contents: CollectionState) -> Publication:
    """Return the publication of the newest time."""
    known = contents.published.get("iceberg")
    if known is None:
        raise Superseded(f"the iceberg table of {contents.name!r} was given up meanwhile: load it again")
    return known


def _find_publication(contents: CollectionState, snapshot: int) -> Publication | None:
    """Return the publication of a snapshot id, or None."""
    publications = (table for name, table in contents.published.items() if name != "delta")
    return next((table for table in publications if compute_snapshot_id(table.id, table.version) == snapshot), None)


def _make_pin_snapshot(
    handle: CollectionHandle, contents: CollectionState, publication: Publication, table: IcebergTable, end_ms: int
) -> dict[str, Any]:
    """Return the snapshot of a pinned time."""
    moment = get_moment_ms(handle, publication.as_of)
    at_ms = publication.as_of if moment is None else moment
    snapshot = make_snapshot(contents, publication, table.format_url, min(at_ms, end_ms - 1))
    # Its files name the rows that they begin with, so that it takes no range of new ones.
    return snapshot | ({"first-row-id": 0, "added-rows": 0} if "added-rows" in snapshot else {})


def _make_empty_table(handle: CollectionHandle, contents: CollectionState, version: int) -> LoadedTable:
    """Return a table without snapshots, for a collection without sealed times."""
    schema, location = handle.load_schema(contents, None), IcebergTable(handle, {}).location(contents)
    metadata = make_table_metadata(contents, schema, location, version)
    metadata |= {"table-uuid": str(uuid.UUID(contents.id)), "last-updated-ms": 0}
    return LoadedTable(None, metadata, _compute_tag(metadata))


def _compute_tag(metadata: Mapping[str, Any]) -> str:
    """Return an ETag: a hash of the metadata of a table."""
    return hashlib.blake2b(json.dumps(metadata).encode(), digest_size=12).hexdigest()


def _encode_content_file(described: Any, content: str) -> dict[str, Any]:
    """Return a file in the REST protocol's form, without statistics."""
    names = ("first_row_id", "referenced_data_file", "content_offset", "content_size_in_bytes")
    values = (described[at] for at in range(16, len(described)))  # They came with version 3.
    newer = dict(zip((name.replace("_", "-") for name in names), values, strict=False))
    return {
        "spec-id": 0,
        "partition": [],
        "content": content,
        "file-path": described.file_path,
        "file-format": described.file_format.lower(),
        "file-size-in-bytes": described.file_size_in_bytes,
        "record-count": described.record_count,
        **{name: value for name, value in newer.items() if value is not None},
    }
