"""What many updates contribute to sums: by group at once, it is what each contributes by itself."""

import numpy as np
import pyarrow as pa
import pytest

from persist.dataflow import accumulate
from persist.dataflow.aggregates import Wanted, result_type
from persist.dataflow.batch import Layout, to_batch
from persist.dataflow.words import NULL, Domain


@pytest.mark.parametrize("keys", [0, 1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_groups_contribute_what_their_updates_do(keys: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random, rows = np.random.default_rng(seed), 5000
    kinds = [("count", pa.int64()), ("sum", pa.int64()), ("mean", pa.decimal128(18, 2)), ("wide_sum", pa.int32())]
    wanted = [Wanted(f"a{n}", kind, of, result_type(kind, of, "a")) for n, (kind, of) in enumerate(kinds)]
    values = random.integers(-(2**62), 2**62, (4, rows)) >> random.integers(0, 60, (4, rows))
    values[random.random((4, rows)) < 0.2] = NULL
    words = random.integers(0, 5, (keys, rows))
    updates = np.concatenate((words, values, random.integers(0, 3, (1, rows)), random.integers(-2, 3, (1, rows))))
    at_once = accumulate.exploded(updates, keys, wanted, Domain())
    monkeypatch.setattr(accumulate, "MANY_ROWS", 1 << 60)
    one_by_one = accumulate.exploded(updates, keys, wanted, Domain())
    assert at_once.shape[1] < 1000 < one_by_one.shape[1]
    layout = Layout(keys, 1, 1)
    assert (to_batch(at_once, layout) == to_batch(one_by_one, layout)).all()
