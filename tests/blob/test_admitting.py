"""A cache keeps what is wanted most often, and a scan does not empty it."""

import threading

from hypothesis import given
from hypothesis import strategies as st

from persist.blob.lru import Cache, Kind

VALUE = bytes(100)


def cache(values: int) -> Kind[int, bytes]:
    """Return one with room for so many values, besides the room of small ones."""
    return Cache(values * 100 * 16 // 15 + 16).kind(len, share=1)


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


def test_what_is_small_is_let_in_and_drops_nothing_large_that_has_room() -> None:
    kept: Kind[int, bytes] = Cache(1 << 20).kind(len)
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
    kept: Kind[int, bytes] = Cache(1000).kind(len, share=3)
    for key, size, asks in steps:
        if asks:
            kept.get(key)
        else:
            kept.put(key, bytes(size))
        held = {each: value for each in range(13) if (value := kept.peek(each)) is not None}
        assert kept.bytes == sum(map(len, held.values())) <= 1000
        assert all(len(value) <= 333 for value in held.values())


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


def test_kinds_share_the_room_and_what_one_reads_most_takes_the_most_of_it() -> None:
    room = Cache(20 * 100 * 16 // 15 + 16)
    busy: Kind[int, bytes] = room.kind(len, share=1)
    idle: Kind[int, bytes] = room.kind(len, share=1)
    read(idle, range(20))
    for _ in range(4):
        read(busy, range(15))
    assert read(busy, range(15)) == 15
    assert idle.bytes == room.bytes - busy.bytes <= 500
    assert idle.get(1) is None, "the key of another kind is another one"
    busy.clear()
    assert (busy.bytes, room.bytes) == (0, idle.bytes)


def test_what_is_needed_at_once_is_let_in_however_large_it_is() -> None:
    room = Cache(1000)
    needed, others = room.kind(len, is_needed=True), room.kind(len)
    others.put(1, bytes(400))
    for _ in range(5):
        others.get(1)
    needed.put(1, bytes(800))
    assert (needed.bytes, others.bytes) == (800, 0)
    needed.put(2, bytes(5000))
    assert room.bytes == needed.bytes == 5000
    others.put(3, bytes(300))
    assert room.bytes == 300 or needed.peek(2) is not None
