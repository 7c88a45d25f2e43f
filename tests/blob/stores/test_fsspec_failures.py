"""What a store behind fsspec does with a web server, with one that is down, and with values sent in parts."""

from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from persist.blob import FileBlob, FsspecBlob, Indeterminate, InvalidUsage, ReadOnlyStore, Unavailable


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


def test_a_value_sent_in_parts_does_not_overwrite_another(s3_options: dict[str, Any], bucket: str) -> None:
    blob = FsspecBlob(f"s3://{bucket}/parts", s3fs_options(s3_options))
    large = bytes(101 << 20)  # s3fs sends values from 100 MiB on in parts.
    assert blob.create("key", b"small")

    assert not blob.create("key", large)
    assert blob.get("key") == b"small"


def test_options_that_do_not_fit_are_named_without_their_values() -> None:
    with pytest.raises(InvalidUsage, match="github file system with storage options token, username") as raised:
        FsspecBlob("github://path", {"username": "me", "token": "hunter2"})

    assert "hunter2" not in str(raised.value)
