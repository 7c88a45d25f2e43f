"""Fixtures for tests of dataflow, views and queries."""

import uuid
from collections.abc import Iterator

import pytest

import persist


@pytest.fixture
def client() -> Iterator[persist.Client]:
    """Yield a client of an empty location in memory, which a second client can open, too."""
    with persist.open(f"memory://{uuid.uuid4()}", settings=persist.Settings(background=False)) as client:
        yield client
