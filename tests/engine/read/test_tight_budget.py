"""With a budget below the default, the caller reads large pieces itself, so that its allocator has their memory."""

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from persist.blob.protocol import MemoryBlob
from persist.blob.threads import Pool
from persist.codecs.part.stream import encode_parts
from persist.codecs.types.schema import CollectionSchema
from persist.engine.read.parts.reader import PartReader
from persist.engine.write.part_writer import MEMORY_BUDGET

SCHEMA = CollectionSchema.of({"k": pa.int64()}, None)


class Counted(Pool):
    """Counts what it is asked for."""

    asked = 0

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        self.asked += 1
        return super().submit(*args, **kwargs)


@pytest.mark.parametrize(("budget", "rows", "reads_itself"), [
    (MEMORY_BUDGET, 400_000, False),
    (MEMORY_BUDGET // 4, 400_000, True),
    (MEMORY_BUDGET // 4, 1_000, False),
])  # fmt: skip
def test_large_pieces_are_read_by_the_caller_under_a_small_budget(budget: int, rows: int, reads_itself: bool) -> None:
    keys = np.random.default_rng(1).permutation(np.arange(rows) * 7919)
    table = pa.table([keys, np.zeros(rows, np.int64), np.ones(rows, np.int64)], schema=SCHEMA.arrow)
    ((data, part),) = encode_parts(table, SCHEMA)
    part = msgspec.structs.replace(part, blob="parts/part")
    blob, pool = MemoryBlob(), Counted(2, "decoding")
    blob.set(part.blob, data)
    reader = PartReader(blob, pool, memory_budget=budget)
    assert sum(len(table) for _, table in reader.tables([part], SCHEMA, ["k"])) == rows
    assert (pool.asked == 0) is reads_itself
