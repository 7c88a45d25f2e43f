"""Fixtures that start servers, each once for the whole run."""

import json
import os
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT
from tests.support.servers.starting import KINDS
from tests.support.stepped import WAIT_S, wait_until

ACCESS_KEY_ID = "AKIDFORTESTSONLY"
SECRET_ACCESS_KEY = "secret-for-tests-only"


@dataclass
class Served:
    """A server that a script of `scripts/servers` runs; see `tests.support.servers.starting` for what it says.

    Attributes:
        said: what the script said: url, storage_options, version.
    """

    said: dict[str, Any]
    process: "subprocess.Popen[str]"

    def options(self, gateway: str = "") -> dict[str, Any]:
        """Return `storage_options` for it, or for one of its gateways."""
        options: dict[str, Any] = self.said["storage_options"]
        return {**options, "endpoint_url": self.said["gateways"][gateway]} if gateway else options

    def kill(self, gateway: str) -> None:
        """End a gateway at once, as SIGKILL does."""
        self._told(f"kill {gateway}")

    def start(self, gateway: str) -> None:
        """Start a gateway again, and wait until it answers."""
        self._told(f"start {gateway}")

    def _told(self, command: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(command, file=self.process.stdin, flush=True)
        assert self.process.stdout.readline() == "done\n", "the server ended; its error is above"


@cache
def load_service_models_once() -> None:
    """Let all clients of S3 share what boto3 reads of a service: it takes half of the time that a client takes."""
    from botocore.loaders import JSONFileLoader

    load = JSONFileLoader().load_file
    JSONFileLoader.load_file = staticmethod(cache(load))


@contextmanager
def served(name: str) -> Iterator[Served]:
    """Run the script of a server, with a folder of its own."""
    # Real credentials in the environment are of no use there, and must not reach a server of ours.
    theirs = ("AWS_", "GOOGLE_", "STORAGE_EMULATOR")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(theirs)}
    with (
        tempfile.TemporaryDirectory(prefix=f"persist-{name}-", ignore_cleanup_errors=True) as folder,
        subprocess.Popen(
            [ROOT / "scripts" / "servers" / name, folder],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line, f"{name} did not start; its error is above"
            yield Served(json.loads(line), process)
        finally:
            process.stdin.close()
            process.wait(timeout=WAIT_S)


def served_or_skipped(name: str) -> Iterator[Served]:
    """Run the script of a server; skip the test where something is not installed."""
    if reason := KINDS[name][0]():
        pytest.skip(reason)
    with served(name) as running:
        yield running


@pytest.fixture(scope="session")
def moto_url() -> Iterator[str]:
    """The endpoint of a moto server, such as `http://127.0.0.1:40001`; `scripts/test` runs one for all processes."""
    said = os.environ.get("PERSIST_TEST_MOTO")
    if said is not None:
        wait_until(lambda: Path(said).read_text().endswith("\n"))
        yield json.loads(Path(said).read_text())["storage_options"]["endpoint_url"]
        return
    with running_moto() as url:
        yield url


@contextmanager
def running_moto() -> Iterator[str]:
    """Run a moto server; yields its endpoint."""
    with served("moto") as running:
        yield running.options()["endpoint_url"]


@pytest.fixture(scope="session")
def s3_options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """`storage_options` of S3Blob for the server of this run: moto, or with --rgw a gateway of Ceph."""
    load_service_models_once()
    if request.config.getoption("--rgw"):
        rgw: Served = request.getfixturevalue("rgw")
        return rgw.options("a")
    return options_of(request.getfixturevalue("moto_url"))


@pytest.fixture(scope="session")
def rgw(request: pytest.FixtureRequest) -> Iterator[Served]:
    """Two gateways of Ceph over one cluster; skips where they are not asked for or not installed."""
    if not request.config.getoption("--rgw"):
        pytest.skip("Ceph RGW is not asked for: scripts/test --rgw")
    yield from served_or_skipped("ceph-rgw")


@pytest.fixture(scope="session")
def azure_options() -> Iterator[dict[str, Any]]:
    """`storage_options` of `abfs://box/…` on Azurite; skips where something is not installed."""
    yield from (running.options() for running in served_or_skipped("azurite"))


@pytest.fixture(scope="session")
def gcs_options() -> Iterator[dict[str, Any]]:
    """`storage_options` of `gs://box/…` on fake-gcs-server; skips where something is not installed."""
    yield from (running.options() for running in served_or_skipped("fake-gcs"))


@pytest.fixture(scope="session")
def careless_gcs_options() -> Iterator[dict[str, Any]]:
    """The same on a server that ignores the condition of a create."""
    yield from (running.options() for running in served_or_skipped("careless-gcs"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rgw", action="store_true", help="run only the tests that need an S3 server, with Ceph RGW instead of moto"
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
    params = set(kinds.params.values()) if kinds is not None and {"place", "crowded", "store"} & set(names) else set()
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


def make_bucket(s3_options: dict[str, Any], name: str = "") -> str:
    """Make a bucket on the server of these options, with a new name by default, and return its name."""
    name = name or f"bucket-{uuid.uuid4().hex[:12]}"
    with closing(_boto3_client(s3_options)) as client:
        client.create_bucket(Bucket=name)
    return name


def put_object(s3_options: dict[str, Any], bucket: str, name: str) -> None:
    """Store an empty object under any name, as other tools may."""
    with closing(_boto3_client(s3_options)) as client:
        client.put_object(Bucket=bucket, Key=name, Body=b"")


def _boto3_client(s3_options: dict[str, Any]) -> Any:
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=s3_options["endpoint_url"],
        region_name=s3_options["region"],
        aws_access_key_id=s3_options["access_key_id"],
        aws_secret_access_key=s3_options["secret_access_key"],
    )
