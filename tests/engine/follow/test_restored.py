"""A backup that is restored in place under an open client: nothing is acknowledged beyond the hole, and all is said."""

import logging

import msgspec
import pytest

import persist
from persist.blob.layers.metered import MeteredBlob
from persist.blob.protocol import Blob, MemoryBlob
from persist.core.log.framing import encode_framed
from persist.core.log.records import create_record, read_record
from persist.engine.follow.checkpoint import INTERVAL
from persist.engine.follow.log_identity import PROVE_AFTER_S, PROVE_READS_AFTER_S
from persist.errors import LogInterrupted, LogReplaced
from tests.support.checkpoints import wait_for_checkpoint
from tests.support.clocks import ImpatientClock
from tests.support.rollback import QUIET, copied, interrupted, made, opened, restore, rolled_back, trusting, write


def upper_of(blob: Blob, clock: ImpatientClock) -> int | None:
    with opened(blob, clock, "read") as reader:
        return reader.load("c").upper.time


def log(blob: MemoryBlob) -> list[str]:
    return [entry.key for entry in blob.list("log/")]


def test_after_a_pause_a_client_writes_nothing_beyond_the_hole_and_says_why() -> None:
    blob, clock, client, collection = rolled_back()
    before = log(blob)
    clock.sleep(PROVE_AFTER_S)
    with client:
        with pytest.raises(LogReplaced, match=r"is gone.*restored in place.*open new clients") as caught:
            write(collection, range(36, 37))
        assert (caught.value.seqno, caught.value.found) == (36, None)
        assert log(blob) == before
    assert upper_of(blob, clock) == 6


def test_a_client_that_has_stopped_stays_so_whatever_the_store_holds_later() -> None:
    blob, clock, client, collection = rolled_back()
    clock.sleep(PROVE_AFTER_S)
    with client:
        with pytest.raises(LogReplaced):
            write(collection, range(36, 37))
        with opened(blob, clock) as other:
            write(made(other), range(6, 46))
        for ask in (lambda: collection.seal(99).result(), lambda: client.seqno, lambda: collection.snapshot(3)):
            with pytest.raises(LogReplaced):
                ask()
    assert upper_of(blob, clock) == 46


def test_a_client_that_never_pauses_is_stopped_by_the_clock() -> None:
    _, clock, client, collection = rolled_back(3)
    acknowledged = 0
    with client, pytest.raises(LogReplaced):
        for time in range(9, 30):
            clock.sleep(PROVE_AFTER_S / 4)
            write(collection, range(time, time + 1))
            acknowledged += 1
    assert acknowledged <= 4


@pytest.mark.parametrize("is_remote", [False, True])
@pytest.mark.parametrize("lost", [1, 3, INTERVAL - 1])
def test_a_client_that_wrote_where_the_next_checkpoint_is_due_bridges_no_hole(
    lost: int, is_remote: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It created the very record that a roll-back should have taken, if it goes on before it asks for its past.

    Records are listed in a remote store, and looked up one by one in others.
    """
    monkeypatch.setattr(MemoryBlob, "is_remote", is_remote, raising=False)
    blob, clock, client, collection = rolled_back(lost, pause_s=0)
    time = 6 + lost
    with client, pytest.raises(LogReplaced):
        for later in range(time, time + 2 * INTERVAL):
            write(collection, range(later, later + 1))
            wait_for_checkpoint(client)  # Checkpoints are made by the pool.
    assert upper_of(blob, clock) == 6


def test_a_reader_whose_checkpoint_went_with_the_past_is_told_that_it_was_replaced() -> None:
    blob, _, client, _ = rolled_back(INTERVAL)
    with client:
        for entry in list(blob.list("checkpoint/")):
            blob.delete(entry.key)
        with pytest.raises(LogReplaced):
            client.engine.follower.restart()


def test_a_hole_that_comes_while_the_client_writes_is_noticed_at_the_next_checkpoint() -> None:
    """What the client looks for is still there: the tool that restores listed the log before."""
    blob, clock = MemoryBlob(), ImpatientClock()
    with opened(blob, clock) as client:
        collection = made(client)
        write(collection, range(6))
        copy = copied(blob)
        write(collection, range(6, 36))
        doomed = [key for key in copied(blob) if key not in copy]
        clock.sleep(2 * PROVE_AFTER_S)
        write(collection, range(36, 40))
        for key in doomed:
            blob.delete(key)
        with pytest.raises(LogReplaced):
            for time in range(40, 40 + 2 * INTERVAL):
                write(collection, range(time, time + 1))
                wait_for_checkpoint(client)
    assert list(blob.list("checkpoint/")) == []


def test_what_was_acknowledged_beyond_the_hole_does_not_hide_it_the_next_time() -> None:
    blob, clock = MemoryBlob(), ImpatientClock()
    with trusting(opened(blob, clock)) as client:
        collection = made(client)
        write(collection, range(6))
        copy = copied(blob)
        write(collection, range(6, 9))
        clock.sleep(PROVE_READS_AFTER_S)
        assert client.seqno == 9  # So the client has just looked.
        restore(blob, copy)
        write(collection, range(9, 10))
        clock.sleep(PROVE_AFTER_S / 2)
        write(collection, range(10, 11))
        clock.sleep(PROVE_AFTER_S / 2)
        with pytest.raises(LogReplaced) as caught:
            write(collection, range(11, 12))
        assert caught.value.seqno == 9


def test_a_reader_hears_of_it_too() -> None:
    blob, clock = MemoryBlob(), ImpatientClock()
    with opened(blob, clock) as client, opened(blob, clock, "read") as reader:
        write(made(client), range(5))
        clock.sleep(2 * PROVE_READS_AFTER_S)
        copy = copied(blob)
        write(made(client), range(5, 10))
        assert reader.load("c").upper.time == 10
        restore(blob, copy)
        clock.sleep(PROVE_READS_AFTER_S)
        with pytest.raises(LogReplaced):
            reader.load("c")


def test_the_next_record_of_another_past_is_not_taken_for_ones_own() -> None:
    """No time passes: the log has grown anew beyond what the client knows, and only the chain tells."""
    blob, clock, client, collection = rolled_back(3)
    with opened(blob, clock) as other:
        write(made(other), range(6, 16))
    with client:
        with pytest.raises(LogReplaced, match="is commit") as caught:
            collection.seal(99).result()
        assert caught.value.found is not None
        with pytest.raises(LogReplaced):
            collection.snapshot(12)
    assert upper_of(blob, clock) == 16


def test_a_client_does_not_jump_to_a_checkpoint_of_another_past() -> None:
    blob, clock, client, _ = rolled_back(3)
    with opened(blob, clock) as other:
        write(made(other), range(6, 6 + 2 * INTERVAL))
        wait_for_checkpoint(other)
    assert list(blob.list("checkpoint/"))
    with client, pytest.raises(LogReplaced):
        client.engine.follower.restart()


def test_a_checkpoint_tells_that_the_record_it_was_made_after_is_another_one() -> None:
    blob, clock = MemoryBlob(), ImpatientClock()
    with opened(blob, clock) as client:
        write(made(client), range(INTERVAL - 1))
        wait_for_checkpoint(client)
        last = log(blob)[-1]
        record = read_record(blob, INTERVAL - 1)
        assert record is not None
        blob.set(last, encode_framed(msgspec.structs.replace(record, commit="f" * 32)))
    with pytest.raises(LogInterrupted, match=f"beside it lies a checkpoint at seqno {INTERVAL - 1}") as caught:
        opened(blob, clock, "read")
    assert caught.value.end == INTERVAL - 1


def test_proving_costs_one_request_now_and_then_and_none_on_the_way() -> None:
    clock = ImpatientClock()
    blob = MeteredBlob(MemoryBlob())
    with trusting(opened(blob, clock)) as client:
        collection = made(client)
        write(collection, range(1))
        before = blob.get_counts()["get"].requests
        write(collection, range(1, INTERVAL - 4))  # No checkpoint is due.
        assert blob.get_counts()["get"].requests == before
        clock.sleep(PROVE_AFTER_S)
        write(collection, range(INTERVAL - 4, INTERVAL - 3))
        assert blob.get_counts()["get"].requests == before + 1


# What lies beyond the end.


def test_a_location_opens_up_to_its_last_consistent_record_and_says_what_lies_beyond(
    caplog: pytest.LogCaptureFixture,
) -> None:
    blob, clock = interrupted()
    for mode in ("read", "shared"):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "persist"), opened(blob, clock, mode) as client:
            assert [
                each.getMessage() for each in caplog.records if "beyond that lies records 10 to 11" in each.getMessage()
            ]
            collection = client.load("c")
            assert collection.snapshot(5).count() == 6
            assert collection.upper.time == 6
            assert client.metrics().groups["log"]["beyond_end"] == 5


def test_nothing_can_be_written_while_records_lie_beyond_the_end() -> None:
    blob, clock = interrupted()
    before = copied(blob)
    with opened(blob, clock) as client:
        with pytest.raises(LogInterrupted, match="--repair --set-aside") as caught:
            client.load("c").seal(50).result()
        assert (caught.value.end, caught.value.first, caught.value.last) == (6, 10, 11)
    with pytest.raises(LogInterrupted):
        persist.open(blob, mode="exclusive", clock=clock, settings=QUIET)
    assert copied(blob) == before


def test_nothing_is_collected_of_a_log_that_is_interrupted_or_another_one() -> None:
    blob, clock = interrupted()
    before = copied(blob)
    with opened(blob, clock) as client, pytest.raises(LogInterrupted):
        client.gc()
    assert copied(blob) == before
    blob, clock, client, _ = rolled_back(3)
    before = copied(blob)
    with client, pytest.raises(LogReplaced):
        client.gc()
    assert copied(blob) == before


def test_who_was_open_before_and_fills_the_hole_stops_at_what_lies_beyond() -> None:
    blob, clock, client, collection = rolled_back(3)
    with opened(blob, clock) as other, client:
        mine = made(other)
        write(collection, range(9, 11))
        with pytest.raises(LogInterrupted) as caught:
            write(mine, range(6, 16))
        assert (caught.value.end, caught.value.first) == (9, 10)
        with pytest.raises(LogInterrupted):
            mine.snapshot(3)
    assert upper_of(blob, clock) == 9


def test_a_record_that_follows_another_than_the_last_is_beyond_the_end_even_without_a_hole() -> None:
    blob, clock, client, _ = rolled_back(3)
    with opened(blob, clock) as other, client:
        write(made(other), range(6, 9))
    last = read_record(blob, 9)
    assert last is not None
    strange = msgspec.structs.replace(last, seqno=10, commit="e" * 32, previous="d" * 32, mutations=())
    assert create_record(blob, strange, clock) is None
    assert upper_of(blob, clock) == 9
    with opened(blob, clock) as client, pytest.raises(LogInterrupted, match="beyond that lies a record at seqno 10"):
        client.load("c").seal(50).result()
