"""What is accepted as a view is right at every refresh; what cannot be right is refused when the view is made."""

import datetime
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.compute.sql.adapt_expression import Expressions
from persist.compute.sql.algebra import Distinct, Filter, Join, Project, Scan, TopK, iterate_nodes
from persist.compute.sql.by_duckdb import SqlText
from persist.compute.sql.compile import plan_query
from persist.compute.sql.duck import show_position
from persist.compute.sql.graph import list_read_columns, lower_relation
from persist.compute.sql.lower import Lowering
from persist.compute.sql.rewrite import rewrite_plan
from persist.core.expression.term import Place
from persist.dataflow import Program
from persist.errors import InvalidUsage
from persist.sql import answer
from tests.compute.sql.oracle import TABLES, changes, check, schemas
from tests.compute.sql.test_views import rows

ODD: dict[str, tuple[pa.DataType, Any]] = {
    "wide": (pa.decimal256(50, 2), 1),
    "lasts": (pa.duration("s"), datetime.timedelta(seconds=1)),
}


@pytest.mark.parametrize("column", ODD)
def test_a_query_that_reads_a_column_of_a_type_that_views_cannot_take_is_refused(
    client: persist.Client, column: str
) -> None:
    kind, value = ODD[column]
    odd = client.create_or_load("odd", key={"a": pa.int64()}, value={"b": pa.int64(), column: kind})
    odd.write([((1, (2, value)), 0, 1)], seal=1).result()
    for sql in ("SELECT * FROM odd", f"SELECT {column} FROM odd", f"SELECT a FROM odd WHERE {column} IS NULL"):
        with pytest.raises(persist.InvalidUsage, match=f"(?s)column '{column}' of collection 'odd' is of type .*name"):
            client.create_view("v", sql)
    view = client.create_view("v", "SELECT a, b, (SELECT count(*) FROM odd) AS n FROM odd")
    view.refresh()
    assert rows(view) == [(1, 2, 1)]


def test_long_texts_and_bytes_of_any_layout_are_read(client: persist.Client) -> None:
    kinds = {"s": pa.large_string(), "b": pa.large_binary(), "four": pa.binary(4)}
    wide = client.create_or_load("wide", key={"k": pa.large_string()}, value=kinds)
    narrow = client.create_or_load("narrow", key={"s": pa.string()}, value={"n": pa.int64()})
    narrow.write([(("x", 7), 0, 1)], seal=3).result()
    wide.write([(("one", ("x", b"1", b"abcd")), 0, 1), (("two", ("y", None, b"abcd")), 0, 1)], seal=1).result()
    where = "s >= 'x' AND four = 'abcd'::BLOB"
    sql = f"SELECT k || '!' AS k, s, b, four, n FROM wide LEFT JOIN narrow USING (s) WHERE {where}"
    view = client.create_view("v", sql)
    view.refresh()
    assert rows(view) == [("one!", "x", b"1", b"abcd", 7), ("two!", "y", None, b"abcd", None)]
    wide.write([(("one", ("x", b"1", b"abcd")), 1, -1), (("three", (None, None, None)), 1, 1)], seal=2).result()
    view.refresh()
    assert rows(view) == [("two!", "y", None, b"abcd", None)]
    program = Program("p").using(client)
    assert answer(program, "SELECT s FROM wide").schema.types == [pa.string()]


def test_a_text_that_becomes_a_long_one_stays_what_it_is_for_the_view(client: persist.Client) -> None:
    texts = client.create_or_load("texts", key={"k": pa.int64()}, value={"s": pa.string()})
    texts.write([((1, "x"), 0, 1)], seal=1).result()
    view = client.create_view("v", "SELECT k, s FROM texts")
    view.refresh()
    texts.evolve(widen={"s": pa.large_string()})
    texts.write([((2, "y"), 1, 1)], seal=2).result()
    view.close()
    view.refresh()
    assert rows(view) == [(1, "x"), (2, "y")]


@pytest.mark.parametrize(
    "sql", ["SELECT rowid FROM t", "SELECT t.a FROM t JOIN t o ON t.ROWID = o.rowid", "SELECT count(rowid) AS n FROM t"]
)
def test_rows_of_collections_have_no_number(client: persist.Client, sql: str) -> None:
    client.create_or_load("t", key={"a": pa.int64()}, value={"b": pa.int64()})
    with pytest.raises(persist.InvalidUsage, match=r"rowid: rows of collections have no number.*key.*\['a'\]"):
        client.create_view("v", sql)


def test_a_column_that_is_called_rowid_is_one(client: persist.Client) -> None:
    t = client.create_or_load("t", key={"ROWID": pa.int64()}, value={"b": pa.int64()})
    t.write([((5, 6), 0, 1)], seal=1).result()
    view = client.create_view("v", "SELECT rowid, b FROM t WHERE rowid > 1")
    view.refresh()
    assert rows(view) == [(5, 6)]


def test_columns_may_have_any_names_and_explain_shows_them(client: persist.Client) -> None:
    names = ("self", "schema", "function", "v0", "there", "k0", "_0", "c1", "is_out")
    t = client.create_or_load("named", key={"_part": int}, value=dict.fromkeys(names, int))
    t.write([((1, (2, 3, 4, 5, 6, 7, 8, 9, 10)), 0, 1)], seal=1).result()
    quoted = ", ".join(f'"{name}"' for name in names)
    sums = ", ".join(f'sum("{name}")::BIGINT AS "{name}"' for name in names[2:])
    others = ", ".join(f'b."{name}"' for name in names)
    for at, sql in enumerate(
        (
            f"SELECT _part, {quoted} FROM named",
            f'SELECT 0 AS _part, "self", "schema", {sums} FROM named GROUP BY "self", "schema"',
            f"SELECT _part, {quoted} FROM named ORDER BY there LIMIT 1",
            f'SELECT a._part, {others} FROM named a LEFT JOIN named b ON a._part = b."self" - 1',
            f'SELECT _part, {quoted} FROM named WHERE "schema" IN (SELECT v0 - 2 FROM named)',
        )
    ):
        view = client.create_view(f"v{at}", sql)
        view.refresh()
        [row] = view.snapshot().to_pylist()
        assert row == {"_part": int(at != 1)} | dict(zip(names, range(2, 11), strict=True))
    assert "reduce[by self, schema: " in client.view("v1").explain()


@pytest.mark.thorough(except_every=4)
@pytest.mark.parametrize(
    ("sql", "same"),
    [
        ("SELECT DISTINCT a FROM t ORDER BY b LIMIT 2", "min(b) AS o FROM t GROUP BY a ORDER BY o, a"),
        ("SELECT DISTINCT a FROM t ORDER BY b DESC LIMIT 2", "max(b) AS o FROM t GROUP BY a ORDER BY o DESC, a"),
        ("SELECT DISTINCT a FROM t ORDER BY m + 1 LIMIT 2", "min(m + 1) AS o FROM t GROUP BY a ORDER BY o, a"),
    ],
)
def test_distinct_rows_come_where_their_first_one_comes_in_the_order(sql: str, same: str) -> None:
    for seed in range(5):
        check(sql, changes(seed), asked=f"SELECT a FROM (SELECT a, {same} LIMIT 2)")


def test_an_order_of_distinct_rows_without_a_limit_is_not_computed() -> None:
    plan = rewrite_plan(plan_query("SELECT DISTINCT a FROM t ORDER BY b", schemas(TABLES))[0])
    assert [type(node) for node in iterate_nodes(plan)] == [Project, Distinct, Project, Project, Scan]
    assert list_read_columns(lower_relation(plan)) == {"t": {"a": "int32"}}


RAISES = "t.s::INTEGER > 0"  # It fails on each text of the oracle's tables that is not empty.
KEYED = [
    "SELECT t.a, u.b FROM t, u WHERE t.b // 2 > 0 AND t.a = u.a",
    "SELECT t.a, u.b FROM t, u WHERE t.b::TINYINT > 0 AND t.a = u.a AND u.b::TINYINT < 3",
    "SELECT t.a, u.b FROM t, u WHERE t.m BETWEEN 0 AND 2.5 AND t.a = u.a",
    "SELECT t.a, u.b, w.x FROM t, u, w WHERE t.b // (u.b + 10) < 3 AND w.a = t.a AND u.b // 2 >= 0 AND u.a = t.a",
    "SELECT t.a, u.b FROM t JOIN u ON t.b // 2 > 0 AND t.a = u.a AND t.b // (u.b + 10) >= 0",
    "SELECT t.a, u.b FROM t, u WHERE t.a::TINYINT = u.a",
    "SELECT t.a, u.b FROM t, u WHERE t.b // 2 = u.a AND t.b // 2 > 0",
    "SELECT t.a, u.b, w.x FROM t, u, w WHERE t.b // 2 = u.a AND w.a = u.b AND t.a % 2 = 1",
    "SELECT t.a, u.b, w.x FROM t, u, w WHERE t.a % 2 = 1 AND t.b // 2 = u.a AND w.a // 1 = u.b",
    "SELECT q.i, u.b FROM (SELECT b // 2 AS i, a FROM t WHERE a % 3 < 2) q, u WHERE q.i = u.a AND q.a // 2 < 3",
    "SELECT t.a, u.b FROM t, u WHERE t.b // 2 = u.a AND t.a IN (SELECT a FROM w)",
    "SELECT t.a, u.b FROM t, u WHERE t.b // 2 > 0 AND t.a = u.a AND t.a IN (SELECT a FROM w)",
]


def test_no_query_with_an_equality_is_a_cross_product() -> None:
    for sql in KEYED:
        for node in iterate_nodes(rewrite_plan(plan_query(sql, schemas(TABLES))[0])):
            assert not isinstance(node, Join) or node.equal or node.same, sql


@pytest.mark.thorough(except_every=12)
@pytest.mark.parametrize("sql", KEYED)
def test_an_equality_is_a_key_whatever_may_raise_beside_it(sql: str) -> None:
    for seed in range(3):
        check(sql, changes(seed))


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT t.a FROM t, u WHERE {RAISES} AND t.a = u.a AND t.a < 0",
        f"SELECT t.a FROM t, u WHERE {RAISES} AND t.a = u.a + 100",
        f"SELECT a FROM (SELECT * FROM t WHERE {RAISES}) WHERE a < 0",
        f"SELECT t.a FROM t, u WHERE t.s = '7' AND {RAISES} AND t.s::INTEGER = u.a",
        f"SELECT t.a FROM t, u WHERE (CASE WHEN t.s = '7' THEN {RAISES} END) AND t.s::INTEGER = u.a",
        f"SELECT a FROM t WHERE a IN (SELECT a + 100 FROM u) AND {RAISES}",
        f"SELECT a FROM t WHERE {RAISES} AND a IN (SELECT a + 100 FROM u)",
    ],
)
def test_a_condition_that_may_raise_sees_no_row_that_others_leave_out(sql: str) -> None:
    check(sql, changes(1), asked="SELECT a FROM t WHERE false")


def test_a_condition_with_a_constant_that_duckdb_computes_is_applied_below_the_join() -> None:
    sql = "SELECT t.a, u.b FROM t, u WHERE t.a = u.a AND t.d >= DATE '2020-02-01' AND u.s < concat('a', 'b')"
    plan = rewrite_plan(plan_query(sql, schemas(TABLES))[0])
    filters = [node for node in iterate_nodes(plan) if isinstance(node, Filter)]
    assert len(filters) == 2
    assert not any(isinstance(node, Join) for each in filters for node in iterate_nodes(each))
    check(sql, changes(1))


@pytest.mark.parametrize(("limit", "offset"), [(1, 0), (2, 0), (None, 1), (2, 1), (1, 3)])
def test_of_rows_that_all_agree_as_many_are_taken_as_are_asked_for(limit: int | None, offset: int) -> None:
    top = TopK(Scan("t", ("a",), ("int32",)), (), limit, offset, (Place(0),))
    program = Program("top")
    t = program.input("t", key={"a": pa.int32()})
    seen = Lowering(program, lambda name: t).lower_rewritten(top).capture()
    with program.open() as running:
        running["t"].insert([((a, None), 0, a) for a in range(1, 5)])
        running["t"].advance_to(1)
        running.step()
    counts = {row["c0"]: row["_diff"] for row in seen.updates().to_pylist()}
    wanted = {a: max(0, min(a - offset, 9 if limit is None else limit)) for a in range(1, 5)}
    assert counts == {a: count for a, count in wanted.items() if count}


def test_what_a_plan_says_and_is_not_known_is_refused_where_it_stands() -> None:
    sql = "SELECT\n a FROM t"
    node = {"expression_class": "BOUND_REF", "index": 0, "query_location": 8, "collation": "NOCASE"}
    with pytest.raises(
        InvalidUsage, match=r"(?s)collation='NOCASE' of the ref is not supported.*line 2:  a FROM t\n +\^"
    ):
        Expressions(sql).translate(node)
    assert Expressions(sql).translate({**node, "collation": ""}) == Place(0)
    order = {"type": "ASCENDING", "null_order": "NULLS LAST", "expression": node}
    aggregate = {
        "expression_class": "BOUND_AGGREGATE",
        "type": "BOUND_AGGREGATE",
        "children": [],
        "qname": {"path": ["sum"]},
    }
    for more, message in (
        ({"state_export": "EXPORT"}, "EXPORT_STATE of the aggregate"),
        ({"aggregate_type": "ANOTHER"}, "aggregate_type='ANOTHER'"),
        ({"order_bys": {"orders": [{**order, "type": "ORDER_USING"}]}}, "type='ORDER_USING' of the orders"),
        ({"order_bys": {"orders": [{**order, "collation": "x"}]}}, "collation='x' of the orders"),
        ({"function_data": {"seed": 7}}, "seed=7 of the function data"),
    ):
        with pytest.raises(InvalidUsage, match=message):
            Expressions(sql).check({**aggregate, **more})
        with pytest.raises(InvalidUsage, match=message):
            SqlText(
                Expressions(sql).translate, Expressions(sql).refuse, lambda node: True, Expressions(sql).check
            ).translate({**aggregate, **more})
    with pytest.raises(InvalidUsage, match="BOUND_BETWEEN is not supported in a view"):
        Expressions(sql).translate({"expression_class": "BOUND_BETWEEN"})


@pytest.mark.parametrize(
    ("at", "shown"),
    [
        (None, ""), ("x", ""), (-1, ""), (22, ""),
        (0, "\n  line 1: SELECT ä,\n          ^"),
        (7, "\n  line 1: SELECT ä,\n                 ^"),
        (9, "\n  line 1: SELECT ä,\n                  ^"),  # In bytes, of which ä has two.
        (12, "\n  line 2:  b FROM t\n           ^"),
        (21, "\n  line 3: \n          ^"),
    ],
)  # fmt: skip
def test_a_place_in_a_query_is_a_line_with_a_mark_below_it(at: Any, shown: str) -> None:
    assert show_position("SELECT ä,\n b FROM t\n", at) == shown


def test_of_a_long_line_what_is_around_the_place_is_shown() -> None:
    sql = "SELECT " + "a, " * 100 + "x"
    lines = show_position(sql, 307).splitlines()
    assert lines[1] == "  line 1: " + sql[227:347]
    assert len(lines[2]) == 10 + 80 + 1
    assert show_position(sql, 80).splitlines()[1] == "  line 1: " + sql[:120]


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize("how", ["UNION ALL", "UNION"])
def test_hundreds_of_parts_of_a_union_are_no_deep_plan(client: persist.Client, how: str) -> None:
    t = client.create_or_load("t", key={"a": pa.int64()}, value={"b": pa.int64()})
    t.write([((5, 6), 0, 1)], seal=1).result()
    view = client.create_view("v", f" {how} ".join(f"SELECT a + {at % 3} AS a FROM t" for at in range(300)))
    view.refresh()
    assert view.snapshot().count() == (300 if how == "UNION ALL" else 3)


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize(
    "sql",
    [
        " EXCEPT ".join(f"SELECT a + {at} AS a FROM t" for at in range(120)),
        "SELECT a" + " + 1" * 300 + " AS a FROM t",
        "SELECT " + "abs(" * 600 + "a" + ")" * 600 + " AS a FROM t",
        "SELECT a FROM " + "(SELECT a FROM " * 150 + "t" + ")" * 150,
        "SELECT a FROM " + "(SELECT a FROM " * 300 + "t" + " LIMIT 9)" * 300,
    ],
)
def test_a_query_that_nests_deeper_than_can_be_run_is_refused(client: persist.Client, sql: str) -> None:
    client.create_or_load("t", key={"a": pa.int64()}, value={"b": pa.int64()})
    with pytest.raises(persist.InvalidUsage, match=r"nests deeper than views can take|depth limit"):
        client.create_view("v", sql)


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT * FROM t USING SAMPLE 2", "another part each time"),
        ("SELECT t.a FROM t ASOF JOIN t o ON t.a >= o.b AND t.b + o.b > 1", "with <, <=, > or >=, and no others"),
        ("SELECT t.a FROM t POSITIONAL JOIN t o", "in no order"),
        ("SELECT * FROM duckdb_types()", r"reads only collections, not duckdb_types\(\)"),
        ("SELECT e.rowid, e.key FROM json_each('[1]') e", "no rowid"),
        ("SELECT a FROM t LIMIT (SELECT 2)", "constant whole number"),
    ],
)
def test_what_cannot_be_kept_up_to_date_is_refused_with_what_to_write(
    client: persist.Client, sql: str, message: str
) -> None:
    client.create_or_load("t", key={"a": pa.int64()}, value={"b": pa.int64()})
    with pytest.raises(persist.InvalidUsage, match=message):
        client.create_view("v", sql)
