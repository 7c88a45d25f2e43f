"""Queries of all kinds against DuckDB, while rows come and go."""

import duckdb
import pytest

import persist
from persist.errors import InvalidUsage
from tests.compute.sql.corpus import QUERIES, REFUSED
from tests.compute.sql.grammar import Grammar
from tests.compute.sql.listing import HEAD, PAGE, listed
from tests.compute.sql.oracle import Changes, changes, check, program_of
from tests.compute.sql.plans import changed, compute_digest, known_plans
from tests.compute.sql.shrinking import shrunk_changes
from tests.compute.sql.soak import as_dataflow, outcome


@pytest.mark.thorough(except_every=160)
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


def test_the_list_of_functions_in_the_documents_is_the_one_that_is_generated() -> None:
    text = PAGE.read_text(encoding="utf-8")
    section = HEAD + text.partition(HEAD)[2]
    if f"DuckDB {duckdb.__version__} " not in section:
        pytest.skip("the list was made with another release of DuckDB")
    assert section == listed(), "write it anew with: python -m tests.compute.sql.listing"


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize("call", ["version()", "hash('y')", "approx_quantile(1, 0.5)", "lttb(1, 2, 3)"])
def test_a_function_that_is_listed_as_refused_is_refused(call: str) -> None:
    assert f"`{call.partition('(')[0]}`" in listed().partition("**Refused aggregates**")[2]
    with (
        persist.open("memory://listing") as client,
        pytest.raises(persist.InvalidUsage, match=r"is not supported in a view|gives something else each time"),
    ):
        client.create_view("refused", f"SELECT {call} AS x")


RELEASE, PLANS = known_plans()
FIRST = [sql for sql in QUERIES if PLANS.get(compute_digest(sql), "").endswith(" first")]
OTHERS = [sql for sql in QUERIES if sql not in FIRST]

SAME_RELEASE = pytest.mark.skipif(
    duckdb.__version__ != RELEASE, reason="another release of DuckDB may bind queries otherwise"
)


@SAME_RELEASE
@pytest.mark.parametrize("first", range(0, len(FIRST), 4))
def test_queries_that_take_each_step_have_the_plans_that_were_compared(first: int) -> None:
    assert not changed(FIRST[first : first + 4]), "`python -m tests.compute.sql.plans` compares answers with DuckDB's"


@SAME_RELEASE
@pytest.mark.parametrize("first", range(0, len(OTHERS), 8))
def test_a_query_has_the_plan_whose_answers_were_compared_with_those_of_duckdb(first: int) -> None:
    others = changed(OTHERS[first : first + 8])
    assert not others, (
        f"{len(others)} have other plans, such as {others[0]}: `python -m tests.compute.sql.plans` compares their "
        "answers with DuckDB's, and writes down that they are right"
    )


def test_changes_shrink_to_the_rows_that_matter() -> None:
    steps = changes(3, steps=4)
    wanted = steps[2]["u"][1]

    def fails(given: list[Changes]) -> bool:
        return any(wanted in each.get("u", ()) for each in given)

    found = shrunk_changes(steps, fails)
    assert [{name: rows for name, rows in each.items() if rows} for each in found] == [{"u": [wanted]}]


def test_a_query_that_fails_on_a_row_is_told_from_one_that_is_refused() -> None:
    steps: list[Changes] = [{"t": [((1, 2, "x", None, None, None), 1)]}]
    assert outcome(as_dataflow, 0, "SELECT a FROM t", steps)[0] == ""
    assert outcome(as_dataflow, 0, "SELECT hash(s) FROM t", steps)[0] is None
    assert outcome(as_dataflow, 0, "SELECT a FROM nothing", steps)[0] is None
    assert Grammar(7).query() == Grammar(7).query()
