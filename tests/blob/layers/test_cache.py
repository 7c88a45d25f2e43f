"""What a cache keeps, for how long, and that nothing it holds is believed unchecked."""

import errno
import os
import random
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from persist.blob.errors import CorruptBlob, Indeterminate, InvalidUsage, Unavailable
from persist.blob.layers.cache import (
    ENTRY_OVERHEAD_BYTES,
    SMALL_BYTES,
    CacheCount,
    CachedBlob,
    get_checked,
    get_range_checked,
)
from persist.blob.layers.cache_folder import FILE_SHARE_MAX, PAUSE_S, BoundedFolder
from persist.blob.layers.metered import MeteredBlob
from persist.blob.layers.unreliable import Fault, UnreliableBlob
from persist.blob.lru import Cache
from persist.blob.protocol import TEMPORARY_AGE_MAX_S, MemoryBlob
from persist.blob.stores.file import FileBlob
from persist.blob.threads import SystemClock
from persist.core.log.keys import is_immutable
from tests.support.clocks import ImpatientClock
from tests.support.forks import forked_python
from tests.support.paths import ROOT
from tests.support.stepped import WAIT_S, wait_until

KEY = "part/c/00000000000000000001-0123456789abcdef0123456789abcdef.parquet"


@pytest.fixture
def store() -> MeteredBlob:
    """A store with values of 1,000 different bytes under `part/0` to `part/99`, and one under `KEY`."""
    store = MeteredBlob(MemoryBlob("cached"))
    for number in range(100):
        store.set(f"part/{number}", value_of(number))
    store.set(KEY, b"value")
    return store


@pytest.mark.parametrize("is_cached", [False, True])
@pytest.mark.parametrize("reads_range", [False, True])
def test_what_proves_corrupt_is_fetched_once_more_past_the_cache(
    store: MeteredBlob, is_cached: bool, reads_range: bool
) -> None:
    blob = CachedBlob(store, is_immutable=is_immutable) if is_cached else store
    wrong, seen = [b"value", b"val"], list[bytes]()

    def check(value: bytes) -> int:
        seen.append(value)
        if wrong and value == wrong[reads_range]:
            wrong.clear()
            raise CorruptBlob(KEY, "made up")
        return len(value)

    def read(key: str) -> int | None:
        return get_range_checked(blob, key, (0, 3), check) if reads_range else get_checked(blob, key, 5, check)

    assert read("part/absent") is None
    blob.get(KEY)
    if is_cached:
        assert read(KEY) == len(seen[0])
    else:
        with pytest.raises(CorruptBlob, match="made up"):
            read(KEY)
    assert len(seen) == 1 + is_cached
    assert gets(store) == 3
    wrong += [b"value", b"val"]
    if is_cached:
        store.delete(KEY)
        assert read(KEY) is None


def test_a_value_far_larger_than_expected_is_damage() -> None:
    store = MemoryBlob()
    store.set("small", bytes(SMALL_BYTES))
    store.set("large", bytes(SMALL_BYTES + 1))
    assert get_checked(store, "small", 5, len) == SMALL_BYTES
    assert get_checked(store, "large", SMALL_BYTES + 1, len) == SMALL_BYTES + 1
    with pytest.raises(CorruptBlob, match=f"it has {SMALL_BYTES + 1:,} bytes, and at most {SMALL_BYTES:,} can"):
        get_checked(store, "large", SMALL_BYTES, len)


@pytest.fixture(params=["memory", "folder"])
def cached(request: pytest.FixtureRequest, store: MeteredBlob, tmp_path: Path) -> CachedBlob:
    """A cache with much room, of either kind alone."""
    if request.param == "memory":
        return CachedBlob(store, is_immutable=is_immutable)
    return CachedBlob(store, is_immutable=is_immutable, memory=Cache(0), folder=tmp_path / "cache")


def value_of(number: int) -> bytes:
    return random.Random(number).randbytes(1000)


def gets(store: MeteredBlob) -> int:
    return store.get_counts()["get"].requests


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.cached"))


def test_a_value_is_fetched_once(store: MeteredBlob, cached: CachedBlob) -> None:
    for _ in range(3):
        assert cached.get(KEY) == b"value"
    assert gets(store) == 1
    counts = cached.get_counts()
    if counts.memory_bytes:
        assert counts == CacheCount(hits=2, misses=1, memory_bytes=5 + ENTRY_OVERHEAD_BYTES)
    else:
        assert counts == CacheCount(
            hits=2, folder_hits=2, misses=1, folder_bytes=8 + 16 + 4 + len(f"{store.url}\n{KEY}") + 5
        )


def test_an_empty_value_is_kept(store: MeteredBlob, cached: CachedBlob) -> None:
    store.set("part/empty", b"")
    assert [cached.get("part/empty") for _ in range(3)] == [b""] * 3
    assert gets(store) == 1


@pytest.mark.parametrize("key", ["log/00000000000000000001", "checkpoint/1-1.json", "other"])
def test_a_key_that_may_change_is_not_kept(store: MeteredBlob, cached: CachedBlob, key: str) -> None:
    assert cached.get(key) is None
    store.set(key, b"one")
    assert cached.get(key) == b"one"
    store.set(key, b"two")
    assert cached.get(key) == b"two"
    assert cached.get_counts().misses == 0


def test_the_absence_of_a_value_is_not_kept(store: MeteredBlob, cached: CachedBlob) -> None:
    assert cached.get("part/new") is None
    assert cached.get("part/new", (0, 1)) is None
    store.set("part/new", b"value")
    assert cached.get("part/new") == b"value"


def test_a_range_is_cut_from_a_kept_value_and_otherwise_fetched_alone(store: MeteredBlob, cached: CachedBlob) -> None:
    assert cached.get(KEY, (1, 3)) == b"al"
    assert store.get_counts()["get"].bytes == 2
    cached.get(KEY)
    before = gets(store)
    for start, end in ((0, 5), (1, 3), (3, 99), (5, 5), (9, 10), (0, 0)):
        assert cached.get(KEY, (start, end)) == b"value"[start:end]
    assert gets(store) == before
    with pytest.raises(InvalidUsage, match="range="):
        cached.get(KEY, (3, 1))


@pytest.mark.parametrize("write", ["set", "delete", "create after delete", "set that fails after it happened"])
def test_a_write_through_the_cache_is_seen_by_the_next_read(tmp_path: Path, write: str) -> None:
    store = UnreliableBlob(MemoryBlob())
    store.set(KEY, b"before")
    for folder in (None, tmp_path):
        cached = CachedBlob(store, is_immutable=is_immutable, folder=folder)
        cached.set(KEY, b"before")
        assert cached.get(KEY) == b"before"
        if write == "set":
            cached.set(KEY, b"after")
        elif write == "delete":
            cached.delete(KEY)
        elif write == "create after delete":
            store.delete(KEY)
            assert cached.create(KEY, b"after")
        else:
            store.script_faults("set", Fault.HAPPENED_BUT_FAILED)
            with pytest.raises(Exception, match="no answer"):
                cached.set(KEY, b"after")
        assert cached.get(KEY) == (None if write == "delete" else b"after")


@pytest.mark.parametrize("is_on_disk", [False, True])
@pytest.mark.parametrize("write", ["set", "delete"])
@pytest.mark.parametrize("fails", [False, True])
def test_what_is_read_while_a_write_is_under_way_is_dropped_after_it_even_if_it_fails(
    tmp_path: Path, write: str, fails: bool, is_on_disk: bool
) -> None:
    class ReadWhileWritten(MemoryBlob):
        def set(self, key: str, value: bytes) -> None:
            self.during(lambda: super(ReadWhileWritten, self).set(key, value))

        def delete(self, key: str) -> None:
            self.during(lambda: super(ReadWhileWritten, self).delete(key))

        def during(self, change: Callable[[], None]) -> None:
            assert (cache._memory.peek(KEY), files(tmp_path)) == (None, []), "a process may be killed after the write"
            assert cache.get(KEY) == b"before"
            change()
            if fails:
                raise Indeterminate("no answer")

    store = ReadWhileWritten()
    MemoryBlob.set(store, KEY, b"before")
    cache = CachedBlob(
        store,
        is_immutable=is_immutable,
        memory=Cache(0 if is_on_disk else 1 << 20),
        folder=tmp_path if is_on_disk else None,
    )
    assert cache.get(KEY) == b"before"
    with pytest.raises(Indeterminate) if fails else nullcontext():
        cache.set(KEY, b"after") if write == "set" else cache.delete(KEY)
    assert cache.get(KEY) == (b"after" if write == "set" else None)


class Gate(MemoryBlob):
    """A store whose reads wait, with the value they found, until they are let through."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived = threading.Semaphore(0)
        self.let = threading.Semaphore(0)
        self.is_open = False
        self.reads = 0

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        value = super().get(key, range)
        if not self.is_open:
            self.reads += 1
            self.arrived.release()
            assert self.let.acquire(timeout=WAIT_S)
        return value


@pytest.mark.parametrize("is_on_disk", [False, True])
@pytest.mark.parametrize("write", ["set", "delete", "forget"])
def test_a_fetch_that_a_write_overtakes_is_not_kept(tmp_path: Path, write: str, is_on_disk: bool) -> None:
    store = Gate()
    store.set(KEY, b"before")
    cached = CachedBlob(
        store,
        is_immutable=is_immutable,
        memory=Cache(0 if is_on_disk else 1 << 20),
        folder=tmp_path if is_on_disk else None,
    )
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(cached.get, KEY)
        assert store.arrived.acquire(timeout=WAIT_S)
        if write == "set":
            cached.set(KEY, b"after")
        elif write == "delete":
            cached.delete(KEY)
        else:
            store.set(KEY, b"after")
            cached.invalidate(KEY)
        store.let.release()
        assert reading.result(WAIT_S) == b"before", "the read began before the write"
    store.is_open = True
    assert cached.get(KEY) == (None if write == "delete" else b"after")


def test_a_read_that_begins_after_a_write_does_not_join_a_fetch_from_before_it() -> None:
    store = Gate()
    store.set(KEY, b"before")
    cached = CachedBlob(store, is_immutable=is_immutable)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cached.get, KEY)
        assert store.arrived.acquire(timeout=WAIT_S)
        cached.set(KEY, b"after")
        second = pool.submit(cached.get, KEY)
        assert store.arrived.acquire(timeout=WAIT_S)
        store.let.release(2)
        assert (first.result(WAIT_S), second.result(WAIT_S)) == (b"before", b"after")


def waiting(cached: CachedBlob, others: int, gate: Gate, pool: ThreadPoolExecutor) -> list[Future[bytes | None]]:
    """Have one thread fetch KEY and others wait for it; return their futures."""
    reads = [pool.submit(cached.get, KEY)]
    assert gate.arrived.acquire(timeout=WAIT_S)
    reads += [pool.submit(cached.get, KEY) for _ in range(others)]
    wait_for_readers(cached, others)
    return reads


def wait_for_readers(cached: CachedBlob, count: int) -> None:
    """Return when that many threads wait for the fetch of another one."""
    wait_until(lambda: len(cached._fetches[KEY]._condition._waiters) == count)  # type: ignore[attr-defined]


def test_threads_that_want_a_key_at_the_same_time_share_one_fetch() -> None:
    store = Gate()
    store.set(KEY, b"value")
    cached = CachedBlob(store, is_immutable=is_immutable, memory=Cache(0))
    with ThreadPoolExecutor(8) as pool:
        reads = waiting(cached, 7, store, pool)
        store.let.release(8)
        assert [read.result(WAIT_S) for read in reads] == [b"value"] * 8
    assert store.reads == 1
    assert (cached.get_counts().shared, cached.get_counts().misses) == (7, 1)


def test_a_shared_fetch_that_found_nothing_is_not_the_answer_for_the_others() -> None:
    store = Gate()
    cached = CachedBlob(store, is_immutable=is_immutable)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cached.get, KEY)
        assert store.arrived.acquire(timeout=WAIT_S)
        store.set(KEY, b"value")  # By another client.
        second = pool.submit(cached.get, KEY)
        wait_for_readers(cached, 1)
        store.let.release(2)
        assert (first.result(WAIT_S), second.result(WAIT_S)) == (None, b"value")


def test_a_shared_fetch_that_failed_fails_for_all_and_the_next_read_tries_again() -> None:
    class Failing(Gate):
        def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
            value = super().get(key, range)
            if not self.is_open:
                raise Unavailable("no")
            return value

    store = Failing()
    store.set(KEY, b"value")
    cached = CachedBlob(store, is_immutable=is_immutable)
    with ThreadPoolExecutor(4) as pool:
        reads = waiting(cached, 3, store, pool)
        store.let.release(4)
        for read in reads:
            with pytest.raises(Unavailable):
                read.result(WAIT_S)
    assert store.reads == 1
    store.is_open = True
    assert cached.get(KEY) == b"value"


def test_an_interrupted_fetch_does_not_interrupt_those_that_wait_for_it() -> None:
    class Interrupted(Gate):
        def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
            value = super().get(key, range)
            if not self.is_open:
                self.is_open = True
                raise KeyboardInterrupt
            return value

    store = Interrupted()
    store.set(KEY, b"value")
    cached = CachedBlob(store, is_immutable=is_immutable)
    with ThreadPoolExecutor(2) as pool:
        reads = waiting(cached, 1, store, pool)
        store.let.release()
        with pytest.raises(KeyboardInterrupt):
            reads[0].result(WAIT_S)
        assert reads[1].result(WAIT_S) == b"value"


# Room.


def test_a_folder_is_bounded_and_what_was_used_longest_ago_goes_first(store: MeteredBlob, tmp_path: Path) -> None:
    room = 20_000
    cached = CachedBlob(store, is_immutable=is_immutable, memory=Cache(0), folder=tmp_path, folder_bytes=room)
    for number in range(100):
        cached.get(f"part/{number}")
        cached.get("part/0")
        taken = sum(path.stat().st_size for path in files(tmp_path))
        assert taken <= room
        assert taken > room * 0.84 or not cached.get_counts().evictions, "a tenth is made free at once"

    counts = cached.get_counts()
    assert counts.evictions == 100 - len(files(tmp_path))
    assert counts.folder_bytes == sum(path.stat().st_size for path in files(tmp_path))
    before = gets(store)
    for number in (0, *range(90, 100)):
        assert cached.get(f"part/{number}") == value_of(number)
    assert gets(store) == before


def test_a_value_that_is_large_for_the_room_is_not_kept(store: MeteredBlob, tmp_path: Path) -> None:
    for less in (1, 0):
        in_memory = Cache((1000 + ENTRY_OVERHEAD_BYTES) * FILE_SHARE_MAX - less)
        in_folder = {"memory": Cache(0), "folder": tmp_path, "folder_bytes": 1000 * FILE_SHARE_MAX - less}
        for kwargs in ({"memory": in_memory}, in_folder):
            cached = CachedBlob(store, is_immutable=is_immutable, **kwargs)
            for _ in range(3):  # What is not needed must be wanted more than once.
                cached.get("part/1")
            before = gets(store)
            assert cached.get("part/1") == value_of(1)
            assert gets(store) == before + less
        assert len(files(tmp_path)) == 1 - less


def test_what_memory_and_folder_drop_is_added_up(store: MeteredBlob, tmp_path: Path) -> None:
    memory = Cache(16_000)
    cached = CachedBlob(store, is_immutable=is_immutable, memory=memory, folder=tmp_path, folder_bytes=9_000)
    for number in (*range(40), *range(40), *[20] * 9, *[21] * 9, *range(40)):
        cached.get(f"part/{number}")
    counts, room = cached.get_counts(), BoundedFolder(tmp_path, 9_000, SystemClock())
    room.write_file(room.make_path("0" * 32, "rows"), [b""])
    assert counts.folder_bytes == room.bytes == sum(path.stat().st_size for path in files(tmp_path)) <= 9_000
    written = counts.misses - counts.evictions + memory.evictions
    assert memory.evictions > 0
    assert written == len(files(tmp_path)), "what was written and not dropped from the folder"


# Entries that are not what they should be.


def test_every_flipped_bit_and_every_truncation_of_a_file_costs_a_fetch_and_nothing_else(
    store: MeteredBlob, tmp_path: Path
) -> None:
    cached = CachedBlob(store, is_immutable=is_immutable, memory=Cache(0), folder=tmp_path)
    cached.get(KEY)
    (path,) = files(tmp_path)
    good = path.read_bytes()
    wrong = [good[:at] + bytes([good[at] ^ 1 << bit]) + good[at + 1 :] for at in range(len(good)) for bit in (0, 7)]
    wrong += [good[:length] for length in range(len(good))] + [good + b"x", b"\0" * len(good)]
    before = gets(store)

    for each in wrong:
        path.write_bytes(each)
        assert cached.get(KEY) == b"value"
        assert path.read_bytes() == good, "the fetched value takes its place"

    assert gets(store) - before == cached.get_counts().corrupt == len(wrong)
    assert cached.get(KEY) == b"value"
    assert gets(store) - before == len(wrong)


def test_exchanged_and_foreign_files_cost_a_fetch_and_nothing_else(store: MeteredBlob, tmp_path: Path) -> None:
    other_location = MeteredBlob(MemoryBlob("elsewhere"))
    other_location.set(KEY, b"of another location")
    folders = [tmp_path / name for name in ("one", "two", "three")]
    CachedBlob(store, is_immutable=is_immutable, folder=folders[0]).get("part/1")
    CachedBlob(store, is_immutable=is_immutable, folder=folders[1]).get("part/2")
    CachedBlob(other_location, is_immutable=is_immutable, folder=folders[2]).get(KEY)
    one, two, three = (files(folder)[0] for folder in folders)
    foreign = {1: two.read_bytes(), 2: one.read_bytes()}
    one.write_bytes(foreign[1])
    two.write_bytes(foreign[2])

    for number, folder in ((1, folders[0]), (2, folders[1])):
        cached = CachedBlob(store, is_immutable=is_immutable, folder=folder)
        assert cached.get(f"part/{number}") == value_of(number)
        assert cached.get_counts().corrupt == 1
    cached = CachedBlob(store, is_immutable=is_immutable, folder=folders[2])
    assert cached.get(KEY) == b"value", "two locations may share a folder"
    assert len(files(folders[2])) == 2
    os.replace(three, next(path for path in files(folders[2]) if path != three))
    assert CachedBlob(store, is_immutable=is_immutable, folder=folders[2]).get(KEY) == b"value"


def test_a_changed_or_exchanged_entry_in_memory_costs_a_fetch_and_nothing_else(store: MeteredBlob) -> None:
    cached = CachedBlob(store, is_immutable=is_immutable)
    for number in (1, 2):
        cached.get(f"part/{number}")
    memory = cached._memory
    one, other = memory.get("part/1"), memory.get("part/2")
    assert one is not None
    assert other is not None
    memory.put("part/1", other)
    memory.put("part/2", one)
    before = gets(store)
    for number in (1, 2):
        assert cached.get(f"part/{number}") == value_of(number)
    memory.put("part/1", one._replace(value=b"changed"))
    assert cached.get("part/1", (0, 4)) == value_of(1)[:4]
    assert gets(store) == before + 3
    assert cached.get_counts().corrupt == 3
    assert cached.get_counts().hits == 0


@pytest.mark.parametrize("obstacle", ["folder", "link", "pipe", "sparse file of a terabyte"])
def test_something_else_in_the_place_of_an_entry_costs_a_fetch_and_nothing_else(
    store: MeteredBlob, tmp_path: Path, obstacle: str
) -> None:
    cached = CachedBlob(store, is_immutable=is_immutable, memory=Cache(0), folder=tmp_path)
    cached.get(KEY)
    (path,) = files(tmp_path)
    good = path.read_bytes()
    path.unlink()
    if obstacle == "folder":
        path.mkdir()
    elif obstacle == "link":
        (tmp_path / "elsewhere").write_bytes(good)
        path.symlink_to(tmp_path / "elsewhere")
    elif obstacle == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(good)
        os.truncate(path, 1 << 40)
    assert cached.get(KEY) == b"value"
    assert cached.get_counts().corrupt + cached.get_counts().disk_errors > 0


# The disk.


def test_a_second_client_and_a_second_run_find_what_the_first_kept(store: MeteredBlob, tmp_path: Path) -> None:
    CachedBlob(store, is_immutable=is_immutable, folder=tmp_path / "a" / "b").get(KEY)
    second = CachedBlob(store, is_immutable=is_immutable, folder=tmp_path / "a" / "b")
    before = gets(store)
    assert second.get(KEY, (0, 3)) == b"val"
    assert second.get(KEY) == b"value"
    assert second.get(KEY) == b"value"
    assert gets(store) == before
    assert (second.get_counts().hits, second.get_counts().folder_hits) == (3, 2), "the third was in memory"


def test_the_folder_and_its_files_are_for_their_owner_only(store: MeteredBlob, tmp_path: Path) -> None:
    CachedBlob(store, is_immutable=is_immutable, folder=tmp_path / "cache").get(KEY)
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "cache").iterdir()] == [0o600]


@pytest.mark.parametrize("call", ["open", "write", "rename"])
def test_a_disk_that_is_full_or_read_only_costs_the_caching_and_nothing_else(
    store: MeteredBlob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    clock = ImpatientClock()
    cached = CachedBlob(store, is_immutable=is_immutable, memory=Cache(0), folder=tmp_path, clock=clock)
    cached.get("part/0")
    real = os.open

    def no_writing(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_WRONLY and call == "open":
            raise OSError(errno.EROFS, "Read-only file system")
        return real("/dev/full" if flags & os.O_WRONLY else path, flags & ~os.O_CREAT & ~os.O_EXCL, mode)

    def no_room(*paths: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, *(("rename", no_room) if call == "rename" else ("open", no_writing)))
        for number in (1, 2, 3):
            assert cached.get(f"part/{number}") == value_of(number)
        assert cached.get_counts().disk_errors == 1, "then there is a pause without writes"
        assert cached.get("part/0") == value_of(0)
        clock.sleep(PAUSE_S)
        assert cached.get("part/1") == value_of(1)
        assert cached.get_counts().disk_errors == 2
    assert cached.get_counts().folder_hits == 1, "what is there can be read all the same"
    clock.sleep(PAUSE_S)
    cached.get("part/1")
    assert len(os.listdir(tmp_path)) == 2, "no temporary file stays"


def test_a_folder_that_cannot_be_made_costs_the_caching_and_nothing_else(store: MeteredBlob, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    cached = CachedBlob(store, is_immutable=is_immutable, memory=Cache(0), folder=tmp_path / "file" / "cache")
    assert [cached.get(KEY) for _ in range(2)] == [b"value"] * 2
    cached.set(KEY, b"other")
    assert cached.get(KEY) == b"other"
    assert cached.get_counts().disk_errors > 0


def test_an_entry_that_cannot_be_removed_is_never_used_again(
    store: MeteredBlob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = CachedBlob(store, is_immutable=is_immutable, memory=Cache(0), folder=tmp_path)
    cached.get(KEY)

    def refuse(path: str) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", refuse)
        cached.set(KEY, b"after")
    assert cached.get(KEY) == b"after"
    assert cached.get_counts().disk_errors > 0


def test_a_folder_that_is_removed_is_made_again(store: MeteredBlob, tmp_path: Path) -> None:
    cached = CachedBlob(store, is_immutable=is_immutable, memory=Cache(0), folder=tmp_path / "cache")
    cached.get(KEY)
    files(tmp_path / "cache")[0].unlink()
    (tmp_path / "cache").rmdir()
    assert cached.get(KEY) == b"value"
    assert len(files(tmp_path / "cache")) == 1
    assert cached.get_counts().disk_errors == 0


def test_files_of_others_in_the_folder_are_left_alone_and_old_temporaries_are_not(
    store: MeteredBlob, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_bytes(b"x" * 50_000)
    for name, age_s in (("a" * 32, TEMPORARY_AGE_MAX_S + 60), ("b" * 32, 60)):
        path = tmp_path / f".tmp-{name}.cached"
        path.write_bytes(b"half")
        os.utime(path, (time.time() - age_s,) * 2)
    cached = CachedBlob(store, is_immutable=is_immutable, memory=Cache(0), folder=tmp_path, folder_bytes=20_000)
    for number in range(50):
        cached.get(f"part/{number}")
    assert len(files(tmp_path)) > 5
    others = [name for name in os.listdir(tmp_path) if not name[0].isalnum() or name.endswith("txt")]
    assert sorted(others) == [f".tmp-{'b' * 32}.cached", "notes.txt"]


WORKER = """
import random, sys
from persist.blob.lru import Cache
from persist.blob.layers.cache import CachedBlob
from persist.blob.stores.file import FileBlob
from persist.blob.layers.metered import MeteredBlob
from persist.core.log.keys import is_immutable
store = MeteredBlob(FileBlob(sys.argv[1]))
room = {"memory": Cache(0), "folder_bytes": int(sys.argv[3])}
cached = CachedBlob(store, is_immutable=is_immutable, folder=sys.argv[2], **room)
chance = random.Random(int(sys.argv[4]))
for _ in range(1500):
    number = min(int(chance.expovariate(0.05)), 99)
    assert cached.get(f"part/{number}") == random.Random(number).randbytes(1000)
counts = cached.get_counts()
assert counts.disk_errors == counts.corrupt == 0, counts
print(counts.folder_hits, counts.misses, counts.evictions)
"""


@pytest.mark.thorough
def test_processes_share_a_folder_that_is_too_small_for_them(tmp_path: Path) -> None:
    store = FileBlob(tmp_path / "store", fsync=False)
    for number in range(100):
        store.set(f"part/{number}", value_of(number))
    room, processes = 40_000, 4
    command = [*forked_python(), "-c", WORKER, str(tmp_path / "store"), str(tmp_path / "cache"), str(room)]
    running = [
        subprocess.Popen([*command, str(n)], cwd=ROOT, stdout=subprocess.PIPE, text=True) for n in range(processes)
    ]
    largest = 0
    while any(each.poll() is None for each in running):
        largest = max(largest, sum(size_of(path) for path in files(tmp_path / "cache")))
        time.sleep(0.01)
    results = []
    for each in running:
        with each:
            assert each.stdout is not None
            results.append([int(word) for word in each.stdout.read().split()])
        assert each.returncode == 0
    hits, misses, evictions = (sum(column) for column in zip(*results, strict=True))
    assert hits > misses > 100, "more than each process of its own would make of it"
    assert evictions > 100
    assert largest <= room * (1 + processes / 16) + processes * 1200
    assert [name for name in os.listdir(tmp_path / "cache") if name.startswith(".tmp")] == []


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


@pytest.mark.parametrize("wrong", [{"folder_bytes": 0}])
def test_room_that_makes_no_sense_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidUsage, match="is not allowed"):
        CachedBlob(MemoryBlob(), is_immutable=is_immutable, **wrong)  # type: ignore[arg-type]


@pytest.mark.thorough
def test_many_threads_and_little_room_give_right_answers(store: MeteredBlob, tmp_path: Path) -> None:
    cached = CachedBlob(store, is_immutable=is_immutable, memory=Cache(15_000), folder=tmp_path, folder_bytes=30_000)

    def read(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(300):
            number = chance.randrange(100)
            if chance.random() < 0.05:
                cached.set(f"part/{number}", value_of(number))
            assert cached.get(f"part/{number}") == value_of(number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read, range(8)))
    assert cached.get_counts().memory_bytes <= 15_000
    assert cached._fetches == {}


def test_a_file_that_is_written_while_another_thread_makes_room_is_within_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, remove = BoundedFolder(tmp_path, 1000, SystemClock()), os.unlink
    late = threading.Thread(target=lambda: folder.write_file(folder.make_path("f" * 32, "rows"), [bytes(500)]))

    def unlink(path: str) -> None:
        if ".tmp-" not in path and late.ident is None:
            late.start()
            late.join(WAIT_S)
        remove(path)

    monkeypatch.setattr(os, "unlink", unlink)
    for number in range(11):
        assert folder.write_file(folder.make_path(f"{number:032x}", "rows"), [bytes(100)])

    assert not late.is_alive()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == folder.bytes <= 1000


def test_a_folder_is_looked_through_at_the_first_write_at_each_sixteenth_and_when_it_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, scan, rename = BoundedFolder(tmp_path / "a" / "b", 1600, SystemClock()), os.scandir, os.rename
    looks, written = list[int](), 0

    def scandir(path: str) -> Any:
        looks.append(written)
        return scan(path)

    def rename_with_age(source: str, target: str) -> None:
        os.utime(source, ns=(written, written))
        rename(source, target)

    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(os, "rename", rename_with_age)

    def write(size: int) -> None:
        nonlocal written
        written += 1
        assert folder.write_file(folder.make_path(f"{written:032x}", "rows"), [bytes(size - 1), memoryview(b"x")])

    for _ in range(7):
        write(50)
    assert looks == [1, 3, 5, 7], "1600 // 16 == 2 * 50"
    assert (folder.bytes, folder.evictions) == (350, 0)
    others = [tmp_path / "a" / "b" / name for name in (f"{'f' * 32}.txt", "f.rows", ".tmp-f.rows")]
    for other in others:
        other.write_bytes(bytes(5000))
        os.utime(other, (0, 0))
    for age_s in (TEMPORARY_AGE_MAX_S + 60, TEMPORARY_AGE_MAX_S - 60):
        path = tmp_path / "a" / "b" / f".tmp-{int(age_s):032x}.cached"
        path.write_bytes(bytes(5000))
        os.utime(path, (time.time() - age_s,) * 2)
    foreign = folder.make_path("e" * 32, "cached")
    Path(foreign).write_bytes(bytes(160))  # By another process, and not used for long.
    os.utime(foreign, ns=(0, 0))
    write(1090)
    assert (folder.bytes, folder.evictions) == (1600, 0), "all that is allowed"
    assert looks.pop() == 8
    write(50)
    assert (folder.bytes, folder.evictions) == (1440, 2), "1650 less 160 less 50, which is nine tenths"
    assert looks.pop() == 9
    left = sorted(name for name in os.listdir(folder.root) if name[:32].isalnum() and len(name) == 37)
    assert left == [f"{number:032x}.rows" for number in range(2, 10)]
    assert all(other.exists() for other in others)
    assert [name for name in os.listdir(folder.root) if name.endswith("cached")] == [path.name]


def test_a_file_that_another_process_removed_first_is_none_of_the_evictions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, real = BoundedFolder(tmp_path, 100, SystemClock()), os.unlink

    def unlink(path: str) -> None:
        real(path)
        if ".tmp-" not in path:
            raise FileNotFoundError

    monkeypatch.setattr(os, "unlink", unlink)
    for number in range(3):
        assert folder.write_file(folder.make_path(f"{number:032x}", "cached"), [bytes(50)])
    assert (folder.bytes, folder.evictions, folder.disk_errors) == (50, 0, 0)


def test_a_write_that_is_not_kept_or_refused_leaves_nothing_and_a_refused_one_makes_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ImpatientClock()
    folder = BoundedFolder(tmp_path, 100, clock)
    path, held = folder.make_path("0" * 32, "rows"), threading.Lock()
    assert not folder.write_file(path, [b"x"], lock=held, may_keep=lambda: not held.locked())
    assert folder.write_file(path, [b"x"], lock=held, may_keep=held.locked)
    assert (folder.bytes, folder.disk_errors, os.listdir(tmp_path)) == (1, 0, ["0" * 32 + ".rows"])

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "injected")

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", refuse)
        assert not folder.write_file(path, [b"y"])
    for pause_s, is_paused in ((0.0, True), (PAUSE_S - 0.001, True), (0.002, False)):
        clock.sleep(pause_s)
        assert folder.is_paused == is_paused
        assert is_paused != folder.write_file(path, [b"y"])
    assert (folder.disk_errors, folder.bytes, Path(path).read_bytes()) == (1, 2, b"y")
    assert os.listdir(tmp_path) == ["0" * 32 + ".rows"]
