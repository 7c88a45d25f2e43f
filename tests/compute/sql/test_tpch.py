"""The 22 queries of TPC-H as programs, against DuckDB after each of several refreshes."""

from collections import Counter

import duckdb
import pyarrow as pa
import pytest

from persist.codecs.types.schema import CollectionSchema
from persist.compute.sql.compile import plan_query
from persist.compute.sql.lower import Lowering
from persist.dataflow import Program, Stream
from tests.compute.sql.oracle import Row, comparable, multiset
from tests.compute.sql.tpch import QUERIES, Refreshes, generated
from tests.support.tiers import examples

SCALE = 0.002
REFRESHES = examples(5)


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pa.Table]:
    return generated(tmp_path_factory.mktemp("tpch") / "data", SCALE)


def test_all_queries_of_tpch_are_there() -> None:
    assert list(QUERIES) == [f"q{n}" for n in range(1, 23)]


@pytest.mark.thorough(except_every=8)
@pytest.mark.parametrize("name", list(QUERIES))
def test_a_query_of_tpch_has_the_answer_of_duckdb_after_each_refresh(name: str, tables: dict[str, pa.Table]) -> None:
    sql, changing = QUERIES[name], Refreshes(tables, seed=int(name[1:]))
    program, answer, inputs = program_over(sql, tables)
    seen, have = answer.capture(), Counter[Row]()
    with program.open() as running:
        for step in range(REFRESHES + 1):
            given = {each: (None, table) for each, table in tables.items()} if step == 0 else changing.step(0.01)
            for each in inputs:
                for rows, diff in zip(given.get(each, (None, None)), (-1, 1), strict=True):
                    if rows is not None and rows.num_rows:
                        running[each].insert(with_diff(rows, step, diff))
                running[each].advance_to(step + 1)
            running.step()
            taken = seen.take()
            columns = [taken[column].to_pylist() for column in answer.columns]
            for record, diff in zip(zip(*columns, strict=True), taken["_diff"].to_pylist(), strict=True):
                have[tuple(map(comparable, record))] += diff
            have = Counter({record: count for record, count in have.items() if count})
            want = asked(sql, changing.tables)
            assert have == want, f"{name} after refresh {step}: DuckDB {want - have}, this {have - want}"


def with_diff(rows: pa.Table, time: int, diff: int) -> pa.Table:
    return rows.append_column("_time", pa.array([time] * len(rows))).append_column(
        "_diff", pa.array([diff] * len(rows))
    )


def program_over(sql: str, tables: dict[str, pa.Table]) -> tuple[Program, Stream, list[str]]:
    schemas = {name: CollectionSchema.of(table.schema, None) for name, table in tables.items()}
    plan, _ = plan_query(sql, schemas)
    program = Program("tpch")
    inputs: dict[str, Stream] = {}

    def source(name: str) -> Stream:
        if name not in inputs:
            inputs[name] = program.input(name, key=tables[name].schema)
        return inputs[name]

    return program, Lowering(program, source).lower_query(plan), list(inputs)


def asked(sql: str, tables: dict[str, pa.Table]) -> Counter[Row]:
    with duckdb.connect(":memory:") as connection:
        for name, table in tables.items():
            connection.register(name, table)
        return multiset(connection.execute(sql).fetchall())
