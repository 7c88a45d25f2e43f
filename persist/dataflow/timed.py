"""Whether a plan looks at the times of updates as data.

Such a plan is not indifferent to compaction: a record that came at 5 and one that came at 7 are told apart by it. So
its sources must be read from where the program began, and not from where its outputs are sealed.
"""

from persist.codecs.types.schema import TIME
from persist.dataflow.expression import Expression, columns_of
from persist.dataflow.plan import Join, Linear, Plan, Reduce
from persist.dataflow.stages import Delay, Explode, Filter, Map, Stage, TemporalFilter


def reads_time(plan: Plan) -> bool:
    """Return whether an expression of a plan reads `_time`."""
    return any(TIME in columns_of(each) for stage in _stages(plan) for each in _expressions(stage))


def _stages(plan: Plan) -> list[Stage]:
    found: list[Stage] = []
    for node in plan.nodes.values():
        match node.operator:
            case Linear(stages):
                found += stages
            case Join(_, before, after, _):
                found += [*(stage for each in before for stage in each), *after]
            case Reduce(_, _, _, before, after):
                found += [*before, *after]
    return found


def _expressions(stage: Stage) -> list[Expression]:
    match stage:
        case Map(outputs):
            return [each for _, each in outputs]
        case Filter(condition):
            return [condition]
        case Explode(by):
            return [by]
        case Delay(to, _):
            return [to]
        case TemporalFilter(lower, upper, _):
            return [each for each in (lower, upper) if each is not None]
    return []
