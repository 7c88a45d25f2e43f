"""A checkpoint costs what changed, however many collections there are, and says what all of it is."""

import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from msgspec import UnsetType

import persist
from persist.blob.errors import CorruptBlob, InvalidUsage, MissingBlob
from persist.blob.protocol import MemoryBlob
from persist.blob.threads import SystemClock
from persist.core.log import kinds
from persist.core.log.framing import FORMAT, BlobRef, decode_framed, encode_framed, store_framed
from persist.core.log.keys import parse_directory_seqno, parse_pages_seqno
from persist.core.log.kinds import Mutation
from persist.core.log.records import Record, create_record, read_record
from persist.core.state_rules.state import State, apply_record
from persist.engine.follow import checkpoint, directory
from persist.engine.follow import directory_pages as pages
from persist.engine.follow.follower import Follower
from tests.support.clocks import ImpatientClock

SCHEMA = {"key": {"fields": [["k", "int64"]]}, "value": None}
CLOCK = SystemClock()


class CountingBlob(MemoryBlob):
    """Counts the bytes stored below each folder."""

    def __init__(self) -> None:
        super().__init__()
        self.stored: Counter[str] = Counter()

    def set(self, key: str, value: bytes) -> None:
        self.stored[key.partition("/")[0]] += len(value)
        super().set(key, value)

    def create(self, key: str, value: bytes) -> bool:
        self.stored[key.partition("/")[0]] += len(value)
        return super().create(key, value)


class Writer:
    """Commits records one after the other, and makes the checkpoints that are due."""

    def __init__(self, blob: MemoryBlob) -> None:
        self.blob = blob
        self.follower = Follower(blob, ImpatientClock())
        self.ids: list[str] = []
        self.format = FORMAT

    def commit(self, *mutations: Mutation) -> None:
        state = self.follower.state
        record = Record(
            format=self.format,
            location="f" * 32,
            seqno=state.seqno + 1,
            commit=uuid.uuid4().hex,
            previous=state.commit,
            writer="a test",
            epoch=None,
            written_ms=0,
            mutations=mutations,
        )
        assert create_record(self.blob, record, CLOCK) is None
        self.follower.advance(record)
        if checkpoint.is_checkpoint_due(record.seqno):
            assert self.checkpoint()

    def checkpoint(self) -> bool:
        return checkpoint.write_checkpoint(self.blob, *self.follower.get_recent_records())

    def create(self, count: int) -> None:
        new = [uuid.uuid4().hex for _ in range(count)]
        self.commit(*(kinds.Create(id_, f"c-{id_}", SCHEMA) for id_ in new))
        self.ids += new

    def destroy(self, n: int) -> None:
        self.commit(kinds.Destroy(self.ids.pop(n)))

    def seal_in_turn(self, commits: int) -> None:
        for n in range(commits):
            self.commit(kinds.Seal(self.ids[n * 7919 % len(self.ids)], (self.follower.state.seqno + 1,)))


def replayed(blob: MemoryBlob) -> State:
    state = State()
    while (record := read_record(blob, state.seqno + 1)) is not None:
        state = apply_record(state, record)
    return state


def loaded(blob: MemoryBlob, state: State) -> Iterator[tuple[str, object]]:
    assert state.location is not None
    for id_, entry in state.entries.items():
        yield id_, checkpoint.load_contents(blob, state.location, entry).contents


def assert_opens_as_the_log_says(blob: MemoryBlob) -> None:
    opened, whole = Follower(blob, ImpatientClock()).state, replayed(blob)
    assert (opened.seqno, dict(opened.ids), opened.control) == (whole.seqno, dict(whole.ids), whole.control)
    assert dict(loaded(blob, opened)) == dict(loaded(blob, whole))


def test_a_commit_costs_no_more_bytes_of_checkpoints_among_many_collections_than_among_few() -> None:
    spent = {}
    for count in (10, 1000):
        blob = CountingBlob()
        writer = Writer(blob)
        writer.create(count)
        writer.checkpoint()
        blob.stored.clear()
        writer.seal_in_turn(480)
        spent[count] = sum(blob.stored[kind] for kind in ("checkpoint", "directory", "state")) / 480
    assert spent[10] < 2_000
    assert spent[1000] < 6_000


def test_a_small_location_has_one_object_for_all_its_collections(blob: MemoryBlob) -> None:
    writer = Writer(blob)
    writer.create(50)
    writer.seal_in_turn(100)
    assert not list(blob.list("directory/"))
    assert_opens_as_the_log_says(blob)


def test_directory_objects_are_few_and_open_as_the_log_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "INLINE_BYTES_MAX", 1500)
    blob = MemoryBlob()
    writer = Writer(blob)
    most = 0
    for step in range(30):
        writer.create(9)
        writer.seal_in_turn(8)
        if step % 3:
            writer.destroy(step % len(writer.ids))
        writer.checkpoint()
        newest = next(iter(blob.list("checkpoint/")))
        found = checkpoint.read_checkpoint(blob, newest.key)
        assert found is not None
        sizes = [pointer.bytes for pointer in found.directory]
        assert all(one > other for one, other in pairwise(sizes)), "each is larger than the next"
        assert len(sizes) <= 7
        most = max(most, len(sizes))
        assert_opens_as_the_log_says(blob)
    assert most >= 3, "small objects are joined with each other, and large ones stay"


def test_who_remembers_directory_objects_makes_the_checkpoints_that_another_would(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a client remembers of directory objects must not get into a checkpoint unless the newest one names it."""
    monkeypatch.setattr(directory, "INLINE_BYTES_MAX", 1500)
    blob = MemoryBlob()
    first, second = Writer(blob), Writer(blob)
    first.create(40)
    for n in range(12):
        one, other = (first, second) if n % 2 else (second, first)
        other.follower.refresh()
        one.follower.refresh()
        one.ids = [*one.follower.state.entries]
        one.seal_in_turn(7)
        one.checkpoint()
        newest = next(iter(blob.list("checkpoint/")))
        found = checkpoint.read_checkpoint(blob, newest.key)
        assert found is not None
        assert all(blob.get(pointer.blob) is not None for pointer in found.directory)
        assert_opens_as_the_log_says(blob)


def test_nothing_older_than_the_log_that_is_kept_is_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or else what was destroyed would live on in a directory object for as long as the location."""
    monkeypatch.setattr(directory, "INLINE_BYTES_MAX", 1500)
    blob = MemoryBlob()
    writer = Writer(blob)
    writer.create(40)
    writer.checkpoint()
    gone = writer.ids[3]
    writer.destroy(3)
    writer.seal_in_turn(3)
    floor = writer.follower.state.seqno
    writer.commit(kinds.TruncateLog(floor))
    writer.checkpoint()
    newest = next(iter(blob.list("checkpoint/")))
    found = checkpoint.read_checkpoint(blob, newest.key)
    assert found is not None
    named = [newest.key, *(pointer.blob for pointer in found.directory)]
    assert all((parse_directory_seqno(pointer.blob) or 0) >= floor for pointer in found.directory)
    assert not any(f'"name":"c-{gone}"'.encode() in (blob.get(key) or b"") for key in named)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_checkpoint_is_made_of_the_one_that_the_log_says_and_not_of_one_that_came_late(
    monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    """The late one may name what a collector has deleted. Where the right one is gone, everything is written anew."""
    monkeypatch.setattr(directory, "INLINE_BYTES_MAX", 1500)
    blob = MemoryBlob()
    writer = Writer(blob)
    writer.create(40)
    writer.checkpoint()
    before = [entry.key for entry in blob.list("directory/")]
    writer.seal_in_turn(2)
    with monkeypatch.context() as merging:
        merging.setattr(directory, "RATIO", 1000)  # What it is made of, it does not name.
        writer.create(40)
        writer.checkpoint()
        basis = next(checkpoint.iterate_checkpoints(blob))
    assert not {pointer.blob for pointer in basis.checkpoint.directory}.intersection(before)
    writer.commit(kinds.Seal(writer.ids[0], (1000,)))
    fork = writer.follower.get_recent_records()
    blob.delete(basis.pointer.blob)  # As if a client had listed the checkpoints before that was there.
    with monkeypatch.context() as keeping:
        keeping.setattr(directory, "INLINE_BYTES_MAX", 1 << 20)
        checkpoint.write_checkpoint(blob, *fork)
    named_late = {pointer.blob for pointer in next(checkpoint.iterate_checkpoints(blob)).checkpoint.directory}
    assert named_late.intersection(before)
    if is_there:
        blob.create(basis.pointer.blob, encode_framed(basis.checkpoint))
    writer.commit(kinds.TakeOver(basis.pointer))
    writer.commit(kinds.Seal(writer.ids[0], (2000,)))
    writer.checkpoint()
    made = next(checkpoint.iterate_checkpoints(blob)).checkpoint
    named = [pointer.blob for pointer in made.directory]
    assert not set(named).intersection(before)
    if is_there:
        assert set(named) >= {pointer.blob for pointer in basis.checkpoint.directory}
    else:
        assert all((parse_directory_seqno(key) or 0) == made.seqno for key in named)
    assert_opens_as_the_log_says(blob)


@pytest.mark.parametrize("how", ["missing", "damaged", "of another checkpoint"])
def test_a_directory_object_that_is_not_what_it_was_is_named(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "INLINE_BYTES_MAX", 1500)
    blob = MemoryBlob()
    writer = Writer(blob)
    writer.create(40)
    writer.checkpoint()
    key = next(iter(blob.list("directory/"))).key
    data = blob.get(key) or b""
    blob.delete(key)
    if how != "missing":
        blob.set(key, data.replace(b"c-", b"d-", 1) if how == "damaged" else data.replace(b'"seqno":0', b'"seqno":1'))
    with pytest.raises(CorruptBlob) as caught:
        persist.open(blob, mode="read")
    assert caught.value.key == key
    assert isinstance(caught.value, MissingBlob) is (how == "missing")


def test_a_directory_that_was_collected_between_two_gets_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "INLINE_BYTES_MAX", 1500)

    class Collected(MemoryBlob):
        """Loses a checkpoint, and its directory, when the directory is asked for."""

        doomed = ("", "")

        def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
            if key == self.doomed[1]:
                for each in self.doomed:
                    self.delete(each)
            return super().get(key, range)

    blob = Collected()
    writer = Writer(blob)
    writer.create(40)
    writer.checkpoint()
    writer.create(80)
    writer.checkpoint()
    newest = next(iter(blob.list("checkpoint/"))).key
    found = checkpoint.read_checkpoint(blob, newest)
    assert found is not None
    blob.doomed = (newest, found.directory[-1].blob)
    opened = Follower(blob, ImpatientClock()).state
    assert len(opened.entries) == 120
    assert blob.get(newest) is None


@pytest.mark.parametrize("levels", [10, 11, 12])
def test_all_is_written_anew_when_few_more_objects_could_be_added(levels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "INLINE_BYTES_MAX", 0)
    monkeypatch.setattr(directory, "LEVELS_MAX", 20)
    monkeypatch.setattr(directory, "SPARE_LEVELS", 8)
    writer = Writer(MemoryBlob())
    writer.create(3)
    state = writer.follower.state
    whole = directory.Directory(state.entries, state.ids)
    pointer = BlobRef("directory/x", 1 << 20, "")  # Too large to be joined with what is new.
    known = tuple(directory.Level(pointer, directory.EMPTY) for _ in range(levels))
    small = directory.Level(BlobRef("directory/y", 1, ""), directory.EMPTY)
    before = (*known, small)
    made = directory.store_directory(writer.blob, state, whole, before, before, lambda key, data: None)
    assert (made.levels[:-1] == known) is (levels < 12)
    assert (len(made.levels) == 1) is (levels >= 12)


@pytest.fixture
def tiny_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "INLINE_BYTES_MAX", 1500)
    monkeypatch.setattr(directory, "WHOLE_BYTES_MAX", 2500)
    monkeypatch.setattr(pages, "PAGE_BYTES", 500)
    monkeypatch.setattr(pages, "OBJECT_BYTES_MAX", 1500)
    monkeypatch.setattr(pages, "KNOWN_PAGES", 3)


def newest(blob: MemoryBlob) -> checkpoint.Checkpoint:
    return next(checkpoint.iterate_checkpoints(blob)).checkpoint


def pages_named(blob: MemoryBlob) -> set[str]:
    return {key for key in checkpoint.list_directory_blobs(blob, newest(blob)) if parse_pages_seqno(key) is not None}


@pytest.mark.usefixtures("tiny_pages")
def test_a_directory_in_pages_opens_as_the_log_says() -> None:
    blob, most = MemoryBlob(), 0
    writer = Writer(blob)
    for step in range(20):
        writer.create(6)
        one, other = writer.ids[0], writer.ids[-1]
        names = {id_: name for name, id_ in writer.follower.state.ids.items()}
        writer.commit(kinds.Rename(one, "between"), kinds.Rename(other, names[one]), kinds.Rename(one, names[other]))
        writer.commit(kinds.Rename(writer.ids[2], f"renamed {step}"))
        writer.destroy(1)
        writer.seal_in_turn(16)
        if step % 5 == 4:
            writer = Writer(blob)  # Another client goes on, which has read the pages that it needs, and no others.
            writer.ids = [*writer.follower.state.ids.values()]
        most = max(most, len(newest(blob).directory))
        assert_opens_as_the_log_says(blob)
    assert most >= 2
    assert len(pages_named(blob)) > 10
    opened, whole = Follower(blob, ImpatientClock()), replayed(blob)
    for name, id_ in whole.ids.items():
        assert opened.find_id(name) == id_
        assert opened.state.entries[id_].name == name
    assert opened.find_id("between") is None
    assert [*opened.state.ids.iterate_prefix("c-")] == sorted((n, i) for n, i in whole.ids.items() if n[:2] == "c-")


def test_a_million_collections_are_opened_by_what_they_are_listed_in(tiny_pages: None) -> None:
    """By requests and bytes: they grow with the list of pages, and not with what is in them."""
    read: dict[int, tuple[int, int]] = {}

    class Counting(MemoryBlob):
        def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
            value = super().get(key, range)
            self.reads = (self.reads[0] + 1, self.reads[1] + len(value or b""))
            return value

        reads = (0, 0)

    for count in (100, 400):
        blob = Counting()
        writer = Writer(blob)
        writer.create(count)
        writer.checkpoint()
        writer.seal_in_turn(3)
        blob.reads = (0, 0)
        opened = Follower(blob, ImpatientClock())
        at_first = blob.reads
        name = next(iter(writer.follower.state.ids))
        id_ = opened.find_id(name)
        assert id_ is not None
        assert opened.require(id_, name).name == name
        assert blob.reads[0] - at_first[0] <= 3
        assert blob.reads[1] - at_first[1] <= 2500
        read[count] = at_first
    assert read[400][0] <= read[100][0] + 1
    assert read[400][1] < 400 * 120


@pytest.mark.usefixtures("tiny_pages")
def test_pages_that_are_idle_are_listed_again_and_nothing_that_was_destroyed_is_in_them() -> None:
    blob = MemoryBlob()
    writer = Writer(blob)
    writer.create(60)
    writer.checkpoint()
    before, gone = pages_named(blob), sorted(writer.ids)[30]
    writer.commit(kinds.Destroy(gone))
    writer.ids.remove(gone)
    writer.seal_in_turn(3)
    floor = writer.follower.state.seqno
    writer.commit(kinds.TruncateLog(floor))
    writer.checkpoint()
    made, named = newest(blob), pages_named(blob)
    assert all((parse_directory_seqno(pointer.blob) or 0) >= floor for pointer in made.directory)
    assert len(made.directory) == 1
    kept = named & before
    assert len(kept) > len(before) // 2
    assert named - before
    keys = [*named, *(pointer.blob for pointer in made.directory)]
    assert not any(gone.encode() in (blob.get(key) or b"") for key in keys)
    assert_opens_as_the_log_says(blob)


@pytest.mark.usefixtures("tiny_pages")
def test_the_end_of_a_lease_releases_its_holds_on_collections_in_pages() -> None:
    blob = MemoryBlob()
    writer = Writer(blob)
    writer.create(60)
    writer.checkpoint()
    lease, other = uuid.uuid4().hex, uuid.uuid4().hex
    held = sorted(writer.ids)[::7]
    grants = [kinds.GrantLease(each, "a reader", 1) for each in (lease, other)]
    holds = [kinds.SetHold(id_, uuid.uuid4().hex, 0, each) for id_ in held for each in (lease, other)]
    writer.commit(*grants, *holds)
    writer.create(60)  # So that all of it is written as pages.
    writer.checkpoint()
    late = Writer(blob)
    late.commit(kinds.EndLease(lease, 1))
    late.checkpoint()
    opened = Follower(blob, ImpatientClock())
    assert all(opened.state.entries[id_].readers == (other,) for id_ in held)
    assert {h.lease for id_ in held for h in opened.require(id_, "").holds.values()} == {other}
    assert_opens_as_the_log_says(blob)


@pytest.mark.usefixtures("tiny_pages")
@pytest.mark.parametrize("how", ["missing", "damaged", "short"])
def test_a_page_that_is_not_what_it_was_is_named(how: str) -> None:
    blob = MemoryBlob()
    writer = Writer(blob)
    writer.create(60)
    writer.checkpoint()
    key = min(pages_named(blob))
    data = blob.get(key) or b""
    blob.delete(key)
    if how != "missing":
        blob.set(key, data.replace(b"c", b"d", 1) if how == "damaged" else data[:-5])
    opened = Follower(blob, ImpatientClock())
    with pytest.raises(CorruptBlob) as caught:
        [*opened.state.entries.iterate_all(), *opened.state.ids.iterate_all()]
    assert caught.value.key == key
    assert isinstance(caught.value, MissingBlob) is (how == "missing")
    with pytest.raises(CorruptBlob):
        for name, id_ in writer.follower.state.ids.items():
            assert opened.find_id(name) == id_
            assert id_ in opened.state.entries


@pytest.mark.usefixtures("tiny_pages")
def test_a_client_goes_on_from_newer_pages_where_those_that_it_knows_were_collected() -> None:
    blob = MemoryBlob()
    writer = Writer(blob)
    writer.create(60)
    writer.checkpoint()
    slow = [Follower(blob, ImpatientClock()) for _ in range(4)]
    old = pages_named(blob)
    writer.seal_in_turn(120)
    writer.create(60)  # Names are stored again with new ones.
    writer.checkpoint()
    for key in old - pages_named(blob):
        blob.delete(key)
    assert not old & pages_named(blob)
    id_, other = writer.ids[5], writer.ids[6]
    name = writer.follower.state.entries[id_].name
    assert slow[0].find_id(name) == id_
    assert slow[1].require(id_, name).upper == writer.follower.require(id_, name).upper
    assert slow[2].refresh().seqno == writer.follower.state.seqno
    assert slow[2].require(other, "").upper == writer.follower.require(other, "").upper
    entry = slow[3].entry(id_)
    assert entry is not None
    assert entry.name == name


@pytest.mark.usefixtures("tiny_pages")
def test_an_object_of_pages_that_no_writer_would_make_is_refused() -> None:
    blob = MemoryBlob()
    writer = Writer(blob)
    writer.create(60)
    writer.checkpoint()
    pointer = newest(blob).directory[-1]
    whole = decode_framed(blob.get(pointer.blob) or b"", directory.DirectoryObject, pointer.blob)
    assert not isinstance(whole.entries, UnsetType)
    assert not isinstance(whole.names, UnsetType)
    first = whole.entries[0]
    bad: list[dict[str, Any]] = [
        {"entries": whole.entries[::-1]},
        {"names": whole.names[::-1]},
        {"gone": (writer.ids[0],)},
        {"freed": ("a",)},
        {"entries": (msgspec.structs.replace(first, pages=()), *whole.entries[1:])},
        {"entries": (msgspec.structs.replace(first, blob=pointer.blob), *whole.entries[1:])},
        {"entries": (msgspec.structs.replace(first, blob=first.blob.replace("/0", "/9", 1)), *whole.entries[1:])},
        {"entries": (msgspec.structs.replace(first, leased=(("x", writer.ids[0]),)), *whole.entries[1:])},
    ]
    for change in bad:
        stored = msgspec.structs.replace(whole, **change)
        made = store_framed(blob, f"directory/{whole.seqno:020d}-", stored)
        with pytest.raises(CorruptBlob, match="no writer would make it"):
            directory.KnownLevels().read(blob, whole.location, [made])


def test_an_old_location_has_no_pages(tiny_pages: None, monkeypatch: pytest.MonkeyPatch) -> None:
    blob = MemoryBlob()
    writer = Writer(blob)
    writer.follower._state = replace(writer.follower.state, format=8)
    writer.format = 8
    writer.create(60)
    writer.checkpoint()
    assert not pages_named(blob)
    assert newest(blob).directory
    monkeypatch.setattr(directory, "OBJECT_BYTES_MAX", 20_000)
    writer.create(60)
    with pytest.raises(InvalidUsage, match="persist upgrade"):
        writer.checkpoint()
    writer.format = 9
    writer.commit(kinds.Upgrade(9))
    writer.checkpoint()
    assert pages_named(blob)
    assert_opens_as_the_log_says(blob)
