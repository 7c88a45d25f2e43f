"""Finishes the operations of clients that are never closed, and reports their errors.

Three things may happen to a client besides `close`:

- *It is freed*, because its last reference is gone. A `ResourceWarning` names the pending operations. Its committer
  finishes them and ends. An unseen error is printed when its last future is freed.
- *The process ends.* It waits for all submitted operations, at most `Settings.exit_timeout_s`. Unfinished operations
  and unseen errors are printed on standard error, and the exit status is not 0.
- *The process is forked.* The child has none of the threads. It waits for nothing, and reports no errors of its parent.

`atexit` makes the process wait, while daemon threads are still alive. Forked children of `multiprocessing` skip that
before Python 3.14, so their own finalizers make them wait. Rejected: non-daemon threads, because one that waits for an
unresponsive store would keep the process for ever; and `threading._register_atexit`, which is private.

Python has no way to choose the exit status that late. Ending the process at once would skip other libraries' exit
functions, and files that are not flushed yet. But an error in the last flush of a standard stream counts as an error of
the whole process, so it sets the status: 120 (1 in a child of `multiprocessing`).

A client stays usable while the process ends, for `atexit` functions that close it. The registry is this package's only
module state, because a process ends only once. It keeps no client alive.
"""

import atexit
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from persist.engine.write.commit_future import UnobservedErrors
from persist.engine.write.committer import Committer

NOTICE_AFTER_S = 3.0  # After this time, a message at the terminal explains why the process is still there.


class Unclosed:
    """Represents a client until it is closed."""

    def __init__(self, client: object, url: str, committer: Committer | None, timeout_s: float) -> None:
        """Watch a client; without a committer, a read-only one."""
        self.pid = os.getpid()
        self.url = url
        self.committer = committer
        self.timeout_s = timeout_s
        self.is_shared = False  # Nobody could have closed it, so it ends without a warning.
        self._collected = weakref.finalize(client, _finish_dropped, self)
        self._collected.atexit = False  # At that time `_finish_all` sees to it.
        _registry.add(self)

    def note_close(self) -> None:
        """Note that the client was closed."""
        self._collected.detach()
        _registry.remove(self)

    def describe_pending(self) -> str:
        """Describe the submitted operations that are not done."""
        count, names = (0, ()) if self.committer is None else self.committer.list_pending()
        if not count:
            return "nothing was pending"
        of = f" of {', '.join(map(repr, names))}" if names else ""
        return f"{count:,} operation{'s' if count > 1 else ''}{of} {'were' if count > 1 else 'was'} pending"


def forget() -> None:
    """Exclude all open clients from waiting and reporting, for test runners that do both themselves."""
    _registry.forget()


class _Registry:
    """The open clients of this process, and the ledgers of unread errors."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # Finalizers may run inside of it.
        self._pid = -1
        self._has_atexit = False
        self.has_failed = False
        self.unclosed: set[Unclosed] = set()
        self.ledgers: weakref.WeakKeyDictionary[UnobservedErrors, weakref.finalize[..., UnobservedErrors]] = (
            weakref.WeakKeyDictionary()
        )

    def add(self, unclosed: Unclosed) -> None:
        """Watch a client; a forked process forgets its parent's clients first."""
        if self._pid != os.getpid():
            # Forked: what is here belongs to the parent, and its lock may be held by one of the parent's threads.
            self._lock, self._pid = threading.RLock(), os.getpid()
            self.unclosed, self.ledgers, self.has_failed = set(), weakref.WeakKeyDictionary(), False
            self._receive_dropped()
        with self._lock:
            self.unclosed.add(unclosed)
            if unclosed.committer is not None:
                ledger = unclosed.committer.unobserved
                report = weakref.finalize(ledger, _report_lost, os.getpid(), unclosed.url, ledger.kept)
                report.atexit = False
                self.ledgers[ledger] = report

    def remove(self, unclosed: Unclosed) -> None:
        if unclosed.pid == self._pid == os.getpid():
            with self._lock:
                self.unclosed.discard(unclosed)

    def forget(self) -> None:
        with self._lock:
            self.unclosed.clear()
            for report in self.ledgers.values():
                report.detach()
            self.ledgers.clear()
            self.has_failed = False

    def collect(self) -> tuple[list[Unclosed], list[UnobservedErrors]]:
        """Return this process's open clients, and its ledgers of unread errors."""
        if self._pid != os.getpid():
            return [], []
        with self._lock:
            return list(self.unclosed), list(self.ledgers)

    def _receive_dropped(self) -> None:
        """Register exit hooks, and process the queue of finalizers."""
        if not self._has_atexit:
            self._has_atexit = True
            atexit.register(_finish_all)
        processes: Any = sys.modules.get("multiprocessing.process")
        if processes is not None and processes.parent_process() is not None:
            from multiprocessing.util import Finalize

            Finalize(None, _finish_all, exitpriority=100)


_registry = _Registry()


def _finish_dropped(unclosed: Unclosed) -> None:
    """Warn of a freed client, and let it finish its operations."""
    if unclosed.pid != os.getpid():
        return
    pending = unclosed.describe_pending()
    if unclosed.committer is not None:
        unclosed.committer.request_stop()
    # Those who have something to finish stay in the registry until the process ends, but nothing else of a client does.
    if unclosed.committer is None or unclosed.committer.settle(0):
        _registry.remove(unclosed)
    else:
        unclosed.committer.call_when_ended(lambda: _registry.remove(unclosed))
    if not unclosed.is_shared:
        _warn(unclosed.url, pending)


def _warn(url: str, pending: str) -> None:
    """Warn that a client was freed before `close`; `pending` describes its operations."""
    warnings.warn(
        f"a client of {url} was not closed; {pending}. Close it, or use it in a with statement.",
        ResourceWarning,
        stacklevel=2,
    )


def _finish_all() -> None:
    """Wait for the operations of this process, and report their errors."""
    unclosed, ledgers = _registry.collect()
    left_open = [(client.url, client.describe_pending()) for client in unclosed if not client.is_shared]
    for lost in _wait_for_clients(unclosed):
        _print(f"persist: {lost.url}: {lost.describe_pending()} when the process ended, and may be lost")
        _registry.has_failed = True
    for ledger in ledgers:
        _report_errors(ledger.url, ledger.take())
    if _registry.has_failed:
        _fail_the_process()
    for url, pending in left_open:
        _warn(url, pending)


def _wait_for_clients(unclosed: Sequence[Unclosed]) -> list[Unclosed]:
    """Return the clients that did not finish in time."""
    began_s = time.monotonic()
    waiting = [client for client in unclosed if client.committer is not None and not client.committer.settle(0)]
    try:
        for client in waiting:
            assert client.committer is not None
            if client.committer.settle(min(NOTICE_AFTER_S, client.timeout_s)):
                continue
            left_s = began_s + client.timeout_s - time.monotonic()
            _print(
                f"persist: {client.url}: {client.describe_pending()}; finishing for {max(0, left_s):.0f} s at most, "
                "Ctrl-C gives up"
            )
            client.committer.settle(max(0.0, left_s))
    except KeyboardInterrupt:
        pass  # A second interrupt means that the user does not want to wait.
    return [client for client in waiting if client.committer is not None and not client.committer.settle(0)]


def _report_lost(pid: int, url: str, kept: dict[int, BaseException | None]) -> None:
    """Report the errors of a ledger whose last reference is gone."""
    if pid == os.getpid():
        _report_errors(url, list(kept.values()))


def _report_errors(url: str, errors: Sequence[BaseException | None]) -> None:
    """Print the unseen errors of a client."""
    if not errors:
        return
    _registry.has_failed = True
    _print(f"persist: {url}: {len(errors):,} operations failed, and no caller read their errors:")
    # Operations that failed together share one error.
    for error in {id(error): error for error in errors if error is not None}.values():
        _print(f"  {type(error).__name__}: {error}")


def _print(line: str) -> None:
    """Print a line on standard error, if there is one."""
    with suppress(Exception):  # There may be no standard error, or no more.
        print(line, file=sys.stderr, flush=True)


def _fail_the_process() -> None:
    """Make the exit status of this process differ from 0."""
    if sys.stderr is not None and not isinstance(sys.stderr, _Unflushable):
        sys.stderr = _Unflushable(sys.stderr)


class _Unflushable:
    """A wrapper of a standard stream whose flush fails."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def flush(self) -> None:
        """Flush the stream, and raise OSError."""
        self._stream.flush()
        raise OSError("persist: operations were lost or failed, see above; this makes the exit status")
