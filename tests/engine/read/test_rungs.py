"""What keys hold, asked from the newest run to the oldest, is what all updates together say."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import persist
import persist.engine.read.lookups.rungs
from persist.codecs.order.search import SortedKeys
from persist.engine.read.lookups.lookup import Lookup, Wanted, without_diffs
from persist.engine.read.lookups.rungs import Aged, Rung, _last, by_age
from persist.engine.read.planning.snapshot_plan import snapshot_scan
from tests.support.tiers import examples

QUIET = persist.Settings(background=False)
KEYS: dict[str, Any] = {
    "int": ({"k": pa.int64()}, lambda n: n),
    "text": ({"k": pa.string()}, lambda n: f"{n}" * (1 + n % 3)),
    "two": ({"a": pa.int8(), "b": pa.string()}, lambda n: (n % 3, f"{n}")),
    "list": ({"k": pa.list_(pa.int64())}, lambda n: [n]),
}


def held(users: persist.Collection, keys: list[Any], *, one_per_key: bool) -> list[Any]:
    """Return the rows that some keys hold at the last sealed time, in order."""
    contents, reader = users.handle.contents(), users.handle.engine.reader()
    upper = contents.upper.time
    assert upper is not None
    scan = snapshot_scan(contents, contents.schema, upper - 1, None, raw=True)
    lookup = Lookup(scan, one_per_key=one_per_key)
    wanted = lookup.wanted(keys)
    if one_per_key:
        found = lookup.present(wanted, reader)
    else:
        found = without_diffs(lookup.contents(wanted, "rows", reader), scan)
    return sorted(map(repr, found.to_pylist()))


step = st.tuples(
    st.sampled_from(["upsert"] * 6 + ["keyframe", "compact", "forget"]),
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3) | st.none(), st.integers(0, 2)), max_size=8),
)


@settings(max_examples=examples(100))
@given(
    st.lists(step, min_size=1, max_size=14),
    st.sampled_from([*KEYS]),
    st.sampled_from([0, 64 << 10]),
    st.sampled_from([1, 2, 4]),
    st.lists(st.integers(0, 13), max_size=5, unique=True),
)
def test_what_a_key_holds_is_told_by_its_newest_update(
    steps: list[Any], kind: str, tiny: int, rows_per_key: int, wanted: list[int]
) -> None:
    key, of = KEYS[kind]
    with persist.open(persist.MemoryBlob(), settings=QUIET) as client, pytest.MonkeyPatch.context() as patch:
        patch.setattr(persist.engine.read.lookups.rungs, "TINY_BYTES", tiny)
        patch.setattr(persist.engine.read.lookups.rungs, "ROWS_PER_KEY", rows_per_key)
        users = client.create_or_load("users", key=key, value={"v": pa.int64()}, keyed=persist.Keyed())
        upper = 0
        for what, events in steps:
            if what == "upsert":
                users.upsert([(of(k), v, upper + t) for k, v, t in events], seal=upper + 3).result()
                upper += 3
            elif upper and what == "keyframe":
                users.allow_compaction(max(0, upper - 4)).result()
                users.compact()
            elif upper and what == "compact":
                users.compact()
            elif upper:
                users.handle.engine.caches.decoded.clear()
            for some in ([*range(14)], wanted) if upper else ():
                keys = [of(k) for k in some]
                assert held(users, keys, one_per_key=True) == held(users, keys, one_per_key=False)


def test_rungs_of_similar_size_become_one_and_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    before = persist.engine.read.lookups.rungs._newest_of

    def counted(rows: pa.Table, keys: Any) -> Rung:
        made.append(len(rows))
        return before(rows, keys)

    monkeypatch.setattr(persist.engine.read.lookups.rungs, "_newest_of", counted)
    with persist.open(persist.MemoryBlob(), settings=QUIET) as client:
        users = client.create_or_load("users", key={"k": pa.int64()}, value={"v": pa.int64()}, keyed=persist.Keyed())
        for time in range(64):
            chosen = random.Random(time).sample(range(10**6), 100)
            users.upsert([(k, time) for k in chosen], time=time, seal=time + 1).result()
            assert sum(made) <= 100 * (time + 1) * 4  # Once by itself, and once for each size: 4, 16, 64.
        assert len(made) <= 64 + 16 + 4 + 1


def test_runs_of_one_time_that_overlap_are_asked_together() -> None:
    assert by_age([(0, 3), (4, 4), (4, 4), (6, 9), (5, 7)]) == [[3, 4], [1, 2], [0]]
    assert by_age([(0, 9), (1, 2), (3, 4)]) == [[0, 2, 1]]
    assert by_age([]) == []


@pytest.mark.parametrize("rows_per_key", [0, 4])
def test_what_was_written_before_a_collection_became_keyed_is_told_apart(
    rows_per_key: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(persist.engine.read.lookups.rungs, "TINY_BYTES", 0)
    monkeypatch.setattr(persist.engine.read.lookups.rungs, "ROWS_PER_KEY", rows_per_key)
    with persist.open(persist.MemoryBlob(), settings=QUIET) as client:
        users = client.create_or_load("users", key={"k": pa.int64()}, value={"v": pa.int64()})
        # Three parts of one time, which cancel each other but for one row.
        users.write([((1, 1), 0, 1), ((1, 2), 0, -1), ((4, 1), 0, 1)]).result()
        users.write([((1, 2), 0, 1), ((1, 1), 0, -1), ((4, 1), 0, -1)]).result()
        users.write([((1, 3), 0, 1), ((2, 5), 0, 1), ((4, 2), 0, 1)], seal=1).result()
        users.evolve(keyed=persist.Keyed())
        users = client.load("users")
        assert held(users, [1, 2, 4], one_per_key=True) == held(users, [1, 2, 4], one_per_key=False)
        users.upsert([(1, 7), (2, None)], time=1, seal=2).result()
        assert held(users, [1, 2, 4], one_per_key=True) == ["{'k': 1, 'v': 7}", "{'k': 4, 'v': 2}"]
        users.upsert([(4, 8)], time=2, seal=3).result()
        assert users.snapshot().to_arrow().to_pylist() == [{"k": 1, "v": 7}, {"k": 4, "v": 8}]
        assert client.fsck().is_clean


def test_keys_that_are_left_have_places() -> None:
    keys = SortedKeys(pa.table({"k": ["a", "bb", "cccccccccc"]}))
    others = SortedKeys(pa.table({"k": ["a", "b", "cccccccccc", "ccccccccccccccccccccccccccccccccc"]}))
    places = keys.places(others)
    assert places is not None
    assert places.tolist() == [0, -1, 2, -1]
    some = keys.some(places[places > 0])
    assert len(some) == 1
    assert Wanted(1, some).keys is some
    found = some.places(others)
    assert found is not None
    assert found.tolist() == [-1, -1, 0, -1]


def test_a_client_with_little_room_finds_the_same(tmp_path: Path) -> None:
    settings = persist.Settings(background=False, memory_budget=16 << 20)
    with persist.open(tmp_path, settings=settings) as client:
        users = client.create_or_load("users", key={"k": pa.int64()}, value={"v": pa.string()}, keyed=persist.Keyed())
        for time in range(8):
            rows = pa.table({"k": range(time * 500, time * 500 + 20_000), "v": [f"{time} " * 20] * 20_000})
            users.upsert(rows, time=time, seal=time + 1).result()
        found = users.snapshot().to_arrow()
        assert len(found) == 7 * 500 + 20_000
        assert sum(value.startswith("7 ") for value in found["v"].to_pylist()) == 20_000


@pytest.mark.parametrize(
    ("diffs", "times", "left", "kept"),
    [
        (1, 5, [0, 1, 2], [0, 1, 2]),
        (-1, 5, [0, 1, 2], []),
        (1, 5, [0, -1, 2], [0, 2]),
        ([1, -1, 2], 5, [0, 1, 2], [0, 2]),
        (1, [4, 5, 5], [0, 0, 1], [1, 2]),  # Of a key, what was inserted last.
        ([1, -1, 1], [4, 5, 5], [0, 0, 1], [2]),
        ([-1, 1, 1], [4, 5, 5], [0, 0, -1], [1]),
        (1, [5, 4, 4], [0, 1, 1], [0, 1, 2]),
    ],
)
def test_the_rows_of_keys_that_are_left_are_those_inserted_last(
    diffs: Any, times: Any, left: list[int], kept: list[int]
) -> None:
    table = pa.table({"k": [0, 1, 2]})
    if isinstance(times, list):
        table = table.append_column("_time", pa.array(times, pa.int64()))
    if isinstance(diffs, list):
        table = table.append_column("_diff", pa.array(diffs, pa.int64()))
    aged = Aged(table, times if isinstance(times, int) else None, diffs if isinstance(diffs, int) else None)
    assert _last(aged, np.array(left))["k"].to_pylist() == kept
