"""Tokens are remembered for as long as the write that they name could be done once more."""

import pyarrow as pa
import pytest

import persist
from persist.blob import MemoryBlob
from persist.settings import Tuning
from persist.write import PartWriter
from tests.parts import commit_parts

SETTINGS = persist.Settings(background=False, tuning=Tuning(hold_linger_s=0))
KEY = {"k": pa.int64()}


def opened(blob: MemoryBlob) -> persist.Client:
    return persist.open(blob, settings=SETTINGS)


def test_a_token_of_a_write_at_upper_itself_is_not_forgotten(blob: MemoryBlob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persist.state.remembered.TOKENS_KEPT", 3)
    with opened(blob) as client:
        c = client.create_or_load("c", key=KEY)
        c.seal(10).result()
        for again in range(2):
            for n in range(6):
                c.write([((n, None), 10, 1)], token=f"t{n}").result()
            assert len(c.handle.contents().tokens) == 6, again
        c.seal(11).result()
        assert c.snapshot(10).to_arrow()["k"].to_pylist() == [*range(6)]
        c.write([((7, None), 11, 1)], token="later").result()
        assert [*c.handle.contents().tokens] == ["t3", "t4", "t5", "later"]


@pytest.mark.parametrize("token", [None, "t"])
def test_parts_that_are_committed_stay_although_they_are_submitted_again_too_late(
    blob: MemoryBlob, token: str | None
) -> None:
    with opened(blob) as client:
        c = client.create_or_load("c", key=KEY)
        table = pa.table({"k": range(100), "_time": [0] * 100, "_diff": [1] * 100})
        parts = PartWriter(blob, client.engine.follower.next_seqno).upload(c.id, c.schema, table)
        commit_parts(c, parts, seal=persist.Antichain(1), token=token).result()
        if token is None:
            with pytest.raises(persist.errors.UpdateNotBeyondUpper):
                commit_parts(c, parts).result()
        else:
            commit_parts(c, parts, token=token).result()
        assert c.snapshot(0).to_arrow().num_rows == 100
