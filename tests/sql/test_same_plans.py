"""Queries of all kinds are planned as they were when their answers were compared with DuckDB's."""

import duckdb
import pytest

from tests.sql.corpus import QUERIES
from tests.sql.plans import changed, known_plans

PARTS = 30


@pytest.mark.thorough(except_every=2)
@pytest.mark.skipif(
    duckdb.__version__ != known_plans()[0], reason="another release of DuckDB may bind queries otherwise"
)
@pytest.mark.parametrize("first", range(PARTS))
def test_a_query_has_the_plan_whose_answers_were_compared_with_those_of_duckdb(first: int) -> None:
    others = changed(QUERIES[first::PARTS])
    assert not others, (
        f"{len(others)} have other plans, such as {others[0]}: `python -m tests.sql.plans` compares their answers with "
        "DuckDB's, and writes down that they are right"
    )
