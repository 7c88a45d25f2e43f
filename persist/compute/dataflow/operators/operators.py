"""The base of the operators of a running dataflow, and the simple ones.

A dataflow is run in passes. In a pass each operator is called once, after its inputs, or in a scope once per iteration.
It takes the updates in `out` of its inputs, and puts its own into `out`. An operator with state lets updates wait until
they are *ready*: their time is not beyond the frontier of its inputs and, in a scope, not in a later iteration. So the
updates that it emits are final for their times.

Within a pass no frontier of an input of the dataflow moves, so operators send no messages about progress: the frontier
of an operator is the meet of the frontiers of its inputs.

**Two functions.** `run` computes the new updates of the output. `contents` computes what the output held before this
pass, for some keys or for all. Partial arrangements request it (`persist.compute.dataflow.operators.arrangement`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pyarrow as pa

from persist.compute.dataflow.operators.linear import Shape
from persist.compute.dataflow.plan.draft import Captured, Probed, to_table
from persist.compute.dataflow.state.costs import USUAL, Costs
from persist.compute.dataflow.updates.batch import Keys, Layout, find_uncancelled, to_batch
from persist.compute.dataflow.updates.times import Flags, Ints, Ready, Stash, find_beyond, meet_all
from persist.compute.dataflow.updates.words import Domain
from persist.core.antichain import Antichain, to_user_time
from persist.core.errors import OperatorFailed


@cache
def make_first_frontier(dimensions: int) -> Antichain:
    """Return the frontier that every time is beyond."""
    return Antichain(to_user_time((0,) * dimensions))


@dataclass(frozen=True, slots=True)
class Position:
    """The place of an operator in a dataflow.

    Attributes:
        title: the operator's name in messages.
        outer: how many dimensions the times of the program have.
        depth: how many scopes of iteration are around it.
        costs: the thresholds at which it changes its algorithm.
    """

    title: str
    inputs: Sequence["Operator"]
    outer: int
    depth: int
    costs: Costs = USUAL


class Operator:
    """One operator of a running dataflow.

    Attributes:
        title, inputs, outer, depth, costs: see `Position`.
        dimensions: the number of coordinates of its times: the program's, and one for each scope around it.
        frontier: how far its inputs are complete, in the program's dimensions.
        rounds: the current iteration of each scope around it, outermost first.
        out: the updates that it emits in this pass, or None.
        moves_times: whether it may move updates to later times.
        origins: for each word of the output, the word that it copies from the input of the operator's last stages.
        stored: reads the contents of the output from the collection that stores it, if there is one.
        given_out, seconds: the number of its output updates, and its running time, in all passes.
    """

    def __init__(self, at: Position) -> None:
        self.title = at.title
        self.inputs = list(at.inputs)
        self.depth = at.depth
        self.outer = at.outer
        self.dimensions = at.outer + at.depth
        self.frontier = make_first_frontier(at.outer)
        self.rounds: tuple[int, ...] = ()
        self.out: Ints | None = None
        self.costs = at.costs
        self.moves_times = False
        self.given_out = 0
        self.seconds = 0.0
        self.origins: tuple[int | None, ...] = ()
        self.stored: Request | None = None

    def advance_frontier(self) -> None:
        """Take the frontier over from the inputs."""
        if len(self.inputs) == 1:
            self.frontier = self.inputs[0].frontier
        elif self.inputs:
            self.frontier = meet_all(operator.frontier for operator in self.inputs)

    def run(self) -> None:
        """Compute the output of this pass, or of this iteration, from the inputs' new updates."""
        raise NotImplementedError

    def finish_pass(self) -> None:
        """End a pass: insert kept updates, and allow their compaction."""

    def contents(self, keys: Keys | None) -> Ints:
        """Return what the output held before this pass, for some keys or all: updates of words, a time and diffs.

        Several updates may be of one record. Cost: the operators that it depends on read their contents for these keys.
        """
        return self.compute_contents(keys) if self.stored is None else self.stored(keys)

    def compute_contents(self, keys: Keys | None) -> Ints:
        """Compute what `contents` returns from the inputs' contents."""
        raise NotImplementedError(f"{self.title} has no contents that can be requested")

    @property
    def has_cheap_contents(self) -> bool:
        """Whether reading all contents costs no more than reading a few keys."""
        return False

    def find_ready(self, times: Ints) -> Flags:
        """Return which times are complete at this operator by now."""
        waits = find_beyond(self.frontier, times[: self.outer])
        for number, round_ in enumerate(self.rounds, self.outer):
            waits |= times[number] > round_
        return ~waits

    def make_ready_test(self, level: int) -> Ready:
        """Return a test which times are complete, whatever their iterations from a level on."""

        def ready(times: Ints) -> Flags:
            waits = find_beyond(self.frontier, times[: self.outer])
            for number, round_ in enumerate(self.rounds[:level], self.outer):
                waits |= times[number] > round_
            return ~waits

        return ready

    def set_iteration(self, frontier: Antichain, rounds: tuple[int, ...]) -> None:
        """Set the inputs' frontier, and the current iteration of each scope."""
        self.frontier = frontier
        self.rounds = rounds

    def find_ready_bound(self) -> int | None:
        """Return the least incomplete value of a time's last coordinate; None if unknown."""
        if self.rounds:
            return self.rounds[-1] + 1
        return self.frontier.time if self.outer == 1 else None

    def find_next_iteration(self, level: int) -> int | None:
        """Return the next iteration with work at a nesting level, or None."""
        return None

    def list_words_in_use(self) -> list[tuple[Ints, pa.Schema]]:
        """Return all kept words, with the columns that they belong to."""
        return []

    def bytes(self) -> int:
        """Return the bytes of memory that the state takes."""
        return 0

    def list_states(self) -> Iterator[tuple[str, int, int]]:
        """Yield (title, updates, bytes) for each state that the operator keeps."""
        if self.bytes():
            rows = sum(words.shape[1] for words, _ in self.list_words_in_use())
            yield self.title, rows, self.bytes()

    def concat_inputs(self) -> Ints | None:
        """Return the updates of all inputs."""
        if len(self.inputs) == 1:
            return self.inputs[0].out
        parts = [operator.out for operator in self.inputs if operator.out is not None]
        if len(parts) > 1:
            return np.concatenate(parts, axis=1)
        return parts[0] if parts else None


Request = Callable[[Keys | None], Ints]


def request_contents(
    inputs: Sequence[Operator], keys: Keys | None, origins: Sequence[int | None], shape: Shape
) -> Ints:
    """Return the contents of an input after some stages, for requested keys.

    Args:
        origins: for each column of the result, the number of the input column that it copies; None if computed.
        shape: applies the stages to updates.
    """
    if keys is None:
        return shape(inputs[0].contents(None))
    if inputs[0].has_cheap_contents:
        below, is_same = None, False
    else:
        below, is_same = keys.trace(origins)
    rows = shape(inputs[0].contents(below))
    return rows if is_same else rows[:, keys.selects(rows)]


class StashingOperator(Operator):
    """An operator of one input whose updates wait until they are ready.

    Args:
        shape: the linear stages that are applied to updates first.
        adds_up: the shape makes many equal updates, so it is applied piece by piece, and each piece is consolidated. A
            first build then takes a fraction of the memory.

    `is_last_reader`: no other operator reads the updates of the inputs after this one.
    """

    is_last_reader = False

    def __init__(
        self, at: Position, layout: Layout, shape: Shape = lambda updates: updates, *, adds_up: bool = False
    ) -> None:
        super().__init__(at)
        self.layout = layout
        self.shape = shape
        self._adds_up = adds_up
        axis = layout.words + (layout.dimensions - 1 if at.depth else 0)
        self.stash = Stash(axis, slice(layout.words, layout.words + layout.dimensions))

    def shape_input(self) -> Ints | None:
        """Return the input's new updates with the linear stages applied."""
        updates = self.concat_inputs()
        if self.is_last_reader:
            for source in self.inputs:
                source.out = None  # It goes with this frame, before anything is sorted.
        return None if updates is None else self.apply_shape(updates)

    def apply_shape(self, updates: Ints) -> Ints:
        """Return updates with the linear stages before this operator applied."""
        if not self._adds_up or updates.shape[1] <= self.costs.piece_rows:
            return self.shape(updates)
        updates = updates[:, find_uncancelled(updates)]  # A piece does not see that another one takes a record back.
        most = self.costs.piece_rows
        starts = range(0, max(1, updates.shape[1]), most)
        pieces = [to_batch(self.shape(updates[:, start : start + most]), self.layout)[1:] for start in starts]
        return np.concatenate(pieces, axis=1)

    def take_ready(self) -> Ints | None:
        """Return the updates that are ready by now as a consolidated batch, or None."""
        updates = self.shape_input()
        parts = [] if self.stash.is_empty else self.stash.take(self.find_ready, self.find_ready_bound())
        if updates is not None and updates.shape[1]:
            flags = self.find_ready(updates[self.layout.words : -1])
            if flags.all():
                parts.append(updates)
            else:
                parts.append(updates[:, flags])
                self.stash.add(updates[:, ~flags])
        if not parts:
            return None
        batch = to_batch(parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1), self.layout)
        return batch if batch.shape[1] else None

    def find_next_iteration(self, level: int) -> int | None:
        """Return the next iteration with updates at a nesting level, or None."""
        if self.stash.is_empty:
            return None
        return self.stash.find_least(self.make_ready_test(level), self.layout.words + self.outer + level)

    def list_waiting_words(self) -> list[Ints]:
        """Return the words of the updates that wait."""
        return [chunk[: self.layout.words] for chunk in self.stash.list_chunks()]


class EntryOperator(Operator):
    """An operator for an input or a source, whose owner sets `out` and `frontier`.

    `has_few`: whether the source is so small that each request reads all of it.
    """

    def __init__(self, at: Position) -> None:
        super().__init__(at)
        self.has_few: Callable[[], bool] = lambda: False

    @property
    def has_cheap_contents(self) -> bool:
        return self.has_few()

    def advance_frontier(self) -> None:
        pass

    def run(self) -> None:
        pass


class LinearOperator(Operator):
    """Applies linear stages to the updates of its input."""

    def __init__(self, at: Position, shape: Shape) -> None:
        super().__init__(at)
        self.shape = shape

    def run(self) -> None:
        updates = self.inputs[0].out
        self.out = None if updates is None or not updates.shape[1] else self.shape(updates)

    def compute_contents(self, keys: Keys | None) -> Ints:
        return request_contents(self.inputs, keys, self.origins, self.shape)

    @property
    def has_cheap_contents(self) -> bool:
        return self.inputs[0].has_cheap_contents


class ConcatOperator(Operator):
    """Passes on the updates of all inputs."""

    def run(self) -> None:
        self.out = self.concat_inputs()

    def compute_contents(self, keys: Keys | None) -> Ints:
        parts = [operator.contents(keys) for operator in self.inputs]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    @property
    def has_cheap_contents(self) -> bool:
        return all(operator.has_cheap_contents for operator in self.inputs)


class SealedWithOperator(ConcatOperator):
    """Passes on the first input, complete only as far as all inputs are."""

    def run(self) -> None:
        self.out = self.inputs[0].out


class ConsolidateOperator(StashingOperator):
    """Sums updates per record and time, once they are complete."""

    def __init__(self, at: Position, schema: pa.Schema) -> None:
        super().__init__(at, Layout(len(schema), 0, at.outer + at.depth))
        self._schema = schema

    def run(self) -> None:
        batch = self.take_ready()
        self.out = None if batch is None else batch[1:]

    def compute_contents(self, keys: Keys | None) -> Ints:
        return self.inputs[0].contents(keys)

    @property
    def has_cheap_contents(self) -> bool:
        return self.inputs[0].has_cheap_contents

    def list_words_in_use(self) -> list[tuple[Ints, pa.Schema]]:
        return [(words, self._schema) for words in self.list_waiting_words()]


class InspectOperator(Operator):
    """Calls a function with each batch of updates."""

    def __init__(self, at: Position, shown: Callable[[Ints], object]) -> None:
        super().__init__(at)
        self._shown = shown

    def run(self) -> None:
        self.out = self.concat_inputs()
        if self.out is not None and self.out.shape[1]:
            self._shown(self.out)


class ProbeOperator(Operator):
    """Shows how far its input is complete."""

    def __init__(self, at: Position, probe: Probed) -> None:
        super().__init__(at)
        self._probe = probe

    def run(self) -> None:
        self._probe.attach(self.frontier)


class CaptureOperator(ConsolidateOperator):
    """Keeps complete updates in memory."""

    def __init__(self, at: Position, schema: pa.Schema, captured: Captured, domain: Domain) -> None:
        super().__init__(at, schema)
        self._captured = captured
        captured.attach(schema, domain, self.dimensions, self.stash.list_chunks)

    def run(self) -> None:
        super().run()
        if self.out is not None:
            self._captured.add(self.out)

    def list_words_in_use(self) -> list[tuple[Ints, pa.Schema]]:
        captured = self._captured.live()
        return [*super().list_words_in_use(), (captured[: len(self._schema)], self._schema)]


class SinkOperator(ConsolidateOperator):
    """Holds the complete updates of this pass for an output."""

    def __init__(self, at: Position, schema: pa.Schema, collection: str, keys: tuple[str, ...]) -> None:
        super().__init__(at, schema)
        self.schema = schema
        self.collection = collection
        self.keys = keys


def make_inspector(
    function: Callable[[pa.Table], object], schema: pa.Schema, domain: Domain, operator: str
) -> Callable[[Ints], object]:
    """Return a function that passes updates, as a table, to a user's function."""

    def inspect(updates: Ints) -> None:
        try:
            function(to_table(updates, schema, domain))
        except Exception as error:
            raise OperatorFailed(
                operator, None, f"on a table of {updates.shape[1]} updates it raised {error!r}"
            ) from error

    return inspect
