"""What a view's `explain` says of its rewrites: each with why, and nothing of what was not done."""

import pyarrow as pa
import pytest

import persist
from persist.codecs.types.schema import CollectionSchema
from persist.compute.sql.compile import plan_query
from persist.compute.sql.reasons import explain_rewrites
from persist.compute.sql.types import to_arrow
from tests.compute.sql.test_order import BIG, SIZES, STAR

SCHEMAS = {name: CollectionSchema.of({c: to_arrow(k) for c, k in columns}, None) for name, columns in BIG.items()}
KEYED = "a join by key: a condition above says what is equal"
CASES = {
    "SELECT f, k, n FROM fact": [],
    "SELECT f, k + 1, n FROM fact WHERE n = 3": [],
    "SELECT * FROM dim WHERE EXISTS (SELECT * FROM other WHERE n = dim.k)": [
        f"1 cross product became {KEYED}",
        "1 mark became a semijoin: only rows for which it is true are asked for",
        "'other' is read without 1 of 2 columns: nothing reads those",
    ],
    "SELECT * FROM fact JOIN dim ON fact.k = dim.k": [],
    "SELECT * FROM fact, dim WHERE fact.k = dim.k": [f"1 cross product became {KEYED}"],
    "SELECT * FROM fact, dim": [],
    "SELECT * FROM dim WHERE g IN (SELECT g FROM \"group\" WHERE name = 'here')": [
        "1 mark became a semijoin: only rows for which it is true are asked for",
    ],
    "SELECT * FROM dim WHERE k NOT IN (SELECT n FROM other) AND g NOT IN (SELECT n FROM other)": [
        "2 marks became antijoins: only rows for which it is false are asked for",
    ],
    "SELECT * FROM (SELECT k, count(*) AS c FROM dim GROUP BY k) WHERE k > 5": [
        "conditions went down, 1 to 'dim': fewer rows come out of there",
    ],
    "SELECT fact.f, dim.g, fact.n, fact.k FROM fact JOIN dim ON fact.k = dim.k WHERE fact.n < _now()": [
        "bounds of time went below joins: these forget what is over",
    ],
}


@pytest.mark.parametrize("sql", CASES)
def test_each_rewrite_is_told_with_its_reason(sql: str) -> None:
    schemas = {name: schema for name, schema in SCHEMAS.items() if name in sql}
    assert explain_rewrites(plan_query(sql, schemas)[0]) == CASES[sql]


def test_the_order_of_joins_is_told_with_the_sizes_that_it_goes_by() -> None:
    told = explain_rewrites(plan_query(STAR, SCHEMAS)[0], SIZES)
    assert told[0] == "3 cross products became joins by key: a condition above says what is equal"
    assert told[1] == "conditions went down, 1 to 'group': fewer rows come out of there"
    assert "'fact' (about 600,000 rows), 'other' (about 5,000 rows): by what is known of sizes" in told[2]
    assert told[2].startswith("joins are in the order 'dim' (about 1,000 rows), 'group' (about ")


def test_explain_tells_the_rewrites_of_the_plan_as_it_is_run_only() -> None:
    with persist.open("memory://reasons") as client:
        client.create_or_load("facts", key={"f": pa.int64(), "k": pa.int64()})
        view = client.create_view("some", "SELECT k FROM (SELECT k FROM facts GROUP BY k) WHERE k > 5")
        told = "rewritten: conditions went down, 1 to 'facts': fewer rows come out of there"
        assert told in view.explain().splitlines()
        assert "rewritten" not in view.explain(optimise=False)
