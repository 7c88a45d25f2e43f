"""Deleting many keys: all kinds of stores, few requests, and single keys that fail."""

import os
import random
import stat
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from persist.blob.errors import Indeterminate, NotDeleted, PersistError, StoreMisconfigured, Throttled, Unavailable
from persist.blob.layers.cache import CachedBlob
from persist.blob.layers.metered import MeteredBlob
from persist.blob.layers.retry import RetryBlob, RetryCount
from persist.blob.layers.unreliable import Fault, UnreliableBlob
from persist.blob.protocol import DELETE_PAGE_MAX, Blob, MemoryBlob, delete_all, get_delete_page
from persist.blob.stores.file import FileBlob
from persist.core.log.keys import is_immutable
from tests.blob.conftest import fill
from tests.blob.stores.test_s3 import client_of
from tests.support.clocks import ImpatientClock
from tests.support.servers.fake_s3 import Trouble, fake_s3


def keys_of(blob: Blob) -> list[str]:
    return [entry.key for entry in blob.list("")]


def test_all_of_many_keys_are_deleted_and_no_others(blob: Blob) -> None:
    fill(blob, [f"part/{number}" for number in range(30)] + ["part0", "list/1", "empty/a/b"])

    assert delete_all(blob, (f"part/{number}" for number in range(5, 40))) == 35
    assert delete_all(blob, ["empty/a/b", "no/such/key", "no", "part"]) == 4
    assert delete_all(blob, []) == 0

    assert keys_of(blob) == ["list/1", *(f"part/{number}" for number in range(5)), "part0"]


def test_a_deleted_key_can_be_created_again(blob: Blob) -> None:
    assert blob.create("part/1", b"one")
    assert blob.get("part/1") == b"one"
    delete_all(blob, ["part/1"])
    assert blob.get("part/1") is None
    assert blob.create("part/1", b"two")
    assert blob.get("part/1") == b"two"


def test_odd_keys_are_deleted(blob: Blob) -> None:
    keys = [
        "<xml>&amp;",
        "quotes'\"",
        "a b",
        "100%",
        "日本語/キー",
        "emoji 🎉",
        "\uffff last",
        "\ufffe",
        "é",
        "e\u0301",
    ]
    fill(blob, keys)
    delete_all(blob, keys)
    assert keys_of(blob) == []


def test_a_listing_can_be_deleted_while_it_is_read(crowd_to_delete: Blob) -> None:
    assert delete_all(crowd_to_delete, (entry.key for entry in crowd_to_delete.list("part/"))) == 2100
    assert keys_of(crowd_to_delete) == []


@pytest.fixture(params=["memory", "file"])
def crowd_to_delete(request: pytest.FixtureRequest, tmp_path: Path) -> Blob:
    blob = MemoryBlob() if request.param == "memory" else FileBlob(tmp_path, fsync=False)
    for number in range(2100):
        blob.set(f"part/{number}", b"")
    return blob


# S3.


def test_s3_is_asked_once_for_a_thousand_keys() -> None:
    keys = [f"part/{number:04d}" for number in range(2 * DELETE_PAGE_MAX + 1)]
    with fake_s3() as server:
        metered = MeteredBlob(client_of(server))
        server.objects.update({f"/bucket/prefix/{key}": b"" for key in [*keys, "kept"]})
        server.objects["/bucket/part/0001"] = b"outside the prefix"

        assert delete_all(CachedBlob(RetryBlob(metered), is_immutable=is_immutable), keys) == len(keys)

        assert sorted(server.objects) == ["/bucket/part/0001", "/bucket/prefix/kept"]
        assert [method for method, _ in server.requests] == ["POST"] * 3
        assert metered.get_counts()["delete"].requests == 3
        metered.close()


def test_a_key_that_xml_cannot_hold_does_not_keep_the_others() -> None:
    with fake_s3() as server:
        blob = client_of(server)
        assert delete_all(blob, ["a", "\uffff", "<b>&amp;", "\ufffe/c"]) == 4
        methods = {method for method, _ in server.requests if method != "GET"}  # A get tells a page from an answer.
        assert methods == {"DELETE", "POST"}
        blob.close()


def test_keys_that_s3_could_not_delete_are_named_with_the_reason() -> None:
    with fake_s3() as server:
        blob = client_of(server)
        server.undeletable = {
            "/bucket/prefix/b": "AccessDenied",
            "/bucket/prefix/c": "InternalError",
            "/bucket/prefix/d": "NoSuchKey",
            "/bucket/prefix/e": "SlowDown",
        }
        with pytest.raises(
            NotDeleted, match=r"3 of many keys at s3://bucket/prefix could not be deleted, .* 'b'.*Denied"
        ) as no:
            delete_all(blob, "abcdef")
        kinds = {key: type(error) for key, error in no.value.failed.items()}
        assert kinds == {"b": StoreMisconfigured, "c": Indeterminate, "e": Throttled}
        blob.close()


def test_keys_that_may_be_deleted_later_are_tried_again_alone() -> None:
    with fake_s3() as server:

        class Clearing(ImpatientClock):
            def sleep(self, seconds: float) -> None:
                super().sleep(seconds)
                server.undeletable.pop("/bucket/prefix/b", None)

        blob = RetryBlob(client_of(server), clock=Clearing())
        server.undeletable = {"/bucket/prefix/b": "SlowDown", "/bucket/prefix/c": "AccessDenied"}
        server.objects.update({f"/bucket/prefix/{key}": b"" for key in "abc"})
        page = get_delete_page(blob)
        assert page is not None

        failed = page(["a", "b", "c"])

        assert {key: type(error) for key, error in failed.items()} == {"c": StoreMisconfigured}
        assert sorted(server.objects) == ["/bucket/prefix/c"]
        deletions = [method for method, _ in server.requests if method != "GET"]
        assert deletions == ["POST", *["DELETE"] * 3, "POST", *["DELETE"] * 2], "what is deleted is not asked for again"
        assert blob.get_counts()["delete"] == RetryCount(retries=1, throttled=1)
        blob.close()


# A folder.


def test_keys_that_can_never_be_deleted_are_given_up_and_returned() -> None:
    with fake_s3() as server:
        blob = RetryBlob(client_of(server), attempts_max=3, clock=ImpatientClock())
        server.undeletable = {"/bucket/prefix/b": "InternalError"}
        with pytest.raises(NotDeleted, match=r"1 of many keys .* 'b'"):
            delete_all(blob, "abc")
        assert blob.get_counts()["delete"] == RetryCount(retries=2, gave_up=1)
        blob.close()


@pytest.mark.parametrize(
    ("trouble", "kind"),
    [(Trouble.DENIED, StoreMisconfigured), (Trouble.SLOW_DOWN, Throttled), (Trouble.ERROR_AFTER, Indeterminate)],
)
def test_a_request_that_fails_as_a_whole_is_raised_as_it_is(trouble: Trouble, kind: type[PersistError]) -> None:
    with fake_s3(trouble) as server:
        blob = client_of(server)
        with pytest.raises(kind, match="'a' at s3://bucket/prefix"):
            delete_all(blob, "abc")
        assert delete_all(blob, "abc") == 3
        blob.close()


def test_a_folder_is_synced_once_for_all_files_of_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blob = FileBlob(tmp_path)
    fill(blob, [f"part/{c}/{number}" for c in "ab" for number in range(10)] + ["list/a/1", "list/a/2"])
    synced: list[str] = []
    gone_at_sync: list[int] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), tmp_path))
        gone_at_sync.append(sum(len(files) for _, _, files in os.walk(tmp_path)))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    delete_all(blob, [f"part/{c}/{number}" for number in range(10) for c in "ab"] + ["list/a/1", "part/c/absent"])

    assert sorted(synced) == ["list/a", "part/a", "part/b"]
    assert set(gone_at_sync) == {1}, "first all files go, then the folders are synced"


def test_a_file_that_cannot_be_deleted_does_not_keep_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = FileBlob(tmp_path)
    fill(blob, ["a/1", "a/2", "b/1"])
    real = os.unlink

    def unlink(path: str) -> None:
        if path.endswith("a/1"):
            raise PermissionError(1, "Operation not permitted")
        real(path)

    monkeypatch.setattr(os, "unlink", unlink)
    with pytest.raises(NotDeleted, match=r"1 of many keys .* 'a/1'.*Give this user the right"):
        delete_all(blob, ["a/1", "a/2", "b/1"])
    assert keys_of(blob) == ["a/1"]


def test_files_whose_folder_could_not_be_synced_may_come_back_and_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = FileBlob(tmp_path)
    fill(blob, ["a/1", "a/2", "b/1"])
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode) and os.readlink(f"/proc/self/fd/{descriptor}").endswith("/a"):
            raise OSError(5, "Input/output error")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(NotDeleted) as raised:
        delete_all(blob, ["a/1", "a/2", "b/1"])
    assert {key: type(error) for key, error in raised.value.failed.items()} == dict.fromkeys(
        ("a/1", "a/2"), Indeterminate
    )


# Wrappers, and stores without anything better.


def test_a_store_without_pages_is_asked_key_by_key() -> None:
    metered = MeteredBlob(MemoryBlob())
    fill(metered, list("abc"))
    for wrapped in (
        metered,
        RetryBlob(metered),
        CachedBlob(metered, is_immutable=is_immutable),
        UnreliableBlob(metered),
    ):
        assert get_delete_page(wrapped) is None
    assert delete_all(CachedBlob(RetryBlob(metered), is_immutable=is_immutable), "abcd") == 4
    assert metered.get_counts()["delete"].requests == 4


@pytest.mark.parametrize("is_remote", [False, True])
def test_single_keys_that_fail_do_not_keep_the_others(is_remote: bool) -> None:
    threads = set[str]()

    class Store(MemoryBlob):
        def delete(self, key: str) -> None:
            threads.add(threading.current_thread().name.partition("_")[0])
            if key in "bd":
                raise Unavailable(f"not {key}")
            super().delete(key)

    store = Store()
    store.is_remote = is_remote  # type: ignore[attr-defined]
    fill(store, list("abcde"))
    with pytest.raises(NotDeleted, match=r"2 of many keys .* 'b': not b") as raised:
        delete_all(store, "abcde")
    assert list(raised.value.failed) == ["b", "d"]
    assert keys_of(store) == ["b", "d"]
    assert threads == {"persist-delete" if is_remote else threading.current_thread().name}


class Pages(MemoryBlob):
    """A store in memory that deletes in pages."""

    def delete_page(self, keys: Sequence[str]) -> Mapping[str, PersistError]:
        for key in keys:
            self.delete(key)
        return {}


def test_a_cache_forgets_what_is_deleted_in_pages() -> None:
    cached = CachedBlob(Pages(), is_immutable=is_immutable)
    fill(cached, ["part/1", "part/2"])
    assert [cached.get("part/1"), cached.get("part/2")] == [b"x", b"x"]
    delete_all(cached, ["part/1", "log/1"])
    assert [cached.get("part/1"), cached.get("part/2")] == [None, b"x"]


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.NOT_HAPPENED_DOUBTFUL, Fault.HAPPENED_BUT_FAILED])
def test_a_page_that_failed_is_deleted_again(fault: Fault) -> None:
    unreliable = UnreliableBlob(Pages())
    blob = RetryBlob(unreliable, clock=ImpatientClock(), chance=random.Random(1))
    fill(blob, list("abc"))
    unreliable.script_faults("delete", fault, fault)
    assert delete_all(blob, "abc") == 3
    assert keys_of(blob) == []
    assert blob.get_counts()["delete"].retries == 2
