"""Tracks memory that is lent to Arrow's threads, and returns freed memory to the system.

A thread of Arrow may release a buffer shortly after the read that used it has returned. If the memory is Python's, it
takes the interpreter's lock for this. Before Python 3.14, a thread that takes that lock while the interpreter ends is
terminated. In the middle of a C++ destructor this aborts the process with exit status 134, although all work is done.
So lent memory is recorded, and at exit the process waits until Arrow has returned all of it, for `WAIT_S` at most.

A scan that PyArrow drives fetches its batches from Python in C++. If a daemon thread does so while the interpreter
ends, the process aborts as well. So at exit new scans and further batches are refused, and running ones are awaited:
exactly if the scan is a call of ours (`delay_exit`), and for a moment after its last batch if DuckDB or Polars drives
it. Scans of other threads, and of `atexit` functions, continue.

Rejected: Arrow's own memory, which needs a copy of each part; decoding without threads; waiting for some milliseconds,
which does not suffice on a busy machine. The module has state because this concerns the process.

Mimalloc, which is Arrow's default, keeps what was freed for the thread that had allocated it, and only that thread can
return it. The rows of a slice are freed by the thread that merges it. The threads that decoded it then wait for their
next part, or allocate other sizes: together they kept 100 to 150 MiB of unused memory beyond any budget. So each thread
of a client's pool calls `release_freed` after a job.
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
RETURN_S = 0.25  # Time for a thread to return from C++ to Python, after a scan that is not a call of ours.

T = TypeVar("T")

_lock = threading.Lock()
_numbers = itertools.count()
_lent: "dict[int, weakref.ref[Any]]" = {}
_is_watched = False
_is_ending = False
_scan_ended_s = -1.0
_calls: set[int] = set()


class _Scan:
    """An object that lives while a daemon thread scans."""


@contextmanager
def delay_exit() -> Iterator[None]:
    """Delay the end of the process until this block ends, in daemon threads."""
    if not threading.current_thread().daemon:
        yield
        return
    _register_exit_hook()
    number = next(_numbers)
    _calls.add(number)
    try:
        yield
    finally:
        _calls.discard(number)


def stop_at_exit(batches: Iterator[T]) -> Iterator[T]:
    """Return batches for a scan that C++ drives; in a daemon thread, stop when the process begins to end."""
    if not threading.current_thread().daemon:
        return batches
    _check_not_ending()
    return _stop_at_exit(batches)


def _stop_at_exit(batches: Iterator[T]) -> Iterator[T]:
    """Yield batches until the process begins to end."""
    global _scan_ended_s
    scan = _Scan()
    note_lent(scan)
    try:
        for batch in batches:
            _check_not_ending()
            yield batch
    finally:
        _scan_ended_s = time.monotonic()


def _check_not_ending() -> None:
    """Raise InvalidUsage if the process has begun to end."""
    if _is_ending:
        raise InvalidUsage("the process is ending, and daemon threads read nothing any more: join them before that")


def make_lent_buffer(data: bytes | memoryview) -> pa.Buffer:
    """Return bytes as a buffer that Arrow's threads may use; nothing is copied."""
    if not len(data):
        return pa.py_buffer(data)
    array = np.frombuffer(data, np.uint8)  # The end of life of a bytes object cannot be observed.
    note_lent(array)
    return pa.py_buffer(array)


def note_lent(thing: Any) -> None:
    """Remember an object that Arrow's threads may use until it is freed."""
    number = next(_numbers)
    _lent[number] = weakref.ref(thing, lambda _: _lent.pop(number))
    _register_exit_hook()


def _register_exit_hook() -> None:
    """Have `_wait_at_exit` called at the end of the process, once."""
    global _is_watched
    if not _is_watched:
        with _lock:
            if not _is_watched:
                _is_watched = True
                atexit.register(_wait_at_exit)


def _wait_at_exit() -> None:
    """Wait, at the end of the process, for scans and for Arrow's threads."""
    global _is_ending
    _is_ending = True
    ends_s = time.monotonic() + CALLS_WAIT_S
    while _calls and time.monotonic() < ends_s:
        time.sleep(0.001)
    wait_for_returns()
    left_s = _scan_ended_s + RETURN_S - time.monotonic() if _scan_ended_s >= 0 else 0.0
    time.sleep(max(0.0, left_s))


def wait_for_returns(timeout_s: float = WAIT_S) -> bool:
    """Wait until all lent memory is returned; return False after timeout_s."""
    ends_s = time.monotonic() + timeout_s
    while _lent and time.monotonic() < ends_s:
        time.sleep(0.001)  # Sleeping releases the lock that Arrow's threads wait for.
    return not _lent


class _Returned(threading.local):
    """For each thread: when it last returned memory, in allocated bytes."""

    at_bytes = 0  # All that the process had allocated when this thread last returned memory.


_returned = _Returned()


def release_freed(step_bytes: int) -> None:
    """Make Arrow's allocator return memory that this thread has freed, once the process has allocated step_bytes more.

    In smaller steps, the same pages would be requested again. Memory in use is not affected. Only mimalloc needs it:
    jemalloc returns freed memory after a while, and glibc would walk through the memory of all threads.
    """
    pool = pa.default_memory_pool()
    allocated = pool.total_bytes_allocated()
    if allocated - _returned.at_bytes >= step_bytes:
        _returned.at_bytes = allocated
        if pool.backend_name == "mimalloc":
            pool.release_unused()
