"""The stages of a step as one job of Spark: a DataFrame for each stage, of rows as `tasks.SHAPE` says."""

from collections.abc import Sequence
from functools import reduce
from typing import TypeAlias

import msgspec
from pyspark.sql import DataFrame, SparkSession

from persist.codecs import Part
from persist.spark.read.slicing import parallelism
from persist.spark.step.tasks import SHAPE, StageTask, Uploaded

SHARE_BYTES = 64 << 20  # Decoded, of what a step reads, for each task of a keyed stage.
SHARE_BYTES_MIN = 4 << 20  # Less than this is not worth a task, which takes 30 ms of CPU time to begin.
PARTITIONS_MAX = 100_000
Blocks: TypeAlias = list[tuple[int, bytes]]


def stored_by(spark: SparkSession, tasks: Sequence[StageTask]) -> dict[str, Sequence[Part]]:
    """Run all stages; return what their tasks have stored, by output."""
    rows = _rows(spark, tasks, [each for each in tasks if each.stage.sinks], "exchange = -1")
    found: dict[str, list[Part]] = {}
    for _, block in rows:
        stored = msgspec.json.decode(block, type=Uploaded)
        found.setdefault(stored.collection, []).extend(stored.parts)
    return dict(found)


def asked_of(spark: SparkSession, tasks: Sequence[StageTask]) -> Blocks:
    """Run stages; return the blocks that are asked for, each with its exchange."""
    asked = sorted({number for each in tasks for number in each.asked})
    ends = [each for each in tasks if any(given.number in asked for given in each.stage.gives)]
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
            frame = _frame(spark, task, [(each, frames[each.stage.number]) for each in tasks if each.gives_to(task)])
            if sum(task.gives_to(each) for each in tasks) + (any(task is each for each in ends)) > 1:
                frame = frame.persist()
                cached.append(frame)
            frames[task.stage.number] = frame
        found = _united([frames[each.stage.number] for each in ends]).where(which).select("exchange", "rows").collect()
        return [(row.exchange, bytes(row.rows)) for row in found]
    finally:
        for each in cached:
            each.unpersist()


def _frame(spark: SparkSession, task: StageTask, givers: Sequence[tuple[StageTask, DataFrame]]) -> DataFrame:
    """Return what the tasks of a stage give."""
    if task.slices is not None:
        count = len(task.slices.slices)
        worth = max(1, min(count, -(-task.slices.bytes // SHARE_BYTES_MIN)))
        return spark.range(0, count, 1, worth).mapInArrow(task.__call__, SHAPE)
    if not givers:
        wake = ("-1 AS exchange", "0 AS partition", "CAST(NULL AS BINARY) AS rows")
        return spark.range(0, 1, 1, 1).selectExpr(*wake).mapInArrow(task.__call__, SHAPE)
    numbers = ", ".join(str(each.number) for each in task.stage.reads)
    given = _united([frame for _, frame in givers]).where(f"exchange IN ({numbers})")
    return given.repartitionById(task.partitions, given["partition"]).mapInArrow(task.__call__, SHAPE)


def _united(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionAll, frames)
