"""Fixtures that start servers, each once for the whole run."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.servers.ceph_rgw import CephRgw, running_rgw, why_not
from tests.servers.clouds import (
    running_azurite,
    running_careless_gcs,
    running_gcs,
    why_no_azure,
    why_no_careless_gcs,
    why_no_gcs,
)

ROOT = Path(__file__).parent.parent.parent
ACCESS_KEY_ID = "AKIDFORTESTSONLY"
SECRET_ACCESS_KEY = "secret-for-tests-only"


@pytest.fixture(scope="session")
def moto_url() -> Iterator[str]:
    """The endpoint of a moto server, such as `http://127.0.0.1:40001`."""
    with running_moto() as url:
        yield url


@contextmanager
def running_moto() -> Iterator[str]:
    """Run a moto server; yields its endpoint."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.servers.moto_s3"]
    # Real credentials in the environment are of no use there, and must not reach a server of ours.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            port = server.stdout.readline().strip()
            assert port, "the moto server did not start; its error is above"
            yield f"http://127.0.0.1:{port}"
        finally:
            server.stdin.close()
            server.wait(timeout=30)


@pytest.fixture(scope="session")
def s3_options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """`storage_options` of S3Blob for the server of this run: moto, or with --rgw a gateway of Ceph."""
    if request.config.getoption("--rgw"):
        rgw: CephRgw = request.getfixturevalue("rgw")
        return rgw.options("a")
    return options_of(request.getfixturevalue("moto_url"))


@pytest.fixture(scope="session")
def rgw(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CephRgw]:
    """Two gateways of Ceph over one cluster; skips where they are not asked for or not installed."""
    if not request.config.getoption("--rgw"):
        pytest.skip("Ceph RGW is not asked for: scripts/test --rgw")
    if reason := why_not():
        pytest.skip(reason)
    with running_rgw(tmp_path_factory.mktemp("ceph")) as running:
        yield running


@pytest.fixture(scope="session")
def azure_options() -> Iterator[dict[str, Any]]:
    """`storage_options` of `abfs://box/…` on Azurite; skips where something is not installed."""
    if reason := why_no_azure():
        pytest.skip(reason)
    with running_azurite() as options:
        yield options


@pytest.fixture(scope="session")
def gcs_options() -> Iterator[dict[str, Any]]:
    """`storage_options` of `gs://box/…` on fake-gcs-server; skips where something is not installed."""
    if reason := why_no_gcs():
        pytest.skip(reason)
    with running_gcs() as options:
        yield options


@pytest.fixture(scope="session")
def careless_gcs_options() -> Iterator[dict[str, Any]]:
    """The same on a server that ignores the condition of a create."""
    if reason := why_no_careless_gcs():
        pytest.skip(reason)
    with running_careless_gcs() as options:
        yield options


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rgw",
        action="store_true",
        help="run only the tests that need an S3 server, with Ceph RGW instead of moto",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --rgw, keep only what it concerns: not what signs with made-up keys, nor what starts Spark."""
    if not config.getoption("--rgw"):
        return
    wanted = [item for item in items if _needs_s3(item)]
    config.hook.pytest_deselected(items=[item for item in items if not _needs_s3(item)])
    items[:] = wanted


def _needs_s3(item: pytest.Item) -> bool:
    names = getattr(item, "fixturenames", ())
    if {"spark", "gate"} & set(names) or item.get_closest_marker("spark") is not None:
        return False
    kinds = getattr(item, "callspec", None)
    params = set(kinds.params.values()) if kinds is not None and {"place", "crowded"} & set(names) else set()
    return bool({"s3_options", "rgw"} & set(names)) or bool({"s3", "fsspec"} & params)


def options_of(moto_url: str) -> dict[str, Any]:
    """Return `storage_options` of S3Blob for a moto server."""
    return {
        "endpoint_url": moto_url,
        "region": "us-east-1",
        "access_key_id": ACCESS_KEY_ID,
        "secret_access_key": SECRET_ACCESS_KEY,
    }


@pytest.fixture
def s3_location(s3_options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The URL of a location in a new bucket, and its `storage_options`."""
    return f"s3://{make_bucket(s3_options)}/some/prefix", s3_options


def make_bucket(s3_options: dict[str, Any]) -> str:
    """Make a new bucket on the server of these options and return its name."""
    import boto3

    name = f"bucket-{uuid.uuid4().hex[:12]}"
    client = boto3.client(
        "s3",
        endpoint_url=s3_options["endpoint_url"],
        region_name=s3_options["region"],
        aws_access_key_id=s3_options["access_key_id"],
        aws_secret_access_key=s3_options["secret_access_key"],
    )
    client.create_bucket(Bucket=name)
    client.close()
    return name
