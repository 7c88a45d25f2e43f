"""What lies between the clients of a run and the store they share.

    client -> UnreliableBlob -> ClientStore -> Tap -> MemoryBlob or FileBlob

`Tap` sees every request of all clients at one place, and gives each new record of the log its moment. `ClientStore` can
be cut, which is how a client dies: from then on it reaches storage no more, however long its threads live on. A request
that was under way when it was cut may still arrive, much later: `deliver` lets it.
"""

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from persist.blob import Blob, BlobEntry, Unavailable
from tests.nemesis.history import Deletion

LOG = "log/"
PARTS = "part/"


class Moments:
    """Numbers in the order in which things happen, from whatever thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count()

    def next(self) -> int:
        with self._lock:
            return next(self._numbers)

    def during(self, act: Callable[[], Any]) -> tuple[Any, int]:
        """Return the result of act and its moment: all that begins after act gets a later one."""
        with self._lock:
            return act(), next(self._numbers)


@dataclass(frozen=True, slots=True)
class Landed:
    """A record of the log as it came into being."""

    key: str
    value: bytes
    at: int
    client: str
    clock_s: float


class Tap:
    """Passes requests on to the shared store, dates blobs by the world's clock, and remembers what was deleted."""

    def __init__(self, inner: Blob, moments: Moments, now_s: Callable[[], float]) -> None:
        self._inner = inner
        self._moments = moments
        self._now_s = now_s
        self._modified_s: dict[str, float] = {}
        self.landed: list[Landed] = []
        self.deletions: list[Deletion] = []
        self.values: dict[str, bytes] = {}
        self.stored: dict[str, int] = {}

    @property
    def url(self) -> str:
        return self._inner.url

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        return self._inner.get(key, range)

    def set(self, client: str, key: str, value: bytes) -> None:
        self._stores(client, key)
        self.values[key] = bytes(value)
        self._inner.set(key, value)

    def create(self, client: str, key: str, value: bytes) -> bool:
        self._stores(client, key)
        if not key.startswith(LOG):
            self.values.setdefault(key, bytes(value))
            return self._inner.create(key, value)
        created, at = self._moments.during(lambda: self._inner.create(key, value))
        if created:
            self.landed.append(Landed(key, bytes(value), at, client, self._now_s()))
        return bool(created)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobEntry]:
        for entry in self._inner.list(prefix, start_after):
            yield replace(entry, modified_s=self._modified_s[entry.key])

    def delete(self, client: str, key: str) -> None:
        self._stores(client)
        if key.startswith(PARTS):
            self.deletions.append(Deletion(key, self._moments.next(), client, self._now_s()))
        self._inner.delete(key)

    def _stores(self, client: str, key: str | None = None) -> None:
        if key is not None:
            self._modified_s[key] = self._now_s()
        self.stored[client] = self.stored.get(client, 0) + 1


class ClientStore:
    """One client's way to the tap, until it is cut."""

    def __init__(self, tap: Tap, client: str) -> None:
        self._tap = tap
        self._client = client
        self._lock = threading.Lock()
        self._calls_left: int | None = None
        self._how = "before"
        self._limbo: list[Callable[[], Any]] = []
        self.is_cut = False

    @property
    def url(self) -> str:
        return self._tap.url

    def cut(self) -> None:
        """Fail every call from now on."""
        with self._lock:
            self.is_cut = True

    def cut_at(self, calls: int, how: str) -> None:
        """Cut it at the call after so many mutating ones more; how says what becomes of that one.

        "before": it is not done; "after": it is; "limbo": it is not, unless somebody calls `deliver`.
        """
        with self._lock:
            self._calls_left, self._how = calls, how

    def deliver(self) -> int:
        """Let the request arrive that was under way; return how many there were."""
        with self._lock:
            calls, self._limbo = self._limbo, []
        for call in calls:
            call()
        return len(calls)

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        self._check()
        return self._tap.get(key, range)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobEntry]:
        self._check()
        return self._tap.list(prefix, start_after)

    def set(self, key: str, value: bytes) -> None:
        self._mutate(lambda: self._tap.set(self._client, key, value))

    def create(self, key: str, value: bytes) -> bool:
        return bool(self._mutate(lambda: self._tap.create(self._client, key, value)))

    def delete(self, key: str) -> None:
        self._mutate(lambda: self._tap.delete(self._client, key))

    def close(self) -> None:
        """Do nothing: the store is shared."""

    def _mutate(self, call: Callable[[], Any]) -> Any:
        with self._lock:
            cuts_now = False
            if self._calls_left is not None and not self.is_cut:
                cuts_now = self._calls_left == 0
                self._calls_left -= 1
            refused = self.is_cut
            self.is_cut = self.is_cut or cuts_now
            if cuts_now and self._how == "limbo":
                self._limbo.append(call)
        if refused or (cuts_now and self._how != "after"):
            raise Unavailable("this client is dead")
        result = call()
        if cuts_now:
            raise Unavailable("this client died before the answer came")
        return result

    def _check(self) -> None:
        if self.is_cut:
            raise Unavailable("this client is dead")
