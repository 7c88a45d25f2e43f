"""Values by key within a number of bytes; the one used longest ago is the first to go."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ByteBoundedLru(Generic[K, V]):
    """A cache for any number of threads. Every method takes a fraction of a microsecond, and none waits for long.

    Args:
        bytes_max: room for all values together.
        size: about how many bytes a value takes; asked once, when it is put.
        value_bytes_max: larger values are not kept; None for all that have room. If it is more than `bytes_max`, a
            value that has no room beside others is kept alone.
    """

    def __init__(self, bytes_max: int, size: Callable[[V], int], *, value_bytes_max: int | None = None) -> None:
        self._bytes_max = bytes_max
        self._value_bytes_max = bytes_max if value_bytes_max is None else value_bytes_max
        self._size = size
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()
        self._bytes = 0
        self._evictions = 0

    @property
    def bytes(self) -> int:
        """What all values here take."""
        return self._bytes

    @property
    def bytes_max(self) -> int:
        """The room for all values together."""
        return self._bytes_max

    @property
    def evictions(self) -> int:
        """How many values went to make room."""
        return self._evictions

    def has_room_for(self, size: int) -> bool:
        """Whether a value of that many bytes would be kept."""
        return size <= self._value_bytes_max

    def get(self, key: K) -> V | None:
        """Return the value of a key, which then counts as just used."""
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def put(self, key: K, value: V) -> None:
        """Keep a value in place of the one before, and drop others that have no room beside it."""
        size = self._size(value)
        if not self.has_room_for(size):
            return
        with self._lock:
            self._drop(key)
            self._kept[key] = value, size
            self._bytes += size
            while self._bytes > self._bytes_max and len(self._kept) > 1:
                self._drop(next(iter(self._kept)))
                self._evictions += 1

    def take(self, key: K, only: V | None = None) -> V | None:
        """Return the value of a key, and keep it no more; if only is given, drop and return that very value alone."""
        with self._lock:
            found = self._kept.get(key)
            if found is None or (only is not None and found[0] is not only):
                return None
            self._drop(key)
            return found[0]

    def clear(self) -> None:
        """Keep nothing any more."""
        with self._lock:
            self._kept.clear()
            self._bytes = 0

    def _drop(self, key: K) -> None:
        found = self._kept.pop(key, None)
        if found is not None:
            self._bytes -= found[1]
