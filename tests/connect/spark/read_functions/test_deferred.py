"""DataFrames that the query plans: the same rows as by the data source, and no job for counts and keys."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import persist
import persist.spark
from persist.connect.spark.jar import JAR
from tests.connect.spark.read_functions.test_native import QUIET

pytestmark = [pytest.mark.spark, pytest.mark.skipif(not JAR.exists(), reason="there is no javac, so no jar")]

# Queries, and whether a look-up answers them.
QUERIES = {
    "SELECT * FROM {t} WHERE a = 7 AND b = 'x'": True,
    "SELECT * FROM {t} WHERE 'y' = b AND v >= 0 AND a IN (7, 8, NULL, 70000)": False,  # A value beyond SMALLINT.
    "SELECT * FROM {t} WHERE 'y' = b AND v >= 0 AND a IN (7, 8, NULL, 9)": True,
    "SELECT v + 1 FROM (SELECT v, b, a FROM {t} WHERE v < 900) WHERE a = 3 AND b IN ('x', 'z', 'é')": True,
    "SELECT count(*), max(v) FROM {t} WHERE a = 5L AND b = 'x'": True,
    "SELECT * FROM {t} WHERE a = 7 AND a = 8 AND b = 'x'": True,
    "SELECT * FROM {t} WHERE a = NULL AND b = 'x'": True,
    "SELECT * FROM {t} WHERE a = 7": False,
    "SELECT * FROM {t} WHERE a = 7 AND (b = 'x' OR v = 14)": False,
    "SELECT * FROM {t} WHERE a = 7 AND b = 'X' COLLATE UTF8_LCASE": False,
    "SELECT * FROM {t} WHERE a = 7.0D AND b = 'x'": False,
    "SELECT * FROM {t} WHERE a <=> 7 AND b = 'x'": False,
    "SELECT * FROM {t} WHERE NOT (a = 7) AND b = 'x'": False,
    "SELECT * FROM (SELECT v AS a, b FROM {t}) WHERE a = 14 AND b = 'x'": False,
    "SELECT a, sum(v) AS s FROM {t} GROUP BY a HAVING a = 7": False,
    "SELECT * FROM (SELECT *, row_number() OVER (ORDER BY a, b) AS n FROM {t}) WHERE a = 7 AND b = 'x'": False,
    "SELECT * FROM {t} x JOIN {t} y ON x.v = y.a WHERE x.a = 7 AND x.b = 'x'": False,
    "SELECT * FROM {t} x LEFT JOIN (SELECT * FROM {t} WHERE a = 7 AND b = 'x') y ON x.v = y.v WHERE x.v < 20": False,
    "SELECT * FROM {t} x LEFT ANTI JOIN {t} y ON x.a = y.v WHERE x.v < 100": False,
    "SELECT * FROM {t} WHERE a IN (SELECT a FROM {t} WHERE v = 14)": False,
    "SELECT count(*), count(1), (SELECT max(v) FROM {t}) FROM {t}": False,
    "SELECT count(*), count(1) FROM {t}": True,
    "SELECT * FROM {t} WHERE a = 7 AND b = 'x' UNION ALL SELECT * FROM {t} WHERE a = 8 AND b = 'x'": True,
}


@pytest.fixture(scope="module")
def pair(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Names of two views of a collection, by the jar and by the data source; rows were replaced, added, removed."""
    path = str(tmp_path_factory.mktemp("pair"))
    with persist.open(path, settings=QUIET) as client:
        key, value = {"a": pa.int16(), "b": pa.string()}, {"v": pa.int64()}
        rows = client.create_or_load("rows", key=key, value=value)
        rows.upsert([((a, b), 2 * a) for a in range(2000) for b in "xyz"]).result()
        rows.upsert([((a, "x"), -a) for a in range(0, 2000, 7)]).result()
        rows.upsert([((3, "é"), 1), ((-1, "x"), 14)]).result()
        rows.delete([(8, "y"), (9, "x")]).result()
    persist.spark.snapshot(spark, path, "rows").createOrReplaceTempView("ours")
    persist.spark.snapshot(spark, path, "rows", native=False).cache().createOrReplaceTempView("theirs")
    return "ours", "theirs"


def explain_plan(df: DataFrame) -> str:
    return str(df._jdf.queryExecution().executedPlan().toString())


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize("query", QUERIES)
def test_queries_find_the_rows_of_the_data_source(spark: SparkSession, pair: tuple[str, str], query: str) -> None:
    ours, theirs = (spark.sql(query.format(t=name)) for name in pair)
    assert ours.schema.simpleString() == theirs.schema.simpleString()
    assert sorted(map(repr, ours.collect())) == sorted(map(repr, theirs.collect()))
    assert ("FileScan" not in explain_plan(ours)) == QUERIES[query]


def test_counts_and_extremes_read_no_part(spark: SparkSession, tmp_path: Path) -> None:
    with persist.open(str(tmp_path)) as client:
        client.write("rows", pa.table({"id": range(9000), "v": range(9000)}), key=["id"]).result()
    frame = persist.spark.snapshot(spark, str(tmp_path), "rows")
    assert frame.count() == 9000
    assert frame.groupBy().max("v").collect()[0][0] == 8999
    assert "FileScan" not in explain_plan(frame.groupBy().max("v"))
    assert "FileScan" not in explain_plan(frame.where("id = 7"))
    assert "FileScan" in explain_plan(frame.where("v = 7"))
    diffs = persist.spark.snapshot(spark, str(tmp_path), "rows", form="diff")
    assert diffs.selectExpr("min(_diff)", "max(_diff)").collect() == [(1, 1)]


def test_a_frame_keeps_its_time_whatever_is_written_and_cached(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path)
    with persist.open(path) as client:
        rows = client.create_or_load("rows", key={"id": int}, value={"v": int})
        rows.upsert([(i, i) for i in range(100)]).result()
        with persist.spark.location(spark, path) as opened:
            frame = opened.snapshot("rows")
            cached = opened.snapshot("rows").cache()
            assert cached.count() == 100
            rows.delete([(7)]).result()
            rows.upsert([(8, 80)]).result()
            rows.compact()
            newest = opened.snapshot("rows")
            for one in (frame, cached):
                assert (one.count(), one.where("id IN (7, 8)").count(), len(one.collect())) == (100, 2, 100)
                assert [row.v for row in one.where("id = 8").collect()] == [8]
                joined = one.join(newest, "id", "left_anti")
                assert [row.id for row in joined.collect()] == [7]
            assert (newest.count(), newest.where("id = 7").count()) == (99, 0)
            cached.unpersist()


def test_the_context_says_whether_tables_can_be_read(spark: SparkSession, tmp_path: Path) -> None:
    context = spark.sparkContext
    assert context._jvm is not None
    other = context._jvm.org.apache.spark.sql.classic.SparkSession(context._jsc.sc(), {"spark.sql.extensions": ""})
    session = SparkSession(context, other)
    assert session.conf.get("spark.sql.extensions") == ""
    with persist.open(str(tmp_path)) as client:
        client.write("rows", pa.table({"id": range(9000)}), key=["id"]).result()
    frame = persist.spark.snapshot(session, str(tmp_path), "rows")
    assert "FileScan" not in explain_plan(frame.where("id = 7"))


def test_streams_join_a_snapshot(spark: SparkSession, pair: tuple[str, str], tmp_path: Path) -> None:
    numbers = tmp_path / "numbers"
    spark.range(20).coalesce(1).write.parquet(str(numbers))
    stream = spark.readStream.schema("id long").parquet(str(numbers))
    found = []
    for name in pair:
        joined = stream.join(spark.table(name).where("b = 'x'"), stream.id == spark.table(name).a, "left")
        query = joined.writeStream.format("memory").queryName(f"joined_{name}").trigger(availableNow=True).start()
        query.awaitTermination()
        found.append(sorted(map(repr, spark.table(f"joined_{name}").collect())))
    assert found[0] == found[1]
    assert len(found[0]) == 20
