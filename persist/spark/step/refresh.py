"""`persist.spark.refresh`: a view, or a program, brought up to date by the tasks of a Spark session, or embedded.

Both ways give the same updates. The embedded one keeps what it needs in memory, and reads only what is new in its next
step; it is the faster one as long as what it reads fits one machine. On Spark each step reads what it needs again, and
no task holds more than its share.

A step on Spark begins like the embedded one, with the same holds, and at the same time. The tasks of each stage
(`stages.py`) store parts, and one record commits all outputs. If somebody else came between, it is refused as a whole,
what was stored is deleted, and the step is computed again from where the outputs are then.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Literal, get_args

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from persist.client import Client
from persist.codecs import TIME_MAX, Part
from persist.dataflow.plan import Source
from persist.dataflow.program import Program
from persist.errors import AsOfCompacted, HoldMoved, InvalidUsage, UpdatesBeyondUpper, UpperMismatch, ViewRedefined
from persist.spark.options.parsing import seen_by_all
from persist.spark.read.slicing import parallelism
from persist.spark.step.planning import Place, StepPlan
from persist.spark.step.stages import why_not
from persist.spark.step.tasks import SHAPE, StageTask, Uploaded
from persist.spark.workers import check_workers

EMBEDDED_BYTES_MAX = 1 << 30  # Decoded, of what a step reads: beyond it, the tasks of Spark do it.
SHARE_BYTES = 64 << 20  # Decoded, of what a step reads, for each task of a keyed stage.
PARTITIONS_MAX = 100_000
TRIES = 5  # While others write the outputs.
Where = Literal["auto", "embedded", "spark"]


@dataclass(frozen=True)
class Refreshed:
    """What became of a step; print it.

    Attributes:
        way: by whom it was computed.
        reason: why so.
        stages: of the plan, on Spark.
        bytes: what had to be read, decoded, by an estimate.
        seqno: of the commit; None if there was none, or it ran embedded.
    """

    way: Literal["embedded", "spark"]
    reason: str
    stages: int
    bytes: int
    seqno: int | None = None

    def __str__(self) -> str:
        how = f"by the tasks of Spark in {self.stages} stages" if self.way == "spark" else "embedded, on the driver"
        return f"{how}: {self.reason}; about {self.bytes:,} bytes to read"


def refresh(
    view: Any,
    spark: SparkSession | None = None,
    *,
    where: Where = "auto",
    partitions: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Refreshed:
    """Bring a view, and the views that it reads, up to what their inputs have sealed; see `View.refresh`.

    Args:
        view: a `persist.sql.View` of a location that all workers can reach.
        spark: the session; None for the active one.
        where: "spark" by tasks, "embedded" on the driver; "auto" chooses by what must be read. What has no form for
            Spark runs embedded whatever is asked for; the result says so.
        partitions: how many tasks share a stage out; None for as many as what is read is worth.
        storage_options: as those that the client was opened with; they travel to the tasks.

    Raises:
        what `View.refresh` raises. A failure that tasks find is looked into by an embedded refresh.
    """
    if not callable(getattr(view, "program", None)):
        raise InvalidUsage(f"{view!r:.200} is no view: give what client.view(name) returns")
    return _Stepping(spark, view.client, view.program, view.refresh, where, partitions, storage_options).run()


def explain_refresh(view: Any, spark: SparkSession | None = None, *, where: Where = "auto") -> str:
    """Return how `refresh` would compute a view now and why, and the stages that its plan has on Spark."""
    if not callable(getattr(view, "program", None)):
        raise InvalidUsage(f"{view!r:.200} is no view: give what client.view(name) returns")
    return _Stepping(spark, view.client, view.program, view.refresh, where, None, None).told()


def run_program(
    spark: SparkSession,
    client: Client,
    program: Program,
    *,
    until: int | None = None,
    timeout_s: float | None = None,
    where: Where = "auto",
    partitions: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Refreshed:
    """Do what `Program.run_on` says; arguments as of `refresh`, errors as of `Running.step`.

    Args:
        until: a time that is to be done: the sources are waited for. All that is sealed is done, whatever it is.
        timeout_s: how long to wait at most; None waits without limit.
    """
    if until is not None and (isinstance(until, bool) or not isinstance(until, int) or not 0 <= until <= TIME_MAX):
        raise InvalidUsage(f"until={until!r} is not a time from 0 to {TIME_MAX}")

    def embedded() -> None:
        with program.open(client) as running:
            running.run()

    stepping = _Stepping(spark, client, lambda: program, embedded, where, partitions, storage_options)
    if until is not None:
        _wait_for(client, program, until, timeout_s)
    return stepping.run()


def _wait_for(client: Client, program: Program, until: int, timeout_s: float | None) -> None:
    """Wait until all sources are sealed beyond a time."""
    for node in program.plan.without_unused().nodes.values():
        if isinstance(node.operator, Source):
            with suppress(AsOfCompacted):  # Then it is sealed further.
                client.load(node.operator.collection).snapshot(until, timeout_s=timeout_s).close()


class _Stepping:
    """One request for a step."""

    def __init__(
        self,
        spark: SparkSession | None,
        client: Client,
        program: Callable[[], Program],
        embedded: Callable[[], object],
        where: Where,
        partitions: int | None,
        storage: Mapping[str, Any] | None,
    ) -> None:
        if where not in get_args(Where):
            raise InvalidUsage(f'where={where!r} is not a place to compute: use "auto", "embedded" or "spark"')
        if partitions is not None and (type(partitions) is not int or not 1 <= partitions <= PARTITIONS_MAX):
            raise InvalidUsage(f"partitions={partitions!r} is not a whole number from 1 to {PARTITIONS_MAX}")
        spark = SparkSession.getActiveSession() if spark is None else spark
        if spark is None or not hasattr(spark, "range"):
            raise InvalidUsage("there is no active Spark session: give one with spark=")
        self._spark, self._client = spark, client
        self._program, self._embedded = program, embedded
        self._where, self._partitions, self._storage = where, partitions, dict(storage or {})

    def run(self) -> Refreshed:
        """Do it: one commit of all outputs on Spark, as many as the embedded engine makes otherwise."""
        self._client.engine.writer("refresh")
        for left in reversed(range(TRIES)):
            try:
                chosen, is_done = self._tried()
            except (UpperMismatch, UpdatesBeyondUpper, HoldMoved, ViewRedefined):
                if not left:
                    raise
                continue
            if not is_done:
                self._embedded()
            return chosen
        raise AssertionError("the last try returns or raises")

    def _tried(self) -> tuple[Refreshed, bool]:
        """Return how the step is computed, and whether it is done: not, if it is to run embedded."""
        program = self._program()
        refused = self._refused(program)
        if refused is not None:
            return refused, False
        with program.open(self._client) as running, StepPlan(program, running, self._place()) as step:
            chosen = self._chosen(step)
            if chosen.way == "embedded":
                return chosen, False
            try:
                return replace(chosen, seqno=self._stepped(step)), True
            except PySparkException as error:
                if "OperatorFailed" not in str(error):
                    raise
        # The embedded engine says which row it is, and goes on where that is over by the latest time.
        return replace(chosen, way="embedded", reason="the query fails on a row, which tasks found"), False

    def _stepped(self, step: StepPlan) -> int | None:
        if not step.is_due:
            return None
        if step.is_seal_only:
            return step.commit({})
        check_workers(self._spark)
        return step.commit(self._job(step))

    def told(self) -> str:
        """Return what would be done, as text; nothing is written but the holds of a program that begins."""
        program = self._program()
        if (refused := self._refused(program)) is not None:
            return str(refused)
        with program.open(self._client) as running, StepPlan(program, running, self._place()) as step:
            return "\n".join([str(self._chosen(step)), *step.lines()])

    def _refused(self, program: Program) -> Refreshed | None:
        """Return why a program does not run on Spark whatever it reads; None if it may."""
        program.check()
        if self._where == "embedded":
            return Refreshed("embedded", 'where="embedded" was asked for', 0, 0)
        reason = why_not(program.plan.without_unused())
        if reason is not None:
            return Refreshed("embedded", f"the plan has no form for Spark: {reason}", 0, 0)
        if self._where == "auto" and self._client.url.startswith("memory:"):
            return Refreshed("embedded", "other processes cannot reach a location in memory", 0, 0)
        return None

    def _chosen(self, step: StepPlan) -> Refreshed:
        """Return who computes the step."""
        most = f"{EMBEDDED_BYTES_MAX:,} bytes"
        if self._where == "spark":
            way, reason = "spark", 'where="spark" was asked for'
        elif step.bytes <= EMBEDDED_BYTES_MAX:
            way, reason = "embedded", f"one machine is faster with up to {most}"
        else:
            way, reason = "spark", f"it is more than {most}"
        return Refreshed("spark" if way == "spark" else "embedded", reason, len(step.stages), step.bytes)

    def _place(self) -> Place:
        return Place(seen_by_all(self._client.url), self._storage, parallelism(self._spark))

    def _job(self, step: StepPlan) -> dict[str, Sequence[Part]]:
        """Run the stages as one job; return what its tasks have stored, by output."""
        tasks = step.tasks(self._shares(step.bytes))
        frames: dict[int, DataFrame] = {}
        cached: list[DataFrame] = []
        try:
            for task in tasks:
                stage = task.stage
                frame = self._frame(task, [(each, frames[each.stage.number]) for each in tasks if each.gives_to(task)])
                if sum(task.gives_to(each) for each in tasks) + bool(stage.sinks) > 1:
                    frame = frame.persist()
                    cached.append(frame)
                frames[stage.number] = frame
            ends = [frames[each.stage.number] for each in tasks if each.stage.sinks]
            rows = _united(ends).where("exchange = -1").select("rows").collect()
        finally:
            for each in cached:
                each.unpersist()
        found: dict[str, list[Part]] = {}
        for row in rows:
            stored = msgspec.json.decode(row.rows, type=Uploaded)
            found.setdefault(stored.collection, []).extend(stored.parts)
        return dict(found)

    def _frame(self, task: StageTask, givers: Sequence[tuple[StageTask, DataFrame]]) -> DataFrame:
        """Return what the tasks of a stage give."""
        if task.slices is not None:
            count = len(task.slices.slices)
            return self._spark.range(0, count, 1, max(1, count)).mapInArrow(task.__call__, SHAPE)
        if not givers:
            wake = ("-1 AS exchange", "0 AS partition", "CAST(NULL AS BINARY) AS rows")
            return self._spark.range(0, 1, 1, 1).selectExpr(*wake).mapInArrow(task.__call__, SHAPE)
        numbers = ", ".join(str(each.number) for each in task.stage.reads)
        given = _united([frame for _, frame in givers]).where(f"exchange IN ({numbers})")
        return given.repartitionById(task.partitions, given["partition"]).mapInArrow(task.__call__, SHAPE)

    def _shares(self, size: int) -> int:
        """Return how many tasks share a keyed stage out."""
        worth = max(1, -(-size // SHARE_BYTES))
        return self._partitions or min(PARTITIONS_MAX, max(worth, min(parallelism(self._spark), 4 * worth)))


def _united(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionAll, frames)
