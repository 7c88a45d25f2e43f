"""What lies in a folder that is not a plain file of ours, and file systems and umasks that are not as usual."""

import errno
import os
import stat
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from persist.blob.errors import CorruptBlob, InvalidUsage, StoreFull, StoreMisconfigured
from persist.blob.layers.cache import CachedBlob
from persist.blob.layers.metered import MeteredBlob
from persist.blob.layers.retry import RetryBlob
from persist.blob.lru import Cache
from persist.blob.protocol import get_at_most
from persist.blob.stores.file import FileBlob
from persist.core.log.keys import is_immutable
from tests.support.forks import forked_python
from tests.support.stepped import WAIT_S


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    # A relative name, because the path of a socket may have 108 bytes only.
    program = "import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])"
    subprocess.run([*forked_python(), "-c", program, path.name], cwd=path.parent, check=True)
    assert stat.S_ISSOCK(path.stat().st_mode)


def _device(path: Path) -> None:
    try:
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero, which never ends.
    except PermissionError:
        pytest.skip("only root can make a device")


SPECIAL = pytest.mark.parametrize(
    ("make", "kind"),
    [(_fifo, "a FIFO"), (_socket, "a socket"), (_device, "a device")],
    ids=["fifo", "socket", "device"],
)


def _in_time(call: Callable[[], object]) -> BaseException | None:
    """Return what call raises; fail if it does not come back within ten seconds."""
    outcome: list[BaseException | None] = []

    def run() -> None:
        try:
            call()
            outcome.append(None)
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(WAIT_S)
    assert outcome, "the call hangs"
    return outcome[0]


@SPECIAL
def test_a_special_file_at_a_key_is_refused_at_once_and_never_read(
    make: Callable[[Path], None], kind: str, tmp_path: Path
) -> None:
    blob = FileBlob(tmp_path)
    blob.create("log/1", b"value")
    make(tmp_path / "log/2")

    for call in (lambda: blob.get("log/2"), lambda: blob.get("log/2", (0, 9)), lambda: blob.create("log/2", b"mine")):
        error = _in_time(call)
        assert isinstance(error, CorruptBlob)
        assert error.key == "log/2"
        assert kind in str(error)
    assert [entry.key for entry in blob.list("")] == ["log/1"]

    blob.set("log/2", b"replaced")
    assert blob.get("log/2") == b"replaced"


@SPECIAL
def test_a_special_file_can_be_deleted(make: Callable[[Path], None], kind: str, tmp_path: Path) -> None:
    blob = FileBlob(tmp_path)
    make(tmp_path / "key")
    blob.delete("key")
    assert not os.path.lexists(tmp_path / "key")


def test_a_folder_at_a_key_is_damage_to_a_reader_and_keeps_a_value_from_being_made(tmp_path: Path) -> None:
    blob = FileBlob(tmp_path)
    (tmp_path / "log/2").mkdir(parents=True)

    calls: list[Callable[[], object]] = [
        lambda: blob.get("log/2"),
        lambda: blob.get("log/2", (0, 9)),
        lambda: blob.get_at_most("log/2", 9),
    ]
    for call in calls:
        with pytest.raises(CorruptBlob, match=r"log/2 is a folder and no plain file: move it away"):
            call()
    with pytest.raises(InvalidUsage, match="'log/2' is a folder there"):
        blob.create("log/2", b"mine")


def test_of_a_file_larger_than_a_value_can_be_nothing_is_read(tmp_path: Path) -> None:
    blob = FileBlob(tmp_path)
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(50 << 30)

    for store in (blob, CachedBlob(RetryBlob(MeteredBlob(blob)), is_immutable=is_immutable, memory=Cache(1 << 20))):
        with pytest.raises(CorruptBlob, match=r"it has 53,687,091,200 bytes, and at most 1,000 can belong there"):
            get_at_most(store, "sparse", 1000)
        assert store.get("sparse", (10, 14)) == b"\0" * 4
    calls: list[Callable[[], object]] = [lambda: blob.get("sparse"), lambda: blob.get_at_most("sparse", 60 << 30)]
    for call in calls:
        with pytest.raises(CorruptBlob, match="53,687,091,200 bytes, and at most 17,179,869,184 can"):
            call()


def test_a_value_as_large_as_allowed_is_read_and_kept_in_a_cache(tmp_path: Path) -> None:
    store = MeteredBlob(FileBlob(tmp_path))
    store.set("part/1", b"x" * 1000)
    cached = CachedBlob(store, is_immutable=is_immutable, memory=Cache(1 << 20))

    for _ in range(3):
        assert get_at_most(cached, "part/1", 1000) == b"x" * 1000
    assert store.get_counts()["get"].requests == 1
    assert get_at_most(store, "part/2", 1000) is None
    with pytest.raises(CorruptBlob, match=r"it has 1,000 bytes, and at most 999"):
        get_at_most(cached, "part/1", 999)


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP, errno.EXDEV])
@pytest.mark.parametrize("operation", ["create", "set"])
def test_a_file_system_without_hard_links_is_refused_at_once(
    code: int, operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(source: str, target: str) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", link)
    store = RetryBlob(FileBlob(tmp_path))
    with pytest.raises(StoreMisconfigured, match=r"hard links.*another folder"):
        getattr(store, operation)("log/1", b"value")
    assert sum(count.retries for count in store.get_counts().values()) == 0
    monkeypatch.undo()
    assert os.listdir(tmp_path) in ([], ["log"])


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_reported_at_once(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(source: str, target: str) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", link)
    store = RetryBlob(FileBlob(tmp_path))
    with pytest.raises(StoreFull, match="That object is unchanged"):
        store.create("log/1", b"value")
    assert store.get_counts()["create"].retries == 0


def test_no_descriptor_stays_open_after_what_is_no_file(tmp_path: Path) -> None:
    blob = FileBlob(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    lowest = os.dup(0)
    os.close(lowest)
    for _ in range(5):
        for key in ("fifo", "folder"):
            with pytest.raises(CorruptBlob):
                blob.get(key)
    again = os.dup(0)
    os.close(again)
    assert again == lowest
