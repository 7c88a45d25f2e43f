"""Queries inside of programs."""

import pyarrow as pa
import pytest

import persist
from persist.dataflow import Program, col
from persist.sql import answer


def test_a_query_may_be_part_of_a_program() -> None:
    program = Program("mixed")
    orders = program.input("orders", key={"id": pa.int64()}, value={"k": pa.string(), "n": pa.int64()})
    large = orders.filter(col("n") > 1)
    totals = answer(program, "SELECT k, max(n) AS most FROM big GROUP BY k", big=large)
    seen = totals.filter(col("most") < 9).capture()
    with program.open() as running:
        running["orders"].insert([((1, ("x", 5)), 0, 1), ((2, ("x", 1)), 0, 1), ((3, ("y", 9)), 0, 1)])
        running["orders"].advance_to(1)
        running.step()
        assert seen.rows() == [(("x", 5), 0, 1)]


def test_a_query_of_a_program_reads_collections_that_a_client_knows() -> None:
    with persist.open("memory://inside") as client:
        source = client.create_or_load("numbers", key={"n": pa.int64()})
        source.write([((n, None), 0, 1) for n in range(5)], seal=1).result()
        program = Program("counting").using(client)
        answer(program, "SELECT count(*) AS n FROM numbers WHERE n > 1").persist("counted", key=["n"])
        with program.open(client) as running:
            running.step()
        assert client.load("counted").snapshot().to_arrow()["n"].to_pylist() == [3]


def test_names_that_are_nothing_are_refused() -> None:
    program = Program("mixed")
    program.input("orders", key={"id": pa.int64()})
    with pytest.raises(persist.InvalidUsage, match="no collection of that name"):
        answer(program, "SELECT id FROM orders")
    with pytest.raises(persist.InvalidUsage, match="is not a stream"):
        answer(program, "SELECT id FROM orders", orders=3)  # type: ignore[arg-type]
