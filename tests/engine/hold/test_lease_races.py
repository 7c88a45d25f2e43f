"""Holds and leases while something else happens: what a claim relies on is there for as long as it says."""

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

import persist
from persist.blob.protocol import Blob, MemoryBlob
from persist.engine.hold import WantedClaim
from tests.engine.hold import test_leases
from tests.engine.hold.test_leases import KEY, collection, since
from tests.support.clocks import ImpatientClock
from tests.support.stepped import Gate, Stepped, wait_until

ROWS = 20_000


def opened(blob: Blob, clock: ImpatientClock | None = None) -> persist.Client:
    return test_leases.opened(blob, clock, grace_s=0, orphan_grace_s=0, merge_runs=2)


def large(client: persist.Client, times: int) -> persist.Collection:
    """Return a collection with a part of its own at each time, all of them sealed."""
    made = client.create_or_load("c", key=KEY)
    for time in range(times):
        made.write(pa.table({"k": range(ROWS), "_time": [time] * ROWS, "_diff": [1] * ROWS}), seal=time + 1).result()
    return made


def reads(client: persist.Client) -> int:
    return int(client.metrics().groups["leases"]["reads"])


def test_what_an_open_read_was_planned_on_outlives_the_renewal_of_its_lease(blob: MemoryBlob) -> None:
    clock = ImpatientClock()
    with opened(blob, clock) as reader, opened(blob, clock) as writer:
        theirs, ours = large(writer, 6), reader.load("c")
        first = ours.snapshot(5)
        snapshot = ours.snapshot(5)  # It costs no commit, so the compaction is the very next record.
        first.close()
        known = reader.seqno
        assert theirs.compact().runs_merged > 0
        unused = writer.engine.follower.state.control.dropped
        assert unused[0].seqno == known + 1
        clock.sleep(400)
        reader.collections()  # It learns of the compaction, and renews its lease after that.
        reader.maintain()
        assert writer.gc().parts == 0
        assert snapshot.to_arrow().num_rows == 6 * ROWS
        snapshot.close()
        reader.maintain()
        assert writer.gc().parts > 0


@pytest.mark.parametrize("stays", [None, 12])
def test_a_claim_made_while_its_hold_moves_does_not_rely_on_where_it_was(blob: MemoryBlob, stays: int | None) -> None:
    """The hold is let go of, or moved ahead because a later read stays open.

    A read of this client would wait for the commit that moves the hold. Its claim is what matters here.
    """
    store, gate = Stepped(blob), Gate()
    with opened(store) as reader, opened(blob) as writer, ThreadPoolExecutor(2) as pool:
        theirs, ours = collection(writer), reader.load("c")
        first, later = ours.snapshot(5), None if stays is None else ours.snapshot(stays)
        first.close()
        before = reads(reader)
        store.before("create", "log/", gate)
        moving = pool.submit(reader.maintain)
        gate.wait_until_reached()
        reader.engine.writer("a test").leases.settle_soon(ours.id)  # Which waits for nothing.
        claiming = pool.submit(reader.engine.writer("a test").leases.claim_all, [WantedClaim(ours.id, "c", 7)])
        wait_until(lambda: reads(reader) == before + 1)  # Now it has decided what it relies on.
        gate.open()
        moving.result()
        [claim] = claiming.result()
        theirs.allow_compaction(15).result()
        assert since(theirs) == 7
        claim.check()
        claim.release()
        if later is not None:
            later.close()
        reader.maintain()
        assert since(theirs) == 15


def test_a_lease_that_is_renewed_just_before_it_is_ended_goes_on(blob: MemoryBlob) -> None:
    clock, store = ImpatientClock(), Stepped(blob)
    with opened(blob, clock) as reader, opened(store, clock) as writer:
        theirs = collection(writer)
        snapshot = reader.load("c").snapshot(3)
        clock.sleep(700)
        # The writer has seen that the lease ran out, and is about to say so in the log.
        store.before("create", "log/", reader.maintain)
        writer.maintain()
        assert store.is_done
        theirs.allow_compaction(15).result()
        assert since(theirs) == 3
        assert snapshot.count() == 4
