"""What checkpoints name: directory objects, state objects and part lists; and what collections name: their blobs.

`persist.engine.upkeep.garbage` says why an object that these do not name is never named again. Two invariants are
checked here
before anything of that kind is deleted: whatever the newest checkpoint names is there, and nothing that it names is
among what is about to be deleted. Both are read from the store each time, and no earlier listing is believed.

Checkpoints but the newest say the same for as long as they are kept, which is one for each hour of the log. So what
they name is remembered between two collections of garbage, by the checksum of each: reading all directory objects of a
week, for a thousand collections, took ten times as long as all else that a collector does. Hashes are remembered,
and not names. Two names with one hash keep an object that nobody needs, and never cost one that somebody does.
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
    checkpoint_key,
    collection_part,
    directory_seqno,
    pages_seqno,
    state_seqno,
    uploaded_seqno,
)
from persist.core.log.kinds import BringsParts
from persist.core.state_rules.frozen_map import FrozenMap
from persist.core.state_rules.location import Dropped
from persist.core.state_rules.state import CollectionEntry, State
from persist.engine.follow.checkpoint import (
    Checkpoint,
    StoredCheckpoint,
    checkpoint_state,
    directory_blobs,
    load_contents,
    read_checkpoint,
    stored_checkpoint,
    stored_checkpoints,
)
from persist.engine.follow.directory import KnownLevels

REMEMBERED_MAX = 4_000_000  # Names of all checkpoints together, of 8 bytes each.
ALL_AGAIN_S = 24 * 3600.0  # After this, all parts are looked at again.
SAME_TIME_S = 60.0  # Dates of the store that differ by less may be in another order than what they date.

OBJECTS = {"directories": DIRECTORIES, "states": STATES, "lists": LISTS}


@dataclass(frozen=True)
class CheckedUploads:
    """What a collection of garbage found of the parts of all collections, so that the next one looks at others.

    A part that a collection names is in use until a record says that it is not. That record names the part, and
    whoever collects finds it there. Where clones have, or had, parts in a folder, its parts are looked at each time:
    what a clone leaves unused in the folder of another collection is told by no record. Where a collector learns too
    late of a clone, or an upload has an older date than it should, a part stays until all are looked at again.

    Attributes:
        before_s: parts that the store dates before this were looked at; what it dates so later came while it listed.
        unnamed: those of them that nothing named, by key: they may have been too young, or their record may come yet.
        shared: folders in which clones have had parts.
        all_at_s: when all parts were looked at.
    """

    before_s: float = float("-inf")
    unnamed: frozenset[str] = frozenset()
    shared: frozenset[str] = frozenset()
    all_at_s: float = float("-inf")

    def at(self, now_s: float) -> "CheckedUploads":
        """Return what is to be believed at a time by the store's clock: nothing once all are to be looked at again."""
        return self if now_s - self.all_at_s < ALL_AGAIN_S else CheckedUploads(shared=self.shared, all_at_s=now_s)

    def after(self, now_s: float, unnamed: Iterable[str], shared: Iterable[str]) -> "CheckedUploads":
        """Return what is known after a collection that began at that time."""
        return CheckedUploads(now_s - SAME_TIME_S, frozenset(unnamed), self.shared.union(shared), self.all_at_s)

    def is_due(self, entry: BlobEntry, folder: str) -> bool:
        """Return whether to look if a part is named."""
        return entry.modified_s >= self.before_s or entry.key in self.unnamed or folder in self.shared


class KnownNames:
    """What is remembered of one location from one collection of garbage to the next.

    Attributes:
        hashes: of what the kept checkpoints name, but for the newest: int64[names] by their pointers.
        uploads: which parts were looked at.
    """

    def __init__(self) -> None:
        self.hashes: dict[BlobRef, np.ndarray] = {}
        self.uploads = CheckedUploads()


class Names:
    """Reads what the checkpoints of one location name. Memory: the directory levels that it has read."""

    def __init__(self, blob: Blob, known: KnownNames | None = None) -> None:
        """Make one; known is what was read in earlier rounds, and gets what is read in this one."""
        self._blob = blob
        self.known = known or KnownNames()
        self._levels = KnownLevels()
        self._oldest: dict[str, int] = {}

    def newest(self) -> StoredCheckpoint | None:
        """Return the checkpoint that is the newest now, or was so after this was called; None if there is none."""
        return next(stored_checkpoints(self._blob), None)

    def named_by(self, checkpoint: Checkpoint) -> set[str]:
        """Return the names of all directory objects, state objects and part lists that a checkpoint refers to."""
        entries = checkpoint_state(self._blob, checkpoint, self._levels).entries
        return directory_blobs(self._blob, checkpoint, self._levels) | set(_named_by(entries))

    def oldest_in(self, key: str) -> int:
        """Return the least seqno of a checkpoint and the directory objects that it names; -1 if it is gone."""
        if key not in self._oldest:
            checkpoint = read_checkpoint(self._blob, key)
            levels = () if checkpoint is None else checkpoint.directory
            seqnos = [directory_seqno(pointer.blob) or 0 for pointer in levels]
            self._oldest[key] = -1 if checkpoint is None else min([checkpoint.seqno, *seqnos])
        return self._oldest[key]

    def named_by_others(
        self, seqnos: Iterable[int], newest: StoredCheckpoint, present: set[str]
    ) -> tuple[set[str], set[str]]:
        """Return what of present the checkpoints at seqnos, but the newest, name; and which of them name what is gone.

        These came late, when there were newer ones already, and cannot be used.

        Args:
            present: names that have been listed.
        """
        keys = [*present]
        listed = _hashes(keys)
        named: list[np.ndarray] = []
        useless: set[str] = set()
        known: dict[BlobRef, np.ndarray] = {}
        before = FrozenMap[CollectionEntry]()
        remembered = 0
        for key in map(checkpoint_key, seqnos):
            stored = stored_checkpoint(self._blob, key) if key != newest.pointer.blob else None
            if stored is None:
                continue  # Or others have collected it: it was not the newest.
            hashes = self.known.hashes.get(stored.pointer)
            if hashes is None or not np.isin(hashes, listed).all():
                try:
                    entries = checkpoint_state(self._blob, stored.checkpoint, self._levels).entries
                except MissingBlob:
                    useless.add(key)
                    continue
                is_whole = remembered < REMEMBERED_MAX
                # What others name that were read in this round has been looked at.
                new = entries if is_whole else entries.changes_since(before)
                before = entries
                ours = directory_blobs(self._blob, stored.checkpoint, self._levels) | set(_named_by(new))
                if any(self._blob.get(missing, range=(0, 0)) is None for missing in ours - present):
                    useless.add(key)
                hashes = _hashes(ours)
                if not is_whole or remembered + len(hashes) > REMEMBERED_MAX:
                    named.append(hashes)
                    continue
            named.append(hashes)
            known[stored.pointer] = hashes
            remembered += len(hashes)
        self.known.hashes = known
        is_named = np.isin(listed, np.concatenate([np.empty(0, np.int64), *named]))
        return {keys[n] for n in np.flatnonzero(is_named)}, useless

    def check_present(self, named: set[str], present: set[str]) -> None:
        """Raise MissingBlob if the newest checkpoint names what is not there."""
        if all(key in present for key in named):
            return
        newest = self.newest()  # Others may have made a newer one, and collected, since the listing began.
        for key in sorted(self.named_by(newest.checkpoint) - present if newest is not None else ()):
            if self._blob.get(key, range=(0, 0)) is None:
                assert newest is not None
                raise MissingBlob(key, f"it is missing, and {newest.pointer.blob} names it", MADE_AGAIN)

    def check_unnamed(self, doomed: Iterable[str]) -> None:
        """Raise CorruptBlob if the newest checkpoint names what is about to be deleted: then something is wrong."""
        newest = self.newest()
        wrong = self.named_by(newest.checkpoint).intersection(doomed) if newest is not None else set()
        if newest is not None and wrong:
            raise CorruptBlob(
                newest.pointer.blob,
                f"it names {min(wrong)}, which no checkpoint from {newest.checkpoint.control.taken_over} on can name, "
                "so it was made against the rules, and nothing more was deleted",
                "Stop the client that made it; `persist log` says who wrote the records before it",
            )


def _hashes(names: Collection[str]) -> np.ndarray:
    return np.fromiter(map(hash, names), np.int64, len(names))


def sharers(state: State) -> dict[str, list[CollectionEntry]]:
    """Return by folder the other collections that may have parts in it: clones."""
    shares: dict[str, list[CollectionEntry]] = {}
    for _, entry in state.entries.each():
        for folder in entry.folders:
            shares.setdefault(folder, []).append(entry)
    return shares


def named_in(blob: Blob, state: State, folder: str, shares: Mapping[str, Sequence[CollectionEntry]]) -> set[str]:
    """Return the blobs in the folder of a collection that it names, or a clone. Memory: one part list of these.

    Args:
        shares: of `sharers`.
    """
    assert state.location is not None
    owner = state.entries.get(folder)
    named: set[str] = set()
    for known in (*([] if owner is None else [owner]), *shares.get(folder, ())):
        contents = load_contents(blob, state.location, known).contents
        assert contents is not None
        named.update(key for key in contents.named_blobs if collection_part(key) == folder)
    return named


def unnamed_parts(blob: Blob, state: State, checked: CheckedUploads) -> tuple[list[BlobEntry], set[str]]:
    """Return the parts that no collection names, of those that are to be looked at; and where clones have parts.

    Parts that compaction left unused are among them; those of a collection that was destroyed are not. Where that one,
    or a clone, had parts is among the folders: others may be left there when it is forgotten.

    Cost: a LIST of all parts, and the contents of the collections of those that are looked at.
    """
    waiting = {folder for dropped in state.control.dropped for folder in whole_folders(dropped)}
    shares = sharers(state)
    unnamed: list[BlobEntry] = []
    for folder, entries in groupby(blob.list(PARTS), lambda entry: collection_part(entry.key)):
        if folder in waiting:
            continue
        due = [entry for entry in entries if folder in shares or checked.is_due(entry, folder)]
        if due:
            named = named_in(blob, state, folder, shares)
            unnamed += [entry for entry in due if entry.key not in named]
    return unnamed, {*shares, *waiting}


def whole_folders(dropped: Dropped) -> tuple[str, ...]:
    """Return the folders in which a destroyed collection may have had parts; those that were dropped alone are told."""
    return (dropped.collection, *dropped.folders) if dropped.is_destroyed else ()


def object_seqno(key: str) -> int | None:
    """Return the seqno in the name of an object of a directory, a state or a part list; None if it is none of them."""
    return next(
        (n for of in (directory_seqno, pages_seqno, state_seqno, uploaded_seqno) if (n := of(key)) is not None), None
    )


def _named_by(entries: Mapping[str, CollectionEntry | None]) -> Iterator[str]:
    """Yield the state objects and part lists that entries of a checkpoint refer to."""
    for _, entry in entries.each() if isinstance(entries, FrozenMap) else entries.items():
        if entry is not None:
            lists = (m.parts_in for m in entry.pending if isinstance(m, BringsParts))
            yield from (pointer.blob for pointer in (*entry.stored, *lists) if pointer is not None)
