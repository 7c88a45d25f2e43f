"""A folder of bounded size for files of several processes and locations, and a cache of values in it.

`BoundedFolder` writes a temporary file and renames it, without fsync, so readers must verify the contents. The
modification time of a file is the time of its last use. When the folder is too large, the least recently used files are
removed, by any writer, down to 90% of the room. Another process may have removed a file first; readers that
have a file open or mapped can still read it. Each writer measures the whole folder at its first write, and again when
it has written a sixteenth of the room. With n writers, the folder can therefore exceed its room by n sixteenths. Only
files with names of this form are counted and removed:

    <32 hex>.<suffix>           suffix is "cached" or "rows"
    .tmp-<32 hex>.<suffix>      while it is written

After the disk has refused a write, no write is tried for ten seconds, and values are fetched from the store instead.

`CacheFolder` keeps values so:

    <xxh3_128 of the name, 32 hex>.cached:
        8 bytes   b"pcache1\\n"
        16 bytes  xxh3_128 of all that follows
        4 bytes   length of the name, little-endian
        name      the location's URL, a line feed and the key, UTF-8
        value     to the end of the file

The checksum detects damage by a crash, a bad disk or another program; the name detects an entry of another key or
location. A wrong entry is dropped and counts as missing.
"""

import io
import os
import re
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from stat import S_ISREG

import xxhash

from persist.blob.protocol import TEMPORARY_AGE_MAX_S
from persist.blob.threads import Clock

PAUSE_S = 10.0
FILE_SHARE_MAX = 8  # A file may take an eighth of the room, or it would drive out too many others.
_OURS = re.compile(r"[0-9a-f]{32}\.(cached|rows)")
_OUR_TEMPORARY = re.compile(r"\.tmp-[0-9a-f]{32}\.(cached|rows)")
_MAGIC = b"pcache1\n"
_PREFACE = struct.Struct("<8s16s")
_LENGTH = struct.Struct("<I")
_NAME_BYTES_MAX = 4096


class BoundedFolder:
    """A folder of cached files with a limit of bytes. No method raises because of the disk.

    Folder and files are for their owner only (0700, 0600).

    Attributes:
        evictions, disk_errors: how many files this object has removed to make room, and how many requests the disk
            refused.
        bytes: the size of the folder, all processes together, as far as this object knows.
    """

    def __init__(self, folder: str | os.PathLike[str], bytes_max: int, clock: Clock) -> None:
        self.root = os.path.abspath(os.path.expanduser(folder))
        self.bytes_max = bytes_max
        self._clock = clock
        self._lock = threading.Lock()
        self._scanning = threading.Lock()
        self._until_scan = 0
        self._paused_until_s = float("-inf")
        self.evictions = self.disk_errors = self.bytes = 0

    @property
    def file_bytes_max(self) -> int:
        """The maximum size of one file, in bytes."""
        return self.bytes_max // FILE_SHARE_MAX

    def make_path(self, digest: str, suffix: str) -> str:
        """Return the path for a file of this digest and suffix."""
        return os.path.join(self.root, f"{digest}.{suffix}")

    @property
    def is_paused(self) -> bool:
        """Whether the disk refused a write a moment ago, so that none is tried."""
        return self._clock.monotonic_s() < self._paused_until_s

    def write_file(
        self,
        path: str,
        pieces: Iterable[bytes | memoryview],
        *,
        lock: AbstractContextManager[object] | None = None,
        may_keep: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Write the pieces to a file, unless may_keep, called last and under the lock, returns False.

        Return whether the file exists.
        """
        if self.is_paused:
            return False
        suffix = path.rpartition(".")[2]
        temporary = os.path.join(self.root, f".tmp-{uuid.uuid4().hex}.{suffix}")
        try:
            size = self._write_temporary(temporary, pieces)
            with lock or nullcontext():
                if not may_keep():
                    return False
                os.rename(temporary, path)
            self._note_growth(size)
            return True
        except OSError:
            self._paused_until_s = self._clock.monotonic_s() + PAUSE_S
            self.note_disk_error()
            return False
        finally:
            with suppress(OSError):
                os.unlink(temporary)

    def note_disk_error(self) -> None:
        """Count a request that the disk refused."""
        with self._lock:
            self.disk_errors += 1

    def _write_temporary(self, temporary: str, pieces: Iterable[bytes | memoryview]) -> int:
        """Write a file and return its length."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        try:
            descriptor = os.open(temporary, flags, 0o600)
        except FileNotFoundError:
            os.makedirs(self.root, mode=0o700, exist_ok=True)
            descriptor = os.open(temporary, flags, 0o600)
        size = 0
        with open(descriptor, "wb", buffering=0) as file:
            for piece in pieces:
                view = memoryview(piece)
                size += len(view)
                while view:
                    view = view[file.write(view) :]  # A raw write may take less than all.
        return size

    def _note_growth(self, size: int) -> None:
        """Add a file's size; make room if the limit may be reached."""
        with self._lock:
            self.bytes += size
            self._until_scan -= size
        # A thread that has scanned checks again: other threads may have written meanwhile without waiting.
        while self._is_scan_due() and self._scanning.acquire(blocking=False):
            try:
                self._make_room()
            finally:
                self._scanning.release()

    def _is_scan_due(self) -> bool:
        """Return whether the folder may be too large."""
        with self._lock:
            return self._until_scan <= 0 or self.bytes > self.bytes_max

    def _make_room(self) -> None:
        """Count the files of all writers, and remove the least recently used if they take too much."""
        with self._lock:
            bytes_before = self.bytes
            self._until_scan = self.bytes_max // 16
        entries = self._list_entries()
        total, evictions = sum(size for _, size, _ in entries), 0
        if total > self.bytes_max:
            for _, size, path in sorted(entries):
                if total <= self.bytes_max * 9 // 10:
                    break
                total -= size
                with suppress(FileNotFoundError):  # Another process was faster.
                    os.unlink(path)
                    evictions += 1
        with self._lock:
            self.bytes += total - bytes_before  # Files written since the scan may be missing from the entries.
            self.evictions += evictions

    def _list_entries(self) -> list[tuple[int, int, str]]:
        """List the time of last use, size and path of entries; remove old temporary files."""
        entries = []
        oldest_s = time.time() - TEMPORARY_AGE_MAX_S
        with os.scandir(self.root) as files:
            for file in files:
                is_temporary = _OUR_TEMPORARY.fullmatch(file.name)
                if not is_temporary and not _OURS.fullmatch(file.name):
                    continue
                with suppress(FileNotFoundError):  # Another process was faster.
                    stat = file.stat(follow_symlinks=False)
                    if is_temporary and stat.st_mtime < oldest_s:
                        os.unlink(file.path)
                    elif not is_temporary:
                        entries.append((stat.st_mtime_ns, stat.st_size, file.path))
        return entries


class CacheFolder:
    """Values of one location by key, in a folder. No method raises because of the disk.

    Folder and files are for their owner only (0700, 0600).

    Attributes:
        room: the `BoundedFolder` that limits the size.
        corrupt: see `persist.blob.layers.cache.CacheCount`.
    """

    def __init__(self, folder: str | os.PathLike[str], bytes_max: int, location: str, clock: Clock) -> None:
        self.room = BoundedFolder(folder, bytes_max, clock)
        self._location = location
        self._lock = threading.Lock()
        self._is_off = False
        self.corrupt = 0

    def get(self, key: str) -> bytes | None:
        """Return the cached value of a key; None if it is missing or damaged."""
        if self._is_off:
            return None
        name, path = self._locate(key)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(descriptor, "rb", buffering=0) as file:
                stat = os.fstat(descriptor)
                could_be_ours = S_ISREG(stat.st_mode) and stat.st_size <= self._file_bytes_max()
                value = _read_entry(file, name) if could_be_ours else None
                if value is None:
                    self._drop_corrupt(path)
                    return None
                with suppress(OSError):  # It only looks older than it is.
                    os.utime(descriptor, ns=(time.time_ns(),) * 2)
                return value
        except FileNotFoundError:
            return None
        except OSError:
            self.room.note_disk_error()
            return None

    def put(
        self, key: str, value: bytes, *, lock: AbstractContextManager[object], may_keep: Callable[[], bool]
    ) -> None:
        """Store value, unless it is too large or may_keep returns False; it is called last, under the lock."""
        if len(value) > self.room.file_bytes_max or self._is_off:
            return
        name, path = self._locate(key)
        head = _LENGTH.pack(len(name)) + name
        pieces = _PREFACE.pack(_MAGIC, _compute_digest(head, value)), head, value
        self.room.write_file(path, pieces, lock=lock, may_keep=may_keep)

    def drop(self, key: str) -> None:
        """Forget the value at key. If the disk refuses, this object no longer uses the folder at all."""
        try:
            os.unlink(self._locate(key)[1])
        except FileNotFoundError:
            pass
        except OSError:
            self._is_off = True
            self.room.note_disk_error()

    def _locate(self, key: str) -> tuple[bytes, str]:
        """Return the name in a key's file, and the file's path."""
        name = f"{self._location}\n{key}".encode()
        return name, self.room.make_path(xxhash.xxh3_128_hexdigest(name), "cached")

    def _file_bytes_max(self) -> int:
        """Return the largest size of a cached file."""
        return self.room.file_bytes_max + _PREFACE.size + _LENGTH.size + _NAME_BYTES_MAX

    def _drop_corrupt(self, path: str) -> None:
        """Delete a damaged file, and count it."""
        with self._lock:
            self.corrupt += 1
        with suppress(OSError):
            os.unlink(path)


def _read_entry(file: io.FileIO, name: bytes) -> bytes | None:
    """Return the value of an entry of that name; None if it is anything else."""
    head = _LENGTH.pack(len(name)) + name
    preface = file.read(_PREFACE.size)
    if len(preface) != _PREFACE.size or file.read(len(head)) != head:
        return None
    value = file.readall()
    return value if preface == _PREFACE.pack(_MAGIC, _compute_digest(head, value)) else None


def _compute_digest(head: bytes, value: bytes) -> bytes:
    """Return the digest of a file's head and value."""
    digest = xxhash.xxh3_128(head)
    digest.update(value)
    return digest.digest()
