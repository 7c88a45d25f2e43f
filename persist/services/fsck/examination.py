"""Examines a whole location, and repairs what can be restored from the log.

An examination reads everything once: the log and its checkpoints (`persist.services.fsck.log`), then the parts
(`persist.services.fsck.parts`), then a listing of all blobs, then the log to its end again. Every fault becomes a
`Problem`, and the examination continues; only an unavailable store ends it.

`repair` does exactly this:

- *Checkpoints*. If the newest or an object that it needs cannot be read, or if it is old, one is made at the end of the
  log, with new directory and state objects, from the state of the replay. The unreadable ones are deleted only after it
  has been read back. This requires a replay that reached the end and agreed with all checkpoints.
- *Leaks*. Blobs that nothing refers to are deleted by `persist.engine.upkeep.garbage`, by its rules: they are old
  enough, and uploads are first declared void in the log. A run that found a problem in the log, a checkpoint, a state
  object or a list deletes none, because these may refer to them. Repair first, then run again.

- *Objects beyond the end of the log*, only if requested: see `persist.services.fsck.checkpoint`. Nothing else is done
  in that run.

A damaged record or part is reported and never changed. Every step checks its reason again before it acts.
"""

import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

import msgspec

from persist.blob.errors import InvalidUsage
from persist.blob.protocol import Blob, BlobEntry
from persist.blob.threads import Clock, SystemClock
from persist.core.log.keys import (
    CHECKPOINTS,
    CLOCK_KEY,
    DIRECTORIES,
    PARTS,
    STATES,
    get_second_part,
    is_table_key,
    is_upload,
    make_checkpoint_key,
    make_record_key,
    parse_checkpoint_seqno,
    parse_record_seqno,
    parse_upload_seqno,
)
from persist.core.names import OWED_PREFIX
from persist.core.progress import report_work
from persist.core.rendering import format_count
from persist.core.settings import Location, Settings, open_storage
from persist.core.state_rules.policies import Policies
from persist.core.state_rules.state import State
from persist.engine.follow.checkpoint import INTERVAL
from persist.engine.follow.follower import Follower
from persist.engine.upkeep import OBJECTS, Ages, Deleted, Garbage, list_checkpoint_marks, parse_object_seqno
from persist.engine.write.committer import Committer
from persist.services.fsck.checkpoint import LOST, CheckpointRepair, MoveToLost
from persist.services.fsck.log import LogExamination
from persist.services.fsck.parts import PartExamination, examine_keyframes, examine_values
from persist.services.fsck.report import (
    CountedBlob,
    Findings,
    FsckReport,
    Problem,
    Repair,
    Unreferenced,
    UnreferencedKind,
)

OVERDUE_INTERVALS = 4
AGAIN = "run with repair, which makes it again from the log"
NOT_AGAIN = "the log does not hold all that it takes to make it again: restore it from a copy of the location"
REMADE = ("missing", "damaged", "exchanged", "overdue")
OVERDUE_AGE_S = 60.0

_KINDS: Mapping[str, UnreferencedKind] = {"part": "part", "list": "list", "state": "state", "directory": "directory"}
_UNNAMED = re.compile(r"((part|list|state)/[0-9a-f]{32}|directory)/[0-9]{20}-[0-9a-f]{32}\.(parquet|json|pages)")

Collect = Callable[[Iterable[str]], Deleted]


def fsck(
    location: Location,
    *,
    repair: bool = False,
    dry_run: bool = False,
    set_aside: bool = False,
    deep: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    settings: Settings | None = None,
    clock: Clock | None = None,
) -> FsckReport:
    """Examine a location, even one that cannot be opened; return a report.

    It is safe while others read, write and collect.

    Args:
        location, storage_options, settings, clock: as for `persist.open`.
        repair: replace unreadable checkpoints by a new one, and delete old unreferenced blobs.
        set_aside: together with repair, move records and checkpoints beyond the end of the log to `lost/`; if there are
            any, do nothing else. All clients of the location must be closed. docs/run/restore.md describes when to
            use it.
        dry_run: together with repair, change nothing, and list what would be done as `repairs_planned`.
        deep: read and verify every part; otherwise only check that parts exist and have the right size.

    Cost: a GET for every blob (with deep=False, not for parts), and a LIST of all; twice that if problems were
        repaired.
    Memory: the state with all collections, the names of all blobs, and one part.

    Raises:
        Unavailable: the store failed before the end of the examination.
        InvalidUsage: the location or an option is not known; or dry_run or set_aside without repair.
    """
    settings, clock = settings or Settings(), clock or SystemClock()
    storage = open_storage(location, storage_options, settings, clock)
    blob = storage.retried  # Around the cache, which may hold what the store has lost.

    def collect(keys: Iterable[str]) -> Deleted:
        name = f"fsck:{uuid.uuid4().hex[:8]}"
        with (
            ThreadPoolExecutor(1) as pool,
            closing(Follower(blob, clock)) as follower,
            closing(Committer(blob, follower, pool, clock, name)) as committer,
        ):
            return Garbage(blob, follower, committer).delete_leaked(keys)

    try:
        return examine(blob, settings, clock, collect, repair=repair, dry_run=dry_run, set_aside=set_aside, deep=deep)
    finally:
        storage.close()


def examine(
    blob: Blob,
    settings: Settings,
    clock: Clock,
    collect: Collect,
    *,
    repair: bool,
    dry_run: bool,
    set_aside: bool,
    deep: bool,
) -> FsckReport:
    """Do the work of `fsck`; `collect` deletes leaked blobs.

    After a repair, examine everything again to find the remaining problems.
    """
    if dry_run and not repair:
        raise InvalidUsage("nothing would be changed without a repair.").with_remedy(
            "{dry_run:option:True} goes with {repair:option:True}: it shows what that would do."
        )
    if set_aside and not repair:
        raise InvalidUsage("objects are only set aside by a repair.").with_remedy(
            "{set_aside:option:True} goes with {repair:option:True}, which says that the location may be changed."
        )
    examination = _Examination(blob, settings, clock, deep)
    report = _repair_and_report(blob, examination, collect, repair=repair, dry_run=dry_run, set_aside=set_aside)
    is_changed = bool(report.problems and report.repairs_done)
    remaining = _Examination(blob, settings, clock, deep).examine_all().problems if is_changed else report.problems
    return replace(report, problems_left=remaining)


def _repair_and_report(
    blob: Blob, examination: "_Examination", collect: Collect, *, repair: bool, dry_run: bool, set_aside: bool
) -> FsckReport:
    """Repair what can be repaired; return the report of a new examination."""
    report = examination.examine_all()
    renewal = CheckpointRepair.of(blob, examination.log, report.problems)
    if renewal is not None or not examination.log.is_complete:
        advice = AGAIN if renewal is not None else NOT_AGAIN
        report = replace(report, problems=tuple(_add_advice(problem, advice) for problem in report.problems))
    if not repair:
        return report
    aside = MoveToLost.of(blob, examination.log, examination.inventory) if set_aside else None
    if aside is not None:
        report = replace(report, repairs_planned=tuple(aside.plan()))
        return report if dry_run else replace(report, repairs_done=tuple(aside.run()))
    doomed = examination.list_doomed() if examination.knows_references() else []
    planned = tuple(renewal.plan()) if renewal is not None else examination.list_deletions(doomed)
    report = replace(report, repairs_planned=planned)
    if dry_run or not planned:
        return report
    if renewal is not None:
        return replace(report, repairs_done=tuple(renewal.run()))
    deleted = collect(doomed)
    deleted_keys = {CLOCK_KEY, *deleted.keys}
    commits = iter(deleted.declared_at)
    done = []
    for step in planned:
        if step.action == "commit":
            seqno = next(commits, None)
            done += [replace(step, blob=make_record_key(seqno))] if seqno is not None else []
        elif step.blob.startswith(CHECKPOINTS):
            checkpoint = deleted.declared_at and make_checkpoint_key(deleted.declared_at[-1])
            done += (
                [replace(step, blob=checkpoint)]
                if checkpoint and blob.get(checkpoint, range=(0, 0)) is not None
                else []
            )
        elif step.blob in deleted_keys:
            done.append(step)
    return replace(report, repairs_done=tuple(done))


class _Examination:
    """One examination of a location."""

    def __init__(self, blob: Blob, settings: Settings, clock: Clock, deep: bool) -> None:
        self._settings = settings
        self._clock = clock
        self._deep = deep
        self._url = blob.url
        self.findings = Findings(blob)
        self._blob = CountedBlob(blob, self.findings)
        self.log = LogExamination(self._blob, self.findings)
        self._now_s = 0.0
        self.inventory: dict[str, BlobEntry] = {}
        self.unreferenced: list[Unreferenced] = []

    def examine_all(self) -> FsckReport:
        """Examine the log, the parts and the leaks; return the report."""
        log = self.log
        log.run()
        if self._deep:
            parts = self._examine_parts(None)
            self._list_objects()
        else:
            self._list_objects()
            parts = self._examine_parts({entry.key: entry.bytes for entry in self.inventory.values()})
        log.follow()
        log.finish()
        parts.finish(log.state)
        self._check_overdue()
        if log.at or self.findings.problems:
            self.unreferenced = list(self._list_unreferenced())
        else:  # Without a log, the purpose of objects is unknown.
            self._check_empty()
        return FsckReport(
            url=self._url,
            problems=self.findings.problems,
            unreferenced=tuple(self.unreferenced),
            checked=dict(self.findings.checked),
            unfinished=tuple(_list_pending_erasures(log.state)),
            seqno=log.at - 1,
            deep=self._deep,
        )

    def knows_references(self) -> bool:
        """Return whether all references to blobs could be read."""
        about_parts = all(problem.blob.startswith((PARTS, "inline part")) for problem in self.findings.problems)
        return self.log.is_complete and about_parts

    def list_doomed(self) -> list[str]:
        """Return the keys of unreferenced blobs that garbage collection will delete."""
        state = self.log.state
        assert state is not None
        ages, floor = (
            self._load_ages(),
            max(state.control.upload_floor, min(self._compute_upload_floor(), state.seqno + 1)),
        )
        return [leak.blob for leak in self.unreferenced if self._is_doomed(leak, state, ages, floor)]

    def list_deletions(self, doomed: list[str]) -> tuple[Repair, ...]:
        """Return the steps that delete these keys, in order."""
        if not doomed:
            return ()
        state = self.log.state
        assert state is not None
        has_clock = CLOCK_KEY in self.inventory
        steps = [Repair("replace" if has_clock else "create", CLOCK_KEY, "to ask the store what time it is")]
        if any(key.startswith(PARTS) for key in doomed) and self._compute_upload_floor() > state.control.upload_floor:
            steps.append(_report_declaration(state.seqno + 1, "old uploads void"))
        if any(key.startswith(tuple(OBJECTS.values())) for key in doomed):
            seqno = state.seqno + len(steps)
            steps.append(_report_declaration(seqno, "of what checkpoints are made from then on"))
            steps.append(Repair("create", make_checkpoint_key(seqno), "the first one made so"))
        return (*steps, *(Repair("delete", key, "nothing refers to it") for key in doomed))

    def _examine_parts(self, sizes: Mapping[str, int] | None) -> PartExamination:
        """Examine the parts of all collections."""
        state = self.log.state
        parts = PartExamination(self._blob, self.findings, sizes, None if state is None else state.location)
        entries = tuple(state.entries.values()) if state is not None else ()
        with report_work("check", self._url, total=len(entries), unit="collections") as done:
            for entry in entries:
                if entry.contents is not None:
                    parts.examine(entry.contents)
                    parts.examine_tables(entry.contents)
                    parts.examine_archives(entry.contents)
                    if sizes is None:
                        examine_keyframes(self._blob, entry.contents, self.findings)
                        examine_values(self._blob, entry.contents, self.findings)
                done(1)
        checksums = {part.checksum for part in state.iterate_stored_parts()} if state is not None else set()
        for loose in self.log.loose:
            id_, part = loose.collection, loose.part
            is_gone = self.log.is_complete and state is not None and id_ not in state.entries
            if part.checksum in checksums or is_gone:
                continue
            owner = state.entries.get(id_) if state is not None else None
            if owner is not None and owner.contents is not None:
                parts.examine_alone(loose, owner.contents)
            elif id_ in self.log.created:
                parts.examine_created(loose, self.log.created[id_], self.log.evolved.get(id_, ()))
        return parts

    def _list_objects(self) -> None:
        """List all objects of the store, with their sizes."""
        self.inventory = {entry.key: entry for entry in self._blob.list("")}
        newest_s = max((entry.modified_s for entry in self.inventory.values()), default=0.0)
        self._now_s = max(self._clock.wall_ms() / 1000, newest_s)

    def _check_overdue(self) -> None:
        """Add a problem for each publication or deletion that is overdue."""
        state = self.log.state
        if state is None:
            return
        seqno = self.log.newest + OVERDUE_INTERVALS * INTERVAL
        record = self.inventory.get(make_record_key(seqno))
        if record is not None and self._now_s - record.modified_s >= OVERDUE_AGE_S:
            what = f"the newest one is at seqno {self.log.newest}, and the log is at {state.seqno}"
            self.findings.add("overdue", CHECKPOINTS, what)

    def _check_empty(self) -> None:
        """Add a problem if objects exist without a log."""
        keys = [key for key in self.inventory if key != CLOCK_KEY]
        data = [key for key in keys if _KINDS.get(key.partition("/")[0]) is not None or key.startswith(LOST)]
        if data:
            what = f"{format_count(len(data), 'object')} such as {data[0]} can be read by no client: no record is there"
            advice = (
                "restore the log from a copy; if a backup, copy or restore to here was interrupted, give it again and "
                "it goes on"
            )
            self.findings.add_missing_log(what, advice)
        elif keys:
            what = f"this is not a location: nothing is there but what persist did not write, such as {keys[0]}"
            self.findings.add_missing_log(what, "check the path")

    def _list_unreferenced(self) -> Iterator[Unreferenced]:
        """Yield the objects that nothing refers to."""
        log, state = self.log, self.log.state
        if state is None:
            return
        named = {*log.named, *state.list_blobs(), *(loose.part.blob for loose in log.loose)}
        destroyed = {entry.collection for entry in state.control.dropped if entry.is_destroyed}
        replaced = {key for entry in state.control.dropped for key in entry.blobs}
        for key, blob in self.inventory.items():
            if key == CLOCK_KEY or key in named:
                continue
            seqno = parse_record_seqno(key)
            if seqno is not None:
                if seqno < log.floor:
                    yield self._make_leak(blob, "record", "repair, or gc, deletes it: it is below the log's floor")
                continue
            if parse_checkpoint_seqno(key) is not None:
                continue
            if key.startswith(LOST):
                yield self._make_leak(
                    blob, "lost", "a repair has set it aside: delete it when you do not miss its contents"
                )
                continue
            kind, id_ = _KINDS.get(key.partition("/")[0]), get_second_part(key) if "/" in key else ""
            if is_table_key(key, id_) and _is_published(state, id_, key):
                continue
            if kind is not None and (_UNNAMED.fullmatch(key) or is_upload(key, id_) or is_table_key(key, id_)):
                if key in replaced:
                    yield self._make_leak(blob, kind, "gc deletes it: compaction has replaced it")
                elif kind != "directory" and get_second_part(key) in destroyed:
                    yield self._make_leak(blob, kind, "gc deletes it: its collection was destroyed")
                elif is_table_key(key, id_):
                    advice = "the collection has no such table: publishing it again, or destroying it, deletes this"
                    yield self._make_leak(blob, "table", advice)
                else:
                    yield self._make_leak(blob, kind, "repair, or gc, deletes it when it is old enough")
            else:
                yield self._make_leak(blob, "foreign", "this library did not write it: see whose it is")

    def _make_leak(self, entry: BlobEntry, kind: UnreferencedKind, advice: str) -> Unreferenced:
        """Return the report of an unreferenced blob, with its age."""
        return Unreferenced(entry.key, kind, entry.bytes, self._now_s - entry.modified_s, advice)

    def _load_ages(self) -> Ages:
        """Return the ages of objects by which garbage collection decides."""
        state = self.log.state
        assert state is not None
        policies = state.control.policies or Policies(self._settings.tuning.policy)
        return Ages(state, policies, self._now_s, list_checkpoint_marks(self.inventory.values()))

    def _compute_upload_floor(self) -> int:
        """Return the seqno before which garbage collection would void uploads."""
        state = self.log.state
        assert state is not None
        unnamed = (
            (parse_upload_seqno(leak.blob), leak.age_s)
            for leak in self.unreferenced
            if leak.kind == "part" and not _is_dropped(leak.blob, state)
        )
        return self._load_ages().find_upload_floor((seqno, age_s) for seqno, age_s in unnamed if seqno is not None)

    def _is_doomed(self, leak: Unreferenced, state: State, ages: Ages, upload_floor: int) -> bool:
        """Return whether garbage collection deletes a leaked blob."""
        if leak.kind == "record":
            return True
        seqno = parse_object_seqno(leak.blob)
        if leak.kind in ("foreign", "lost", "table") or seqno is None or not ages.is_old_upload(seqno, leak.age_s):
            return False
        if leak.kind == "part":
            return seqno < upload_floor and not _is_dropped(leak.blob, state)
        return leak.kind in ("state", "directory") or seqno < state.control.log_floor


def _is_dropped(key: str, state: State) -> bool:
    """Return whether the state of the log lists a part as dropped and waiting for deletion."""
    folder = get_second_part(key)
    return any(
        key in dropped.blobs or (dropped.is_destroyed and folder in (dropped.collection, *dropped.folders))
        for dropped in state.control.dropped
    )


def _is_published(state: State, collection: str, key: str) -> bool:
    """Return whether a table's file belongs to a published table."""
    entry = state.entries.get(collection)
    if entry is None or entry.contents is None:
        return entry is not None  # Nobody knows.
    return ("delta" if "/_delta_log/" in key else "iceberg") in entry.contents.published


def _list_pending_erasures(state: State | None) -> Iterator[str]:
    """Yield descriptions of pending erasures in hidden collections."""
    for entry in () if state is None else state.entries.values():
        if entry.contents is not None and entry.name.startswith(OWED_PREFIX):
            owed = msgspec.json.decode(entry.contents.about.properties["owed"])
            kinds = {"views": "refresh views", "indexes": "fill indexes", "tables": "publish tables"}
            steps = ", ".join(f"{step} ({len(owed[kind]):,})" for kind, step in kinds.items() if owed.get(kind))
            yield f"an erasure has still to {steps or 'end'}: client.maintain() does it, or the next erase()"


def _report_declaration(seqno: int, what: str) -> Repair:
    """Return the step that commits a record before a deletion."""
    return Repair("commit", make_record_key(seqno), f"to declare {what}; as after any commit, a checkpoint may follow")


def _add_advice(problem: Problem, advice: str) -> Problem:
    """Return problem with advice if it is about checkpoints."""
    is_derived = problem.blob.startswith((CHECKPOINTS, DIRECTORIES, STATES)) and problem.kind in REMADE
    return replace(problem, advice=advice) if is_derived else problem
