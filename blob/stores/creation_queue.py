"""Turns at a folder: writers create files one at a time, so that losers of a race lose before they work.

Sixteen processes that race for the next key would write and fsync sixteen temporary files, and only one is linked. On
ext4, the fifteen removed ones also slow down every later creation, which steps over recently freed inodes. A turn is a
`flock` of the folder itself: there is no lock file, and the turn of a dead process is free again.

It is only a courtesy. The link decides, and fails if the name exists. So a turn may be missing: the file system may
lack such locks, and the process that holds the turn may be stopped or stuck. Waiting for it ends when nothing was
created in the folder for `WAIT_MAX_S`, or after `ADVANCING_WAIT_MAX_S`, because in a long line there is progress. While
that process does not return, no thread here waits for it again.
"""

import errno
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress

WAIT_MAX_S = 1.0
ADVANCING_WAIT_MAX_S = 20.0


class Turns:
    """The turns that one object takes; safe to use from many threads."""

    def __init__(self) -> None:
        self._mine = threading.local()  # Its `folders` are those at which a thread has the turn.
        self._given_up: list[threading.Thread] = []  # Threads that still wait for a stuck process.

    @contextmanager
    def acquire(self, folder: str) -> Iterator[bool]:
        """Have the turn at folder for the block, which gets whether it had to wait; do without if none is to be had.

        A thread that already holds the turn gets it again inside the block.
        """
        folders: set[str] = self._mine.__dict__.setdefault("folders", set())
        if folder in folders:
            yield False
            return
        descriptor, has_waited = self._wait(folder)
        folders.add(folder)
        try:
            yield has_waited
        finally:
            folders.discard(folder)
            if descriptor is not None:
                _give_back(descriptor)

    def _wait(self, folder: str) -> tuple[int | None, bool]:
        """Return (descriptor of the folder with the turn, or None; whether another process held the turn)."""
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            return None, False  # The writer will report the error.
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor, False
        except OSError as error:
            self._given_up = [thread for thread in self._given_up if thread.is_alive()]
            if error.errno != errno.EWOULDBLOCK or self._given_up:
                os.close(descriptor)
                return None, error.errno == errno.EWOULDBLOCK
        return self._wait_in_thread(descriptor), True

    def _wait_in_thread(self, descriptor: int) -> int | None:
        """Return descriptor with the turn, or None after WAIT_MAX_S; `flock` itself knows no such limit."""
        acquired: Future[int] = Future()

        def take() -> None:
            error = None
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            except OSError as failed:
                error = failed
            if not acquired.set_running_or_notify_cancel():
                _give_back(descriptor)
            elif error is not None:
                acquired.set_exception(error)
            else:
                acquired.set_result(descriptor)

        thread = threading.Thread(target=take, name="persist-turn", daemon=True)
        thread.start()
        ends_s, changed_ns = time.monotonic() + ADVANCING_WAIT_MAX_S, -1
        try:
            while time.monotonic() < ends_s and changed_ns != (changed_ns := os.stat(descriptor).st_mtime_ns):
                with suppress(TimeoutError):
                    return acquired.result(WAIT_MAX_S)
            if not acquired.cancel():
                return acquired.result()
            self._given_up.append(thread)
            return None
        except OSError:
            os.close(descriptor)
            return None


def _give_back(descriptor: int) -> None:
    with suppress(OSError):  # Closing releases it as well, unless a fork has copied the descriptor meanwhile.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
