"""Caches with a bound in bytes, safe to use from any number of threads.

A plain LRU cache is useless for values, read in cycles, that are slightly larger than the cache together: each is
dropped just before its next use. And one scan drops everything.

So `Cache` admits values as W-TinyLFU does (Einziger, Friedman and Manes, 2017), with exact counts of recent requests in
place of a sketch. A new value enters the main room only in place of values that are requested less often. They are
compared one by one, the value used longest ago first (the queue of victims of Einziger, Eytan, Friedman and Manes,
2022). Small values first enter a window, which is an LRU in one sixteenth of the room; the comparison comes when they
leave it. So a scan empties the window alone, whatever the sizes of its values.

A `Cache` has values of several kinds, which share its room: the kind that a client reads most gets most of it.

The count of a key grows whether its value is cached or not, up to `COUNT_MAX`. All counts are halved after `AGE_FACTOR`
requests for each cached value, so that values of the past make room.

Idle values are dropped even if there is room. Values of replaced parts are never read again, and a client that is open
all year would fill any room with them. So `put` also drops each value that was not requested for `idle_s`. No time is
kept for each value: `put` drops the values that were cached when a period began and were not requested during the
period.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from persist.blob.threads import Clock, SystemClock

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

COUNT_MAX = 7
AGE_FACTOR = 16
REQUESTS_MIN = 256
NEEDED = 2**31  # Counts for more requests than any value has.
LEAD = 1  # If values are read in cycles, the next one always has one request more than the others.
SMALL_SHARE = 1024  # A value below this share of the room enters the window,
WINDOW_SHARE = 16  # which is this share of the room.
IDLE_S = 24 * 3600.0  # A daily job still finds its values from the day before.

# A kind goes by its number: a reference to it would be a cycle, which keeps dropped values until Python collects.
_Key = tuple[int, Hashable]


class Cache:
    """A cache for several kinds of values that share its room, such as all cached values of one client.

    `bytes` never exceeds `bytes_max`. A call takes constant time, besides the values that it drops. Extra memory: one
    number for each recently requested key, at most about `AGE_FACTOR` for each cached value.

    Args:
        bytes_max: room for all values together.
        is_lru: whether the cache is a plain LRU: the window is the whole room.
        clock, idle_s: `put` drops values that were not requested for `idle_s`, at the latest after twice that time.

    Attributes:
        bytes: the size of all cached values.
        evictions: how many values were dropped to make room, or because they were idle.
    """

    def __init__(
        self, bytes_max: int, *, is_lru: bool = False, clock: Clock | None = None, idle_s: float = IDLE_S
    ) -> None:
        self.bytes_max = bytes_max
        self._is_lru = is_lru
        self._values: OrderedDict[_Key, tuple[Any, int]] = OrderedDict()
        self._window: OrderedDict[_Key, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()
        self._clock, self._idle_s = clock or SystemClock(), idle_s
        self._began_s = self._clock.monotonic_s()
        self._not_requested: set[_Key] = set()  # Since then, of the values that were here then.
        self._window_bytes = 0
        self._counts: dict[int, int] = {}  # By hash: the keys would take more memory than small values.
        self._requests = 0
        self._kinds = 0
        self.bytes = self.evictions = 0

    def add_kind(self, size: Callable[[V], int], *, share: int = 2, is_needed: bool = False) -> "Kind[Any, V]":
        """Return a new kind of values, which shares this cache's room.

        Args:
            size: returns about how many bytes a value takes; called once, by `put`.
            share: a value that takes more than one `share`th of the room is not cached.
            is_needed: whether a value too large for the window is cached even if it is seldom requested.
        """
        self._kinds += 1
        return Kind(self, self._kinds, size, self.bytes_max // share, is_needed=is_needed)

    def close(self) -> None:
        """Drop all values, and cache no more."""
        with self._lock:
            self.bytes_max = -1
            for key in self._list_keys():
                self._drop_value(key)

    def _get(self, key: _Key) -> Any:
        """Return a value, and count the request; None without one."""
        with self._lock:
            self._count_request(key)
            for values in (self._values, self._window):
                entry = values.get(key)
                if entry is not None:
                    values.move_to_end(key)
                    if self._not_requested:
                        self._not_requested.discard(key)
                    return entry[0]
            return None

    def _put(self, key: _Key, value: Any, size: int, *, is_needed: bool) -> None:
        """Cache a value, replacing the key's earlier value."""
        with self._lock:
            self._drop_value(key)
            if self._clock.monotonic_s() - self._began_s >= self._idle_s:
                self._start_period()
            self._insert_value(key, (value, size), is_needed=is_needed)

    def _list_keys(self) -> list[_Key]:
        """Return all keys."""
        return [*self._values, *self._window]

    def _get_segment(self, key: _Key) -> OrderedDict[_Key, tuple[Any, int]]:
        """Return the part that has a key: window or main room."""
        return self._window if key in self._window else self._values

    def _evict(self, key: _Key) -> None:
        """Remove a value to make room, and count it."""
        self._drop_value(key)
        self.evictions += 1

    def _drop_value(self, key: _Key) -> None:
        """Remove a value and its size."""
        segment = self._get_segment(key)
        entry = segment.pop(key, None)
        if entry is not None:
            self.bytes -= entry[1]
            if segment is self._window:
                self._window_bytes -= entry[1]
            self._not_requested.discard(key)

    def _start_period(self) -> None:
        """Evict values that nobody requested in the last period; age the counts."""
        for key in [*self._not_requested]:
            self._evict(key)
        self._began_s, self._not_requested = self._clock.monotonic_s(), {*self._list_keys()}
        self._age()

    def _count_request(self, key: _Key) -> None:
        """Count a request of a key: often requested values displace others."""
        name = hash(key)
        count = self._counts.get(name, 0)
        if count < COUNT_MAX:
            self._counts[name] = count + 1
        self._requests += 1
        if self._requests >= max(REQUESTS_MIN, AGE_FACTOR * (len(self._window) + len(self._values))):
            self._age()

    def _age(self) -> None:
        """Halve the counts of requests, so that old requests count less."""
        self._requests = 0
        self._counts = {name: count // 2 for name, count in self._counts.items() if count > 1}

    def _insert_value(self, key: _Key, entry: tuple[Any, int], *, is_needed: bool) -> None:
        """Add a value to the window; others move to the main room."""
        if entry[1] > self.bytes_max:
            return
        window_bytes_max = self.bytes_max if self._is_lru else self.bytes_max // WINDOW_SHARE
        main_bytes_max = self.bytes_max - window_bytes_max
        if entry[1] * SMALL_SHARE > self.bytes_max and not self._is_lru:
            self._admit_value(key, entry, main_bytes_max, is_needed=is_needed)
            return
        self._window[key] = entry
        self._window_bytes += entry[1]
        self.bytes += entry[1]
        while self._window_bytes > window_bytes_max:
            oldest, leaving = self._window.popitem(last=False)
            self._window_bytes -= leaving[1]
            self.bytes -= leaving[1]
            if not self._admit_value(oldest, leaving, main_bytes_max):
                self._not_requested.discard(oldest)
                self.evictions += 1

    def _admit_value(self, key: _Key, entry: tuple[Any, int], bytes_max: int, *, is_needed: bool = False) -> bool:
        """Add a value to the main room if it is requested more often than each value that it replaces."""
        if entry[1] > bytes_max:
            return False
        requests = NEEDED if is_needed else self._counts.get(hash(key), 0)
        while self.bytes - self._window_bytes + entry[1] > bytes_max:
            victim = next(iter(self._values))
            if self._counts.get(hash(victim), 0) + LEAD >= requests:
                self._values.move_to_end(victim)  # The next candidate is compared with another one.
                return False
            self._evict(victim)
        self._values[key] = entry
        self.bytes += entry[1]
        return True


class Kind(Generic[K, V]):
    """The values of one kind in a `Cache`; make it with `Cache.add_kind`."""

    def __init__(
        self, cache: Cache, number: int, size: Callable[[V], int], value_bytes_max: int, *, is_needed: bool
    ) -> None:
        self._cache = cache
        self.number = number
        self._size = size
        self._value_bytes_max = value_bytes_max
        self.is_needed = is_needed

    @property
    def bytes(self) -> int:
        """The size of all cached values of this kind. Cost: O(cached values)."""
        cache = self._cache
        with cache._lock:
            return sum(cache._get_segment(key)[key][1] for key in cache._list_keys() if key[0] == self.number)

    @property
    def evictions(self) -> int:
        """How many values of all kinds were evicted."""
        return self._cache.evictions

    def fits(self, size: int) -> bool:
        """Return whether a value of that many bytes can be cached."""
        return size <= self._value_bytes_max

    def get(self, key: K) -> V | None:
        """Return the value of a key, which then counts as just used."""
        value: V | None = self._cache._get((self.number, key))
        return value

    def peek(self, key: K) -> V | None:
        """Return the value of a key without counting the request."""
        with self._cache._lock:
            entry: tuple[V, int] | None = self._cache._get_segment((self.number, key)).get((self.number, key))
            return None if entry is None else entry[0]

    def put(self, key: K, value: V) -> None:
        """Cache a value; a large one must be requested more often than others."""
        size = self._size(value)
        if self.fits(size):
            self._cache._put((self.number, key), value, size, is_needed=self.is_needed)

    def remove(self, key: K, only: V | None = None) -> V | None:
        """Remove and return the value of a key; if `only` is set, only if it is that very object."""
        cache = self._cache
        with cache._lock:
            entry: tuple[V, int] | None = cache._get_segment((self.number, key)).get((self.number, key))
            if entry is None or (only is not None and entry[0] is not only):
                return None
            cache._drop_value((self.number, key))
            return entry[0]

    def clear(self) -> None:
        """Drop all values of this kind."""
        with self._cache._lock:
            for key in self._cache._list_keys():
                if key[0] == self.number:
                    self._cache._drop_value(key)
