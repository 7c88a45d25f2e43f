"""What is left out of correlated subqueries; that no answer changes by it, `queries.sql` shows."""

from collections import Counter

import pytest

from persist.sql.algebra import Join, Node, children
from persist.sql.compile import planned
from persist.sql.reasons import reasons
from persist.sql.rewrite import rewritten
from tests.sql.test_reasons import SCHEMAS

INNER = "1 outer join became an inner one: a condition above is true of no row without a partner"
LEFT_OUT = "1 join is left out: what a subquery gives has the values for which it was asked already"


def joins_of(node: Node) -> Counter[str]:
    """Return how many joins of each kind a plan has."""
    here = Counter([str(node.how)] if isinstance(node, Join) else [])
    return sum(map(joins_of, children(node)), here)


def made(sql: str) -> tuple[Counter[str], list[str]]:
    """Return the joins of a query as it is run, and what is told of it."""
    plan = planned(sql, {name: schema for name, schema in SCHEMAS.items() if name in sql})[0]
    return joins_of(rewritten(plan)), reasons(plan)


def test_a_subquery_that_is_compared_is_joined_once_with_the_rows_around_it() -> None:
    found, told = made("SELECT f FROM fact WHERE n < (SELECT avg(x) FROM other WHERE other.n = fact.k)")
    assert found == {"inner": 2}, "one of the rows around with the subquery, one below it with what it reads"
    assert INNER in told
    assert LEFT_OUT in told


@pytest.mark.parametrize(
    "condition",
    ["g IS NULL", "coalesce(g, 1) > 0", "g > 0 OR n > 0", "CASE WHEN g > 0 THEN false ELSE true END"],
)
def test_an_outer_join_stays_where_a_condition_may_be_true_of_its_nulls(condition: str) -> None:
    assert made(f"SELECT f FROM fact LEFT JOIN dim ON fact.k = dim.k WHERE {condition}")[0] == {"left": 1}


@pytest.mark.parametrize("condition", ["g > 0", "g + n = 3", "g > 0 OR -g > 1", "CAST(g AS VARCHAR) LIKE '1%'"])
def test_an_outer_join_becomes_an_inner_one_where_no_condition_is(condition: str) -> None:
    found, told = made(f"SELECT f FROM fact LEFT JOIN dim ON fact.k = dim.k WHERE {condition}")
    assert found == {"inner": 1}
    assert INNER in told


def test_a_subquery_that_may_have_two_rows_stays_an_error() -> None:
    assert made("SELECT f FROM fact WHERE n < (SELECT x FROM other WHERE other.n = fact.k)")[0]["single"] == 1


def test_a_value_that_is_counted_of_nothing_stays() -> None:
    assert made("SELECT f FROM fact WHERE n > (SELECT count(*) FROM other WHERE other.n = fact.k)")[0]["left"] == 2
