"""Which indexes the steps of a plan would want: records are needed by columns that a source is not in the order of.

A plan tells that without any data. Records are taken to stand for groups wherever an output holds enough, as they do in
most steps (`standing.py`): without them, the past of a group is needed by the columns of the group, too.
"""

from collections.abc import Callable

from persist.dataflow.plan.plan import Persist, Plan, Source
from persist.dataflow.step.stages import Keys, cut, why_not
from persist.dataflow.step.standing import stand_in, standing_in
from persist.dataflow.step.touched import NOTHING, needs_of

KeyOf = Callable[[str], Keys]  # The key columns of a collection.


def wanted_indexes(plan: Plan, key_of: KeyOf) -> list[tuple[str, Keys]]:
    """Return the collections of a plan, each with columns that its steps would look records up by, and cannot yet.

    Args:
        plan: changed by this.
        key_of: of each collection that it reads.
    """
    plan = plan.without_unused()
    if why_not(plan) is not None:
        return []
    sources = {number for number, node in plan.nodes.items() if isinstance(node.operator, Source)}
    outputs = [node.operator.collection for node in plan.nodes.values() if isinstance(node.operator, Persist)]
    for standing in standing_in(plan, outputs, lambda collection, column: False):
        stand_in(plan, standing, 0)
    stages = cut(plan)
    needs = needs_of(stages)
    wanted = dict[tuple[str, Keys], None]()
    for stage in stages:
        if stage.source is None or stage.source.number not in sources:
            continue
        assert isinstance(stage.source.operator, Source)
        collection = stage.source.operator.collection
        key = key_of(collection)
        for term in sorted(needs.get(stage.source.number, NOTHING) or (), key=repr):
            if term.columns and {*term.columns} != {*key[: len(term.columns)]}:
                wanted[collection, tuple(sorted(term.columns))] = None
    return [*wanted]
