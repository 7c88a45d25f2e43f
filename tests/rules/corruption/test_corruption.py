"""Whatever happens to a blob, no reader returns a wrong row, and who needed the blob is told its name.

For each kind of blob twice: through the function that reads it, with every single change there is; and through a
client that opens the location and reads all of it, with a sample of them. There, a damage counts as found if the error
names the blob. What is returned, before an error or without one, must be what is true as of that time. A client that
asked for the damaged blob must have noticed; only a blob that nobody asked for may be damaged in silence.

`PERSIST_CORRUPTIONS` (default 1) multiplies the sizes of the samples.
"""

import os
import random
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace

import pytest

import persist
from persist.blob.errors import CorruptBlob, Corruption
from persist.blob.protocol import MemoryBlob
from persist.codecs.part.decoding import decode_part
from persist.codecs.part.part import Part
from persist.codecs.types.schema import CollectionSchema
from persist.core.keyed.events import list_event_fields, make_event_schema
from persist.core.log import kinds as record_kinds
from persist.core.log.framing import FORMAT, BlobRef, Framed, decode_framed, get_framed
from persist.core.log.records import PartList, Record, read_record
from persist.engine.follow.checkpoint import Checkpoint, read_checkpoint
from persist.engine.follow.directory import DirectoryObject
from persist.engine.follow.state_objects import StateObject
from tests.rules.corruption.location import (
    CHANGES,
    FOLDERS,
    Blobs,
    Contents,
    Outcome,
    WatchedBlob,
    blobs_of,
    of_folder,
    read_all,
)
from tests.rules.golden.kinds import POLICY
from tests.support.tiers import examples
from tests.support.tuned import tuned

pytestmark = pytest.mark.thorough(except_every=28)

SCALE = int(os.environ.get("PERSIST_CORRUPTIONS", "1"))
LARGE_BYTES = 4096  # From here on bits are sampled instead of flipping each.
LARGE_FLIPS = 400 * SCALE
THROUGH_CLIENT = examples(2, quick=1) * SCALE  # Changes of each sort, per blob, that are tried with a client.
SCHEMA = {"key": {"fields": [["k", "int64"]]}, "value": {"fields": [["v", "string"]]}}

ONE = blobs_of(1)
OTHER = blobs_of(2)
CLEAN = read_all(ONE)
TRUTH = CLEAN.contents
LOG_ONLY = {key: data for key, data in ONE.items() if not key.startswith(("checkpoint/", "directory/", "state/"))}
CLEAN_LOG = read_all(LOG_ONLY)  # Without checkpoints, every record is needed.


def test_the_location_holds_every_kind_of_blob_and_can_be_read() -> None:
    assert CLEAN.error is None
    assert CLEAN_LOG.contents == TRUTH
    assert CLEAN_LOG.read >= set(of_folder(ONE, "log"))
    assert {key.split("/")[0] for key in ONE} == {*FOLDERS, "gc"}  # And what is there for its date alone.
    with persist.open(blob_with(ONE), mode="read") as client:
        waiting = {part.blob for part in client.load("keyed").handle.contents().pending.values()}
        resolved = {part.blob for part in client.load("keyed").handle.contents().parts}
    assert waiting, "the events of a keyed collection wait in a blob"
    assert resolved, "and others have become updates"
    assert "" not in waiting | resolved
    assert CLEAN.read >= waiting | resolved
    assert {name for name, _ in TRUTH} == {"compacted", "few", "keyed", "kinds", "many", "renamed", "stamped"}
    assert len(TRUTH["many", 36]) == 2000
    assert len(TRUTH["few", 20]) > 5
    with persist.open(blob_with(ONE), mode="read") as client:
        contents = client.load("compacted").handle.contents()
    assert len(contents.keyframes) > 1
    assert contents.history_from > 0
    assert any(len(run) > 1 for run in contents.history)
    assert CLEAN.read >= {part.blob for part in contents.parts if part.blob}
    for folder in FOLDERS:
        assert any(key in CLEAN.read for key in of_folder(ONE, folder)), folder


def place(key: str) -> str:
    """Name a blob by its place among those of its kind: keys are random."""
    folder = key.split("/")[0]
    return f"{folder}-{list(of_folder(ONE, folder)).index(key)}"


# Through the functions that read a blob.


def with_one(key: str, data: bytes) -> MemoryBlob:
    blob = MemoryBlob()
    blob.set(key, data)
    return blob


def pointers() -> Iterator[BlobRef | Part]:
    """Yield all that points from one blob to another."""
    for key in of_folder(ONE, "log"):
        for mutation in decode_framed(ONE[key], Record, key).mutations:
            if isinstance(
                mutation, record_kinds.Append | record_kinds.Replace | record_kinds.Pend | record_kinds.Resolve
            ):
                yield from mutation.parts
                yield from [mutation.parts_in] if mutation.parts_in is not None else []
    for key in of_folder(ONE, "list"):
        yield from decode_framed(ONE[key], PartList, key).parts
    for key in of_folder(ONE, "checkpoint"):
        checkpoint = decode_framed(ONE[key], Checkpoint, key)
        yield from checkpoint.directory
        yield from (each for c in checkpoint.collections if c.base is not None for each in (c.base, *c.levels))
    for key in of_folder(ONE, "directory"):
        stored = decode_framed(ONE[key], DirectoryObject, key)
        yield from (each for c in stored.collections if c.base is not None for each in (c.base, *c.levels))


def schemas() -> Iterator[tuple[str, CollectionSchema]]:
    """Yield by which schema each part that a record names is read: those of events have one of their own."""
    created = dict[str, record_kinds.Create]()
    for key in of_folder(ONE, "log"):
        for mutation in decode_framed(ONE[key], Record, key).mutations:
            if isinstance(mutation, record_kinds.Create):
                created[mutation.collection] = mutation
            if not isinstance(
                mutation, record_kinds.Append | record_kinds.Replace | record_kinds.Pend | record_kinds.Resolve
            ):
                continue
            create = created[mutation.collection]
            schema = CollectionSchema.from_json(create.schema)
            if isinstance(mutation, record_kinds.Pend):
                assert create.keyed is not None
                schema = make_event_schema(schema, list_event_fields(schema, create.keyed))
            parts = list(mutation.parts)
            if mutation.parts_in is not None:
                parts += decode_framed(ONE[mutation.parts_in.blob], PartList, mutation.parts_in.blob).parts
            yield from ((part.blob, schema) for part in parts if part.blob)


SCHEMAS = dict(schemas())
POINTERS = {pointer.blob: pointer for pointer in pointers() if pointer.blob}
INLINE = next(pointer for pointer in pointers() if not pointer.blob and isinstance(pointer, Part))


def reader_of(key: str) -> Callable[[bytes], object]:
    """Return the function that reads the blob at key, given its bytes."""
    pointer = POINTERS.get(key)
    if key.startswith("log/"):
        # Part lists lie elsewhere, and are not looked for in a record that is wrong.
        return lambda data: read_record(with_one(key, data), int(key[4:]))
    if key.startswith("checkpoint/"):
        return lambda data: read_checkpoint(with_one(key, data), key)
    if isinstance(pointer, Part):
        return lambda data: decode_part(data, pointer, SCHEMAS[key])
    assert pointer is not None, f"nothing points to {key}"
    kinds: dict[str, type[Framed]] = {"state": StateObject, "directory": DirectoryObject, "list": PartList}
    kind = kinds[key.partition("/")[0]]
    return lambda data: get_framed(with_one(key, data), pointer, kind)


def flips(data: bytes, rng: random.Random) -> Iterator[bytes]:
    """Yield data with each byte in turn changed, or many single bits if it is large."""
    places = range(len(data)) if len(data) < LARGE_BYTES else rng.choices(range(len(data)), k=LARGE_FLIPS)
    for at in places:
        yield data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
        if len(data) < LARGE_BYTES:
            yield data[:at] + bytes([data[at] ^ rng.randrange(1, 256)]) + data[at + 1 :]


def cuts(data: bytes, rng: random.Random) -> Iterator[bytes]:
    """Yield every beginning of data, or many if it is large."""
    lengths = range(len(data)) if len(data) < LARGE_BYTES else rng.choices(range(len(data)), k=LARGE_FLIPS)
    return (data[:length] for length in lengths)


def appended(data: bytes, rng: random.Random) -> Iterator[bytes]:
    """Yield data with something after it."""
    yield from (data + tail for tail in (b"\0", b"\n", b" ", b"}", data, data[-8:], rng.randbytes(100), bytes(5000)))
    yield b"\n" + data
    yield data[:-1] + b"\0\n"


DAMAGES = {"flips": flips, "cuts": cuts, "appended": appended}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("key", [key for key in ONE if key in CLEAN.read], ids=place)
def test_every_change_of_a_blob_is_found_where_it_is_read(key: str, damage: str) -> None:
    read = reader_of(key)
    for damaged in DAMAGES[damage](ONE[key], random.Random(key)):
        with pytest.raises(CorruptBlob) as caught:
            read(damaged)
        assert caught.value.key == key


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_change_of_an_inline_part_is_found_even_behind_the_checksum_of_its_record(damage: str) -> None:
    schema = CollectionSchema.from_json({**SCHEMA, "value": None})
    assert decode_part(INLINE.inline, INLINE, schema).num_rows == INLINE.rows
    for damaged in DAMAGES[damage](INLINE.inline, random.Random(damage)):
        with pytest.raises(CorruptBlob, match="inline part"):
            decode_part(damaged, INLINE, schema)


@pytest.mark.parametrize("folder", ["list", "state", "directory", "part"])
def test_a_pointer_accepts_no_other_blob_of_its_kind(folder: str) -> None:
    own, others = list(of_folder(ONE, folder)), [*of_folder(OTHER, folder)]
    for key in own:
        if key not in POINTERS:
            continue  # A state object of a checkpoint that was never made.
        for other in {*(ONE[k] for k in own), *(OTHER[k] for k in others)} - {ONE[key]}:
            with pytest.raises(CorruptBlob) as caught:
                reader_of(key)(other)
            assert caught.value.key == key


# Through a client that reads everything.


def judged(key: str, damaged: Mapping[str, bytes]) -> Outcome:
    """Read a location of which the blob at key was damaged; assert that nothing wrong was returned."""
    outcome = read_all(damaged)
    assert_true(outcome.contents)
    if outcome.error is not None:
        assert isinstance(outcome.error, CorruptBlob)
        assert key in str(outcome.error)
    return outcome


def assert_true(contents: Contents) -> None:
    for at, rows in contents.items():
        assert rows == TRUTH[at], at


def assert_found(key: str, damaged: Mapping[str, bytes], needed: Collection[str] = CLEAN.read) -> None:
    """Assert that whoever reads the blob at key finds the damage, and who does not read it is right."""
    outcome = judged(key, damaged)
    if key in needed:
        assert outcome.error is not None, f"nobody noticed the damage of {key}"
    elif outcome.error is None:
        assert outcome.contents == TRUTH


def few(changes: Iterator[bytes], rng: random.Random) -> list[bytes]:
    every = list(changes)
    return rng.sample(every, min(THROUGH_CLIENT, len(every)))


def put(key: str, data: bytes, location: Blobs = ONE) -> Blobs:
    return {**location, key: data}


def samples(per_folder: int = 4) -> list[str]:
    """Return some keys of each folder: the first, the last, and others between."""
    chosen: list[str] = []
    for folder in FOLDERS:
        keys = list(of_folder(ONE, folder))
        step = 1 if SCALE > 1 else max(1, -(-len(keys) // per_folder))
        chosen += dict.fromkeys([*keys[::step], keys[-1]])
    return chosen


@pytest.mark.parametrize("key", samples(), ids=place)
def test_a_client_finds_a_damaged_blob_that_it_needs_and_returns_no_wrong_row(key: str) -> None:
    rng = random.Random(key)
    for damage in DAMAGES.values():
        for damaged in few(damage(ONE[key], rng), rng):
            assert_found(key, put(key, damaged))


def pairs(folder: str) -> list[tuple[str, str]]:
    keys = list(of_folder(ONE, folder))
    found = [(a, b) for a in keys for b in keys if a < b]
    needed = [pair for pair in found if CLEAN.read.issuperset(pair)]
    return [pair for each in (found, needed) for pair in random.Random(folder).sample(each, min(len(each), 2 * SCALE))]


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_blob_in_the_place_of_another_is_found(folder: str) -> None:
    """As if the store had kept an older value, or had mistaken one key for another."""
    for one, other in pairs(folder):
        assert_found(other, put(other, ONE[one]))
        assert_found(one, put(one, ONE[other]))


def test_records_in_each_others_place_are_found_when_the_log_is_all_there_is() -> None:
    for one, other in pairs("log"):
        for key, data in ((one, ONE[other]), (other, ONE[one]), (one, OTHER[one]), (other, OTHER[other])):
            assert_found(key, put(key, data, LOG_ONLY), CLEAN_LOG.read)


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_blob_of_another_location_is_found(folder: str) -> None:
    """The same key where there is one, or else one of the same kind."""
    others = list(of_folder(OTHER, folder))
    keys = list(of_folder(ONE, folder))
    for n, key in enumerate(keys):
        if n % max(1, len(keys) // (2 * THROUGH_CLIENT)) == 0 or n in (1, len(keys) - 1):
            assert_found(key, put(key, OTHER.get(key, OTHER[others[n % len(others)]])))


def test_a_checkpoint_of_another_location_is_found_even_if_no_record_follows_it() -> None:
    end = max(int(key[-25:-5]) for key in of_folder(ONE, "checkpoint"))
    until = {key: data for key, data in ONE.items() if not key.startswith("log/") or int(key[4:]) <= end}
    newest = min(of_folder(ONE, "checkpoint"))
    assert read_all(until).error is None
    outcome = read_all(put(newest, OTHER[newest], until))
    assert_true(outcome.contents)
    assert outcome.error is not None
    assert newest in str(outcome.error)


def test_a_checkpoint_of_a_location_without_uploads_cannot_bring_its_rows_along() -> None:
    """Its rows are all inline, so that no missing blob gives it away."""
    end = max(int(key[-25:-5]) for key in of_folder(ONE, "checkpoint"))
    newest = min(of_folder(ONE, "checkpoint"))
    foreign = decode_framed(OTHER[newest], Checkpoint, newest)
    assert any(c.pending for c in foreign.collections)
    alone = {f"log/{end:020d}": ONE[f"log/{end:020d}"], newest: OTHER[newest]}
    alone |= {key: OTHER[key] for key in of_folder(OTHER, "directory")}
    outcome = read_all(alone)
    assert outcome.contents == {}
    assert outcome.error is not None


@pytest.mark.parametrize("key", samples(8), ids=place)
def test_a_blob_that_is_gone_is_found_or_not_needed(key: str) -> None:
    without = {other: data for other, data in ONE.items() if other != key}
    outcome = judged(key, without)
    newest_record = max(of_folder(ONE, "log"))
    if key == newest_record:
        # Nothing tells a log that lost its end from one that has not come there: what it says is true, only less.
        assert outcome.error is None
        assert outcome.contents.items() <= TRUTH.items()
    elif key.startswith("log/") and outcome.error is None and key in CLEAN.read:
        # The log ends before it, and what it says up to there is true. That more follows is said.
        assert outcome.beyond_end == int(newest_record[4:]) - int(key[4:]) + 1
        assert outcome.contents.items() <= TRUTH.items()
    elif key in CLEAN.read and not key.startswith("checkpoint/"):
        assert outcome.error is not None
    else:
        assert outcome.error is None
        assert outcome.contents == TRUTH


def test_a_record_that_the_newest_checkpoint_was_made_after_must_be_there() -> None:
    end = max(int(key[-25:-5]) for key in of_folder(ONE, "checkpoint"))
    until = {key: data for key, data in ONE.items() if not key.startswith("log/") or int(key[4:]) < end}
    outcome = read_all(until)
    assert outcome.error is not None
    assert f"a checkpoint at seqno {end}" in str(outcome.error)


def test_an_older_value_of_a_pointer_is_not_taken_for_the_present_one() -> None:
    """State objects of one collection differ only in age, and any of them is well formed."""
    for key in of_folder(ONE, "state"):
        pointer = POINTERS.get(key)
        for older in of_folder(ONE, "state"):
            if pointer is not None and older != key:
                with pytest.raises(CorruptBlob, match=key):
                    reader_of(key)(ONE[older])


def test_damage_is_never_taken_for_a_newer_version() -> None:
    key = max(of_folder(ONE, "log"))
    at = ONE[key].index(b'"format":%d' % FORMAT) + len(b'"format":')
    damaged = ONE[key][:at] + b"%d" % (FORMAT + 1) + ONE[key][at + 1 :]
    with pytest.raises(CorruptBlob):
        reader_of(key)(damaged)
    assert type(read_all(put(key, damaged)).error) is CorruptBlob
    assert issubclass(CorruptBlob, Corruption)


# Compaction and the collection of garbage, over what is damaged.


NO_GRACE = tuned(background=False, grace_s=0, orphan_grace_s=0, tuning=replace(POLICY, hold_linger_s=0, part_bytes=500))


def blob_with(blobs: Mapping[str, bytes]) -> MemoryBlob:
    blob = MemoryBlob()
    for key, data in blobs.items():
        blob.set(key, data)
    return blob


def all_of(blob: MemoryBlob) -> Blobs:
    return {entry.key: blob.get(entry.key) or b"" for entry in blob.list("")}


def compact_everything(client: persist.Client) -> persist.CompactionReport:
    """Compact what `compacted` has, after since has passed more of it, so that every part of it is read."""
    compacted = client.load("compacted")
    compacted.allow_compaction(16).result()
    return compacted.compact()


def parts_of_compacted() -> list[str]:
    with persist.open(blob_with(ONE), mode="read") as client:
        return [part.blob for part in client.load("compacted").handle.contents().parts if part.blob]


def read_by_compaction() -> list[str]:
    """Return the parts of `compacted` that compaction reads, in a run over sound data."""
    blob = WatchedBlob(ONE)
    with persist.open(blob, settings=NO_GRACE) as client:
        blob.read.clear()
        report = compact_everything(client)
        read = {*blob.read}
    assert report.keyframes
    assert report.forgotten is not None
    assert_true({at: rows for at, rows in read_all(all_of(blob)).contents.items() if at[1] != CHANGES})
    return [key for key in parts_of_compacted() if key in read]


@pytest.mark.parametrize("key", parts_of_compacted(), ids=place)
def test_compaction_over_a_damaged_part_names_it_and_replaces_nothing_of_it(key: str) -> None:
    rng = random.Random(key)
    damages = [one for damage in DAMAGES.values() for one in few(damage(ONE[key], rng), rng)[:1]]
    other = rng.choice([part for part in parts_of_compacted() if part != key])
    for damaged in [*damages, ONE[other], None]:
        blob = blob_with({k: v for k, v in put(key, damaged or b"").items() if k != key or damaged is not None})
        with persist.open(blob, settings=NO_GRACE) as client:
            failed = None
            try:
                compact_everything(client)
            except CorruptBlob as error:
                failed = error.key
            client.gc()
            still_used = key in {part.blob for part in client.load("compacted").handle.contents().parts}
        if key in READ_BY_COMPACTION:
            assert failed == key
            assert still_used
        assert failed in (None, key)
        if still_used:  # With a sound copy of it, everything is there; so nothing else was deleted.
            blob.set(key, ONE[key])
        outcome = read_all(all_of(blob))
        assert outcome.error is None
        assert outcome.contents["compacted", 17] == TRUTH["compacted", 17]
        assert_true({at: rows for at, rows in outcome.contents.items() if at[1] != CHANGES})


@pytest.mark.parametrize("key", samples(6), ids=place)
def test_garbage_is_not_collected_on_the_strength_of_damaged_data(key: str) -> None:
    rng = random.Random(key)
    foreign = [OTHER[k] for k in of_folder(OTHER, key.split("/")[0])]
    for damaged in [*(few(damage(ONE[key], rng), rng)[0] for damage in DAMAGES.values()), rng.choice(foreign)]:
        blob = blob_with(put(key, damaged))
        try:
            with persist.open(blob, settings=NO_GRACE) as client:
                client.gc()
        except Corruption:
            pass
        if blob.get(key) is not None:
            blob.set(key, ONE[key])
        outcome = read_all(all_of(blob))
        assert outcome.error is None
        assert outcome.contents == TRUTH


READ_BY_COMPACTION = read_by_compaction()
