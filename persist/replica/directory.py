"""The directory of a location on storage: what a checkpoint says of each collection, written once for each change.

    checkpoint  =  [directory object, directory object, …]  +  the changes since the last of them, in the checkpoint
                    oldest, whole    changes to it                 at most INLINE_BYTES_MAX

    directory/<seqno, 20 digits>-<xxh3_128 of the object>.json         frame "directory"

Where several of these speak of a collection, the last one counts. A checkpoint takes over the directory objects of the
one before it, and holds by itself what changed since. When that has grown past `INLINE_BYTES_MAX`, it becomes a
directory object of its own, together with the objects before it that are less than `RATIO` times as large as what they
are merged with. So each object is at least `RATIO` times as large as the next: a directory of n bytes is
`log2(n / INLINE_BYTES_MAX)` objects at most, and what changes is written again about as often, however large the
directory is. All of a small location is in its checkpoint, one object.

No object is made larger than `OBJECT_BYTES_MAX`: those of a very large location are not merged any more. When there are
almost `LEVELS_MAX` of them, all is written anew, in pieces of that size, of which none speaks of what another says.

A directory object may hold what later ones replace, such as the inline updates of a collection that was destroyed
since. Nothing is taken over that is older than the log that is kept (`log_floor`), so it lives no longer than there.
Nothing is taken over either that is older than the last erasure, because nothing else would ever replace it.

Rejected: pages by ranges of ids, each rewritten when something in it changed. Sixteen records that touch sixteen of ten
thousand collections would rewrite sixteen pages, hundreds of times as much as they changed.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from persist.blob import Blob, CorruptBlob, InvalidUsage
from persist.log import (
    AnyCollectionMutation,
    BlobRef,
    BringsParts,
    Framed,
    LeavesUnused,
    Seqno,
    as_stored,
    check_keys,
    check_unused,
    directory_prefix,
    directory_seqno,
    encoded_object,
    fetched,
    kinds,
    shared_folders,
    state_collection,
)
from persist.names import check_name, is_id
from persist.replica.state_objects import KnownContents
from persist.state import CollectionEntry, CollectionState, FrozenMap, LocationState, State

INLINE_BYTES_MAX = 64 * 1024
RATIO = 2
LEVELS_MAX = 64
SPARE_LEVELS = 8  # Fewer than these are left before all is written anew.
OBJECT_BYTES_MAX = 256 << 20  # No more is written into one object, so the directory may have some 14 GiB.


class DirectoryEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`persist.state.state.CollectionEntry` as it is stored."""

    id: str
    name: str
    base: BlobRef | None = None
    pending: tuple[AnyCollectionMutation, ...] = ()
    leased: tuple[tuple[str, str], ...] = ()
    folders: tuple[str, ...] = ()
    levels: tuple[BlobRef, ...] = ()


class DirectoryObject(Framed, frozen=True, kw_only=True, tag="directory"):
    """The collections that changed up to the record at seqno, since the objects before it, and ids of those gone."""

    location: str
    seqno: Seqno
    collections: tuple[DirectoryEntry, ...]
    gone: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Directory:
    """All collections, by id, and their ids by name."""

    entries: FrozenMap[CollectionEntry]
    ids: FrozenMap[str]

    def with_changes(self, collections: Iterable[DirectoryEntry], gone: Iterable[str]) -> "Directory":
        """Return the directory after changes that have been read; raise ValueError if no writer would make them."""
        entries: dict[str, CollectionEntry | None] = {}
        for each in collections:
            _check_entry(each)
            if each.id in entries:
                raise ValueError(f"it speaks twice of collection {each.id}")
            entries[each.id] = CollectionEntry(
                each.id, each.name, each.base, each.pending, None, each.leased, each.folders, each.levels
            )
        for id_ in gone:
            if id_ in entries or id_ not in self.entries:
                raise ValueError(f"the collection {id_[:200]!r} is gone, and is there, or never was")
            entries[id_] = None
        ids: dict[str, str | None] = {self.entries[id_].name: None for id_ in entries if id_ in self.entries}
        for entry in entries.values():
            if entry is not None:
                if (ids.get(entry.name) if entry.name in ids else self.ids.get(entry.name)) is not None:
                    raise ValueError("two collections have the same id or name")
                ids[entry.name] = entry.id
        return Directory(self.entries.with_changes(entries), self.ids.with_changes(ids))


EMPTY = Directory(FrozenMap(), FrozenMap())


@dataclass(frozen=True, slots=True)
class Level:
    """One directory object, and the directory that it makes with those before it."""

    pointer: BlobRef
    directory: Directory

    @property
    def seqno(self) -> int:
        """The seqno of the checkpoint that it was made for."""
        seqno = directory_seqno(self.pointer.blob)
        assert seqno is not None, "pointers are checked when they are read"
        return seqno


class KnownLevels:
    """The levels that a client saw last, so that it need not read them for each checkpoint that names them again.

    In `contents` are the state objects that they point to.

    They are immutable, and known by the checksum of their bytes. Safe to use from many threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._levels: tuple[Level, ...] = ()
        self.contents = KnownContents()

    def read(self, blob: Blob, location: str, pointers: Sequence[BlobRef]) -> tuple[Level, ...]:
        """Return the levels that a checkpoint points to. Cost: a GET for each that this client has not seen, at once.

        Raises:
            MissingBlob, CorruptBlob: one is missing, or not what was stored there.
        """
        levels: list[Level] = []
        for known, pointer in zip(self._levels, pointers, strict=False):
            if known.pointer != pointer:
                break
            levels.append(known)
        for pointer, stored in fetched(blob, pointers[len(levels) :], DirectoryObject):
            before = levels[-1].directory if levels else EMPTY
            levels.append(Level(pointer, _directory(stored, location, pointer, before)))
        return self.keep(levels)

    def keep(self, levels: Iterable[Level]) -> tuple[Level, ...]:
        """Remember the levels of a checkpoint, and forget those of others."""
        with self._lock:
            self._levels = tuple(levels)
            return self._levels


def taken_over(levels: tuple[Level, ...], control: LocationState) -> tuple[Level, ...]:
    """Return the levels that a new checkpoint may name again.

    These are none if the oldest is older than the log that is kept, or than the last erasure.
    """
    last_erasure = control.erasures[-1][0] if control.erasures else 0
    return () if levels and levels[0].seqno < max(control.log_floor, last_erasure) else levels


@dataclass(frozen=True, slots=True)
class NewDirectory:
    """How a checkpoint is to say what the directory is.

    Attributes:
        levels: the directory objects that it points to, oldest first.
        collections, gone: what has changed since.
    """

    levels: tuple[Level, ...]
    collections: tuple[DirectoryEntry, ...] = ()
    gone: tuple[str, ...] = ()


def new_directory(
    state: State,
    directory: Directory,
    levels: tuple[Level, ...],
    store: Callable[[BlobRef, bytes], object],
) -> NewDirectory:
    """Return how a checkpoint of state says that its directory is this one, given the levels that it takes over.

    All bases of entries that differ from the levels are stored. What it points to beyond the levels is given to store
    first, one object at a time. Cost: O(what differs), and that is encoded.

    Raises:
        InvalidUsage: the collections are so many that no checkpoint can point to all of what is to be said of them.
    """
    assert state.location is not None
    collections, gone = _since(levels, directory)
    if (size := _size(collections)) <= INLINE_BYTES_MAX:
        return NewDirectory(levels, collections, gone)
    while levels and levels[-1].pointer.bytes < RATIO * size and size + levels[-1].pointer.bytes <= OBJECT_BYTES_MAX:
        size += levels[-1].pointer.bytes
        levels = levels[:-1]
    if size > OBJECT_BYTES_MAX or len(levels) + SPARE_LEVELS >= LEVELS_MAX:
        levels = ()  # Only what is whole is cut: names that two collections exchange belong into one object.
    collections, gone = _since(levels, directory)
    if not levels and _size(collections) <= INLINE_BYTES_MAX:
        return NewDirectory((), collections, gone)
    for some in [collections] if levels else _cut(collections):
        stored = DirectoryObject(
            format=state.format, location=state.location, seqno=state.seqno, collections=some, gone=gone
        )
        pointer, data = encoded_object(directory_prefix(state.seqno), stored)
        store(pointer, data)
        before = levels[-1].directory if levels else EMPTY
        levels = (*levels, Level(pointer, directory if some is collections else before.with_changes(some, gone)))
    if len(levels) > LEVELS_MAX:
        raise InvalidUsage(f"{len(directory.ids):,} collections take {len(levels)} objects, and {LEVELS_MAX} are read")
    return NewDirectory(levels)


def _cut(collections: tuple[DirectoryEntry, ...]) -> Iterator[tuple[DirectoryEntry, ...]]:
    """Yield the entries in pieces of at most `OBJECT_BYTES_MAX`; those of one piece are what was given."""
    first = size = 0
    for at, entry in enumerate(collections):
        bytes_ = _size((entry,))
        if size + bytes_ > OBJECT_BYTES_MAX and at > first:
            yield collections[first:at]
            first, size = at, 0
        size += bytes_
    yield collections[first:]


def _since(levels: tuple[Level, ...], directory: Directory) -> tuple[tuple[DirectoryEntry, ...], tuple[str, ...]]:
    before = levels[-1].directory if levels else EMPTY
    changes = directory.entries.changes_since(before.entries)
    return (
        tuple(_stored(entry) for entry in changes.values() if entry is not None),
        tuple(id_ for id_, entry in changes.items() if entry is None),
    )


def _stored(entry: CollectionEntry) -> DirectoryEntry:
    assert not isinstance(entry.base, CollectionState), "a base that is not stored has been stored before"
    pending = tuple(map(as_stored, entry.pending))
    return DirectoryEntry(entry.id, entry.name, entry.base, pending, entry.leased, entry.folders, entry.levels)


def _size(collections: tuple[DirectoryEntry, ...]) -> int:
    return len(msgspec.json.encode(collections))


def _directory(stored: DirectoryObject, location: str, pointer: BlobRef, before: Directory) -> Directory:
    if (stored.location, stored.seqno) != (location, directory_seqno(pointer.blob)):
        raise CorruptBlob(pointer.blob, "it belongs to another location or checkpoint, so blobs were exchanged")
    try:
        return before.with_changes(stored.collections, stored.gone)
    except ValueError as error:
        raise CorruptBlob(pointer.blob, f"it is not one that a writer would make: {error}") from error


def check_pointers(pointers: Sequence[BlobRef], seqno: int) -> None:
    """Raise ValueError if these are not what a checkpoint at seqno may say of its directory objects."""
    seqnos = [directory_seqno(pointer.blob) for pointer in pointers]
    if len(seqnos) > LEVELS_MAX or any(each is None or each > seqno for each in seqnos):
        raise ValueError("it points to too many directory objects, or to what is none of an earlier checkpoint")


def _check_entry(each: DirectoryEntry) -> None:
    if not is_id(each.id):
        raise ValueError(f"{each.id[:200]!r} is not the id of a collection: 32 hex digits")
    check_name(each.name)
    for pointer in (each.base, *each.levels) if each.base is not None or each.levels else ():
        if pointer is None or state_collection(pointer.blob) != each.id:
            raise ValueError(f"{pointer!r:.200} does not name a state object of collection {each.id}")
    if len(each.levels) >= LEVELS_MAX:
        raise ValueError(f"collection {each.id} has {len(each.levels)} state objects after the first")
    renames = [mutation.name for mutation in each.pending if isinstance(mutation, kinds.Rename)]
    if renames and renames[-1] != each.name:
        raise ValueError(f"collection {each.id} was renamed to another name than it has")
    for n, mutation in enumerate(each.pending):
        makes = isinstance(mutation, kinds.Makes) and (bool(renames) or mutation.name == each.name)
        if (
            mutation.collection != each.id
            or makes != (each.base is None and n == 0)
            or isinstance(mutation, kinds.Destroy)
        ):
            raise ValueError(f"mutation {n} of collection {each.id} cannot stand there")
        if isinstance(mutation, BringsParts):
            check_keys(mutation)
            if not set(each.folders).issuperset(shared_folders(mutation)):
                raise ValueError(f"the clone {each.id} has parts of collections that are not named with it")
        if isinstance(mutation, LeavesUnused):
            check_unused(mutation, each.folders)
    if not all(map(is_id, each.folders)) or [*each.folders] != sorted({*each.folders} - {each.id}):
        raise ValueError(f"the parts of collection {each.id} lie with what is no other collection, or not in order")
    if each.base is None and not each.pending:
        raise ValueError(f"nothing says what collection {each.id} holds")
    holds = [hold for hold, _ in each.leased]
    if len(set(holds)) < len(holds) or not all(is_id(hold) and is_id(lease) for hold, lease in each.leased):
        raise ValueError(f"the leased holds of collection {each.id} are none, or one of them is there twice")


def check_leases(directory: Directory, leases: Mapping[str, object]) -> None:
    """Raise ValueError if a hold lives by a lease that is not there."""
    for _, entry in directory.entries.each():
        if entry.leased and not all(lease in leases for _, lease in entry.leased):
            raise ValueError(f"a hold of collection {entry.id} lives by a lease that does not exist")
