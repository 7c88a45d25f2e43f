"""Batches of many updates: sorted together with places, they are the same batches as sorted in any other way."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from persist.compute.dataflow.updates.batch import Layout, hash_columns, to_batch

Ints = npt.NDArray[np.int64]
ROWS = 40_000
KEYS, VALUES, DIMENSIONS = 2, 1, 2
MADE: dict[str, Callable[[np.random.Generator], list[Any]]] = {
    # Two words of a key, one of a value, two coordinates of a time, the diff.
    "few records of one time": lambda chance: [*chance.integers(0, 40, (3, ROWS)), 7, 7, 1],
    "few records, with retractions": lambda chance: [*chance.integers(0, 40, (3, ROWS)), 7, 7, _signs(chance)],
    "few records at many times": lambda chance: [*chance.integers(0, 12, (5, ROWS)), _signs(chance)],
    "all alike": lambda chance: [np.full(ROWS, 3), 4, 5, 1, 1, 1],
    "what cancels out": lambda chance: [np.arange(ROWS) // 8, 4, 5, 1, 1, np.tile([1, -1], ROWS // 2)],
    "large diffs": lambda chance: [chance.integers(0, 9, ROWS), 4, 5, 1, 1, chance.integers(1, 2**46, ROWS)],
    "many records": lambda chance: [*chance.integers(-(2**63), 2**63 - 1, (3, ROWS)), 7, 7, 1],
    "half of them alike": lambda chance: [np.maximum(np.arange(ROWS), ROWS // 2), 4, 5, 1, 1, 1],
}


def _signs(chance: np.random.Generator) -> Ints:
    return chance.choice([-1, 1], ROWS)


@pytest.mark.parametrize("which", MADE)
@pytest.mark.parametrize("layout", [Layout(KEYS, VALUES, DIMENSIONS), Layout(KEYS + VALUES, 0, DIMENSIONS)])
def test_a_bulk_is_sorted_and_summed_by_record_and_time(which: str, layout: Layout) -> None:
    updates = np.array(np.broadcast_arrays(*MADE[which](np.random.default_rng(1))), np.int64)
    batch = to_batch(updates.copy(), layout)
    order = np.lexsort(updates[:-1])
    news = np.append(True, (np.diff(updates[:-1].take(order, axis=1)) != 0).any(axis=0))
    sums = np.add.reduceat(updates[-1].take(order), np.flatnonzero(news))
    expected = np.concatenate((updates[:-1, order[news]], sums[None]))[:, sums != 0]
    assert (batch[0, 1:] >= batch[0, :-1]).all()
    assert (batch[1:].take(np.lexsort(batch[1:-1]), axis=1) == expected).all()


def test_the_hash_of_a_bulk_decides_its_order() -> None:
    """A look-up relies on it, however the batch was made."""
    updates = np.array(np.broadcast_arrays(*MADE["few records of one time"](np.random.default_rng(2))), np.int64)
    layout = Layout(KEYS, VALUES, DIMENSIONS)
    batch = to_batch(updates, layout)
    upper = hash_columns(batch[1 : 1 + KEYS]) >> np.uint64(32)
    lower = hash_columns(batch[1 + KEYS : 1 + KEYS + VALUES]) >> np.uint64(32)
    assert (batch[0].view(np.uint64) == (upper << np.uint64(32)) | lower).all()
