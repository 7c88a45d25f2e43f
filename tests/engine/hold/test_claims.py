"""Claims in bulk: what is claimed, moved or let go of together is one record, however many collections it concerns."""

import threading
from functools import partial

import pyarrow as pa
import pytest

import persist
from persist.blob.protocol import MemoryBlob
from persist.core.log import kinds as record_kinds
from persist.core.log.records import read_record
from persist.core.settings import Tuning
from persist.engine.follow.follower import Follower
from persist.engine.hold import Claim, Leases, WantedClaim
from tests.support.clocks import ImpatientClock
from tests.support.stepped import WAIT_S

KEY = {"k": pa.int64()}
MANY = 100


def opened(blob: MemoryBlob) -> persist.Client:
    settings = persist.Settings(background=False, tuning=Tuning(hold_linger_s=0))
    return persist.open(blob, clock=ImpatientClock(), settings=settings)


def collections_of(client: persist.Client, count: int) -> list[persist.Collection]:
    names = [f"c{n:03}" for n in range(count)]
    futures = [client.create_or_load(name, key=KEY).seal(20) for name in names]
    for future in futures:
        future.result()
    return [client.load(name) for name in names]


def leases_of(client: persist.Client) -> Leases:
    return client.engine.writer("a test").leases


def wanted(collections: list[persist.Collection], first: int = 3) -> list[WantedClaim]:
    return [WantedClaim(each.id, each.name, first + n % 5) for n, each in enumerate(collections)]


def kinds_after(blob: MemoryBlob, seqno: int) -> list[dict[type, int]]:
    """Return how many mutations of each kind the records after seqno have."""
    found = []
    while (record := read_record(blob, seqno + 1)) is not None:
        seqno += 1
        kinds: dict[type, int] = {}
        for mutation in record.mutations:
            kinds[type(mutation)] = kinds.get(type(mutation), 0) + 1
        found.append(kinds)
    return found


def test_many_collections_are_claimed_moved_and_let_go_of_in_a_record_each(blob: MemoryBlob) -> None:
    with opened(blob) as client:
        collections = collections_of(client, MANY)
        start, leases = client.seqno, leases_of(client)
        claims = leases.claim_all(wanted(collections))
        assert kinds_after(blob, start) == [{record_kinds.GrantLease: 1, record_kinds.SetHold: MANY}]
        assert [each.holds()[0].time for each in collections[:5]] == [3, 4, 5, 6, 7]
        for claim in claims:
            claim.move(9)
        start = client.seqno
        client.maintain()
        assert kinds_after(blob, start)[0] == {record_kinds.SetHold: MANY}
        assert {each.holds()[0].time for each in collections[:7]} == {9}
        for claim in claims:
            claim.release()
        start = client.seqno
        client.maintain()
        assert kinds_after(blob, start)[0] == {record_kinds.ReleaseHold: MANY}
        assert not client.engine.follower.state.control.leases


@pytest.mark.parametrize("how", ["settle", "settle_soon", "tick"])
def test_a_hold_moves_back_at_once_for_an_earlier_claim_and_ahead_when_asked(blob: MemoryBlob, how: str) -> None:
    """And what a hold covers already costs nothing, nor does what has no hold."""
    with opened(blob) as client:
        [c, other], leases = collections_of(client, 2), leases_of(client)
        settle = leases.tick if how == "tick" else partial(getattr(leases, how), c.id)
        claims: dict[str, Claim] = {}
        for name, time, hold, records, reads in (
            ("a", 9, 9, 1, 1),
            ("b", 9, 9, 0, 2),
            ("c", 12, 9, 0, 3),
            ("d", 5, 5, 1, 4),
            ("d", None, 9, 1, 3),
            ("a", None, 9, 0, 2),
            ("a", None, 9, 0, 2),
            ("b", None, 12, 1, 1),
            ("c", 14, 14, 1, 1),
            ("e", 14, 14, 0, 2),
            ("c", 15, 14, 0, 2),
            ("e", None, 15, 1, 1),
            ("f", 0, 0, 1, 2),
            ("f", 1, 1, 1, 2),
            ("f", None, 15, 1, 1),
        ):
            seqno = client.seqno
            if name not in claims:
                claims[name] = leases.claim(c.id, c.name, time or 0)
            else:
                claims[name].release() if time is None else claims[name].move(time)
                settle()
                client.engine.settle()
            assert ([each.time for each in c.holds()], client.seqno - seqno) == ([hold], records), (name, time)
            assert leases.counts() == {"granted": 1, "holds": 1, "reads": reads}
        for time, is_new in ((15, False), (16, False), (14, True)):
            seqno = client.seqno
            unseen = leases.claim_unseen(WantedClaim(c.id, c.name, time))
            assert (unseen is not None, client.seqno - seqno) == (is_new, int(is_new))
        assert leases.counts()["reads"] == 2
        assert unseen is not None
        unseen.release()
        leases.settle(c.id)
        seqno = client.seqno
        leases.settle(other.id)
        leases.settle_soon(other.id)
        claims["c"].release()
        assert leases.counts() == {"granted": 1, "holds": 1, "reads": 0}
        settle()
        client.engine.settle()
        assert (c.holds(), client.seqno - seqno) == ([], 2 if how == "tick" else 1)
        assert leases.counts() == {"granted": how != "tick", "holds": 0, "reads": 0}


def test_a_lease_names_the_oldest_state_that_its_open_reads_may_use(blob: MemoryBlob) -> None:
    with opened(blob) as client:
        [c], leases = collections_of(client, 1), leases_of(client)

        def renew() -> int:
            """Return from where the lease is used, in seqnos before the newest of the state that renewed it."""
            c.seal((c.upper.time or 0) + 1).result()
            seqno = client.seqno
            client.engine.clock.sleep(400)
            client.maintain()
            assert client.seqno == seqno + 1
            [lease] = client.engine.follower.state.control.leases.values()
            return seqno - lease.reads_from

        keeps = leases.claim(c.id, c.name, 1005, reads=False)
        assert (renew(), renew()) == (0, 0)
        first = leases.claim(c.id, c.name, 1005)
        assert (renew(), renew()) == (1, 3)
        second = leases.claim(c.id, c.name, 1006)
        first.move(1006)
        assert (renew(), renew()) == (1, 3)
        second.move(1007, has_planned=True)
        first.release()
        assert renew() == 5
        second.move(1008)
        assert renew() == 1
        second.release()
        assert renew() == 0
        keeps.release()


@pytest.mark.parametrize(("how", "count"), [("compacted", 20), ("destroyed", 20), ("compacted", 2)])
def test_if_one_of_many_claims_is_refused_there_are_none_and_it_is_named(
    blob: MemoryBlob, how: str, count: int
) -> None:
    with opened(blob) as client, opened(blob) as other:
        collections = collections_of(client, count)
        theirs = other.load("c001")
        (theirs.allow_compaction(15) if how == "compacted" else theirs.drop()).result()
        expected = persist.errors.AsOfCompacted if how == "compacted" else persist.errors.CollectionNotFound
        with pytest.raises(expected) as caught:
            leases_of(client).claim_all(wanted(collections))
        assert caught.value.__notes__[0] == "This is about the collection 'c001'."
        assert client.metrics().groups["commits"]["rejected"] == 2, "together, and alone"
        client.maintain()
        assert leases_of(client).counts() == {"granted": 0, "holds": 0, "reads": 0}
        assert client.load("c000").holds() == []
        others = [each for each in collections if each.name != "c001"]
        assert len(leases_of(client).claim_all(wanted(others))) == count - 1


def test_a_hold_that_cannot_be_let_go_of_keeps_no_other_from_it(blob: MemoryBlob) -> None:
    with opened(blob) as client, opened(blob) as other:
        collections = collections_of(client, 20)
        claims = leases_of(client).claim_all(wanted(collections))
        other.load("c007").drop().result()
        for claim in claims:
            claim.release()
        client.maintain()
        assert leases_of(client).counts() == {"granted": 0, "holds": 0, "reads": 0}
        assert client.load("c008").holds() == []


@pytest.mark.parametrize("hears", [True, False])
def test_a_lease_that_was_lost_is_begun_anew_for_all(blob: MemoryBlob, hears: bool) -> None:
    """Whether the client has heard of it, or is told when it asks for a hold."""
    with opened(blob) as client, opened(blob) as other:
        collections = collections_of(client, 20)
        first = leases_of(client).claim_all(wanted(collections[:10]))
        (lease,) = other.engine.follower.refresh().control.leases
        other.engine.submit("a test", [record_kinds.EndLease(lease)], {}).result()
        if hears:
            client.seqno  # noqa: B018
        again = collections[: 10 if hears else 20]
        claims = leases_of(client).claim_all(wanted(again))
        with pytest.raises(persist.errors.LeaseExpired):
            first[0].check()
        for claim in claims:
            claim.check()
        assert all(len(each.holds()) == 1 for each in again)


class GatedBlob(MemoryBlob):
    """Takes no record while the gate is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()

    def create(self, key: str, value: bytes) -> bool:
        self.gate.wait(WAIT_S)
        return super().create(key, value)


def test_claims_that_threads_make_while_the_store_is_busy_share_a_record() -> None:
    blob = GatedBlob()
    with opened(blob) as client:
        collections = collections_of(client, 40)
        start, leases = client.seqno, leases_of(client)
        threads = [
            threading.Thread(target=leases.claim, args=(each.id, each.name, 5), daemon=True) for each in collections
        ]
        blob.gate.clear()
        for thread in threads:
            thread.start()
        while sum(held.moving.locked() for held in [*leases._held.values()]) < len(collections):
            threading.Event().wait(0.001)
        blob.gate.set()
        for thread in threads:
            thread.join(WAIT_S)
        found = kinds_after(blob, start)
        assert len(found) <= 3
        assert sum(kinds.get(record_kinds.SetHold, 0) for kinds in found) == len(collections)


def test_a_first_snapshot_has_what_others_committed_before_it_though_it_does_not_look(blob: MemoryBlob) -> None:
    with opened(blob) as writer, opened(blob) as reader:
        theirs, ours, dropped = (
            client.create_or_load(n, key=KEY) for client, n in ((writer, "c"), (reader, "c"), (reader, "d"))
        )
        theirs.write([((1, None), 0, 1)], seal=1).result()
        assert ours.snapshot().as_of == 0
        for end, as_of, found in ((3, None, 2), (5, 4, 4), (6, "latest", 5)):
            leases_of(reader).tick()  # Nothing is held, so the next claim is a commit again.
            theirs.write([((1, None), end - 1, 1), ((2, None), end - 1, 1)], seal=end).result()
            with ours.snapshot(as_of) as snapshot:
                assert snapshot.as_of == found
                assert snapshot.count() == theirs.snapshot(found).count()
        writer.drop("d").result()
        with pytest.raises(persist.errors.CollectionNotFound):
            dropped.snapshot()


def test_a_claim_that_another_thread_covers_meanwhile_shows_no_newer_state(blob: MemoryBlob) -> None:
    with opened(blob) as client:
        [c], leases = collections_of(client, 1), leases_of(client)
        check_may_wait = leases.check_may_wait

        def claim_first() -> None:
            leases.check_may_wait = check_may_wait
            leases.claim(c.id, "c000", 3)

        leases.check_may_wait = claim_first
        assert leases.claim_unseen(WantedClaim(c.id, "c000", 3)) is None


def test_a_claim_that_takes_a_commit_takes_no_look(blob: MemoryBlob) -> None:
    with opened(blob) as writer, opened(blob) as reader:
        collections_of(writer, 3)
        ours = [reader.load(f"c{n:03}") for n in range(3)]
        seqno = reader.seqno
        looks: list[int] = []
        read_forward = Follower._read_forward

        def counted(follower: Follower) -> None:
            looks.append(1)
            read_forward(follower)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Follower, "_read_forward", counted)
            snapshots = [each.snapshot(as_of) for each, as_of in zip(ours, (None, 7, "latest"), strict=True)]
            assert not looks
            snapshots.append(ours[0].snapshot())  # This one is covered, so only a look shows that nothing has come.
        assert looks
        assert [each.as_of for each in snapshots] == [19, 7, 19, 19]
        assert reader.seqno == seqno + 3
        with pytest.raises(persist.InvalidUsage, match="timeout_s"):
            ours[2].snapshot(timeout_s="soon")  # type: ignore[arg-type]
