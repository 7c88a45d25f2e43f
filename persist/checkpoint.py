"""Checkpoints: the directory of a location at one seqno, so that opening need not replay the log from its start.

    checkpoint/<10^20 - 1 - seqno, 20 digits>-<seqno, 20 digits>.json     frame "checkpoint"
    state/<collection>/<xxh3_128 of the object>.json                      frame "state"

The first half of a checkpoint's name makes the newest one the first in a listing: opening takes one page however many
there are. A checkpoint repeats, for each collection, the pointer to its last state object and the mutations since
(`persist.state.Entry` without its contents). Only when those have grown past `PENDING_MAX` or `PENDING_BYTES_MAX` is
a new state object written, so a checkpoint costs one PUT and a fraction of one per collection changed. It can
therefore be made every `INTERVAL` records, which bounds the GETs of opening.

Checkpoints and state objects hold nothing that the log does not; they are never changed, and any client that is able
to write may make them. Rejected: one state object per collection and checkpoint, which costs 200 PUTs each time
when 200 collections are sealed together.
"""

from dataclasses import replace
from types import MappingProxyType

import msgspec

from persist.blob import Blob, CorruptBlob
from persist.envelope import BlobRef, Framed, decode_framed, encode_framed, get_framed, put_framed
from persist.part_lists import as_read, as_stored
from persist.records import Append, Mutation
from persist.state import CollectionState, Entry, State

INTERVAL = 16
PENDING_MAX = 32
PENDING_BYTES_MAX = 64 * 1024
_SEQNO_LAST = 10**20 - 1


class DirectoryEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`persist.state.Entry` as it is stored."""

    id: str
    name: str
    base: BlobRef | None = None
    pending: tuple[Mutation, ...] = ()


class Checkpoint(Framed, frozen=True, kw_only=True, tag="checkpoint"):
    """The directory of a location after the record at seqno."""

    location: str
    seqno: int
    collections: tuple[DirectoryEntry, ...]


class StateObject(Framed, frozen=True, kw_only=True, tag="state"):
    """The contents of one collection at some seqno."""

    location: str
    collection: CollectionState


def checkpoint_key(seqno: int) -> str:
    """Return the key of the checkpoint after the record at seqno."""
    return f"checkpoint/{_SEQNO_LAST - seqno:020d}-{seqno:020d}.json"


def checkpoint_due(seqno: int, collections: int) -> bool:
    """Return whether the client that created the record at seqno should make a checkpoint.

    Every `INTERVAL` records; less often in a location of many collections, in proportion, because a checkpoint names
    them all.
    """
    return (seqno + 1) % max(INTERVAL, collections // 64) == 0


def write_checkpoint(blob: Blob, state: State) -> State:
    """Store a checkpoint of state; return an equivalent state with the bases it refers to.

    Cost: one PUT, and one (and perhaps a GET) for each collection whose pending mutations have grown too many.
    """
    assert state.location is not None, "an empty log needs no checkpoint"
    location = state.location
    entries = {id_: _with_new_base(blob, location, entry) for id_, entry in state.entries.items()}
    collections = tuple(map(_as_stored, entries.values()))
    checkpoint = Checkpoint(location=location, seqno=state.seqno, collections=collections)
    blob.create(checkpoint_key(state.seqno), encode_framed(checkpoint))
    return replace(state, entries=MappingProxyType(entries))


def read_newest_checkpoint(blob: Blob) -> State:
    """Return the state of the newest checkpoint, or the empty one. Cost: one page of LIST and one GET."""
    for found in blob.list("checkpoint/"):
        data = blob.get(found.key)
        if data is None:
            continue  # Collected between the two requests: the next one is as good, only older.
        checkpoint = decode_framed(data, Checkpoint, found.key)
        if found.key != checkpoint_key(checkpoint.seqno):
            raise CorruptBlob(
                found.key, f"it holds the checkpoint of seqno {checkpoint.seqno}, so blobs were exchanged"
            )
        entries = {c.id: Entry(c.id, c.name, c.base, c.pending) for c in checkpoint.collections}
        ids = {c.name: c.id for c in checkpoint.collections}
        return State(checkpoint.location, checkpoint.seqno, MappingProxyType(entries), MappingProxyType(ids))
    return State()


def load_contents(blob: Blob, location: str, entry: Entry) -> Entry:
    """Return entry with its contents. Cost: nothing if it has them, else a GET for its base and for each part list."""
    if entry.contents is not None:
        return entry
    base = None
    if isinstance(entry.base, BlobRef):
        stored = get_framed(blob, entry.base, StateObject)
        if (stored.location, stored.collection.id) != (location, entry.id):
            raise CorruptBlob(entry.base.blob, "it belongs to another collection, so blobs were exchanged")
        base = stored.collection
    pending = tuple(as_read(blob, location, mutation) for mutation in entry.pending)
    return replace(entry, pending=pending).with_contents(base)


def adopt_bases(current: State, old: State, new: State) -> State:
    """Return current with the bases that `write_checkpoint(old)` stored (it returned new); current follows old."""
    entries = dict(current.entries)
    for id_, after in new.entries.items():
        before, now = old.entries[id_], entries.get(id_)
        if now is not None and after.base is not before.base and now.base is before.base:
            entries[id_] = replace(now, base=after.base, pending=now.pending[len(before.pending) :])
    return replace(current, entries=MappingProxyType(entries))


def _with_new_base(blob: Blob, location: str, entry: Entry) -> Entry:
    inline = sum(len(p.inline) for m in entry.pending if isinstance(m, Append) for p in m.parts)
    is_stored = not isinstance(entry.base, CollectionState)
    if is_stored and len(entry.pending) <= PENDING_MAX and inline <= PENDING_BYTES_MAX:
        return entry
    contents = load_contents(blob, location, entry).contents
    assert contents is not None
    base = put_framed(blob, f"state/{entry.id}", StateObject(location=location, collection=contents))
    return Entry(entry.id, entry.name, base, (), contents)


def _as_stored(entry: Entry) -> DirectoryEntry:
    assert not isinstance(entry.base, CollectionState), "a base that is not stored has been stored just before"
    return DirectoryEntry(entry.id, entry.name, entry.base, tuple(map(as_stored, entry.pending)))
