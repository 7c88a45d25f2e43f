"""Collections as names in Spark SQL, compared with Python at every time that can be read."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import persist
import persist.spark
from tests.spark.reading.test_native import QUIET, bag, write_history


def check(spark: SparkSession, path: str, view: str, collection: str = "rows") -> None:
    with persist.open(path, mode="read") as client:
        rows = client.load(collection)
        upper, since = rows.upper.time, rows.since.time
        assert upper is not None
        assert since is not None
        assert bag(spark.sql(f"SELECT * FROM {view}").collect()) == bag(rows.snapshot().to_arrow())
        for as_of in {since, (since + upper) // 2, upper - 1}:
            found = spark.sql(f"SELECT * FROM {view}({as_of})").collect()
            assert bag(found) == bag(rows.snapshot(as_of).to_arrow()), as_of
        for lower, until in [(since + 1, upper), ((since + upper) // 2 + 1, upper - 1)]:
            found = spark.sql(f"SELECT * FROM {view}_changes({lower}, {until})").collect()
            assert bag(found) == bag(rows.changes(lower, until).to_arrow()), (lower, until)


def test_every_collection_has_a_view_and_functions_for_other_times(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path)
    write_history(path, batches=4, deletes=True, size=200, seed=1)
    with persist.open(path, settings=QUIET) as client:
        client.create_or_load("nothing sealed", key={"id": pa.int64()})
        client.create_or_load("empty", key={"id": pa.int64()}).seal(5).result()
        assert persist.spark.create_views(spark, path) == ["empty", "rows"]
        check(spark, path, "rows")
        assert spark.sql("SELECT * FROM empty(3)").collect() == spark.table("empty").collect() == []
        rows = client.load("rows")
        rows.compact()
        first = rows.snapshot(form="diff").to_arrow().slice(3, 1).to_pylist()[0]
        retracted = ((first["id"], first["part"]), (first["status"], first["amount"], first["tags"]))
        rows.write([(retracted, 41, -1), (((-1, None), ("x", None, None)), 42, 3)], seal=50).result()
        persist.spark.create_views(spark, path, collections=["rows"], prefix="my_")
        check(spark, path, "my_rows")
        rows.allow_compaction(25).result()
        rows.compact()
        persist.spark.create_views(spark, path, collections=["rows"])
        check(spark, path, "rows")
        for query, message in {
            "rows(24)": r"AsOfCompacted: as_of=24 is before since=Antichain\(25\)",
            "rows(50)": r"AsOfNotSealed: as_of=50 .*upper",
            "rows(NULL)": "InvalidUsage: as_of=NULL is not a time",
            "rows_changes(25, 30)": "AsOfCompacted: .*24",
            "rows_changes(30, 51)": "AsOfNotSealed: as_of=50",
            "rows_changes(30, 29)": "InvalidUsage: changes",
        }.items():
            for asked in ("SELECT count(*) FROM {}", "SELECT * FROM {} WHERE id = 7", "SELECT * FROM {} LIMIT 1"):
                with pytest.raises(Exception, match=message):
                    spark.sql(asked.format(query)).collect()
    with pytest.raises(persist.errors.CollectionNotFound, match="missing"):
        persist.spark.create_views(spark, path, collections=["missing"])


@pytest.mark.thorough
def test_functions_are_planned_on_native_scans_of_what_their_time_needs(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path)
    with persist.open(path, settings=QUIET) as client:
        orders = client.create_or_load("orders", key={"id": pa.int64()}, value={"v": pa.int64()})
        for time in range(3):
            orders.write([((i, time), time, 1) for i in range(3000)])
            orders.write([((i, time - 1), time, -1) for i in range(3000 if time else 0)], seal=time + 1).result()
            orders.compact()
    persist.spark.create_views(spark, path)
    frame = spark.sql("SELECT count(id) FROM orders(2) WHERE v = 2")
    plan: Any = frame._jdf.queryExecution().optimizedPlan().toString()
    assert plan.count("Relation [") == 1, plan
    assert frame.collect()[0][0] == 3000


@pytest.mark.thorough
def test_negative_multiplicities_cannot_be_rows(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path)
    with persist.open(path, settings=QUIET) as client:
        client.create_or_load("odd", key={"id": pa.int64()}).write([((1, None), 0, -1), ((2, None), 0, 1)], seal=1)
    persist.spark.create_views(spark, path)
    for query in ("SELECT * FROM odd(0)", "SELECT count(*) FROM odd(0)", "SELECT * FROM odd"):
        with pytest.raises(Exception, match="NegativeMultiplicity: "):
            spark.sql(query).collect()
    assert spark.sql("SELECT * FROM odd_changes(0, 1) ORDER BY id").collect() == [(1, 0, -1), (2, 0, 1)]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["my orders", "a.b", "order`s", "as_of", "Größe"])
def test_collections_and_columns_may_have_odd_names(spark: SparkSession, tmp_path: Path, name: str) -> None:
    path = str(tmp_path)
    with persist.open(path, settings=QUIET) as client:
        rows = client.create_or_load(name, key={"as_of": pa.int64(), "it`s": pa.string()}, value={"a.b": pa.int8()})
        rows.write([(((1, "x"), 1), 0, 1)], seal=1)
    persist.spark.create_views(spark, path)
    quoted = "`" + name.replace("`", "``") + "`"
    assert spark.sql(f"SELECT * FROM {quoted}").collect() == [(1, "x", 1)]
    assert spark.sql(f"SELECT `a.b` FROM {quoted}(0)").collect() == [(1,)]


@pytest.mark.thorough
def test_types_that_the_scan_cannot_read_come_by_tasks(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path)
    with persist.open(path, settings=QUIET) as client:
        rows = client.create_or_load(
            "times", key={"id": pa.int64()}, value={"d": pa.duration("us"), "m": pa.map_(pa.string(), pa.int32())}
        )
        rows.write([((i, (timedelta(i), [("a", i)])), 0, 1) for i in range(3000)], seal=1).result()
        rows.write([((5, (timedelta(5), [("a", 5)])), 1, -1)], seal=2).result()
    persist.spark.create_views(spark, path)
    assert spark.sql("SELECT * FROM times(1) WHERE id < 7").count() == 6
    assert spark.sql("SELECT * FROM times(0)").count() == 3000


@pytest.mark.thorough
def test_values_come_as_they_are_stored(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path)
    at = datetime(2026, 11, 21, 12, tzinfo=UTC)
    with persist.open(path, settings=QUIET) as client:
        value = {"m": pa.map_(pa.string(), pa.int32()), "at": pa.timestamp("us", "UTC")}
        rows = client.create_or_load("rows", key={"id": pa.int64()}, value=value)
        rows.write([((1, ([("z", None), ("a", 1)], at)), 0, 1), ((2, (None, None)), 0, 2)], seal=1).result()
        rows.write([((2, (None, None)), 1, -1)], seal=2).result()
    session = spark.newSession()
    session.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    persist.spark.create_views(session, path)
    for query in ("rows", "rows(1)"):
        found = session.sql(f"SELECT id, map_keys(m), m['z'], unix_seconds(at) FROM {query}").collect()
        assert sorted(map(tuple, found)) == [(1, ["z", "a"], None, int(at.timestamp())), (2, None, None, None)], query


def test_names_that_spark_would_mix_up_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    def make(folder: str, *names: str) -> str:
        path = str(tmp_path / folder)
        with persist.open(path, settings=QUIET) as client:
            for name in names:
                client.create_or_load(name, key={"id": pa.int64()}).seal(1).result()
        return path

    for names in (("orders", "orders_changes"), ("Orders", "orders")):
        path = make("-".join(names), *names)
        with pytest.raises(persist.InvalidUsage, match="would both be called"):
            persist.spark.create_views(spark, path)
        assert persist.spark.create_views(spark, path, collections=[names[1]], prefix="my_") == [f"my_{names[1]}"]
    path = make("builtin", "range", "zebra")
    with pytest.raises(persist.InvalidUsage, match="'range': Spark has a function of that name itself") as refused:
        persist.spark.create_views(spark, path)
    assert "Views were made of ['zebra']" in refused.value.__notes__[0]
    assert persist.spark.create_views(spark, path, prefix="all_") == ["all_range", "all_zebra"]
    for arguments, message in [
        ({"collections": "range"}, "is one name: give a list"),
        ({"location": str(tmp_path / "nowhere")}, "there is nothing at"),
    ]:
        with pytest.raises(persist.InvalidUsage, match=message):
            persist.spark.create_views(spark, **{"location": path, **arguments})  # type: ignore[arg-type]
