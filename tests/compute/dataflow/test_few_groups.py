"""Times and sums of a few records in plain Python."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist.codecs.errors import DiffOverflow
from persist.compute.dataflow.operators.few_groups import close_under_joins, sum_until
from tests.compute.dataflow.oracle import closure


@given(times=st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=1, max_size=6))
def test_times_are_closed_under_least_upper_bounds(times: Any) -> None:
    assert sorted(close_under_joins(times, times)) == sorted(closure(times))
    assert len(close_under_joins([(1, 0, 0), (0, 1, 0)], [(0, 0, 1), (1, 0, 0), (0, 1, 0)])) == 6


def test_a_sum_that_does_not_fit_raises() -> None:
    records = [((7,), (0, 0), 2**62), ((7,), (0, 1), 2**62)]
    assert sum_until(records, (1, 0)) == {(7,): 2**62}
    with pytest.raises(DiffOverflow):
        sum_until(records, (1, 1))
