"""Publishes a version of a table: plans it, stores its files, records it in the log, and then shows it to readers.

    1  the present version is shown, if the table does not show it: a process may have died between 3 and 4
    2  new parts, and the rows that are left out of others, are stored under names that nothing refers to
    3  a `Publish` record names them: from here on they are kept, also by compaction and garbage collection
    4  the table shows the version: its log, or its metadata, gets a name by which readers find it

A process that dies before 3 has changed nothing; its stored objects are garbage. Between 3 and 4, readers see the
previous version, which is kept until another version is recorded. If two publish at once, the second finds the record
of the first, and plans again from there. No version is shown without a record that keeps its files.

Between 3 and 4, `unpublish` or an erasure may remove the table, and a new table may begin. So after a client has shown
a version, it checks the log, and deletes the visible files of removed tables. If it dies before, the next client that
finds such a file deletes it.

Clients that write to the location keep tables current, in the background; so does `Client.maintain`. A table has a
schedule: a version after each seal, with each keyframe, or at an interval. A client publishes due tables during its
upkeep of a collection. If several clients do so at once, one makes the version, and the others find that it exists. The
age of a version is that of its visible file, as the store dates it.
"""

import re
import uuid
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, get_args

import msgspec

from persist.blob.errors import Indeterminate, PersistError
from persist.blob.protocol import Blob, delete_all
from persist.codecs.part.part import Part
from persist.codecs.types.schema import CollectionSchema
from persist.core.closing import note_on_error
from persist.core.errors import Conflict, HoldMoved, InvalidUsage, Superseded, UploadExpired
from persist.core.log import kinds
from persist.core.log.fields import PIN_PREFIX, Deletes, Table, TableFile
from persist.core.log.keys import get_table_root, is_table_key
from persist.core.names import make_published_hold_name
from persist.core.rendering import Shown, format_count
from persist.core.state_rules.collection_rules import ExpectErasures
from persist.core.state_rules.contents import CollectionState, Publication, get_last_sealed
from persist.core.state_rules.publications import list_unused_blobs
from persist.core.timeline import Moment
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.location.engine import Engine
from persist.engine.location.opening import open_handle
from persist.engine.read.results.result import require_package
from persist.engine.write.operations import Step
from persist.engine.write.retrying import commit_with_retry
from persist.services.publish.planning import (
    FORMAT_VERSION,
    LEFT_OUT_SHARE,
    REPLACES,
    Plan,
    PlannedFile,
    Planner,
    check_version,
)

SHOWN_MAX = 8  # Each attempt finds a file of an abandoned table.


@dataclass(frozen=True)
class Published(Shown):
    """A version of a published table.

    Attributes:
        as_of: the time of its contents.
        files, rows: how many it has.
        digest: of the rows, if it was requested; the same as `Snapshot.digest`.
        is_new: whether this call has made it.
    """

    collection: str
    table: str
    version: int
    as_of: int
    url: str
    files: int
    rows: int
    digest: str | None = None
    is_new: bool = True

    def __str__(self) -> str:
        size = f"{format_count(self.files, 'file')}, {format_count(self.rows, 'row')}"
        return (
            f"{self.table} table of {self.collection!r}, version {self.version} as of {self.as_of}: {size}: {self.url}"
        )


class TableFormat(Protocol):
    """The operations that each table format (Delta, Iceberg) implements."""

    name: str  # Of the table: that of the format, or of a pinned time.

    def check(self, schema: CollectionSchema, options: Mapping[str, str]) -> None:
        """Raise InvalidUsage if a table of the format cannot have these columns or options."""

    def store_deletes(
        self, pieces: Sequence[tuple[PlannedFile, Deletes | None]], is_anew: bool, options: Mapping[str, str]
    ) -> list[Deletes | None]:
        """Store the rows that are left out of files; return for each file the place where they are stored."""

    def store_metadata(self, contents: CollectionState, step: kinds.Publish) -> tuple[str, ...]:
        """Store a version's file lists in the format's own blobs; return their keys."""

    def show(self, contents: CollectionState, publication: Publication, *, is_new: bool) -> None:
        """Make the present version visible to readers. Idempotent.

        `is_new`: this client has just recorded the version, so it is probably not shown yet.
        """

    def mark(self, table: str) -> bytes:
        """Return the text, without spaces, that marks each visible file of the table."""

    def url(self, contents: CollectionState, publication: Publication) -> str:
        """Return the URL by which readers find the table."""

    def find_visible_since_s(self, publication: Publication) -> float | None:
        """Return when the present version became visible, by the store's clock, or None."""


def publish(
    handle: CollectionHandle,
    format: TableFormat,
    as_of: int | Moment | None = None,
    *,
    options: Mapping[str, str],
    digest: bool = False,
) -> Published:
    """Publish a collection as of a sealed time; see `Collection.publish`."""
    writer = handle.engine.writer("publish")
    contents, time = handle.wait_sealed(None if as_of is None else handle.as_time("as_of", as_of), 0.0)
    is_again = False

    def publish_version() -> Published:
        nonlocal contents, is_again
        contents, is_again = handle.contents() if is_again else contents, True
        publication = contents.published.get(format.name)
        attempt = Attempt(handle, format, {**_get_lasting_options(publication), **options})
        schema = handle.load_schema(contents, None)
        format.check(schema, attempt.options)
        check_version(publication, attempt.options)
        if publication is None:
            if not format.name.startswith(PIN_PREFIX):
                _check_free(handle, format.name)
        else:
            if not _show_version(handle, format, contents, publication, is_new=False):
                raise Superseded(f"the {format.name} table of {handle.name!r} was given up meanwhile")
            is_same = publication.schema == schema.version and publication.options == attempt.options
            if is_same and (publication.as_of == time or (as_of is None and publication.as_of > time)):
                return _make_published(format, contents, publication, is_new=False)
        # Some readers of a feed take the rows that a first version omits for existing ones.
        is_whole = options["deletes"] != "vectors" or (publication is None and "feed" in options)
        planner = Planner(handle, format.name, attempt.store, 0.0 if is_whole else LEFT_OUT_SHARE)
        try:
            plan = planner.plan_next_version(publication, time)
            if len(plan.contents.earlier) != len(contents.earlier):
                raise Superseded(f"{handle.name!r} has other columns by now: try again")  # These are not checked yet.
            source_digest = _compute_digest(handle, time) if digest else None
            step = attempt.make_step(publication, plan, source_digest)
            expected = ExpectErasures(handle.id, plan.erasures)
            writer.submit([expected, step, *_make_hold_steps(plan.contents, step)], {handle.id: handle.name}).result()
        except BaseException as error:
            if not isinstance(error, Indeterminate):  # Or else the record may be there.
                attempt.discard()
            raise
        contents = handle.get_known_state()
        publication = contents.published.get(format.name)
        if publication is None:
            raise Conflict(f"the {format.name} table of {handle.name!r} was given up as soon as it was published")
        what = f"version {publication.version} of the {format.name} table of {handle.name!r} is committed"
        with note_on_error(partial("{}, and not all readers find it yet: publish again.".format, what)):
            is_visible = _show_version(handle, format, contents, publication, is_new=True)
        if not is_visible:
            raise Superseded(f"the {format.name} table of {handle.name!r} was given up meanwhile")
        return _make_published(format, contents, publication, is_new=True)

    conflicts = (Superseded, UploadExpired, HoldMoved)
    return commit_with_retry(publish_version, action="publish", clock=handle.engine.clock, conflicts=conflicts)


def _show_version(
    handle: CollectionHandle, format: TableFormat, contents: CollectionState, publication: Publication, *, is_new: bool
) -> bool:
    """Make a version visible; return False if its table was removed meanwhile."""
    if format.name.startswith(PIN_PREFIX):
        return True  # The catalog shows it.
    for last in range(SHOWN_MAX):
        try:
            format.show(contents, publication, is_new=is_new)
        except InvalidUsage:
            if _load_present_id(handle, format) != publication.id:
                return False
            # Another client has shown, late, a version of an abandoned table. If not, the file is another program's.
            if last + 1 == SHOWN_MAX or not _delete_others(handle, format, publication.id):
                raise
        else:
            break
    if not is_new:
        return True
    present = _load_present_id(handle, format)
    if present != publication.id:
        _delete_others(handle, format, present)
    return present == publication.id


def _load_present_id(handle: CollectionHandle, format: TableFormat) -> str | None:
    """Return the id of the collection's present table, or None. Cost: one GET."""
    publication = handle.contents().published.get(format.name)
    return None if publication is None else publication.id


def _delete_others(handle: CollectionHandle, format: TableFormat, present: str | None) -> bool:
    """Delete visible files of a collection's other tables; return whether any existed."""
    blob = handle.engine.blob
    keys = [key for key in _list_visible_keys(blob, handle.id, format.name) if is_table_key(key, handle.id)]
    texts = {key: data.replace(b" ", b"") for key in keys if key.endswith(".json") and (data := blob.get(key))}
    ours = _make_mark(handle)
    stale = [key for key, data in texts.items() if ours in data and (not present or format.mark(present) not in data)]
    # A checkpoint goes with its version. The pointer to the newest one is deleted as well: readers look for the
    # checkpoint then.
    stems = tuple(key.removesuffix("json") for key in stale)
    other_keys = [key for key in keys if not key.endswith(".json")]
    pointers = [key for key in other_keys if key.startswith(stems) or not key.endswith(".parquet")]
    delete_all(blob, [*stale, *pointers] if stale else [])
    return bool(stale)


def publish_together(
    handles: Mapping[str, CollectionHandle],
    catalog: Any,
    as_of: int | Moment | None,
    *,
    options: Mapping[str, str],
    digest: bool = False,
) -> list[Published]:
    """Publish collections at one time and register them; see `Client.publish`.

    `handles`: the collections, by their names in the catalog.
    """
    require_package("pyiceberg[pyarrow]>=0.12")
    from persist.services.publish.iceberg import CatalogTransaction, IcebergTable

    transaction = CatalogTransaction(catalog)
    named = {"catalog": catalog} if isinstance(catalog, str) else {}
    formats = {name: IcebergTable(handle, {}, transaction) for name, handle in handles.items()}
    for name, handle in handles.items():
        # The catalog has to have the newest versions before later ones come: these let go of what older ones need.
        contents = handle.contents()
        publication = contents.published.get("iceberg")
        if publication is not None and publication.options.get("identifier") == name:
            formats[name].show(contents, publication, is_new=False)
    transaction.commit()
    if as_of is None:
        as_of = min(get_last_sealed(handle.get_known_state()) for handle in handles.values())
    new_tables = [
        publish(handle, formats[name], as_of, options={**options, **named, "identifier": name}, digest=digest)
        for name, handle in handles.items()
    ]
    transaction.commit()
    return new_tables


def unpublish(handle: CollectionHandle, table: str) -> bool:
    """Remove a table; see `Collection.unpublish`."""
    name = make_format(handle, table).name
    if name == "iceberg":
        for time in handle.contents().pins:
            unpin(handle, time)
    was_there = _remove_table(handle, name)
    if not was_there:
        delete_abandoned(handle)
    return was_there


def _remove_table(handle: CollectionHandle, name: str) -> bool:
    """Commit a table's removal and hide it; return whether it existed."""
    writer = handle.engine.writer("unpublish")

    def try_remove() -> bool:
        """Remove the table; return False if it is not published."""
        contents = handle.contents()
        publication = contents.published.get(name)
        if publication is None:
            return False
        step = kinds.Unpublish(handle.id, name, publication.version)
        step = msgspec.structs.replace(step, unused=list_unused_blobs(contents, step))
        writer.submit([step, *_make_hold_steps(contents, step)], {handle.id: handle.name}).result()
        what = f"the {name} table of {handle.name!r} is given up, and readers may still find it"
        if not name.startswith(PIN_PREFIX):
            with note_on_error(partial("{}: unpublish it again.".format, what)):
                _delete_visible_files(handle.engine.blob, handle.id, name)
        return True

    return commit_with_retry(try_remove, action="unpublish", clock=handle.engine.clock, conflicts=(Superseded,))


def pin(handle: CollectionHandle, as_of: int, options: Mapping[str, str]) -> None:
    """Keep a sealed time of the Iceberg table readable through the catalog.

    Args:
        options: `until_ms` is when the pin may be removed; without it, the pin is removed with its tags.

    Raises:
        AsOfCompacted: the time cannot be read any more.
    """
    from persist.services.publish.iceberg import IcebergTable

    format = IcebergTable(handle, options, pinned=as_of)
    publish(handle, format, as_of, options={"deletes": "vectors", **options})


def unpin(handle: CollectionHandle, as_of: int) -> None:
    """Remove a pin. Its files are deleted after the grace period."""
    _remove_table(handle, f"{PIN_PREFIX}{as_of}")


def _make_hold_steps(contents: CollectionState, step: kinds.Publish | kinds.Unpublish) -> list[Step]:
    """Return steps that hold the history for a table's change feed, or release it."""
    name = make_published_hold_name(step.table)
    hold = contents.holds.get(name)
    if isinstance(step, kinds.Publish) and step.options.get("feed") == "true":
        if hold is None or hold.time < step.as_of:
            return [kinds.SetHold(step.collection, name, step.as_of, expected=None if hold is None else hold.time)]
        return []
    return [] if hold is None else [kinds.ReleaseHold(step.collection, name, hold.time)]


def list_published(handle: CollectionHandle) -> list[Published]:
    """Return the newest version of each published table."""
    contents = handle.contents()
    tables = contents.tables.items()
    return [_make_published(make_format(handle, table), contents, known, is_new=False) for table, known in tables]


def _get_lasting_options(publication: Publication | None) -> dict[str, str]:
    """Return the options that later versions of a table keep: the format version and the catalog's name for it."""
    names = ("catalog", "identifier", REPLACES, FORMAT_VERSION)
    return {} if publication is None else {name: value for name, value in publication.options.items() if name in names}


def make_format(
    handle: CollectionHandle, table: str, options: Mapping[str, str] | None = None, catalog: Any = None
) -> TableFormat:
    """Return the writer of a table format; options are None if nothing will be published.

    `catalog` is a pyiceberg catalog to register versions with; None for the catalog that options name, if any.
    """
    if table == "delta":
        from persist.services.publish.delta import DeltaTable

        return DeltaTable(handle)
    if table == "iceberg":
        from persist.services.publish.iceberg import IcebergTable

        return IcebergTable(handle, options or {}, catalog)
    raise InvalidUsage(
        f"table={table!r} is not a format of a table: give one of {', '.join(map(repr, get_args(Table)))}"
    )


class Attempt:
    """The stored objects of a version, which are deleted if it is not recorded."""

    def __init__(self, handle: CollectionHandle, format: TableFormat, options: Mapping[str, str]) -> None:
        self._format = format
        self._handle = handle
        self.options = dict(options)
        self._parts: list[Part] = []
        self._blobs: list[str] = []

    def store(self, data: bytes, part: Part) -> Part:
        """Store a new part."""
        stored = self._handle.engine.writer("publish").part_writer().put(self._handle.id, data, part)
        self._parts.append(stored)
        return stored

    def make_step(self, publication: Publication | None, plan: Plan, digest: str | None) -> kinds.Publish:
        """Store a plan's remaining objects; return the step that records the version."""
        contents = plan.contents
        previous = [
            None if publication is None or f.number is None else publication.files.get(f.number) for f in plan.files
        ]
        old = [None if file is None else file.deletes for file in previous]
        deletes = self._format.store_deletes([*zip(plan.files, old, strict=True)], plan.is_anew, self.options)
        fresh = {d.blob for d in deletes if d is not None} - {d.blob for d in old if d is not None}
        self._blobs += sorted(fresh)
        new = [file.part for file in plan.files if file.number is None]
        numbers = {id(part): -1 - at for at, part in enumerate(new)}
        files = [
            TableFile(numbers[id(file.part)] if file.number is None else file.number, left_out)
            for file, left_out, existing in zip(plan.files, deletes, previous, strict=True)
            if existing is None or existing.deletes != left_out
        ]
        step = kinds.Publish(
            self._handle.id,
            self._format.name,
            uuid.uuid4().hex if publication is None else publication.id,
            0 if publication is None else publication.version + 1,
            plan.as_of,
            parts=tuple(new),
            files=tuple(files),
            removed=tuple(plan.removed),
            schema=len(contents.earlier) + 1,
            options=self.options,
            digest=digest,
        )
        metadata = self._format.store_metadata(contents, step)
        self._blobs += [key for key in metadata if publication is None or key not in publication.metadata]
        step = msgspec.structs.replace(step, metadata=metadata, blobs=tuple(self._blobs))
        return msgspec.structs.replace(step, unused=list_unused_blobs(contents, step))

    def discard(self) -> None:
        """Delete stored objects that no record names. Garbage collection deletes the rest."""
        self._handle.engine.writer("publish").part_writer().discard(self._parts)
        for key in self._blobs:
            with suppress(PersistError):
                self._handle.engine.blob.delete(key)


def _make_published(
    format: TableFormat, contents: CollectionState, publication: Publication, *, is_new: bool
) -> Published:
    """Return the description of a published version for users."""
    left_out = sum(file.deletes.rows for file in publication.files.values() if file.deletes is not None)
    rows = sum(contents.get_part(number).rows for number in publication.files) - left_out
    url = format.url(contents, publication)
    return Published(
        contents.name,
        format.name,
        publication.version,
        publication.as_of,
        url,
        len(publication.files),
        rows,
        publication.digest,
        is_new,
    )


def _compute_digest(handle: CollectionHandle, time: int) -> str:
    """Return the digest of a collection as of a time."""
    from persist.engine.collection.reads import snapshot

    with snapshot(handle, time) as contents:
        return contents.digest()


def _list_visible_keys(blob: Blob, collection: str, table: str) -> list[str]:
    """Return the keys by which readers find tables at a path."""
    folder = {"delta": "_delta_log/", "iceberg": "metadata/"}[table]
    return [entry.key for entry in blob.list(f"{get_table_root(collection)}{folder}")]


def _check_free(handle: CollectionHandle, table: str) -> None:
    """Delete the visible files of a removed table; raise InvalidUsage if another program's files are there."""
    blob = handle.engine.blob
    keys = [key for key in _list_visible_keys(blob, handle.id, table) if is_table_key(key, handle.id)]
    read = ((key, blob.get(key)) for key in keys if key.endswith(".json"))
    foreign = [key for key, data in read if data is not None and _make_mark(handle) not in data.replace(b" ", b"")]
    if foreign:
        raise InvalidUsage(
            f"{blob.url}/{foreign[0]} belongs to a {table} table that was not published from {handle.name!r}: "
            "move that table elsewhere first; a collection's own folder takes its own tables only"
        )
    _delete_visible_files(blob, handle.id, table)


def _make_mark(handle: CollectionHandle) -> bytes:
    """Return the text, without spaces, that marks the versions of a collection's tables."""
    return f'"persist.collection":"{handle.id}"'.encode()


def delete_abandoned(handle: CollectionHandle) -> None:
    """Delete visible files of tables that are not published any more.

    The record of an erasure removes tables, and its writer may have died after that. Files of other programs stay.
    """
    published = handle.contents().published
    for table in get_args(Table):
        if table not in published:
            with suppress(InvalidUsage):
                _check_free(handle, table)


def _delete_visible_files(blob: Blob, collection: str, table: str) -> None:
    """Delete the files by which readers find a table."""
    delete_all(blob, (key for key in _list_visible_keys(blob, collection, table) if is_table_key(key, collection)))


UNITS_S = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}
_SPAN = re.compile(rf"([1-9][0-9]{{0,8}}) ({'|'.join(UNITS_S)})s?")


def parse_schedule(every: str | None) -> dict[str, str]:
    """Check how often a table is published; return it as an option."""
    if every is None:
        return {}
    if every not in ("seal", "keyframe") and (not isinstance(every, str) or _SPAN.fullmatch(every) is None):
        raise InvalidUsage(f'every={every!r} is not a schedule: give "seal", "keyframe", or a span as "10 minutes"')
    return {"every": every}


def register_publishing(engine: Engine) -> None:
    """Make a writing client publish due tables during its upkeep of collections."""
    # The thread that does so must not keep the client alive.
    engine_ref = weakref.ref(engine)

    def look_after(contents: CollectionState) -> bool:
        alive = engine_ref() if contents.published else None
        if alive is not None:
            for table, publication in contents.tables.items():
                time = _find_due_time(alive, contents, table, publication)
                if time is not None:
                    handle = open_handle(alive, contents, contents.schema)
                    publish(handle, make_format(handle, table, publication.options), time, options=publication.options)
        return bool(contents.published)  # Some are due after a while.

    engine.writer("publish").compaction.also.append(look_after)


def _find_due_time(engine: Engine, contents: CollectionState, table: str, publication: Publication) -> int | None:
    """Return the time as of which a table is due to be published; None if it is not due."""
    every = publication.options.get("every", "")
    if every == "keyframe":
        newest = max((keyframe.as_of for keyframe in contents.keyframes), default=-1)
        return newest if newest > publication.as_of else None
    time = get_last_sealed(contents)
    if time <= publication.as_of:
        return None
    span = _SPAN.fullmatch(every)
    if span is None:
        return time if every == "seal" else None
    shown_at = make_format(
        open_handle(engine, contents, contents.schema), table, publication.options
    ).find_visible_since_s(publication)
    is_old = shown_at is None or engine.clock.wall_ms() / 1000 - shown_at >= int(span[1]) * UNITS_S[span[2]]
    return time if is_old else None
