"""Memory of Python's that Arrow's threads read from, and the end of the process.

A thread of Arrow may let go of a buffer shortly after the read that used it has returned. If the memory is Python's, it
takes the interpreter's lock for that. Before Python 3.14, whoever asks for that lock when the interpreter is ending has
its thread ended, which in the middle of a C++ destructor aborts the process: exit status 134, with all work done. So
what is lent is noted, and the process waits at its end until Arrow has given all of it back, for `WAIT_S` at most.

Rejected: memory of Arrow's own, which means to copy each part; decoding without threads; waiting for some milliseconds,
which on a busy machine is not enough. That this is about the process is why a module has a state here.
"""

import atexit
import itertools
import threading
import time
import weakref
from typing import Any

import numpy as np
import pyarrow as pa

WAIT_S = 2.0

_lock = threading.Lock()
_numbers = itertools.count()
_lent: "dict[int, weakref.ref[Any]]" = {}
_is_watched = False


def lent_buffer(data: bytes | memoryview) -> pa.Buffer:
    """Return bytes as a buffer that Arrow's threads may use; nothing is copied."""
    if not len(data):
        return pa.py_buffer(data)
    array = np.frombuffer(data, np.uint8)  # Of bytes themselves nobody can tell when they are gone.
    lend(array)
    return pa.py_buffer(array)


def lend(thing: Any) -> None:
    """Note that Arrow's threads may hold a thing until it is gone."""
    global _is_watched
    number = next(_numbers)
    _lent[number] = weakref.ref(thing, lambda _: _lent.pop(number))
    if not _is_watched:
        with _lock:
            if not _is_watched:
                _is_watched = True
                atexit.register(wait_for_returns)


def wait_for_returns(timeout_s: float = WAIT_S) -> bool:
    """Wait until nothing is lent any more; return False if something still is after timeout_s."""
    ends_s = time.monotonic() + timeout_s
    while _lent and time.monotonic() < ends_s:
        time.sleep(0.001)  # Which lets go of the lock that Arrow's threads wait for.
    return not _lent
