"""Runs compactions: a part maker makes new parts from old ones, and one record replaces the old ones.

Nothing is replaced before all output is written, and only if all inputs are still there: the record names them, and is
refused otherwise (`persist.core.state_rules.contents`). Any number of compactors may therefore run; a loser deletes its
output. A part found missing or damaged ends the compaction with an error that names it. Before the commit the sums of
diffs are compared, which shows a slice that was lost or read twice.

After large work, and after each collection of garbage, `release_unused_memory` returns memory to the operating system.
Allocators keep freed memory for reuse. After a compaction that is often ten times the memory in use, and the next
compaction may be hours away. Small pieces of work also leave free memory in the heaps of all threads, which grows for
months. Reads and writes do not return memory: the next ones would request the same pages again, which costs more than
it saves.
"""

import ctypes
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec
import pyarrow as pa

from persist.blob.errors import Indeterminate, MissingBlob
from persist.blob.threads import Clock
from persist.codecs.errors import DiffOverflow
from persist.codecs.part.key_range import load_comparable_keys
from persist.codecs.part.part import Part
from persist.codecs.types.schema import TIME_MAX
from persist.core.errors import ClientClosed, PersistError, Superseded, UploadExpired
from persist.core.log import kinds
from persist.core.log.fields import Keyframe, Numbers
from persist.core.progress import report_work
from persist.core.rendering import Shown, format_count
from persist.core.settings import Tuning
from persist.core.state_rules.collection_rules import ExpectErasures, ExpectRuns, apply_step
from persist.core.state_rules.contents import CollectionState, compute_replacement
from persist.core.state_rules.erasures import count_erasures
from persist.engine.compact.planner import Forget, MakeKeyframe, MergeRuns, Thin, Work, choose_next_work
from persist.engine.compact.rewriter import WHOLE_FRACTION, MadeRun, PartMaker, Rewrite, RunPiece, plan_keyframe
from persist.engine.follow.follower import Follower
from persist.engine.read.planning.scan import Scan
from persist.engine.read.planning.snapshot_plan import plan_snapshot
from persist.engine.write.operations import Commit, Step
from persist.engine.write.retrying import commit_with_retry


@dataclass(frozen=True)
class CompactionReport(Shown):
    """The work of one compaction.

    Attributes:
        keyframes: the times of the new keyframes.
        forgotten: the time up to which history was dropped, None if none was.
        runs_merged: how many runs of history were merged.
        keyframes_dropped: how many keyframes were dropped, as not needed or too many.
        parts_read, rows_read, bytes_read: the parts that it read, with their total rows and bytes.
        parts_written, rows_written, bytes_written: the same of the parts that it wrote.
        parts_shared: parts of an earlier keyframe that a new one also lists.
        superseded: pieces of work that another compactor did first.
    """

    keyframes: tuple[int, ...] = ()
    forgotten: int | None = None
    runs_merged: int = 0
    keyframes_dropped: int = 0
    parts_read: int = 0
    rows_read: int = 0
    bytes_read: int = 0
    parts_written: int = 0
    rows_written: int = 0
    bytes_written: int = 0
    parts_shared: int = 0
    superseded: int = 0

    def __str__(self) -> str:
        return self.sentence()

    def sentence(self, time: Callable[[int], str] = str) -> str:
        """Return the report as a sentence; time formats a time, for example with its moment."""
        if self == CompactionReport():
            return "nothing to do"
        done = [f"keyframe as of {time(as_of)}" for as_of in self.keyframes]
        done += [f"history up to {time(self.forgotten)} forgotten"] if self.forgotten is not None else []
        done += [f"{format_count(self.runs_merged, 'run')} merged"] if self.runs_merged else []
        done += [f"{format_count(self.keyframes_dropped, 'keyframe')} dropped"] if self.keyframes_dropped else []
        done += [f"{format_count(self.parts_shared, 'part')} shared"] if self.parts_shared else []
        done += [f"{format_count(self.superseded, 'time')} another compaction was faster"] if self.superseded else []
        done.append(f"read {format_count(self.parts_read, 'part')} ({self.bytes_read:,} bytes)")
        done.append(f"wrote {format_count(self.parts_written, 'part')} ({self.bytes_written:,} bytes)")
        return ", ".join(done)

    def __add__(self, other: "CompactionReport") -> "CompactionReport":
        forgotten = max((time for time in (self.forgotten, other.forgotten) if time is not None), default=None)
        added = {
            name: getattr(self, name) + getattr(other, name)
            for name in self.__dataclass_fields__
            if name != "forgotten"
        }
        return CompactionReport(forgotten=forgotten, **added)


def add_read_parts(parts: Sequence[Part], report: CompactionReport) -> CompactionReport:
    """Return a report with more parts counted as read."""
    return report + CompactionReport(
        parts_read=len(parts),
        rows_read=sum(part.rows for part in parts),
        bytes_read=sum(part.bytes for part in parts),
    )


def add_written_parts(parts: Sequence[Part], report: CompactionReport) -> CompactionReport:
    """Return a report with more parts counted as written."""
    return report + CompactionReport(
        parts_written=len(parts),
        rows_written=sum(part.rows for part in parts),
        bytes_written=sum(part.bytes for part in parts),
    )


LARGE_BYTES = 32 << 20  # The size of parts read; less work leaves little behind.


def release_unused_memory() -> None:
    """Return the unused memory of Arrow's and the C library's allocators to the system.

    It concerns the whole process, but no memory that is in use. Cost: milliseconds.
    """
    pa.default_memory_pool().release_unused()
    if sys.platform == "linux":
        # NumPy's arrays and encoded parts are glibc's. Other C libraries have no such function.
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


class Compactor:
    """Compacts the collections of one location, one at a time; any thread may call it."""

    def __init__(
        self,
        follower: Follower,
        commit: Commit,
        tuning: Tuning,
        maker: PartMaker,
        stop: threading.Event,
        clock: Clock,
    ) -> None:
        """Make an idle compactor.

        Args:
            commit: submits steps for collections, by id and name.
            maker: makes the parts.
            stop: set by `close`; the part maker may watch it, too.
            clock: measures the waits between attempts to commit.
        """
        self._follower = follower
        self._commit = commit
        self._tuning = tuning
        self._maker = maker
        self._one_at_a_time = threading.Lock()
        self._stop = stop
        self._clock = clock

    def is_due(self, contents: CollectionState, *, destroy: bool = False) -> bool:
        """Return whether `compact` would find work. Cost: no request."""
        return choose_next_work(contents, self._tuning, destroy=destroy) is not None

    def compact(
        self, id_: str, name: str, *, full: bool = False, destroy: bool = False, merge_bytes_max: int | None = None
    ) -> CompactionReport:
        """Do all due work in one collection; see `persist.engine.compact.planner.choose_next_work`.

        Raises:
            CollectionNotFound: it was destroyed.
            CorruptBlob: a part is damaged; the work that reads it was not committed.
            DiffOverflow: a sum of diffs does not fit int64; only that piece of work was not done.
            Unavailable, Indeterminate: the store did not answer.
            ClientClosed: the client was closed meanwhile.
        """
        report = CompactionReport()
        failed: dict[Work, DiffOverflow] = {}
        with self._one_at_a_time, report_work("compact", name, unit="pieces of work") as done:
            while True:
                contents = self._load_contents(id_, name)
                work = choose_next_work(
                    contents,
                    self._tuning,
                    full=full,
                    destroy=destroy,
                    merge_bytes_max=merge_bytes_max,
                    without=frozenset(failed),
                )
                if work is None:
                    break
                try:
                    report += self._run_work(contents, work)
                except Superseded:
                    report += CompactionReport(superseded=1)
                except DiffOverflow as error:
                    failed[work] = error
                done(1)
        if report.bytes_read >= LARGE_BYTES:
            release_unused_memory()
        if failed:
            raise next(iter(failed.values()))
        return report

    def close(self) -> None:
        """Let running work end soon, with ClientClosed; idempotent."""
        self._stop.set()

    def _load_contents(self, id_: str, name: str) -> CollectionState:
        """Return the newest state of a collection; raise ClientClosed after `close`."""
        if self._stop.is_set():
            raise ClientClosed("compaction")
        return self._follower.refresh_and_require(id_, name)

    def _run_work(self, contents: CollectionState, work: Work) -> CompactionReport:
        """Do one piece of work: a keyframe, a merge or forgetting."""
        attempt = _Attempt(contents)
        if isinstance(work, Thin):
            self._commit_step(contents, kinds.Replace(contents.id, removed_keyframes=work.keyframes), attempt)
            return CompactionReport(keyframes_dropped=len(work.keyframes))
        try:
            if isinstance(work, MakeKeyframe):
                step, report = self._make_keyframe(contents, work.as_of, attempt)
            elif isinstance(work, MergeRuns):
                step, report = self._merge_runs(contents, work.runs, attempt)
            else:
                step, report = self._forget_history(contents, work, attempt)
            self._commit_step(contents, msgspec.structs.replace(step, parts=tuple(attempt.parts)), attempt)
        except BaseException as error:
            if attempt.may_be_committed:
                raise
            self._maker.discard(attempt.parts)
            if isinstance(error, MissingBlob) and not self._is_needed(contents, error.key):
                raise Superseded("parts that this compaction read were replaced and deleted meanwhile") from error
            raise
        return add_written_parts(attempt.parts, report)

    def _is_needed(self, contents: CollectionState, blob: str) -> bool:
        """Return whether the newest state of a collection refers to a blob; CollectionNotFound without one."""
        contents_now = self._follower.refresh_and_require(contents.id, contents.name)
        return any(part.blob == blob for part in contents_now.stored_parts)

    def _commit_step(self, contents: CollectionState, step: kinds.Replace, attempt: "_Attempt") -> None:
        """Commit a step that names the attempt's parts, if its inputs still exist."""
        conditions = attempt.make_conditions(step)

        def check_newest() -> Step:
            """Return the step for the newest contents; raise Superseded if they are others."""
            newest = self._load_contents(contents.id, contents.name)
            for condition in conditions:
                apply_step(newest, condition)
            _, unused = compute_replacement(newest, step)
            return msgspec.structs.replace(step, unused=unused)

        def commit_once() -> None:
            steps: list[Step] = [*conditions, check_newest()]
            # Until an answer refuses it, the record may exist or appear later, whatever ends the wait.
            attempt.may_be_committed = True
            try:
                self._commit(steps, {contents.id: contents.name}).result()
            except PersistError as error:
                attempt.may_be_committed = isinstance(error, Indeterminate)
                raise

        def raise_if_final(error: PersistError) -> None:
            check_newest()  # That it came too late is the better reason, if it did.
            if isinstance(error, UploadExpired):
                raise error

        conflicts = (Superseded, UploadExpired)
        commit_with_retry(commit_once, action="compact", clock=self._clock, conflicts=conflicts, prepare=raise_if_final)

    def _make_runs(
        self, contents: CollectionState, runs: Iterable[Iterable[RunPiece]], attempt: "_Attempt"
    ) -> list[MadeRun]:
        """Make the parts of runs; note them in the attempt."""
        made_runs = self._maker.make(contents.id, runs, contents.parts)
        for maker_output in made_runs:
            attempt.parts += maker_output.new
        return made_runs

    def _make_keyframe(
        self, contents: CollectionState, as_of: int, attempt: "_Attempt"
    ) -> tuple[kinds.Replace, CompactionReport]:
        """Write the parts of a keyframe; return the step that adds it, and a report."""
        scan = plan_snapshot(contents, contents.schema, as_of, None, raw=True)
        numbers = {part.blob: number for number, part in contents.numbered.items()}
        pieces = plan_keyframe(scan, numbers, self._tuning.part_bytes, self._maker)
        [maker_output] = self._make_runs(contents, [pieces], attempt)
        listed = attempt.list_part_numbers(maker_output)
        shared = {number for number in listed if number >= 0}
        rewritten = [part for part in scan.base if numbers[part.blob] not in shared]
        attempt.check(listed, maker_output.added + sum(part.diff_sum for part in scan.base))
        step = kinds.Replace(contents.id, keyframes=(Keyframe(as_of, listed),))
        report = CompactionReport(keyframes=(as_of,), parts_shared=len(shared))
        return step, add_read_parts([*scan.parts, *rewritten], report)

    def _merge_runs(
        self, contents: CollectionState, runs: Numbers, attempt: "_Attempt"
    ) -> tuple[kinds.Replace, CompactionReport]:
        """Merge runs into one; return the step that replaces them, and a report."""
        numbers = [number for run in contents.history if run[0] in runs for number in run]
        report = CompactionReport(runs_merged=len(runs))
        if (order := self._select_disjoint_parts(contents, numbers)) is not None:
            return kinds.Replace(contents.id, removed_runs=runs, runs=(order,)), report
        new = self._rewrite_runs(contents, [numbers], 0, attempt)
        return kinds.Replace(contents.id, removed_runs=runs, runs=new), add_read_parts(
            contents.list_parts(numbers), report
        )

    def _select_disjoint_parts(self, contents: CollectionState, numbers: Sequence[int]) -> Numbers | None:
        """Return parts in key order if they may stay: large enough, and without common keys; otherwise None."""
        keyed = []
        for number in numbers:
            part = contents.numbered[number]
            keys = load_comparable_keys(part, contents.schema)
            if keys is None or part.inline or part.bytes < self._tuning.part_bytes // WHOLE_FRACTION:
                return None
            keyed.append((keys[0], keys[-1], number))
        keyed.sort(key=lambda entry: entry[:2])
        if any(earlier[1] >= later[0] for earlier, later in pairwise(keyed)):
            return None
        return tuple(number for _, _, number in keyed)

    def _rewrite_runs(
        self, contents: CollectionState, runs: Sequence[Sequence[int]], lower: int, attempt: "_Attempt"
    ) -> tuple[Numbers, ...]:
        """Rewrite the updates of runs from time lower on; return the new runs, if any updates remain."""
        schema = contents.schema
        parts = [contents.list_parts(run) for run in runs]
        scans = [Scan(schema, run_parts, lower, TIME_MAX + 1, schema.names).prune() for run_parts in parts]
        rewritten = []
        for old, maker_output in zip(
            parts, self._make_runs(contents, [[Rewrite(scan)] for scan in scans], attempt), strict=True
        ):
            new = attempt.list_part_numbers(maker_output)
            attempt.check(new, maker_output.added)
            if lower == 0 and maker_output.added != sum(part.diff_sum for part in old):
                raise AssertionError("slices of a merge did not read every update once")
            rewritten += [new] if new else []
        return tuple(rewritten)

    def _forget_history(
        self, contents: CollectionState, work: Forget, attempt: "_Attempt"
    ) -> tuple[kinds.Replace, CompactionReport]:
        """Rewrite runs without the updates before a keyframe; return the step, and a report."""
        history_from = work.as_of + 1
        removed = [run for run in contents.history if any(p.time_min < history_from for p in contents.list_parts(run))]
        straddling = [run for run in removed if any(p.time_max >= history_from for p in contents.list_parts(run))]
        old = tuple(keyframe.as_of for keyframe in contents.keyframes if keyframe.as_of < work.as_of)
        step = kinds.Replace(
            contents.id,
            removed_runs=tuple(run[0] for run in removed),
            runs=self._rewrite_runs(contents, straddling, history_from, attempt),
            removed_keyframes=old,
            history_from=history_from,
        )
        read = [part for run in straddling for part in contents.list_parts(run)]
        return step, add_read_parts(read, CompactionReport(forgotten=work.as_of, keyframes_dropped=len(old)))


class _Attempt:
    """The parts made for one piece of work, and its progress.

    New parts have the numbers -1, -2, … in the order of `parts`.

    Attributes:
        parts: all new parts, which are stored.
        may_be_committed: whether a record may name them, so that they must stay.
    """

    def __init__(self, contents: CollectionState) -> None:
        self.parts: list[Part] = []
        self.may_be_committed = False
        self._contents = contents

    def make_conditions(self, step: kinds.Replace) -> tuple[ExpectErasures, ExpectRuns]:
        """Return the conditions that nothing was erased, and that a step's removed runs have the same parts.

        Numbers do not show the latter: a merged run keeps the number of its first part.
        """
        runs = tuple(run for run in self._contents.history if run[0] in step.removed_runs)
        id_ = self._contents.id
        return ExpectErasures(id_, count_erasures(self._contents)), ExpectRuns(id_, runs)

    def list_part_numbers(self, run: MadeRun) -> Numbers:
        """Return the numbers of the parts of a new run; new parts have negative ones."""
        names = {part.blob: -1 - at for at, part in enumerate(self.parts)}
        return tuple(names[part.blob] if isinstance(part, Part) else part for part in run.parts)

    def check(self, run: Numbers, diff_sum: int) -> None:
        """Raise AssertionError if the parts of a new run are wrong.

        Their diffs must sum to `diff_sum`, and the parts must be in key order without common keys.

        Sums alone cannot show that a slice read beyond its keys, because both sums include those rows.
        """
        parts = [self._contents.numbered[n] if n >= 0 else self.parts[-1 - n] for n in run]
        total = sum(part.diff_sum for part in parts)
        if total != diff_sum:
            raise AssertionError(f"the diffs of the result sum to {total}, and those of its sources to {diff_sum}")
        schema = self._contents.schema
        keyed = [keys for part in parts if (keys := load_comparable_keys(part, schema)) is not None]
        if any(earlier[-1] >= later[0] for earlier, later in pairwise(keyed)):
            raise AssertionError("the parts of the result overlap in key: slices of the key space did, too")
