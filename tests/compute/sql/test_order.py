"""The order of joins: small first, whatever the query says; and the same rows whatever is known."""

import pytest

from persist.codecs.types.schema import CollectionSchema
from persist.compute.dataflow.plan.optimise import Statistics
from persist.compute.sql.algebra import Join, Node, Scan, list_inputs
from persist.compute.sql.compile import plan_query
from persist.compute.sql.duck import mentions_column
from persist.compute.sql.order import Known, estimate_relation
from persist.compute.sql.rewrite import rewrite_plan
from persist.compute.sql.types import to_arrow
from tests.compute.sql.oracle import changes, check

BIG = {"fact": [("f", "int64"), ("k", "int64"), ("n", "int64")], "dim": [("k", "int64"), ("g", "int64")]}
BIG |= {"group": [("g", "int64"), ("name", "text")], "other": [("n", "int64"), ("x", "int64")]}
SIZES = {
    "fact": Statistics(600_000, None, {"f": 600_000, "k": 1_000, "n": 25}),
    "dim": Statistics(1_000, None, {"k": 1_000, "g": 25}),
    "group": Statistics(25, None, {"g": 25}),
    "other": Statistics(5_000, None, {"n": 25}),
}
STAR = """
    SELECT fact.f FROM fact, dim, "group", other
    WHERE fact.k = dim.k AND dim.g = "group".g AND fact.n = other.n AND "group".name = 'here'
"""


def scans(node: Node) -> list[str]:
    """Return the collections of a plan, in the order in which they are joined."""
    return [node.collection] if isinstance(node, Scan) else [name for each in list_inputs(node) for name in scans(each)]


def plan_of(sql: str, known: Known) -> Node:
    schemas = {name: CollectionSchema.of({c: to_arrow(k) for c, k in columns}, None) for name, columns in BIG.items()}
    return rewrite_plan(plan_query(sql, {name: schema for name, schema in schemas.items() if name in sql})[0], known)


def test_what_keeps_few_rows_is_joined_first_and_what_makes_many_last() -> None:
    found = scans(plan_of(STAR, SIZES))
    assert ({*found[:2]}, found[2:]) == ({"dim", "group"}, ["fact", "other"])


def test_no_order_makes_a_cross_product_that_can_be_avoided() -> None:
    for known in ({}, SIZES, {"group": SIZES["group"], "other": SIZES["group"]}):
        left = [plan_of(STAR, known)]
        while left:
            node = left.pop()
            assert not isinstance(node, Join) or node.equal, known
            left += list_inputs(node)


@pytest.mark.parametrize("rows", [{"t": 1, "u": 10**6, "w": 10**3}, {"t": 10**6, "u": 1, "w": 1}, {}])
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT t.b, u.s, w.x FROM t, u, w WHERE t.a = u.a AND u.b = w.a AND t.b < w.a + 2",
        "SELECT count(*) FROM t, u, w, t AS v WHERE t.a = u.a AND v.b = u.b AND w.a = v.a AND (t.b = 1 OR t.s = 'x')",
        "SELECT t.a, w.p FROM t, u, w WHERE t.a = 1 AND t.b = u.b",
    ],
)
def test_what_is_known_changes_no_row(sql: str, rows: dict[str, int]) -> None:
    known = {name: Statistics(count, None, {"a": 5, "b": 5}) for name, count in rows.items()}
    check(sql, changes(7, steps=4, size=6), known=known)


def test_estimates_tell_conditions_apart() -> None:
    known = {"group": Statistics(1000)}

    def rows(condition: str) -> float:
        return estimate_relation(plan_of(f'SELECT g FROM "group" WHERE {condition}', {}), known).rows

    assert estimate_relation(Scan("dim", ("k", "g"), ("int64", "int64")), SIZES).rows == 1000
    assert rows("name LIKE 'a%'") == 100
    assert rows("name LIKE 'a%' OR name LIKE 'b%'") == 200
    assert rows("name > 'a'") == rows("name = upper(name)") == 300
    half = plan_of("SELECT g FROM dim WHERE k IN (SELECT f FROM fact)", {})
    assert estimate_relation(half, SIZES).rows == 500


def test_a_query_names_a_column_if_it_refers_to_one() -> None:
    assert mentions_column("SELECT Since FROM t", "since")
    assert mentions_column("SELECT a FROM t WHERE t.since > (SELECT max(b) FROM u)", "since")
    assert not mentions_column("SELECT a FROM since", "since")
    assert not mentions_column("SELECT 'since' FROM t", "since")
