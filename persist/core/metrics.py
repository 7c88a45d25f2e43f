"""A client's counters as one value, and their export as OpenTelemetry metrics if that package is installed.

The names of the exported metrics follow `Metrics.as_dict`:

    persist.store.<requests|errors|bytes|seconds>     counter, by operation
    persist.store.latency_s                           gauge, by operation and quantile ("0.5" to "1")
    persist.retries.<field>                           counter, by operation
    persist.cache.<field>                             counter; memory_bytes and folder_bytes are gauges
    persist.<group>.<name>                            gauge, for the rest

Nothing is imported or started before `register_metrics`, and without the package nothing is. Each metric is created
once in a process and reads every registered client, because OpenTelemetry ignores the callbacks of a second metric of
the same name, and cannot remove a metric.
"""

import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib import import_module
from itertools import count
from types import MethodType
from typing import Any, NamedTuple

from persist.blob.layers.cache import CacheCount
from persist.blob.layers.metered import Count
from persist.blob.layers.retry import RetryCount
from persist.core.rendering import Shown

METER = "persist"
_QUANTILES = {"p50_s": "0.5", "p90_s": "0.9", "p99_s": "0.99", "max_s": "1"}
_UNITS = {"bytes": "By", "seconds": "s", "memory_bytes": "By", "folder_bytes": "By"}
_LEVELS = ("memory_bytes", "folder_bytes")  # Levels of a cache, which go up and down.
_NO_GROUPS: Mapping[str, Mapping[str, float]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics(Shown):
    """A client's counters; printed, they are a table.

    Attributes:
        store: requests to the store by operation, retries included; see `persist.blob.layers.metered.Count`.
        retries: see `persist.blob.layers.retry.RetryCount`; empty if the store is not retried by this client.
        cache: see `persist.blob.layers.cache.CacheCount`; None without a cache.
        groups: further numbers by group and name, such as {"commits": {"committed": 7}}.
    """

    store: Mapping[str, Count]
    retries: Mapping[str, RetryCount] = field(default_factory=dict)
    cache: CacheCount | None = None
    groups: Mapping[str, Mapping[str, float]] = field(default_factory=lambda: _NO_GROUPS)

    def as_dict(self) -> dict[str, Any]:
        """Return all counters as nested dicts of numbers, for JSON; the cache is None without one."""
        return {
            "store": {name: asdict(numbers) for name, numbers in self.store.items()},
            "retries": {name: asdict(numbers) for name, numbers in self.retries.items()},
            "cache": None if self.cache is None else asdict(self.cache),
            **{name: dict(group) for name, group in self.groups.items()},
        }

    def __str__(self) -> str:
        return "\n".join(_iterate_lines(self))


def register_metrics(
    metrics: Callable[[], Metrics], attributes: Mapping[str, str], shape: Hashable = None
) -> Callable[[], None]:
    """Export metrics until the returned function is called; do nothing without the package opentelemetry-api.

    Args:
        metrics: called by the exporter's thread, once per metric and export. A bound method does not keep its object
            alive, and is forgotten with it.
        attributes: distinguish this client's numbers from others, such as {"location": url}; never credentials.
        shape: equal for sources whose metrics have the same names; None if unknown.
    """
    try:
        api = import_module("opentelemetry.metrics")
    except ImportError:
        return lambda: None
    return _exporter.add_client(api, metrics, attributes, shape)


class Reading(NamedTuple):
    """The value of one counter or gauge, with its unit and attributes."""

    name: str
    value: float
    is_counter: bool
    unit: str = ""
    attributes: Mapping[str, str] = {}


class _Exporter:
    """The metrics that this process exports, and the clients that have them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = count()
        self._sources: dict[int, tuple[Callable[[], Metrics | None], Mapping[str, str]]] = {}
        self._names: set[str] = set()
        self._shapes: set[Hashable] = set()

    def add_client(
        self, api: Any, metrics: Callable[[], Metrics], attributes: Mapping[str, str], shape: Hashable
    ) -> Callable[[], None]:
        """Register a client, and return the function that removes it."""
        first = () if shape in self._shapes else [*iterate_readings(metrics())]
        with self._lock:
            number = next(self._numbers)
            self._sources[number] = (self._make_weak_reader(metrics, number), dict(attributes))
            new = {reading.name: reading for reading in first if reading.name not in self._names}
            self._names.update(new)
            if shape is not None:
                self._shapes.add(shape)
        meter = api.get_meter(METER)
        for reading in new.values():
            create = meter.create_observable_counter if reading.is_counter else meter.create_observable_gauge
            create(reading.name, callbacks=[partial(self._observe, api.Observation, reading.name)], unit=reading.unit)
        return partial(self._remove, number)

    def _make_weak_reader(self, metrics: Callable[[], Metrics], number: int) -> Callable[[], Metrics | None]:
        """Return a function that returns metrics, or None after the client is gone."""
        if not isinstance(metrics, MethodType):
            return metrics
        method = weakref.WeakMethod(metrics, lambda _: self._remove(number))

        def call() -> Metrics | None:
            bound_method = method()
            return None if bound_method is None else bound_method()

        return call

    def _remove(self, number: int) -> None:
        """Forget a client by its number."""
        # Without the lock: it may run inside of it, when the garbage collector finds a client there.
        self._sources.pop(number, None)

    def _observe(self, observation: Callable[..., Any], name: str, options: object) -> Iterable[Any]:
        """Yield the observations of one metric by all clients."""
        with self._lock:
            sources = [*self._sources.values()]
        for metrics, attributes in sources:
            numbers = metrics()
            for reading in iterate_readings(numbers) if numbers is not None else ():
                if reading.name == name:
                    yield observation(reading.value, {**attributes, **reading.attributes})


# Module state, against the rule: OpenTelemetry's registry is one per process, see above.
_exporter = _Exporter()


def iterate_readings(metrics: Metrics) -> Iterator[Reading]:
    """Yield each counter as a reading with its labels."""
    for operation, store in metrics.store.items():
        by_operation = {"operation": operation}
        for name, value in asdict(store).items():
            if name in _QUANTILES:
                labels = {**by_operation, "quantile": _QUANTILES[name]}
                yield Reading("persist.store.latency_s", value, False, "s", labels)
            else:
                yield Reading(f"persist.store.{name}", value, True, _UNITS.get(name, ""), by_operation)
    for operation, retry in metrics.retries.items():
        for name, value in asdict(retry).items():
            yield Reading(f"persist.retries.{name}", value, True, "", {"operation": operation})
    if metrics.cache is not None:
        for name, value in asdict(metrics.cache).items():
            yield Reading(f"persist.cache.{name}", value, name not in _LEVELS, _UNITS.get(name, ""))
    for group, numbers in metrics.groups.items():
        for name, value in numbers.items():
            yield Reading(f"persist.{group}.{name}", value, False)


def _iterate_lines(metrics: Metrics) -> Iterator[str]:
    """Yield the metrics as lines of text."""
    latencies = "".join(f"{name:>9}" for name in ("p50 ms", "p90 ms", "p99 ms", "max ms"))
    yield f"{'store':<8}{'requests':>10}{'errors':>8}{'MB':>10}{'s':>9}{latencies}"
    for name, c in metrics.store.items():
        quantiles = "".join(f"{1000 * s:>9.2f}" for s in (c.p50_s, c.p90_s, c.p99_s, c.max_s))
        yield f"{name:<8}{c.requests:>10,}{c.errors:>8,}{c.bytes / 1e6:>10.2f}{c.seconds:>9.2f}{quantiles}"
    for name, retry in metrics.retries.items():
        if any(asdict(retry).values()):
            yield f"retried {name}: {_format_numbers(asdict(retry))}"
    if metrics.cache is not None:
        yield f"cache: {_format_numbers(asdict(metrics.cache))}"
    for group, numbers in metrics.groups.items():
        yield f"{group}: {_format_numbers(numbers)}"


def _format_numbers(numbers: Mapping[str, float]) -> str:
    """Return numbers by name as text."""
    return ", ".join(f"{name} {value:,}" for name, value in numbers.items())
