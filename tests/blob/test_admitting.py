"""A cache keeps what is wanted most often, and a scan does not empty it."""

import threading

from hypothesis import given
from hypothesis import strategies as st

from persist.blob.lru import AdmittingCache

VALUE = bytes(100)


def cache(values: int) -> AdmittingCache[int, bytes]:
    """Return one with room for so many values, besides the room of small ones."""
    return AdmittingCache(values * 100 * 16 // 15 + 16, len)


def read(kept: AdmittingCache[int, bytes], keys: range) -> int:
    """Ask for each key, and keep what was not there; return how many were."""
    hits = 0
    for key in keys:
        if kept.get(key) is None:
            kept.put(key, VALUE)
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


def test_what_is_wanted_from_now_on_takes_the_place_of_what_was() -> None:
    kept = cache(10)
    for _ in range(1000):
        read(kept, range(10))
    rounds = 0
    while read(kept, range(100, 110)) < 10:
        rounds += 1
    assert rounds < 60


def test_what_is_small_is_let_in_and_drops_nothing_large_that_has_room() -> None:
    kept: AdmittingCache[int, bytes] = AdmittingCache(1 << 20, len)
    for key in range(20):
        kept.put(key, bytes(1 << 16))
    large = kept.bytes
    for key in range(100, 164):
        kept.put(key, bytes(1000))
    assert kept.bytes == large + 64_000 <= 1 << 20
    assert kept.evictions == 0


def test_to_peek_counts_for_nothing() -> None:
    kept = cache(1)
    kept.put(1, VALUE)
    kept.get(1)
    for _ in range(10):
        assert kept.peek(1) == VALUE
        assert kept.peek(2) is None
    kept.put(2, VALUE)
    assert kept.peek(2) is None
    for _ in range(3):
        kept.get(2)
    kept.put(2, VALUE)
    assert kept.peek(1) is None
    assert kept.peek(2) == VALUE


def test_what_is_taken_or_cleared_is_there_no_more() -> None:
    kept = cache(3)
    read(kept, range(3))
    assert kept.take(1) == VALUE
    assert kept.peek(1) is None
    kept.clear()
    assert (kept.bytes, kept.peek(0)) == (0, None)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 400), st.booleans()), max_size=200))
def test_it_never_holds_more_than_it_may(steps: list[tuple[int, int, bool]]) -> None:
    kept: AdmittingCache[int, bytes] = AdmittingCache(1000, len, value_bytes_max=300)
    for key, size, asks in steps:
        if asks:
            kept.get(key)
        else:
            kept.put(key, bytes(size))
        held = {each: value for each in range(13) if (value := kept.peek(each)) is not None}
        assert kept.bytes == sum(map(len, held.values())) <= 1000
        assert all(len(value) <= 300 for value in held.values())


def test_many_threads_share_one() -> None:
    kept = cache(5)

    def work(first: int) -> None:
        for turn in range(500):
            read(kept, range(first, first + 5))
            kept.take(first + turn % 5)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kept.bytes == sum(100 for key in range(20) if kept.peek(key) is not None) <= 5 * 100 * 16 // 15 + 16
