"""Queries of all kinds against DuckDB, while rows come and go."""

import pytest

from persist.errors import InvalidUsage
from tests.compute.sql.corpus import QUERIES, REFUSED
from tests.compute.sql.oracle import changes, check, program_of


@pytest.mark.thorough(except_every=80)
@pytest.mark.parametrize("sql", QUERIES)
def test_a_query_has_the_answer_of_duckdb_after_each_change(sql: str) -> None:
    check(sql, changes(1))
    check(sql, changes(2, steps=6, size=5), is_rewritten=False)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT t.a, u.b FROM t FULL JOIN u ON t.a = u.a AND {'s': t.s, 'b': t.b} <= {'s': u.s, 'b': u.b}",
        "SELECT a FROM t WHERE [a, b] = ALL (SELECT [u.a, u.b] FROM u WHERE u.a = t.a)",
    ],
)
def test_lists_structs_and_maps_are_compared_wherever_rows_meet(sql: str) -> None:
    check(sql, changes(1))


def test_what_has_one_answer_and_is_refused_is_refused_when_the_view_is_made() -> None:
    for sql in REFUSED:
        with pytest.raises(InvalidUsage):
            program_of(sql)
    assert len(QUERIES) >= 19 * len(REFUSED), "more than one query of twenty is refused"


@pytest.mark.thorough(except_every=16)
@pytest.mark.parametrize("sign", ["<", "<=", ">", ">="])
@pytest.mark.parametrize("equal", ["{}.a = v.a", "{}.a IS NOT DISTINCT FROM v.a"])
@pytest.mark.parametrize("how", ["RIGHT", "FULL"])
def test_asof_joins_keep_what_is_nearest_to_nothing(how: str, equal: str, sign: str) -> None:
    # Said without ASOF: DuckDB 2.0.1 loses some rows of the right whose other columns are NULL.
    nearest, same = "max" if sign.startswith(">") else "min", equal.format("t")
    v = "WITH v AS (SELECT DISTINCT a, b FROM u)"
    asked = (
        f"{v}, pairs AS (SELECT t.a, t.b, v.a AS c, v.b AS d FROM t JOIN v ON {same} AND v.b = "
        f"(SELECT {nearest}(x.b) FROM v x WHERE {same.replace('v.', 'x.')} AND t.b {sign} x.b)) FROM pairs UNION ALL "
        "SELECT NULL, NULL, a, b FROM v WHERE NOT EXISTS "
        "(FROM pairs p WHERE (p.c, p.d) IS NOT DISTINCT FROM (v.a, v.b))"
    )
    if how == "FULL":
        asked += " UNION ALL SELECT a, b, NULL, NULL FROM t WHERE NOT EXISTS "
        asked += "(FROM pairs p WHERE (p.a, p.b) IS NOT DISTINCT FROM (t.a, t.b))"
    sql = f"{v} SELECT t.a, t.b, v.a AS c, v.b AS d FROM t ASOF {how} JOIN v ON {same} AND t.b {sign} v.b"
    check(sql, changes(1), asked=asked)
    check(sql, changes(2, steps=6, size=5), is_rewritten=False, asked=asked)
