"""What is kept within a number of bytes, and what goes first."""

import gc
import threading
import weakref

from persist.blob.lru import Cache, Kind
from tests.support.clocks import ImpatientClock


def lru(bytes_max: int) -> Kind[int, bytes]:
    return Cache(bytes_max, is_lru=True).add_kind(len, share=1)


def test_the_value_used_longest_ago_goes_first() -> None:
    kept = lru(30)
    for key in (1, 2, 3):
        kept.put(key, bytes(10))
    kept.get(1)
    kept.put(4, bytes(10))
    assert [key for key in (1, 2, 3, 4) if kept.get(key) is not None] == [1, 3, 4]
    assert (kept.bytes, kept.evictions) == (30, 1)


def test_a_value_takes_the_place_of_the_one_before() -> None:
    kept = lru(30)
    kept.put(1, bytes(10))
    kept.put(1, b"new")
    assert (kept.get(1), kept.bytes, kept.evictions) == (b"new", 3, 0)


def test_a_value_without_room_is_not_kept_and_drops_nothing() -> None:
    kept = lru(30)
    kept.put(1, bytes(20))
    kept.put(2, bytes(31))
    assert kept.get(2) is None
    assert kept.get(1) is not None


def test_what_is_taken_is_there_no_more_and_only_the_very_value_if_one_is_given() -> None:
    kept, one, same = lru(30), bytes([1, 2]), bytes(bytearray([1, 2]))
    kept.put(1, one)
    assert kept.remove(1, only=same) is None
    assert kept.get(1) is one
    assert kept.remove(1, only=one) is one
    assert kept.remove(1) is None
    assert kept.bytes == 0


def test_what_is_cleared_takes_no_room() -> None:
    kept = lru(30)
    kept.put(1, bytes(30))
    kept.clear()
    kept.put(2, bytes(30))
    assert (kept.get(1), kept.get(2), kept.evictions) == (None, bytes(30), 0)


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


def test_a_value_that_nobody_asks_for_goes_after_a_while_though_there_is_room() -> None:
    clock = ImpatientClock()
    for kept in (
        Cache(10**9, is_lru=True, clock=clock, idle_s=100.0).add_kind(len),
        Cache(10**9, clock=clock, idle_s=100.0).add_kind(len),
    ):
        kept.put(-1, bytes(10))
        kept.put(-2, bytes(10))
        for number in range(1000):
            kept.put(number, bytes(10))
            assert kept.get(-1) is not None, "this one is asked for"
            clock.sleep(1.0)
        assert kept.get(-2) is None
        assert kept.get(999) is not None
        assert 100 <= kept.bytes // 10 <= 202
        assert kept.evictions == 1002 - kept.bytes // 10


def test_what_is_asked_for_once_in_a_period_stays_and_what_is_replaced_or_taken_leaves_no_trace() -> None:
    clock = ImpatientClock()
    kept: Kind[int, bytes] = Cache(10**9, is_lru=True, clock=clock, idle_s=100.0).add_kind(len)
    for number in range(4):
        kept.put(number, bytes(10))
    clock.sleep(100.0)
    kept.put(4, bytes(10))  # A period begins.
    kept.remove(0)
    kept.put(0, bytes(20))  # It is another one now.
    kept.get(1)
    clock.sleep(100.0)
    kept.put(5, bytes(10))
    assert [number for number in range(6) if kept.get(number) is not None] == [0, 1, 4, 5]
    kept.clear()
    clock.sleep(100.0)
    kept.put(6, bytes(10))
    assert (kept.bytes, kept.evictions) == (10, 2)


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
