"""What is particular to a folder as a store: durability, temporaries, rights, links, clashing names."""

import errno
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from persist.blob.errors import CorruptBlob, Indeterminate, InvalidUsage, StoreMisconfigured, Unavailable
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


def test_the_first_write_removes_temporary_files_over_an_hour_old(tmp_path: Path) -> None:
    for name, age_s in (("old", TEMPORARY_AGE_MAX_S + 60), ("young", TEMPORARY_AGE_MAX_S - 60)):
        path = tmp_path / f".tmp-{name}"
        path.write_bytes(b"half")
        then_s = path.stat().st_mtime - age_s
        os.utime(path, (then_s, then_s))

    FileBlob(tmp_path).create("key", b"value")

    assert sorted(os.listdir(tmp_path)) == [".tmp-young", "key"]


def test_keys_come_in_the_order_of_their_bytes_though_a_hyphen_sorts_before_a_slash(tmp_path: Path) -> None:
    blob = FileBlob(tmp_path, fsync=False)
    stored = ["a-b", "a-b0", "a/b", "a/b-", "a/c/d", "a0", "é", "a/b.c/d", "\U0001d4b3", "\ufb00", "B", "a-/z"]
    for key in stored:
        blob.set(key, b"")

    in_order = sorted(stored, key=str.encode)
    assert keys(blob) == in_order
    for start_after in [*stored, "a", "a/", "a/b/", "a/b.c", "b", "~"]:
        assert keys(blob, start_after=start_after) == [k for k in in_order if k.encode() > start_after.encode()]
    for prefix in [*stored, "a", "a/", "a/b", "a/c", "a/c/", "a/b.", "b", "/", "../", "a/../"]:
        assert keys(blob, prefix) == [key for key in in_order if key.startswith(prefix)]


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
