"""Memory that Arrow's threads and ours have from each other: lent to them until they return it, and given back by us.

A thread of Arrow may let go of a buffer shortly after the read that used it has returned. If the memory is Python's, it
takes the interpreter's lock for that. Before Python 3.14, whoever asks for that lock when the interpreter is ending has
its thread ended, which in the middle of a C++ destructor aborts the process: exit status 134, with all work done. So
what is lent is noted, and the process waits at its end until Arrow has given all of it back, for `WAIT_S` at most.

A scan that PyArrow drives asks Python for its batches out of C++. In a daemon thread it may be under way when the
interpreter ends, which aborts the process, too. So from the end on such a scan is refused, and so is its next
batch, and what is under way is waited for: exactly where the scan is a call of ours (`under_way`), and else, where
DuckDB or Polars drives it, for a moment after its last batch. Those of other threads, of `atexit` functions as well,
go on.

Rejected: memory of Arrow's own, which means to copy each part; decoding without threads; waiting for some milliseconds,
which on a busy machine is not enough. That this is about the process is why a module has a state here.

Mimalloc, which is Arrow's default, keeps what was freed for the thread that had allocated it, and only that thread can
return it. What one slice was decoded to is freed where the slice is merged. The threads that decoded it then wait for
their next part, or allocate in other sizes: together they held 100 to 150 MiB that nobody used, beyond any budget. So
each thread that decodes calls `give_back_freed`.
"""

import atexit
import itertools
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from persist.blob.errors import InvalidUsage

WAIT_S = 2.0
CALLS_WAIT_S = 30.0  # Their next batch is refused, so they end soon, but a busy machine may let them wait.
RETURN_S = 0.25  # For the way of a thread from C++ back to Python, after a scan that is no call of ours.

STEP_BYTES = 16 << 20  # Freed memory is returned in steps of this: with less, the same pages are asked for again.

T = TypeVar("T")

_lock = threading.Lock()
_numbers = itertools.count()
_lent: "dict[int, weakref.ref[Any]]" = {}
_is_watched = False
_is_ending = False
_scan_ended_s = -1.0
_calls: set[int] = set()


class _Scan:
    """Is there as long as a scan of a daemon thread is under way."""


@contextmanager
def under_way() -> Iterator[None]:
    """Have the end of the process wait for what is in here, if this is a daemon thread: it drives a scan out of C++."""
    if not threading.current_thread().daemon:
        yield
        return
    _watch()
    number = next(_numbers)
    _calls.add(number)
    try:
        yield
    finally:
        _calls.discard(number)


def until_the_end(batches: Iterator[T]) -> Iterator[T]:
    """Return batches for a scan that C++ drives; in a daemon thread, only until the process begins to end.

    Raises:
        InvalidUsage: it has begun to end; or when the next batch is asked for then.
    """
    if not threading.current_thread().daemon:
        return batches
    _check_not_ending()
    return _until_the_end(batches)


def _until_the_end(batches: Iterator[T]) -> Iterator[T]:
    global _scan_ended_s
    scan = _Scan()
    lend(scan)
    try:
        for batch in batches:
            _check_not_ending()
            yield batch
    finally:
        _scan_ended_s = time.monotonic()


def _check_not_ending() -> None:
    if _is_ending:
        raise InvalidUsage("the process is ending, and daemon threads read nothing any more: join them before that")


def lent_buffer(data: bytes | memoryview) -> pa.Buffer:
    """Return bytes as a buffer that Arrow's threads may use; nothing is copied."""
    if not len(data):
        return pa.py_buffer(data)
    array = np.frombuffer(data, np.uint8)  # Of bytes themselves nobody can tell when they are gone.
    lend(array)
    return pa.py_buffer(array)


def lend(thing: Any) -> None:
    """Note that Arrow's threads may hold a thing until it is gone."""
    number = next(_numbers)
    _lent[number] = weakref.ref(thing, lambda _: _lent.pop(number))
    _watch()


def _watch() -> None:
    global _is_watched
    if not _is_watched:
        with _lock:
            if not _is_watched:
                _is_watched = True
                atexit.register(_end)


def _end() -> None:
    global _is_ending
    _is_ending = True
    ends_s = time.monotonic() + CALLS_WAIT_S
    while _calls and time.monotonic() < ends_s:
        time.sleep(0.001)
    wait_for_returns()
    left_s = _scan_ended_s + RETURN_S - time.monotonic() if _scan_ended_s >= 0 else 0.0
    time.sleep(max(0.0, left_s))


def wait_for_returns(timeout_s: float = WAIT_S) -> bool:
    """Wait until nothing is lent any more; return False if something still is after timeout_s."""
    ends_s = time.monotonic() + timeout_s
    while _lent and time.monotonic() < ends_s:
        time.sleep(0.001)  # Which lets go of the lock that Arrow's threads wait for.
    return not _lent


class _Decoded(threading.local):
    bytes = 0


_decoded = _Decoded()


def give_back_freed(decoded_bytes: int, step_bytes: int) -> None:
    """Let Arrow's allocator return what this very thread has freed, once it has decoded a step since it last did.

    The step is `STEP_BYTES`, or less where so much is too much for a small budget.

    Nothing that is in use is touched. Only mimalloc is asked: jemalloc returns what was freed after a while, and glibc
    would walk through the memory of all threads.
    """
    _decoded.bytes += decoded_bytes
    if _decoded.bytes >= min(step_bytes, STEP_BYTES):
        _decoded.bytes = 0
        pool = pa.default_memory_pool()
        if pool.backend_name == "mimalloc":
            pool.release_unused()
