"""Holds and leases: since waits for those who read, as long as they are alive."""

import gc
from pathlib import Path

import pyarrow as pa
import pytest

import persist
from persist.blob.layers.unreliable import Fault, UnreliableBlob
from persist.blob.protocol import MemoryBlob
from persist.codecs.types.schema import TIME_MAX
from persist.engine.read.parts.reader import PartReader
from persist.engine.write.part_writer import PartWriter
from tests.support.clocks import DatedBlob, ImpatientClock
from tests.support.parts import commit_parts
from tests.support.tuned import tuned

KEY = {"k": pa.int64()}


def opened(blob: object, clock: ImpatientClock | None = None, **changed: float) -> persist.Client:
    settings = tuned(**{"background": False, "hold_linger_s": 0, **changed})
    return persist.open(blob, clock=clock or ImpatientClock(), settings=settings)  # type: ignore[arg-type]


def collection(client: persist.Client, upper: int = 20) -> persist.Collection:
    """Return a collection with one record a time, sealed up to upper."""
    made = client.create_or_load("c", key=KEY)
    made.write([((time, None), time, 1) for time in range(upper)], seal=upper).result()
    return made


def since(handle: persist.Collection) -> int | None:
    return handle.since.time


def test_an_open_snapshot_keeps_since_where_it_needs_it_and_gives_it_up_when_closed(blob: MemoryBlob) -> None:
    with opened(blob) as reader, opened(blob) as writer:
        theirs, ours = collection(writer), reader.load("c")
        snapshot = ours.snapshot(5)
        theirs.allow_compaction(15).result()
        assert since(theirs) == 5
        assert snapshot.count() == 6
        snapshot.close()
        reader.maintain()
        assert since(theirs) == 15
        with pytest.raises(persist.InvalidUsage, match="closed"):
            snapshot.to_arrow()


def test_a_snapshot_that_is_dropped_is_closed(blob: MemoryBlob) -> None:
    with opened(blob) as reader, opened(blob) as writer:
        theirs = collection(writer)
        assert reader.load("c").snapshot(5).count() == 6
        gc.collect()
        theirs.allow_compaction(15).result()
        reader.maintain()
        assert since(theirs) == 15


def test_a_listen_takes_since_along_as_it_advances(blob: MemoryBlob) -> None:
    with opened(blob) as reader, opened(blob) as writer:
        theirs = collection(writer)
        with reader.load("c").subscribe(3) as listen:
            theirs.allow_compaction(50).result()
            assert since(theirs) == 3
            first, second = listen.poll(), listen.poll()
            assert first is not None
            assert second is not None
            assert (first.updates.num_rows, second.updates.num_rows) == (4, 16)
            reader.maintain()
            assert since(theirs) == 19
            theirs.write([((30, None), 30, 1)], seal=40).result()
            third = listen.poll()
            assert third is not None
            assert third.updates["_time"].to_pylist() == [30]
            reader.maintain()
            assert since(theirs) == 39
        reader.maintain()
        assert since(theirs) == 50


def test_what_a_listen_has_planned_stays_though_it_advances_and_compaction_replaces_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    blob = DatedBlob(ImpatientClock())
    cleaning = {"grace_s": 0, "orphan_grace_s": 0, "merge_runs": 2}
    with opened(blob, blob.clock) as reader, opened(blob, blob.clock, **cleaning) as writer:
        c = writer.create_or_load("c", key=KEY)
        parts = PartWriter(blob, writer.engine.follower.find_next_seqno)
        for time in range(4):
            table = pa.table({"k": [time], "_time": [time], "_diff": [1]})
            commit_parts(c, parts.upload(c.id, c.schema, table), seal=persist.Antichain(time + 1)).result()
        monkeypatch.setattr(PartReader, "slice_bytes", 1)
        with reader.load("c").listen() as listen:
            rows = 0
            for step in range(4):
                progress = listen.poll()
                assert progress is not None
                rows += len(progress.updates)
                if step == 0:
                    c.compact()
                blob.clock.sleep(400)  # Long enough to renew the lease.
                reader.maintain()
                writer.gc()
        assert rows == 4


def test_a_hold_outlives_its_reads_for_a_while_so_that_the_next_ones_cost_nothing(blob: MemoryBlob) -> None:
    clock = ImpatientClock()
    with opened(blob, clock, hold_linger_s=5) as client:
        c = collection(client)
        seqno = client.seqno
        for after_s, is_kept in ((0, True), (4, True), (4, True), (6, False)):
            clock.sleep(after_s)
            client.maintain()
            assert (bool(c.holds()) or not after_s) == is_kept
            if is_kept:
                assert c.snapshot(9).count() == 10
                assert client.seqno == seqno + 1


def test_subscribe_takes_snapshot_and_listen_at_one_point_whatever_comes_in_between(blob: MemoryBlob) -> None:
    with opened(blob) as client, opened(blob) as other:
        c, theirs = collection(client), None
        theirs = other.load("c")
        listen = c.subscribe(9)
        theirs.write([((99, None), 20, 1)], seal=25).result()
        theirs.allow_compaction(24).result()
        times = [t for progress in (listen.poll(), listen.poll()) for t in progress.updates["_time"].to_pylist()]  # type: ignore[union-attr]
        assert sorted(times) == [9] * 10 + list(range(10, 21))


def test_a_lease_is_renewed_and_one_of_a_reader_that_is_gone_expires_after_the_skew(blob: MemoryBlob) -> None:
    clock = ImpatientClock()
    with opened(blob, clock) as writer:
        theirs = collection(writer)
        gone, alive = opened(blob, clock), opened(blob, clock)
        lost, kept = gone.load("c").snapshot(3), alive.load("c").snapshot(8)
        theirs.allow_compaction(15).result()
        for _ in range(4):
            clock.sleep(200)
            alive.maintain()
            writer.maintain()
        assert since(theirs) == 8
        assert kept.count() == 9
        with pytest.raises(persist.errors.LeaseExpired, match=r"deleted: its lease has ended.*Begin again"):
            gone.load("c") and lost.count()
        alive.close()
        gone.close()
        assert since(theirs) == 15


def test_a_client_is_told_once_that_its_lease_ended_and_then_goes_on(blob: MemoryBlob) -> None:
    clock = ImpatientClock()
    with opened(blob, clock) as reader, opened(blob, clock) as writer:
        theirs = collection(writer)
        snapshot = reader.load("c").snapshot(3)
        clock.sleep(700)
        writer.gc()
        with pytest.raises(persist.errors.LeaseExpired):
            reader.maintain()  # It would have renewed it.
        reader.maintain()
        with pytest.raises(persist.errors.LeaseExpired):
            snapshot.count()
        assert reader.load("c").snapshot(3).count() == 4
        theirs.allow_compaction(15).result()
        assert reader.engine.writer("a test").leases.counts()["granted"] == 1


@pytest.mark.parametrize("is_unknown", [True, False])
def test_a_lease_whose_beginning_got_no_answer_is_given_back(blob: MemoryBlob, is_unknown: bool) -> None:
    unreliable = UnreliableBlob(blob)
    with opened(unreliable) as client, opened(blob) as other:
        c = collection(client)
        if is_unknown:
            unreliable.script_faults("create", Fault.HAPPENED_BUT_FAILED)
            unreliable.script_faults("get", *[Fault.UNAVAILABLE] * 2000)
        unreliable.script_faults("create", *[Fault.UNAVAILABLE] * 2000)
        with pytest.raises(persist.Indeterminate if is_unknown else persist.Unavailable):
            client.engine.writer("a test").leases.claim(c.id, "c", 4)
        unreliable.clear_faults()
        assert bool(other.engine.follower.refresh().control.leases) is is_unknown
        if not is_unknown:  # Nothing was promised.
            c.allow_compaction(15).result()
            assert since(c) == 15
        seqno = other.seqno
    with opened(blob) as other:
        assert not other.engine.follower.refresh().control.leases
        assert (other.seqno > seqno) is is_unknown


def test_a_client_ends_although_it_cannot_give_its_lease_back(
    blob: MemoryBlob, caplog: pytest.LogCaptureFixture
) -> None:
    unreliable = UnreliableBlob(blob)
    with opened(unreliable) as client:
        collection(client).hold(4)
        unreliable.script_faults("create", *[Fault.UNAVAILABLE] * 2000)
    assert "a lease was not given back, and lasts until it expires" in caplog.text


def test_a_claim_that_is_refused_leaves_nothing_in_the_log(blob: MemoryBlob) -> None:
    with opened(blob) as client, opened(blob) as other:
        c = collection(client)
        other.load("c").allow_compaction(9).result()
        seqno = other.seqno
        leases = client.engine.writer("a test").leases
        with pytest.raises(persist.errors.AsOfCompacted):  # The client has not heard of it.
            leases.claim(c.id, "c", 3)
        assert client.metrics().groups["commits"]["rejected"] == 1, "it is asked for once"
        assert other.seqno == seqno
        assert not other.engine.follower.state.control.leases
        leases.tick()
        assert client.seqno == seqno + 1  # The hold may be in the log for all it knows.
        check_may_wait, leases.check_may_wait = leases.check_may_wait, list[object]().pop
        with pytest.raises(IndexError):
            leases.claim(c.id, "c", 12)
        leases.check_may_wait = check_may_wait
        leases.tick()
        assert (client.seqno, leases.counts()["reads"]) == (seqno + 1, 0)
        claim = leases.claim(c.id, "c", 12)
    with pytest.raises(persist.errors.ClientClosed, match="reading"):
        claim.check()


def test_a_lease_lasts_as_long_as_settings_say_and_is_renewed_from_that_moment_on(blob: MemoryBlob) -> None:
    clock = ImpatientClock()
    with opened(blob, clock, lease_s=600.0) as client:
        snapshot = collection(client).snapshot(3)
        [lease] = client.engine.follower.state.control.leases.values()
        assert lease.expires_ms - clock.wall_ms() == pytest.approx(600_000, abs=5)
        seqno = client.seqno
        clock.jump((lease.expires_ms - clock.wall_ms()) / 1000 + 0.0002)
        assert clock.wall_ms() == lease.expires_ms
        assert snapshot.count() == 4
        assert client.seqno == seqno + 1
        snapshot.close()


def test_a_hold_of_a_view_that_keeps_no_time_says_so() -> None:
    assert persist.HoldInfo("x", 3).kept == 3
    assert persist.HoldInfo("view x", TIME_MAX).kept is None


def test_an_explicit_hold_keeps_since_until_it_is_advanced_or_closed(blob: MemoryBlob) -> None:
    with opened(blob) as reader, opened(blob) as writer:
        theirs = collection(writer)
        with reader.load("c").hold(4) as hold:
            theirs.allow_compaction(15).result()
            assert since(theirs) == 4
            hold.advance(6)
            seqno = reader.seqno
            hold.advance(6)
            assert reader.seqno == seqno
            assert (since(theirs), hold.time) == (6, 6)
            with pytest.raises(persist.errors.FrontierRegression):
                hold.advance(5)
        assert since(theirs) == 15
        with pytest.raises(persist.errors.AsOfCompacted):
            reader.load("c").hold(14)
        with pytest.raises(persist.InvalidUsage, match="released"):
            hold.advance(20)


def test_a_hold_may_stand_beyond_upper(blob: MemoryBlob) -> None:
    with opened(blob) as client:
        c = collection(client)
        with c.hold(100):
            c.allow_compaction(200).result()
            assert since(c) == 100


def test_a_named_hold_outlives_its_client_and_is_moved_by_compare_and_set(blob: MemoryBlob) -> None:
    clock = ImpatientClock()
    with opened(blob, clock) as client:
        hold = collection(client).hold(4, name="consumer-1")
        hold.close()
    with opened(blob, clock) as client:
        clock.sleep(1e6)
        c = client.load("c")
        client.gc()
        c.allow_compaction(15).result()
        assert since(c) == 4
        first, second = c.hold(name="consumer-1"), c.hold(0, name="consumer-1")
        assert (first.time, second.time) == (4, 4)
        first.advance(7)
        seqno = client.seqno
        first.advance(7)
        assert client.seqno == seqno
        assert since(c) == 7
        with pytest.raises(persist.errors.HoldMoved):
            second.release()
        with pytest.raises(persist.errors.HoldMoved) as moved:
            second.advance(9)
        assert (moved.value.expected, moved.value.actual) == (4, 7)
        assert since(c) == 7
        assert c.holds() == [persist.HoldInfo("consumer-1", 7)]
        first.release()
        first.release()
        assert since(c) == 15
        with pytest.raises(persist.errors.HoldMoved, match="not there"):
            first.advance(20)
        with pytest.raises(persist.errors.HoldNotFound, match="consumer-1"):
            c.hold(name="consumer-1")


@pytest.mark.parametrize("name", ["", "a/b", "..", 7, "x" * 300])
def test_a_bad_name_of_a_hold_is_refused(blob: MemoryBlob, name: str) -> None:
    with opened(blob) as client:
        c = collection(client)
        with pytest.raises(persist.InvalidUsage, match="hold name"):
            c.hold(3, name=name)
        with pytest.raises(persist.InvalidUsage, match="needs the time"):
            c.hold()


def test_a_client_that_only_reads_gets_a_clear_error_past_the_grace_period(tmp_path: Path) -> None:
    clock = ImpatientClock()
    with opened(tmp_path, clock, grace_s=0, orphan_grace_s=0) as writer:
        c = writer.create_or_load("c", key=KEY)
        c.write(pa.table({"k": range(50_000), "_time": [0] * 50_000, "_diff": [1] * 50_000}), seal=1).result()
        with persist.open(tmp_path, mode="read") as reader:
            snapshot = reader.load("c").snapshot(0)
            assert snapshot.to_arrow().num_rows == 50_000
            c.drop().result()
            assert writer.gc().parts > 0
            with pytest.raises(persist.errors.LeaseExpired, match="grace period"):
                snapshot.to_arrow()


def test_where_there_always_are_new_reads_a_hold_moves_every_tenth_of_a_lease(blob: MemoryBlob) -> None:
    clock = ImpatientClock()
    with opened(blob, clock, hold_linger_s=1000.0, lease_s=600.0) as client, opened(blob) as writer:
        theirs = collection(writer)
        c = client.load("c")
        c.snapshot(3).close()
        theirs.allow_compaction(15).result()
        for after_s, expected in ((30, 3), (29, 3), (1, 9), (59, 9)):
            clock.sleep(after_s)
            with c.snapshot(9):
                client.maintain()
                assert since(theirs) == expected
        clock.sleep(1001)
        client.maintain()
        assert since(theirs) == 15


def test_what_cannot_be_let_go_of_now_is_let_go_of_later_and_what_is_gone_can_be_moved(blob: MemoryBlob) -> None:
    unreliable = UnreliableBlob(blob)
    with opened(unreliable) as client, opened(blob) as other:
        c, leases = collection(client), client.engine.writer("a test").leases
        claim, stays = leases.claim(c.id, "c", 4), leases.claim(c.id, "c", 9)
        other.load("c").drop().result()
        for time in (5, 6):
            claim.move(time)
            leases.settle(c.id)
        stays.check()
        assert leases.counts() == {"granted": 1, "holds": 0, "reads": 2}
        gone = client.create_or_load("d", key=KEY)
        leases.claim(gone.id, "d", 4).release()
        unreliable.script_faults("create", *[Fault.UNAVAILABLE] * 2000)
        leases.settle(gone.id)
        assert [hold.time for hold in gone.holds()] == [4]
        unreliable.clear_faults()
        leases.settle(gone.id)
        assert gone.holds() == []


def test_a_named_hold_whose_move_got_no_answer_goes_on_from_where_it_is(blob: MemoryBlob) -> None:
    unreliable = UnreliableBlob(blob)
    with opened(unreliable) as client:
        hold = collection(client).hold(4, name="consumer")
        for target in (6, 8):
            unreliable.script_faults("create", Fault.HAPPENED_BUT_FAILED)
            unreliable.script_faults("get", *[Fault.UNAVAILABLE] * 2000)
            unreliable.script_faults("create", *[Fault.UNAVAILABLE] * 2000)
            with pytest.raises(persist.Indeterminate):
                hold.advance(target)
            unreliable.clear_faults()
            hold.advance(target + 1)
            assert client.load("c").hold(name="consumer").time == hold.time == target + 1
