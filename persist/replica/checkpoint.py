"""Checkpoints: the directory of a location at one seqno, so that opening need not replay the log from its start.

    checkpoint/<10^20 - 1 - seqno, 20 digits>-<seqno, 20 digits>.json     frame "checkpoint"
    state/<collection>/<seqno, 20 digits>-<xxh3_128 of the object>.json   frame "state"

The first half of a checkpoint's name makes the newest one the first in a listing: opening takes one page however many
there are. A checkpoint repeats, for each collection, the pointer to its last state object and the mutations since
(`persist.state.state.Entry` without its contents). Only when those have grown past `PENDING_MAX` or
`PENDING_BYTES_MAX` is a new state object written, so a checkpoint costs one PUT and a fraction of one per collection
changed. It can therefore be made every `INTERVAL` records, which bounds the GETs of opening.

A checkpoint is made of the newest one there is and the records after it, not of what its maker has in memory: so all
clients refer to the same state objects, and one that the newest checkpoints do not refer to stays unused for good and
can be collected.

Checkpoints and state objects hold nothing that the log does not (as long as it has not been truncated); they are never
changed, and any client that is able to write may make them. Rejected: one state object per collection and
checkpoint, which costs 200 PUTs each time when 200 collections are sealed together.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import msgspec

from persist.antichain import Antichain, as_time
from persist.blob import Blob, Conflict, CorruptBlob, Corruption, InvalidUsage, MissingBlob, get_at_most
from persist.codecs import CollectionSchema
from persist.log.commits import read_record, record_key, record_seqno
from persist.log.envelope import BlobRef, Framed, decode_framed, encode_framed, get_framed, put_framed
from persist.log.keys import check_keys, check_parts, is_upload
from persist.log.part_lists import as_read, as_stored
from persist.log.records import Append, CollectionMutation, Create, Destroy, Record, Replace, Seqno
from persist.names import check_name, is_id
from persist.state.contents import CollectionState, check_runs
from persist.state.location import Control
from persist.state.state import DoesNotFollow, Entry, State, apply

INTERVAL = 16
CHECKPOINT_BYTES_MAX = 1 << 30  # Of those larger none is made, and none is read.
PENDING_MAX = 32
PENDING_BYTES_MAX = 64 * 1024
_SEQNO_LAST = 10**20 - 1
_STATE = re.compile(r"state/(?P<collection>[0-9a-f]{32})/(?P<seqno>[0-9]{20})-[0-9a-f]{32}\.json")

logger = logging.getLogger("persist")


class DirectoryEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`persist.state.state.Entry` as it is stored."""

    id: str
    name: str
    base: BlobRef | None = None
    pending: tuple[CollectionMutation, ...] = ()


class Checkpoint(Framed, frozen=True, kw_only=True, tag="checkpoint"):
    """The directory of a location after the record at seqno, whose commit id is commit."""

    location: str
    seqno: Seqno
    commit: str
    control: Control
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
    return (seqno + 1) % _interval(collections) == 0


def _interval(collections: int) -> int:
    return max(INTERVAL, collections // 64)


def checkpoint_seqno(key: str) -> int | None:
    """Return the seqno in the key of a checkpoint; None if it is not such a key."""
    digits = key.removeprefix("checkpoint/")[21:41]
    return int(digits) if digits.isdecimal() and checkpoint_key(int(digits)) == key else None


def state_collection(key: str) -> str | None:
    """Return the collection in the key of a state object; None if it is not such a key."""
    found = _STATE.fullmatch(key)
    return None if found is None else found["collection"]


def state_seqno(key: str) -> int | None:
    """Return the seqno of the checkpoint that the state object at key was made for; None if it is not such a key."""
    found = _STATE.fullmatch(key)
    return None if found is None else int(found["seqno"])


def write_checkpoint(blob: Blob, state: State, recent: Mapping[int, Record]) -> bool:
    """Store a checkpoint of state, unless there is one already; return whether this call stored one.

    Cost: a page of LIST, two GETs and a PUT; a PUT (and perhaps a GET) for each collection whose pending mutations
    have grown too many; a GET for each record since the newest checkpoint that is not in recent.

    Raises:
        CorruptBlob: the log between the newest checkpoint and state is not the one that recent comes from.
    """
    assert state.location is not None, "an empty log needs no checkpoint"
    location = state.location
    # A damaged one is passed over: the log says the same, and what is made here takes its place.
    found = read_newest_checkpoint(blob, skip_damaged=True)
    if found.seqno >= state.seqno:
        return False
    # One of them is read although it is known. If the location was rolled back, its newest checkpoint is the last one
    # of that time, and the log ends before the next one was due: memory must not bridge what is missing since.
    probed = min(found.seqno + _interval(len(found.entries)), state.seqno)
    for seqno in range(found.seqno + 1, state.seqno + 1):
        record = (recent.get(seqno) if seqno != probed else None) or read_record(blob, seqno)
        if record is None:
            raise MissingBlob(record_key(seqno), f"it is missing, and a checkpoint at {state.seqno} needs it")
        try:
            found = apply(found, record)
        except DoesNotFollow as error:
            raise CorruptBlob(record_key(seqno), f"it breaks a rule of the log: {error}") from error
    if found.commit != state.commit:
        raise CorruptBlob(record_key(state.seqno), f"its commit is {found.commit}, and {state.commit} was read there")
    assert found.commit is not None, "a record was applied"
    entries = [
        _with_new_base(blob, location, replace(entry, contents=state.entries[entry.id].contents), state.seqno)
        for entry in found.entries.values()
    ]
    checkpoint = Checkpoint(
        location=location,
        seqno=state.seqno,
        commit=found.commit,
        control=found.control,
        collections=tuple(DirectoryEntry(e.id, e.name, _pointer(e), tuple(map(as_stored, e.pending))) for e in entries),
    )
    data = encode_framed(checkpoint)
    if len(data) > CHECKPOINT_BYTES_MAX:
        raise InvalidUsage(
            f"a checkpoint would have {len(data):,} bytes, and at most {CHECKPOINT_BYTES_MAX:,} are read"
        )
    return blob.create(checkpoint_key(state.seqno), data)


def read_newest_checkpoint(blob: Blob, *, skip_damaged: bool = False) -> State:
    """Return the state of the newest checkpoint, or the empty one. Cost: one page of LIST and one GET.

    Raises:
        CorruptBlob: it is damaged, unless those are to be skipped; or there is none and the log does not begin at 0.
    """
    for found in blob.list("checkpoint/"):
        if checkpoint_seqno(found.key) is None:
            continue  # Not ours: perhaps of another location below this one.
        try:
            checkpoint = read_checkpoint(blob, found.key)
        except Corruption as error:
            if not skip_damaged:
                raise
            logger.warning("skipping a damaged checkpoint: %s", error)
            continue
        if checkpoint is not None:  # Or else it was collected meanwhile: the next one is as good, only older.
            return checkpoint_state(checkpoint)
    first = next((found.key for found in blob.list("log/") if record_seqno(found.key) is not None), record_key(0))
    if first != record_key(0):
        raise MissingBlob(record_key(0), f"it is missing, no checkpoint can be read, and the log begins at {first}")
    return State()


def read_checkpoint(blob: Blob, key: str) -> Checkpoint | None:
    """Return the checkpoint at key, or None if there is none (any more); raises CorruptBlob if it is damaged."""
    data = get_at_most(blob, key, CHECKPOINT_BYTES_MAX)
    if data is None:
        return None
    checkpoint = decode_framed(data, Checkpoint, key)
    if key != checkpoint_key(checkpoint.seqno):
        raise CorruptBlob(key, f"it holds the checkpoint of seqno {checkpoint.seqno}, so blobs were exchanged")
    try:
        _check(checkpoint)
    except ValueError as error:
        raise CorruptBlob(key, f"it is not one that a writer would make: {error}") from error
    return checkpoint


def _check(checkpoint: Checkpoint) -> None:
    """Check all that is relied on later: above all what becomes part of keys, or decides what is deleted."""
    control, seqno = checkpoint.control, checkpoint.seqno
    ids = {each.id for each in checkpoint.collections}
    if len(ids) < len(checkpoint.collections) or len({e.name for e in checkpoint.collections}) < len(ids):
        raise ValueError("two collections have the same id or name")
    if not is_id(checkpoint.location):
        raise ValueError(f"the location {checkpoint.location[:200]!r} is not 32 hex digits")
    if not is_id(checkpoint.commit):
        raise ValueError(f"the commit {checkpoint.commit[:200]!r} is not 32 hex digits")
    for each in checkpoint.collections:
        _check_entry(each)
    for dropped in control.dropped:
        is_alive = dropped.is_destroyed and dropped.collection in ids
        if not is_id(dropped.collection) or is_alive or dropped.seqno > seqno:
            raise ValueError(f"the destroyed collection {dropped.collection[:200]!r} is not one, or exists")
        if not all(is_upload(key, dropped.collection) for key in dropped.blobs):
            raise ValueError(f"a dropped blob is no upload of collection {dropped.collection}")
    for lease in control.leases.values():
        if not all(collection in ids and is_id(hold) for collection, hold in lease.holds):
            raise ValueError(f"the lease of {lease.holder[:200]!r} has holds that do not exist")
    floors = (control.log_floor, control.upload_floor, control.erased)
    if not all(0 <= floor <= seqno + 1 for floor in floors):
        raise ValueError(f"the floors {floors} are beyond seqno {seqno}")


def _check_entry(each: DirectoryEntry) -> None:
    if not is_id(each.id):
        raise ValueError(f"{each.id[:200]!r} is not the id of a collection: 32 hex digits")
    check_name(each.name)
    if each.base is not None and state_collection(each.base.blob) != each.id:
        raise ValueError(f"{each.base.blob[:200]!r} is not the name of a state object of collection {each.id}")
    for n, mutation in enumerate(each.pending):
        makes = isinstance(mutation, Create) and mutation.name == each.name
        if mutation.collection != each.id or makes != (each.base is None and n == 0) or isinstance(mutation, Destroy):
            raise ValueError(f"mutation {n} of collection {each.id} cannot stand there")
        if isinstance(mutation, Append | Replace):
            check_keys(mutation)
    if each.base is None and not each.pending:
        raise ValueError(f"nothing says what collection {each.id} holds")


def checkpoint_state(checkpoint: Checkpoint) -> State:
    """Return the state that a checkpoint stands for, without contents."""
    entries = {c.id: Entry(c.id, c.name, c.base, c.pending) for c in checkpoint.collections}
    ids = {c.name: c.id for c in checkpoint.collections}
    return State(
        checkpoint.location,
        checkpoint.seqno,
        MappingProxyType(entries),
        MappingProxyType(ids),
        checkpoint.control,
        checkpoint.commit,
    )


def load_contents(blob: Blob, location: str, entry: Entry) -> Entry:
    """Return entry with its contents. Cost: nothing if it has them, else a GET for its base and for each part list."""
    if entry.contents is not None:
        return entry
    base = None
    if isinstance(entry.base, BlobRef):
        stored = get_framed(blob, entry.base, StateObject)
        if (stored.location, stored.collection.id, stored.collection.name) != (location, entry.id, entry.name):
            raise CorruptBlob(entry.base.blob, "it belongs to another collection, so blobs were exchanged")
        base = stored.collection
        _check_contents(base, entry)
    pending = tuple(as_read(blob, location, mutation) for mutation in entry.pending)
    for mutation in pending:
        if isinstance(mutation, Append | Replace) and mutation.parts_in is not None:
            try:
                check_parts(entry.id, mutation.parts)
            except ValueError as error:
                raise CorruptBlob(mutation.parts_in.blob, str(error)) from error
    try:
        return replace(entry, pending=pending).with_contents(base)
    except (ValueError, Conflict) as error:
        raise CorruptBlob("log/", f"what it says of the collection {entry.name!r} breaks a rule: {error}") from error


def _check_contents(contents: CollectionState, entry: Entry) -> None:
    assert isinstance(entry.base, BlobRef)
    try:
        for times in (contents.since_times, contents.upper_times, contents.allowed_times):
            Antichain(*times)
        CollectionSchema.from_json(contents.schema_json)
        for name, held in contents.holds.items():
            as_time(f"the time of hold {name[:200]!r}", held.time)
        check_parts(entry.id, contents.parts)
        check_runs(contents)
    except ValueError as error:
        raise CorruptBlob(entry.base.blob, f"it is not one that a writer would make: {error}") from error


def _with_new_base(blob: Blob, location: str, entry: Entry, seqno: int) -> Entry:
    inline = sum(len(p.inline) for m in entry.pending if isinstance(m, Append) for p in m.parts)
    # After a compaction, what it destroyed must not live on in what is pending.
    is_compacted = any(isinstance(m, Replace) for m in entry.pending)
    is_stored = not isinstance(entry.base, CollectionState)
    if is_stored and not is_compacted and len(entry.pending) <= PENDING_MAX and inline <= PENDING_BYTES_MAX:
        return entry
    contents = load_contents(blob, location, entry).contents
    assert contents is not None
    base = put_framed(blob, f"state/{entry.id}/{seqno:020d}-", StateObject(location=location, collection=contents))
    return Entry(entry.id, entry.name, base)


def _pointer(entry: Entry) -> BlobRef | None:
    assert not isinstance(entry.base, CollectionState), "a base that is not stored has been stored just before"
    return entry.base
