"""Refreshing is linearizable: whoever asks sees every record that was created before."""

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

import persist
from persist.blob import MemoryBlob, MeteredBlob
from persist.replica import INTERVAL, Follower
from tests.checkpoints import wait_for_checkpoint
from tests.clocks import ImpatientClock
from tests.stepped import Stepped, wait_until


def test_who_asks_while_another_thread_reads_is_not_served_by_what_that_had_read_before(blob: MemoryBlob) -> None:
    """What two threads share are the requests of one that began after both had asked."""
    store = Stepped(blob)
    settings = persist.Settings(background=False)
    with persist.open(blob, settings=settings) as writer, ThreadPoolExecutor(1) as pool:
        c = writer.create_or_load("c", key={"k": pa.int64()})
        follower = Follower(store, ImpatientClock())
        asked = []

        def meanwhile() -> None:
            c.seal(1).result()
            issued = follower._issued
            asked.append(pool.submit(follower.refresh))
            wait_until(lambda: follower._issued > issued)

        store.after("get", "log/", meanwhile)  # That finds no further record.
        first = follower.refresh()
        assert store.is_done
        assert asked[0].result().seqno == first.seqno + 1 == writer.seqno


def test_who_is_told_of_a_record_reads_that_one_and_asks_for_no_other(blob: MemoryBlob) -> None:
    metered = MeteredBlob(blob)
    store = Stepped(metered)
    with persist.open(blob, settings=persist.Settings(background=False)) as writer:
        c = writer.create_or_load("c", key={"k": pa.int64()})
        follower = Follower(store, ImpatientClock(), poll_s=3600.0)
        gets = []

        def sealed_and_told() -> None:
            seqno = c.seal(1).result()
            gets.append(metered.counts()["get"].requests)
            follower.hint(seqno)

        store.after("get", "log/", sealed_and_told)  # When the one who waits has found nothing, and before it waits.
        seqno = follower.wait_for(lambda: follower.state.seqno if follower.state.seqno == writer.seqno else None, 60.0)
        assert seqno == writer.seqno
        assert metered.counts()["get"].requests - gets[0] == 1


def test_a_hint_of_what_is_not_there_changes_no_answer(blob: MemoryBlob) -> None:
    with persist.open(blob, settings=persist.Settings(background=False)) as writer:
        c = writer.create_or_load("c", key={"k": pa.int64()})
        follower = Follower(blob, ImpatientClock())
        for upper, liar in enumerate((2**62, -5, follower.state.seqno), start=1):
            follower.hint(liar)
            seqno = c.seal(upper).result()
            assert follower.wait_for(lambda: follower.state.seqno, 60.0) == seqno


def test_a_client_goes_on_without_any_checkpoint_if_the_log_tells_all() -> None:
    """It was opened from one, and has not read the contents that this one names."""
    blob = MemoryBlob()
    settings = persist.Settings(background=False)
    with persist.open(blob, settings=settings) as client:
        collection = client.create_or_load("c", key={"k": pa.int64()}, value=None)
        for time in range(1, 4 * INTERVAL):
            collection.seal(time).result()
            wait_for_checkpoint(client)
    assert [*blob.list("state/")]
    with persist.open(blob, mode="read") as reader:
        for prefix in ("checkpoint/", "directory/", "state/"):
            for entry in list(blob.list(prefix)):
                blob.delete(entry.key)
        assert reader["c"].upper.time == 4 * INTERVAL - 1
