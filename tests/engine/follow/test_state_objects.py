"""What is stored of a large collection is what changed, and opens as the log says."""

import random
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

import persist
from persist.blob.errors import CorruptBlob
from persist.blob.layers.metered import MeteredBlob
from persist.blob.lru import Cache
from persist.blob.protocol import MemoryBlob
from persist.core.log import kinds
from persist.core.log.fields import Keyframe
from persist.core.log.framing import FORMAT, BlobRef, decode_framed, encode_framed, store_framed
from persist.core.log.keys import make_state_prefix
from persist.core.state_rules import frozen_map
from persist.core.state_rules.contents import CollectionState, Held
from persist.core.state_rules.state import CollectionEntry
from persist.engine.follow import checkpoint, state_objects
from persist.engine.follow.directory import KnownLevels
from persist.engine.follow.follower import Follower
from persist.engine.follow.state_objects import StateLevel, StateObject, make_levels
from tests.core.state_rules.test_refusals import part
from tests.engine.follow.test_directory import SCHEMA, CountingBlob, Writer, assert_opens_as_the_log_says
from tests.rules.golden.kinds import write_compacted
from tests.support.checkpoints import wait_for_checkpoint
from tests.support.clocks import ImpatientClock

ID = "1" * 32
LIKE = part(0, 0)
LOCATION = "f" * 32


def some(chosen: random.Random, before: Mapping[Any, Any], new: dict[Any, Any]) -> dict[Any, Any]:
    """Return some of what was there and of what is new, now and then in another order."""
    items = [item for item in {**before, **new}.items() if chosen.random() < 0.7]
    if chosen.random() < 0.3:
        chosen.shuffle(items)
    return dict(items)


def drawn(chosen: random.Random, before: CollectionState, round_: int) -> CollectionState:
    """Return other contents; they need not keep any rule."""
    first = round_ * 10
    numbered = some(chosen, before.numbered, {first + n: part(first + n, 0) for n in range(chosen.randrange(5))})
    numbers = list(numbered)
    chosen.shuffle(numbers)
    frames = {k.as_of: k for k in before.keyframes}
    frames = some(chosen, frames, {round_: Keyframe(round_, tuple(numbers[:2]))})
    return msgspec.structs.replace(
        before,
        upper_times=(round_ + 1,),
        numbered=numbered,
        next_number=first + 10,
        history=tuple((number, -number) for number in numbers),
        keyframes=tuple(frames.values()),
        holds=some(chosen, before.holds, {"a": Held(round_), f"hold {round_}": Held(round_)}),
        tags=some(chosen, before.tags, {"t": round_}),
        tokens=some(chosen, before.tokens, {f"token {round_}": (round_, None)}),
        pending=some(chosen, before.pending, {first + 9: part(first, 1)}),
    )


def ordered(contents: CollectionState) -> bytes:
    return msgspec.json.encode(contents)


@pytest.mark.thorough(except_every=5)
@pytest.mark.parametrize("seed", range(20))
def test_levels_of_any_states_make_the_last_one_with_all_its_maps_in_order(seed: int) -> None:
    chosen = random.Random(seed)
    levels: tuple[state_objects.StateLevel, ...] = ()
    contents = CollectionState(ID, "c", SCHEMA)
    for round_ in range(30):
        contents = drawn(chosen, contents, round_)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(state_objects, "LEAST_BYTES", chosen.choice([1, 1000]))
            patch.setattr(state_objects, "RATIO", chosen.choice([0, 1, 4]))
            levels, data = state_objects.make_levels(LOCATION, round_, contents, levels, format=FORMAT)
        before = levels[-2].contents if len(levels) > 1 else None
        made = state_objects.apply_changes(before, decode_framed(data, StateObject, "state"))
        assert ordered(made) == ordered(contents)


def grown(blob: MemoryBlob, parts: int) -> Writer:
    """Return the writer of one collection of so many parts, which a checkpoint has."""
    writer = Writer(blob)
    writer.create(1)
    append_in_turn(writer, 1, parts)
    writer.checkpoint()
    return writer


def append_in_turn(writer: Writer, commits: int, parts: int = 1) -> None:
    (id_,) = writer.ids
    for _ in range(commits):
        seqno = writer.follower.state.seqno + 1
        like = msgspec.structs.replace(LIKE, time_min=seqno, time_max=seqno)
        brought = [
            msgspec.structs.replace(like, blob=f"part/{id_}/{seqno:020d}-{n:032x}.parquet") for n in range(parts)
        ]
        writer.commit(kinds.Append(id_, tuple(brought)))


def test_a_commit_costs_no_more_bytes_of_state_objects_in_a_collection_of_many_parts_than_in_one_of_few() -> None:
    spent = {}
    for parts in (250, 4000):
        blob = CountingBlob()
        writer = grown(blob, parts)
        blob.stored.clear()
        append_in_turn(writer, 400)
        spent[parts] = blob.stored["state"] / 400
        assert_opens_as_the_log_says(blob)
    assert spent[4000] < 6_000, "1.7 MB each 32 commits would be 54,000"
    assert spent[4000] < 4 * spent[250]


def test_what_makes_checkpoints_does_not_read_again_what_it_wrote() -> None:
    blob = MeteredBlob(MemoryBlob())
    writer = grown(blob, 1000)  # type: ignore[arg-type]
    append_in_turn(writer, 100)
    before = blob.get_counts()["get"].bytes
    append_in_turn(writer, 200)
    assert blob.get_counts()["get"].bytes - before < 1_000_000


def test_only_large_objects_are_remembered_and_only_so_many_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_objects, "WHOLE_BYTES_MAX", 10)
    known, contents = state_objects.KnownContents(cache=Cache(100)), CollectionState(ID, "c", SCHEMA)

    def keep(name: str, *sizes: int) -> list[str]:
        """Keep objects of these sizes; return which collections are known after that."""
        known.keep(name, [state_objects.StateLevel(BlobRef("x", size, "y"), contents) for size in sizes])
        return [each for each in ("a", "b", "c", "huge", "small") if known._levels.peek(each) is not None]

    assert keep("small", 10) == []
    assert keep("a", 20, 20) == ["a"]
    assert keep("b", 50) == ["a", "b"]
    assert keep("a", 30) == ["a", "b"]
    assert keep("c", 30) == ["a", "c"]
    assert keep("huge", 500) == ["a", "c"], "it is beyond the room"
    assert keep("a", 4) == ["c"]


def small_levels(patch: pytest.MonkeyPatch) -> None:
    """Let every change be a level of its own, if the ones before it are larger."""
    patch.setattr(checkpoint, "WHOLE_BYTES_MAX", 0)
    patch.setattr(state_objects, "WHOLE_BYTES_MAX", 0)
    patch.setattr(state_objects, "LEAST_BYTES", 1)
    patch.setattr(state_objects, "RATIO", 1)
    patch.setattr(checkpoint, "STORED_PENDING_MAX", 0)


def test_compactions_resolutions_and_erasures_are_stored_in_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    small_levels(monkeypatch)
    blob = MemoryBlob()
    settings = persist.Settings(background=False)
    with persist.open(blob, settings=settings) as client:
        write_compacted(client)
        users = client.create_or_load("users", key={"k": int}, value={"v": str}, keyed=persist.Keyed())
        for time in range(20):
            users.upsert([(time % 3, str(time), time)], seal=time + 1).result()
            wait_for_checkpoint(client)  # Or else a late one stands for the next, and nothing goes between two levels.
        checkpoint.write_checkpoint(blob, *client.engine.follower.get_recent_records())
    assert any(b'"gone"' in (blob.get(entry.key) or b"") for entry in blob.list("state/"))
    assert_opens_as_the_log_says(blob)


def test_where_history_was_forgotten_the_whole_is_written_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    small_levels(monkeypatch)
    blob = MemoryBlob()
    with persist.open(blob, settings=persist.Settings(background=False)) as client:
        rows = client.create_or_load("rows", key={"k": int}, value={"v": str})
        for time in range(12):
            rows.write(
                [((1, f"secret {time}"), time, 1), ((1, f"secret {time - 1}"), time, -1)], seal=time + 1
            ).result()
            checkpoint.write_checkpoint(blob, *client.engine.follower.get_recent_records())
        entry = next(iter(Follower(blob, ImpatientClock()).state.entries.values()))
        assert entry.levels
        rows.allow_compaction(11).result()
        rows.compact()
        checkpoint.write_checkpoint(blob, *client.engine.follower.get_recent_records())
    entry = next(iter(Follower(blob, ImpatientClock()).state.entries.values()))
    assert len(entry.stored) == 1
    assert_opens_as_the_log_says(blob)


@pytest.mark.parametrize(("left", "levels"), [(8, 2), (4, 2), (3, 1), (0, 1)])
def test_what_is_mostly_gone_is_written_anew(left: int, levels: int) -> None:
    def holding(parts: int) -> CollectionState:
        return CollectionState(ID, "c", SCHEMA, numbered={n: part(n, 0) for n in range(parts)}, next_number=9)

    large = StateLevel(BlobRef("state/x", 1 << 20, ""), holding(8))
    made, _ = make_levels(LOCATION, 7, holding(left), (large,), format=FORMAT)
    assert len(made) == levels


def test_objects_that_do_not_fit_to_each_other_are_refused() -> None:
    blob = MemoryBlob()
    contents = CollectionState(ID, "c", SCHEMA, tags={"a": 0})
    whole = StateObject(location=LOCATION, collection=contents)
    more = state_objects.encode_changes(LOCATION, msgspec.structs.replace(contents, tags={}), contents)

    def loaded(*stored: StateObject) -> CollectionState | None:
        pointers = [store_framed(blob, make_state_prefix(ID, n), each) for n, each in enumerate(stored)]
        entry = CollectionEntry(ID, "c", base=pointers[0], levels=tuple(pointers[1:]))
        return checkpoint.load_base(blob, LOCATION, entry, KnownLevels())

    assert loaded(whole, more) == msgspec.structs.replace(contents, tags={})
    for wrong in ([more], [whole, whole], [whole, more, more]):
        with pytest.raises(CorruptBlob, match="no writer would make it"):
            loaded(*wrong)
    other = msgspec.structs.replace(more, location="e" * 32)
    with pytest.raises(CorruptBlob, match="it belongs to another collection"):
        loaded(whole, other)
    assert decode_framed(encode_framed(more), StateObject, "") == more


def test_the_parts_of_a_collection_with_many_are_stored_and_read_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen_map, "GROWN_MAX", 8)
    blob, settings = persist.MemoryBlob(), persist.Settings(background=False)
    with persist.open(blob, settings=settings) as client:
        rows = client.create_or_load("rows", key={"k": int})
        for time in range(checkpoint.INTERVAL + 9):
            rows.write([(time, None)], time=time, seal=time + 1).result()
        numbered = rows.handle.contents().numbered
        assert isinstance(numbered, frozen_map.GrowingMap)
        values = numbered.values()
        assert [*values] == [*values] == [*dict(numbered).values()], "a view is read as often as one likes"
        assert len(values) == len(numbered)
        expected = rows.handle.contents()
    with persist.open(blob, settings=settings) as client:
        rows = client["rows"]
        assert rows.handle.contents() == expected
        assert [*rows.handle.contents().numbered.items()] == [*expected.numbered.items()]
        rows.compact()
        assert rows.snapshot().count() == checkpoint.INTERVAL + 9
