"""Streams of what keys hold, `form="upserts"`: for sinks that know keys alone, exactly once, whatever is restarted."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import persist
from persist.blob.protocol import MemoryBlob
from persist.compute.tasks import stream_source as stream_source
from tests.connect.spark.data_source.test_stream_read import Query
from tests.connect.spark.data_source.test_stream_upsert import forget
from tests.connect.spark.data_source.test_stream_write import run
from tests.support.resolving import resolve_events

KEY, VALUE = {"k": pa.int64()}, {"mark": pa.int64(), "v": pa.string(), "gone": pa.bool_()}
FORMS: dict[str, dict[str, Any]] = {"plain": {}, "ordered": {"order_by": ["mark"], "tombstone": "gone"}}
UPSERTS = {"collection": "c", "form": "upserts"}
Row = tuple[Any, ...]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_source, "POLL_S", 0.0)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "location")


@pytest.fixture
def client(path: str) -> Iterator[persist.Client]:
    with persist.open(path, settings=persist.Settings(background=False)) as client:
        yield client


def keyed(client: persist.Client, name: str = "c", **declared: Any) -> persist.Collection:
    return client.create_or_load(name, key=KEY, value=VALUE, keyed=persist.Keyed(**declared))


def events(seed: int, upper: int, seal: int, *, ordered: bool) -> pa.Table:
    chance = random.Random(seed)
    rows = []
    for _ in range(30):
        is_gone = chance.random() < 0.3
        row = {"k": chance.randrange(8), "mark": chance.randrange(50), "_time": chance.randrange(upper, seal)}
        row |= {"gone": is_gone and ordered} | ({} if ordered else {"_deleted": is_gone})
        rows.append(row | {"v": None if is_gone else chance.choice("abc")})
    last = {(row["k"], row["_time"]): row for row in rows}  # Nothing but arrival would tell the others apart.
    return pa.Table.from_pylist([*last.values()])


def feed(collection: persist.Collection, seed: int, upper: int, *, ordered: bool) -> None:
    collection.upsert(events(seed, upper, upper + 5, ordered=ordered), seal=upper + 5).result()


def rows(*tables: pa.Table) -> list[Row]:
    found = [tuple(row.values()) for table in tables for row in table.to_pylist()]
    return sorted(found, key=lambda row: (row[4], row[0]) if len(row) > 4 else row)


@pytest.mark.parametrize("policy", ["seal", "background"])
@pytest.mark.parametrize("form", [*FORMS])
def test_a_stream_gives_what_upserts_gives_however_often_it_stops(
    client: persist.Client, path: str, form: str, policy: str
) -> None:
    collection = keyed(client, **FORMS[form], resolve=policy)
    found: list[Row] = []
    again: list[Row] = []
    ends: list[dict[str, Any]] = []
    for seed in range(4):
        feed(collection, seed, 5 * seed, ordered=form == "ordered")
        with Query(path, {**UPSERTS, "start": 0, "max_times_per_trigger": 2}, ends) as query:
            if ends:  # What was read last is read again, and is the same, however it is stored meanwhile.
                assert rows(query.read(len(ends) - 1)) == again
            for table in query.all():
                again = rows(table)
                found += again
            ends = query.ends
        if seed % 2:
            resolve_events(collection)
            collection.allow_compaction(5 * seed).result()
            collection.compact()
    with persist.open(MemoryBlob()) as other:
        copy = keyed(other, **FORMS[form])
        copy.upsert(pa.Table.from_pylist([dict(zip(NAMES, row, strict=True)) for row in found]), seal=20).result()
        assert other.fsck().is_clean
        assert rows(copy.upserts(0).to_arrow()) == found
        assert rows(copy.snapshot().to_arrow()) == rows(collection.snapshot().to_arrow())
    assert len(ends) > 4
    assert any(row[-1] for row in found)


NAMES = (*KEY, *VALUE, "_time", "_deleted")


def test_a_stream_of_transitions_is_what_python_gives_after_what_was_there(client: persist.Client, path: str) -> None:
    collection = keyed(client, **FORMS["ordered"])
    collection.upsert([(1, (5, "a", False)), (2, (9, "b", False))], time=0, seal=1).result()
    with Query(path, {"collection": "c", "form": "transitions"}) as query:
        [first] = query.all()
        assert first["_change"].to_pylist() == ["insert", "insert"]
        assert first["_old_v"].null_count == 2
        collection.upsert([(1, (6, "c", False)), (2, (9, None, True)), (3, (1, "d", False))], time=1, seal=3).result()
        [second] = query.all()
        found = sorted(second.to_pylist(), key=lambda row: int(row["k"]))
        assert found == collection.changes(1, form="transitions").to_pylist()
        assert [row["_change"] for row in found] == ["update", "delete", "insert"]


def test_a_stream_begins_with_what_each_key_holds_tombstones_among_them(client: persist.Client, path: str) -> None:
    collection = keyed(client, **FORMS["ordered"])
    collection.upsert([(1, (5, "a", False)), (2, (9, None, True))], time=0, seal=1).result()
    collection.upsert([(1, (6, "b", False)), (3, (1, "c", False))], time=1, seal=2).result()
    with Query(path, UPSERTS) as query:
        [first] = query.all()
        assert rows(first) == [(1, 6, "b", False, 1, False), (2, 9, None, True, 1, True), (3, 1, "c", False, 1, False)]
        collection.upsert([(2, (8, "late", False)), (3, (2, None, True))], time=2, seal=3).result()
        [second] = query.all()
        assert rows(second) == [(3, 2, None, True, 2, True)]


def test_only_a_keyed_collection_of_one_value_for_a_key_has_such_a_stream(client: persist.Client, path: str) -> None:
    client.create_or_load("plain", key=KEY, value=VALUE)
    with pytest.raises(persist.errors.NotKeyed):
        Query(path, {**UPSERTS, "collection": "plain"})
    keyed(client)
    with pytest.raises(persist.InvalidUsage, match='columns does not go with form="upserts"'):
        Query(path, {**UPSERTS, "columns": "v", "start": 0})


@pytest.mark.thorough
def test_a_keyed_copy_by_two_streams_has_the_same_changes_whatever_spark_forgets(
    spark: SparkSession, client: persist.Client, path: str, tmp_path: Path
) -> None:
    collection, checkpoint = keyed(client, **FORMS["ordered"]), tmp_path / "checkpoint"
    target = str(tmp_path / "copy")
    with persist.open(target) as other:
        keyed(other, **FORMS["ordered"])
    reading = spark.readStream.format("persist").options(**UPSERTS, max_times_per_trigger=3).option("start", 0)
    for seed in range(2):
        feed(collection, seed, 5 * seed, ordered=True)
        run(reading.load(path), target, checkpoint, mode="upsert")
        if not seed:
            forget(
                checkpoint, max(int(each.name) for each in (checkpoint / "commits").iterdir() if each.name.isdigit())
            )
    with persist.open(target, mode="read") as other:
        copy = other.load("c")
        assert rows(copy.upserts(0).to_arrow()) == rows(collection.upserts(0).to_arrow())
        assert rows(copy.snapshot().to_arrow()) == rows(collection.snapshot().to_arrow())
        assert len(rows(copy.upserts(5).to_arrow())) > 0
