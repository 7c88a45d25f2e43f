"""References to blobs: from checkpoints to objects and part lists, and from collections to their blobs.

`persist.engine.upkeep.garbage` proves that an object without such a reference never gets one again. Before objects are
deleted, two invariants are checked against the store, not against an earlier listing. All objects that the newest
checkpoint names exist, and none of them is about to be deleted.

Older checkpoints do not change, and one for each hour of the log stays. So the names in each are cached between two
garbage collections, by its checksum. Without this, reading the directory objects of a week took ten times as long as
the rest of a collection, with a thousand collections. Hashes are cached instead of names. If two names have one hash,
an unused object stays; a used object is never deleted.

Pages of a large directory do not change either. So the collector caches the names in each object of pages, and reads
only new objects. The names in a replaced entry count until its page is rewritten, which happens before the page is
older than the log.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from persist.blob.errors import CorruptBlob, MissingBlob
from persist.blob.protocol import Blob, BlobEntry
from persist.core.log.framing import MADE_AGAIN, BlobRef
from persist.core.log.keys import (
    DIRECTORIES,
    LISTS,
    PARTS,
    STATES,
    get_second_part,
    make_checkpoint_key,
    parse_directory_seqno,
    parse_pages_seqno,
    parse_state_seqno,
    parse_upload_seqno,
)
from persist.core.log.kinds import BringsParts
from persist.core.state_rules.frozen_map import FrozenMap
from persist.core.state_rules.location import Dropped
from persist.core.state_rules.state import CollectionEntry, State
from persist.engine.follow.checkpoint import (
    Checkpoint,
    StoredCheckpoint,
    iterate_checkpoints,
    list_directory_blobs,
    load_checkpoint,
    load_contents,
    load_state,
    read_checkpoint,
)
from persist.engine.follow.directory import KnownLevels
from persist.engine.follow.directory_pages import Pages, Table

REMEMBERED_MAX = 4_000_000  # Names in all checkpoints together, of 8 bytes each.
MENTIONED_BYTES_MAX = 32 << 20  # For the remembered names of pages.
ALL_AGAIN_S = 24 * 3600.0  # After this, all parts are looked at again.
SAME_TIME_S = 60.0  # The store's dates of blobs may be out of order by this much.

OBJECTS = {"directories": DIRECTORIES, "states": STATES, "lists": LISTS}


@dataclass(frozen=True)
class CheckedUploads:
    """The uploaded parts that a garbage collection has checked, so that the next one skips them.

    A part that a collection names is in use until a record drops it by name, and the collector finds it in that record.
    A folder with parts of clones is different: no record names the parts that a clone leaves unused there. So these
    folders are checked each time. If a collector sees a clone too late, or an upload has too old a date, a part stays
    until all are checked again.

    Attributes:
        before_s: parts with an older date were checked.
        unnamed: the keys of unnamed uploads that are too young, or whose record may follow.
        shared: folders in which clones have had parts.
        all_at_s: when all parts were checked.
    """

    before_s: float = float("-inf")
    unnamed: frozenset[str] = frozenset()
    shared: frozenset[str] = frozenset()
    all_at_s: float = float("-inf")

    def drop_if_due(self, now_s: float) -> "CheckedUploads":
        """Return this, or an empty object if all parts are due again, by the store's clock."""
        return self if now_s - self.all_at_s < ALL_AGAIN_S else CheckedUploads(shared=self.shared, all_at_s=now_s)

    def update(self, now_s: float, unnamed: Iterable[str], shared: Iterable[str]) -> "CheckedUploads":
        """Return the state after a garbage collection that began at that time."""
        return CheckedUploads(now_s - SAME_TIME_S, frozenset(unnamed), self.shared.union(shared), self.all_at_s)

    def is_due(self, entry: BlobEntry, folder: str) -> bool:
        """Return whether to check a part."""
        return entry.modified_s >= self.before_s or entry.key in self.unnamed or folder in self.shared


class KnownNames:
    """The names in checkpoints that a collector caches between two garbage collections.

    Attributes:
        hashes: the hashes of the names in each checkpoint but the newest, int64[names], by its pointer.
        mentioned: for each object of pages, by its key: the names of objects in its entries, joined by newlines, and
            the ids of entries with parts in other folders.
        uploads: the checked parts.
    """

    def __init__(self) -> None:
        self.hashes: dict[BlobRef, np.ndarray] = {}
        self.mentioned: dict[str, tuple[str, tuple[str, ...]]] = {}
        self.uploads = CheckedUploads()


class Names:
    """Reads the names in checkpoints of one location. Memory: the directory levels that were read."""

    def __init__(self, blob: Blob, known: KnownNames | None = None) -> None:
        """Begin with the cache of earlier rounds, which it updates."""
        self._blob = blob
        self.known = known or KnownNames()
        self._levels = KnownLevels()
        self._oldest: dict[str, int] = {}
        self._earlier, self.known.mentioned = self.known.mentioned, {}

    def get_newest_checkpoint(self) -> StoredCheckpoint | None:
        """Return the newest checkpoint; None if none exists."""
        return next(iterate_checkpoints(self._blob), None)

    def list_named(self, checkpoint: Checkpoint) -> set[str]:
        """Return the keys of all objects and part lists that a checkpoint refers to."""
        entries = load_state(self._blob, checkpoint, self._levels).entries
        return list_directory_blobs(self._blob, checkpoint, self._levels) | set(_list_stored(entries))

    def list_mentioned(self, checkpoint: Checkpoint) -> set[str]:
        """Return the keys of `list_named`, and those that only outdated entries in its pages name."""
        names = list_directory_blobs(self._blob, checkpoint, self._levels)
        for entries, mentioned in self._iterate_layers(load_state(self._blob, checkpoint, self._levels).entries):
            names.update(_list_stored(dict(entries.iterate_in_memory())))
            names.update(name for joined, _ in mentioned for name in joined.split())
        return names

    def list_clones(self, state: State) -> list[str]:
        """Return the ids of collections that may have parts in the folders of other collections."""
        ids: list[str] = []
        for entries, mentioned in self._iterate_layers(state.entries):
            ids += (id_ for id_, entry in entries.iterate_in_memory() if entry.folders)
            ids += (id_ for _, clones in mentioned for id_ in clones)
        return ids

    def _iterate_layers(
        self, entries: FrozenMap[CollectionEntry]
    ) -> Iterator[tuple[FrozenMap[CollectionEntry], list[tuple[str, tuple[str, ...]]]]]:
        """Yield each map of entries in memory, newest first, with the names in the pages below it."""
        while (table := entries.below) is not None:
            assert isinstance(table, Table), "only pages lie below entries"
            yield entries, [self._read_mentioned(table, pages) for pages in table.objects]
            entries = table.before
        yield entries, []

    def _read_mentioned(self, table: Table[CollectionEntry], pages: Pages) -> tuple[str, tuple[str, ...]]:
        """Return the item of `KnownNames.mentioned` for an object of pages. Cost: a GET if it is not cached."""
        mentioned = self.known.mentioned.get(pages.blob) or self._earlier.get(pages.blob)
        if mentioned is None:
            entries = {entry.id: entry for entry in table.iterate_values(pages)}
            clones = tuple(id_ for id_, entry in entries.items() if entry.folders)
            mentioned = "\n".join(_list_stored(entries)), clones
        if sum(len(names) for names, _ in self.known.mentioned.values()) + len(mentioned[0]) <= MENTIONED_BYTES_MAX:
            self.known.mentioned[pages.blob] = mentioned
        return mentioned

    def get_least_seqno(self, key: str) -> int:
        """Return the least seqno of a checkpoint and its directory objects; -1 if it was deleted."""
        if key not in self._oldest:
            checkpoint = read_checkpoint(self._blob, key)
            levels = () if checkpoint is None else checkpoint.directory
            seqnos = [parse_directory_seqno(pointer.blob) or 0 for pointer in levels]
            self._oldest[key] = -1 if checkpoint is None else min([checkpoint.seqno, *seqnos])
        return self._oldest[key]

    def list_older(
        self, seqnos: Iterable[int], newest: StoredCheckpoint, present: set[str]
    ) -> tuple[set[str], set[str]]:
        """Return the present objects that older checkpoints name, and the keys of useless checkpoints.

        A useless checkpoint names a deleted object: it was stored when newer checkpoints existed.

        Args:
            seqnos: the seqnos of all checkpoints; the newest one is skipped.
            present: keys that were listed.
        """
        keys = [*present]
        listed = _hash_names(keys)
        named: list[np.ndarray] = []
        useless: set[str] = set()
        hashes_by_pointer: dict[BlobRef, np.ndarray] = {}
        remembered = 0
        for key in map(make_checkpoint_key, seqnos):
            stored = load_checkpoint(self._blob, key) if key != newest.pointer.blob else None
            if stored is None:
                continue  # Another collector may have deleted it.
            hashes = self.known.hashes.get(stored.pointer)
            if hashes is None or not np.isin(hashes, listed).all():
                try:
                    ours = self.list_mentioned(stored.checkpoint)
                    if not ours <= present:
                        ours = self.list_named(stored.checkpoint)
                except MissingBlob:
                    useless.add(key)
                    continue
                if any(self._blob.get(missing, range=(0, 0)) is None for missing in ours - present):
                    useless.add(key)
                hashes = _hash_names(ours)
            named.append(hashes)
            if remembered + len(hashes) <= REMEMBERED_MAX:
                hashes_by_pointer[stored.pointer] = hashes
                remembered += len(hashes)
        self.known.hashes = hashes_by_pointer
        is_named = np.isin(listed, np.concatenate([np.empty(0, np.int64), *named]))
        return {keys[n] for n in np.flatnonzero(is_named)}, useless

    def check_present(self, named: set[str], present: set[str]) -> None:
        """Raise MissingBlob if the newest checkpoint names an object that does not exist."""
        if all(key in present for key in named):
            return
        newest = (
            self.get_newest_checkpoint()
        )  # There may be a newer one, and another collection, since the listing began.
        for key in sorted(self.list_named(newest.checkpoint) - present if newest is not None else ()):
            if self._blob.get(key, range=(0, 0)) is None:
                assert newest is not None
                raise MissingBlob(key, f"it is missing, and {newest.pointer.blob} names it", MADE_AGAIN)

    def check_unnamed(self, doomed: Iterable[str]) -> None:
        """Raise CorruptBlob if the newest checkpoint names a blob in `doomed`, which will be deleted."""
        newest = self.get_newest_checkpoint()
        wrong = self.list_mentioned(newest.checkpoint).intersection(doomed) if newest is not None else set()
        if newest is not None and wrong and (wrong := wrong & self.list_named(newest.checkpoint)):
            raise CorruptBlob(
                newest.pointer.blob,
                f"it names {min(wrong)}, which no checkpoint from {newest.checkpoint.control.taken_over} on can name, "
                "so it was made against the rules, and nothing more was deleted",
                "Stop the client that made it; `persist log` says who wrote the records before it",
            )


def _hash_names(names: Collection[str]) -> np.ndarray:
    return np.fromiter(map(hash, names), np.int64, len(names))


def find_sharers(state: State, clones: Iterable[str] | None = None) -> dict[str, list[CollectionEntry]]:
    """Return the clones that may have parts in the folders of other collections, by folder.

    `clones`: the ids of all clones, and maybe of others; None to read all entries.
    """
    shares: dict[str, list[CollectionEntry]] = {}
    entries: Iterable[tuple[str, CollectionEntry | None]] = state.entries.iterate_all()
    if clones is not None:
        entries = ((id_, state.entries.get(id_)) for id_ in {*clones})
    for _, entry in entries:
        if entry is not None:
            for folder in entry.folders:
                shares.setdefault(folder, []).append(entry)
    return shares


def list_named(blob: Blob, state: State, folder: str, shares: Mapping[str, Sequence[CollectionEntry]]) -> set[str]:
    """Return the blobs in a collection's folder that it or a clone names. Memory: one part list.

    `shares`: the result of `find_sharers`.
    """
    assert state.location is not None
    owner = state.entries.get(folder)
    named: set[str] = set()
    for entry in (*([] if owner is None else [owner]), *shares.get(folder, ())):
        contents = load_contents(blob, state.location, entry).contents
        assert contents is not None
        named.update(key for key in contents.named_blobs if get_second_part(key) == folder)
    return named


def find_unnamed(
    blob: Blob, state: State, checked: CheckedUploads, clones: Iterable[str]
) -> tuple[list[BlobEntry], set[str]]:
    """Return the parts that no collection names, among those to check now, and the shared folders.

    Parts that compaction left unused are included. Parts of destroyed collections are not: their folders, and the
    folders with parts of clones, count as shared.

    Cost: a LIST of all parts, and the contents of each collection with a part that is due.
    """
    waiting = {folder for dropped in state.control.dropped for folder in list_folders(dropped)}
    shares = find_sharers(state, clones)
    unnamed: list[BlobEntry] = []
    for folder, entries in groupby(blob.list(PARTS), lambda entry: get_second_part(entry.key)):
        if folder in waiting:
            continue
        due = [entry for entry in entries if folder in shares or checked.is_due(entry, folder)]
        if due:
            named = list_named(blob, state, folder, shares)
            unnamed += [entry for entry in due if entry.key not in named]
    return unnamed, {*shares, *waiting}


def list_folders(dropped: Dropped) -> tuple[str, ...]:
    """Return the folders that may have parts of a destroyed collection; none for a drop of single blobs."""
    return (dropped.collection, *dropped.folders) if dropped.is_destroyed else ()


def parse_object_seqno(key: str) -> int | None:
    """Return the seqno in the key of an object or an upload; None for other keys."""
    return next(
        (
            n
            for of in (parse_directory_seqno, parse_pages_seqno, parse_state_seqno, parse_upload_seqno)
            if (n := of(key)) is not None
        ),
        None,
    )


def _list_stored(entries: Mapping[str, CollectionEntry | None]) -> Iterator[str]:
    """Yield the state objects and part lists that entries refer to."""
    for _, entry in entries.iterate_all() if isinstance(entries, FrozenMap) else entries.items():
        if entry is not None:
            lists = (m.parts_in for m in entry.pending if isinstance(m, BringsParts))
            yield from (pointer.blob for pointer in (*entry.stored, *lists) if pointer is not None)
