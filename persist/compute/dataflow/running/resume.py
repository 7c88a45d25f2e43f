"""What a program that goes on need not compute again.

A program goes on from what its sources hold at the time at which its outputs are sealed. That is taken in by a pass of
its own, before anything newer, and in that pass less is done than in any other:

- **What comes of it is written already.** So an operator rests in that pass if all that reads what it gives are outputs
  that are sealed, and operators that rest. Its state is not what it gives but what it reads, and that is arranged.
- **Counts are told from outputs.** The state of a count is a number for each group, and that is just what it gives.
  Where an output holds it, it is read there, in O(groups), and nobody needs what is counted: a join before it rests.

What may still be to come keeps an operator from resting: a temporal filter gives now what happens later. A sum is not
told from what it came to, unless it is one of a constant: how many of its values are NULL, and what negative
multiplicities left in groups that nobody sees, is written nowhere. What operators in the middle of a program keep is
computed again from the contents of the sources.

All of this is a matter of cost. An output that cannot be read any more at that time, or that holds what no count gives,
is passed over, and the pass computes everything.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from persist.compute.dataflow.operators.aggregates import Wanted
from persist.compute.dataflow.operators.arrangement import Arrangement
from persist.compute.dataflow.operators.join import JoinOperator
from persist.compute.dataflow.operators.operators import (
    ConcatOperator,
    ConsolidateOperator,
    EntryOperator,
    LinearOperator,
    Operator,
    ProbeOperator,
    SinkOperator,
)
from persist.compute.dataflow.operators.reduce import ReduceOperator
from persist.compute.dataflow.plan.stages import Map, Stage
from persist.compute.dataflow.ports.output import KeptLinear
from persist.compute.dataflow.ports.sinks import Outputs
from persist.compute.dataflow.updates.times import Ints
from persist.compute.dataflow.updates.words import NULL
from persist.core.expression.term import Col

PASSING = (EntryOperator, LinearOperator, ConcatOperator)  # They give at once what they are given.
# These give nothing at times that are not complete.
WAITING = (Arrangement, ConsolidateOperator, JoinOperator, ReduceOperator, ProbeOperator)


@dataclass(frozen=True, slots=True)
class Counts:
    """How the state of a count is told from what it gives.

    Attributes:
        keys: the columns of its result that are the key of the group.
        column: the one that tells how many records the group has.
        per_record: by how much it grows for each record.
    """

    keys: tuple[int, ...]
    column: int
    per_record: int

    def state(self, given: Ints, at: int) -> Ints | None:
        """Return what the count keeps at a time, as updates of [key words …, slot, time, diff], given its result at
        that time; None if that is no result of a count."""
        counts = given[self.column]
        if (given[-1] != 1).any() or (counts == 0).any() or (counts == NULL).any() or (counts % self.per_record).any():
            return None
        updates = np.empty((len(self.keys) + 3, given.shape[1]), np.int64)
        for row, column in enumerate(self.keys):
            updates[row] = given[column]
        updates[-3], updates[-2], updates[-1] = 0, at, counts // self.per_record
        return updates


def counts_of(
    keys: int, wanted: Sequence[Wanted], columns: pa.Schema, after: Sequence[Stage], names: Sequence[str]
) -> Counts | None:
    """Return how the state of accumulated aggregates is told from their result; None if it is not.

    Args:
        keys: how many of the columns of the aggregation, before the stages after it, are its key.
        columns: these columns.
        after: what is done to them.
        names: the columns of the result.
    """
    if not all(column.is_counted for column in wanted):
        return None
    named = {name: name for name in columns.names}  # Of each column of the result, the one that it is.
    for stage in after:
        if not isinstance(stage, Map):
            return None
        named = {
            name: named[column.name]
            for name, column in stage.outputs
            if isinstance(column, Col) and column.name in named
        }
    places = {named[name]: at for at, name in enumerate(names) if name in named}
    if not all(name in places for name in columns.names[:keys]):
        return None
    for column in wanted:
        step = column.constant if column.kind == "sum" else 1
        if step and column.name in places:
            return Counts(tuple(places[name] for name in columns.names[:keys]), places[column.name], step)
    return None


def resumed(operators: Sequence[Operator], counts: dict[Operator, Counts], outputs: Outputs, at: int) -> set[Operator]:
    """Restore the state that outputs hold at the time at which the program goes on, and return who rests in the pass
    that takes in what sources hold at that time.

    Args:
        operators: of the root scope, in the order in which they run.
        counts: of some reductions, how their state is told from what they give.
    """
    is_written = {
        sink_output.sink: sink_output.done > at and not (sink_output.corrects or sink_output.compares)
        for sink_output in outputs.every
    }
    states: dict[Arrangement, Ints] = {}
    for output in outputs.every:
        reduce = output.sink.inputs[0]
        if is_written[output.sink] and reduce in counts and reduce.inputs[0] not in states:
            assert isinstance(reduce, ReduceOperator)
            given = output.contents(at)
            state = None if given is None else counts[reduce].state(given, at)
            if state is not None:
                states[reduce.arrangement] = state
    for arrangement, state in states.items():  # All has been read: nothing of this can fail, and be repeated.
        arrangement.restore(state, at)
    return _resting(operators, is_written, set(states))


def _resting(
    operators: Sequence[Operator], is_written: dict[SinkOperator, bool], restored: set[Operator]
) -> set[Operator]:
    """Return the operators of whose results in this pass nobody needs any."""
    to_come: set[Operator] = set()  # Those that may give, in this pass, what comes later.
    for operator in operators:
        passes_on = isinstance(operator, PASSING) and any(given in to_come for given in operator.inputs)
        moves = operator.moves_times and not isinstance(operator, Arrangement)
        if passes_on or moves or not isinstance(operator, (*PASSING, *WAITING)):
            to_come.add(operator)
    needed: set[Operator] = set()
    resting: set[Operator] = set()
    for operator in reversed(operators):
        brings_more = operator.moves_times or any(given in to_come for given in operator.inputs)
        if operator.may_rest and operator not in needed and not brings_more:
            resting.add(operator)
        elif brings_more or not _does_without(operator, is_written, restored):
            needed.update(operator.inputs)
    return resting


def _does_without(operator: Operator, is_written: dict[SinkOperator, bool], restored: set[Operator]) -> bool:
    """Return whether an operator that does not rest does without what its inputs give at the time."""
    match operator:
        case SinkOperator():
            return is_written[operator]
        case KeptLinear():
            return operator.is_restored
        case ProbeOperator():
            return True
    return operator in restored
