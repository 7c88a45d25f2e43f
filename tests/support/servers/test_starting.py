"""The scripts that start servers: each says where it is, keeps what is written there, and ends with who started it."""

import pytest

import persist
from tests.support.servers.fixtures import served_or_skipped


@pytest.mark.costly("a process loads a server, such as moto")
@pytest.mark.parametrize(
    "name", ["moto", *(pytest.param(n, marks=pytest.mark.outside) for n in ("azurite", "fake-gcs"))]
)
def test_a_script_says_where_its_server_is_and_ends_with_its_input(name: str) -> None:
    running = served_or_skipped(name)
    server = next(running)
    url, options = f"{server.said['url']}/shop", server.options()
    with persist.open(url, storage_options=options) as client:
        client.write("orders", [{"id": 1, "n": 2}], key=["id"]).result()
    with persist.open(url, storage_options=options, mode="read") as client:
        assert list(client.load("orders").snapshot().rows()) == [(1, 2)]
    assert server.said["stop"] == f"kill {server.process.pid}"
    assert next(running, None) is None
    assert server.process.returncode == 0
