"""Following a collection as an engine does: plans between offsets, tasks that read them, restarts from a checkpoint."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.compute.tasks.stream_hold import Offset
from persist.compute.tasks.stream_source import NO_LIMITS, BatchLimits, SourceOptions, StreamSource
from persist.engine.read.following.changes import read_changes
from persist.engine.read.parts.reader import PartReader

ONE_TIME = BatchLimits(times=1)
Update = tuple[Any, ...]


@pytest.fixture
def location(tmp_path: Path) -> str:
    """A location with `c`: one update at each time from 0 to 9."""
    with persist.open(tmp_path, settings=persist.Settings(background=False)) as client:
        rows = client.create_or_load("c", key={"k": pa.int64()}, value=None)
        for time in range(10):
            rows.write([((time, None), time, 1)])
            rows.seal(time + 1)
        rows.compact()
    return str(tmp_path)


def read(source: StreamSource, start: Offset, end: Offset) -> list[Update]:
    """Return the updates of a micro-batch, each slice read as a task does it: by the address alone."""
    found: list[Update] = []
    for each in source.plan(start, end):
        with source.address.open_store() as storage:
            table = read_changes(each.scan, PartReader(storage.blob))
        found += [tuple(row.values()) for row in table.select(["k", "_time", "_diff"]).to_pylist()]
    return sorted(found)


def followed(options: SourceOptions, ends: list[Any], batches: int, limits: BatchLimits) -> list[Update]:
    """Run a query for so many micro-batches from what a checkpoint holds; append to it, and return what was read."""
    source = StreamSource(options)
    found: list[Update] = []
    try:
        for _ in range(batches):
            start = Offset.of(json.loads(ends[-1])) if ends else source.make_first_offset()
            end = source.find_next_offset(start, limits)
            ends.append(json.dumps(end.to_json()))
            found += read(source, start, end)
            source.commit(end)
    finally:
        source.close()
    return found


def test_each_update_is_read_once_across_restarts(location: str) -> None:
    options = SourceOptions(location=location, collection="c", as_of=None, start=0, hold="mine")
    ends: list[Any] = []
    found = followed(options, ends, 3, ONE_TIME) + followed(options, ends, 2, ONE_TIME)
    found += followed(options, ends, 1, NO_LIMITS)
    assert found == [(time, time, 1) for time in range(10)]


def test_a_repeated_micro_batch_holds_the_same_though_more_was_written_and_compacted(location: str) -> None:
    options = SourceOptions(location=location, collection="c", as_of=None, start=4, hold="mine")
    source = StreamSource(options)
    start = source.make_first_offset()
    end = source.find_next_offset(start, BatchLimits(updates=3))
    first = read(source, start, end)
    source.close()
    with persist.open(location, settings=persist.Settings(background=False)) as client:
        rows = client.load("c")
        rows.write([((99, None), 10, 1)])
        rows.seal(11)
        rows.allow_compaction(9).result()
        rows.compact()
    again = StreamSource(options)
    try:
        assert read(again, start, end) == first == [(4, 4, 1), (5, 5, 1), (6, 6, 1)]
    finally:
        again.close()
