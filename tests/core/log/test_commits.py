"""Commit records: one winner for each seqno, lost answers, and what damage to the log looks like."""

import itertools
import threading
import uuid

import msgspec
import pyarrow as pa
import pytest

import persist
from persist.blob.errors import CorruptBlob, Indeterminate, MissingBlob, StoreMisconfigured, Unavailable
from persist.blob.layers.unreliable import Fault, UnreliableBlob
from persist.blob.protocol import MemoryBlob
from persist.codecs.part.stream import encode_parts
from persist.codecs.types.schema import CollectionSchema
from persist.codecs.updates.updates import to_updates
from persist.core.log import kinds
from persist.core.log.framing import FORMAT, BlobRef, encode_framed
from persist.core.log.keys import make_record_key, parse_record_seqno
from persist.core.log.kinds import Mutation
from persist.core.log.records import (
    PARTS_INLINE_MAX,
    Record,
    create_record,
    encode_record,
    matches_commit,
    read_commit_id,
    read_record,
    store_part_list,
)
from persist.engine.follow.follower import Follower
from tests.support.checkpoints import wait_for_checkpoint
from tests.support.clocks import ImpatientClock

SCHEMA = CollectionSchema.of({"k": pa.int64()}, None)
ORDERS = "a" * 32


def record(seqno: int, *mutations: Mutation, location: str = "f" * 32, previous: int | None = None) -> Record:
    """Return a record that follows the one made for the seqno before it, or for another one."""
    follows = seqno - 1 if previous is None else previous
    return Record(
        location=location,
        seqno=seqno,
        commit=f"{seqno:032x}",
        previous=None if seqno == 0 else f"{follows:032x}",
        writer="a test",
        epoch=None,
        written_ms=0,
        mutations=mutations,
    )


def create(seqno: int = 0) -> Record:
    return record(seqno, kinds.Create(ORDERS, "orders", SCHEMA.to_json()))


def rival(record: Record) -> Record:
    """Return what another client would create at the same seqno."""
    return msgspec.structs.replace(record, commit=uuid.uuid4().hex)


def test_the_first_to_create_a_record_wins_and_the_loser_gets_the_winner() -> None:
    blob, clock = MemoryBlob(), ImpatientClock()
    first, second = create(), rival(create())
    assert create_record(blob, first, clock) is None
    assert create_record(blob, second, clock) == first
    assert read_record(blob, 0) == first
    assert read_record(blob, 1) is None


def test_of_many_racers_exactly_one_wins_each_seqno() -> None:
    blob, clock = MemoryBlob(), ImpatientClock()
    wins: list[int] = []

    def race() -> None:
        for seqno in range(50):
            if create_record(blob, rival(record(seqno)), clock) is None:
                wins.append(seqno)

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(wins) == list(range(50))


@pytest.mark.parametrize("faults", list(itertools.product(Fault, repeat=2)))
def test_a_lost_answer_is_resolved_by_the_commit_id(faults: tuple[Fault, ...]) -> None:
    blob = UnreliableBlob(MemoryBlob())
    blob.script_faults("create", *faults)
    mine = create()
    assert create_record(blob, mine, ImpatientClock()) is None
    assert read_record(blob, 0) == mine


def test_a_lost_answer_is_not_mistaken_for_another_writers_success() -> None:
    blob = UnreliableBlob(MemoryBlob())
    theirs, mine = create(), rival(create())
    assert create_record(blob, theirs, ImpatientClock()) is None
    blob.script_faults("create", Fault.NOT_HAPPENED_DOUBTFUL)
    assert create_record(blob, mine, ImpatientClock()) == theirs


def test_a_doubtful_answer_that_cannot_be_looked_into_is_asked_for_again() -> None:
    blob = UnreliableBlob(MemoryBlob())
    blob.script_faults("create", Fault.NOT_HAPPENED_DOUBTFUL)
    blob.script_faults("get", Fault.UNAVAILABLE)
    mine = create()
    assert create_record(blob, mine, ImpatientClock()) is None
    assert read_record(blob, 0) == mine


def test_giving_up_says_whether_the_record_may_be_there() -> None:
    blob = UnreliableBlob(MemoryBlob())
    blob.go_down()
    with pytest.raises(Unavailable, match="nothing was written"):
        create_record(blob, create(), ImpatientClock())
    blob.clear_faults()
    blob.script_faults("create", Fault.NOT_HAPPENED_DOUBTFUL, *[Fault.UNAVAILABLE] * 1000)
    with pytest.raises(Indeterminate, match="may or may not be there"):
        create_record(blob, create(), ImpatientClock())


class Misconfigured(MemoryBlob):
    """Refuses to create anything; a proxy does so for what has happened, too."""

    def create(self, key: str, value: bytes) -> bool:
        raise StoreMisconfigured("no")


def test_a_store_that_refuses_a_record_that_is_there_has_created_it_and_any_other_refusal_is_raised() -> None:
    blob, clock, mine = Misconfigured(), ImpatientClock(), create()
    for there in (None, encode_record(rival(mine)), b"damaged"):
        if there is not None:
            blob.set(make_record_key(0), there)
        with pytest.raises(StoreMisconfigured, match="no"):
            create_record(blob, mine, clock)
    blob.set(make_record_key(0), encode_record(mine))
    assert create_record(blob, mine, clock) is None


def test_whose_a_record_is_can_be_asked_without_reading_what_it_names() -> None:
    blob, mine = MemoryBlob(), create()
    assert (read_commit_id(blob, 0), matches_commit(blob, 0, mine.commit)) == (None, False)
    create_record(blob, mine, ImpatientClock())
    assert read_commit_id(blob, 0) == mine.commit
    assert matches_commit(blob, 0, mine.commit)
    assert not matches_commit(blob, 0, rival(mine).commit)


def test_a_record_that_names_what_is_no_upload_of_its_collection_is_corrupt_and_nothing_of_it_is_asked_for() -> None:
    blob = MemoryBlob()
    stray = BlobRef(blob="../elsewhere", bytes=1, checksum="0" * 32)
    blob.set(make_record_key(0), encode_framed(record(0, kinds.Append(ORDERS, parts_in=stray))))
    with pytest.raises(CorruptBlob, match=r"breaks a rule of the log: '\.\./elsewhere' is not the name") as caught:
        read_record(blob, 0)
    assert caught.value.key == make_record_key(0)


class TruncatedBehind(MemoryBlob):
    """Deletes the record when its part list is asked for, as a truncation that deletes both may."""

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        if key.startswith("list/"):
            self.delete(make_record_key(0))
        return super().get(key, range)


def test_a_part_list_that_is_missing_is_damage_unless_its_record_was_truncated_meanwhile() -> None:
    listed = BlobRef(blob=f"list/{ORDERS}/{0:020d}-{'0' * 32}.json", bytes=1, checksum="0" * 32)
    data = encode_framed(record(0, kinds.Append(ORDERS, parts_in=listed)))
    whole, truncated = MemoryBlob(), TruncatedBehind()
    for blob in (whole, truncated):
        blob.set(make_record_key(0), data)
    with pytest.raises(MissingBlob, match="it is missing, and 1 bytes") as caught:
        read_record(whole, 0)
    assert caught.value.key == listed.blob
    assert "fsck" not in str(caught.value)
    assert read_record(truncated, 0) is None


class Truncating(MemoryBlob):
    """Deletes a record between the answer that it exists and the next request, as a truncation may."""

    def create(self, key: str, value: bytes) -> bool:
        created = super().create(key, value)
        if not created:
            self.delete(key)
        return created


def test_a_record_that_is_truncated_while_its_slot_is_asked_for_is_not_taken_for_damage() -> None:
    blob, clock = Truncating(), ImpatientClock()
    assert create_record(blob, create(), clock) is None
    assert create_record(blob, other := rival(create()), clock) is None
    assert read_record(blob, 0) == other


class Refusing(MemoryBlob):
    """Says that each key exists, and has nothing under it until so many have looked."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.looks = looks

    def create(self, key: str, value: bytes) -> bool:
        return False

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        self.looks -= 1
        if self.looks < 0 and parse_record_seqno(key) is not None:
            return encode_framed(rival(create()))
        return super().get(key, range)


def test_a_store_that_says_twice_that_something_is_there_which_it_does_not_have_is_refused() -> None:
    late = create_record(Refusing(1), create(), ImpatientClock())
    assert late is not None
    assert late.commit != create().commit, "somebody else has come meanwhile"
    with pytest.raises(StoreMisconfigured):
        create_record(Refusing(100), create(), ImpatientClock())


def test_a_long_part_list_is_kept_outside_the_record_and_read_back_with_it() -> None:
    blob, clock = MemoryBlob(), ImpatientClock()
    [(_, part)] = encode_parts(to_updates([((1, None), 0, 1)], SCHEMA), SCHEMA)
    parts = tuple(
        msgspec.structs.replace(part, blob=f"part/{ORDERS}/{0:020d}-{i:032x}.parquet")
        for i in range(PARTS_INLINE_MAX + 1)
    )
    append = store_part_list(blob, "f" * 32, kinds.Append(ORDERS, parts), 0, format=FORMAT)
    create_record(blob, create(), clock)
    create_record(blob, record(1, append), clock)
    assert len(blob.get(make_record_key(1)) or b"") < 1000
    read = read_record(blob, 1)
    assert read is not None
    assert read.mutations[0].parts == parts  # type: ignore[union-attr]
    contents = Follower(blob, clock).load(ORDERS)
    assert contents is not None
    assert contents.parts == parts
    [listed] = blob.list("list/")
    blob.set(listed.key, (blob.get(listed.key) or b"")[:-9])
    with pytest.raises(CorruptBlob, match=listed.key):
        Follower(blob, clock)


def damaged(blob: MemoryBlob, *, seqno: int, by: Record) -> MemoryBlob:
    from persist.core.log.framing import encode_framed

    blob.set(make_record_key(seqno), encode_framed(by))
    return blob


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (record(0), "blobs were exchanged"),
        (record(1, location="e" * 32), "belongs to location"),
        (record(1, kinds.Create(ORDERS, "orders", SCHEMA.to_json())), "breaks a rule of the log"),
        (record(1, kinds.Seal("b" * 32, (1,))), "breaks a rule of the log"),
    ],
)
def test_a_record_that_cannot_follow_is_corrupt_and_named(second: Record, reason: str) -> None:
    blob = MemoryBlob()
    create_record(blob, create(), ImpatientClock())
    with pytest.raises(CorruptBlob, match=reason) as caught:
        persist.open(damaged(blob, seqno=1, by=second))
    assert caught.value.key == make_record_key(1)


def test_a_record_that_breaks_a_rule_of_a_collection_is_corrupt() -> None:
    blob, clock = MemoryBlob(), ImpatientClock()
    for each in (create(), record(1, kinds.Seal(ORDERS, (10,))), record(2, kinds.Seal(ORDERS, (9,)))):
        create_record(blob, each, clock)
    with pytest.raises(CorruptBlob, match="upper cannot go back"):
        persist.open(blob)


def test_a_damaged_collection_is_no_concern_of_those_who_read_another() -> None:
    blob = MemoryBlob()
    with persist.open(blob) as writer:
        handles = [writer.create_or_load(name, key={"k": pa.int64()}, value=None) for name in ("bad", "good")]
        for time in range(40):
            handles[0].seal(time + 1).result()
        handles[1].seal(1).result()
        for time in range(40, 60):
            handles[0].seal(time + 1).result()
            wait_for_checkpoint(writer)  # A late one would store what is damaged below once more.
        for entry in list(blob.list("state/")):
            blob.set(entry.key, b"damaged")
        with persist.open(blob, mode="read") as reader:
            for time in range(60, 200):
                handles[0].seal(time + 1).result()
                assert reader.load("good").snapshot(0).count() == 0
            with pytest.raises(CorruptBlob, match="state/"):
                reader.load("bad")
