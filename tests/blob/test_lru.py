"""What is kept within a number of bytes: what is wanted most often, and no scan empties it."""

import gc
import random
import threading
import weakref
from collections import Counter

import pytest

from persist.blob.lru import (
    AGE_FACTOR,
    COUNT_MAX,
    LEAD,
    NEEDED,
    REQUESTS_MIN,
    SMALL_SHARE,
    WINDOW_SHARE,
    Cache,
    Kind,
)
from persist.blob.threads import SystemClock


class Steps(SystemClock):
    """A clock that stands still between steps."""

    now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s


class Model:
    """The cache by its description: two rooms in the order of use, and counts of recent requests."""

    def __init__(self, room: int, is_lru: bool, idle_s: float) -> None:
        self.room, self.is_lru, self.idle_s = room, is_lru, idle_s
        self.window_room = room if is_lru else room // WINDOW_SHARE
        self.window, self.main = dict[tuple[int, int], int](), dict[tuple[int, int], int]()  # Sizes.
        self.counts, self.requests, self.evictions = Counter[tuple[int, int]](), 0, 0
        self.idle, self.began_s = set[tuple[int, int]](), 0.0

    def get(self, key: tuple[int, int]) -> bool:
        self.counts[key] = min(COUNT_MAX, self.counts[key] + 1)
        self.requests += 1
        if self.requests >= max(REQUESTS_MIN, AGE_FACTOR * (len(self.window) + len(self.main))):
            self.age()
        for part in (self.window, self.main):
            if key in part:
                part[key] = part.pop(key)
                self.idle.discard(key)
                return True
        return False

    def age(self) -> None:
        self.requests = 0
        self.counts = Counter({key: count // 2 for key, count in self.counts.items()})

    def remove(self, key: tuple[int, int]) -> None:
        self.window.pop(key, None)
        self.main.pop(key, None)
        self.idle.discard(key)

    def put(self, key: tuple[int, int], size: int, now_s: float, is_needed: bool) -> None:
        self.remove(key)
        if now_s - self.began_s >= self.idle_s:
            for old in [*self.idle]:
                self.evict(old)
            self.began_s, self.idle = now_s, {*self.window, *self.main}
            self.age()
        if size > self.room:
            return
        if size * SMALL_SHARE > self.room and not self.is_lru:
            self.admit(key, size, NEEDED if is_needed else self.counts[key])
            return
        self.window[key] = size
        while sum(self.window.values()) > self.window_room:
            oldest = next(iter(self.window))
            if not self.admit(oldest, self.window.pop(oldest), self.counts[oldest]):
                self.evict(oldest)

    def evict(self, key: tuple[int, int]) -> None:
        self.remove(key)
        self.evictions += 1

    def admit(self, key: tuple[int, int], size: int, requests: int) -> bool:
        room = self.room - self.window_room
        while size <= room < sum(self.main.values()) + size:
            victim = next(iter(self.main))
            if self.counts[victim] + LEAD >= requests:
                self.main[victim] = self.main.pop(victim)
                return False
            self.evict(victim)
        if size <= room:
            self.main[key] = size
        return size <= room


@pytest.mark.parametrize("is_lru", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_a_cache_does_what_its_description_says(is_lru: bool, seed: int) -> None:
    """Small and large values of three kinds, needed ones among them, with periods that end."""
    chance, room = random.Random(seed), 1024
    clock = Steps()
    cache, model = Cache(room, is_lru=is_lru, clock=clock, idle_s=900.0), Model(room, is_lru, 900.0)
    kinds: list[Kind[int, bytes]] = [
        cache.add_kind(len, share=1),
        cache.add_kind(len),
        cache.add_kind(len, share=4, is_needed=True),
    ]
    for turn in range(4000):
        number = int(chance.triangular(0, 3, 0))
        kind, key = kinds[number], int(chance.expovariate(0.02))
        size = chance.choice(
            [0, 1, 1, 1, 2, chance.randrange(200), chance.choice([256, 257, 512, 513, 960, 961, 1025])]
        )
        name = (kind.number, key)
        match chance.choices(["get", "read", "put", "remove", "clear"], [30, 60, 6, 3, 0.05])[0]:
            case "get":
                assert (kind.get(key) is not None) == model.get(name)
            case "read" | "put" as step:
                if step == "put" or kind.get(key) is None:
                    if step == "read":
                        assert not model.get(name)
                    kind.put(key, bytes(size))
                    if kind.fits(size):
                        model.put(name, size, clock.now_s, number == 2)
                else:
                    assert model.get(name)
            case "remove":
                assert (kind.remove(key) is not None) == (name in model.window or name in model.main)
                model.remove(name)
            case "clear":
                kind.clear()
                for each in [*model.window, *model.main]:
                    if each[0] == kind.number:
                        model.remove(each)
        clock.now_s += 1.0
        held = model.window | model.main
        assert (cache.bytes, cache.evictions) == (sum(held.values()), model.evictions)
        if turn % 50 == 0:
            assert [each.bytes for each in kinds] == [
                sum(size for (of, _), size in held.items() if of == each.number) for each in kinds
            ]
    assert cache.evictions > 100
    cache.close()
    for kind in kinds:
        kind.put(1, b"")
        assert (kind.get(1), kind.bytes, cache.bytes) == (None, 0, 0)
    assert [kind.fits(size) for kind, size in zip(kinds, (1024, 512, 256), strict=True)] == [True] * 3
    assert [kind.fits(size) for kind, size in zip(kinds, (1025, 513, 257), strict=True)] == [False] * 3


def lru(bytes_max: int) -> Kind[int, bytes]:
    return Cache(bytes_max, is_lru=True).add_kind(len, share=1)


def test_what_is_taken_is_there_no_more_and_only_the_very_value_if_one_is_given() -> None:
    kept, one, same = lru(30), bytes([1, 2]), bytes(bytearray([1, 2]))
    kept.put(1, one)
    assert kept.remove(1, only=same) is None
    assert kept.get(1) is one
    assert kept.remove(1, only=one) is one
    assert kept.remove(1) is None
    assert kept.bytes == 0


def test_threads_keep_the_count_of_bytes() -> None:
    kept = lru(500)

    def use(seed: int) -> None:
        for n in range(3000):
            kept.put((n * seed) % 17, bytes(10 + n % 90))
            kept.remove((n + seed) % 17)

    threads = [threading.Thread(target=use, args=(seed,)) for seed in (3, 5, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kept.bytes == sum(len(kept.remove(key) or b"") for key in range(17)) <= 500
    assert kept.bytes == 0


def test_values_go_at_once_with_their_cache() -> None:
    class Value(bytearray): ...

    kept: Kind[int, Value] = Cache(30, is_lru=True).add_kind(len, share=1)
    value = Value(10)
    kept.put(1, value)
    gone = weakref.ref(value)
    gc.disable()
    try:
        del kept, value
        assert gone() is None
    finally:
        gc.enable()


def cache(values: int) -> Kind[int, bytes]:
    """Return a kind whose main room holds so many values."""
    return Cache(values * 100 * 16 // 15 + 16).add_kind(len, share=1)


def read(kept: Kind[int, bytes], keys: range) -> int:
    """Ask for each key, and keep what was not there; return how many were."""
    hits = 0
    for key in keys:
        if kept.get(key) is None:
            kept.put(key, bytes(100))
        else:
            hits += 1
    return hits


def test_of_a_set_that_is_read_in_turns_as_much_stays_as_there_is_room_for() -> None:
    kept = cache(10)
    read(kept, range(15))
    assert [read(kept, range(15)) for _ in range(20)] == [10] * 20
    assert kept.evictions == 0


def test_one_scan_drops_nothing_that_is_wanted_more_often() -> None:
    kept = cache(10)
    for _ in range(3):
        read(kept, range(10))
    assert read(kept, range(100, 1000)) == 0
    assert read(kept, range(10)) == 10


def test_to_peek_counts_for_nothing() -> None:
    kept = cache(1)
    kept.put(1, bytes(100))
    kept.get(1)
    for _ in range(10):
        assert kept.peek(1) == bytes(100)
        assert kept.peek(2) is None
    kept.put(2, bytes(100))
    assert kept.peek(2) is None
    for _ in range(3):
        kept.get(2)
    kept.put(2, bytes(100))
    assert kept.peek(1) is None
    assert kept.peek(2) == bytes(100)
