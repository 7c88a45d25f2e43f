"""Metrics as a value, as a table, and as OpenTelemetry gets them (by a stand-in: the package is optional)."""

import gc
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest

from persist.blob.layers.cache import CacheCount, CachedBlob
from persist.blob.layers.metered import MeteredBlob
from persist.blob.layers.retry import RetryBlob
from persist.blob.protocol import MemoryBlob
from persist.core import metrics
from persist.core.log.keys import is_immutable
from persist.core.metrics import Metrics, register_metrics


@dataclass
class Observation:
    value: float
    attributes: dict[str, str]


@dataclass
class Meter:
    """Keeps instruments as the SDK does: of two with one name, only the first is asked."""

    instruments: dict[str, tuple[str, str, list[Callable[[object], Iterable[Observation]]]]] = field(
        default_factory=dict
    )

    def create_observable_counter(self, name: str, callbacks: list[Any], unit: str = "") -> None:
        assert name not in self.instruments, "the SDK would warn and ignore the callbacks"
        self.instruments[name] = ("counter", unit, callbacks)

    def create_observable_gauge(self, name: str, callbacks: list[Any], unit: str = "") -> None:
        assert name not in self.instruments, "the SDK would warn and ignore the callbacks"
        self.instruments[name] = ("gauge", unit, callbacks)

    def collect(self, name: str) -> list[tuple[float, dict[str, str]]]:
        _, _, callbacks = self.instruments[name]
        return [(each.value, each.attributes) for callback in callbacks for each in callback(object())]


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> Meter:
    """The meter of a package opentelemetry that exists for the time of a test."""
    meter = Meter()
    package, api = ModuleType("opentelemetry"), ModuleType("opentelemetry.metrics")
    api.get_meter = {"persist": meter}.__getitem__  # type: ignore[attr-defined]
    api.Observation = Observation  # type: ignore[attr-defined]
    package.metrics = api  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "opentelemetry", package)
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", api)
    monkeypatch.setattr(metrics, "_exporter", metrics._Exporter())
    return meter


class Source:
    """A store with wrappers, and its metrics."""

    def __init__(self) -> None:
        self.metered = MeteredBlob(MemoryBlob())
        self.retry = RetryBlob(self.metered)
        self.cached = CachedBlob(self.retry, is_immutable=is_immutable)

    def metrics(self) -> Metrics:
        return Metrics(
            store=self.metered.get_counts(),
            retries=self.retry.get_counts(),
            cache=self.cached.get_counts(),
            groups={"commits": {"committed": 3, "races_lost": 0}},
        )


@pytest.fixture
def source() -> Source:
    source = Source()
    source.cached.set("part/1", b"x" * 1000)
    for _ in range(3):
        source.cached.get("part/1")
    return source


def test_metrics_are_data(source: Source) -> None:
    found = source.metrics().as_dict()
    assert found["store"]["set"]["requests"] == 1
    assert found["store"]["get"]["bytes"] == 1000
    assert set(found["store"]["get"]) == {
        *("requests", "errors", "bytes", "seconds", "p50_s", "p90_s", "p99_s", "max_s")
    }
    assert found["cache"]["hits"] == 2
    assert found["retries"]["get"]["retries"] == 0
    assert found["commits"] == {"committed": 3, "races_lost": 0}
    assert json.loads(json.dumps(found)) == found


def test_metrics_are_a_table(source: Source) -> None:
    lines = str(source.metrics()).splitlines()
    assert lines[0].split()[:4] == ["store", "requests", "errors", "MB"]
    get = next(line for line in lines if line.startswith("get"))
    assert get.split()[:3] == ["get", "1", "0"]
    assert len({len(line) for line in lines[:6]}) == 1, "the columns are aligned"
    assert "cache: hits 2," in str(source.metrics())
    assert "commits: committed 3, races_lost 0" in str(source.metrics())
    assert "retried" not in str(source.metrics())
    assert str(Metrics(store={})).count("\n") == 0


def test_every_number_is_exported_with_its_unit(meter: Meter, source: Source) -> None:
    register_metrics(source.metrics, {"location": "memory://x"})

    here = {"location": "memory://x"}
    assert (1, {**here, "operation": "set"}) in meter.collect("persist.store.requests")
    assert (1000, {**here, "operation": "get"}) in meter.collect("persist.store.bytes")
    assert len(meter.collect("persist.store.latency_s")) == 5 * 4
    quantiles = {labels["quantile"] for _, labels in meter.collect("persist.store.latency_s")}
    assert quantiles == {"0.5", "0.9", "0.99", "1"}
    assert meter.collect("persist.cache.hits") == [(2, here)]
    assert meter.collect("persist.commits.committed") == [(3, here)]
    kinds = {name: (kind, unit) for name, (kind, unit, _) in meter.instruments.items()}
    assert kinds["persist.store.bytes"] == ("counter", "By")
    assert kinds["persist.store.seconds"] == ("counter", "s")
    assert kinds["persist.store.latency_s"] == ("gauge", "s")
    assert kinds["persist.cache.memory_bytes"] == ("gauge", "By")
    assert kinds["persist.cache.evictions"] == ("counter", "")
    assert {f"persist.cache.{name}" for name in CacheCount.__dataclass_fields__} <= set(kinds)


def test_numbers_are_read_at_the_time_of_the_export(meter: Meter, source: Source) -> None:
    register_metrics(source.metrics, {})
    source.cached.get("part/1")
    assert meter.collect("persist.cache.hits") == [(3, {})]


def test_two_clients_share_the_metrics_and_one_that_unregisters_is_gone(meter: Meter, source: Source) -> None:
    other = Source()
    register_metrics(source.metrics, {"location": "a"})
    unregister = register_metrics(other.metrics, {"location": "b"})
    assert meter.collect("persist.cache.hits") == [(2, {"location": "a"}), (0, {"location": "b"})]
    unregister()
    unregister()
    assert meter.collect("persist.cache.hits") == [(2, {"location": "a"})]


def test_a_client_that_is_dropped_is_forgotten(meter: Meter) -> None:
    source = Source()
    register_metrics(source.metrics, {})
    assert len(meter.collect("persist.cache.hits")) == 1
    del source
    gc.collect()
    assert meter.collect("persist.cache.hits") == []


def test_a_function_is_kept(meter: Meter) -> None:
    register_metrics(lambda: Metrics(store={}, groups={"a": {"b": 1}}), {})
    gc.collect()
    assert meter.collect("persist.a.b") == [(1, {})]


def test_without_the_package_nothing_happens(monkeypatch: pytest.MonkeyPatch, source: Source) -> None:
    for name in ("opentelemetry", "opentelemetry.metrics"):
        monkeypatch.setitem(sys.modules, name, None)

    def metrics() -> Metrics:
        raise AssertionError("nobody asks for it")

    register_metrics(metrics, {})()
