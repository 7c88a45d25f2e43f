"""Copies a location to another place: `backup` repeatedly to the same place, `copy` once to an empty place.

Almost all objects of a location never change, and an object is older than the objects that name it. So a copy needs no
lock and no lease, and needs only the right to read the source:

1. The state at some record N is read, and the newest checkpoint C that was made before N.
2. The missing objects are copied in this order: all blobs that the state at N names, then the lists, state and
   directory objects that C and the records name, then the records from the floor of the log to N, and last C itself. If
   the target has records, new ones follow in order; otherwise they are copied in reverse.
3. If an object is missing by then, a garbage collector has deleted it, and a later state does not name it. Then the
   copy begins again with the newest state, and copies only what the target lacks.

Invariants of the target:

- Until the first record or checkpoint exists, the target cannot be opened. The first record of a first copy comes after
  all others. Afterwards it is the location as it was after its last record: what a record needs is there before the
  record.
- Its log is a prefix of the source's. If a record of the target differs from the source's, or the target has more
  records, nothing is copied: another client has written to it, or it is the copy of another location. Only leases and
  holds of its readers are removed from its end.
- An existing state object proves that its blobs exist as well, unless `DAMAGED` lists some as left out. So nothing is
  listed for a collection that did not change since the last backup.

Every blob is compared with the checksum that the state has for it, and every other object with its own checksum, before
it goes to the target. Each stored object is read again and compared, so a copy is readable. Damaged blobs of the source
are left out and named in the result: a backup of everything else is worth having. The target remembers them, so each
later backup tries them again, and names them until the source is mended.

One backup at a time writes to a target. Each first stores a mark of its own there. It checks this mark before it stores
an object that claims that others exist, and before it deletes. So if two backups overlap, for example because a timer
starts a second one, the older one stops and does not delete objects that the newer one has just copied.

Finally a backup deletes everything that the copied state does not name: it stays as large as the location, and is not
an archive. A copy deletes nothing.

Memory: `COPIES_AT_ONCE` blobs, and the names of the blobs of one collection.
"""

import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

import msgspec

from persist.blob.errors import Conflict, CorruptBlob, Corruption, MissingBlob
from persist.blob.protocol import Blob, delete_all
from persist.blob.threads import Clock, Pool, SystemClock
from persist.codecs.part.part import compute_checksum
from persist.core.closing import note_on_error
from persist.core.errors import InvalidUsage
from persist.core.log import kinds
from persist.core.log.framing import BlobRef, decode_framed, read_intact_kind
from persist.core.log.keys import (
    CHECKPOINTS,
    CLOCK_KEY,
    DIRECTORIES,
    LISTS,
    LOG,
    PARTS,
    STATES,
    get_second_part,
    is_upload,
    list_checkpoints,
    list_records,
    make_pages_key,
    make_record_key,
    parse_pages_seqno,
)
from persist.core.log.kinds import BringsParts, Mutation
from persist.core.log.records import Record
from persist.core.names import is_id
from persist.core.progress import Done, report_work
from persist.core.rendering import Shown, format_count
from persist.core.settings import Location, Settings, open_storage
from persist.core.state_rules.contents import CollectionState
from persist.core.state_rules.state import CollectionEntry, State
from persist.engine.follow.checkpoint import StoredCheckpoint, load_contents, load_state, read_checkpoint
from persist.engine.follow.follower import Follower
from persist.engine.upkeep import OBJECTS, Names, find_sharers, list_named

COPIES_AT_ONCE = 4
PASSES_MAX = 20
DAMAGED = "lost/left-out.json"  # The parts of the source that the target lacks, because they are damaged there.
OURS = (PARTS, LISTS, STATES, DIRECTORIES, LOG, CHECKPOINTS, CLOCK_KEY, "lost/")
Check = Callable[[bytes], object]  # Raises CorruptBlob.


@dataclass(frozen=True)
class Copied(Shown):
    """The result of a backup or a copy.

    Attributes:
        seqno: the target is the location after this record of its log.
        blobs, bytes: how much this call has stored in the target, and read again there.
        deleted: how many blobs, no longer named by the location, were deleted from the target.
        damaged: keys in the source that are missing or damaged. The target keeps its own versions of them.
    """

    seqno: int
    collections: int
    blobs: int
    bytes: int
    deleted: int
    damaged: tuple[str, ...] = ()

    def __str__(self) -> str:
        copied = f"{format_count(self.blobs, 'new blob')} of {self.bytes:,} bytes"
        done = f"{copied}, {format_count(self.deleted, 'old one')} deleted"
        text = f"{format_count(self.collections, 'collection')} as of record {self.seqno}: {done}"
        if not self.damaged:
            return text
        return f"{text}; damaged in the source, and not copied: {', '.join(self.damaged)}"


def backup(
    location: Location,
    target: Location,
    *,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    settings: Settings | None = None,
    clock: Clock | None = None,
) -> Copied:
    """Copy a location to a target, repeatedly. Only new blobs are copied.

    Blobs that the location does not need any more are deleted from the target.

    Writers, readers and collectors may continue. The first backup copies everything, later ones what is new. An
    interrupted backup resumes when it is called again. The target can be read at any time. A backup deletes the leases
    of the target's readers, which then begin again, so open the target with mode="read" meanwhile. A write to the
    target makes it useless as a backup, and the next backup raises an error.

    Args:
        location, target: what `persist.open` takes; the target is empty, or a backup of the location.
        storage_options, target_options: of the location's store, and of the target's.

    Cost: for each new blob a GET from the location, and a PUT and a GET at the target; a LIST of the target; a GET for
    each changed collection.

    Raises:
        InvalidUsage: there is nothing to copy; or the target is not a backup of this location, has been written to, or
            is older than a restore of the location.
        Conflict: another backup to the target, or a garbage collection there, has begun meanwhile.
        Unavailable: a store did not answer; what was copied stays.
        CorruptBlob: the log or objects that checkpoints name are damaged, so the state cannot be determined.
    """
    return _run(location, target, storage_options, target_options, settings, clock, forgets=True)


def copy(
    location: Location,
    target: Location,
    *,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    leave_out_damaged: bool = False,
    settings: Settings | None = None,
    clock: Clock | None = None,
) -> Copied:
    """Copy a location or backup to an empty place, to restore or move it.

    Nothing can be written to the target before all has been copied and read again. A copy is the same location as the
    first one: only one of the two may be written to from then on. For arguments, costs and errors see `backup`; the
    target must be empty, or an interrupted copy.

    Args:
        leave_out_damaged: leave damaged and lost parts out, and name them in the result. Otherwise, such a part is an
            error, and the target cannot be opened: repair the part and call again, or copy from another backup.

    Raises:
        CorruptBlob: a part is damaged or lost.
    """
    is_whole = not leave_out_damaged
    return _run(location, target, storage_options, target_options, settings, clock, forgets=False, is_whole=is_whole)


def _run(
    location: Location,
    target: Location,
    storage_options: Mapping[str, Any] | None,
    target_options: Mapping[str, Any] | None,
    settings: Settings | None,
    clock: Clock | None,
    *,
    forgets: bool,
    is_whole: bool = False,
) -> Copied:
    """Copy a location for `backup` or `copy`. `forgets` deletes unneeded blobs of the target."""
    clock = clock or SystemClock()
    with ExitStack() as ends:
        # Around the caches, which may hold what a store has lost.
        source = open_storage(location, storage_options, settings, clock)
        ends.callback(source.close)
        target_blob = open_storage(target, target_options, settings, clock)
        ends.callback(target_blob.close)
        pool = Pool(COPIES_AT_ONCE, "persist-copy")
        ends.callback(pool.shutdown)
        done = ends.enter_context(report_work("copy", source.retried.url, unit="blobs"))
        return _Copier(source.retried, target_blob.retried, pool, clock, done, is_whole=is_whole).copy_all(
            forgets=forgets
        )


class _Copier:
    """Copies one location to one target."""

    def __init__(self, source: Blob, target: Blob, pool: Pool, clock: Clock, done: Done, *, is_whole: bool) -> None:
        self._is_whole = is_whole  # Whether damage is an error.
        self._source = source
        self._target = target
        self._pool = pool
        self._clock = clock
        self._done = done
        self._names = Names(source)
        self._blobs = self._bytes = 0
        self._damaged: set[str] = set()
        self._missing: set[str] = set()  # Parts that this pass does not find,
        self._gone: set[str] = set()  # and those that an earlier one did not copy.
        self._mark = uuid.uuid4().hex.encode()
        self._incomplete: frozenset[str] = frozenset()  # Collections of which the target lacked parts before,
        self._left_out: set[str] = set()  # and those of which it lacks some now.

    def copy_all(self, *, forgets: bool) -> Copied:
        """Copy until the target has all of the source's log; return the report."""
        follower = Follower(self._source, self._clock)
        try:
            if follower.refresh().location is None:
                raise InvalidUsage(f"there is no location at {self._source.url}, so there is nothing to copy")
            target_state = self._delete_reader_records(follower.state)
            for turn in range(PASSES_MAX):
                state = follower.refresh()
                self._check_follows(target_state, state)
                try:
                    checkpoint = self._copy_once(state, target_state.seqno)
                    break
                except MissingBlob as error:
                    is_lost = follower.refresh().seqno == state.seqno and not error.key.startswith(PARTS)
                    if is_lost or turn == PASSES_MAX - 1:
                        raise
                    follower.restart()
        finally:
            follower.close()
        copied = Copied(
            state.seqno, len(state.entries), self._blobs, self._bytes, deleted=0, damaged=tuple(sorted(self._damaged))
        )
        with note_on_error(lambda: f"{copied}. What failed is only the deletion of what the target needs no longer."):
            try:
                return replace(copied, deleted=self._delete_unnamed(target_state, checkpoint) if forgets else 0)
            except MissingBlob:
                self._check_alone()  # A later backup may have deleted it.
                raise

    def _delete_reader_records(self, state: State) -> State:
        """Delete records of the target's readers from its log; return its state. `state`: of the source."""
        target_state = self._load_target_state()
        if target_state.location != state.location:
            return target_state
        # A reader that does not know yet that its records were deleted may have left one beyond the end of the log.
        seqnos = [seqno for seqno, _ in list_records(self._target)][::-1]
        last = next((seqno for seqno in seqnos if not self._is_reader_record(seqno, state)), target_state.seqno)
        extra = [seqno for seqno in seqnos if seqno > last]
        ours, target_record = (self._record(blob, last) for blob in (self._source, self._target))
        if not extra or ours is None or ours != target_record:
            return target_state  # Its last records do not come from readers alone.
        self._check_alone()
        for key in [entry.key for seqno, entry in list_checkpoints(self._target) if seqno > last]:
            self._target.delete(key)
        for seqno in extra:
            self._target.delete(make_record_key(seqno))
        return self._load_checkpointed_state()

    def _is_reader_record(self, seqno: int, state: State) -> bool:
        """Return whether a record of the target only has leases and holds of the target's readers."""
        ours, target_record = (self._record(blob, seqno) for blob in (self._source, self._target))
        if target_record is None or ours == target_record or (ours is None and seqno <= state.seqno):
            return False
        return all(
            _concerns_reader(mutation)
            for mutation in decode_framed(target_record, Record, make_record_key(seqno)).mutations
        )

    def _load_target_state(self) -> State:
        """Return the present state of the target."""
        url, source_url = self._target.url.rstrip("/"), self._source.url.rstrip("/")
        if url.startswith(f"{source_url}/") or source_url.startswith(f"{url}/"):
            raise InvalidUsage(
                f"{url} and {source_url} lie one inside of the other: give a target outside of the location"
            )
        foreign = next((entry.key for entry in self._target.list("") if not entry.key.startswith(OURS)), None)
        if foreign is not None:
            raise InvalidUsage(f"{url} has {foreign!r}, which does not belong to a location: give an empty target")
        self._target.set(CLOCK_KEY, self._mark)
        if self._source.get(CLOCK_KEY) == self._mark:  # However the two are spelled.
            raise InvalidUsage(f"{self._source.url} cannot be copied to itself: give another target")
        left_out = self._target.get(DAMAGED)
        self._incomplete = frozenset(msgspec.json.decode(left_out, type=list[str])) if left_out else frozenset()
        first = next((seqno for seqno, _ in list_records(self._target)), 0)
        if first and not any(True for _ in list_checkpoints(self._target)):
            return State()  # A first copy of a log that was truncated stopped before its checkpoint came: it goes on.
        return self._load_checkpointed_state()

    def _load_checkpointed_state(self) -> State:
        """Return the target's state, with the entries of the target's own checkpoint.

        Entries of the source's state may name objects of an older checkpoint, which were not copied.
        """
        follower = Follower(self._target, self._clock)
        try:
            return follower.refresh()
        finally:
            follower.close()

    def _check_follows(self, before: State, state: State) -> None:
        """Raise InvalidUsage unless the target's log is a prefix of the source's."""
        if before.location is None:
            return
        what = f"{self._target.url}, which is to become a copy of {self._source.url},"
        advice = "Give another target, or empty this one"
        if before.location != state.location:
            raise InvalidUsage(f"{what} holds another location. {advice}")
        if before.seqno > state.seqno:
            raise InvalidUsage(f"{what} has records that the location lacks: another client wrote to it. {advice}")
        ours, target_record = (self._record(blob, before.seqno) for blob in (self._source, self._target))
        if ours is not None and ours != target_record:
            raise InvalidUsage(f"{what} has another record {before.seqno}: another client wrote to one. {advice}")

    @staticmethod
    def _record(blob: Blob, seqno: int) -> bytes | None:
        """Return the bytes of a log record; None if it is missing."""
        return blob.get(make_record_key(seqno))

    def _copy_once(self, state: State, last: int) -> StoredCheckpoint | None:
        """Copy all blobs of a state and its records; return the new checkpoint.

        Args:
            last: the seqno of the last record that the target had.

        Raises:
            MissingBlob: an object of the source was deleted meanwhile.
        """
        newest = self._names.get_newest_checkpoint()
        if newest is not None and newest.checkpoint.seqno > state.seqno:  # It was made since the state was read.
            raise MissingBlob(newest.pointer.blob, "a newer state has been stored", "read it")
        self._missing.clear()
        self._left_out.clear()
        objects = set() if newest is None else self._names.list_named(newest.checkpoint)
        present = {prefix: self._list_present(prefix) for prefix in (LISTS, STATES, DIRECTORIES)}
        for id_, entry in state.entries.items():
            is_there = entry.stored and all(pointer.blob in present[STATES] for pointer in entry.stored)
            if not is_there or entry.pending or id_ in self._incomplete:
                self._copy_parts(state, id_, entry)
        missing = self._missing - self._gone
        if missing:  # Either the newest state does not name them, or they will be missing again.
            self._gone |= missing
            raise MissingBlob(min(missing), "it has gone, or is lost", "restore it from a copy")
        if self._is_whole and self._damaged:
            first, count = min(self._damaged), format_count(len(self._damaged), "blob")
            advice = (
                "Nothing can be opened there: mend them and go on, take another backup, or leave out what is damaged"
            )
            raise CorruptBlob(first, f"{count} of {self._source.url} cannot be copied", advice)
        self._check_alone()
        self._record_damage()
        floor = state.control.log_floor
        seqnos = range(max(floor, last + 1), state.seqno + 1)
        lists = _find_part_lists(self._source, seqnos)
        for prefix, keys in present.items():
            missing_keys = sorted(key for key in objects | lists if key.startswith(prefix) and key not in keys)
            self._copy_blobs((key, partial(_verify_framed, key)) for key in missing_keys)
        # A log that is there goes on in order. A new one ends with its first record, so that a partial copy cannot be
        # opened.
        for seqno in seqnos if last >= 0 else reversed(seqnos):
            self._copy_one(make_record_key(seqno), partial(_verify_framed, make_record_key(seqno)))
        if newest is not None and newest.pointer.blob not in self._list_present(CHECKPOINTS):
            self._check_alone()
            self._copy_one(newest.pointer.blob, partial(_verify_framed, newest.pointer.blob))
        return newest

    def _check_alone(self) -> None:
        """Raise Conflict if another backup changes the target."""
        if self._target.get(CLOCK_KEY) != self._mark:
            raise Conflict(
                f"another backup to {self._target.url}, or a garbage collection there, has begun meanwhile. Only "
                "one at a time may go on: wait for it, and back up again"
            )

    def _record_damage(self) -> None:
        """Store in the target which collections lack damaged parts.

        This is stored before any state object, which would claim that they are complete.
        """
        if self._left_out:
            self._target.set(DAMAGED, msgspec.json.encode(sorted(self._left_out)))
        elif self._incomplete:
            self._target.delete(DAMAGED)

    def _copy_parts(self, state: State, id_: str, entry: CollectionEntry) -> None:
        """Copy the parts of one collection."""
        contents = _load_contents(self._source, state, entry)
        if contents is None:
            return
        checks = _make_checks(contents)
        present = set[str]()
        for folder in {get_second_part(key) for key in checks}:
            present |= self._list_present(f"{PARTS}{folder}/")
        self._copy_blobs((key, check) for key, check in sorted(checks.items()) if key not in present)
        if self._damaged & checks.keys():
            self._left_out.add(id_)

    def _list_present(self, prefix: str) -> set[str]:
        """Return the keys of the target's blobs below a prefix."""
        return {entry.key for entry in self._target.list(prefix)}

    def _copy_blobs(self, wanted: Iterable[tuple[str, Check]]) -> None:
        """Copy blobs, several at once."""
        waiting: deque[Any] = deque()
        try:
            for key, check in wanted:
                waiting.append(self._pool.submit(self._copy_blob, key, check))
                if len(waiting) >= COPIES_AT_ONCE:
                    self._count(waiting.popleft().result())
            while waiting:
                self._count(waiting.popleft().result())
        finally:
            for future in waiting:  # Nothing is under way when this returns.
                if future.exception() is None:
                    self._count(future.result())

    def _copy_one(self, key: str, check: Check) -> None:
        self._count(self._copy_blob(key, check))

    def _count(self, bytes_: int | None) -> None:
        """Count a stored blob; None if it was not stored."""
        if bytes_ is not None:
            self._blobs += 1
            self._bytes += bytes_
            self._done(1)

    def _copy_blob(self, key: str, check: Check) -> int | None:
        """Copy a blob; return its bytes, or None if damaged."""
        data = self._source.get(key)
        if data is None and key.startswith(PARTS):
            (self._damaged if key in self._gone else self._missing).add(key)
            return None
        if data is None:
            raise MissingBlob(key, "it has gone, or is lost", "restore it from a copy")
        try:
            check(data)
        except CorruptBlob:
            if not key.startswith(PARTS):
                raise  # Without it, the state cannot be determined.
            self._damaged.add(key)
            return None
        is_new = self._target.create(key, data)
        stored = self._target.get(key)
        if stored != data:
            why = "it was stored, and reads otherwise" if is_new else "another one lies in the target"
            raise CorruptBlob(f"{self._target.url}/{key}", why, "Delete it there, and copy again")
        return len(data) if is_new else None

    def _delete_unnamed(self, before: State, checkpoint: StoredCheckpoint | None) -> int:
        """Delete blobs that the target's state does not name; return their number.

        The folders of collections that did not change are not looked at. If an earlier backup was interrupted, older
        checkpoints show what has changed since the last complete one, so they are deleted after the parts.

        Args:
            before: the target's state before this backup.
        """
        state = self._load_checkpointed_state()
        floor = state.control.log_floor
        present = {key for prefix in OBJECTS.values() for key in self._list_present(prefix)}
        records = [entry.key for seqno, entry in list_records(self._target) if seqno < floor]
        named = _find_part_lists(self._target, range(floor, state.seqno + 1))
        newest, stored = -1 if checkpoint is None else checkpoint.checkpoint.seqno, [*list_checkpoints(self._target)]
        older = [entry.key for seqno, entry in stored if seqno < newest]
        checkpoints = [entry.key for seqno, entry in stored if seqno <= newest]
        earlier_states = [before, *map(self._load_earlier_state, checkpoints)]
        shares, *earlier_shares = map(find_sharers, (state, *earlier_states))

        def is_unchanged(id_: str) -> bool:
            entry = state.entries.get(id_)
            return entry is not None and all(past.entries.get(id_) == entry for past in earlier_states)

        deleted = 0
        for folder, entries in groupby(self._target.list(PARTS), lambda entry: get_second_part(entry.key)):
            sharers = (sharer.id for sharing in (shares, *earlier_shares) for sharer in sharing.get(folder, ()))
            if all(map(is_unchanged, (folder, *sharers))):
                continue
            used = list_named(self._target, state, folder, shares)
            unused = [entry.key for entry in entries if is_upload(entry.key, folder) and entry.key not in used]
            deleted += self._delete_extra(unused)
        # A reader of the target may have made newer checkpoints meanwhile, of objects that were present.
        newer = [entry.key for seqno, entry in list_checkpoints(self._target) if seqno > newest]
        kept = [None if checkpoint is None else checkpoint.checkpoint]
        kept += [read_checkpoint(self._target, key) for key in newer]
        names = Names(self._target)
        named = named.union(*(names.list_named(content) for content in kept if content is not None))
        objects = sorted(present - named)
        return deleted + sum(self._delete_extra(keys) for keys in (older, records, objects))

    def _load_earlier_state(self, key: str) -> State:
        """Return the state of a target's checkpoint; if unreadable, the empty one, so that all has changed."""
        try:
            checkpoint = read_checkpoint(self._target, key)
            return State() if checkpoint is None else load_state(self._target, checkpoint)
        except Corruption:
            return State()

    def _delete_extra(self, keys: Sequence[str]) -> int:
        """Delete blobs from the target; return their number. Raises Conflict if another backup changes it."""
        if keys:
            self._check_alone()
        return delete_all(self._target, keys)


def _concerns_reader(mutation: Mutation) -> bool:
    """Return whether a mutation is about a lease, or a hold with a lease."""
    if isinstance(mutation, kinds.SetHold):
        return mutation.lease is not None
    if isinstance(mutation, kinds.ReleaseHold):
        return is_id(mutation.hold)
    return isinstance(mutation, kinds.GrantLease | kinds.EndLease) and not getattr(mutation, "consumer", "")


def _load_contents(blob: Blob, state: State, entry: CollectionEntry) -> CollectionState | None:
    """Return the state of a collection, from the entry of the directory."""
    assert state.location is not None
    return load_contents(blob, state.location, entry).contents


def _find_part_lists(blob: Blob, seqnos: Iterable[int]) -> set[str]:
    """Return the part lists that some records name. Raises MissingBlob: a record is not there any more."""
    named = set()
    for seqno in seqnos:
        key = make_record_key(seqno)
        data = blob.get(key)
        if data is None:
            raise MissingBlob(key, "it has gone", "read on")
        mutations = decode_framed(data, Record, key).mutations
        lists = (mutation.parts_in for mutation in mutations if isinstance(mutation, BringsParts))
        named |= {pointer.blob for pointer in lists if isinstance(pointer, BlobRef)}
    return named


def _make_checks(contents: CollectionState) -> dict[str, Check]:
    """Return all blobs of a collection, each with a function that verifies it."""
    checks: dict[str, Check] = dict.fromkeys(contents.named_blobs, lambda data: None)
    stored = [(part.blob, part.checksum) for part in contents.stored_parts if part.blob]
    archives = () if contents.archives is None else contents.archives.stored
    stored += [(archive.stored.blob, archive.stored.checksum) for archive in archives]
    return checks | {key: partial(_check_part, key, checksum) for key, checksum in stored}


def _check_part(key: str, checksum: str, data: bytes) -> None:
    """Raise CorruptBlob unless the bytes of a part have its checksum."""
    if compute_checksum(data) != checksum:
        raise CorruptBlob(key, f"its checksum is not {checksum}")


def _verify_framed(key: str, data: bytes) -> None:
    """Raise CorruptBlob unless a framed object has its checksum."""
    seqno = parse_pages_seqno(key)
    is_intact = read_intact_kind(data) is not None if seqno is None else make_pages_key(seqno, data) == key
    if not is_intact:
        raise CorruptBlob(key, "it is not an undamaged object of a log")
