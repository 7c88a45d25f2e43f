"""Leases of consumers, which follow each other under one name; and when a lease is renewed, ended, or left alone."""

import pytest

import persist
from persist.blob.layers.unreliable import Fault, UnreliableBlob
from persist.blob.protocol import MemoryBlob
from persist.engine.hold import WantedClaim
from tests.engine.hold.test_leases import collection, opened, since
from tests.support.clocks import ImpatientClock

LEASE_S, SKEW_S = 600.0, 30.0


def leases(client: persist.Client) -> dict[str, object]:
    return dict(client.engine.follower.refresh().control.leases)


def test_a_consumer_takes_the_place_of_the_one_that_had_its_name_and_of_no_other(blob: MemoryBlob) -> None:
    with opened(blob) as first, opened(blob) as second:
        c = collection(first)
        wanted = [WantedClaim(c.id, "c", 3)]
        mine, theirs = (each.engine.writer("a test").consumers for each in (first, second))
        [job], [other] = mine.claim_all("x/job", wanted), mine.claim_all("x/other", wanted)
        assert mine.counts() == {"granted": 2, "holds": 2, "reads": 2}
        assert len(leases(first)) == 2
        second.load("c")
        [next_job] = theirs.claim_all("x/job", wanted)
        assert theirs.counts() == {"granted": 1, "holds": 1, "reads": 1}
        assert len(leases(first)) == 2
        other.check()
        next_job.check()
        with pytest.raises(persist.errors.LeaseExpired, match="another one follows as 'job' now, or its lease ran out"):
            job.check()
        c.allow_compaction(15).result()
        assert since(c) == 3
        mine.close()
        assert [*leases(first)] == [*theirs.list_ids()]
        theirs.close()
        assert leases(first) == {}
        assert since(first.load("c")) == 15


@pytest.mark.parametrize("lease_s", [LEASE_S / 2, LEASE_S, 2 * LEASE_S])
def test_a_lease_is_renewed_after_a_third_of_its_time_and_not_before(blob: MemoryBlob, lease_s: float) -> None:
    """The shorter time counts, of its last grant or of the policy."""
    clock = ImpatientClock(wall_s=1.0)
    with opened(blob, clock, lease_s=LEASE_S) as client:
        snapshot = collection(client).snapshot(3)
        if lease_s != LEASE_S:
            client.set_policy(lease_s=int(lease_s))
        for after_s in (min(lease_s, LEASE_S), lease_s):
            seqno = client.engine.follower.refresh().seqno
            clock.sleep(after_s / 3 - 1)
            client.maintain()
            assert snapshot.count() == 4
            assert client.engine.follower.refresh().seqno == seqno
            clock.sleep(1)
            client.maintain()
            assert client.engine.follower.refresh().seqno == seqno + 1
        snapshot.close()


def test_a_lease_of_a_consumer_is_renewed_and_ended_like_that_of_its_client(blob: MemoryBlob) -> None:
    clock = ImpatientClock()
    with opened(blob, clock, lease_s=LEASE_S) as client:
        c = collection(client)
        consumers = client.engine.writer("a test").consumers
        [claim] = consumers.claim_all("x/job", [WantedClaim(c.id, "c", 3)])
        [before] = client.engine.follower.refresh().control.leases.values()
        clock.sleep(LEASE_S / 3)
        client.maintain()
        [after] = client.engine.follower.refresh().control.leases.values()
        assert after.consumer == "x/job"
        assert after.expires_ms - before.expires_ms == pytest.approx(LEASE_S / 3 * 1000, abs=5)
        claim.move(9)
        c.allow_compaction(15).result()  # It waits for what this client's own claims need.
        assert since(c) == 9
        claim.release()
        client.maintain()
        assert leases(client) == {}
        assert since(c) == 15


def test_a_lease_that_nobody_needs_is_ended_however_late(blob: MemoryBlob) -> None:
    clock = ImpatientClock()
    with opened(blob, clock, lease_s=LEASE_S) as client:
        collection(client).snapshot(3).close()
        assert len(leases(client)) == 1
        clock.sleep(LEASE_S * 0.9)
        client.maintain()
        assert leases(client) == {}


def test_a_lease_is_renewed_by_the_monotonic_clock_although_the_wall_clock_went_back(blob: MemoryBlob) -> None:
    clock = ImpatientClock()
    clock.sleep(7)
    with opened(blob, clock, lease_s=LEASE_S) as client:
        snapshot = collection(client).snapshot(3)
        seqno = client.engine.follower.refresh().seqno
        clock.jump(-10 * LEASE_S)
        assert snapshot.count() == 4
        assert client.engine.follower.refresh().seqno == seqno
        for number, after_s in enumerate((LEASE_S, 100_000), 1):  # However late, while nobody has ended it.
            clock.sleep(after_s)
            assert snapshot.count() == 4
            assert client.engine.follower.refresh().seqno == seqno + number
        [lease] = client.engine.follower.refresh().control.leases.values()
        assert lease.expires_ms - clock.wall_ms() == pytest.approx(LEASE_S * 1000, abs=5)


def test_a_lease_may_be_ended_from_the_millisecond_after_its_expiry_and_the_skew(blob: MemoryBlob) -> None:
    clock, unreliable = ImpatientClock(), UnreliableBlob(blob)
    with opened(blob, clock, lease_s=LEASE_S) as reader, opened(unreliable, clock, lease_s=LEASE_S) as writer:
        collection(writer)
        snapshot = reader.load("c").snapshot(3)
        [lease] = writer.engine.follower.refresh().control.leases.values()
        limit_ms = lease.expires_ms + int(SKEW_S * 1000)
        clock.sleep((limit_ms - clock.wall_ms()) / 1000 + 0.0002)
        ending = writer.engine.writer("a test").leases
        assert clock.wall_ms() == limit_ms
        ending.end_expired()
        assert len(leases(writer)) == 1
        clock.sleep(0.001)
        unreliable.script_faults("create", *[Fault.UNAVAILABLE] * 2000)
        with pytest.raises(persist.Unavailable):
            ending.end_expired()
        unreliable.clear_faults()
        ending.end_expired()
        assert leases(writer) == {}
        snapshot.close()


def test_a_collection_of_garbage_spares_the_late_leases_of_its_own_consumers(blob: MemoryBlob) -> None:
    clock = ImpatientClock()
    with opened(blob, clock, lease_s=LEASE_S) as client, opened(blob, clock, lease_s=LEASE_S) as other:
        c = collection(client)
        [job] = client.engine.writer("a test").consumers.claim_all("x/job", [WantedClaim(c.id, "c", 3)])
        clock.sleep(LEASE_S + SKEW_S + 1)
        client.gc()
        job.check()  # Which renews it, however late.
        clock.sleep(LEASE_S + SKEW_S + 1)
        other.gc()
        with pytest.raises(persist.errors.LeaseExpired):
            job.check()
