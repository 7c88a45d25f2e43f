"""Batches of streaming queries happen once, in order, and by one run at a time; and commits that must be alone are."""

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

import persist
from persist.api.client import Client
from persist.api.collection import Collection
from persist.blob.protocol import MemoryBlob
from persist.codecs.part.part import Part
from persist.codecs.updates.updates import to_updates
from persist.core.log.kinds import Batch, Seal
from persist.core.state_rules.annotations import QUERIES_KEPT, LastBatch
from persist.core.state_rules.collection_rules import ExpectNothingBeyondUpper
from persist.engine.collection.commit import Commit
from persist.engine.write.part_writer import PartWriter
from tests.support.stepped import Gate, Stepped, wait_until

SETTINGS = persist.Settings(background=False)
KEY = {"k": pa.int64()}


def opened(blob: MemoryBlob) -> Client:
    return persist.open(blob, settings=SETTINGS)


def uploaded(c: Collection, key: int, time: int) -> tuple[Part, ...]:
    table = to_updates([((key, None), time, 1)], c.schema)
    return PartWriter(c.handle.engine.blob, c.handle.engine.follower.find_next_seqno).upload(c.id, c.schema, table)


def batch(c: Collection, number: int, run: str = "r1", *, query: str = "q", again: bool = False) -> None:
    """Commit a batch with one update at the time of its number."""
    with Commit(c.handle.engine) as commit:
        commit.add(c.handle, [Batch(c.id, query, number, run, again)])
        if not again:
            commit.add_parts(c.handle, uploaded(c, number, number))


def keys(c: Collection) -> list[int]:
    time = max((part.time_max for part in c.handle.contents().parts), default=0)
    c.seal(time + 1).result()
    return sorted(key for (key, _), _, _ in c.changes(0, time + 1).updates())


def parts(blob: MemoryBlob) -> set[str]:
    return {entry.key for entry in blob.list("part/")}


def test_a_batch_that_is_repeated_adds_nothing_and_leaves_nothing(blob: MemoryBlob) -> None:
    with opened(blob) as client:
        c = client.create_or_load("c", key=KEY)
        batch(c, 0)
        stored, seqno = parts(blob), client.engine.follower.state.seqno
        batch(c, 0)
        batch(c, 0, "r2")
        assert (parts(blob), client.engine.follower.state.seqno) == (stored, seqno)
        batch(c, 3)
        assert keys(c) == [0, 3]
        assert c.handle.contents().queries == {"q": LastBatch(3, ("r1",))}


def test_a_query_does_not_go_back(blob: MemoryBlob) -> None:
    with opened(blob) as client:
        c = client.create_or_load("c", key=KEY)
        batch(c, 5)
        before = parts(blob)
        with pytest.raises(
            persist.errors.QueryMismatch, match="batch 4 of query q cannot be written, because the last one"
        ):
            batch(c, 4)
        with pytest.raises(persist.errors.QueryMismatch):
            batch(c, 6, "r2", again=True)
        with pytest.raises(persist.errors.QueryMismatch, match="is the first that this collection sees"):
            batch(c, 6, query="other", again=True)
        assert parts(blob) == before
        assert c.handle.contents().queries == {"q": LastBatch(5, ("r1",))}
        batch(c, 0, query="other")


def test_a_run_that_another_has_displaced_commits_nothing_any_more(blob: MemoryBlob) -> None:
    with opened(blob) as client:
        c = client.create_or_load("c", key=KEY)
        batch(c, 5, "r1")
        batch(c, 5, "r2", again=True)
        for number in (5, 6):
            with pytest.raises(persist.errors.QueryMismatch, match="a run that another one, r2, has displaced"):
                batch(c, number, "r1")
        batch(c, 6, "r2")
        for n in range(7, 20):
            batch(c, n, f"r{n}")
        assert c.handle.contents().queries["q"] == LastBatch(19, ("r16", "r17", "r18", "r19"))
        assert keys(c) == [5, 6, *range(7, 20)]


def test_the_last_batch_is_remembered_however_many_tokens_others_use(
    blob: MemoryBlob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("persist.core.state_rules.annotations.TOKENS_KEPT", 64)
    with opened(blob) as client:
        c = client.create_or_load("c", key=KEY)
        batch(c, 0)
        c.seal(1).result()
        for future in [c.write([((9, None), 1, 1)], token=f"t{n}") for n in range(64 + 5)]:
            future.result()
        c.seal(2).result()
        batch(c, 0, "r2")  # At a time that is sealed by now, which does not matter: it was done.
    with opened(blob) as client:
        assert client.load("c").handle.contents().queries == {"q": LastBatch(0, ("r1",))}


def test_the_queries_that_committed_last_are_remembered(blob: MemoryBlob) -> None:
    with opened(blob) as client:
        c = client.create_or_load("c", key=KEY)
        for n in range(QUERIES_KEPT):
            with Commit(client.engine) as commit:
                commit.add(c.handle, [Batch(c.id, f"q{n}", 0, "r")])
        batch(c, 1, query="q0")
        batch(c, 0, query="new")
        known = c.handle.contents().queries
        assert len(known) == QUERIES_KEPT
        assert "q1" not in known
        assert [*known][-2:] == ["q0", "new"]


def test_a_batch_of_several_collections_was_done_if_one_has_it(blob: MemoryBlob) -> None:
    with opened(blob) as client:
        a, b = (client.create_or_load(name, key=KEY) for name in "ab")
        batch(a, 3)
        with Commit(client.engine) as commit:
            for c in (a, b):
                commit.add(c.handle, [Batch(c.id, "q", 3, "r2")])
                commit.add_parts(c.handle, uploaded(c, 1, 1))
        assert (keys(a), keys(b)) == ([3], [])
        with Commit(client.engine) as commit:
            for c in (a, b):
                commit.add(c.handle, [Batch(c.id, "q", 4, "r2")])
        assert a.handle.contents().queries["q"].batch == b.handle.contents().queries["q"].batch == 4


def alone(c: Collection, upper: int) -> None:
    with Commit(c.handle.engine) as commit:
        commit.add(c.handle, [ExpectNothingBeyondUpper(c.id, (upper,))])
        commit.add_parts(c.handle, uploaded(c, 100, upper))
        commit.add(c.handle, [Seal(c.id, (upper + 1,))])


def test_a_commit_that_must_be_alone_loses_to_any_other(blob: MemoryBlob) -> None:
    with opened(blob) as one, opened(blob) as two:
        a, b = one.create_or_load("c", key=KEY), two.create_or_load("c", key=KEY)
        alone(a, 0)
        b.write([((1, None), 5, 1)]).result()
        before = parts(blob)
        with pytest.raises(persist.errors.UpdatesBeyondUpper, match="1 update at time 5 beyond upper=1"):
            alone(a, 1)
        with pytest.raises(persist.errors.UpperMismatch):
            alone(a, 0)
        assert parts(blob) == before
        b.seal(6).result()
        with pytest.raises(persist.errors.UpperMismatch):
            alone(a, 1)
        alone(a, 6)
        assert keys(a) == [1, 100, 100]


@pytest.mark.parametrize("token", [None, "t"])
def test_a_commit_that_must_be_alone_loses_to_one_in_the_same_group(blob: MemoryBlob, token: str | None) -> None:
    store, gate = Stepped(blob), Gate()
    with persist.open(store, settings=SETTINGS) as client, ThreadPoolExecutor(1) as pool:
        c, other = (client.create_or_load(name, key=KEY) for name in ("c", "other"))
        store.before("create", "log/", gate)
        busy = other.seal(1)  # While this record is being created, the next group gathers.
        gate.wait_until_reached()
        first = c.write([((1, None), 3, 1)], token=token)
        losing = pool.submit(alone, c, 0)
        wait_until(lambda: client.engine.writer("a test").committer.list_pending()[0] == 3)
        gate.open()
        with pytest.raises(persist.errors.UpdatesBeyondUpper):
            losing.result()
        assert first.result() == busy.result() + 1


def test_parts_that_are_kept_outlive_a_rejected_commit(blob: MemoryBlob) -> None:
    with opened(blob) as client:
        c = client.create_or_load("c", key=KEY)
        c.seal(5).result()
        found = {}
        for keep in (False, True):
            stored = uploaded(c, 1, 4)
            with pytest.raises(persist.errors.UpdateNotBeyondUpper), Commit(client.engine) as commit:
                commit.add_parts(c.handle, stored, keep=keep)
            found[keep] = stored[0].blob in parts(blob)
        assert found == {False: False, True: True}
