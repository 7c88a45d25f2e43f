"""Latency quantiles: how exact they are, and that they add up."""

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable

import pytest

from persist.blob.errors import PersistError, Unavailable
from persist.blob.layers.metered import BUCKETS, BUCKETS_PER_OCTAVE, Count, LatencyHistogram, MeteredBlob
from persist.blob.layers.unreliable import Fault, UnreliableBlob
from persist.blob.protocol import LIST_PAGE_ENTRIES, MemoryBlob

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


def test_nothing_recorded_is_zero() -> None:
    assert (LatencyHistogram().estimate_quantile_s(0.5), LatencyHistogram().max_s) == (0.0, 0.0)


def test_values_beyond_both_ends_are_counted_at_the_ends() -> None:
    histogram = filled([0.0, 1e-12, -1.0, 2.0**-20, 1e9])
    assert [histogram.estimate_quantile_s(share) for share in (0.0, 0.2, 0.6, 0.8)] == [2.0**-20 * 33 / 32] * 4
    assert histogram.estimate_quantile_s(0.81) == histogram.estimate_quantile_s(1.0) == 4096 * 63 / 64
    assert (histogram.total, histogram.max_s) == (5, 1e9)


@pytest.mark.parametrize(
    ("value", "middle"),
    [
        (1.0, 33 / 32),
        (1.0624, 33 / 32),
        (1.0625, 35 / 32),
        (0.5, 33 / 64),
        (1.9999, 63 / 32),
        (2.0**-19, 2.0**-19 * 33 / 32),
    ],
)
def test_a_quantile_is_the_middle_of_its_bucket(value: float, middle: float) -> None:
    assert filled([value, 5.0]).estimate_quantile_s(0.5) == middle
    assert filled([value]).estimate_quantile_s(1.0) == min(value, middle)


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


def test_each_operation_counts_its_calls_bytes_and_time() -> None:
    ticks = itertools.count()
    blob = MeteredBlob(MemoryBlob(), lambda: float(next(ticks)))
    for number in range(LIST_PAGE_ENTRIES):
        blob.set(f"{number:04d}", b"12")
    assert blob.create("0", b"123")
    assert not blob.create("0", b"123")
    assert (blob.get("0"), blob.get("0", (1, 2)), blob.get("1"), blob.get_at_most("0", 3)) == (
        b"123",
        b"2",
        None,
        b"123",
    )
    assert len([*blob.list("0")]) == LIST_PAGE_ENTRIES + 1
    blob.delete("0")
    assert len([*blob.list("0")]) == LIST_PAGE_ENTRIES
    one = LatencyHistogram.estimate_quantile_s(filled([1.0]), 0.5)
    assert blob.get_counts() == {
        name: Count(requests, 0, moved, float(requests), one, one, one, 1.0)
        for name, requests, moved in (
            ("create", 2, 6),
            ("delete", 1, 0),
            ("get", 4, 7),
            ("list", 4, 0),
            ("set", 1000, 2000),
        )
    }


def test_faults_come_by_script_then_by_chance_for_chosen_operations() -> None:
    slept = list[int]()
    odds = {"unavailable": 0.1, "not_happened_doubtful": 0.2, "happened_but_failed": 0.3, "slow": 0.15}
    blob = UnreliableBlob(
        MemoryBlob(), random.Random(3), **odds, sleep=lambda: slept.append(1), operations=("get", "set", "delete")
    )
    blob.script_faults("create", Fault.HAPPENED_BUT_FAILED, Fault.NOT_HAPPENED_DOUBTFUL)
    blob.script_faults("list", Fault.NOT_HAPPENED_DOUBTFUL, Fault.HAPPENED_BUT_FAILED, Fault.SLOW)
    outcomes = list[str]()
    for call in (lambda: blob.create("a", b"1"), lambda: [*blob.list("")]):
        for _ in range(4):
            try:
                outcomes.append(str(call()))
            except PersistError as error:
                outcomes.append(type(error).__name__)
    assert outcomes[:4] == ["Indeterminate", "Indeterminate", "False", "False"]
    assert outcomes[4:6] == ["Unavailable", "Unavailable"]
    assert "'a'" in outcomes[6]
    assert len(slept) == 1
    assert blob.faults == {Fault.NONE: 3, Fault.UNAVAILABLE: 0, Fault.SLOW: 1} | dict.fromkeys([*Fault][2:4], 2)
    raised = Counter[str]()
    for number in range(3000):
        operation = ("get", "set", "delete")[number % 3]
        try:
            getattr(blob, operation)(*("k", b"") if operation == "set" else ("k",))
        except PersistError as error:
            raised[f"{operation} {type(error).__name__}"] += 1
    shares = {"get Unavailable": 0.6, "set Unavailable": 0.1, "set Indeterminate": 0.5}
    shares |= {"delete Unavailable": 0.1, "delete Indeterminate": 0.5}
    assert {name: count / 1000 for name, count in raised.items()} == pytest.approx(shares, abs=0.04)
    assert len(slept) / 3000 == pytest.approx(0.15, abs=0.03)
    blob.script_faults("create", Fault.UNAVAILABLE)
    blob.go_down()
    blob.clear_faults()
    assert blob.create("b", b"")
