"""Views and programs that the tasks of Spark bring up to date."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import persist
import persist.spark
from persist.api.collection import Collection
from persist.dataflow import Program, col
from persist.errors import OperatorFailed
from tests.compute.sql.oracle import Row, comparable
from tests.compute.sql.test_tpch import asked, with_diff
from tests.compute.sql.tpch import QUERIES, Refreshes, generated
from tests.support.tiers import examples

pytestmark = pytest.mark.spark

TOTALS = "SELECT status, sum(amount) AS total, count(*) AS n FROM orders GROUP BY status"
SMALL = ["q1", "q3", "q4", "q6", "q12", "q13", "q14", "q15", "q18", "q22"]
KEYS = {"lineitem": ["l_orderkey", "l_linenumber"], "partsupp": ["ps_partkey", "ps_suppkey"]}


@pytest.fixture
def client(location: str) -> Iterator[persist.Client]:
    with persist.open(location) as found:
        yield found


def rows(collection: Collection, as_of: int | None = None) -> list[tuple[Any, ...]]:
    table = collection.snapshot(as_of).to_arrow()
    return sorted(zip(*(table[name].to_pylist() for name in table.column_names), strict=True), key=repr)


def shown(collection: Collection) -> list[str]:
    """Return all rows as text, in which NaN equals itself."""
    return sorted(map(repr, rows(collection)))


def changes(collection: Collection) -> list[str]:
    """Return all updates after the first time that can be read."""
    table = collection.changes((collection.since.time or 0) + 1, collection.upper).to_arrow()
    return sorted(map(repr, table.to_pylist()))


def test_tasks_give_what_an_embedded_refresh_gives_at_every_time(spark: SparkSession, client: persist.Client) -> None:
    orders = client.load("orders")
    by_tasks, embedded = (client.create_view(name, TOTALS) for name in ("by tasks", "embedded"))
    refreshed = persist.spark.refresh(by_tasks, spark, where="tasks", partitions=3)
    assert (refreshed.where, refreshed.reads, refreshed.reason) == ("tasks", "everything", "that was asked for")
    assert refreshed.seqno is not None
    embedded.refresh()
    assert shown(by_tasks) == shown(embedded)
    orders.write([((1, ("paid", 7.5)), 13, 1), ((2, ("new", 1.0)), 13, -1), ((6000, (None, float("nan"))), 15, 1)])
    orders.seal(20).result()
    assert persist.spark.refresh(by_tasks, spark, where="tasks").reads == "everything"
    embedded.refresh()
    assert (by_tasks.upper, changes(by_tasks)) == (embedded.upper, changes(embedded))
    orders.seal(21).result()
    assert persist.spark.refresh(by_tasks, spark, where="tasks").seqno is not None
    assert persist.spark.refresh(by_tasks, spark, where="tasks").seqno is None
    assert by_tasks.upper == persist.Antichain(21)
    assert client.fsck().problems == ()


def test_views_on_views_move_in_one_commit_of_tasks(spark: SparkSession, client: persist.Client) -> None:
    totals = client.create_view("totals", TOTALS)
    most = client.create_view("most", "SELECT max(total) AS most, count(*) AS n FROM totals")
    refreshed = persist.spark.refresh(most, spark, where="tasks", partitions=2)
    [record] = [each for each in client.history().to_pylist() if each["seqno"] == refreshed.seqno]
    assert {*record["collections"]} >= {"totals", "most"}
    assert repr(rows(most)) == repr([(float("nan"), len(rows(totals)))])


def test_who_computes_is_chosen_by_how_much_there_is_to_read_and_said(
    spark: SparkSession, client: persist.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    totals, least = client.create_view("totals", TOTALS), client.create_view("least", TOTALS)
    assert persist.spark.explain_refresh(totals, spark).startswith("computed here, reads all that the sources hold")
    assert "computed by tasks" in persist.spark.explain_refresh(totals, spark, where="tasks")
    assert persist.spark.refresh(totals, spark).where == "here"
    assert totals.upper == persist.Antichain(13)
    monkeypatch.setattr("persist.connect.spark.refreshing.TASKS_BYTES", 0)
    refreshed = persist.spark.refresh(least, spark)
    assert (refreshed.where, refreshed.reason) == ("tasks", "an output begins")
    assert shown(least) == shown(totals)
    totals.close()
    client.load("orders").write([((7, ("new", 3.5)), 13, -1)], seal=14).result()
    refreshed = persist.spark.refresh(totals, spark)
    assert (refreshed.where, refreshed.reads) == ("here", "requests")
    rows = pa.table({"id": range(5000, 15_000), "status": ["new"] * 10_000, "amount": [1.0] * 10_000})
    client.load("orders").write(rows, time=14, seal=15).result()
    assert persist.spark.refresh(totals, spark, where="driver").where == "here"
    assert persist.spark.refresh(least, spark).reason == "a large part of the sources has changed"
    assert shown(least) == shown(totals)


@pytest.mark.thorough
def test_all_ways_give_the_same_updates(spark: SparkSession, client: persist.Client) -> None:
    customers = client.create_or_load("customers", key={"c": pa.int64()}, value={"city": pa.string()})
    customers.write([((n, f"city {n % 3}"), 0, 1) for n in range(3000)], seal=13).result()
    joined = (
        "SELECT o.id, c.city, o.amount, count(*) OVER (PARTITION BY o.id) AS n"
        " FROM orders o JOIN customers c ON o.id = c.c"
    )
    grouped = "SELECT amount, count(*) AS n, max(city) AS city FROM orders JOIN customers ON id = c GROUP BY amount"
    for number, query in enumerate((joined, grouped)):
        ways = {way: client.create_view(f"{way} {number}", query) for way in ("state", "here", "tasks")}
        for each in ways.values():
            each.refresh()
            each.close()
        orders, upper = client.load("orders"), client.load("orders").upper.time or 0
        orders.write([((8, ("new", 4.0)), upper, -1), ((8, ("paid", 5.0)), upper, 1)], seal=upper + 1).result()
        orders.write([((9, ("paid", 4.5)), upper + 1, -1)], seal=upper + 2).result()
        customers.write([((10, "city 1"), upper, -1), ((10, None), upper, 1)], seal=upper + 2).result()
        ways["state"].open_state()
        ways["here"].refresh()
        assert persist.spark.refresh(ways["tasks"], spark, where="tasks", partitions=2).where == "tasks"
        assert all(changes(each) == changes(ways["state"]) for each in ways.values())
        assert len(changes(ways["state"])) >= 4
    assert client.fsck().problems == ()


@pytest.mark.thorough
def test_what_tasks_cannot_compute_is_done_here_and_says_so(spark: SparkSession, client: persist.Client) -> None:
    view = client.create_view(
        "r", "WITH RECURSIVE r AS (SELECT id FROM orders WHERE id < 3 UNION SELECT id + 1 FROM r WHERE id < 9) FROM r"
    )
    refreshed = persist.spark.refresh(view, spark, where="tasks")
    assert refreshed.where == "here"
    assert "is recursive" in refreshed.reason
    assert rows(view) == [(each,) for each in range(10)]
    with pytest.raises(persist.InvalidUsage, match="is not a view"):
        persist.spark.refresh(client.load("orders"), spark)  # type: ignore[arg-type]
    with pytest.raises(persist.InvalidUsage, match="is not a place to compute"):
        persist.spark.refresh(view, spark, where="cluster")  # type: ignore[arg-type]


def test_no_task_computes_a_function_of_this_process(spark: SparkSession, client: persist.Client) -> None:
    client.create_function("twice", lambda values: values, [pa.int64()], pa.int64(), version=1)
    view = client.create_view("v", "SELECT id, twice(id) AS t FROM orders")
    with pytest.raises(persist.InvalidUsage, match=r'twice, .* in this process alone: .* where="auto" or "driver"'):
        persist.spark.refresh(view, spark, where="tasks")
    assert persist.spark.refresh(view, spark).where == "here"


def test_a_row_that_the_query_fails_on_is_named_and_the_view_stays(spark: SparkSession, client: persist.Client) -> None:
    orders = client.load("orders")
    view = client.create_view("v", "SELECT id * 1800000000000000 AS n FROM orders WHERE id > 1998")
    persist.spark.refresh(view, spark, where="tasks")
    before = rows(view)
    orders.write([((90_000, ("odd", 1.0)), 13, 1)], seal=14).result()
    with pytest.raises(OperatorFailed, match="90000"):
        persist.spark.refresh(view, spark, where="tasks")
    assert (view.upper, rows(view)) == (persist.Antichain(13), before)
    orders.write([((90_000, ("odd", 1.0)), 14, -1)], seal=15).result()
    assert persist.spark.refresh(view, spark, where="tasks").where == "here"  # It passes over the time that fails.
    assert (view.upper, rows(view)) == (persist.Antichain(15), before)


@pytest.mark.thorough
def test_a_row_that_fails_in_a_stage_that_several_read_is_named(spark: SparkSession, client: persist.Client) -> None:
    # Both readers of the stage fail with it, which Spark reports by an error of another class.
    kinds = client.create_or_load("kinds", key={"status": pa.string()}, value={"kind": pa.int64()})
    kinds.write([(("new", 1), 0, 1), (("paid", 2), 0, 1), (("odd", 3), 0, 1)], seal=14).result()
    query = "SELECT kind, sum(id)::INTEGER AS n FROM orders JOIN kinds USING (status) GROUP BY kind"
    below = client.create_view("below", query)
    above = client.create_view("above", "SELECT n, count(*) AS kinds FROM below GROUP BY n")
    client.load("orders").write([((3_000_000_000, ("odd", 1.0)), 13, 1)], seal=14).result()
    for _ in range(4):  # Whether one failure ends the other reader first is a race.
        with pytest.raises(OperatorFailed, match="3000005001"):
            persist.spark.refresh(above, spark, where="tasks", partitions=3)
    assert below.upper == above.upper == persist.Antichain(0)


def test_a_program_runs_on_spark(spark: SparkSession, client: persist.Client) -> None:
    program = Program("paid per amount").using(client)
    paid = program.source("orders").filter(col("status") == "paid").map(whole=col("amount"))
    paid.group_by("whole").agg(n=col("whole").count()).persist("paid", key=["whole"])
    refreshed = persist.spark.run_program(spark, client, program, until=10, where="tasks", partitions=2)
    assert refreshed.reads == "everything"
    found = client.load("paid")
    assert found.upper == persist.Antichain(13)
    client.load("orders").seal(14).result()
    with program.open(client) as running:
        running.run(until=13)
    assert found.upper == persist.Antichain(14)
    assert sum(count for _, count in rows(found)) == sum(
        status == "paid" for _, status, _ in rows(client.load("orders"))
    )
    with pytest.raises(persist.InvalidUsage, match="is not a whole number"):
        persist.spark.run_program(spark, client, program, until=-1)
    with pytest.raises(persist.errors.AsOfNotSealed):
        persist.spark.run_program(spark, client, program, until=50, timeout_s=0.0)


@pytest.mark.thorough
@pytest.mark.parametrize("names", [SMALL[n : n + 2] for n in range(0, len(SMALL), 2)], ids="-".join)
def test_queries_of_tpch_have_the_answers_of_duckdb_after_each_refresh_on_spark(
    spark: SparkSession, tmp_path: Path, names: list[str]
) -> None:
    tables = generated(tmp_path / "data", 0.001)
    changing = Refreshes(tables, seed=len(names[0]))
    with persist.open(str(tmp_path / "location")) as client:
        for name, table in tables.items():
            kinds = {field.name: field.type for field in table.schema}
            key = {each: kinds.pop(each) for each in KEYS.get(name, table.column_names[:1])}
            client.create_or_load(name, key=key, value=kinds).write(with_diff(table, 0, 1), seal=1).result()
        views = {name: client.create_view(name, QUERIES[name]) for name in names}
        for step in range(1 + examples(3)):
            given = changing.step(0.02) if step else {}
            for name in tables:
                collection = client.load(name)
                for changed, diff in zip(given.get(name, ()), (-1, 1), strict=False):
                    collection.write(with_diff(changed, step, diff))
                collection.seal(step + 1).result()
            for name, view in views.items():
                assert persist.spark.refresh(view, spark, where="tasks", partitions=2).where == "tasks"
                assert answer(view) == asked(QUERIES[name], changing.tables), (name, step)


def answer(view: Any) -> Counter[Row]:
    table = view.snapshot(form="diff").to_arrow()
    columns = [table[name].to_pylist() for name, _ in view.definition.columns]
    found: Counter[Row] = Counter()
    for record, diff in zip(zip(*columns, strict=True), table["_diff"].to_pylist(), strict=True):
        found[tuple(map(comparable, record))] += diff
    return Counter({record: count for record, count in found.items() if count})


@pytest.mark.thorough
def test_every_type_goes_through_a_shuffle_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    kinds = {
        "i": pa.int16(), "s": pa.string(), "f": pa.float32(), "m": pa.decimal128(38, 4), "d": pa.date32(),
        "t": pa.timestamp("us"), "b": pa.bool_(),
    }  # fmt: skip
    with persist.open(str(tmp_path / "location")) as client:
        given = client.create_or_load("given", key={"k": pa.int64()}, value=kinds)
        given.write([((n, (None,) * len(kinds)), 0, n) for n in range(1, 4)])
        given.write(
            pa.table(
                {
                    "k": pa.array([9, 10]),
                    "i": pa.array([7, 7], pa.int16()),
                    "s": ["é", "é"],
                    "f": pa.array([float("nan"), -0.0], pa.float32()),
                    "m": pa.array(["1.5", "-99999999999999999999.0001"]).cast(pa.decimal128(38, 4)),
                    "d": pa.array([0, -719162], pa.int32()).cast(pa.date32()),
                    "t": pa.array([1, -1], pa.timestamp("us")),
                    "b": [True, False],
                    "_time": [0, 0],
                    "_diff": [1, 1],
                }
            )
        )
        given.seal(1).result()
        query = "SELECT i, s, f, m, d, t, b, count(*) AS n FROM given GROUP BY ALL"
        by_tasks, embedded = (client.create_view(name, query) for name in ("by tasks", "embedded"))
        persist.spark.refresh(by_tasks, spark, where="tasks", partitions=3)
        embedded.refresh()
        assert len(rows(embedded)) == 3
        assert shown(by_tasks) == shown(embedded)


@pytest.mark.thorough
def test_a_streaming_query_drives_refreshes(spark: SparkSession, client: persist.Client, tmp_path: Path) -> None:
    totals = client.create_view("totals", TOTALS)
    totals.refresh()
    sent = client.create_or_load("sent", key={"id": pa.int64()}, value={"status": pa.string()})
    counts = client.create_view("counts", "SELECT status, count(*) AS n FROM sent GROUP BY status")
    folder, ways = client.url, []

    def passed_on(batch: DataFrame, number: int) -> None:
        come = batch.where("_diff = 1").selectExpr("id", "status", f"{number}L AS _time", "_diff")
        persist.spark.write(come, folder, "sent", seal=number + 1, token=f"batch {number}")
        ways.append(persist.spark.refresh(counts, batch.sparkSession, where="tasks").reads)

    options = {"collection": "orders", "form": "changes", "start": "10"}
    stream = spark.readStream.format("persist").options(**options).load(folder)
    writer = stream.writeStream.foreachBatch(passed_on).option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert ways
    assert ways[0] == "everything"
    assert counts.upper == sent.upper
    expected = Counter(status for _, status in rows(sent))
    assert expected["paid"] == 667
    assert dict(rows(counts)) == expected
