"""Locations at Azure and Google: who may write them, and what is believed of them."""

import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import persist
from persist.blob.errors import InvalidUsage, ReadOnlyStore, StoreMisconfigured
from persist.blob.stores import fsspec as module
from persist.blob.url import open_blob

pytestmark = pytest.mark.outside


@pytest.fixture(params=["azure", "gcs"])
def location(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """The URL of an empty location at each cloud, and its `storage_options`."""
    scheme = {"azure": "abfs", "gcs": "gs"}[request.param]
    return f"{scheme}://box/{uuid.uuid4().hex}", request.getfixturevalue(f"{request.param}_options")


def test_four_writers_at_once_lose_nothing_that_was_acknowledged(location: tuple[str, dict[str, Any]]) -> None:
    url, options = location

    def write(writer: int) -> list[int]:
        with persist.open(url, storage_options=options, settings=persist.Settings(background=False)) as client:
            numbers = client.create_or_load("numbers", key={"n": int}, value=None)
            mine = [writer * 100 + i for i in range(5)]
            for n in mine:
                numbers.write([((n, None), 0, 1)]).result()
            return mine

    with ThreadPoolExecutor(4) as pool:
        written = [n for mine in pool.map(write, range(4)) for n in mine]
    with persist.open(url, storage_options=options) as client:
        numbers = client.load("numbers")
        numbers.seal(1).result()
        assert sorted(numbers.snapshot(0).to_arrow()["n"].to_pylist()) == written
        numbers.compact()
        assert client.fsck().is_clean
        client.gc()
        assert numbers.snapshot(0).count() == len(written)


def test_rule_15_a_google_store_that_ignores_the_condition_acknowledges_nothing(
    careless_gcs_options: dict[str, Any],
) -> None:
    url = f"gs://box/{uuid.uuid4().hex}"
    with pytest.raises(StoreMisconfigured), persist.open(url, storage_options=careless_gcs_options) as client:
        client.create_or_load("numbers", key={"n": int}, value=None).seal(1).result()


def test_a_release_of_adlfs_whose_create_does_not_name_overwrite_is_read_only(
    azure_options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = open_blob("abfs://box/old", azure_options)
    assert blob.create("key", b"value")

    async def old(self: Any, path: str, value: bytes, **kwargs: Any) -> None:
        """Swallows what it does not know."""

    kind = type(blob._fs)  # type: ignore[attr-defined]
    monkeypatch.setattr(kind, "_pipe_file", old)
    old_blob = open_blob("abfs://box/old", azure_options)
    with pytest.raises(ReadOnlyStore, match="has no atomic create"):
        old_blob.create("key", b"again")
    assert old_blob.get("key") == b"value"


def test_what_azure_takes_for_another_key_is_refused(azure_options: dict[str, Any]) -> None:
    blob = open_blob("abfs://box/prefix", azure_options)
    for call in (lambda: blob.get("a\\b"), lambda: blob.create("a\\b", b"")):
        with pytest.raises(InvalidUsage, match="backslash"):
            call()
    with pytest.raises(InvalidUsage, match="backslash"):
        open_blob("abfs://box/pre\\fix", azure_options)


def test_a_google_location_is_opened_by_the_file_system_that_writes_whole_objects(gcs_options: dict[str, Any]) -> None:
    blob = open_blob("gs://box/prefix", gcs_options)
    assert type(blob._fs).__module__ == "gcsfs.core"  # type: ignore[attr-defined]
    assert module.ATOMIC["gcsfs"][1] == {"mode": "create"}
