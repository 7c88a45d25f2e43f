"""Clients that see a location as it was after one record of the log."""

import pyarrow as pa
import pytest

import persist
from persist.blob.protocol import MemoryBlob
from tests.support.clocks import DatedBlob, ImpatientClock
from tests.support.tuned import tuned


def test_a_pinned_client_sees_all_collections_as_they_were_at_a_seqno(blob: MemoryBlob) -> None:
    seen = {}
    with persist.open(blob) as client:
        a, b = (client.create_or_load(name, key={"k": pa.int64()}) for name in "ab")
        for time in range(40):  # Past several checkpoints.
            with client.multi_write() as multi:
                multi.write(a, [((time, None), time, 1)])
                multi.write(b, [((-time, None), time, 1)])
                multi.seal(a, time + 1)
                multi.seal(b, time + 1)
            assert multi.seqno is not None
            seen[multi.seqno] = time
        a.drop().result()
    for seqno, time in seen.items():
        with persist.open(blob, mode="read", seqno=seqno) as client:
            assert client.seqno == seqno
            for name in "ab":
                collection = client.load(name)
                assert collection.upper == persist.Antichain(time + 1)
                assert collection.snapshot().count() == time + 1
                with pytest.raises(persist.errors.AsOfNotSealed):
                    collection.snapshot(time + 1, timeout_s=None)
    with persist.open(blob, mode="read", seqno=0) as client:
        assert client.collections() == ["a"]


def test_a_seqno_that_is_not_there_yet_or_not_any_more_is_refused() -> None:
    clock = ImpatientClock()
    blob = DatedBlob(clock)
    settings = tuned(background=False, grace_s=0, orphan_grace_s=0, log_retention_s=3600, log_retention_records=16)
    with persist.open(blob, settings=settings, clock=clock) as client:
        numbers = client.create_or_load("numbers", key={"k": pa.int64()})
        with pytest.raises(persist.InvalidUsage, match=r"seqno=7 is not in the log of .* yet, whose last is 0"):
            persist.open(blob, mode="read", seqno=7)
        late = 0
        for time in range(100):
            seqno = numbers.write([((time, None), time, 1)], seal=time + 1).result()
            late = seqno if time == 95 else late
            if time % 10 == 0:
                clock.sleep(3600)
                client.gc()
    with pytest.raises(persist.InvalidUsage, match="as of seqno=3 cannot be read any more"):
        persist.open(blob, mode="read", seqno=3)
    with persist.open(blob, mode="read", seqno=late) as client:
        assert client.load("numbers").snapshot().count() == 96


@pytest.mark.parametrize(("mode", "seqno"), [("shared", 3), ("read", -1), ("read", True), ("read", "3")])
def test_only_a_client_that_reads_is_pinned_and_to_a_number(blob: MemoryBlob, mode: str, seqno: object) -> None:
    with pytest.raises(persist.InvalidUsage, match="seqno="):
        persist.open(blob, mode=mode, seqno=seqno)  # type: ignore[arg-type]
