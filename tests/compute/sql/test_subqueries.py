"""What is left out of correlated subqueries; that no answer changes by it, `queries.sql` shows."""

from collections import Counter

import pytest

from persist.codecs.types.schema import CollectionSchema
from persist.compute.sql.algebra import Aggregate, Distinct, Join, Let, Node, Project, Ref, Scan, list_inputs
from persist.compute.sql.compile import plan_query
from persist.compute.sql.rewrite import drop_domain_joins, rewrite_plan
from persist.compute.sql.types import to_arrow
from persist.core.expression.term import Place
from tests.compute.sql.test_estimates import BIG

SCHEMAS = {name: CollectionSchema.of({c: to_arrow(k) for c, k in columns}, None) for name, columns in BIG.items()}


def joins_of(node: Node) -> Counter[str]:
    """Return how many joins of each kind a plan has."""
    here = Counter([str(node.how)] if isinstance(node, Join) else [])
    return sum(map(joins_of, list_inputs(node)), here)


def made(sql: str) -> Counter[str]:
    """Return the joins of a query as it is run."""
    return joins_of(rewrite_plan(plan_query(sql, {name: s for name, s in SCHEMAS.items() if name in sql})[0]))


def test_a_subquery_that_is_compared_is_joined_once_with_the_rows_around_it() -> None:
    found = made("SELECT f FROM fact WHERE n < (SELECT avg(x) FROM other WHERE other.n = fact.k)")
    assert found == {"inner": 2}, "one of the rows around with the subquery, one below it with what it reads"


@pytest.mark.parametrize(
    "condition",
    [
        "g IS NULL",
        "coalesce(g, 1) > 0",
        "g > 0 OR n > 0",
        "CASE WHEN g > 0 THEN false ELSE true END",
        "(g > 0 AND n > 5) = false",
    ],
)
def test_an_outer_join_stays_where_a_condition_may_be_true_of_its_nulls(condition: str) -> None:
    assert made(f"SELECT f FROM fact LEFT JOIN dim ON fact.k = dim.k WHERE {condition}") == {"left": 1}


@pytest.mark.parametrize("condition", ["g > 0", "g + n = 3", "g > 0 OR -g > 1", "CAST(g AS DOUBLE) > 1"])
def test_an_outer_join_becomes_an_inner_one_where_no_condition_is(condition: str) -> None:
    found = made(f"SELECT f FROM fact LEFT JOIN dim ON fact.k = dim.k WHERE {condition}")
    assert found == {"inner": 1}


def test_an_outer_join_becomes_an_inner_one_below_a_join_that_asks_for_no_nulls() -> None:
    kinds = made("SELECT f FROM (fact LEFT JOIN dim ON fact.k = dim.k) JOIN other ON f = x AND g > 2")
    assert kinds == {"inner": 2}
    kinds = made("SELECT f FROM (fact LEFT JOIN dim ON fact.k = dim.k) LEFT JOIN other ON f = x AND g > 2")
    assert kinds == {"left": 2}


def test_a_subquery_that_may_have_two_rows_stays_an_error() -> None:
    assert made("SELECT f FROM fact WHERE n < (SELECT x FROM other WHERE other.n = fact.k)")["single"] == 1


def test_a_value_that_is_counted_of_nothing_stays() -> None:
    assert made("SELECT f FROM fact WHERE n > (SELECT count(*) FROM other WHERE other.n = fact.k)")["left"] == 2


KINDS = ("int64", "int64")
READ = Scan("t", ("a", "b"), KINDS)
DOMAIN = Aggregate(READ, (Place(0), Place(1)), (), ((0, 1),))
REF = Ref(1, KINDS)
BOTH = ((Place(0), Place(0)), (Place(1), Place(1)))
OF_ONE_ROW = Project(Join("inner", REF, READ), (Place(0), Place(1), Place(3)))


def test_a_join_of_a_domain_with_rows_that_hold_its_rows_is_left_out() -> None:
    made = drop_domain_joins(Let(1, DOMAIN, Join("inner", REF, OF_ONE_ROW, (), BOTH)))
    assert made == Let(1, DOMAIN, Project(OF_ONE_ROW, tuple(map(Place, (0, 1, 0, 1, 2)))))


@pytest.mark.parametrize(
    ("value", "join"),
    [
        pytest.param(
            DOMAIN,
            Join("inner", REF, Project(Join("inner", REF, REF), (Place(0), Place(3))), (), BOTH),
            id="the columns come from two rows of the domain, which need not be one of it together",
        ),
        pytest.param(
            DOMAIN, Join("inner", REF, OF_ONE_ROW, (), BOTH[:1]), id="by one column there may be several rows"
        ),
        pytest.param(READ, Join("inner", REF, OF_ONE_ROW, (), BOTH), id="there may be a row twice"),
        pytest.param(DOMAIN, Join("inner", REF, OF_ONE_ROW, BOTH), id="NULL is not equal to itself"),
        pytest.param(DOMAIN, Join("left", REF, OF_ONE_ROW, (), BOTH), id="some may have no partner"),
        pytest.param(DOMAIN, Join("inner", REF, READ, (), BOTH), id="the rows come from elsewhere"),
        pytest.param(
            DOMAIN,
            Join("inner", REF, Project(Join("right", REF, READ), (Place(0), Place(1))), (), BOTH),
            id="the columns may be NULL where no row of the domain is",
        ),
        pytest.param(DOMAIN, Join("inner", Distinct(REF), OF_ONE_ROW, (), BOTH), id="it is not the domain itself"),
    ],
)
def test_a_join_of_a_domain_stays_where_it_may_change_something(value: Node, join: Join) -> None:
    assert drop_domain_joins(Let(1, value, join)) == Let(1, value, join)
