"""Counts the requests to a store: number, errors, bytes and latency of each operation.

Latencies are counted in buckets whose widths grow with the latency: quantiles need bounded memory and O(1) per call.
Each power of two of seconds has `BUCKETS_PER_OCTAVE` equal buckets (as HdrHistogram does). From 1 µs to about an hour,
a quantile has a relative error of at most 1 / (2 * BUCKETS_PER_OCTAVE), about 3%. A latency beyond either end counts as
that end. The largest value is kept exactly.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from persist.blob.errors import PersistError
from persist.blob.protocol import LIST_PAGE_ENTRIES, OPERATIONS, Blob, BlobEntry, BlobLayer, DeletePage, get_at_most

T = TypeVar("T")
BUCKETS_PER_OCTAVE = 16
_EXPONENT_MIN = -19  # frexp's exponent: the first bucket begins at 2**-20 s, about 1 µs.
_OCTAVES = 32
BUCKETS = _OCTAVES * BUCKETS_PER_OCTAVE


class LatencyHistogram:
    """Counts of seconds by size, 512 integers. Not locked: callers that share one must lock it.

    Attributes:
        total: how many values were recorded.
        max_s: the largest of them, 0 before the first.
    """

    __slots__ = ("_buckets", "max_s", "total")

    def __init__(self) -> None:
        self._buckets = [0] * BUCKETS
        self.total = 0
        self.max_s = 0.0

    def record(self, seconds: float) -> None:
        """Count one duration."""
        mantissa, exponent = math.frexp(seconds)  # seconds == mantissa * 2**exponent with 0.5 <= mantissa < 1
        bucket = (exponent - _EXPONENT_MIN) * BUCKETS_PER_OCTAVE + int((mantissa - 0.5) * 2 * BUCKETS_PER_OCTAVE)
        self._buckets[min(max(bucket, 0), BUCKETS - 1) if seconds > 0 else 0] += 1
        self.total += 1
        if seconds > self.max_s:
            self.max_s = seconds

    def merge(self, other: "LatencyHistogram") -> None:
        """Add what other has counted, for example in another process."""
        self._buckets = [ours + added for ours, added in zip(self._buckets, other._buckets, strict=True)]
        self.total += other.total
        self.max_s = max(self.max_s, other.max_s)

    def copy(self) -> "LatencyHistogram":
        """Return a new histogram with the same counts."""
        new = LatencyHistogram()
        new.merge(self)
        return new

    def estimate_quantile_s(self, share: float) -> float:
        """Return a value that this share (0 to 1) of the recorded values does not exceed; 0 when there are none."""
        if not self.total:
            return 0.0
        rank = max(1, math.ceil(share * self.total))
        passed = 0
        for bucket, count in enumerate(self._buckets):
            passed += count
            if passed >= rank:
                return min(_compute_middle_s(bucket), self.max_s)
        raise AssertionError("the buckets hold fewer values than were recorded")


def _compute_middle_s(bucket: int) -> float:
    """Return the middle of a bucket's durations."""
    octave, part = divmod(bucket, BUCKETS_PER_OCTAVE)
    return math.ldexp(0.5 + (part + 0.5) / (2 * BUCKETS_PER_OCTAVE), octave + _EXPONENT_MIN)


@dataclass(frozen=True, slots=True)
class Count:
    """Totals of one operation.

    Attributes:
        requests: calls; for `list`, the pages of up to 1,000 entries that were begun; for `delete`, a page of keys is
            one call.
        errors: how many of them raised.
        bytes: of values, sent or received.
        seconds: the time spent in the store.
        p50_s, p90_s, p99_s: quantiles of the time of a call, with an error of at most 3%.
        max_s: the longest call.
    """

    requests: int = 0
    errors: int = 0
    bytes: int = 0
    seconds: float = 0.0
    p50_s: float = 0.0
    p90_s: float = 0.0
    p99_s: float = 0.0
    max_s: float = 0.0


class MeteredBlob(BlobLayer):
    """Passes calls on to another store, and counts and times them. The clock returns seconds from any start.

    Costs about 3 µs per call and 5 kB per operation.
    """

    def __init__(self, inner: Blob, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(inner)
        self._clock = clock
        self._tallies = {name: _Tally() for name in OPERATIONS}

    def get_counts(self) -> dict[str, Count]:
        """Return the counts so far, by the name of the operation."""
        return {name: tally.count() for name, tally in self._tallies.items()}

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        return self._measure("get", self._inner.get, key, range)

    def get_at_most(self, key: str, bytes_max: int) -> bytes | None:
        return self._measure("get", get_at_most, self._inner, key, bytes_max)

    def set(self, key: str, value: bytes) -> None:
        self._measure("set", self._inner.set, key, value, sent=len(value))

    def create(self, key: str, value: bytes) -> bool:
        return self._measure("create", self._inner.create, key, value, sent=len(value))

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobEntry]:
        entries = self._iterate_entries(prefix, start_after)
        while page := self._measure("list", lambda: [*islice(entries, LIST_PAGE_ENTRIES)]):
            yield from page
            if len(page) < LIST_PAGE_ENTRIES:
                return

    def delete(self, key: str) -> None:
        self._measure("delete", self._inner.delete, key)

    def _delete_page(self, delete: DeletePage, keys: Sequence[str]) -> Mapping[str, PersistError]:
        return self._measure("delete", delete, keys)

    def _iterate_entries(self, prefix: str, start_after: str | None) -> Iterator[BlobEntry]:
        """List as a generator, so that errors of the call are counted too."""
        yield from self._inner.list(prefix, start_after)

    def _measure(self, name: str, call: Callable[..., T], *arguments: Any, sent: int = 0) -> T:
        """Make a call; record its time, bytes and errors."""
        began_s = self._clock()
        try:
            result = call(*arguments)
        except BaseException:
            self._tallies[name].add(self._clock() - began_s, errors=1, moved=0)
            raise
        moved = len(result) if isinstance(result, bytes) else sent
        self._tallies[name].add(self._clock() - began_s, errors=0, moved=moved)
        return result


class _Tally:
    """The running sums of one operation."""

    __slots__ = ("_bytes", "_errors", "_histogram", "_lock", "_seconds")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._errors = self._bytes = 0
        self._seconds = 0.0
        self._histogram = LatencyHistogram()

    def add(self, seconds: float, *, errors: int, moved: int) -> None:
        """Add one call to the sums."""
        with self._lock:
            self._errors += errors
            self._bytes += moved
            self._seconds += seconds
            self._histogram.record(seconds)

    def count(self) -> Count:
        """Return the sums so far."""
        with self._lock:
            histogram = self._histogram
            p50_s, p90_s, p99_s = map(histogram.estimate_quantile_s, (0.5, 0.9, 0.99))
            return Count(
                histogram.total, self._errors, self._bytes, self._seconds, p50_s, p90_s, p99_s, histogram.max_s
            )
