"""Objects that close at the end of their `with` block."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self


class Closes(ABC):
    """The base class of objects that a `with` block closes."""

    @abstractmethod
    def close(self) -> None:
        """Release resources; idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def close_after(error: BaseException | None, close: Callable[[], None]) -> None:
    """Close at the end of a `with` block; if the block raised, an error of closing becomes a note on its error."""
    try:
        close()
    except BaseException as unlooked:
        if error is None:
            raise
        # The block's own error is what its handlers wait for.
        error.add_note(f"Besides, writes failed and no caller read their errors: {unlooked!r}")


@contextmanager
def note_on_error(text: Callable[[], str]) -> Iterator[None]:
    """Add a note about the work done so far to an error in this block."""
    try:
        yield
    except BaseException as error:
        error.add_note(text())
        raise
