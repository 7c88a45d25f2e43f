"""Garbage collection: deletes the blobs that no present or future state refers to.

`docs/inside/format.md` ("Deleting") has the rule for each kind of blob, and `docs/inside/design.md` ("What may be
deleted, and who decides") the races that it closes.

A collector may pause for hours between any two steps, while others commit, make checkpoints and collect. Then it
deletes blobs that it listed long ago. So a deletion is safe only if the blob can never be needed again, however long
the collector pauses:

- *Parts*: `apply` refuses a record that names a dropped part or a void upload. A dropped part stays while a clone names
  it. If a clone dropped it in the folder of another collection, it later counts as an upload that no record names. A
  new clone names only parts that its source names at that record.
- *Records*: the floor never goes back, so every later checkpoint has the floor of a checkpoint that was read, or a
  higher one. A client that creates a record below the floor detects it (`Follower.was_truncated`).
- *Checkpoints*: two newer ones were in a listing, so the newest one is never deleted.
- *Directory and state objects*: a `TakeOver` record at seqno v first names a checkpoint N that was read. Once a
  checkpoint at v or later was read, an object is unused for good if N does not name it and its seqno is not after N.
  The objects of an older checkpoint stay as long as that checkpoint, which serves reads of the log's past. A late
  checkpoint before v may name deleted objects: no client opens it, and it is deleted.
- *Part lists*: the record with their seqno names them, and checkpoints that have its mutation. So their seqno must be
  below the floor, and the rule for objects must allow the deletion.

A backup may be restored in place between any two steps; then the state in memory is wrong. So the collector checks that
the log is the same before each page of deletes. A restore within a page is not detected: docs/run/restore.md demands
that collectors are stopped first.

No client's clock affects data: ages are differences between dates of the store (`persist.engine.upkeep.ages`). A
deletion is declared in the log first, so a late writer finds the declaration before it can commit. Several collectors
may run at once, because all steps are idempotent. If one dies, the next one continues.

A full store accepts no declaration. Then steps that must write are skipped, the others delete what the log allows
already, and everything is tried again. The dates of records count as proofs, too, and the newest date in the store
counts as the present, because no blob can be written to read the time. Both only keep blobs for longer.

A deleted key was listed in this location, and fits the grammar of such blobs. Other blobs stay, such as blobs of a
location below this one.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
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
    get_table_root,
    is_table_key,
    is_upload,
    list_checkpoints,
    list_records,
    make_checkpoint_key,
    parse_upload_seqno,
)
from persist.core.progress import Done, report_work
from persist.core.rendering import Shown, format_count
from persist.core.state_rules.location import Dropped, is_still_readable
from persist.core.state_rules.state import State
from persist.engine.compact import release_unused_memory
from persist.engine.follow.checkpoint import Checkpoint, StoredCheckpoint, write_checkpoint
from persist.engine.follow.follower import Follower
from persist.engine.upkeep.ages import Ages, Mark, list_checkpoint_marks
from persist.engine.upkeep.references import (
    OBJECTS,
    CheckedUploads,
    KnownNames,
    Names,
    find_sharers,
    find_unnamed,
    list_folders,
    list_named,
    parse_object_seqno,
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
LONG = 1.25  # Times `log_records_max`: a log this long is shortened between two collections.
ROUNDS_MAX = 5  # Attempts, if other collectors delete what is about to be read.


@dataclass(frozen=True)
class GarbageReport(Shown):
    """The numbers of blobs that a garbage collection deleted.

    Attributes:
        collections: destroyed collections whose blobs are all deleted.
        parts, lists, states, directories, checkpoints, records: deleted blobs of each kind.
        bytes: the size of all of them.
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
        """Return a sentence about the deleted blobs; `did` is its verb: "deleted" or "would delete"."""
        deleted = [format_count(self.collections, "destroyed collection")] if self.collections else []
        for kind, noun in _NOUNS.items():
            deleted += [format_count(getattr(self, kind), noun)] if getattr(self, kind) else []
        return f"{did} {', '.join(deleted)}: {self.bytes:,} bytes" if deleted else "nothing to delete"

    @property
    def blobs(self) -> int:
        """The number of all deleted blobs."""
        return self.parts + self.lists + self.states + self.directories + self.checkpoints + self.records


@dataclass(frozen=True)
class Deleted:
    """The keys that `Garbage.delete_leaked` deleted, and the seqnos of the records that declared the deletion."""

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
        """Delete all garbage that may be deleted now.

        Cost: LISTs of everything, a GET for each remaining checkpoint and directory object, and for the state of each
        collection. Later calls read the new ones of these, and the states of all once a day (`CheckedUploads`). Up to
        four commits and three checkpoints, and a few GETs for each 1,000 deleted blobs. Memory: the part list of one
        collection, and the names of objects of checkpoints. Between two calls, 8 bytes for each of these names stay, 32
        MB at most, and the names that pages mention, 32 MiB at most. Freed memory is returned to the operating system,
        in some milliseconds.

        `before`: called first; it may commit, such as the end of leases.

        Raises:
            StoreFull: the store has no room for a commit, even after the deletions that need none.
            Unavailable: the store did not answer.
            Indeterminate: other clients truncated the log again and again while this one was slow.
            Corruption: a blob that names others cannot be read, or the newest checkpoint names a missing blob. Blobs
                that it may name were not deleted. Or the log is interrupted or was replaced: nothing was deleted.
        """
        with self._one_at_a_time:
            state = self._follower.refresh()
            if state.location is None:
                return GarbageReport()
            with report_work("collect", self._blob.url, unit="blobs") as done:
                report = self._make_round(done=done).run(before)
        release_unused_memory()
        return report

    def shorten_log(self) -> None:
        """Delete old records and checkpoints, if the log is far longer than `log_records_max`.

        Cost: nothing, or LISTs of both, a commit and a checkpoint. Raises as `collect`.
        """
        with self._one_at_a_time:
            state = self._follower.state
            if state.seqno + 1 - state.control.log_floor > LONG * self._follower.policies.newest.log_records_max:
                self._follower.refresh()
                self._make_round().run_log()

    def plan(self) -> GarbageReport:
        """Return an estimate of what `collect` would delete now. Cost: its reads; raises as `collect`.

        Ages are measured by this machine's clock, because learning the store's time needs a write. Expired leases count
        as live.
        """
        with self._one_at_a_time:
            if self._follower.refresh().location is None:
                return GarbageReport()
            return self._make_round(is_dry=True).run(lambda: None)

    def delete_leaked(self, keys: Iterable[str]) -> Deleted:
        """Delete the keys that `collect` would delete as uploads, objects or records. Cost and errors: as `collect`."""
        with self._one_at_a_time:
            if self._follower.refresh().location is None:
                return Deleted()
            return self._make_round(frozenset(keys)).run_only()

    def _make_round(self, *only: frozenset[str], is_dry: bool = False, done: Done = lambda count: None) -> "_Round":
        """Return a collection round; `only`: the keys that it may delete."""
        names = Names(self._blob, self._known_names)
        return _Round(self._blob, self._follower, self._committer, names, *only, is_dry=is_dry, done=done)


class _Round:
    """One garbage collection at one moment of the store's clock. `only`: the keys that may be deleted; None for all."""

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
        self._log_floor = 0  # The floor that a dry round would declare.
        self._deleted: list[str] = []
        self._declarations: list[int] = []
        self._counts: Counter[str] = Counter()  # The fields of the report.
        self._being_made: int | None = None  # The least seqno of a checkpoint that this client is writing.
        self._ages = Ages(follower.state, follower.policies, 0.0, ())
        self._full: StoreFull | None = None
        self._names = names
        self._checked = CheckedUploads()
        self._unnamed: list[BlobEntry] = []  # Parts that no collection names, by the last look,
        self._shared: set[str] = set()  # and folders in which clones have parts.

    def run(self, before: Callable[[], object]) -> GarbageReport:
        """Collect in rounds until nothing new can be deleted; return the report."""
        had_deleted = -1
        while len(self._deleted) > had_deleted:
            had_deleted = len(self._deleted)
            self._full = None
            self._collect_with_retries(lambda: self._collect_once(before))
            if self._full is None:
                return GarbageReport(**self._counts)
        assert self._full is not None, "it was the reason to do it again"
        raise StoreFull(
            f"{len(self._deleted):,} blobs of {self._counts['bytes']:,} bytes of this location were deleted; deleting "
            f"more needs a small write first, and the store is full: {self._full}. Make a little room, then try again"
        ) from self._full

    def run_only(self) -> Deleted:
        """Delete the keys in `only` that are garbage; return them, and the declaring records."""
        self._collect_with_retries(self._collect_leaked)
        return Deleted(tuple(self._deleted), tuple(self._declarations))

    def run_log(self) -> None:
        """Truncate the log, and delete its old records and checkpoints."""
        self._collect_with_retries(self._collect_log)

    def _collect_with_retries(self, collect: Callable[[], object]) -> None:
        """Collect; begin again if another collector deletes a blob before this one reads it."""
        failed = ""
        for _ in range(ROUNDS_MAX):
            try:
                if not self._is_dry:
                    self._follower.past.prove_known(self._follower.state)
                collect()
                return
            except (MissingBlob, Indeterminate) as error:
                if str(error) == failed:
                    raise
                failed, last = str(error), error
                self._follower.restart()
        raise last

    def _collect_once(self, before: Callable[[], object]) -> None:
        """Run one round: date blobs, truncate the log, delete what is unneeded."""
        self._run_if_room(before)
        self._run_if_room(self._checkpoint)
        self._date_blobs(self._store_time_s())
        if self._full is not None:
            records = [Mark(seqno, entry.modified_s) for seqno, entry in list_records(self._blob)]
            self._ages = replace(self._ages, records=records)
        self._collect_dropped()
        self._collect_uploads()
        self._truncate_and_collect()
        self._collect_objects()

    def _collect_log(self) -> None:
        """Run one round of `run_log`."""
        self._date_blobs(self._store_time_s())
        self._truncate_and_collect()

    def _truncate_and_collect(self) -> None:
        """Truncate the log, then delete its old records and checkpoints."""
        self._ages = replace(self._ages, state=self._follower.state)
        self._truncate()
        self._advance_basis()
        self._date_blobs(self._ages.now_s)
        self._collect_records()
        self._collect_checkpoints()

    def _run_if_room(self, step: Callable[[], object]) -> bool:
        """Run a step that writes; return False, and remember the error, if the store is full. A dry round skips it."""
        if not self._is_dry:
            try:
                step()
            except StoreFull as error:
                self._full = self._full or error
                return False
        return True

    def _collect_leaked(self) -> None:
        """Delete the keys in `only` that are unneeded uploads, records or objects."""
        self._date_blobs(self._store_time_s())
        self._collect_uploads()
        self._collect_records()
        self._collect_objects()

    def _store_time_s(self) -> float:
        """Return the present time by the clock that dates the store's blobs."""
        if self._is_dry:
            return self._follower.read_clocks()[1]
        try:
            self._blob.set(CLOCK_KEY, b"now")
            return next(iter(self._blob.list(CLOCK_KEY))).modified_s
        except StoreFull as error:
            self._full = self._full or error
            dated = (entry for prefix in (LOG, CHECKPOINTS, CLOCK_KEY) for entry in self._blob.list(prefix))
            return max((entry.modified_s for entry in dated), default=0.0)

    def _checkpoint(self) -> None:
        """Make a checkpoint of the newest known state."""
        write_checkpoint(self._blob, *self._follower.get_recent_records())

    def _date_blobs(self, now_s: float) -> None:
        """List the checkpoints, and estimate the ages of records."""
        # First, because this checkpoint may be stored after the listing has passed its place.
        self._being_made = self._committer.groups.checkpointing.least_seqno
        checkpoints = list_checkpoint_marks(self._blob.list(CHECKPOINTS))
        follower = self._follower
        self._ages = Ages(follower.state, follower.policies, now_s, checkpoints, self._ages.records)

    def _collect_dropped(self) -> None:
        """Delete the blobs that records dropped and no reader needs."""
        state, old = self._follower.state, self._ages.find_seqno_before(self._ages.policy.grace_s)
        due: list[Dropped] = []
        waiting: list[Dropped] = []
        for dropped in state.control.dropped:
            is_due = dropped.seqno <= old and not is_still_readable(state.control, dropped)
            (due if is_due else waiting).append(dropped)
        shared_folders = {folder for dropped in waiting for folder in list_folders(dropped)}
        replaced = {key for dropped in waiting for key in dropped.blobs}
        due = [dropped for dropped in due if dropped.collection not in shared_folders]
        if not due:
            return
        shares = find_sharers(state, self._names.list_clones(state))

        @cache
        def list_shared(folder: str) -> set[str]:
            return list_named(self._blob, state, folder, shares) if folder in shares else set()

        for dropped in due:
            # Its part lists stay with the records that name them, because followers read them. Its state objects stay
            # with the checkpoints that name them, which may be older than the destruction.
            id_, unused = dropped.collection, frozenset(dropped.blobs)
            named = replaced | list_shared(id_)
            unnamed = (entry for entry in self._blob.list(get_table_root(id_)) if entry.key not in named)
            if dropped.is_destroyed:  # Its published tables are also deleted.
                garbage = (entry for entry in unnamed if is_upload(entry.key, id_) or is_table_key(entry.key, id_))
            else:
                garbage = (entry for entry in unnamed if entry.key in unused)
            self._delete_blobs("parts", garbage)
        collected = kinds.Collected(tuple((dropped.collection, dropped.seqno) for dropped in due))
        if self._run_if_room(lambda: self._commit_mutation(collected)):
            self._counts["collections"] += sum(dropped.is_destroyed for dropped in due)

    def _collect_uploads(self) -> None:
        """Delete uploads that no record names, once they are old enough."""
        # A dry or partial round neither believes nor changes the memory of the last one.
        is_whole = self._only is None and not self._is_dry
        self._checked = self._names.known.uploads.drop_if_due(self._ages.now_s) if is_whole else CheckedUploads()
        self._delete_unnamed()
        if is_whole:
            unnamed = (entry.key for entry in self._unnamed)
            self._names.known.uploads = self._checked.update(self._ages.now_s, unnamed, self._shared)

    def _delete_unnamed(self) -> None:
        """Delete unnamed uploads, after checking them against the newest state."""
        state, uploads = self._find_unnamed_uploads()
        orphans = [seqno for entry, seqno in uploads if self._is_orphan(entry, seqno)]
        if not orphans:
            return
        floor = self._ages.find_upload_floor((seqno, self._get_age_s(entry)) for entry, seqno in uploads)
        if floor > state.control.upload_floor or max(orphans) > state.seqno:
            # The second, because without a new record nothing in the log would ever be newer than these uploads.
            self._run_if_room(lambda: self._commit_mutation(kinds.VoidUploads(floor)))
        # A part that no record names after the declaration can never be named.
        state, uploads = self._find_unnamed_uploads()
        voided = max(state.control.upload_floor, floor if self._is_dry else 0)
        orphaned = (entry for entry, seqno in uploads if seqno < voided and self._is_orphan(entry, seqno))
        self._delete_blobs("parts", orphaned)

    def _find_unnamed_uploads(self) -> tuple[State, list[tuple[BlobEntry, int]]]:
        """Return the newest state, and the parts that nothing names, each with the seqno in its name."""
        state = self._follower.refresh()
        self._unnamed, self._shared = find_unnamed(self._blob, state, self._checked, self._names.list_clones(state))
        replaced = {key for dropped in state.control.dropped for key in dropped.blobs}
        unnamed = (entry for entry in self._unnamed if entry.key not in replaced)
        return state, [(entry, seqno) for entry in unnamed if (seqno := parse_upload_seqno(entry.key)) is not None]

    def _truncate(self) -> None:
        """Commit a later floor of the log, if some records are unneeded."""
        floor = self._ages.find_log_floor(list_records(self._blob))
        if floor is not None:
            self._log_floor = floor if self._is_dry else 0
            self._run_if_room(lambda: self._commit_and_checkpoint(kinds.TruncateLog(floor)))

    def _advance_basis(self) -> None:
        """Make the newest checkpoint the basis, if the present one is older than the log.

        The *basis* is the checkpoint that `taken_over` names: later checkpoints are made from it or its successors. It
        is kept with all objects that it names. A directory object older than the log may have rows of dropped
        collections. So nothing is done while the newest checkpoint also names such an object.
        """
        control = self._follower.state.control
        basis, floor = control.taken_over, control.log_floor
        if basis is not None and self._names.get_least_seqno(basis.checkpoint.blob) < floor:
            newest = self._names.get_newest_checkpoint()
            if newest is not None and self._names.get_least_seqno(newest.pointer.blob) >= floor:
                self._run_if_room(lambda: self._take_over(newest))

    def _load_stored_floor(self) -> int:
        """Return the floor of the log in the newest checkpoint, where clients that open or wake up find it."""
        newest = self._names.get_newest_checkpoint()
        return max(self._log_floor, 0 if newest is None else newest.checkpoint.control.log_floor)

    def _collect_records(self) -> None:
        """Delete records before the log's floor."""
        floor = self._load_stored_floor()
        old = takewhile(lambda listed: listed[0] < floor, list_records(self._blob))
        self._delete_blobs("records", (entry for _, entry in old))

    def _collect_checkpoints(self) -> None:
        """Delete checkpoints that no client needs."""
        floor, control = self._load_stored_floor(), self._follower.state.control
        destroyed = control.find_last_destroyed(floor)
        basis = None if control.taken_over is None else control.taken_over.checkpoint.blob
        staying: list[Mark] = []
        garbage: set[str] = set()
        buckets: set[tuple[int, int]] = set()
        for n, mark in enumerate(self._ages.checkpoints):
            width_s = 60 if self._get_age_s(mark) < 3600 else 3600
            bucket = (width_s, int(mark.modified_s // width_s))
            key = make_checkpoint_key(mark.seqno)
            is_first = mark.seqno >= floor - 1 and bucket not in buckets
            buckets.add(bucket)
            if n < CHECKPOINTS_MIN or key == basis or (is_first and self._names.get_least_seqno(key) >= destroyed):
                staying.append(mark)
            else:
                garbage.add(key)
        if garbage:
            self._delete_blobs("checkpoints", (entry for entry in self._blob.list(CHECKPOINTS) if entry.key in garbage))
        self._ages = replace(self._ages, checkpoints=staying)

    def _collect_objects(self) -> None:
        """Delete directory objects, state objects and part lists."""
        newest = self._names.get_newest_checkpoint()
        if newest is None:
            return
        listed = {what: [*self._blob.list(prefix)] for what, prefix in OBJECTS.items()}
        named = self._names.list_mentioned(newest.checkpoint)
        present = {entry.key for entries in listed.values() for entry in entries}
        self._names.check_present(named, present)
        older, useless = self._names.list_older((mark.seqno for mark in self._ages.checkpoints), newest, present)
        if useless and self._only is None:
            self._delete_blobs("checkpoints", (entry for entry in self._blob.list(CHECKPOINTS) if entry.key in useless))
        named |= older
        # A list below the floor is for a slot that was truncated, so no record can name it any more.
        floor = max(self._log_floor, newest.checkpoint.control.log_floor)
        ends = {"directories": newest.checkpoint.seqno + 1, "states": newest.checkpoint.seqno + 1, "lists": floor}
        unused = {
            what: [
                entry
                for entry in entries
                if entry.key not in named
                and (seqno := parse_object_seqno(entry.key)) is not None
                and seqno < ends[what]
                and self._is_orphan(entry, seqno, self._ages.erase_after_s)
            ]
            for what, entries in listed.items()
        }
        if not any(unused.values()):
            return
        end, named = self._declare_basis(newest)
        named |= self._list_late(present)
        for what, entries in unused.items():
            garbage = (e for e in entries if e.key not in named and (parse_object_seqno(e.key) or 0) < end)
            self._delete_blobs(what, garbage, check=self._names.check_unnamed)

    def _declare_basis(self, newest: StoredCheckpoint) -> tuple[int, set[str]]:
        """Declare the basis of later checkpoints; return the seqno of that, and older objects that these may name."""
        if self._is_dry:
            return newest.checkpoint.seqno + 1, set()
        self._run_if_room(lambda: self._take_over(newest))
        declared, after = self._follower.refresh().control.taken_over, self._names.get_newest_checkpoint()
        if declared is None or after is None or after.checkpoint.seqno < declared.seqno:
            return 0, set()  # The store is full.
        basis = get_framed(self._blob, declared.checkpoint, Checkpoint)
        # Without a grace period, objects that this client is writing for an older checkpoint could be deleted.
        end = basis.seqno + 1 if self._being_made is None else min(basis.seqno + 1, self._being_made)
        return end, self._names.list_mentioned(basis) | self._names.list_mentioned(after.checkpoint)

    def _list_late(self, present: set[str]) -> set[str]:
        """Return the present objects that late checkpoints name.

        A late checkpoint appeared after the listing, and before the basis was declared.

        While this client was suspended, another collector may have kept it for reads of the log's past.
        """
        basis = self._follower.state.control.taken_over
        if self._is_dry or basis is None:
            return set()
        seqnos = {seqno for seqno, _ in list_checkpoints(self._blob) if seqno < basis.seqno}
        newest = self._names.get_newest_checkpoint()
        if newest is None or seqnos <= {mark.seqno for mark in self._ages.checkpoints}:
            return set()
        return self._names.list_older(seqnos, newest, present)[0]

    def _take_over(self, newest: StoredCheckpoint) -> None:
        """Declare a checkpoint as the basis of later ones, if this client knows its record."""
        if self._follower.refresh().seqno >= newest.checkpoint.seqno:
            self._commit_and_checkpoint(kinds.TakeOver(newest.pointer))

    def _is_orphan(self, entry: BlobEntry, seqno: int, longest_s: float = inf) -> bool:
        """Return whether this round may delete an unnamed upload or object, by its age and key."""
        age_s = self._get_age_s(entry)
        is_old = age_s >= longest_s or self._ages.is_old_upload(seqno, age_s)
        return is_old and (self._only is None or entry.key in self._only)

    def _get_age_s(self, dated: BlobEntry | Mark) -> float:
        """Return the age of a blob or mark, in seconds."""
        return self._ages.now_s - dated.modified_s

    def _commit_mutation(self, mutation: LocationMutation) -> None:
        """Commit a declaration in the log, and note its seqno."""
        self._declarations.append(self._committer.submit([mutation], {}).result())

    def _commit_and_checkpoint(self, mutation: LocationMutation) -> None:
        """Commit a declaration, and make a checkpoint that has it."""
        self._commit_mutation(mutation)
        self._checkpoint()

    def _delete_blobs(
        self, kind: str, entries: Iterable[BlobEntry], check: Callable[[list[str]], object] = lambda keys: None
    ) -> None:
        """Delete blobs by pages, unless this is a dry run; count them."""
        entries = (entry for entry in entries if self._only is None or entry.key in self._only)
        while some := [*islice(entries, DELETE_MAX)]:
            if not self._is_dry:
                self._follower.past.prove_known(self._follower.state)
                check([entry.key for entry in some])
                delete_all(self._blob, [entry.key for entry in some])
            self._deleted += [entry.key for entry in some]
            self._counts[kind] += len(some)
            self._counts["bytes"] += sum(entry.bytes for entry in some)
            self._done(len(some))
