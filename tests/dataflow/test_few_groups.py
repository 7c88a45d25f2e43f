"""What plain Python makes of a few groups is what columns of them come to."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist.codecs import DiffOverflow
from persist.dataflow.operators.aggregates import Wanted
from persist.dataflow.operators.few_groups import (
    FewGroups,
    closed,
    plain_accumulated,
    plain_distinct,
    plain_extremes,
)
from persist.dataflow.operators.logic import accumulated, distinct, multiset_aggregates
from persist.dataflow.updates.times import closure
from persist.dataflow.updates.words import NULL, Domain

INT, SPAN = pa.int64(), pa.duration("s")
SLOTTED = [Wanted("n", "count", INT, INT), Wanted("s", "sum", INT, INT), Wanted("d", "sum", SPAN, SPAN)]
COUNTED = [Wanted("n", "count", INT, INT, 1), Wanted("s", "sum", INT, INT, -3)]
EXTREMES = [Wanted("a", "min", INT, INT), Wanted("b", "max", INT, INT)]
DIFFS = st.integers(-3, 3).filter(bool)
SLOTS = st.sampled_from([0, 1, 1 + 128, 5 + 128, 6 + 128, 1 + 256, 5 + 256])
WORDS = st.integers(-2, 2) | st.just(NULL)


def groups_of(values: Any) -> Any:
    return st.lists(st.dictionaries(values, DIFFS, max_size=5), min_size=1, max_size=4)


def agree(logic: Any, plain: Any, groups: Any, values: int) -> None:
    assert plain is not None
    keys, owners = np.zeros((0, len(groups)), np.int64), [*range(len(groups))]
    found = FewGroups(logic, plain, values).made(groups, owners, keys)
    assert found == FewGroups(logic, None, values).made(groups, owners, keys)


@given(groups=groups_of(st.just(())))
def test_distinct(groups: Any) -> None:
    agree(distinct, plain_distinct, groups, 0)


@given(groups=groups_of(st.tuples(SLOTS)), wanted=st.sampled_from([SLOTTED, COUNTED]))
def test_sums_and_counts(groups: Any, wanted: list[Wanted]) -> None:
    if wanted is COUNTED:
        groups = [{(0,): each[slot]} if (slot := (0,)) in each else {} for each in groups]
    agree(accumulated(wanted, Domain()), plain_accumulated(wanted), groups, 1)


@given(groups=groups_of(st.tuples(WORDS, WORDS)))
def test_least_and_greatest(groups: Any) -> None:
    agree(multiset_aggregates(EXTREMES, Domain()), plain_extremes(EXTREMES), groups, 2)


def test_what_has_no_plain_form_is_told() -> None:
    assert plain_accumulated([Wanted("m", "mean", INT, pa.float64())]) is None
    assert plain_accumulated([Wanted("s", "sum", pa.float64(), pa.float64())]) is None
    assert plain_extremes([Wanted("t", "min", pa.string(), pa.string())]) is None
    assert plain_extremes([Wanted("m", "median", INT, INT)]) is None


def test_sums_that_do_not_fit_raise() -> None:
    plain = plain_accumulated(SLOTTED)
    assert plain is not None
    for high, sign in ((2**31, 1), (-(2**31), -1)):
        with pytest.raises(DiffOverflow, match="'s' became"):
            plain({(0,): 1, (1 + 128,): 1, (6 + 128,): high, (5 + 128,): 0 if sign < 0 else 1})
    counted = plain_accumulated(COUNTED)
    assert counted is not None
    with pytest.raises(DiffOverflow):
        counted({(0,): 2**62})


@given(times=st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=1, max_size=6))
def test_times_are_closed_under_least_upper_bounds(times: Any) -> None:
    assert sorted(closed(times, times)) == closure(times)
