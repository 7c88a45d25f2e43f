"""Refreshing is linearizable: whoever asks sees every record that was created before."""

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

import persist
from persist.blob import MemoryBlob
from persist.replica.follower import Follower
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
