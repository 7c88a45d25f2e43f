"""Times of several dimensions, and their frontiers."""

from itertools import product

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import persist
from persist import Antichain, InvalidUsage
from persist.compute.dataflow.updates.times import advance_times, find_beyond
from persist.dataflow import Program

POINTS = st.tuples(st.integers(0, 4), st.integers(0, 4))
FRONTIERS = st.lists(POINTS, max_size=3).map(lambda points: Antichain(*points))
EVERY = list(product(range(7), range(7)))


def test_products_are_ordered_in_every_dimension() -> None:
    assert Antichain((1, 2)) <= (1, 3)
    assert not Antichain((1, 2)) <= (2, 1)
    assert Antichain((1, 2)).join((2, 1)) == (2, 2)
    assert Antichain((1, 2)).meet((2, 1)).elements == ((1, 2), (2, 1))
    assert Antichain(3).join(5) == 5


def test_there_is_one_antichain() -> None:
    assert persist.dataflow.Antichain is Antichain


def test_a_collection_takes_no_frontier_of_several_dimensions() -> None:
    with persist.open("memory://product-frontiers") as client:
        orders = client.create_or_load("orders", key={"id": int}, value=None, timeline=None)
        with pytest.raises(InvalidUsage, match="several dimensions"):
            orders.seal(Antichain((1, 2)))


def test_times_of_different_dimensions_do_not_mix() -> None:
    for mixed in (
        lambda: Antichain(1) <= (1, 2),
        lambda: Antichain((1, 2)) > Antichain(1),
        lambda: Antichain(1).join((1, 2)),
        lambda: Antichain(1, (1, 2)),
        lambda: Antichain(1).has_beyond((1, 2)),
        lambda: Antichain((1, 2)).has_beyond(3),
    ):
        with pytest.raises(InvalidUsage, match="dimensions"):
            mixed()


def test_an_antichain_keeps_the_least_elements() -> None:
    assert Antichain((2, 2), (1, 3), (1, 2)).elements == ((1, 2),)
    assert Antichain((0, 2), (1, 1)).meet((1, 0)) == Antichain((0, 2), (1, 0))
    assert Antichain(4, 2, 3).elements == (2,)
    assert repr(Antichain((0, 1), (1, 0))) == "Antichain((0, 1), (1, 0))"


@given(one=FRONTIERS, other=FRONTIERS)
def test_meet_and_join_are_those_of_what_is_beyond(one: Antichain, other: Antichain) -> None:
    for time in EVERY:
        assert one.meet(other).has_beyond(time) == (one.has_beyond(time) or other.has_beyond(time))
        assert one.join(other).has_beyond(time) == (one.has_beyond(time) and other.has_beyond(time))
    assert (one <= other) == all(one.has_beyond(time) for time in EVERY if other.has_beyond(time))
    assert (one < other) == (one <= other and one != other)


@given(frontier=FRONTIERS)
def test_many_times_are_compared_as_each_is(frontier: Antichain) -> None:
    assert find_beyond(frontier, np.array(EVERY).T).tolist() == [frontier.has_beyond(time) for time in EVERY]


@given(since=FRONTIERS.filter(lambda each: not each.is_empty))
def test_advanced_times_compare_as_before_with_all_that_is_beyond_since(since: Antichain) -> None:
    for time in EVERY:
        moved = Antichain(tuple(advance_times(np.array([time]).T, since)[:, 0].tolist()))
        for later in EVERY:
            if since.has_beyond(later):
                assert (Antichain(time) <= later) == (moved <= later)


def test_times_of_several_dimensions_are_stored_as_columns() -> None:
    program = Program("wide", dimensions=2)
    counts = program.input("a", key={"k": pa.int64()}).group_by("k").count("n")
    with pytest.raises(InvalidUsage, match="write them with columns for the coordinates"):
        counts.persist("counts", key=["k"])
    seen = counts.capture()
    columns = {"k": pa.int64(), "n": pa.int64(), "_time_0": pa.int64(), "_time_1": pa.int64()}
    with program.open() as running, persist.open("memory://as-columns") as client:
        running["a"].insert([((1, None), (0, 1), 1), ((1, None), (1, 0), 1)])
        running["a"].close()
        running.step()
        stored = client.create_or_load("counts", key={name.strip("_"): kind for name, kind in columns.items()})
        taken = seen.take().rename_columns([*(name.strip("_") for name in columns), "_diff"])
        stored.write(taken.append_column("_time", pa.array([0] * len(taken))), seal=1).result()
        for point, wanted in (((0, 0), {}), ((0, 5), {1: 1}), ((5, 0), {1: 1}), ((1, 1), {1: 2})):
            where = f"time_0 <= {point[0]} and time_1 <= {point[1]}"
            found = (
                stored.snapshot(where=where, form="diff").to_arrow().group_by(["k", "n"]).aggregate([("_diff", "sum")])
            )
            assert {row["k"]: row["n"] for row in found.to_pylist() if row["_diff_sum"]} == wanted
