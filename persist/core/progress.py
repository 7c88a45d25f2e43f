"""Reports on long work in progress: a span of OpenTelemetry, and progress for a registered watcher.

`report_work` reports each piece of long work. Without a watcher it costs a microsecond or two:

- a span `persist.<what>` of the tracer `persist`, if this process has loaded OpenTelemetry's tracing. This package
  never loads it; programs that export spans do. Work that runs in one call is the parent of spans below it. A
  stream is not, because its reader may leave and re-enter it, and the current span then belongs to the reader.
- a line in the log, at level INFO when it ends, and at level DEBUG for reads and commits;
- the amount done so far, to the watcher that `use_watcher` has set for its block, in this thread or asyncio task.

Commits are spans from the call that submitted them until they are durable, in whatever thread.

    with persist.progress():
        table = orders.snapshot().to_arrow()

`progress` sets a watcher: the user's function, or bars in a terminal or a notebook. The package rich draws the bars on
standard error. Elsewhere nothing is drawn. Work that ends within a second is not shown.
"""

import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Protocol

from persist.core.errors import InvalidUsage, LimitReached

TRACER = "persist"
NAMES_MAX = 8  # Of collections, in one span.

Done = Callable[[int], object]
logger = logging.getLogger(__name__)


class Watcher(Protocol):
    """Receives the progress of pieces of work."""

    def begin_work(self, what: str, total: int | None, unit: str) -> Done:
        """Note that work has begun; return a function that is called with each further amount done."""

    def end_work(self, done: Done) -> None:
        """Note that the work of a function from `begin_work` has ended, with or without an error."""


_watcher: ContextVar[Watcher | None] = ContextVar("persist_watcher", default=None)


@contextmanager
def use_watcher(watcher: Watcher | None) -> Iterator[None]:
    """Report the work in this block to a watcher; None for no watcher."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


@dataclass(slots=True)
class LimitedWork:
    """Work with limits of time and memory, within those of enclosing work."""

    timeout_s: float | None
    memory: int | None
    until: float
    resident: float
    around: "LimitedWork | None"
    is_cancelled: bool = False

    def cancel(self) -> None:
        """End the work soon, from any thread."""
        self.is_cancelled = True

    def check_limit(self) -> None:
        """Raise InvalidUsage if the work was cancelled, and LimitReached if it has reached a limit."""
        if self.is_cancelled:
            raise InvalidUsage("the work was cancelled. What was sealed before stays, and nothing else was written")
        if time.monotonic() > self.until:
            raise LimitReached("time", f"timeout_s={self.timeout_s}")
        if self.memory is not None and measure_resident_bytes() > self.resident:
            raise LimitReached("memory", f"memory_limit={self.memory:,} bytes more than the process used before")
        if self.around is not None:
            self.around.check_limit()


_work: ContextVar[LimitedWork | None] = ContextVar("persist_work", default=None)


@contextmanager
def limit_work(timeout_s: float | None, memory_limit: int | None) -> Iterator[LimitedWork]:
    """Limit the work in this block: `check_limits` raises an error at a limit.

    `memory_limit`: bytes that this process may take more than when the block began.
    """
    for name, limit in (("timeout_s", timeout_s), ("memory_limit", memory_limit)):
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | float) or not limit >= 0):
            raise InvalidUsage(f"{name}={limit!r} is not a limit: give a number of at least 0, or None for no limit")
    until = math.inf if timeout_s is None else time.monotonic() + timeout_s
    resident = math.inf if memory_limit is None else measure_resident_bytes() + memory_limit
    work = LimitedWork(timeout_s, memory_limit, until, resident, _work.get())
    token = _work.set(work)
    try:
        yield work
    finally:
        _work.reset(token)


def check_limits() -> None:
    """Raise an error if the enclosing `limit_work` was cancelled or exceeded."""
    work = _work.get()
    if work is not None:
        work.check_limit()


def measure_resident_bytes() -> int:
    """Return this process's memory in bytes; its peak on systems that do not report the present value."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        import resource

        scale = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


@contextmanager
def report_work(
    what: str, name: str = "", *, total: int | None = None, unit: str = "rows", streams: bool = False
) -> Iterator[Done]:
    """Report the work in this block; call the yielded function with each further amount done.

    Args:
        what, name: such as "compact" and the name of a collection.
        total: the total amount; None if unknown.
        unit: what the amounts count, such as "rows".
        streams: the block is left and entered again, as in the body of a generator.
    """
    watcher, api = _watcher.get(), _get_tracing()
    level = logging.DEBUG if what == "read" else logging.INFO
    is_logged = logger.isEnabledFor(level)
    if watcher is None and api is None and not is_logged:
        yield _ignore_progress
        return
    count, began_s, error = 0, time.perf_counter(), None
    done = _ignore_progress if watcher is None else watcher.begin_work(f"{what} {name}".strip(), total, unit)

    def more(amount: int) -> None:
        nonlocal count
        count += amount
        done(amount)

    try:
        with _open_span(api, what, {"persist.name": name} if name else {}, streams) as span:
            yield more
            if span is not None:
                span.set_attribute(f"persist.{unit}", count)
    except Exception as failure:
        error = failure
        raise
    finally:
        if watcher is not None:
            watcher.end_work(done)
        if is_logged:
            about: dict[str, Any] = {"what": what, "name": name} if name else {"what": what}
            level = level if count or error is not None else logging.DEBUG  # There was nothing to do.
            _log_end(level, f"{what} {name}".strip(), {**about, unit: count}, f"{unit} {count:,}", began_s, error)


def trace_commit(future: "Future[int]", action: str, url: str, names: Mapping[str, str]) -> None:
    """Open a span for a submitted commit; it ends when the future is resolved."""
    api, is_logged, began_s = _get_tracing(), logger.isEnabledFor(logging.DEBUG), time.perf_counter()
    if api is None and not is_logged:
        return
    collections = sorted({*names.values()})[:NAMES_MAX]
    attributes = {"persist.action": action, "persist.location": url, "persist.collections": collections}
    span = None if api is None else api.get_tracer(TRACER).start_span("persist.commit", attributes=attributes)

    def end(done: "Future[int]") -> None:
        """Log the outcome of the commit and end its span."""
        # Not done.exception(): looking at an error there removes it from the ledger of unseen errors.
        error = Future.exception(done, 0)
        seqno = None if error is not None else Future.result(done, 0)
        if is_logged:
            about = {"what": "commit", "action": action, "location": url, "collections": collections, "seqno": seqno}
            _log_end(logging.DEBUG, f"{action} of {', '.join(collections)}", about, f"record {seqno}", began_s, error)
        if span is None:
            return
        if error is None:
            span.set_attribute("persist.seqno", seqno)
        else:
            _record_error(api, span, error)
        span.end()

    future.add_done_callback(end)


def _log_end(
    level: int, what: str, about: Mapping[str, Any], result: str, began_s: float, error: BaseException | None
) -> None:
    """Log that work has ended; the log record's `persist` has the details."""
    seconds = time.perf_counter() - began_s
    fields = {**about, "seconds": round(seconds, 3)}
    if error is not None:
        fields["error"] = f"{type(error).__name__}: {error}"
    outcome = result if error is None else f"failed, {fields['error']}"
    logger.log(level, "%s: %s, in %.3f s", what, outcome, seconds, extra={"persist": fields})


@contextmanager
def _open_span(api: Any, what: str, attributes: Mapping[str, str], streams: bool) -> Iterator[Any]:
    """Open a span of OpenTelemetry around a piece of work."""
    if api is None:
        yield None
        return
    span = api.get_tracer(TRACER).start_span(f"persist.{what}", attributes=attributes)
    current = nullcontext() if streams else api.use_span(span, record_exception=False, set_status_on_exception=False)
    try:
        with current:
            yield span
    except Exception as error:  # Giving up a stream is not a failure.
        _record_error(api, span, error)
        raise
    finally:
        span.end()


def _record_error(api: Any, span: Any, error: BaseException) -> None:
    """Mark a span as failed by an error."""
    span.record_exception(error)
    span.set_status(api.Status(api.StatusCode.ERROR, str(error)[:1000]))


def _get_tracing() -> Any:
    """Return OpenTelemetry's module of traces if the process uses it."""
    return sys.modules.get("opentelemetry.trace")


def _ignore_progress(amount: int) -> None:
    """Do nothing, because there is no watcher."""


SHOWN_AFTER_S = 1.0


@dataclass(frozen=True, slots=True)
class Work:
    """The progress of a piece of work.

    Attributes:
        what: such as "read orders".
        done: the amount done so far.
        total: the total amount; None if unknown.
        unit: of both, such as "rows".
        is_over: whether it has ended, with or without an error.
    """

    what: str
    done: int
    total: int | None
    unit: str
    is_over: bool = False


@contextmanager
def progress(tell: Callable[[Work], object] | None = None) -> Iterator[None]:
    """Show the progress of long calls in this block: reads, compactions, checks, imports, exports, refreshes.

    `tell`: called with each `Work` as it proceeds, instead of drawing bars; by the thread that does the work.

    Work of other threads is not shown, unless they run in a copy of this context (`contextvars.copy_context`).
    """
    if tell is not None:
        if not callable(tell):
            raise InvalidUsage(f"progress({tell!r:.100}) is not a function: give one that takes a persist.Work")
        with use_watcher(_Notifier(tell)):
            yield
        return
    bars = Bars() if sys.stderr is not None and (sys.stderr.isatty() or "ipykernel" in sys.modules) else None
    with use_watcher(bars):
        try:
            yield
        finally:
            if bars is not None:
                bars.close()


class _Notifier:
    """Calls a user's function with each progress of work."""

    def __init__(self, tell: Callable[[Work], object]) -> None:
        self._tell = tell
        self._known: dict[Done, Work] = {}

    def begin_work(self, what: str, total: int | None, unit: str) -> Done:
        """Return the function that adds an amount to a piece of work."""

        def report(amount: int) -> None:
            self._known[report] = work = replace(self._known[report], done=self._known[report].done + amount)
            self._tell(work)

        self._known[report] = Work(what, 0, total, unit)
        report(0)
        return report

    def end_work(self, done: Done) -> None:
        """Forget a piece of work that has ended."""
        self._tell(replace(self._known.pop(done), is_over=True))


class Bars:
    """Draws a bar for each piece of work of more than a second; a count if the total is unknown."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._drawing: Any = None
        self._drawn: dict[Done, Any] = {}

    def begin_work(self, what: str, total: int | None, unit: str) -> Done:
        """Show a bar for some work; return the function that moves it."""
        began_s, count = self._clock(), 0

        def report(amount: int) -> None:
            nonlocal count
            count += amount
            if self._clock() - began_s >= SHOWN_AFTER_S:
                self._draw_bar(report, f"{what} ({unit})", total, count)

        return report

    def end_work(self, done: Done) -> None:
        """Remove the bar of a piece of work."""
        with self._lock:
            drawn = self._drawn.pop(done, None)
            if drawn is not None:
                self._drawing.remove_task(drawn)
            is_last = not self._drawn
        if is_last:
            self.close()

    def close(self) -> None:
        """Remove all bars."""
        with self._lock:
            drawing, self._drawing = self._drawing, None
            self._drawn.clear()
        if drawing is not None:
            drawing.stop()

    def _draw_bar(self, done: Done, what: str, total: int | None, count: int) -> None:
        """Show or move the bar of a piece of work."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        with self._lock:
            if self._drawing is None:
                columns = (
                    TextColumn("{task.description}", markup=False),
                    BarColumn(),
                    MofNCompleteColumn(),
                    TimeElapsedColumn(),
                )
                self._drawing = Progress(*columns, console=Console(stderr=True), transient=True)
                self._drawing.start()
            if done not in self._drawn:
                from persist.core.rendering import strip_control_characters

                self._drawn[done] = self._drawing.add_task(strip_control_characters(what), total=total, completed=count)
            self._drawing.update(self._drawn[done], completed=count)
