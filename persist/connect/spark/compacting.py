"""Compaction by the tasks of a cluster; the driver plans, checks and commits.

The driver cuts the work into slices of the key space. A job is a few consecutive slices that make about one full part,
and each task does one job: it merges the slices, uploads a part, and returns its descriptor. The driver puts
descriptors in order, checks that the sums of diffs are unchanged, and commits one record.

A task may fail, run again or run twice. Spark takes one answer for each job, and `Client.gc` deletes the parts of the
other attempts. A job that keeps failing fails the Spark job with its reason, and nothing is replaced.

The driver does work of less than `HERE_BYTES` itself, because starting tasks takes longer. If the caller chose a number
of tasks, the limit is `LEVEL_BYTES`, because the parts of smaller work would be very small.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from persist.codecs.part.part import Part
from persist.compute.tasks.compaction_jobs import (
    Job,
    JobResult,
    RegionCheck,
    TaskStore,
    estimate_encoded_bytes,
    estimate_result_bytes,
    group_neighbours,
    run_job,
    split_run,
)
from persist.connect.spark.data_source.source import register
from persist.connect.spark.options import check_whole, resolve_for_tasks
from persist.connect.spark.workers import surface_errors
from persist.core.errors import CollectionNotFound, InvalidUsage, PersistError
from persist.core.settings import Settings
from persist.engine.compact import LEVEL_BYTES, CompactionReport, Compactor, LocalPartMaker, MadeRun, Rewrite, RunPiece
from persist.engine.location.engine import Engine
from persist.engine.location.opening import load_handle, open_engine
from persist.engine.location.writer import OpenOptions
from persist.engine.read.planning.scan import SLICES_MAX, Scan

HERE_BYTES = 4 << 20
JOBS_MAX = 1000  # In one Spark job, since Spark sends their descriptions to all of its tasks.


def compact(
    spark: SparkSession,
    location: str | os.PathLike[str],
    collection: str | None = None,
    *,
    only_due: bool = False,
    partitions: int | None = None,
    storage_options: dict[str, Any] | None = None,
    settings: Settings | None = None,
) -> CompactionReport:
    """Compact collections by tasks of a cluster, as `Collection.compact` does in one process.

    Memory: `Settings.memory_budget` for each task, and for the driver.

    Args:
        spark: a session, classic or Spark Connect.
        location: a folder that all workers see, or a URL.
        collection: its name; None for all collections.
        only_due: do only the work that is due, as a client does in the background.
        partitions: into how many tasks each piece of work is cut, as far as the keys of its parts are known. None for
            one task for each 64 MiB, the size of a full part. More tasks make smaller parts.
        storage_options: for the store, as in `persist.open`.
        settings: as in `persist.open`, for the driver and for tasks.

    Raises:
        CollectionNotFound, InvalidUsage: the collection does not exist; or an argument does not fit.
        CorruptBlob: a part is damaged; the run that it belongs to was not replaced.
        DiffOverflow: a multiplicity does not fit int64.
        Unavailable: the store did not answer the driver.
        PySparkException: a task failed as often as Spark lets it; its message ends with the reason.
        If there are several collections, all are tried; then the first error is raised.
    """
    where = resolve_for_tasks(location)
    check_whole("partitions", partitions, 1, SLICES_MAX)
    if settings is not None and not isinstance(settings, Settings):
        raise InvalidUsage(f"settings={settings!r} is not a Settings: use persist.Settings(memory_budget=…)")
    register(spark)
    # The engine of this call does no background work.
    settings = replace(settings or Settings(), background=False)
    with open_engine(where, storage_options, OpenOptions(settings=settings)) as engine:
        stop = threading.Event()
        place = TaskStore(where, dict(storage_options or {}), settings)
        writer = engine.writer("compact")
        maker = SparkPartMaker(
            spark, place, writer.make_local_part_maker(stop), engine.follower.find_next_seqno, partitions
        )
        compactor = writer.build_compactor(maker, stop)
        if collection is not None:
            return _compact(engine, compactor, collection, full=not only_due)
        return _compact_all(engine, compactor, full=not only_due)


def _compact(engine: Engine, compactor: Compactor, name: str, *, full: bool) -> CompactionReport:
    """Compact one collection; `full`: merge all of its history."""
    return compactor.compact(load_handle(engine, name).id, name, full=full, destroy=full)


def _compact_all(engine: Engine, compactor: Compactor, *, full: bool) -> CompactionReport:
    """Compact all collections, even if some fail; then raise the first error."""
    report = CompactionReport()
    failed: PersistError | None = None
    for name in engine.names():
        try:
            report += _compact(engine, compactor, name, full=full)
        except CollectionNotFound:
            continue  # It was destroyed meanwhile.
        except PersistError as error:
            error.add_note(f"That was the compaction of {name!r}; the other collections had their turn.")
            failed = failed or error
    if failed is not None:
        raise failed
    return report


class SparkPartMaker:
    """Makes the parts of a compaction in tasks; implements `persist.engine.compact.rewriter.PartMaker`."""

    def __init__(
        self,
        spark: SparkSession,
        place: TaskStore,
        here: LocalPartMaker,
        next_seqno: Callable[[], int],
        partitions: int | None,
    ) -> None:
        """Store the arguments.

        Args:
            here: does, in this process, work that is not worth a task.
            next_seqno: returns the next seqno of the log, which may be slightly out of date.
            partitions: see `compact`.
        """
        self._spark = spark
        self._place = place
        self._here = here
        self._next_seqno = next_seqno
        self._partitions = partitions
        self._part_bytes = place.settings.tuning.part_bytes

    def build_change_test(self, regions: Sequence[Scan]) -> Callable[[Scan], bool]:
        """Let tasks examine all regions; return a test of whether merging changes a region."""
        sizes = [estimate_encoded_bytes(replace(region, base=())) for region in regions]
        if self._is_too_small_for_tasks(sum(sizes)):
            return self._here.build_change_test(regions)
        # To look at a region takes less time than to write it, by the share of the history that makes it worth while.
        looks = [
            RegionCheck(tuple(group))
            for group in group_neighbours(regions, sizes, self._choose_job_bytes(sum(sizes), self._part_bytes // 4))
        ]
        is_touched = [region for answer in self._collect_answers(looks) for region in answer.touched]
        touched = {id(region): region_touched for region, region_touched in zip(regions, is_touched, strict=True)}
        return lambda region: touched[id(region)]

    def make(self, collection: str, runs: Iterable[Iterable[RunPiece]], sources: Sequence[Part]) -> list[MadeRun]:
        """Let tasks merge and upload the parts of new runs; return the runs."""
        pieces = [list(run) for run in runs]
        rewritten = [piece for run in pieces for piece in run if isinstance(piece, Rewrite)]
        if self._is_too_small_for_tasks(sum(estimate_encoded_bytes(piece.scan) for piece in rewritten)):
            return self._here.make(collection, pieces, sources)
        unit, seqno = (
            self._choose_job_bytes(sum(map(estimate_result_bytes, rewritten)), self._part_bytes),
            self._next_seqno(),
        )
        laid_out = [split_run(run, collection, unit, self._part_bytes, seqno) for run in pieces]
        answers = iter(self._collect_answers([piece for run in laid_out for piece in run if isinstance(piece, Job)]))
        return [_assemble_run(run, answers) for run in laid_out]

    def discard(self, parts: Iterable[Part]) -> None:
        """Delete parts that were uploaded in vain."""
        self._here.discard(parts)

    def _is_too_small_for_tasks(self, size: int) -> bool:
        """Return whether this process does work of so many bytes itself."""
        return size < (HERE_BYTES if self._partitions is None else LEVEL_BYTES)

    def _choose_job_bytes(self, size: int, otherwise: int) -> int:
        """Return the bytes of one job: as `partitions` demands, or `otherwise`."""
        return max(1, otherwise if self._partitions is None else size // self._partitions)

    def _collect_answers(self, jobs: Sequence[Job | RegionCheck]) -> list[JobResult]:
        """Run jobs in tasks; return their results in order, or raise the first error."""
        answers: list[JobResult] = []
        try:
            for start in range(0, len(jobs), JOBS_MAX):
                answers += self._run_jobs(jobs[start : start + JOBS_MAX])
                for answer in answers[start:]:
                    answer.raise_error()
        except BaseException:
            self.discard(part for answer in answers for part in answer.parts)
            raise
        return answers

    def _run_jobs(self, jobs: Sequence[Job | RegionCheck]) -> list[JobResult]:
        """Run each job in a task of its own; return their results in order."""
        # One task for each, so that they are done where and when there is room, and again one by one.
        numbers = self._spark.range(0, len(jobs), 1, len(jobs))
        rows = numbers.mapInArrow(_make_task_function(tuple(jobs), self._place), "job long, answer binary").collect()
        answers = {row["job"]: msgspec.json.decode(row["answer"], type=JobResult) for row in rows}
        if len(rows) != len(jobs) or len(answers) != len(jobs):
            raise AssertionError(f"{len(jobs)} jobs of a compaction came back as {sorted(row['job'] for row in rows)}")
        return [answers[number] for number in range(len(jobs))]


def _make_task_function(
    jobs: Sequence[Job | RegionCheck], place: TaskStore
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that tasks run: it runs the jobs whose numbers it gets."""

    def do(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with surface_errors():
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    answer = msgspec.json.encode(run_job(jobs[number], place))
                    yield pa.RecordBatch.from_pydict({"job": [number], "answer": pa.array([answer], pa.binary())})

    return do


def _assemble_run(run: Sequence[int | Job], answers: Iterator[JobResult]) -> MadeRun:
    """Return a run of existing parts and of new parts, which the next answers name."""
    parts: list[int | Part] = []
    added = 0
    for piece in run:
        if isinstance(piece, int):
            parts.append(piece)
        else:
            answer = next(answers)
            parts += answer.parts
            added += answer.added
    return MadeRun(tuple(parts), added)
