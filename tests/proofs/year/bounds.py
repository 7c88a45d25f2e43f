"""The bounds of the year: what is measured, when it is judged, and how a broken one is told."""

import gc
import json
import resource
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.proofs.year.census import Found

FOLDER = "/dev/shm" if Path("/dev/shm").is_dir() else None
MEMORY_RISE_MAX = 0.05
STORAGE_MAX = 1.6
SPEED_MAX = 3.0
SETTLING_DAYS = 8  # A week of retention has to pass before anything can stay as it was.
YARDSTICK = "yardstick"
FIRST_MIN = 20  # Calls that make a first day: of what is done less often, the days until there are so many.
SAMPLES_MIN = 1_000  # Of a span that a percentile is taken of; a span ends with the day on which it has so many.
MEMORY_DAYS_MIN = 100  # Before so many days have been seen after the first tenth, there is no line.


class BrokenBound(AssertionError):
    """A bound that does not hold: which, by how much, and on which day."""

    def __init__(self, bound: str, day: int, text: str) -> None:
        super().__init__(f"{bound}, day {day}: {text}")
        self.bound = bound
        self.day = day


@dataclass(slots=True)
class Line:
    """A straight line through resident bytes by day."""

    first: float
    last: float

    @property
    def rise(self) -> float:
        return self.last / self.first - 1


@dataclass(slots=True)
class Span:
    """How long an operation took in some days, in ms of processor time."""

    day: int
    count: int
    median: float
    p99: float


@dataclass(slots=True)
class Gauges:
    """All measurements; small, because memory is among what is measured."""

    days: int
    resident: list[tuple[int, int]] = field(default_factory=list)
    census: list[tuple[int, Found]] = field(default_factory=list)
    first_day: dict[str, Span] = field(default_factory=dict)
    spans: dict[str, list[Span]] = field(default_factory=dict)
    broken: list[BrokenBound] = field(default_factory=list)
    _samples: dict[str, list[float]] = field(default_factory=dict)
    looking: "Looking" = field(default_factory=lambda: Looking())
    _yardstick: "Yardstick" = field(default_factory=lambda: Yardstick())

    @property
    def settling_days(self) -> int:
        """How many days pass before the first one that is measured."""
        return min(SETTLING_DAYS, self.days // 5)

    @contextmanager
    def timed(self, operation: str, calls: int = 1) -> Iterator[None]:
        """Count the processor time of a block that makes so many calls of an operation, all alike.

        What Python takes to look for garbage in the whole heap is counted apart: it falls upon any call, and grows with
        all that this process holds, the books included.
        """
        began, looked_s = time.process_time(), self.looking.seconds
        yield
        self.add(operation, 1000 * (time.process_time() - began - (self.looking.seconds - looked_s)) / calls)

    def add(self, operation: str, cost_ms: float) -> None:
        """Count a call of an operation."""
        self._samples.setdefault(operation, []).append(cost_ms)

    def measure_yardstick(self) -> None:
        """Time work that is always the same: what it takes more at times is the machine's doing."""
        with self.timed(YARDSTICK):
            self._yardstick.measure()

    def end_day(self, day: int, found: Found | None) -> None:
        """Note what a day has come to, and judge it."""
        self.resident.append((day, resident_bytes()))
        if found is not None:
            self.census.append((day, found))
            self.check_storage(day, found)
        if day <= self.settling_days:
            self._samples.clear()
        for operation in sorted(self._samples, key=lambda operation: operation != YARDSTICK):
            self._end_span(operation, day)
        if day == self.days:  # A line through less of the year says more of its beginning than of the rest.
            self.check_memory(day)

    def check_memory(self, day: int) -> None:
        """Judge the line through all days after the first tenth."""
        line = self.memory_line()
        if line is not None and line.rise >= MEMORY_RISE_MAX:
            grew = f"from {line.first / 2**20:.0f} to {line.last / 2**20:.0f} MiB"
            self._break(
                "memory", day, f"resident bytes rise by {line.rise:.1%} {grew}; {MEMORY_RISE_MAX:.0%} is allowed"
            )

    def check_storage(self, day: int, found: Found) -> None:
        """Judge what is stored by what is needed."""
        for what, ratio in found.ratios.items():
            if ratio > STORAGE_MAX:
                stored, needed = getattr(found.stored, what), getattr(found.needed, what)
                text = f"{stored:,} {what} are stored and {needed:,} needed, which is {ratio:.2f}"
                self._break("storage", day, f"{text}; {STORAGE_MAX} is allowed. {excess(found)}")

    def memory_line(self) -> Line | None:
        """Return the line, if enough days have been seen; None before."""
        seen = [(day, size) for day, size in self.resident if day > self.days / 10]
        if len(seen) < MEMORY_DAYS_MIN:
            return None
        return fitted(seen)

    def worst(self, operation: str) -> Span:
        """Return the span with the greatest 99th percentile."""
        return max(self.spans[operation], key=lambda span: span.p99)

    def _end_span(self, operation: str, day: int) -> None:
        samples = self._samples[operation]
        is_first = operation not in self.first_day
        if len(samples) < (FIRST_MIN if is_first else SAMPLES_MIN) and day < self.days:
            return
        median, p99 = np.percentile(samples, [50, 99])
        span = Span(day, len(samples), float(median), float(p99))
        del self._samples[operation]
        if is_first:
            self.first_day[operation] = span
        if span.count < SAMPLES_MIN:
            return  # Too few for a percentile that one odd moment does not decide.
        self.spans.setdefault(operation, []).append(span)
        bound = self.allowed_ms(operation, day)
        if operation != YARDSTICK and span.p99 > bound:
            text = f"the 99th percentile of {operation!r} is {span.p99:.2f} ms of {span.count} calls"
            text = f"{text}; the median of the first day is {self.first_day[operation].median:.2f}"
            self._break("speed", day, f"{text}, and {bound:.2f} are allowed")

    def allowed_ms(self, operation: str, day: int) -> float:
        """Return the bound of a 99th percentile: more where the yardstick's own is above its median."""
        median = self.first_day[operation].median
        measured = [span for span in self.spans.get(YARDSTICK, ()) if span.day <= day]
        if not measured:
            return SPEED_MAX * median
        return SPEED_MAX * median * max(1.0, measured[-1].p99 / self.first_day[YARDSTICK].median)

    def _break(self, bound: str, day: int, text: str) -> None:
        self.broken.append(BrokenBound(bound, day, text))


class Looking:
    """How often Python has looked for garbage in the whole heap, and for how long, in processor time."""

    def __init__(self) -> None:
        self.times = 0
        self.seconds = 0.0
        self._began = 0.0
        gc.callbacks.append(self._note)

    def close(self) -> None:
        """Note no more; idempotent."""
        with suppress(ValueError):
            gc.callbacks.remove(self._note)

    def _note(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] < 2:
            return
        if phase == "start":
            self._began = time.process_time()
        else:
            self.times += 1
            self.seconds += time.process_time() - self._began


class Yardstick:
    """Work that is like a commit and knows nothing of the library: JSON, a file, and a thread that does it."""

    def __init__(self) -> None:
        self._value = {str(number): [number, f"note {number}", 0.5 * number] for number in range(60)}
        self._threads = ThreadPoolExecutor(1, "yardstick")

    def measure(self) -> None:
        """Do it once."""
        self._threads.submit(self._work).result()

    def _work(self) -> None:
        for _ in range(5):
            text = json.dumps(self._value)
            json.loads(text)
        with tempfile.TemporaryFile(dir=FOLDER) as file:
            file.write(text.encode())


def fitted(seen: Sequence[tuple[int, int]]) -> Line:
    """Return the least squares line through bytes by day."""
    days, sizes = np.array(seen, dtype=float).T
    slope, start = np.polyfit(days, sizes, 1)
    return Line(start + slope * days[0], start + slope * days[-1])


def resident_bytes() -> int:
    """Return how much memory this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def excess(found: Found) -> str:
    """Say of which kinds more is stored than needed."""
    by_kind: Mapping[str, tuple] = found.by_kind  # type: ignore[type-arg]
    return ", ".join(
        f"{kind}: {stored.objects:,} of {needed.objects:,} objects, {stored.bytes:,} of {needed.bytes:,} bytes"
        for kind, (stored, needed) in by_kind.items()
        if stored != needed
    )
