"""CREATE, DROP, ALTER, COMMENT and COPY: each does what the call of the same meaning does, or names the call."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import persist

QUIET = persist.Settings(background=False)


@pytest.fixture
def client() -> Iterator[persist.Client]:
    with persist.open(persist.MemoryBlob(), settings=QUIET) as opened:
        opened.write(
            "orders", pa.table({"id": [1, 2], "status": ["new", "paid"], "n": pa.array([1, 2], "int32")}), key=["id"]
        )
        yield opened


def rows(client: persist.Client, query: str, *, files: bool = False) -> list[Any]:
    found = [tuple(row.values()) for row in client.sql(query, files=files).to_pylist()]
    return sorted(row if len(row) > 1 else row[0] for row in found)


def test_a_table_with_a_primary_key_is_a_keyed_collection(client: persist.Client) -> None:
    done = client.sql("CREATE TABLE sales.items (id BIGINT, made TIMESTAMP NOT NULL, tags VARCHAR[], PRIMARY KEY (id))")
    assert done.to_pylist()[0] | {"seqno": 0} == {
        "statement": "CREATE TABLE", "collection": "sales.items", "rows": 0, "seqno": 0
    }  # fmt: skip
    items = client["sales.items"]
    assert items.schema.key_names == ("id",)
    assert ["required" in line for line in str(items.schema).splitlines()[1:]] == [True, True, False]
    assert items.schema.timeline == "ms"
    assert rows(client, "FROM sales.items") == []
    client.sql("INSERT INTO sales.items VALUES (1, '2026-01-01', ['a'])")
    with pytest.raises(persist.errors.DuplicateKeys):
        client.sql("INSERT INTO sales.items VALUES (1, '2026-01-02', NULL)")
    client.sql("INSERT INTO sales.items VALUES (1, '2026-01-02', NULL) ON CONFLICT DO UPDATE SET tags = excluded.tags")
    assert rows(client, "SELECT id, tags FROM sales.items") == [(1, None)]


def test_a_table_of_a_query_is_written_in_one_commit_with_its_columns(client: persist.Client) -> None:
    client.sql("CREATE TABLE copied AS SELECT id, status FROM orders")
    assert client["copied"].history().num_rows == 1
    assert rows(client, "FROM copied") == [(1, "new"), (2, "paid")]
    assert client["copied"].schema.key_names == ()
    client.sql("CREATE OR REPLACE TABLE empty AS SELECT id FROM orders WHERE false;")
    assert rows(client, "FROM empty") == []
    day = pa.table({"id": [7]})
    client.sql("CREATE TABLE days AS FROM day", files=True)
    assert rows(client, "FROM days") == day["id"].to_pylist()


def test_a_view_is_made_refreshed_and_redefined(client: persist.Client) -> None:
    client.sql("CREATE VIEW totals AS SELECT status, count(*) AS n FROM orders GROUP BY status")
    assert rows(client, "FROM totals") == [("new", 1), ("paid", 1)]
    client.sql("DELETE FROM orders WHERE id = 2")
    client.sql("REFRESH MATERIALIZED VIEW totals")
    assert rows(client, "FROM totals") == [("new", 1)]
    client.sql("CREATE OR REPLACE VIEW totals AS SELECT status, sum(id) AS n FROM orders GROUP BY status")
    client.sql("INSERT INTO orders VALUES (9, 'new', 1)")
    client.sql("REFRESH VIEW totals")
    assert rows(client, "FROM totals") == [("new", 10)]
    client.sql("DROP VIEW totals")
    assert "totals" not in client


def test_columns_and_names_change(client: persist.Client) -> None:
    for change in ("ADD COLUMN note VARCHAR", "RENAME note TO remark", "ALTER n TYPE BIGINT", "DROP COLUMN status"):
        client.sql(f"ALTER TABLE Orders {change}")
    orders = client["orders"]
    assert {name: str(orders.schema.arrow.field(name).type) for name in orders.schema.names} == {
        "id": "int64", "n": "int64", "remark": "string"
    }  # fmt: skip
    client.sql("ALTER TABLE orders RENAME TO sold")
    client.sql("COMMENT ON TABLE sold IS 'all of them'")
    client.sql("COMMENT ON COLUMN sold.remark IS 'by the seller'")
    about = client["sold"].about
    assert (about.comment, about.columns["remark"].comment) == ("all of them", "by the seller")
    client.sql("COMMENT ON COLUMN sold.remark IS NULL")
    assert client["sold"].about.columns.get("remark") in (None, type(about)())


def test_conditions_are_heard(client: persist.Client) -> None:
    seqno = client.seqno
    for statement in (
        "CREATE TABLE IF NOT EXISTS orders (x INT)", "CREATE TABLE IF NOT EXISTS orders AS SELECT 1 AS x",
        "DROP TABLE IF EXISTS nothing", "ALTER TABLE IF EXISTS nothing DROP COLUMN x",
        "ALTER TABLE orders ADD COLUMN IF NOT EXISTS n INT", "ALTER TABLE orders DROP COLUMN IF EXISTS x",
    ):  # fmt: skip
        client.sql(statement)
    assert client.seqno == seqno
    assert client.collections() == ["orders"]


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize(
    ("statement", "error", "says"),
    [
        ("CREATE TABLE orders (x INT)", persist.errors.CollectionExists, "'orders' exists already"),
        ("CREATE TABLE orders AS SELECT 1 AS x", persist.errors.CollectionExists, "'orders' exists already"),
        ("CREATE OR REPLACE TABLE orders (x INT)", persist.InvalidUsage, "drop the history"),
        ("CREATE OR REPLACE VIEW orders AS SELECT 1", persist.InvalidUsage, "is not a view"),
        ("CREATE TABLE t (x INT CHECK (x > 0))", persist.InvalidUsage, "not what a collection has"),
        ("CREATE TABLE t (x INT DEFAULT 5)", persist.InvalidUsage, "not what a collection has"),
        ("CREATE TABLE t (x INT, y INT AS (x + 1))", persist.InvalidUsage, "not what a collection has"),
        ("CREATE TABLE t (x INT UNIQUE)", persist.InvalidUsage, "not what a collection has"),
        ("CREATE TABLE t (x UHUGEINT)", persist.InvalidUsage, "'x' has the type UHUGEINT"),
        ("CREATE TABLE t (x) AS SELECT 1", persist.InvalidUsage, "name columns in the query"),
        ("CREATE TABLE t (x INT); SELECT 1", persist.InvalidUsage, "there are 2 statements"),
        ("CREATE TABLE t (x NOTHING)", persist.InvalidUsage, "DuckDB refuses the statement"),
        ("CREATE TABLE t AS SELECT * FROM '/etc/passwd'", persist.InvalidUsage, "files=True"),
        ("CREATE VIEW t", persist.InvalidUsage, "needs a query"),
        ("DROP TABLE nothing", persist.errors.CollectionNotFound, "'nothing'"),
        ("DROP VIEW orders", persist.InvalidUsage, "of type Table"),
        ("DROP TABLE orders CASCADE", persist.InvalidUsage, "by its name"),
        ('DROP TABLE "@7".main.orders', persist.InvalidUsage, "as of a time"),
        ("ALTER TABLE orders ADD COLUMN x INT DEFAULT 5", persist.InvalidUsage, "evolve"),
        ("ALTER TABLE orders ADD COLUMN x INT NOT NULL", persist.InvalidUsage, "evolve"),
        ("ALTER TABLE orders ALTER n SET NOT NULL", persist.InvalidUsage, "evolve"),
        ("ALTER TABLE orders ALTER n TYPE SMALLINT", persist.errors.SchemaMismatch, "int16"),
        ("ALTER TABLE orders ALTER n TYPE BIGINT USING n + 1", persist.InvalidUsage, "UPDATE it"),
        ("ALTER TABLE orders ALTER n TYPE INT", persist.InvalidUsage, "changes nothing"),
        ("ALTER TABLE orders DROP COLUMN id", persist.errors.SchemaMismatch, "key column"),
        ("COMMENT ON COLUMN orders.x IS 'y'", persist.InvalidUsage, "does not have a column"),
        ("REFRESH VIEW orders", persist.InvalidUsage, "is not a view"),
        ("CREATE INDEX i ON orders (id)", persist.InvalidUsage, r"index\(columns\)"),
        ("CREATE SCHEMA s", persist.InvalidUsage, "before its dot"),
        ("DROP SCHEMA s", persist.InvalidUsage, "DROP TABLE"),
        ("COPY orders TO 'x.csv'", persist.InvalidUsage, "files=True"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_and_changes_nothing(
    client: persist.Client, statement: str, error: type[Exception], says: str
) -> None:
    seqno = client.seqno
    with pytest.raises(error, match=says) as caught:
        client.sql(statement)
    assert "serialized" not in str(caught.value)
    assert client.seqno == seqno


def test_a_time_is_of_changed_rows_alone(client: persist.Client) -> None:
    for statement in ("CREATE TABLE t (x INT)", "COPY orders TO 'x.csv'"):
        with pytest.raises(persist.InvalidUsage, match="time= is only for UPDATE"):
            client.sql(statement, time=5, files=True)
    with pytest.raises(persist.InvalidUsage, match="VERSION AS OF"):
        client.sql("DROP TABLE orders", as_of=5)


def test_a_reader_defines_nothing(client: persist.Client, tmp_path: Path) -> None:
    client.write("orders", pa.table({"id": [3], "status": ["a"], "n": pa.array([1], "int32")}), mode="append").result()
    with persist.open(client.engine.storage.blob, mode="read", settings=QUIET) as reader:
        with pytest.raises(persist.errors.ReadOnly):
            reader.sql("DROP TABLE orders")
        reader.sql(f"COPY orders TO '{tmp_path}/orders.csv'", files=True)
    assert len((tmp_path / "orders.csv").read_text().splitlines()) == 4


def test_rows_are_copied_to_files_of_each_format(client: persist.Client, tmp_path: Path) -> None:
    frame = pa.table({"id": [5]})
    for source, name, expected in (
        ("orders", "it''s.csv", [(1, "new", 1), (2, "paid", 2)]),
        ("orders (id)", "x.parquet' (FORMAT parquet) --", [1, 2]),
        ("(SELECT id, 'a to b' AS \"to\" FROM orders)", "x.json", [(1, "a to b"), (2, "a to b")]),
        ("(FROM frame)", "y.parquet", frame["id"].to_pylist()),
    ):
        done = client.sql(f"COPY {source} TO '{tmp_path}/{name}'", files=True).to_pylist()
        file = done[0]["file"]
        assert done == [{"file": file, "rows": len(expected)}]
        assert file == f"{tmp_path}/{name}".replace("''", "'").partition("' (")[0]
        quoted = file.replace("'", "''")
        assert rows(client, f"FROM '{quoted}'", files=True) == expected


def test_a_copy_that_fails_leaves_the_file_as_it_was(client: persist.Client, tmp_path: Path) -> None:
    client.write("many", pa.table({"id": range(300_000)}), key=[]).result()
    file = tmp_path / "many.csv"
    client.sql(f"COPY (SELECT id FROM many WHERE id < 3) TO '{file}'", files=True)
    before = file.read_text()
    with pytest.raises(persist.InvalidUsage, match="too large"):
        client.sql(
            f"COPY (SELECT CASE WHEN id = 299999 THEN error('too large') ELSE id END FROM many) TO '{file}'", files=True
        )
    assert file.read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == ["many.csv"]
