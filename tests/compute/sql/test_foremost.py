"""A condition on the place of a row in its partition looks at the first rows of partitions, and at no others."""

import pytest

from persist.compute.sql.algebra import TopK, iterate_nodes
from persist.compute.sql.compile import plan_query
from persist.compute.sql.rewrite import rewrite_plan
from tests.compute.sql.oracle import TABLES, changes, check, schemas

BY = "PARTITION BY a ORDER BY b DESC, m, s"
PEERS = "PARTITION BY a ORDER BY b DESC"
NUMBER = f"SELECT a, b, m, s, row_number() OVER ({BY}) AS r FROM t"
FIRST = {
    f"SELECT * FROM ({NUMBER}) WHERE r <= 3": 3,
    f"SELECT a, b FROM ({NUMBER}) WHERE r = 1 AND m > 0": 1,
    f"SELECT * FROM ({NUMBER}) WHERE 3 > r AND r > 1": 2,
    f"SELECT * FROM ({NUMBER}) WHERE r < 2.5": 2,
    f"SELECT * FROM ({NUMBER}) WHERE r::INTEGER BETWEEN 2 AND 3": 3,
    f"SELECT * FROM ({NUMBER}) WHERE r <= CAST(2.6 AS INTEGER)": 3,
    f"{NUMBER} QUALIFY r IN (1, 3)": 3,
    f"{NUMBER} QUALIFY r = 1 OR (r = 2 AND b > 1)": 2,
    f"SELECT a, b, m, s, lag(b, 2) OVER ({BY}) AS l FROM t QUALIFY row_number() OVER ({BY}) <= 2": 2,
    f"SELECT a, b, rank() OVER ({PEERS}) AS r FROM t QUALIFY r <= 2": 2,
    f"SELECT a, b, dense_rank() OVER ({PEERS}) AS r, sum(b) OVER ({PEERS}) FROM t QUALIFY r <= 2": 2,
    "SELECT a, b FROM t QUALIFY rank() OVER (ORDER BY b, m NULLS FIRST) <= 4": 4,
    "SELECT a, b FROM t QUALIFY row_number() OVER (PARTITION BY a + 1 ORDER BY b) <= 2": 2,
    "SELECT t.a, l.b FROM t, LATERAL (SELECT b FROM u WHERE u.a = t.a ORDER BY b LIMIT 2) l": 2,
    "SELECT t.a, (SELECT b FROM u WHERE u.a = t.a ORDER BY b LIMIT 1) AS l FROM t": 1,
}
FIRST |= {
    f"SELECT a, m, s, sum(b) OVER ({BY} ROWS UNBOUNDED PRECEDING) AS l FROM t QUALIFY row_number() OVER ({BY}) < 3": 2,
    f"SELECT a, b, m, s, lag(b) OVER ({BY}) AS l, lag(b, 0) OVER ({BY}) FROM t QUALIFY row_number() OVER ({BY}) < 4": 3,
    f"SELECT a, b, max(b) OVER ({PEERS} ROWS UNBOUNDED PRECEDING) AS l FROM t QUALIFY rank() OVER ({PEERS}) = 2": 2,
    f"SELECT a, b, rank() OVER ({PEERS}) AS r, row_number() OVER ({PEERS}) FROM t QUALIFY r <= 2": 2,
    f"SELECT a, rank() OVER ({PEERS}) AS r, dense_rank() OVER ({PEERS}) AS k FROM t QUALIFY r <= 3 AND k <= 2": 2,
    f"SELECT * FROM ({NUMBER}) WHERE r <= 1000": 1000,
    f"SELECT * FROM ({NUMBER}) WHERE r < 1.0": 0,
    f"SELECT * FROM ({NUMBER}) WHERE r < 1.5": 1,
    f"SELECT * FROM ({NUMBER}) WHERE 2 = r": 2,
}
FIRST = {sql: most for sql, most in FIRST.items() if most}  # No place is 0: such a condition is left as it is.
WHOLE = [
    f"SELECT * FROM ({NUMBER}) WHERE r < 1.0",
    f"SELECT * FROM ({NUMBER}) WHERE r < b",
    f"SELECT * FROM ({NUMBER}) WHERE 3 <= r",
    f"SELECT * FROM ({NUMBER}) WHERE r IN (1, b)",
    f"SELECT * FROM ({NUMBER}) WHERE r <> 1",
    f"SELECT * FROM ({NUMBER}) WHERE r <= NULL",
    f"SELECT * FROM ({NUMBER}) WHERE r <= 'NaN'::DOUBLE",
    f"SELECT a, b, ntile(2) OVER ({BY}) AS l FROM t QUALIFY row_number() OVER ({BY}) <= 2",
    f"SELECT a, b, sum(b) OVER ({BY} ROWS 1 PRECEDING) AS l FROM t QUALIFY row_number() OVER ({BY}) <= 2",
    f"SELECT a, b, sum(b) OVER ({BY} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 FOLLOWING) FROM t "
    f"QUALIFY row_number() OVER ({BY}) <= 2",
    f"SELECT a, sum(b) OVER ({BY} ROWS UNBOUNDED PRECEDING EXCLUDE TIES) FROM t QUALIFY row_number() OVER ({BY}) < 3",
    f"SELECT a, b, sum(b) OVER ({PEERS}) AS l FROM t QUALIFY row_number() OVER ({BY}) <= 2",
    f"SELECT * FROM ({NUMBER}) WHERE r >= 2",
    f"SELECT * FROM ({NUMBER}) WHERE r <= b",
    f"SELECT * FROM ({NUMBER}) WHERE r::BOOLEAN = CAST(1 AS BOOLEAN)",
    f"SELECT * FROM ({NUMBER}) WHERE r::BOOLEAN::INTEGER <= 1",
    f"SELECT * FROM ({NUMBER}) WHERE r <= 1 OR b > 2",
    f"SELECT * FROM ({NUMBER}) WHERE r <= 5000",
    f"SELECT a, b, lead(b) OVER ({BY}) AS l FROM t QUALIFY row_number() OVER ({BY}) <= 2",
    f"SELECT a, b, lag(b, -1) OVER ({BY}) AS l FROM t QUALIFY row_number() OVER ({BY}) <= 2",
    f"SELECT a, b, count(*) OVER ({BY}) AS n FROM t QUALIFY row_number() OVER ({BY}) <= 2",
    f"SELECT a, b, sum(b) OVER (PARTITION BY a) AS l FROM t QUALIFY rank() OVER ({PEERS}) <= 2",
    "SELECT a, b FROM t QUALIFY rank() OVER (PARTITION BY a) <= 2",
]


def limits(sql: str) -> list[int | None]:
    plan = rewrite_plan(plan_query(sql, schemas(TABLES))[0])
    return [node.limit for node in iterate_nodes(plan) if isinstance(node, TopK)]


def test_a_condition_says_how_many_rows_of_a_partition_are_looked_at() -> None:
    assert {sql: limits(sql) for sql in FIRST} == {sql: [most] for sql, most in FIRST.items()}
    assert {sql: limits(sql) for sql in WHOLE} == {sql: [] for sql in WHOLE}


@pytest.mark.thorough(except_every=20)
@pytest.mark.parametrize("sql", FIRST)
def test_only_the_first_rows_of_partitions_are_looked_at(sql: str) -> None:
    assert limits(sql) == [FIRST[sql]]
    for seed in range(4):
        check(sql, changes(seed))


@pytest.mark.parametrize("counted", ["rank", "dense_rank"])
def test_rows_that_agree_in_the_order_are_in_together(counted: str) -> None:
    sql = f"SELECT a, b, s FROM t QUALIFY {counted}() OVER ({PEERS}) <= 2"
    [first] = [
        node for node in iterate_nodes(rewrite_plan(plan_query(sql, schemas(TABLES))[0])) if isinstance(node, TopK)
    ]
    assert first.counted == counted
    assert limits(f"{NUMBER} QUALIFY rank() OVER ({PEERS}) <= 2") == [], "the other function has another order"
    check(sql, changes(7, size=12))
