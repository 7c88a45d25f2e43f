"""What each query of the corpus is planned to: as it is stored, and as the dataflow that computes it.

`plans.txt` has a digest of the plan of each query, whose answers were compared with DuckDB's when it was written. So a
query that has this plan still has the right answers, and to plan it costs a hundredth of computing them. Queries with
a mark are judged on laptops, too: two of them at least took each step of the planning that any two take. Where a plan
is another one, on purpose,

    python -m tests.compute.sql.plans

compares the answers of these queries alone, and writes the file anew. With queries as arguments it prints their plans.
"""

import hashlib
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb

from persist.codecs.types.schema import CollectionSchema
from persist.compute.dataflow.plan.optimise import Statistics
from persist.compute.dataflow.plan.plan import Plan
from persist.compute.sql.compile import choose_key, plan_query
from persist.compute.sql.definition import to_json
from persist.compute.sql.groups import split_at_aggregates
from persist.compute.sql.lower import Lowering
from persist.compute.sql.plan_text import Relation, Untranslatable, write_node
from persist.compute.sql.rewrite import rewrite_plan
from persist.compute.sql.types import to_arrow
from persist.dataflow import Program, Stream
from tests.compute.sql.corpus import QUERIES
from tests.compute.sql.oracle import TABLES, changes, check, schemas

PATH = Path(__file__).with_name("plans.txt")
SCHEMAS: dict[str, CollectionSchema] = schemas(TABLES)
# What is known of the tables, so that orders of joins are chosen by it.
KNOWN = {
    "t": Statistics(10_000, None, {"a": 100, "b": 5000}),
    "u": Statistics(300, None, {"a": 100, "b": 3}),
    "w": Statistics(20, None, {"a": 20}),
}


def plan_of(sql: str) -> str:
    """Return all that a query is planned to, for people."""
    plan, columns = plan_query(sql, SCHEMAS)
    program, inputs = Program("query"), dict[str, Stream]()

    def source(name: str) -> Stream:
        if name not in inputs:
            inputs[name] = program.input(name, key={column: to_arrow(kind) for column, kind in TABLES[name]})
        return inputs[name]

    rewritten = rewrite_plan(plan, KNOWN)
    Lowering(program, source, KNOWN).lower_rewritten(rewritten).probe()
    above, groups = split_at_aggregates(rewritten, "g")
    kept: list[Any] = [(each.columns, each.key, to_json(each.plan)) for each in groups]
    stored = {"columns": columns, "key": choose_key(plan, columns, None), "plan": to_json(plan)}
    kept += [to_json(above), split_at_aggregates(rewritten, "", groups)[0] == above]
    return "\n".join([json.dumps(stored), program.explain(), json.dumps(kept), *write_sql(program.plan)])


def write_sql(plan: Plan) -> list[str]:
    """Return the SQL of each node of a plan that DuckDB may compute, for first builds."""
    relations = dict[int, Relation]()
    for number, node in plan.nodes.items():
        with suppress(Untranslatable, KeyError):
            is_input = not node.inputs
            inputs = [relations[below] for below in node.inputs]
            relations[number] = (
                Relation(f"FROM n{number}", node.schema) if is_input else write_node(plan, node, inputs, relations)
            )
    return [f"{number} {relation.text} {relation.is_weighted}" for number, relation in relations.items()]


def compute_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def known_plans() -> tuple[str, dict[str, str]]:
    """Return the release of DuckDB that made plans, and by the digest of each query that of its plan, and a mark."""
    release, *lines = PATH.read_text(encoding="utf-8").splitlines()
    return release, {sql: plan for sql, _, plan in (line.partition(" ") for line in lines)}


def changed(queries: list[str]) -> list[str]:
    """Return those of some queries whose plan is not the one whose answers were compared."""
    _, known = known_plans()
    return [sql for sql in queries if known.get(compute_digest(sql), "").split(" ")[0] != compute_digest(plan_of(sql))]


def main() -> None:
    if sys.argv[1:]:
        print(*map(plan_of, sys.argv[1:]), sep="\n\n")
        return
    _, known = known_plans() if PATH.exists() else ("", {})
    new = {compute_digest(sql): compute_digest(plan_of(sql)) for sql in QUERIES}
    others = [sql for sql in QUERIES if known.get(compute_digest(sql), "").split(" ")[0] != new[compute_digest(sql)]]
    for number, sql in enumerate(others, 1):
        print(f"{number} of {len(others)}: {sql}", flush=True)
        check(sql, changes(1), known=KNOWN)
        check(sql, changes(2, steps=6, size=5), is_rewritten=False)
    lines = [f"{sql} {plan}{known.get(sql, '')[10:]}" for sql, plan in new.items()]
    PATH.write_text("\n".join([duckdb.__version__, *lines, ""]))


if __name__ == "__main__":
    main()
