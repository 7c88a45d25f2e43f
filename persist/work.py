"""What long work says of itself while it is done: a span of OpenTelemetry, and progress to whoever asked for it.

Each piece of long work is a `task`. It costs a microsecond where nobody listens:

- a span `persist.<what>` of the tracer `persist`, if this process has loaded OpenTelemetry's tracing. This package
  never loads it: a program that exports spans has. A task that runs in one call is the parent of spans below it; a
  stream, which its reader may leave and come back to, is not, because what is current there belongs to the reader.
- what was done so far, to the watcher that `watched` has set for the calls in its block, in this thread or task of
  asyncio.

Commits are spans from the call that asked for them until they are durable, whichever thread they were made by.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, Protocol

TRACER = "persist"
NAMES_MAX = 8  # Of collections, in one span.

Done = Callable[[int], object]


class Watcher(Protocol):
    """Hears of work: `begun` is told what it is and how much there is of it, and returns who is told of each bit."""

    def begun(self, what: str, total: int | None, unit: str) -> Done:
        """Hear that work has begun; the result is called with how much more of it was done."""
        ...

    def ended(self, done: Done) -> None:
        """Hear that the work that done belongs to has ended, well or not."""
        ...


_watcher: ContextVar[Watcher | None] = ContextVar("persist_watcher", default=None)


@contextmanager
def watched(watcher: Watcher | None) -> Iterator[None]:
    """Tell a watcher of the work in this block; None for nobody."""
    before = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(before)


@contextmanager
def task(
    what: str, name: str = "", *, total: int | None = None, unit: str = "rows", streams: bool = False
) -> Iterator[Done]:
    """Tell of the work in this block: its result is to be called with how much more was done.

    Args:
        what, name: such as "compact" and the name of a collection.
        total: how much there is to do in all; None if that is not known.
        unit: of what.
        streams: the block is left and entered again, such as that of a generator.
    """
    watcher, api = _watcher.get(), _tracing()
    if watcher is None and api is None:
        yield _ignored
        return
    count = 0
    done = _ignored if watcher is None else watcher.begun(f"{what} {name}".strip(), total, unit)

    def more(amount: int) -> None:
        nonlocal count
        count += amount
        done(amount)

    try:
        with _spanned(api, what, {"persist.name": name} if name else {}, streams) as span:
            yield more
            if span is not None:
                span.set_attribute(f"persist.{unit}", count)
    finally:
        if watcher is not None:
            watcher.ended(done)


def commit_span(future: "Future[int]", action: str, url: str, names: Mapping[str, str]) -> None:
    """Make a span of a commit that was asked for just now: it ends when the future is resolved."""
    api = _tracing()
    if api is None:
        return
    collections = sorted({*names.values()})[:NAMES_MAX]
    attributes = {"persist.action": action, "persist.location": url, "persist.collections": collections}
    span = api.get_tracer(TRACER).start_span("persist.commit", attributes=attributes)

    def end(done: "Future[int]") -> None:
        # Not done.exception(): to look at an error there takes it off the ledger of those that nobody has seen.
        error = Future.exception(done, 0)
        if error is None:
            span.set_attribute("persist.seqno", Future.result(done, 0))
        else:
            _failed(api, span, error)
        span.end()

    future.add_done_callback(end)


@contextmanager
def _spanned(api: Any, what: str, attributes: Mapping[str, str], streams: bool) -> Iterator[Any]:
    if api is None:
        yield None
        return
    span = api.get_tracer(TRACER).start_span(f"persist.{what}", attributes=attributes)
    current = nullcontext() if streams else api.use_span(span, record_exception=False, set_status_on_exception=False)
    try:
        with current:
            yield span
    except Exception as error:  # A stream that is given up is no failure.
        _failed(api, span, error)
        raise
    finally:
        span.end()


def _failed(api: Any, span: Any, error: BaseException) -> None:
    span.record_exception(error)
    span.set_status(api.Status(api.StatusCode.ERROR, str(error)[:1000]))


def _tracing() -> Any:
    return sys.modules.get("opentelemetry.trace")


def _ignored(amount: int) -> None:
    """Nobody listens."""
