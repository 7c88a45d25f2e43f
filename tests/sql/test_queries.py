"""Queries of all kinds against DuckDB, while rows come and go."""

import pytest

from tests.sql.corpus import QUERIES
from tests.sql.oracle import changes, check


@pytest.mark.thorough(except_every=40)
@pytest.mark.parametrize("sql", QUERIES)
def test_a_query_has_the_answer_of_duckdb_after_each_change(sql: str) -> None:
    check(sql, changes(1))
    check(sql, changes(2, steps=6, size=5), is_rewritten=False)
