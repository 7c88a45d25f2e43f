"""The hash of keys and records: the same on every machine and in every version, and never believed."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from persist.compute.dataflow.updates import batch
from persist.compute.dataflow.updates.batch import HASH_VERSION, hash_columns, hash_keys
from persist.compute.dataflow.updates.times import Ints
from tests.compute.dataflow.programs import OPERATORS
from tests.compute.dataflow.test_oracle import NAMES, compare
from tests.support.tiers import examples

WORDS = [[0, 1, -1, 2**62, -(2**63)], [0, 5, 5, -7, 3]]
# What version 1 gives, of both rows and of the first one. A change of the hash is another version, with other numbers.
BOTH = [0x0, 0xD9FE79AF2B674A06, 0x49D03B4060FE8473, 0x07BCEB5593E64D02, 0x2704E0019DACF0AB]
FIRST = [0x0, 0xAB169EB805B8C71C, 0x2A0A6C0285034331, 0x9FD29F0540000000, 0x3FA53E0A80000000]


def colliding(bits: int) -> Any:
    """Return the hash with only so many bits of either half left."""
    true = hash_columns
    mask = np.uint64(((1 << bits) - 1) << (64 - bits))

    def hashed(rows: Ints) -> Any:
        return true(rows) & (mask | (mask >> np.uint64(32)))

    return hashed


@pytest.fixture(params=[1, 2])
def _collisions(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persist.compute.dataflow.updates.batch.hash_columns", colliding(request.param))


def test_the_hash_is_the_same_for_ever() -> None:
    assert HASH_VERSION == 1
    assert hash_columns(np.array(WORDS, np.int64)).tolist() == BOTH
    assert hash_columns(np.array(WORDS[:1], np.int64)).tolist() == FIRST


@pytest.mark.usefixtures("_collisions")
def test_the_hash_of_these_tests_collides() -> None:
    keys = np.arange(1000)[None]
    assert len(np.unique(batch.hash_columns(keys))) <= 16
    assert len(np.unique(hash_keys(keys))) <= 4


@pytest.mark.thorough(except_every=3)
@pytest.mark.usefixtures("_collisions")
@pytest.mark.parametrize("which", range(len(OPERATORS)), ids=[f"{at}-{name}" for at, name in enumerate(NAMES)])
@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_keys_whose_hashes_collide_are_told_apart_by_every_operator(which: int, data: Any) -> None:
    arguments = data.draw(st.lists(st.integers(0, 1), min_size=3, max_size=3))
    compare(data, data.draw(st.integers(1, 2)), [(which, arguments)], 12)
