"""Native plans give the rows that Python gives, whatever the collection looks like, by whatever route."""

import math
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
from persist.compute.tasks.planned_write import PlannedWrite, SinkOptions, upload
from persist.connect.spark.jar import JAR
from persist.connect.spark.read_functions.store import LISTED_HERE
from tests.connect.spark.sessions import WAYS, read
from tests.support.tuned import tuned

QUIET = tuned(background=False, grace_s=0, orphan_grace_s=0)
KEY = {"id": pa.int64(), "part": pa.string()}
VALUE = {"status": pa.string(), "amount": pa.float64(), "tags": pa.list_(pa.int32())}
PREFIX = "the same long prefix of all keys, and then "


def bag(rows: Any) -> Counter[str]:
    """Rows as a multiset; NaN equals itself."""
    if isinstance(rows, pa.Table):
        return Counter(repr(list(row.values())) for row in rows.to_pylist())
    return Counter(repr([_plain(value) for value in row]) for row in rows)


def _plain(value: Any) -> Any:
    return [_plain(each) for each in value] if isinstance(value, list) else value


def record(rng: random.Random) -> tuple[Any, Any]:
    key = (rng.choice([None, *range(40)]), rng.choice([None, PREFIX + "1", PREFIX + "2"]))
    value = (rng.choice([None, "new", "paid"]), rng.choice([None, 0.5, math.nan]), rng.choice([None, [], [1, None]]))
    return key, value


def write_history(path: str, *, batches: int, deletes: bool, size: int, seed: int) -> None:
    """Write batches at times 0, 10, 20, …, each sealed; records may be there several times."""
    rng = random.Random(seed)
    alive: list[tuple[Any, Any]] = []
    with persist.open(path, settings=QUIET) as client:
        rows = client.create_or_load("rows", key=KEY, value=VALUE)
        for time in range(0, 10 * batches, 10):
            updates = []
            for _ in range(size):
                if deletes and alive and rng.random() < 0.4:
                    updates.append((alive.pop(rng.randrange(len(alive))), time + rng.randrange(10), -1))
                else:
                    alive.append(record(rng))
                    updates.append((alive[-1], time, 1))
            rows.write(updates)
            rows.seal(time + 10).result()


def compact(path: str, **options: Any) -> None:
    with persist.open(path, settings=QUIET) as client:
        client.load("rows").compact(**options)
        client.gc()


def expected(path: str, as_of: int, form: Any) -> pa.Table:
    with persist.open(path, mode="read") as client:
        return client.load("rows").snapshot(as_of, form=form).to_arrow()


def check(spark: SparkSession, path: str, times: list[int], *kinds: str) -> None:
    """Compare all routes with Python; the native one takes the kinds given, if any are."""
    with persist.spark.location(spark, path) as here:
        for as_of in times:
            planned = here.plan("rows", as_of=as_of)
            assert not kinds or planned.route.kind in kinds, str(planned)
            truth = bag(expected(path, as_of, "rows"))
            assert bag(planned.frame(spark).collect()) == truth, str(planned)
        # All ways of one time are enough: they differ in what reads, not in what is read.
        assert bag(here.snapshot("rows", as_of=times[-1], native=True).collect()) == truth
        for way in WAYS[1:]:
            assert bag(read(spark, path, "rows", way, times[-1]).collect()) == truth
        found = here.snapshot("rows", as_of=times[-1], form="diff", native=True).collect()
        assert bag(found) == bag(expected(path, times[-1], "diff"))


def test_a_keyframe_and_later_history_are_told_apart_by_key(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path)
    write_history(path, batches=4, deletes=True, size=400, seed=1)
    compact(path)
    check(spark, path, [39], "scan")
    with persist.open(path, settings=QUIET) as client:
        rows = client.load("rows")
        first = next(iter(rows.snapshot(form="diff").to_arrow().slice(5, 1).to_pylist()))
        retracted = ((first["id"], first["part"]), (first["status"], first["amount"], first["tags"]))
        rows.write([(retracted, 41, -1), (((7, PREFIX + "1"), ("late", 1.0, [3])), 43, 1)], seal=50).result()
    check(spark, path, [39, 40, 42, 49], "scan", "tail")
    check(spark, path, [5, 25])  # From the keyframe backwards, or from all of the history.


@pytest.mark.thorough
def test_history_that_only_inserts_is_a_plain_scan(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path)
    write_history(path, batches=3, deletes=False, size=2000, seed=2)
    check(spark, path, [29, 15, 9], "scan")


@pytest.mark.thorough
def test_small_writes_that_are_in_the_log_count_as_well(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path)
    write_history(path, batches=2, deletes=False, size=5, seed=3)
    with persist.open(path, mode="read") as client:
        assert not list(FileBlob(path).list("part/"))
        assert client.load("rows").snapshot().count() == 10
    check(spark, path, [19, 9], "scan")
    with persist.open(path, settings=QUIET) as client:
        rows = client.load("rows")
        rows.write([(record(random.Random(9)), 20, 1)] * 3, seal=21).result()
        rows.compact()
        rows.write([(record(random.Random(9)), 21, -1), (record(random.Random(8)), 21, 2)], seal=22).result()
    check(spark, path, [20, 21])


def test_multiplicities_that_are_negative_are_refused_by_all_ways(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path)
    write_history(path, batches=2, deletes=False, size=50, seed=4)
    compact(path)
    with persist.open(path, settings=QUIET) as client:
        client.load("rows").write([(((1000, "none"), (None, None, None)), 20, -1)], seal=21).result()
    for native in (True, False):
        with pytest.raises(PySparkException, match=r"NegativeMultiplicity: .*1000.* has multiplicity -1"):
            persist.spark.snapshot(spark, path, "rows", native=native).collect()
        found = persist.spark.snapshot(spark, path, "rows", form="diff", native=native).collect()
        assert bag(found) == bag(expected(path, 20, "diff"))


@pytest.mark.thorough
def test_no_python_runs_where_there_is_a_tail(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path)
    with persist.open(path, settings=QUIET) as client:
        rows = client.create_or_load("rows", key={"id": pa.int64()}, value={"v": pa.int64()})
        rows.write([((i, i), 0, 1) for i in range(5000)], seal=1).result()
        rows.write([((i, i), 1, -1) for i in range(5000, 0, -50)] and [((i, i), 1, -1) for i in range(0, 5000, 50)])
        rows.seal(2).result()
        rows.compact()
        rows.write([((77, 77), 2, -1), ((77, 0), 2, 1), ((9999, 0), 2, 1)], seal=3).result()
    with persist.spark.location(spark, path) as here:
        frame = here.snapshot("rows")
        plan = _executed(frame)
        assert ("isamong" if JAR.exists() else "BroadcastHashJoin") in plan
        assert JAR.exists() or "LeftAnti" in plan
        assert "Python" not in plan
        assert "MapInArrow" not in plan
        assert "FileScan parquet" in plan
        assert frame.where("v = 0").count() == 2
        pruned = _executed(frame.where("id = 5").select("id"))
        assert "ReadSchema: struct<id:bigint>" in pruned
        assert "PushedFilters: [IsNotNull(id), EqualTo(id,5)]" in pruned
    text = persist.spark.explain(spark, path, "rows")
    assert "its sums of the tail: 3 updates may cancel what stands" in text


def _executed(frame: DataFrame) -> str:
    frame.collect()
    text: str = frame._jdf.queryExecution().toString()
    return text


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["white space", "per%20cent", "[brackets]{a,b}*?", "eq=ual", "_hidden", "Ümlaut"])
def test_folders_may_have_any_name(spark: SparkSession, tmp_path: Path, name: str) -> None:
    path = str(tmp_path / name)
    write_history(path, batches=1, deletes=False, size=20, seed=5)
    compact(path)
    check(spark, path, [9])


def test_a_damaged_page_is_noticed_and_a_missing_blob_as_well(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path)
    with persist.open(path, settings=QUIET) as client:
        rows = client.create_or_load("rows", key={"id": pa.int64()}, value={"v": pa.string()})
        rows.write([((i, f"value {i * 7919}"), 0, 1) for i in range(20000)], seal=1).result()
    [file] = Path(path, "part").glob("*/*.parquet")
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 1
    file.write_bytes(data)
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    try:
        with pytest.raises(Exception, match="could not verify page integrity, CRC checksum verification failed"):
            persist.spark.snapshot(spark, path, "rows", native=True).collect()
        frame = persist.spark.snapshot(spark, path, "rows", native=True)
        file.unlink()
        with pytest.raises(Exception, match="FILE_NOT_EXIST"):
            frame.collect()
    finally:
        spark.conf.unset("spark.sql.files.ignoreCorruptFiles")
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")


@pytest.mark.thorough
def test_changes_are_a_scan_where_parts_cannot_share_an_update(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path)
    write_history(path, batches=4, deletes=True, size=300, seed=6)
    with persist.open(path, settings=QUIET) as client, persist.spark.location(spark, path) as here:
        rows = client.load("rows")
        rows.write([(record(random.Random(1)), 41, 1)], seal=50).result()
        for lower, until in [(0, 50), (5, 25), (40, 42), (7, 7)]:
            planned = here.plan_changes("rows", lower, until)
            assert planned.route.kind == "scan", str(planned)
            assert bag(planned.frame(spark).collect()) == bag(rows.changes(lower, until).to_arrow())
        rows.write([(record(random.Random(1)), 60, 1)] * 1000)
        rows.write([(record(random.Random(1)), 60, -1)] * 900, seal=61).result()
        planned = here.plan_changes("rows", 50, 61)
        assert planned.route.kind == "source"
        assert "must be merged" in planned.route.reason
        assert bag(planned.frame(spark).collect()) == bag(rows.changes(50, 61).to_arrow())
        with pytest.raises(persist.InvalidUsage, match="native=True is not possible here: parts overlap"):
            here.changes("rows", 50, 61, native=True)


def test_a_pinned_location_reads_all_collections_as_they_were(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path)
    with persist.open(path, settings=QUIET) as client, persist.spark.location(spark, path) as here:
        a, b = (client.create_or_load(name, key={"id": pa.int64()}) for name in "ab")

        def step(time: int) -> None:
            with client.multi_write() as multi:
                for each in (a, b):
                    multi.write(each, [((time, None), time, 1)])
                    multi.seal(each, time + 1)

        step(0)
        with here.at() as then:
            before = then.snapshot("a")
            step(1)
            a.allow_compaction(1).result()
            assert (before.count(), then.snapshot("b").count(), here.snapshot("b").count()) == (1, 1, 2)
            assert a.since == persist.Antichain(0), "what is pinned and was read is held"
            b.drop().result()
            client.create_or_load("b", key={"id": pa.int64()})
            with pytest.raises(persist.errors.CollectionNotFound):
                then.snapshot("b")
        with here.at(then.seqno) as again:
            assert again.snapshot("a").count() == 1
            with pytest.raises(persist.errors.AsOfNotSealed):
                again.snapshot("a", as_of=1)
        with pytest.raises(persist.InvalidUsage, match="is not in the log"), here.at(10_000):
            pass


def test_why_a_plan_is_not_native_is_said(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path)
    with persist.open(path, settings=QUIET) as client:
        types = {"d": pa.duration("us"), "n": pa.timestamp("ns"), "h": pa.float16()}
        rows = client.create_or_load("rows", key={"id": pa.int64()}, value=types)
        rows.write([((i, (None, None, None)), 0, 1) for i in range(3000)], seal=1).result()
        client.create_or_load("cased", key={"id": pa.int64(), "ID": pa.int64()}).seal(1).result()
    for column, kind in types.items():
        text = persist.spark.explain(spark, path, "rows", columns=["id", column])
        assert f"the data source: Spark's Parquet scan cannot read the column {column!r} ({kind})" in text
        assert persist.spark.snapshot(spark, path, "rows", columns=["id", column]).count() == 3000
    assert "differ by case only" in persist.spark.explain(spark, path, "cased")
    with pytest.raises(persist.InvalidUsage, match="native=True is not possible here"):
        persist.spark.snapshot(spark, path, "rows", native=True)


@pytest.mark.thorough
def test_s3_is_read_by_the_data_source_where_the_jvm_cannot(
    spark: SparkSession, s3_location: tuple[str, dict[str, str]]
) -> None:
    url, options = s3_location
    with persist.open(url, storage_options=options, settings=QUIET) as client:
        rows = client.create_or_load("rows", key={"id": pa.int64()}, value=None)
        rows.write([((i, None), 0, 1) for i in range(30_000)], seal=1).result()
    planned = persist.spark.explain(spark, url, "rows", storage_options=options)
    assert "by        the data source: the JVM cannot read s3a://" in planned
    assert persist.spark.snapshot(spark, url, "rows", storage_options=options).count() == 30_000


@pytest.mark.thorough
def test_columns_and_keys_that_spark_treats_in_its_own_way(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path)
    with persist.open(path, settings=QUIET) as client:
        odd = client.create_or_load("odd", key={"col": pa.int64()}, value={"_n": pa.int64(), "_s": pa.int64()})
        odd.write([((1, (2, 3)), 0, 3), *(((i, (2, 3)), 0, 1) for i in range(2, 3000))], seal=1).result()
        maps = client.create_or_load("maps", key={"m": pa.map_(pa.string(), pa.int64())}, value=None)
        maps.write([(([("a", i)], None), 0, 1) for i in range(3000)], seal=1).result()
        maps.write([(([("a", 7)], None), 1, -1)], seal=2).result()
    for native in (True, False):
        assert persist.spark.snapshot(spark, path, "odd", native=native).count() == 3001
    assert persist.spark.snapshot(spark, path, "odd", columns=[]).count() == 3001
    assert spark.read.format("persist").options(collection="odd", columns="[]").load(path).count() == 3001
    assert persist.spark.snapshot(spark, path, "maps").count() == 2999
    assert "cannot compare maps" in persist.spark.explain(spark, path, "maps")
    with pytest.raises(persist.InvalidUsage, match="native='yes' is not True"):
        persist.spark.snapshot(spark, path, "odd", native="yes")  # type: ignore[arg-type]


@pytest.mark.thorough
def test_many_parts_in_a_folder_are_looked_for_without_a_job(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path)
    with persist.open(path) as client:
        client.create_or_load("many", key={"id": int})
    planned = PlannedWrite.append(SinkOptions(location=path, collection="many", time=0, seal=1))
    rows = pa.table({"id": range(40), "_time": [0] * 40, "_diff": [1] * 40})
    planned.commit([part for at in range(40) for part in upload(planned.target, [rows.slice(at, 1)])])
    context = spark.sparkContext
    context.setJobGroup("looking", "for parts")
    before = spark.conf.get(LISTED_HERE)
    try:
        frame = persist.spark.snapshot(spark, path, "many", native=True)
        assert not context.statusTracker().getJobIdsForGroup("looking")
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
    assert spark.conf.get(LISTED_HERE) == before
    assert frame.count() == 40
