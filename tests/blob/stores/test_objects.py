"""What is asked of obstore, and what its answers mean: a store of objects without a server."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from persist.blob.errors import Indeterminate, InvalidUsage, PersistError, StoreMisconfigured, Unavailable
from persist.blob.protocol import BlobEntry
from persist.blob.stores.object_errors import ObjectErrorMap
from persist.blob.stores.objects import NO_KEY, ObjectBlob, _make_predecessor


class Exists(Exception):
    """obstore's error for an object that is there."""


class Scripted(ObjectBlob):
    """A store on an obstore that gives answers from a list, raises errors in it, and remembers what it was asked."""

    def __init__(self, prefix: str = "at", *answers: Any) -> None:
        url = f"s3://box/{prefix}"
        super().__init__(url, prefix, ObjectErrorMap(url, "bucket 'box'", "rights", ("s3cr3t",)), 3.0, 20.0, 60.0)
        self.answers, self.calls, self.connected = [*answers], list[tuple[Any, ...]](), list[Any]()
        self._obstore = SimpleNamespace(
            get=lambda _, path, options: self._answer("get", path, options and options["range"]),
            put=lambda client, path, value, mode, use_multipart: self._answer(
                "put", path, len(value), mode, use_multipart, client
            ),
            delete=lambda _, path: self._answer("delete", path),
            list=lambda _, folder, offset, chunk_size: self._list(folder, offset, chunk_size),
            exceptions=SimpleNamespace(AlreadyExistsError=Exists),
        )

    def _connect(self, client_options: dict[str, Any], is_for_pages: bool) -> Any:
        seconds = {name: getattr(value, "total_seconds", lambda: True)() for name, value in client_options.items()}
        self.connected.append((seconds, is_for_pages))
        return len(self.connected)

    def _answer(self, *call: Any) -> Any:
        self.calls.append(call)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        value, kind = (answer, "") if isinstance(answer, bytes) else answer or (b"", "")
        return SimpleNamespace(bytes=lambda: value, attributes={"Content-Type": kind} if kind else {})

    def _list(self, *call: Any) -> Iterator[Any]:
        self.calls.append(("list", *call))
        while self.answers and isinstance(self.answers[0], list):
            page = self.answers.pop(0)
            if page and isinstance(page[0], Exception):
                raise page[0]
            yield [
                {"path": name, "size": size, "last_modified": datetime(2026, 1, 1, tzinfo=UTC)} for name, size in page
            ]


def status(number: int, code: str = "", kind: type[Exception] = Exception) -> Exception:
    return kind(f"status code: {number}: <Code>{code}</Code>" if code else f"status code: {number}: page")


ABSENT = status(404, "NoSuchKey")
PAGE = (b"<html>" + b"x" * 100, "text/html; charset=utf-8")
NOT_OURS = "is not an object but a page of type text/html"


@pytest.mark.parametrize(
    ("call", "answers", "outcome"),
    [
        ("get", [b"value"], b"value"),
        ("get", [ABSENT], None),
        ("get", [status(404)], None),
        ("get", [status(404, "NoSuchBucket")], (StoreMisconfigured, "does not exist")),
        ("get", [status(416, "InvalidRange")], b""),
        ("get", [status(500, "Odd")], (Unavailable, "cannot get 'k'")),
        ("get", [PAGE], (StoreMisconfigured, f"{NOT_OURS}; charset=utf-8, which begins '<html>{'x' * 74}': something")),
        ("get", [(b"x", "text/plain")], b"x"),
        ("range", [b"cde"], b"cde"),
        ("range", [b"cdef"], b"cde"),
        ("range", [Exception("NotPartial"), PAGE], (StoreMisconfigured, NOT_OURS)),
        ("range", [Exception("NotPartial"), b"value"], (Unavailable, "NotPartial")),
        ("create", [None], True),
        ("create", [status(412, "", Exists)], False),
        ("create", [status(304, "", Exists)], False),
        ("create", [status(409, "Odd", Exists), b"x"], False),
        ("create", [status(409, "Odd", Exists), ABSENT], (Unavailable, "cannot create 'k'")),
        ("create", [status(409, "Odd", Exists), status(500)], (Unavailable, "cannot create 'k'")),
        ("create", [status(412, "Odd")], (StoreMisconfigured, "cannot create 'k'")),
        ("create", [Exception("MissingEtag"), b"value"], True),
        ("create", [Exception("MissingEtag"), b"other"], (Indeterminate, "ETag, and something else is there")),
        ("create", [Exception("MissingEtag"), ABSENT], (Indeterminate, "ETag, and something else is there")),
        (
            "create",
            [Exception("MissingEtag"), PAGE],
            (Indeterminate, "ETag, and the answer to get 'k' at s3://box/at"),
        ),
        ("set", [None], None),
        ("set", [Exception("MissingEtag"), b"value"], None),
        ("set", [Exception("MissingEtag"), b"other"], (Indeterminate, "set of 'k' at s3://box/at got an answer")),
        ("set", [status(500, "Odd")], (Indeterminate, "set of 'k'")),
        ("delete", [None, b"x"], None),
        ("delete", [ABSENT, ABSENT], None),
        ("delete", [None, status(500)], None),
        ("delete", [None, PAGE], (Indeterminate, "delete of 'k' at s3://box/at got an answer, and the answer to get")),
        ("delete", [status(404, "NoSuchBucket")], (StoreMisconfigured, "does not exist")),
        ("delete", [Exception("s3cr3t")], (Indeterminate, "delete of 'k'")),
    ],
)
def test_what_an_answer_means(call: str, answers: list[Any], outcome: Any) -> None:
    blob = Scripted("at", *answers)
    calls: dict[str, Callable[[], object]] = {
        "get": lambda: blob.get("k"),
        "range": lambda: blob.get("k", (2, 5)),
        "create": lambda: blob.create("k", b"value"),
        "set": lambda: blob.set("k", b"value"),
        "delete": lambda: blob.delete("k"),
    }
    if not isinstance(outcome, tuple):
        assert calls[call]() == outcome
    else:
        with pytest.raises(PersistError) as raised:
            calls[call]()
        assert type(raised.value) is outcome[0]
        assert outcome[1] in str(raised.value)
        assert "s3cr3t" not in f"{raised.value}{raised.value.__cause__}"
    assert blob.answers == []


@pytest.mark.parametrize("key", ["../outside", "/etc/passwd", "a//b", "a/.", "a\r\nHost: b", "\ud800"])
def test_a_key_that_could_escape_and_a_forked_process_send_nothing(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    blob = Scripted()
    calls: list[Callable[[str], object]] = [
        *(blob.get, blob.delete, lambda one: blob.get(one, (0, 1))),
        *(lambda one: blob.set(one, b""), lambda one: blob.create(one, b"")),
    ]
    for call in calls:
        with pytest.raises(InvalidUsage, match="is not allowed"):
            call(key)
    monkeypatch.setattr(ObjectBlob, "_used_by", 1)
    for call in (*calls, lambda one: [*blob.list(one)]):
        with pytest.raises(InvalidUsage, match="this process was forked from one that had used a store in the cloud"):
            call("fine")
    assert blob.calls == []


def test_requests_name_the_object_its_range_and_whether_it_must_be_new() -> None:
    blob = Scripted("at", b"all", b"bc", b"b", None, None, None, b"")
    assert (blob.get("a/k"), blob.get("k", (1, 3)), blob.get("k", (2, 2))) == (b"all", b"bc", b"")
    blob.create("k", b"value")
    blob.set("k", b"")
    blob.delete("k")
    assert blob.calls == [
        ("get", "at/a/k", None),
        ("get", "at/k", (1, 3)),
        ("get", "at/k", (2, 3)),
        ("put", "at/k", 5, "create", False, 1),
        ("put", "at/k", 0, "overwrite", False, 1),
        ("delete", "at/k"),
        ("get", "at/k", (0, 1)),
    ]
    bare = Scripted("", b"all")
    assert (bare.get("k"), bare.calls, bare.url) == (b"all", [("get", "k", None)], "s3://box")


def test_an_upload_has_time_by_its_size_and_a_client_for_all_of_that_size() -> None:
    class Sized(bytes):
        def __new__(cls, size: int) -> "Sized":
            made = super().__new__(cls)
            made.size = size
            return made

        size: int

        def __len__(self) -> int:
            return self.size

    blob = Scripted("at", *[None] * 8)
    for size in (0, 1 << 20, (1 << 20) + 1, 8 << 20, (8 << 20) + 1, 64 << 20, (64 << 20) + 1, 5):
        blob.set("k", Sized(size))
    assert [call[-1] for call in blob.calls] == [1, 1, 2, 2, 3, 3, 4, 1]
    assert blob.connected == [
        ({"connect_timeout": 3.0, "read_timeout": 20.0 * n, "timeout": 60.0 * n, "allow_http": True}, False)
        for n in (1, 8, 64, 512)
    ]
    assert blob._choose_client(is_for_pages=True) == blob._choose_client(is_for_pages=True) == 5
    assert blob.connected[4][1] is True
    blob.close()
    assert blob._choose_client() == 6


def test_a_listing_asks_from_just_before_its_first_key_and_ends_after_its_last() -> None:
    new_year = 1767225600.0
    names = ["at/log", "at/log.", "at/log/1", "at/log/2/", "at/log/3", "at/log/bad\n", "at/log/4", "at/log0", "at/m"]
    page = [(name, 0 if name.endswith(("3", "4")) else 7) for name in names]
    blob = Scripted("at", page, ABSENT, b"")
    assert [*blob.list("log/")] == [BlobEntry("log/1", 7, new_year), BlobEntry("log/4", 0, new_year)]
    assert blob.calls == [("list", "at/log", "at/log/", 1000), ("get", "at/log/3", None), ("get", "at/log/4", None)]
    for prefix, after, asked in (
        ("", None, ("at", "at/")),
        ("lo", None, ("at", "at/ln\U0010ffff")),
        ("lo", "lo/1", ("at", "at/lo/1")),
        ("lo", "a", ("at", "at/ln\U0010ffff")),
    ):
        blob = Scripted("at", [("at/lo/5", 7)])
        assert [entry.key for entry in blob.list(prefix, after)] == ["lo/5"]
        assert blob.calls == [("list", *asked, 1000)]
    bare = Scripted("", [("k", 1)])
    assert [entry.key for entry in bare.list("")] == ["k"]
    assert bare.calls == [("list", None, None, 1000)]
    for prefix in ("../", "a//b", "/"):
        assert [*Scripted("at").list(prefix)] == []


@pytest.mark.parametrize(
    ("pages", "looks"), [([], True), ([1000], True), ([999], False), ([1000, 1], False), ([1000, 1000], True)]
)
def test_a_listing_that_may_have_been_cut_by_a_page_of_a_proxy_is_checked(pages: list[int], looks: bool) -> None:
    names = iter(f"at/{number:05d}" for number in range(3000))
    blob = Scripted("at", *[[(next(names), 1) for _ in range(count)] for count in pages], ABSENT)
    assert len([*blob.list("")]) == sum(pages)
    assert blob.calls[1:] == ([("get", f"at/{NO_KEY}", None)] if looks else [])
    broken = Scripted("at", *([(f"at/{count}", 1)] for count in pages), [status(503, "SlowDown")])
    with pytest.raises(Unavailable, match="cannot list 'x' at s3://box/at"):
        [*broken.list("x")]


def test_keys_out_of_order_are_refused() -> None:
    for pages, after in (([["b", "a"]], None), ([["a"], ["a"]], None), ([["a"]], "a"), ([["a", "c"]], "b")):
        blob = Scripted("at", *([(f"at/{key}", 1) for key in page] for page in pages))
        with pytest.raises(StoreMisconfigured, match="must come in the order of their bytes"):
            [*blob.list("", after)]


@pytest.mark.parametrize(
    ("name", "before"),
    [
        *(("", ""), ("a/", "a/"), ("ab", "aa\U0010ffff"), ("a!", "a"), ('a"', "a!\U0010ffff")),
        *(("a\ue000", "a\ud7ff\U0010ffff"), ("a\ue001", "a\ue000\U0010ffff"), ("a\x01", "a")),
    ],
)
def test_the_name_before_all_that_begin_so(name: str, before: str) -> None:
    assert _make_predecessor(name) == before
