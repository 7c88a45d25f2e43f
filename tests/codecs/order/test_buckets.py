"""A table of buckets gives the places that a binary search gives, and is made where numbers are spread evenly only."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from persist.codecs.order.buckets import ROWS_MIN, Buckets

EDGES = [-(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 2, 2**63 - 1]


def spread(kind: str, rows: int = 20_000) -> npt.NDArray[np.int64]:
    chance = np.random.default_rng(3)
    if kind == "random":
        return np.sort(np.concatenate([chance.integers(-(2**63), 2**63 - 1, rows), EDGES]))
    if kind == "repeated":
        return np.sort(chance.integers(0, rows // 2, rows))
    return np.arange(rows) * 3 + 1000


@pytest.mark.parametrize("kind", ["random", "repeated", "even"])
@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_places_are_those_of_a_binary_search(kind: str, dtype: type) -> None:
    numbers: Any = np.sort(spread(kind).astype(dtype))
    buckets = Buckets.of(numbers)
    assert buckets is not None
    others: Any = np.random.default_rng(4).integers(-(2**63), 2**63 - 1, 1000).astype(dtype)
    wanted = np.sort(np.concatenate([numbers[::7], numbers[1:] - dtype(1), others]))
    wanted = wanted[(wanted >= numbers[0]) & (wanted <= numbers[-1])]
    assert buckets.lower_bounds(wanted).tolist() == numbers.searchsorted(wanted).tolist()


def test_heaps_and_few_numbers_have_no_table() -> None:
    heap = np.concatenate([np.arange(20_000), [2**62]])
    assert Buckets.of(heap) is None
    assert Buckets.of(np.repeat(np.arange(ROWS_MIN // 8), 8)) is None
    assert Buckets.of(np.arange(ROWS_MIN - 1)) is None
    assert Buckets.of(np.arange(ROWS_MIN, dtype=np.int32)) is None


def test_equal_numbers_in_a_bucket_are_searched_for_to_their_first() -> None:
    numbers = np.sort(np.concatenate([np.arange(50_000), np.full(100, 7), np.full(50, 49_999)]))
    buckets = Buckets.of(numbers)
    assert buckets is not None
    wanted = np.array([0, 6, 7, 8, 49_998, 49_999])
    assert buckets.lower_bounds(wanted).tolist() == numbers.searchsorted(wanted).tolist()
