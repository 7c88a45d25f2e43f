"""Room for batches: in memory up to a budget, in mapped files beyond it.

Only large batches ask for room here, so what is spilled is what is touched least. The files have no name any more once
they are mapped, so they are gone when nothing refers to them, whatever ends the process.
"""

import mmap
import tempfile
import weakref
from os import PathLike

import numpy as np

from persist.dataflow.updates.times import Ints

SPILL_BYTES_MIN = 1 << 20  # Smaller batches stay in memory.


class Spill:
    """Gives out room for batches.

    Args:
        budget: bytes that are given out in memory.
        folder: where files are made; None for the system's folder for temporary files.
    """

    def __init__(self, budget: int, folder: str | PathLike[str] | None) -> None:
        self._budget = budget
        self._folder = folder
        self._in_memory = 0
        self.spilled_bytes = 0

    def allocate(self, shape: tuple[int, int]) -> Ints:
        """Return an array that need not be initialised."""
        size = 8 * shape[0] * shape[1]
        if size < SPILL_BYTES_MIN:
            return np.empty(shape, np.int64)
        if self._in_memory + size <= self._budget:
            room: Ints = np.empty(shape, np.int64)
            self._in_memory += size
            weakref.finalize(room, self._freed, size)
            return room
        return self._mapped(shape, size)

    def close(self) -> None:
        """Do nothing more: files end with what is mapped from them."""

    def _mapped(self, shape: tuple[int, int], size: int) -> Ints:
        with tempfile.TemporaryFile(dir=self._folder, prefix="persist-spill-") as file:
            file.truncate(size)
            mapped = mmap.mmap(file.fileno(), size)
        room: Ints = np.frombuffer(mapped, np.int64).reshape(shape)
        self.spilled_bytes += size
        weakref.finalize(mapped, self._unspilled, size)
        return room

    def _freed(self, size: int) -> None:
        self._in_memory -= size

    def _unspilled(self, size: int) -> None:
        self.spilled_bytes -= size
