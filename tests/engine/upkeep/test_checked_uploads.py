"""Uploads that were looked at once are looked at no more, and a collector that has just begun finds nothing more."""

from contextlib import suppress

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
from hypothesis import example, given, settings

import persist
from persist.blob.protocol import MemoryBlob
from persist.engine.follow.checkpoint import write_checkpoint
from persist.engine.upkeep.references import ALL_AGAIN_S
from persist.engine.write.part_writer import PartWriter
from tests.support.clocks import DatedBlob, ImpatientClock
from tests.support.tiers import examples
from tests.support.tuned import tuned

KEY = {"k": pa.int64()}
GRACE_S = 600.0
ROWS = 20_000  # So many that they are not stored within a record.


class CountingBlob(DatedBlob):
    """Counts what is read of state objects."""

    states = 0

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        self.states += key.startswith("state/")
        return super().get(key, range)


def opened(blob: DatedBlob) -> persist.Client:
    return persist.open(
        blob,
        clock=blob.clock,
        settings=tuned(background=False, grace_s=GRACE_S, orphan_grace_s=GRACE_S, hold_linger_s=0),
    )


def rows(time: int, count: int = ROWS) -> pa.Table:
    return pa.table({"k": np.arange(count), "_time": np.full(count, time), "_diff": np.ones(count, np.int64)})


def orphan(blob: MemoryBlob, client: persist.Client, c: persist.Collection) -> str:
    """Upload what no record names."""
    (part,) = PartWriter(blob, client.engine.follower.find_next_seqno).upload(c.id, c.schema, rows(99))
    return part.blob


STEPS = st.lists(
    st.sampled_from(["write", "orphan", "clone", "drop clone", "drop", "compact", "forget", "wait", "gc", "other gc"]),
    max_size=20,
)


@settings(max_examples=examples(60, quick=3))
@given(STEPS)
@example(["write", "write", "clone", "gc", "drop", "wait", "gc", "wait", "gc", "drop clone"])
@example(["write", "clone", "gc", "drop", "wait", "other gc", "wait", "other gc", "drop clone", "wait", "gc"])
@example(["write", "clone", "drop", "wait", "other gc", "wait", "other gc", "drop clone", "gc", "wait", "gc"])
@example(["orphan", "gc", "wait", "gc", "orphan", "gc", "wait"])
def test_a_collector_that_has_just_begun_finds_nothing_more(steps: list[str]) -> None:
    blob = DatedBlob(ImpatientClock())
    with opened(blob) as client, opened(blob) as collector, opened(blob) as other:
        a, time = client.create_or_load("a", key=KEY), 0
        client.create_or_load("idle", key=KEY).write(rows(0), seal=1).result()
        for step in steps:
            if step == "write":
                a.write(rows(time), seal=time + 1).result()
                time += 1
            elif step == "orphan":
                orphan(blob, client, a)
            elif step == "clone" and "b" not in client and time:
                client.clone("a", "b")
            elif step == "drop clone":
                with suppress(persist.errors.CollectionNotFound):
                    client.drop("b").result()
            elif step == "drop":
                a.drop().result()
                a, time = client.create_or_load("a", key=KEY), 0
            elif step == "compact":
                a.compact()
            elif step == "forget" and time:
                a.allow_compaction(time - 1).result()
            elif step == "wait":
                blob.clock.sleep(2 * GRACE_S)
            elif step == "gc":
                collector.gc()
            elif step == "other gc":
                other.gc()
        for _ in range(4):  # A declaration needs a record and a checkpoint that are old enough.
            client.describe("a record").result()
            blob.clock.sleep(2 * GRACE_S)
            collector.gc()
        with opened(blob) as begun:
            assert begun.gc().parts == 0
        assert client["idle"].snapshot(0).count() == ROWS
        if time:
            assert a.snapshot(time - 1).count() == ROWS * time


def test_the_contents_of_collections_without_new_uploads_are_not_read_again() -> None:
    blob = CountingBlob(ImpatientClock())
    names = [f"c{n}" for n in range(8)]
    with opened(blob) as client:
        for name in names:
            c = client.create_or_load(name, key=KEY)
            for time in range(40):  # So many that each has a state object of its own.
                c.write(rows(time, 1), seal=time + 1).result()
            c.compact()
        write_checkpoint(blob, *client.engine.follower.get_recent_records())
    with opened(blob) as client, opened(blob) as collector:
        blob.clock.sleep(2 * GRACE_S)
        client.describe("a record").result()
        collector.gc()
        assert blob.states >= len(names)
        late, young = orphan(blob, client, client["c1"]), orphan(blob, client, client["c2"])
        blob.clock.sleep(GRACE_S / 2)
        before = blob.states
        collector.gc()
        assert blob.states - before <= 4
        for _ in range(3):
            client.describe("a record").result()
            blob.clock.sleep(2 * GRACE_S)
            collector.gc()
        assert blob.get(late) is None
        assert blob.get(young) is None
        before = blob.states
        collector.gc()
        assert blob.states == before
        blob.clock.sleep(ALL_AGAIN_S)
        collector.gc()
        assert blob.states - before >= len(names)
