"""`persist.spark.refresh`: brings a view or a program up to date, by tasks or in this process.

Both ways make the same updates. This process reads only the records of changed keys. Tasks read everything: that is
faster for new outputs, and for changes to a large part of the data. No task has more than its share in memory. This
module runs the tasks; `persist.compute.dataflow.cluster` defines their work.

The stages of a job are one job of Spark, with a DataFrame for each stage; `SHAPE` is the type of its rows.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from os import PathLike
from typing import Any, Literal, cast, get_args

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from persist.codecs.part.part import Part
from persist.codecs.types.schema import TIME_MAX
from persist.compute.dataflow.cluster.job import Job
from persist.compute.dataflow.cluster.tasks import SHAPE, WAKES, StageTask, Stored, StoredParts
from persist.compute.dataflow.plan.plan import Source
from persist.compute.dataflow.ports.ports import Ports
from persist.compute.dataflow.program import Program
from persist.compute.dataflow.running.partial import explain_why_not_partial
from persist.compute.dataflow.running.refreshed import Refreshed
from persist.compute.dataflow.running.refreshed import refresh as refresh_running
from persist.compute.dataflow.running.running import Options
from persist.compute.sql import OnView, load_live_view
from persist.connect.spark.options import check_whole, resolve_for_tasks
from persist.connect.spark.workers import check_workers, get_parallelism, surface_errors
from persist.connect.spark.write_functions.upserting import PARTITIONS_MAX
from persist.core.errors import (
    AsOfCompacted,
    HoldMoved,
    InvalidUsage,
    LeaseExpired,
    OperatorFailed,
    UpdatesBeyondUpper,
    UpperMismatch,
    ViewRedefined,
)
from persist.engine.collection.reads import snapshot
from persist.engine.location.engine import Engine
from persist.engine.location.opening import OnEngine, load_handle, to_engine

Place = Literal["auto", "driver", "tasks"]
TASKS_BYTES = 1 << 30  # Decoded: of outputs that begin with less to read, and of changes that touch less, here.
TOUCHED = 50  # Changes of one byte in so many touch so much that tasks read everything sooner.
TRIES = 5  # While others write the outputs.
OVERTAKEN = (UpperMismatch, HoldMoved, ViewRedefined, LeaseExpired)
SHARE_BYTES = 64 << 20  # Decoded, of what a step reads, for each task of a keyed stage.
SHARE_BYTES_MIN = 4 << 20  # Less than this is not worth a task, which takes 30 ms of CPU time to begin.


def refresh(
    view: OnView,
    spark: SparkSession | None = None,
    *,
    where: Place = "auto",
    partitions: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Refreshed:
    """Bring a view, and the views that it reads, up to date; see `View.refresh`.

    Args:
        view: a `persist.View` of a location that all workers can reach.
        spark: the session; None for the active one.
        where: "tasks" by tasks, "driver" without a job, which is what `View.refresh` does; "auto" chooses by how much
            there is to read. Work that tasks cannot do is done in this process, as the result shows.
        partitions: how many tasks a stage has; None chooses by the bytes to read.
        storage_options: the same as for the client; they are sent to the tasks.

    Raises:
        what `View.refresh` raises. If tasks find a failure, this process examines it.
    """
    live = load_live_view(view)
    cluster = _make_cluster(live.engine, spark, where, partitions, storage_options)
    return live.refresh(first=None if cluster is None else lambda program: cluster.refresh(program, live.engine))


def explain_refresh(view: OnView, spark: SparkSession | None = None, *, where: Place = "auto") -> str:
    """Return where `refresh` would compute a view now, why, and what it reads."""
    live = load_live_view(view)
    cluster = _make_cluster(live.engine, spark, where, None, None)
    by_tasks = None if cluster is None else cluster.explain(live.make_program(), live.engine)
    return live.explain_refresh() if by_tasks is None else str(by_tasks)


def run_program(
    spark: SparkSession,
    client: OnEngine | Engine,
    program: Program,
    *,
    until: int | None = None,
    timeout_s: float | None = None,
    where: Place = "auto",
    partitions: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    memory_budget: int | None = None,
    spill_folder: str | PathLike[str] | None = None,
) -> Refreshed:
    """Bring the outputs of a program up to date by tasks, in one commit.

    It writes the same as `program.open(client).run()`, and runs that for a program that tasks cannot step. Arguments
    are as of `refresh`, errors as of `Running.step`.

    Args:
        client: of a location that the tasks can reach.
        memory_budget, spill_folder: of a program that runs; see `persist.dataflow.Options`. None for its defaults.
        until: wait until the sources have sealed this time. All that is sealed is processed, also later times.
        timeout_s: how long to wait at most; None waits without limit.
    """
    check_whole("until", until, 0, TIME_MAX)
    engine = to_engine("run_program", client)
    limits = {"memory_budget": memory_budget, "spill_folder": spill_folder}
    set_limits = {name: value for name, value in limits.items() if value is not None}
    Options.of(set_limits)
    cluster = _make_cluster(engine, spark, where, partitions, storage_options)
    if until is not None:
        _wait_for(engine, program, until, timeout_s)
    engine.writer("refresh")
    refreshed = None if cluster is None else cluster.refresh(program, engine)
    if refreshed is not None:
        return refreshed
    with program.open(engine, **set_limits, partial=True) as running:
        return refresh_running(running, "auto", is_new=True)


def _wait_for(engine: Engine, program: Program, until: int, timeout_s: float | None) -> None:
    """Wait until all sources of a program have sealed a time."""
    for node in program.plan.drop_unused().nodes.values():
        if isinstance(node.operator, Source):
            with suppress(AsOfCompacted):  # Then it is sealed further.
                snapshot(load_handle(engine, node.operator.collection), until, timeout_s=timeout_s).close()


def _make_cluster(
    engine: Engine,
    session: SparkSession | None,
    where: Place,
    partitions: int | None,
    storage: Mapping[str, Any] | None,
) -> "_Cluster | None":
    """Return the tasks to use; None if this process computes, or tasks cannot reach the location."""
    if where not in get_args(Place):
        raise InvalidUsage(f'where={where!r} is not a place to compute: use "auto", "driver" or "tasks"')
    check_whole("partitions", partitions, 1, PARTITIONS_MAX)
    spark = cast(SparkSession, session or SparkSession.getActiveSession())
    if not hasattr(spark, "range"):
        raise InvalidUsage("there is no active Spark session: give one with spark=")
    if where == "driver" or (where != "tasks" and engine.url.startswith("memory:")):
        return None
    return _Cluster(spark, resolve_for_tasks(engine.url), dict(storage or {}), partitions, where == "tasks")


@dataclass(frozen=True)
class _Cluster:
    """The tasks of a session, which compute programs for one location.

    `is_requested`: whether the caller insists on tasks, even if there is little to read.
    """

    spark: SparkSession
    location: str
    storage: Mapping[str, Any]
    partitions: int | None
    is_requested: bool

    def refresh(self, program: Program, engine: Engine) -> Refreshed | None:
        """Bring outputs up to date by tasks; return None, having done nothing, if this process would be faster."""
        if self._must_run_here(program):
            return None
        for tries_left in reversed(range(TRIES)):
            try:
                with Ports.of_job(program, engine) as ports, self._make_job(program, ports) as job:
                    plan = self._choose_tasks(job)
                    if plan is None:
                        return None
                    if not job.is_due:
                        return replace(plan, reads="changes", reason="nothing is sealed that is not there already")
                    tasks = job.make_tasks(self.partitions or choose_partitions(get_parallelism(self.spark), job.bytes))
                    return replace(plan, seqno=job.commit(_run_stages(self.spark, tasks)))
            except UpdatesBeyondUpper:
                return None  # Another writer writes an output: a running program reports which one.
            except OperatorFailed:
                return None  # A running program reports the row.
            except OVERTAKEN:
                if not tries_left:
                    raise
                engine.follower.looks.force_next_look()
        raise AssertionError("the last try returns or raises")

    def explain(self, program: Program, engine: Engine) -> Refreshed | None:
        """Return how tasks would compute a program, and why; None if this process would be faster."""
        if self._must_run_here(program):
            return None
        with Ports.of_job(program, engine) as ports, self._make_job(program, ports) as job:
            return self._choose_tasks(job)

    def _must_run_here(self, program: Program) -> bool:
        """Return whether only this process can compute a program."""
        program.check()
        if program.local_functions:
            if self.is_requested:
                raise InvalidUsage(
                    f"{program.name} calls {', '.join(sorted(program.local_functions))}, which are functions of Python "
                    'in this process alone: run it here, with where="auto" or "driver"'
                )
            return True
        return explain_why_not_partial(program.plan.drop_unused()) is not None

    def _make_job(self, program: Program, ports: Ports) -> Job:
        """Return the job that computes a program in stages."""
        return Job(program, ports, self.location, self.storage, get_parallelism(self.spark))

    def _choose_tasks(self, job: Job) -> Refreshed | None:
        """Return why tasks compute a job; None if this process would be faster."""
        if job.corrects:
            return None
        if self.is_requested:
            return Refreshed("tasks", "everything", "that was asked for", bytes=job.bytes)
        if job.begins and job.bytes >= TASKS_BYTES:
            return Refreshed("tasks", "everything", "an output begins", bytes=job.bytes)
        if job.changed_bytes * TOUCHED >= job.bytes and job.bytes >= TASKS_BYTES:
            return Refreshed("tasks", "everything", "a large part of the sources has changed", bytes=job.bytes)
        return None


def choose_partitions(slots: int, size: int) -> int:
    """Return the number of tasks for a stage that reads `size` bytes, by key."""
    most, worth = -(-size // SHARE_BYTES_MIN), -(-size // SHARE_BYTES)
    return min(PARTITIONS_MAX, max(1, worth, min(slots, 4 * worth, most)))


def _run_stages(spark: SparkSession, tasks: Sequence[StageTask]) -> Stored:
    """Run all stages as one job of Spark; return the parts that tasks have stored, by output."""
    ends = [task for task in tasks if task.stage.sinks]
    if not ends:
        return {}
    check_workers(spark)
    try:
        blocks = _collect_rows(spark, tasks, ends)
    except (PySparkException, Py4JJavaError) as error:  # The second, if several stages fail at once.
        if "OperatorFailed" not in str(error):
            raise
        raise OperatorFailed("of a task", None, "a task failed on a row") from error
    parts: dict[str, list[Part]] = {}
    for block in blocks:
        stored = msgspec.json.decode(block, type=StoredParts)
        parts.setdefault(stored.collection, []).extend(stored.parts)
    return parts


@dataclass(frozen=True)
class _StageWork:
    """The function of a stage's tasks; it formats errors for Spark's users."""

    task: StageTask

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with surface_errors():
            yield from self.task.rows(batches)


def _collect_rows(spark: SparkSession, tasks: Sequence[StageTask], ends: Sequence[StageTask]) -> list[bytes]:
    """Chain the stages as DataFrames; return the rows of the last ones."""
    frames: dict[int, DataFrame] = {}
    cached: list[DataFrame] = []
    try:
        for task in tasks:
            frame = _make_stage_frame(
                spark, task, [(giver, frames[giver.stage.number]) for giver in tasks if giver.feeds_stage(task)]
            )
            if sum(task.feeds_stage(reader) for reader in tasks) + (any(task is end for end in ends)) > 1:
                frame = frame.persist()
                cached.append(frame)
            frames[task.stage.number] = frame
        rows = (
            _union_all([frames[end.stage.number] for end in ends]).where(f"exchange = {WAKES}").select("rows").collect()
        )
        return [bytes(row.rows) for row in rows]
    finally:
        for cached_frame in cached:
            cached_frame.unpersist()


def _make_stage_frame(spark: SparkSession, task: StageTask, givers: Sequence[tuple[StageTask, DataFrame]]) -> DataFrame:
    """Return the output of a stage as a DataFrame, from the stages that it reads."""
    if task.slices is not None:
        count = len(task.slices.slices)
        worth = max(1, min(count, -(-task.slices.bytes // SHARE_BYTES_MIN)))
        return spark.range(0, count, 1, worth).mapInArrow(_StageWork(task).__call__, SHAPE)
    if not givers:
        wake = ("-1 AS exchange", "0 AS partition", "CAST(NULL AS BINARY) AS rows")
        return spark.range(0, 1, 1, 1).selectExpr(*wake).mapInArrow(_StageWork(task).__call__, SHAPE)
    numbers = ", ".join(str(exchange.number) for exchange in task.stage.reads)
    inputs = _union_all([frame for _, frame in givers]).where(f"exchange IN ({numbers})")
    return inputs.repartitionById(task.partitions, inputs["partition"]).mapInArrow(_StageWork(task).__call__, SHAPE)


def _union_all(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionAll, frames)
