"""Examines the contents of collections: their parts, their keyframes, and the number of values of each key.

- Each part is compared with its descriptor, and with the other parts of its run. One part is in memory at a time.
  `PartExamination.finish` looks for missing parts again, because the collection may have been destroyed, or the part
  replaced and its blob collected, during the examination.
- Each keyframe must equal the previous one plus the updates between them. Checksums cannot show whether compaction put
  the right rows into intact blobs. The first keyframe can only be checked if the history reaches back to the beginning.
  Cost: each keyframe is read twice, and the history once. Memory: a slice of the key space.
- A keyed collection must have at most one value per key at every readable time: a resolution may be wrong although its
  record is valid. Cost: see `persist.engine.read.keyed.key_history`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pyarrow as pa

from persist.blob.errors import CorruptBlob
from persist.blob.layers.cache import SMALL_BYTES
from persist.blob.protocol import Blob, get_at_most
from persist.codecs.errors import DiffOverflow
from persist.codecs.evolution import link_versions
from persist.codecs.order.sums import consolidate
from persist.codecs.part.describing import check_part, decode_bounds, find_overlaps
from persist.codecs.part.part import Part, compute_checksum
from persist.codecs.types.schema import CollectionSchema
from persist.core.keyed.events import list_event_fields, make_event_schema
from persist.core.keyed.form import has_one_value
from persist.core.log import kinds
from persist.core.log.fields import KeyedForm, Keyframe
from persist.core.log.keys import PARTS
from persist.core.log.token_archives import read_archive
from persist.core.state_rules.contents import CollectionState
from persist.core.state_rules.state import State
from persist.engine.read.keyed.key_history import find_keys_with_several
from persist.engine.read.parts.reader import PartReader
from persist.engine.read.planning.scan import Scan, negate_diffs
from persist.services.fsck.log import LoosePart
from persist.services.fsck.report import Findings

_REFUSED = "until it is back, a write with a token that is not among the newest is refused"


@dataclass(frozen=True, slots=True)
class _Owner:
    """The collection of a part, with the schema and names for reading the part."""

    id: str
    name: str
    schema: CollectionSchema


class PartExamination:
    """Examines the parts that a state refers to.

    Args:
        sizes: the size of every blob, by key, to check in place of reading parts; None to read them.
        location: the id of the location.
    """

    def __init__(self, blob: Blob, findings: Findings, sizes: Mapping[str, int] | None, location: str | None) -> None:
        self._blob = blob
        self._location = location
        self._findings = findings
        self._sizes = sizes
        self._missing: list[tuple[str, str, Part]] = []
        self._gone: list[tuple[str, str, str, str]] = []
        self._mismatched: list[tuple[str, Part, int, str]] = []

    def examine(self, contents: CollectionState) -> None:
        """Examine all parts of one collection."""
        owner = self._make_owner(contents.id, contents.name, [*contents.earlier, contents.schema_json])
        if owner is not None and contents.keyed is not None:
            events = _make_event_owner(owner, contents.keyed)
            for part in contents.pending.values():
                self._examine_part(part, events)
        if owner is not None:
            bounds = {number: self._examine_part(part, owner) for number, part in contents.numbered.items()}
            for part in contents.kept.values():
                self._examine_part(part, owner)
            for numbers in (*contents.history, *(keyframe.parts for keyframe in contents.keyframes)):
                self._examine_run([(contents.numbered[n], bounds[n]) for n in numbers], owner)

    def examine_tables(self, contents: CollectionState) -> None:
        """Check that published tables' other blobs exist."""
        for key in sorted({key for publication in contents.published.values() for key in publication.blobs}):
            if not self._has(key):
                why = "a published table needs it: unpublish it, and publish again"
                self._gone.append((contents.id, contents.name, key, why))

    def examine_archives(self, contents: CollectionState) -> None:
        """Check that token archives exist and have the right content."""
        for archive in () if contents.archives is None else contents.archives.stored:
            key = archive.stored.blob
            if not self._has(key):
                self._gone.append((contents.id, contents.name, key, f"older tokens are in it: {_REFUSED}"))
            elif self._sizes is None:
                try:
                    read_archive(self._blob, self._location, contents.id, archive)
                except CorruptBlob as error:
                    self._findings.add("damaged", key, f"{error.reason}: {_REFUSED}", collection=contents.name)
            elif self._sizes[key] != archive.stored.bytes:
                what = f"it has {self._sizes[key]} bytes, and {archive.stored.bytes} belong there: {_REFUSED}"
                self._findings.add("damaged", key, what, collection=contents.name)

    def _has(self, key: str) -> bool:
        """Return whether a blob exists."""
        return self._blob.get(key, (0, 0)) is not None if self._sizes is None else key in self._sizes

    def examine_alone(self, loose: LoosePart, contents: CollectionState) -> None:
        """Examine a part that is not in the contents of its collection."""
        owner = self._make_owner(contents.id, contents.name, [*contents.earlier, contents.schema_json])
        self._examine_loose(loose, owner, contents.keyed)

    def examine_created(self, loose: LoosePart, created: kinds.Makes, evolved: Sequence[dict[str, Any]]) -> None:
        """Examine a part of a collection of which only schemas are known."""
        earlier = created.earlier if isinstance(created, kinds.Clone) else ()
        owner = self._make_owner(created.collection, created.name, [*earlier, created.schema, *evolved])
        self._examine_loose(loose, owner, created.keyed)

    def _examine_loose(self, loose: LoosePart, owner: "_Owner | None", form: KeyedForm | None) -> None:
        """Examine a part that only a record or an old checkpoint names."""
        if owner is not None and loose.is_events and form is not None:
            owner = _make_event_owner(owner, form)
        if owner is not None:
            self._examine_part(loose.part, owner)

    def finish(self, state: State | None) -> None:
        """Add the problems that depend on the newest state."""
        for id_, name, part in self._missing:
            entry = state.entries.get(id_) if state is not None else None
            is_needed = state is None or (
                entry is not None
                and (entry.contents is None or any(stored.blob == part.blob for stored in entry.contents.stored_parts))
            )
            if is_needed and self._blob.get(part.blob, (0, 0)) is None:
                what = f"it is missing, and {part.bytes} bytes with checksum {part.checksum} belong there"
                self._findings.add("missing", part.blob, what, collection=name)
        for id_, name, key, why in self._gone:
            entry = state.entries.get(id_) if state is not None else None
            is_needed = entry is None or entry.contents is None or key in entry.contents.named_blobs
            if is_needed and self._blob.get(key, (0, 0)) is None:
                self._findings.add("missing", key, f"it is missing, and {why}", collection=name)
        for name, part, size, checksum in self._mismatched:
            what = (
                f"it has {size} bytes with checksum {checksum}, and its descriptor says {part.bytes} bytes with "
                f"checksum {part.checksum}"
            )
            owner_id = _find_owner(state, checksum)
            if owner_id is not None:
                what += f": it holds what belongs to {owner_id}"
            self._findings.add(
                "damaged" if owner_id is None else "exchanged", _format_name(part), what, collection=name
            )

    def _make_owner(self, id_: str, name: str, known: list[dict[str, Any]]) -> "_Owner | None":
        """Return the owner of parts; None for a bad schema."""
        try:
            return _Owner(id_, name, link_versions([msgspec.json.encode(version) for version in known]))
        except ValueError as error:
            what = f"its schema cannot be understood, so its parts were not examined: {error}"
            self._findings.add("rule", f"collection {id_}", what, collection=name)
            return None

    def _examine_run(self, run: "list[tuple[Part, pa.Table | None]]", owner: "_Owner") -> None:
        """Check that a run's parts are in key order and do not overlap."""
        bounds: list[tuple[Part, pa.Table]] = []
        for part, bound in run if len(run) > 1 else ():
            part_bounds = decode_bounds(part, owner.schema) if bound is None else bound
            if part_bounds is not None:
                bounds.append((part, part_bounds))
        for first, second in find_overlaps([table for _, table in bounds], owner.schema):
            what = f"it overlaps in key with {_format_name(bounds[first][0])}, and both are in one run"
            self._findings.add("overlap", _format_name(bounds[second][0]), what, collection=owner.name)

    def _examine_part(self, part: Part, owner: "_Owner") -> pa.Table | None:
        """Examine a part; return a table with its least and greatest key, or None."""
        if bool(part.blob) == bool(part.inline):
            what = "its descriptor must have either the key of a blob or the bytes themselves"
            self._findings.add("rule", _format_name(part), what, collection=owner.name)
            return None
        data = self._read_part(part, owner)
        if data is None:
            return None
        if (len(data), checksum := compute_checksum(data)) != (part.bytes, part.checksum):
            self._mismatched.append((owner.name, part, len(data), checksum))
            return None
        try:
            lifted = part.make_lift(owner.schema)
        except CorruptBlob as error:
            self._findings.add("descriptor", _format_name(part), error.reason, collection=owner.name)
            return None
        findings, bounds = check_part(data, part, owner.schema if lifted is None else lifted.stored)
        for finding in findings:
            self._findings.add(finding.kind, _format_name(part), finding.what, collection=owner.name)
        return bounds if lifted is None or bounds is None else lifted.adapt_table(bounds, owner.schema.key_names)

    def _read_part(self, part: Part, owner: "_Owner") -> bytes | None:
        """Return the bytes of a part; None if missing or not to be read."""
        if part.inline:
            self._findings.count("inline", len(part.inline))
            return part.inline if self._sizes is None else None
        if self._sizes is None:
            try:
                data = get_at_most(self._blob, part.blob, max(part.bytes, SMALL_BYTES))
            except CorruptBlob as error:
                self._findings.add("damaged", part.blob, error.reason, collection=owner.name)
                return None
            if data is None:
                self._missing.append((owner.id, owner.name, part))
            return data
        size = self._sizes.get(part.blob)
        if size is None:
            self._missing.append((owner.id, owner.name, part))
            return None
        self._findings.count("part", size)
        if size != part.bytes:
            what = f"it has {size} bytes, and its descriptor says {part.bytes}"
            self._findings.add("damaged", part.blob, what, collection=owner.name)
        return None


def _make_event_owner(owner: _Owner, form: KeyedForm) -> _Owner:
    """Return a collection as the owner of parts with events, with the schema of events."""
    return replace(owner, schema=make_event_schema(owner.schema, list_event_fields(owner.schema, form)))


def _find_owner(state: State | None, checksum: str) -> str | None:
    """Return the name of the part with a checksum, or None."""
    parts = state.iterate_stored_parts() if state is not None else ()
    return next((_format_name(part) for part in parts if part.checksum == checksum), None)


def _format_name(part: Part) -> str:
    """Return the key of a part, or the checksum of an inline part."""
    return part.blob or f"inline part {part.checksum}"


SLICE_BYTES = 32 << 20


def examine_keyframes(blob: Blob, contents: CollectionState, findings: Findings) -> None:
    """Add a problem for each wrong keyframe.

    Unreadable keyframes are skipped: `PartExamination` reports their parts.
    """
    reader, previous = PartReader(blob), None
    for keyframe in contents.keyframes:
        try:
            if previous is not None or contents.history_from == 0:
                _compare_keyframe(reader, contents, previous, keyframe, findings)
        except (CorruptBlob, DiffOverflow):
            pass
        previous = keyframe


def _compare_keyframe(
    reader: PartReader, contents: CollectionState, before: Keyframe | None, keyframe: Keyframe, findings: Findings
) -> None:
    """Add a problem if a keyframe differs from the history before it."""
    schema = contents.schema
    base = contents.list_parts(before.parts) if before is not None else ()
    lower = before.as_of + 1 if before is not None else 0
    expected = Scan(schema, contents.history_parts, lower, keyframe.as_of + 1, schema.names, base=base).prune()
    actual = replace(expected, parts=(), base=contents.list_parts(keyframe.parts))
    columns, differing = [*schema.names, "_diff"], 0
    for piece in replace(expected, base=(*expected.base, *actual.base)).cut_into_slices(SLICE_BYTES):
        expected_slice, actual_slice = (replace(scan, keys=piece.keys).prune() for scan in (expected, actual))
        tables = [
            piece.empty(columns),
            *expected_slice.read_base_rows(reader, columns),
            *expected_slice.updates(reader, columns),
        ]
        tables += map(negate_diffs, actual_slice.read_base_rows(reader, columns))
        differing += len(consolidate(pa.concat_tables(tables), schema.names))
    if differing:
        start = "the history" if before is None else f"the keyframe as of {before.as_of} and the history after it"
        what = f"the keyframe as of {keyframe.as_of} differs in {differing} records from what {start} come to"
        blob = next((part.blob for part in actual.base), f"{PARTS}{contents.id}/")
        findings.add("disagrees", blob, what, collection=contents.name)


def examine_values(blob: Blob, contents: CollectionState, findings: Findings) -> None:
    """Add a problem if a key has several values, or a value of negative multiplicity."""
    if not has_one_value(contents):
        return
    count, first = 0, None
    try:
        for key, _ in find_keys_with_several(contents, PartReader(blob)):
            count, first = count + 1, key if first is None else first
    except (CorruptBlob, DiffOverflow):
        return  # Other checks report unreadable parts.
    if first is not None:
        what = f"{count} keys have more than one value, or less than none, at some time; one is {first}"
        findings.add("rule", f"{PARTS}{contents.id}/", what, collection=contents.name)
