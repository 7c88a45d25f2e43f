"""Compaction carried out: parts are read, merged and written, and one record puts the result in place.

Work is done slice by slice of the key space, in key order: each is read, consolidated, and appended to a stream of new
parts, which are uploaded as they become full. So memory is a slice, a row group and a part in progress, whatever the
size of the collection.

A new keyframe is made of the plan by which a reader would read its time. Where no history touches the keys of a part of
the old one, the new one lists that very part. Small parts next to rewritten ones are rewritten with them.

Nothing is replaced before all of it has been written, and only if what it was made of is still there: the record says
so, and loses otherwise (`persist.contents`). Any number of compactors may therefore run; a loser deletes what it
made. A part found missing or damaged ends the compaction with an error that names it. Before the commit the sums of
diffs are held against each other: a slice that was lost or read twice would show.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from itertools import pairwise

import msgspec
import numpy as np
import pyarrow as pa

from persist.blob import Blob, Indeterminate, MissingBlob
from persist.codecs import (
    TIME_MAX,
    CollectionSchema,
    DiffOverflow,
    KeyRange,
    Part,
    PartStream,
    consolidate,
    exact_sum,
    ordered_keys,
)
from persist.compaction import CompactionPolicy, Forget, MakeKeyframe, Merge, Thin, Work, next_work
from persist.contents import CollectionState, with_replaced
from persist.errors import ClientClosed, CollectionNotFound, PersistError, Superseded, UploadExpired
from persist.follower import Follower
from persist.future import CommitFuture
from persist.operations import Step
from persist.part_reader import Footers, PartReader
from persist.part_writer import PartWriter, group_bytes_max
from persist.plan import snapshot_scan
from persist.records import Keyframe, Numbers, Replace
from persist.scan import Scan

Commit = Callable[[Sequence[Step], dict[str, str]], CommitFuture]
ATTEMPTS = 3
SLICE_SHARE = 8  # Of the budget one slice takes this fraction: merging takes about four times as much.
WHOLE_FRACTION = 4  # Parts at least this fraction of the target are left as they are where they can be.


@dataclass(frozen=True)
class CompactionReport:
    """What compaction did.

    Attributes:
        keyframes: those made, by their times.
        forgotten: the time up to which history was dropped, None if none was.
        runs_merged: runs of history that became fewer.
        keyframes_dropped: those that were not needed any more, or too many.
        parts_read, rows_read, bytes_read: what it read, of parts; rows and bytes of whole parts.
        parts_written, rows_written, bytes_written: what it wrote.
        parts_shared: parts of an earlier keyframe that a new one lists, too.
        superseded: pieces of work that another compactor was faster to do.
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
        if self == CompactionReport():
            return "nothing to do"
        done = [f"keyframe as of {as_of}" for as_of in self.keyframes]
        done += [f"history up to {self.forgotten} forgotten"] if self.forgotten is not None else []
        done += [f"{self.runs_merged:,} runs merged"] if self.runs_merged else []
        done += [f"{self.keyframes_dropped:,} keyframes dropped"] if self.keyframes_dropped else []
        done += [f"{self.parts_shared:,} parts shared"] if self.parts_shared else []
        done += [f"{self.superseded:,} times another compaction was faster"] if self.superseded else []
        read, wrote = ((self.parts_read, self.bytes_read), (self.parts_written, self.bytes_written))
        done += [f"{what} {n:,} parts ({size:,} bytes)" for what, (n, size) in (("read", read), ("wrote", wrote))]
        return ", ".join(done)

    def __add__(self, other: "CompactionReport") -> "CompactionReport":
        forgotten = max((each for each in (self.forgotten, other.forgotten) if each is not None), default=None)
        added = {
            name: getattr(self, name) + getattr(other, name)
            for name in self.__dataclass_fields__
            if name != "forgotten"
        }
        return CompactionReport(forgotten=forgotten, **added)


class Compactor:
    """Compacts the collections of one location, for one client; from any thread, one collection at a time."""

    def __init__(
        self,
        blob: Blob,
        follower: Follower,
        commit: Commit,
        executor: Executor,
        footers: Footers,
        policy: CompactionPolicy,
        memory_budget: int,
    ) -> None:
        self._blob = blob
        self._follower = follower
        self._commit = commit
        self._policy = policy
        self._reader = PartReader(blob, executor, footers, memory_budget)
        self._writer = PartWriter(blob, follower.next_seqno, memory_budget)
        self._group_bytes = group_bytes_max(memory_budget)
        self._executor = executor
        self._one_at_a_time = threading.Lock()
        self._stop = threading.Event()

    def is_due(self, contents: CollectionState, *, destroy: bool = False) -> bool:
        """Tell whether `compact` would find something to do. Cost: no request."""
        return next_work(contents, self._policy, destroy=destroy) is not None

    def compact(
        self, id_: str, name: str, *, full: bool = False, destroy: bool = False, move_out: bool = False
    ) -> CompactionReport:
        """Do all that is due in one collection; see `persist.compaction.next_work`.

        Raises:
            CollectionNotFound: it was destroyed.
            CorruptBlob: a part cannot be believed; nothing that it is part of was replaced.
            DiffOverflow: a sum of diffs does not fit int64; that piece of work was not done, all else was.
            Unavailable, Indeterminate: the store did not answer.
            ClientClosed: the client was closed meanwhile.
        """
        report = CompactionReport()
        failed: dict[Work, DiffOverflow] = {}
        with self._one_at_a_time:
            while True:
                contents = self._contents(id_, name)
                work = next_work(
                    contents,
                    self._policy,
                    full=full,
                    destroy=destroy,
                    move_out=move_out,
                    without=frozenset(failed),
                )
                if work is None:
                    break
                try:
                    report += self._do(contents, work)
                except Superseded:
                    report += CompactionReport(superseded=1)
                except DiffOverflow as error:
                    failed[work] = error
        if failed:
            raise next(iter(failed.values()))
        return report

    def close(self) -> None:
        """Let what is under way end soon, with ClientClosed; idempotent."""
        self._stop.set()

    def _contents(self, id_: str, name: str) -> CollectionState:
        if self._stop.is_set():
            raise ClientClosed("compaction")
        return self._follower.current(id_, name)

    def _do(self, contents: CollectionState, work: Work) -> CompactionReport:
        made = _Made(self._writer, self._executor, contents, self._policy.part_bytes, self._group_bytes)
        if isinstance(work, Thin):
            self._put(contents, Replace(contents.id, removed_keyframes=work.keyframes), made)
            return CompactionReport(keyframes_dropped=len(work.keyframes))
        try:
            if isinstance(work, MakeKeyframe):
                step, report = self._keyframe(contents, work.as_of, made)
            elif isinstance(work, Merge):
                step, report = self._merge(contents, work.runs, made)
            else:
                step, report = self._forget(contents, work, made)
            step = msgspec.structs.replace(step, parts=made.parts)
            self._put(contents, step, made)
        except BaseException as error:
            if made.may_be_committed:
                raise
            made.discard()
            if isinstance(error, MissingBlob) and not self._needs(contents, error.key):
                raise Superseded("what this compaction read has been replaced and deleted meanwhile") from error
            raise
        written = made.parts
        return report + CompactionReport(
            parts_written=len(written),
            rows_written=sum(part.rows for part in written),
            bytes_written=sum(part.bytes for part in written),
        )

    def _needs(self, contents: CollectionState, blob: str) -> bool:
        try:
            known = self._follower.current(contents.id, contents.name)
        except CollectionNotFound:
            return False
        return any(part.blob == blob for part in known.parts)

    def _put(self, contents: CollectionState, step: Replace, made: "_Made") -> None:
        """Commit step, which names what was made for it, as long as what it replaces is there."""
        for attempt in range(ATTEMPTS):
            contents = self._contents(contents.id, contents.name)
            _, unused = with_replaced(contents, step)
            # Until there is an answer that says no, the record may be there or come yet, whatever ends the wait for it.
            made.may_be_committed = True
            try:
                self._commit([msgspec.structs.replace(step, unused=unused)], {contents.id: contents.name}).result()
                return
            except PersistError as error:
                made.may_be_committed = isinstance(error, Indeterminate)
                if isinstance(error, UploadExpired):  # That it came too late is the better reason, if it did.
                    with_replaced(self._contents(contents.id, contents.name), step)
                if attempt == ATTEMPTS - 1 or not isinstance(error, Superseded):
                    raise

    # A keyframe.

    def _keyframe(self, contents: CollectionState, as_of: int, made: "_Made") -> tuple[Replace, CompactionReport]:
        scan = snapshot_scan(contents, contents.schema, as_of, None)
        numbers = {part.blob: number for number, part in contents.numbered.items()}
        listed: list[int] = []
        expected = sum(part.diff_sum for part in scan.base)
        read: list[Part] = [*scan.parts]
        shared = 0
        for region in self._regions(scan):
            # Rows of a later keyframe say a later time, so its parts cannot be listed by an earlier one.
            is_later = any(part.time_max > as_of for part in region.base)
            is_touched = is_later or (region.parts and (made.is_open or self._is_touched(region)))
            if is_touched or self._is_small(region, made):
                read += region.base
                expected += self._rewrite(region, as_of, made)
                continue
            listed += made.flush()
            listed += [numbers[part.blob] for part in region.base]
            shared += len(region.base)
        listed += made.flush()
        made.check(expected - sum(contents.numbered[n].diff_sum for n in listed if n >= 0))
        made.check_order(listed)
        step = Replace(contents.id, keyframes=(Keyframe(as_of, tuple(listed)),))
        return step, _read(read, CompactionReport(keyframes=(as_of,), parts_shared=shared))

    def _regions(self, scan: Scan) -> list[Scan]:
        """Cut a plan where the parts of its keyframe begin."""
        keys = [ordered_keys(part, scan.schema) for part in scan.base]
        bounds = [part.keys for part in scan.base]
        if len(scan.base) < 2 or any(each is None for each in keys) or any(each is None for each in bounds):
            return [scan]
        cuts = [each[0] for each in bounds[1:] if each is not None]
        ranges = [KeyRange(a, b) for a, b in zip([None, *cuts], [*cuts, None], strict=True)]
        return [
            replace(scan, keys=within, base=(part,)).pruned() for within, part in zip(ranges, scan.base, strict=True)
        ]

    def _is_touched(self, region: Scan) -> bool:
        """Tell whether history changes anything in a region, if that costs far less than writing it anew."""
        rows = sum(region.rows_within(part) for part in region.parts)
        if not region.base or rows > region.base[0].rows // 4:
            return True
        names = region.schema.names
        for each in region.slices_within(self._reader.memory_budget // SLICE_SHARE):
            if len(consolidate(self._rows(replace(each, base=()), names, []), names)):
                return True
        return False

    def _is_small(self, region: Scan, made: "_Made") -> bool:
        """Tell whether a part is so small that it should join those that are being written anew before it."""
        return made.is_open and sum(part.bytes for part in region.base) < self._policy.part_bytes // WHOLE_FRACTION

    def _rewrite(self, region: Scan, as_of: int, made: "_Made") -> int:
        """Write a region of a keyframe; return the sum of the diffs of its history."""
        names, added = region.schema.names, 0
        for each in region.slices_within(self._reader.memory_budget // SLICE_SHARE):
            self._check_running()
            sums: list[int] = []
            found = consolidate(self._rows(each, names, sums), names)
            added += sum(sums)
            made.add(_with_time(found, as_of, region.schema))
        return added

    def _rows(self, scan: Scan, names: Sequence[str], sums: list[int]) -> pa.Table:
        """Return all rows of one slice, columns and `_diff`; add the diff sums of its updates to sums.

        Nothing else keeps what it returns, so that whoever copies it may have its memory.
        """
        columns = [*names, "_diff"]
        tables = [scan.empty(columns), *scan.base_rows(self._reader, columns)]
        for table in scan.updates(self._reader, columns):
            sums.append(exact_sum(table["_diff"].to_numpy()))
            tables.append(table)
        return pa.concat_tables(tables)

    # History.

    def _merge(self, contents: CollectionState, runs: Numbers, made: "_Made") -> tuple[Replace, CompactionReport]:
        old = [run for run in contents.history if run[0] in runs]
        numbers = [number for run in old for number in run]
        if (order := self._disjoint(contents, numbers)) is not None:
            return Replace(contents.id, removed_runs=runs, runs=(order,)), CompactionReport(runs_merged=len(runs))
        step = Replace(contents.id, removed_runs=runs, runs=self._rewritten(contents, numbers, 0, made))
        return step, _read(contents.parts_of(numbers), CompactionReport(runs_merged=len(runs)))

    def _disjoint(self, contents: CollectionState, numbers: Sequence[int]) -> Numbers | None:
        """Return parts in key order, if they may stay as they are: of fair size, and without a key in common."""
        keyed = []
        for number in numbers:
            part = contents.numbered[number]
            keys = ordered_keys(part, contents.schema)
            if keys is None or part.inline or part.bytes < self._policy.part_bytes // WHOLE_FRACTION:
                return None
            keyed.append((keys[0], keys[-1], number))
        keyed.sort(key=lambda each: each[:2])
        if any(one[1] >= other[0] for one, other in pairwise(keyed)):
            return None
        return tuple(number for _, _, number in keyed)

    def _rewritten(
        self, contents: CollectionState, numbers: Sequence[int], lower: int, made: "_Made"
    ) -> tuple[Numbers, ...]:
        """Write the updates of some parts from time lower on; return the run that they are now, or none."""
        parts, schema = contents.parts_of(numbers), contents.schema
        scan = Scan(schema, parts, lower, TIME_MAX + 1, schema.names).pruned()
        columns, added = [*schema.names, "_time"], 0
        for each in scan.slices_within(self._reader.memory_budget // SLICE_SHARE):
            self._check_running()
            sums: list[int] = []
            made.add(consolidate(self._rows(each, columns, sums), columns))
            added += sum(sums)
        run = tuple(made.flush())
        made.check(added)
        made.check_order(run)
        if lower == 0 and added != sum(part.diff_sum for part in parts):
            raise AssertionError("slices of a merge did not read every update once")
        return (run,) if run else ()

    def _forget(self, contents: CollectionState, work: Forget, made: "_Made") -> tuple[Replace, CompactionReport]:
        history_from = work.as_of + 1
        removed: list[int] = []
        runs: list[Numbers] = []
        read: list[Part] = []
        for run in contents.history:
            parts = contents.parts_of(run)
            if all(part.time_min >= history_from for part in parts):
                continue
            removed.append(run[0])
            if any(part.time_max >= history_from for part in parts):
                read += parts
                runs += self._rewritten(contents, run, history_from, made)
        old = tuple(each.as_of for each in contents.keyframes if each.as_of < work.as_of)
        step = Replace(
            contents.id,
            removed_runs=tuple(removed),
            runs=tuple(runs),
            removed_keyframes=old,
            history_from=history_from,
        )
        return step, _read(read, CompactionReport(forgotten=work.as_of, keyframes_dropped=len(old)))

    def _check_running(self) -> None:
        if self._stop.is_set():
            raise ClientClosed("compaction")


class _Made:
    """The parts that one piece of work makes: encoded as rows come, uploaded while the next are made.

    A part that was made is named by -1, -2, … in the order of parts.

    Attributes:
        may_be_committed: whether a record may name them, so that they must stay.
    """

    def __init__(
        self,
        writer: PartWriter,
        executor: Executor,
        contents: CollectionState,
        part_bytes: int,
        group_bytes: int,
    ) -> None:
        self._writer = writer
        self._executor = executor
        self._id = contents.id
        self._schema = contents.schema
        self._contents = contents
        self._sources = contents.parts
        self._part_bytes = part_bytes
        self._group_bytes = group_bytes
        self._stream: PartStream | None = None
        self._uploads: list[Future[Part]] = []
        self._listed = 0
        self._checked = 0
        self.may_be_committed = False

    @property
    def is_open(self) -> bool:
        """Whether rows have come since the last `flush`."""
        return self._stream is not None

    @property
    def parts(self) -> tuple[Part, ...]:
        """All parts, once they are stored."""
        return tuple(upload.result() for upload in self._uploads)

    def add(self, table: pa.Table) -> None:
        """Take more rows, sorted and consolidated, which come after all before in key."""
        if self._stream is None:
            self._stream = PartStream(
                self._schema,
                part_bytes_target=self._part_bytes,
                row_group_bytes_max=self._group_bytes,
                sources=self._sources,
            )
        if len(table):
            self._upload(self._stream.add(table))

    def flush(self) -> list[int]:
        """End the part in progress; return the names of all parts since the last call, in key order."""
        if self._stream is not None:
            self._upload(self._stream.finish())
            self._stream = None
        names = [-1 - at for at in range(self._listed, len(self._uploads))]
        self._listed = len(self._uploads)
        return names

    def check(self, diff_sum: int) -> None:
        """Raise AssertionError unless the diffs of all parts since the last call sum to this."""
        parts = self.parts[self._checked :]
        self._checked = len(self._uploads)
        found = sum(part.diff_sum for part in parts)
        if found != diff_sum:
            raise AssertionError(f"the diffs of the result sum to {found}, and those of its sources to {diff_sum}")

    def check_order(self, numbers: Sequence[int]) -> None:
        """Raise AssertionError if parts, by number or name, have keys in common or are not in key order.

        The sums of diffs do not show a slice that went beyond its keys: what it read too much is in both of them.
        """
        parts = [self._contents.numbered[n] if n >= 0 else self._uploads[-1 - n].result() for n in numbers]
        keyed = [keys for part in parts if (keys := ordered_keys(part, self._schema)) is not None]
        if any(one[-1] >= other[0] for one, other in pairwise(keyed)):
            raise AssertionError("the parts of the result overlap in key: slices of the key space did, too")

    def wait(self) -> None:
        """Wait for uploads under way."""
        for upload in self._uploads:
            upload.exception()

    def discard(self) -> None:
        """Delete what was stored."""
        self.wait()
        self._writer.discard(upload.result() for upload in self._uploads if upload.exception() is None)

    def _upload(self, encoded: list[tuple[bytes, Part]]) -> None:
        for data, part in encoded:
            if self._uploads:
                self._uploads[-1].exception()  # One at a time: each takes memory.
            self._uploads.append(self._executor.submit(self._writer.put, self._id, data, part))


def _with_time(table: pa.Table, time: int, schema: CollectionSchema) -> pa.Table:
    times = pa.array(np.full(len(table), time, np.int64))
    columns = [*(table[name] for name in schema.names), times, table["_diff"]]
    return pa.Table.from_arrays(columns, schema=schema.arrow)


def _read(parts: Sequence[Part], report: CompactionReport) -> CompactionReport:
    return report + CompactionReport(
        parts_read=len(parts),
        rows_read=sum(part.rows for part in parts),
        bytes_read=sum(part.bytes for part in parts),
    )
