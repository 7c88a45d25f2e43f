"""A store that throttles: what it gets to see of a client that slows down."""

import heapq
import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from persist.blob.errors import Throttled
from persist.blob.layers.pacing import AdaptiveRate
from persist.blob.layers.retry import RetryBlob
from persist.blob.protocol import MemoryBlob
from tests.support.clocks import ImpatientClock


class Bucket(MemoryBlob):
    """A store that answers so many requests per second, with a burst of a tenth of a second, and refuses the rest."""

    def __init__(self, clock: ImpatientClock, per_s: float) -> None:
        super().__init__()
        self.clock = clock
        self.per_s = per_s
        self.tokens = per_s / 10
        self.filled_s = clock.monotonic_s()
        self.answered = self.refused = 0

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        self.clock.sleep(0.0002)
        now_s = self.clock.monotonic_s()
        self.tokens = min(self.per_s / 10, self.tokens + (now_s - self.filled_s) * self.per_s)
        self.filled_s = now_s
        if self.tokens < 1:
            self.refused += 1
            raise Throttled("slow down")
        self.tokens -= 1
        self.answered += 1
        return super().get(key, range)


def test_one_client_finds_the_rate_of_a_store_and_no_call_fails() -> None:
    clock = ImpatientClock()
    store = Bucket(clock, per_s=200)
    blob = RetryBlob(store, attempts_max=1, clock=clock, chance=random.Random(1))
    began_s = clock.monotonic_s()

    for _ in range(20_000):
        blob.get("key")

    took_s = clock.monotonic_s() - began_s
    assert store.answered == 20_000
    assert 20_000 / took_s > 0.5 * 200, "it must not be far slower than the store allows"
    assert store.refused < 0.05 * store.answered, "and must not keep asking for what is refused"
    assert blob.counts()["get"].throttled == store.refused > 0


def test_the_limit_is_lifted_when_the_store_has_room_again() -> None:
    clock = ImpatientClock()
    store = Bucket(clock, per_s=200)
    blob = RetryBlob(store, clock=clock, chance=random.Random(1))
    for _ in range(2000):
        blob.get("key")
    assert blob.requests_per_s_max is not None

    store.per_s = 1e6
    for _ in range(100_000):
        blob.get("key")
        if blob.requests_per_s_max is None:
            break

    assert blob.requests_per_s_max is None


def test_the_rate_falls_by_half_once_for_all_requests_that_were_sent_before() -> None:
    clock = ImpatientClock()
    rate = AdaptiveRate(clock)
    sent_s = [clock.monotonic_s() for _ in range(100) if rate.take_turn(clock.monotonic_s(), 1e9) is not None]
    clock.sleep(1.0)
    for each in sent_s:
        rate.was_throttled(each)
    first = rate.limit
    assert first is not None
    assert 40 < first < 60

    rate.was_throttled(clock.monotonic_s())

    assert rate.limit == first / 2


def test_turns_are_shared_by_all_callers_and_evenly_spaced() -> None:
    clock = ImpatientClock()
    rate = AdaptiveRate(clock)
    rate.was_throttled(clock.monotonic_s())
    assert rate.limit is not None
    now_s = clock.monotonic_s()

    turns = [rate.take_turn(now_s, now_s + 5) for _ in range(20)]

    granted = [turn for turn in turns if turn is not None]
    assert len(granted) == int(5 * rate.limit) + 1
    assert turns[len(granted) :] == [None] * (20 - len(granted)), "nobody waits for a turn that comes too late"
    gaps = [b - a for a, b in pairwise(granted)]
    assert all(abs(gap - 1 / rate.limit) < 1e-9 for gap in gaps)


def test_a_call_whose_turn_would_come_after_its_deadline_fails_at_once() -> None:
    clock = ImpatientClock()
    store = Bucket(clock, per_s=0.0)
    blob = RetryBlob(store, 5, throttled_s=5, clock=Shifted(clock), chance=random.Random(1))
    with pytest.raises(Throttled, match="slow down"):
        blob.get("key")
    asked = store.refused
    with pytest.raises(Throttled, match=r"'key' .* refuses more than 1\.0 requests"):
        blob.get("key")
    assert store.refused == asked


def test_many_clients_of_one_store_share_it() -> None:
    """Events in order of time: each client asks as soon as its own limit lets it."""
    now = ImpatientClock()
    store = Bucket(now, per_s=300)
    clients = [AdaptiveRate(Shifted(now)) for _ in range(8)]
    done = [0] * 8
    queue = [(0.001 * n, n) for n in range(8)]
    heapq.heapify(queue)
    while queue[0][0] < 120:
        at_s, n = heapq.heappop(queue)
        now.sleep(max(0.0, at_s - now.monotonic_s()))
        sent_s = now.monotonic_s()
        try:
            store.get("key")
        except Throttled:
            clients[n].was_throttled(sent_s)
        else:
            clients[n].succeeded()
            done[n] += 1
        turn_s = clients[n].take_turn(now.monotonic_s(), 1e9)
        assert turn_s is not None
        heapq.heappush(queue, (turn_s + 0.001, n))

    assert sum(done) > 0.6 * 120 * 300
    assert min(done) > 0.3 * sum(done) / 8, done


class Shifted:
    """A clock of another that does not sleep: the test lets time pass."""

    def __init__(self, clock: ImpatientClock) -> None:
        self.monotonic_s: Callable[[], float] = clock.monotonic_s
        self.wall_ms: Callable[[], int] = clock.wall_ms

    def sleep(self, seconds: float) -> None:
        """Return at once."""
