"""Values by key within a number of bytes: caches for any number of threads, whose methods never wait for long.

`ByteBoundedLru` drops the value used longest ago. That keeps nothing at all of a set that is a little larger than the
cache and is read again and again, because each value goes just before it is wanted. `Cache` therefore lets a new value
in only if it is asked for more often than what would have to go, so a scan cannot empty it. This is the admission of
TinyLFU (Einziger, Friedman and Manes, 2017), with exact counts of recent questions in place of a sketch.

A `Cache` has values of several kinds, which share its room. So what one client reads most takes the most of it.

The count of a key grows whether its value is here or not, up to `COUNT_MAX`. All counts are halved after `AGE_FACTOR`
questions for each value kept, so that what was wanted long ago makes room.

Room is no reason to keep a value for ever. What is kept of parts that a compaction has replaced is never asked for
again, and a client that is open all year would fill any room with it. So with the next value that is put, all go that
nobody has asked for in `idle_s`. Which these are is known without a time for each: whatever was kept when a period
began, and was not asked for until the period has passed.
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
LEAD = 1  # If values are read in turns, the next one has always been asked for once more than the others.
SMALL_SHARE = 1024  # A value below this share of the room is always let in: small ones have a room of their own,
SMALL_ROOM = 16  # which is this share of the whole.
IDLE_S = 24 * 3600.0  # So that what is done once a day finds what it has left.


class ByteBoundedLru(Generic[K, V]):
    """A cache in which the value used longest ago is the first to go.

    Args:
        bytes_max: room for all values together.
        size: about how many bytes a value takes; asked once, when it is put.
        value_bytes_max: larger values are not kept; None for all that have room. If it is more than `bytes_max`, a
            value that has no room beside others is kept alone.
        clock, idle_s: a value that nobody has asked for in so many seconds goes before twice as many have passed, when
            another one is put.

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

    def has_room_for(self, size: int) -> bool:
        """Whether a value of that many bytes would be kept."""
        return size <= self._value_bytes_max

    def get(self, key: K) -> V | None:
        """Return the value of a key, which then counts as just used."""
        with self._lock:
            self._asked(key)
            entry = self._kept.get(key)
            if entry is None:
                return None
            self._kept.move_to_end(key)
            self._not_asked_for.discard(key)
            return entry[0]

    def put(self, key: K, value: V) -> None:
        """Keep a value in place of the one before, and drop others that have no room beside it."""
        size = self._size(value)
        if self.has_room_for(size):
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
            room = self._room_for(size)
            while self.bytes > room and len(self._kept) > 1:
                self._drop(next(iter(self._kept)))
                self.evictions += 1

    def take(self, key: K, only: V | None = None) -> V | None:
        """Return the value of a key, and keep it no more; if only is given, drop and return that very value alone."""
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

    def _asked(self, key: K) -> None:
        """Note that somebody asked for a key."""

    def _is_admitted(self, key: K, size: int) -> bool:
        return True

    def _room_for(self, size: int) -> int:
        return self.bytes_max


class Cache(ByteBoundedLru[tuple["Kind[Any, Any]", Hashable], Any]):
    """A cache for all that one client keeps in memory, in kinds that share its room.

    It lets in only what is wanted more often than what it would have to drop. Memory besides the values: one count for
    each key that was asked for lately, at most about `AGE_FACTOR` for each value that is kept.
    """

    def __init__(self, bytes_max: int, *, clock: Clock | None = None, idle_s: float = IDLE_S) -> None:
        super().__init__(bytes_max, lambda value: 0, clock=clock, idle_s=idle_s)
        self._counts: dict[tuple[Kind[Any, Any], Hashable], int] = {}
        self._questions = 0
        self._large_room = bytes_max - bytes_max // SMALL_ROOM

    def kind(self, size: Callable[[V], int], *, share: int = 2, is_needed: bool = False) -> "Kind[Any, V]":
        """Return a new kind of values.

        Args:
            size: about how many bytes a value takes; asked once, when it is put.
            share: a value that takes more than this share of the room is not kept.
            is_needed: whether every value is let in, however large it is: it is used again at once.
        """
        return Kind(self, size, 2**63 if is_needed else self.bytes_max // share, is_needed=is_needed)

    def bytes_of(self, kind: "Kind[Any, Any]") -> int:
        """Return what the values of a kind take."""
        with self._lock:
            return sum(size for (one, _), (_, size) in self._kept.items() if one is kind)

    def drop_kind(self, kind: "Kind[Any, Any]") -> None:
        """Keep no value of a kind any more, and forget what was asked for."""
        with self._lock:
            for key in [key for key in self._kept if key[0] is kind]:
                self._drop(key)
            self._counts = {key: count for key, count in self._counts.items() if key[0] is not kind}

    def peek(self, key: tuple["Kind[Any, Any]", Hashable]) -> Any:
        """Return the value of a key, without any effect: for a caller who asks twice for one purpose."""
        with self._lock:
            entry = self._kept.get(key)
            return None if entry is None else entry[0]

    def _asked(self, key: tuple["Kind[Any, Any]", Hashable]) -> None:
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

    def _room_for(self, size: int) -> int:
        return self.bytes_max if self._is_small(size) else self._large_room

    def _is_admitted(self, key: tuple["Kind[Any, Any]", Hashable], size: int) -> bool:
        """Return whether those that would go are all wanted less often than the key; those are moved to the front."""
        missing = self.bytes + size - self._large_room
        if self._is_small(size) or key[0].is_needed or missing <= 0 or not self._kept:
            return True
        wanted, victims = self._counts.get(key, 0), []
        for other, (_, freed) in self._kept.items():
            if not self._is_small(freed) and self._counts.get(other, 0) + LEAD < wanted:
                victims.append(other)
                missing -= freed
                if missing <= 0:
                    break
        if missing > 0:
            return False
        for other in reversed(victims):
            self._kept.move_to_end(other, last=False)
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
        """What all values of this kind take."""
        return self._cache.bytes_of(self)

    @property
    def evictions(self) -> int:
        """How many values of all kinds went to make room."""
        return self._cache.evictions

    def has_room_for(self, size: int) -> bool:
        """Whether a value of that many bytes may be kept."""
        return size <= self._value_bytes_max

    def get(self, key: K) -> V | None:
        """Return the value of a key, which then counts as just used."""
        return cast("V | None", self._cache.get((self, key)))

    def peek(self, key: K) -> V | None:
        """Return the value of a key, without any effect: for a caller who asks twice for one purpose."""
        return cast("V | None", self._cache.peek((self, key)))

    def put(self, key: K, value: V) -> None:
        """Keep a value in place of the one before, if it is wanted more often than others that would have to go."""
        size = self._size(value)
        if self.has_room_for(size):
            self._cache._put((self, key), value, size)

    def take(self, key: K, only: V | None = None) -> V | None:
        """Return the value of a key, and keep it no more; if only is given, drop and return that very value alone."""
        return cast("V | None", self._cache.take((self, key), only))

    def clear(self) -> None:
        """Keep no value of this kind any more."""
        self._cache.drop_kind(self)
