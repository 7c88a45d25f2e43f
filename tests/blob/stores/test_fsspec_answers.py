"""What is asked of fsspec's file systems, and what their answers, errors and listings mean."""

import io
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import import_module
from typing import Any

import pytest
from fsspec import AbstractFileSystem

from persist.blob.errors import Indeterminate, InvalidUsage, PersistError, StoreFull, StoreMisconfigured, Unavailable
from persist.blob.protocol import BlobEntry
from persist.blob.stores.fsspec import FsspecBlob, _iterate_secrets
from persist.blob.url import open_blob


class Scripted(AbstractFileSystem):  # type: ignore[misc]
    """A file system that answers from a list, raises what is in it, and remembers what it was asked."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.calls: list[tuple[Any, ...]] = []
        self.answers: list[Any] = []

    def _answer(self, *call: Any) -> Any:
        self.calls.append(call)
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> Any:
        return self._answer("get", path, start, end)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> Any:
        return self._answer("put", path, value, {} if mode == "overwrite" else {"mode": mode}, options)

    def _pipe_file(self, path: str, value: bytes, mode: str, overwrite: bool) -> None: ...

    def find(self, path: str, maxdepth: Any = None, withdirs: bool = False, detail: bool = False, **_: Any) -> Any:
        return self._answer("list", path, withdirs, detail)

    def rm_file(self, path: str) -> Any:
        return self._answer("delete", path)

    def size(self, path: str) -> Any:
        return self._answer("size", path)


def scripted(monkeypatch: pytest.MonkeyPatch, module: str, scheme: str, *answers: Any) -> tuple[FsspecBlob, Scripted]:
    """Return a store on a file system of this package and scheme, which gives these answers."""
    names = {"__module__": module, "protocol": (scheme, "other")}
    kind = type("Made", (Scripted,), names)
    monkeypatch.setattr(import_module("fsspec.registry"), "get_filesystem_class", lambda _: kind)
    blob = FsspecBlob(f"{scheme}://box/at", {"password": "s3cr3t"})
    blob._fs.answers[:] = answers
    return blob, blob._fs


@pytest.mark.parametrize(
    ("module", "scheme", "condition"),
    [
        ("s3fs.core", "s3", ({"mode": "create"}, {"chunksize": 6})),
        ("gcsfs.core", "gs", ({"mode": "create"}, {})),
        ("adlfs.spec", "abfs", ({}, {"overwrite": False})),
    ],
)
def test_each_store_is_asked_in_its_words(
    monkeypatch: pytest.MonkeyPatch, module: str, scheme: str, condition: tuple[Any, Any]
) -> None:
    blob, fs = scripted(monkeypatch, module, scheme, None, None, None, b"all", b"bcd", b"b")
    assert fs.storage_options == {"password": "s3cr3t", "use_listings_cache": False}
    assert FsspecBlob(f"{scheme}://box/at", {"password": "s3cr3t"})._fs is not fs
    assert blob.create("a/k", b"value")
    blob.set("k", b"value")
    blob.delete("k")
    assert (blob.get("k"), blob.get("k", (1, 3)), blob.get("k", (2, 2))) == (b"all", b"bc", b"")
    start = 0 if scheme == "s3" else None
    assert fs.calls == [
        ("put", "box/at/a/k", b"value", *condition),
        ("put", "box/at/k", b"value", {}, {}),
        ("delete", "box/at/k"),
        ("get", "box/at/k", start, None),
        ("get", "box/at/k", 1, 3),
        ("get", "box/at/k", 2, 3),
    ]
    assert blob.url == ("fsspec+s3://box/at" if scheme == "s3" else f"{scheme}://box/at")
    if scheme == "abfs":
        for call in (lambda: blob.get("a\\b"), lambda: open_blob("abfs://box/a\\b")):
            with pytest.raises(InvalidUsage, match="has a backslash, which Azure takes for a slash"):
                call()
    else:
        fs.answers.append(b"")
        assert blob.get("a\\b") == b""
        assert fs.calls[-1][1] == "box/at/a\\b"


def odd(error: Exception, **attributes: Any) -> Exception:
    vars(error).update(attributes)
    return error


def response(status: int, code: str = "") -> dict[str, Any]:
    return {"ResponseMetadata": {"HTTPStatusCode": status}, "Error": {"Code": code}}


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


ABSENT = FileNotFoundError("no key")
GONE = caused(FileNotFoundError("no bucket"), odd(OSError(), response=response(404, "NoSuchBucket")))


@pytest.mark.parametrize(
    ("call", "answers", "outcome"),
    [
        ("get", [ABSENT], None),
        ("get", [GONE], (StoreMisconfigured, "Create the bucket, or correct the URL.")),
        ("get", [PermissionError("s3cr3t")], (StoreMisconfigured, "***. Correct the credentials or their rights.")),
        ("get", [io.UnsupportedOperation("x")], (StoreMisconfigured, "Correct the credentials or their rights.")),
        ("get", [type("NoCredentials", (Exception,), {})("x")], (StoreMisconfigured, "Correct the credentials")),
        ("get", [OSError(24, "files")], (StoreFull, "(OSError: [Errno 24] files)")),
        ("get", [OSError("x.")], (Unavailable, "OSError: x. Check that the store is up")),
        ("get", [odd(OSError(), response=response(416, "InvalidRange"))], b""),
        ("get", [odd(OSError(), response=response(416, "416"))], b""),
        ("get", [odd(OSError(), response=response(416, "Odd"))], (Unavailable, "Check")),
        ("range", [ABSENT], None),
        ("range", [OSError("beyond"), 2], b""),
        ("range", [OSError("within"), 3], (Unavailable, "within")),
        ("create", [FileExistsError()], False),
        ("create", [odd(OSError(), response=response(412))], False),
        ("create", [odd(OSError(), status_code=304)], False),
        ("create", [caused(OSError(), odd(OSError(), status=412))], False),
        ("create", [odd(OSError(), status="412", code=412)], False),
        ("create", [odd(OSError(), code=409), b"x"], False),
        ("create", [odd(OSError(), code=409), ABSENT], (Indeterminate, "read the key before trying again.")),
        ("create", [odd(OSError(), code=409), OSError("x")], (Indeterminate, "read the key before trying again.")),
        ("create", [odd(OSError(), code=501)], (StoreMisconfigured, "The store must support conditional writes")),
        ("create", [OSError(24, "files")], (Indeterminate, "Let this process open more files")),
        ("create", [GONE], (StoreMisconfigured, "Create the bucket")),
        ("set", [OSError("s3cr3t")], (Indeterminate, "OSError: ***. It may or may not have happened")),
        ("delete", [ABSENT], None),
        ("delete", [GONE], (StoreMisconfigured, "Create the bucket")),
        ("delete", [OSError("x")], (Indeterminate, "delete of 'k'")),
        ("list", [ABSENT], []),
        ("list", [GONE], (StoreMisconfigured, "Create the bucket")),
        ("list", [OSError("x")], (Unavailable, "cannot list 'k'")),
    ],
)
def test_what_a_file_system_says_has_its_meaning(
    monkeypatch: pytest.MonkeyPatch, call: str, answers: list[Any], outcome: Any
) -> None:
    blob, fs = scripted(monkeypatch, "s3fs.core", "s3", *answers)
    calls: dict[str, Callable[[], object]] = {
        "get": lambda: blob.get("k"),
        "range": lambda: blob.get("k", (2, 5)),
        "create": lambda: blob.create("k", b"value"),
        "set": lambda: blob.set("k", b"value"),
        "delete": lambda: blob.delete("k"),
        "list": lambda: [*blob.list("k")],
    }
    if not isinstance(outcome, tuple):
        assert calls[call]() == outcome
    else:
        with pytest.raises(PersistError) as raised:
            calls[call]()
        assert type(raised.value) is outcome[0]
        assert outcome[1] in str(raised.value)
        assert raised.value.__cause__ is (None if "***" in outcome[1] else answers[0])
    assert fs.answers == []


def test_a_listing_has_what_is_a_key_below_the_root_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        "box/at/p/b": {"size": 3, "LastModified": datetime(2026, 1, 1, tzinfo=UTC)},
        "box/at/p/a": {"mtime": 7, "size": None},
        "box/at/p/c": {"updated": "2026-01-01T00:00:01+00:00"},
        "box/at/p/d": {"created": 8.5, "last_modified": None},
        "box/at/p/e": {},
        "box/at/p/f": {"type": "directory"},
        "box/at/p//g": {},
        "box/at/q/h": {},
        "box/attic/p/i": {},
        "elsewhere": {},
    }
    blob, fs = scripted(monkeypatch, "s3fs.core", "s3", found, found, found)
    new_year = 1767225600.0
    entries = [("p/a", 0, 7.0), ("p/b", 3, new_year), ("p/c", 0, new_year + 1), ("p/d", 0, 8.5), ("p/e", 0, 0.0)]
    assert [*blob.list("p/")] == [BlobEntry(*entry) for entry in entries]
    assert [entry.key for entry in blob.list("p/", "p/c")] == ["p/d", "p/e"]
    assert [entry.key for entry in blob.list("")] == ["p/a", "p/b", "p/c", "p/d", "p/e", "q/h"]
    assert [*blob.list("../")] == [*blob.list("a//b")] == []
    assert fs.calls == [("list", f"box/at{folder}", False, True) for folder in ("/p", "/p", "")]


@pytest.mark.parametrize(("scheme", "name"), [("http", "a%20b~%C3%A9"), ("https", "a%20b~%C3%A9"), ("gs", "a b~é")])
def test_only_names_on_the_web_are_quoted(monkeypatch: pytest.MonkeyPatch, scheme: str, name: str) -> None:
    blob, fs = scripted(monkeypatch, "package.http", scheme, b"value", {f"box/at/p/{name}": {}})
    assert blob.get("p/a b~é") == b"value"
    assert [entry.key for entry in blob.list("p/")] == ["p/a b~é"]
    assert fs.calls == [("get", f"box/at/p/{name}", None, None), ("list", "box/at/p", False, True)]


def test_secrets_are_the_texts_below_names_that_sound_so() -> None:
    options = {"key": "one", "client": {"Token": "two", "name": "plain"}, "auth": {"any": {"x": "three"}}, "sas": 5}
    assert [*_iterate_secrets(options)] == ["one", "two", "three"]
