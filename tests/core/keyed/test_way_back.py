"""`Collection.upserts` of collections with watermarks and tombstones: what comes of it elsewhere is the same."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import persist

VALUE = {"at": pa.int64(), "v": pa.string(), "gone": pa.bool_()}
QUIET = persist.Settings(background=False)


def made(client: persist.Client, name: str, **declared: Any) -> persist.Collection:
    keyed = persist.Keyed(order_by=["at"], tombstone="gone", **declared)
    return client.create_or_load(name, key={"k": pa.int64()}, value=VALUE, keyed=keyed)


def raw(collection: persist.Collection) -> dict[int, tuple[Any, ...]]:
    """What stands under each key, tombstones too: a row with a lower watermark changes it nowhere."""
    events = collection.upserts(0).to_arrow().to_pylist()
    return {row["k"]: (row["at"], row["v"], row["gone"]) for row in events}


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize("resolve", ["seal", "background"])
@pytest.mark.parametrize("seed", range(3))
def test_upserts_of_a_watermark_table_make_the_same_table_again(seed: int, resolve: Any) -> None:
    chance = random.Random(seed)
    with persist.open(persist.MemoryBlob(), settings=QUIET) as client:
        users, copy = made(client, "users", resolve=resolve), made(client, "copy")
        for time in range(20):
            rows = [
                (chance.randrange(12), (chance.randrange(60), chance.choice("ab"), chance.random() < 0.4))
                for _ in range(chance.randrange(8))
            ]
            users.upsert(rows, time=time, seal=time + 1).result()
        copy.upsert(users.upserts(0, 20).to_arrow(), seal=20).result()
        assert copy.changes(0, 20).to_arrow() == users.changes(0, 20).to_arrow()
        assert copy.upserts(0, 20).to_arrow() == users.upserts(0, 20).to_arrow()
        for each in (users, copy):
            each.upsert([(key, (0, "late", False)) for key in range(12)], time=20, seal=21).result()
        assert copy.snapshot().to_arrow().sort_by("k") == users.snapshot().to_arrow().sort_by("k")
        assert raw(copy) == raw(users)


def test_a_tombstone_is_an_event_that_keeps_its_watermark(tmp_path: Path) -> None:
    with persist.open(tmp_path, settings=QUIET) as client:
        users = made(client, "users")
        users.upsert([(1, (5, "a", False), 0), (1, (6, "bye", True), 1), (2, (3, None, True), 1)], seal=2).result()
        assert [*users.upserts(0, 2)] == [(1, (5, "a", False), 0), (1, None, 1), (2, None, 1)]
        assert users.upserts(0, 2).schema.field("v").nullable, "a deletion may have no values"
        assert users.upserts(1, 2).to_arrow().to_pylist() == [
            {"k": 1, "at": 6, "v": "bye", "gone": True, "_time": 1, "_deleted": True},
            {"k": 2, "at": 3, "v": None, "gone": True, "_time": 1, "_deleted": True},
        ]


def test_a_value_that_is_null_is_not_told_as_a_deletion(tmp_path: Path) -> None:
    with persist.open(tmp_path, settings=QUIET) as client:
        users, copy = (
            client.create_or_load(name, key={"k": int}, value={"v": str}, keyed=persist.Keyed())
            for name in ("users", "copy")
        )
        users.upsert(pa.table({"k": [1, 2], "v": ["a", None]}), time=0, seal=1).result()
        with pytest.raises(persist.InvalidUsage, match=r"key 2 at time 0 is NULL.*to_arrow\(\)"):
            list(users.upserts(0))
        copy.upsert(users.upserts(0).to_arrow(), seal=1).result()
        assert copy.to_pylist() == users.to_pylist() == [{"k": 1, "v": "a"}, {"k": 2, "v": None}]


def test_a_tombstone_that_nothing_needs_any_more_goes_without_an_event(tmp_path: Path) -> None:
    with persist.open(tmp_path, settings=QUIET) as client:
        users = made(client, "users", late_bound=persist.Behind(10))
        users.upsert([(k, (1, "a", True)) for k in range(8)], time=0, seal=1).result()
        for time in range(1, 6):
            users.upsert([(100 + k, (100 * time, "b", False)) for k in range(8)], time=time, seal=time + 1).result()
        parts = users.handle.contents().history_parts
        assert sum(part.negatives for part in parts) >= 8, "the tombstones were retracted"
        assert [event for event in users.upserts(1) if event[0] < 100] == []
