"""A fixture for each kind of store."""

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import persist
from persist.blob.protocol import Blob, MemoryBlob
from tests.blob.places import WRAPPERS, Place
from tests.support.servers.fixtures import load_service_models_once, make_bucket
from tests.support.servers.moto_s3 import PAGE_KEYS

# Numbers without leading zeros, so that byte order is not the order in which they are made; and names around.
PAGES = [f"page/{number}" for number in range(1050)]
AROUND = ["page.", "pag/e", "page0", "pages/1"]
# Both kinds that need a server speak to the same one: s3 stands for them in a sample.
FSSPEC = pytest.param("fsspec", marks=pytest.mark.thorough)
# Stores behind fsspec that have servers of their own, where these are installed.
CLOUDS = {"azure": "abfs://box", "gcs": "gs://box"}
KINDS = ("memory", *filter(None, WRAPPERS), "cached-folder", "file", "served", "s3", FSSPEC)
KINDS += tuple(pytest.param(kind, marks=pytest.mark.outside) for kind in CLOUDS)


@pytest.fixture(scope="session", autouse=True)
def _quick_clients() -> None:
    load_service_models_once()


@pytest.fixture(scope="session")
def bucket(s3_options: dict[str, Any]) -> str:
    """A bucket for all tests; each has a prefix of its own in it."""
    return make_bucket(s3_options)


@dataclass(frozen=True)
class Crowd:
    """A store that holds `AROUND`, and `pages`, which are more than a page of a listing has."""

    blob: Blob
    pages: list[str]


@pytest.fixture(scope="session")
def crowd_in_bucket(request: pytest.FixtureRequest, s3_options: dict[str, Any], bucket: str) -> tuple[str, list[str]]:
    """The prefix of a crowded store in the bucket, for whatever kind reads it, and its pages."""
    pages = PAGES if request.config.getoption("--rgw") else PAGES[: PAGE_KEYS + 50]
    with closing(Place(f"s3://{bucket}/crowd", s3_options).open()) as blob:
        fill(blob, [*pages, *AROUND])
    return "crowd", pages


def fill(blob: Blob, keys: list[str]) -> None:
    """Create keys, 16 at a time."""
    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(lambda key: blob.create(key, b"x"), keys))


def place_of(kind: str, folder: Path, s3_options: dict[str, Any], bucket: str, prefix: str) -> Place:
    """Return an empty store of a kind."""
    if kind == "file":
        return Place(str(folder / prefix), is_shared=True)
    if kind == "s3":
        return Place(f"s3://{bucket}/{prefix}", s3_options, is_shared=True)
    if kind == "fsspec":
        options = {
            "key": s3_options["access_key_id"],
            "secret": s3_options["secret_access_key"],
            "client_kwargs": {"endpoint_url": s3_options["endpoint_url"], "region_name": s3_options["region"]},
        }
        return Place(f"fsspec+s3://{bucket}/{prefix}", options, is_shared=True)
    if kind == "cached-folder":
        return Place(f"memory://{uuid.uuid4().hex}", cache_folder=str(folder / "cache"))
    return Place(f"memory://{uuid.uuid4().hex}", wrapper="" if kind == "memory" else kind)


def cloud_place(request: pytest.FixtureRequest, kind: str, prefix: str) -> Place:
    """Return a store below a prefix of a cloud's own server."""
    return Place(f"{CLOUDS[kind]}/{prefix}", request.getfixturevalue(f"{kind}_options"), is_shared=True)


def served_place(request: pytest.FixtureRequest) -> Place:
    """Return an empty store behind a server, by the token that lets write."""
    client = persist.open(MemoryBlob(), mode="read", settings=persist.Settings(background=False))
    request.addfinalizer(client.close)
    server = client.serve("grpc://127.0.0.1:0", token="reads", store=True, write_token="writes")
    return Place(server.url, {"token": "writes"}, is_shared=True)


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty store of each kind; the server is started only for those that need it."""
    if request.param in CLOUDS:
        return cloud_place(request, request.param, f"test/{uuid.uuid4().hex}")
    if request.param == "served":
        return served_place(request)
    needs_server = request.param in ("s3", "fsspec")
    s3_options = request.getfixturevalue("s3_options") if needs_server else {}
    bucket = request.getfixturevalue("bucket") if needs_server else ""
    return place_of(request.param, tmp_path, s3_options, bucket, f"test/{uuid.uuid4().hex}")


@pytest.fixture(params=KINDS)
def crowded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Crowd]:
    """A crowded store of each kind."""
    pages, keys = PAGES, [*PAGES, *AROUND]
    if request.param in CLOUDS:
        blob = cloud_place(request, request.param, "crowd").open()
        if blob.get(keys[-1]) is None:
            fill(blob, keys)
    elif request.param == "served":
        blob = served_place(request).open()
        fill(blob, keys)
    elif request.param in ("s3", "fsspec"):
        prefix, pages = request.getfixturevalue("crowd_in_bucket")
        options, bucket = request.getfixturevalue("s3_options"), request.getfixturevalue("bucket")
        blob = place_of(request.param, tmp_path, options, bucket, prefix).open()
    else:
        place = place_of(request.param, tmp_path, {}, "", "crowd")
        # Listings are what is tested; a thousand fsyncs would take longer than all the rest.
        with closing(replace(place, options={"fsync": False} if request.param == "file" else {}).open()) as filler:
            fill(filler, keys)
        blob = place.open()
    yield Crowd(blob, pages)
    blob.close()


@pytest.fixture
def blob(place: Place) -> Iterator[Blob]:
    """A client of the store."""
    opened = place.open()
    yield opened
    opened.close()
