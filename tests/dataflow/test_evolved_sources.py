"""A dataflow over a collection whose schema changes notices what it reads, and nothing else."""

import pyarrow as pa
import pytest

import persist
from persist.dataflow import Program, col

QUIET = persist.Settings(background=False)


def test_a_program_does_not_notice_columns_that_it_does_not_read() -> None:
    with persist.open(persist.MemoryBlob(), settings=QUIET) as client:
        rows = client.create_or_load("rows", key={"k": pa.int64()}, value={"v": pa.int64(), "x": pa.string()})
        rows.write([((1, (10, "a")), 0, 1)], seal=1).result()
        program = Program("sums")
        seen = program.source("rows", schema={"k": pa.int64(), "v": pa.int64()}).map(v=col("v")).capture()
        with program.open(client) as running:
            running.run(until=0)
            rows.evolve(add={"y": pa.int8()}, drop=["x"])
            rows.write([((1, (10, None)), 1, -1), ((2, (20, 1)), 1, 1)], seal=2).result()
            running.run(until=1)
            assert sorted(zip(*(seen.updates()[n].to_pylist() for n in ("v", "_time", "_diff")), strict=True)) == [
                (10, 0, 1),
                (10, 1, -1),
                (20, 1, 1),
            ]
            rows.evolve(drop=["v"])
            rows.write([((3, None), 2, 1)], seal=3).result()
            with pytest.raises(persist.SchemaMismatch, match="'v' of schema version 1 is gone"):
                running.run(until=2)
        with pytest.raises(persist.SchemaMismatch, match="takes column 'v'"):
            program.open(client)
