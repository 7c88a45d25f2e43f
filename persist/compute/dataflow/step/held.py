"""What outputs hold as sources of the very step that adds to them.

An output that switches its definition takes away all that it held before. An output of groups has records that stand
for them (`standing.py`): with these as a source, none of the records of the past is read. Either way a source is added
to the plan that is no input of the program: it is read as of the time before the step, from the output.
"""

from collections.abc import Mapping

from persist.codecs.types.schema import TIME
from persist.compute.dataflow.plan.plan import Concat, Linear, Persist, Plan, Source
from persist.compute.dataflow.plan.stages import Delay, Negate
from persist.compute.dataflow.ports.output import Output
from persist.compute.dataflow.ports.sinks import Outputs
from persist.compute.dataflow.step.reading import Past
from persist.compute.dataflow.step.standing import Doubts, is_of_groups, sources_before, stand_in, standing_in
from persist.core.expression.term import col


def corrected(plan: Plan, outputs: Outputs) -> dict[int, tuple[Output, int]]:
    """Change a plan so that an output that switches takes away what it held before, at the time of the switch.

    Return the sources that are what an output held, each with the output and the time as of which it held that.
    """
    own: dict[int, tuple[Output, int]] = {}
    for output in outputs.every:
        if not output.corrects:
            continue
        [sink] = [
            node
            for node in plan.nodes.values()
            if isinstance(node.operator, Persist) and node.operator.collection == output.sink.collection
        ]
        at = Delay(col(TIME).max_with(output.upper).term)
        old = plan.add(Source(output.handle.name), (), sink.schema)
        own[old.number] = (output, output.upper - 1)
        gone = plan.add(Linear((Negate(), at)), (old.number,), sink.schema)
        come = plan.add(Linear((at,)), sink.inputs, sink.schema)
        both = plan.add(Concat(), (come.number, gone.number), sink.schema)
        plan.change(sink.number, inputs=(both.number,))
    return own


def stood_in(
    plan: Plan, outputs: Outputs, pasts: Mapping[str, Past], as_of: int
) -> tuple[dict[int, tuple[Output, int]], dict[int, Doubts]]:
    """Let records stand for groups in a plan, as far as that can be.

    Args:
        pasts: of each source, as of the same time.

    Returns:
        The sources that are what an output held, as `corrected` does, and the reductions, with what these do not tell.
    """
    own: dict[int, tuple[Output, int]] = {}
    doubts: dict[int, Doubts] = {}
    by_collection = {
        output.sink.collection: output
        for output in outputs.every
        if output.upper - 1 == as_of >= 0
        and not (output.corrects or output.compares)
        and (output.handle.contents().since.time or 0) <= as_of
    }
    for standing in standing_in(plan, [*by_collection], lambda source, column: pasts[source].may_be_null(column)):
        if not standing.is_complete:
            sources = sources_before(plan, standing.reduce)
            was_positive = sources is not None and all(pasts[name].was_positive for name in sources)
            stays_positive = was_positive and all(pasts[name].stays_positive for name in sources or ())
            of_groups = is_of_groups(plan, standing.reduce)
            if (standing.unsure and not stays_positive) or (not was_positive and of_groups):
                continue
            if standing.ends and not (
                was_positive and not of_groups and all(pasts[name].only_grows for name in sources or ())
            ):
                continue
            sums = None if was_positive else standing.sums
            doubts[standing.reduce.number] = Doubts(standing.keys, standing.unsure, sums)
        assert isinstance(standing.sink.operator, Persist)
        held = stand_in(plan, standing, as_of)
        own[held.number] = (by_collection[standing.sink.operator.collection], as_of)
    return own, doubts
