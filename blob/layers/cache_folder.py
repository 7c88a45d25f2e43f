"""Cached values as files of one folder, which any number of processes and locations may share.

    <xxh3_128 of the name, 32 hex>.cached:
        8 bytes   b"pcache1\\n"
        16 bytes  xxh3_128 of all that follows
        4 bytes   length of the name, little-endian
        name      the location's URL, a line feed and the key, UTF-8
        value     to the end of the file

What a crash, a bad disk or another program makes of an entry is found by the checksum, and what belongs to another key
or location by the name. Either is dropped and counts as not there. How the folder is bounded is told in
`persist.blob.layers.bounded_folder`. When the disk refuses a write, the values are fetched instead.
"""

import io
import os
import struct
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from stat import S_ISREG

import xxhash

from persist.blob.clock import Clock
from persist.blob.layers.bounded_folder import BoundedFolder

_MAGIC = b"pcache1\n"
_PREFACE = struct.Struct("<8s16s")
_LENGTH = struct.Struct("<I")
_NAME_BYTES_MAX = 4096


class CacheFolder:
    """Values of one location by key, in a folder. No method raises because of the disk.

    Folder and files are for their owner only (0700, 0600).

    Attributes:
        room: what keeps the folder within its bounds.
        corrupt: see `persist.blob.layers.cache.CacheCount`.
    """

    def __init__(self, folder: str | os.PathLike[str], bytes_max: int, location: str, clock: Clock) -> None:
        self.room = BoundedFolder(folder, bytes_max, clock)
        self._location = location
        self._lock = threading.Lock()
        self._is_off = False
        self.corrupt = 0

    def get(self, key: str) -> bytes | None:
        """Return the value at key if it is here and is what was put."""
        if self._is_off:
            return None
        name, path = self._place(key)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(descriptor, "rb", buffering=0) as file:
                found = os.fstat(descriptor)
                could_be_ours = S_ISREG(found.st_mode) and found.st_size <= self._file_bytes_max()
                value = _read(file, name) if could_be_ours else None
                if value is None:
                    self._drop_corrupt(path)
                    return None
                with suppress(OSError):  # It only looks older than it is.
                    os.utime(descriptor, ns=(time.time_ns(),) * 2)
                return value
        except FileNotFoundError:
            return None
        except OSError:
            self.room.count_error()
            return None

    def put(
        self, key: str, value: bytes, *, lock: AbstractContextManager[object], may_keep: Callable[[], bool]
    ) -> None:
        """Keep value, unless it is too large or may_keep says no; that is asked under the lock, as the last step."""
        if len(value) > self.room.file_bytes_max or self._is_off:
            return
        name, path = self._place(key)
        head = _LENGTH.pack(len(name)) + name
        pieces = _PREFACE.pack(_MAGIC, _digest(head, value)), head, value
        self.room.write(path, pieces, lock=lock, may_keep=may_keep)

    def drop(self, key: str) -> None:
        """Forget the value at key. If the disk refuses, this object no longer uses the folder at all."""
        try:
            os.unlink(self._place(key)[1])
        except FileNotFoundError:
            pass
        except OSError:
            self._is_off = True
            self.room.count_error()

    def _place(self, key: str) -> tuple[bytes, str]:
        name = f"{self._location}\n{key}".encode()
        return name, self.room.path(xxhash.xxh3_128_hexdigest(name), "cached")

    def _file_bytes_max(self) -> int:
        return self.room.file_bytes_max + _PREFACE.size + _LENGTH.size + _NAME_BYTES_MAX

    def _drop_corrupt(self, path: str) -> None:
        with self._lock:
            self.corrupt += 1
        with suppress(OSError):
            os.unlink(path)


def _read(file: io.FileIO, name: bytes) -> bytes | None:
    """Return the value of an entry of that name; None if it is anything else."""
    head = _LENGTH.pack(len(name)) + name
    preface = file.read(_PREFACE.size)
    if len(preface) != _PREFACE.size or file.read(len(head)) != head:
        return None
    value = file.readall()
    return value if preface == _PREFACE.pack(_MAGIC, _digest(head, value)) else None


def _digest(head: bytes, value: bytes) -> bytes:
    digest = xxhash.xxh3_128(head)
    digest.update(value)
    return digest.digest()
