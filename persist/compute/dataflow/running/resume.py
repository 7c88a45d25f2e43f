"""Operators that rest while a program takes in the contents of its sources.

A program that is not partial goes on from the contents of its sources at the last sealed time of its outputs. It takes
them in by a pass of its own, before newer updates. This pass does less than others:

- Its results are in the outputs already. So an operator rests if only sealed outputs, and operators that rest, read it.
  The state of an operator is what it reads, and that is arranged.
- The state of counts and sums is read from an output that shows it (`persist.compute.dataflow.running.seeds`). Nothing
  has to be computed for it: a join before it rests.

An operator does not rest if it may have updates of later times, as a temporal filter does. All of this saves time only.
If an output cannot be read at that time any more, or does not show a state, the pass computes it.
"""

from collections.abc import Mapping, Sequence

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
from persist.compute.dataflow.plan.plan import Plan
from persist.compute.dataflow.ports.output import KeptLinear
from persist.compute.dataflow.ports.past import Past
from persist.compute.dataflow.ports.sinks import Outputs
from persist.compute.dataflow.running.seeds import Accumulation, NullsAndSigns, Seeds
from persist.compute.dataflow.updates.times import Ints
from persist.compute.dataflow.updates.words import Domain

PASSING = (EntryOperator, LinearOperator, ConcatOperator)  # They pass updates of later times on.
WAITING = (Arrangement, ConsolidateOperator, JoinOperator, ReduceOperator, ProbeOperator)  # These keep them back.


def restore(
    plan: Plan,
    operators: Sequence[Operator],
    accumulations: Sequence[Accumulation],
    outputs: Outputs,
    pasts: Mapping[int, Past],
    domain: Domain,
    at: int,
) -> set[Operator]:
    """Restore the states that outputs show, and return the operators that rest in the pass which takes in the sources.

    Args:
        operators: of the root scope, in the order in which they run.
        pasts: what reads each source as of the time, by the number of its node.
        at: the time at which the program goes on.
    """
    is_written = {
        output.sink: output.done > at and not (output.corrects or output.compares) for output in outputs.every
    }
    by_operator = {accumulation.operator: accumulation for accumulation in accumulations}
    nulls, states = NullsAndSigns(plan, pasts), dict[Operator, Ints]()
    for output in outputs.every:
        operator = output.sink.inputs[0]
        accumulation = by_operator.get(operator) if is_written[output.sink] else None
        if accumulation is None or accumulation.operator.arrangement in states:
            continue
        past = output.read_past(plan.name, at)
        seeds = Seeds.find(past, accumulation, plan, nulls, domain)
        state = None if seeds is None else seeds.updates(None)
        past.close()
        if state is not None:
            states[accumulation.operator.arrangement] = state
    for arrangement, state in states.items():  # All reads are done: the rest cannot fail, and is not repeated.
        assert isinstance(arrangement, Arrangement)
        arrangement.restore(state, at)
    return _find_resting(operators, is_written, {*states})


def _find_resting(
    operators: Sequence[Operator], is_written: Mapping[SinkOperator, bool], restored: set[Operator]
) -> set[Operator]:
    """Return the operators whose results in this pass are not needed."""
    gives_later = set[Operator]()
    for operator in operators:
        passes_on = isinstance(operator, PASSING) and not gives_later.isdisjoint(operator.inputs)
        moves = operator.moves_times and not isinstance(operator, Arrangement)
        if passes_on or moves or not isinstance(operator, (*PASSING, *WAITING)):
            gives_later.add(operator)
    needed, resting = set[Operator](), set[Operator]()
    for operator in reversed(operators):
        brings_more = operator.moves_times or not gives_later.isdisjoint(operator.inputs)
        if operator.may_rest and operator not in needed and not brings_more:
            resting.add(operator)
            continue
        match operator:
            case SinkOperator():
                has_all = is_written[operator]
            case KeptLinear():
                has_all = operator.is_restored
            case _:
                has_all = operator in restored or isinstance(operator, ProbeOperator)
        if brings_more or not has_all:
            needed.update(operator.inputs)
    return resting
