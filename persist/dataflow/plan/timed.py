"""Whether a plan looks at the times of updates as data.

Such a plan is not indifferent to compaction: it tells a record that came at 5 from one that came at 7. So what its
sources hold at the last sealed time is not all that it needs to go on. What the operators that tell times apart have
given is kept in hidden collections (`persist.dataflow.ports.kept`); where it is not, the sources must be read from
where the program began.
"""

from persist.codecs import TIME
from persist.dataflow.plan.plan import Join, Linear, Node, Persist, Plan, Reduce, Source
from persist.dataflow.plan.stages import Delay, Explode, Filter, Map, Stage, TemporalFilter
from persist.expression import Term, columns_of


def reads_time(plan: Plan) -> bool:
    """Return whether an expression of a plan reads `_time`."""
    return any(TIME in columns_of(each) for stage in _stages(plan) for each in _expressions(stage))


def tells_times(node: Node) -> bool:
    """Return whether what a linear operator gives for a record depends on when it came.

    That of `delay` does: it refuses what is late, and lets nothing be late that was in time.
    """
    return isinstance(node.operator, Linear) and any(
        isinstance(stage, Delay) or any(TIME in columns_of(each) for each in _expressions(stage))
        for stage in node.operator.stages
    )


def kept_apart(plan: Plan) -> set[int]:
    """Return the operators that tell times apart, in a plan that makes collections of collections: each stays an
    operator of its own."""
    kinds = {type(node.operator) for node in plan.nodes.values()}
    if not {Persist, Source} <= kinds:
        return set()
    return {node.number for node in plan.nodes.values() if tells_times(node)}


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


def _expressions(stage: Stage) -> list[Term]:
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
