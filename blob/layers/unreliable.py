"""A store that fails on purpose, for tests: at random from a seed, or by a script."""

import random
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import Enum
from typing import TypeVar

from persist.blob.errors import Indeterminate, PersistError, Unavailable
from persist.blob.protocol import OPERATIONS, Blob, BlobEntry, BlobLayer, DeletePage, get_at_most

T = TypeVar("T")

READS = ("get", "list")


class Fault(Enum):
    """What goes wrong with one call."""

    NONE = "it works"
    UNAVAILABLE = "it does not happen, and the caller is told so"
    NOT_HAPPENED_DOUBTFUL = "it does not happen, and the caller is told that it may have"
    HAPPENED_BUT_FAILED = "it happens, and the caller is told that it may have"
    SLOW = "it happens after a pause"


class UnreliableBlob(BlobLayer):
    """Passes calls on to another store, except those that it makes fail.

    Scripted faults (`script_faults`) are used first; after them, each call fails with configured probabilities. Reads
    are never doubtful: for them, such a fault is `UNAVAILABLE`.

    Args:
        chance: where randomness comes from; no random faults without it.
        unavailable, not_happened_doubtful, happened_but_failed, slow: probabilities of the faults of these names.
        sleep: called first by a slow call.
        operations: which operations may fail by chance.
    """

    def __init__(
        self,
        inner: Blob,
        chance: random.Random | None = None,
        *,
        unavailable: float = 0.0,
        not_happened_doubtful: float = 0.0,
        happened_but_failed: float = 0.0,
        slow: float = 0.0,
        sleep: Callable[[], None] = lambda: None,
        operations: Collection[str] = OPERATIONS,
    ) -> None:
        super().__init__(inner)
        self._chance = chance
        self._sleep = sleep
        self._operations = frozenset(operations)
        self._lock = threading.Lock()
        self._scripted: dict[str, deque[Fault]] = {}
        self._is_down = False
        self._odds = {
            Fault.UNAVAILABLE: unavailable,
            Fault.NOT_HAPPENED_DOUBTFUL: not_happened_doubtful,
            Fault.HAPPENED_BUT_FAILED: happened_but_failed,
            Fault.SLOW: slow,
        }
        self.faults = dict.fromkeys(Fault, 0)

    def script_faults(self, operation: str, *faults: Fault) -> None:
        """Make the next calls of an operation ("get", "create", …) fail with these faults, one after the other."""
        with self._lock:
            self._scripted.setdefault(operation, deque()).extend(faults)

    def clear_faults(self) -> None:
        """Drop all scripted faults, and end `go_down`."""
        with self._lock:
            self._scripted.clear()
            self._is_down = False

    def go_down(self) -> None:
        """Make every call `UNAVAILABLE` until `clear_faults`."""
        with self._lock:
            self._is_down = True

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        return self._call_with_fault("get", lambda: self._inner.get(key, range))

    def get_at_most(self, key: str, bytes_max: int) -> bytes | None:
        return self._call_with_fault("get", lambda: get_at_most(self._inner, key, bytes_max))

    def set(self, key: str, value: bytes) -> None:
        self._call_with_fault("set", lambda: self._inner.set(key, value))

    def create(self, key: str, value: bytes) -> bool:
        return self._call_with_fault("create", lambda: self._inner.create(key, value))

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobEntry]:
        return self._call_with_fault("list", lambda: self._inner.list(prefix, start_after))

    def delete(self, key: str) -> None:
        self._call_with_fault("delete", lambda: self._inner.delete(key))

    def _delete_page(self, delete: DeletePage, keys: Sequence[str]) -> Mapping[str, PersistError]:
        return self._call_with_fault("delete", lambda: delete(keys))

    def _call_with_fault(self, operation: str, call: Callable[[], T]) -> T:
        """Make a call with the next fault, before or after it."""
        fault = self._pop_fault(operation)
        if fault is Fault.UNAVAILABLE or (operation in READS and fault not in (Fault.NONE, Fault.SLOW)):
            raise Unavailable(f"injected: {operation} at {self.url} did not happen")
        if fault is Fault.NOT_HAPPENED_DOUBTFUL:
            raise Indeterminate(f"injected: no answer to {operation} at {self.url}")
        if fault is Fault.SLOW:
            self._sleep()
        result = call()
        if fault is Fault.HAPPENED_BUT_FAILED:
            raise Indeterminate(f"injected: no answer to {operation} at {self.url}")
        return result

    def _pop_fault(self, operation: str) -> Fault:
        """Return the next fault: scripted, or drawn at random."""
        with self._lock:
            scripted = self._scripted.get(operation)
            if self._is_down:
                fault = Fault.UNAVAILABLE
            elif scripted:
                fault = scripted.popleft()
            elif self._chance is None or operation not in self._operations:
                fault = Fault.NONE
            else:
                odds = [1 - sum(self._odds.values()), *self._odds.values()]
                fault = self._chance.choices([Fault.NONE, *self._odds], odds)[0]
            self.faults[fault] += 1
            return fault
