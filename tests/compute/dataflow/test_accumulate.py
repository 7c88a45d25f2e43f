"""What many updates contribute to sums: by group at once, it is what each contributes by itself."""

import numpy as np
import pyarrow as pa
import pytest

from persist.codecs.errors import DiffOverflow
from persist.compute.dataflow.operators import aggregates
from persist.compute.dataflow.operators.aggregates import Wanted, result_type
from persist.compute.dataflow.state.costs import Costs
from persist.compute.dataflow.updates.batch import Layout, to_batch
from persist.compute.dataflow.updates.words import NULL, Domain
from persist.dataflow import Program, col


@pytest.mark.parametrize("largest", [0, 300_000, -(2**29)])  # As of a record that stands for a whole group.
@pytest.mark.parametrize("keys", [0, 1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_groups_contribute_what_their_updates_do(keys: int, seed: int, largest: int) -> None:
    random, rows = np.random.default_rng(seed), 5000
    kinds = [("count", pa.int64()), ("sum", pa.int64()), ("mean", pa.decimal128(18, 2)), ("wide_sum", pa.int32())]
    wanted = [Wanted(f"a{n}", kind, of, result_type(kind, of, "a")) for n, (kind, of) in enumerate(kinds)]
    values = random.integers(-(2**62), 2**62, (4, rows)) >> random.integers(0, 60, (4, rows))
    values[random.random((4, rows)) < 0.2] = NULL
    words = random.integers(0, 5, (keys, rows))
    updates = np.concatenate((words, values, random.integers(0, 3, (1, rows)), random.integers(-2, 3, (1, rows))))
    updates[-1, 7] = largest
    at_once = aggregates.explode_to_slots(updates, keys, wanted, Domain())
    one_by_one = aggregates.explode_to_slots(updates, keys, wanted, Domain(), Costs(summed_rows=1 << 60))
    assert at_once.shape[1] < 1000 < one_by_one.shape[1]
    layout = Layout(keys, 1, 1)
    assert (to_batch(at_once, layout) == to_batch(one_by_one, layout)).all()


def test_the_least_diff_is_refused_among_many_updates_as_it_is_among_few() -> None:
    program = Program("large")
    given = program.input("given", key={"k": pa.int64()}, value={"n": pa.int64()})
    seen = given.group_by("k").agg(total=col("n").sum()).capture()
    with program.open() as running:
        running["given"].insert([((0, 3), 0, -(2**63)), *(((0, n), 0, 1) for n in range(4, Costs().summed_rows + 4))])
        running["given"].advance_to(1)
        with pytest.raises(DiffOverflow, match="does not fit int64"):
            running.step()
        assert not seen.rows()
