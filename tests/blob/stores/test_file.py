"""What is particular to a folder as a store: durability, temporaries, rights, links, clashing names."""

import errno
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from persist.blob.errors import (
    CorruptBlob,
    Indeterminate,
    InvalidUsage,
    PersistError,
    StoreFull,
    StoreMisconfigured,
    Unavailable,
)
from persist.blob.protocol import TEMPORARY_AGE_MAX_S, BlobEntry
from persist.blob.stores.file import CLOCK_TICK_NS, FileBlob
from tests.support.forks import forked_python

ROOT = Path(__file__).parents[3]
NOBODY = 65534


class Calls(list[str]):
    """The system calls that matter for durability, in order, with paths relative to a root."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self._root = root
        self._names: dict[int, str] = {}
        for name in ("open", "fsync", "link", "rename", "unlink", "mkdir"):
            monkeypatch.setattr(os, name, self._recording(name, getattr(os, name)))

    def _recording(self, name: str, call: object) -> object:
        def record(*args: object, **kwargs: object) -> object:
            result = call(*args, **kwargs)  # type: ignore[operator]
            if name == "open":
                assert isinstance(result, int)
                self._names[result] = self._show(args[0])
            elif name == "fsync":
                assert isinstance(args[0], int)
                self.append(f"fsync {self._names[args[0]]}")
            else:
                shown = args if name in ("link", "rename") else args[:1]
                self.append(" ".join([name, *map(self._show, shown)]))
            return result

        return record

    def _show(self, path: object) -> str:
        relative = os.path.relpath(str(path), self._root)
        return "temporary" if os.path.basename(relative).startswith(".tmp-") else relative


def keys(blob: FileBlob, prefix: str = "", start_after: str | None = None) -> list[str]:
    return [entry.key for entry in blob.list(prefix, start_after)]


def test_each_name_is_durable_before_the_next_one_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blob, calls = FileBlob(tmp_path / "a" / "b"), Calls(monkeypatch, tmp_path)
    written = ["fsync temporary", "link temporary {}", "fsync a/b/{}", "unlink temporary"]
    replaced = [
        "fsync temporary",
        "link temporary temporary",
        "rename temporary {}",
        "fsync a/b/{}",
        "unlink temporary",
    ]

    def of(call: Callable[[], object], steps: list[str], path: str = "") -> None:
        call()
        folder = path.rpartition("/")[0].removeprefix("a/b/")
        assert [one for one in calls if not one.startswith("fsync ..")] == [
            step.format(folder if step.startswith("fsync") else path) for step in steps
        ]
        calls.clear()

    folders = ["a", "a/b", "a/b/log", "a/b/log/x"]
    made = [*(f"mkdir {folder}" for folder in folders), *(f"fsync {folder}" for folder in (".", *folders[:3]))]
    of(lambda: blob.create("log/x/1", b"v"), [*made, *written], "a/b/log/x/1")
    of(lambda: blob.create("log/x/2", b"v"), written, "a/b/log/x/2")
    of(lambda: blob.create("log/x/2", b"v"), [])
    of(lambda: blob.set("log/x/2", b"w"), replaced, "a/b/log/x/2")
    of(lambda: blob.get("log/x/2"), [])
    of(lambda: blob.create("log/3", b"v"), ["fsync a/b", *written], "a/b/log/3")
    of(lambda: blob.set("log/y/3", b"v"), ["mkdir a/b/log/y", "fsync a/b", "fsync a/b/log", *replaced], "a/b/log/y/3")
    deleted = ["unlink a/b/log/x/1", "unlink a/b/log/3", "fsync a/b/log/x", "fsync a/b/log"]
    of(lambda: blob.delete_page(["log/x/1", "log/x/9", "log/3"]), deleted)


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        (errno.EROFS, StoreMisconfigured, "The file system is read-only: choose another folder."),
        (errno.EACCES, StoreMisconfigured, "Give this user the right to {} there"),
        (errno.EPERM, StoreMisconfigured, "Give this user the right to {} there"),
        (errno.ELOOP, InvalidUsage, "Symbolic links below the root of a location are not followed."),
        (errno.ENOSPC, StoreFull, "That object is unchanged. Free some space"),
        (errno.EMFILE, StoreFull, "That object is unchanged. Let this process open more files"),
        (errno.EIO, Unavailable, "That object is unchanged; try again when the disk is well."),
    ],
)
def test_what_the_system_refuses_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[PersistError], text: str
) -> None:
    blob = FileBlob(tmp_path)
    blob.set("key", b"value")

    def refuse(*_: object, **__: object) -> Any:
        raise OSError(code, "Refused")

    for system, action, call in (
        ("open", "read", lambda: blob.get("key")),
        ("open", "write", lambda: blob.set("key", b"")),
        ("rename", "write", lambda: blob.set("key", b"")),
        ("scandir", "list", lambda: keys(blob)),
        ("unlink", "delete", lambda: blob.delete("key")),
    ):
        with monkeypatch.context() as patched, pytest.raises(kind) as raised:
            patched.setattr(os, system, refuse)
            call()
        assert type(raised.value) is kind
        where = tmp_path if action == "list" else tmp_path / "key"
        assert str(raised.value).startswith(f"cannot {action} {where} in folder {tmp_path}: Refused. ")
        assert text.format(action) in str(raised.value)
        assert os.listdir(tmp_path) == ["key"]
    # A reader that finds the value of a dead writer has to sync its folder, or may not.
    os.link(tmp_path / "key", tmp_path / ".tmp-left")
    monkeypatch.setattr(os, "fsync", refuse)
    if code in (errno.EROFS, errno.EACCES, errno.EPERM):
        assert blob.get("key") == b"value"
        assert not blob.create("key", b"")
    else:
        for read in (lambda: blob.get("key"), lambda: blob.create("key", b"")):
            with pytest.raises(kind, match="cannot read"):
                read()


def test_a_large_value_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persist.blob.stores.file.READ_BYTES_MAX", 3)
    blob = FileBlob(tmp_path)
    blob.set("key", b"0123456789")
    for start, end in ((0, 10), (2, 9), (2, 5), (5, 99), (4, 4)):
        assert blob.get("key", (start, end)) == b"0123456789"[start:end]
    assert (blob.get("key"), blob.get_at_most("key", 10)) == (b"0123456789", b"0123456789")


def test_a_folder_that_another_process_made_is_synced_in_its_parent_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log").mkdir()
    calls = Calls(monkeypatch, tmp_path)

    FileBlob(tmp_path).create("log/1", b"value")

    assert calls.index("fsync ..") < calls.index("fsync .") < calls.index("link temporary log/1")


def test_whoever_finds_a_value_whose_writer_died_syncs_its_folder_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FileBlob(tmp_path).create("log/1", b"value")
    os.link(tmp_path / "log" / "1", tmp_path / ".tmp-left")  # The second name that goes when the folder was synced.
    age = time.time_ns() + CLOCK_TICK_NS
    while time.time_ns() <= age + CLOCK_TICK_NS:
        time.sleep(0.01)  # The file must be older than the resolution of its time.
    reader, loser = FileBlob(tmp_path), FileBlob(tmp_path)
    calls = Calls(monkeypatch, tmp_path)

    assert [reader.get("log/1"), reader.get("log/1")] == [b"value"] * 2
    assert calls == ["fsync log"]
    assert [loser.create("log/1", b"late"), loser.create("log/1", b"late")] == [False] * 2
    assert calls == ["fsync log"] * 2


def test_whoever_finds_a_value_whose_writer_has_synced_it_does_not_sync_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FileBlob(tmp_path).create("log/1", b"value")
    FileBlob(tmp_path).set("log/2", b"value")
    calls = Calls(monkeypatch, tmp_path)

    assert [FileBlob(tmp_path).get(key) for key in ("log/1", "log/2")] == [b"value"] * 2
    assert not FileBlob(tmp_path).create("log/1", b"late")
    assert calls == []


@pytest.mark.parametrize("operation", ["create", "set"])
def test_a_value_whose_folder_could_not_be_synced_keeps_its_second_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    blob = FileBlob(tmp_path)
    blob.create("log/0", b"value")

    real = os.fsync

    def fail(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EIO, "injected")
        real(descriptor)

    with monkeypatch.context() as broken, pytest.raises(Indeterminate):
        broken.setattr(os, "fsync", fail)
        getattr(blob, operation)("log/1", b"value")
    assert (tmp_path / "log" / "1").stat().st_nlink == 2
    calls = Calls(monkeypatch, tmp_path)
    assert blob.get("log/1") == b"value"
    assert calls == ["fsync log"]


def test_without_fsync_nothing_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch, tmp_path)
    blob = FileBlob(tmp_path, fsync=False)

    blob.create("log/1", b"value")
    blob.set("log/1", b"other")
    blob.delete("log/1")

    assert not [call for call in calls if call.startswith("fsync")]


def test_a_folder_that_does_not_exist_is_empty_and_a_write_makes_it(tmp_path: Path) -> None:
    blob = FileBlob(tmp_path / "not" / "yet")

    assert blob.get("key") is None
    assert keys(blob) == []
    blob.delete("key")
    assert not (tmp_path / "not").exists()

    assert blob.create("key", b"value")
    assert blob.get("key") == b"value"


def test_a_folder_that_was_removed_is_made_again(tmp_path: Path) -> None:
    blob = FileBlob(tmp_path)
    blob.create("log/1", b"value")
    (tmp_path / "log/1").unlink()
    (tmp_path / "log").rmdir()

    assert blob.create("log/1", b"again")
    assert blob.get("log/1") == b"again"


def test_temporary_files_are_not_listed_and_none_stays_after_a_write(tmp_path: Path) -> None:
    blob = FileBlob(tmp_path)
    (tmp_path / ".tmp-in-use").write_bytes(b"half")
    blob.create("key", b"value")
    blob.create("key", b"loser")
    blob.set("key", b"other")

    assert keys(blob) == ["key"]
    assert sorted(os.listdir(tmp_path)) == [".tmp-in-use", "key"]


@pytest.mark.parametrize("links", [1, 2])
def test_the_first_write_removes_temporary_files_over_an_hour_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: int
) -> None:
    synced = list[int]()
    monkeypatch.setattr(os, "sync", lambda: synced.append(len(os.listdir(tmp_path))))

    def leave(*names: str) -> None:
        for name in names:
            path = tmp_path / f".tmp-{name}"
            path.write_bytes(b"half")
            age_s = TEMPORARY_AGE_MAX_S + (-60 if name == "young" else 60)
            os.utime(path, (time.time() - age_s,) * 2)
            if links == 2:  # Its writer died before it could sync the folder of the value.
                os.link(path, tmp_path / f"{name}-value")

    leave("old", "young")
    blob, values = FileBlob(tmp_path), ["old-value", "young-value"] * (links == 2)
    blob.create("key", b"value")
    assert sorted(os.listdir(tmp_path)) == [".tmp-young", "key", *values]
    assert synced == [4] * (links - 1), "before the name goes that tells of it"
    leave("older")
    blob.create("log/other", b"value")
    assert ".tmp-older" in os.listdir(tmp_path), "only once for each client"


def test_keys_come_in_the_order_of_their_bytes_though_a_hyphen_sorts_before_a_slash(tmp_path: Path) -> None:
    blob = FileBlob(tmp_path, fsync=False)
    stored = ["a-b", "a-b0", "a/b", "a/b-", "a/c/d", "a0", "é", "a/b.c/d", "\U0001d4b3", "\ufb00", "B", "a-/z"]
    for key in stored:
        blob.set(key, b"")

    in_order = sorted(stored, key=str.encode)
    assert keys(blob) == in_order
    for prefix in [*stored, "", "a", "a/", "a/b", "a/c", "a/c/", "a/b.", "b", "/", "../", "a/../"]:
        for start_after in [*stored, "", "a", "a/", "a/b/", "a/b.c", "b", "~"]:
            expected = [key for key in in_order if key.startswith(prefix) and key.encode() > start_after.encode()]
            assert keys(blob, prefix, start_after) == expected


def test_a_listing_goes_on_when_a_key_it_has_not_reached_is_deleted(tmp_path: Path) -> None:
    blob = FileBlob(tmp_path, fsync=False)
    for key in ("a", "b", "c"):
        blob.set(key, b"")
    listing = blob.list("")
    assert next(listing).key == "a"

    blob.delete("b")

    assert [entry.key for entry in listing] == ["c"]


def test_names_that_are_no_keys_are_not_listed(tmp_path: Path) -> None:
    (tmp_path / "line\nbreak").write_bytes(b"")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/not-utf-8-\xff")).write_bytes(b"")
    (tmp_path / "key").write_bytes(b"value")

    listed = list(FileBlob(tmp_path).list(""))

    assert listed == [BlobEntry("key", 5, (tmp_path / "key").stat().st_mtime)]


def test_a_value_and_a_folder_of_the_same_name_exclude_each_other(tmp_path: Path) -> None:
    blob = FileBlob(tmp_path, fsync=False)
    blob.set("value", b"1")
    blob.set("folder/key", b"1")

    for write in (blob.set, blob.create):
        with pytest.raises(InvalidUsage, match="'value' is a value there"):
            write("value/below/deep", b"2")
        with pytest.raises(InvalidUsage, match="'folder' is a folder there"):
            write("folder", b"2")
    assert blob.get("value/below/deep") is None
    with pytest.raises(CorruptBlob, match="folder is a folder"):
        blob.get("folder")
    assert keys(blob, "value/below/") == []
    blob.delete("folder")
    blob.delete("value/below")
    assert keys(blob) == ["folder/key", "value"]
    assert sorted(os.listdir(tmp_path)) == ["folder", "value"]


def test_symbolic_links_below_the_root_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    blob = FileBlob(tmp_path / "location", fsync=False)
    blob.set("key", b"value")
    (tmp_path / "location" / "out").symlink_to(outside)
    (tmp_path / "location" / "alias").symlink_to(outside / "secret")
    (tmp_path / "location" / "loop").symlink_to(tmp_path / "location")
    (tmp_path / "location" / "itself").symlink_to("itself")

    calls: list[Callable[[str], object]] = [
        blob.get,
        blob.delete,
        lambda key: blob.set(key, b"changed"),
        lambda key: blob.create(key, b"changed"),
        lambda key: blob.delete_page([key]),
    ]
    for call in calls:
        with pytest.raises(InvalidUsage, match="symbolic link"):
            call("out/secret")
        for key in ("alias", "loop", "itself"):
            with pytest.raises(CorruptBlob, match="symbolic link") as caught:
                call(key)
            assert caught.value.key == key
    with pytest.raises(InvalidUsage, match="symbolic link"):
        list(blob.list("out/"))
    assert keys(blob) == ["key"]
    assert (outside / "secret").read_bytes() == b"secret"


def test_the_root_itself_may_be_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")

    FileBlob(tmp_path / "link").create("log/1", b"value")

    assert FileBlob(tmp_path / "real").get("log/1") == b"value"


def test_a_file_where_the_root_should_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StoreMisconfigured, match=r"file is a file\. Name a folder"):
            FileBlob(path)


def test_a_file_that_takes_the_place_of_the_root_later_is_an_error_not_an_empty_store(tmp_path: Path) -> None:
    blob = FileBlob(tmp_path / "location")
    (tmp_path / "location").write_bytes(b"")

    for call in (lambda: blob.get("key"), lambda: keys(blob), lambda: blob.set("key", b""), lambda: blob.delete("key")):
        with pytest.raises(StoreMisconfigured, match="Name a folder"):
            call()


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a file system that nobody may write to")
def test_a_folder_that_cannot_be_written_to_is_named() -> None:
    with pytest.raises((StoreMisconfigured, Unavailable), match="/proc/self/location"):
        FileBlob("/proc/self/location").create("key", b"value")


WITHOUT_RIGHTS = """
import os, sys
from persist.blob.stores.file import FileBlob
from persist.blob.errors import StoreMisconfigured
if os.getuid() == 0:
    os.setgid(int(sys.argv[2]))
    os.setuid(int(sys.argv[2]))
blob = FileBlob(sys.argv[1])
calls = {
    "create": lambda: blob.create("new/key", b""), "set": lambda: blob.set("key", b""),
    "delete": lambda: blob.delete("key"), "get": lambda: blob.get("hidden/key"),
    "list": lambda: list(blob.list("hidden/")),
}
for name, call in calls.items():
    try:
        call()
        print(name, "worked")
    except StoreMisconfigured as error:
        print(name, error)
"""


def test_a_user_without_rights_is_told_which_folder_and_what_to_do(tmp_path_factory: pytest.TempPathFactory) -> None:
    location = tmp_path_factory.mktemp("location")
    for parent in (location, *location.parents):
        if parent.stat().st_uid == os.getuid() and parent.stat().st_mode & 0o777 == 0o700:
            parent.chmod(0o755)
    (location / "key").write_bytes(b"value")
    (location / "hidden").mkdir(mode=0o700)
    (location / "hidden").chmod(0)
    location.chmod(0o555)
    try:
        command = [*forked_python(), "-c", WITHOUT_RIGHTS, str(location), str(NOBODY)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    finally:
        location.chmod(0o755)
        (location / "hidden").chmod(0o700)

    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["create", "set", "delete", "get", "list"]
    for line in lines:
        assert f"in folder {location}: Permission denied. Give this user the right to" in line
    assert sorted(os.listdir(location)) == ["hidden", "key"]


def test_what_comes_while_a_folder_is_synced_is_not_taken_for_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync covers what was there when it began, and may take long."""
    FileBlob(tmp_path).create("log/1", b"value")
    os.link(tmp_path / "log" / "1", tmp_path / ".tmp-1")
    real, synced = os.fsync, list[int]()

    def slow(descriptor: int) -> None:
        real(descriptor)
        synced.append(descriptor)
        if len(synced) == 1:  # A writer dies between its link and its sync.
            (tmp_path / "log" / "2").write_bytes(b"late")
            os.link(tmp_path / "log" / "2", tmp_path / ".tmp-2")
            made_ns = time.time_ns()
            while time.time_ns() <= made_ns + 3 * CLOCK_TICK_NS:
                pass

    monkeypatch.setattr(os, "fsync", slow)
    reader = FileBlob(tmp_path)
    assert reader.get("log/1") == b"value"
    assert len(synced) == 1
    assert reader.get("log/2") == b"late"
    assert len(synced) == 2
