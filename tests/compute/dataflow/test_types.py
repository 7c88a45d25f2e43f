"""Which stored types a program may take for another, and what keys and times of sources are told by."""

import random
import uuid
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import persist
from persist.compute.dataflow.plan.types import is_compatible
from persist.compute.dataflow.ports.sources import choose_step_end
from persist.compute.dataflow.updates.batch import Layout, find_distinct_keys, hash_keys, to_batch

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
