"""Checkpoints that a client makes beside its commits: one at a time, and one that fails is not a caller's concern."""

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from persist.blob.layers.unreliable import Fault, UnreliableBlob
from persist.blob.protocol import MemoryBlob
from persist.core.log.framing import encode_framed
from persist.core.log.keys import make_record_key
from persist.core.log.records import read_record
from persist.engine.follow.follower import Follower
from persist.engine.write.checkpointing import Checkpointing
from persist.errors import LogReplaced
from tests.engine.follow.test_directory import Writer
from tests.support.clocks import ImpatientClock
from tests.support.stepped import Gate, Stepped


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def blob() -> MemoryBlob:
    writer = Writer(MemoryBlob())
    for _ in range(3):
        writer.create(1)
    return writer.blob


def test_one_is_made_at_a_time_and_says_from_where_on(blob: MemoryBlob, pool: ThreadPoolExecutor) -> None:
    store, gate = Stepped(blob), Gate()
    making = Checkpointing(store, Follower(store, ImpatientClock()), pool)
    store.before("create", "checkpoint/", gate)
    making.begin(2)
    gate.wait_until_reached()
    least = [making.least_seqno]
    making.begin(9)
    least.append(making.least_seqno)
    gate.open()
    making.wait()
    assert [*least, making.least_seqno] == [2, 2, None]
    making.begin(2)
    making.wait()
    assert making.made == 1, "there is one already"
    assert len([*blob.list("checkpoint/")]) == 1


def test_one_that_fails_is_made_the_next_time(
    blob: MemoryBlob, pool: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    store = UnreliableBlob(blob)
    making = Checkpointing(store, Follower(store, ImpatientClock()), pool)
    store.script_faults("create", Fault.UNAVAILABLE)
    making.begin(2)
    making.wait()
    assert (making.made, making.least_seqno) == (0, None)
    assert "the checkpoint at seqno 2 was not made" in caplog.text
    making.begin(2)
    making.wait()
    assert making.made == 1
    pool.shutdown()
    making.begin(3)
    making.wait()
    assert (making.made, making.least_seqno) == (1, None)


def test_one_that_finds_another_record_stops_its_client(pool: ThreadPoolExecutor) -> None:
    """It is the first to read a record again that the client knows."""
    writer = Writer(MemoryBlob())
    writer.create(1)
    follower = Follower(writer.blob, ImpatientClock())
    making = Checkpointing(writer.blob, follower, pool)
    writer.create(1)
    writer.create(1)
    follower.refresh()
    known = read_record(writer.blob, 2)
    assert known is not None
    writer.blob.delete(make_record_key(2))
    writer.blob.set(make_record_key(2), encode_framed(msgspec.structs.replace(known, commit=uuid.uuid4().hex)))
    making.begin(2)
    making.wait()
    assert making.made == 0
    with pytest.raises(LogReplaced):
        follower.refresh()
