"""Processes that run the same thing side by side, tell how far they are, and are killed at any moment."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from tests.support.stepped import WAIT_S


class Copies:
    """Processes that call a function, of what `start` is given and of a connection by which it tells of each step."""

    def __init__(self, runs: Callable[..., None]) -> None:
        self._runs = runs
        self._context = multiprocessing.get_context("spawn")
        self._running: list[tuple[multiprocessing.context.SpawnProcess, Connection]] = []

    def start(self, *arguments: Any) -> None:
        mine, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(target=self._runs, args=(*arguments, theirs), daemon=True)
        process.start()
        theirs.close()
        self._running.append((process, mine))

    def wait(self, steps: int) -> list[Any]:
        """Wait until the oldest has made so many steps more; return what it told of each."""
        told = []
        for _ in range(steps):
            assert self._running[0][1].poll(WAIT_S), "a step takes less than five minutes"
            told.append(self._running[0][1].recv())
        return told

    def kill(self) -> None:
        """Kill the oldest."""
        process, pipe = self._running.pop(0)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        pipe.close()

    def kill_all(self) -> None:
        while self._running:
            self.kill()
