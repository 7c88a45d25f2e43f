"""What a client believes of checkpoints and records, and what it asks the store for to find out."""

import uuid
from typing import Any

import msgspec
import pytest

from persist.blob.errors import CorruptBlob, MissingBlob
from persist.blob.layers.metered import MeteredBlob
from persist.blob.protocol import MemoryBlob
from persist.core.log import kinds
from persist.core.log.fields import CollectionMutation
from persist.core.log.framing import BlobRef, encode_framed, store_framed
from persist.core.log.keys import make_checkpoint_key, make_record_key, make_state_prefix
from persist.core.log.records import read_record
from persist.core.state_rules.contents import CollectionState
from persist.core.state_rules.location import Dropped, LocationState, TakenOver
from persist.core.state_rules.state import CollectionEntry
from persist.engine.follow import checkpoint, directory
from persist.engine.follow.directory import EMPTY, DirectoryEntry, DirectoryObject, KnownLevels, check_leases
from persist.engine.follow.follower import Follower
from persist.engine.follow.log_identity import determine_fate
from persist.engine.follow.state_objects import StateObject
from persist.errors import LogReplaced
from tests.core.state_rules.test_refusals import part
from tests.engine.follow.test_directory import SCHEMA, Writer
from tests.support.clocks import ImpatientClock

ID, HOLD, LEASE = "1" * 32, "2" * 32, "3" * 32
LOCATION = "f" * 32


def entry(*leased: tuple[str, str]) -> DirectoryEntry:
    return DirectoryEntry(ID, "c", None, (kinds.Create(ID, "c", SCHEMA),), leased)


def test_leased_holds_are_ids_which_are_there_once_and_live_by_leases_that_are_there() -> None:
    known = EMPTY.with_changes([entry((HOLD, LEASE))], [])
    check_leases(known, {LEASE: None})
    with pytest.raises(ValueError, match="names a lease that does not exist"):
        check_leases(known, {HOLD: None})
    for leased in ([(HOLD, LEASE), (HOLD, LEASE)], [("x", LEASE)], [(HOLD, "x")]):
        with pytest.raises(ValueError, match="the leased holds of collection 1111"):
            EMPTY.with_changes([entry(*leased)], [])


def pointer(id_: str = ID, seqno: int = 0, like: str = "a") -> BlobRef:
    return BlobRef(f"state/{id_}/{seqno:020d}-{like * 32}.json", 1, "x")


NAMED: dict[str, Any] = {"id": ID, "name": "c"}
CREATED = kinds.Create(ID, "c", SCHEMA)
CLONE_PART = msgspec.structs.replace(part(1, 0), blob=part(1, 0).blob.replace("0" * 32, HOLD, 1))
SHARED = kinds.Clone(ID, "c", HOLD, 0, SCHEMA, parts=(CLONE_PART,))


@pytest.mark.parametrize(
    ("good", "wrong", "reason"),
    [
        ({"base": pointer()}, {"base": pointer(HOLD)}, "does not name a state object"),
        ({"base": pointer(), "levels": (pointer(),)}, {"base": pointer(), "levels": (pointer(HOLD),)}, "does not name"),
        ({"base": pointer()}, {"levels": (pointer(),), "pending": (CREATED,)}, "None does not name a state object"),
        (
            {"base": pointer(), "levels": (pointer(),) * 63},
            {"base": pointer(), "levels": (pointer(),) * 64},
            "has 64 state objects after the first",
        ),
        (
            {"name": "d", "pending": (CREATED, kinds.Rename(ID, "x"), kinds.Rename(ID, "d"))},
            {"name": "x", "pending": (CREATED, kinds.Rename(ID, "x"), kinds.Rename(ID, "d"))},
            "has the name 'x', and was last renamed to 'd'",
        ),
        (
            {"pending": (CREATED,)},
            {"name": "d", "pending": (CREATED,)},
            "mutation 0 of collection 1+ is not allowed there",
        ),
        (
            {"pending": (CREATED, kinds.Seal(ID, (1,)))},
            {"pending": (CREATED, kinds.Seal(HOLD, (1,)))},
            "mutation 1 of collection 1+ is not allowed",
        ),
        ({"pending": (CREATED,)}, {"pending": (CREATED, CREATED)}, "mutation 1 of"),
        ({"pending": (CREATED,)}, {"pending": (CREATED, kinds.Destroy(ID))}, "mutation 1 of"),
        ({"base": pointer()}, {"base": pointer(), "pending": (CREATED,)}, "mutation 0 of"),
        ({"pending": (CREATED, kinds.Append(ID))}, {"pending": (CREATED, kinds.Append(ID, (part(1, 0),)))}, "upload"),
        (
            {"pending": (SHARED,), "folders": (HOLD,)},
            {"pending": (SHARED,)},
            "collections that its entry does not name",
        ),
        (
            {"base": pointer(), "pending": (kinds.Replace(ID, unused=(CLONE_PART.blob,)),), "folders": (HOLD,)},
            {"base": pointer(), "pending": (kinds.Replace(ID, unused=(CLONE_PART.blob,)),)},
            "upload",
        ),
        ({"base": pointer(), "folders": (HOLD, LEASE)}, {"base": pointer(), "folders": (LEASE, HOLD)}, "or not sorted"),
        ({"base": pointer(), "folders": ()}, {"base": pointer(), "folders": (ID,)}, "not ids of other"),
        ({"base": pointer(), "folders": (HOLD,)}, {"base": pointer(), "folders": ("x",)}, "not ids of other"),
        ({"pending": (CREATED,)}, {}, "has neither state objects nor mutations"),
        ({"base": pointer()}, {"base": pointer(), "id": "x"}, "is not the id of a collection"),
        ({"base": pointer()}, {"base": pointer(), "name": ""}, "name"),
    ],
)
def test_an_entry_of_a_directory_is_one_that_a_writer_would_make(
    good: dict[str, Any], wrong: dict[str, Any], reason: str
) -> None:
    assert EMPTY.with_changes([DirectoryEntry(**(NAMED | good))], []).entries[ID].id == ID
    with pytest.raises(ValueError, match=reason):
        EMPTY.with_changes([DirectoryEntry(**(NAMED | wrong))], [])


def test_a_directory_has_each_id_and_each_name_once() -> None:
    one, other = DirectoryEntry(ID, "c", pointer()), DirectoryEntry(HOLD, "d", pointer(HOLD))
    both = EMPTY.with_changes([one, other], [])
    assert dict(both.ids) == {"c": ID, "d": HOLD}
    exchanged = [msgspec.structs.replace(one, name="d"), msgspec.structs.replace(other, name="c")]
    assert dict(both.with_changes(exchanged, []).ids) == {"d": ID, "c": HOLD}
    taken = msgspec.structs.replace(other, name="c")
    assert dict(both.with_changes([taken], [ID]).ids) == {"c": HOLD}
    with pytest.raises(ValueError, match="two collections have the same id or name"):
        both.with_changes([taken], [])
    for again in ([one, msgspec.structs.replace(one, name="d")], [one, one]):
        with pytest.raises(ValueError, match="it lists the collection"):
            EMPTY.with_changes(again, [])
    for gone in ([LEASE], [ID]):
        with pytest.raises(ValueError, match="as deleted, but"):
            both.with_changes([one], gone)


def test_a_checkpoint_says_nothing_of_what_comes_after_it() -> None:
    """What lies at its own seqno is the last that it may speak of."""
    writer = Writer(MemoryBlob())
    for _ in range(6):
        writer.create(1)
    writer.checkpoint()
    [stored] = checkpoint.iterate_checkpoints(writer.blob)
    made, at = stored.checkpoint, stored.checkpoint.seqno
    assert at == 5
    older = BlobRef(make_checkpoint_key(3), 1, "x")

    def read(**control: Any) -> object:
        changed = msgspec.structs.replace(made, control=msgspec.structs.replace(made.control, **control))
        writer.blob.set(stored.pointer.blob, encode_framed(changed))
        return checkpoint.read_checkpoint(writer.blob, stored.pointer.blob)

    pairs: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"log_floor": 6}, {"log_floor": 7}),
        ({"upload_floor": 6}, {"upload_floor": 7}),
        ({"erased": 6}, {"erased": 7}),
        ({"log_floor": 0}, {"log_floor": -1}),
        ({"erasures": ((6, ID),)}, {"erasures": ((7, ID),)}),
        ({"dropped": (Dropped(5, 0, ID),)}, {"dropped": (Dropped(6, 0, ID),)}),
        ({"dropped": (Dropped(5, 0, ID, folders=(HOLD,)),)}, {"dropped": (Dropped(5, 0, ID, folders=(HOLD, "x")),)}),
        (
            {"dropped": (Dropped(5, 0, ID, (), (CLONE_PART.blob,), (HOLD,)),)},
            {"dropped": (Dropped(5, 0, ID, (), (CLONE_PART.blob,)),)},
        ),
        ({"taken_over": TakenOver(5, older)}, {"taken_over": TakenOver(6, older)}),
        ({"taken_over": TakenOver(4, older)}, {"taken_over": TakenOver(3, older)}),
    ]
    for good, wrong in pairs:
        assert read(**good)
        with pytest.raises(CorruptBlob, match="no writer would make it"):
            read(**wrong)
    largest = BlobRef(f"directory/{5:020d}-{'a' * 32}.json", directory.OBJECT_BYTES_MAX, "x")
    for directory_, is_good in [
        ((largest,), True),
        ((msgspec.structs.replace(largest, bytes=largest.bytes + 1),), False),
        ((largest,) * 64, True),
        ((largest,) * 65, False),
        ((msgspec.structs.replace(largest, blob=largest.blob.replace("5-", "6-", 1)),), False),
        ((msgspec.structs.replace(largest, blob=make_checkpoint_key(3)),), False),
    ]:
        changed = msgspec.structs.replace(made, directory=directory_)
        writer.blob.set(stored.pointer.blob, encode_framed(changed))
        if is_good:
            assert checkpoint.read_checkpoint(writer.blob, stored.pointer.blob) == changed
        else:
            with pytest.raises(CorruptBlob):
                checkpoint.read_checkpoint(writer.blob, stored.pointer.blob)


def test_directory_objects_that_were_read_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "INLINE_BYTES_MAX", 1500)
    blob = MeteredBlob(MemoryBlob())
    writer = Writer(blob)  # type: ignore[arg-type]
    writer.create(40)
    writer.checkpoint()
    pointers = next(checkpoint.iterate_checkpoints(blob)).checkpoint.directory
    assert pointers
    levels = KnownLevels()
    first = levels.read(blob, LOCATION, pointers)
    asked = blob.get_counts()["get"].requests
    assert levels.read(blob, LOCATION, pointers) == first
    assert blob.get_counts()["get"].requests == asked


def test_directory_objects_count_only_after_those_that_they_were_made_after() -> None:
    """The second object is known, but after another first one."""
    blob = MemoryBlob()

    def stored(seqno: int, name: str, id_: str = ID) -> BlobRef:
        entries = (DirectoryEntry(id_, name, pointer(id_)),)
        made = DirectoryObject(location=LOCATION, seqno=seqno, collections=entries)
        return store_framed(blob, f"directory/{seqno:020d}-", made)

    first, other, second = stored(0, "a"), stored(1, "b"), stored(2, "c", HOLD)
    levels = KnownLevels()
    assert dict(levels.read(blob, LOCATION, [first, second])[-1].directory.ids) == {"a": ID, "c": HOLD}
    assert dict(levels.read(blob, LOCATION, [other, second])[-1].directory.ids) == {"b": ID, "c": HOLD}
    assert len(levels.read(blob, LOCATION, [other])) == 1


def test_a_checkpoint_that_is_damaged_is_raised_or_passed_over() -> None:
    writer = Writer(MemoryBlob())
    for _ in range(3):
        writer.create(1)
        writer.checkpoint()
    writer.blob.set(make_checkpoint_key(1), b"damaged")
    with pytest.raises(CorruptBlob, match="checkpoint/"):
        [*checkpoint.iterate_checkpoints(writer.blob, skip_damaged=False)]
    whole = checkpoint.iterate_checkpoints(writer.blob, skip_damaged=True)
    assert [stored.checkpoint.seqno for stored in whole] == [2, 0]


def test_a_checkpoint_of_which_a_directory_object_is_missing_is_named_or_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(directory, "INLINE_BYTES_MAX", 0)
    writer = Writer(MemoryBlob())
    for _ in range(3):
        writer.create(2)
        writer.checkpoint()
    newest = next(checkpoint.iterate_checkpoints(writer.blob)).checkpoint
    writer.blob.delete(newest.directory[-1].blob)
    with pytest.raises(MissingBlob, match=f"according to {make_checkpoint_key(2)}"):
        Follower(writer.blob, ImpatientClock())
    writer.create(1)
    state, recent, _ = writer.follower.get_recent_records()
    assert checkpoint.write_checkpoint(writer.blob, state, recent), "of the one before, and the records after it"
    assert Follower(writer.blob, ImpatientClock()).state.seqno == 3


def test_a_log_that_begins_later_needs_a_checkpoint() -> None:
    writer = Writer(MemoryBlob())
    assert [*checkpoint.iterate_checkpoints(writer.blob)] == []
    for _ in range(3):
        writer.create(1)
    assert [*checkpoint.iterate_checkpoints(writer.blob)] == []
    writer.blob.delete(make_record_key(0))
    with pytest.raises(MissingBlob, match=f"the log begins at {make_record_key(1)}") as caught:
        [*checkpoint.iterate_checkpoints(writer.blob)]
    assert caught.value.key == make_record_key(0)


def test_with_a_checkpoint_a_log_may_begin_later() -> None:
    writer = Writer(MemoryBlob())
    for _ in range(3):
        writer.create(1)
    assert writer.checkpoint()
    assert not writer.checkpoint(), "there is one"
    writer.blob.delete(make_record_key(0))
    assert [stored.checkpoint.seqno for stored in checkpoint.iterate_checkpoints(writer.blob)] == [2]


@pytest.mark.parametrize(
    ("log_floor", "erased_at", "is_taken"),
    [(0, (), True), (7, (), True), (8, (), False), (0, (2, 5, 7), True), (0, (2, 5, 8), False), (0, (2, 8), False)],
)
def test_no_level_is_taken_over_from_before_the_log_or_the_last_erasure(
    log_floor: int, erased_at: tuple[int, ...], is_taken: bool
) -> None:
    levels = tuple(
        directory.Level(BlobRef(f"directory/{seqno:020d}-{'0' * 32}.json", 1, "x"), EMPTY) for seqno in (7, 9)
    )
    control = LocationState(log_floor=log_floor, erasures=tuple((seqno, ID) for seqno in erased_at))
    assert directory.list_reusable_levels(levels, control) == (levels if is_taken else ())


def test_checkpoints_beyond_the_log_are_named_the_newest_first() -> None:
    writer = Writer(MemoryBlob())
    for _ in range(4):
        writer.create(1)
        writer.checkpoint()
    assert checkpoint.list_checkpoints_beyond_log(writer.blob) == []
    for seqno in (2, 3):
        writer.blob.delete(make_record_key(seqno))
    assert checkpoint.list_checkpoints_beyond_log(writer.blob) == [3, 2]
    writer.blob.delete(make_record_key(0))
    writer.blob.delete(make_record_key(1))
    assert checkpoint.list_checkpoints_beyond_log(writer.blob) == []


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_no_checkpoint_is_made_across_a_hole_of_the_log_though_its_records_are_remembered(missing: int) -> None:
    writer = Writer(MemoryBlob())
    writer.create(1)
    writer.checkpoint()
    for _ in range(3):
        writer.create(1)
    writer.blob.delete(make_record_key(missing))
    with pytest.raises(MissingBlob, match=make_record_key(missing)):
        writer.checkpoint()


def test_of_the_records_that_are_remembered_the_last_one_is_read_again_before_a_checkpoint_stands_for_them() -> None:
    writer = Writer(MemoryBlob())
    writer.create(1)
    writer.checkpoint()
    for _ in range(3):
        writer.create(1)
    last = read_record(writer.blob, 3)
    assert last is not None
    writer.blob.set(make_record_key(3), encode_framed(msgspec.structs.replace(last, commit=uuid.uuid4().hex)))
    with pytest.raises(CorruptBlob, match=make_record_key(3)):
        writer.checkpoint()


def test_contents_are_those_of_the_collection_under_the_name_that_it_had() -> None:
    blob = MemoryBlob()

    def loaded(*pending: CollectionMutation, name: str = "c", id_: str = ID) -> CollectionState | None:
        stored = StateObject(location=LOCATION, collection=CollectionState(id_, "c", SCHEMA))
        pointer = store_framed(blob, make_state_prefix(ID, 0), stored)
        return checkpoint.load_contents(blob, LOCATION, CollectionEntry(ID, name, pointer, pending)).contents

    assert loaded() == CollectionState(ID, "c", SCHEMA)
    assert loaded(kinds.Rename(ID, "d"), name="d") == CollectionState(ID, "d", SCHEMA)
    for wrong in ({"name": "d"}, {"id_": HOLD}):
        with pytest.raises(CorruptBlob, match="it belongs to another collection, so blobs were exchanged"):
            loaded(**wrong)
    with pytest.raises(CorruptBlob, match="its entry of collection 'd' has the state of 'e'"):
        loaded(kinds.Rename(ID, "e"), name="d")


def test_a_part_list_of_a_record_that_waits_in_a_checkpoint_names_uploads_of_its_collection() -> None:
    blob = MemoryBlob()
    from persist.core.log.records import PartList

    listed = PartList(location=LOCATION, collection=ID, parts=(part(1, 0),))  # A part of another collection.
    pointer = store_framed(blob, f"list/{ID}/{0:020d}-", listed)
    pending = (kinds.Create(ID, "c", SCHEMA), kinds.Append(ID, parts_in=pointer))
    with pytest.raises(CorruptBlob, match="is not the name of an upload to collection 1111") as caught:
        checkpoint.load_contents(blob, LOCATION, CollectionEntry(ID, "c", None, pending, folders=("0" * 32,)))
    assert caught.value.key == pointer.blob
    # A clone has parts of its source.
    clone = kinds.Clone(ID, "c", "0" * 32, 0, SCHEMA, parts_in=pointer, runs=((0,),))
    for folders, refused in ((("0" * 32,), False), ((), True)):
        entry = CollectionEntry(ID, "c", None, (clone,), folders=folders)
        if refused:
            with pytest.raises(CorruptBlob, match="is not the name of an upload"):
                checkpoint.load_contents(blob, LOCATION, entry)
        else:
            assert checkpoint.load_contents(blob, LOCATION, entry).contents is not None


def test_another_record_in_the_place_of_one_that_is_known_stops_the_client() -> None:
    writer = Writer(MemoryBlob())
    writer.create(1)
    known = writer.follower.get_newest_record()
    assert known is not None
    writer.follower.advance(known)
    with pytest.raises(LogReplaced):
        writer.follower.advance(msgspec.structs.replace(known, commit=uuid.uuid4().hex))


def test_a_checkpoint_of_another_past_stops_the_client_that_would_go_on_from_it() -> None:
    mine, other = Writer(MemoryBlob()), MemoryBlob()
    for _ in range(3):
        mine.create(1)
    for entry in mine.blob.list(""):
        other.set(entry.key, mine.blob.get(entry.key) or b"")
    theirs = Writer(other)
    theirs.create(1)
    theirs.checkpoint()
    for _ in range(3):
        mine.create(1)
    for entry in [entry for entry in other.list("") if not entry.key.startswith("log/")]:
        mine.blob.set(entry.key, other.get(entry.key) or b"")
    with pytest.raises(LogReplaced):
        mine.follower.restart()


def test_whether_the_slot_of_a_new_record_was_truncated_is_known_without_asking_while_the_client_is_fresh() -> None:
    blob = MeteredBlob(MemoryBlob())
    writer = Writer(blob)  # type: ignore[arg-type]
    writer.create(1)
    known = writer.follower.get_newest_record()
    assert known is not None
    following = msgspec.structs.replace(known, seqno=1, commit=uuid.uuid4().hex, previous=known.commit)
    before = blob.get_counts()
    assert not writer.follower.was_truncated(known, past_is_there=False)
    assert not writer.follower.was_truncated(following, past_is_there=True)
    assert blob.get_counts() == before
    writer.checkpoint()
    assert not writer.follower.was_truncated(following, past_is_there=False)
    assert blob.get_counts() != before


def test_a_record_that_is_gone_was_truncated_if_the_newest_checkpoint_says_so() -> None:
    writer = Writer(MemoryBlob())
    for _ in range(3):
        writer.create(1)
    writer.commit(kinds.TruncateLog(2))
    writer.checkpoint()
    for seqno in (1, 2):
        writer.blob.delete(make_record_key(seqno))
    assert determine_fate(writer.blob, (1, "a" * 32)) == "truncated"
    assert determine_fate(writer.blob, (2, "a" * 32)) == (2, "a" * 32, None)


def test_waiting_ends_with_the_first_answer_or_with_the_time_that_it_may_take() -> None:
    writer = Writer(MemoryBlob())
    writer.create(1)
    follower = Follower(writer.blob, ImpatientClock(), poll_s=0.001)
    answers = iter([None, None, 7])
    assert follower.wait_for(lambda: next(answers), None) == 7
    assert follower.wait_for(lambda: None, 0.0) is None
