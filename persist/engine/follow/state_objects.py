"""Stores the state of one collection as objects, of which later ones have changes only.

    contents  =  [state object, state object, …]  +  the mutations since, in its entry of the directory
                  oldest, whole   changes to it

A collection may consist of very many parts, each with a descriptor of some 900 bytes, of which a commit touches a few.
So a state object either is whole, or has the changes since the earlier ones (`docs/inside/format.md`, "state"). Runs
and keyframes count as maps, by the number of the first part and by time. All maps have the order of the contents.

New changes are merged with each earlier object, also the whole one, that is less than `RATIO` times as large. So each
object is at least `RATIO` times as large as the next: there are few objects, and each change is rewritten a few times
for each object, however many parts there are. The whole object is also rewritten when less than half of its number of
parts is left. A state smaller than `WHOLE_BYTES_MAX` is always one whole object, as for most collections.

An older object may contain data that later ones remove. After an erasure, or a compaction that forgets history, no
earlier object is reused, so none keeps destroyed data (`persist.engine.follow.checkpoint`).

Rejected: to store the mutations themselves, because applying thousands of them takes seconds in a large collection.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from persist.blob.errors import CorruptBlob
from persist.blob.lru import Cache, Kind
from persist.blob.protocol import Blob
from persist.core.log.framing import BlobRef, Framed, encode_object, fetch_framed
from persist.core.log.keys import make_state_prefix
from persist.core.state_rules.contents import CollectionState
from persist.core.state_rules.state import CollectionEntry

LEVELS = 7  # The number of a location from which on its state objects need not be whole.
RATIO = 4
WHOLE_BYTES_MAX = 64 * 1024
LEAST_BYTES = 8 * 1024  # Changes count at least so many bytes, so that there are no tiny objects.
KNOWN_BYTES_MAX = 32 << 20  # The limit for cached state objects of all collections but the last one.


class Gone(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The deleted keys in the maps of a collection's state."""

    holds: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    queries: tuple[str, ...] = ()
    numbered: tuple[int, ...] = msgspec.field(name="parts", default=())
    history: tuple[int, ...] = ()
    keyframes: tuple[int, ...] = ()
    pending: tuple[int, ...] = ()
    published: tuple[str, ...] = ()
    kept: tuple[int, ...] = ()


class StateObject(Framed, frozen=True, kw_only=True, tag="state"):
    """The state of one collection at a seqno, or its changes since the earlier objects."""

    location: str
    collection: CollectionState
    gone: Gone | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class StateLevel:
    """One state object, and the state up to and including it."""

    pointer: BlobRef
    contents: CollectionState


class KnownContents:
    """A cache of the state objects of large collections, from which a client makes the next ones.

    They are immutable, and identified by the checksums of their bytes. Safe to use from many threads.

    Args:
        pool: fetches several objects at once; None for one after the other.
        cache: stores them; None for a new cache.
    """

    def __init__(self, pool: Executor | None = None, cache: Cache | None = None) -> None:
        self._pool = pool
        self._levels: Kind[str, tuple[StateLevel, ...]] = (cache or Cache(KNOWN_BYTES_MAX)).add_kind(
            lambda levels: sum(level.pointer.bytes for level in levels), share=1, is_needed=True
        )

    def read(self, blob: Blob, location: str, entry: CollectionEntry) -> tuple[StateLevel, ...]:
        """Return the levels that an entry points to. Cost: a GET for each uncached one, in parallel.

        Raises:
            MissingBlob, CorruptBlob: a state object is missing or damaged.
        """
        levels: list[StateLevel] = []
        known_levels = self._levels.get(entry.id) or ()
        for level, pointer in zip(known_levels, entry.stored, strict=False):
            if level.pointer != pointer:
                break
            levels.append(level)
        unread = entry.stored[len(levels) :]
        for pointer, stored in fetch_framed(blob, unread, StateObject, self._pool):
            if (stored.location, stored.collection.id) != (location, entry.id):
                raise CorruptBlob(pointer.blob, "it belongs to another collection, so blobs were exchanged")
            contents_before = levels[-1].contents if levels else None
            try:
                levels.append(StateLevel(pointer, apply_changes(contents_before, stored)))
            except ValueError as error:
                raise CorruptBlob(pointer.blob, f"no writer would make it: {error}") from error
        self.keep(entry.id, levels)
        return tuple(levels)

    def keep(self, collection: str, levels: Sequence[StateLevel]) -> None:
        """Replace the cached levels of a collection, unless the new ones are small."""
        if sum(level.pointer.bytes for level in levels) > WHOLE_BYTES_MAX:
            self._levels.put(collection, tuple(levels))
        else:
            self._levels.remove(collection)


def make_levels(
    location: str, seqno: int, contents: CollectionState, levels: Sequence[StateLevel], *, format: int
) -> tuple[tuple[StateLevel, ...], bytes]:
    """Return the state objects of a collection for a checkpoint at seqno, the last one new.

    The others are reused. Also return the bytes of the new object, which the caller must store before the checkpoint.
    Cost: O(parts) comparisons, and the encoding of the differences.
    """
    is_much_gone = bool(levels) and _estimate_size(contents) < _estimate_size(levels[0].contents) // 2
    reused_levels = [] if is_much_gone else [*levels]
    while True:
        stored = msgspec.structs.replace(
            encode_changes(location, contents, reused_levels[-1].contents if reused_levels else None), format=format
        )
        pointer, data = encode_object(make_state_prefix(contents.id, seqno), stored)
        if not reused_levels or reused_levels[-1].pointer.bytes >= RATIO * max(len(data), LEAST_BYTES):
            return (*reused_levels, StateLevel(pointer, contents)), data
        reused_levels.pop()


def encode_changes(location: str, contents: CollectionState, before: CollectionState | None) -> StateObject:
    """Return the state object with the changes from an earlier state, or a whole one without it."""
    if before is None:
        return StateObject(
            location=location, collection=msgspec.structs.replace(contents, numbered=dict(contents.numbered))
        )
    came: dict[str, Any] = {}
    gone_keys: dict[str, Any] = {}
    for name in _MAPS:
        now, then = _get_map(contents, name), _get_map(before, name)
        stays = _list_unmoved_first_keys(now, then)
        gone_keys[name] = tuple(key for key in then if key not in stays)
        changed = {key: v for key, v in now.items() if key not in stays or not (then[key] is v or then[key] == v)}
        came[name] = tuple(changed.values()) if name in _LISTS else changed
    changed_alone = msgspec.structs.replace(contents, **came)
    return StateObject(location=location, collection=changed_alone, gone=Gone(**gone_keys))


def apply_changes(before: CollectionState | None, stored: StateObject) -> CollectionState:
    """Apply a state object to an earlier state; raise ValueError if it does not fit."""
    if (stored.gone is UNSET) != (before is None):
        raise ValueError("the first state object of a collection is whole, and others say what changed")
    if before is None or isinstance(stored.gone, UnsetType):
        return stored.collection
    changed_lists: dict[str, Any] = {}
    for name in _MAPS:
        then, gone_keys = _get_map(before, name), getattr(stored.gone, name)
        if not (then.keys() >= set(gone_keys) and len(set(gone_keys)) == len(gone_keys)):
            raise ValueError(f"it removes an entry of {name} that did not exist")
        now = {key: value for key, value in then.items() if key not in set(gone_keys)} if gone_keys else dict(then)
        now.update(_get_map(stored.collection, name))
        changed_lists[name] = tuple(now.values()) if name in _LISTS else now
    return msgspec.structs.replace(stored.collection, **changed_lists)


_MAPS = Gone.__struct_fields__
_LISTS = ("history", "keyframes")


def _estimate_size(contents: CollectionState) -> int:
    return len(contents.numbered) + len(contents.pending) + len(contents.kept)


def _get_map(contents: CollectionState, name: str) -> Mapping[Any, Any]:
    """Return a map of the contents by its name in a state object."""
    if name == "history":
        if not all(contents.history):
            raise ValueError("a run is empty")
        return {run[0]: run for run in contents.history}
    if name == "keyframes":
        return {keyframe.as_of: keyframe for keyframe in contents.keyframes}
    by_key: Mapping[Any, Any] = getattr(contents, name)
    return by_key


def _list_unmoved_first_keys(now: Mapping[Any, Any], then: Mapping[Any, Any]) -> set[Any]:
    """Return the leading keys of a map that keep their order; the following keys are stored again."""
    order = iter(then)
    stays: set[Any] = set()
    for key in now:
        if key not in then or not any(key == placed_key for placed_key in order):
            break
        stays.add(key)
    return stays
