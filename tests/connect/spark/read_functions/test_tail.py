"""Snapshots with a tail, by Spark's own plan: the rows that Python reads, of all kinds of keys, and without Python."""

import math
import random
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import persist
import persist.spark
from persist.connect.spark.jar import JAR
from persist.connect.spark.read_functions import plans
from tests.connect.spark.read_functions.test_native import QUIET, bag

KEYS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.float64(), [None, math.nan, 0.0, -0.0, 1.5, math.inf]),
    (pa.string(), [None, "", "a", "A", "a ", "é"]),
    (pa.decimal128(10, 2), [None, Decimal("1.50"), Decimal("0.00"), Decimal("-1.50")]),
    (pa.struct({"a": pa.float64(), "b": pa.string()}), [None, {"a": None, "b": "x"}, {"a": math.nan, "b": None}]),
]


def native(spark: SparkSession, path: str, **reading: Any) -> tuple[str, Any]:
    with persist.spark.location(spark, path) as here:
        planned = here.plan("rows", native=True, **reading)
        frame = planned.frame(spark)
        plan = frame._jdf.queryExecution().toString()
        assert "Python" not in plan
        assert "MapInArrow" not in plan
        rows = (row.asDict(recursive=True) for row in frame.collect())
        return str(planned), Counter(repr([*row.values()]) for row in rows)


@pytest.mark.parametrize("kind", range(len(KEYS)))
@pytest.mark.parametrize("upserts", [True, False])
@pytest.mark.thorough(except_every=3)
def test_each_kind_of_key_is_compared_as_python_compares_it(
    spark: SparkSession, tmp_path: Path, kind: int, upserts: bool
) -> None:
    path, (key, values), rng = str(tmp_path), KEYS[kind], random.Random(kind)
    with persist.open(path, settings=QUIET) as client:
        rows = client.create_or_load(
            "rows", key={"k": key, "n": pa.int64()}, value={"v": pa.int64(), "w": pa.float64()}
        )

        def some(count: int) -> list[dict[str, Any]]:
            keys = {(repr(k), n): (k, n) for k in values for n in range(count) if rng.random() < 0.6}
            return [
                {"k": k, "n": n, "v": rng.randrange(3), "w": rng.choice([None, math.nan, 0.5])}
                for k, n in keys.values()
            ]

        put = rows.upsert if upserts else rows.write
        put(
            pa.Table.from_pylist(
                [*{repr(row["k"] or 0.0) + str(row["n"]): row for row in some(300)}.values()],
                pa.schema([("k", key), ("n", pa.int64()), ("v", pa.int64()), ("w", pa.float64())]),
            )
        ).result()
        rows.compact()
        for _ in range(2):
            rows.upsert(
                pa.Table.from_pylist(
                    [*{repr(row["k"] or 0.0) + str(row["n"]): row for row in some(40)}.values()],
                    pa.schema([("k", key), ("n", pa.int64()), ("v", pa.int64()), ("w", pa.float64())]),
                )
            ).result()
            rows.delete(
                pa.Table.from_pylist([{"k": values[1], "n": 3}], pa.schema([("k", key), ("n", pa.int64())]))
            ).result()
        for reading in ({}, {"columns": ["v"]}, {"form": "diff"}):
            text, found = native(spark, path, **reading)
            assert found == bag(rows.snapshot(**reading).to_arrow()), text
            assert ("each key has one row at most" in text) is upserts, text


def test_a_tail_takes_rows_by_key_where_each_key_has_one_and_else_by_record(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path)
    with persist.open(path, settings=QUIET) as client:
        rows = client.create_or_load("rows", key={"id": pa.int64()}, value={"v": pa.int64(), "s": pa.string()})
        rows.upsert([(i, (i % 7, "first")) for i in range(5000)]).result()
        rows.upsert([(i, (100, "second")) for i in range(0, 5000, 50)]).result()
        assert native(spark, path)[1] == bag(rows.snapshot().to_arrow())  # One commit needs no sums.
        assert native(spark, path, form="diff")[1] == bag(rows.snapshot(form="diff").to_arrow())
        rows.upsert([(i, (i % 7, "first")) for i in range(0, 5000, 100)]).result()  # As they were.
        rows.delete([7, 8]).result()
        text, found = native(spark, path)
        assert "each key has one row at most" in text
        assert found == bag(rows.snapshot().to_arrow())
        frame = persist.spark.snapshot(spark, path, "rows")
        assert frame.where("id = 50").count() == frame.where("v = 100 and id < 51").count() == 1
        pruned = frame.where("id > 50 AND id < 52").select("v")._jdf.queryExecution().executedPlan().toString()
        assert "PushedFilters: [IsNotNull(id), GreaterThan(id,50), LessThan(id,52)]" in pruned
        assert ("isamong" if JAR.exists() else "LeftAnti") in pruned
        assert persist.spark.explain(spark, path, "rows", columns=[]).endswith("no columns are asked for")
        assert persist.spark.snapshot(spark, path, "rows", columns=[]).count() == 4998
        rows.write([(1, (1, "first"))] * 3 + [(6000, (0, "many"))] * 3).result()  # Some keys have several rows now.
        text, found = native(spark, path)
        assert "a key may have several rows" in text
        assert found == bag(rows.snapshot().to_arrow())
        text, found = native(spark, path, form="diff")
        assert found == bag(rows.snapshot(form="diff").to_arrow())
        assert persist.spark.snapshot(spark, path, "rows", columns=[]).count() == 5004


@pytest.mark.thorough
@pytest.mark.parametrize("ansi", ["true", "false"])
def test_sums_that_overflow_are_errors(spark: SparkSession, tmp_path: Path, ansi: str) -> None:
    path = str(tmp_path)
    with persist.open(path, settings=QUIET) as client:
        rows = client.create_or_load("rows", key={"id": pa.int64()}, value={"v": pa.int64()})
        rows.write([((i, 0), 0, 1) for i in range(3000)], seal=1).result()
        for time in (1, 2):
            rows.write([((1, 1), time, 2**62), ((2, 0), time, 1 - 2 * time)], seal=time + 1).result()
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        with pytest.raises(PySparkException, match="DiffOverflow"):
            persist.spark.snapshot(spark, path, "rows", form="diff", native=True).collect()
    finally:
        spark.conf.set("spark.sql.ansi.enabled", str(before))


def test_long_keys_of_a_large_tail_are_joined(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path)
    with persist.open(path, settings=QUIET) as client:
        rows = client.create_or_load("rows", key={"s": pa.string()}, value={"v": pa.int64()})
        rows.upsert([(str(i), 0) for i in range(5000)]).result()
        rows.upsert([(str(i), 1) for i in range(100)]).result()
        expected = bag(rows.snapshot().to_arrow())
    for bytes_max, operator in ((1 << 27, "isamong" if JAR.exists() else "LeftAnti"), (1, "LeftAnti")):
        monkeypatch.setattr(plans, "SORTED_BYTES_MAX", bytes_max)
        assert native(spark, path)[1] == expected
        plan = persist.spark.snapshot(spark, path, "rows")._jdf.queryExecution().executedPlan().toString()
        assert operator in plan
