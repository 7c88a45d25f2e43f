"""A fixture for each kind of store."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from persist.blob import Blob

from tests.blob.places import Place
from tests.servers.fixtures import make_bucket

KINDS = ("memory", "metered", "unreliable", "file", "s3", "fsspec")


@pytest.fixture(scope="session")
def bucket(s3_options: dict[str, Any]) -> str:
    """A bucket for all tests; each has a prefix of its own in it."""
    return make_bucket(s3_options)


def place_of(kind: str, folder: Path, s3_options: dict[str, Any], bucket: str, prefix: str) -> Place:
    """Return an empty store of a kind."""
    if kind == "file":
        return Place(str(folder / prefix), is_shared=True)
    if kind == "s3":
        return Place(f"s3://{bucket}/{prefix}", s3_options, is_shared=True, racers_of_a_key=5)
    if kind == "fsspec":
        options = {
            "key": s3_options["access_key_id"],
            "secret": s3_options["secret_access_key"],
            "client_kwargs": {
                "endpoint_url": s3_options["endpoint_url"],
                "region_name": s3_options["region"],
            },
        }
        return Place(f"fsspec+s3://{bucket}/{prefix}", options, is_shared=True, racers_of_a_key=5)
    return Place(f"memory://{uuid.uuid4().hex}", wrapper="" if kind == "memory" else kind)


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty store of each kind; the server is started only for those that need it."""
    needs_server = request.param in ("s3", "fsspec")
    s3_options = request.getfixturevalue("s3_options") if needs_server else {}
    bucket = request.getfixturevalue("bucket") if needs_server else ""
    return place_of(request.param, tmp_path, s3_options, bucket, f"test/{uuid.uuid4().hex}")


@pytest.fixture
def blob(place: Place) -> Iterator[Blob]:
    """A client of the store."""
    opened = place.open()
    yield opened
    opened.close()
