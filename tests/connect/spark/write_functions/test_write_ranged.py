"""`persist.spark.write` and overwriting: order, exactly-once, and differences."""

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import persist
import persist.spark
from persist.blob.stores.file import FileBlob
from persist.codecs.part.key_range import load_comparable_keys
from persist.codecs.part.part import Part

ROWS = "id long, status string, amount double"
UPDATES = ROWS + ", _time long, _diff long"


def parts(location: str, collection: str = "orders") -> tuple[Part, ...]:
    with persist.open(location, mode="read") as client:
        return tuple(client.load(collection).handle.contents().parts)


def blobs(location: str) -> set[str]:
    return {entry.key for entry in FileBlob(location).list("part/")}


def contents(location: str, collection: str = "orders", as_of: int | None = None) -> Counter[Any]:
    with persist.open(location, mode="read") as client:
        found = client.load(collection).snapshot(as_of, form="diff").to_arrow().to_pylist()
    return Counter({tuple(map(repr, row.values()))[:-1]: row["_diff"] for row in found})


def upper(location: str) -> persist.Antichain:
    with persist.open(location, mode="read") as client:
        return client.load("orders").upper


def overlapping(location: str, new: list[Part], collection: str = "orders") -> bool:
    with persist.open(location, mode="read") as client:
        schema = client.load(collection).schema
    keys = sorted(found for part in new if (found := load_comparable_keys(part, schema)) is not None)
    assert len(keys) == len(new) > 1
    return any(one[-1] >= other[0] for one, other in pairwise(keys))


def test_parts_of_a_ranged_write_do_not_overlap(spark: SparkSession, location: str) -> None:
    before = {part.blob for part in parts(location)}
    mixed = ["CASE id % 50 WHEN 7 THEN NULL ELSE (id * 7919) % 3000 END AS id", "'x' AS status", "id * 0.5D AS amount"]
    frame = spark.range(0, 9000, 1, 3).selectExpr(*mixed, "13 + id % 2 AS _time", "1L AS _diff")
    persist.spark.write(frame, location, "orders", seal=15, partitions=3)
    new = [part for part in parts(location) if part.blob not in before]
    assert not overlapping(location, new)
    with persist.open(location, mode="read") as client:
        changes = client.load("orders").changes(13, 15).to_arrow()
        assert (changes.num_rows, client.load("orders").upper) == (9000, persist.Antichain(15))
    # Left to the caller, the same rows overlap.
    plain = frame.withColumn("_time", F.lit(15).cast("long"))
    plain.write.format("persist").option("collection", "orders").mode("append").save(location)
    added = [part for part in parts(location) if part.blob not in before | {part.blob for part in new}]
    assert overlapping(location, added)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "sql"),
    [
        (pa.float64(), "CASE id % 9 WHEN 1 THEN NULL WHEN 2 THEN double('NaN') WHEN 3 THEN -0.0D ELSE id - 500D END"),
        (pa.string(), "CASE id % 9 WHEN 1 THEN NULL WHEN 2 THEN 'ü\U0001f600' WHEN 3 THEN '\uffee' ELSE hex(id) END"),
    ],
)
def test_ranges_agree_with_the_order_of_parts(spark: SparkSession, tmp_path: Path, kind: Any, sql: str) -> None:
    with persist.open(tmp_path) as client:
        client.create_or_load("c", key={"k": kind, "i": pa.int64()}, value=None)
    frame = spark.range(0, 2000, 1, 2).selectExpr(f"{sql} AS k", "id % 100 AS i")
    persist.spark.write(frame, str(tmp_path), "c", mode="append", time=0, seal=1, partitions=3)
    assert not overlapping(str(tmp_path), list(parts(str(tmp_path), "c")), "c")
    with persist.open(tmp_path, mode="read") as client:
        assert client.load("c").snapshot().count() == 2000


@pytest.mark.thorough
def test_keys_that_spark_does_not_order_are_written_all_the_same(spark: SparkSession, tmp_path: Path) -> None:
    with persist.open(tmp_path) as client:
        client.create_or_load("unit", key=None, value={"v": pa.int64()})
        client.create_or_load("map", key={"m": pa.map_(pa.string(), pa.int64())}, value={"v": pa.int64()})
    unit = spark.range(0, 500, 1, 3).selectExpr("id AS v")
    maps = unit.selectExpr("map('x', v % 10) AS m", "v")
    for name, frame in (("unit", unit), ("map", maps)):
        persist.spark.write(frame, str(tmp_path), name, mode="append", time=0, seal=1, partitions=2)
        # Overwriting merges where no task has all rows of a key.
        rows = frame.where("v <> 3 AND v < 400")
        persist.spark.write(rows, str(tmp_path), name, mode="overwrite", multiset=True)
    with persist.open(tmp_path, mode="read") as client:
        for name in ("unit", "map"):
            collection = client.load(name)
            assert sorted(collection.snapshot().to_arrow()["v"].to_pylist()) == [v for v in range(400) if v != 3]
            assert {diff for *_, diff in collection.changes(1, 2).updates()} == {-1}
            assert collection.changes(1, 2).to_arrow().num_rows == 101
    assert {part.blob for name in ("unit", "map") for part in parts(str(tmp_path), name)} == blobs(str(tmp_path))


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["write", "format"])
def test_a_write_with_a_token_happens_once(spark: SparkSession, location: str, way: str) -> None:
    frame = spark.createDataFrame([(i, "x", 1.0) for i in range(100)], ROWS)

    def again(mode: Any) -> None:
        if way == "write":
            persist.spark.write(frame, location, "orders", mode=mode, time=13, seal=14, token=f"job-{mode}")
        else:
            writer = frame.write.format("persist").options(collection="orders", time=13, seal=14, token=f"job-{mode}")
            writer.mode(mode).save(location)

    again("append")
    written, stored = contents(location), blobs(location)
    again("append")
    again("append")
    assert (contents(location), blobs(location)) == (written, stored)
    with persist.open(location) as client:
        client.load("orders").write([((1, ("y", 1.0)), 14, 1)], seal=15).result()
    again("append")
    assert upper(location) == persist.Antichain(15)
    assert sum(contents(location).values()) == 2002 + 100 + 1
    frame = frame.repartition(3, "amount", "id")  # The same rows, cut otherwise.
    again("append")
    frame = frame.where("id > 0")
    held = blobs(location)
    with pytest.raises(
        persist.errors.TokenReused if way == "write" else PySparkException, match="a write of other data"
    ):
        again("append")
    assert blobs(location) == held
    assert sum(contents(location).values()) == 2002 + 100 + 1


def overwrite(way: str, frame: DataFrame, location: str, **options: Any) -> None:
    if way == "write":
        persist.spark.write(frame, location, "orders", mode="overwrite", **options)
    else:
        frame.write.format("persist").options(collection="orders", **options).mode("overwrite").save(location)


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize("way", ["write", "format"])
def test_overwriting_writes_the_difference_and_keeps_history(spark: SparkSession, location: str, way: str) -> None:
    with persist.open(location) as client:
        orders = client.load("orders")
        orders.compact()
        orders.write([((3000, ("gone", 1.0)), 13, 2), ((3001, ("odd", None)), 13, -1)], seal=14).result()
    before = [contents(location, as_of=as_of) for as_of in range(14)]
    kept = spark.read.format("persist").options(collection="orders", as_of=12).load(location).where("id >= 100")
    new = spark.createDataFrame([(7, "twice", 1.0), (7, "twice", 1.0), (None, None, float("nan"))], ROWS)
    frame = kept.unionByName(new)
    overwrite(way, frame, location, multiset=True)
    assert upper(location) == persist.Antichain(15)
    expected = Counter({row: n for row, n in before[12].items() if int(row[0]) >= 100})
    expected.update({("7", "'twice'", "1.0"): 2, ("None", "None", "nan"): 1})
    assert contents(location) == expected
    assert [contents(location, as_of=as_of) for as_of in range(14)] == before
    with persist.open(location, mode="read") as client:
        changed = client.load("orders").changes(14, 15).to_arrow()
    assert changed.num_rows == 99 + 2 + 2  # The keys 0 to 99, of which 1 is not there; 3000 and 3001; two new records.
    assert blobs(location) >= {part.blob for part in parts(location) if part.blob}
    overwrite(way, frame, location, time=15, seal=20, multiset=True)  # No difference at all.
    with persist.open(location, mode="read") as client:
        assert client.load("orders").changes(15, 20).to_arrow().num_rows == 0


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["write", "format"])
def test_overwriting_what_was_never_sealed_writes_all(spark: SparkSession, tmp_path: Path, way: str) -> None:
    location = str(tmp_path)
    with persist.open(location) as client:
        client.create_or_load("orders", key={"id": pa.int64()}, value={"status": pa.string(), "amount": pa.float64()})
    frame = spark.createDataFrame([(i, "x", 1.0) for i in range(10)], ROWS)
    overwrite(way, frame, location, time=5, token="once")
    overwrite(way, frame.repartition(3), location, time=5, token="once")
    with pytest.raises(
        persist.errors.TokenReused if way == "write" else PySparkException, match="a write of other data"
    ):
        overwrite(way, frame.where("id > 5"), location, time=5, token="once")
    assert (upper(location), sum(contents(location).values())) == (persist.Antichain(6), 10)
    assert {part.blob for part in parts(location)} == blobs(location)
    overwrite(way, frame.where("id < 0"), location)
    assert contents(location) == Counter()


def appending(location: str, time: int, seal: int | None) -> Any:
    """Make a function for mapInArrow that appends to the collection while its task runs."""

    def meanwhile(batches: Any) -> Any:
        import persist as library

        for batch in batches:
            if batch.num_rows:
                with library.open(location) as client:
                    client.load("orders").write([((9, ("other", 1.0)), time, 1)], seal=seal, token="other").result()
            yield batch

    return meanwhile


@pytest.mark.thorough  # test_races.py has a case of it in the first tier.
@pytest.mark.parametrize("way", ["write", "format"])
@pytest.mark.parametrize("seal", [None, 14])
def test_overwriting_at_a_time_of_its_own_loses_to_another_writer(
    spark: SparkSession, location: str, way: str, seal: int | None
) -> None:
    kept, before = parts(location), sum(contents(location).values())
    frame = spark.createDataFrame([(1, "x", 1.0)], ROWS).coalesce(1)
    error = persist.Conflict if way == "write" else PySparkException
    message = "expected upper=13, and it is" if seal else "1 update at time 13 beyond upper=13"
    with pytest.raises(error, match=message):
        overwrite(way, frame.mapInArrow(appending(location, 13, seal), ROWS), location, time=20)
    after = parts(location)
    assert {part.blob for part in after if part.blob} == {part.blob for part in kept if part.blob} == blobs(location)
    assert sum(contents(location).values()) == before + bool(seal)
    if seal is None:
        with pytest.raises(error, match="1 update at time 13 beyond upper=13"):
            overwrite(way, frame, location)


def test_a_write_with_a_key_creates_location_and_collection(spark: SparkSession, tmp_path: Path) -> None:
    location = str(tmp_path / "shop")
    frame = spark.createDataFrame([(1, "new", 9.5), (2, "new", 3.0)], ROWS)
    with pytest.raises(persist.errors.CollectionNotFound):
        persist.spark.write(frame, location, "orders")
    for _ in range(2):
        persist.spark.write(frame, location, "orders", key=["id"])
    persist.spark.write(frame, location, "counted", key=[], time=3, seal=4)
    with pytest.raises(persist.errors.SchemaMismatch, match=r"which is \['id'\]"):
        persist.spark.write(frame, location, "orders", key=["status"])
    with pytest.raises(persist.InvalidUsage, match="it goes with key="):
        persist.spark.write(frame, location, "orders", timeline="s")
    with persist.open(location, mode="read") as client:
        orders, counted = client["orders"], client["counted"]
        assert (orders.schema.key_names, orders.schema.timeline) == (("id",), "ms")
        assert orders.snapshot().count() == 2
        assert (counted.schema.key_names, counted.schema.timeline) == ((), None)
        assert counted.snapshot(3).to_arrow()["status"].to_pylist() == ["new", "new"]
