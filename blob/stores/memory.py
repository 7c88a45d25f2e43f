"""A store in the memory of this process: for tests, and for `memory://name`."""

import bisect
import threading
import time
from collections.abc import Iterator, Sequence
from typing import ClassVar

from persist.blob.protocol import BlobEntry, check_key, check_range

PAGE_ENTRIES = 1000


class MemoryBlob:
    """Keeps values in a dict. One that is `named` is shared by all who name it, until the process ends."""

    _named: ClassVar[dict[str, "MemoryBlob"]] = {}
    _naming: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, name: str = "") -> None:
        self._name = name
        self._lock = threading.Lock()
        self._values: dict[str, tuple[bytes, float]] = {}
        self._keys: list[tuple[bytes, str]] = []  # Sorted by UTF-8 bytes, for listing.

    @classmethod
    def named(cls, name: str) -> "MemoryBlob":
        """Return the store of that name; the same one for every caller in this process."""
        with cls._naming:
            return cls._named.setdefault(name, cls(name))

    @property
    def url(self) -> str:
        return f"memory://{self._name}"

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        stored = self._values.get(check_key(key))
        if stored is None:
            return None
        return stored[0] if range is None else stored[0][slice(*check_range(range))]

    def set(self, key: str, value: bytes) -> None:
        with self._lock:
            self._put(check_key(key), value)

    def create(self, key: str, value: bytes) -> bool:
        with self._lock:
            if check_key(key) in self._values:
                return False
            self._put(key, value)
            return True

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobEntry]:
        after = start_after
        while page := self._page(prefix, after):
            yield from page
            after = page[-1].key

    def delete(self, key: str) -> None:
        with self._lock:
            if self._values.pop(check_key(key), None) is not None:
                self._keys.pop(bisect.bisect_left(self._keys, (key.encode(), key)))

    def close(self) -> None:
        """Do nothing: the values stay for whoever else uses this store."""

    def _put(self, key: str, value: bytes) -> None:
        if key not in self._values:
            bisect.insort(self._keys, (key.encode(), key))
        self._values[key] = (bytes(value), time.time())

    def _page(self, prefix: str, after: str | None) -> Sequence[BlobEntry]:
        with self._lock:
            first = bisect.bisect_left(self._keys, (prefix.encode(), ""))
            if after is not None:
                first = max(first, bisect.bisect_right(self._keys, (after.encode(), after)))
            keys = [key for _, key in self._keys[first : first + PAGE_ENTRIES] if key.startswith(prefix)]
            return [BlobEntry(key, len(self._values[key][0]), self._values[key][1]) for key in keys]

    def __repr__(self) -> str:
        return f"MemoryBlob({self.url!r})"
