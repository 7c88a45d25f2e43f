"""The tasks of a cluster, one after the other in this process, and blocks in any order: what Spark does, without it."""

import random
from collections.abc import Sequence
from typing import TypeAlias

import msgspec
import pyarrow as pa

from persist import View
from persist.codecs.part.part import Part
from persist.compute.dataflow.cluster.job import Job
from persist.compute.dataflow.cluster.tasks import StageTask, StoredParts, make_block_row
from persist.compute.dataflow.ports.ports import Ports

Blocks: TypeAlias = dict[tuple[int, int], list[pa.RecordBatch]]


def compute_by_tasks(view: View, *, partitions: int, seed: int = 0) -> None:
    """Bring a view up to date by tasks."""
    program, engine = view.live.make_program(), view.handle.engine
    with Ports.of_job(program, engine) as ports, Job(program, ports, engine.url, {}, 3) as job:
        job.commit(emulated(job.make_tasks(partitions), random.Random(seed)) if job.is_due else {})


def emulated(tasks: Sequence[StageTask], chance: random.Random) -> dict[str, list[Part]]:
    """Return what the tasks store, by output."""
    blocks: Blocks = {}
    stored: dict[str, list[Part]] = {}
    for task in tasks:
        for given in _shares(task, blocks, chance):
            for row in task.rows(iter(given)):
                exchange, partition, rows = (column[0].as_py() for column in row.columns)
                if exchange == -1:
                    one = msgspec.json.decode(rows, type=StoredParts)
                    stored.setdefault(one.collection, []).extend(one.parts)
                else:
                    blocks.setdefault((exchange, partition), []).append(row)
    return stored


def _shares(task: StageTask, blocks: Blocks, chance: random.Random) -> list[list[pa.RecordBatch]]:
    """Return what each task of a stage is given."""
    if task.slices is not None:
        return [[pa.record_batch({"id": [number]})] for number in range(len(task.slices.slices))]
    if not task.stage.reads:
        return [[make_block_row(-1, 0, None)]]
    found = []
    for partition in range(task.partitions):
        rows = [row for each in task.stage.reads for row in blocks.get((each.number, partition), ())]
        chance.shuffle(rows)
        if rows:
            found.append(rows)
    return found
