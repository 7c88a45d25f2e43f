"""Times of several dimensions, and their frontiers."""

import random
import uuid
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import persist
from persist import Antichain, InvalidUsage
from persist.compute.dataflow.plan.types import is_compatible
from persist.compute.dataflow.ports.sources import choose_step_end
from persist.compute.dataflow.updates.batch import Layout, find_distinct_keys, hash_keys, to_batch
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


UTC = {unit: pa.timestamp(unit, "UTC") for unit in ("s", "ms", "us", "ns")}
SAME = [
    (pa.large_string(), pa.string()), (pa.large_binary(), pa.binary()), (pa.binary(4), pa.binary()),
    (pa.list_(pa.large_string()), pa.list_(pa.string())), (pa.large_list(pa.int8()), pa.list_(pa.int8())),
    (pa.list_(pa.int8(), 3), pa.list_(pa.int8())), (pa.list_(pa.list_(pa.binary(2))), pa.list_(pa.list_(pa.binary()))),
    (UTC["s"], UTC["s"]), (UTC["s"], UTC["ns"]), (UTC["ms"], UTC["us"]), (pa.timestamp("us", "Europe/Rome"), UTC["us"]),
    (pa.float16(), pa.float32()), (pa.date64(), pa.date32()), (pa.time32("s"), pa.time64("us")),
    (pa.int64(), pa.int64()), (pa.timestamp("us"), pa.timestamp("us")),
]  # fmt: skip
OTHERS = [
    (None, pa.int64()), (pa.string(), pa.large_string()), (pa.binary(), pa.string()), (pa.string(), pa.binary()),
    (pa.int32(), pa.int64()), (pa.list_(pa.int32()), pa.list_(pa.int64())), (pa.string(), pa.list_(pa.string())),
    (UTC["us"], UTC["ms"]), (UTC["ns"], UTC["us"]), (pa.timestamp("us"), UTC["us"]), (UTC["us"], pa.timestamp("us")),
    (pa.int64(), UTC["us"]), (pa.float64(), pa.float32()), (pa.float32(), pa.float64()), (pa.date32(), pa.date64()),
    (pa.time64("us"), pa.time32("s")), (pa.int32(), pa.time64("us")), (pa.int32(), pa.date32()),
]  # fmt: skip


def test_a_type_is_read_as_another_that_holds_all_of_its_values_alike() -> None:
    assert [pair for pair in SAME if not is_compatible(*pair)] == []
    assert [pair for pair in OTHERS if is_compatible(*pair)] == []


class Source:
    """What `choose_step_end` looks at of a source."""

    def __init__(self, upper: int, reached: int, *parts: tuple[int, int, int]) -> None:
        self.reached = reached
        with persist.open(f"memory://{uuid.uuid4()}", settings=persist.Settings(background=False)) as client:
            t = client.create_or_load("t", key={"k": int})
            for first, last, rows in parts:
                times = np.linspace(first, last, rows).astype(np.int64)
                t.write([((k, None), time, 1) for k, time in enumerate(times.tolist())]).result()
            t.seal(upper).result()
            self._known = t.handle.contents()

    @property
    def handle(self) -> "Source":
        return self

    def get_known_state(self) -> Any:
        return self._known


@pytest.mark.parametrize(
    ("parts", "reached", "updates_max", "until"),
    [
        ([(0, 9, 100)], 0, 100, None),  # All are few enough.
        ([(0, 9, 100)], 0, 99, 9),
        ([(0, 9, 100)], 0, 50, 5),
        ([(0, 9, 100)], 0, 59, 5),
        ([(0, 9, 100)], 0, 60, 6),
        ([(0, 9, 100)], 0, 1, 1),  # One time at least.
        ([(0, 4, 10), (5, 9, 100)], 0, 50, 7),
        ([(0, 4, 10), (5, 9, 100)], 5, 60, 8),
        ([(0, 4, 10), (5, 9, 100)], 7, 50, 8),  # All of a part, which is taken to lie beyond what was reached.
        ([(0, 0, 10), (9, 9, 90)], 0, 20, 9),
        ([(3, 3, 10), (9, 9, 90)], 0, 5, 4),
    ],
)
def test_a_step_takes_about_as_many_updates_as_it_may(
    parts: list[tuple[int, int, int]], reached: int, updates_max: int, until: int | None
) -> None:
    source: Any = Source(10, reached, *parts)
    assert choose_step_end([source], updates_max) == until


def test_no_source_is_taken_further_than_another_one_is_sealed() -> None:
    near, far = Source(4, 0, (0, 3, 10)), Source(20, 0, (0, 19, 200))
    both: list[Any] = [near, far]
    assert choose_step_end(both, 100) == 4
    assert choose_step_end(both, 30) == 2
    behind: list[Any] = [Source(4, 4, (0, 3, 10)), Source(20, 4, (0, 19, 200))]
    assert choose_step_end(behind, 10) is None, "nothing is sealed that was not taken"
    assert choose_step_end([], 10) is None


@pytest.mark.parametrize("collide", [False, True])
def test_distinct_keys_are_numbered_whatever_their_hashes_are(collide: bool) -> None:
    chance, layout = random.Random(1), Layout(2, 0, 1)
    for size in (0, 1, 2, 30):
        columns = [[chance.randrange(3) for _ in range(size)] for _ in range(2)]
        batch = to_batch(np.array([*columns, [0] * size, [1] * size], np.int64).reshape(4, size), layout)
        if collide:
            batch[0] = 0
            batch = batch[:, np.random.default_rng(size).permutation(batch.shape[1])]
        keys, hashes, numbers = find_distinct_keys(batch, layout)
        rows = [*zip(*batch[1:3].tolist(), strict=True)]
        assert len({*zip(*keys.tolist(), strict=True)}) == keys.shape[1] == len({*rows})
        assert [tuple(keys[:, number].tolist()) for number in numbers] == rows
        assert len(hashes) == keys.shape[1]
        assert (
            collide
            or (hashes == hash_keys(keys) & ~np.int64(2**32 - 1)).all()
            or (hashes >> 32 == hash_keys(keys) >> 32).all()
        )
