"""Compaction by tasks: their work, and its division into jobs.

A *job* is the work of one task: it writes parts (`Job`), or checks whether parts may stay (`RegionCheck`). The driver
sends both to tasks as pickles; a `JobResult` returns as JSON. Jobs are independent of each other, and a job that runs
twice does no harm: uploads have distinct names.

An error that would repeat is returned as a result, so that it reaches the caller at once, with its type. Any other
error fails the task, which is tried again elsewhere.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, TypeVar

import msgspec

from persist.blob.errors import CorruptBlob, InvalidUsage, MissingBlob, PersistError
from persist.blob.threads import Pool
from persist.codecs.errors import DiffOverflow
from persist.codecs.part.part import Part
from persist.core.settings import Settings, open_storage
from persist.engine.compact import LocalPartMaker, Rewrite, RunPiece
from persist.engine.read.parts.reader import PartReader, estimate_memory_within
from persist.engine.read.planning.scan import Scan
from persist.engine.write.part_writer import PartWriter

ROOM = 1.1  # A part may become this much larger than the target, rather than leave a small one behind it.
LEFT_MIN = 1 / 8  # A task reads at most this many times its output, as far as can be estimated.
IO_THREADS = 2
ANSWERED: dict[str, type[PersistError]] = {
    kind.__name__: kind for kind in (CorruptBlob, DiffOverflow, InvalidUsage, MissingBlob)
}

T = TypeVar("T")


@dataclass(frozen=True)
class TaskStore:
    """The address and the settings with which tasks open the store."""

    location: str
    storage_options: dict[str, Any]
    settings: Settings


@dataclass(frozen=True)
class Job:
    """The work of one task: it writes parts from adjacent pieces of a run.

    Attributes:
        part_bytes: the target size of a part.
        seqno: the seqno of the log when the work began, for the names of uploads.
    """

    collection: str
    pieces: tuple[Rewrite, ...]
    part_bytes: int
    seqno: int

    def run(self, place: TaskStore) -> "JobResult":
        """Write the parts in a task, and return their descriptors."""
        with _open_local_maker(place, self.part_bytes, self.seqno) as maker:
            sources = [part for piece in self.pieces for part in piece.scan.all_parts]
            [output] = maker.make(self.collection, [self.pieces], sources)
        return JobResult(parts=output.new, added=output.added)


@dataclass(frozen=True)
class RegionCheck:
    """The work of one task: find the regions of a keyframe that history changes."""

    regions: tuple[Scan, ...]

    def run(self, place: TaskStore) -> "JobResult":
        """Check the regions in a task, and return which are touched."""
        with _open_local_maker(place, place.settings.tuning.part_bytes, 0) as maker:
            return JobResult(touched=tuple(map(maker.is_touched, self.regions)))


class JobResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a job.

    Attributes:
        parts, added: of a `Job`: its parts, and the sum of the diffs of the history that it read.
        touched: of a `RegionCheck`: whether history changes each region.
        error: the name of a class in ANSWERED, and the arguments of its instance.
    """

    parts: tuple[Part, ...] = ()
    added: int = 0
    touched: tuple[bool, ...] = ()
    error: tuple[str, tuple[str, ...]] | None = None

    def raise_error(self) -> None:
        """Raise the job's error, if it failed."""
        if self.error is not None:
            name, arguments = self.error
            raise ANSWERED[name](*arguments)


def run_job(job: Job | RegionCheck, place: TaskStore) -> JobResult:
    """Run a job in a task; errors that a retry would repeat become its result."""
    try:
        return job.run(place)
    except PersistError as error:
        if ANSWERED.get(type(error).__name__) is not type(error):
            raise
        return JobResult(error=(type(error).__name__, error.args))


@contextmanager
def _open_local_maker(place: TaskStore, part_bytes: int, seqno: int) -> Iterator[LocalPartMaker]:
    """Open the store; yield a maker of parts for one task."""
    budget = place.settings.memory_budget
    storage = open_storage(place.location, place.storage_options, place.settings)
    pool = Pool(IO_THREADS, "persist-io")
    try:
        reader, writer = PartReader(storage.blob, pool, None, budget), PartWriter(storage.blob, lambda: seqno, budget)
        yield LocalPartMaker(reader, writer, pool, part_bytes, threading.Event())
    finally:
        pool.shutdown(wait=True)
        storage.close()


def estimate_encoded_bytes(scan: Scan) -> int:
    """Estimate the encoded bytes of the rows within a scan."""
    return int(sum(part.bytes * _estimate_share(part, scan) for part in scan.all_parts))


def estimate_result_bytes(piece: Rewrite) -> int:
    """Estimate the bytes of a rewritten piece."""
    scan = piece.scan
    if piece.as_of is None or not scan.all_parts:
        return estimate_encoded_bytes(scan)  # Updates at different times stay apart.
    # Without repeated records, the sum of diffs is the number of remaining rows.
    signed = [*((1, part) for part in scan.base), *((scan.sign, part) for part in scan.parts)]
    rows_left = sum(sign * part.diff_sum * _estimate_share(part, scan) for sign, part in signed)
    rows = sum(part.rows * _estimate_share(part, scan) for part in scan.all_parts)
    return int(estimate_encoded_bytes(scan) * min(max(rows_left / max(rows, 1), LEFT_MIN), 1))


def _estimate_share(part: Part, scan: Scan) -> float:
    """Estimate the share of a part's bytes that is within a scan."""
    return estimate_memory_within(part, scan.keys, scan.schema) / max(part.memory, 1)


def split_run(pieces: Sequence[RunPiece], collection: str, unit: int, part_bytes: int, seqno: int) -> list[int | Job]:
    """Return the pieces of a run, with jobs for the rewritten ones."""
    planned: list[int | Job] = []
    for is_quiet, some in groupby(pieces, lambda piece: None if isinstance(piece, int) else piece.is_quiet):
        if is_quiet is None:
            planned += [piece for piece in some if isinstance(piece, int)]
            continue
        fine = [slice for piece in some if isinstance(piece, Rewrite) for slice in _slice_piece(piece, unit)]
        for group in group_neighbours(fine, [estimate_result_bytes(rewrite) for rewrite in fine], unit):
            size = sum(map(estimate_result_bytes, group))
            parts = max(1, round(size / part_bytes))
            planned.append(Job(collection, tuple(group), max(part_bytes, int(ROOM * size / parts)), seqno))
    return planned


def _slice_piece(piece: Rewrite, unit: int) -> list[Rewrite]:
    """Cut a rewrite into rewrites of about `unit` bytes."""
    count = round(estimate_result_bytes(piece) / unit)
    return [replace(piece, scan=scan) for scan in piece.scan.slices(count)] if count > 1 else [piece]


def group_neighbours(items: Sequence[T], sizes: Sequence[int], unit: int) -> list[list[T]]:
    """Group adjacent items to about equal sizes."""
    total = max(1, sum(sizes))
    count = max(1, round(total / unit))
    groups: list[list[T]] = [[] for _ in range(count)]
    placed = 0
    for item, size in zip(items, sizes, strict=True):
        groups[min(count * (2 * placed + size) // (2 * total), count - 1)].append(item)
        placed += size
    return [group for group in groups if group]
