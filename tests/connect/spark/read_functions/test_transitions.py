"""Changes as transitions: tasks pair what goes and what comes of a key, and give what Python gives."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import persist
import persist.spark

QUIET = persist.Settings(background=False)
BEGIN = 1_790_000_000_000


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Orders on a timeline, of two keys each, in several parts: some new, some with another status, some gone."""
    path = str(tmp_path / "location")
    with persist.open(path, settings=QUIET) as client:
        key, value = {"id": pa.int64(), "line": pa.int64()}, {"status": pa.string(), "amount": pa.float64()}
        orders = client.create_or_load("orders", key=key, value=value, timeline="ms")
        for time in range(4):
            rows = [((n // 3, n % 3), ("paid" if n % 7 < time else "new", n / 4)) for n in range(3000 - 500 * time)]
            orders.overwrite(rows, time=BEGIN + time).result()
    return path


def rows(table: Any) -> list[str]:
    return sorted(repr(tuple(row)) for row in table)


@pytest.mark.parametrize("columns", [None, ["id", "line", "status"]])
def test_transitions_by_tasks_are_those_that_python_gives(
    spark: SparkSession, path: str, columns: list[str] | None
) -> None:
    with persist.open(path, mode="read") as client:
        expected = (
            client.load("orders")
            .changes(BEGIN + 1, BEGIN + 4, columns=columns, form="transitions", times="int")
            .to_arrow()
        )
    assert set(expected["_change"].to_pylist()) == {"update", "delete"}
    with persist.spark.location(spark, path) as here:
        planned = here.plan_changes("orders", BEGIN + 1, BEGIN + 4, columns=columns, form="transitions")
        assert "transitions are paired by key in Python tasks" in str(planned)
        frame = planned.frame(spark)
        assert frame.columns == expected.column_names
        assert rows(frame.collect()) == rows(row.values() for row in expected.to_pylist())
    options = {"collection": "orders", "form": "transitions", "start": BEGIN + 1, "until": BEGIN + 4, "partitions": 7}
    several = spark.read.format("persist").options(**options).load(path)
    assert several.rdd.getNumPartitions() > 2
    if columns is None:
        assert rows(several.collect()) == rows(row.values() for row in expected.to_pylist())


def test_transitions_may_have_timestamps_and_forms_that_are_none_are_refused(spark: SparkSession, path: str) -> None:
    frame = persist.spark.changes(spark, path, "orders", BEGIN + 3, BEGIN + 4, form="transitions", times="timestamp")
    assert dict(frame.dtypes)["_time"] == "timestamp"
    assert {row._change for row in frame.select("_change").distinct().collect()} == {"update", "delete"}
    with pytest.raises(persist.InvalidUsage, match="form='diffs' is not a form of changes"):
        persist.spark.changes(spark, path, "orders", BEGIN + 3, BEGIN + 4, form="diffs")  # type: ignore[arg-type]
    with pytest.raises(persist.InvalidUsage, match="native=True is not possible here: transitions are paired by key"):
        persist.spark.changes(spark, path, "orders", BEGIN + 3, BEGIN + 4, form="transitions", native=True)
