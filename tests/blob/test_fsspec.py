"""What is particular to a store behind fsspec: which ones may be written to, and how the libraries' errors read."""

from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from persist.blob import FileBlob, FsspecBlob, Indeterminate, InvalidUsage, ReadOnlyStore, StoreMisconfigured, Unavailable
from tests.servers.fixtures import make_bucket


def s3fs_options(s3_options: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "key": s3_options["access_key_id"],
        "secret": s3_options["secret_access_key"],
        "client_kwargs": {"endpoint_url": s3_options["endpoint_url"], "region_name": s3_options["region"]},
        **more,
    }


@pytest.fixture
def fill(tmp_path: Path) -> FileBlob:
    """A folder with a few values, odd names included."""
    blob = FileBlob(tmp_path / "store", fsync=False)
    for key in ("a/b", "a-b", "empty", "odd/a b%20+?#&=~é"):
        blob.set(key, b"" if key == "empty" else f"value of {key}".encode())
    return blob


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Keep the tests' output clean."""


@pytest.fixture
def http_url(fill: FileBlob) -> Iterator[str]:
    """The folder, served over HTTP by a server without ranges."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=fill.url))
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def check_reads(blob: FsspecBlob, truth: FileBlob) -> None:
    entries = list(truth.list(""))
    assert [entry.key for entry in blob.list("")] == [entry.key for entry in entries]
    assert [entry.key for entry in blob.list("a")] == ["a-b", "a/b"]
    assert [entry.key for entry in blob.list("a/")] == ["a/b"]
    assert [entry.key for entry in blob.list("", start_after="a/b")] == [entry.key for entry in entries][2:]
    assert list(blob.list("no/such/")) == []
    assert list(blob.list("../")) == []
    for entry in entries:
        assert blob.get(entry.key) == truth.get(entry.key)
    assert blob.get("no/such/key") is None
    assert blob.get("a/b", (2, 5)) == b"lue"
    assert blob.get("a/b", (9, 1000)) == b"a/b"
    assert blob.get("a/b", (1000, 2000)) == b""
    assert blob.get("a/b", (3, 3)) == b""
    assert blob.get("empty", (0, 5)) == b""
    assert blob.get("no/such/key", (0, 5)) is None


def test_a_local_folder_by_fsspec_can_be_read(fill: FileBlob) -> None:
    check_reads(FsspecBlob(f"file://{fill.url}"), fill)


def test_a_web_server_can_be_read(http_url: str, fill: FileBlob) -> None:
    blob = FsspecBlob(http_url)

    for entry in fill.list(""):
        assert blob.get(entry.key) == fill.get(entry.key)
    assert blob.get("no/such/key") is None


def test_a_store_without_an_atomic_create_refuses_to_write_and_says_why(fill: FileBlob, http_url: str) -> None:
    before = [(entry.key, fill.get(entry.key)) for entry in fill.list("")]
    for url in (f"file://{fill.url}", http_url, "memory://somewhere"):
        blob = FsspecBlob(url)
        for call in (
            partial(blob.create, "a/new", b""),
            partial(blob.set, "a/b", b""),
            partial(blob.delete, "a/b"),
        ):
            with pytest.raises(ReadOnlyStore, match=r"reading only: \w+ has no atomic create.*Write to a folder"):
                call()
    assert [(entry.key, fill.get(entry.key)) for entry in fill.list("")] == before


def test_a_listing_is_never_an_old_one(fill: FileBlob) -> None:
    blob = FsspecBlob(f"file://{fill.url}")
    assert [entry.key for entry in blob.list("a/")] == ["a/b"]

    fill.set("a/new", b"")

    assert [entry.key for entry in blob.list("a/")] == ["a/b", "a/new"]


def test_a_missing_bucket_is_named(s3_options: dict[str, Any]) -> None:
    blob = FsspecBlob("s3://no-such-bucket-here/prefix", s3fs_options(s3_options))

    for call in (
        lambda: blob.get("key"),
        lambda: list(blob.list("")),
        lambda: blob.create("key", b"value"),
        lambda: blob.set("key", b"value"),
        lambda: blob.delete("key"),
    ):
        with pytest.raises(StoreMisconfigured, match=r"no-such-bucket-here.*Create the bucket, or correct the URL"):
            call()


def test_a_server_that_is_down_leaves_a_write_open(s3_options: dict[str, Any]) -> None:
    options = s3fs_options({**s3_options, "endpoint_url": "http://127.0.0.1:9"})
    options["config_kwargs"] = {"retries": {"total_max_attempts": 1}}
    blob = FsspecBlob("s3://bucket/prefix", options)

    with pytest.raises(Unavailable, match=r"cannot get 'key' at fsspec\+s3://bucket/prefix"):
        blob.get("key")
    with pytest.raises(Indeterminate, match="may or may not have happened"):
        blob.create("key", b"value")


def test_a_value_of_several_parts_does_not_overwrite_another(s3_options: dict[str, Any]) -> None:
    blob = FsspecBlob(f"s3://{make_bucket(s3_options)}/prefix", s3fs_options(s3_options))
    large = bytes(101 << 20)  # s3fs uploads values from 100 MiB on in parts.
    assert blob.create("key", b"small")

    assert not blob.create("key", large)
    assert blob.get("key") == b"small"


def test_options_that_a_file_system_does_not_take_are_named_without_their_values() -> None:
    with pytest.raises(InvalidUsage, match="github file system with storage options token, username") as raised:
        FsspecBlob("github://path", {"username": "me", "token": "hunter2"})

    assert "hunter2" not in str(raised.value)
