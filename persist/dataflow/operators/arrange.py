"""An arrangement: the complete updates of a collection, indexed by key, for all operators that use this key.

In each pass it takes what has become ready as one new batch. Readers see the batch and, apart from it, the spine of all
before. Each reader says from which frontier on it will compare times; the arrangement compacts up to the meet of these.
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from persist.antichain import Antichain
from persist.dataflow.operators.linear import Shape
from persist.dataflow.operators.operators import Position, Waiting
from persist.dataflow.state.spine import Allocate, Spine
from persist.dataflow.updates.batch import Layout, matches
from persist.dataflow.updates.times import Ints, meet_of

ReaderFrontier = Callable[[], Antichain]


class Arrangement(Waiting):
    """A spine, and the batch of this pass.

    Attributes:
        new: the updates that became ready in this pass or iteration, or None.
        spine: all before.
    """

    def __init__(self, at: Position, layout: Layout, shape: Shape, schema: pa.Schema, allocate: Allocate) -> None:
        super().__init__(at, layout, shape)
        self.spine = Spine(layout, allocate)
        self.new: Ints | None = None
        self.schema = schema
        self._readers: list[ReaderFrontier] = []
        self._is_needed = True
        self._restored: tuple[Ints, int] | None = None

    def read_from(self, frontier: ReaderFrontier) -> None:
        """Take note of a reader: it compares times with those beyond its frontier only."""
        self._readers.append(frontier)

    def restore(self, updates: Ints, at: int) -> None:
        """Take updates, in the next pass, for what comes of the input up to a time."""
        self._restored = updates, at

    def shaped(self) -> Ints | None:
        arrived = super().shaped()
        if self._restored is None:
            return arrived
        (updates, at), self._restored = self._restored, None
        if arrived is None:
            return updates
        return np.concatenate((updates, arrived[:, arrived[self.layout.words] > at]), axis=1)

    def run(self) -> None:
        if self.new is not None and self._is_needed:
            self.spine.insert(self.new)
        self.new = self.taken()
        self.out = None if self.new is None else self.new[1:]

    def settle(self) -> None:
        if not self._readers:
            return
        since = meet_of([read() for read in self._readers])
        if since is self.spine.since:
            return
        if since.is_empty:
            # Nobody will ever look anything up here again.
            self.spine, self.new, self._is_needed = Spine(self.layout), None, False
        else:
            self.spine.advance(since)

    def lookup(self, hashes: Ints, keys: Ints, *, has_new: bool) -> tuple[Ints, Ints]:
        """Return the updates of keys: the number of the key and the row, for each; with those of this pass, or not."""
        numbers, rows = self.spine.lookup(hashes, keys)
        if has_new and self.new is not None:
            others, more = _in_batch(hashes, keys, self.new)
            if len(others):
                numbers, rows = np.concatenate((numbers, others)), np.concatenate((rows, more), axis=1)
        return numbers, rows

    def live(self) -> list[tuple[Ints, pa.Schema]]:
        chunks = [batch[1 : 1 + self.layout.words] for batch in self.spine.batches()]
        chunks += [] if self.new is None else [self.new[1 : 1 + self.layout.words]]
        return [(words, self.schema) for words in [*chunks, *self.waiting_words()]]

    def bytes(self) -> int:
        return self.spine.bytes


def _in_batch(hashes: Ints, keys: Ints, batch: Ints) -> tuple[Ints, Ints]:
    ones, others = matches(hashes, keys, batch)
    return ones, batch.take(others, axis=1)
