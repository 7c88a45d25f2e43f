"""What functions of Spark are given is taken exactly or refused: keys, rows and types, whatever the session."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import SparkSession
from pyspark.sql import types as T

import persist
import persist.spark
from tests.connect.spark.sessions import KEPT, WAYS, conf, read, records

REFUSED = (persist.PersistError, PythonException)


BIG = 2**53


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize("ansi", ["false", "true"])
def test_keys_are_cast_exactly_or_refused_and_never_name_others(spark: SparkSession, tmp_path: Path, ansi: str) -> None:
    path = str(tmp_path)
    rows = [((BIG, "a"), 1), ((BIG + 1, "a"), 2), ((None, "a"), 3), ((7, "a"), 4), ((8, "A"), 5)]
    with persist.open(path) as client:
        c = client.create_or_load("c", key={"id": int, "k": str}, value={"v": int})
        c.write(rows).result()
    left = sorted(rows, key=repr)
    with conf(spark, ansi_enabled=ansi):
        for refused in (
            "SELECT 'abc' AS id, 'a' AS k",
            "SELECT 7.5D AS id, 'a' AS k",
            "SELECT true AS id, 'a' AS k",
            "SELECT TIMESTAMP '1970-01-01 00:00:07' AS id, 'a' AS k",
            "SELECT 7L AS id, 7 AS k",
        ):
            with pytest.raises(REFUSED, match=r"column '(id|k)'"):
                persist.spark.delete(spark, path, "c", spark.sql(refused))
            assert records(path, "c") == left
        for keys, gone in {
            f"SELECT {BIG}.0D AS id, 'a' AS k": (BIG, "a"),
            "SELECT 7S AS id, 'a' COLLATE UTF8_LCASE AS k": (7, "a"),
            "SELECT 8.0 AS ID, k COLLATE UTF8_LCASE AS k FROM VALUES ('a'), ('A') AS t(k)": (8, "A"),
            "SELECT NULL AS id, 'a' AS K": (None, "a"),
        }.items():
            persist.spark.delete(spark, path, "c", spark.sql(keys))
            left = [row for row in left if row[0] != gone]
            assert records(path, "c") == left, keys


def test_an_overwrite_retracts_what_is_there_and_not_what_it_would_be_in_a_wider_type(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path)
    with persist.open(path) as client:
        c = client.create_or_load("c", key={"id": int}, value={"v": str})
        c.write([(BIG + 1, "odd"), (BIG + 3, "odd"), (1, "a")]).result()
    frame = spark.sql(f"SELECT id, v COLLATE UTF8_LCASE AS v FROM VALUES (1.0D, 'a'), ({BIG}.0D, 'A') AS t(id, v)")
    persist.spark.write(frame, path, "c", mode="overwrite")
    assert records(path, "c") == [(1, "a"), (BIG, "A")]
    with persist.open(path, mode="read") as client:
        assert client.load("c").snapshot(form="diff").to_arrow()["_diff"].to_pylist() == [1, 1]


ROUNDED = (
    f"id = {BIG}D",
    f"id >= {BIG}D AND v > 0",
    "id <=> 'abc'",
    "id = '7.5'",
    "k = 7",
    "id IN (SELECT 1) OR id = float(7)",
    f"wide = {BIG}.0D",
    "day = '2026-01-01 12:00'",
    "at = '2026-01-01 00:00:00.0000001'",
    "local = current_timestamp()",
    f"v = {BIG + 1}",
    f"coalesce(id, 0D) = {BIG}D",
    f"EXISTS (SELECT 1 FROM VALUES ({BIG}D) AS t(big) WHERE big = id)",
)
EXACT = {
    "id = 7": 7,
    "id = '8'": 8,
    f"CAST(id AS DOUBLE) = {BIG}D AND id % 2 = 1": BIG + 1,
    "id = 9.0": 9,
    "day = '2026-01-10'": 10,
    "at >= '2026-01-11' AND at < DATE'2026-01-12'": 11,
    "v = 1.2": 12,
    "wide = 13": 13,
    "local = '2026-01-14 00:00:00'": 14,
    "k || id = 'a15' AND id / 5 = 3": 15,
    "EXISTS (SELECT 1 FROM VALUES (16) AS t(x) WHERE x = id)": 16,
    "id IN (SELECT max(x) FROM VALUES (17L) AS t(x))": 17,
}


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize("ansi", ["false", "true"])
def test_a_condition_finds_nothing_that_it_does_not_name(spark: SparkSession, tmp_path: Path, ansi: str) -> None:
    path = str(tmp_path)
    ids = [*range(7, 18), BIG, BIG + 1]
    day = "date_add(DATE'2025-12-31', CAST(id % 1000 AS INT))"
    frame = spark.createDataFrame([(id,) for id in ids], "id long").selectExpr(
        "id",
        "'a' AS k",
        "id / 10.0D AS v",
        "CAST(id AS DECIMAL(38,0)) AS wide",
        f"{day} AS day",
        f"CAST({day} AS TIMESTAMP) AS at",
        f"CAST({day} AS TIMESTAMP_NTZ) AS local",
    )
    persist.spark.write(frame, path, "c", key=["id"])
    with conf(spark, ansi_enabled=ansi):
        for condition in ROUNDED:
            with pytest.raises((persist.InvalidUsage, PySparkException), match=r"where=|CAST_INVALID_INPUT|subquer"):
                persist.spark.delete(spark, path, "c", condition)
                raise AssertionError(condition)
        with suppress(persist.InvalidUsage, PySparkException):  # Without ANSI, Spark compares the two as text.
            persist.spark.delete(spark, path, "c", "id IN (SELECT x FROM VALUES ('7.5') AS t(x))")
        with pytest.raises(persist.InvalidUsage, match="where="):
            where = f"id = {BIG}D"
            persist.spark.write(frame.where("false"), path, "c", mode="overwrite", where=where)
        persist.spark.delete(spark, path, "c", " OR ".join(f"({condition})" for condition in EXACT))
    assert [key for key, _ in records(path, "c")] == sorted({*ids} - {*EXACT.values()}, key=repr)


class Point(T.UserDefinedType):
    """A type that somebody has defined."""

    @classmethod
    def sqlType(cls) -> T.DataType:
        return T.ArrayType(T.DoubleType())

    @classmethod
    def module(cls) -> str:
        return __name__

    def serialize(self, obj: Any) -> Any:
        return obj


NOT_KEPT = (
    "VARIANT",
    "VOID",
    "GEOMETRY(4326)",
    "GEOGRAPHY(4326)",
    "STRING COLLATE UTF8_LCASE",
    "CHAR(3)",
    "VARCHAR(3)",
    "TIME(3)",
    "INTERVAL DAY",
    "INTERVAL HOUR TO SECOND",
    "INTERVAL YEAR TO MONTH",
    "INTERVAL MONTH",
    "INTERVAL",
    "ARRAY<VARIANT>",
    "MAP<STRING,STRING COLLATE UNICODE_CI>",
    "STRUCT<a:STRUCT<b:INTERVAL DAY>>",
    "STRUCT<>",
    "STRUCT<a:INT,a:INT>",
)


def test_a_type_of_spark_is_the_same_when_it_is_read(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path)
    with conf(spark, timeType_enabled="true"):
        values = ", ".join(f"CAST({value} AS {kind}) AS c{at}" for at, (kind, value) in enumerate(KEPT.items()))
        nulls = ", ".join(f"CAST(NULL AS {kind})" for kind in KEPT)
        frame = spark.sql(f"SELECT 1L AS id, {values} UNION ALL SELECT 2L, {nulls}")
        persist.spark.write(frame, path, "c", key=["id"])
        persist.spark.write(frame, path, "c", mode="overwrite")
        kinds = [field.dataType.simpleString() for field in frame.schema]
        wanted = sorted(map(repr, frame.collect()))
        for way in WAYS:
            found = read(spark, path, "c", way)
            assert [field.dataType.simpleString() for field in found.schema] == kinds
            assert sorted(map(repr, found.collect())) == wanted
        assert len(records(path, "c")) == 2


def test_a_type_that_would_be_another_one_when_it_is_read_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path)
    point = spark.createDataFrame([], T.StructType([T.StructField("id", T.LongType()), T.StructField("v", Point())]))
    given = {"timeType_enabled": "true", "preserveCharVarcharTypeInfo": "true", "geospatial_enabled": "true"}
    with conf(spark, **given):
        frames = {kind: spark.sql(f"SELECT 1L AS id, CAST(NULL AS {kind}) AS v") for kind in NOT_KEPT}
        for kind, frame in {**frames, "POINT": point}.items():
            with pytest.raises(persist.errors.SchemaMismatch, match=r"column 'v' holds .*cannot hold as it is"):
                persist.spark.write(frame, path, "c", key=["id"])
                raise AssertionError(kind)
        with persist.open(path) as client:
            assert [*client.collections()] == []
            client.create_or_load("c", key={"id": int}, value={"v": str})
        persist.spark.write(frames["STRING COLLATE UTF8_LCASE"], path, "c", mode="append")
        persist.spark.write(frames["VOID"].selectExpr("2L AS id", "v"), path, "c", mode="append")
        for kind in ("VARIANT", "VARCHAR(3)", "INTERVAL"):
            with pytest.raises(persist.errors.SchemaMismatch):
                persist.spark.write(frames[kind], path, "c", mode="append")
    assert records(path, "c") == [(1, None), (2, None)]


@pytest.mark.thorough(except_every=4)
@pytest.mark.parametrize(
    "far",
    [
        "DATE'+10000-01-01'",
        "TIMESTAMP'9999-12-31 23:59:59'",
        "CAST('9999-12-31 23:59:59' AS TIMESTAMP)",
        "TIMESTAMP_NTZ'-0001-01-01 00:00:00'",
    ],
)
def test_a_condition_may_name_a_moment_that_python_has_not(spark: SparkSession, tmp_path: Path, far: str) -> None:
    path = str(tmp_path)
    with conf(spark, session_timeZone="America/New_York"):
        frame = spark.sql(f"SELECT 1L AS id, {far} AS until UNION ALL SELECT 2L, {far} - INTERVAL 1 YEAR")
        persist.spark.write(frame, path, "c", key=["id"])
        persist.spark.delete(spark, path, "c", f"until = {far}")
        left = spark.read.format("persist").option("collection", "c").load(path)
        assert [row.id for row in left.select("id").collect()] == [2]
