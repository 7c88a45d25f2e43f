"""The stored directory of a location: a checkpoint's entry for each collection, written once for each change.

    checkpoint  =  [directory object, directory object, …]  +  the changes since the last of them, in the checkpoint
                    oldest           changes to it                 at most INLINE_BYTES_MAX

If several of them have an entry for a collection, the last one counts. A checkpoint names the directory objects of the
one before it, and contains the changes since. When the inline changes exceed `INLINE_BYTES_MAX`, they become a
directory object of their own. It is merged with the objects before it that are less than `RATIO` times as large as the
merged ones. So each object is at least `RATIO` times as large as the next. A directory of n bytes has at most `log2(n /
INLINE_BYTES_MAX)` objects, and a change is rewritten about as often, however large the directory is. The whole
directory of a small location is in its checkpoint.

An object of up to `WHOLE_BYTES_MAX` holds its entries, and is read when the location is opened. A larger one lists
pages (`persist.engine.follow.directory_pages`), which are read when a collection is touched. So opening reads the
latest changes and a list of pages, and a client keeps only used entries in memory. Two things follow:
- a change to a stored page must name the names that it frees, because no reader looks up a collection's former name;
- checks over all entries cover those in memory. `persist fsck` checks the others.

A directory object may contain data that later ones replace, such as the inline updates of a destroyed collection. No
object older than the log floor (`log_floor`) is reused, so such data lives no longer than in the log. Nor is an object
older than the last erasure, because nothing else would ever replace it. Then all objects are merged into one, which
lists the unchanged pages again.

A location of a format before `PAGES` has no pages. Its objects contain their entries, of at most `OBJECT_BYTES_MAX`.

Rejected: pages by ranges of ids, each rewritten when something in it changed. Sixteen records that touch sixteen of ten
thousand collections would rewrite sixteen pages, hundreds of times as much as they changed.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from operator import itemgetter

import msgspec
from msgspec import UNSET, UnsetType

from persist.blob.errors import CorruptBlob, InvalidUsage
from persist.blob.lru import Cache
from persist.blob.protocol import Blob
from persist.core.log import kinds
from persist.core.log.fields import Seqno
from persist.core.log.framing import BlobRef, Framed, encode_object, fetch_framed, get_decoder
from persist.core.log.keys import (
    check_keys,
    check_unused,
    get_shared_folders,
    make_directory_prefix,
    parse_directory_seqno,
    parse_state_collection,
)
from persist.core.log.kinds import AnyCollectionMutation, BringsParts, LeavesUnused
from persist.core.log.records import strip_part_list
from persist.core.names import check_name, is_id
from persist.core.state_rules.contents import CollectionState
from persist.core.state_rules.frozen_map import FrozenMap, merge_sorted
from persist.core.state_rules.location import LocationState
from persist.core.state_rules.state import CollectionEntry, State
from persist.engine.follow.directory_pages import Pages, Table, Writing, check_objects, rewrite_table
from persist.engine.follow.state_objects import KnownContents

INLINE_BYTES_MAX = 64 * 1024
RATIO = 2
LEVELS_MAX = 64
SPARE_LEVELS = 8  # Fewer than these are left before all is written anew.
WHOLE_BYTES_MAX = 4 << 20  # A larger object is written as pages.
PAGES = 9  # The number of a location from which on it may have pages,
OBJECT_BYTES_MAX = 1 << 30  # A larger object is neither written nor read.

_key = itemgetter(0)


class DirectoryEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The entry of one collection, as a directory stores it."""

    id: str
    name: str
    base: BlobRef | None = None
    pending: tuple[AnyCollectionMutation, ...] = ()
    leased: tuple[tuple[str, str], ...] = ()
    folders: tuple[str, ...] = ()
    levels: tuple[BlobRef, ...] = ()


class DirectoryObject(Framed, frozen=True, kw_only=True, tag="directory"):
    """A stored object of the directory: the collections that changed since the earlier objects.

    A small object has the changed entries in `collections`, and the ids of dropped collections in `gone`. A large one
    lists pages instead: `entries` by id, and `names` with ids by name; null marks dropped ones. If an earlier object
    has pages, `freed` lists the former names that no collection has now.
    """

    location: str
    seqno: Seqno
    collections: tuple[DirectoryEntry, ...]
    gone: tuple[str, ...] = ()
    freed: tuple[str, ...] | UnsetType = UNSET
    entries: tuple[Pages, ...] | UnsetType = UNSET
    names: tuple[Pages, ...] | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class Directory:
    """All collections, by id, and their ids by name."""

    entries: FrozenMap[CollectionEntry]
    ids: FrozenMap[str]

    def with_changes(
        self, collections: Iterable[DirectoryEntry], gone: Iterable[str], freed: Iterable[str] | UnsetType = UNSET
    ) -> "Directory":
        """Apply changes that were read; raise ValueError if no writer would make them."""
        is_paged = not self.entries.is_all_in_memory
        entries: dict[str, CollectionEntry | None] = {}
        for stored in collections:
            if stored.id in entries:
                raise ValueError(f"it lists the collection {stored.id} twice")
            entries[stored.id] = _read_entry(stored)
        for id_ in gone:
            if id_ in entries or not (is_paged or id_ in self.entries):
                reason = "also has an entry for it" if id_ in entries else "it did not exist"
                raise ValueError(f"it lists the collection {id_[:200]!r} as deleted, but {reason}")
            entries[id_] = None
        if is_paged is isinstance(freed, UnsetType):
            raise ValueError("it must list the freed names if earlier objects have pages, and only then")
        if isinstance(freed, UnsetType):
            freed = [self.entries[id_].name for id_ in entries if id_ in self.entries]
        ids: dict[str, str | None] = dict.fromkeys(freed)
        for entry in entries.values():
            if entry is not None:
                is_known = entry.name not in ids and not is_paged
                if (self.ids.get(entry.name) if is_known else ids.get(entry.name)) is not None:
                    raise ValueError("two collections have the same id or name")
                ids[entry.name] = entry.id
        return Directory(self.entries.with_changes(entries), self.ids.with_changes(ids))

    def changes_since(self, before: "Directory") -> "Changes":
        """Return the changes that turn another directory into this one."""
        return Changes(self.entries.changes_since(before.entries), self.ids.changes_since(before.ids))


@dataclass(frozen=True, slots=True)
class Changes:
    """The differences between two directories: entries by id and ids by name; None marks a deleted one."""

    entries: dict[str, CollectionEntry | None]
    ids: dict[str, str | None]

    @property
    def collections(self) -> tuple[DirectoryEntry, ...]:
        """The new and changed entries, in their stored form."""
        return tuple(_to_directory_entry(entry) for entry in self.entries.values() if entry is not None)

    @property
    def gone(self) -> tuple[str, ...]:
        """The ids of dropped collections."""
        return tuple(id_ for id_, entry in self.entries.items() if entry is None)

    def list_freed_names(self, levels: "Sequence[Level]") -> tuple[str, ...] | UnsetType:
        """Return the names that collections no longer have; UNSET if no older entry is in pages."""
        is_read = not levels or levels[-1].directory.entries.is_all_in_memory
        return UNSET if is_read else tuple(name for name, id_ in self.ids.items() if id_ is None)

    def encode_entries(self) -> Iterator[tuple[str, bytes]]:
        """Yield the ids, ascending, and the JSON of the entries."""
        for id_, entry in sorted(self.entries.items(), key=_key):
            yield id_, msgspec.json.encode(None if entry is None else _to_directory_entry(entry))

    def encode_names(self) -> Iterator[tuple[str, bytes]]:
        """Yield the names, ascending, and the JSON of the ids."""
        for name, id_ in sorted(self.ids.items(), key=_key):
            yield name, msgspec.json.encode(id_)


EMPTY = Directory(FrozenMap(), FrozenMap())


@dataclass(frozen=True, slots=True)
class Level:
    """One directory object, its pages if any, and the directory up to and including it."""

    pointer: BlobRef
    directory: Directory
    tables: tuple[Table[CollectionEntry], Table[str]] | None = None

    @property
    def bytes(self) -> int:
        """The size of its entries."""
        return self.pointer.bytes if self.tables is None else sum(pages.bytes for pages in self.tables[0].objects)

    @property
    def blobs(self) -> Iterator[str]:
        """The keys of the object and of its pages' objects."""
        yield self.pointer.blob
        yield from (pages.blob for table in self.tables or () for pages in table.objects)

    @property
    def seqno(self) -> int:
        """The seqno of the checkpoint that it was made for."""
        seqno = parse_directory_seqno(self.pointer.blob)
        assert seqno is not None, "pointers are checked when they are read"
        return seqno


class KnownLevels:
    """A cache of the levels that a client saw last, because later checkpoints name them again.

    `contents` caches the state objects that they point to. Both are immutable, and identified by checksum. Safe to use
    from many threads.

    `pool`: fetches several objects at once; None for one after the other.
    """

    def __init__(self, pool: Executor | None = None, cache: Cache | None = None) -> None:
        self._lock = threading.Lock()
        self._pool = pool
        self._levels: tuple[Level, ...] = ()
        self.contents = KnownContents(pool, cache)

    def read(self, blob: Blob, location: str, pointers: Sequence[BlobRef]) -> tuple[Level, ...]:
        """Return the levels that a checkpoint points to. Cost: a GET for each uncached one, in parallel.

        Raises:
            MissingBlob, CorruptBlob: a level is missing or damaged.
        """
        levels: list[Level] = []
        for level, pointer in zip(self._levels, pointers, strict=False):
            if level.pointer != pointer:
                break
            levels.append(level)
        for pointer, stored in fetch_framed(blob, pointers[len(levels) :], DirectoryObject, self._pool):
            levels.append(_make_level(blob, stored, location, pointer, levels))
        return self.keep(levels)

    def keep(self, levels: Iterable[Level]) -> tuple[Level, ...]:
        """Remember the levels of a checkpoint, and forget all others."""
        with self._lock:
            self._levels = tuple(levels)
            return self._levels


def list_reusable_levels(levels: tuple[Level, ...], control: LocationState) -> tuple[Level, ...]:
    """Return the levels that a new checkpoint may reuse.

    None may be reused if the oldest is older than the log floor, or than the last erasure.
    """
    last_erasure = control.erasures[-1][0] if control.erasures else 0
    return () if levels and levels[0].seqno < max(control.log_floor, last_erasure) else levels


@dataclass(frozen=True, slots=True)
class NewDirectory:
    """The directory of a new checkpoint, in stored form.

    Attributes:
        levels: the directory objects that it points to, oldest first.
        collections, gone: the changes after these objects.
    """

    levels: tuple[Level, ...]
    collections: tuple[DirectoryEntry, ...] = ()
    gone: tuple[str, ...] = ()
    freed: tuple[str, ...] | UnsetType = UNSET


def store_directory(
    blob: Blob,
    state: State,
    directory: Directory,
    levels: tuple[Level, ...],
    reused: tuple[Level, ...],
    store: Callable[[str, bytes], object],
) -> NewDirectory:
    """Return the directory of a new checkpoint, which extends the last of levels.

    The state objects of changed entries must be stored already. New directory objects are passed to store first, one at
    a time. Cost: proportional to the changes, and to the levels that are merged with them.

    Args:
        levels: the levels of the checkpoint that the new one extends.
        reused: the levels that may be reused: all of them, or none.
    """
    assert state.location is not None
    changes = directory.changes_since(levels[-1].directory if levels else EMPTY)
    size = _measure_entries(changes.collections)
    if size <= INLINE_BYTES_MAX and len(reused) == len(levels):
        return NewDirectory(reused, changes.collections, changes.gone, changes.list_freed_names(reused))
    while reused and reused[-1].bytes < RATIO * size:
        size += reused[-1].bytes
        reused = reused[:-1]
    if len(reused) + SPARE_LEVELS >= LEVELS_MAX:
        reused = ()
    is_paged = any(level.tables for level in levels[len(reused) :])
    if not is_paged:
        changes = directory.changes_since(reused[-1].directory if reused else EMPTY)
        size = _measure_entries(changes.collections)
        if not reused and size <= INLINE_BYTES_MAX:
            return NewDirectory((), changes.collections, changes.gone)
        is_paged, levels = size > WHOLE_BYTES_MAX and state.format >= PAGES, reused
    stored = DirectoryObject(format=state.format, location=state.location, seqno=state.seqno, collections=())
    if is_paged:
        stored = _store_pages(stored, changes, levels, len(reused), store)
    else:
        stored = msgspec.structs.replace(
            stored, collections=changes.collections, gone=changes.gone, freed=changes.list_freed_names(reused)
        )
    pointer, data = encode_object(make_directory_prefix(state.seqno), stored)
    if len(data) > OBJECT_BYTES_MAX:
        raise InvalidUsage(
            f"a directory of {len(changes.entries):,} collections takes {len(data):,} bytes, and format {state.format} "
            f"allows {OBJECT_BYTES_MAX:,}: run `persist upgrade {blob.url}`"
        )
    store(pointer.blob, data)
    new_levels = (*reused, _make_level(blob, stored, state.location, pointer, reused, directory))
    return NewDirectory(new_levels, freed=Changes({}, {}).list_freed_names(new_levels))


def _store_pages(
    stored: DirectoryObject,
    changes: Changes,
    levels: Sequence[Level],
    reused_count: int,
    store: Callable[[str, bytes], object],
) -> DirectoryObject:
    """Store pages of the changes and the levels that are not reused; return the directory object."""
    entries, names = changes.encode_entries(), changes.encode_names()
    tables = None
    for n in range(len(levels) - 1, reused_count - 1, -1):
        tables = levels[n].tables
        if tables is None:
            older = levels[n].directory.changes_since(levels[n - 1].directory if n else EMPTY)
            entries, names = merge_sorted(entries, older.encode_entries()), merge_sorted(names, older.encode_names())
        elif n > reused_count:
            entries, names = (
                merge_sorted(entries, tables[0].iterate_json()),
                merge_sorted(names, tables[1].iterate_json()),
            )
    oldest = tables or (None, None)
    return msgspec.structs.replace(
        stored,
        entries=rewrite_table(Writing(stored.seqno, store), entries, oldest[0], keeps_gone=reused_count > 0),
        names=rewrite_table(Writing(stored.seqno, store), names, oldest[1], keeps_gone=reused_count > 0),
    )


def _to_directory_entry(entry: CollectionEntry) -> DirectoryEntry:
    """Return an entry as the directory stores it."""
    assert not isinstance(entry.base, CollectionState), "a base that is not stored has been stored before"
    pending = tuple(map(strip_part_list, entry.pending))
    return DirectoryEntry(entry.id, entry.name, entry.base, pending, entry.leased, entry.folders, entry.levels)


def _measure_entries(collections: tuple[DirectoryEntry, ...]) -> int:
    """Return the size of entries as JSON, in bytes."""
    return len(msgspec.json.encode(collections))


def _make_level(
    blob: Blob,
    stored: DirectoryObject,
    location: str,
    pointer: BlobRef,
    levels: Sequence[Level],
    directory: Directory | None = None,
) -> Level:
    """Return the level of a directory object. `directory`: the directory up to it, if the caller has it."""
    if (stored.location, stored.seqno) != (location, parse_directory_seqno(pointer.blob)):
        raise CorruptBlob(pointer.blob, "it belongs to another location or checkpoint, so blobs were exchanged")
    directory_before = levels[-1].directory if levels else EMPTY
    try:
        if isinstance(stored.entries, UnsetType) or isinstance(stored.names, UnsetType):
            if directory is None or not directory.entries.shares_base_with(directory_before.entries):
                directory = directory_before.with_changes(stored.collections, stored.gone, stored.freed)
            return Level(pointer, directory)
        if stored.collections or stored.gone or not isinstance(stored.freed, UnsetType):
            raise ValueError("it has pages, and also entries of its own")
        for objects in (stored.entries, stored.names):
            check_objects(objects, stored.seqno)
    except ValueError as error:
        raise CorruptBlob(pointer.blob, f"no writer would make it: {error}") from error
    entries = Table(blob, stored.entries, _decode_entry, directory_before.entries)
    names = Table(blob, stored.names, _decode_id, directory_before.ids)
    return Level(pointer, Directory(FrozenMap(below=entries), FrozenMap(below=names)), (entries, names))


def _decode_entry(id_: str, data: bytes) -> CollectionEntry:
    """Decode an entry of a page, and check its id."""
    entry = _read_entry(get_decoder(DirectoryEntry).decode(data))
    if entry.id != id_:
        raise ValueError(f"the entry of collection {id_[:200]} has the id {entry.id}")
    return entry


def _decode_id(name: str, data: bytes) -> str:
    """Decode the id of a name's page entry."""
    check_name(name)
    id_ = get_decoder(str).decode(data)
    if not is_id(id_):
        raise ValueError(f"{id_[:200]!r} is not the id of a collection: 32 hex digits")
    return id_


def check_pointers(pointers: Sequence[BlobRef], seqno: int) -> None:
    """Raise ValueError if a checkpoint at seqno cannot have these pointers to directory objects."""
    seqnos = [parse_directory_seqno(pointer.blob) for pointer in pointers]
    if len(seqnos) > LEVELS_MAX or any(number is None or number > seqno for number in seqnos):
        raise ValueError("it points to too many directory objects, or to one that no earlier checkpoint has")


def _read_entry(entry: DirectoryEntry) -> CollectionEntry:
    """Convert a stored entry; raise ValueError if no writer would make it."""
    _check_entry(entry)
    return CollectionEntry(
        entry.id, entry.name, entry.base, entry.pending, None, entry.leased, entry.folders, entry.levels
    )


def _check_entry(entry: DirectoryEntry) -> None:
    """Raise ValueError if an entry breaks an invariant."""
    if not is_id(entry.id):
        raise ValueError(f"{entry.id[:200]!r} is not the id of a collection: 32 hex digits")
    check_name(entry.name)
    for pointer in (entry.base, *entry.levels) if entry.base is not None or entry.levels else ():
        if pointer is None or parse_state_collection(pointer.blob) != entry.id:
            raise ValueError(f"{pointer!r:.200} does not name a state object of collection {entry.id}")
    if len(entry.levels) >= LEVELS_MAX:
        raise ValueError(f"collection {entry.id} has {len(entry.levels)} state objects after the first")
    renames = [mutation.name for mutation in entry.pending if isinstance(mutation, kinds.Rename)]
    if renames and renames[-1] != entry.name:
        raise ValueError(
            f"collection {entry.id} has the name {entry.name!r:.200}, and was last renamed to {renames[-1]!r:.200}"
        )
    for n, mutation in enumerate(entry.pending):
        makes = isinstance(mutation, kinds.Makes) and (bool(renames) or mutation.name == entry.name)
        if (
            mutation.collection != entry.id
            or makes != (entry.base is None and n == 0)
            or isinstance(mutation, kinds.Destroy)
        ):
            raise ValueError(f"mutation {n} of collection {entry.id} is not allowed there")
        if isinstance(mutation, BringsParts):
            check_keys(mutation)
            if not set(entry.folders).issuperset(get_shared_folders(mutation)):
                raise ValueError(f"the clone {entry.id} has parts of collections that its entry does not name")
        if isinstance(mutation, LeavesUnused):
            check_unused(mutation, entry.folders)
    if not all(map(is_id, entry.folders)) or [*entry.folders] != sorted({*entry.folders} - {entry.id}):
        raise ValueError(
            f"the parts of collection {entry.id} are in folders that are not ids of other collections, or not sorted"
        )
    if entry.base is None and not entry.pending:
        raise ValueError(f"collection {entry.id} has neither state objects nor mutations")
    holds = [hold for hold, _ in entry.leased]
    if len(set(holds)) < len(holds) or not all(is_id(hold) and is_id(lease) for hold, lease in entry.leased):
        raise ValueError(f"the leased holds of collection {entry.id} are not ids, or one of them is there twice")


def check_leases(directory: Directory, leases: Mapping[str, object]) -> None:
    """Raise ValueError if a hold of a loaded collection refers to a missing lease."""
    for _, entry in directory.entries.iterate_in_memory():
        if entry.leased and not all(lease in leases for _, lease in entry.leased):
            raise ValueError(f"a hold of collection {entry.id} names a lease that does not exist")
