"""Progress of what may take longer than two seconds: on standard error, and only if that is a terminal."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Progress(Protocol):
    """Told what has been done."""

    def __call__(self, done: int) -> None: ...


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Progress]:
    """Show a bar, or a count where the total is not known, while the block runs; tell what it yields what is done."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(what, total=total)
        yield lambda done: bars.update(task, advance=done)
