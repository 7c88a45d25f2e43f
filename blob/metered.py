"""Counts what a store is asked for: requests, bytes and seconds, for each operation."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar

from persist.blob.protocol import Blob, BlobEntry

LIST_PAGE_ENTRIES = 1000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Count:
    """What one operation amounts to so far.

    Attributes:
        requests: calls; for `list`, pages of up to 1,000 entries that were begun.
        errors: how many of them raised.
        bytes: of values, sent or received.
        seconds: spent in the store.
    """

    requests: int = 0
    errors: int = 0
    bytes: int = 0
    seconds: float = 0.0


class MeteredBlob:
    """Passes everything on to another store and counts it. The clock gives seconds, from anywhere."""

    def __init__(self, inner: Blob, clock: Callable[[], float] = time.monotonic) -> None:
        self._inner = inner
        self._clock = clock
        self._lock = threading.Lock()
        self._counts = {name: Count() for name in ("create", "delete", "get", "list", "set")}

    @property
    def url(self) -> str:
        return self._inner.url

    def counts(self) -> dict[str, Count]:
        """Return the counts so far, by the name of the operation."""
        with self._lock:
            return dict(self._counts)

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        return self._counted("get", lambda: self._inner.get(key, range), lambda value: len(value or b""))

    def set(self, key: str, value: bytes) -> None:
        self._counted("set", lambda: self._inner.set(key, value), lambda _: len(value))

    def create(self, key: str, value: bytes) -> bool:
        return self._counted("create", lambda: self._inner.create(key, value), lambda _: len(value))

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobEntry]:
        entries = iter(self._inner.list(prefix, start_after))
        while page := self._counted("list", lambda: [*islice(entries, LIST_PAGE_ENTRIES)], lambda _: 0):
            yield from page
            if len(page) < LIST_PAGE_ENTRIES:
                return

    def delete(self, key: str) -> None:
        self._counted("delete", lambda: self._inner.delete(key), lambda _: 0)

    def close(self) -> None:
        self._inner.close()

    def _counted(self, name: str, call: Callable[[], T], size: Callable[[T], int]) -> T:
        began = self._clock()
        errors, moved = 1, 0
        try:
            result = call()
            errors, moved = 0, size(result)
            return result
        finally:
            seconds = self._clock() - began
            with self._lock:
                c = self._counts[name]
                self._counts[name] = replace(
                    c,
                    requests=c.requests + 1,
                    errors=c.errors + errors,
                    bytes=c.bytes + moved,
                    seconds=c.seconds + seconds,
                )

    def __repr__(self) -> str:
        return f"MeteredBlob({self._inner!r})"
