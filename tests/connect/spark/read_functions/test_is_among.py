"""The filter by sorted keys that stands for the join with a tail: what the join gives, of all types, in all orders."""

import random
from collections import Counter

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from persist.connect.spark.jar import JAR
from persist.connect.spark.read_functions.plans import GONE
from tests.connect.spark.sessions import KEPT, conf

pytestmark = pytest.mark.skipif(not JAR.exists(), reason="the jar needs a javac")

# Values of each type that has an order, as SQL; the first of them is NULL.
VALUES = {name: [f"CAST(NULL AS {name})", value] for name, value in KEPT.items() if not name.startswith("MAP")} | {
    "BOOLEAN": ["CAST(NULL AS BOOLEAN)", "true", "false"],
    "DOUBLE": ["CAST(NULL AS DOUBLE)", "0D", "-0D", "CAST('NaN' AS DOUBLE)", "-1.5D", "1e300D"],
    "FLOAT": ["CAST(NULL AS FLOAT)", "0F", "-0F", "CAST('NaN' AS FLOAT)", "-1.5F", "CAST('Infinity' AS FLOAT)"],
    "STRING": ["CAST(NULL AS STRING)", "''", "'a'", "'A'", "'a '", "'é'", "repeat('a', 99)"],
    "DECIMAL(10,2)": ["CAST(NULL AS DECIMAL(10,2))", "1.50BD", "-1.50BD", "CAST(0 AS DECIMAL(10,2))"],
}  # fmt: skip
INTERPRETED = {"codegen_wholeStage": "false", "codegen_factoryMode": "NO_CODEGEN"}


def joined(left: DataFrame, right: DataFrame, how: str, by: dict[str, bool], *, is_tail: bool) -> DataFrame:
    """Return a join with the distinct keys of the right side; by: whether each column treats NULL as a value."""
    keys = right.toDF(*(f"{GONE if is_tail else 'other_'}{name}" for name in right.columns))
    terms = [
        left[name].eqNullSafe(keys[of]) if is_safe else left[name] == keys[of]
        for (name, is_safe), of in zip(by.items(), keys.columns, strict=True)
    ]
    return left.join(F.broadcast(keys), terms, how)


def compare(left: DataFrame, right: DataFrame, how: str, by: dict[str, bool]) -> None:
    """Compare the filter, in generated code and without it, with Spark's own join."""
    expected = joined(left, right, how, by, is_tail=False)
    assert "isamong" not in plan(expected)
    wanted = bag(expected)
    assert 0 < wanted.total() < left.count()
    for options in ({}, INTERPRETED):
        with conf(left.sparkSession, **options):
            ours = joined(left, right, how, by, is_tail=True)
            assert "isamong" in plan(ours)
            assert "Join" not in plan(ours)
            assert bag(ours) == wanted, (how, by, options)


def plan(frame: DataFrame) -> str:
    text: str = frame._jdf.queryExecution().executedPlan().toString()
    return text


def bag(frame: DataFrame) -> Counter[str]:
    return Counter(repr(row) for row in frame.select(*(F.col(name).cast("string") for name in frame.columns)).collect())


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.thorough(except_every=3)
def test_each_type_of_key_is_found_as_a_join_finds_it(spark: SparkSession, kind: str) -> None:
    values = VALUES[kind]
    rows = " UNION ALL ".join(f"SELECT {value} AS k, {n} AS n" for n in range(3) for value in values)
    with conf(spark, timeType_enabled="true"):
        left = spark.sql(rows).coalesce(1).localCheckpoint()
        compare(left, left.select("k"), "left_semi", {"k": False})
        compare(left, left.where("n = 1").select("k", "n"), "left_anti", {"k": True, "n": False})


@pytest.mark.parametrize("text", ["{}", "CAST({} AS STRING)"], ids=["numbers", "texts"])
def test_rows_may_have_any_order(spark: SparkSession, text: str) -> None:
    chance = random.Random(text)
    some = [chance.randrange(10**6) for _ in range(3000)]
    orders = [
        sorted(some),
        sorted(some, reverse=True),
        some,
        sorted(some[1000:2000]),
        [number for number in sorted(some[1500:]) for _ in range(2)],
        [0, 10**6, 0, 10**6],
        sorted(some),
    ]
    key = F.expr(text.format("n")).alias("k")
    gone = spark.createDataFrame([(n,) for n in [*chance.sample(some, 900), *some[:100]]], "n long").select(key)
    rows = spark.createDataFrame([(n,) for order in orders for n in order], "n long").coalesce(1).localCheckpoint()
    compare(rows.select(key), gone, "left_anti", {"k": False})


def test_two_filters_in_one_stage_have_keys_of_their_own(spark: SparkSession) -> None:
    rows = spark.range(10).withColumnRenamed("id", "k").localCheckpoint()
    for key in ("k", "CAST(k AS STRING) AS k"):
        left = rows.selectExpr(key)
        frames = [joined(left, left.where(f"k < {n}"), "left_anti", {"k": False}, is_tail=True) for n in (3, 8)]
        assert sorted(int(row.k) for row in frames[0].union(frames[1]).collect()) == sorted([*range(3, 10), 8, 9])


def test_no_keys_leave_all_rows_and_conditions_reach_the_keys(spark: SparkSession) -> None:
    rows, none = spark.range(5).withColumnRenamed("id", "k"), spark.range(0).withColumnRenamed("id", "k")
    for options in ({}, INTERPRETED):
        with conf(spark, **options):
            assert joined(rows, none, "left_anti", {"k": False}, is_tail=True).count() == 5
            assert joined(rows, none, "left_semi", {"k": False}, is_tail=True).count() == 0
    one = joined(rows, spark.range(1, 9, 2).withColumnRenamed("id", "k"), "left_anti", {"k": False}, is_tail=True)
    assert one.where("k = 4").collect() == [(4,)]
    assert plan(one.where("k = 4")).count("(id#") - plan(one).count("(id#") >= 2  # On both sides.


def test_keys_are_sorted_once_and_no_job_runs_before_an_action(spark: SparkSession) -> None:
    tracker = spark.sparkContext.statusTracker()
    spark.sparkContext.setJobGroup("lazy", "")
    rows, gone = spark.range(0, 1000, 1, 5), spark.range(0, 1000, 7)
    frame = joined(rows, gone, "left_anti", {"id": False}, is_tail=True)
    assert not tracker.getJobIdsForGroup("lazy")
    assert frame.count() == 1000 - 143
    spark.sparkContext.setJobGroup("", "")


def test_more_keys_than_a_broadcast_takes_are_joined(spark: SparkSession) -> None:
    rows = spark.range(9)
    keys = rows.toDF(f"{GONE}0")
    assert "isamong" not in plan(rows.join(keys, rows.id == keys[f"{GONE}0"], "left_anti"))
