"""File systems of fsspec: those that can be written to, those that cannot, and how they fail."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from persist.blob.errors import InvalidUsage, ReadOnlyStore, StoreMisconfigured
from persist.blob.protocol import Blob
from persist.blob.stores.fsspec import FsspecBlob
from persist.blob.url import open_blob
from tests.blob.conftest import place_of
from tests.support.paths import ROOT


def test_a_file_system_without_atomic_create_is_read_only_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"value")
    for url in (f"fsspec+file://{tmp_path}", f"fsspec+local://{tmp_path}"):
        blob = open_blob(url)
        calls: list[Callable[[], object]] = [
            partial(blob.set, "key", b""),
            partial(blob.create, "new", b""),
            partial(blob.delete, "key"),
        ]
        for call in calls:
            with pytest.raises(ReadOnlyStore, match=r"reading only: LocalFileSystem has no atomic create"):
                call()
        blob.close()
    assert [path.name for path in tmp_path.iterdir()] == ["key"]
    assert (tmp_path / "key").read_bytes() == b"value"


def test_a_read_only_file_system_can_be_read(tmp_path: Path) -> None:
    for name in ("a-b", "a/b", "a/c", "b"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    blob = open_blob(f"fsspec+file://{tmp_path}")
    assert [(entry.key, entry.bytes) for entry in blob.list("")] == [("a-b", 3), ("a/b", 3), ("a/c", 3), ("b", 1)]
    assert [entry.key for entry in blob.list("a/", "a/b")] == ["a/c"]
    assert [entry.key for entry in blob.list("absent/")] == []
    assert blob.get("a/c") == b"a/c"
    assert blob.get("a/c", (1, 9)) == b"/c"
    assert blob.get("a/c", (7, 9)) == b""
    assert blob.get("absent") is None
    assert next(iter(blob.list("b"))).modified_s > 0
    blob.close()


def test_a_read_only_blob_sees_what_others_write_meanwhile(tmp_path: Path) -> None:
    blob = open_blob(f"fsspec+file://{tmp_path}")
    assert list(blob.list("")) == []
    (tmp_path / "key").write_bytes(b"value")
    assert [entry.key for entry in blob.list("")] == ["key"]
    blob.close()


def test_a_scheme_that_nobody_knows_is_refused() -> None:
    with pytest.raises(InvalidUsage, match="unknown scheme 'nonsense'"):
        open_blob("nonsense://user:password@host/path")
    with pytest.raises(InvalidUsage, match="nonsense:// is not known to fsspec"):
        open_blob("fsspec+nonsense://host/path")


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ocifs", None)  # No other test asks for it, and fsspec remembers what it found.
    with pytest.raises(InvalidUsage, match=r"oci:// needs a package that is not installed.*ocifs"):
        open_blob("oci://bucket/prefix")


def s3fs_blob(bucket: str, s3_options: dict[str, Any], **options: Any) -> Blob:
    place = place_of("fsspec", Path(), s3_options, bucket, "prefix")
    return FsspecBlob(place.url.removeprefix("fsspec+"), {**place.options, **options})


@pytest.mark.thorough
def test_a_bucket_that_does_not_exist_is_an_error_and_not_an_empty_store(s3_options: dict[str, Any]) -> None:
    blob = s3fs_blob("no-such-bucket", s3_options)
    for call in (
        lambda: blob.get("key"),
        lambda: blob.create("key", b""),
        lambda: blob.set("key", b""),
        lambda: list(blob.list("")),
    ):
        with pytest.raises(StoreMisconfigured, match=r"s3://no-such-bucket/prefix.*Create the bucket"):
            call()
    blob.close()


@pytest.mark.thorough  # Only a new process imports s3fs anew.
def test_closing_leaves_no_warnings_behind(s3_options: dict[str, Any], bucket: str) -> None:
    place = place_of("fsspec", Path(), s3_options, bucket, "closing")
    program = (
        "import sys, gc\n"
        "from tests.blob.places import open_json\n"
        "blob = open_json(sys.argv[1])\n"
        "assert blob.create('key', b'value') and blob.get('key') == b'value'\n"
        "blob.close()\n"
        "del blob\n"
        "gc.collect()\n"
    )
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", program, place.to_json()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr == ""
