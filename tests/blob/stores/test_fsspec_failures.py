"""What a store behind fsspec does with a web server, with servers that are down or lie, and with large values."""

from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.blob.errors import Indeterminate, InvalidUsage, ReadOnlyStore, StoreMisconfigured, Unavailable
from persist.blob.stores.file import FileBlob
from persist.blob.stores.fsspec import S3_PUT_BYTES_MAX, FsspecBlob
from tests.support.clocks import ImpatientClock
from tests.support.servers.hostile_s3 import MISREAD, HostileS3, Lie, hostile_s3, swapped


def s3fs_options(s3_options: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "key": s3_options["access_key_id"],
        "secret": s3_options["secret_access_key"],
        "client_kwargs": {"endpoint_url": s3_options["endpoint_url"], "region_name": s3_options["region"]},
        **more,
    }


@pytest.fixture
def folder(tmp_path: Path) -> FileBlob:
    """A folder with a few values, odd names included."""
    blob = FileBlob(tmp_path / "store", fsync=False)
    for key in ("a/b", "a-b", "empty", "odd/a b%20+?#&=~é"):
        blob.set(key, b"" if key == "empty" else f"value of {key}".encode())
    return blob


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Keep the tests' output clean."""


@pytest.fixture
def http_url(folder: FileBlob) -> Iterator[str]:
    """The folder, served over HTTP by a server without ranges."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=folder.url))
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_web_server_can_be_read_and_not_written_to(http_url: str, folder: FileBlob) -> None:
    blob = FsspecBlob(http_url)

    for entry in folder.list(""):
        assert blob.get(entry.key) == folder.get(entry.key)
    assert blob.get("no/such/key") is None
    with pytest.raises(ReadOnlyStore, match="HTTPFileSystem has no atomic create"):
        blob.create("a/new", b"")


def test_a_server_that_is_down_leaves_a_write_open(s3_options: dict[str, Any]) -> None:
    options = s3fs_options({**s3_options, "endpoint_url": "http://127.0.0.1:9"})
    options["config_kwargs"] = {"retries": {"total_max_attempts": 1}}
    blob = FsspecBlob("s3://bucket/prefix", options)

    with pytest.raises(Unavailable, match=r"cannot get 'key' at fsspec\+s3://bucket/prefix"):
        blob.get("key")
    with pytest.raises(Indeterminate, match="may or may not have happened"):
        blob.create("key", b"value")


@pytest.fixture
def hostile() -> Iterator[HostileS3]:
    with hostile_s3() as server:
        yield server


def lying(server: HostileS3) -> FsspecBlob:
    options = {"endpoint_url": server.lying_url, "region": "us-east-1", "access_key_id": "k", "secret_access_key": "s"}
    return FsspecBlob("s3://bucket/prefix", s3fs_options(options))


@pytest.mark.thorough  # 101 MiB are sent twice.
def test_a_large_value_is_created_by_one_conditional_put(hostile: HostileS3) -> None:
    blob = lying(hostile)
    large = bytes(101 << 20)  # s3fs would send values from 100 MiB on in parts, which some servers store anyhow.
    assert blob.create("large", large)
    assert not blob.create("large", large)
    assert [request for request, _ in hostile.requests] == ["PUT", "PUT"]


class Vast(bytes):
    """A value of more bytes than it takes."""

    def __len__(self) -> int:
        return S3_PUT_BYTES_MAX


def test_a_value_too_large_for_one_put_is_refused(hostile: HostileS3) -> None:
    with pytest.raises(InvalidUsage, match=r"'vast' .* 5,368,709,120 bytes.* one PUT.*Nothing was written"):
        lying(hostile).create("vast", Vast())
    assert not hostile.requests


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize(
    "lie",
    swapped(
        "PUT", 412, (304, ""), (412, ""), (412, "Odd"), (409, "ConditionalRequestConflict"), (409, "Odd"), (409, "")
    ),
    ids=lambda lie: lie.name,
)
def test_an_odd_answer_for_what_exists_means_that_it_exists(hostile: HostileS3, lie: Lie) -> None:
    blob = lying(hostile)
    hostile.lie = lie
    assert blob.create("key", b"value")
    assert not blob.create("key", b"other")
    assert blob.get("key") == b"value"


def test_an_odd_answer_for_what_was_stored_leaves_the_write_open(hostile: HostileS3) -> None:
    hostile.lie = Lie("swaps the answer", None, "PUT", 200, 400, "Odd")
    with pytest.raises(Indeterminate):
        lying(hostile).create("key", b"value")


@pytest.mark.parametrize("lie", swapped("PUT", 412, (501, "NotImplemented"), (501, "")), ids=lambda lie: lie.name)
def test_a_store_without_conditional_writes_is_refused_at_once(hostile: HostileS3, lie: Lie) -> None:
    clock = ImpatientClock()
    with persist.open(lying(hostile), clock=clock, settings=persist.Settings(background=False)) as client:
        hostile.lie = Lie(lie.name, {"if-match": "*"}, "PUT", 412, lie.told, lie.code)  # Nor is it stored.
        with pytest.raises(StoreMisconfigured, match=r"fsspec\+s3://bucket/prefix.*conditional writes"):
            client.create_or_load("orders", key={"k": pa.int64()})
    assert clock.monotonic_s() < 1.0


def test_an_s3fs_store_that_overwrites_is_refused_before_the_first_acknowledgement(hostile: HostileS3) -> None:
    hostile.lie = MISREAD[0]
    with (
        persist.open(lying(hostile), settings=persist.Settings(background=False)) as client,
        pytest.raises(StoreMisconfigured, match=r"fsspec\+s3://bucket/prefix overwrites"),
    ):
        client.create_or_load("orders", key={"k": pa.int64()})


def test_options_that_do_not_fit_are_named_without_their_values() -> None:
    with pytest.raises(InvalidUsage, match="github file system with storage options token, username") as raised:
        FsspecBlob("github://path", {"username": "me", "token": "hunter2"})

    assert "hunter2" not in str(raised.value)
