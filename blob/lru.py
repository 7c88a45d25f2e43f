"""Values by key within a number of bytes: caches for any number of threads, whose methods never wait for long.

`ByteBoundedLru` drops the value used longest ago. A set slightly larger than the cache that is read in cycles is then
never cached: each value is dropped just before its next use. `Cache` therefore admits a new value only if it is
requested more often than the values that it would evict, so a scan cannot empty it. This is the admission of TinyLFU
(Einziger, Friedman and Manes, 2017), with exact counts of recent questions in place of a sketch.

A `Cache` has values of several kinds, which share its room. So what one client reads most takes the most of it.

The count of a key grows whether its value is here or not, up to `COUNT_MAX`. All counts are halved after `AGE_FACTOR`
questions for each value kept, so that what was wanted long ago makes room.

A value does not stay for ever just because there is room. Nothing reads the values of replaced parts again, and a
client that is open all year would fill any room with them. Therefore the next `put` also drops every value that was not
requested for `idle_s`. This needs no time for each value: it drops the values that were cached when a period began and
were not requested during it.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar, cast

from persist.blob.threads import Clock, SystemClock

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

COUNT_MAX = 7
AGE_FACTOR = 16
QUESTIONS_MIN = 256
LEAD = 1  # If values are read in cycles, the next one always has one request more than the others.
SMALL_SHARE = 1024  # A value below this share of the room is always let in: small ones have a room of their own,
SMALL_ROOM = 16  # which is this share of the whole.
IDLE_S = 24 * 3600.0  # A daily job still finds its values from the day before.


class ByteBoundedLru(Generic[K, V]):
    """A cache in which the value used longest ago is the first to go.

    Args:
        bytes_max: room for all values together.
        size: returns about how many bytes a value takes; called once, by `put`.
        value_bytes_max: larger values are not kept; None for all that have room. If it is more than `bytes_max`, a
            value that has no room beside others is kept alone.
        clock, idle_s: `put` drops values that were not requested for `idle_s`, at the latest after twice that time.

    Attributes:
        bytes: what all values here take.
        evictions: how many values went to make room.
    """

    def __init__(
        self,
        bytes_max: int,
        size: Callable[[V], int],
        *,
        value_bytes_max: int | None = None,
        clock: Clock | None = None,
        idle_s: float = IDLE_S,
    ) -> None:
        self.bytes_max = bytes_max
        self._value_bytes_max = bytes_max if value_bytes_max is None else value_bytes_max
        self._size = size
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()
        self._clock, self._idle_s = clock or SystemClock(), idle_s
        self._began_s = self._clock.monotonic_s()
        self._not_asked_for: set[K] = set()  # Since then, of what was here then.
        self.bytes = self.evictions = 0

    def fits(self, size: int) -> bool:
        """Whether a value of that many bytes would be kept."""
        return size <= self._value_bytes_max

    def get(self, key: K) -> V | None:
        """Return the value of a key, which then counts as just used."""
        with self._lock:
            self._count_request(key)
            entry = self._kept.get(key)
            if entry is None:
                return None
            self._kept.move_to_end(key)
            self._not_asked_for.discard(key)
            return entry[0]

    def put(self, key: K, value: V) -> None:
        """Keep a value in place of the one before, and drop others that have no room beside it."""
        size = self._size(value)
        if self.fits(size):
            self._put(key, value, size)

    def _put(self, key: K, value: V, size: int) -> None:
        with self._lock:
            self._drop(key)
            if self._clock.monotonic_s() - self._began_s >= self._idle_s:
                self._begin_period()
            if not self._is_admitted(key, size):
                return
            self._kept[key] = value, size
            self.bytes += size
            room = self._room_bytes(size)
            while self.bytes > room and len(self._kept) > 1:
                self._drop(next(iter(self._kept)))
                self.evictions += 1

    def take(self, key: K, only: V | None = None) -> V | None:
        """Remove and return the value of a key; if `only` is set, only if it is that very object."""
        with self._lock:
            entry = self._kept.get(key)
            if entry is None or (only is not None and entry[0] is not only):
                return None
            self._drop(key)
            return entry[0]

    def clear(self) -> None:
        """Keep nothing any more."""
        with self._lock:
            self._kept.clear()
            self._not_asked_for.clear()
            self.bytes = 0

    def _drop(self, key: K) -> None:
        entry = self._kept.pop(key, None)
        if entry is not None:
            self.bytes -= entry[1]
            self._not_asked_for.discard(key)

    def _begin_period(self) -> None:
        self.evictions += len(self._not_asked_for)
        for key in [*self._not_asked_for]:
            self._drop(key)
        self._began_s, self._not_asked_for = self._clock.monotonic_s(), {*self._kept}

    def _count_request(self, key: K) -> None:
        """Count a request for a key."""

    def _is_admitted(self, key: K, size: int) -> bool:
        return True

    def _room_bytes(self, size: int) -> int:
        return self.bytes_max


class Cache(ByteBoundedLru[tuple["Kind[Any, Any]", Hashable], Any]):
    """A cache for all that one client keeps in memory, in kinds that share its room.

    It admits only values requested more often than those it would evict. Extra memory: one count for each recently
    requested key, at most about `AGE_FACTOR` for each cached value.
    """

    def __init__(self, bytes_max: int, *, clock: Clock | None = None, idle_s: float = IDLE_S) -> None:
        super().__init__(bytes_max, lambda value: 0, clock=clock, idle_s=idle_s)
        self._counts: dict[tuple[Kind[Any, Any], Hashable], int] = {}
        self._questions = 0
        self._large_room = bytes_max - bytes_max // SMALL_ROOM

    def kind(self, size: Callable[[V], int], *, share: int = 2, is_needed: bool = False) -> "Kind[Any, V]":
        """Return a new kind of values.

        Args:
            size: returns about how many bytes a value takes; called once, by `put`.
            share: a value that takes more than this share of the room is not kept.
            is_needed: whether every value is let in, however large it is: it is used again at once.
        """
        return Kind(self, size, 2**63 if is_needed else self.bytes_max // share, is_needed=is_needed)

    def bytes_of(self, kind: "Kind[Any, Any]") -> int:
        """Return what the values of a kind take."""
        with self._lock:
            return sum(size for (one, _), (_, size) in self._kept.items() if one is kind)

    def drop_kind(self, kind: "Kind[Any, Any]") -> None:
        """Drop all values and counts of a kind."""
        with self._lock:
            for key in [key for key in self._kept if key[0] is kind]:
                self._drop(key)
            self._counts = {key: count for key, count in self._counts.items() if key[0] is not kind}

    def peek(self, key: tuple["Kind[Any, Any]", Hashable]) -> Any:
        """Return the value of a key without counting the request."""
        with self._lock:
            entry = self._kept.get(key)
            return None if entry is None else entry[0]

    def _count_request(self, key: tuple["Kind[Any, Any]", Hashable]) -> None:
        count = self._counts.get(key, 0)
        if count < COUNT_MAX:
            self._counts[key] = count + 1
        self._questions += 1
        if self._questions >= QUESTIONS_MIN and self._questions >= AGE_FACTOR * len(self._kept):
            self._age()

    def _begin_period(self) -> None:
        super()._begin_period()
        self._age()

    def _age(self) -> None:
        self._questions = 0
        self._counts = {key: count // 2 for key, count in self._counts.items() if count > 1}

    def _is_small(self, size: int) -> bool:
        return size * SMALL_SHARE < self.bytes_max

    def _room_bytes(self, size: int) -> int:
        return self.bytes_max if self._is_small(size) else self._large_room

    def _is_admitted(self, key: tuple["Kind[Any, Any]", Hashable], size: int) -> bool:
        """Return whether all victims are requested less often than the key; move the others to the front."""
        missing = self.bytes + size - self._large_room
        if self._is_small(size) or key[0].is_needed or missing <= 0 or not self._kept:
            return True
        requests, victims = self._counts.get(key, 0), []
        for victim, (_, freed) in self._kept.items():
            if not self._is_small(freed) and self._counts.get(victim, 0) + LEAD < requests:
                victims.append(victim)
                missing -= freed
                if missing <= 0:
                    break
        if missing > 0:
            return False
        for victim in reversed(victims):
            self._kept.move_to_end(victim, last=False)
        return True


class Kind(Generic[K, V]):
    """The values of one kind in a `Cache`; make it with `Cache.kind`.

    Attributes:
        is_needed: whether every value is let in.
    """

    def __init__(self, cache: Cache, size: Callable[[V], int], value_bytes_max: int, *, is_needed: bool) -> None:
        self._cache = cache
        self._size = size
        self._value_bytes_max = value_bytes_max
        self.is_needed = is_needed

    @property
    def bytes(self) -> int:
        """The bytes of all values of this kind."""
        return self._cache.bytes_of(self)

    @property
    def evictions(self) -> int:
        """How many values of all kinds went to make room."""
        return self._cache.evictions

    def fits(self, size: int) -> bool:
        """Whether a value of that many bytes may be kept."""
        return size <= self._value_bytes_max

    def get(self, key: K) -> V | None:
        """Return the value of a key, which then counts as just used."""
        return cast("V | None", self._cache.get((self, key)))

    def peek(self, key: K) -> V | None:
        """Return the value of a key without counting the request."""
        return cast("V | None", self._cache.peek((self, key)))

    def put(self, key: K, value: V) -> None:
        """Keep a value in place of the one before, if it is wanted more often than others that would have to go."""
        size = self._size(value)
        if self.fits(size):
            self._cache._put((self, key), value, size)

    def take(self, key: K, only: V | None = None) -> V | None:
        """Remove and return the value of a key; if `only` is set, only if it is that very object."""
        return cast("V | None", self._cache.take((self, key), only))

    def clear(self) -> None:
        """Keep no value of this kind any more."""
        self._cache.drop_kind(self)
