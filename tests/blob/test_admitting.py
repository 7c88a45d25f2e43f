"""A cache keeps what is wanted most often, and a scan does not empty it."""

import threading

from hypothesis import given
from hypothesis import strategies as st

from persist.blob.lru import Cache, Kind

VALUE = bytes(100)


def cache(values: int) -> Kind[int, bytes]:
    """Return a kind whose main room holds so many values."""
    return Cache(values * 100 * 16 // 15 + 16).add_kind(len, share=1)


def read(kept: Kind[int, bytes], keys: range) -> int:
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


def test_a_scan_of_small_values_drops_no_large_value_that_is_requested_more_often() -> None:
    room = Cache(16 << 20)
    large: Kind[int, int] = room.add_kind(lambda size: size)
    small: Kind[int, int] = room.add_kind(lambda size: size)
    for key in range(12):
        for _ in range(5):
            large.get(key)
        large.put(key, 1 << 20)
    for key in range(18_000):
        small.get(key)
        small.put(key, 1000)
    assert large.bytes == 12 << 20
    assert small.peek(17_999) == 1000, "the newest values are in the window"
    assert room.bytes <= room.bytes_max


def test_an_lru_of_kinds_keeps_the_newest_values_whatever_was_requested() -> None:
    kept: Kind[int, bytes] = Cache(1000, is_lru=True).add_kind(len, share=1)
    for _ in range(7):
        read(kept, range(10))
    kept.put(10, bytes(1000))
    assert kept.bytes == len(kept.peek(10) or b"") == 1000


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
    assert kept.remove(1) == VALUE
    assert kept.peek(1) is None
    kept.clear()
    assert (kept.bytes, kept.peek(0)) == (0, None)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 400), st.booleans()), max_size=200))
def test_it_never_holds_more_than_it_may(steps: list[tuple[int, int, bool]]) -> None:
    room = Cache(1000)
    kept: Kind[int, bytes] = room.add_kind(len, share=3)
    needed: Kind[int, bytes] = room.add_kind(len, share=1, is_needed=True)
    for key, size, asks in steps:
        if asks:
            kept.get(key)
        else:
            (needed if key == 0 else kept).put(key, bytes(3 * size if key == 0 else size))
        held = {each: value for each in range(13) if (value := kept.peek(each)) is not None}
        assert kept.bytes == sum(map(len, held.values()))
        assert room.bytes == kept.bytes + needed.bytes <= 1000
        assert all(len(value) <= 333 for value in held.values())


def test_many_threads_share_one() -> None:
    kept = cache(5)

    def work(first: int) -> None:
        for turn in range(500):
            read(kept, range(first, first + 5))
            kept.remove(first + turn % 5)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kept.bytes == sum(100 for key in range(20) if kept.peek(key) is not None) <= 5 * 100 * 16 // 15 + 16


def test_kinds_share_the_room_and_what_one_reads_most_takes_the_most_of_it() -> None:
    room = Cache(20 * 100 * 16 // 15 + 16)
    busy: Kind[int, bytes] = room.add_kind(len, share=1)
    idle: Kind[int, bytes] = room.add_kind(len, share=1)
    read(idle, range(20))
    for _ in range(4):
        read(busy, range(15))
    assert read(busy, range(15)) == 15
    assert idle.bytes == room.bytes - busy.bytes <= 600
    assert idle.get(1) is None, "the key of another kind is another one"
    busy.clear()
    assert (busy.bytes, room.bytes) == (0, idle.bytes)


def test_a_needed_value_is_kept_at_once_but_never_beyond_the_room() -> None:
    room = Cache(1600)
    needed, others = room.add_kind(len, share=1, is_needed=True), room.add_kind(len)
    others.put(1, bytes(400))
    for _ in range(5):
        others.get(1)
    needed.put(1, bytes(1200))
    assert (needed.bytes, others.bytes) == (1200, 0)
    needed.put(2, bytes(1600))
    assert (needed.bytes, needed.peek(2)) == (1200, None), "the window is beyond the main room"


def test_a_closed_cache_keeps_nothing() -> None:
    room = Cache(1600)
    kept = room.add_kind(len)
    for size in (10, 400):
        kept.put(size, bytes(size))
    room.close()
    assert room.bytes == 0
    for size in (0, 10, 400):
        kept.put(size, bytes(size))
        assert kept.get(size) is None
