"""What the clients of a run share: time, and a store.

    client -> UnreliableBlob -> ClientStore -> Tap -> MemoryBlob or FileBlob

`Tap` sees every request of all clients at one place, gives each new record of the log its moment, and checks
invariants. `ClientStore` can be cut, which is how a client dies: from then on it reaches storage no more, however
long its threads live on. A request that was under way when it was cut may still arrive, much later: `deliver` lets
it.

Where there is a baton, each request is a point at which it may be given on, before and after, and a `Nuisance` may stop
the thread or all of its client there, for moments or for hours.
"""

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from persist.blob.errors import StoreFull, Unavailable
from persist.blob.protocol import Blob, BlobEntry
from tests.proofs.simulator.baton import Baton
from tests.proofs.simulator.chain import Broken
from tests.proofs.simulator.history import Deletion
from tests.proofs.simulator.standing import LOG, Standing
from tests.support.invariants import Dangling

PARTS = "part/"
BEGAN_MS = 1_700_000_000_000


class World:
    """The clock that all clients share, more or less; it never shows the same time twice."""

    def __init__(self, baton: Baton | None = None) -> None:
        self.baton = baton
        self._lock = threading.Lock()
        self._now_s = 0.0

    def now_s(self) -> float:
        if self.baton is not None:  # No other thread runs meanwhile.
            self._now_s += 1e-6
            return self._now_s + self.baton.now_s
        with self._lock:
            self._now_s += 1e-6
            return self._now_s

    def advance(self, seconds: float) -> None:
        if self.baton is not None:
            self.baton.sleep(seconds)
            return
        with self._lock:
            self._now_s += seconds


class ClientClock:
    """What one client takes the time for: a little off, and its sleep costs nobody time."""

    def __init__(self, world: World, skew_s: float) -> None:
        self._world = world
        self._skew_s = skew_s
        self._dead_s: float | None = None

    def die(self) -> None:
        """From now on, what its client sleeps passes for itself only."""
        self._dead_s = self._world.now_s()

    def monotonic_s(self) -> float:
        if self._dead_s is not None:
            return self._dead_s
        if self._world.baton is not None:
            self._world.baton.glance()
        return self._world.now_s()

    def wall_ms(self) -> int:
        return BEGAN_MS + int((self.monotonic_s() + self._skew_s) * 1000)

    def sleep(self, seconds: float) -> None:
        if self._dead_s is None:
            self._world.advance(seconds)
        else:
            self._dead_s += seconds


@dataclass(frozen=True, slots=True)
class Nuisance:
    """How often a request is stopped before it is sent or before its answer is read, and for how long.

    Attributes:
        stalls: the thread that makes it stops.
        freezes: all threads of its client stop.
        seconds: for one of these times.
    """

    baton: Baton
    stalls: float = 0.0
    freezes: float = 0.0
    seconds: Sequence[float] = (0.01, 1.0, 30.0)

    def meet(self) -> float:
        """Let others go on first, and perhaps for long; return for how long."""
        baton, seconds = self.baton, 0.0
        task, draw = baton.task(), baton.chance.random()
        if draw < self.stalls + self.freezes:
            seconds = baton.chance.choice(self.seconds)
        if draw < self.stalls:
            baton.sleep(seconds)
        elif task is not None and draw < self.stalls + self.freezes:
            baton.freeze(task.group, seconds)
        baton.turn()
        return seconds


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
        self.inner = inner
        self._moments = moments
        self._now_s = now_s
        self._modified_s: dict[str, float] = {}
        self.landed: list[Landed] = []
        self.deletions: list[Deletion] = []
        self.values: dict[str, bytes] = {}
        self.stored: dict[str, int] = {}
        self.requests = 0
        self.broken: list[str] = []
        self.standing = Standing()
        self._changing = threading.Lock()
        self.room_bytes: int | None = None  # How much more there is room for; None for no limit.

    @property
    def url(self) -> str:
        return self.inner.url

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        self.requests += 1
        return self.inner.get(key, range)

    def set(self, client: str, key: str, value: bytes) -> None:
        self._admit(key, value)
        self._stores(client, key)
        self.values[key] = bytes(value)
        with self._changing:
            self.inner.set(key, value)
            self.check(f"{client} set {key}", lambda: self.standing.stored(client, key, value))

    def create(self, client: str, key: str, value: bytes) -> bool:
        self._admit(key, value)
        self._stores(client, key)
        with self._changing:
            created, at = self._moments.during(lambda: self.inner.create(key, value))
            if created:
                self.values[key] = bytes(value)
                if key.startswith(LOG):
                    self.landed.append(Landed(key, bytes(value), at, client, self._now_s()))
                self.check(f"{client} created {key}", lambda: self.standing.stored(client, key, value))
        return bool(created)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobEntry]:
        self.requests += 1
        for entry in self.inner.list(prefix, start_after):
            yield BlobEntry(entry.key, entry.bytes, self._modified_s[entry.key])

    def delete(self, client: str, key: str) -> None:
        self._stores(client)
        if key.startswith(PARTS):
            self.deletions.append(Deletion(key, self._moments.next(), client, self._now_s()))
        with self._changing:
            self.inner.delete(key)
            self.check(f"{client} deleted {key}", lambda: self.standing.deleted(key))

    def check(self, deed: str, check: Callable[[], None]) -> None:
        """Note what is broken after a deed."""
        try:
            check()
        except (Broken, Dangling) as broken:
            self.broken.append(f"after {deed}, @{self._moments.next()}: {broken}")

    def _admit(self, key: str, value: bytes) -> None:
        if self.room_bytes is not None:
            if len(value) > self.room_bytes:
                raise StoreFull(f"no room for {key}")
            self.room_bytes -= len(value)

    def _stores(self, client: str, key: str | None = None) -> None:
        if key is not None:
            self._modified_s[key] = self._now_s()
        self.requests += 1
        self.stored[client] = self.stored.get(client, 0) + 1


class ClientStore:
    """One client's way to the tap, until it is cut."""

    def __init__(self, tap: Tap, client: str, nuisance: Nuisance | None = None) -> None:
        self._tap = tap
        self._client = client
        self._nuisance = nuisance
        self._lock = threading.Lock()
        self._calls_left: int | None = None
        self._how = "before"
        self._limbo: list[Callable[[], Any]] = []
        self._stop: tuple[str, int, float] | None = None
        self.is_cut = False
        self.stopped_s = 0.0  # How long its requests were stopped, in all.
        self.refused = 0  # How many requests there was no room for.

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
            with suppress(StoreFull):
                call()
        return len(calls)

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        found: bytes | None = self._read(f"get {key}", lambda: self._tap.get(key, range))
        return found

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobEntry]:
        return iter(self._read(f"list {prefix}", lambda: [*self._tap.list(prefix, start_after)]))

    def set(self, key: str, value: bytes) -> None:
        self._mutate(f"set {key}", lambda: self._tap.set(self._client, key, value))

    def create(self, key: str, value: bytes) -> bool:
        return bool(self._mutate(f"create {key}", lambda: self._tap.create(self._client, key, value)))

    def delete(self, key: str) -> None:
        self._mutate(f"delete {key}", lambda: self._tap.delete(self._client, key))

    def close(self) -> None:
        """Do nothing: the store is shared."""

    def stop_at(self, request: str, skipped: int, seconds: float) -> None:
        """Let whoever makes a request that begins so stop before it reads the answer, but not the first ones."""
        self._stop = request, skipped, seconds

    def _meet_nuisance(self, answered: str = "") -> None:
        if self._nuisance is None or self.is_cut:
            return
        if answered and self._stop is not None and answered.startswith(self._stop[0]):
            request, skipped, seconds = self._stop
            self._stop = (request, skipped - 1, seconds) if skipped else None
            if not skipped:
                self.stopped_s += seconds
                self._nuisance.baton.sleep(seconds)
        self.stopped_s += self._nuisance.meet()

    def _read(self, request: str, call: Callable[[], Any]) -> Any:
        self._meet_nuisance()
        self._check()
        result = call()
        self._meet_nuisance(request)
        self._check()
        return result

    def _mutate(self, request: str, call: Callable[[], Any]) -> Any:
        self._meet_nuisance()
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
        try:
            result = call()
        except StoreFull:
            self.refused += 1
            raise
        self._meet_nuisance(request)
        if self.is_cut:
            raise Unavailable("this client died before the answer came")
        return result

    def _check(self) -> None:
        if self.is_cut:
            raise Unavailable("this client is dead")
