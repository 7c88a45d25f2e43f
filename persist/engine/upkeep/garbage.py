"""Collection of garbage: what no state that anybody may still use refers to.

| what | is deleted when |
|---|---|
| blobs of a destroyed collection, and those | `grace_s` has passed, and each lease that read the collection |
| that compaction left unused | then has ended, or reads from later states only; and no clone has them |
| uploads that no record names | a record has declared them void, `orphan_grace_s` after they began |
| log records | they are older than the retention, or than `grace_s` where there are too many, or where they |
| | may hold what compaction has destroyed since; and a checkpoint says that they are not needed |
| checkpoints | two newer ones exist, except one an hour back to the first log record that is kept |
| directory and state objects, | no checkpoint that is kept refers to them, nor a log record, and none ever can |
| and part lists | |

A collector may stop anywhere for hours, while others commit, make checkpoints and collect. What it deletes then was
listed long ago, so each of these is safe because it can never come to be needed again, not because of a delay:

- *Parts*: what the log has dropped, and what a record has declared void, no later record can name (`apply` refuses it).
  Clones name parts in the folders of others. What a collection has dropped stays as long as one of its clones names it.
  What a clone has dropped in the folder of another collection is like an upload that no record names, once nobody reads
  it any more. No later record can name what no collection names: a new clone names only what its source names when the
  record is made.
- *Records*: those below the floor of a checkpoint that has been read. Floors never go back, so every later checkpoint
  has that floor, too, and somebody who creates a record in such a slot finds out by it (`Follower.was_truncated`).
- *Checkpoints*: those that two newer ones follow in a listing. So the newest one is never among them.
- *Directory and state objects*. They lie there under names that a checkpoint may take over from the one that it is made
  of, and its maker may have been asleep since it read that. So a `TakeOver` in the log, at seqno v, first names one
  checkpoint N that has been read. By `write_checkpoint`, one at v or later is made of N, or of one at v or later, and
  what it does not take over has its own seqno in the name. By induction, all checkpoints from v on name nothing but
  what N names and objects that are made for v or later. As soon as a checkpoint at v or later has been read, no newest
  one is ever before v. From then on, what N does not name and what has a seqno up to that of N is unused for good. What
  a checkpoint before v names that is there by then stays as long as it does: it may be kept for what the log was. Late
  checkpoints before v may still come to be, and name what is gone: nobody opens them, and they are deleted.
- *Part lists*: they are named by the record whose slot they were made for, and by checkpoints that keep its mutation,
  which they take over as they do with objects. So they need both a floor beyond their seqno, and the above.

Somebody may restore a backup in place between any two steps. What the state in memory says is unused may be in use
then. So before each page of deletes the collector looks whether the log is still the one that it knows. A restore may
come between that look and the deletes of one page: docs/run/restore.md says to stop collectors before.

A listing is believed only as far as what it listed could be read: if something has gone meanwhile, everything is listed
again. Where the newest checkpoint names what is not there, nothing of that kind is deleted, and that is an error.

Nobody's clock decides about data. Ages are differences between the store's own times of change: a checkpoint that the
store says is older than the grace period, next to a blob written just now, proves that every record up to its seqno is.
What may go is then declared in the log, and only after that deleted; a writer that comes late finds the declaration
before it can commit. Any number of collectors may run at once: all of their steps are idempotent. One that dies leaves
what it did not delete to the next.

A full store takes no declaration, and making room is what collecting is for. So each step that has no room to write is
left out, and the others delete what the log, as it stands, gives free. After that there mostly is room, and all is done
again. Ages are then those of records, too, and the present is the last change that the store has dated: no blob can be
written to learn more, and both err on the side of keeping.

Only what has the name of one of these is ever deleted, and no key is taken from what was read: keys come from a listing
of this location. What else lies there, such as another location below this one, is left alone.
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from math import inf

from persist.blob.errors import Indeterminate, MissingBlob, StoreFull
from persist.blob.protocol import Blob, BlobEntry, delete_all
from persist.core.log import kinds
from persist.core.log.fields import LocationMutation
from persist.core.log.framing import get_framed
from persist.core.log.keys import (
    CHECKPOINTS,
    CLOCK_KEY,
    LOG,
    checkpoint_key,
    is_shown,
    is_upload,
    listed_checkpoints,
    listed_records,
    table_root,
    uploaded_seqno,
)
from persist.core.progress import Done, task
from persist.core.rendering import Shown, counted
from persist.core.state_rules.location import Dropped, is_waited_for
from persist.core.state_rules.state import State
from persist.engine.compact import give_back
from persist.engine.follow.checkpoint import Checkpoint, StoredCheckpoint, write_checkpoint
from persist.engine.follow.follower import Follower
from persist.engine.upkeep.ages import Ages, Mark, checkpoint_marks
from persist.engine.upkeep.references import (
    OBJECTS,
    CheckedUploads,
    KnownNames,
    Names,
    named_in,
    object_seqno,
    sharers,
    unnamed_parts,
    whole_folders,
)
from persist.engine.write.committer import Committer

CHECKPOINTS_MIN = 2
_NOUNS = {
    "parts": "part",
    "lists": "list",
    "states": "state",
    "directories": "directory",
    "checkpoints": "checkpoint",
    "records": "record",
}
DELETE_MAX = 1000
LONG = 1.25  # So much more than `log_records_max` is worth a round between two collections.
ROUNDS_MAX = 5  # That come to nothing because others have collected meanwhile.


@dataclass(frozen=True)
class GarbageReport(Shown):
    """What one collection of garbage deleted.

    Attributes:
        collections: destroyed ones whose blobs are gone now.
        parts, lists, states, directories, checkpoints, records: blobs deleted of each kind.
        bytes: what all of them occupied.
    """

    collections: int = 0
    parts: int = 0
    lists: int = 0
    states: int = 0
    directories: int = 0
    checkpoints: int = 0
    records: int = 0
    bytes: int = 0

    def __str__(self) -> str:
        return self.sentence("deleted")

    def sentence(self, did: str) -> str:
        """Return what was deleted as a person reads it; `did` is what became of it, such as "would delete"."""
        deleted = [counted(self.collections, "destroyed collection")] if self.collections else []
        for kind, noun in _NOUNS.items():
            deleted += [counted(getattr(self, kind), noun)] if getattr(self, kind) else []
        return f"{did} {', '.join(deleted)}: {self.bytes:,} bytes" if deleted else "nothing to delete"

    @property
    def blobs(self) -> int:
        """All blobs deleted."""
        return self.parts + self.lists + self.states + self.directories + self.checkpoints + self.records


@dataclass(frozen=True)
class Deleted:
    """What `Garbage.delete_leaked` did: the keys that are gone, and the seqnos of the records it committed for that."""

    keys: tuple[str, ...] = ()
    declared_at: tuple[int, ...] = ()


class Garbage:
    """Collects the garbage of one location, for one client."""

    def __init__(self, blob: Blob, follower: Follower, committer: Committer) -> None:
        self._blob = blob
        self._follower = follower
        self._committer = committer
        self._one_at_a_time = threading.Lock()
        self._known_names = KnownNames()

    def collect(self, before: Callable[[], object] = lambda: None) -> GarbageReport:
        """Delete what may be deleted now, after a first step that may commit something, such as the end of leases.

        Cost: LISTs of everything, a GET for each checkpoint and directory object kept, and for the state of each
        collection; after the first time, of those in which parts have come since, and once a day again of all
        (`CheckedUploads`). Up to four commits and three checkpoints, and a few GETs for each 1,000 blobs to delete.
        Memory: the part list of one collection, and the names of objects of checkpoints. Kept between two calls: 8
        bytes for each of these names, 32 MB at most. What the process has freed by then goes back to the operating
        system, which takes some milliseconds.

        Raises:
            StoreFull: what could be deleted without a commit was, and there still is no room for one.
            Unavailable: the store did not answer.
            Indeterminate: others truncated the log again and again while this client was late.
            Corruption: something that refers to blobs cannot be read, so what it may refer to was not deleted; or the
                newest checkpoint names what is not there; or the log is not the one that is known, or is interrupted,
                and nothing was deleted.
        """
        with self._one_at_a_time:
            state = self._follower.refresh()
            if state.location is None:
                return GarbageReport()
            with task("collect", self._blob.url, unit="blobs") as done:
                report = self._round(done=done).run(before)
        give_back()
        return report

    def shorten_log(self) -> None:
        """Do what `collect` does about records and checkpoints, if there are far more records than there should be.

        Cost: nothing; or LISTs of them, and a commit and a checkpoint. Errors are those of `collect`.
        """
        with self._one_at_a_time:
            state = self._follower.state
            if state.seqno + 1 - state.control.log_floor > LONG * self._follower.policies.newest.log_records_max:
                self._follower.refresh()
                self._round().run_log()

    def plan(self) -> GarbageReport:
        """Return what `collect` would delete now, changing nothing. Cost: its reads.

        An estimate: the age of blobs is told by this machine's clock, because asking the store for the time needs a
        write; and leases that have run out count as live.

        Raises: as `collect`.
        """
        with self._one_at_a_time:
            if self._follower.refresh().location is None:
                return GarbageReport()
            return self._round(is_dry=True).run(lambda: None)

    def delete_leaked(self, keys: Iterable[str]) -> Deleted:
        """Delete those of keys that `collect` would delete as uploads, lists, states or records nobody refers to.

        Cost and errors are those of `collect`. No other blob is deleted.
        """
        with self._one_at_a_time:
            if self._follower.refresh().location is None:
                return Deleted()
            return self._round(frozenset(keys)).run_only()

    def _round(self, *only: frozenset[str], is_dry: bool = False, done: Done = lambda count: None) -> "_Round":
        names = Names(self._blob, self._known_names)
        return _Round(self._blob, self._follower, self._committer, names, *only, is_dry=is_dry, done=done)


class _Round:
    """One collection of garbage, which reads the store's clock once; only of some keys, if they are given."""

    def __init__(
        self,
        blob: Blob,
        follower: Follower,
        committer: Committer,
        names: Names,
        only: frozenset[str] | None = None,
        *,
        is_dry: bool = False,
        done: Done = lambda count: None,
    ) -> None:
        self._done = done
        self._blob = blob
        self._follower = follower
        self._committer = committer
        self._only = only
        self._is_dry = is_dry
        self._log_floor = self._upload_floor = 0  # What a dry round would have declared.
        self._deleted: list[str] = []
        self._declarations: list[int] = []
        self._counts: dict[str, int] = {}
        self._bytes = 0
        self._collections = 0
        self._being_made: int | None = None  # The least seqno of a checkpoint that has no age yet, perhaps.
        self._ages = Ages(follower.state, follower.policies, 0.0, ())
        self._full: StoreFull | None = None
        self._names = names
        self._checked = CheckedUploads()
        self._unnamed: list[BlobEntry] = []  # Parts that nothing named when they were looked at last,
        self._shared: set[str] = set()  # and folders in which clones had parts.

    def run(self, before: Callable[[], object]) -> GarbageReport:
        had_deleted = -1
        while len(self._deleted) > had_deleted:
            had_deleted = len(self._deleted)
            self._full = None
            self._unhindered(lambda: self._collect(before))
            if self._full is None:
                return GarbageReport(self._collections, **self._counts, bytes=self._bytes)
        assert self._full is not None, "it was the reason to do it again"
        raise self._no_room(self._full) from self._full

    def run_only(self) -> Deleted:
        self._unhindered(self._collect_only)
        return Deleted(tuple(self._deleted), tuple(self._declarations))

    def run_log(self) -> None:
        self._unhindered(self._collect_log)

    def _unhindered(self, collect: Callable[[], object]) -> None:
        """Collect; begin again when others, who have collected meanwhile, have deleted what was about to be read."""
        failed = ""
        for _ in range(ROUNDS_MAX):
            try:
                if not self._is_dry:
                    self._follower.prove_known()
                collect()
                return
            except (MissingBlob, Indeterminate) as error:
                if str(error) == failed:
                    raise
                failed, last = str(error), error
                self._follower.restart()
        raise last

    def _collect(self, before: Callable[[], object]) -> None:
        self._with_room(before)
        self._with_room(self._checkpoint)
        self._date(self._store_time_s())
        if self._full is not None:
            records = [Mark(seqno, entry.modified_s) for seqno, entry in listed_records(self._blob)]
            self._ages = replace(self._ages, records=records)
        self._collect_dropped()
        self._collect_uploads()
        self._truncate_and_collect()
        self._collect_objects()

    def _collect_log(self) -> None:
        self._date(self._store_time_s())
        self._truncate_and_collect()

    def _truncate_and_collect(self) -> None:
        self._ages = replace(self._ages, state=self._follower.state)
        self._truncate_with_room()
        self._move_on()
        self._date(self._ages.now_s)
        self._collect_records()
        self._collect_checkpoints()

    def _with_room(self, step: Callable[[], object]) -> None:
        """Do what needs room, or take note that there is none."""
        if self._is_dry:
            return
        try:
            step()
        except StoreFull as error:
            self._full = self._full or error

    def _no_room(self, full: StoreFull) -> StoreFull:
        return StoreFull(
            f"of this location, {len(self._deleted):,} blobs of {self._bytes:,} bytes were deleted; to delete more, a "
            f"little must be written first, for which there is no room: {full}"
        )

    def _collect_only(self) -> None:
        self._date(self._store_time_s())
        self._collect_uploads()
        self._collect_records()
        self._collect_objects()

    def _store_time_s(self) -> float:
        """Return the present time by the clock that dates the store's blobs."""
        if self._is_dry:
            return self._follower.now()[1]
        try:
            self._blob.set(CLOCK_KEY, b"now")
            return next(iter(self._blob.list(CLOCK_KEY))).modified_s
        except StoreFull as error:
            self._full = self._full or error
            dated = (entry for prefix in (LOG, CHECKPOINTS, CLOCK_KEY) for entry in self._blob.list(prefix))
            return max((entry.modified_s for entry in dated), default=0.0)

    def _checkpoint(self) -> None:
        write_checkpoint(self._blob, *self._follower.recent())

    def _date(self, now_s: float) -> None:
        # First, because it may be there when the listing has passed it.
        self._being_made = self._committer.groups.checkpointing.least_seqno
        checkpoints = checkpoint_marks(self._blob.list(CHECKPOINTS))
        follower = self._follower
        self._ages = Ages(follower.state, follower.policies, now_s, checkpoints, self._ages.records)

    def _collect_dropped(self) -> None:
        state, old = self._follower.state, self._ages.seqno_before(self._ages.policy.grace_s)
        due: list[Dropped] = []
        waiting: list[Dropped] = []
        for dropped in state.control.dropped:
            is_due = dropped.seqno <= old and not is_waited_for(state.control, dropped)
            (due if is_due else waiting).append(dropped)
        kept = {folder for dropped in waiting for folder in whole_folders(dropped)}
        replaced = {key for dropped in waiting for key in dropped.blobs}
        due = [dropped for dropped in due if dropped.collection not in kept]
        shares = sharers(state) if due else {}
        shared: dict[str, set[str]] = {}

        def shared_in(folder: str) -> set[str]:
            if folder in shares and folder not in shared:
                shared[folder] = named_in(self._blob, state, folder, shares)
            return shared.get(folder, set())

        for dropped in due:
            # Its part lists stay as long as the log records that name them, because following the log reads them; its
            # state objects as long as a checkpoint that is kept names them, which may be older than the destruction.
            id_, unused = dropped.collection, frozenset(dropped.blobs)
            named = replaced | shared_in(id_)
            unnamed = (entry for entry in self._blob.list(table_root(id_)) if entry.key not in named)
            if dropped.is_destroyed:  # Its published tables go with it.
                gone = (entry for entry in unnamed if is_upload(entry.key, id_) or is_shown(entry.key, id_))
            else:
                gone = (entry for entry in unnamed if entry.key in unused)
            self._delete("parts", gone)
        if due:
            self._with_room(lambda: self._forget(due))
            self._collections += self._is_dry * sum(dropped.is_destroyed for dropped in due)

    def _forget(self, due: list[Dropped]) -> None:
        self._commit(kinds.Collected(tuple((dropped.collection, dropped.seqno) for dropped in due)))
        self._collections += sum(dropped.is_destroyed for dropped in due)

    def _collect_uploads(self) -> None:
        # What is only asked for, or of some keys, is looked up anew.
        is_whole = self._only is None and not self._is_dry
        self._checked = self._names.known.uploads.at(self._ages.now_s) if is_whole else CheckedUploads()
        self._delete_unnamed()
        if is_whole:
            unnamed = (entry.key for entry in self._unnamed)
            self._names.known.uploads = self._checked.after(self._ages.now_s, unnamed, self._shared)

    def _delete_unnamed(self) -> None:
        state, uploads = self._unnamed_uploads()
        orphans = [seqno for entry, seqno in uploads if self._is_orphan(entry, seqno)]
        if not orphans:
            return
        floor = self._ages.upload_floor((seqno, self._age_s(entry)) for entry, seqno in uploads)
        if floor > state.control.upload_floor or max(orphans) > state.seqno:
            # The second, because in a log that stands still nothing would ever be older than these uploads.
            self._with_room(lambda: self._void(floor))
            self._upload_floor = floor
        # Only what no record names even now, after the declaration, can never be named.
        state, uploads = self._unnamed_uploads()
        voided = max(state.control.upload_floor, self._upload_floor if self._is_dry else 0)
        orphaned = (entry for entry, seqno in uploads if seqno < voided and self._is_orphan(entry, seqno))
        self._delete("parts", orphaned)

    def _void(self, floor: int) -> None:
        self._declarations.append(self._commit(kinds.VoidUploads(floor)))

    def _unnamed_uploads(self) -> tuple[State, list[tuple[BlobEntry, int]]]:
        """Return the newest state, and the parts that it does not refer to, each with the seqno in its name."""
        state = self._follower.refresh()
        self._unnamed, self._shared = unnamed_parts(self._blob, state, self._checked)
        replaced = {key for dropped in state.control.dropped for key in dropped.blobs}
        unnamed = (entry for entry in self._unnamed if entry.key not in replaced)
        return state, [(entry, seqno) for entry in unnamed if (seqno := uploaded_seqno(entry.key)) is not None]

    def _truncate_with_room(self) -> None:
        if self._is_dry:
            self._log_floor = self._ages.log_floor(listed_records(self._blob)) or 0
        else:
            self._with_room(self._truncate)

    def _truncate(self) -> None:
        if (floor := self._ages.log_floor(listed_records(self._blob))) is not None:
            self._commit(kinds.TruncateLog(floor))
            self._checkpoint()

    def _move_on(self) -> None:
        """Let checkpoints be made of one that says nothing of what was destroyed before the log begins.

        The one that is taken over stays for as long as it is, with all that it names. So this must be only what the log
        could say, too: a directory object from before its floor may hold rows of collections that are gone since.
        """
        control = self._follower.state.control
        taken, floor = control.taken_over, control.log_floor
        if taken is not None and self._names.oldest_in(taken.checkpoint.blob) < floor:
            newest = self._names.newest()
            if newest is not None and self._names.oldest_in(newest.pointer.blob) >= floor:
                self._with_room(lambda: self._take_over(newest))

    def _known_floor(self) -> int:
        """Return the floor of the log that the newest checkpoint gives.

        Whoever opens, or comes back after a long time, learns of it there: until then, records beyond it are read.
        """
        newest = self._names.newest()
        return max(self._log_floor, 0 if newest is None else newest.checkpoint.control.log_floor)

    def _collect_records(self) -> None:
        end = self._known_floor()
        old = takewhile(lambda listed: listed[0] < end, listed_records(self._blob))
        self._delete("records", (entry for _, entry in old))

    def _collect_checkpoints(self) -> None:
        floor = self._known_floor()
        destroyed = self._follower.state.control.destroyed_before(floor)
        marks, kept = self._ages.checkpoints, []
        taken = self._follower.state.control.taken_over
        buckets: set[tuple[int, int]] = set()
        for n, mark in enumerate(marks):
            age_s = self._age_s(mark)
            width_s = 60 if age_s < 3600 else 3600
            bucket = (width_s, int(mark.modified_s // width_s))
            key = checkpoint_key(mark.seqno)
            is_taken = taken is not None and taken.checkpoint.blob == key
            is_due = mark.seqno >= floor - 1 and bucket not in buckets
            if n < CHECKPOINTS_MIN or is_taken or (is_due and self._names.oldest_in(key) >= destroyed):
                kept.append(mark)
            buckets.add(bucket)
        gone = {checkpoint_key(mark.seqno) for mark in marks} - {checkpoint_key(mark.seqno) for mark in kept}
        if gone:
            self._delete("checkpoints", (entry for entry in self._blob.list(CHECKPOINTS) if entry.key in gone))
        self._ages = replace(self._ages, checkpoints=kept)

    def _collect_objects(self) -> None:
        """Delete directory objects, state objects and part lists: see the module's docstring."""
        newest = self._names.newest()
        if newest is None:
            return
        listed = {what: [*self._blob.list(prefix)] for what, prefix in OBJECTS.items()}
        named = self._names.named_by(newest.checkpoint)
        present = {entry.key for entries in listed.values() for entry in entries}
        self._names.check_present(named, present)
        others, useless = self._names.named_by_others((mark.seqno for mark in self._ages.checkpoints), newest, present)
        if useless and self._only is None:
            self._delete("checkpoints", (entry for entry in self._blob.list(CHECKPOINTS) if entry.key in useless))
        named |= others
        # Neither has a way back: a list is for the record whose seqno it has, and that slot has been truncated.
        floor = max(self._log_floor, newest.checkpoint.control.log_floor)
        ends = {"directories": newest.checkpoint.seqno + 1, "states": newest.checkpoint.seqno + 1, "lists": floor}
        unused = {
            what: [
                entry
                for entry in entries
                if entry.key not in named
                and (seqno := object_seqno(entry.key)) is not None
                and seqno < ends[what]
                and self._is_orphan(entry, seqno, self._ages.erase_after_s)
            ]
            for what, entries in listed.items()
        }
        if not any(unused.values()):
            return
        end, named = self._declared(newest)
        named |= self._named_since(present)
        for what, entries in unused.items():
            dead = (e for e in entries if e.key not in named and (object_seqno(e.key) or 0) < end)
            self._delete(what, dead, check=self._names.check_unnamed)

    def _declared(self, newest: StoredCheckpoint) -> tuple[int, set[str]]:
        """Declare of what checkpoints are made from now on; return what no later checkpoint names.

        Those are all objects of seqnos below the first result but the second ones.
        """
        if self._is_dry:
            return newest.checkpoint.seqno + 1, set()
        self._with_room(lambda: self._take_over(newest))
        taken, after = self._follower.refresh().control.taken_over, self._names.newest()
        if taken is None or after is None or after.checkpoint.seqno < taken.seqno:
            return 0, set()  # There is no room for what it takes.
        basis = get_framed(self._blob, taken.checkpoint, Checkpoint)
        # And without a grace period, what this client makes for an older one is not to go, either.
        end = basis.seqno + 1 if self._being_made is None else min(basis.seqno + 1, self._being_made)
        return end, self._names.named_by(basis) | self._names.named_by(after.checkpoint)

    def _named_since(self, present: set[str]) -> set[str]:
        """Return what of present the checkpoints name that came after the others were listed, until the declaration.

        Others may have kept one of them, while this client slept, for what the log was then. The last one declared is
        beyond them all, and later ones before it are made when there are newer ones, and cannot be used.
        """
        taken = self._follower.state.control.taken_over
        if self._is_dry or taken is None:
            return set()
        since = {seqno for seqno, _ in listed_checkpoints(self._blob) if seqno < taken.seqno}
        newest = self._names.newest()
        if newest is None or since <= {mark.seqno for mark in self._ages.checkpoints}:
            return set()
        return self._names.named_by_others(since, newest, present)[0]

    def _take_over(self, newest: StoredCheckpoint) -> None:
        """Declare that checkpoints are made of this one, unless this client has slept and knows no record after it."""
        if self._follower.refresh().seqno < newest.checkpoint.seqno:
            return
        self._declarations.append(self._commit(kinds.TakeOver(newest.pointer)))
        self._checkpoint()

    def _is_orphan(self, entry: BlobEntry, seqno: int, longest_s: float = inf) -> bool:
        """Return whether an upload, or an object that nothing names, is old enough to go, and is to be looked at."""
        age_s = self._age_s(entry)
        is_old = age_s >= longest_s or self._ages.is_old_upload(seqno, age_s)
        return is_old and (self._only is None or entry.key in self._only)

    def _age_s(self, dated: BlobEntry | Mark) -> float:
        return self._ages.now_s - dated.modified_s

    def _commit(self, mutation: LocationMutation) -> int:
        return self._committer.submit([mutation], {}).result()

    def _delete(
        self, kind: str, entries: Iterable[BlobEntry], check: Callable[[list[str]], object] = lambda keys: None
    ) -> None:
        entries = (entry for entry in entries if self._only is None or entry.key in self._only)
        while some := [*islice(entries, DELETE_MAX)]:
            if not self._is_dry:
                self._follower.prove_known()
                check([entry.key for entry in some])
                delete_all(self._blob, [entry.key for entry in some])
            self._deleted += [entry.key for entry in some]
            self._counts[kind] = self._counts.get(kind, 0) + len(some)
            self._bytes += sum(entry.bytes for entry in some)
            self._done(len(some))
