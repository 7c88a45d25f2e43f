"""Reading from Spark gives what reading from Python gives."""

import datetime
import math
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import datasource as ds
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

import persist
import persist.spark
from persist.compute.index import IndexScan
from persist.connect.spark.data_source.reader import PushingReader, make_pruning_filter
from persist.connect.spark.data_source.source import PersistDataSource
from persist.connect.spark.options import ReadOptions
from persist.core.settings import Tuning


def read(spark: SparkSession, location: str, **options: Any) -> DataFrame:
    reader = spark.read.format("persist").option("collection", "orders")
    return reader.options(**options).load(location)


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(map(shown, frame.collect()), key=repr)


def shown(row: Any) -> tuple[Any, ...]:
    return tuple("NaN" if isinstance(v, float) and math.isnan(v) else v for v in row)


def python_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted((shown(row.values()) for row in table.to_pylist()), key=repr)


@pytest.mark.thorough(except_every=19)
@pytest.mark.parametrize("as_of", [0, 9, 10, 12, "latest"])
@pytest.mark.parametrize("form", ["rows", "diff"])
@pytest.mark.parametrize("slices", [1, 5])
def test_a_snapshot_is_the_same_as_in_python(
    spark: SparkSession, location: str, as_of: int | str, form: Any, slices: int
) -> None:
    found = read(spark, location, as_of=as_of, form=form, partitions=slices)
    with persist.open(location, mode="read") as client:
        time = None if as_of == "latest" else int(as_of)
        assert rows(found) == python_rows(client.load("orders").snapshot(time, form=form).to_arrow())


@pytest.mark.thorough(except_every=4)
@pytest.mark.parametrize(("lower", "until"), [(0, 13), (10, 11), (11, 13), (5, 5)])
def test_changes_are_the_same_as_in_python(spark: SparkSession, location: str, lower: int, until: int) -> None:
    found = read(spark, location, form="changes", start=lower, until=until)
    with persist.open(location, mode="read") as client:
        assert rows(found) == python_rows(client.load("orders").changes(lower, until).to_arrow())


def test_transitions_are_the_same_as_in_python(spark: SparkSession, location: str) -> None:
    options = {"form": "transitions", "start": 0, "until": 13, "partitions": 3}
    with persist.open(location, mode="read") as client:
        found = client.load("orders").changes(0, 13, form="transitions").to_arrow()
        assert rows(read(spark, location, **options)) == python_rows(found)
        paid = found.filter((pc.field("_change") == "update") & (pc.field("status") == "paid"))
        assert rows(read(spark, location, **options).where("_change = 'update' AND status = 'paid'")) == python_rows(
            paid
        )
        assert len(paid)
        fewer = client.load("orders").changes(0, 13, columns=["id", "amount"], form="transitions").to_arrow()
        assert rows(read(spark, location, columns="id,amount", **options)) == python_rows(fewer)
    with pytest.raises(PySparkException, match="leaves out the key column 'id'"):
        read(spark, location, columns="amount", **options)


@pytest.mark.thorough
def test_the_schema_is_the_collections(spark: SparkSession, location: str) -> None:
    assert read(spark, location).dtypes == [("id", "bigint"), ("status", "string"), ("amount", "double")]
    assert read(spark, location, form="diff").columns == ["id", "status", "amount", "_diff"]
    changes = read(spark, location, form="changes", start=0, until=1)
    assert changes.columns == ["id", "status", "amount", "_time", "_diff"]


@pytest.mark.thorough
def test_columns_can_be_selected_by_option_and_by_schema(spark: SparkSession, location: str) -> None:
    with persist.open(location, mode="read") as client:
        expected = python_rows(client.load("orders").snapshot(columns=["status"]).to_arrow())
    assert rows(read(spark, location, columns="status")) == expected
    assert rows(read(spark, location, columns='["status"]')) == expected
    by_schema = spark.read.format("persist").option("collection", "orders").schema("status string").load(location)
    assert rows(by_schema) == expected


def test_each_key_is_read_by_one_task(spark: SparkSession, location: str) -> None:
    found = read(spark, location, form="diff", partitions=4).withColumn("task", F.spark_partition_id())
    tasks = found.groupBy("id").agg(F.countDistinct("task").alias("tasks"))
    assert tasks.where("tasks > 1").count() == 0
    assert found.select("task").distinct().count() == 4


def test_a_dataframe_of_the_latest_contents_does_not_change_under_its_user(spark: SparkSession, location: str) -> None:
    found = read(spark, location)
    before = found.count()
    with persist.open(location) as client:
        orders = client.load("orders")
        orders.write([((7000, ("new", 1.0)), 13, 1)])
        orders.seal(14).result()
    assert found.count() == found.where("id >= 0").count() == before
    assert read(spark, location).count() == before + 1


FILTERS = [
    "amount > 100",
    "amount >= 100 AND status = 'paid'",
    "amount < 3",
    "amount <= 3",
    "amount = cast('NaN' as double)",
    "amount <=> null",
    "status IS NULL",
    "status IS NOT NULL AND amount > 499",
    "NOT (status = 'new')",
    "status <=> 'odd'",
    "id IN (1, 2, 3, 5000)",
    "status LIKE 'pa%'",
    "status LIKE '%w'",
    "status LIKE '%ai%'",
    "id = 3 OR amount > 490",
    "amount > cast('Infinity' as double)",
]
DIFF_FILTERS = ["_diff > 1", "_diff = 1 AND id > 1990", "_diff <> 1"]


@pytest.mark.thorough(except_every=len(FILTERS))
@pytest.mark.parametrize("condition", FILTERS)
def test_pushed_filters_change_nothing_but_speed(spark: SparkSession, location: str, condition: str) -> None:
    setting = "spark.sql.python.filterPushdown.enabled"
    plain = rows(read(spark, location).where(condition))
    spark.conf.set(setting, "true")
    try:
        pushed = read(spark, location).where(condition)
        assert rows(pushed) == plain
    finally:
        spark.conf.unset(setting)


@pytest.mark.thorough
@pytest.mark.parametrize("condition", DIFF_FILTERS)
@pytest.mark.parametrize("options", [{"form": "diff"}, {"form": "changes", "start": 0, "until": 13}])
def test_filters_on_sums_of_diffs_are_not_applied_to_summands(
    spark: SparkSession, location: str, condition: str, options: dict[str, Any]
) -> None:
    setting = "spark.sql.python.filterPushdown.enabled"
    plain = rows(read(spark, location, **options).where(condition))
    spark.conf.set(setting, "true")
    try:
        assert rows(read(spark, location, **options).where(condition)) == plain
    finally:
        spark.conf.unset(setting)


def test_literals_that_do_not_fit_a_column_are_not_cut_to_fit() -> None:
    noon = datetime.datetime(2020, 1, 1, 12)
    later = noon + datetime.timedelta(microseconds=1)
    table = pa.table(
        {
            "s": pa.array([noon], pa.timestamp("s")),
            "f": pa.array([0.1], pa.float32()),
            "h": pa.array([1.5], pa.float16()),
            "us": pa.array([noon], pa.timestamp("us")),
        }
    )
    for pushed in (ds.LessThan(("s",), later), ds.GreaterThan(("f",), 0.1), ds.LessThan(("h",), 2.0)):
        assert make_pruning_filter([pushed], table.schema) is None
    for pushed in (ds.LessThan(("us",), later), ds.LessThan(("s",), noon + datetime.timedelta(seconds=1))):
        found = make_pruning_filter([pushed], table.schema)
        assert found is not None
        assert table.filter(found).num_rows == 1
    assert make_pruning_filter([ds.GreaterThan(("us",), later)], table.schema) is not None
    zeros = pa.table({"z": pa.array([0.0, 1.0, 2.0])})
    found = make_pruning_filter([ds.In(("z",), (-0.0, 1.0))], zeros.schema)
    assert found is not None
    assert zeros.filter(found).num_rows == 2


@pytest.mark.thorough
def test_pushed_filters_reach_the_scan(spark: SparkSession, location: str) -> None:
    setting = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(setting, "true")
    try:
        # All parts say that no id is beyond 5001, so nothing is read; without a pushed filter the damage is met.
        frame = read(spark, location).where("id > 6000")
        damage_every_part(location)
        assert frame.count() == 0
    finally:
        spark.conf.unset(setting)
    with pytest.raises(PySparkException, match="CorruptBlob"):
        read(spark, location).where("id > 6000").count()


def test_a_pushed_filter_is_looked_up_by_an_index_in_one_task(tmp_path: Path) -> None:
    ids = range(60_000)
    with persist.open(str(tmp_path), settings=persist.Settings(background=False)) as client:
        client.write("orders", pa.table({"id": ids, "d": [n * 7919 % 6_000 for n in ids]}), key=["id"])
        orders = client.load("orders")
        orders.index("d")
        orders.upsert([(5, 77), (6, None)]).result()
        wanted = sorted(row["id"] for row in orders.snapshot().to_arrow().to_pylist() if row["d"] == 77)
    reader = PushingReader(ReadOptions(str(tmp_path), "orders"), StructType().add("id", "long").add("d", "long"))
    reader.pushFilters([ds.EqualTo(("d",), 77)])
    (piece,) = reader.partitions()
    sent = pickle.loads(pickle.dumps(piece))
    assert isinstance(sent.scan, IndexScan)
    found = pa.Table.from_batches(reader.read(sent))
    assert sorted(found["id"].to_pylist()) == wanted
    assert len(wanted) > 1


def damage_every_part(location: str) -> None:
    from persist.blob.stores.file import FileBlob

    blob = FileBlob(location)
    for entry in list(blob.list("part/")):
        data = bytearray(blob.get(entry.key) or b"")
        data[len(data) // 2] ^= 1
        blob.set(entry.key, bytes(data))


@pytest.mark.thorough
def test_register_works_on_top_of_the_look_up(spark: SparkSession, location: str) -> None:
    persist.spark.register(spark)
    assert read(spark, location, as_of=0).count() == 2000


def test_sql_views_work(spark: SparkSession, location: str) -> None:
    spark.sql(f"CREATE TEMPORARY VIEW o USING persist OPTIONS (collection 'orders', as_of '0', path '{location}')")
    assert spark.sql("SELECT count(*) AS n FROM o WHERE status = 'new'").collect()[0].n == 2000
    spark.catalog.dropTempView("o")


@pytest.mark.thorough
def test_an_empty_collection_reads_as_no_rows(spark: SparkSession, location: str) -> None:
    with persist.open(location) as client:
        empty = client.create_or_load("empty", key={"k": pa.int64()}, value=None)
        empty.seal(5).result()
    found = spark.read.format("persist").option("collection", "empty").load(location)
    assert (found.columns, found.count()) == (["k"], 0)


@pytest.mark.thorough
def test_spark_reads_and_writes_s3(spark: SparkSession, s3_location: tuple[str, dict[str, str]]) -> None:
    url, storage = s3_location
    with persist.open(url, storage_options=storage) as client:
        orders = client.create_or_load("orders", key={"id": pa.int64()}, value={"status": pa.string()})
        orders.write([((i, "new"), 0, 1) for i in range(100)])
        orders.seal(1).result()
        options = {f"storage.{name}": value for name, value in storage.items()}
        more = spark.createDataFrame([(i, "paid") for i in range(100, 150)], "id long, status string")
        more.write.format("persist").options(**options, collection="orders", time=1, seal=2).mode("append").save(url)
        found = spark.read.format("persist").options(**options, collection="orders").load(url)
        assert found.groupBy("status").count().orderBy("status").collect() == [("new", 100), ("paid", 50)]
        assert orders.snapshot().count() == 150


@pytest.mark.thorough
def test_a_compacted_collection_is_the_same_as_in_python_before_and_after_its_keyframe(
    spark: SparkSession, tmp_path: Any
) -> None:
    location, policy = str(tmp_path), Tuning(keyframe_rows_min=10)
    with persist.open(location, settings=persist.Settings(background=False, tuning=policy)) as client:
        orders = client.create_or_load("orders", key={"id": pa.int64()}, value={"status": pa.string()})
        for at in range(6):
            new = [((k, f"v{at}"), at, 1) for k in range(at, 300, 2)]
            old = [((k, f"v{at - 2}"), at, -1) for k in range(at - 2, 300, 2)] if at > 1 else []
            orders.write(new + old, seal=at + 1).result()
            if at == 3:
                assert orders.compact().keyframes == (3,)
        expected = {
            (as_of, form): python_rows(orders.snapshot(as_of, form=form).to_arrow())
            for as_of in (2, 3, 5)
            for form in ("rows", "diff")
        }
        assert "backwards" in str(orders.snapshot(2).explain())
    for (as_of, form), found in expected.items():
        assert rows(read(spark, location, as_of=as_of, form=form, partitions=3)) == found


def test_the_input_of_a_task_travels_small_and_unchanged(tmp_path: Path) -> None:
    with persist.open(tmp_path) as client:
        rows = client.create_or_load("rows", key={"id": pa.int64()})
        for part in range(20):
            ids = range(part * 5000, (part + 1) * 5000)
            rows.write(pa.table({"id": ids, "_time": [0] * 5000, "_diff": [1] * 5000})).result()
        rows.seal(1).result()
    source = PersistDataSource({"path": str(tmp_path), "collection": "rows", "partitions": "1"})
    reader: Any = source.reader(source.schema())
    [slice_] = reader.partitions()
    sent = pickle.dumps(slice_)
    assert len(sent) < 0.7 * len(pickle.dumps(slice_.__dict__)), "a task of a large collection has at most 10 kB"
    assert pickle.loads(sent) == slice_
    assert sum(batch.num_rows for batch in reader.read(pickle.loads(sent))) == 100_000
