"""Keeps values that never change near the reader: in memory, and in a folder that several processes may share.

Only values whose keys pass a predicate are cached. The absence of a value is never cached, because it may be created
later. The caller provides the predicate: a store does not know the meaning of its keys.

Every entry has a checksum, in memory too, and is verified before each use: a damaged entry is dropped, and the value is
fetched. Threads that want the same key at the same time share one fetch.

A write through this object drops the cached value of the key, before and after, and the result of a fetch at the same
time is not cached. Writes of others are not noticed, so only immutable values may be cached.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from os import PathLike
from typing import Any, NamedTuple, TypeVar

import xxhash

from persist.blob.errors import CorruptBlob, InvalidUsage, PersistError
from persist.blob.layers.cache_folder import FILE_SHARE_MAX, CacheFolder
from persist.blob.lru import Cache, Kind
from persist.blob.protocol import (
    Blob,
    BlobEntry,
    BlobLayer,
    DeletePage,
    check_bytes,
    check_key,
    check_range,
    get_at_most,
)
from persist.blob.threads import Clock, SystemClock

T = TypeVar("T")
MEMORY_BYTES = 64 << 20
SMALL_BYTES = 16 << 20  # Such a blob is read even if it should be smaller, so that the error can describe it.
ENTRY_OVERHEAD_BYTES = 512  # Roughly, of a key, a checksum and what Python adds; so that small values count.


@dataclass(frozen=True, slots=True)
class CacheCount:
    """The counters of a cache.

    Attributes:
        hits: reads answered from memory or the folder; folder_hits: reads answered from the folder.
        shared: reads that waited for the fetch of another thread.
        misses: reads of cacheable keys that went to the store.
        evictions: entries dropped to make room, by this object.
        corrupt: entries that were damaged.
        disk_errors: reads and writes of the folder that failed; then a value is only not cached.
        memory_bytes: the size of the values in memory now.
        folder_bytes: the size of the folder, all processes together, as far as this object knows.
    """

    hits: int = 0
    folder_hits: int = 0
    shared: int = 0
    misses: int = 0
    evictions: int = 0
    corrupt: int = 0
    disk_errors: int = 0
    memory_bytes: int = 0
    folder_bytes: int = 0


class CachedBlob(BlobLayer):
    """Serves values that never change from memory or a folder.

    A hit in memory costs about 1.5 µs and one pass of xxh3_128 over the value. A range is cut from a cached value;
    without one, only the range is fetched, and not cached.

    Args:
        is_immutable: whether the value of a key never changes once it exists; only such values are cached.
        memory: the cache in memory, which may have other kinds of values too; None for a new cache.
        folder: where to keep values on disk, for several clients, processes and runs; made if it is not there.
        folder_bytes: room in the folder; see `persist.blob.layers.cache_folder` for how exactly it is kept.
        clock: replaces the machine's, for tests.
    """

    def __init__(
        self,
        inner: Blob,
        *,
        is_immutable: Callable[[str], bool],
        memory: Cache | None = None,
        folder: str | PathLike[str] | None = None,
        folder_bytes: int = 1 << 30,
        clock: Clock | None = None,
    ) -> None:
        if folder_bytes <= 0:
            raise InvalidUsage(f"folder_bytes={folder_bytes} is not allowed: give at least 1")
        super().__init__(inner)
        self._is_cached = is_immutable
        self._lock = threading.Lock()
        memory = memory or Cache(MEMORY_BYTES)
        self._memory: Kind[str, _CachedValue] = memory.add_kind(_CachedValue.measure_memory, share=FILE_SHARE_MAX)
        self._folder: CacheFolder | None = None
        if folder is not None:
            self._folder = CacheFolder(folder, folder_bytes, inner.url, clock or SystemClock())
        self._fetches: dict[str, Future[bytes | None]] = {}
        self._memory_hits = self._folder_hits = self._shared = self._misses = self._corrupt = 0

    def get_counts(self) -> CacheCount:
        """Return the counts so far."""
        memory, folder = self._memory, self._folder
        with self._lock:
            return CacheCount(
                hits=self._memory_hits + self._folder_hits,
                folder_hits=self._folder_hits,
                shared=self._shared,
                misses=self._misses,
                evictions=memory.evictions + (folder.room.evictions if folder else 0),
                corrupt=self._corrupt + (folder.corrupt if folder else 0),
                disk_errors=folder.room.disk_errors if folder else 0,
                memory_bytes=memory.bytes,
                folder_bytes=folder.room.bytes if folder else 0,
            )

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        return self._get_value(key, range, None)

    def get_at_most(self, key: str, bytes_max: int) -> bytes | None:
        value = self._get_value(key, None, bytes_max)
        check_bytes(key, len(value or b""), bytes_max)  # Another thread's fetch may have had another limit.
        return value

    def _get_value(self, key: str, range: tuple[int, int] | None, bytes_max: int | None) -> bytes | None:
        """Return a value from memory, folder or store; drop damaged copies."""
        if not self._is_cached(key):
            return self._inner.get(key, range) if range is not None else self._read_store(key, bytes_max)
        entry = self._memory.get(key)
        if entry is not None:
            if entry.is_intact(key):
                with self._lock:
                    self._memory_hits += 1
                return entry.value if range is None else entry.value[slice(*check_range(range))]
            self._drop_corrupt(key, entry)
        check_key(key)
        return self._fetch(key, bytes_max) if range is None else self._read_range(key, check_range(range))

    def set(self, key: str, value: bytes) -> None:
        self._write_through([key], self._inner.set, key, value)

    def create(self, key: str, value: bytes) -> bool:
        return self._write_through([key], self._inner.create, key, value)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobEntry]:
        return self._inner.list(prefix, start_after)

    def delete(self, key: str) -> None:
        self._write_through([key], self._inner.delete, key)

    def _delete_page(self, delete: DeletePage, keys: Sequence[str]) -> Mapping[str, PersistError]:
        return self._write_through(keys, delete, keys)

    def invalidate(self, key: str) -> None:
        """Drop the cached value of key; for callers that find an intact copy to be wrong."""
        with self._lock:
            self._fetches.pop(key, None)  # Its result is not cached, and no other thread waits for it.
            self._memory.remove(key)
            if self._folder is not None:
                self._folder.drop(key)

    def close(self) -> None:
        """Close the store and free the memory; the folder stays as it is."""
        with self._lock:
            self._memory.clear()
        self._inner.close()

    def _write_through(self, keys: Sequence[str], call: Callable[..., T], *arguments: Any) -> T:
        """Change values in the store; drop cached copies before and after."""
        cached_keys = [check_key(key) for key in keys if self._is_cached(key)]
        for key in cached_keys:
            self.invalidate(key)  # A process that is killed after the write must not leave the value in the folder.
        try:
            return call(*arguments)
        finally:
            for key in cached_keys:
                self.invalidate(key)

    def _read_range(self, key: str, range: tuple[int, int]) -> bytes | None:
        """Cut a range from the cached value, or read it from the store."""
        value = self._folder.get(key) if self._folder is not None else None
        with self._lock:
            self._folder_hits += value is not None
            self._misses += value is None
        return self._inner.get(key, range) if value is None else value[slice(*range)]

    def _fetch(self, key: str, bytes_max: int | None) -> bytes | None:
        """Return a value from folder or store; concurrent callers share one read."""
        with self._lock:
            running = self._fetches.get(key)
            if running is None:
                fetch: Future[bytes | None] = Future()
                self._fetches[key] = fetch
        if running is not None:
            value = running.result()
            if value is None:  # It may have been created after the other thread's request.
                return self._read_store(key, bytes_max)
            with self._lock:
                self._shared += 1
            return value
        try:
            value = self._read_value(key, fetch, bytes_max)
        except BaseException as error:
            self._end_fetch(key, fetch)
            if isinstance(error, Exception):
                fetch.set_exception(error)
            else:
                fetch.set_result(None)  # An interrupt is for this thread only; the others ask for themselves.
            raise
        self._end_fetch(key, fetch)
        fetch.set_result(value)
        return value

    def _read_store(self, key: str, bytes_max: int | None) -> bytes | None:
        """Return a value from the store."""
        return self._inner.get(key) if bytes_max is None else get_at_most(self._inner, key, bytes_max)

    def _read_value(self, key: str, mine: "Future[bytes | None]", bytes_max: int | None) -> bytes | None:
        """Read a value from the folder or the store, and cache it."""
        value = self._folder.get(key) if self._folder is not None else None
        is_in_folder = value is not None
        if value is None:
            value = self._read_store(key, bytes_max)
        with self._lock:
            self._folder_hits += is_in_folder
            self._misses += not is_in_folder
        if value is not None:
            self._cache_value(key, value, mine, to_folder=not is_in_folder)
        return value

    def _cache_value(self, key: str, value: bytes, mine: "Future[bytes | None]", *, to_folder: bool) -> None:
        """Cache a value, unless the key was written after the read of the value began."""

        def is_current() -> bool:
            return self._fetches.get(key) is mine

        if self._memory.fits(len(value) + ENTRY_OVERHEAD_BYTES):
            entry = _CachedValue.of(key, value)
            with self._lock:
                if is_current():
                    self._memory.put(key, entry)
        if to_folder and self._folder is not None:
            self._folder.put(key, value, lock=self._lock, may_keep=is_current)

    def _end_fetch(self, key: str, mine: "Future[bytes | None]") -> None:
        """Let later reads of the key begin a fetch of their own."""
        with self._lock:
            if self._fetches.get(key) is mine:
                del self._fetches[key]

    def _drop_corrupt(self, key: str, entry: "_CachedValue") -> None:
        """Drop a damaged value from memory, and count it."""
        with self._lock:
            self._corrupt += 1
            self._memory.remove(key, only=entry)


class _CachedValue(NamedTuple):
    """A cached value with a checksum of key and value."""

    value: bytes
    checksum: bytes

    @classmethod
    def of(cls, key: str, value: bytes) -> "_CachedValue":
        """Return the value with its checksum."""
        return cls(value, _compute_checksum(key, value))

    def is_intact(self, key: str) -> bool:
        """Return whether key and value still match the checksum."""
        return self.checksum == _compute_checksum(key, self.value)

    def measure_memory(self) -> int:
        """Return the bytes that the entry takes."""
        return len(self.value) + ENTRY_OVERHEAD_BYTES


def _compute_checksum(key: str, value: bytes) -> bytes:
    """Return the checksum of a key with its value."""
    digest = xxhash.xxh3_128(key.encode() + b"\0")
    digest.update(value)
    return digest.digest()


def get_checked(blob: Blob, key: str, bytes_expected: int, check: Callable[[bytes], T]) -> T | None:
    """Read a value and return `check(value)`; None without a value.

    A value much larger than bytes_expected raises CorruptBlob, and is not read if its store knows the size first.

    If `check` raises CorruptBlob, the cached copy or the transfer may be damaged: the value is fetched once more.
    """
    bytes_max = max(bytes_expected, SMALL_BYTES)
    return _check_or_refetch(blob, key, lambda: get_at_most(blob, key, bytes_max), check)


def get_range_checked(blob: Blob, key: str, range: tuple[int, int], check: Callable[[bytes], T]) -> T | None:
    """Read bytes of a value and return `check(bytes)`; otherwise as `get_checked`."""
    return _check_or_refetch(blob, key, lambda: blob.get(key, range), check)


def _check_or_refetch(blob: Blob, key: str, get: Callable[[], bytes | None], check: Callable[[bytes], T]) -> T | None:
    """Return `check(data)`; if data is corrupt, drop the copy and reread."""
    data = get()
    if data is None:
        return None
    try:
        return check(data)
    except CorruptBlob:
        if not isinstance(blob, CachedBlob):
            raise
        blob.invalidate(key)
        data = get()
        return None if data is None else check(data)
