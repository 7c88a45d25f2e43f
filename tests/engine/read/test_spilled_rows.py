"""Look-ups from mapped files: the same answers as from memory, whatever becomes of the files."""

import os
import random
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings

import persist
import persist.engine.read.lookups.part_rows
import persist.engine.read.parts.caches
from persist.blob.protocol import MemoryBlob
from persist.blob.threads import SystemClock
from persist.codecs.order.search import SortedKeys
from persist.codecs.part.mapped import CHUNK_BYTES, MappedRows, encode_mapped_file
from persist.engine.read.parts.caches import SpilledRows
from tests.codecs.strategies import python_values
from tests.support.forks import forked_python
from tests.support.reads import rows_with
from tests.support.stepped import WAIT_S
from tests.support.tiers import examples

ROWS = 40_000
VALUE = {"a": pa.int64(), "text": pa.string(), "maybe": pa.float64(), "flag": pa.bool_(), "tags": pa.list_(pa.int8())}
KEYS: dict[str, Callable[[int], Any]] = {
    "int64": lambda n: n,
    "string": lambda n: f"customer-{n:07d}",
    "float64": lambda n: n / 4,
}


@pytest.fixture(autouse=True)
def in_row_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let parts be read by row groups, and small pieces go to files."""
    monkeypatch.setattr(persist.engine.read.lookups.part_rows, "WHOLE_BYTES_MAX", 0)
    monkeypatch.setattr(persist.engine.read.parts.caches, "SPILL_BYTES_MIN", 1)


def configured(folder: Path, **others: Any) -> persist.Settings:
    return persist.Settings(background=False, memory_budget=16 << 20, cache_folder=folder / "cache", **others)


def filled(client: persist.Client, kind: str = "int64", rows: int = ROWS) -> persist.Collection:
    updates = updates_of(kind, rows)
    made = client.create_or_load("c", key={"k": updates.schema.field("k").type}, value=VALUE)
    made.write(updates, seal=1).result()
    return made


@cache
def updates_of(kind: str, rows: int) -> pa.Table:
    key = KEYS[kind]
    kinds = {"int64": pa.int64(), "string": pa.string(), "float64": pa.float64()}
    numbers = np.arange(rows)
    columns = {
        "k": pa.array([key(n) for n in range(rows)], kinds[kind]),
        "a": numbers * 3,
        "text": [f"text {n}" * (n % 5) for n in range(rows)],
        "maybe": [None if n % 7 == 0 else n / 2 for n in range(rows)],
        "flag": [n % 3 == 0 for n in range(rows)],
        "tags": pa.array([[n % 100] * (n % 4) for n in range(rows)], pa.list_(pa.int8())),
    }
    return pa.table(columns | {"_time": numbers * 0, "_diff": numbers * 0 + 1})


def expected(numbers: list[int], kind: str = "int64") -> list[dict[str, Any]]:
    return [
        {
            "k": KEYS[kind](n),
            "a": n * 3,
            "text": f"text {n}" * (n % 5),
            "maybe": None if n % 7 == 0 else n / 2,
            "flag": n % 3 == 0,
            "tags": [n % 100] * (n % 4),
        }
        for n in sorted({*numbers})
    ]


def found(collection: persist.Collection, numbers: list[int], kind: str = "int64") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = rows_with(collection.snapshot(), [KEYS[kind](n) for n in numbers]).to_pylist()
    return rows


def files(folder: Path) -> list[Path]:
    return sorted((folder / "cache").glob("*.rows"))


def spilled_of(client: persist.Client) -> SpilledRows:
    assert client.engine.spilled is not None
    return client.engine.spilled


CHOSEN = [5, 7, 77, 12_345, ROWS - 1, 20_000, 20_001]


@pytest.mark.thorough(except_every=4)
@pytest.mark.parametrize("kind", KEYS)
def test_another_client_finds_from_files_what_the_first_has_decoded(tmp_path: Path, kind: str) -> None:
    store = MemoryBlob()
    with persist.open(store, settings=configured(tmp_path)) as client:
        collection = filled(client, kind)
        for _ in range(3):
            assert found(collection, CHOSEN, kind) == expected(CHOSEN, kind)
        assert files(tmp_path)
        everything = list(range(0, ROWS, 3))
        assert found(collection, everything, kind) == expected(everything, kind)
    with persist.open(store, settings=configured(tmp_path), mode="read") as client:
        collection = client.load("c")
        before = client.metrics().store["get"].bytes
        assert found(collection, CHOSEN, kind) == expected(CHOSEN, kind)
        assert found(collection, [1, 2, 3], kind) == expected([1, 2, 3], kind)
        assert spilled_of(client).hits > 0
        assert spilled_of(client).corrupt == 0
        assert client.metrics().store["get"].bytes - before < 20_000, "footers are read, and no rows"


def test_what_is_mapped_takes_no_memory_of_the_cache(tmp_path: Path) -> None:
    with persist.open(MemoryBlob(), settings=configured(tmp_path)) as client:
        collection = filled(client)
        found(collection, list(range(ROWS)))
        assert client.engine.reader().decoded.bytes < 100_000
        descriptors = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
        for start in range(20):
            found(collection, [start, ROWS - start - 1])
        assert not descriptors or len(os.listdir("/proc/self/fd")) <= descriptors


def flipped(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    rewritten(path, bytes(data))


def rewritten(path: Path, data: bytes) -> None:
    """Put another file there: one that is mapped is never changed, or the process that has it mapped may die."""
    path.with_suffix(".new").write_bytes(data)
    path.with_suffix(".new").rename(path)


def cut(path: Path, chance: random.Random) -> None:
    rewritten(path, path.read_bytes()[: chance.randrange(path.stat().st_size)])


def lengthened(path: Path, chance: random.Random) -> None:
    rewritten(path, path.read_bytes() + b"x" * chance.randrange(1, 5000))


def emptied(path: Path, chance: random.Random) -> None:
    rewritten(path, b"")


def exchanged(path: Path, chance: random.Random) -> None:
    rewritten(path, chance.choice(files(path.parent.parent)).read_bytes())


def a_pipe(path: Path, chance: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def a_link(path: Path, chance: random.Random) -> None:
    other = path.with_suffix(".other")
    path.rename(other)
    path.symlink_to(other)


def a_folder(path: Path, chance: random.Random) -> None:
    path.unlink()
    path.mkdir()


DAMAGES = [flipped, cut, lengthened, emptied, exchanged, a_pipe, a_link, a_folder]


@pytest.mark.thorough(except_every=8)
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_noticed_and_passed_over(
    tmp_path: Path, damage: Callable[[Path, random.Random], None]
) -> None:
    store, chance = MemoryBlob(), random.Random(13)
    with persist.open(store, settings=configured(tmp_path)) as client:
        found(filled(client), list(range(ROWS)))
    for path in files(tmp_path):
        damage(path, chance)
    with persist.open(store, settings=configured(tmp_path), mode="read") as client:
        collection = client.load("c")
        for numbers in (CHOSEN, list(range(ROWS)), CHOSEN):
            assert found(collection, numbers) == expected(numbers)
        spilled = spilled_of(client)
        # One that was exchanged for itself is none.
        assert spilled.corrupt > 0 or damage is exchanged
    if damage is not a_folder:
        with persist.open(store, settings=configured(tmp_path), mode="read") as client:
            found(client.load("c"), list(range(ROWS)))
            assert spilled_of(client).corrupt == 0, "they were rebuilt"
            assert spilled_of(client).hits > 0


def test_every_single_damaged_byte_is_noticed_before_it_is_believed() -> None:
    batch = pa.record_batch({"k": np.arange(3000), "t": [f"text {n}" for n in range(3000)]})
    data = b"".join(bytes(piece) for piece in encode_mapped_file(batch, b"name"))
    chance = random.Random(1)
    for at in [*range(200), *(chance.randrange(len(data)) for _ in range(400))]:
        bad = bytearray(data)
        bad[at] ^= 1 << chance.randrange(8)
        numbers = np.sort(np.array(chance.sample(range(3000), 5), np.int64))
        try:
            mapped = MappedRows(pa.py_buffer(bytes(bad)), b"name", batch.schema, 3000)
            mapped.verify_rows(numbers)
        except (ValueError, pa.ArrowException):
            continue
        assert mapped.batch.take(pa.array(numbers)).equals(batch.take(pa.array(numbers)))
        with pytest.raises(ValueError, match="do not match their checksum"):
            mapped.verify_rows(None)


FLAT = [pa.string(), pa.large_binary(), pa.decimal128(9, 2), pa.bool_(), pa.binary(3), pa.float16()]
NESTED = [pa.list_(pa.string()), pa.struct([("a", pa.string())])]


@settings(max_examples=examples(60, quick=3))
@given(st.data(), st.sampled_from(FLAT + NESTED))
def test_the_rows_that_are_checked_are_those_that_are_used(data: Any, kind: pa.DataType) -> None:
    """Damage everything but the chunks that were checked: the rows must not change."""
    values = data.draw(st.lists(python_values(kind), min_size=1, max_size=30))
    values = values * (data.draw(st.integers(1, 100)))
    batch = pa.record_batch({"v": pa.array(values, kind)})
    rows = np.unique(np.array(data.draw(st.lists(st.integers(0, len(values) - 1), min_size=1, max_size=4)), np.int64))
    file = bytearray(b"".join(bytes(piece) for piece in encode_mapped_file(batch, b"n")))
    mapped = MappedRows(pa.py_buffer(file), b"n", batch.schema, len(values))
    mapped.verify_rows(rows)
    start = len(file) - mapped.message_bytes
    for chunk in mapped.list_unchecked():
        at = start + chunk * CHUNK_BYTES
        file[at : at + CHUNK_BYTES] = b"\xff" * len(file[at : at + CHUNK_BYTES])
    assert repr(mapped.batch.take(pa.array(rows)).to_pylist()) == repr(batch.take(pa.array(rows)).to_pylist())


def test_a_folder_that_is_too_small_stays_within_its_room(tmp_path: Path) -> None:
    room = 1 << 20
    with persist.open(MemoryBlob(), settings=configured(tmp_path, cache_folder_bytes=room)) as client:
        collection = client.create_or_load("c", key={"k": pa.int64()}, value={"v": pa.int64()})
        for part in range(40):
            keys = np.arange(part * 5000, part * 5000 + 5000)
            updates = pa.table({"k": keys, "v": keys, "_time": keys * 0, "_diff": keys * 0 + 1})
            collection.write(updates).result()
        collection.seal(1).result()
        for _ in range(2):
            wanted = list(range(0, 200_000, 997))
            assert rows_with(collection.snapshot(), wanted)["v"].to_pylist() == wanted
        assert spilled_of(client).room.evictions > 0
        assert sum(path.stat().st_size for path in files(tmp_path)) <= room + room // 16 + (64 << 10)


@pytest.mark.thorough
def test_a_disk_that_refuses_costs_only_the_files(tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(b"")  # A file, where a folder would have to be.
    with persist.open(MemoryBlob(), settings=configured(tmp_path)) as client:
        collection = filled(client)
        for numbers in (CHOSEN, list(range(ROWS)), CHOSEN):
            assert found(collection, numbers) == expected(numbers)
        assert spilled_of(client).room.disk_errors > 0
        assert client.engine.reader().decoded.bytes > 0, "then it is kept in memory"


@pytest.mark.thorough
def test_two_processes_share_what_one_has_decoded(tmp_path: Path) -> None:
    script = """
import sys, pyarrow, persist, persist.engine.read.lookups.part_rows, persist.engine.read.parts.caches
persist.engine.read.lookups.part_rows.WHOLE_BYTES_MAX, persist.engine.read.parts.caches.SPILL_BYTES_MIN = 0, 1
settings = persist.Settings(background=False, memory_budget=16 << 20, cache_folder=sys.argv[1] + "/cache")
with persist.open(sys.argv[1] + "/store", mode="read", settings=settings) as client:
    rows = client.load("c").snapshot().get(pyarrow.array([5, 39_000])).to_pylist()
    print([row["a"] for row in rows], client.engine.spilled.hits > 0, client.engine.spilled.corrupt)
"""
    with persist.open(tmp_path / "store", settings=configured(tmp_path)) as client:
        collection = filled(client)
        found(collection, list(range(ROWS)))
        runs = [
            subprocess.Popen([*forked_python(), "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        assert [run.communicate(timeout=WAIT_S)[0].strip() for run in runs] == ["[15, 117000] True 0"] * 2


def test_compaction_and_a_schema_that_changes_have_files_of_their_own(tmp_path: Path) -> None:
    with persist.open(MemoryBlob(), settings=configured(tmp_path)) as client:
        collection = filled(client)
        assert found(collection, CHOSEN) == expected(CHOSEN)
        more = pa.table({"k": [5, 9], "a": [-1, -2], "_time": [1, 1], "_diff": [1, 1]})
        kinds = {name: pa.nulls(2, kind) for name, kind in VALUE.items() if name != "a"}
        for name, column in kinds.items():
            more = more.append_column(name, column)
        collection.write(more, seal=2).result()
        collection.compact()
        rows = found(collection, [5, 7])
        assert [row["a"] for row in rows] == [15, -1, 21] or sorted(row["a"] for row in rows) == [-1, 15, 21]
        collection.evolve(add={"note": pa.string()}, drop=["a"], rename={"text": "words"})
        evolved = rows_with(client.load("c").snapshot(), [7])
        assert evolved.column_names == ["k", "words", "maybe", "flag", "tags", "note"]
        assert evolved["words"].to_pylist() == ["text 7" * 2]


def test_a_location_that_was_restored_reads_its_own_rows(tmp_path: Path) -> None:
    with persist.open(tmp_path / "store", settings=configured(tmp_path)) as client:
        collection = client.create_or_load("c", key={"k": pa.int64()}, value={"v": pa.int64()})
        collection.seal(1).result()
    shutil.copytree(tmp_path / "store", tmp_path / "backup")
    for sign in (1, -1):
        with persist.open(tmp_path / "store", settings=configured(tmp_path)) as client:
            keys = np.arange(ROWS)
            updates = pa.table({"k": keys, "v": sign * keys, "_time": keys * 0 + 1, "_diff": keys * 0 + 1})
            collection = client.load("c")
            collection.write(updates, seal=2).result()
            wanted = list(range(0, ROWS, 2))
            assert rows_with(collection.snapshot(), wanted)["v"].to_pylist() == [sign * key for key in wanted]
        shutil.rmtree(tmp_path / "store")
        shutil.copytree(tmp_path / "backup", tmp_path / "store")


def test_filters_and_projections_are_as_without_files(tmp_path: Path) -> None:
    with persist.open(MemoryBlob(), settings=configured(tmp_path)) as client:
        collection = filled(client)
        for _ in range(2):
            snapshot = collection.snapshot(columns=["text"], where=pc.field("maybe") > 3)
            assert sorted(rows_with(snapshot, [7, 8, 9, 2])["text"].to_pylist()) == sorted(["text 8" * 3, "text 9" * 4])
            assert rows_with(collection.snapshot(columns=["k"]), [9, 3])["k"].to_pylist() == [3, 9]


def test_files_that_were_used_lately_are_not_the_first_to_go(tmp_path: Path) -> None:
    spilled = SpilledRows(tmp_path, 1 << 20, "memory://x", SystemClock())
    batch = pa.record_batch({"v": np.arange(1000)})
    assert spilled.put("one", batch)
    os.utime(next(tmp_path.glob("*.rows")), ns=(0, 0))
    assert spilled.get("one", batch.schema, 1000, None) is not None
    assert next(tmp_path.glob("*.rows")).stat().st_mtime_ns > 0
    found = spilled.get("one", batch.schema, 1000, None)
    assert found is not None
    assert not found.column(0).buffers()[1].is_mutable, "to write there would end the process"
    assert spilled.get("two", batch.schema, 1000, None) is None
    assert spilled.get("one", batch.schema, 999, None) is not None, "it is mapped already, and that is what it holds"


def test_keys_to_search_in_are_made_once_as_long_as_rows_are_mapped(tmp_path: Path) -> None:
    spilled = SpilledRows(tmp_path, 1 << 20, "memory://x", SystemClock())
    batch, other = (pa.record_batch({"v": np.arange(first, first + 10_000)}) for first in (0, 50_000))
    assert spilled.put("one", batch)
    assert spilled.put("two", other)
    keys = spilled.load_keys("one", batch.schema, 10_000)
    assert keys is not None
    assert spilled.load_keys("one", batch.schema, 10_000) is keys
    assert keys.find_rows(SortedKeys(pa.table({"v": [7, 50_001]}))).tolist() == [7]
    others = spilled.load_keys("two", batch.schema, 10_000)
    assert others is not None
    assert others.find_rows(SortedKeys(pa.table({"v": [7, 50_001]}))).tolist() == [1]
    assert spilled.load_keys("three", batch.schema, 10_000) is None


def test_rows_that_are_few_or_too_many_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persist.engine.read.parts.caches, "SPILL_BYTES_MIN", 64 << 10)
    spilled = SpilledRows(tmp_path, 1 << 20, "memory://x", SystemClock())
    sizes = {rows: spilled.put(f"{rows}", pa.record_batch({"v": np.arange(rows)})) for rows in (1, 10_000, 1 << 18)}
    assert sizes == {1: False, 10_000: True, 1 << 18: False}
    assert len([*tmp_path.glob("*.rows")]) == 1
