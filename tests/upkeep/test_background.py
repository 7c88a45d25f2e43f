"""What a writing client does in the background: nothing that takes long delays its lease."""

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

import persist
from persist.blob import BlobEntry, MemoryBlob, SystemClock
from persist.upkeep.background import COMMITS_MAX
from tests.stepped import wait_until
from tests.tuned import tuned

PATIENCE_S = 60.0


class SlowToListParts(MemoryBlob):
    """A store whose listing of parts, which garbage collection needs, takes until it is let go on."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.goes_on = threading.Event(), threading.Event()

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobEntry]:
        if prefix.startswith("part/"):
            self.asked.set()
            assert self.goes_on.wait(PATIENCE_S)
        return super().list(prefix, start_after)


def test_a_lease_is_renewed_while_the_collection_of_garbage_takes_long() -> None:
    blob = SlowToListParts()
    settings = persist.Settings(lease_s=1.0, gc_interval_s=1.0)
    with persist.open(blob, settings=settings) as client:
        c = client.create_or_load("c", key={"k": pa.int64()})
        c.hold(0)
        assert blob.asked.wait(PATIENCE_S)
        try:
            (lease,) = client.engine.follower.refresh().control.leases.values()

            def is_renewed() -> bool | None:
                (now,) = client.engine.follower.state.control.leases.values()
                return now.expires_ms > lease.expires_ms or None

            assert client.engine.follower.wait_for(is_renewed, 5.0)
        finally:
            blob.goes_on.set()


def test_all_threads_end_with_their_client() -> None:
    before = set(threading.enumerate())
    client = persist.open(MemoryBlob())
    names = {thread.name for thread in set(threading.enumerate()) - before}
    assert {"persist-leases", "persist-upkeep"} <= names
    client.close()
    assert set(threading.enumerate()) <= before


def test_maintain_does_what_is_due_although_one_thing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = persist.Settings(background=False, gc_interval_s=1.0)
    done = []

    def fail() -> None:
        done.append("garbage")
        raise persist.Unavailable("the store is down")

    with persist.open(MemoryBlob(), settings=settings, clock=FarAhead()) as client:
        upkeep = client.engine.writer("a test").upkeep
        monkeypatch.setattr(upkeep, "_collect", fail)
        monkeypatch.setattr(upkeep.compaction, "tick", lambda: done.append("compaction"))
        with pytest.raises(persist.Unavailable, match="the store is down"):
            client.maintain()
        assert done == ["compaction", "garbage"]


class FarAhead(SystemClock):
    """A clock by which an hour passes between any two looks at it."""

    def __init__(self) -> None:
        self._hours = 0

    def monotonic_s(self) -> float:
        self._hours += 1
        return self._hours * 3600.0


def test_a_client_is_closed_once_its_threads_have_ended() -> None:
    blob = SlowToListParts()
    client = persist.open(blob, settings=persist.Settings(gc_interval_s=1.0))
    client.create_or_load("c", key={"k": pa.int64()})
    assert blob.asked.wait(PATIENCE_S)
    closing = threading.Thread(target=client.close)
    closing.start()
    closing.join(0.1)
    assert closing.is_alive()
    blob.goes_on.set()
    closing.join(PATIENCE_S)
    assert not closing.is_alive()


def test_many_commits_are_compacted_before_the_interval_has_passed() -> None:
    settings = tuned(compaction_interval_s=3600.0, gc_interval_s=3600.0, inline_runs=COMMITS_MAX)
    with persist.open(MemoryBlob(), settings=settings) as client:
        c = client.create_or_load("c", key={"k": pa.int64()})
        for time in range(COMMITS_MAX):
            c.write([((time, None), time, 1)], seal=time + 1).result()
        wait_until(lambda: len(client["c"].handle.contents().history) < COMMITS_MAX)
