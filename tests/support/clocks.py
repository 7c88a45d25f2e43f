"""Clocks that tests own, and a store that dates its blobs by one."""

import threading
from collections.abc import Iterator
from dataclasses import replace

from persist.blob.protocol import BlobEntry, MemoryBlob


class ImpatientClock:
    """Time passes only when somebody sleeps, so nothing that waits for the clock takes real time."""

    def __init__(self, wall_s: float = 1_700_000_000.0) -> None:
        self._lock = threading.Lock()
        self._now_s = 0.0
        self._wall_s = wall_s

    def monotonic_s(self) -> float:
        with self._lock:
            self._now_s += 1e-6
            return self._now_s

    def wall_ms(self) -> int:
        return int((self._wall_s + self.monotonic_s()) * 1000)

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self._now_s += seconds

    def jump(self, seconds: float) -> None:
        """Move the wall clock alone, as when the machine was suspended or somebody has set the clock."""
        with self._lock:
            self._wall_s += seconds


class DatedBlob(MemoryBlob):
    """A store in memory whose own clock is `clock`, which dates what it holds."""

    def __init__(self, clock: ImpatientClock) -> None:
        super().__init__()
        self.clock = clock
        self._dates: dict[str, float] = {}

    def set(self, key: str, value: bytes) -> None:
        super().set(key, value)
        self._dates[key] = self.clock.wall_ms() / 1000

    def create(self, key: str, value: bytes) -> bool:
        created = super().create(key, value)
        if created:
            self._dates[key] = self.clock.wall_ms() / 1000
        return created

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobEntry]:
        for entry in super().list(prefix, start_after):
            # Another thread may have created the value, and not dated it yet.
            yield replace(entry, modified_s=self._dates.get(entry.key, self.clock.wall_ms() / 1000))
