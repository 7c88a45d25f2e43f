"""Views whose work grows with both of their inputs are warned of."""

import warnings
from collections.abc import Iterator

import pyarrow as pa
import pytest

import persist
from persist.codecs.types.schema import CollectionSchema
from persist.compute.sql.compile import plan_query
from persist.compute.sql.creating import list_unbounded_joins
from persist.compute.sql.rewrite import rewrite_plan
from persist.sql import UnboundedState
from tests.compute.sql.tpch import QUERIES

_TEXT, _NUMBER, _MONEY = pa.string(), pa.int64(), pa.decimal128(15, 2)


@pytest.fixture
def client() -> Iterator[persist.Client]:
    with persist.open(persist.MemoryBlob()) as found:
        a = found.create_or_load("a", key={"id": pa.int64()}, value={"n": pa.int64()})
        b = found.create_or_load("b", key={"id": pa.int64()}, value={"n": pa.int64()})
        a.write([((n, n), 0, 1) for n in range(30)], seal=1).result()
        b.write([((n, n), 0, 1) for n in range(40)], seal=1).result()
        yield found


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
def test_a_join_of_growing_inputs_without_a_key_is_warned_of(client: persist.Client, sql: str, pairs: str) -> None:
    match = f"joins '[ab]' with '[ab]' without a key.*about {pairs} pairs"
    with pytest.warns(UnboundedState, match=match) as told:
        client.create_view("pairs", sql)
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
def test_a_join_by_a_key_or_with_few_rows_is_not(client: persist.Client, sql: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        client.create_view("joined", sql)


def test_a_view_that_is_there_already_does_not_warn_again(client: persist.Client) -> None:
    with pytest.warns(UnboundedState):
        client.create_view("pairs", "SELECT a.id, b.id AS other FROM a, b")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        client.create_view("pairs", "SELECT a.id, b.id AS other FROM a, b")


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
