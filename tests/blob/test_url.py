"""Which store a URL and its options lead to, and what a wrong one is told."""

import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from persist.blob.errors import InvalidUsage
from persist.blob.protocol import Blob, MemoryBlob
from persist.blob.stores.file import FileBlob
from persist.blob.stores.fsspec import FsspecBlob
from persist.blob.stores.s3 import S3Blob
from persist.blob.url import drop_secret_options, open_blob

CREDENTIALS = {"access_key_id": "AKIDSECRET", "secret_access_key": "hunter2", "session_token": "tokenhunter3"}
S3_OPTIONS: dict[str, Any] = {"region": "us-east-1", **CREDENTIALS}


def folder_of(blob: Blob) -> str:
    assert isinstance(blob, FileBlob)
    return blob.url


def test_a_path_and_a_file_url_open_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    assert folder_of(open_blob(str(tmp_path / "a b"))) == f"{tmp_path}/a b"
    assert folder_of(open_blob(tmp_path / "a")) == f"{tmp_path}/a"
    assert folder_of(open_blob(f"file://{tmp_path}/a%20b")) == f"{tmp_path}/a b"
    assert folder_of(open_blob(f"file://localhost{tmp_path}/a")) == f"{tmp_path}/a"
    assert folder_of(open_blob("relative")) == f"{tmp_path}/relative"
    assert folder_of(open_blob("~/below")) == f"{tmp_path}/home/below"
    assert folder_of(open_blob("with:colon")) == f"{tmp_path}/with:colon"
    assert os.listdir(tmp_path) == []


def test_a_relative_path_means_the_folder_it_meant_when_it_was_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blob = open_blob("location")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    blob.set("key", b"value")

    assert (tmp_path / "location" / "key").read_bytes() == b"value"


def test_memory_urls_of_one_name_share_a_store() -> None:
    one, same, other = (open_blob(f"memory://{name}") for name in ("shared", "shared", "other"))

    one.set("key", b"value")

    assert isinstance(one, MemoryBlob)
    assert same.get("key") == b"value"
    assert other.get("key") is None


@pytest.mark.parametrize("scheme", ["s3", "s3a", "S3"])
def test_an_s3_url_opens_s3_by_boto3(scheme: str) -> None:
    blob = open_blob(f"{scheme}://bucket/some/prefix/", S3_OPTIONS)

    assert isinstance(blob, S3Blob)
    assert blob.url == "s3://bucket/some/prefix"
    blob.close()


def test_fsspec_opens_what_is_asked_of_it_and_what_only_it_knows(tmp_path: Path) -> None:
    assert isinstance(open_blob("fsspec+s3://bucket/prefix"), FsspecBlob)
    assert isinstance(open_blob(f"fsspec+file://{tmp_path}"), FsspecBlob)
    assert isinstance(open_blob("http://127.0.0.1:9/prefix"), FsspecBlob)


@pytest.mark.parametrize("url", ["fsspec+s3://bucket/prefix", "s3://bucket/prefix", "memory://name", "/some/folder"])
def test_the_url_of_a_store_opens_it_again(url: str) -> None:
    options = S3_OPTIONS if url.startswith("s3:") else {}
    assert open_blob(open_blob(url, options).url, options).url == url


def test_an_unknown_scheme_is_told_the_known_ones_and_not_shown_its_url() -> None:
    with pytest.raises(InvalidUsage, match=r"unknown scheme 'gopher'.*file://, s3://, memory://.*gs") as raised:
        open_blob("gopher://user:hunter2@host/path")

    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "give a folder or a URL"),
        ("a\0b", "give a folder or a URL"),
        ("memory://", "write memory://name"),
        ("s3://", "s3://bucket/prefix"),
        ("s3:///prefix", "s3://bucket/prefix"),
        ("s3://bucket/a/../b", "segments joined by '/', none of them empty"),
        ("s3://bucket//a", "segments joined by '/', none of them empty"),
        ("s3://bucket/" + "long/" * 40, "too long"),
        ("s3://name--use1-az4--x-s3/prefix", "directory bucket"),
        ("file://host/path", "file:///absolute/path: it has 'host'"),
        ("fsspec+gopher://host/path", "gopher:// is not known to fsspec"),
    ],
)
def test_a_wrong_location_is_told_what_is_right(url: str, message: str) -> None:
    with pytest.raises(InvalidUsage, match=message):
        open_blob(url, S3_OPTIONS if url.startswith("s3:") else {})


@pytest.mark.parametrize("url", ["s3://AKID:hunter2@bucket/prefix", "sftp://user:hunter2@host/path"])
def test_credentials_in_a_url_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(InvalidUsage, match=r"storage.options") as raised:
        open_blob(url)

    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        (
            "/some/folder",
            {"region": "x"},
            "'region' is not an option of a folder; it takes: file_mode, folder_mode, fsync",
        ),
        ("/some/folder", {"fsync": "perhaps"}, "'fsync' of a folder.*give True or False"),
        ("/some/folder", {"file_mode": "rw"}, "file_mode='rw' is not allowed: give octal digits"),
        ("/some/folder", {"file_mode": 0.5}, "'file_mode' of a folder.*give an integer"),
        ("/some/folder", {"file_mode": "0400"}, "file_mode=0o400 is not allowed: give at least 0o600"),
        ("/some/folder", {"file_mode": "0601"}, "file_mode=0o601 is not allowed.*at most 0o666"),
        ("/some/folder", {"folder_mode": "0660"}, "folder_mode=0o660 is not allowed: give at least 0o700"),
        ("/some/folder", {"folder_mode": "4700"}, "folder_mode=0o4700 is not allowed.*at most 0o2777"),
        ("memory://name", {"fsync": True}, "'fsync' is not an option of memory://; it takes: none"),
        ("s3://bucket", {"acess_key": "hunter2"}, "'acess_key' is not an option of S3; it takes: .*access_key_id"),
        ("s3://bucket", {"region": 7}, "'region' of S3.*give text"),
    ],
)
def test_a_wrong_option_is_told_what_is_right(url: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidUsage, match=message) as raised:
        open_blob(url, options)

    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("attempt_s", "expected"), [(60.0, (3.0, 20.0, 60.0)), (5.0, (3.0, 5.0, 5.0)), (1.0, (1.0,) * 3)]
)
def test_a_short_attempt_shortens_its_parts(attempt_s: float, expected: tuple[float, ...]) -> None:
    with closing(open_blob("s3://bucket", S3_OPTIONS, attempt_s=attempt_s)) as blob:
        assert isinstance(blob, S3Blob)
        assert blob._timeouts_s == expected


@pytest.mark.parametrize(
    ("url", "options", "kept"),
    [
        ("s3a://b", {**S3_OPTIONS, "profile": "p", "sse_customer_key": "x"}, {"region": "us-east-1", "profile": "p"}),
        ("s3://b", {"endpoint_url": "http://me@host", "region": None, "odd": 1}, {}),
        (
            "grpc+tls://h:1",
            {"token": "t", "timeout_s": 1.5, "certificate": b"c"},
            {"timeout_s": 1.5, "certificate": b"c"},
        ),
        ("/folder", {"fsync": False, "file_mode": "0660", "odd": 1}, {"fsync": False, "file_mode": "0660"}),
        ("gs://b", {"token": "t", "project": "p", "timeout": {"x": 1}}, {"project": "p"}),
        ("memory://m", None, {}),
    ],
)
def test_other_processes_get_the_options_that_are_certainly_no_secrets(
    url: str, options: dict[str, Any] | None, kept: dict[str, Any]
) -> None:
    assert drop_secret_options(url, options) == kept


def test_options_may_be_text_as_spark_passes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int) -> None:
        raise AssertionError("fsync was called")

    monkeypatch.setattr(os, "fsync", refuse)
    open_blob(tmp_path, {"fsync": "False"}).set("key", b"value")


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/p?secret_access_key=hunter2",
        "s3a://bucket?secret_access_key=hunter2",
        "fsspec+s3://bucket/p?secret=hunter2",
        "gs://bucket/p?token=hunter2",
        "file:///tmp/p?password=hunter2",
        "memory://name?password=hunter2",
        "https://host/p?signature=hunter2",
    ],
)
def test_a_query_is_refused_and_its_value_not_shown(url: str) -> None:
    with pytest.raises(InvalidUsage, match=r"has a query.*storage options") as refused:
        open_blob(url)
    assert "hunter2" not in str(refused.value)


def test_a_question_mark_in_a_path_is_part_of_a_name(tmp_path: Path) -> None:
    with closing(open_blob(str(tmp_path / "why?"))) as blob:
        blob.set("key", b"")
    assert (tmp_path / "why?" / "key").is_file()


@pytest.mark.parametrize("scheme", ["s3", "S3", "s3a", "file", "memory", "gs", "fsspec+s3", "fsspec+odd"])
def test_a_url_with_one_slash_is_no_folder_and_its_rest_is_not_shown(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for url in (f"{scheme}:/bucket/p?secret_access_key=hunter2", Path(f"{scheme}://bucket/hunter2"), f"{scheme}:/"):
        with pytest.raises(InvalidUsage, match=r"one slash.*://") as raised:
            open_blob(url)
        assert "hunter2" not in str(raised.value)
        assert "bucket/p" not in str(raised.value)
    assert folder_of(open_blob(f"./{scheme}:/below")) == f"{tmp_path}/{scheme}:/below"


def test_a_folder_whose_name_ends_in_a_colon_and_is_no_scheme_is_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert folder_of(open_blob("mine:/below")) == f"{tmp_path}/mine:/below"
