"""The state of a location as a pure function of its commit log: `apply(state, record) -> state`.

This module writes nothing, and reads only entries of a large directory (`persist.core.state_rules.frozen_map`). Every
rule for commits is checked here and nowhere else, so that a writer that validates its commit and a reader that replays
the log cannot disagree. All values are immutable, so a reader can keep a `CollectionState` for any time.

A location may hold many collections of which a client uses few. A `CollectionEntry` is therefore a *base* plus the
mutations *pending* since then. The base is pointers to a stored `CollectionState`, or the `CollectionState` itself if
no checkpoint has stored it yet, or None for a collection that begins with its pending mutations. Its `contents` are the
base with the pending mutations applied, and are present only after a caller needed them. Applying a record to an entry
without contents only appends to its pending mutations; `attach_contents` replays and checks them once the base has been
fetched.

Invariants, for every state reachable by `apply`:
- `since` and `upper` of a collection never go back;
- when an `Append` was applied, all its times were beyond the upper of that moment;
- `since` is at or beyond the least of every hold and the time up to which compaction was allowed;
- a token is kept as long as a write with its times could be applied once more;
- names are unique among existing collections, ids for ever;
- an entry's `leased` are the holds with a lease in its contents, and these leases exist;
- an entry's blobs lie in its own folder and its `folders`. The source of a clone named those in the latter when the
  clone was made, so a blob that no entry names will never be named again;
- if `contents` is present, it equals the fold of `pending` over the base.

The rules for one collection are in `persist.core.state_rules.collection_rules`, its contents in
`persist.core.state_rules.contents`, and the rules for the location as a whole in `persist.core.state_rules.location`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from msgspec import UNSET

from persist.codecs.part.part import Part
from persist.core.antichain import to_antichain
from persist.core.errors import (
    AsOfNotSealed,
    CollectionExists,
    CollectionNeeded,
    CollectionNotFound,
    ColumnsNeeded,
    LeaseExpired,
    Superseded,
)
from persist.core.log import kinds
from persist.core.log.fields import CollectionMutation, LocationMutation
from persist.core.log.framing import FORMAT, FORMAT_MIN, BlobRef
from persist.core.log.keys import check_unused, get_shared_folders, is_upload
from persist.core.log.kinds import BringsParts, LeavesUnused, Mutation
from persist.core.log.records import Record
from persist.core.names import check_name, find_owner, find_reader, is_id
from persist.core.state_rules.annotations import check_note
from persist.core.state_rules.collection_rules import (
    CollectionStep,
    Condition,
    Planned,
    SetHolds,
    apply_step,
    merge_holds,
)
from persist.core.state_rules.contents import CollectionState
from persist.core.state_rules.frozen_map import FrozenMap, MapChanges
from persist.core.state_rules.location import (
    LOCATION_RULES,
    LocationState,
    add_destroyed,
    add_unused,
    check_uploaded,
    check_writer,
)
from persist.core.state_rules.schemas import find_columns_in_use

PENDING_MAX = 64  # Mutations an entry keeps before it takes its contents for its base.


class CollectionEntry(msgspec.Struct, frozen=True):
    """A collection in a `State`: its stored base, and mutations since then.

    Attributes:
        leased: (hold, lease) of each leased hold. It is kept here, not with the leases, so that reads of thousands of
            collections make no long list in the location's own state.
        folders: the other collections, sorted, whose folders may have its parts, because it is a clone or was cloned.
        levels: pointers to the stored changes of the base, oldest first.
    """

    id: str
    name: str
    base: BlobRef | CollectionState | None = None
    pending: tuple[CollectionMutation, ...] = ()
    contents: CollectionState | None = None
    leased: tuple[tuple[str, str], ...] = ()
    folders: tuple[str, ...] = ()
    levels: tuple[BlobRef, ...] = ()

    @property
    def stored(self) -> tuple[BlobRef, ...]:
        """Pointers to the stored state object and its changes, if stored."""
        return (self.base, *self.levels) if isinstance(self.base, BlobRef) else ()

    @property
    def readers(self) -> tuple[str, ...]:
        """The leases with holds on this collection, each once."""
        return tuple(dict.fromkeys(lease for _, lease in self.leased))

    def attach_contents(self, base: CollectionState | None) -> "CollectionEntry":
        """Return this entry with contents: its pending mutations applied to `base`."""
        contents = base
        for step in merge_holds(self.pending):
            contents = apply_step(contents, step)
        return msgspec.structs.replace(self, contents=contents)

    def rebase(self, contents: CollectionState) -> "CollectionEntry":
        """Return this entry with its present contents as its base."""
        return msgspec.structs.replace(self, base=contents, levels=(), pending=(), contents=contents)


@dataclass(frozen=True, slots=True)
class State:
    """The state after all records up to `seqno`, whose commit id is `commit`; -1 and None for an empty log.

    `format` is the location's format number: the greatest of its records'; for an empty log, the newest.
    """

    location: str | None = None
    seqno: int = -1
    entries: FrozenMap[CollectionEntry] = field(default_factory=FrozenMap)
    ids: FrozenMap[str] = field(default_factory=FrozenMap)
    control: LocationState = field(default_factory=LocationState)
    commit: str | None = None
    format: int = FORMAT

    def list_names(self) -> tuple[str, ...]:
        """Return the names of all collections, sorted."""
        return tuple(sorted(self.ids))

    def list_names_in_memory(self) -> tuple[str, ...]:
        """Return the sorted names that are in memory; errors show a few of them."""
        return tuple(sorted(name for name, _ in self.ids.iterate_in_memory()))

    def iterate_stored_parts(self) -> Iterator[Part]:
        """Yield the parts of all collections with loaded contents."""
        for entry in self.entries.values():
            if entry.contents is not None:
                yield from entry.contents.stored_parts

    def list_blobs(self) -> set[str]:
        """Return the blob keys of collections with loaded contents."""
        known_contents = [entry.contents for entry in self.entries.values() if entry.contents is not None]
        return {key for contents in known_contents for key in contents.named_blobs}

    def replace_entry(self, entry: CollectionEntry) -> "State":
        """Return this state with one entry in another, equivalent form.

        For example with its contents loaded, or with another base.
        """
        return replace(self, entries=self.entries.with_changes({entry.id: entry}))


class DoesNotFollow(ValueError):
    """A record does not follow the last known one, so one of the two does not belong to this log."""


def apply_record(state: State, record: Record) -> State:
    """Return the state after record.

    Cost: O(mutations), and for the end of a lease O(collections in memory). I/O only for entries of a directory that
    are not in memory (`persist.core.state_rules.frozen_map`).

    Raises:
        InvalidUsage, Conflict: a rule does not allow it; the state is unchanged. A record in the log never
            raises these, because its writer applied it before creating it.
        DoesNotFollow: the record's predecessor is not the last record of the state.
        ValueError: the record belongs to another location or position, or no writer would make it.
    """
    if record.seqno != state.seqno + 1:
        raise ValueError(f"it says seqno {record.seqno} where {state.seqno + 1} belongs")
    if state.location not in (None, record.location):
        raise ValueError(f"it belongs to location {record.location}, and this is {state.location}")
    if state.location is None and not is_id(record.location):
        raise ValueError(f"its location {record.location!r} is not 32 hex digits")
    if not is_id(record.commit):
        raise ValueError(f"its commit {record.commit[:200]!r} is not 32 hex digits")
    if record.previous != state.commit:
        raise DoesNotFollow(f"it follows the commit {record.previous}, and the record before it is {state.commit}")
    if record.submitted is not UNSET and any(submitted.first > submitted.last + 1 for submitted in record.submitted):
        raise ValueError("a submitted range of operations begins more than one after its end")
    number = max(record.format, FORMAT_MIN)
    if number < compute_format(state, record.mutations):
        raise ValueError(f"it has format {record.format}, and {compute_format(state, record.mutations)} is needed here")
    check_writer(state.control.writer, state.control.epoch, record.epoch, record.mutations)
    after = StateChanges(MapChanges(state.entries), MapChanges(state.ids), state.control, _extend_entry)
    for step in merge_holds(record.mutations):
        after.apply_step(step, record.seqno, record.written_ms)
    entries, ids = state.entries.with_changes(after.entries), state.ids.with_changes(after.ids)
    return State(record.location, record.seqno, entries, ids, after.control, record.commit, number)


def compute_format(state: State, mutations: Iterable[Mutation]) -> int:
    """Return the least format number that a record with these mutations may have. It never goes back."""
    least = FORMAT_MIN if state.seqno < 0 else state.format
    return max([least, *[mutation.format_needed for mutation in mutations]])


class StateChanges:
    """A state to which a record's mutations are applied one by one. `extend` adds a step to an entry."""

    def __init__(
        self,
        entries: MapChanges[CollectionEntry],
        ids: MapChanges[str],
        control: LocationState,
        extend: Callable[[CollectionEntry, CollectionStep], CollectionEntry],
    ) -> None:
        self.entries = entries
        self.ids = ids
        self.control = control
        self._extend = extend

    def apply_step(self, step: Mutation | CollectionStep, seqno: int, written_ms: int) -> None:
        """Apply one mutation of the record at seqno."""
        if isinstance(step, LocationMutation):
            control_before, self.control = self.control, LOCATION_RULES[type(step)](self.control, step, seqno)
            if isinstance(step, kinds.EndLease) and step.lease in control_before.leases:
                self._release_lease(step.lease)
            return
        if isinstance(step, BringsParts):
            check_uploaded(self.control, step)
        entry = self.load_entry(step)
        if isinstance(step, kinds.Destroy):
            self._check_not_needed(entry)
            control = add_destroyed(self.control, entry.id, entry.readers, entry.folders, seqno, written_ms)
            self.control = control
            self.entries[entry.id] = None
            self.ids[entry.name] = None
            return
        if isinstance(step, kinds.SetHold) and step.lease is not None:
            if step.lease not in self.control.leases:
                raise LeaseExpired("the lease this hold lives by has ended, so since may have passed it")
            entry = _add_leased_hold(entry, step.hold, step.lease)
        elif isinstance(step, kinds.ReleaseHold):
            entry = _remove_leased_hold(entry, step.hold)
        elif isinstance(step, LeavesUnused):
            check_unused(step, entry.folders)
            self.control = add_unused(self.control, step, entry.readers, entry.folders, seqno, written_ms)
        if isinstance(step, kinds.Rename):
            entry = self._rename_entry(entry, step.name)
        elif isinstance(step, kinds.Evolve | kinds.Redefine) and step.schema is not None:
            self._check_columns_not_needed(entry, step.schema)
        self.entries[entry.id] = self._extend(entry, step)
        if isinstance(step, kinds.Makes | kinds.Rename):
            self.ids[entry.name] = entry.id

    def _rename_entry(self, entry: CollectionEntry, name: str) -> CollectionEntry:
        """Return entry with another, free name."""
        check_name(name)
        if name != entry.name and self.ids.look_up(name) is not None:
            raise CollectionExists(name)
        self.ids[entry.name] = None
        return msgspec.structs.replace(entry, name=name)

    def _check_not_needed(self, entry: CollectionEntry) -> None:
        """Raise CollectionNeeded if views read the collection.

        Each view that reads a collection has a permanent hold on it, with the view's id in its name.

        Without loaded contents, nothing is checked: this replays a record whose writer has checked it.
        """
        holds = entry.contents.holds if entry.contents is not None else {}
        readers = {reader.name for hold in holds if (reader := self._find_reader(hold)) is not None}
        if views := readers - {entry.name}:
            raise CollectionNeeded(entry.name, sorted(views))

    def _check_columns_not_needed(self, entry: CollectionEntry, schema: dict[str, Any]) -> None:
        """Raise ColumnsNeeded if a schema drops a column that a view reads."""
        in_use = {} if entry.contents is None else find_columns_in_use(entry.contents, schema)
        readers = {
            column: sorted({reader.name for hold in holds if (reader := self._find_reader(hold)) is not None})
            for column, holds in sorted(in_use.items())
        }
        if any(readers.values()):
            raise ColumnsNeeded(entry.name, {column: views for column, views in readers.items() if views})

    def _find_reader(self, hold: str) -> CollectionEntry | None:
        """Return the holder of a hold: a view, or an arrangement's owner."""
        reader = find_reader(hold)
        entry = None if reader is None else self.entries.look_up(reader)
        owner = None if entry is None else find_owner(entry.name)
        return entry if owner is None else self.entries.look_up(owner)

    def _release_lease(self, lease: str) -> None:
        """Release all holds of a lease."""
        concerned = [
            entry for _, entry in self.entries.iterate_marked(lease) if entry.leased and lease in entry.readers
        ]
        for entry in concerned:
            for hold, by in entry.leased:
                if by == lease:
                    entry = self._extend(_remove_leased_hold(entry, hold), kinds.ReleaseHold(entry.id, hold))
            self.entries[entry.id] = entry

    def load_entry(self, step: CollectionStep) -> CollectionEntry:
        """Return the entry of a step's collection; a new one for `Create` and `Clone`."""
        entry = self.entries.look_up(step.collection)
        if isinstance(step, kinds.Makes):
            if not is_id(step.collection):
                raise ValueError(f"{step.collection!r} is not the id of a collection: 32 hex digits")
            if any(dropped.collection == step.collection and dropped.is_destroyed for dropped in self.control.dropped):
                raise ValueError(f"the id {step.collection} was that of a collection whose blobs are being deleted")
            check_name(step.name)
            if self.ids.look_up(step.name) is not None or entry is not None:
                raise CollectionExists(step.name)
            if isinstance(step, kinds.Clone):
                return CollectionEntry(step.collection, step.name, folders=self._check_clone_folders(step))
            return CollectionEntry(step.collection, step.name)
        if entry is None:
            raise CollectionNotFound(
                step.collection, "this location", tuple(n for n, _ in self.ids.iterate_in_memory())
            )
        return entry

    def _check_clone_folders(self, step: kinds.Clone) -> tuple[str, ...]:
        """Check a clone; return the collections that may share parts with it.

        They are the source and all that may share parts with the source, because an erasure must look at all of them.
        A part that the source no longer names must not be shared, because it may be deleted already. Without loaded
        contents, this replays a record whose writer has checked it, so only the folders are checked.
        """
        source, folders = self.entries.look_up(step.source), get_shared_folders(step)
        if source is None:
            raise CollectionNotFound(step.source, "this location", tuple(n for n, _ in self.ids.iterate_in_memory()))
        if not {source.id, *source.folders}.issuperset(folders):
            raise ValueError(f"it names blobs of collections {folders}, and its source {source.id} has none there")
        if source.contents is not None:
            if step.as_of >= source.contents.upper:
                raise AsOfNotSealed(step.as_of, to_antichain(source.contents.upper), 0.0)
            if (source.contents.schema_json, source.contents.keyed) != (step.schema, step.keyed):
                raise Superseded("the source of the clone has evolved meanwhile")
            named = {part.blob for part in source.contents.parts}
            if any(
                part.blob not in named for part in step.parts if part.blob and not is_upload(part.blob, step.collection)
            ):
                raise Superseded("a compaction has replaced a part that the clone was to share")
        return tuple(sorted({source.id, *source.folders}))


def _add_leased_hold(entry: CollectionEntry, hold: str, lease: str) -> CollectionEntry:
    """Note in an entry that a lease has a hold."""
    for leased_hold, by in entry.leased:
        if leased_hold == hold and by != lease:
            raise ValueError(f"{hold!r} is the id of a hold that lives by another lease")
        if leased_hold == hold:
            return entry
    return msgspec.structs.replace(entry, leased=(*entry.leased, (hold, lease)))


def _remove_leased_hold(entry: CollectionEntry, hold: str) -> CollectionEntry:
    """Remove a lease's hold from an entry."""
    if all(leased_hold != hold for leased_hold, _ in entry.leased):
        return entry
    return msgspec.structs.replace(entry, leased=tuple(leased for leased in entry.leased if leased[0] != hold))


def _extend_entry(entry: CollectionEntry, step: CollectionStep) -> CollectionEntry:
    """Add a mutation to an entry's pending ones, and to loaded contents."""
    assert not isinstance(step, Planned | Condition)
    if isinstance(step, kinds.Note):
        check_note(step)
        return entry  # It changes nothing, so it need not be kept to be replayed.
    mutations = step.steps if isinstance(step, SetHolds) else (step,)
    contents = entry.contents
    if contents is not None or isinstance(step, kinds.Makes):
        contents = apply_step(contents, step)
    if contents is not None and len(entry.pending) + len(mutations) > PENDING_MAX:
        return entry.rebase(contents)
    return msgspec.structs.replace(entry, pending=(*entry.pending, *mutations), contents=contents)
