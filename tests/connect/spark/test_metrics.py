"""What was read can be seen: in what Spark's Python workers log, and in Spark's own metrics of a native plan."""

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import persist
import persist.spark


@pytest.fixture
def logging_session(spark: SparkSession) -> SparkSession:
    """A session of its own in the same application, that keeps what workers log."""
    session = spark.newSession()
    session.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    return session


def test_rows_bytes_slices_and_pruned_parts_are_logged(logging_session: SparkSession, location: str) -> None:
    spark = logging_session
    rows = spark.read.format("persist").options(collection="orders", as_of=9, partitions=2).load(location)
    assert rows.where("id < 1000").count() == 1000
    messages = [row.msg for row in spark.tvf.python_worker_logs().select("msg").collect()]
    [planned] = [message for message in messages if message.startswith("planned")]
    found = re.search(r"as_of=9.* (\d+) slices, (\d+) parts, (\d+) bytes; parts pruned: (.*)", planned)
    assert found is not None, planned
    slices, parts, size, pruned = int(found[1]), int(found[2]), int(found[3]), found[4]
    assert parts == 1
    assert size > 1000
    assert "by time" in pruned
    read = [re.search(r"read a slice of orders: (\d+) rows, \d+ parts, \d+ bytes", m) for m in messages]
    told = [int(each[1]) for each in read if each is not None]
    assert len(told) == slices
    assert sum(told) == 1000


def test_a_delete_prunes_by_its_condition_in_any_session(logging_session: SparkSession, location: str) -> None:
    spark = logging_session
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    persist.spark.delete(spark, location, "orders", "id > 4000")
    messages = [row.msg for row in spark.tvf.python_worker_logs().select("msg").collect()]
    assert any(message.endswith("parts pruned: 2 by filters") for message in messages), messages
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "false"


@pytest.mark.thorough
def test_a_native_plan_has_the_metrics_of_sparks_own_scan(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path)
    with persist.open(path) as client:
        rows = client.create_or_load("rows", key={"id": pa.int64()})
        rows.write([((i, None), 0, 1) for i in range(50_000)], seal=1).result()
    frame = persist.spark.snapshot(spark, path, "rows")
    assert len(frame.collect()) == 50_000
    plan = frame._jdf.queryExecution().executedPlan()
    scans = [leaf for leaf in _leaves(plan) if "FileScan parquet" in leaf.toString()]
    metrics = [scans[0].metrics().apply(name).value() for name in ("numFiles", "numOutputRows")]
    assert metrics == [1, 50_000]


def _leaves(plan: Any) -> list[Any]:
    found = plan.collectLeaves()
    return [found.apply(number) for number in range(found.size())]
