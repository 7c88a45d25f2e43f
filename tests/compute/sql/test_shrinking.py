"""What fails is made small enough to be read."""

from tests.compute.sql.grammar import Grammar
from tests.compute.sql.oracle import Changes, changes
from tests.compute.sql.shrinking import shrunk, shrunk_changes
from tests.compute.sql.soak import as_dataflow, outcome


def test_a_query_shrinks_to_what_it_fails_by() -> None:
    sql = (
        "WITH x AS (SELECT a, sum(b) AS n FROM t WHERE s LIKE 'x%' GROUP BY a HAVING count(*) > 1) "
        "SELECT x.a + 1 AS one, q.s FROM x LEFT JOIN (SELECT upper(s) AS s, a FROM u WHERE b > 2) q ON x.a = q.a "
        "WHERE q.s IS NOT NULL AND x.n > 3 ORDER BY 1 LIMIT 5"
    )
    found = shrunk(sql, lambda text: "upper(" in text)
    assert found == "SELECT upper(s) FROM u" or len(found) < 30, found
    found = shrunk(sql, lambda text: "LEFT JOIN" in text)
    assert len(found) < 0.4 * len(sql), found


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
