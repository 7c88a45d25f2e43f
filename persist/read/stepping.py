"""Waiting for the steps of a listen without blocking an event loop: `async for progress in …`.

A thread waits for the store, a second at a time. Whoever is cancelled loses nothing: what came meanwhile is given out
by the next step.
"""

from abc import abstractmethod
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self, TypeVar

if TYPE_CHECKING:
    import asyncio

P = TypeVar("P")

WAIT_S = 1.0


class AsyncSteps(Generic[P]):
    """Mixed into what has `step`, `is_finished` and `close`; for one task, and not besides the blocking way."""

    _coming: "asyncio.Future[P | None] | None" = None

    @abstractmethod
    def step(self, timeout_s: float | None) -> P | None:
        """Return the next step, or None if there is none in time, or this is closed."""

    @property
    @abstractmethod
    def is_finished(self) -> bool:
        """Whether no step will come any more."""

    @abstractmethod
    def close(self) -> None:
        """Stop."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> P:
        import asyncio  # Here: who never awaits starts without it, 8 ms sooner.

        while True:
            if self._coming is None:
                if self.is_finished:
                    raise StopAsyncIteration
                self._coming = asyncio.ensure_future(asyncio.to_thread(self.step, WAIT_S))
            # Shielded: the thread goes on if this is cancelled, and what it takes must not get lost.
            found = await asyncio.shield(self._coming)
            self._coming = None
            if found is not None:
                return found

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        import asyncio

        await asyncio.to_thread(self.close)
