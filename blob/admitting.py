"""A cache that a scan cannot empty: what has no room gets in only if it is asked for more often than what would go.

A cache that drops what was used longest ago keeps nothing at all of a set that is a little larger than it and is read
again and again, because each value goes just before it is wanted. Here values stay until others were asked for more
often, so of such a set as much is found as there is room for. This is the admission of TinyLFU (Einziger, Friedman and
Manes, 2017), with exact counts of what was asked for lately in place of a sketch.

How often a key was asked for is counted whether it was found or not, up to `COUNT_MAX`, and all counts are halved after
every `AGE_FACTOR` questions for each value kept, so that what was wanted long ago makes room.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from persist.blob.lru import ByteBoundedLru, K

V = TypeVar("V")

COUNT_MAX = 7
AGE_FACTOR = 16
QUESTIONS_MIN = 256
LEAD = 1  # Of values that are read in turns, the next one has always been asked for once more than the others.
SMALL_SHARE = 1024  # What takes less than this share of the room is let in whatever it is: it has a room of its own,
SMALL_ROOM = 16  # which is this share of all.


class AdmittingCache(ByteBoundedLru[K, V]):
    """A `ByteBoundedLru` that lets in only what is wanted more often than what it would have to drop.

    Memory besides the values: one count for each key that was asked for lately, at most about
    `AGE_FACTOR` for each value that is kept.
    """

    def __init__(self, bytes_max: int, size: Callable[[V], int], *, value_bytes_max: int | None = None) -> None:
        super().__init__(bytes_max, size, value_bytes_max=value_bytes_max)
        self._counts: dict[K, int] = {}
        self._questions = 0
        self._room = bytes_max - bytes_max // SMALL_ROOM

    def get(self, key: K) -> V | None:
        """Return the value of a key, which then counts as wanted once more, whether it is here or not."""
        with self._lock:
            self._count(key)
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def get_all(self, keys: Sequence[K]) -> list[V] | None:
        """Return the values of some keys, which then count as wanted once more; None, without any effect, if one of
        them is not here."""
        with self._lock:
            kept = self._kept
            found = [kept.get(key) for key in keys]
            if None in found:
                return None
            for key in keys:
                self._count(key)
                kept.move_to_end(key)
            return [each[0] for each in found if each is not None]

    def peek(self, key: K) -> V | None:
        """Return the value of a key, without any effect: for who asks twice for one purpose."""
        with self._lock:
            found = self._kept.get(key)
            return None if found is None else found[0]

    def put(self, key: K, value: V) -> None:
        """Keep a value in place of the one before, unless that takes the room of what is wanted as often."""
        size = self._size(value)
        if not self.has_room_for(size):
            return
        with self._lock:
            self._drop(key)
            if not self._is_admitted(key, size):
                return
            self._kept[key] = value, size
            self._bytes += size
            room = self._bytes_max if size * SMALL_SHARE < self._bytes_max else self._room
            while self._bytes > room and len(self._kept) > 1:
                self._drop(next(iter(self._kept)))
                self._evictions += 1

    def clear(self) -> None:
        """Keep nothing any more, and forget what was asked for."""
        super().clear()
        with self._lock:
            self._counts.clear()

    def _is_admitted(self, key: K, size: int) -> bool:
        """Return whether those that would go are all wanted less often than the key; those are moved to the front."""
        if size * SMALL_SHARE < self._bytes_max:
            return True
        missing = self._bytes + size - self._room
        if missing <= 0 or not self._kept:
            return True
        wanted, victims = self._counts.get(key, 0), []
        for other, (_, freed) in self._kept.items():
            is_small = freed * SMALL_SHARE < self._bytes_max
            if not is_small and self._counts.get(other, 0) + LEAD < wanted:
                victims.append(other)
                missing -= freed
                if missing <= 0:
                    break
        if missing > 0:
            return False
        for other in reversed(victims):
            self._kept.move_to_end(other, last=False)
        return True

    def _count(self, key: K) -> None:
        count = self._counts.get(key, 0)
        if count < COUNT_MAX:
            self._counts[key] = count + 1
        self._questions += 1
        if self._questions >= QUESTIONS_MIN and self._questions >= AGE_FACTOR * len(self._kept):
            self._age()

    def _age(self) -> None:
        self._questions = 0
        self._counts = {each: count // 2 for each, count in self._counts.items() if count > 1}
