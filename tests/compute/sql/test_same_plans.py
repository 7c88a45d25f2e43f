"""Queries of all kinds are planned as they were when their answers were compared with DuckDB's."""

import duckdb
import pytest

from tests.compute.sql.corpus import QUERIES
from tests.compute.sql.plans import changed, known_plans

PARTS = 30


# The only ones that reach what others of the first tier do not.
WORDS = (" try(", "UHUGEINT", "union_value", "ANTI JOIN u USING", "FULL O")
RARE = [sql for sql in QUERIES if any(word in sql for word in WORDS)]

SAME_RELEASE = pytest.mark.skipif(
    duckdb.__version__ != known_plans()[0], reason="another release of DuckDB may bind queries otherwise"
)


@SAME_RELEASE
def test_queries_of_what_is_rare_have_the_plans_that_were_compared() -> None:
    assert RARE
    assert not changed(RARE)


@pytest.mark.thorough(except_every=10)
@SAME_RELEASE
@pytest.mark.parametrize("first", range(PARTS))
def test_a_query_has_the_plan_whose_answers_were_compared_with_those_of_duckdb(first: int) -> None:
    others = changed(QUERIES[first::PARTS])
    assert not others, (
        f"{len(others)} have other plans, such as {others[0]}: `python -m tests.compute.sql.plans` compares their "
        "answers with DuckDB's, and writes down that they are right"
    )
