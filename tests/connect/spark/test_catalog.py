"""Collections as tables of Spark SQL: names, times, changes, statements, and who comes first."""

import logging
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import persist
import persist.spark
from persist.connect.spark import jar
from persist.connect.spark.catalog import CATALOG, Planner
from persist.connect.spark.read_functions.deferred import EXTENSIONS
from persist.errors import InvalidUsage

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not jar.JAR.exists(), reason="the jar of the catalog is not built: there is no javac"),
]


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "place")


@pytest.fixture
def shop(spark: SparkSession, place: str) -> SparkSession:
    """A session whose catalog `shop` is an empty location."""
    session = spark.newSession()
    with persist.open(place) as client:
        client.describe("a shop").result()
    return persist.spark.catalog(session, place, name="shop")


def rows(session: SparkSession, query: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in session.sql(query).collect()]


def make_orders(place: str, name: str = "orders") -> None:
    """Write three orders at time 0; at 10, order 1 is paid and order 3 goes."""
    with persist.open(place) as client:
        orders = client.create_or_load(name, key={"id": pa.int64()}, value={"status": pa.string()})
        orders.write([((1, "new"), 0, 1), ((2, "new"), 0, 1), ((3, "new"), 0, 1)], seal=10).result()
        orders.write([((1, "new"), 10, -1), ((1, "paid"), 10, 1), ((3, "new"), 10, -1)], seal=12).result()
        orders.tag("before", 9)


def contents(place: str, name: str) -> list[tuple[Any, ...]]:
    """Return the latest rows as Python reads them."""
    with persist.open(place, mode="read") as client:
        table = client.load(name).to_arrow()
        return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))


def test_namespaces_and_tables_are_listed(shop: SparkSession, place: str) -> None:
    for name in ("orders", "eu.orders", "eu.west.orders"):
        make_orders(place, name)
    assert rows(shop, "SHOW NAMESPACES IN shop") == [("eu",)]
    assert rows(shop, "SHOW NAMESPACES IN shop.eu") == [("eu.west",)]
    assert [row[:2] for row in rows(shop, "SHOW TABLES IN shop")] == [("", "orders")]
    assert [row[:2] for row in rows(shop, "SHOW TABLES IN shop.eu")] == [("eu", "orders")]
    assert rows(shop, "SELECT count(*) FROM shop.eu.west.orders") == [(2,)]
    shop.sql("CREATE NAMESPACE IF NOT EXISTS shop.us")
    assert rows(shop, "SHOW TABLES IN shop.us") == []


def test_a_table_is_read_as_of_versions_and_tags(shop: SparkSession, place: str) -> None:
    make_orders(place)
    assert rows(shop, "SELECT * FROM shop.orders ORDER BY id") == [(1, "paid"), (2, "new")]
    assert rows(shop, "SELECT * FROM shop.orders VERSION AS OF 9 ORDER BY id") == [(1, "new"), (2, "new"), (3, "new")]
    assert rows(shop, "SELECT count(*) FROM shop.orders VERSION AS OF 'before'") == [(3,)]
    joined = "SELECT a.status, b.status FROM shop.orders a JOIN shop.orders VERSION AS OF 9 b USING (id) WHERE id = 1"
    assert rows(shop, joined) == [("paid", "new")]
    inside = "SELECT id FROM shop.orders VERSION AS OF 9 WHERE id NOT IN (SELECT id FROM shop.orders)"
    assert rows(shop, inside) == [(3,)]
    with pytest.raises(AnalysisException, match="AsOfNotSealed"):
        shop.sql("SELECT * FROM shop.orders VERSION AS OF 99")


def test_a_table_is_read_as_of_moments(shop: SparkSession, place: str) -> None:
    begin = datetime(2026, 11, 20, tzinfo=UTC)
    with persist.open(place) as client:
        orders = client.create_or_load("orders", key={"id": pa.int64()}, timeline="ms")
        orders.write([((1, None), begin, 1)], seal="2026-11-21").result()
        orders.write([((2, None), datetime(2026, 11, 21, tzinfo=UTC), 1)], seal="2026-11-22").result()
    query = "SELECT count(*) FROM shop.orders TIMESTAMP AS OF "
    assert rows(shop, query + "'2026-11-20 12:00:00'") == [(1,)]
    assert rows(shop, query + "'2026-11-21 12:00:00'") == [(2,)]
    changes = "SELECT id, _change_type, _commit_timestamp FROM shop.orders CHANGES FROM TIMESTAMP '2026-11-20 12:00:00'"
    assert rows(shop, changes) == [(2, "insert", datetime(2026, 11, 21))]


def test_changes_are_rows_that_come_and_go(shop: SparkSession, place: str) -> None:
    make_orders(place)
    query = "SELECT id, status, _change_type, _commit_version FROM shop.orders CHANGES FROM VERSION {} TO VERSION {}"
    came = [(1, "new", "delete", 10), (1, "paid", "insert", 10), (3, "new", "delete", 10)]
    assert sorted(rows(shop, query.format(10, 11))) == came
    assert rows(shop, query.format(11, 11)) == []
    with persist.open(place) as client:
        client.load("orders").write([((7, "twice"), 12, 2)], seal=13).result()
    assert rows(shop, query.format(12, 12)) == 2 * [(7, "twice", "insert", 12)]


def test_statements_change_a_table(shop: SparkSession, place: str) -> None:
    shop.sql("CREATE TABLE shop.items (id BIGINT, name STRING, PRIMARY KEY (id)) USING persist COMMENT 'things'")
    assert rows(shop, "SELECT * FROM shop.items") == []
    shop.sql("INSERT INTO shop.items VALUES (1, 'a'), (2, 'b'), (3, NULL)")
    shop.sql("UPDATE shop.items SET name = 'c' WHERE name IS NULL")
    assert contents(place, "items") == [(1, "a"), (2, "b"), (3, "c")]
    shop.sql("DELETE FROM shop.items WHERE id IN (SELECT id FROM shop.items WHERE name = 'b')")
    assert contents(place, "items") == [(1, "a"), (3, "c")]
    shop.sql(
        "MERGE INTO shop.items t USING (SELECT * FROM VALUES (3, 'm'), (4, 'n'), (1, 'x') AS v(id, name)) s "
        "ON t.id = s.id WHEN MATCHED AND s.id = 1 THEN DELETE WHEN MATCHED THEN UPDATE SET * "
        "WHEN NOT MATCHED THEN INSERT *"
    )
    assert contents(place, "items") == [(3, "m"), (4, "n")]
    shop.sql("INSERT OVERWRITE shop.items VALUES (7, 'q'), (8, 'r')")
    assert contents(place, "items") == [(7, "q"), (8, "r")]
    shop.sql("INSERT INTO shop.items REPLACE WHERE id = 7 VALUES (7, 'w')")
    assert contents(place, "items") == [(7, "w"), (8, "r")]
    shop.sql("DELETE FROM shop.items")
    assert rows(shop, "SELECT * FROM shop.items") == []


def test_a_source_that_matches_a_row_twice_is_refused(shop: SparkSession, place: str) -> None:
    make_orders(place)
    source = "(SELECT * FROM VALUES (1, 'x'), (1, 'y') AS v(id, status))"
    with pytest.raises(Exception, match="MERGE_CARDINALITY_VIOLATION"):
        shop.sql(f"MERGE INTO shop.orders t USING {source} s ON t.id = s.id WHEN MATCHED THEN UPDATE SET *")
    assert contents(place, "orders") == [(1, "paid"), (2, "new")]


def test_a_merge_reads_the_range_of_its_sources_keys(shop: SparkSession, place: str) -> None:
    with persist.open(place) as client:
        client.write("orders", pa.table({"id": range(9000), "v": [0] * 9000}), key=["id"]).result()
        client.write("batch", pa.table({"id": [10, 11, 9001], "v": [1, 2, 3]}), key=["id"]).result()
    merge = "MERGE INTO shop.orders t USING {} s ON s.id = t.id WHEN MATCHED THEN UPDATE SET v = s.v "
    insert = "WHEN NOT MATCHED THEN INSERT *"
    ends = r"id#[0-9]+L? >= 10\b"
    for source, is_limited in [("shop.batch", True), ("(SELECT * FROM shop.batch LIMIT 2)", False)]:
        plan = shop.sql(f"EXPLAIN EXTENDED {merge.format(source)} {insert}").collect()[0][0]
        assert bool(re.search(ends, plan)) == is_limited, plan
    kept = "WHEN NOT MATCHED BY SOURCE THEN DELETE"
    assert not re.search(ends, shop.sql(f"EXPLAIN EXTENDED {merge.format('shop.batch')} {kept}").collect()[0][0])
    shop.sql(merge.format("shop.batch") + insert)
    shop.sql(merge.format("(SELECT * FROM shop.batch WHERE v > 9)") + insert)  # No keys have no range.
    changed = [row for row in contents(place, "orders") if row[1]]
    assert changed == [(10, 1), (11, 2), (9001, 3)]
    assert len(contents(place, "orders")) == 9001


# Sources that read the target as a whole, or have other rows or errors if they are read on their own.
WHOLE_SOURCES = {
    "SELECT x.id, x.v FROM (SELECT id, row_number() OVER (ORDER BY id) v FROM shop.text) x JOIN batch USING (id)": 52,
    "SELECT x.id, 7 AS v FROM (SELECT * FROM shop.text ORDER BY id LIMIT 9) x JOIN batch USING (id)": 0,
    "SELECT * FROM VALUES ('é', 8), (CAST(X'80' AS STRING), 9) AS s(id, v)": 8,
}


@pytest.mark.parametrize("source", WHOLE_SOURCES)
def test_a_merge_limits_nothing_but_its_target(shop: SparkSession, place: str, source: str) -> None:
    with persist.open(place) as client:
        texts = [*(f"{number:02}" for number in range(-1, 89)), "é"]
        client.write("text", pa.table({"id": texts, "v": [0] * 91}), key=["id"]).result()
    shop.sql("SELECT * FROM VALUES ('40'), ('50') AS s(id)").createOrReplaceTempView("batch")
    shop.sql(f"MERGE INTO shop.text t USING ({source}) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = s.v")
    assert max(value for _, value in contents(place, "text")) == WHOLE_SOURCES[source]


def test_a_merge_does_not_read_a_changing_source_for_a_range(shop: SparkSession, place: str) -> None:
    with persist.open(place) as client:
        client.write("orders", pa.table({"id": range(90), "v": [0] * 90}), key=["id"]).result()
    merge = "MERGE INTO shop.orders t USING (SELECT * FROM VALUES (40L, '9', 'n'), (41L, 'x', 't') AS s(id, text, kind)"
    for condition in ("id < unix_timestamp()", "id > (SELECT min(id) FROM shop.orders)", "id < 50 + rand()"):
        query = f"EXPLAIN EXTENDED {merge} WHERE {condition}) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = 1"
        assert not re.search(r"id#[0-9]+L? >= 40\b", shop.sql(query).collect()[0][0])
    shop.sql(f"{merge}) s ON s.kind = 'n' AND t.id = CAST(s.text AS BIGINT) WHEN MATCHED THEN UPDATE SET v = 1")
    assert [row for row in contents(place, "orders") if row[1]] == [(9, 1)]


def test_rows_that_are_there_twice_go_and_change_twice(shop: SparkSession, place: str) -> None:
    with persist.open(place) as client:
        client.create_or_load("bag", key={"id": pa.int64()}, value={"name": pa.string()}).write(
            [((1, "a"), 0, 3), ((2, None), 0, 1)], seal=1
        ).result()
    shop.sql("UPDATE shop.bag SET name = 'b' WHERE id = 1")
    assert contents(place, "bag")[:3] == 3 * [(1, "b")]
    shop.sql("DELETE FROM shop.bag WHERE id = 1")
    assert contents(place, "bag") == [(2, None)]


def test_tables_are_altered_renamed_and_dropped(shop: SparkSession, place: str) -> None:
    make_orders(place)
    shop.sql("ALTER TABLE shop.orders ADD COLUMN price DOUBLE COMMENT 'in euro'")
    shop.sql("ALTER TABLE shop.orders RENAME COLUMN status TO state")
    assert rows(shop, "SELECT * FROM shop.orders WHERE id = 1") == [(1, "paid", None)]
    shop.sql("ALTER TABLE shop.orders SET TBLPROPERTIES ('owner_team' = 'sales')")
    described = {row[0]: row[1:] for row in rows(shop, "DESCRIBE TABLE EXTENDED shop.orders")}
    assert described["price"] == ("double", "in euro")
    assert "owner_team=sales" in described["Table Properties"][0]
    shop.sql("ALTER TABLE shop.orders DROP COLUMN price")
    shop.sql("ALTER TABLE shop.orders RENAME TO shop.eu.sales")
    assert rows(shop, "SELECT count(*) FROM shop.eu.sales") == [(2,)]
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        shop.sql("SELECT * FROM shop.orders")
    shop.sql("DROP TABLE shop.eu.sales")
    shop.sql("DROP TABLE IF EXISTS shop.eu.sales")
    assert rows(shop, "SHOW TABLES IN shop") == []


def test_fields_inside_are_altered_and_names_may_have_dots(shop: SparkSession, place: str) -> None:
    shop.sql("CREATE TABLE shop.t (id BIGINT, a STRUCT<city: STRING, n: INT>, PRIMARY KEY (id)) USING persist")
    shop.sql("INSERT INTO shop.t SELECT 1L, named_struct('city', 'x', 'n', 2)")
    shop.sql("ALTER TABLE shop.t ADD COLUMNS (a.zip STRING, `d.e` INT)")
    shop.sql("ALTER TABLE shop.t RENAME COLUMN a.city TO town")
    shop.sql("ALTER TABLE shop.t ALTER COLUMN a.n TYPE BIGINT")
    shop.sql("ALTER TABLE shop.t DROP COLUMN IF EXISTS a.zip, a.nothing")
    assert rows(shop, "SELECT id, to_json(a), `d.e` FROM shop.t") == [(1, '{"town":"x","n":2}', None)]


def test_moments_of_changes_are_exact_where_times_are_nanoseconds(shop: SparkSession, place: str) -> None:
    time = 1_795_918_218_417_999_999
    with persist.open(place) as client:
        fine = client.create_or_load("fine", key={"id": pa.int64()}, timeline="ns")
        fine.write([((1, None), time, 1)], seal=time + 1).result()
    query = f"SELECT unix_micros(_commit_timestamp) FROM shop.fine CHANGES FROM VERSION {time} TO VERSION {time}"
    assert rows(shop, query) == [(time // 1000,)]
    with pytest.raises(AnalysisException, match="AsOfNotSealed"):
        rows(shop, f"SELECT id FROM shop.fine CHANGES FROM VERSION {time} TO VERSION {time + 9}")


def test_a_table_is_created_from_a_query(shop: SparkSession, place: str) -> None:
    make_orders(place)
    shop.sql("CREATE TABLE shop.copy USING persist TBLPROPERTIES (key = 'id') AS SELECT * FROM shop.orders")
    with persist.open(place, mode="read") as client:
        assert client.load("copy").schema.key_names == ("id",)
    assert contents(place, "copy") == contents(place, "orders")
    shop.table("shop.orders").selectExpr("id + 10 AS id", "status").writeTo("shop.copy").option("token", "t").append()
    shop.table("shop.orders").selectExpr("id + 10 AS id", "status").writeTo("shop.copy").option("token", "t").append()
    assert [row[0] for row in contents(place, "copy")] == [1, 2, 11, 12]


def test_rule_6_a_statement_is_refused_if_another_writer_came_first(shop: SparkSession, place: str) -> None:
    make_orders(place)
    planner = Planner(shop, place, {})
    loaded = planner.describe({"name": "orders", "kind": "latest", "time": None})
    assert loaded is not None
    loaded["name"] = "orders"
    with persist.open(place) as client:
        client.load("orders").write([((9, "late"), 12, 1)], seal=13).result()
    updates = shop.sql("SELECT 1L AS id, 'paid' AS status, -1L AS _diff")
    with pytest.raises(persist.errors.UpperMismatch):
        planner.apply(updates, loaded)
    assert contents(place, "orders") == [(1, "paid"), (2, "new"), (9, "late")]
    with persist.open(place) as client:
        client.load("orders").evolve(add={"price": pa.float64()})
    with pytest.raises(persist.errors.SchemaMoved):
        planner.apply(updates.selectExpr("id", "status", "0D AS price", "_diff"), loaded | {"as_of": 12})


@pytest.fixture(scope="module")
def unchanged(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[SparkSession, str]:
    """A session for statements that are refused, and its location."""
    place = str(tmp_path_factory.mktemp("unchanged"))
    make_orders(place)
    return persist.spark.catalog(spark.newSession(), place, name="shop"), place


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("CREATE TABLE shop.t (id INT NOT NULL) USING persist", "do not check NOT NULL"),
        ("CREATE TABLE shop.t (id INT) USING persist PARTITIONED BY (id)", "no partitions"),
        ("CREATE TABLE shop.t (id INT, CHECK (id > 0)) USING persist", "no constraint but PRIMARY KEY"),
        ("CREATE TABLE shop.t (id INT) USING persist TBLPROPERTIES (key = 'x')", "is not a column"),
        ("CREATE TABLE shop.t (a INT, b INT, PRIMARY KEY (b)) USING persist", "key columns come first"),
        ("CREATE TABLE shop.t (id INT, s STRING DEFAULT 'x') USING persist", "default value"),
        ("ALTER TABLE shop.orders ADD COLUMN n INT DEFAULT 5", "DEFAULT"),
        ("CREATE OR REPLACE TABLE shop.orders USING persist AS SELECT 1 AS id", "keeps its history"),
        ("INSERT INTO shop.orders REPLACE WHERE id = 1D VALUES (1, 'x')", "as DOUBLE"),
        ("SELECT * FROM shop.orders CHANGES FROM VERSION 10 WITH (computeUpdates = 'true')", "not paired"),
        ("UNCACHE TABLE shop.orders", "CLEAR CACHE frees"),
        ("ALTER TABLE shop.orders ADD COLUMN x INT FIRST", "leave out FIRST"),
        ("INSERT INTO shop.orders WITH ('colour' = 'red') VALUES (1, 'x')", "colour"),
    ],
)
def test_what_collections_lack_is_refused(unchanged: tuple[SparkSession, str], statement: str, message: str) -> None:
    shop, place = unchanged
    with pytest.raises(Exception, match=message):
        shop.sql(statement)
    assert contents(place, "orders") == [(1, "paid"), (2, "new")]


def test_what_is_not_a_session_is_refused(place: str) -> None:
    with pytest.raises(InvalidUsage, match="is not a session: give"):
        persist.spark.catalog(place, place)


def test_a_condition_means_its_moments_in_the_hour_that_comes_twice(shop: SparkSession, place: str) -> None:
    moments = [datetime(2026, 10, 25, hour, 30, tzinfo=UTC) for hour in (0, 1)]
    with persist.open(place) as client:
        hours = client.create_or_load("hours", key={"at": pa.timestamp("us", "UTC")}, value={"n": pa.int64()})
        hours.write([((moments[0], 0), 0, 1), ((moments[1], 1), 0, 1)], seal=1).result()
    shop.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        shop.sql(
            "INSERT INTO shop.hours REPLACE WHERE at >= TIMESTAMP '2026-10-25 01:30:00Z' "
            "VALUES (TIMESTAMP '2026-10-25 01:30:00Z', 7)"
        )
    finally:
        shop.conf.set("spark.sql.session.timeZone", "UTC")
    assert contents(place, "hours") == [(moments[0], 0), (moments[1], 7)]


def test_a_query_that_fails_leaves_no_table(shop: SparkSession, place: str) -> None:
    make_orders(place)
    broken = "CAST(raise_error('broken') AS STRING) AS x"
    with pytest.raises(Exception, match="broken"):
        shop.sql(f"CREATE TABLE shop.t USING persist AS SELECT id, {broken} FROM shop.orders")
    assert [row[1] for row in rows(shop, "SHOW TABLES IN shop")] == ["orders"]


def test_a_catalog_keeps_its_location(shop: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InvalidUsage, match="give another name="):
        persist.spark.catalog(shop, str(tmp_path / "other"), name="shop")


def test_streams_read_and_write_tables_by_name(shop: SparkSession, place: str, tmp_path: Path) -> None:
    make_orders(place)
    stream = shop.readStream.option("start", 0).table("shop.orders")
    assert {"id", "status", "_time", "_diff"} <= {*stream.columns}
    shop.sql("CREATE TABLE shop.log (id BIGINT, diff BIGINT) USING persist TBLPROPERTIES (key = 'id', timeline = 'ms')")
    named = stream.selectExpr("id", "_diff AS diff").writeStream.option("checkpointLocation", str(tmp_path / "state"))
    query = named.trigger(availableNow=True).toTable("shop.log")
    assert query.awaitTermination(300)
    assert contents(place, "log") == sorted([(1, 1), (2, 1), (3, 1), (1, -1), (1, 1), (3, -1)])
    with pytest.raises(AnalysisException):
        shop.sql("SELECT * FROM STREAM shop.orders")


def test_counting_reads_no_part(shop: SparkSession, place: str) -> None:
    with persist.open(place) as client:
        wide = client.create_or_load("wide", key={"id": pa.int64()})
        ones = {"_time": [0] * 50_000, "_diff": [1] * 50_000}
        wide.write(pa.table({"id": range(50_000), **ones}), seal=1).result()
    query = shop.sql("SELECT count(*) AS n FROM shop.wide")
    plan = query._jdf.queryExecution().executedPlan().toString()
    assert query.collect()[0].n == 50_000
    assert plan.strip().startswith("LocalTableScan")
    assert rows(shop, "SELECT count(1), count(*) + 1, count(DISTINCT 1), count(NULL) FROM shop.wide") == [
        (50_000, 50_001, 1, 0)
    ]
    assert shop.table("shop.wide").count() == 50_000
    extremes = shop.sql("SELECT max(ID) AS most, min(id) FROM shop.wide")
    assert "FileScan" not in extremes._jdf.queryExecution().executedPlan().toString()
    assert [tuple(row) for row in extremes.collect()] == [(49_999, 0)]
    assert rows(shop, "SELECT max(id), count(*) FROM shop.wide WHERE id < 9") == [(8, 9)]
    with persist.open(place) as client:
        client.load("wide").write(pa.table({"id": [49_999], "_time": [1], "_diff": [-1]}), seal=2).result()
    assert rows(shop, "SELECT max(id), min(id) FROM shop.wide") == [(49_998, 0)]
    assert rows(shop, "SELECT count(*) FROM shop.wide") == [(49_999,)]


def test_keyed_collections_are_tables_whose_inserts_are_events(shop: SparkSession, place: str) -> None:
    with persist.open(place) as client:
        keyed = persist.Keyed(tombstone="gone")
        value = {"name": pa.string(), "gone": pa.bool_()}
        client.create_or_load("a{b}`", key={"id": pa.int64()}, value=value, keyed=keyed)
    shop.sql("INSERT INTO shop.`a{b}``` VALUES (1, 'ada', false), (2, 'bob', false)")
    shop.sql("INSERT INTO shop.`a{b}``` VALUES (1, 'Ada', false), (2, NULL, true)")
    assert rows(shop, "SELECT id, name FROM shop.`a{b}``` WHERE name <> '{x}'") == [(1, "Ada")]
    assert contents(place, "a{b}`") == [(1, "Ada", False)]


def test_reads_and_writes_are_logged_with_their_sizes(
    shop: SparkSession, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    make_orders(place)
    with caplog.at_level(logging.INFO, "persist"):
        shop.sql("UPDATE shop.orders SET status = 'sent' WHERE id = 1")
    lines = [record.getMessage() for record in caplog.records]
    assert any(line.startswith("reads 'orders' as of 11 by ") and "parts pruned: none" in line for line in lines), lines
    assert any(line.startswith("wrote 'orders': 1 parts, 2 updates (1 retract), ") for line in lines), lines


SCRIPT = """
CREATE TABLE persist.shop.orders (id BIGINT, status STRING, PRIMARY KEY (id)) USING persist
  TBLPROPERTIES (timeline = 'ms');
INSERT INTO persist.shop.orders WITH ('time' = '2026-11-20T12:00:00Z', 'seal' = '2026-11-21T00:00:00Z')
  VALUES (1, 'new'), (2, 'new');
MERGE INTO persist.shop.orders t USING (SELECT * FROM VALUES (2, 'paid'), (3, 'new') AS v(id, status)) s ON t.id = s.id
  WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *;
SELECT concat('now ', id, ' ', status) FROM persist.shop.orders ORDER BY id;
SELECT concat('then ', id, ' ', status) FROM persist.shop.orders TIMESTAMP AS OF '2026-11-20 13:00:00'
  ORDER BY id;
SELECT concat('change ', id, ' ', status, ' ', _change_type) FROM persist.shop.orders
  CHANGES FROM TIMESTAMP '2026-11-21 00:00:00' ORDER BY id, _change_type;
"""


@pytest.mark.thorough
@pytest.mark.costly("it starts another Java machine")
def test_a_script_of_spark_sql_creates_merges_travels_and_follows(place: str, tmp_path: Path) -> None:
    (tmp_path / "script.sql").write_text(SCRIPT)
    conf = {
        "spark.sql.extensions": EXTENSIONS,
        "spark.sql.catalog.persist": CATALOG,
        "spark.sql.catalog.persist.location": place,
        "spark.pyspark.driver.python": sys.executable,
        "spark.pyspark.python": sys.executable,
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    home = Path(pyspark.__file__).parent
    command = [str(home / "bin" / "spark-sql"), "--master", "local[1]", "--jars", str(jar.JAR)]
    command += [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    environ = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
    environ = {name: value for name, value in environ.items() if not name.startswith("PYSPARK")}
    done = subprocess.run(
        [*command, "-f", str(tmp_path / "script.sql")],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=1000,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == [
        *("now 1 new", "now 2 paid", "now 3 new"),
        *("then 1 new", "then 2 new"),
        *("change 2 new delete", "change 2 paid insert", "change 3 new insert"),
    ]
