"""Reads with an older version of a schema, whose types are narrower: only a value of that very time can be too wide.

Compaction puts updates of many times into one part, and a keyframe of a later time stands for earlier ones; what lies
there beside the wanted rows is none of the reader's business.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import persist
from persist.codecs.evolution import find_newest_types
from persist.core.settings import Tuning
from tests.support.reads import rows_with

SETTINGS = persist.Settings(background=False, tuning=Tuning(hold_linger_s=0))
WIDE = 5_000_000_000


@pytest.fixture
def client() -> Iterator[persist.Client]:
    with persist.open(persist.MemoryBlob(), settings=SETTINGS) as client:
        yield client


@pytest.fixture
def numbers(client: persist.Client) -> persist.Collection:
    """At 0 narrow values, at 1 one that only int64 holds, at 2 it is gone again; all of it in one part."""
    collection = client.create_or_load("n", key={"k": pa.int32()}, value={"v": pa.int32(), "w": pa.int32()})
    collection.write([((1, (1, 7)), 0, 1), ((2, (2, 7)), 0, 1)], seal=1).result()
    collection.evolve(widen={"k": pa.int64(), "v": pa.int64()})
    collection = client.load("n")
    collection.write([((3, (WIDE, 7)), 1, 1), ((WIDE, (3, 7)), 1, 1)], seal=2).result()
    collection.write([((3, (WIDE, 7)), 2, -1), ((WIDE, (3, 7)), 2, -1)], seal=3).result()
    collection.compact()
    return collection


OLD = pa.schema([("k", pa.int32()), ("v", pa.int32()), ("w", pa.int32())])


@pytest.mark.parametrize("as_of", [0, 2])
def test_an_older_version_shows_each_time_whose_values_it_holds(numbers: persist.Collection, as_of: int) -> None:
    found = numbers.snapshot(as_of, schema=1).to_arrow()
    assert found.schema == OLD
    assert found.sort_by("k").to_pylist() == [{"k": 1, "v": 1, "w": 7}, {"k": 2, "v": 2, "w": 7}]
    with numbers.snapshot(as_of, form="diff", schema=1) as diffs:
        assert diffs.to_arrow().schema.field("v").type == pa.int32()
        assert len(diffs.to_arrow()) == 2


def test_a_value_of_that_time_that_does_not_fit_is_an_error(numbers: persist.Collection) -> None:
    with pytest.raises(persist.errors.SchemaMismatch, match="'k' holds values that its type int32 of schema version 1"):
        numbers.snapshot(1, schema=1).to_arrow()
    with pytest.raises(persist.errors.SchemaMismatch, match="'k' holds values that its type int32"):
        numbers.snapshot(1, schema=1).digest()
    assert numbers.snapshot(1, columns=["w"], schema=1).to_arrow()["w"].to_pylist() == [7] * 4, "it was not asked for"
    fits = numbers.snapshot(1, where=pc.field("k") < 3, schema=1).to_arrow()
    assert sorted(fits["k"].to_pylist()) == [1, 2], "what a filter leaves out is not looked at"
    assert numbers.snapshot(1, schema=1).count() == 4


def test_look_ups_give_what_fits(numbers: persist.Collection) -> None:
    for as_of in (0, 1, 2):
        with numbers.snapshot(as_of, schema=1) as snapshot:
            assert rows_with(snapshot, [1, 2]).schema == OLD
            assert rows_with(snapshot, [1, 2])["v"].to_pylist() == [1, 2]
            assert rows_with(snapshot, [1])["v"].to_pylist() == [1]
            assert snapshot.get(pa.array([2], pa.int32()))["v"].to_pylist() == [2]
    assert rows_with(numbers.snapshot(2, schema=1), [3]).num_rows == 0
    with pytest.raises(persist.errors.SchemaMismatch, match="'v' holds values"):
        rows_with(numbers.snapshot(1, schema=1), [3])


def test_changes_give_what_fits(numbers: persist.Collection) -> None:
    found = numbers.changes(0, 1, schema=1).to_arrow()
    assert found.schema.field("v").type == pa.int32()
    assert found["k"].to_pylist() == [1, 2]
    with pytest.raises(persist.errors.SchemaMismatch, match="Read with the newest schema"):
        numbers.changes(0, 2, schema=1).to_arrow()
    assert len(numbers.changes(0, 2, columns=["w"], schema=1).to_arrow()) == 2


def test_sums_and_digests_are_those_of_the_older_types(numbers: persist.Collection, client: persist.Client) -> None:
    twin = client.create_or_load("twin", key={"k": pa.int32()}, value={"v": pa.int32(), "w": pa.int32()})
    twin.write([((1, (1, 7)), 0, 1), ((2, (2, 7)), 0, 1)], seal=1).result()
    for as_of in (0, 2):
        with numbers.snapshot(as_of, schema=1) as snapshot, twin.snapshot() as expected:
            wanted: dict[str, tuple[str | None, str]] = {"total": ("v", "sum"), "n": (None, "count")}
            assert snapshot.aggregate(["w"], wanted).equals(expected.aggregate(["w"], wanted))
            assert snapshot.aggregate(["k"], wanted).equals(expected.aggregate(["k"], wanted))
            assert snapshot.digest() == expected.digest()


def test_other_ways_out_have_the_older_types(numbers: persist.Collection) -> None:
    with numbers.snapshot(0, schema=1) as snapshot:
        assert snapshot.schema == OLD
        assert snapshot.dataset().to_table(filter=pc.field("v") > 1).schema == OLD
        assert snapshot.lazy().collect().to_arrow().schema.field("v").type == pa.int32()
        assert sorted(snapshot.rows()) == [(1, (1, 7)), (2, (2, 7))]
        assert snapshot.head(1).schema == OLD


@pytest.mark.parametrize(
    ("narrow", "wide", "fits", "late"),
    [
        (pa.float32(), pa.float64(), 0.5, 0.1),
        (pa.int16(), pa.float32(), 3, 0.5),
        (pa.int8(), pa.decimal128(9, 2), 3, "0.25"),
        (pa.timestamp("s"), pa.timestamp("us"), 5, 1),
        (pa.string(), pa.large_string(), "a", "b"),
        (pa.decimal128(4, 1), pa.decimal128(10, 3), "0.5", "0.125"),
    ],
    ids=str,
)
def test_every_widening_is_undone_where_the_values_fit(
    client: persist.Client, narrow: pa.DataType, wide: pa.DataType, fits: Any, late: Any
) -> None:
    def rows(key: int, value: Any, kind: pa.DataType, time: int, diff: int) -> pa.Table:
        held = pa.array([value]).cast(kind)
        return pa.table({"k": [key], "v": held, "_time": [time], "_diff": [diff]})

    c = client.create_or_load("c", key={"k": pa.int64()}, value={"v": narrow})
    c.write(rows(1, fits, narrow, 0, 1), seal=1).result()
    c.evolve(widen={"v": wide})
    c = client.load("c")
    c.write(pa.concat_tables([rows(2, late, wide, 1, 1), rows(3, late, wide, 1, 1)]), seal=2).result()
    c.compact()
    found = c.snapshot(0, schema=1).to_arrow()
    assert found.schema.field("v").type == narrow
    assert found["v"].equals(pa.chunked_array([pa.array([fits]).cast(narrow)]))
    assert rows_with(c.snapshot(0, schema=1), [1])["v"].equals(found["v"])
    if wide != pa.large_string():
        with pytest.raises(persist.errors.SchemaMismatch, match="'v' holds values"):
            c.snapshot(1, schema=1).to_arrow()
        assert rows_with(c.snapshot(1, schema=1), [1])["v"].equals(found["v"])


def test_who_follows_with_an_older_version_stops_only_where_its_own_times_do_not_fit(client: persist.Client) -> None:
    c = client.create_or_load("c", key={"k": pa.int64()}, value={"v": pa.int32()})
    c.write([((1, 1), 0, 1)], seal=1).result()
    listen = c.listen()
    c.evolve(widen={"v": pa.int64()})
    newest = client.load("c")
    newest.write([((2, WIDE), 1, 1), ((2, WIDE), 1, -1), ((3, 3), 1, 1)]).result()
    newest.seal(2).result()
    newest.compact()
    progress = listen.poll(10)
    assert progress is not None
    assert progress.updates.schema.field("v").type == pa.int32()
    assert sorted(progress.updates["v"].to_pylist()) == [1, 3]
    newest.write([((4, WIDE), 2, 1)], seal=3).result()
    with pytest.raises(persist.errors.SchemaMismatch, match="'v' holds values"):
        listen.poll(10)
    listen.close()


def test_a_keyframe_of_a_later_time_is_read_backwards_with_an_older_version(client: persist.Client) -> None:
    c = client.create_or_load("c", key={"k": pa.int64()}, value={"v": pa.int32()})
    c.write(pa.table({"k": range(100), "v": pa.array(range(100), pa.int32()), "_time": [0] * 100, "_diff": [1] * 100}))
    c.seal(1).result()
    c.evolve(widen={"v": pa.int64()})
    c = client.load("c")
    c.write([((n, WIDE), 1, 1) for n in range(5)] + [((n, n), 1, -1) for n in range(5)], seal=2).result()
    c.compact()
    assert sum(c.snapshot(0, schema=1).to_arrow()["v"].to_pylist()) == 4950
    assert rows_with(c.snapshot(0, schema=1), [3])["v"].to_pylist() == [3]


def test_a_schema_that_was_not_widened_is_read_as_it_is(client: persist.Client) -> None:
    c = client.create_or_load("c", key={"k": pa.int64()}, value={"v": pa.int32()})
    c.write([((0, 1), 0, 1)]).result()
    c.evolve(add={"w": pa.int32()}, rename={"v": "x"})
    c.write([((1, (1, 2)), 0, 1)], seal=1).result()
    for version in (1, 2):
        with c.snapshot(schema=version) as snapshot:
            assert find_newest_types(snapshot.scan.schema) is snapshot.scan.schema
