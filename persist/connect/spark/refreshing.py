"""`persist.spark.refresh`: a view, or a program, brought up to date by the tasks of a Spark session, or here.

All ways give the same updates. A handle that has its state reads only what is new; otherwise a step looks up what
touched keys hold, on the driver or by tasks, or tasks read everything again, and no task holds more than its share.
What a step is, and which way is taken, is of `persist.dataflow`; here is how tasks are run.

The stages of a step are one job of Spark: a DataFrame for each stage, of rows as `SHAPE` says.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from os import PathLike
from typing import Any, Literal, TypeAlias, cast, get_args

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from persist.codecs.part.part import Part
from persist.codecs.types.schema import TIME_MAX
from persist.compute.dataflow.plan.plan import Source
from persist.compute.dataflow.program import Program
from persist.compute.dataflow.running.running import Options
from persist.compute.dataflow.step.stepping import Elsewhere, Refreshed, Stepping, Where
from persist.compute.dataflow.step.tasks import SHAPE, Asked, StageTask, Stored, StoredParts
from persist.compute.sql import OnView, live_of
from persist.connect.spark.options import check_whole, seen_by_all
from persist.connect.spark.workers import check_workers, parallelism, surfaced_errors
from persist.connect.spark.write_functions.upserting import PARTITIONS_MAX
from persist.core.errors import AsOfCompacted, InvalidUsage, OperatorFailed
from persist.engine.collection.reads import snapshot
from persist.engine.location.engine import Engine
from persist.engine.location.opening import OnEngine, engine_of, loaded

Place = Literal["auto", "driver", "tasks"]
Blocks: TypeAlias = list[tuple[int, bytes]]  # Exchanges, and tables in Arrow's form for streams.
PLACES: dict[Place, Where] = {"auto": "auto", "driver": "here", "tasks": "tasks"}
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
    """Bring a view, and the views that it reads, up to what their inputs have sealed; see `View.refresh`.

    Args:
        view: a `persist.View` of a location that all workers can reach.
        spark: the session; None for the active one.
        where: "tasks" by tasks, "driver" without a job, which is what `View.refresh` does; "auto" chooses by what each
            is about to take. What no step can do is done by this handle, which keeps its state; the result says so.
        partitions: how many tasks share a stage out; None for as many as what is read is worth.
        storage_options: as those that the client was opened with; they travel to the tasks.

    Raises:
        what `View.refresh` raises. A failure that tasks find is looked into here.
    """
    live = live_of(view)
    return live.refresh(
        elsewhere=_elsewhere(live.engine, spark, where, partitions, storage_options), where=PLACES[where]
    )


def explain_refresh(view: OnView, spark: SparkSession | None = None, *, where: Place = "auto") -> str:
    """Return how `refresh` would compute a view now and why, what it reads, and the stages that its plan has."""
    live = live_of(view)
    return live.explain_refresh(elsewhere=_elsewhere(live.engine, spark, where, None, None), where=PLACES[where])


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
    """Bring the outputs of a program up to what its sources have sealed by the tasks of a session, in one commit.

    What it writes is what `program.open(client).run()` writes, and that is what is done with a program that cannot be
    stepped. Arguments are as of `refresh`, errors as of `Running.step`.

    Args:
        client: of a location that the tasks can reach.
        memory_budget, spill_folder: of a program that runs; see `persist.dataflow.Options`. None for its defaults.
        until: a time that is to be done: the sources are waited for. All that is sealed is done, whatever it is.
        timeout_s: how long to wait at most; None waits without limit.
    """
    check_whole("until", until, 0, TIME_MAX)
    engine = engine_of("run_program", client)
    limits = {"memory_budget": memory_budget, "spill_folder": spill_folder}
    given = {name: value for name, value in limits.items() if value is not None}
    budget = Options.of(given).memory_budget
    elsewhere = _elsewhere(engine, spark, where, partitions, storage_options)
    if until is not None:
        _wait_for(engine, program, until, timeout_s)
    engine.writer("refresh")
    refreshed = Stepping(engine, lambda: program, budget, elsewhere, PLACES[where]).run()
    if refreshed.way == "state":
        with program.open(engine, **given) as running:
            running.run()
    return refreshed


def _wait_for(engine: Engine, program: Program, until: int, timeout_s: float | None) -> None:
    """Wait until all sources are sealed beyond a time."""
    for node in program.plan.without_unused().nodes.values():
        if isinstance(node.operator, Source):
            with suppress(AsOfCompacted):  # Then it is sealed further.
                snapshot(loaded(engine, node.operator.collection), until, timeout_s=timeout_s).close()


def _elsewhere(
    engine: Engine,
    session: SparkSession | None,
    where: Place,
    partitions: int | None,
    storage: Mapping[str, Any] | None,
) -> Elsewhere | None:
    """Return where tasks run; None where they cannot reach the location, and are not asked for."""
    if where not in get_args(Place):
        raise InvalidUsage(f'where={where!r} is not a place to compute: use "auto", "driver" or "tasks"')
    check_whole("partitions", partitions, 1, PARTITIONS_MAX)
    spark = cast(SparkSession, session or SparkSession.getActiveSession())
    if not hasattr(spark, "range"):
        raise InvalidUsage("there is no active Spark session: give one with spark=")
    if where != "tasks" and engine.url.startswith("memory:"):
        return None
    slots = parallelism(spark)
    return Elsewhere(
        _Jobs(spark),
        seen_by_all(engine.url),
        dict(storage or {}),
        slots,
        lambda size: partitions or shares(slots, size),
    )


def shares(slots: int, size: int) -> int:
    """Return how many tasks share a keyed stage out, if a step reads so many bytes and so many tasks run at a time."""
    most, worth = -(-size // SHARE_BYTES_MIN), -(-size // SHARE_BYTES)
    return min(PARTITIONS_MAX, max(1, worth, min(slots, 4 * worth, most)))


@dataclass(frozen=True)
class _Jobs:
    """Has the stages of a step run by the tasks of a session, as one job."""

    spark: SparkSession

    def asked(self, tasks: Sequence[StageTask]) -> Asked:
        asked = sorted({number for task in tasks for number in task.asked})
        ends = [task for task in tasks if any(given.number in asked for given in task.stage.gives)]
        blocks = self._rows(tasks, ends, f"exchange IN ({', '.join(map(str, asked))})")
        return [(number, pa.ipc.open_stream(block).read_all()) for number, block in blocks]

    def stored(self, tasks: Sequence[StageTask]) -> Stored:
        parts: dict[str, list[Part]] = {}
        for _, block in self._rows(tasks, [task for task in tasks if task.stage.sinks], "exchange = -1"):
            stored = msgspec.json.decode(block, type=StoredParts)
            parts.setdefault(stored.collection, []).extend(stored.parts)
        return dict(parts)

    def _rows(self, tasks: Sequence[StageTask], ends: Sequence[StageTask], which: str) -> Blocks:
        """Run stages as one job; return of the rows that some of them give those that a condition is true for."""
        if not ends:
            return []
        check_workers(self.spark)
        try:
            return _collected(self.spark, tasks, ends, which)
        except (PySparkException, Py4JJavaError) as error:  # The second, if several stages fail at once.
            if "OperatorFailed" not in str(error):
                raise
            raise OperatorFailed("of a task", None, "a task failed on a row") from error


@dataclass(frozen=True)
class _Surfaced:
    """What a task does, with errors as Spark's user is to see them."""

    task: StageTask

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with surfaced_errors():
            yield from self.task.rows(batches)


def _collected(spark: SparkSession, tasks: Sequence[StageTask], ends: Sequence[StageTask], which: str) -> Blocks:
    frames: dict[int, DataFrame] = {}
    cached: list[DataFrame] = []
    try:
        for task in tasks:
            frame = _frame(
                spark, task, [(giver, frames[giver.stage.number]) for giver in tasks if giver.gives_to(task)]
            )
            if sum(task.gives_to(other) for other in tasks) + (any(task is other for other in ends)) > 1:
                frame = frame.persist()
                cached.append(frame)
            frames[task.stage.number] = frame
        rows = _united([frames[end.stage.number] for end in ends]).where(which).select("exchange", "rows").collect()
        return [(row.exchange, bytes(row.rows)) for row in rows]
    finally:
        for cached_frame in cached:
            cached_frame.unpersist()


def _frame(spark: SparkSession, task: StageTask, givers: Sequence[tuple[StageTask, DataFrame]]) -> DataFrame:
    """Return what the tasks of a stage give."""
    if task.slices is not None:
        count = len(task.slices.slices)
        worth = max(1, min(count, -(-task.slices.bytes // SHARE_BYTES_MIN)))
        return spark.range(0, count, 1, worth).mapInArrow(_Surfaced(task).__call__, SHAPE)
    if not givers:
        wake = ("-1 AS exchange", "0 AS partition", "CAST(NULL AS BINARY) AS rows")
        return spark.range(0, 1, 1, 1).selectExpr(*wake).mapInArrow(_Surfaced(task).__call__, SHAPE)
    numbers = ", ".join(str(exchange.number) for exchange in task.stage.reads)
    given = _united([frame for _, frame in givers]).where(f"exchange IN ({numbers})")
    return given.repartitionById(task.partitions, given["partition"]).mapInArrow(_Surfaced(task).__call__, SHAPE)


def _united(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionAll, frames)
