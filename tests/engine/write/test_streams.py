"""A stream is one write: whole or not at all, larger than memory, read piece by piece."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import persist
from persist.blob.protocol import MemoryBlob
from tests.support.clocks import ImpatientClock

KEY = {"k": pa.int64()}
VALUE = {"v": pa.float64()}
BUDGET = persist.Settings(memory_budget=16 << 20)
BATCHES, ROWS = 16, 100_000  # 3 MB each: three times the budget.


def batches(count: int = BATCHES) -> Iterator[pa.RecordBatch]:
    for at in range(count):
        keys = np.arange(at * ROWS, (at + 1) * ROWS)
        columns = {"k": keys, "v": keys / 2, "_time": np.full(ROWS, at), "_diff": np.ones(ROWS, np.int64)}
        yield pa.RecordBatch.from_pydict(columns)


def opened(blob: Any) -> persist.Client:
    return persist.open(blob, clock=ImpatientClock(), settings=BUDGET)


def test_a_stream_larger_than_the_budget_is_one_commit_and_is_never_held_as_a_whole(blob: MemoryBlob) -> None:
    most = 0

    def watched() -> Iterator[pa.RecordBatch]:
        nonlocal most
        before = pa.total_allocated_bytes()
        for batch in batches():
            yield batch
            most = max(most, pa.total_allocated_bytes() - before)

    with opened(blob) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        before = client.seqno
        assert c.write(watched(), seal=BATCHES).result() == before + 1
        assert c.snapshot().count() == BATCHES * ROWS
        assert c.snapshot(as_of=0).count() == ROWS
        assert c.snapshot().aggregate([], {"v": ("v", "sum")})["v"].to_pylist() == [sum(range(BATCHES * ROWS)) / 2]
    # The blob keeps its bytes outside of Arrow. What a piece takes while it is sorted is several times itself.
    assert most < 2.5 * BUDGET.memory_budget


class FullBlob(MemoryBlob):
    """A store that takes only so many parts."""

    left = 2

    def set(self, key: str, data: bytes) -> None:
        if key.startswith("part/"):
            if not self.left:
                raise persist.Unavailable("the disk is full")
            self.left -= 1
        super().set(key, data)


def test_an_upload_that_fails_rejects_the_write_and_the_rest_is_deleted() -> None:
    blob = FullBlob()
    with opened(blob) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        with pytest.raises(persist.Unavailable, match="the disk is full"):
            c.write(batches()).result()
        assert [*blob.list("part/")] == []


def test_a_stream_without_a_row_writes_nothing(blob: MemoryBlob) -> None:
    with opened(blob) as client:
        c = client.create_or_load("c", key=KEY, value=VALUE)
        c.write((batch.slice(0, 0) for batch in batches(2)), seal=1).result()
        c.write(
            pa.schema([("k", pa.int64()), ("v", pa.float64()), ("_time", pa.int64()), ("_diff", pa.int64())])
            .empty_table()
            .to_reader()
        ).result()
        assert c.snapshot().count() == 0
