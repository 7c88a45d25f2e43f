"""Arrangements: the state that joins and reductions look up, whole or partial.

An arrangement is the complete updates of a collection, indexed by key, for all operators that use this key. In each
pass it takes the updates that became ready as one new batch. Readers see the batch and, apart from it, the spine of
earlier updates. A reader compares stored times only with times beyond its
frontier. So the arrangement compacts up to the meet of all readers' frontiers.

A program that continues from sealed outputs need not read its sources whole: its arrangements are *partial*. If a
reader looks up keys that a partial arrangement lacks, the arrangement requests its input's contents for these keys, and
keeps them. The request passes from operator to operator down to the sources, which read the parts that may hold such
records. An operator whose output is stored answers from there.

    a partial arrangement holds, for each key in `loaded`, all updates of its input at times before this pass
    new updates of other keys are dropped: a later request finds them in the contents

So a program with empty arrangements is refreshed at the cost of the keys that its changes touch, and a program with
full arrangements reads changes only. The idea is Noria's upquery into partial state (Gjengset et al., OSDI 2018). It
is exact here, because requested contents are as of one sealed time.
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from persist.compute.dataflow.operators.linear import Shape
from persist.compute.dataflow.operators.operators import Position, StashingOperator, request_contents
from persist.compute.dataflow.state.spine import Allocate, Spine
from persist.compute.dataflow.updates.batch import (
    Keys,
    Layout,
    append_diffs,
    find_distinct_columns,
    hash_keys,
    match_keys,
    to_batch,
)
from persist.compute.dataflow.updates.times import Flags, Ints, meet_all
from persist.core.antichain import Antichain

ReaderFrontier = Callable[[], Antichain]


class Arrangement(StashingOperator):
    """Updates indexed by key: a spine of earlier ones, and the new batch of this pass.

    Attributes:
        new: the updates that became ready in this pass or iteration, or None.
        spine: earlier updates; a partial arrangement has those with loaded keys.
        loaded: the keys of a partial arrangement; None if it is whole.
        seeds: reads the updates of some keys, or all, from a stored output; returns None if that is impossible.
    """

    def __init__(
        self,
        at: Position,
        layout: Layout,
        shape: Shape,
        schema: pa.Schema,
        allocate: Allocate,
        *,
        adds_up: bool = False,
    ) -> None:
        super().__init__(at, layout, shape, adds_up=adds_up)
        self._allocate = allocate
        self.spine = Spine(layout, allocate)
        self.new: Ints | None = None
        self.schema = schema
        self._readers: list[ReaderFrontier] = []
        self._is_needed = True
        self.loaded: Spine | None = None
        self.seeds: Callable[[Ints | None], Ints | None] | None = None

    def add_reader(self, frontier: ReaderFrontier) -> None:
        """Register a reader, which compares times with times beyond its frontier only."""
        self._readers.append(frontier)

    def run(self) -> None:
        self._insert_new()  # The batch of the previous iteration.
        self.new = self.take_ready()
        self.out = None if self.new is None else self.new[1:]

    def finish_pass(self) -> None:
        """After a pass: insert its batch, and allow compaction up to the readers."""
        since = meet_all([read() for read in self._readers]) if self._readers else self.spine.since
        if since is not self.spine.since:
            if since.is_empty:
                # Nobody will ever look anything up here again.
                self.spine, self.new, self._is_needed = Spine(self.layout), None, False
            else:
                self.spine.advance(since)
        self._insert_new()

    def _insert_new(self) -> None:
        """Add the updates of this pass to the spine."""
        if self.new is not None:
            if self._is_needed:
                self.spine.insert(self.new if self.loaded is None else self._select_loaded(self.new, self.loaded))
            self.new = None

    def _select_loaded(self, batch: Ints, loaded: Spine) -> Ints:
        """Return the updates of a batch whose keys are loaded."""
        keys = self.layout.key_rows(batch)
        flags = np.zeros(batch.shape[1], np.bool_)
        flags[loaded.lookup(hash_keys(keys), keys)[0]] = True
        return batch if flags.all() else batch[:, flags]

    def become_partial(self) -> None:
        """Drop all state; later look-ups load their keys from the input."""
        self.spine = Spine(self.layout, self._allocate)
        self.loaded = Spine(Layout(self.layout.keys, 0, 0), self._allocate)

    def load_all(self) -> None:
        """Load the contents of the input that are not loaded yet."""
        if self.loaded is not None:
            updates = None if self.seeds is None else self.seeds(None)
            self._replace_contents(self.apply_shape(self.inputs[0].contents(None)) if updates is None else updates)

    def _replace_contents(self, updates: Ints) -> None:
        """Replace all stored updates."""
        self.spine, self.loaded = Spine(self.layout, self._allocate), None
        self.spine.insert(to_batch(updates, self.layout))

    def find_missing(self, hashes: Ints, keys: Ints) -> Flags:
        """Return which of some distinct keys are not loaded yet."""
        is_missing = np.full(keys.shape[1], self.loaded is not None)
        if self.loaded is not None:
            is_missing[self.loaded.lookup(hashes, keys)[0]] = False
        return is_missing

    def _load(self, keys: Ints) -> None:
        """Load the contents of those keys that are not loaded yet, from the input."""
        assert self.loaded is not None
        if not self.layout.keys or self.inputs[0].has_cheap_contents:
            seeds = None if self.layout.keys or self.seeds is None else self.seeds(keys[:, :1])
            if seeds is None:
                self.load_all()
            else:
                self._replace_contents(seeds)
            return
        keys = find_distinct_columns(keys)
        is_missing = self.find_missing(hash_keys(keys), keys)
        if not is_missing.any():
            return
        keys = keys[:, is_missing]
        updates = None if self.seeds is None else self.seeds(keys)
        if updates is None:
            places = Keys(tuple(range(self.layout.keys)), keys)
            below, is_same = places.trace(self.origins)
            updates = self.apply_shape(self.inputs[0].contents(below))
            if below is None:
                self._replace_contents(updates)
                return
            updates = updates if is_same else updates[:, places.selects(updates)]
        self.spine.insert(to_batch(updates, self.layout))
        self.loaded.insert(to_batch(append_diffs(keys), self.loaded.layout))

    def compute_contents(self, keys: Keys | None) -> Ints:
        if self.loaded is None:
            everything = list(self.spine.batches())
            updates = np.concatenate(everything, axis=1)[1:] if everything else self.layout.empty()[1:]
            return updates if keys is None else updates[:, keys.selects(updates)]
        return request_contents(self.inputs, keys, self.origins, self.apply_shape)

    def lookup(self, hashes: Ints, keys: Ints, *, has_new: bool) -> tuple[Ints, Ints]:
        """Return (numbers, updates): each update of the keys, and its key's number."""
        if self.loaded is not None and keys.shape[1]:
            self._load(keys)
        numbers, rows = self.spine.lookup(hashes, keys)
        if has_new and self.new is not None:
            new_numbers, places = match_keys(hashes, keys, self.new)
            if len(new_numbers):
                numbers = np.concatenate((numbers, new_numbers))
                rows = np.concatenate((rows, self.new.take(places, axis=1)), axis=1)
        return numbers, rows

    def list_words_in_use(self) -> list[tuple[Ints, pa.Schema]]:
        """Return the words in use, with their schemas."""
        chunks = [batch[1 : 1 + self.layout.words] for batch in self.spine.batches()]
        chunks += [] if self.new is None else [self.new[1 : 1 + self.layout.words]]
        entries = [(words, self.schema) for words in [*chunks, *self.list_waiting_words()]]
        if self.loaded is not None:
            columns = pa.schema([self.schema.field(at) for at in range(self.layout.keys)])
            entries += [(batch[1 : 1 + self.layout.keys], columns) for batch in self.loaded.batches()]
        return entries

    def bytes(self) -> int:
        return self.spine.bytes + (0 if self.loaded is None else self.loaded.bytes)
