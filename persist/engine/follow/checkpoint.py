"""Checkpoints: the directory of a location at one seqno, so that opening need not replay the log from its start.

The first half of a checkpoint's name makes the newest one the first in a listing: opening takes one page however many
there are. The directory has, for each collection, the pointers to its state objects and the later mutations
(`persist.core.state_rules.state.CollectionEntry` without its contents). A new state object is written only when these
mutations have grown past `STORED_PENDING_MAX` or `STORED_PENDING_BYTES_MAX`. A checkpoint has the entries that changed
lately, and points to the other ones (`persist.engine.follow.directory`), so it costs one PUT, and a fraction of a PUT
for each changed collection, however many collections there are. It can therefore be made every `INTERVAL` records,
which bounds the GETs of opening.

A checkpoint is computed from the newest one that `list_reusable_levels` allows and the records after it, not from its
maker's memory. So all clients refer to the same state and directory objects. If the newest checkpoints do not refer to
an object, no later one will, and it can be deleted (`persist.engine.upkeep.garbage` explains why, however late its
maker is). If no checkpoint is allowed, everything is written again. A maker may cache only the contents of such
objects.

As long as the log has not been truncated, it contains all that checkpoints and state objects contain. They are never
changed, and any client that can write may create them. Rejected: one state object per collection and checkpoint, which
costs 200 PUTs each time when 200 collections are sealed together.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile

import msgspec
from msgspec import UNSET, UnsetType

from persist.blob.errors import Conflict, CorruptBlob, Corruption, IncompatibleVersion, InvalidUsage, MissingBlob
from persist.blob.protocol import Blob, get_at_most, is_remote
from persist.codecs.types.schema import CollectionSchema
from persist.core.antichain import to_time_integer
from persist.core.log import kinds
from persist.core.log.fields import CollectionMutation, Seqno
from persist.core.log.framing import FORMAT_MIN, BlobRef, Framed, decode_framed, encode_framed, make_pointer
from persist.core.log.keys import (
    LOG,
    check_parts,
    is_upload,
    list_checkpoints,
    make_checkpoint_key,
    make_record_key,
    parse_checkpoint_seqno,
)
from persist.core.log.kinds import BringsParts
from persist.core.log.records import LogPage, Record, load_part_list, read_commit_id, read_record
from persist.core.names import is_id
from persist.core.state_rules.collection_rules import check_contents
from persist.core.state_rules.contents import CollectionState
from persist.core.state_rules.location import LocationState, TakenOver
from persist.core.state_rules.state import CollectionEntry, DoesNotFollow, State, apply_record
from persist.engine.follow.directory import (
    EMPTY,
    OBJECT_BYTES_MAX,
    Directory,
    DirectoryEntry,
    KnownLevels,
    Level,
    NewDirectory,
    check_leases,
    check_pointers,
    list_reusable_levels,
    store_directory,
)
from persist.engine.follow.state_objects import LEVELS, WHOLE_BYTES_MAX, make_levels

INTERVAL = 16
CHECKPOINT_BYTES_MAX = 1 << 30  # A larger checkpoint is neither written nor read.
STORED_PENDING_MAX = 32  # Mutations, and bytes of parts inside them, that a checkpoint keeps beside a base.
STORED_PENDING_BYTES_MAX = 64 * 1024

logger = logging.getLogger(__name__)


class Checkpoint(Framed, frozen=True, kw_only=True, tag="checkpoint"):
    """The directory of a location after the record at `seqno`, whose commit id is `commit`.

    The directory consists of the objects in `directory` and of the changes after them.
    """

    location: str
    seqno: Seqno
    commit: str
    control: LocationState
    directory: tuple[BlobRef, ...] = ()
    collections: tuple[DirectoryEntry, ...]
    gone: tuple[str, ...] = ()
    freed: tuple[str, ...] | UnsetType = UNSET


def is_checkpoint_due(seqno: int) -> bool:
    """Return whether to make a checkpoint after the record at seqno: every `INTERVAL` records."""
    return (seqno + 1) % INTERVAL == 0


def write_checkpoint(
    blob: Blob, state: State, recent: Mapping[int, Record], known_levels: KnownLevels | None = None
) -> bool:
    """Store a checkpoint of a state, unless one exists; return whether this call stored it.

    Cost: two pages of LIST, two GETs and a PUT of at most `INLINE_BYTES_MAX` and the size of `LocationState`; now and
    then a PUT of a directory object. Each collection with too many pending mutations costs a PUT, and perhaps a GET.
    Each record since the newest checkpoint that is not in `recent`, and each directory object that is not in
    `known_levels`, costs a GET.

    Raises:
        CorruptBlob: the log between the newest checkpoint and the state differs from `recent`.
    """
    assert state.location is not None, "an empty log needs no checkpoint"
    known_levels = known_levels or KnownLevels()
    # A damaged checkpoint is skipped: the log has the same contents, and the new checkpoint replaces it.
    takeover = state.control.taken_over
    replayed, levels = _load_newest(blob, known_levels, skip_damaged=True, until=state.seqno, takeover=takeover)
    if replayed.seqno >= state.seqno:
        return False
    is_new = (
        replayed.location is None and takeover is not None
    )  # Nothing may be taken over, and the log may begin later.
    replayed = _verify_log(blob, state) if is_new else _replay_records(blob, replayed, state, recent)
    directory_before = levels[-1].directory if levels else EMPTY
    rebased: dict[str, CollectionEntry | None] = {}
    for id_, entry in replayed.entries.changes_since(directory_before.entries).items():
        if entry is not None:
            entry = msgspec.structs.replace(entry, contents=state.entries[id_].contents)
            rebased[id_] = _rebase_entry(blob, replayed, entry, known_levels, always=is_new)
    directory = Directory(replayed.entries.with_changes(rebased), replayed.ids)
    reused_levels = list_reusable_levels(levels, replayed.control)
    new = store_directory(blob, replayed, directory, levels, reused_levels, blob.set)
    data = encode_framed(build_checkpoint(replayed, new))
    if len(data) > CHECKPOINT_BYTES_MAX:
        raise InvalidUsage(
            f"a checkpoint would have {len(data):,} bytes, and readers accept at most {CHECKPOINT_BYTES_MAX:,}"
        )
    if not blob.create(make_checkpoint_key(state.seqno), data):
        return False
    known_levels.keep(new.levels)
    return True


def _replay_records(blob: Blob, replayed: State, state: State, recent: Mapping[int, Record]) -> State:
    """Return the state after replaying the log from an earlier state; check it against `state`."""
    # After a roll-back of the location, cached records must not replace missing ones. All of them must be in the log,
    # whoever wrote the first ones beyond the hole. One record is read although it is cached, because the store may have
    # another one in its place.
    _check_present(blob, replayed.seqno + 1, state.seqno)
    probed = min(replayed.seqno + INTERVAL, state.seqno)
    for seqno in range(replayed.seqno + 1, state.seqno + 1):
        record = (recent.get(seqno) if seqno != probed else None) or read_record(blob, seqno)
        if record is None:
            raise MissingBlob(make_record_key(seqno), f"it is missing, and a checkpoint at {state.seqno} needs it")
        try:
            replayed = apply_record(replayed, record)
        except DoesNotFollow as error:
            raise CorruptBlob(make_record_key(seqno), f"it breaks a rule of the log: {error}") from error
    if replayed.commit != state.commit:
        raise CorruptBlob(
            make_record_key(state.seqno), f"its commit is {replayed.commit}, and {state.commit} was read there"
        )
    return replayed


def _verify_log(blob: Blob, state: State) -> State:
    """Check that the log still has the record of a state; return the state."""
    if (present := read_commit_id(blob, state.seqno)) != state.commit:
        raise CorruptBlob(
            make_record_key(state.seqno), f"it is commit {present} now, and was commit {state.commit} when it was read"
        )
    return state


def _check_present(blob: Blob, first: int, last: int) -> None:
    """Raise MissingBlob unless the log holds all records from first to last.

    Cost: a LIST of them, mostly one page; on a local store, a GET of no bytes for each record, because a folder is
    listed as a whole, however long the log is.
    """
    if is_remote(blob):
        listed = blob.list(LOG, start_after=make_record_key(first - 1) if first else None)
        present = {entry.key for entry in takewhile(lambda entry: entry.key <= make_record_key(last), listed)}
    else:
        keys = map(make_record_key, range(first, last + 1))
        present = {key for key in keys if blob.get(key, range=(0, 0)) is not None}
    for seqno in range(first, last + 1):
        if make_record_key(seqno) not in present:
            raise MissingBlob(make_record_key(seqno), f"it is missing, and a checkpoint at {last} needs it")


def build_checkpoint(state: State, directory: NewDirectory) -> Checkpoint:
    """Return the checkpoint of a state; store its directory objects before it."""
    assert state.location is not None, "a record was applied"
    assert state.commit is not None, "as above"
    return Checkpoint(
        format=state.format,
        location=state.location,
        seqno=state.seqno,
        commit=state.commit,
        control=state.control,
        directory=tuple(level.pointer for level in directory.levels),
        collections=directory.collections,
        gone=directory.gone,
        freed=directory.freed,
    )


def read_newest_checkpoint(
    blob: Blob, known_levels: KnownLevels | None = None, page_of: Callable[[int], LogPage] | None = None
) -> State:
    """Return the state of the newest checkpoint, or the empty one.

    Cost: one page of LIST, a GET, and one for each directory object that is not in `known_levels`.

    Args:
        page_of: called with the seqno of the newest checkpoint (-1 without one), before that is read; returns a page of
            the log.

    Raises:
        CorruptBlob: the checkpoint is damaged; or there is none, and the log does not begin at 0.
    """
    return _load_newest(blob, known_levels, skip_damaged=False, page_of=page_of)[0]


def list_checkpoints_beyond_log(blob: Blob) -> list[int]:
    """Return the seqnos of checkpoints of records that the log lacks, newest first.

    A client whose location was rolled back while it wrote a checkpoint leaves such a checkpoint, and perhaps records
    after it. The list is empty if the log has no record of any checkpoint and does not begin at 0, because then it
    cannot replace them. Cost: a page of LIST and three GETs if there are none.
    """

    def is_there(seqno: int) -> bool:
        if blob.get(make_record_key(seqno), range=(0, 0)) is None:
            return False
        with suppress(Corruption):  # Other readers report damaged objects.
            checkpoint, commit = read_checkpoint(blob, make_checkpoint_key(seqno)), read_commit_id(blob, seqno)
            return checkpoint is None or commit is None or checkpoint.commit == commit
        return True

    while True:
        beyond: list[int] = []
        for seqno, _ in list_checkpoints(blob):
            if is_there(seqno):
                break
            beyond.append(seqno)
        else:
            beyond = beyond if blob.get(make_record_key(0), range=(0, 0)) is not None else []
        # If there is a newer one now, the log may have been truncated beyond the listed ones.
        if not beyond or beyond[0] == next((seqno for seqno, _ in list_checkpoints(blob)), None):
            return beyond


def read_newest_control(blob: Blob) -> LocationState:
    """Return the location's own state in the newest checkpoint. Cost: one page of LIST and one GET."""
    return next((stored.checkpoint.control for stored in iterate_checkpoints(blob)), LocationState())


def _load_newest(
    blob: Blob,
    known_levels: KnownLevels | None,
    *,
    skip_damaged: bool,
    until: int | None = None,
    takeover: TakenOver | None = None,
    page_of: Callable[[int], LogPage] | None = None,
) -> tuple[State, tuple[Level, ...]]:
    """Return the state of the newest checkpoint, and its levels; the empty state if there is none.

    Args:
        until, takeover: checkpoints before the seqno `until` are skipped, unless `takeover` allows them.
    """
    for stored in iterate_checkpoints(blob, skip_damaged=skip_damaged, page_of=page_of):
        checkpoint, pointer = stored.checkpoint, stored.pointer
        if takeover is not None and until is not None and checkpoint.seqno < until and not takeover.allows(pointer):
            continue
        try:
            return _restore_levels(blob, checkpoint, known_levels)
        except Corruption as error:
            if isinstance(error, MissingBlob) and blob.get(pointer.blob, range=(0, 0)) is None:
                # It was collected meanwhile, and its directory after it.
                return _load_newest(
                    blob, known_levels, skip_damaged=skip_damaged, until=until, takeover=takeover, page_of=page_of
                )
            if isinstance(error, MissingBlob) and not skip_damaged:
                # The checkpoint may be what is wrong: it may have come from another location.
                raise MissingBlob(error.key, f"{error.reason}, according to {pointer.blob}", error.advice) from error
            if not skip_damaged or isinstance(error, IncompatibleVersion):
                raise
            logger.warning("skipping a damaged checkpoint: %s", error)
    return State(), ()


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A checkpoint that was read, with a pointer to its object."""

    checkpoint: Checkpoint
    pointer: BlobRef


def iterate_checkpoints(
    blob: Blob, *, skip_damaged: bool = False, page_of: Callable[[int], LogPage] | None = None
) -> Iterator[StoredCheckpoint]:
    """Yield the checkpoints, newest first; `page_of` is as for `read_newest_checkpoint`.

    If a listed checkpoint was deleted meanwhile, there are newer ones, and all are listed again. So the first result
    was the newest checkpoint at some time after the call.

    Raises:
        MissingBlob: no checkpoint could be read, and the log does not begin at 0.
        CorruptBlob: a checkpoint is damaged, without `skip_damaged`.
    """
    collected: set[str] = set()
    is_any = is_whole = False
    while not is_whole:
        is_whole, page = True, None
        for seqno, entry in list_checkpoints(blob):
            if entry.key in collected:
                continue
            if page is None and page_of is not None:
                page = page_of(seqno)
            try:
                stored = load_checkpoint(blob, entry.key)
            except Corruption as error:
                if not skip_damaged or isinstance(error, IncompatibleVersion):
                    raise
                logger.warning("skipping a damaged checkpoint: %s", error)
                continue
            if stored is None:
                collected.add(entry.key)  # A store may go on listing it: do not read it again.
                is_whole = False
                break
            is_any = True
            yield stored
    if is_any:
        return
    page = LogPage(blob, -1, None) if page_of is None else page_of(-1)
    if page.seqnos and page.seqnos[0] != 0:
        first = make_record_key(page.seqnos[0])
        why = f"it is missing, no checkpoint can be read, and the log begins at {first}"
        advice = "If a copy to here was interrupted, give that command again. Otherwise restore it from a copy"
        raise MissingBlob(make_record_key(0), why, advice)


def load_checkpoint(blob: Blob, key: str) -> StoredCheckpoint | None:
    """Return the checkpoint at a key, or None if it does not exist; raise CorruptBlob if it is damaged."""
    data = get_at_most(blob, key, CHECKPOINT_BYTES_MAX)
    if data is None:
        return None
    checkpoint = decode_framed(data, Checkpoint, key)
    if key != make_checkpoint_key(checkpoint.seqno):
        raise CorruptBlob(key, f"it holds the checkpoint of seqno {checkpoint.seqno}, so blobs were exchanged")
    try:
        _check_checkpoint(checkpoint)
    except ValueError as error:
        raise CorruptBlob(key, f"no writer would make it: {error}") from error
    return StoredCheckpoint(checkpoint, make_pointer(key, data))


def read_checkpoint(blob: Blob, key: str) -> Checkpoint | None:
    """Return the result of `load_checkpoint`, without the pointer."""
    stored = load_checkpoint(blob, key)
    return None if stored is None else stored.checkpoint


def _check_checkpoint(checkpoint: Checkpoint) -> None:
    """Raise ValueError for wrong fields of a checkpoint, above all ids that become blob keys."""
    control, seqno = checkpoint.control, checkpoint.seqno
    if not is_id(checkpoint.location):
        raise ValueError(f"the location {checkpoint.location[:200]!r} is not 32 hex digits")
    if not is_id(checkpoint.commit):
        raise ValueError(f"the commit {checkpoint.commit[:200]!r} is not 32 hex digits")
    check_pointers(checkpoint.directory, seqno)
    if any(pointer.bytes > OBJECT_BYTES_MAX for pointer in checkpoint.directory):
        raise ValueError("a directory object of it is larger than any writer makes it")
    for dropped in control.dropped:
        if not is_id(dropped.collection) or dropped.seqno > seqno:
            raise ValueError(
                f"the destroyed collection {dropped.collection[:200]!r} is not an id, or was destroyed later"
            )
        if not all(map(is_id, dropped.folders)):
            raise ValueError(f"the folders {dropped.folders!r:.200} are not all ids of collections")
        if not all(is_upload(key, dropped.collection, *dropped.folders) for key in dropped.blobs):
            raise ValueError(f"a dropped blob is not an upload of collection {dropped.collection}")
    floors = (control.log_floor, control.upload_floor, control.erased, *(at for at, _ in control.erasures))
    if not all(0 <= floor <= seqno + 1 for floor in floors):
        raise ValueError(f"the floors {floors} are beyond seqno {seqno}")
    takeover = control.taken_over
    if (
        takeover is not None
        and not (parse_checkpoint_seqno(takeover.checkpoint.blob) or seqno) < takeover.seqno <= seqno
    ):
        raise ValueError(
            f"seqno {takeover.seqno} is not between the basis {takeover.checkpoint.blob[:200]!r} and this checkpoint"
        )


def load_state(blob: Blob, checkpoint: Checkpoint, known_levels: KnownLevels | None = None) -> State:
    """Return the state of a checkpoint, without contents. Cost: a GET for each level not in `known_levels`.

    Raises:
        MissingBlob, CorruptBlob: a directory object is missing or damaged.
    """
    return _restore_levels(blob, checkpoint, known_levels)[0]


def list_directory_blobs(blob: Blob, checkpoint: Checkpoint, known_levels: KnownLevels | None = None) -> set[str]:
    """Return the keys of all objects of a checkpoint's directory; costs and raises what `load_state` does."""
    levels = (known_levels or KnownLevels()).read(blob, checkpoint.location, checkpoint.directory)
    return {key for level in levels for key in level.blobs}


def _restore_levels(
    blob: Blob, checkpoint: Checkpoint, known_levels: KnownLevels | None
) -> tuple[State, tuple[Level, ...]]:
    """Load a checkpoint's state and the levels of its directory."""
    levels = (known_levels or KnownLevels()).read(blob, checkpoint.location, checkpoint.directory)
    directory_before = levels[-1].directory if levels else EMPTY
    control = checkpoint.control
    try:
        directory = directory_before.with_changes(checkpoint.collections, checkpoint.gone, checkpoint.freed)
        check_leases(directory, control.leases)
        for dropped in control.dropped if directory.entries.is_all_in_memory else ():
            if dropped.is_destroyed and dropped.collection in directory.entries:
                raise ValueError(f"the destroyed collection {dropped.collection} exists")
    except ValueError as error:
        key = make_checkpoint_key(checkpoint.seqno)
        raise CorruptBlob(key, f"no writer would make it: {error}") from error
    number = max(checkpoint.format, FORMAT_MIN)
    at = (checkpoint.location, checkpoint.seqno)
    return State(*at, directory.entries, directory.ids, control, checkpoint.commit, number), levels


def load_contents(
    blob: Blob, location: str, entry: CollectionEntry, known_levels: KnownLevels | None = None
) -> CollectionEntry:
    """Return an entry with its contents. Cost: nothing if it has them; otherwise `load_base`, and a GET for each part
    list.
    """
    if entry.contents is not None:
        return entry
    base = load_base(blob, location, entry, known_levels)
    pending = tuple(load_part_list(blob, location, mutation) for mutation in entry.pending)
    for mutation in pending:
        if isinstance(mutation, BringsParts) and mutation.parts_in is not None:
            try:
                check_parts(entry.id, mutation.parts, entry.folders if isinstance(mutation, kinds.Clone) else ())
            except ValueError as error:
                raise CorruptBlob(mutation.parts_in.blob, str(error)) from error
    try:
        loaded = msgspec.structs.replace(entry, pending=pending).attach_contents(base)
    except (ValueError, Conflict) as error:
        raise CorruptBlob(LOG, f"its entry of collection {entry.name!r} breaks a rule: {error}") from error
    assert loaded.contents is not None
    if loaded.contents.name != entry.name:
        raise CorruptBlob(LOG, f"its entry of collection {entry.name!r} has the state of {loaded.contents.name!r}")
    return loaded


def load_base(
    blob: Blob, location: str, entry: CollectionEntry, known_levels: KnownLevels | None = None
) -> CollectionState | None:
    """Return the state that an entry's state objects store; None without any. Cost: a GET for each, in parallel."""
    if not entry.stored:
        return None
    base = (known_levels or KnownLevels()).contents.read(blob, location, entry)[-1].contents
    # The entry does not have the name from before the rename.
    is_renamed = any(isinstance(mutation, kinds.Rename) for mutation in entry.pending)
    if base.name != entry.name and not is_renamed:
        raise CorruptBlob(entry.stored[-1].blob, "it belongs to another collection, so blobs were exchanged")
    _check_contents(base, entry)
    return base


def _check_contents(contents: CollectionState, entry: CollectionEntry) -> None:
    """Raise CorruptBlob for a stored state that no writer would store."""
    try:
        CollectionSchema.from_json(contents.schema_json)
        for name, hold in contents.holds.items():
            to_time_integer(f"the time of hold {name[:200]!r}", hold.time)
        for name, time in contents.tags.items():
            to_time_integer(f"the time of tag {name[:200]!r}", time)
        check_parts(entry.id, contents.stored_parts, entry.folders)
        check_contents(contents)
    except ValueError as error:
        raise CorruptBlob(entry.stored[-1].blob, f"no writer would make it: {error}") from error


def _rebase_entry(
    blob: Blob, state: State, entry: CollectionEntry, known_levels: KnownLevels, *, always: bool
) -> CollectionEntry:
    """Store an entry's contents as a new state object, if enough is pending or `always` is set."""
    assert state.location is not None
    inline = sum(len(p.inline) for m in entry.pending if isinstance(m, BringsParts) for p in m.parts)
    # After a compaction, parts that it replaced must not survive in pending mutations.
    is_compacted = any(isinstance(m, kinds.Replace | kinds.Erase | kinds.Resolve) for m in entry.pending)
    is_stored = not isinstance(entry.base, CollectionState)
    if (
        is_stored
        and not always
        and not is_compacted
        and len(entry.pending) <= STORED_PENDING_MAX
        and inline <= STORED_PENDING_BYTES_MAX
    ):
        return msgspec.structs.replace(entry, contents=None)
    contents = load_contents(blob, state.location, entry, known_levels).contents
    assert contents is not None
    # And what was destroyed must not live on in objects that are taken over.
    is_new = (
        always
        or state.format < LEVELS
        or sum(p.bytes for p in entry.stored) <= WHOLE_BYTES_MAX
        or any(map(_destroys_data, entry.pending))
    )
    levels_before = () if is_new else known_levels.contents.read(blob, state.location, entry)
    levels, data = make_levels(state.location, state.seqno, contents, levels_before, format=state.format)
    blob.set(levels[-1].pointer.blob, data)
    known_levels.contents.keep(entry.id, levels)
    base, *changes = (level.pointer for level in levels)
    return msgspec.structs.replace(entry, base=base, levels=tuple(changes), pending=(), contents=None)


def _destroys_data(mutation: CollectionMutation) -> bool:
    """Return whether a mutation removes data that no later object may contain."""
    is_forgetful = isinstance(mutation, kinds.Replace) and mutation.history_from is not None
    return is_forgetful or isinstance(mutation, kinds.Erase)
