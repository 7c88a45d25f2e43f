"""Progress of long calls, for who asks for it: bars on a terminal or in a notebook, or calls of one's own.

    with persist.progress():
        table = orders.snapshot().to_arrow()

Bars are drawn by the package rich on standard error. Where that is no terminal, and this is no notebook, nothing is
drawn. Work that is over within a second is not shown.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from persist.errors import InvalidUsage
from persist.work import Done, watched

SHOWN_AFTER_S = 1.0


@dataclass(frozen=True, slots=True)
class Work:
    """How far a piece of work has come.

    Attributes:
        what: such as "read orders".
        done: how much of it was done so far.
        total: how much there is in all; None if that is not known.
        unit: of both, such as "rows".
        is_over: whether it has ended, well or not.
    """

    what: str
    done: int
    total: int | None
    unit: str
    is_over: bool = False


@contextmanager
def progress(tell: Callable[[Work], object] | None = None) -> Iterator[None]:
    """Show how far long calls in this block have come: reads, compactions, checks, imports, exports and refreshes.

    Args:
        tell: is called with each `Work` as it goes on, instead of drawing bars; by the thread that does the work.

    What other threads do is not shown, unless they run in a copy of this context (`contextvars.copy_context`).
    """
    if tell is not None:
        if not callable(tell):
            raise InvalidUsage(f"progress({tell!r:.100}) is no function: give one that takes a persist.Work")
        with watched(_Told(tell)):
            yield
        return
    bars = Bars() if _can_draw() else None
    with watched(bars):
        try:
            yield
        finally:
            if bars is not None:
                bars.close()


class _Told:
    """Passes on what is done."""

    def __init__(self, tell: Callable[[Work], object]) -> None:
        self._tell = tell
        self._known: dict[Done, Work] = {}

    def begun(self, what: str, total: int | None, unit: str) -> Done:
        count = 0

        def done(amount: int) -> None:
            nonlocal count
            count += amount
            self._known[done] = Work(what, count, total, unit)
            self._tell(self._known[done])

        self._known[done] = Work(what, 0, total, unit)
        self._tell(self._known[done])
        return done

    def ended(self, done: Done) -> None:
        last = self._known.pop(done)
        self._tell(Work(last.what, last.done, last.total, last.unit, is_over=True))


class Bars:
    """Draws a bar for each piece of work that takes longer than a second; a count where the total is not known."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._drawing: Any = None
        self._drawn: dict[Done, Any] = {}

    def begun(self, what: str, total: int | None, unit: str) -> Done:
        began_s, count = self._clock(), 0

        def done(amount: int) -> None:
            nonlocal count
            count += amount
            if self._clock() - began_s >= SHOWN_AFTER_S:
                self._draw(done, f"{what} ({unit})", total, count)

        return done

    def ended(self, done: Done) -> None:
        with self._lock:
            drawn = self._drawn.pop(done, None)
            if drawn is not None:
                self._drawing.remove_task(drawn)
            is_last = not self._drawn
        if is_last:
            self.close()

    def close(self) -> None:
        """Take all bars away."""
        with self._lock:
            drawing, self._drawing = self._drawing, None
            self._drawn.clear()
        if drawing is not None:
            drawing.stop()

    def _draw(self, done: Done, what: str, total: int | None, count: int) -> None:
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
                from persist.shown import plain

                self._drawn[done] = self._drawing.add_task(plain(what), total=total, completed=count)
            self._drawing.update(self._drawn[done], completed=count)


def _can_draw() -> bool:
    return sys.stderr is not None and (sys.stderr.isatty() or "ipykernel" in sys.modules)
