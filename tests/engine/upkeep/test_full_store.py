"""A store without room: what the log gives free goes first, and then there mostly is room for the rest."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import persist
from persist.blob.errors import StoreFull
from tests.support.clocks import DatedBlob, ImpatientClock
from tests.support.tuned import tuned

KEY = {"k": pa.int64()}


def table(rows: int = 20_000, time: int = 0) -> pa.Table:
    keys = np.random.default_rng(time).integers(0, 2**62, rows)  # Which cannot be compressed.
    return pa.table({"k": keys, "_time": [time] * rows, "_diff": [1] * rows})


class SmallBlob(DatedBlob):
    """A store of so many bytes."""

    room: float = float("inf")

    def _take(self, key: str, value: bytes) -> None:
        held = sum(entry.bytes for entry in self.list("") if entry.key != key)
        if held + len(value) > self.room or (not value and held >= self.room):
            raise StoreFull(f"no room for {key}")

    def set(self, key: str, value: bytes) -> None:
        self._take(key, value)
        super().set(key, value)

    def create(self, key: str, value: bytes) -> bool:
        self._take(key, value)
        return super().create(key, value)

    def fill(self) -> None:
        self.room = sum(entry.bytes for entry in self.list(""))


@pytest.fixture
def small() -> SmallBlob:
    return SmallBlob(ImpatientClock())


def opened(blob: DatedBlob, **changed: Any) -> persist.Client:
    settings = {"background": False, "hold_linger_s": 0, "grace_s": 0, "orphan_grace_s": 0}
    return persist.open(blob, clock=blob.clock, settings=tuned(**{**settings, **changed}))


def test_without_room_for_a_single_byte_what_the_log_gives_free_is_deleted_first(small: SmallBlob) -> None:
    with opened(small, grace_s=3600) as client, opened(small) as reader:
        orders = client.create_or_load("orders", key=KEY)
        orders.write(table(), seal=1).result()
        scratch = client.create_or_load("scratch", key=KEY)
        scratch.write(table(), seal=1).result()
        scratch.drop().result()
        small.clock.sleep(4000)
        orders.write(table(10, 5)).result()  # The last thing that the store has dated.
        small.fill()

        report = client.gc()

        assert (report.collections, report.parts) == (1, 1)
        assert reader.load("orders").snapshot(0).count() == 20_000
        assert reader.fsck().is_clean


def test_a_lease_that_ran_out_is_ended_when_there_is_room_for_it(small: SmallBlob) -> None:
    with opened(small) as client:
        scratch = client.create_or_load("scratch", key=KEY)
        scratch.write(table(), seal=1).result()
        other = client.create_or_load("other", key=KEY)
        other.write(table(), seal=1).result()
        lost = opened(small)  # Never closed in time, like one that was killed.
        held = lost.load("scratch").hold(0)
        scratch.drop().result()
        other.drop().result()
        small.clock.sleep(4000)
        small.fill()

        report = client.gc()

        assert (report.collections, report.parts) == (2, 2)
        assert not client.engine.follower.state.control.leases
        small.room = float("inf")
        del held
        lost.close()


def test_where_nothing_can_be_deleted_the_error_says_so(small: SmallBlob) -> None:
    with opened(small) as client:
        orders = client.create_or_load("orders", key=KEY)
        orders.write(table(), seal=1).result()
        client.gc()
        orders.write(table(10, 3), seal=4).result()
        small.fill()
        with pytest.raises(StoreFull, match="0 blobs of 0 bytes of this location were deleted; deleting more"):
            client.gc()
        assert orders.snapshot(3).count() == 20_010
        small.room = float("inf")
        assert client.fsck().is_clean


def test_a_long_read_goes_on_when_its_lease_cannot_be_renewed(small: SmallBlob) -> None:
    with opened(small) as client:
        orders = client.create_or_load("orders", key=KEY)
        orders.write(table(), seal=1).result()
        snapshot = orders.snapshot(0)
        small.fill()
        small.clock.sleep(4000)
        assert snapshot.count() == 20_000
        small.room = float("inf")


def test_maintenance_collects_garbage_though_it_cannot_renew_its_lease(small: SmallBlob) -> None:
    with opened(small) as client:
        orders = client.create_or_load("orders", key=KEY)
        scratch = client.create_or_load("scratch", key=KEY)
        orders.write(table(), seal=1).result()
        scratch.write(table(), seal=1).result()
        hold = orders.hold(0)
        scratch.drop().result()
        small.clock.sleep(4000)
        small.fill()
        with pytest.raises(StoreFull):
            client.maintain()
        client.maintain()  # There is room now.
        assert len(list(small.list("part/"))) == 1
        hold.release()
