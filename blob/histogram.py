"""Latencies counted in buckets whose widths grow with the latency: quantiles in bounded memory and O(1) per call.

Each power of two of seconds is cut into `BUCKETS_PER_OCTAVE` equal buckets (as HdrHistogram does), so a quantile is
told with a relative error of at most 1 / (2 * BUCKETS_PER_OCTAVE), about 3%, from 1 µs to about an hour; what is
beyond either end counts as if it were at it. The largest value is kept exactly.
"""

import math

BUCKETS_PER_OCTAVE = 16
_EXPONENT_MIN = -19  # frexp's exponent: the first bucket begins at 2**-20 s, about 1 µs.
_OCTAVES = 32
BUCKETS = _OCTAVES * BUCKETS_PER_OCTAVE


class LatencyHistogram:
    """Counts of seconds by size, 512 integers. Not locked: whoever shares one guards it.

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
        """Count one value."""
        self._buckets[_bucket(seconds)] += 1
        self.total += 1
        if seconds > self.max_s:
            self.max_s = seconds

    def merge(self, other: "LatencyHistogram") -> None:
        """Add what other has counted, for example in another process."""
        self._buckets = [mine + theirs for mine, theirs in zip(self._buckets, other._buckets, strict=True)]
        self.total += other.total
        self.max_s = max(self.max_s, other.max_s)

    def copy(self) -> "LatencyHistogram":
        """Return another one with the same counts."""
        new = LatencyHistogram()
        new.merge(self)
        return new

    def quantile_s(self, share: float) -> float:
        """Return a value that this share (0 to 1) of the recorded ones do not exceed; 0 when there are none."""
        if not self.total:
            return 0.0
        rank = max(1, math.ceil(share * self.total))
        seen = 0
        for bucket, count in enumerate(self._buckets):
            seen += count
            if seen >= rank:
                return min(_middle_s(bucket), self.max_s)
        raise AssertionError("the buckets hold fewer values than were recorded")


def _bucket(seconds: float) -> int:
    mantissa, exponent = math.frexp(seconds)  # seconds == mantissa * 2**exponent with 0.5 <= mantissa < 1
    bucket = (exponent - _EXPONENT_MIN) * BUCKETS_PER_OCTAVE + int((mantissa - 0.5) * 2 * BUCKETS_PER_OCTAVE)
    return 0 if bucket < 0 or seconds <= 0 else min(bucket, BUCKETS - 1)


def _middle_s(bucket: int) -> float:
    octave, part = divmod(bucket, BUCKETS_PER_OCTAVE)
    return math.ldexp(0.5 + (part + 0.5) / (2 * BUCKETS_PER_OCTAVE), octave + _EXPONENT_MIN)
