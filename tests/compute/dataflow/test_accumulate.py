"""Sums of many updates raise where they do not fit."""

import pyarrow as pa
import pytest

from persist.codecs.errors import DiffOverflow
from persist.dataflow import Program, col


def test_the_least_diff_is_refused_among_many_updates_as_it_is_among_few() -> None:
    program = Program("large")
    given = program.input("given", key={"k": pa.int64()}, value={"n": pa.int64()})
    seen = given.group_by("k").agg(total=col("n").sum()).capture()
    with program.open() as running:
        running["given"].insert([((0, 3), 0, -(2**63)), *(((0, n), 0, 1) for n in range(4, 5000))])
        running["given"].advance_to(1)
        with pytest.raises(DiffOverflow, match="does not fit int64"):
            running.step()
        assert not seen.rows()
