"""Several writers: exactly once by token, compare-and-append, and one exclusive writer at a time."""

import subprocess
import threading
from pathlib import Path

import pyarrow as pa
import pytest

import persist
from persist.blob.layers.unreliable import Fault, UnreliableBlob
from persist.blob.protocol import MemoryBlob
from persist.core.log import kinds
from persist.core.log.framing import decode_framed
from persist.core.log.keys import make_record_key, parse_upload_seqno
from persist.core.log.records import Record
from persist.engine.write.part_writer import PartWriter
from tests.support.clocks import ImpatientClock
from tests.support.forks import forked_python
from tests.support.parts import commit_parts
from tests.support.paths import ROOT
from tests.support.stepped import Stepped

KEY = {"k": pa.int64()}
ROW = [((1, None), 5, 1)]


def rows(handle: persist.Collection) -> int:
    return handle.snapshot(timeout_s=0).count()


def opened(blob: object, **how: object) -> persist.Client:
    return persist.open(blob, clock=ImpatientClock(), **how)  # type: ignore[arg-type]


def test_repetitions_that_are_issued_together_are_one_write(blob: MemoryBlob) -> None:
    with opened(blob) as client:
        c = client.create_or_load("c", key=KEY)
        futures = [c.write(ROW, token="t") for _ in range(100)]
        assert len({future.result() for future in futures}) <= 2
        c.seal(6).result()
        assert rows(c) == 1


def test_a_token_is_checked_before_the_expected_upper(blob: MemoryBlob) -> None:
    with opened(blob) as client:
        c = client.create_or_load("c", key=KEY)
        for _ in range(3):
            c.write(ROW, token="t", expected_upper=0, seal=6).result()
        assert rows(c) == 1


def test_a_multi_write_with_a_token_happens_once(blob: MemoryBlob) -> None:
    with opened(blob) as client:
        a, b = client.create_or_load("a", key=KEY), client.create_or_load("b", key=KEY)
        for _ in range(3):
            with client.multi_write(token="t") as multi:
                multi.write(a, ROW)
                multi.write(b, ROW)
                multi.seal(a, 6)
        b.seal(6).result()
        assert (rows(a), rows(b)) == (1, 1)
        with (
            pytest.raises(persist.InvalidUsage, match="was used before for some"),
            client.multi_write(token="t") as multi,
        ):
            multi.write(a, ROW)
            multi.write(client.create_or_load("new", key=KEY), ROW)
        client.load("new").seal(6).result()
        assert rows(client.load("new")) == 0


@pytest.mark.parametrize("token", ["", "x" * 201, 7, b"x", "a\nb"])
def test_a_bad_token_is_refused(blob: MemoryBlob, token: str) -> None:
    with opened(blob) as client:
        c = client.create_or_load("c", key=KEY)
        with pytest.raises(persist.InvalidUsage, match="token"):
            c.write(ROW, token=token)
        with pytest.raises(persist.InvalidUsage, match="token"):
            client.multi_write(token=token)


def test_compare_and_append_loses_to_another_seal_and_changes_nothing(blob: MemoryBlob) -> None:
    with opened(blob) as one, opened(blob) as two:
        a = one.create_or_load("c", key=KEY)
        b = two.load("c")
        a.write(ROW, expected_upper=0, seal=6).result()
        with pytest.raises(persist.errors.UpperMismatch, match="expected upper=0, and it is") as lost:
            b.write([((2, None), 8, 1)], expected_upper=0, seal=9).result()
        assert (lost.value.expected, lost.value.actual) == (persist.Antichain(0), persist.Antichain(6))
        assert (rows(a), a.upper) == (1, persist.Antichain(6))
        with pytest.raises(persist.errors.UpperMismatch):
            b.seal(9, expected_upper=5).result()
        b.seal(persist.Antichain(), expected_upper=persist.Antichain(6)).result()
        a.seal(persist.Antichain(), expected_upper=persist.Antichain()).result()


def test_an_exclusive_writer_keeps_others_out_until_it_closes(blob: MemoryBlob) -> None:
    with opened(blob) as shared:
        theirs = shared.create_or_load("c", key=KEY)
        with opened(blob, mode="exclusive", reentrance_id="job") as owner:
            c = owner.load("c")
            c.write(ROW, seal=6).result()
            for refused in (theirs.write([((2, None), 7, 1)]), theirs.seal(9), theirs.drop()):
                with pytest.raises(persist.errors.Locked, match="exclusively") as locked:
                    refused.result()
            assert ":" in locked.value.holder
            with pytest.raises(persist.errors.Locked):
                shared.create_or_load("new", key=KEY)
            with pytest.raises(persist.errors.Locked):
                opened(blob, mode="exclusive", reentrance_id="another")
            with pytest.raises(persist.errors.Locked):
                opened(blob, mode="exclusive")
            assert rows(theirs) == 1  # Reading is free, holds included.
        theirs.seal(9).result()
        with opened(blob, mode="exclusive", reentrance_id="another") as next_owner:
            next_owner.load("c").seal(10).result()


@pytest.mark.parametrize("how", [{"reentrance_id": "job"}, {"reentrance_id": "else", "force": True}, {"force": True}])
def test_rule_12_a_writer_that_was_taken_over_is_fenced_for_ever(blob: MemoryBlob, how: dict[str, object]) -> None:
    old = opened(blob, mode="exclusive", reentrance_id="job")
    c = old.create_or_load("c", key=KEY)
    pending = c.write(ROW)
    pending.result()
    new = opened(blob, mode="exclusive", **how)
    for fenced in (c.write(ROW), c.seal(7), c.allow_compaction(3)):
        with pytest.raises(persist.errors.WriterFenced, match="nothing it asks for is written any more"):
            fenced.result()
    new.load("c").seal(6).result()
    new.close()
    with pytest.raises(persist.errors.WriterFenced):
        c.seal(7).result()
    assert rows(c) == 1
    old.close()
    with opened(blob) as shared:
        shared.load("c").seal(8).result()


def test_a_fenced_client_does_not_unlock_its_successor_when_it_closes(blob: MemoryBlob) -> None:
    old = opened(blob, mode="exclusive", reentrance_id="job")
    new = opened(blob, mode="exclusive", reentrance_id="job")
    old.close()
    with opened(blob) as shared, pytest.raises(persist.errors.Locked):
        shared.create_or_load("c", key=KEY)
    new.close()


@pytest.mark.parametrize("is_there", [True, False])
def test_what_another_one_creates_before_the_lock_is_loaded(is_there: bool) -> None:
    """Whoever loses a race to create it, and then finds the location locked, need not write at all."""
    blob = MemoryBlob()
    store = Stepped(blob)
    exclusive: list[persist.Client] = []

    def others() -> None:
        with opened(blob) as another:
            another.create_or_load("c" if is_there else "d", key=KEY)
        exclusive.append(opened(blob, mode="exclusive", reentrance_id="job"))

    with opened(store) as client:
        client.create_or_load("before", key=KEY)
        store.before("create", "log/", others)
        if is_there:
            assert client.create_or_load("c", key=KEY).name == "c"
        else:
            with pytest.raises(persist.errors.Locked):
                client.create_or_load("c", key=KEY)
    exclusive[0].close()


def test_what_was_asked_for_before_the_fence_and_not_committed_loses(tmp_path: Path) -> None:
    """The commit that is under way when another one takes over finds its slot taken, and then the fence."""
    blob = UnreliableBlob(persist.FileBlob(tmp_path))
    overtaken = threading.Event()

    class Overtaking(ImpatientClock):
        is_armed = False

        def sleep(self, seconds: float) -> None:
            if self.is_armed and not overtaken.is_set():
                overtaken.set()
                opened(persist.FileBlob(tmp_path), mode="exclusive", reentrance_id="job")
            super().sleep(seconds)

    clock = Overtaking()
    old = persist.open(blob, mode="exclusive", reentrance_id="job", clock=clock)
    c = old.create_or_load("c", key=KEY)
    clock.is_armed = True
    blob.script_faults("create", *[Fault.UNAVAILABLE] * 3)
    with pytest.raises(persist.errors.WriterFenced):
        c.write(ROW).result()
    assert overtaken.is_set()
    old.close()


def test_options_of_the_exclusive_mode_are_refused_elsewhere(blob: MemoryBlob) -> None:
    for how in ({"force": True}, {"reentrance_id": "x"}, {"mode": "read", "reentrance_id": "x"}):
        with pytest.raises(persist.InvalidUsage, match="are for mode="):
            opened(blob, **how)
    for bad in ("", 7, "x" * 201):
        with pytest.raises(persist.InvalidUsage, match="reentrance_id"):
            opened(blob, mode="exclusive", reentrance_id=bad)
    assert list(blob.list("")) == []


def test_a_holder_that_died_is_replaced_by_its_successor_or_by_force(tmp_path: Path) -> None:
    script = (
        "import os, persist\n"
        f"c = persist.open({str(tmp_path)!r}, mode='exclusive', reentrance_id='nightly')\n"
        "c.create_or_load('c', key=persist.Int64).seal(5).result()\n"
        "os._exit(1)\n"
    )
    subprocess.run([*forked_python(), "-c", script], check=False, cwd=ROOT)
    with pytest.raises(persist.errors.Locked):
        persist.open(tmp_path, mode="exclusive", reentrance_id="other")
    with persist.open(tmp_path, mode="exclusive", reentrance_id="nightly") as client:
        client.load("c").seal(6).result()


def test_a_part_list_has_the_seqno_of_the_record_that_names_it_whatever_races_were_lost(
    blob: MemoryBlob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list whose name is below the floor of the log is collected, whoever names it."""
    monkeypatch.setattr("persist.core.log.records.PARTS_INLINE_MAX", 1)
    with opened(blob) as one, opened(blob) as two:
        a, b = one.create_or_load("c", key=KEY), two.load("c")
        rows = pa.table({"k": range(1000), "_time": [5] * 1000, "_diff": [1] * 1000})
        parts = [
            p
            for n in range(3)
            for p in PartWriter(blob, two.engine.follower.find_next_seqno).upload(b.id, b.schema, rows)
        ]
        for upper in range(1, 6):
            a.seal(upper).result()
        seqno = commit_parts(b, parts).result()
        data = blob.get(make_record_key(seqno))
        assert data is not None
        stored = decode_framed(data, Record, make_record_key(seqno))
        (append,) = (step for step in stored.mutations if isinstance(step, kinds.Append))
        assert append.parts_in is not None
        assert parse_upload_seqno(append.parts_in.blob) == seqno
        assert two.engine.writer("a test").committer.groups.counts()["lost_races"] > 0
