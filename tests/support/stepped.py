"""A store that lets something happen at a named step, and a wait for what another thread is about to do."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from persist.blob.protocol import Blob, BlobEntry

WAIT_S = 300.0  # A hang, and nothing that a busy machine takes long for.


@dataclass(frozen=True)
class _Step:
    operation: str
    prefix: str
    act: Callable[[], object]
    is_after: bool


class Stepped:
    """Passes calls on to a store. What was asked for with `before` or `after` happens once, in the calling thread."""

    def __init__(self, inner: Blob) -> None:
        self._inner = inner
        self._steps: list[_Step] = []

    def before(self, operation: str, prefix: str, act: Callable[[], object]) -> None:
        """Let act happen before the next call of operation for a key that begins with prefix."""
        self._steps.append(_Step(operation, prefix, act, False))

    def after(self, operation: str, prefix: str, act: Callable[[], object]) -> None:
        """Let act happen when the next such call is done, and its caller has not heard of that."""
        self._steps.append(_Step(operation, prefix, act, True))

    @property
    def is_done(self) -> bool:
        """Whether all that was asked for has happened: a test that finds it has not shows nothing."""
        return not self._steps

    @property
    def url(self) -> str:
        return self._inner.url

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        self._at("get", key, is_after=False)
        found = self._inner.get(key, range)
        self._at("get", key, is_after=True)
        return found

    def set(self, key: str, value: bytes) -> None:
        self._at("set", key, is_after=False)
        self._inner.set(key, value)
        self._at("set", key, is_after=True)

    def create(self, key: str, value: bytes) -> bool:
        self._at("create", key, is_after=False)
        created = self._inner.create(key, value)
        self._at("create", key, is_after=True)
        return created

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobEntry]:
        self._at("list", prefix, is_after=False)
        found = [*self._inner.list(prefix, start_after)]
        self._at("list", prefix, is_after=True)
        return iter(found)

    def delete(self, key: str) -> None:
        self._at("delete", key, is_after=False)
        self._inner.delete(key)
        self._at("delete", key, is_after=True)

    def close(self) -> None:
        self._inner.close()

    def _at(self, operation: str, key: str, *, is_after: bool) -> None:
        for step in [*self._steps]:
            if step.operation == operation and key.startswith(step.prefix) and step.is_after == is_after:
                self._steps.remove(step)
                step.act()


class Gate:
    """Where a thread waits, at a step of a store, until the test lets it go on."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._opened = threading.Event()

    def __call__(self) -> None:
        self._reached.set()
        assert self._opened.wait(WAIT_S), "nobody opened the gate"

    def wait_until_reached(self) -> None:
        assert self._reached.wait(WAIT_S), "nobody came to the gate"

    def open(self) -> None:
        self._opened.set()


def wait_until(is_so: Callable[[], bool]) -> None:
    """Return as soon as something is so that another thread brings about; fail if that takes `WAIT_S`."""
    ends_s = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < ends_s, "what was waited for did not happen"
        threading.Event().wait(0.001)
