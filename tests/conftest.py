"""Fixtures for all tests."""

import os
import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings

import persist
from persist.blob import MemoryBlob

pytest_plugins = ["tests.servers.fixtures"]

# How fast examples are made says something about the machine, not about the code.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


@pytest.fixture
def blob() -> MemoryBlob:
    return MemoryBlob()


@pytest.fixture
def client(blob: MemoryBlob) -> Iterator[persist.Client]:
    with persist.open(blob) as client:
        yield client


@pytest.fixture
def orders(client: persist.Client) -> persist.Collection:
    """A collection of one integer and one text."""
    return client.create_or_load("orders", key={"k": pa.int64()}, value={"v": pa.string()})
