"""Keyed collections in Spark: tombstones, and events that nobody has resolved, show what they show in Python."""

import datetime
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import persist
import persist.spark
from tests.connect.spark.read_functions.test_native import QUIET, bag
from tests.connect.spark.sessions import WAYS, read
from tests.support.resolving import resolve_events

VALUE = {"at": pa.int64(), "state": pa.string(), "gone": pa.bool_(), "left": pa.date32()}
TOMBSTONES: list[dict[str, Any]] = [
    {"tombstone": "gone"},
    {"tombstone": "state", "tombstone_value": "it's \\ over"},
    {"tombstone": "left"},
]
POLICIES = ["seal", "background"]


def upsert(rows: persist.Collection, rng: random.Random, time: int, count: int) -> None:
    """Upsert events of one time, and seal it; a third of them delete."""
    keyed: Any = rows.handle.keyed
    events = []
    for _ in range(count):
        row: dict[str, Any] = {"id": rng.randrange(80), "at": rng.randrange(1000), "state": rng.choice([None, "a"])}
        if rng.random() < 0.3:
            marks = {"gone": True, "state": keyed.tombstone_value, "left": datetime.date(2026, 1, 2)}
            row[keyed.tombstone] = marks[keyed.tombstone]
        else:
            row |= {"gone": rng.choice([None, False])} if rng.random() < 0.5 else {}
        events.append(row)
    rows.upsert(pa.Table.from_pylist(events, pa.schema({"id": pa.int64(), **VALUE})), time=time, seal=time + 1).result()


def made(path: str, policy: dict[str, Any], resolve: str, seed: int = 1) -> None:
    """Make a keyed collection of ten times: some in a keyframe, some in stored parts, some in the log."""
    rng = random.Random(seed)
    with persist.open(path, settings=QUIET) as client:
        keyed = persist.Keyed(order_by=["at"], resolve=resolve, **policy)  # type: ignore[arg-type]
        rows = client.create_or_load("rows", key={"id": pa.int64()}, value=VALUE, keyed=keyed)
        for time in range(10):
            upsert(rows, rng, time, 60)
            if time in (3, 6):
                resolve_events(rows)
                rows.compact()


def check(spark: SparkSession, path: str, *kinds: str) -> None:
    """Compare both ways of Spark with Python, at some times and the last."""
    with persist.open(path, mode="read") as client, persist.spark.location(spark, path) as here:
        rows = client.load("rows")
        assert rows.upper.time is not None
        for as_of in [*range(0, rows.upper.time, 4), rows.upper.time - 1]:
            truth = rows.snapshot(as_of).to_arrow()
            planned = here.plan("rows", as_of=as_of, native=True)
            assert not kinds or planned.route.kind in kinds, str(planned)
            assert bag(planned.frame(spark).collect()) == bag(truth), (as_of, str(planned))
        last = as_of
        for way in WAYS[1:]:
            assert bag(read(spark, path, "rows", way, last).collect()) == bag(truth)
        some = here.plan("rows", as_of=last, columns=["at"], native=True).frame(spark)
        assert bag(some.collect()) == bag(rows.snapshot(columns=["at"]).to_arrow())
        diffs = here.plan("rows", as_of=last, form="diff", native=True).frame(spark)
        assert bag(diffs.collect()) == bag(rows.snapshot(form="diff").to_arrow())
        changes = bag(rows.changes(2, last).to_arrow())
        for native in (False, None):
            assert bag(here.changes("rows", 2, last, native=native).collect()) == changes


@pytest.mark.thorough
@pytest.mark.parametrize("resolve", POLICIES)
@pytest.mark.parametrize("policy", TOMBSTONES, ids=["boolean", "value", "not NULL"])
def test_tombstones_are_left_out_by_sparks_own_scan(
    spark: SparkSession, tmp_path: Path, policy: dict[str, Any], resolve: str
) -> None:
    made(str(tmp_path), policy, resolve)
    check(spark, str(tmp_path), "scan", "tail")


@pytest.mark.thorough
def test_a_later_row_revives_a_key_whose_tombstone_is_in_a_keyframe(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path)
    with persist.open(path, settings=QUIET) as client:
        keyed = persist.Keyed(order_by=["at"], tombstone="gone")
        rows = client.create_or_load("rows", key={"id": pa.int64()}, value=VALUE, keyed=keyed)
        rows.upsert([(i, (1, "a", i % 2 == 0, None)) for i in range(4000)], time=0, seal=1).result()
        rows.compact()
        rows.upsert([(i, (2, "b", False, None)) for i in range(0, 40, 2)], time=1, seal=2)
        rows.upsert([(i, (0, "late", False, None)) for i in range(40, 80, 2)], time=2, seal=3).result()
    check(spark, path, "scan", "tail")
    found = persist.spark.snapshot(spark, path, "rows", native=True)
    assert found.count() == 2020
    assert found.where("state = 'b'").count() == 20
    assert found.where("state = 'late'").count() == 0


@pytest.mark.thorough
def test_a_tombstone_column_that_was_renamed_is_followed(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path)
    made(path, {"tombstone": "gone"}, "seal", seed=3)
    with persist.open(path, settings=QUIET) as client:
        client.load("rows").evolve(add={"note": pa.string()}, rename={"gone": "is_gone"})
    with persist.open(path, settings=QUIET) as client:
        rows = client.load("rows")
        rows.upsert([(1, (5000, "z", True, None, None)), (2, (5000, "z", False, None, "n"))], time=10, seal=11).result()
        truth = bag(rows.snapshot().to_arrow())
        changes = bag(rows.changes(5, 11).to_arrow())
    assert bag(persist.spark.snapshot(spark, path, "rows", native=True).collect()) == truth
    assert bag(persist.spark.changes(spark, path, "rows", 5, 11).collect()) == changes


@pytest.mark.thorough
def test_tombstones_that_spark_cannot_read_are_left_out_by_the_data_source(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path)
    with persist.open(path, settings=QUIET) as client:
        keyed = persist.Keyed(tombstone="took")
        value = {"v": pa.int64(), "took": pa.duration("us")}
        rows = client.create_or_load("rows", key={"id": pa.int64()}, value=value, keyed=keyed)
        rows.upsert([(1, (1, None)), (2, (2, datetime.timedelta(1))), (3, (3, None))], time=0, seal=1).result()
        rows.compact()
    planned = persist.spark.explain(spark, path, "rows", columns=["v"])
    assert "cannot read the column 'took'" in planned
    found = persist.spark.snapshot(spark, path, "rows", columns=["v"]).collect()
    assert sorted(row.v for row in found) == [1, 3]


@pytest.mark.thorough
def test_the_plan_filters_tombstones_in_the_scan(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path)
    with persist.open(path, settings=QUIET) as client:
        keyed = persist.Keyed(tombstone="gone")
        rows = client.create_or_load("rows", key={"id": pa.int64()}, value=VALUE, keyed=keyed)
        rows.upsert([(i, (1, "a", i % 2 == 0, None)) for i in range(4000)], time=0, seal=1).result()
        rows.compact()
    frame: Any = persist.spark.snapshot(spark, path, "rows", columns=["at"])
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert "PushedFilters: [Or(IsNull(gone)," in plan, plan
    assert "MapInArrow" not in plan, plan
    assert frame.count() == 2000


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize("resolve", POLICIES)
def test_upserts_go_to_a_watermark_table_and_back(spark: SparkSession, tmp_path: Path, resolve: str) -> None:
    path = str(tmp_path)
    made(path, {"tombstone": "gone"}, resolve, seed=4)
    with persist.open(path, settings=QUIET) as client:
        rows = client.load("rows")
        truth = rows.upserts(0, 10).to_arrow()
        keyed = persist.Keyed(order_by=["at"], tombstone="gone")
        client.create_or_load("copy", key={"id": pa.int64()}, value=VALUE, keyed=keyed)
    source = spark.read.format("persist").option("collection", "rows").option("form", "upserts")
    events = source.option("start", 0).option("until", 10).option("partitions", 3).load(path)
    assert bag(events.collect()) == bag(truth)
    assert events.schema["at"].nullable
    table = str(tmp_path / "table")
    events.write.parquet(table)  # Rows are only ever appended; of each key the one with the greatest watermark counts.
    persist.spark.upsert(spark.read.parquet(table), path, "copy", seal=10)
    with persist.open(path, mode="read") as client:
        assert client.load("copy").changes(0, 10).to_arrow() == client.load("rows").changes(0, 10).to_arrow()
    for name, value in (("columns", "at"), ("as_of", "3"), ("times", "timestamp")):
        given = {"collection": "rows", "form": "upserts", "start": 0, "until": 10, name: value}
        with pytest.raises(PySparkException, match=f"option {name} does not go with form='upserts'"):
            spark.read.format("persist").options(**given).load(path)
    latest = events.groupBy("id").agg(F.max_by(F.struct("at", "state", "gone", "left"), F.struct("at", "_time")))
    assert latest.count() == events.select("id").distinct().count()
