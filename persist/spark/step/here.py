"""The stages of a step in this process, without a job of Spark: for a step that reads little.

The tasks are those that Spark runs (`tasks.py`), and so is what they give each other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec
import pyarrow as pa

from persist.codecs import Part
from persist.spark.step.tasks import WAKES, StageTask, Uploaded, block_row, numbered

Blocks = list[tuple[int, bytes]]


def stored_here(tasks: Sequence[StageTask]) -> dict[str, Sequence[Part]]:
    """Run all stages; return what they have stored, by output."""
    found: dict[str, list[Part]] = {}
    for number, block in _run(tasks):
        if number == WAKES:
            stored = msgspec.json.decode(block, type=Uploaded)
            found.setdefault(stored.collection, []).extend(stored.parts)
    return dict(found)


def asked_here(tasks: Sequence[StageTask]) -> Blocks:
    """Run stages; return the blocks that are asked for, each with its exchange."""
    asked = frozenset[int]().union(*(each.asked for each in tasks))
    return [(number, block) for number, block in _run(tasks) if number in asked]


def _run(tasks: Sequence[StageTask]) -> Iterator[tuple[int, bytes]]:
    """Yield what the tasks of stages give, stage by stage."""
    given: dict[int, list[pa.RecordBatch]] = {}
    for task in (replace(each, partitions=1, packs=False) for each in tasks):
        for row in task.rows(_rows_for(task, given)):
            number, block = row.column(0)[0].as_py(), row.column(2)[0].as_py()
            given.setdefault(number, []).append(row)
            yield number, block


def _rows_for(task: StageTask, given: dict[int, list[pa.RecordBatch]]) -> list[pa.RecordBatch]:
    """Return what the one task of a stage is given."""
    if task.slices is not None:
        return [numbered(each) for each in range(len(task.slices.slices))]
    if not task.stage.reads:
        return [block_row(WAKES, 0, None)]
    return [row for each in task.stage.reads for row in given.get(each.number, ())]
