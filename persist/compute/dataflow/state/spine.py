"""A spine: the batches of one arrangement, in geometric sizes, with bounded work per step.

A new batch is put behind all others. Two neighbours of similar size are merged, so there are about log2(n) batches.
Small merges happen at once. A large merge is done in pieces by later insertions, and ends before its result is needed.
Until then readers see its two sources. Merging also advances times to `since`, the frontier that all readers have
reached. So equal updates are summed, and opposite ones vanish.

Cost: an insertion of n rows does O(n log N) work in total, and at most O(n + `FUEL`) at a time, for each merge under
way. Memory: the rows, and for a merge under way its result.

Large batches beyond the memory budget lie in mapped files, because they are read least often. The files lose their name
once they are mapped, so they vanish when nothing refers to them, even if the process is killed.
"""

import mmap
import tempfile
import weakref
from collections.abc import Callable, Iterator
from os import PathLike
from typing import Protocol

import numpy as np

from persist.compute.dataflow.updates.batch import NONE, Layout, match_keys, sort_and_consolidate
from persist.compute.dataflow.updates.times import Flags, Ints, advance_times
from persist.core.antichain import Antichain

NO_TIME = Antichain()
SMALL_ROWS = 512  # The newest batches are joined up to here at once: one to search instead of many.
AT_ONCE_ROWS = 8192  # A merge of up to so many rows is not worth being done in pieces.
FUEL = 4096  # Rows that an insertion pays for, besides four for each row of its own.
PIECE_ROWS = 65536


class Allocate(Protocol):
    """Allocates room for a batch in memory or in a file."""

    def __call__(self, shape: tuple[int, int], batch: Ints | None = None) -> Ints: ...


def allocate_in_memory(shape: tuple[int, int], batch: Ints | None = None) -> Ints:
    """Return `batch`, or else an uninitialised array of a shape."""
    return np.empty(shape, np.int64) if batch is None else batch


class Merge:
    """A merge of two batches, done piece by piece, so that no insertion takes long."""

    def __init__(self, one: Ints, other: Ints, layout: Layout, since: Antichain, allocate: Allocate) -> None:
        self.one = one
        self.other = other
        self.rows = one.shape[1] + other.shape[1]
        self._layout = layout
        self._since = since
        self._room = allocate((layout.height, self.rows))
        self._at = (0, 0)
        self._filled = 0

    def work(self, fuel: int) -> bool:
        """Merge about fuel rows more; return whether all is done."""
        while fuel > 0 and sum(self._at) < self.rows:
            fuel -= self._merge_piece(min(fuel, PIECE_ROWS))
        return sum(self._at) == self.rows

    def result(self) -> Ints:
        """Return the merged batch; the merge must be done."""
        if 2 * self._filled < self.rows:
            return self._room[:, : self._filled].copy()
        return self._room[:, : self._filled]

    def _merge_piece(self, rows: int) -> int:
        """Merge the next rows of both batches; return how many were read."""
        (one_at, other_at), (one_end, other_end) = self._at, self._find_ends(rows)
        parts = (self.one[:, one_at:one_end], self.other[:, other_at:other_end])
        piece = advance_batch(np.concatenate(parts, axis=1), self._layout, self._since)
        count = piece.shape[1]
        self._room[:, self._filled : self._filled + count] = piece
        self._filled += count
        self._at = (one_end, other_end)
        return one_end - one_at + other_end - other_at

    def _find_ends(self, rows: int) -> tuple[int, int]:
        """Return where the next piece ends in both batches; rows of one hash stay together."""
        ends = []
        for batch, at in zip((self.one[0], self.other[0]), self._at, strict=True):
            if at + rows < len(batch):
                ends.append(int(batch[at + rows]))
        if not ends:
            return self.one.shape[1], self.other.shape[1]
        cut = min(ends)
        places = (int(self.one[0].searchsorted(cut)), int(self.other[0].searchsorted(cut)))
        if places == self._at:
            places = (
                int(self.one[0].searchsorted(cut, side="right")),
                int(self.other[0].searchsorted(cut, side="right")),
            )
        return places


def advance_batch(batch: Ints, layout: Layout, since: Antichain) -> Ints:
    """Advance a batch's times to since, sort and consolidate; may change it."""
    if not since.is_empty:
        dimensions = len(since.elements[0]) if isinstance(since.elements[0], tuple) else 1
        outer = batch[1 + layout.words : 1 + layout.words + dimensions]
        outer[:] = advance_times(outer, since)
    return sort_and_consolidate(batch)


class Spine:
    """The batches of an arrangement. `since` applies to the first dimensions of times, as many as it has."""

    def __init__(self, layout: Layout, allocate: Allocate = allocate_in_memory) -> None:
        self.layout = layout
        self.since = NO_TIME
        self._allocate = allocate
        self._entries: list[Ints | Merge] = []

    @property
    def rows(self) -> int:
        """The number of updates; those of an unfinished merge are not consolidated yet."""
        return sum([entry.rows if isinstance(entry, Merge) else entry.shape[1] for entry in self._entries])

    @property
    def bytes(self) -> int:
        """How much memory the updates take."""
        return 8 * self.layout.height * self.rows

    def batches(self) -> Iterator[Ints]:
        """Yield all batches: together they are what was inserted."""
        for entry in self._entries:
            if isinstance(entry, Merge):
                yield entry.one
                yield entry.other
            else:
                yield entry

    def insert(self, batch: Ints) -> None:
        """Add a batch, and do a bounded amount of merging."""
        rows = batch.shape[1]
        if not rows:
            return
        self._work_on_merges(4 * rows + FUEL)
        last = self._entries[-1] if self._entries else None
        if isinstance(last, np.ndarray) and last.shape[1] + rows <= SMALL_ROWS:
            joined = self._merge(last, batch)
            self._entries[-1:] = [joined] if joined.shape[1] else []
        else:
            self._entries.append(self._spill_if_large(batch))
        if len(self._entries) > 1:
            self._begin_merges()

    def advance(self, since: Antichain) -> None:
        """Let times before since become indistinguishable; done when batches are merged."""
        self.since = since

    def lookup(self, hashes: Ints, keys: Ints) -> tuple[Ints, Ints]:
        """Return (numbers, updates), unordered: each update and its key's number."""
        numbers, rows = [], []
        for batch in self.batches():
            key_numbers, places = match_keys(hashes, keys, batch)
            if len(key_numbers):
                numbers.append(key_numbers)
                rows.append(batch.take(places, axis=1, mode="clip"))
        if not rows:
            return NONE, self.layout.empty()
        if len(rows) == 1:
            return numbers[0], rows[0]
        return np.concatenate(numbers), np.concatenate(rows, axis=1)

    def select(self, rows: Callable[[Ints], Flags]) -> Ints:
        """Return the updates that a condition on batches selects. Cost: all of them."""
        selected = [batch[:, rows(batch)] for batch in self.batches()]
        return np.concatenate(selected, axis=1) if selected else self.layout.empty()

    def _spill_if_large(self, batch: Ints) -> Ints:
        """Return a batch; a large one may be copied to a file."""
        return batch if batch.shape[1] <= AT_ONCE_ROWS else self._allocate((batch.shape[0], batch.shape[1]), batch)

    def _merge(self, one: Ints, other: Ints) -> Ints:
        """Return two batches as one, advanced to since and consolidated."""
        return advance_batch(np.concatenate((one, other), axis=1), self.layout, self.since)

    def _work_on_merges(self, fuel: int) -> None:
        """Continue all merges; replace finished ones by their results."""
        if Merge not in map(type, self._entries):
            return
        for at, entry in enumerate(self._entries):
            if isinstance(entry, Merge) and entry.work(fuel):
                self._entries[at] = entry.result()
        self._entries = [entry for entry in self._entries if isinstance(entry, Merge) or entry.shape[1]]

    def _begin_merges(self) -> None:
        """Merge neighbours until each is at least twice as large as the next.

        The result of a merge under way is merged further only when it is done: finishing it at once would cost all its
        rows.
        """
        at = len(self._entries) - 1
        while at > 0:
            larger, smaller = self._entries[at - 1 : at + 1]
            if isinstance(larger, Merge) or isinstance(smaller, Merge) or larger.shape[1] >= 2 * smaller.shape[1]:
                at -= 1
                continue
            if larger.shape[1] + smaller.shape[1] <= AT_ONCE_ROWS:
                merged = self._merge(larger, smaller)
                self._entries[at - 1 : at + 1] = [merged] if merged.shape[1] else []
            else:
                self._entries[at - 1 : at + 1] = [Merge(larger, smaller, self.layout, self.since, self._allocate)]
            at = min(at, len(self._entries)) - 1


SPILL_BYTES_MIN = 1 << 20  # Smaller batches stay in memory.


class Spill:
    """Allocates room for batches: in memory up to `budget` bytes, and then in files.

    `folder`: the folder of the files; None for the system's folder for temporary files.
    """

    def __init__(self, budget: int, folder: str | PathLike[str] | None) -> None:
        self._budget = budget
        self._folder = folder
        self._in_memory = 0
        self.spilled_bytes = 0

    def allocate(self, shape: tuple[int, int], batch: Ints | None = None) -> Ints:
        """Return an array that need not be initialised, or `batch`, in memory or in a file."""
        size = 8 * shape[0] * shape[1]
        if size < SPILL_BYTES_MIN:
            return allocate_in_memory(shape, batch)
        if self._in_memory + size <= self._budget:
            room = allocate_in_memory(shape, batch)
            self._in_memory += size
            weakref.finalize(room, self._note_freed, size)
            return room
        room = self._allocate_file(shape, size)
        if batch is not None:
            room[:] = batch
        return room

    def _allocate_file(self, shape: tuple[int, int], size: int) -> Ints:
        """Return an array in a temporary file that has no name."""
        with tempfile.TemporaryFile(dir=self._folder, prefix="persist-spill-") as file:
            file.truncate(size)
            mapped = mmap.mmap(file.fileno(), size)
        room: Ints = np.frombuffer(mapped, np.int64).reshape(shape)
        self.spilled_bytes += size
        weakref.finalize(mapped, self._note_unspilled, size)
        return room

    def _note_freed(self, size: int) -> None:
        """Subtract the bytes of an array in memory that was freed."""
        self._in_memory -= size

    def _note_unspilled(self, size: int) -> None:
        """Subtract the bytes of an array in a file that was freed."""
        self.spilled_bytes -= size
