"""What a reader of the log knows of operations that were committed for others."""

import pytest

import persist
from persist.blob.layers.metered import MeteredBlob
from persist.blob.protocol import Blob, MemoryBlob
from persist.blob.threads import SystemClock
from persist.core.log.keys import make_record_key
from persist.core.log.records import Record, Submitted, encode_record, read_record
from persist.engine.follow import log_queries
from persist.engine.follow.follower import Follower
from persist.engine.follow.log_queries import Submissions

WHO, OTHER = "a" * 32, "b" * 32


def record(seqno: int, *marks: Submitted, **more: object) -> Record:
    fields: dict[str, object] = {
        "location": "1" * 32,
        "seqno": seqno,
        "commit": f"{seqno:032}",
        "previous": f"{seqno - 1:032}" if seqno else None,
        "writer": "w",
        "epoch": None,
        "written_ms": 0,
        "mutations": (),
    }
    return Record(**(fields | more), submitted=marks)  # type: ignore[arg-type]


def append(blob: Blob, *marks: Submitted) -> int:
    """Add a record to a log, which says that of submissions; return its seqno."""
    seqno = 0
    while (newest := read_record(blob, seqno)) is not None:
        last, seqno = newest, seqno + 1
    added = record(seqno, *marks, location=last.location, previous=last.commit)
    assert blob.create(make_record_key(seqno), encode_record(added))
    return seqno


def test_an_operation_is_found_by_its_number_and_what_was_skipped_is_past() -> None:
    known = Submissions(4)
    known.note(record(5, Submitted(WHO, 1, 2), Submitted(WHO, 4, 4), Submitted(OTHER, 7, 7)))
    assert [known.find_seqno(WHO, number) for number in range(1, 6)] == [5, 5, None, 5, None]
    assert [known.is_past(WHO, number) for number in (3, 4, 5)] == [True, True, False]
    assert known.find_seqno("c" * 32, 1) is None
    assert not known.is_past("c" * 32, 1)
    known.note(record(6, Submitted(WHO, 9, 8)))  # Nothing up to 8 will come any more.
    assert known.find_seqno(WHO, 8) is None
    assert known.is_past(WHO, 8)
    assert not known.is_past(WHO, 9)


def test_what_was_not_read_or_was_forgotten_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_queries, "SUBMITTERS_MAX", 1)
    known = Submissions(4)
    assert [known.knows(after) for after in (3, 4)] == [False, True]
    known.note(record(5, Submitted(WHO, 1, 1)))
    assert known.knows(4)
    known.note(record(6, Submitted(OTHER, 1, 1)))
    assert [known.knows(after) for after in (4, 5)] == [False, True]
    known.skip_records(9)
    assert [known.knows(after) for after in (8, 9)] == [False, True]


def test_who_comes_late_reads_back_what_a_checkpoint_stands_for() -> None:
    blob = MemoryBlob()
    with persist.open(blob, settings=persist.Settings(background=False)) as client:
        orders = client.create_or_load("orders", key={"k": int})
        early = Follower(blob, SystemClock())
        orders.seal(1).result()
    seqno = append(blob, Submitted(WHO, 3, 4))
    with persist.open(blob, settings=persist.Settings(background=False)) as client:
        for time in range(2, 40):
            client["orders"].seal(time).result()
    late = Follower(blob, SystemClock())
    assert not late.submissions.knows(seqno - 1)
    for follower in (early, late):
        known = follower.catch_up(seqno - 1)
        assert known.knows(seqno - 1)
        assert (known.find_seqno(WHO, 3), known.is_past(WHO, 4)) == (seqno, True)


def test_who_reads_back_reads_as_far_as_the_last_record_and_begins_anew_only_where_that_is_far() -> None:
    blob = MemoryBlob()
    with persist.open(blob, settings=persist.Settings(background=False)) as client:
        orders = client.create_or_load("orders", key={"k": int})
        for time in range(1, 40):
            orders.seal(time).result()
    first = append(blob, Submitted(WHO, 1, 1))
    last = append(blob, Submitted(WHO, 2, 2))
    metered = MeteredBlob(blob)
    late = Follower(metered, SystemClock())
    assert late.state.seqno == last
    lists = metered.get_counts()["list"].requests
    for after in (first - 1, 5):  # The second is before the checkpoint that it began with.
        known = late.catch_up(after)
        assert (known.find_seqno(WHO, 1), known.find_seqno(WHO, 2)) == (first, last)
    assert metered.get_counts()["list"].requests == lists


def test_a_record_that_says_what_no_writer_would_is_refused() -> None:
    blob = MemoryBlob()
    with persist.open(blob, settings=persist.Settings(background=False)) as client:
        client.create_or_load("orders", key={"k": int})
    append(blob, Submitted(WHO, 9, 1))
    with pytest.raises(persist.errors.CorruptBlob, match="submitted"):
        persist.open(blob)


def test_history_and_fsck_take_a_record_without_mutations() -> None:
    blob = MemoryBlob()
    with persist.open(blob, settings=persist.Settings(background=False)) as client:
        client.create_or_load("orders", key={"k": int}).seal(1).result()
        append(blob, Submitted(WHO, 2, 1))
        assert client.history().to_pylist()[-1]["operations"] == []
        assert client.fsck().is_clean
        client["orders"].seal(2).result()
