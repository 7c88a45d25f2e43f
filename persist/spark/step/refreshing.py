"""`persist.spark.refresh`: a view, or a program, brought up to date by the tasks of a Spark session, or embedded.

All ways give the same updates. The embedded one keeps what it needs in memory, and reads only what is new in its next
step; it is the faster one as long as what it reads fits one machine. On Spark each step looks up what touched keys hold
(`touched.py`), or reads everything again, and no task holds more than its share. `choosing.py` says which way is taken.

A step on Spark begins like the embedded one, with the same holds, and at the same time. The tasks of each stage
(`stages.py`) store parts, and one record commits all outputs. If somebody else came between, it is refused as a whole,
what was stored is deleted, and the step is computed again from where the outputs are then.

The stages of a step are one job of Spark: a DataFrame for each stage, of rows as `tasks.SHAPE` says.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from os import PathLike
from typing import Any, Literal, TypeAlias, cast, get_args

import msgspec
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from persist.codecs import TIME_MAX, Part
from persist.dataflow import OperatorFailed, Options, Program, Running, Source
from persist.engine import Engine, OnEngine, engine_of, loaded, snapshot
from persist.errors import AsOfCompacted, HoldMoved, InvalidUsage, UpdatesBeyondUpper, UpperMismatch, ViewRedefined
from persist.spark.options import check_whole, seen_by_all
from persist.spark.step.choosing import Estimate, Way, Work, best, could_pay, estimates, free_memory
from persist.spark.step.planning import Place, StepPlan
from persist.spark.step.stages import why_not
from persist.spark.step.tasks import SHAPE, Blocks, StageTask, StoredParts, asked_here, stored_here
from persist.spark.step.touched import TouchedKeys
from persist.spark.tasks import parallelism
from persist.spark.workers import check_workers
from persist.spark.writing.upserting import PARTITIONS_MAX
from persist.sql import OnView, live_of

Known: TypeAlias = Mapping[int, TouchedKeys]
Job: TypeAlias = Callable[[Sequence[StageTask]], Blocks]

LOCAL_BYTES_MAX = 128 << 20  # Decoded: touched keys that less tells are found on the driver, and otherwise by a job.
KEYS_BYTES_MAX = 64 << 20  # Of touched keys, which all tasks get; if there are more, everything is read.
TRIES = 5  # While others write the outputs.
Where = Literal["auto", "embedded", "driver", "spark", "recompute"]


@dataclass(frozen=True)
class Refreshed:
    """What became of a step; print it.

    Attributes:
        way: who computed it: "embedded" by the engine on the driver, "driver" there by what tasks do, too, which reads
            what touched keys hold; "spark" by tasks that read that, "recompute" by tasks that read all that the sources
            hold.
        reason: why so.
        stages: of the plan, on Spark.
        bytes: what had to be read, decoded, by an estimate.
        seqno: of the commit; None if there was none, or it ran embedded.
        estimates: what the ways were about to take.
    """

    way: Way
    reason: str
    stages: int
    bytes: int
    seqno: int | None = None
    estimates: tuple[Estimate, ...] = ()

    def __str__(self) -> str:
        how = {
            "embedded": "embedded, on the driver",
            "driver": f"on the driver in {self.stages} stages, which read what touched keys hold",
            "spark": f"by the tasks of Spark in {self.stages} stages, which read what touched keys hold",
            "recompute": f"by the tasks of Spark in {self.stages} stages, which read everything",
        }[self.way]
        return f"{how}: {self.reason}; about {self.bytes:,} bytes to read"


def refresh(
    view: OnView,
    spark: SparkSession | None = None,
    *,
    where: Where = "auto",
    partitions: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Refreshed:
    """Bring a view, and the views that it reads, up to what their inputs have sealed; see `View.refresh`.

    Args:
        view: a `persist.View` of a location that all workers can reach.
        spark: the session; None for the active one.
        where: "spark" by tasks that read what touched keys hold, "driver" by the same on the driver, without a job,
            "recompute" by tasks that read all that the inputs hold, "embedded" by the engine on the driver; "auto"
            chooses by what each is about to take. What has no form for Spark runs embedded whatever is asked for, and
            what needs everything reads it; the result says so.
        partitions: how many tasks share a stage out; None for as many as what is read is worth.
        storage_options: as those that the client was opened with; they travel to the tasks.

    Raises:
        what `View.refresh` raises. A failure that tasks find is looked into by an embedded refresh.
    """
    return _of_view(view, spark, where, partitions, storage_options).run()


def explain_refresh(view: OnView, spark: SparkSession | None = None, *, where: Where = "auto") -> str:
    """Return how `refresh` would compute a view now and why, and the stages that its plan has on Spark."""
    return _of_view(view, spark, where, None, None).told()


def _of_view(
    view: OnView, spark: SparkSession | None, where: Where, partitions: int | None, storage: Mapping[str, Any] | None
) -> "_Stepping":
    live = live_of(view)
    options = Options.of(live.options)
    stepping = _Stepping(spark, live.engine, live.program, live.refresh, options, where, partitions, storage)
    return replace(stepping, is_open=lambda: live.is_open)


def run_program(
    spark: SparkSession,
    client: OnEngine | Engine,
    program: Program,
    *,
    until: int | None = None,
    timeout_s: float | None = None,
    where: Where = "auto",
    partitions: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    memory_budget: int | None = None,
    spill_folder: str | PathLike[str] | None = None,
) -> Refreshed:
    """Bring the outputs of a program up to what its sources have sealed by the tasks of a session, in one commit.

    What it writes is what `program.open(client).run()` writes. A program without a form for Spark runs embedded.
    Arguments are as of `refresh`, errors as of `Running.step`.

    Args:
        client: of a location that the tasks can reach.
        memory_budget, spill_folder: of an embedded run; see `persist.dataflow.Options`. None for its defaults.
        until: a time that is to be done: the sources are waited for. All that is sealed is done, whatever it is.
        timeout_s: how long to wait at most; None waits without limit.
    """
    check_whole("until", until, 0, TIME_MAX)
    engine = engine_of("run_program", client)
    limits = {"memory_budget": memory_budget, "spill_folder": spill_folder}
    given = {name: value for name, value in limits.items() if value is not None}
    options = Options.of(given)

    def embedded() -> None:
        with program.open(engine, **given) as running:
            running.run()

    stepping = _Stepping(spark, engine, lambda: program, embedded, options, where, partitions, storage_options)
    if until is not None:
        _wait_for(engine, program, until, timeout_s)
    return stepping.run()


def _wait_for(engine: Engine, program: Program, until: int, timeout_s: float | None) -> None:
    """Wait until all sources are sealed beyond a time."""
    for node in program.plan.without_unused().nodes.values():
        if isinstance(node.operator, Source):
            with suppress(AsOfCompacted):  # Then it is sealed further.
                snapshot(loaded(engine, node.operator.collection), until, timeout_s=timeout_s).close()


@dataclass(frozen=True)
class _Stepping:
    """One request for a step.

    Attributes:
        session: None for the active one.
        embedded: does the step by the embedded engine.
        is_open: whether that has its state already.
    """

    session: SparkSession | None
    engine: Engine
    program: Callable[[], Program]
    embedded: Callable[[], object]
    options: Options
    where: Where
    partitions: int | None
    storage: Mapping[str, Any] | None
    is_open: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        if self.where not in get_args(Where):
            raise InvalidUsage(
                f"where={self.where!r} is not a place to compute: use "
                '"auto", "embedded", "driver", "spark" or "recompute"'
            )
        check_whole("partitions", self.partitions, 1, PARTITIONS_MAX)
        if not hasattr(self.spark, "range"):
            raise InvalidUsage("there is no active Spark session: give one with spark=")

    @property
    def spark(self) -> SparkSession:
        """The session that has the tasks."""
        return cast(SparkSession, self.session or SparkSession.getActiveSession())

    def run(self) -> Refreshed:
        """Do it: one commit of all outputs on Spark, as many as the embedded engine makes otherwise."""
        self.engine.writer("refresh")
        for left in reversed(range(TRIES)):
            try:
                chosen, is_done = self._tried()
            except (UpperMismatch, UpdatesBeyondUpper, HoldMoved, ViewRedefined):
                if not left:
                    raise
                continue
            if not is_done:
                self.embedded()
            return chosen
        raise AssertionError("the last try returns or raises")

    def _tried(self) -> tuple[Refreshed, bool]:
        """Return how the step is computed, and whether it is done: not, if it is to run embedded."""
        program = self.program()
        refused = self._refused(program)
        if refused is not None:
            return refused, False
        with program.open(self.engine) as running:
            for stands in (True, False):
                with self._planned(program, running, stands=stands) as step:
                    try:
                        chosen, known = self._chosen(step, self._by_job)
                        if chosen.way == "embedded":
                            return chosen, False
                        return replace(chosen, seqno=self._stepped(step, chosen, known)), True
                    except (PySparkException, Py4JJavaError) as error:  # The second, if several stages fail at once.
                        if "OperatorFailed" not in str(error):
                            raise
                    except OperatorFailed:  # In what was looked at on the driver.
                        pass
                if not step.stands:  # Otherwise it may fail only because records stood for groups.
                    break
        # The embedded engine says which row it is, and goes on where that is over by the latest time.
        return Refreshed("embedded", "the query fails on a row, which tasks found", len(step.stages), step.bytes), False

    def _planned(self, program: Program, running: Running, *, stands: bool = True) -> StepPlan:
        return StepPlan(program, running, self._place(), stands=stands and self.where != "recompute")

    def _stepped(self, step: StepPlan, chosen: Refreshed, known: Known | None) -> int | None:
        if not step.is_due:
            return None
        if step.is_seal_only:
            return step.commit({})
        if chosen.way == "driver":
            return step.commit(stored_here(step.tasks(1, known)))
        check_workers(self.spark)
        return step.commit(stored_by(self.spark, step.tasks(self._shares(chosen.bytes), known)))

    def told(self) -> str:
        """Return what would be done, as text; nothing is written but the holds of a program that begins."""
        program = self.program()
        if (refused := self._refused(program)) is not None:
            return str(refused)
        with program.open(self.engine) as running, self._planned(program, running) as step:
            chosen, _ = self._chosen(step, None)
            return "\n".join([str(chosen), *map(str, chosen.estimates), *step.lines()])

    def _refused(self, program: Program) -> Refreshed | None:
        """Return why a program does not run on Spark whatever it reads; None if it may."""
        program.check()
        if self.where == "embedded":
            return Refreshed("embedded", 'where="embedded" was asked for', 0, 0)
        reason = why_not(program.plan.without_unused())
        if reason is not None:
            return Refreshed("embedded", f"the plan has no form for Spark: {reason}", 0, 0)
        if self.where == "auto" and self.engine.url.startswith("memory:"):
            return Refreshed("embedded", "other processes cannot reach a location in memory", 0, 0)
        return None

    def _chosen(self, step: StepPlan, job: Job | None) -> tuple[Refreshed, Known | None]:
        """Return who computes the step, and the touched keys if tasks look them up.

        Args:
            job: finds keys where that takes one; None to do without, and take for all what it would find.
        """
        everything = step.why_everything()
        needed = None if everything else step.changed_bytes  # At least.
        jobs = 1 + sum(level > 1 or step.changed_bytes > LOCAL_BYTES_MAX for level, _ in step.levels())
        slots, is_open = parallelism(self.spark), self.is_open()
        budget = self.options.memory_budget
        work = Work(step.bytes, step.changed_bytes, needed, jobs, slots, is_open, free_memory(), budget)
        known = None
        if not everything and (self.where in ("driver", "spark") or (self.where == "auto" and could_pay(work))):
            known, found_by = self._touched(step, job)
            work = replace(work, needed_bytes=None if known is None else step.needed_bytes(known), jobs=1 + found_by)
        costs = estimates(work)
        if self.where == "auto":
            way = best(costs).way
            reason = "that is about to take least"
        elif self.where in ("driver", "spark") and (everything or known is None):
            way = "recompute"
            reason = f'where="{self.where}" was asked for, and {everything or "too many keys are touched"}'
        else:
            way, reason = self.where, f'where="{self.where}" was asked for'
        size = (work.needed_bytes or 0) if way == "driver" else {cost.way: cost.bytes for cost in costs}[way]
        chosen = Refreshed(way, reason, len(step.stages), size, estimates=costs)
        return chosen, known if way in ("driver", "spark") else None

    def _place(self) -> Place:
        return Place(seen_by_all(self.engine.url), dict(self.storage or {}), parallelism(self.spark))

    def _touched(self, step: StepPlan, job: Job | None) -> tuple[Known | None, int]:
        """Return the touched keys of all stages of which they are of use, None if they are too many; and by how many
        jobs they are found."""
        known = step.untouched()
        jobs = 0
        for level, wanted in step.levels():
            tasks, size = step.wave(wanted, known, self._shares(step.changed_bytes))
            if level > 1 and step.told_bytes(wanted) <= size:
                break  # To read all of that costs less; what lies behind is read, too.
            if not tasks:
                continue
            if size <= LOCAL_BYTES_MAX:
                blocks = asked_here(tasks)
            elif job is None:
                return known, len(step.levels()) - level + 1
            else:
                blocks, jobs = job(tasks), jobs + 1
            known |= step.touched(tasks, blocks)
            if sum(keys.nbytes for keys in known.values()) > KEYS_BYTES_MAX:
                return None, jobs
        return known, jobs

    def _by_job(self, tasks: Sequence[StageTask]) -> Blocks:
        check_workers(self.spark)
        return asked_of(self.spark, tasks)

    def _shares(self, size: int) -> int:
        """Return how many tasks share a keyed stage out."""
        return self.partitions or shares(self.spark, size)


SHARE_BYTES = 64 << 20  # Decoded, of what a step reads, for each task of a keyed stage.
SHARE_BYTES_MIN = 4 << 20  # Less than this is not worth a task, which takes 30 ms of CPU time to begin.


def stored_by(spark: SparkSession, tasks: Sequence[StageTask]) -> dict[str, Sequence[Part]]:
    """Run all stages; return what their tasks have stored, by output."""
    rows = _rows(spark, tasks, [task for task in tasks if task.stage.sinks], "exchange = -1")
    parts: dict[str, list[Part]] = {}
    for _, block in rows:
        stored = msgspec.json.decode(block, type=StoredParts)
        parts.setdefault(stored.collection, []).extend(stored.parts)
    return dict(parts)


def asked_of(spark: SparkSession, tasks: Sequence[StageTask]) -> Blocks:
    """Run stages; return the blocks that are asked for, each with its exchange."""
    asked = sorted({number for task in tasks for number in task.asked})
    ends = [task for task in tasks if any(given.number in asked for given in task.stage.gives)]
    return _rows(spark, tasks, ends, f"exchange IN ({', '.join(map(str, asked))})")


def shares(spark: SparkSession, size: int) -> int:
    """Return how many tasks share a keyed stage out, if a step reads so many bytes."""
    most, worth = -(-size // SHARE_BYTES_MIN), -(-size // SHARE_BYTES)
    return min(PARTITIONS_MAX, max(1, worth, min(parallelism(spark), 4 * worth, most)))


def _rows(spark: SparkSession, tasks: Sequence[StageTask], ends: Sequence[StageTask], which: str) -> Blocks:
    """Run stages as one job; return of the rows that some of them give those that a condition is true for."""
    if not ends:
        return []
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
        return spark.range(0, count, 1, worth).mapInArrow(task.__call__, SHAPE)
    if not givers:
        wake = ("-1 AS exchange", "0 AS partition", "CAST(NULL AS BINARY) AS rows")
        return spark.range(0, 1, 1, 1).selectExpr(*wake).mapInArrow(task.__call__, SHAPE)
    numbers = ", ".join(str(exchange.number) for exchange in task.stage.reads)
    given = _united([frame for _, frame in givers]).where(f"exchange IN ({numbers})")
    return given.repartitionById(task.partitions, given["partition"]).mapInArrow(task.__call__, SHAPE)


def _united(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionAll, frames)
