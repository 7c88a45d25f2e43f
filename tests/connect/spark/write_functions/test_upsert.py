"""`persist.spark.upsert`: the same from the driver and from tasks, once, and in the order of rows."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import persist
import persist.spark
from persist.blob.stores.file import FileBlob
from persist.connect.spark.write_functions.upserting import gather_rows
from persist.errors import FrontierRegression, InvalidUpdate, NotKeyed, SchemaMismatch, UpdateNotBeyondUpper
from persist.events import History, PerKey

WHERE = ["driver", "tasks"]
EVENTS = "id long, name string, amount double, _time long, _deleted boolean"


def made(path: Path, **keyed: Any) -> str:
    location = str(path / "location")
    with persist.open(location) as client:
        client.create_or_load(
            "users",
            key={"id": pa.int64()},
            value={"name": pa.string(), "amount": pa.float64()},
            keyed=persist.Keyed(**keyed),
        )
    return location


def rows(location: str, as_of: int | None = None) -> Counter[Any]:
    with persist.open(location, mode="read") as client:
        found = client.load("users").snapshot(as_of).to_arrow().to_pylist()
    return Counter(tuple(map(repr, row.values())) for row in found)


def changes(location: str) -> Counter[Any]:
    with persist.open(location, mode="read") as client:
        users = client.load("users")
        found = users.changes(0, users.upper).to_arrow().to_pylist()
    return Counter({tuple(map(repr, row.values()))[:-1]: row["_diff"] for row in found})


def blobs(location: str) -> set[str]:
    return {entry.key for entry in FileBlob(location).list("part/")}


def frame(spark: SparkSession, events: list[tuple[Any, ...]]) -> DataFrame:
    return spark.createDataFrame(events, EVENTS)


def events(seed: int, times: range, keys: int = 300, count: int = 400) -> list[tuple[Any, ...]]:
    chosen = random.Random(seed)
    found = {(chosen.randrange(keys), chosen.choice(times)): chosen for _ in range(count)}
    return [
        (key, None, None, time, True) if chosen.random() < 0.2 else (key, f"n{chosen.randrange(5)}", 0.5, time, False)
        for key, time in found
    ]


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize("where", WHERE)
def test_batches_amount_to_what_the_same_events_do_in_python(spark: SparkSession, tmp_path: Path, where: Any) -> None:
    by_spark, by_python = made(tmp_path / "a"), made(tmp_path / "b")
    for seal, times in ((5, range(5)), (10, range(5, 12)), (20, range(10, 20))):
        batch = events(seal, times)
        persist.spark.upsert(frame(spark, batch), by_spark, "users", seal=seal, where=where, partitions=3)
        with persist.open(by_python) as client:
            table = pa.Table.from_pylist(
                [dict(zip(("id", "name", "amount", "_time", "_deleted"), e, strict=True)) for e in batch]
            )
            client.load("users").upsert(table, seal=seal).result()
        assert rows(by_spark) == rows(by_python)
    assert changes(by_spark) == changes(by_python)
    with persist.open(by_spark) as client:
        assert not client.fsck().problems


def test_a_large_batch_with_a_seal_is_one_commit_resolved_by_tasks(spark: SparkSession, tmp_path: Path) -> None:
    location = made(tmp_path)
    with persist.open(location) as client:
        client.load("users").upsert([(i, ("old", 1.0), 0) for i in range(1000)], seal=1).result()
    log = len([*FileBlob(location).list("log/")])
    batch = spark.range(0, 500, 1, 3).selectExpr("id * 2 AS id", "'new' AS name", "2.0D AS amount", "1L AS _time")
    persist.spark.upsert(batch, location, "users", seal=2, where="tasks", partitions=2)
    assert len([*FileBlob(location).list("log/")]) == log + 1
    found = rows(location)
    assert found["0", "'new'", "2.0"] == found["1", "'old'", "1.0"] == 1
    assert found.total() == 1000


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize("where", WHERE)
def test_a_token_makes_a_batch_happen_once(spark: SparkSession, tmp_path: Path, where: Any) -> None:
    location = made(tmp_path)
    batch = frame(spark, [(1, "a", 1.0, 5, False), (2, "b", 2.0, 5, False)])
    for other in [where, where, *WHERE]:
        persist.spark.upsert(batch, location, "users", seal=6, token="t", where=other)
    assert changes(location).total() == 2


@pytest.mark.thorough
def test_what_is_small_comes_to_the_driver_and_what_is_large_does_not(spark: SparkSession, tmp_path: Path) -> None:
    some = spark.range(0, 1000, 1, 4).selectExpr("id", "'a' AS name", "1.0D AS amount")
    gathered = gather_rows(some, 100_000)
    assert gathered is not None
    assert sorted(gathered["id"].to_pylist()) == [*range(1000)]
    assert gather_rows(some, 20_000) is None, "all tasks together have more"
    assert gather_rows(some, 1000) is None, "each task has more"
    empty = gather_rows(some.where("id < 0"), 0)
    assert empty is not None
    assert empty.schema.names == ["id", "name", "amount"]
    location = made(tmp_path)
    persist.spark.upsert(some, location, "users", time=1, seal=2)
    assert not blobs(location), "what is small stays in the log"
    assert rows(location).total() == 1000


@pytest.mark.thorough
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("resolve", ["seal", "background"])
@pytest.mark.parametrize("order_by", [[], ["amount"]])
def test_of_events_that_tie_the_last_row_counts_or_the_greatest_value_as_in_python(
    spark: SparkSession, tmp_path: Path, where: Any, resolve: Any, order_by: list[str]
) -> None:
    chosen = random.Random(7)
    ties: list[tuple[Any, ...]] = [
        (chosen.randrange(20), f"n{chosen.randrange(9)}", 1.0, chosen.randrange(3), False) for _ in range(300)
    ]
    ties += [] if order_by else [(key, None, None, 1, True) for key in range(0, 20, 3)]
    for kind in ("last", "greatest"):
        found = []
        for by in ("python", "spark"):
            location = made(tmp_path / kind / by, ties=kind, resolve=resolve, order_by=order_by)
            if by == "python":
                with persist.open(location) as client:
                    columns = [name.split()[0] for name in EVENTS.split(", ")]
                    rows_of = [dict(zip(columns, event, strict=True)) for event in ties]
                    client.load("users").upsert(rows_of, seal=3).result()
            else:
                df = spark.createDataFrame(ties, EVENTS).repartition(1) if kind == "greatest" else frame(spark, ties)
                persist.spark.upsert(df, location, "users", seal=3, where=where, partitions=3)
            found.append(changes(location))
        assert found[0] == found[1], kind


@pytest.mark.thorough
@pytest.mark.parametrize("where", WHERE)
def test_the_watermark_tells_events_apart(spark: SparkSession, tmp_path: Path, where: Any) -> None:
    location = made(tmp_path, order_by=["amount"], tombstone="name", tombstone_value="gone")
    persist.spark.upsert(
        frame(spark, [(7, "b", 2.0, 5, False), (7, "a", 1.0, 5, False)]), location, "users", seal=6, where=where
    )
    assert rows(location) == {("7", "'b'", "2.0"): 1}
    late = frame(spark, [(7, "c", 1.5, 6, False), (8, "gone", 1.0, 6, False), (9, "x", 1.0, 6, False)])
    persist.spark.upsert(late, location, "users", seal=7, where=where)
    assert rows(location) == {("7", "'b'", "2.0"): 1, ("9", "'x'", "1.0"): 1}
    equal = frame(spark, [(9, "z", 1.0, 8, False), (9, "y", 1.0, 8, False)])
    persist.spark.upsert(equal, location, "users", seal=9, where=where)
    assert rows(location) == {("7", "'b'", "2.0"): 1, ("9", "'y'", "1.0"): 1}


@pytest.mark.thorough
@pytest.mark.parametrize("resolve", ["seal", "background"])
def test_events_that_wait_are_resolved_with_those_of_tasks(spark: SparkSession, tmp_path: Path, resolve: Any) -> None:
    location = made(tmp_path, resolve=resolve)
    persist.spark.upsert(frame(spark, [(1, "a", 1.0, 3, False)]), location, "users", where="tasks")
    assert rows_or_none(location) is None
    batch = frame(spark, [(1, "b", 1.0, 4, False), (2, "c", 1.0, 9, False)])
    persist.spark.upsert(batch, location, "users", seal=5, where="tasks")
    assert rows(location, 3) == {("1", "'a'", "1.0"): 1}
    assert rows(location) == {("1", "'b'", "1.0"): 1}
    persist.spark.upsert(frame(spark, []), location, "users", seal=10, where="tasks")
    assert rows(location) == {("1", "'b'", "1.0"): 1, ("2", "'c'", "1.0"): 1}


def rows_or_none(location: str) -> Counter[Any] | None:
    with persist.open(location, mode="read") as client:
        return None if client.load("users").upper == persist.Antichain(0) else rows(location)


@pytest.mark.thorough
def test_clustered_events_are_shared_among_tasks(spark: SparkSession, tmp_path: Path) -> None:
    location = made(tmp_path)
    with persist.open(location) as client:
        users = client.load("users")
        users.upsert(
            pa.table({"id": range(100_000), "name": ["o"] * 100_000, "amount": [0.0] * 100_000}), time=0, seal=1
        ).result()
    before = blobs(location)
    batch = spark.range(0, 4000).selectExpr("id + 50000 AS id", "'new' AS name", "2.0D AS amount")
    persist.spark.upsert(batch, location, "users", time=1, seal=2, where="tasks", partitions=2)
    assert len(blobs(location) - before) == 2, "each of both tasks has stored a part"
    assert rows(location)["50000", "'new'", "2.0"] == 1


@pytest.mark.thorough
def test_what_does_not_fit_is_refused_before_any_task_runs(spark: SparkSession, tmp_path: Path) -> None:
    location = made(tmp_path)
    with persist.open(location) as client:
        client.create_or_load("plain", key={"id": pa.int64()}, value={"name": pa.string()})
        client.load("users").seal(5).result()
    batch = frame(spark, [(1, "a", 1.0, 7, False)])
    with pytest.raises(NotKeyed):
        persist.spark.upsert(batch, location, "plain")
    with pytest.raises(SchemaMismatch, match="amount"):
        persist.spark.upsert(batch.drop("amount"), location, "users")
    with pytest.raises(UpdateNotBeyondUpper):
        persist.spark.upsert(batch.drop("_time"), location, "users", time=4)
    with pytest.raises(FrontierRegression):
        persist.spark.upsert(batch, location, "users", seal=4)


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize("where", WHERE)
def test_a_null_key_and_a_late_event_are_refused_whole(spark: SparkSession, tmp_path: Path, where: Any) -> None:
    location = made(tmp_path)
    with persist.open(location) as client:
        client.load("users").seal(5).result()
    with pytest.raises((InvalidUpdate, PySparkException), match="NULL in the key column 'id'"):
        persist.spark.upsert(
            frame(spark, [(None, "a", 1.0, 7, False), (1, "a", 1.0, 7, False)]), location, "users", seal=8, where=where
        )
    with pytest.raises(UpdateNotBeyondUpper):
        persist.spark.upsert(
            frame(spark, [(1, "a", 1.0, 3, False), (2, "a", 1.0, 7, False)]), location, "users", seal=8, where=where
        )
    assert not rows(location)
    assert not blobs(location)


@pytest.mark.thorough
def test_machines_and_functions_of_users_run_in_tasks(spark: SparkSession, tmp_path: Path) -> None:
    location = str(tmp_path / "location")
    highest = PerKey(lambda key, held, event: [max([*held, event.value])], name="highest", version=1)
    with persist.open(location) as client:
        columns = {"name": pa.string(), "valid_from": pa.int64(), "valid_to": pa.int64()}
        key = {"id": pa.int64()}
        client.create_or_load("users", key=key, value=columns, keyed=persist.Keyed(machine=History()))
        client.create_or_load("best", key=key, value={"x": pa.float64()}, keyed=persist.Keyed(machine=highest))
    for time, name in ((1, "a"), (2, "b")):
        batch = spark.range(0, 2).selectExpr("id", f"'{name}' AS name")
        persist.spark.upsert(batch, location, "users", time=time, seal=time + 1, where="tasks")
    assert rows(location)["0", "'a'", "1", "2"] == rows(location)["1", "'b'", "2", "None"] == 1
    batch = spark.createDataFrame([(1, 2.0, 5), (1, 3.0, 6), (1, 1.0, 7)], "id long, x double, _time long")
    with pytest.raises(SchemaMismatch, match="which this process lacks"):
        persist.spark.upsert(batch, location, "best", seal=8)
    persist.spark.upsert(batch, location, "best", seal=8, where="tasks", machine=highest)
    with persist.open(location, mode="read") as client:
        assert [*client.load("best").snapshot().rows()] == [(1, 3.0)]


@pytest.mark.thorough
def test_moments_are_times_where_the_collection_has_a_timeline(spark: SparkSession, tmp_path: Path) -> None:
    location = str(tmp_path / "location")
    with persist.open(location) as client:
        client.create_or_load(
            "users", key={"id": pa.int64()}, value={"n": pa.int64()}, timeline="us", keyed=persist.Keyed()
        )
    batch = spark.sql("SELECT 1L AS id, 2L AS n, timestamp'2026-01-02 03:04:05' AS _time")
    persist.spark.upsert(batch, location, "users", seal="2026-01-03T00:00:00Z", where="tasks")
    with persist.open(location, mode="read") as client:
        assert [*client.load("users").snapshot(as_of="2026-01-02T12:00:00Z").rows()] == [(1, 2)]


@pytest.mark.thorough
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("resolve", ["seal", "background"])
def test_null_in_a_field_of_a_key_is_a_value_to_tasks_too(
    spark: SparkSession, tmp_path: Path, where: Any, resolve: Any
) -> None:
    location = str(tmp_path / "location")
    with persist.open(location) as client:
        form = persist.Keyed(resolve=resolve)
        client.create_or_load("users", key={"a": pa.int64(), "b": pa.string()}, value={"v": pa.int64()}, keyed=form)
    kinds = "a long, b string, v long, _time long, _deleted boolean"
    first = [(a, b, 1, 0, False) for a in (None, 1, 2) for b in (None, "x", "y") if (a, b) != (None, None)]
    then = [(None, "x", 2, 1, False), (1, None, None, 1, True), (2, None, 2, 1, False), (None, "y", None, 1, True)]
    persist.spark.upsert(spark.createDataFrame(first, kinds), location, "users", seal=1, where=where, partitions=3)
    persist.spark.upsert(spark.createDataFrame(then, kinds), location, "users", seal=2, where=where, partitions=3)
    expected = {(a, b): v for a, b, v, _, _ in first} | {(a, b): v for a, b, v, _, _ in then}
    contents = {key: v for key, v in expected.items() if v is not None}
    with persist.open(location) as client:
        assert {(r["a"], r["b"]): r["v"] for r in client.load("users").snapshot().to_arrow().to_pylist()} == contents
    read = spark.read.format("persist").option("collection", "users").load(location)
    assert {(row.a, row.b): row.v for row in read.collect()} == contents
    with pytest.raises((InvalidUpdate, PySparkException), match="NULL in all key columns"):
        persist.spark.upsert(spark.createDataFrame([(None, None, 1, 5, False)], kinds), location, "users", where=where)
