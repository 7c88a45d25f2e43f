"""Garbage collection and the length of the log: what goes, what stays, and who must notice."""

import base64
import json
import re
import threading
from contextlib import suppress
from typing import Any, Literal, cast

import pyarrow as pa
import pytest

import persist
from persist.blob.protocol import MemoryBlob
from persist.codecs.part.part import Part
from persist.core.log.framing import BlobRef
from persist.core.log.keys import make_record_key, parse_directory_seqno, parse_upload_seqno
from persist.engine.follow import checkpoint, directory
from persist.engine.follow.checkpoint import INTERVAL, iterate_checkpoints, read_newest_checkpoint
from persist.engine.upkeep import references as names
from persist.engine.write.part_writer import PartWriter
from persist.errors import LogReplaced
from tests.support.checkpoints import wait_for_checkpoint
from tests.support.clocks import DatedBlob, ImpatientClock
from tests.support.parts import commit_parts
from tests.support.rollback import Copy, copied, restore
from tests.support.stepped import WAIT_S, Stepped
from tests.support.tuned import tuned

KEY = {"k": pa.int64()}
HOUR, DAY = 3600.0, 86400.0


def opened(blob: DatedBlob, clock: ImpatientClock | None = None, **changed: Any) -> persist.Client:
    settings = tuned(**{"background": False, "hold_linger_s": 0, **changed})
    return persist.open(blob, clock=clock or blob.clock, settings=settings)


def table(rows: int = 20_000, time: int = 0) -> pa.Table:
    return pa.table({"k": range(rows), "_time": [time] * rows, "_diff": [1] * rows})


def keys(blob: MemoryBlob, prefix: str) -> list[str]:
    return [entry.key for entry in blob.list(prefix)]


@pytest.fixture
def dated() -> DatedBlob:
    return DatedBlob(ImpatientClock())


def orphan(blob: DatedBlob, client: persist.Client, handle: persist.Collection) -> list[Part]:
    """Upload what no record names."""
    return list(
        PartWriter(blob, client.engine.follower.find_next_seqno).upload(handle.id, handle.schema, table(time=5))
    )


def test_an_upload_that_was_committed_meanwhile_is_not_deleted(dated: DatedBlob) -> None:
    with opened(dated) as client, opened(dated, orphan_grace_s=0, grace_s=0) as collector:
        c = client.create_or_load("c", key=KEY)
        parts = orphan(dated, client, c)
        submit = collector.engine.writer("a test").committer.submit

        def late(*args: object) -> persist.CommitFuture:
            commit_parts(c, parts).result()  # Between the collector's listing and its declaration.
            return submit(*args)  # type: ignore[arg-type]

        collector.engine.writer("a test").committer.submit = late  # type: ignore[method-assign, assignment]
        assert collector.gc().parts == 0
        c.seal(10).result()
        assert c.snapshot(9).count() == 20_000


def test_an_upload_named_exactly_at_the_floor_may_be_committed_still_and_stays(dated: DatedBlob) -> None:
    with opened(dated) as client, opened(dated) as collector:
        c = client.create_or_load("c", key=KEY)
        c.write(table(), seal=1).result()
        collector.gc()  # It makes a checkpoint, which will prove how old the records are.
        parts = orphan(dated, client, c)
        dated.clock.sleep(DAY + 60)
        assert collector.gc().parts == 0
        assert parse_upload_seqno(parts[0].blob) == collector.engine.follower.state.control.upload_floor
        commit_parts(c, parts, seal=persist.Antichain(10)).result()
        assert c.snapshot(9).to_arrow().num_rows == 40_000


def busy(client: persist.Client, c: persist.Collection, clock: ImpatientClock, hours: int, per_hour: int = 10) -> None:
    """Seal many times over some hours, by the clock of the store. The clock waits for checkpoints that are due."""
    start = c.upper.time or 0
    for n in range(1, hours * per_hour + 1):
        c.seal(start + n).result()
        wait_for_checkpoint(client)
        clock.sleep(HOUR / per_hour)


SHORT: dict[str, Any] = {"log_retention_s": 5 * HOUR, "log_retention_records": 50}


def truncated_while_asleep(dated: DatedBlob, client: persist.Client, c: persist.Collection) -> None:
    for _ in range(3):
        busy(client, c, dated.clock, 10, per_hour=6)
        client.gc()
    client.gc()
    assert client.engine.follower.state.control.log_floor > 90


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize("mode", ["read", "shared"])
def test_a_reader_that_was_asleep_across_a_truncation_goes_on_from_the_newest_checkpoint(
    dated: DatedBlob, mode: Literal["read", "shared"]
) -> None:
    with opened(dated, **SHORT) as client, persist.open(dated, mode=mode, clock=dated.clock) as sleeper:
        c = client.create_or_load("c", key=KEY)
        c.write([((1, None), 0, 1)], seal=1).result()
        listen = sleeper.load("c").subscribe(0)
        assert listen.poll() is not None
        c.write([((2, None), 5, 1)]).result()
        truncated_while_asleep(dated, client, c)
        if mode == "shared":  # It had a lease, which ran out: it is told so, and begins again.
            with pytest.raises(persist.errors.LeaseExpired):
                listen.poll()
            listen = sleeper.load("c").listen(0)
        # Had it taken the free slot for the end of the log, it would see neither the update nor the seals.
        progress = listen.poll()
        assert progress is not None
        assert progress.updates["k"].to_pylist() == [2]
        assert progress.upper == c.upper


def test_a_writer_that_was_asleep_across_a_truncation_does_not_write_into_a_truncated_slot(dated: DatedBlob) -> None:
    with opened(dated, **SHORT) as client, opened(dated, **SHORT) as sleeper:
        c = client.create_or_load("c", key=KEY)
        theirs = sleeper.load("c")
        theirs.seal(1).result()
        truncated_while_asleep(dated, client, c)
        seqno = theirs.write([((7, None), 1_000_000, 1)]).result()
        assert seqno == client.engine.follower.refresh().seqno
        c.seal(1_000_001).result()
        assert c.snapshot(1_000_000).count() == 1
        assert min(keys(dated, "log/")) == make_record_key(client.engine.follower.state.control.log_floor)


def test_another_thread_that_wakes_up_first_does_not_hide_that_a_slot_was_truncated(dated: DatedBlob) -> None:
    store = Stepped(dated)
    with opened(dated, **SHORT) as client, opened(cast(DatedBlob, store), dated.clock, **SHORT) as sleeper:
        c = client.create_or_load("c", key=KEY)
        theirs = sleeper.load("c")
        theirs.seal(1).result()  # The store has been proved: the next create is that of a record.
        truncated_while_asleep(dated, client, c)

        def read_in_another_thread() -> None:
            reader = threading.Thread(target=lambda: theirs.upper)
            reader.start()
            reader.join()

        store.after("create", "log/", read_in_another_thread)
        seqno = theirs.write([((7, None), 1_000_000, 1)]).result()
        assert seqno == client.engine.follower.refresh().seqno
        c.seal(1_000_001).result()
        assert c.snapshot(1_000_000).count() == 1


def test_a_writer_that_falls_asleep_right_after_its_commit_does_not_commit_it_twice(dated: DatedBlob) -> None:
    store = Stepped(dated)
    with opened(dated, **SHORT) as client, opened(cast(DatedBlob, store), dated.clock, **SHORT) as sleeper:
        c = client.create_or_load("c", key=KEY)
        theirs = sleeper.load("c")
        theirs.seal(1).result()
        store.after("create", "log/", lambda: truncated_while_asleep(dated, client, c))
        with pytest.raises(persist.Indeterminate, match="took so long"):
            theirs.write([((7, None), 1_000_000, 1)], token="once").result()
        theirs.write([((7, None), 1_000_000, 1)], token="once").result()
        c.seal(1_000_001).result()
        assert c.snapshot(1_000_000).count() == 1


def test_a_location_that_lost_its_checkpoints_after_a_truncation_is_not_taken_for_an_empty_one(
    dated: DatedBlob,
) -> None:
    with opened(dated, **SHORT) as client:
        c = client.create_or_load("c", key=KEY)
        truncated_while_asleep(dated, client, c)
    for key in keys(dated, "checkpoint/"):
        dated.delete(key)
    modes: list[Literal["read", "shared"]] = ["read", "shared"]
    for mode in modes:
        with pytest.raises(persist.errors.CorruptBlob, match="no checkpoint can be read"):
            persist.open(dated, mode=mode)


def test_a_truncated_location_whose_newest_checkpoint_goes_between_list_and_get_is_not_taken_for_an_empty_one(
    dated: DatedBlob,
) -> None:
    with opened(dated, **SHORT) as client:
        c = client.create_or_load("c", key=KEY)
        truncated_while_asleep(dated, client, c)
        upper = c.upper
    state = read_newest_checkpoint(dated)
    assert state.control.log_floor > 0
    newest, *older = keys(dated, "checkpoint/")
    assert older
    store = Stepped(dated)
    store.after("list", "checkpoint/", lambda: dated.delete(newest))
    found = read_newest_checkpoint(store)
    assert store.is_done
    assert (found.location, found.list_names()) == (state.location, ("c",))
    with persist.open(dated, mode="read", clock=dated.clock) as reader:
        assert reader.load("c").upper == upper


@pytest.mark.parametrize("only", ["wall", "monotonic"])
def test_a_client_that_slept_notices_by_whichever_clock_went_on(dated: DatedBlob, only: str) -> None:
    """The monotonic clock stands still while a machine is suspended; the wall clock may be set back."""
    clock = ImpatientClock()
    with opened(dated, **SHORT) as client, persist.open(dated, mode="read", clock=clock) as sleeper:
        c = client.create_or_load("c", key=KEY)
        theirs = sleeper.load("c")
        truncated_while_asleep(dated, client, c)
        if only == "wall":
            clock.jump(DAY)
        else:
            clock.sleep(DAY)
            clock.jump(-DAY)
        assert theirs.upper == c.upper


def test_a_refresh_that_took_long_has_seen_the_end_of_the_log_when_it_began(dated: DatedBlob) -> None:
    store = Stepped(dated)
    with opened(dated, **SHORT) as client, persist.open(store, mode="read", clock=dated.clock) as sleeper:
        c = client.create_or_load("c", key=KEY)
        theirs = sleeper.load("c")
        # It finds no further record, and hears of that only when the log has been truncated beyond that slot.
        store.after("get", "log/", lambda: truncated_while_asleep(dated, client, c))
        # On a busy machine, a look that was made ahead may begin after the truncation, and finds what is new.
        assert theirs.upper in (persist.Antichain(0), c.upper)
        assert store.is_done
        assert theirs.upper == c.upper


def test_a_client_whose_state_object_was_collected_reads_on_from_the_newest_checkpoint(dated: DatedBlob) -> None:
    with opened(dated, orphan_grace_s=0, **SHORT) as client:
        c, quiet = client.create_or_load("c", key=KEY), client.create_or_load("quiet", key=KEY)
        for upper in range(1, 60):
            quiet.seal(upper).result()
            wait_for_checkpoint(client)
        with persist.open(dated, mode="read", clock=dated.clock) as reader:
            old = {
                entry.base.blob
                for entry in reader.engine.follower.state.entries.values()
                if isinstance(entry.base, BlobRef)
            }
            assert old
            for upper in range(60, 150):
                quiet.seal(upper).result()
                wait_for_checkpoint(client)
            truncated_while_asleep(dated, client, c)
            assert old.isdisjoint(keys(dated, "state/"))
            assert reader.load("quiet").upper == persist.Antichain(149)


def test_gc_of_an_empty_location_writes_nothing(dated: DatedBlob) -> None:
    with opened(dated) as client:
        assert client.gc() == persist.GarbageReport()
    assert keys(dated, "") == []
    with persist.open(dated, mode="read") as reader, pytest.raises(persist.errors.ReadOnly):
        reader.gc()


def test_gc_of_an_idle_location_does_not_go_on_writing_records(dated: DatedBlob) -> None:
    with opened(dated, **SHORT) as client:
        c = client.create_or_load("c", key=KEY)
        c.write(table(), seal=1).result()
        orphan(dated, client, c)
        seqnos = []
        for _ in range(70):
            wait_for_checkpoint(client)
            dated.clock.sleep(HOUR)
            client.gc()
            seqnos.append(client.engine.follower.state.seqno)
        assert seqnos[-1] == seqnos[60]
        assert len(keys(dated, "part/")) == 1
        assert len(keys(dated, "checkpoint/")) <= 5


def test_of_collections_destroyed_together_only_those_nobody_reads_are_collected(dated: DatedBlob) -> None:
    with opened(dated, grace_s=0, orphan_grace_s=0) as client, opened(dated) as reader:
        read, unread = client.create_or_load("read", key=KEY), client.create_or_load("unread", key=KEY)
        for each in (read, unread):
            each.write(table(), seal=1).result()
        snapshot = reader.load("read").snapshot(0)
        futures = [each.drop() for each in (read, unread)]
        assert len({future.result() for future in futures}) == 1  # One record.
        assert client.gc().collections == 1
        assert snapshot.to_arrow().num_rows == 20_000
        assert [d.collection for d in client.engine.follower.refresh().control.dropped] == [read.id]


def test_a_collector_that_lags_behind_is_not_stopped_by_state_objects_that_others_have_collected(
    dated: DatedBlob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("persist.engine.follow.checkpoint.STORED_PENDING_MAX", 1)
    settings: dict[str, Any] = {"log_retention_records": 16, "log_retention_s": HOUR}
    with opened(dated, **settings) as writer:
        c = writer.create_or_load("c", key=KEY)
        c.write(table(), seal=1).result()
        c.write(table(10, 1), seal=2).result()
        writer.gc()
        (old,) = keys(dated, "state/")
        with opened(dated, **settings) as other:
            assert other.collections() == ["c"]  # It knows of the contents only where they are.
            for time in range(2, 30):
                c.write(table(10, time), seal=time + 1).result()
                wait_for_checkpoint(writer)
                dated.clock.sleep(HOUR)
                writer.gc()
                other.collections()
            assert old not in keys(dated, "state/")
            other.gc()
        assert c.snapshot(29).count() == 20_000 + 29 * 10


class HeldCheckpoint(DatedBlob):
    """A store that takes its time with the first checkpoint that it is given, until it is let go."""

    def __init__(self, clock: ImpatientClock) -> None:
        super().__init__(clock)
        self.is_held, self.let_go = threading.Event(), threading.Event()

    def create(self, key: str, value: bytes) -> bool:
        if key.startswith("checkpoint/") and not self.is_held.is_set():
            self.is_held.set()
            assert self.let_go.wait(WAIT_S)
        return super().create(key, value)


def test_a_client_does_not_collect_what_a_checkpoint_that_it_is_making_will_refer_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("persist.engine.follow.checkpoint.STORED_PENDING_MAX", 1)
    blob = HeldCheckpoint(ImpatientClock())
    with opened(blob, grace_s=0, orphan_grace_s=0) as client:
        c = client.create_or_load("c", key=KEY)
        for time in range(INTERVAL):
            c.write(table(10, time), seal=time + 1).result()
        assert blob.is_held.wait(WAIT_S)
        (named,) = keys(blob, "state/")
        # Its thread may have come late, and taken in the last record.
        c.write(table(10, INTERVAL), seal=INTERVAL + 1).result()
        client.gc()
        blob.let_go.set()
    assert named in keys(blob, "state/")
    with opened(blob) as again:
        assert len(keys(blob, "checkpoint/")) == 3
        assert again.fsck().is_clean


def restored_within(blob: DatedBlob, copy: Copy, prefix: str, **settings: Any) -> None:
    """Collect, and restore a copy when the collector has listed a prefix: its location is another one from there on."""
    store = Stepped(blob)
    with persist.open(store, clock=blob.clock, settings=tuned(background=False, hold_linger_s=0, **settings)) as late:
        store.after("list", prefix, lambda: restore(blob, copy))
        with suppress(LogReplaced):
            late.gc()
        assert store.is_done


def test_a_restore_within_a_collection_of_garbage_loses_no_part_of_a_collection_that_was_destroyed(
    dated: DatedBlob,
) -> None:
    with opened(dated) as client:
        c = client.create_or_load("c", key=KEY)
        c.write(table(), seal=1).result()
        copy = copied(dated)
        c.drop().result()
        client.gc()
        dated.clock.sleep(2 * HOUR)
    restored_within(dated, copy, f"part/{c.id}/")
    assert copied(dated).keys() >= copy.keys()
    with opened(dated) as client:
        assert client["c"].snapshot(0).count() == 20_000


def test_a_restore_of_a_newer_backup_within_a_collection_of_garbage_loses_no_part_either(dated: DatedBlob) -> None:
    """What the collector knows lies below the floor of that backup, whose parts are unknown to it."""
    short: dict[str, Any] = {"log_retention_s": 240, "log_retention_records": 16, "grace_s": 240, "orphan_grace_s": 0}
    with opened(dated, **short) as client:
        c = client.create_or_load("c", key=KEY)
        old = copied(dated)
        c.write(table(), seal=1).result()
        for time in range(2, 62):
            c.seal(time).result()
            wait_for_checkpoint(client)
            dated.clock.sleep(HOUR)
        client.gc()
        newer = copied(dated)
        assert min(keys(dated, "log/")) > make_record_key(10)
    restore(dated, old)
    with opened(dated, **short) as client:
        orphan(dated, client, client["c"])
    store = Stepped(dated)
    with persist.open(store, clock=dated.clock, settings=tuned(background=False, hold_linger_s=0, **short)) as late:
        store.after("create", "log/", lambda: store.before("list", "part/", lambda: restore(dated, newer)))
        late.gc()
        assert store.is_done
    assert {key for key in newer if key.startswith("part/")} <= set(keys(dated, "part/"))
    with opened(dated, **short) as client:
        assert client["c"].snapshot().count() == 20_000


@pytest.mark.parametrize("how", ["dropped", "forgotten"])
def test_what_is_gone_leaves_the_directory_objects_with_the_log(
    dated: DatedBlob, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The checkpoint that others are made of stays, with all that it names, so it must be a newer one by then."""
    monkeypatch.setattr(directory, "INLINE_BYTES_MAX", 1500)
    with opened(dated, orphan_grace_s=HOUR, **SHORT) as client:
        c = client.create_or_load("c", key={"k": pa.string()})
        c.write([(("the secret", None), 0, 1)], seal=1).result()
        # What follows is more than a checkpoint holds itself, whenever one is made, so the secret goes into an object.
        others = [client.create_or_load(f"other {n}", key=KEY) for n in range(20)]
        client.gc()
        assert where_it_is(dated, "directory/")
        if how == "forgotten":
            c.write([(("the secret", None), 1, -1), (("x", None), 1, 1)], seal=3).result()
        busy(client, others[0], dated.clock, 1)
        dated.set(f"state/{c.id}/{0:020d}-{'0' * 32}.json", b"")
        dated.clock.sleep(2 * HOUR)
        client.gc()  # Something is garbage: from now on, checkpoints are made of this one.
        assert client.engine.follower.state.control.taken_over is not None
        if how == "forgotten":
            c.allow_compaction(2).result()
            c.compact()
        else:
            c.drop().result()
        busy(client, others[0], dated.clock, 10, per_hour=10)
        for _ in range(8):
            wait_for_checkpoint(client)
            dated.clock.sleep(HOUR)
            client.gc()
        control = client.engine.follower.refresh().control
        assert control.taken_over is not None
        basis = json.loads(dated.get(control.taken_over.checkpoint.blob) or b"")
        assert min(parse_directory_seqno(pointer["blob"]) or 0 for pointer in basis["directory"]) >= control.log_floor
        if how == "forgotten":  # Checkpoints of the time of the log that is kept may say what was dropped since.
            assert where_it_is(dated, "") == []


def test_a_collector_that_sleeps_declares_no_checkpoint_that_it_knows_no_record_after(
    dated: DatedBlob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others commit and make checkpoints whenever it lists them, so that the newest one is ahead of what it knows."""
    monkeypatch.setattr(directory, "INLINE_BYTES_MAX", 1500)
    stepped = Stepped(dated)
    with opened(dated, orphan_grace_s=HOUR, **SHORT) as client:
        others = [client.create_or_load(f"other {n}", key=KEY) for n in range(20)]
        busy(client, others[0], dated.clock, 1)
        dated.set(f"state/{others[0].id}/{0:020d}-{'0' * 32}.json", b"")
        dated.clock.sleep(2 * HOUR)
        client.gc()
        busy(client, others[0], dated.clock, 10, per_hour=10)
        with opened(stepped, dated.clock, orphan_grace_s=HOUR, **SHORT) as late:  # type: ignore[arg-type]

            def go_on() -> None:
                for _ in range(INTERVAL):
                    others[0].seal(others[0].upper.time + 1).result()  # type: ignore[operator]
                    wait_for_checkpoint(client)
                stepped.before("list", "checkpoint/", go_on)

            stepped.before("list", "checkpoint/", go_on)
            late.gc()
        assert client.engine.follower.refresh().control.log_floor > 0


def where_it_is(blob: MemoryBlob, prefix: str) -> list[str]:
    """Return the objects in which there is the secret."""
    found = []
    for key in keys(blob, prefix):
        data = blob.get(key) or b""
        inline = re.findall(rb'"inline":"([^"]+)"', data)
        found += [key] if any(b"the secret" in text for text in (data, *map(base64.b64decode, inline))) else []
    return found


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize("remembered", [0, 1, 45, 10**6])
def test_what_old_checkpoints_name_is_kept_however_few_names_may_be_remembered(
    remembered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "REMEMBERED_MAX", remembered)
    monkeypatch.setattr(checkpoint, "STORED_PENDING_MAX", 0)  # Each collection has an object of its own.
    monkeypatch.setattr(directory, "INLINE_BYTES_MAX", 500)
    blob = DatedBlob(ImpatientClock())
    with opened(blob) as client:
        made = [client.create_or_load(f"c{n}", key=KEY) for n in range(10)]
        for hour in range(1, 5):
            for n in range(2 * INTERVAL):
                made[n % 10].seal(100 * hour + n).result()
                wait_for_checkpoint(client)
            blob.clock.sleep(HOUR)
        newest, *others = iterate_checkpoints(blob)
        known, present = names.KnownNames(), {entry.key for entry in blob.list("") if "/" in entry.key}
        assert len(others) > 3
        for _ in range(2):  # The second time, what was remembered is taken.
            reader = names.Names(blob, known)
            seqnos = [each.checkpoint.seqno for each in others]
            named, useless = reader.list_older(seqnos, newest, present)
            assert named == set[str]().union(*(reader.list_named(each.checkpoint) for each in others))
            assert not useless
            kept = [len(hashes) for hashes in known.hashes.values()]
            assert sum(kept) <= remembered
            assert len(kept) == len(others) or sum(kept) + 20 > remembered, "as many as there is room for"
        gone = others.pop(1)
        blob.delete(gone.checkpoint.directory[-1].blob)
        reader = names.Names(blob)
        present.discard(gone.checkpoint.directory[-1].blob)
        named, useless = reader.list_older([gone.checkpoint.seqno, *seqnos], newest, present)
        assert useless == {gone.pointer.blob}
        assert named == set[str]().union(*(reader.list_named(each.checkpoint) for each in others))


def test_the_record_after_the_newest_one_that_is_old_enough_keeps_its_grace(dated: DatedBlob) -> None:
    with opened(dated, grace_s=HOUR) as client:
        c = client.create_or_load("c", key=KEY)
        c.write(table()).result()
        part = keys(dated, f"part/{c.id}")
        checkpoint.write_checkpoint(dated, *client.engine.follower.get_recent_records())
        dated.clock.sleep(2 * HOUR)
        c.drop().result()
        with opened(dated, grace_s=HOUR) as collector:
            assert collector.gc().collections == 0
        assert keys(dated, f"part/{c.id}") == part
        client.describe("a later record").result()
        dated.clock.sleep(2 * HOUR)
    with opened(dated, grace_s=HOUR) as collector:
        collector.gc()
        assert keys(dated, f"part/{c.id}") == []
