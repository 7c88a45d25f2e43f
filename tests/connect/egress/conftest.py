"""A server of Postgres for the tests of this folder, and a database of its own for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.connect.egress.target import Target
from tests.connect.ingest.servers import Server, running


@pytest.fixture(scope="package")
def server() -> Iterator[Server]:
    with running() as found:
        yield found


@pytest.fixture
def target(server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Target]:
    found = Target(server, f"t{abs(hash(request.node.name)) % 10**12}", str(tmp_path / "location"))
    yield found
    found.connection.close()
