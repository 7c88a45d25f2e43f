"""A refresh that is given up, by a limit or by Ctrl-C, leaves the view at its last time, and the next one goes on."""

import warnings

import numpy as np
import pyarrow as pa
import pytest

import persist
from persist import View
from persist.codecs.types.schema import CollectionSchema
from persist.compute.sql.compile import plan_query
from persist.compute.sql.creating import list_unbounded_joins
from persist.compute.sql.rewrite import rewrite_plan
from persist.errors import InvalidUsage, LimitReached
from persist.sql import UnboundedState
from tests.compute.sql.test_views import rows
from tests.compute.sql.tpch import QUERIES

QUERY = "SELECT g, count(*) AS n FROM t GROUP BY g"


@pytest.fixture
def client(client: persist.Client) -> persist.Client:
    client.create_or_load("t", key={"k": pa.int64()}, value={"g": pa.int64()})
    return client


def begun(client: persist.Client) -> View:
    client.load("t").write([((1, 7), 0, 1)], seal=1).result()
    view = client.create_view("v", QUERY)
    view.refresh()
    client.load("t").write([((2, 7), 1, 1)], seal=2).result()
    return view


@pytest.mark.parametrize("keeps_state", [True, False])
def test_a_refresh_ends_at_its_limit_of_time(client: persist.Client, keeps_state: bool) -> None:
    view = begun(client)
    if keeps_state:
        view.open_state()
        client.load("t").write([((3, 7), 2, 1)], seal=3).result()
    before = view.upper
    with pytest.raises(LimitReached, match=r"limit of time, which is timeout_s=0.*nothing else was written"):
        view.refresh(timeout_s=0, policy="auto" if keeps_state else "incremental")
    assert view.upper == before
    assert not view.is_open
    view.refresh(timeout_s=600, memory_limit=1 << 40)
    assert rows(view) == [(7, 3 if keeps_state else 2)]


@pytest.mark.costly("a table that is large enough for its memory to show")
def test_a_refresh_ends_at_its_limit_of_memory(client: persist.Client) -> None:
    view = begun(client)
    numbers = np.arange(10, 600_000)
    table = pa.table({"k": numbers, "g": numbers, "_time": numbers * 0 + 2, "_diff": numbers * 0 + 1})
    client.load("t").write(table, seal=3).result()
    before = view.upper
    with pytest.raises(LimitReached, match="limit of memory, which is memory_limit=1,000 bytes"):
        view.refresh(memory_limit=1000)
    assert view.upper == before


def test_a_recursion_ends_at_its_limit_between_iterations(
    client: persist.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.load("t").write([((1, 7), 0, 1)], seal=1).result()
    view = client.create_view(
        "far", "WITH RECURSIVE r(n) AS (SELECT k FROM t UNION SELECT n + 1 FROM r WHERE n < 60) SELECT n FROM r"
    )
    looks = iter(range(10))

    def limited() -> None:
        if next(looks, None) is None:
            raise LimitReached("time", "timeout_s=1")

    monkeypatch.setattr("persist.compute.dataflow.operators.loop.check_limits", limited)
    with pytest.raises(LimitReached, match="limit of time"):
        view.refresh()
    assert (view.upper, view.is_open) == (persist.Antichain(0), False)
    monkeypatch.undo()
    view.refresh()
    assert len(rows(view)) == 60


@pytest.mark.parametrize("limits", [{"timeout_s": -1}, {"memory_limit": "1 GB"}, {"timeout_s": True}])
def test_what_is_no_limit_is_refused(client: persist.Client, limits: dict[str, float]) -> None:
    with pytest.raises(InvalidUsage, match="is not a limit: give a number of at least 0"):
        begun(client).refresh(**limits)  # type: ignore[arg-type]


def test_ctrl_c_leaves_a_view_at_its_last_time(client: persist.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    view = begun(client)
    view.open_state()
    client.load("t").write([((3, 7), 2, 1)], seal=3).result()
    before = view.upper

    def interrupted() -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt  # As Python does; a signal may come while an object is freed, where it is passed over.

    monkeypatch.setattr("persist.compute.dataflow.running.graph.check_limits", interrupted)
    with pytest.raises(KeyboardInterrupt):
        view.refresh()
    assert (view.upper, view.is_open) == (before, False)
    view.refresh()
    assert rows(view) == [(7, 3)]


_TEXT, _NUMBER, _MONEY = pa.string(), pa.int64(), pa.decimal128(15, 2)


@pytest.fixture
def growing(client: persist.Client) -> persist.Client:
    a = client.create_or_load("a", key={"id": pa.int64()}, value={"n": pa.int64()})
    b = client.create_or_load("b", key={"id": pa.int64()}, value={"n": pa.int64()})
    a.write([((n, n), 0, 1) for n in range(30)], seal=1).result()
    b.write([((n, n), 0, 1) for n in range(40)], seal=1).result()
    return client


@pytest.mark.parametrize(
    ("sql", "pairs"),
    [
        ("SELECT a.id, b.id AS other FROM a, b", "1,200"),
        ("SELECT a.id, b.id AS other FROM a JOIN b ON a.n < b.n", "1,200"),
        ("SELECT a.id, b.id AS other FROM a LEFT JOIN b ON a.n < b.n", "1,200"),
        ("SELECT a.id, b.id AS other FROM a, (SELECT id FROM b WHERE n > 3) b", "360"),
        # Of the values of `a.n`, of which nothing is known, about as many as the root of the rows are different.
        ("SELECT id FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.n > a.n)", "219"),
    ],
)
def test_a_join_of_growing_inputs_without_a_key_is_warned_of(growing: persist.Client, sql: str, pairs: str) -> None:
    match = f"joins '[ab]' with '[ab]' without a key.*about {pairs} pairs"
    with pytest.warns(UnboundedState, match=match) as told:
        growing.create_view("pairs", sql)
    assert told[0].filename == __file__


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT a.id, b.n FROM a JOIN b USING (id)",
        "SELECT a.id, b.n FROM a, b WHERE a.id = b.id + 1 AND a.n < b.n",
        "SELECT id FROM a WHERE n > (SELECT avg(n) FROM b)",
        "SELECT a.id, b.id AS other FROM a, (SELECT * FROM b ORDER BY n LIMIT 3) b",
        "SELECT a.id, b.id AS other FROM a, (SELECT * FROM b WHERE _now() < n + 5) b",
        "SELECT a.id, x FROM a, (VALUES (1), (2)) v(x)",
        "SELECT id FROM a WHERE id NOT IN (SELECT id FROM b)",
        "SELECT id FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.id = a.id)",
    ],
)
def test_a_join_by_a_key_or_with_few_rows_is_not(growing: persist.Client, sql: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        growing.create_view("joined", sql)


def test_a_view_that_is_there_already_does_not_warn_again(growing: persist.Client) -> None:
    with pytest.warns(UnboundedState):
        growing.create_view("pairs", "SELECT a.id, b.id AS other FROM a, b")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        growing.create_view("pairs", "SELECT a.id, b.id AS other FROM a, b")


@pytest.mark.thorough
def test_no_query_of_tpch_is_warned_of() -> None:
    kinds = {"key": _NUMBER, "number": pa.int32(), "size": pa.int32(), "priority": _TEXT, "date": pa.date32()}
    kinds |= dict.fromkeys(("price", "discount", "tax", "quantity", "bal", "cost", "qty"), _MONEY)
    columns = {
        "region": "r_regionkey r_name",
        "nation": "n_nationkey n_name n_regionkey",
        "supplier": "s_suppkey s_name s_address s_nationkey s_phone s_acctbal s_comment",
        "customer": "c_custkey c_name c_address c_nationkey c_phone c_acctbal c_mktsegment c_comment",
        "part": "p_partkey p_name p_mfgr p_brand p_type p_size p_container p_retailprice",
        "partsupp": "ps_partkey ps_suppkey ps_availqty ps_supplycost",
        "orders": "o_orderkey o_custkey o_orderstatus o_totalprice o_orderdate o_orderpriority o_clerk o_shippriority "
        "o_comment",
        "lineitem": "l_orderkey l_partkey l_suppkey l_linenumber l_quantity l_extendedprice l_discount l_tax "
        "l_returnflag l_linestatus l_shipdate l_commitdate l_receiptdate l_shipinstruct l_shipmode",
    }

    def kind(column: str) -> pa.DataType:
        return next((each for end, each in kinds.items() if column.endswith(end)), _TEXT)

    schemas = {
        name: CollectionSchema.of({column: kind(column) for column in text.split()}, None)
        for name, text in columns.items()
    }
    told = {name: list_unbounded_joins(rewrite_plan(plan_query(sql, schemas)[0])) for name, sql in QUERIES.items()}
    assert {name: each for name, each in told.items() if each} == {}
