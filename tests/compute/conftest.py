"""Fixtures for tests of dataflow, views and queries."""

import uuid
from collections.abc import Iterator

import duckdb
import pytest

import persist
from persist.codecs.types.calculator import get_calculator


@pytest.fixture
def client() -> Iterator[persist.Client]:
    """Yield a client of an empty location in memory, which a second client can open, too."""
    with persist.open(f"memory://{uuid.uuid4()}", settings=persist.Settings(background=False)) as client:
        yield client


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let new databases of DuckDB take their zone from a machine elsewhere."""
    get_calculator()
    connect = duckdb.connect

    def connect_elsewhere(*path: str, **options: object) -> duckdb.DuckDBPyConnection:
        connection = connect(*path, **options)
        connection.execute("SET GLOBAL TimeZone = 'America/New_York'")
        return connection

    monkeypatch.setattr(duckdb, "connect", connect_elsewhere)
