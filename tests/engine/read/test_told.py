"""What a read says of its plan, and of blobs that are not there."""

import pyarrow as pa
import pytest

import persist
from persist.blob.errors import MissingBlob
from persist.blob.protocol import MemoryBlob
from persist.engine.read.planning.snapshot_plan import Explanation
from tests.support.clocks import ImpatientClock
from tests.support.tuned import tuned

SETTINGS = tuned(background=False, keyframe_rows_min=0)


def numbers(count: int, time: int) -> pa.Table:
    return pa.table({"k": range(count), "_time": [time] * count, "_diff": [1] * count})


def explained(client: persist.Client, as_of: int) -> Explanation:
    return client["c"].snapshot(as_of).explain()


def test_a_plan_says_which_keyframe_it_begins_at_and_what_it_reads_of_the_history() -> None:
    with persist.open(MemoryBlob(), settings=SETTINGS) as client:
        c = client.create_or_load("c", key={"k": pa.int64()})
        c.write(numbers(50_000, 0), seal=1).result()
        assert "from no keyframe" in str(explained(client, 0))
        c.write(numbers(40_000, 1).set_column(2, "_diff", pa.array([-1] * 40_000)), seal=2).result()
        c.compact()
        c.write(pa.table({"k": [-1], "_time": [5], "_diff": [1]}), seal=6).result()
        at_keyframe, later, early = (explained(client, as_of) for as_of in (1, 5, 0))
        assert (at_keyframe.keyframe, later.keyframe, early.keyframe) == (1, 1, None)
        assert (at_keyframe.base_rows, at_keyframe.rows) == (10_000, 10_000)
        assert (later.base_parts, later.parts, later.base_rows, later.rows) == (1, 2, 10_000, 10_001)


def test_a_part_that_is_needed_and_not_there_is_damage_and_no_late_read(blob: MemoryBlob) -> None:
    with persist.open(blob, settings=SETTINGS) as writer:
        writer.create_or_load("c", key={"k": pa.int64()}).write(numbers(50_000, 0), seal=1).result()
    [part] = blob.list("part/")
    blob.delete(part.key)
    with persist.open(blob, mode="read", clock=ImpatientClock()) as reader:
        with pytest.raises(MissingBlob) as caught:
            reader["c"].snapshot(0).to_arrow()
        assert caught.value.key == part.key
