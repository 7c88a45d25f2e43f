"""The stages of a step, task by task in this process, and blocks in any order: what Spark does, without Spark."""

import random
from collections.abc import Sequence

import msgspec
import pyarrow as pa

from persist.codecs import Part
from persist.spark.step.planning import Place, StepPlan
from persist.spark.step.tasks import StageTask, Uploaded, block_row
from persist.sql import View


def stepped(view: View, *, partitions: int, seed: int = 0) -> None:
    """Do one step of a view by tasks."""
    program = view.program()
    place = Place(view.client.url, {}, parallel=3)
    with program.open(view.client) as running, StepPlan(program, running, place) as step:
        if step.is_due:
            step.commit({} if step.is_seal_only else emulated(step.tasks(partitions), random.Random(seed)))


def emulated(tasks: Sequence[StageTask], chance: random.Random) -> dict[str, list[Part]]:
    """Return what the tasks store, by output."""
    blocks: dict[tuple[int, int], list[pa.RecordBatch]] = {}
    stored: dict[str, list[Part]] = {}
    for task in tasks:
        for given in _shares(task, blocks, chance):
            for row in task(iter(given)):
                exchange, partition, rows = (column[0].as_py() for column in row.columns)
                if exchange == -1:
                    one = msgspec.json.decode(rows, type=Uploaded)
                    stored.setdefault(one.collection, []).extend(one.parts)
                else:
                    blocks.setdefault((exchange, partition), []).append(row)
    return stored


def _shares(
    task: StageTask, blocks: dict[tuple[int, int], list[pa.RecordBatch]], chance: random.Random
) -> list[list[pa.RecordBatch]]:
    """Return what each task of a stage is given."""
    if task.slices is not None:
        return [[pa.record_batch({"id": [number]})] for number in range(len(task.slices.slices))]
    if not task.stage.reads:
        return [[block_row(-1, 0, None)]]
    found = []
    for partition in range(task.partitions):
        rows = [row for each in task.stage.reads for row in blocks.get((each.number, partition), ())]
        chance.shuffle(rows)
        if rows:
            found.append(rows)
    return found
