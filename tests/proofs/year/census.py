"""What a location may have on storage, by its own JSON and by `docs/inside/format.md`; no code of the library.

*Live* is what the newest checkpoint and the records after it name. *Kept by retention* is besides:

- the log: records of the last seven days, but no more than 10,000 of them; the last 1,000, and those of the last hour;
- a checkpoint for each hour of that time, and one for each minute of the last hour, with the objects that they name,
  because the location can be opened as of each record of the log;
- what was replaced within the hour of grace, and what was stored in that hour.

A collection needs its contents, and the updates of the week that can be read. All other updates in its parts are too
many.

Objects never change, so each is read once.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from persist.blob.protocol import Blob, BlobEntry
from persist.blob.stores.file import FileBlob
from tests.support.invariants import CHECKPOINT, keys_in

HOUR_S = 3600.0
LOG_S = 7 * 24 * HOUR_S
RECORDS_MAX = 10_000
RECORDS_MIN = 1_000
PARTS = "part/"


COUNTED = ("objects", "bytes", "updates")


@dataclass(frozen=True, slots=True)
class Count:
    """Objects, their bytes, and updates in parts, where they were counted."""

    objects: int
    bytes: int
    updates: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """What is stored, and what of that is needed; kinds are the folders at the top."""

    stored: Count
    needed: Count
    by_kind: dict[str, tuple[Count, Count]]

    @property
    def ratios(self) -> dict[str, float]:
        """How much more is stored than needed, of what."""
        return {what: getattr(self.stored, what) / max(1, getattr(self.needed, what)) for what in COUNTED}


@dataclass(frozen=True, slots=True)
class _Read:
    """What an object says.

    Attributes:
        names: keys in it; of checkpoints and directory objects, only those of directory objects, in order.
        unused: keys that it says are used no more.
        entries: of checkpoints and directory objects, what each collection's entry names and what it leaves unused.
        gone: collections that are gone by it.
    """

    names: tuple[str, ...]
    unused: frozenset[str]
    entries: dict[str, tuple[frozenset[str], frozenset[str]]]
    gone: tuple[str, ...]


class Census:
    """Counts a store again and again."""

    def __init__(self, blob: Blob) -> None:
        self._blob = blob
        self._known: dict[str, _Read] = {}

    def take(self, now_s: float, updates: int = 0, needed_updates: int = 0) -> Found:
        """Count what is stored, and what is needed.

        Args:
            updates, needed_updates: those in parts, which are counted elsewhere, because parts are not JSON.
        """
        entries = {entry.key: entry for entry in self._blob.list("")}
        self._known = {key: read for key, read in self._known.items() if key in entries}
        newest = next(key for key in sorted(entries) if CHECKPOINT.fullmatch(key))
        seqno = _seqno(newest)
        needed = {newest, "gc/clock"} | self._through(newest, parts=True)
        records = sorted((key for key in entries if re.fullmatch(r"log/[0-9]{20}", key)), reverse=True)
        floor = len(records)
        for n, key in enumerate(records):
            age_s = now_s - entries[key].modified_s
            if n >= RECORDS_MIN and age_s > HOUR_S and (n >= RECORDS_MAX or age_s > LOG_S):
                floor = n
                break
        kept = records[:floor]
        needed.update(kept)
        for key in kept:
            is_new = int(key[4:]) > seqno
            needed.update(each for each in self._read(key).names if is_new or not each.startswith(PARTS))
        first = int(kept[-1][4:]) if kept else 0
        for key in self._checkpoints(entries, now_s, first):
            needed |= {key} | self._through(key, parts=False)
        needed |= {key for key, entry in entries.items() if now_s - entry.modified_s <= HOUR_S}
        needed |= self._dropped(newest, now_s)
        needed &= entries.keys()
        kinds = sorted({key.split("/")[0] for key in entries})
        by_kind = {kind: (_count(entries, entries, kind), _count(entries, needed, kind)) for kind in kinds}
        stored = replace(_count(entries, entries), updates=updates)
        return Found(stored, replace(_count(entries, needed), updates=needed_updates), by_kind)

    def _checkpoints(self, entries: dict[str, BlobEntry], now_s: float, first: int) -> Iterator[str]:
        buckets: set[tuple[float, int]] = set()
        for n, key in enumerate(key for key in sorted(entries) if CHECKPOINT.fullmatch(key)):
            modified_s = entries[key].modified_s
            width_s = 60 if now_s - modified_s < HOUR_S else HOUR_S
            bucket = width_s, int(modified_s // width_s)
            if n < 2 or (bucket not in buckets and _seqno(key) >= first - 1):
                yield key
            buckets.add(bucket)

    def _dropped(self, newest: str, now_s: float) -> set[str]:
        control = json.loads(self._blob.get(newest) or b"")["control"]
        late = [each for each in control["dropped"] if now_s - each["written_ms"] / 1000 <= HOUR_S or each["leases"]]
        return {key for each in late for key in each["blobs"]}

    def _through(self, checkpoint: str, *, parts: bool) -> set[str]:
        """Return what a checkpoint names, and what that names, and so on."""
        read = self._read(checkpoint)
        entries: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
        for one in [*map(self._read, read.names), read]:
            entries.update(one.entries)
            for id_ in one.gone:
                entries.pop(id_, None)
        reached = set(read.names)
        unused: set[str] = set()
        left: list[str] = []
        for named, no_more in entries.values():
            left += named
            unused.update(no_more)
        while left:
            key = left.pop()
            if key not in reached and (parts or not key.startswith(PARTS)):
                reached.add(key)
                if not key.startswith(PARTS):
                    left += self._read(key).names
        return reached - unused

    def _read(self, key: str) -> _Read:
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = _read(json.loads(self._blob.get(key) or b"{}"))
        return known


_censuses: dict[tuple[str, int], Census] = {}  # Of the process that counts.


def counted(place: tuple[str, int], now_s: float, updates: int, needed_updates: int) -> Found:
    """Count the store in a folder, in a process that is there for that alone: it takes memory of its own.

    Args:
        place: the folder, and how often something else was put there, such as a backup.
    """
    census = _censuses.setdefault(place, Census(FileBlob(place[0])))
    return census.take(now_s, updates, needed_updates)


def _read(value: Any) -> _Read:
    if value.get("persist") not in ("checkpoint", "directory"):
        return _Read(tuple(keys_in(value)), frozenset(_unused(value)), {}, ())
    entries = {each["id"]: (frozenset(keys_in(each)), frozenset(_unused(each))) for each in value["collections"]}
    pointers = tuple(pointer["blob"] for pointer in value.get("directory", ()))
    return _Read(pointers, frozenset(), entries, tuple(value.get("gone", ())))


def _unused(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from keys_in(value.get("unused", ()))
        for inner in value.values():
            yield from _unused(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _unused(inner)


def _seqno(checkpoint: str) -> int:
    found = CHECKPOINT.fullmatch(checkpoint)
    assert found is not None
    return int(found[1])


def _count(entries: dict[str, BlobEntry], keys: Any, kind: str | None = None) -> Count:
    chosen = [entries[key] for key in keys if kind is None or key.split("/")[0] == kind]
    return Count(len(chosen), sum(entry.bytes for entry in chosen))
