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
def s3_options(moto_url: str) -> dict[str, Any]:
    """`storage_options` of S3Blob for the moto server."""
    return options_of(moto_url)


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
