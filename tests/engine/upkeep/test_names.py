"""What checkpoints name: read from the store each time, and believed only as far as it is there."""

import re

import pytest

from persist.blob.errors import CorruptBlob, MissingBlob
from persist.blob.protocol import MemoryBlob
from persist.core.log import kinds
from persist.core.log.keys import make_checkpoint_key
from persist.engine.follow import checkpoint, directory
from persist.engine.follow.checkpoint import iterate_checkpoints
from persist.engine.upkeep import Names
from persist.engine.upkeep import references as upkeep_names
from persist.engine.upkeep.references import KnownNames, parse_object_seqno
from tests.engine.follow.test_directory import Writer
from tests.support.stepped import Stepped

NAMED = re.compile(r'"((?:directory|state|list)/[^"]*)"')


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> Writer:
    """A location with three checkpoints, each of which has a directory and states of its own."""
    monkeypatch.setattr(directory, "INLINE_BYTES_MAX", 400)
    monkeypatch.setattr(directory, "RATIO", 1000)
    monkeypatch.setattr(checkpoint, "STORED_PENDING_MAX", 0)
    writer = Writer(MemoryBlob())
    writer.create(3)
    writer.checkpoint()
    for time in (1, 2):
        for id_ in writer.ids:
            writer.commit(kinds.Seal(id_, (time,)))
        writer.checkpoint()
    return writer


def named_in_text(blob: MemoryBlob, key: str) -> set[str]:
    """Return the objects that a checkpoint names, and those that they name, as the bytes say it."""
    names = {*NAMED.findall((blob.get(key) or b"").decode())}
    return names.union(*(named_in_text(blob, each) for each in names))


def checkpoints(blob: MemoryBlob) -> list[str]:
    """Return the keys of all checkpoints, the newest first."""
    return [entry.key for entry in blob.list("checkpoint/")]


def test_a_checkpoint_names_the_objects_that_it_points_to_and_those_that_they_point_to(writer: Writer) -> None:
    names = Names(writer.blob)
    for stored in iterate_checkpoints(writer.blob):
        assert names.list_named(stored.checkpoint) == named_in_text(writer.blob, stored.pointer.blob)
        assert len(names.list_named(stored.checkpoint)) == 4
    newest = names.get_newest_checkpoint()
    assert newest is not None
    assert newest.pointer.blob == checkpoints(writer.blob)[0]
    assert Names(MemoryBlob()).get_newest_checkpoint() is None


def test_the_oldest_thing_in_a_checkpoint_is_itself_or_a_directory_object(writer: Writer) -> None:
    newest, *_ = checkpoints(writer.blob)
    names = Names(writer.blob)
    seqnos = [int(name.split("/")[-1][:20]) for name in named_in_text(writer.blob, newest) if "directory/" in name]
    assert names.get_least_seqno(newest) == min(seqnos) == 6
    assert names.get_least_seqno(make_checkpoint_key(0)) == 0
    assert names.get_least_seqno(make_checkpoint_key(99)) < 0
    writer.blob.delete(newest)
    assert names.get_least_seqno(newest) == 6, "it is remembered"


def test_nothing_is_deleted_that_the_newest_checkpoint_names(writer: Writer) -> None:
    names = Names(writer.blob)
    newest, *older = checkpoints(writer.blob)
    free = named_in_text(writer.blob, older[-1]) - named_in_text(writer.blob, newest)
    names.check_unnamed(free)
    doomed = min(named_in_text(writer.blob, newest))
    with pytest.raises(CorruptBlob, match=f"it names {doomed}, which no checkpoint") as caught:
        names.check_unnamed([*free, doomed])
    assert caught.value.key == newest
    Names(MemoryBlob()).check_unnamed([doomed])


def test_what_the_newest_checkpoint_names_must_be_there_unless_there_is_a_newer_one_by_now(writer: Writer) -> None:
    newest, *_ = checkpoints(writer.blob)
    named = named_in_text(writer.blob, newest)
    names = Names(writer.blob)
    names.check_present(named, named)
    names.check_present({"state/gone"}, named)  # It was named by an older one alone.
    names.check_present(named, set())  # It was not listed, and is there.
    gone = max(named)
    writer.blob.delete(gone)
    with pytest.raises(MissingBlob, match=f"{newest} names it") as caught:
        names.check_present(named, named - {gone})
    assert caught.value.key == gone
    writer.blob.delete(newest)
    for key in checkpoints(writer.blob):
        writer.blob.delete(key)
    Names(writer.blob).check_present(named, named - {gone})


@pytest.mark.parametrize("remembers", [True, False])
@pytest.mark.parametrize("gone", ["directory/", "state/", "both"])
def test_a_checkpoint_of_which_something_is_gone_is_useless_and_names_nothing_that_others_do_not(
    writer: Writer, gone: str, remembers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not remembers:
        monkeypatch.setattr(upkeep_names, "REMEMBERED_MAX", 0)
    newest, middle, oldest = checkpoints(writer.blob)
    names = Names(writer.blob)
    stored = names.get_newest_checkpoint()
    assert stored is not None
    seqnos = [int(key[-25:-5]) for key in (newest, middle, oldest)]
    present = {entry.key for entry in writer.blob.list("")}
    named, useless = names.list_older([*seqnos, 77], stored, present)
    assert useless == set()
    others = [named_in_text(writer.blob, key) for key in (middle, oldest)]
    assert named == set.union(*others)
    for prefix in ("directory/", "state/") if gone == "both" else (gone,):
        for key in others[1] - others[0]:
            if key.startswith(prefix):
                writer.blob.delete(key)
    names = Names(writer.blob)
    present = {entry.key for entry in writer.blob.list("")}
    named, useless = names.list_older(seqnos, stored, present)
    assert useless == {oldest}
    assert others[0] <= named <= set.union(*others)


def test_what_was_not_listed_and_is_there_all_the_same_makes_no_checkpoint_useless(writer: Writer) -> None:
    newest, middle, _ = checkpoints(writer.blob)
    names = Names(Stepped(writer.blob))
    stored = names.get_newest_checkpoint()
    assert stored is not None
    assert names.list_older([int(middle[-25:-5])], stored, set())[1] == set()
    assert newest == stored.pointer.blob


class ReadBlob(MemoryBlob):
    """A store that remembers which keys were read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        self.read.append(key)
        return super().get(key, range)


def test_pages_are_read_once_by_a_collector_and_mention_all_that_checkpoints_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(directory, "INLINE_BYTES_MAX", 400)
    monkeypatch.setattr(directory, "WHOLE_BYTES_MAX", 0)
    monkeypatch.setattr(checkpoint, "STORED_PENDING_MAX", 0)
    blob, known, named = ReadBlob(), KnownNames(), set[str]()
    writer = Writer(blob)
    writer.create(20)
    for time in range(1, 4):
        for id_ in writer.ids[:time]:
            writer.commit(kinds.Seal(id_, (time,)))
        writer.checkpoint()
        newest = Names(blob).get_newest_checkpoint()
        assert newest is not None
        names, earlier = Names(blob, known), len(blob.read)
        mentioned = names.list_mentioned(newest.checkpoint)
        pages = [key for key in blob.read[earlier:] if key.endswith(".pages")]
        named |= (exact := Names(blob).list_named(newest.checkpoint))
        assert exact <= mentioned <= named, "an entry that is replaced counts, and nothing that never was"
        assert len(pages) == len({*pages} & known.mentioned.keys()) > 0
        earlier = len(blob.read)
        assert Names(blob, known).list_mentioned(newest.checkpoint) == mentioned
        assert not [key for key in blob.read[earlier:] if key.endswith(".pages")]


def test_objects_have_the_seqno_in_their_names_that_they_were_made_for() -> None:
    digits, id_ = "a" * 32, "1" * 32
    for name in (
        f"directory/{7:020d}-{digits}.json",
        f"state/{id_}/{7:020d}-{digits}.json",
        f"list/{id_}/{7:020d}-{digits}.json",
    ):
        assert parse_object_seqno(name) == 7
    assert parse_object_seqno(f"directory/{0:020d}-{digits}.json") == 0
    assert parse_object_seqno("elsewhere/7") is None
