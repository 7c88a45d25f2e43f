"""The contents of one collection on storage: what changed is written, and not all of it again.

    contents  =  [state object, state object, …]  +  the mutations since, in its entry of the directory
                  oldest, whole   changes to it

    state/<collection>/<seqno, 20 digits>-<xxh3_128 of the object>.json    frame "state"

A collection may consist of very many parts, each with a descriptor of some 900 bytes, of which a commit touches a few.
So a state object either is whole, or has the changes since the earlier ones and a member `gone`. Its maps hold new and
changed items, and `gone` the deleted keys; all other members have their present values. Runs and keyframes are taken
for maps, by the number of the first part and by time. A reader first removes deleted keys, then replaces changed items,
and then adds new ones in the order of the object. So all maps have the order of the contents.

New changes are written together with those before them that are less than `RATIO` times as large, and the whole is
written anew when it is less than that. So each object is at least `RATIO` times as large as the next, there are few of
them, and each change is rewritten a few times for each, however many parts there are. The whole is also written anew
when less than half as many parts are left as it has. An object smaller than `WHOLE_BYTES_MAX` is always written as a
whole: most collections have one object.

An older object may hold what later ones take away. If a compaction that forgets history, or an erasure, destroyed data,
no earlier object is reused, so none keeps that data (`persist.engine.follow.checkpoint`).

Rejected: to store the mutations themselves, since the fold of thousands of them takes seconds in a large collection.
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
    """The contents of one collection at some seqno, or what changed in them since the objects before it."""

    location: str
    collection: CollectionState
    gone: Gone | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class StateLevel:
    """One state object, and the contents that it makes with those before it."""

    pointer: BlobRef
    contents: CollectionState


class KnownContents:
    """The state objects of large collections that a client saw last, so that it need not read them to make the next.

    They are immutable, and known by the checksums of their bytes. Safe to use from many threads.

    Args:
        pool: fetches several objects at once; None for one after the other.
        cache: keeps them; None for one of their own.
    """

    def __init__(self, pool: Executor | None = None, cache: Cache | None = None) -> None:
        self._pool = pool
        self._levels: Kind[str, tuple[StateLevel, ...]] = (cache or Cache(KNOWN_BYTES_MAX)).add_kind(
            lambda levels: sum(level.pointer.bytes for level in levels), share=1, is_needed=True
        )

    def read(self, blob: Blob, location: str, entry: CollectionEntry) -> tuple[StateLevel, ...]:
        """Return the levels that an entry points to. Cost: a GET for each that this client has not seen, at once.

        Raises:
            MissingBlob, CorruptBlob: one is missing, or not what was stored there.
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
        """Remember the levels of a collection, in place of what was known of it, unless they are small."""
        if sum(level.pointer.bytes for level in levels) > WHOLE_BYTES_MAX:
            self._levels.put(collection, tuple(levels))
        else:
            self._levels.remove(collection)


def make_levels(
    location: str, seqno: int, contents: CollectionState, levels: Sequence[StateLevel], *, format: int
) -> tuple[tuple[StateLevel, ...], bytes]:
    """Return the levels that represent the contents in a checkpoint at seqno, given the reused levels.

    The last one must be stored first; its bytes are the second result. Cost: O(parts) comparisons, and the encoding of
    the differences.
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
    """Return the state object that makes contents of those before, or is whole if there are none."""
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
    """Return the contents that a state object makes of those before; raise ValueError if it does not fit to them."""
    if (stored.gone is UNSET) != (before is None):
        raise ValueError("the first state object of a collection is whole, and others say what changed")
    if before is None or isinstance(stored.gone, UnsetType):
        return stored.collection
    changed_lists: dict[str, Any] = {}
    for name in _MAPS:
        then, gone_keys = _get_map(before, name), getattr(stored.gone, name)
        if not (then.keys() >= set(gone_keys) and len(set(gone_keys)) == len(gone_keys)):
            raise ValueError(f"something is gone from its {name} that was not there")
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
    """Return the keys with which a map begins in the order that they had; others are taken out and come last."""
    order = iter(then)
    stays: set[Any] = set()
    for key in now:
        if key not in then or not any(key == placed_key for placed_key in order):
            break
        stays.add(key)
    return stays
