"""What a snapshot starts from and reads, what it leaves out, and by what; and keys that are told to be wrong."""

import random
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import persist
from persist.blob.protocol import MemoryBlob
from persist.codecs.errors import DiffOverflow
from persist.codecs.order.search import SortedKeys
from persist.codecs.part.decoding import Request
from persist.engine.read.keyed.key_history import find_keys_with_several, find_negative_keys, find_null_keys
from persist.engine.read.lookups.part_rows import KeySamples
from persist.engine.read.parts.reader import PartReader
from persist.engine.read.planning.scan import Scan, narrow_scan
from persist.engine.read.planning.snapshot_plan import (
    _estimate_cost,
    _estimate_rows_between,
    count_records,
    plan_changes_scan,
    plan_snapshot,
)
from tests.support.keyframes import add_keyframe

QUIET = persist.Settings(background=False)


@pytest.fixture
def client() -> Iterator[persist.Client]:
    with persist.open(f"memory://{uuid.uuid4()}", settings=QUIET) as opened:
        yield opened


def filled(client: persist.Client, *, negative_at: int | None = None) -> persist.Collection:
    """Return a collection with a part of two rows for each time below ten, and keyframes as of 3 and 7."""
    t = client.create_or_load("t", key={"k": int}, value={"v": int})
    for time in range(10):
        gone = [((2 * negative_at - 2, negative_at - 1), time, -1)] if time == negative_at is not None else []
        t.write([((2 * time, time), time, 1), ((2 * time + 1, time), time, 1), *gone], seal=time + 1).result()
    add_keyframe(t, 3)
    add_keyframe(t, 7)
    return t


@pytest.mark.parametrize(
    ("as_of", "keyframe", "direction", "base", "history", "by_time", "by_keyframe"),
    [
        (0, None, "forwards", 0, 1, 9, 0),
        (3, 3, "forwards", 1, 0, 6, 4),
        (4, 3, "forwards", 1, 1, 5, 4),
        (6, 7, "backwards", 1, 1, 2, 7),
        (7, 7, "forwards", 1, 0, 2, 8),
        (9, 7, "forwards", 1, 2, 0, 8),
    ],
)
def test_a_snapshot_starts_from_what_is_nearest_and_tells_what_it_leaves_out(
    client: persist.Client, as_of: int, keyframe: int | None, direction: str, base: int, history: int, by_time: int,
    by_keyframe: int,
) -> None:  # fmt: skip
    t = filled(client, negative_at=9)
    if keyframe is not None:  # Where nothing cancels, all rows are read from the beginning: see below.
        t = filled_with_negatives(client)
    with t.snapshot(as_of) as contents:
        told = contents.explain()
    assert (told.keyframe, told.direction) == (keyframe, direction)
    assert (told.base_parts, told.parts - told.base_parts) == (base, history)
    assert told.pruned == {"keyframe": by_keyframe, "time": by_time, "filter": 0}
    assert told.rows == told.base_rows + 3 * history - (keyframe is None)
    assert told.bytes > told.base_bytes or not history
    assert (told.base_bytes > 0) == bool(base)


def filled_with_negatives(client: persist.Client) -> persist.Collection:
    """Return one of which each time retracts a row of the time before, so that keyframes are worth it."""
    t = client.create_or_load("n", key={"k": int}, value={"v": int})
    for time in range(10):
        rows = [((2 * time, time), time, 1), ((2 * time + 1, time), time, 1)]
        t.write([*rows, ((2 * time - 2, time - 1), time, -1)], seal=time + 1).result()
    add_keyframe(t, 3)
    add_keyframe(t, 7)
    return t


def test_where_nothing_cancels_history_is_read_as_long_as_it_is_no_longer_than_what_a_keyframe_holds(
    client: persist.Client,
) -> None:
    t = filled(client)
    for as_of in range(10):
        with t.snapshot(as_of) as contents:
            told = contents.explain()
        assert (told.keyframe, told.parts) == ((as_of, 1) if as_of in (3, 7) else (None, as_of + 1))


def test_a_filter_leaves_out_parts_whose_descriptors_say_what_they_hold(client: persist.Client) -> None:
    t = filled_with_negatives(client)
    for where, left_out in ((pc.field("k") > 100, 1), (pc.field("k") == 19, 1), (pc.field("k") >= 0, 0)):
        with t.snapshot(9, where=where) as contents:
            told = contents.explain()
        assert told.pruned == {"keyframe": 8, "time": 0, "filter": left_out}
        assert told.parts == 3 - left_out
        assert told.filter == str(where)


class Held:
    """A part, as far as costs look at it."""

    def __init__(self, rows: int, time_min: int, time_max: int, negatives: int = 0) -> None:
        self.rows, self.time_min, self.time_max, self.negatives = rows, time_min, time_max, negatives


@pytest.mark.parametrize(
    ("start", "end", "rows"), [(-1, 9, 100), (-1, 4, 50), (4, 9, 50), (0, 1, 10), (3, 3, 0), (-1, 99, 100), (2, 5, 30)]
)
def test_rows_of_a_part_are_taken_to_be_spread_evenly_over_its_times(start: int, end: int, rows: float) -> None:
    part: Any = Held(100, 0, 9)
    assert _estimate_rows_between(part, start, end) == rows
    later: Any = Held(100, 10, 19)
    assert _estimate_rows_between(later, start + 10, end + 10) == rows


class Frame:
    def __init__(self, as_of: int, rows: int) -> None:
        self.as_of, self.parts = as_of, [Held(rows, as_of, as_of)]


@pytest.mark.parametrize(
    ("frame", "as_of", "cost"),
    [
        (None, 4, 10 + 30 + 4 * (10 + 6)),  # All of two parts decoded, ten and six rows of them merged.
        (None, 1, 10),  # Nothing that is touched cancels.
        (Frame(4, 7), 4, 7 + 30),
        (Frame(4, 7), 6, 7 + 30 + 4 * 4),
        (Frame(4, 7), 3, 7 + 30 + 4 * 2),
        (Frame(13, 7), 14, 7 + 30 + 4 * 2),
        (Frame(20, 7), 17, 7),
        (Frame(1, 7), 1, 7),
    ],
)
def test_the_cost_of_a_plan_is_rows_decoded_and_four_times_those_merged(frame: Any, as_of: int, cost: float) -> None:
    history: Any = (Held(10, 0, 1), Held(30, 2, 16, negatives=1))
    contents: Any = type("Contents", (), {"list_parts": staticmethod(lambda parts: parts)})
    assert _estimate_cost(contents, history, frame, as_of) == cost


@pytest.mark.parametrize(("lower", "upper", "parts"), [(0, 10, 10), (3, 4, 1), (3, 5, 2), (9, 10, 1), (0, 1, 1)])
def test_changes_read_the_parts_of_their_times(client: persist.Client, lower: int, upper: int, parts: int) -> None:
    t = filled(client)
    scan = plan_changes_scan(t.handle.contents(), t.schema, lower, upper, None)
    assert (len(scan.parts), len(scan.base)) == (parts, 0)
    assert {time for part in scan.parts for time in (part.time_min, part.time_max)} == {*range(lower, upper)}


def test_records_are_counted_without_reading_where_that_tells(client: persist.Client) -> None:
    t = filled(client)
    assert count_records(t.handle.contents()) == 20
    other = client.create_or_load("other", key={"k": int})
    for time in range(4):
        other.write([((time, None), time, 1), ((time - 1, None), time, time - 1)], seal=time + 1).result()
    assert count_records(other.handle.contents()) == 4 + sum(range(-1, 3))
    other.allow_compaction(2).result()
    add_keyframe(other, 2, drop_history=True)
    assert count_records(other.handle.contents()) == 4 + sum(range(-1, 3))
    keyed = client.create_or_load("keyed", key={"k": int}, value={"v": int}, keyed=persist.Keyed(resolve="background"))
    keyed.upsert([(1, 1, 0)], seal=1).result()
    assert count_records(keyed.handle.contents()) is None, "events are not resolved"
    form = persist.Keyed(order_by=["v"], tombstone="gone")
    marked = client.create_or_load("marked", key={"k": int}, value={"v": int, "gone": bool}, keyed=form)
    marked.upsert([(1, (1, False), 0), (2, (1, False), 0)], seal=1).result()
    marked.upsert([(1, (2, True), 1)], seal=2).result()
    assert count_records(marked.handle.contents()) is None, "a tombstone is a row, and no record"


def test_a_scan_is_narrowed_by_what_rows_hold_and_by_nothing_else(client: persist.Client) -> None:
    t = filled_with_negatives(client)
    scan = plan_snapshot(t.handle.contents(), t.schema, 7, None)
    assert narrow_scan(scan, pc.field("_time") > 3) is None
    assert narrow_scan(scan, pc.field("nowhere") > 3) is None
    narrow = narrow_scan(scan, pc.field("k") > 14)
    assert narrow is not None
    assert (len(narrow.all_parts), narrow.columns) == (1, scan.columns)
    none = narrow_scan(narrow, pc.field("k") > 15, ["v"])
    assert none is not None
    assert (len(none.all_parts), none.columns) == (0, ("v",))
    both = narrow_scan(narrow, pc.field("k") < 18, ["v"])
    assert both is not None
    assert (len(both.all_parts), both.columns) == (1, ("v",))
    assert (str(both.filter), scan.filter) == (str((pc.field("k") > 14) & (pc.field("k") < 18)), None)
    same = narrow_scan(both, None)
    assert isinstance(same, Scan)
    assert (str(same.filter), same.columns) == (str(both.filter), ("v",))


# ---- Keys that hold what a keyed collection cannot


def wrong(updates: list[tuple[tuple[int, int], int, int]], *, several: bool) -> list[tuple[tuple[int, ...], int]]:
    """Return the keys that have more than one value, or less than none, at some time, and when first."""
    found: dict[tuple[int, ...], int] = {}
    for time in sorted({time for _, time, _ in updates}):
        held = Counter[Any]()
        for record, at, diff in updates:
            if at <= time:
                held[record[:1] if several else record] += diff
        for key, count in sorted(held.items()):
            if count < 0 or (several and count > 1):
                found.setdefault(key, time)
    if several:
        return sorted(found.items())
    return sorted((record[:1], time) for record, time in found.items())


@pytest.mark.parametrize("seed", range(8))
def test_keys_with_several_values_or_less_than_none_are_told_with_their_first_time(
    client: persist.Client, seed: int
) -> None:
    chance = random.Random(seed)
    t = client.create_or_load("t", key={"k": int}, value={"v": int})
    updates = [
        ((chance.randrange(5), chance.randrange(2)), chance.randrange(5), chance.choice([1, 1, -1, 2]))
        for _ in range(chance.choice([0, 4, 9]))
    ]
    for time in range(5):
        t.write([each for each in updates if each[1] == time], seal=time + 1).result()
    contents, reader = t.handle.contents(), t.handle.engine.reader()
    assert [*find_keys_with_several(contents, reader)] == wrong(updates, several=True)
    # Of one key, two records may be wrong: each is told.
    assert sorted(find_negative_keys(contents, reader)) == wrong(updates, several=False)
    if not updates or seed % 2:
        return
    # What is in the first keyframe already is told of before the history begins.
    t.allow_compaction(2).result()
    add_keyframe(t, 2, drop_history=True)
    folded = [(record, max(time, 2), diff) for record, time, diff in updates]
    assert [*find_keys_with_several(t.handle.contents(), reader)] == wrong(folded, several=True)


def test_a_key_that_is_null_in_all_fields_is_told(client: persist.Client) -> None:
    fields = pa.schema([pa.field("a", pa.int64()), pa.field("b", pa.int64())])
    t = client.create_or_load("t", key=fields)
    t.write([(((None, 1), None), 0, 1), (((1, None), None), 1, 1)], seal=2).result()
    reader = t.handle.engine.reader()
    assert [*find_null_keys(t.handle.contents(), reader)] == []
    t.write([(((None, None), None), 2, 1)], seal=3).result()
    assert [*find_null_keys(t.handle.contents(), reader)] == [((None, None), 2)]


def test_what_a_key_has_beyond_int64_is_refused(client: persist.Client) -> None:
    t = client.create_or_load("t", key={"k": int}, value={"v": int})
    t.write([((1, 1), time, 2**62) for time in range(3)], seal=3).result()
    with pytest.raises(DiffOverflow):
        t.as_of_join(pa.table({"k": [1], "at": [2]}), time="at")


# ---- Parts that may hold a key, by some of the keys in them


@pytest.mark.parametrize(
    ("wanted", "may"),
    [
        ([-1], False), ([0], True), ([5], True), ([10], True), ([15], True), ([20], True), ([21], False), ([], False),
        ([-5, 30], False), ([-5, 20], True), ([-5, 3], True), ([19, 30], True),
    ],
)  # fmt: skip
def test_a_part_may_hold_a_key_that_lies_between_two_of_its_samples_or_is_one(wanted: list[int], may: bool) -> None:
    samples = KeySamples(SortedKeys(pa.table({"k": [0, 10, 20]})), pa.array([0, 4, 9]).to_numpy())
    assert samples.may_hold(SortedKeys(pa.table({"k": pa.array(wanted, pa.int64())}))) == may
    one = KeySamples(SortedKeys(pa.table({"k": [10]})), pa.array([0]).to_numpy())
    assert one.may_hold(SortedKeys(pa.table({"k": pa.array(wanted, pa.int64())}))) == (10 in wanted)


# ---- New rows in the place of others, slice by slice


@pytest.mark.parametrize("is_sorted", [True, False])
def test_rows_that_take_the_place_of_others_are_taken_slice_by_slice(
    client: persist.Client, is_sorted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = client.create_or_load("t", key={"k": int}, value={"v": int})
    for first in (0, 200):
        rows = pa.table({"k": range(first, first + 200), "v": range(200), "_time": [0] * 200, "_diff": [1] * 200})
        t.write(rows).result()
    t.seal(1).result()
    monkeypatch.setattr(PartReader, "rewrite_slice_bytes", 1000)
    keys = [*range(100, 500)]
    random.Random(0).shuffle(keys)
    keys = sorted(keys) if is_sorted else keys
    t.overwrite(pa.table({"k": keys, "v": [7 * key for key in keys]}), time=1).result()
    assert sorted(t.snapshot(1).rows()) == [(key, 7 * key) for key in range(100, 500)]
    assert sorted(t.snapshot(0).rows()) == [(key, key % 200) for key in range(400)]


# ---- Memory


@pytest.mark.parametrize(
    ("budget", "shares"), [(4000, (500, 250, 363)), (9, (1, 1, 1)), (400 << 20, (80 << 20, 40 << 20, 50 << 20))]
)
def test_slices_take_their_shares_of_the_budget(budget: int, shares: tuple[int, int, int]) -> None:
    reader = PartReader(MemoryBlob(), memory_budget=budget)
    assert (reader.slice_bytes, reader.changes_slice_bytes, reader.rewrite_slice_bytes) == shares


def test_a_row_group_beyond_the_budget_says_which_budget_would_hold_it(client: persist.Client) -> None:
    t = client.create_or_load("t", key={"k": int}, value={"v": str})
    columns = {"k": range(20_000), "v": [f"{n:032}" for n in range(20_000)]}
    t.write(pa.table({**columns, "_time": [0] * 20_000, "_diff": [1] * 20_000}), seal=1).result()
    [part] = t.snapshot().scan.parts
    reader, keys = PartReader(t.handle.engine.blob, memory_budget=part.memory), Request(t.schema, ["k"])
    table, _ = reader.fetch_groups(part, [0], keys)
    size = len(table) * part.memory // part.rows
    PartReader(t.handle.engine.blob, memory_budget=size).fetch_groups(part, [0], keys)
    with pytest.raises(
        persist.InvalidUsage, match=rf"which takes {size} bytes decoded. Give memory_budget={4 * size} or more"
    ):
        PartReader(t.handle.engine.blob, memory_budget=size - 1).fetch_groups(part, [0], keys)
    assert len(reader.fetch_groups(part, [], keys)[0]) == 0
