"""The stages of a step, task by task in this process, and blocks in any order: what Spark does, without Spark."""

import random
from collections.abc import Sequence
from typing import TypeAlias

import msgspec
import pyarrow as pa

from persist import View
from persist.codecs.part.part import Part
from persist.compute.dataflow.ports.ports import Ports
from persist.compute.dataflow.step.keys import TouchedKeys
from persist.compute.dataflow.step.planning import StepPlan
from persist.compute.dataflow.step.tasks import StageTask, StoredParts, block_row
from persist.compute.dataflow.step.touched import Brought
from persist.errors import OperatorFailed

Blocks: TypeAlias = dict[tuple[int, int], list[pa.RecordBatch]]


def stepped(
    view: View,
    *,
    partitions: int,
    seed: int = 0,
    looks_up: bool = False,
    stands: bool = True,
    goes_without: bool = True,
) -> int | None:
    """Do one step of a view by tasks; if it is to look up what touched keys hold, return how many bytes that saves.

    Args:
        stands: whether records may stand for groups.
        goes_without: whether it is done without such records if it fails with them.
    """
    program, chance = view.live.program(), random.Random(seed)
    engine = view.handle.engine
    with Ports.of_step(program, engine) as ports, StepPlan(program, ports, engine.url, {}, 3, stands=stands) as step:
        if not step.is_due or step.is_seal_only:
            step.commit({})
            return None
        known: dict[Brought, TouchedKeys] | None = None
        if looks_up and step.why_everything() is None:
            known = step.untouched()
            for _, wanted in step.levels:
                tasks, _ = step.wave(wanted, known, partitions)
                known |= step.touched(wanted, tasks, asked(tasks, chance))
        try:
            stored = emulated(step.tasks(partitions, known), chance)
        except OperatorFailed:
            if not (step.stands and goes_without):
                raise
        else:
            step.commit(stored)
            return None if known is None else step.bytes - step.needed_bytes(known)[0]
    return stepped(view, partitions=partitions, seed=seed, looks_up=looks_up, stands=False)


def asked(tasks: Sequence[StageTask], chance: random.Random) -> list[tuple[int, pa.Table]]:
    """Return what tasks give of what is asked for."""
    blocks: Blocks = {}
    assert emulated(tasks, chance, blocks) == {}
    wanted = {number for each in tasks for number in each.asked}
    return [
        (number, pa.ipc.open_stream(row.column(2)[0].as_buffer()).read_all())
        for (number, _), rows in blocks.items()
        for row in rows
        if number in wanted
    ]


def emulated(tasks: Sequence[StageTask], chance: random.Random, blocks: Blocks | None = None) -> dict[str, list[Part]]:
    """Return what the tasks store, by output; blocks are what they give each other."""
    blocks = {} if blocks is None else blocks
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
        return [[block_row(-1, 0, None)]]
    found = []
    for partition in range(task.partitions):
        rows = [row for each in task.stage.reads for row in blocks.get((each.number, partition), ())]
        chance.shuffle(rows)
        if rows:
            found.append(rows)
    return found
