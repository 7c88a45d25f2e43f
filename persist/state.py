"""The state of a location as a pure function of its commit log: `apply(state, record) -> state`.

No I/O happens here, and every rule about what a commit may do is checked here and nowhere else, so that a
writer validating its own commit and a reader replaying the log cannot disagree. All values are immutable; a reader
keeps the `CollectionState` it started from for as long as it likes.

A location may hold many collections of which a client uses few. An `Entry` is therefore a *base* (a pointer to a
stored `CollectionState`; the `CollectionState` itself, when no checkpoint has stored it yet; or none for a collection
that begins with its pending mutations) plus the mutations *pending* since then. The `contents` are the fold of the
second over the first, and are present only when somebody needed them. Applying a record to an entry without contents
only appends to its pending mutations; `with_contents` replays and checks them once the base has been fetched.

Invariants, for every state reachable by `apply`:
- `since` and `upper` of a collection never go back;
- when an `Append` was applied, all its times were beyond the upper of that moment;
- names are unique among the collections that exist, ids for ever;
- if `contents` is present, it equals the fold of `pending` over the base.
"""

from collections import ChainMap
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from persist.antichain import Antichain
from persist.codecs import CollectionSchema, Part
from persist.envelope import BlobRef
from persist.errors import CollectionExists, CollectionNotFound, FrontierRegression, UpdateNotBeyondUpper
from persist.records import (
    AllowCompaction,
    Append,
    Create,
    Destroy,
    Frontier,
    Mutation,
    Record,
    Seal,
)

V = TypeVar("V")

PENDING_MAX = 64  # Mutations an entry keeps before it takes its contents for its base.


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parts that do not overlap in key."""

    parts: tuple[Part, ...]


class CollectionState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One collection at one point of the log. Stored as it is, see `persist.checkpoint`."""

    id: str
    name: str
    schema_json: dict[str, Any] = msgspec.field(name="schema")
    since_times: Frontier = msgspec.field(name="since", default=(0,))
    upper_times: Frontier = msgspec.field(name="upper", default=(0,))
    history: tuple[Run, ...] = ()
    inline_bytes: int = 0  # Of parts that live in the log; kept here because writers ask for it at every commit.

    @property
    def since(self) -> Antichain:
        return Antichain(*self.since_times)

    @property
    def upper(self) -> Antichain:
        return Antichain(*self.upper_times)

    @property
    def schema(self) -> CollectionSchema:
        return CollectionSchema.from_json(self.schema_json)

    @property
    def parts(self) -> tuple[Part, ...]:
        """All parts of the history, in commit order."""
        return tuple(part for run in self.history for part in run.parts)


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known of one collection: see the module's docstring."""

    id: str
    name: str
    base: BlobRef | CollectionState | None = None
    pending: tuple[Mutation, ...] = ()
    contents: CollectionState | None = None

    def with_contents(self, base: CollectionState | None) -> "Entry":
        """Return this entry with its contents, given what its base pointer leads to (None when it has none)."""
        contents = base
        for mutation in self.pending:
            contents = _step(contents, mutation)
        return replace(self, contents=contents)


@dataclass(frozen=True, slots=True)
class State:
    """Everything the log says up to and including seqno; seqno is -1 for an empty log."""

    location: str | None = None
    seqno: int = -1
    entries: Mapping[str, Entry] = field(default_factory=lambda: MappingProxyType({}))
    ids: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def names(self) -> tuple[str, ...]:
        """Return the names of all collections, sorted."""
        return tuple(sorted(self.ids))

    def with_entry(self, entry: Entry) -> "State":
        """Return this state with an equivalent form of one entry (contents filled in, or another base)."""
        return replace(self, entries=MappingProxyType({**self.entries, entry.id: entry}))


def apply(state: State, record: Record) -> State:
    """Return the state after record.

    Cost: O(collections) for copying the directory, O(mutations), no I/O.

    Raises:
        InvalidUsage, Conflict: one of the rules does not allow it; the state is unchanged. A record in the log never
            raises these, because its writer applied it before creating it.
        ValueError: the record belongs to another location or position.
    """
    if record.seqno != state.seqno + 1:
        raise ValueError(f"it says seqno {record.seqno} where {state.seqno + 1} belongs")
    if state.location not in (None, record.location):
        raise ValueError(f"it belongs to location {record.location}, and this is {state.location}")
    entries: dict[str, Entry | None] = dict(state.entries)
    ids: dict[str, str | None] = dict(state.ids)
    for mutation in record.mutations:
        entry = _entry_for(mutation, entries, ids)
        _put(entries, ids, entry, None if isinstance(mutation, Destroy) else _extended(entry, mutation))
    return State(record.location, record.seqno, _present(entries), _present(ids))


class Draft:
    """A state being extended by operations that are not in the log yet, to tell which of them are valid.

    It follows names and frontiers but not parts, so that a writer can validate thousands of small operations before
    it encodes what they wrote into one batch. The checks are the same functions that `apply` uses. All collections
    concerned must have their contents.
    """

    def __init__(self, state: State) -> None:
        self._entries: ChainMap[str, Entry | None] = ChainMap({}, dict(state.entries))
        self._ids: ChainMap[str, str | None] = ChainMap({}, dict(state.ids))

    def extend(self, steps: Iterable["Mutation | PlannedAppend"]) -> None:
        """Add all steps of one operation, or none of them if one is not valid.

        Raises:
            InvalidUsage, Conflict: what the operation would get if it came next in the log.
        """
        steps = tuple(steps)
        if all(isinstance(step, PlannedAppend) for step in steps):
            for step in steps:  # They change nothing that is followed here, so nothing has to be undone.
                _step(_entry_for(step, self._entries, self._ids).contents, step)
            return
        entries, ids = self._entries.new_child(), self._ids.new_child()
        for step in steps:
            entry = _entry_for(step, entries, ids)
            after = None if isinstance(step, Destroy) else replace(entry, contents=_step(entry.contents, step))
            _put(entries, ids, entry, after)
        self._entries.maps[0].update(entries.maps[0])
        self._ids.maps[0].update(ids.maps[0])


@dataclass(frozen=True, slots=True)
class PlannedAppend:
    """An `Append` whose parts are not encoded yet; time_min is the least time of its updates."""

    collection: str
    time_min: int


def _put(
    entries: MutableMapping[str, Entry | None],
    ids: MutableMapping[str, str | None],
    before: Entry,
    after: Entry | None,
) -> None:
    entries[before.id] = after
    ids[before.name] = before.id if after is not None else None


def _present(values: Mapping[str, V | None]) -> Mapping[str, V]:
    return MappingProxyType({key: value for key, value in values.items() if value is not None})


def _entry_for(
    mutation: Mutation | PlannedAppend, entries: Mapping[str, Entry | None], ids: Mapping[str, str | None]
) -> Entry:
    """Return the entry that mutation is about, a new one for `Create`, if there may be one."""
    entry = entries.get(mutation.collection)
    if isinstance(mutation, Create):
        if ids.get(mutation.name) is not None or entry is not None:
            raise CollectionExists(mutation.name)
        return Entry(mutation.collection, mutation.name)
    if entry is None:
        raise CollectionNotFound(mutation.collection, "this location", tuple(n for n, i in ids.items() if i))
    return entry


def _extended(entry: Entry, mutation: Mutation) -> Entry:
    contents = entry.contents
    if contents is not None or isinstance(mutation, Create):
        contents = _step(contents, mutation)
    if contents is not None and len(entry.pending) >= PENDING_MAX:
        return Entry(entry.id, entry.name, contents, (), contents)
    return Entry(entry.id, entry.name, entry.base, (*entry.pending, mutation), contents)


def _step(contents: CollectionState | None, mutation: Mutation | PlannedAppend) -> CollectionState:
    """Return one collection's contents after one mutation: where the rules live."""
    if isinstance(mutation, Create):
        return CollectionState(mutation.collection, mutation.name, mutation.schema)
    assert contents is not None, "a collection's first mutation creates it"
    if isinstance(mutation, PlannedAppend):
        _check_beyond_upper(contents, mutation.time_min)
        return contents
    if isinstance(mutation, Append):
        for part in mutation.parts:
            _check_beyond_upper(contents, part.time_min)
        inline_bytes = contents.inline_bytes + sum(len(part.inline) for part in mutation.parts)
        # One commit may hold batches that overlap in key, so nothing is known of its parts but each by itself.
        history = (*contents.history, *(Run((part,)) for part in mutation.parts))
        return msgspec.structs.replace(contents, history=history, inline_bytes=inline_bytes)
    if isinstance(mutation, Seal):
        _check_forward("upper", contents.upper, mutation.upper)
        return msgspec.structs.replace(contents, upper_times=mutation.upper)
    assert isinstance(mutation, AllowCompaction)
    _check_forward("since", contents.since, mutation.since)
    return msgspec.structs.replace(contents, since_times=mutation.since)


def _check_beyond_upper(contents: CollectionState, time: int) -> None:
    if not contents.upper.has_beyond(time):
        raise UpdateNotBeyondUpper(time, contents.upper)


def _check_forward(which: str, current: Antichain, asked: Frontier) -> None:
    if not current <= Antichain(*asked):
        raise FrontierRegression(which, Antichain(*asked), current)
