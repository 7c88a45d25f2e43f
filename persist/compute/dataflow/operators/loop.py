"""Runs scopes of iteration.

Times in a scope have one more coordinate, the iteration. In each pass the scope runs its operators once for each
iteration with work, in ascending order. Updates enter at iteration 0, and the result of a variable comes back one
iteration later. An update of a later iteration waits until that iteration is run. A later iteration never makes work
for an earlier one, so the pass has reached its fixed point when no update waits.

Arrangements keep the iterations of earlier passes apart, and later passes change them. So the cost of a change depends
on the iterations and keys in which it changes something.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from persist.compute.dataflow.operators.operators import Operator, Position
from persist.compute.dataflow.updates.batch import Layout, to_batch
from persist.compute.dataflow.updates.times import Ints, Stash, meet_all
from persist.compute.dataflow.updates.words import NULL
from persist.core.antichain import Antichain
from persist.core.errors import NotConverging, OperatorFailed
from persist.core.progress import check_limits

LAST_ENTRY = 2**62
"""The last iteration that a record can enter at. What comes of it has as many iterations to go before 64 bits wrap."""


class EnterOperator(Operator):
    """Brings updates into a scope, at iteration 0 or at an iteration of each record.

    In the first iteration it also passes on the updates of later iterations; operators that keep state let them wait.

    `row`: the column with each record's first iteration, which is dropped; None: all records enter at iteration 0.

    `last`: the latest iteration in which something has entered.
    """

    def __init__(self, at: Position, row: int | None) -> None:
        super().__init__(at)
        [self._source] = self.inputs
        self._row = row
        self.last = 0

    @property
    def has_news(self) -> bool:
        """Whether there are updates to bring into the scope."""
        return self._source.out is not None and self._source.out.shape[1] > 0

    def run(self) -> None:
        """Bring new updates in, at their first iterations."""
        updates = self._source.out
        if updates is None or self.rounds[-1] > 0:
            self.out = None
            return
        if self._row is None:
            rounds = np.zeros((1, updates.shape[1]), np.int64)
        else:
            rounds, updates = updates[self._row : self._row + 1], np.delete(updates, self._row, axis=0)
            if rounds.size:
                latest = int(rounds.max())
                self._check_entry(int(rounds.min()))
                self._check_entry(latest)
                self.last = max(self.last, latest)
        self.out = np.concatenate((updates[:-1], rounds, updates[-1:]))

    def _check_entry(self, entry: int) -> None:
        """Raise OperatorFailed unless a record's first iteration is in the allowed range."""
        if not 0 <= entry <= LAST_ENTRY:
            text = "NULL" if entry == NULL else str(entry)
            what = f"a record was to enter at iteration {text}; iterations to enter at are from 0 to {LAST_ENTRY}"
            raise OperatorFailed(self.title, None, what)


class VariableOperator(Operator):
    """The updates of a stream in the previous iteration; its scope sets `feedback`."""

    def __init__(self, at: Position, schema: pa.Schema) -> None:
        super().__init__(at)
        self.feedback: Operator | None = None
        self._schema = schema
        self._layout = Layout(len(schema), 0, self.dimensions)
        times = slice(len(schema), len(schema) + self.dimensions)
        self._stash = Stash(times.stop - 1, times)

    def take_feedback(self) -> None:
        """Keep the stream's updates of this iteration for the next iteration."""
        assert self.feedback is not None
        fed = self.feedback.out
        if fed is not None and fed.shape[1]:
            # Consolidated, so that what cancels out does not make another iteration.
            updates = to_batch(fed, self._layout)[1:].copy()
            updates[-2] += 1
            self._stash.add(updates)

    def run(self) -> None:
        """Emit the updates of the previous iteration."""
        parts = [] if self._stash.is_empty else self._stash.take(self.find_ready, self.find_ready_bound())
        self.out = (np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]) if parts else None

    def find_next_iteration(self, level: int) -> int | None:
        """Return the next iteration with updates at a nesting level, or None."""
        if self._stash.is_empty:
            return None
        return self._stash.find_least(self.make_ready_test(level), len(self._schema) + self.outer + level)

    def list_words_in_use(self) -> list[tuple[Ints, pa.Schema]]:
        return [(chunk[: len(self._schema)], self._schema) for chunk in self._stash.list_chunks()]

    @property
    def rows(self) -> int:
        """How many changes wait for another iteration."""
        return self._stash.rows


class LeaveOperator(Operator):
    """The updates of a stream of a scope in a pass, summed over all iterations."""

    def __init__(self, at: Position, loop: "Loop", source: Operator) -> None:
        super().__init__(at)
        self._source = source
        self._given: list[Ints] = []
        loop.leaves.append(self)

    def collect(self) -> None:
        """Keep the stream's updates of this iteration, without the iteration's number."""
        collected = self._source.out
        if collected is not None and collected.shape[1]:
            self._given.append(np.delete(collected, -2, axis=0))

    def run(self) -> None:
        """Emit the updates of all iterations."""
        parts, self._given = self._given, []
        self.out = (np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]) if parts else None


class Loop(Operator):
    """A scope: its operators in the order in which they run, and the variables that close its cycles.

    `limit`: how many iterations there may be after the last in which something enters.
    """

    def __init__(self, at: Position, limit: int) -> None:
        super().__init__(at)
        self.operators: list[Operator] = []
        self.leaves: list[LeaveOperator] = []
        self._limit = limit

    def advance_frontier(self) -> None:
        self.set_iteration(meet_all(operator.frontier for operator in self.inputs), ())

    def set_iteration(self, frontier: Antichain, rounds: tuple[int, ...]) -> None:
        """Set the frontier and the iterations around the scope; begin at its iteration 0."""
        super().set_iteration(frontier, rounds)
        for operator in self.operators:
            operator.set_iteration(frontier, (*rounds, 0))

    def run(self) -> None:
        """Run iterations until no operator has news, or the limit is reached."""
        enters = [operator for operator in self.operators if isinstance(operator, EnterOperator)]
        variables = [operator for operator in self.operators if isinstance(operator, VariableOperator)]
        frontier, outer = self.frontier, self.rounds
        round_ = 0 if any(operator.has_news for operator in enters) else self._find_own_next_iteration()
        while round_ is not None:
            check_limits()
            if round_ > self._limit + max((operator.last for operator in enters), default=0):
                raise NotConverging(self.title, self._limit, sum(operator.rows for operator in variables))
            rounds = (*outer, round_)
            for operator in self.operators:
                operator.set_iteration(frontier, rounds)
                operator.run()
            for variable in variables:
                variable.take_feedback()
            for leave in self.leaves:
                leave.collect()
            round_ = self._find_own_next_iteration()

    def _find_own_next_iteration(self) -> int | None:
        """Return the next iteration of this scope with work; None if it is done."""
        return self.find_next_iteration(len(self.rounds))

    def find_next_iteration(self, level: int) -> int | None:
        """Return the next iteration with work at a nesting level, or None."""
        least = None
        for operator in self.operators:
            round_ = operator.find_next_iteration(level)
            if round_ is not None and (least is None or round_ < least):
                least = round_
        return least

    def finish_pass(self) -> None:
        for operator in self.operators:
            operator.finish_pass()

    def list_words_in_use(self) -> list[tuple[Ints, pa.Schema]]:
        return [part for operator in self.operators for part in operator.list_words_in_use()]

    def bytes(self) -> int:
        return sum(operator.bytes() for operator in self.operators)

    def list_states(self) -> Iterator[tuple[str, int, int]]:
        """Yield (title, updates, bytes) of each state of all operators in the scope."""
        for operator in self.operators:
            yield from operator.list_states()
