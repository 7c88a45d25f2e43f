"""Tokens are remembered for as long as the write that they name could be done once more."""

import msgspec
import pyarrow as pa
import pytest

import persist
from persist.blob.protocol import MemoryBlob
from persist.core.antichain import END
from persist.core.log import kinds
from persist.core.log.fields import Archiving, TokenArchive, TokenMark
from persist.core.log.framing import BlobRef
from persist.core.settings import Tuning
from persist.core.state_rules.annotations import Archives, Remembered, add_tokens, build_archiving_step, update_archives
from persist.engine.write.part_writer import PartWriter
from tests.support.parts import commit_parts

SETTINGS = persist.Settings(background=False, tuning=Tuning(hold_linger_s=0))
KEY = {"k": pa.int64()}
ID = "0" * 32


def opened(blob: MemoryBlob) -> persist.Client:
    return persist.open(blob, settings=SETTINGS)


def test_a_record_of_a_format_without_archives_drops_the_oldest_tokens_of_sealed_writes_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("persist.core.state_rules.annotations.TOKENS_KEPT", 3)
    before = {f"t{n}": Remembered(n) for n in range(6)}
    step = kinds.Tokens("c", (TokenMark("later", 9),))
    assert [*add_tokens(before, step, 3, None)] == [f"t{n}" for n in range(6)] + ["later"], "three are sealed"
    assert [*add_tokens(before, step, 4, None)] == ["t1", "t2", "t3", "t4", "t5", "later"]
    assert [*add_tokens(before, step, END, None)] == ["t4", "t5", "later"], "all are"
    assert len(add_tokens(before, step, END, Archives())) == 7, "with archives, none is dropped"


def test_a_step_that_archives_other_tokens_or_archives_than_there_are_is_refused() -> None:
    archive = TokenArchive(BlobRef(f"part/{ID}/{0:020d}-{'0' * 32}.json", 1, "0" * 32), 1)
    other = TokenArchive(BlobRef(f"part/{ID}/{1:020d}-{'0' * 32}.json", 1, "0" * 32), 1)
    archives = Archives((archive,), 7)
    step = kinds.Tokens(ID, ())
    assert update_archives(archives, step) is archives
    merging = build_archiving_step(step, archives, other, 1, 1, 0)
    assert update_archives(archives, merging) == Archives((other,), 7)
    assert merging.unused == (archive.stored.blob,)
    forgetting = build_archiving_step(step, archives, other, 1, 0, 1)
    assert update_archives(archives, forgetting) == Archives((other,), 8)
    for wrong, message in (
        (msgspec.structs.replace(step, unused=(archive.stored.blob,)), "without a new one"),
        (msgspec.structs.replace(merging, unused=()), "other archives become unused than it lists"),
        (msgspec.structs.replace(merging, archiving=Archiving(other, 1, 2)), "more archives than the 1"),
        (msgspec.structs.replace(merging, collection="f" * 32), "does not name an archive"),
    ):
        with pytest.raises(ValueError, match=message):
            update_archives(archives, wrong)
    with pytest.raises(ValueError, match="archives 1 tokens, and there are 0"):
        add_tokens({}, merging, 0, archives)


@pytest.mark.parametrize("token", [None, "t"])
def test_parts_that_are_committed_stay_although_they_are_submitted_again_too_late(
    blob: MemoryBlob, token: str | None
) -> None:
    with opened(blob) as client:
        c = client.create_or_load("c", key=KEY)
        table = pa.table({"k": range(100), "_time": [0] * 100, "_diff": [1] * 100})
        parts = PartWriter(blob, client.engine.follower.find_next_seqno).upload(c.id, c.schema, table)
        commit_parts(c, parts, seal=persist.Antichain(1), token=token).result()
        if token is None:
            with pytest.raises(persist.errors.UpdateNotBeyondUpper):
                commit_parts(c, parts).result()
        else:
            commit_parts(c, parts, token=token).result()
        assert c.snapshot(0).to_arrow().num_rows == 100
