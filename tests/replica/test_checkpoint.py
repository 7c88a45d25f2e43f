"""Opening from a checkpoint and the records after it gives what replaying the whole log gives, for a few requests."""

import uuid
from collections.abc import Iterator

import pyarrow as pa
import pytest

import persist
from persist.blob import BlobEntry, CorruptBlob, MemoryBlob, MeteredBlob, SystemClock
from persist.log import Record, create_record, kinds, read_record
from persist.replica import Follower, checkpoint
from persist.state import CollectionEntry, CollectionState, State, apply
from tests.clocks import ImpatientClock


def replayed(blob: MemoryBlob) -> State:
    """Return the state after the whole log, without any checkpoint."""
    state = State()
    while (record := read_record(blob, state.seqno + 1)) is not None:
        state = apply(state, record)
    return state


def contents(blob: MemoryBlob, state: State) -> dict[str, CollectionState | None]:
    assert state.location is not None
    return {
        entry.name: checkpoint.load_contents(blob, state.location, entry).contents for entry in state.entries.values()
    }


def busy(blob: MemoryBlob, commits: int) -> None:
    """Make collections, write, seal, destroy, from two clients."""
    clients = [persist.open(blob, clock=ImpatientClock()) for _ in range(2)]
    for i in range(commits):
        client = clients[i % 2]
        name = f"c{i % 5}"
        collection = client.create_or_load(name, key={"k": pa.int64()}, value=None)
        time = collection.upper.time or 0
        collection.write([((i, None), time, 1)]).result()
        collection.seal(time + 1).result()
        if i % 17 == 16 and i % 5 in (1, 3):
            collection.destroy().result()
    for client in clients:
        client.close()


def test_opening_from_a_checkpoint_and_its_tail_equals_replaying_the_log() -> None:
    blob = MemoryBlob()
    busy(blob, 130)
    assert len(list(blob.list("checkpoint/"))) >= 8
    assert list(blob.list("state/"))
    opened = Follower(blob, ImpatientClock()).state
    whole = replayed(blob)
    assert (opened.seqno, opened.location, dict(opened.ids)) == (whole.seqno, whole.location, dict(whole.ids))
    assert contents(blob, opened) == contents(blob, whole)


def test_every_checkpoint_agrees_with_the_log_up_to_it() -> None:
    blob = MemoryBlob()
    busy(blob, 40)
    for found in list(blob.list("checkpoint/")):
        alone = MemoryBlob()
        for entry in blob.list(""):
            if not entry.key.startswith("checkpoint/") or entry.key == found.key:
                alone.set(entry.key, blob.get(entry.key) or b"")
        assert contents(alone, Follower(alone, ImpatientClock()).state) == contents(blob, replayed(blob))


def test_a_reader_that_follows_for_long_keeps_the_same_contents_as_one_that_just_opened() -> None:
    blob = MemoryBlob()
    with persist.open(blob) as client:
        collection = client.create_or_load("c", key={"k": pa.int64()}, value=None)
        reader = persist.open(blob, mode="read")
        bystander = Follower(blob, ImpatientClock())
        for i in range(200):
            collection.write([((i, None), i, 1)])
            collection.seal(i + 1).result()
            if i % 50 == 0:
                assert reader.load("c").snapshot(i).count() == i + 1
        assert bystander.refresh().seqno == client.engine.follower.state.seqno
        assert bystander.load(collection.id) == Follower(blob, ImpatientClock()).load(collection.id)
        reader.close()


def test_opening_5000_records_and_200_collections_takes_two_list_pages_and_at_most_20_gets() -> None:
    inner = MemoryBlob()
    clock = SystemClock()
    ids = [uuid.uuid4().hex for _ in range(200)]
    schema = {"key": {"fields": [["k", "int64"]]}, "value": None}
    follower = Follower(inner, clock)
    for seqno in range(5000):
        if seqno < 200:
            mutation: kinds.Create | kinds.Seal = kinds.Create(ids[seqno], f"collection-{seqno}", schema)
        else:
            mutation = kinds.Seal(ids[seqno % 200], (seqno,))
        record = Record(
            location="f" * 32,
            seqno=seqno,
            commit=uuid.uuid4().hex,
            previous=follower.state.commit,
            writer="a test",
            epoch=None,
            written_ms=0,
            mutations=(mutation,),
        )
        assert create_record(inner, record, clock) is None
        follower.advance(record)
        # One record after the last checkpoint is the worst case but one interval.
        if checkpoint.checkpoint_due(seqno) and seqno < 4999:
            checkpoint.write_checkpoint(inner, *follower.recent())
    metered = MeteredBlob(inner)
    with persist.open(metered, mode="read") as client:
        assert len(client.collections()) == 200
        assert client.load("collection-199").upper == persist.Antichain(4999)
    counts = metered.counts()
    assert counts["list"].requests == 2  # The newest checkpoint, and what lies beyond the end of the log.
    assert counts["get"].requests <= 20 + 3  # The three calls after opening refresh, one GET each.
    with persist.open(metered, mode="read"):
        pass
    assert metered.counts()["get"].requests - counts["get"].requests <= 20


@pytest.mark.parametrize("folder", ["checkpoint/", "state/"])
def test_a_damaged_checkpoint_or_state_object_is_named(folder: str) -> None:
    blob = MemoryBlob()
    busy(blob, 130)
    for entry in list(blob.list(folder)):
        data = bytearray(blob.get(entry.key) or b"")
        data[len(data) // 2] ^= 4
        blob.set(entry.key, bytes(data))
    with pytest.raises(CorruptBlob, match=folder), persist.open(blob, mode="read") as reader:
        for name in reader.collections():
            reader.load(name)


def test_a_missing_state_object_is_named() -> None:
    blob = MemoryBlob()
    busy(blob, 130)
    for entry in list(blob.list("state/")):
        blob.delete(entry.key)
    with pytest.raises(CorruptBlob, match=r"state/.*it is missing"), persist.open(blob, mode="read") as reader:
        for name in reader.collections():
            reader.load(name)


def test_exchanged_checkpoints_are_found() -> None:
    blob = MemoryBlob()
    busy(blob, 40)
    newest, older, *_ = blob.list("checkpoint/")
    blob.set(newest.key, blob.get(older.key) or b"")
    with pytest.raises(CorruptBlob, match="blobs were exchanged"):
        persist.open(blob)


def test_a_checkpoint_that_was_collected_between_list_and_get_is_passed_over() -> None:
    class Vanishing(MemoryBlob):
        gone = ""

        def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
            return None if key == self.gone else super().get(key, range)

    blob = Vanishing()
    busy(blob, 40)
    newest = next(iter(blob.list("checkpoint/")))
    blob.gone = newest.key
    opened = Follower(blob, ImpatientClock()).state
    assert contents(blob, opened) == contents(blob, replayed(blob))


def test_a_checkpoint_that_comes_after_a_newer_one_is_not_made() -> None:
    blob = MemoryBlob()
    busy(blob, 5)
    late = Follower(blob, ImpatientClock())
    older = late.recent()
    busy(blob, 5)
    newer = Follower(blob, ImpatientClock()).recent()
    assert newer[0].seqno > older[0].seqno
    assert checkpoint.write_checkpoint(blob, *newer)
    before = {entry.key: blob.get(entry.key) for entry in blob.list("")}
    assert not checkpoint.write_checkpoint(blob, *older)
    assert not checkpoint.write_checkpoint(blob, *newer)
    assert {entry.key: blob.get(entry.key) for entry in blob.list("")} == before


@pytest.mark.parametrize("is_remote", [False, True])
def test_a_checkpoint_lists_the_log_only_where_that_costs_a_page(is_remote: bool) -> None:
    """A folder is listed as a whole, so a commit would cost more with each record that the log keeps."""

    class Listed(MemoryBlob):
        def __init__(self) -> None:
            super().__init__()
            self.prefixes: set[str] = set()

        def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobEntry]:
            self.prefixes.add(prefix)
            return super().list(prefix, start_after)

    blob = Listed()
    blob.is_remote = is_remote  # type: ignore[attr-defined]
    busy(blob, 5)
    follower = Follower(blob, ImpatientClock())
    blob.prefixes.clear()
    assert checkpoint.write_checkpoint(blob, *follower.recent())
    busy(blob, 5)
    follower.refresh()
    blob.prefixes.clear()
    assert checkpoint.write_checkpoint(blob, *follower.recent())
    assert blob.prefixes == ({"checkpoint/", "log/"} if is_remote else {"checkpoint/"})


def test_a_failing_checkpoint_fails_no_write(caplog: pytest.LogCaptureFixture) -> None:
    class NoCheckpoints(MemoryBlob):
        def create(self, key: str, value: bytes) -> bool:
            if key.startswith("checkpoint/"):
                raise persist.Unavailable("no room for checkpoints")
            return super().create(key, value)

    blob = NoCheckpoints()
    busy(blob, 20)
    assert "no room for checkpoints" in caplog.text
    assert not list(blob.list("checkpoint/"))


def test_pending_mutations_fold_to_the_contents_at_every_step() -> None:
    blob = MemoryBlob()
    busy(blob, 60)
    state = State()
    while (record := read_record(blob, state.seqno + 1)) is not None:
        state = apply(state, record)
        for entry in state.entries.values():
            base = entry.base if isinstance(entry.base, CollectionState) else None
            folded = CollectionEntry(entry.id, entry.name, entry.base, entry.pending).with_contents(base)
            assert folded.contents == entry.contents
