"""Latency quantiles: how exact they are, and that they add up."""

import math
import random
from collections.abc import Callable

import pytest

from persist.blob.errors import Unavailable
from persist.blob.layers.metered import BUCKETS, BUCKETS_PER_OCTAVE, LatencyHistogram, MeteredBlob
from persist.blob.layers.unreliable import UnreliableBlob
from persist.blob.protocol import MemoryBlob

ERROR_MAX = 1 / (2 * BUCKETS_PER_OCTAVE)
SHAPES: dict[str, Callable[[random.Random], float]] = {
    "uniform": lambda chance: chance.uniform(0.001, 0.1),
    "lognormal": lambda chance: chance.lognormvariate(-5, 2),
    "two peaks": lambda chance: chance.choice((0.0003, 0.7)),
    "constant": lambda chance: 0.0123,
}


def filled(values: list[float]) -> LatencyHistogram:
    histogram = LatencyHistogram()
    for value in values:
        histogram.record(value)
    return histogram


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.9, 0.99, 0.999, 1.0])
def test_a_quantile_is_off_by_at_most_the_width_of_half_a_bucket(shape: str, share: float) -> None:
    chance = random.Random(5)
    values = sorted(SHAPES[shape](chance) for _ in range(3000))
    exact = values[max(1, math.ceil(share * len(values))) - 1]

    assert filled(values).estimate_quantile_s(share) == pytest.approx(exact, rel=ERROR_MAX)


def test_the_largest_value_and_the_number_of_values_are_exact() -> None:
    histogram = filled([0.25, 0.123456789, 0.001])
    assert (histogram.max_s, histogram.total) == (0.25, 3)
    assert histogram.estimate_quantile_s(1.0) <= 0.25


def test_nothing_recorded_is_zero() -> None:
    assert (LatencyHistogram().estimate_quantile_s(0.5), LatencyHistogram().max_s) == (0.0, 0.0)


def test_values_beyond_both_ends_are_counted_at_the_ends() -> None:
    histogram = filled([0.0, 1e-12, -1.0, 1e9])
    assert histogram.total == 4
    assert histogram.estimate_quantile_s(0.5) < 2e-6
    assert histogram.estimate_quantile_s(1.0) > 3600
    assert histogram.max_s == 1e9


def test_merging_is_the_same_as_recording_in_one() -> None:
    chance = random.Random(6)
    values = [chance.lognormvariate(-5, 2) for _ in range(1000)]
    merged = filled(values[:300])
    merged.merge(filled(values[300:]))
    whole = filled(values)
    for share in (0.0, 0.3, 0.5, 0.9, 0.99, 1.0):
        assert merged.estimate_quantile_s(share) == whole.estimate_quantile_s(share)
    assert (merged.total, merged.max_s) == (whole.total, whole.max_s)


def test_memory_is_bounded() -> None:
    histogram = filled([math.ldexp(1 + n / 7, e) for n in range(7) for e in range(-80, 80)])
    assert len(histogram._buckets) == BUCKETS


def test_a_metered_store_tells_quantiles_of_each_operation() -> None:
    now_s = 0.0
    took_s = iter([0.001 * n for n in range(1, 101)] + [0.5] * 3)

    def clock() -> float:
        return now_s

    class Slow(MemoryBlob):
        def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
            nonlocal now_s
            now_s += next(took_s)
            return super().get(key, range)

    blob = MeteredBlob(Slow(), clock)
    blob.set("key", b"12345")
    for _ in range(100):
        blob.get("key")

    count = blob.get_counts()["get"]
    assert (count.requests, count.errors, count.bytes) == (100, 0, 500)
    assert count.seconds == pytest.approx(5.05)
    assert [count.p50_s, count.p90_s, count.p99_s] == pytest.approx([0.05, 0.09, 0.099], rel=ERROR_MAX)
    assert count.max_s == pytest.approx(0.1)
    assert blob.get_counts()["set"].max_s == 0.0


def test_a_failed_call_is_timed_and_counted_as_an_error() -> None:
    inner = UnreliableBlob(MemoryBlob())
    inner.go_down()
    blob = MeteredBlob(inner)
    with pytest.raises(Unavailable):
        blob.get("key")
    with pytest.raises(Unavailable):
        list(blob.list(""))
    counts = blob.get_counts()
    assert [(counts[name].requests, counts[name].errors) for name in ("get", "list")] == [(1, 1), (1, 1)]
    assert counts["get"].max_s > 0
