"""Frontiers: order, bounds, and what is beyond them."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist import Antichain, InvalidUsage

FRONTIERS = st.one_of(st.just(Antichain()), st.builds(Antichain, st.integers(0, 2**63 - 1)))


@given(FRONTIERS, FRONTIERS, st.integers(0, 2**63 - 2))
def test_a_frontier_is_at_or_before_another_if_everything_beyond_that_is_beyond_it(
    a: Antichain, b: Antichain, time: int
) -> None:
    if a <= b and b.has_beyond(time):
        assert a.has_beyond(time)
    assert (a <= b) or (b <= a)
    assert (a < b) == (a <= b and a != b)


def test_the_empty_frontier_comes_last_and_has_nothing_beyond_it() -> None:
    assert Antichain(2**63 - 1) < Antichain()
    assert not Antichain().has_beyond(2**63 - 2)
    assert Antichain(5).has_beyond(5)
    assert not Antichain(5).has_beyond(4)


@pytest.mark.parametrize("time", [-1, 2**63, 1.0, "1", True])
def test_a_frontier_takes_only_times(time: object) -> None:
    with pytest.raises(InvalidUsage, match="is not an integer in"):
        Antichain(time)  # type: ignore[arg-type]


def test_frontiers_survive_pickling_and_hash_by_value() -> None:
    for frontier in (Antichain(), Antichain(7)):
        assert pickle.loads(pickle.dumps(frontier)) == frontier
    assert len({Antichain(1), Antichain(1), Antichain()}) == 2
